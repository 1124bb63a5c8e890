"""What a worker keeps between timed cases: the machine, measured once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from conformance.cases import MODEL, Case
from conformance.models import measure_model
from conformance.outcome import Outcome
from conformance.performance import measure_pattern
from conformance.roofline import Machine, machine
from conformance.subject import Subject
from vendor_sdk import Effort


@dataclass
class Stopwatch:
    """Runs patterns and models of one subject."""

    subject: Subject
    effort: Effort
    seed: int
    device: torch.device
    _machines: dict[str, Machine] | None = None

    def run(self, case: Case) -> tuple[Outcome, dict[str, Any]]:
        """What came out, and what was measured."""
        given = {"effort": self.effort, "seed": self.seed, "device": self.device}
        if case.kind == MODEL:
            return measure_model(self.subject, case, **given)  # type: ignore[arg-type]
        self._machines = self._machines or {}
        if case.dtype not in self._machines:
            dtypes = [getattr(torch, case.dtype)]
            self._machines[case.dtype] = machine(self.subject, self.device, dtypes, self.effort)
        return measure_pattern(self.subject, case, self._machines[case.dtype], **given)  # type: ignore[arg-type]
