"""What came of a case, whatever its kind."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ABSENT = "absent"
"""Placement of a case whose prim is in no compiled graph: it was rewritten, or folded into a constant."""

UNKNOWN = "unknown"
"""Placement of a case that was never compiled."""

MESSAGE_LIMIT = 2000


@dataclass(frozen=True)
class Failure:
    """What went wrong with one sample.

    Attributes:
        sample: index in the order of the row's sampler.
        label: the sampler's words for it.
        kind: ``value``, ``shape``, ``dtype``, ``count``, ``class``, ``input-modified``, ``out-of-bounds``, ``second-call``,
            ``overwritten``, ``exception``; ``memory`` where it ran out and the caller could not tell; a kind of
            ``endure.Problem``; ``disguised``; ``not-executed``; ``tampered``;
            ``torch`` for a wrong value that has the very bits torch itself computes, or ``suite`` for a defect of the row.
        message: one or a few lines.
        script: a program of its own that shows it, where there is one.
        operands, elements: of a call of a prim, its arguments and the worst elements of its results, as ``exhibit`` makes them.
    """

    sample: int
    label: str
    kind: str
    message: str
    script: str = ""
    operands: Sequence[Mapping[str, Any]] = ()
    elements: Sequence[Mapping[str, Any]] = ()


@dataclass
class Outcome:
    """What came out of one case; see ``report.schema.json`` for the meaning of each field."""

    verdict: str
    placement: str = UNKNOWN
    reason: str = ""
    worst: float = 0.0
    samples: int = 0
    compared: int = 0
    fresh: int = 0
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)
    mutants: dict[str, Any] | None = None
    statistic: float | None = None
    curve: Sequence[float | None] | None = None


class Misbehaved(Exception):
    """A program did not do what eager does; its message says how, in a line.

    Attributes:
        kind: as of a ``Failure``.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


Steps = Generator[None, None, Outcome]
"""A case with pauses: one each time that a program was handed to the subject's compiler, which may go on in the background, and
before that program is called. Other cases may run meanwhile."""


def finished(steps: Steps) -> Outcome:
    """What comes out without pauses."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome


@dataclass(frozen=True)
class Wrong:
    """What is wrong with a result of a graph.

    Attributes:
        kind: ``value``, ``dtype``, ``shape``, ``count``, ``input-modified`` or ``exception``.
        message: one line.
        output: which result, -1 where it is not one.
        call: 0 for the first call, 1 for the second.
        index: of the worst element.
        found, low, high: what it is, and between what it may lie.
    """

    kind: str
    message: str
    output: int = -1
    call: int = 0
    index: tuple[int, ...] = ()
    found: float | int | bool = 0.0
    low: float | int | bool = 0.0
    high: float | int | bool = 0.0
