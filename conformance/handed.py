"""A case in the hands of a worker: begun, where that can be early, and finished when its turn has come."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from conformance import behaviour, certify, fused
from conformance.cases import BEHAVIOUR, FUSED, OF_ROWS, TIMED, Case, effort_of, seed_of
from conformance.outcome import Outcome, Steps, finished
from conformance.stopwatch import Stopwatch
from conformance.subject import Subject
from conformance.worker import Settings


@dataclass
class Handed:
    """A case with all that it takes.

    Attributes:
        subject, settings, device, stopwatch: of the worker.
        only, apart, announce: as in ``certify``.
    """

    subject: Subject
    case: Case
    settings: Settings
    device: torch.device
    stopwatch: Stopwatch
    only: int | None
    apart: bool
    announce: Callable[[int], None]
    _begun: Steps | None = None
    _outcome: Outcome | None = None

    @property
    def early(self) -> bool:
        """Whether beginning it before its turn can save time. Dynamo's backends compile in the first call; a case that took its
        worker down shares the next one with nobody."""
        return self.case.kind in OF_ROWS and not self.apart and not self.subject.opaque

    def begin(self) -> None:
        """Runs to the first pause."""
        self._begun = certify.certify(self.subject, self.case, seed=self.settings.seed, **self._how())
        try:
            next(self._begun)
        except StopIteration as end:
            self._outcome = end.value

    def finish(self) -> dict[str, Any]:
        """The outcome, as the pool has it."""
        if self.case.kind in TIMED:
            outcome, measured = self.stopwatch.run(self.case)
            return {**dataclasses.asdict(outcome), "performance": measured}
        return dataclasses.asdict(self._finished())

    def _finished(self) -> Outcome:
        if self._outcome is not None:
            return self._outcome
        if self._begun is not None:
            return finished(self._begun)
        if self.case.kind in OF_ROWS:
            return finished(certify.certify(self.subject, self.case, seed=self.settings.seed, **self._how()))
        seed = seed_of(self.case, self.settings.seed)
        if self.case.kind == FUSED:
            kind = self.case.prim.partition("/")[2].rpartition("-")[0]
            return fused.certify(self.subject, kind, seed=seed, timeout=self.settings.timeout, **self._how())
        assert self.case.kind == BEHAVIOUR
        return behaviour.certify(self.subject, self.case.prim, seed=seed, memory=self.settings.memory, **self._how())

    def _how(self) -> dict[str, Any]:
        return {
            "effort": effort_of(self.settings.effort),
            "device": self.device,
            "only": self.only,
            "apart": self.apart,
            "announce": self.announce,
        }
