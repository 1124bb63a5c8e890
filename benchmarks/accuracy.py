"""Whether a contestant computed what it should: its outputs against the same program in float64.

The error of an output is the largest ``|got - expected| / (|expected| + rms(expected))``: relative for large elements, relative
to the tensor for elements that cancellation made small. A gradient that is itself tiny beside the others (that of a bias which
a softmax cancels is zero but for rounding) is measured on a thousandth of the largest. Programs with a step in them (the sign
of a number near zero, the best of two near equals) are ``discontinuous``: there the error is
``rms(got - expected) / rms(expected)``, and at most ``STEP_CAP``: a few elements on the other side of the step do not fail it.

A contestant passes when its error is at most ``allowance`` units of the dtype's epsilon, or four times eager's error, whichever
is larger, and never more than the square root of epsilon. Eager is judged by that last limit alone. Outputs of other than
floating point dtypes are compared exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.program import Call, Mode, Program, TrainingStep, caller, leaves

ALLOWANCE = {torch.float64: 256.0, torch.float32: 64.0, torch.bfloat16: 4.0, torch.float16: 4.0}
"""Units of epsilon. A float32 exp or tanh of a row with cancellation loses a few tens; in half precision the arithmetic is
float32 and the output is rounded."""
EAGER_SHARE = 4.0
SMALLEST_SCALE = 1e-3
CHUNK = 1 << 18
"""Elements compared at a time, so that temporaries stay in the caches."""
STEP_CAP = 0.1
"""Replaces the root of epsilon for discontinuous programs: rectifiers that flip in four images move a gradient by a percent."""


@dataclass(frozen=True)
class Verdict:
    """What is known about one contestant's outputs.

    Attributes:
        error: as defined above; None where outputs are random and verified otherwise.
        limit: the largest error allowed.
        wrong: what is wrong, the empty string when nothing is.
    """

    error: float | None
    limit: float | None
    wrong: str = ""


class Judge:
    """Judges contestants of one program against float64.

    Args:
        program: inputs as contestants get them.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.expected = outcome(program if program.verify else program.in_float64())
        self.eager_error = 0.0

    def judge(self, outputs: Sequence[torch.Tensor], *, eager: bool = False) -> Verdict:
        """The verdict on ``outputs``, which ``outcome`` or a contestant returned; remembers the error of eager."""
        if wrong := _structure(outputs, self.expected):
            return Verdict(None, None, wrong)
        if self.program.verify is not None:
            return Verdict(None, None, self.program.verify(outputs, self.program.tensors()))
        scales = [_rms(expected) for expected in self.expected]
        gradients = 0 if self.program.mode is Mode.INFERENCE else len(self.program.differentiable())
        first = len(scales) - gradients
        scales[first:] = [max(scale, SMALLEST_SCALE * max(scales[first:])) for scale in scales[first:]]
        error, epsilon, allowance, place = 0.0, 0.0, 0.0, 0
        for index, (output, expected, scale) in enumerate(zip(outputs, self.expected, scales, strict=True)):
            if not output.is_floating_point():
                if not torch.equal(output, expected.to(output.dtype)):
                    return Verdict(math.inf, 0.0, f"output {index} ({output.dtype}) differs, it must be exact")
                continue
            epsilon = max(epsilon, torch.finfo(output.dtype).eps)
            allowance = max(allowance, self.program.allowance or ALLOWANCE[output.dtype])
            if (off := self._error(output, expected, scale)) > error or math.isnan(off):
                error, place = off, index
        cap = max(math.sqrt(epsilon), STEP_CAP if self.program.discontinuous else 0.0)
        if eager:
            self.eager_error = error
            limit = cap
        else:
            limit = min(max(allowance * epsilon, EAGER_SHARE * self.eager_error), cap)
        wrong = "" if error <= limit else f"output {place} is off by {error:.2g}, allowed is {limit:.2g}"
        return Verdict(error, limit, wrong)

    def _error(self, output: torch.Tensor, expected: torch.Tensor, scale: float) -> float:
        if not output.numel():
            return 0.0
        scale = max(scale, torch.finfo(torch.float64).tiny)
        chunks = zip(*(t.reshape(-1).split(CHUNK) for t in (output, expected)), strict=True)  # type: ignore[no-untyped-call]
        if self.program.discontinuous:
            error = math.hypot(*(float(torch.linalg.vector_norm(got.double() - right)) for got, right in chunks))
            error /= scale * math.sqrt(output.numel())
        else:
            error = float(torch.stack([((g.double() - r).abs_() / r.abs().add_(scale)).max() for g, r in chunks]).max())
        if math.isfinite(error):
            return error
        finite = expected.isfinite()
        if bool(finite.all()) or not torch.equal(_special(output), _special(expected)):
            return math.inf
        return self._error(output[finite], expected[finite], scale)


def outcome(program: Program) -> list[torch.Tensor]:
    """What eager computes, see ``checked``."""
    own = program.own()
    with torch.set_grad_enabled(own.mode is not Mode.INFERENCE):
        return checked(caller(own, own.function))


def checked(call: Call) -> list[torch.Tensor]:
    """The tensors to judge of a fresh call: outputs, and gradients in mode ``GRADIENT``; what ``TrainingStep.checked`` says in
    mode ``STEP``."""
    return call.checked() if isinstance(call, TrainingStep) else [leaf.detach() for leaf in leaves(call())]


def _structure(outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> str:
    if len(outputs) != len(expected):
        return f"{len(outputs)} outputs, expected {len(expected)}"
    for index, (output, wanted) in enumerate(zip(outputs, expected, strict=True)):
        if output.shape != wanted.shape:
            return f"output {index} has shape {tuple(output.shape)}, expected {tuple(wanted.shape)}"
    return ""


def _rms(expected: torch.Tensor) -> float:
    if not expected.is_floating_point() or not expected.numel():
        return 0.0
    finite = expected if bool(expected.isfinite().all()) else expected[expected.isfinite()]
    return float(torch.linalg.vector_norm(finite)) / math.sqrt(max(1, finite.numel()))


def _special(tensor: torch.Tensor) -> torch.Tensor:
    """Infinities by sign and NaN, everything else as zero."""
    return torch.where(tensor.isnan(), 2, torch.where(tensor.isinf(), tensor.sign(), 0)).to(torch.int8)
