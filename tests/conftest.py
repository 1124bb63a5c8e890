"""Fixtures: plugins registered for one test, and distributions installed for one test. Options: see `without.py`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.without import (  # noqa: F401
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_pycollect_makemodule,
    pytest_sessionfinish,
)
from vendor_sdk.contract import discovery

if sys.platform == "linux":
    from tests import nursery

    subprocess.Popen = nursery.Popen  # type: ignore[misc]


@pytest.fixture(scope="session", autouse=True)
def _guards_are_not_timed() -> Iterator[None]:
    """For each graph Dynamo empties the processor's caches, in 20 ms, to log how long its guards take."""
    from torch._dynamo import guards

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guards, "profile_guard_manager", lambda *_: 0.0)
        yield


@pytest.fixture
def fresh_graphs() -> Iterator[None]:
    """No graphs of other tests, in memory or on disk; kernels may be theirs."""
    import torch

    torch._dynamo.reset()
    with torch._functorch.config.patch(enable_autograd_cache=False):
        yield
    torch._dynamo.reset()


@pytest.fixture
def register() -> Iterator[Callable[..., str]]:
    """``register(plugin)`` offers an in-process plugin until the test ends, and returns its name."""
    import vendor_sdk

    names: list[str] = []

    def offer(plugin: Any, **keywords: Any) -> str:
        vendor_sdk.register(plugin, **keywords)
        names.append(plugin.backend().name)
        return names[-1]

    yield offer
    for name in names:
        vendor_sdk.unregister(name)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """``install(distribution, backends={...}, dynamo={...}, modules={...})`` puts a distribution on ``sys.path``."""
    before = set(sys.modules)

    def place(
        distribution: str,
        backends: Mapping[str, str],
        dynamo: Mapping[str, str] | None = None,
        modules: Mapping[str, str] | None = None,
    ) -> Path:
        root = tmp_path / distribution
        info = root / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        if dynamo is None:
            dynamo = {name: f"vendor_sdk.dynamo:{name}" for name in backends}
        groups = {discovery.GROUP: backends, discovery.DYNAMO_GROUP: dynamo}
        lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in table.items()) for group, table in groups.items()]
        (info / "entry_points.txt").write_text("\n".join(lines))
        for name, text in (modules or {}).items():
            (root / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(str(root))
        return root

    yield place
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]
    from vendor_sdk.contract import loader

    for name in [name for name, loaded in loader._loaded.items() if loaded.distribution != loader.IN_PROCESS]:
        del loader._loaded[name]
