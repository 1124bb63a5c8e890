"""The import graph: data flows one way, siblings do not meet, the core names no backend, clients use public names."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import vendor_sdk
from vendor_sdk.pages import CLASSES

ROOT = Path(__file__).resolve().parent.parent

STAGES = ("capture", "normalize", "partition", "schedule", "plan", "codegen", "run")
LAYERS = (
    ("errors",),
    ("torch_checked",),
    ("torch_private",),
    ("prims",),
    ("ir",),
    ("contract",),
    ("lower", "native", "script", "terminal"),
    STAGES,
    ("debug", "resting"),
    ("check", "dump"),
    ("watch", "routes", "launches"),
    ("guards",),
    ("pipeline", "kernel_report"),
    ("aot",),
    ("closure", "dynamo", "explanation", "model_file", "repro", "scaffold"),
    ("doctor", "advice", "minify", "profiling"),
    ("pages",),
    ("commands",),
    ("cli",),
)
"""What a part of ``vendor_sdk`` may import: itself and any lower layer, and never another part of its own layer, save that
``torch_private`` may be imported by all."""

LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
BACKENDS = ("cpp_cpu", "triton_gpu", "onnxruntime", "mychip", "vecchip")


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[int, str, str]]:
    """(line, module, name) of everything that a file imports, inside functions and for types too; no name for a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            yield from ((node.lineno, node.module or "", alias.name) for alias in node.names)


def part_of(path: Path) -> str:
    """``"prims"`` for vendor_sdk/prims/row.py, ``"errors"`` for vendor_sdk/errors.py."""
    return path.relative_to(ROOT / "vendor_sdk").parts[0].removesuffix(".py")


def parts_imported(module: str, name: str) -> str | None:
    """The part of ``vendor_sdk`` that an import reaches, None for other packages."""
    steps = [*module.split("."), *([name] if name else [])]
    if steps[0] != "vendor_sdk":
        return None
    return steps[1] if len(steps) > 1 and steps[1] in LEVEL else "__init__"


def violations(path: Path) -> list[str]:
    """Imports of one file of ``vendor_sdk`` that go up or sideways."""
    part, wrong = part_of(path), []
    for line, module, name in imports(path):
        target = parts_imported(module, name)
        if target is None or target in (part, "torch_private"):
            continue
        if (module, name) != ("vendor_sdk", "__version__") and (target == "__init__" or LEVEL[target] >= LEVEL[part]):
            wrong.append(f"{path.relative_to(ROOT)}:{line}: {part} imports {target} ({module} {name})")
    return wrong


def test_every_part_has_its_place() -> None:
    parts = {part_of(path) for path in files("vendor_sdk")} - {"__init__"}
    assert parts <= set(LEVEL), f"say in LAYERS what {parts - set(LEVEL)} may import"


def test_imports_go_one_way_and_siblings_do_not_meet() -> None:
    paths = [path for path in files("vendor_sdk") if part_of(path) != "__init__"]
    assert len(paths) > 40
    assert not [wrong for path in paths for wrong in violations(path)]


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("prims/x.py", "from vendor_sdk.ir.loop import LoopKernel"),
        ("lower/x.py", "from vendor_sdk.capture import graph"),
        ("contract/x.py", "def f():\n    from vendor_sdk import pipeline"),
        ("run/x.py", "import vendor_sdk.pipeline"),
        ("errors.py", "from vendor_sdk.prims.row import Prim"),
        ("codegen/x.py", "from vendor_sdk import Backend"),
    ],
)
def test_the_check_finds_a_planted_violation(place: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    path = tmp_path / "vendor_sdk" / place
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert len(violations(path)) == 1


def not_public(path: Path) -> list[str]:
    """What a file of a client takes of ``vendor_sdk`` that no vendor may: what it does not export, or calls private."""
    wrong, of_sdk = [], set()
    nodes = list(ast.walk(ast.parse(path.read_text())))
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "vendor_sdk":
                    of_sdk.add(alias.asname or "vendor_sdk")
                elif alias.name.startswith("vendor_sdk."):
                    wrong.append((node.lineno, alias.name))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "vendor_sdk":
            for alias in node.names:
                if node.module != "vendor_sdk" or alias.name not in vendor_sdk.__all__:
                    wrong.append((node.lineno, f"{node.module}.{alias.name}"))
                elif alias.name in vendor_sdk._MODULES:
                    of_sdk.add(alias.asname or alias.name)
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func).rpartition(".")[2]
            names = [each.value for each in node.args if isinstance(each, ast.Constant)]
            if called in ("import_module", "__import__") and any(str(name).startswith("vendor_sdk.") for name in names):
                wrong.append((node.lineno, ast.unparse(node)))
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in of_sdk:
            public = node.attr in vendor_sdk.__all__ if node.value.id == "vendor_sdk" else not node.attr.startswith("_")
            if not public:
                wrong.append((node.lineno, f"{node.value.id}.{node.attr}"))
    return [f"{path.relative_to(ROOT)}:{line}: {what}" for line, what in wrong]


