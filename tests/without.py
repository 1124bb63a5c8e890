"""A pytest plugin: the reference backends and example chips are not there.

    pytest -p tests.without FILE...

hides what they offer (entry points) and their code (packages), so a test that passes with it needs none of them. Tests that
run for several backends are left out for those that are hidden.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from typing import Any

PACKAGES = ("reference_backends", "mychip", "vecchip")
_NAMES = re.compile("cpp_cpu|triton_gpu|onnxruntime|mychip|vecchip")


def _hides(point: metadata.EntryPoint) -> bool:
    return point.value.split(".")[0] in PACKAGES or point.name in ("cpp_cpu", "triton_gpu", "onnxruntime", *PACKAGES)


def hide() -> None:
    for name in PACKAGES:
        sys.modules[name] = None  # type: ignore[assignment]
    found = metadata.Distribution.entry_points

    def remaining(self: metadata.Distribution) -> Any:
        return metadata.EntryPoints(point for point in found.fget(self) if not _hides(point))  # type: ignore[attr-defined]

    metadata.Distribution.entry_points = property(remaining)  # type: ignore[assignment,method-assign]


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    gone = [item for item in items if _NAMES.search(item.name.partition("[")[2])]
    if gone:
        config.hook.pytest_deselected(items=gone)
        items[:] = [item for item in items if item not in gone]


hide()
