"""Opset 1: the rows of all families, by name and by torch operator."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from vendor_sdk.prims.row import Composite, Prim

OPSET_VERSION = 1
"""Version of the set of prims: what a backend states in ``Backend.opset``."""

FAMILY_MODULES = (
    "pointwise",
    "comparison",
    "conversion",
    "reduction",
    "scan",
    "view",
    "indexing",
    "contraction",
    "convolution",
    "pooling",
    "sorting",
    "creation",
    "random",
    "linalg",
    "fft",
    "collective",
    "control",
    "symbolic",
)
"""One module a family, each with a tuple ``ROWS``."""


def _rows() -> Iterator[Prim]:
    for family in FAMILY_MODULES:
        yield from importlib.import_module(f"vendor_sdk.prims.{family}").ROWS


def _index(rows: Iterator[Any], key: str) -> dict[Any, Any]:
    table: dict[Any, Any] = {}
    for row in rows:
        name = getattr(row, key)
        if name in table:
            raise AssertionError(f"two rows have the {key} {name}")
        table[name] = row
    return table


OPSET: Mapping[str, Prim] = _index(_rows(), "name")
"""Every prim by its name, in the order of families."""
BY_TARGET: Mapping[Any, Prim] = _index(iter(OPSET.values()), "target")

COMPOSITES: Mapping[str, Composite] = _index(iter(importlib.import_module("vendor_sdk.prims.composites").ROWS), "name")
"""Every composite by its name: operations above the prims, which a backend may claim whole."""
COMPOSITE_BY_TARGET: Mapping[Any, Composite] = {
    target: composite for composite in COMPOSITES.values() for target in composite.targets
}
