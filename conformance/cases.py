"""Cases: one prim, composite, fused pattern or model with one dtype, some generated graphs, or a group of programs. Which
exist, how they are selected.

Samples never travel between processes: they are drawn again from a seed that follows from the run's seed and the case, so
that a worker, a second worker after a crash and the command line of a reproducer all see the same tensors.
"""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance import derivatives, graphs, limits, patterns, profiles, quantized, semantics, zoo
from conformance.profiles import FULL, prim_of
from vendor_sdk import ALL, COMPOSITES, EVERYWHERE, OPSET, STORED, Effort, Row, Sample, SampleContext

DTYPES: Mapping[str, torch.dtype] = {str(dtype).removeprefix("torch."): dtype for dtype in (*STORED, torch.int8)}
"""The dtypes of opset 1, those that are only stored last, and of composites of quantized numbers, by their names on the command
line and in reports."""


PRIM, COMPOSITE, FUSED, BEHAVIOUR = "prim", "composite", "fused", "behaviour"
EXHAUSTIVE, PATTERN, MODEL = "exhaustive", "pattern", "model"
KINDS = (PRIM, COMPOSITE, FUSED, BEHAVIOUR, EXHAUSTIVE, PATTERN, MODEL)
TIMED = (PATTERN, MODEL)
"""Kinds whose cases run alone on the machine."""
OF_ROWS = (PRIM, COMPOSITE, EXHAUSTIVE)
"""Kinds whose cases are calls of one prim or composite."""


@dataclass(frozen=True, order=True, slots=True)
class Case:
    """One prim with one dtype of its data operand, or what its kind says: what a report says yes or no to.

    Attributes:
        prim: its name, or that of the composite (``composites/softmax``), the generated graphs (``fused/mixed-2``), the group
            of programs (``semantics/in-place``), the part of all float32 inputs of a prim (``exhaustive/exp-17``), the pattern
            or the model.
        dtype: name.
        kind: one of ``KINDS``.
    """

    prim: str
    dtype: str
    kind: str = PRIM

    @property
    def id(self) -> str:
        """``"erfinv[float16]"``, ``"pattern:softmax[float32]"``: as in reports and in a plugin's expected failures."""
        return f"{f'{self.kind}:' if self.kind in TIMED else ''}{self.prim}[{self.dtype}]"

    @property
    def row(self) -> Row:
        """Of a case of one prim or composite."""
        if self.kind == COMPOSITE:
            return COMPOSITES[self.prim.removeprefix(WHOLE)]
        return OPSET[self.prim if self.kind == PRIM else prim_of(self.prim)]

    @property
    def part(self) -> tuple[int, int] | None:
        """Which of how many parts of all inputs."""
        return (int(self.prim.rpartition("-")[2]), PARTS) if self.kind == EXHAUSTIVE else None

    @property
    def family(self) -> str:
        return str(OPSET[self.prim].family) if self.kind == PRIM else self.kind


class SelectionError(ValueError):
    """A glob or a dtype on the command line that selects nothing."""


def all_cases() -> list[Case]:
    """Every prim and then every composite with every dtype that its row allows, in the order of the opset; then the generated
    graphs and the groups of programs, with the dtype of most of their tensors."""
    prims = [Case(row.name, name) for row in OPSET.values() for name in _dtypes(row)]
    wholes = [Case(f"{WHOLE}{row.name}", name, COMPOSITE) for row in COMPOSITES.values() for name in _dtypes(row)]
    names = {dtype: name for name, dtype in DTYPES.items()}
    firsts = {kind: names[row.dtypes[0]] for kind, row in graphs.KINDS.items()}
    generated = [Case(f"fused/{kind}-{n}", firsts[kind], FUSED) for kind in firsts for n in range(1, PER_KIND + 1)]
    of = {"semantics": semantics.ACTS, "gradients": derivatives.GROUPS, "quantized": quantized.GROUPS, "limits": limits.GROUPS}
    groups = [f"{kind}/{group}" for kind, table in of.items() for group in table]
    return prims + wholes + generated + [Case(group, "float32", BEHAVIOUR) for group in groups]


