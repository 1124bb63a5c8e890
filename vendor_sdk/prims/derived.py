"""Operators one step above the prims: each is exactly other prims and is always decomposed.

Their rows are like a prim's (samples, bound, decomposition), so that the decomposition is tested the same way, but they are
not in the opset: no graph holds them after decomposition and no backend is asked for them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from vendor_sdk.prims.row import Prim

_MODULES = ("view", "indexing", "contraction", "pooling", "linalg")

DERIVED: Mapping[Any, Prim] = {
    row.target: row for module in _MODULES for row in importlib.import_module(f"vendor_sdk.prims.{module}").DERIVED
}
"""By operator; every row has a decomposition."""