CLIENTS = {"reference_backends": 50, "conformance": 40, "examples": 10}
"""Folders of clients, and fewer files than each has."""


@pytest.mark.parametrize("client", CLIENTS)
def test_clients_use_public_names_only(client: str) -> None:
    paths = files(client)
    assert len(paths) > CLIENTS[client]
    assert not [wrong for path in paths for wrong in not_public(path)]


@pytest.mark.parametrize(
    "text",
    [
        "from vendor_sdk.ir.loop import LoopKernel",
        "from vendor_sdk.ir import loop",
        "from vendor_sdk import pipeline",
        "def f():\n    import vendor_sdk.pipeline",
        "if TYPE_CHECKING:\n    from vendor_sdk.ir.primgraph import PrimGraph",
        "import vendor_sdk\nvendor_sdk.pipeline.compile_graph",
        "import vendor_sdk\nvendor_sdk._HOMES",
        "from vendor_sdk import index\nindex._secret",
        "import importlib\nimportlib.import_module('vendor_sdk.pipeline')",
    ],
)
def test_the_check_of_clients_finds_a_planted_violation(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    path = tmp_path / "plugin.py"
    path.write_text(text)
    assert len(not_public(path)) == 1
    path.write_text("import vendor_sdk\nfrom vendor_sdk import index\nindex.to_c\nvendor_sdk.Backend\nvendor_sdk.index")
    assert not not_public(path)


def test_conformance_and_the_core_never_import_a_backend() -> None:
    for package in ("conformance", "vendor_sdk"):
        for path in files(package):
            packages = {module.split(".")[0] for _, module, _ in imports(path)}
            assert not packages & {"reference_backends", "examples", "mychip", "vecchip"}, path


def test_backends_do_not_import_each_other() -> None:
    for path in files("reference_backends"):
        own = path.relative_to(ROOT / "reference_backends").parts[0]
        for line, module, _ in imports(path):
            steps = module.split(".")
            assert steps[0] != "reference_backends" or steps[1:2] in ([own], []), f"{path}:{line} imports {module}"


def test_the_core_names_no_backend() -> None:
    for package in ("vendor_sdk", "conformance"):
        for path in files(package):
            for node in ast.walk(ast.parse(path.read_text())):
                words = [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []
                words += [node.id] if isinstance(node, ast.Name) else []
                named = [name for word in words for name in BACKENDS[:3] if name in word]
                assert not named, f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)} names {named}"


def test_only_one_module_touches_private_torch_names() -> None:
    wrong = []
    for path in files("vendor_sdk"):
        if part_of(path) == "torch_private":
            continue
        for line, module, name in imports(path):
            steps = [*module.split("."), name]
            # torch._dynamo.register_backend, list_backends and reset are documented for backend authors.
            if steps[0] == "torch" and any(step.startswith("_") for step in steps) and steps[1] != "_dynamo":
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {module} {name}")
    assert not wrong