def _dtypes(row: Row) -> list[str]:
    return [name for name, dtype in DTYPES.items() if dtype in row.dtypes]


WHOLE = "composites/"
"""Before the names of composites in those of their cases."""
HUGE = frozenset(f"limits/{group}" for group in limits.FULL_ONLY)
"""Groups of programs that take gigabytes: run with effort ``full``, or where they are named in full."""
PER_KIND = 4
"""Cases of each kind of generated graphs."""
PARTS = 1024
"""Cases of the 2^32 inputs of a prim in float32, as many in each."""


@functools.cache
def swept() -> list[str]:
    """The prims of one float32 tensor, of which all inputs can be tried."""
    context = SampleContext.make(torch.float32, Effort.STANDARD)
    rows = [row for row in OPSET.values() if torch.float32 in row.dtypes]
    return [row.name for row in rows if any(sample.label == EVERYWHERE for sample in row.samples(context))]


def exhaustive_cases() -> list[Case]:
    """All inputs of every prim of one float32 tensor, in parts."""
    return [Case(f"{EXHAUSTIVE}/{prim}-{n}", "float32", EXHAUSTIVE) for prim in swept() for n in range(1, PARTS + 1)]


def quick_dtypes(row: Row) -> set[str]:
    """The dtypes in which effort ``quick`` runs a prim or composite: its first, and one other that differs from row to row;
    none that are only stored."""
    names = [name for each in row.dtypes for name, dtype in DTYPES.items() if dtype == each and each in ALL]
    if len(names) < 2:
        return {*names}
    return {names[0], names[1 + zlib.crc32(row.name.encode()) % (len(names) - 1)]}


EFFORTS = ("quick", "standard", "full", "exhaustive")
FULLEST = ("full", "exhaustive")
"""Efforts that leave out nothing but, the first, most float32 inputs."""


def effort_of(name: str) -> Effort:
    """What samplers and programs are asked for by a run of this effort."""
    return Effort.FULL if name in FULLEST else Effort[name.upper()]


def performance_cases(effort: str = "full", dtypes: Sequence[str] = ()) -> list[Case]:
    """The patterns and models that are run with ``effort``, in ``dtypes`` (by default float32, and with ``full`` all of
    ``patterns.DTYPES``; models are float32)."""
    kinds = [name for name in patterns.DTYPES if (name in dtypes if dtypes else effort in FULLEST or name == "float32")]
    rows = [row for row in patterns.PATTERNS.values() if row.quick or effort != "quick"]
    models = zoo.EFFORTS["full" if effort in FULLEST else effort] if not dtypes or "float32" in dtypes else ()
    return [Case(row.name, kind, PATTERN) for row in rows for kind in kinds] + [Case(name, "float32", MODEL) for name in models]


def every_case() -> list[Case]:
    """All that any run may have, in the order of reports."""
    return [*all_cases(), *exhaustive_cases(), *performance_cases()]


