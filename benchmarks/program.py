"""What a row runs: a function or module, its inputs, and how a call of it is to be understood."""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from vendor_sdk.errors import VendorSDKError

LEARNING_RATE = 1e-5
"""Small: thousands of timed steps on one batch must not drive gradients into subnormal numbers, which are slow."""
CHECKED_STEPS = 3
"""Training steps whose loss is compared; the second and third show what the optimizer did."""


class BenchmarkError(VendorSDKError):
    """The benchmark cannot do what was asked."""


class Mode(enum.StrEnum):
    """How a program is called."""

    INFERENCE = "inference"
    """The function on its inputs, gradients off."""
    GRADIENT = "gradient"
    """The function, then gradients of its outputs with respect to inputs and parameters that require them."""
    STEP = "step"
    """A module that returns a loss: forward, backward, AdamW, gradients dropped."""


Call = Callable[[], Any]
"""A program with its inputs, ready to be called."""
Verify = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], str]
"""Outputs and flat inputs to what is wrong with the outputs; the empty string when nothing is."""


@dataclass(frozen=True)
class Program:
    """One thing to run.

    Attributes:
        function: a function of tensors (or lists of tensors), or a module.
        inputs: positional arguments.
        mode: see ``Mode``.
        mutates: the function writes to its inputs (or, as a module, to its buffers): each contestant gets its own.
        ideal_bytes: bytes that must cross the memory bus in one call; by default each input read once and each output written
            once. A forward with its backward reads inputs twice, and reads the gradients of outputs and writes those of inputs.
        allowance: largest error, in units of the dtype's epsilon, see ``accuracy.judge``.
        discontinuous: rounding may move an output from one side of a step to the other, see ``accuracy``.
        for_reference: changes a copy of the module so that it computes the same in float64, where some operator cannot.
        verify: replaces the comparison with float64, where outputs are random.
        compiled_optimizer: in mode ``STEP``, contestants that compile also compile the optimizer's step.
    """

    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    mode: Mode = Mode.INFERENCE
    mutates: bool = False
    ideal_bytes: int | None = None
    allowance: float | None = None
    discontinuous: bool = False
    for_reference: Callable[[nn.Module], None] | None = None
    verify: Verify | None = None
    compiled_optimizer: bool = False

    def tensors(self) -> list[torch.Tensor]:
        """The inputs, flat."""
        return leaves(self.inputs)

    def own(self) -> Program:
        """A program whose inputs and parameters nobody else sees, where calls write to them; else this one."""
        if not self.mutates and self.mode is not Mode.STEP:
            return self
        function = copy.deepcopy(self.function) if isinstance(self.function, nn.Module) else self.function
        inputs = pytree.tree_map_only(torch.Tensor, _clone, self.inputs)
        return replace(self, function=function, inputs=inputs)

    def in_float64(self) -> Program:
        """A copy that computes in float64."""
        function = self.function
        if isinstance(function, nn.Module):
            function = copy.deepcopy(function)
            if self.for_reference is not None:
                self.for_reference(function)
            function = function.double()
        return replace(self, function=function, inputs=pytree.tree_map_only(torch.Tensor, _double, self.inputs))

    def least_bytes(self, outputs: Sequence[torch.Tensor]) -> int:
        """``ideal_bytes``, or what follows from inputs and ``outputs`` by the rule there."""
        if self.ideal_bytes is not None:
            return self.ideal_bytes
        inputs = sum(t.nbytes for t in self.tensors())
        written = sum(t.nbytes for t in outputs)
        if self.mode is not Mode.GRADIENT:
            return inputs + written
        gradients = sum(t.nbytes for t in self.differentiable())
        return 2 * inputs + written + (written - gradients)  # outputs are followed by gradients of inputs in `outputs`

    def differentiable(self) -> list[torch.Tensor]:
        """Inputs and parameters that require gradients."""
        parameters = self.function.parameters() if isinstance(self.function, nn.Module) else ()
        return [t for t in (*self.tensors(), *parameters) if t.requires_grad]


def leaves(value: Any) -> list[torch.Tensor]:
    """All tensors in nested outputs or inputs, in order."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _double(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor.clone()
    return tensor.detach().to(torch.float64, copy=True).requires_grad_(tensor.requires_grad)


def caller(program: Program, function: Callable[..., Any], compile_step: Callable[..., Any] | None = None) -> Call:
    """A call of ``program`` without arguments, through ``function`` (eager or compiled).

    In mode ``STEP`` the call takes one optimizer step and returns the loss; ``compile_step`` compiles the optimizer's step.
    """
    inputs = program.inputs
    if program.mode is Mode.INFERENCE:
        return lambda: function(*inputs)
    if program.mode is Mode.GRADIENT:
        return _gradients(program, function)
    return TrainingStep(program, function, compile_step)


class TrainingStep:
    """Forward, backward and optimizer of a program in mode ``STEP``; a call returns the loss.

    Attributes:
        gradients: those of the first step, to be judged; None afterwards keeps nothing.
    """

    def __init__(self, program: Program, function: Callable[..., Any], compile_step: Callable[..., Any] | None = None) -> None:
        assert isinstance(program.function, nn.Module)
        self._function, self._inputs = function, program.inputs
        self._parameters = [p for p in program.function.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(self._parameters, lr=LEARNING_RATE)
        step: Callable[[], Any] = self._optimizer.step
        self._step = compile_step(step) if compile_step is not None and program.compiled_optimizer else step
        self.gradients: list[torch.Tensor] | None = None

    def __call__(self) -> torch.Tensor:
        loss: torch.Tensor = self._function(*self._inputs)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.gradients is not None and not self.gradients:
            self.gradients.extend(p.grad.clone() for p in self._parameters if p.grad is not None)
        self._step()
        self._optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def checked(self) -> list[torch.Tensor]:
        """The losses of ``CHECKED_STEPS`` steps, then the gradients of the first."""
        self.gradients = []
        losses = [self().clone() for _ in range(CHECKED_STEPS)]
        gradients, self.gradients = self.gradients, None
        return [*losses, *gradients]


def _gradients(program: Program, function: Callable[..., Any]) -> Call:
    inputs, wanted = program.inputs, program.differentiable()
    generator = torch.Generator().manual_seed(7)
    given: list[torch.Tensor] = []

    def call() -> Any:
        outputs = leaves(function(*inputs))
        if not given:
            given.extend(_incoming(output, generator) for output in outputs)
        return (*(output.detach() for output in outputs), *torch.autograd.grad(outputs, wanted, given))

    return call


def _incoming(output: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The gradient of a loss: one. Of anything else: eighths, which are the same number in every dtype."""
    if output.ndim == 0:
        return torch.ones_like(output)
    eighths = torch.randint(-8, 9, output.shape, generator=generator, dtype=torch.int8)
    return eighths.to(output.dtype) / 8
