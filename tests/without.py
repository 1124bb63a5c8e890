"""Which tests need a reference backend or an example chip, and how the others run with none there.

    pytest --without all             the SDK's own tests, with all of these hidden
    pytest --without cpp_cpu,mychip  every test that needs neither, with both hidden
    pytest --needing                 the tests that need one

Hidden is what they offer (entry points) and their code (packages), from processes that tests start too. A test needs a backend
when its file is one of the backend's (`FILES`), when it runs for several and this one stands in its brackets, or when it says
so (``pytest.mark.needs("cpp_cpu")``: an example that uses it, as a user would). All others are the SDK's own.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = {
    "cpp_cpu": "reference_backends.cpp_cpu",
    "triton_gpu": "reference_backends.triton_gpu",
    "onnxruntime": "reference_backends.onnxruntime",
    "mychip": "mychip",
    "vecchip": "vecchip",
}
FILES = {
    "test_cpp_": "cpp_cpu",
    "test_triton_": "triton_gpu",
    "test_gpu": "triton_gpu",
    "test_onnx": "onnxruntime",
    "test_mychip": "mychip",
    "test_vecchip": "vecchip",
}
"""How the names of a backend's test files begin."""
VARIABLE = "TESTS_WITHOUT"
"""Names the hidden to processes that tests start, where `hidden/sitecustomize.py` reads it."""
_NAMES = re.compile("|".join(PACKAGES))


def hide(names: Collection[str]) -> None:
    """From this process and those that it starts."""
    gone = {PACKAGES[name] for name in names} | ({"reference_backends"} if len(names) == len(PACKAGES) else set())
    for package in gone:
        sys.modules[package] = None  # type: ignore[assignment]
    found = metadata.Distribution.entry_points

    def hidden(point: metadata.EntryPoint) -> bool:
        return point.name in names or any(point.value.startswith(package) for package in gone)

    def remaining(self: metadata.Distribution) -> Any:
        return metadata.EntryPoints(point for point in found.fget(self) if not hidden(point))  # type: ignore[attr-defined]

    metadata.Distribution.entry_points = property(remaining)  # type: ignore[assignment,method-assign]
    os.environ[VARIABLE] = ",".join(sorted(names))
    os.environ["PYTHONPATH"] = python_path(str(Path(__file__).parent / "hidden"))


def python_path(*folders: object) -> str:
    """``PYTHONPATH`` of a process that a test starts: these folders, then what there is."""
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])


def needed(file: str, item: str = "", marked: Iterable[str] = ()) -> set[str]:
    """The backends that a test needs, by its file's name, its own and its marks."""
    of_file = {name for prefix, name in FILES.items() if file.startswith(prefix)}
    return of_file | set(_NAMES.findall(item.partition("[")[2])) | set(marked)


# Hooks of pytest, which conftest.py takes from here


def pytest_addoption(parser: Any) -> None:
    group = parser.getgroup("backends")
    group.addoption("--without", metavar="NAMES", default="", help="hide these backends, and leave out tests that need them")
    group.addoption("--needing", action="store_true", help="only tests that need a reference backend or an example chip")


def pytest_configure(config: Any) -> None:
    config.addinivalue_line("markers", "needs(*names): uses these backends, which are installed or lie in examples")
    given = config.getoption("without")
    names = [*PACKAGES] if given == "all" else [name for name in given.split(",") if name]
    config.hidden = frozenset(names)
    if unknown := sorted(config.hidden - PACKAGES.keys()):
        import pytest

        raise pytest.UsageError(f"--without: no backend is called {unknown[0]!r}; there are {', '.join(PACKAGES)}, and all")
    if names:
        hide(names)


def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> Any:
    """Files of hidden backends are not imported."""
    import pytest

    class Nothing(pytest.Module):
        def collect(self) -> list[Any]:
            return []

    return Nothing.from_parent(parent, path=module_path) if needed(module_path.name) & parent.config.hidden else None


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    def wanted(item: Any) -> bool:
        marked = [name for mark in item.iter_markers("needs") for name in mark.args]
        found = needed(item.path.name, item.name, marked)
        return not found & config.hidden and bool(found or not config.getoption("needing"))

    gone = [item for item in items if not wanted(item)]
    config.hook.pytest_deselected(items=gone)
    items[:] = [item for item in items if wanted(item)]


def pytest_sessionfinish(session: Any, exitstatus: int) -> None:
    """A selection may leave nothing to one of the two halves."""
    config = session.config
    if exitstatus == 5 and (config.hidden or config.getoption("needing")):
        session.exitstatus = 0