@dataclass(frozen=True)
class Selection:
    """What a run is asked to do.

    Attributes:
        prims, patterns, models: globs; those of prims are for generated graphs and programs too, and name all parts of a prim's
            inputs. Where any of the three is given, kinds without a glob have no case.
        dtypes: names, empty for all.
        profile: only what is part of this workload.
        effort: decides which patterns and models are run; ``quick`` runs prims that are not named in ``quick_dtypes``, and only
            ``exhaustive`` all float32 inputs.
    """

    prims: Sequence[str] = ()
    patterns: Sequence[str] = ()
    models: Sequence[str] = ()
    dtypes: Sequence[str] = ()
    profile: str = FULL
    effort: str = "standard"

    def cases(self) -> list[Case]:
        """The cases, prims first.

        Raises:
            SelectionError: for a glob that matches nothing, an unknown dtype or profile, or a selection without a case.
        """
        given = dict.fromkeys(KINDS, self.prims) | {PATTERN: self.patterns, MODEL: self.models}
        parts = exhaustive_cases() if self.effort == "exhaustive" else []
        every = list(dict.fromkeys(case.prim for case in [*all_cases(), *parts]))
        names = dict.fromkeys(KINDS, every) | {PATTERN: list(patterns.PATTERNS), MODEL: list(zoo.ZOO)}
        for kind, globs in given.items():
            for glob in globs:
                if not any(matches(name, glob) for name in names[kind]):
                    if kind in KIND_WORDS:
                        raise SelectionError(f"no {KIND_WORDS[kind]} matches {glob!r}: they are {', '.join(names[kind])}")
                    raise SelectionError(f"no prim of the opset matches {glob!r}: {_instead(glob)}")
        for name in self.dtypes:
            if name not in DTYPES:
                raise SelectionError(f"unknown dtype {name!r}: choose from {', '.join(DTYPES)}")
        # Who names a pattern or a model gets it, whatever the effort.
        effort = "full" if self.patterns or self.models else self.effort
        dtypes = self.dtypes or (("float32",) if self.effort not in FULLEST else ())
        found = [case for case in [*all_cases(), *parts] if not self.dtypes or case.dtype in self.dtypes]
        if self.effort not in FULLEST:
            found = [case for case in found if case.prim not in HUGE or case.prim in self.prims]
        if self.effort == "quick" and not self.dtypes and not self.prims:
            found = [case for case in found if case.kind not in OF_ROWS or case.dtype in quick_dtypes(case.row)]
        found += performance_cases(effort, dtypes)
        some = any(given.values())
        found = [
            case
            for case in found
            if (any(matches(name, glob) for glob in given[case.kind] for name in _names(case)) if some else True)
            and (self.profile == FULL or profiles.part_of(case.kind, case.prim, self.profile))
        ]
        if not found:
            wanted = ", ".join((*self.prims, *self.patterns, *self.models)) or "*"
            raise SelectionError(f"no prim matching {wanted} is defined for {', '.join(self.dtypes) or 'any dtype'}")
        return found


def _names(case: Case) -> tuple[str, ...]:
    """What a glob may name it by."""
    return (case.prim, prim_of(case.prim)) if case.kind == EXHAUSTIVE else (case.prim,)


def _instead(glob: str) -> str:
    """What to select in place of a glob that matches no prim."""
    whole = [name for name in COMPOSITES if matches(name, glob)]
    found = [f"{name} is made of {', '.join(made_of(name))}; its own cases are {WHOLE}{name}" for name in whole]
    if not found and hasattr(torch.ops.aten, glob):
        found = [f"{glob} is an operator of torch that becomes prims of other names"]
    return "; ".join([*found, "`vendor-sdk ops` lists them"])


def made_of(composite: str) -> list[str]:
    """The prims that a composite calls where no backend claims it, in order, for a sample of its first dtype."""
    row, names = COMPOSITES[composite], {prim.target: prim.name for prim in OPSET.values()}
    called: dict[str, None] = {}

    class Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in names:
                called[names[func]] = None
            return func(*args, **(kwargs or {}))

    sample = next(iter(row.samples(SampleContext.make(row.dtypes[0], Effort.QUICK))))
    with Calls():  # type: ignore[no-untyped-call]
        next(iter(row.targets.values()))(*sample.args, **sample.kwargs)
    return list(called)


KIND_WORDS = {PATTERN: "pattern", MODEL: "model of the zoo"}


def select(prims: Sequence[str] = (), dtypes: Sequence[str] = ()) -> list[Case]:
    """The prims' cases that match one of the globs and whose dtype is named; an empty list selects all. Raises as
    ``Selection.cases``: a typing error must not certify by testing nothing."""
    return Selection(prims or ("*",), dtypes=dtypes).cases()


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
    context = SampleContext.make(DTYPES[case.dtype], effort, seed_of(case, run_seed, purpose), case.part)
    return [sample for sample in case.row.samples(context) if case.part is None or sample.label == EVERYWHERE]
