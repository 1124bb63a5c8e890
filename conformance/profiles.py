"""Profiles: workloads, as the prims, patterns and models that they consist of, and how often their models use each prim.

Weights come from the counted models (``vendor_sdk/prims/usage.json``): a prim has the mean, over the models of a profile, of
its part of a model's calls. So a prim that every model calls at every turn weighs much, and one that no model calls nothing. In
``full`` all prims of the opset weigh the same.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from importlib.resources import files

from conformance import zoo
from conformance.patterns import PATTERNS
from vendor_sdk import ALL, OPSET

FULL = "full"
PROFILES = ("inference", "training", "llm", "vision", FULL)
PASSES: Mapping[str, str] = {"inference": "forward"}
"""Which of the counted passes a profile runs; the others train."""


@functools.cache
def _usage() -> dict[str, dict[str, dict[str, list[float]]]]:
    loaded: dict[str, dict[str, dict[str, list[float]]]] = json.loads(
        files("vendor_sdk.prims").joinpath("usage.json").read_text()
    )["models"]
    return loaded


@functools.cache
def weights(profile: str) -> dict[str, float]:
    """Prim to its weight, from 0 to 1; they add up to 1."""
    if profile == FULL:
        cases = [row.name for row in OPSET.values() if set(row.dtypes) & set(ALL)]
        return {name: 1 / len(cases) for name in cases}
    total: dict[str, float] = {}
    models = [name for name in zoo.PROFILES[profile] if name in _usage()]
    for name in models:
        uses = _usage()[name][PASSES.get(profile, "training")]
        calls = sum(use[0] for use in uses.values())
        for prim, use in uses.items():
            total[prim] = total.get(prim, 0.0) + use[0] / calls / len(models)
    return total


@functools.cache
def dtypes(profile: str) -> dict[str, frozenset[str]]:
    """Prim to the dtypes that the counted models use it in."""
    if profile == FULL:
        return {row.name: frozenset(str(dtype).removeprefix("torch.") for dtype in row.dtypes) for row in OPSET.values()}
    found: dict[str, set[str]] = {}
    for name in zoo.PROFILES[profile]:
        for prim, use in _usage().get(name, {}).get(PASSES.get(profile, "training"), {}).items():
            found.setdefault(prim, set()).update(use[3])  # type: ignore[arg-type]
    return {prim: frozenset(names) for prim, names in found.items()}


def prim_of(name: str) -> str:
    """The prim whose inputs are those of the exhaustive case of this name, ``exhaustive/exp-17``."""
    return name.partition("/")[2].rpartition("-")[0]


def part_of(kind: str, name: str, profile: str) -> bool:
    """Whether a case of this kind and name belongs to the profile."""
    if profile == FULL:
        return True
    if kind in ("composite", "fused", "behaviour"):
        return True  # of no prim in particular
    if kind == "exhaustive":
        name = prim_of(name)
    if kind == "pattern":
        return profile in PATTERNS[name].profiles
    return name in zoo.PROFILES[profile] if kind == "model" else name in weights(profile)