def test_public_names_resolve_and_are_told_three_times_alike() -> None:
    for name in vendor_sdk.__all__:
        assert getattr(vendor_sdk, name) is not None
    assert len(set(vendor_sdk.__all__)) == len(vendor_sdk.__all__)
    lazy = {name for names in vendor_sdk._HOMES.values() for name in names.split()} | set(vendor_sdk._MODULES)
    assert lazy | {"__version__"} == set(vendor_sdk.__all__)
    typed = {
        name: module for _, module, name in imports(ROOT / "vendor_sdk" / "__init__.py") if module.startswith("vendor_sdk")
    }
    for module, names in vendor_sdk._HOMES.items():
        for name in names.split():
            assert typed[name] == module
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = vendor_sdk.no_such_name


def test_public_functions_survive_the_import_of_a_module_of_their_name() -> None:
    program = "import vendor_sdk; vendor_sdk.Explanation; assert callable(vendor_sdk.explain), vendor_sdk.explain"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_documented_classes_are_public() -> None:
    for cls in CLASSES:
        assert getattr(vendor_sdk, cls.__name__) is cls


def test_what_answers_at_once_imports_no_torch(tmp_path: Path) -> None:
    """``import vendor_sdk``, ``list``, ``doctor --fast``, ``new`` and ``completion``: torch takes seconds, they do not."""
    program = """
import sys
import vendor_sdk
dir(vendor_sdk)
from vendor_sdk.cli import main
for words in ("list", "list --json", "doctor --fast", "new freshchip --route emitter", "completion bash", "--help"):
    try:
        main(words.split())
    except SystemExit as done:
        assert words.startswith("doctor") or not done.code, (words, done.code)
    slow = {"torch", "numpy", "scipy", "sympy", "jsonschema", "pytest"} & set(sys.modules)
    assert not slow, (words, slow)
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=60, stdout=subprocess.DEVNULL)


def test_what_captures_nothing_imports_no_dynamo() -> None:
    """The rows, the pipeline, and the process of the suite that starts others: its import takes nearly as long as torch's.
    Nor scipy's functions, which are references of a few rows."""
    program = "import sys, conformance.run, vendor_sdk.pipeline; assert not {'torch._dynamo', 'scipy.special'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_the_sdk_works_with_no_backend_installed(tmp_path: Path) -> None:
    """The reference backends and example chips hidden (`tests/without.py`), a plugin compiles, is explained and is listed;
    `pytest --without all` runs the SDK's own tests so."""
    program = """
from tests import without
without.hide(without.PACKAGES)
import torch
import vendor_sdk
from vendor_sdk.cli import main
from vendor_sdk.contract import discovery

assert discovery.installed().names == ()

class Plugin:
    @vendor_sdk.hookimpl
    def backend(self):
        return vendor_sdk.Backend(name="lone", version="1", dtypes=frozenset({torch.float32}))

    @vendor_sdk.hookimpl
    def kernels(self):
        return {"add": lambda x, y, *, alpha=1: torch.add(x, y, alpha=alpha)}

vendor_sdk.register(Plugin())
x = torch.randn(3, requires_grad=True)
torch.compile(lambda x: (x + x).exp().sum(), backend="lone")(x).backward()
assert torch.allclose(x.grad, 2 * (2 * x).exp())
assert vendor_sdk.explain(lambda x: x + x, x, backend="lone", show=False).graphs[0].placements[0].placement.kind == "native"
main(["list"], standalone_mode=False)
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=120, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("module", "name"), [("torch._guards", "TracingContext"), ("torch._inductor.output_code", "OutputCode")]
)
def test_a_torch_that_lacks_a_private_name_is_named(module: str, name: str) -> None:
    program = f"import {module} as module; del module.{name}\nimport vendor_sdk.torch_private.dynamo"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "TorchVersionError: vendor-sdk: torch 2." in ended.stderr
    assert f"why: ImportError: cannot import name '{name}'" in ended.stderr
    assert "fix: take torch 2." in ended.stderr
