"""A vendor's first package, written whole: ``vendor-sdk new``."""

from __future__ import annotations

import keyword
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata, resources, util
from pathlib import Path
from typing import Literal, get_args

from vendor_sdk import __version__
from vendor_sdk.contract import discovery
from vendor_sdk.errors import BackendNameCollisionError, OptionError

Route = Literal["kernels", "emitter", "graph"]
Memory = Literal["host", "own-memory"]
ROUTES: tuple[Route, ...] = get_args(Route)
MEMORIES: tuple[Memory, ...] = get_args(Memory)


@dataclass(frozen=True)
class Scaffold:
    """What to write.

    Attributes:
        name: of the backend, the package and the distribution.
        route: by which the package offers prims.
        memory: whether tensors are the host's, or copied to a memory of the chip's own.
    """

    name: str
    route: Route = "kernels"
    memory: Memory = "host"

    def templates(self) -> dict[str, str]:
        """Path in the new folder to the template that makes it."""
        package = f"{self.name}/"
        route = {"kernels": ("kernels",), "emitter": ("emitter", "table"), "graph": ("graph",)}[self.route]
        device = "device_host" if self.memory == "host" else "device_own_memory"
        return {
            "pyproject.toml": "pyproject.toml",
            "README.md": "readme.md",
            ".gitignore": "gitignore",
            ".github/workflows/conformance.yml": "conformance.yml",
            "tests/test_conformance.py": "test_conformance.py",
            f"{package}__init__.py": "init.py",
            f"{package}py.typed": "",
            f"{package}plugin.py": "plugin.py",
            f"{package}device.py": f"{device}.py",
            **{f"{package}{module}.py": f"{module}.py" for module in route},
        }

    def files(self) -> dict[str, str]:
        """Path in the new folder to content."""
        import jinja2

        environment = jinja2.Environment(
            # Marks that mean nothing in Python, TOML, C or a workflow file.
            block_start_string="[%", block_end_string="%]", variable_start_string="<<", variable_end_string=">>",
            comment_start_string="[#%", comment_end_string="%#]", trim_blocks=True, lstrip_blocks=True,
            keep_trailing_newline=True, undefined=jinja2.StrictUndefined, autoescape=False,
        )  # fmt: skip
        source = resources.files(__package__) / "templates"
        values = {"name": self.name, "route": self.route, "device": self.memory, "sdk": __version__}
        return {
            path: environment.from_string((source / f"{template}.jinja").read_text()).render(values) if template else ""
            for path, template in self.templates().items()
        }


RESERVED = frozenset({"vendor_sdk", "conformance", "reference_backends"})
"""Packages of this distribution, which a package of the same name would hide or be hidden by."""


def check_name(name: str) -> None:
    """Raises ``OptionError`` where ``name`` cannot be a package, ``BackendNameCollisionError`` where somebody has it."""
    if not name.isascii() or not name.isidentifier() or name.startswith("_") or keyword.iskeyword(name) or name != name.lower():
        raise OptionError(
            f"{name!r} is no name for a backend",
            why="it names a Python package, and users write it in torch.compile(backend=...)",
            fix="Take lower-case letters, digits and underscores, a letter first, and no keyword of Python.",
        )
    if name in RESERVED:
        _taken(name, "a package of vendor-sdk itself")
    if name in discovery.TORCH_BACKENDS:
        _taken(name, "a backend of torch itself")
    for group in (discovery.GROUP, discovery.DYNAMO_GROUP):
        for line in metadata.entry_points(group=group, name=name):
            offered = f" ({line.dist.name} {line.dist.version})" if line.dist else ""
            _taken(name, f"an installed backend{offered}")
    if name in sys.stdlib_module_names:
        _taken(name, "a module of Python itself")
    here = Path.cwd().resolve()
    spec = util.find_spec(name)
    # What the working folder holds is no package that somebody installed.
    if spec is not None and not any(here in Path(place).resolve().parents[:2] for place in _places(spec)):
        _taken(name, f"the installed package {name}")


def write(scaffold: Scaffold, folder: Path) -> list[str]:
    """Writes the package as ``folder``, whole or not at all; the paths in it.

    Raises:
        OptionError: the name cannot be a package, or ``folder`` exists (it is left as it is).
        BackendNameCollisionError: the name is taken.
    """
    check_name(scaffold.name)
    if folder.exists() or folder.is_symlink():
        raise OptionError(f"{folder} exists, and is left as it is", fix="Choose another folder with --dir, or move that one.")
    if not folder.absolute().parent.is_dir():
        raise OptionError(f"{folder.absolute().parent} is no folder", fix="Make it first, or choose another with --dir.")
    files = scaffold.files()
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.absolute().parent) as unfinished:
        made = Path(unfinished) / "new"
        for path, content in files.items():
            (made / path).parent.mkdir(parents=True, exist_ok=True)
            (made / path).write_text(content)
        try:
            made.rename(folder)
        except OSError as error:
            raise OptionError(f"{folder} cannot be made: {error}", fix="Choose another folder with --dir.") from error
    return sorted(files)


def _places(spec: object) -> Iterable[str]:
    origin = getattr(spec, "origin", None)
    return [origin] if origin else list(getattr(spec, "submodule_search_locations", None) or ())


def _taken(name: str, owner: str) -> None:
    raise BackendNameCollisionError(
        f"the name {name!r} is taken by {owner}", fix="Choose another name, or uninstall what has it."
    )
