"""Cases: one prim with one dtype. Which exist, how they are selected, and the samples that each stands for.

Samples never travel between processes: they are drawn again from a seed that follows from the run's seed and the case, so
that a worker, a second worker after a crash and the command line of a reproducer all see the same tensors.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from vendor_sdk import ALL, OPSET, Effort, Prim, Sample, SampleContext

DTYPES: Mapping[str, torch.dtype] = {str(dtype).removeprefix("torch."): dtype for dtype in ALL}
"""The dtypes that opset 1 certifies, by their names on the command line and in reports."""


@dataclass(frozen=True, order=True)
class Case:
    """One prim with one dtype of its data operand: what a report says yes or no to."""

    prim: str
    dtype: str

    @property
    def id(self) -> str:
        """``"erfinv[float16]"``: as in reports and in a plugin's expected failures."""
        return f"{self.prim}[{self.dtype}]"

    @property
    def row(self) -> Prim:
        return OPSET[self.prim]

    @property
    def family(self) -> str:
        return str(self.row.family)


class SelectionError(ValueError):
    """A glob or a dtype on the command line that selects nothing."""


def all_cases() -> list[Case]:
    """Every prim with every dtype that its row allows, in the order of the opset."""
    return [Case(row.name, name) for row in OPSET.values() for name, dtype in DTYPES.items() if dtype in row.dtypes]


def select(prims: Sequence[str] = (), dtypes: Sequence[str] = ()) -> list[Case]:
    """The cases whose prim matches one of the globs and whose dtype is named; an empty list selects all.

    Raises:
        SelectionError: for a glob that matches no prim, an unknown dtype, or a selection with no case in it. A typing error
            must not certify by testing nothing.
    """
    for glob in prims:
        if not any(matches(name, glob) for name in OPSET):
            raise SelectionError(f"no prim of the opset matches {glob!r}: `vendor-sdk ops` lists them")
    for name in dtypes:
        if name not in DTYPES:
            raise SelectionError(f"unknown dtype {name!r}: choose from {', '.join(DTYPES)}")
    chosen = [
        case
        for case in all_cases()
        if (not prims or any(matches(case.prim, glob) for glob in prims)) and (not dtypes or case.dtype in dtypes)
    ]
    if not chosen:
        raise SelectionError(f"no prim matching {', '.join(prims) or '*'} is defined for {', '.join(dtypes) or 'any dtype'}")
    return chosen


def shard_of(cases: Sequence[Case], shard: str | None) -> list[Case]:
    """Part ``"i/n"`` of ``cases`` (i from 1 to n): every n-th, so that the parts take about as long. ``None``: all.

    Raises:
        SelectionError: no such part, or one without a case.
    """
    if shard is None:
        return list(cases)
    found = re.fullmatch(r"(\d+)/(\d+)", shard)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise SelectionError(f"no shard {shard!r}: write I/N with I from 1 to N, as 2/8")
    part = list(cases)[int(found[1]) - 1 :: int(found[2])]
    if not part:
        raise SelectionError(f"shard {shard} of {len(cases)} cases is empty")
    return part


def matches(text: str, pattern: str) -> bool:
    """Glob with ``*`` and ``?`` only: brackets belong to case ids and mean themselves."""
    return fnmatch.fnmatchcase(text, pattern.replace("[", "[[]"))


def seed_of(case: Case, run_seed: int, purpose: str = "first") -> int:
    """Seed of a case's samples: equal in every process, different between cases and between purposes."""
    digest = hashlib.sha256(f"{run_seed}:{case.id}:{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def draw(case: Case, effort: Effort, run_seed: int, purpose: str = "first") -> list[Sample]:
    """The samples of a case; ``purpose`` names an independent stream of random numbers."""
    context = SampleContext.make(DTYPES[case.dtype], effort, seed_of(case, run_seed, purpose))
    return list(case.row.samples(context))
