"""One model of the zoo, as its user meets it: ``torch.compile``, called for inference and trained. Runs in a worker process,
alone on the machine.

Its loss and logits are held against eager in float64, twenty training steps against eager's; both are timed beside eager.
Counted are graphs, graph breaks, compilations after the first two calls, kernels, and nodes that run on the host each time.
"""

from __future__ import annotations

import copy
import functools
import gc
import importlib.util
import math
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import vendor_sdk
from conformance import witness
from conformance.cases import Case, seed_of
from conformance.memory import peak_memory
from conformance.outcome import Failure, Outcome
from conformance.performance import NO_SLOWER
from conformance.placements import weakest
from conformance.subject import OPAQUE, Placed, Subject
from conformance.timing import Race, at_least, interval, timed
from conformance.zoo import ZOO
from vendor_sdk import Effort

Tensor = torch.Tensor

STEPS = 20
RATE = 1e-3
"""Of plain gradient descent: twenty steps move the loss, and rounding does not decide where to."""
ROUNDS = {Effort.QUICK: 5, Effort.STANDARD: 5, Effort.FULL: 15}
TIMES_EAGER = 4.0
"""An error may be so many times that of eager float32, both against float64."""
FLOOR = 32 * torch.finfo(torch.float32).eps
"""And at least this part of the magnitude."""
APART = 2e-3
"""Largest difference of a loss from eager's over all steps, in parts of eager's loss, where rounding leads no further
(``_exact_losses``)."""
GRADIENTS = 2e-3
"""Largest difference of a parameter's gradient from eager's in the first step, in parts of its norm; parameters whose gradients
are small are held against ``SMALL`` of the largest norm."""
SMALL = 1e-3
BACKEND, EAGER = "compiled", "eager"
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class _Loss(nn.Module):
    """A model of the zoo as a function of tensors, of which the first result is the loss."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        made = self.model(**dict(zip(self.names, inputs, strict=True)))
        if isinstance(made, Tensor):
            return (made,)
        return (made.loss, made.logits) if getattr(made, "logits", None) is not None else (made.loss,)


@dataclass
class _Model:
    """A model with what it is called with.

    Attributes:
        module: without dropout, so that runs can be compared; batch norms take the statistics of the batch.
        inputs: a first set.
        again: makes an equal one.
    """

    module: _Loss
    inputs: list[Tensor]
    device: torch.device
    generator: torch.Generator
    again: Callable[[], _Model]

    def fresh(self) -> list[Tensor]:
        """Inputs of the same shapes: values and tokens mixed anew among places and numbers."""
        found = []
        for tensor in self.inputs:
            flat = tensor.reshape(-1)
            mixed = flat[torch.randperm(flat.numel(), generator=self.generator).to(self.device)]
            if tensor.is_floating_point():
                mixed = mixed * float(0.75 + 0.5 * torch.rand((), generator=self.generator))
            found.append(mixed.view_as(tensor) if tensor.is_floating_point() or len(set(flat.tolist())) > 2 else tensor)
        return found


def _build(name: str, seed: int, device: torch.device) -> _Model:
    torch.manual_seed(seed)
    model, inputs = ZOO[name]()
    for each in model.modules():
        each.train(isinstance(each, NORMS))
    generator = torch.Generator().manual_seed(seed)
    again = functools.partial(_build, name, seed, device)
    return _Model(_Loss(model, tuple(inputs)).to(device), [t.to(device) for t in inputs.values()], device, generator, again)


def missing(name: str) -> str:
    """Why the model cannot be built here, ``""`` when it can."""
    needed = name not in ("unet", "lstm") and importlib.util.find_spec("transformers") is None
    return "transformers is not installed (pip install transformers)" if needed else ""


def measure_model(
    subject: Subject, case: Case, *, effort: Effort, seed: int, device: torch.device
) -> tuple[Outcome, dict[str, Any]]:
    """Runs a model both ways; what came out, and the measurements as they stand in the report."""
    why = missing(case.prim)
    if why:
        return Outcome("no-samples", reason=why), {"parts": []}
    outcome, parts, placed = Outcome("pass"), [], list[Placed]()
    for label, run in (("inference", _inference), ("training", _training)):
        torch.compiler.reset()
        gc.collect()
        found = _Part(label)
        try:
            run(subject, _build(case.prim, seed_of(case, seed), device), found, ROUNDS[effort])
        except Exception as problem:
            traceback.print_exc()
            found.failures.append(Failure(-1, label, "exception", f"{type(problem).__name__}: {problem}"[:2000]))
        outcome.failures += found.failures
        outcome.samples += 1
        outcome.compared += found.verified > 0
        outcome.fresh += found.verified > 1
        outcome.worst = max(outcome.worst, found.worst)
        placed += found.placed
        parts.append(found.record())
    tampered = witness.replaced()
    if tampered:
        outcome.failures.append(Failure(-1, "", "tampered", f"replaced by the backend: {', '.join(tampered)}"))
    outcome.placement, outcome.reason = (OPAQUE, "") if subject.opaque else weakest(placed)
    gates = {part["gate"] for part in parts}
    if any(failure.kind == "exception" for failure in outcome.failures):
        outcome.verdict = "error"
    elif outcome.failures:
        outcome.verdict = "fail"
    elif "fail" in gates:
        outcome.verdict = "slow"
    elif "inconclusive" in gates:
        outcome.verdict = "inconclusive"
    return outcome, {"parts": parts}


@dataclass
class _Part:
    """What is found of inference, or of training."""

    label: str
    failures: list[Failure] = field(default_factory=list)
    placed: list[Placed] = field(default_factory=list)
    race: Race = field(default_factory=Race)
    verified: int = 0
    worst: float = 0.0
    graphs: int | None = None
    kernels: int | None = None
    graph_breaks: int = 0
    recompiles: int = 0
    peak: int | None = None
    losses: list[tuple[float, float]] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """As it stands in the report."""
        timed = BACKEND in self.race.seconds
        speedup = self.race.ratio(EAGER, BACKEND) if timed else None
        gate = "inconclusive" if speedup is None else at_least(speedup, NO_SLOWER)
        host = sorted({each.prim for each in self.placed if each.kind == "host"})
        return {
            "label": self.label, "graphs": self.graphs, "graph_breaks": self.graph_breaks, "recompiles": self.recompiles,
            "kernels": self.kernels, "host_nodes": sum(each.kind == "host" for each in self.placed), "host_prims": host,
            "peak_bytes": self.peak, "verified_results": self.verified,
            "seconds": interval(self.race.seconds[BACKEND]).record() if timed else None,
            "rounds": self.race.rounds(), "spread": round(self.race.spread(BACKEND), 4) if timed else None,
            "speedup": speedup.record() if speedup else None, "gate": "fail" if self.recompiles else gate,
            "losses": [[_written(a), _written(b)] for a, b in self.losses],
        }  # fmt: skip

    def see(self, observed: vendor_sdk.Observed, subject: Subject) -> None:
        """What was compiled by the first calls."""
        self.graph_breaks = len(observed.graph_breaks)
        if not subject.opaque:
            self.graphs = len(observed.graphs)
            self.kernels = sum(graph.launches for graph in observed.graphs)
            self.placed = [
                Placed(each.name, each.prim, str(each.placement.kind), each.placement.reason)
                for graph in observed.graphs
                for each in graph.placements
            ]


def _exact(module: nn.Module) -> nn.Module:
    """A copy in float64. Mixtures of experts multiply expert by expert there: torch's product of groups has no float64."""
    exact = copy.deepcopy(module).double()
    for each in exact.modules():
        config = getattr(each, "config", None)
        if getattr(config, "_experts_implementation", None) == "grouped_mm":
            config._experts_implementation = "eager"  # type: ignore[union-attr]
    return exact


def _smooth(module: nn.Module) -> nn.Module | None:
    """A copy in which functions whose derivative jumps are others that are like them; None where there are none.

    Where it jumps, the last digit of a sum decides where a gradient goes: of a million numbers in float32 one is close enough.
    """
    smooth, found = copy.deepcopy(module), False
    for parent in list(smooth.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.ReLU | nn.ReLU6):
                setattr(parent, name, nn.GELU())
            elif isinstance(child, nn.MaxPool2d):
                setattr(parent, name, nn.AvgPool2d(child.kernel_size, child.stride, child.padding))
            else:
                continue
            found = True
    return smooth if found else None


def _written(loss: float) -> float | None:
    """As it stands in the report: JSON has nothing that is not finite."""
    return float(f"{loss:.7g}") if math.isfinite(loss) else None


def _inference(subject: Subject, model: _Model, part: _Part, rounds: int) -> None:
    module = model.module
    exact = _exact(module)
    compiled = subject.through_torch(module)
    with torch.no_grad():
        with vendor_sdk.observe() as observed:
            for _ in range(2):
                inputs = model.fresh()
                results = compiled(*inputs)
                wanted = exact(*(_double(each) for each in inputs))
                _compare(part, results, module(*inputs), wanted)
            part.see(observed, subject)
        if part.failures:
            return
        with vendor_sdk.observe() as observed:
            for turn in range(rounds):
                inputs = model.fresh()
                ways: dict[str, Callable[..., Any]] = {BACKEND: compiled, EAGER: module}
                samples = {
                    name: timed(ways[name], [inputs], subject.synchronize, {})
                    for name in (ways if turn % 2 else reversed(ways))
                }
                part.race.add({name: sample.seconds for name, sample in samples.items()})
                _compare(part, samples[BACKEND].results[0], samples[EAGER].results[0], None)
            part.recompiles += len(observed.recompiles)
        with peak_memory(model.device) as measured:
            compiled(*model.inputs)
            subject.synchronize()
        part.peak = measured.bytes


def _training(subject: Subject, model: _Model, part: _Part, rounds: int) -> None:
    """Forward, backward, step: ``STEPS`` of them beside eager's on equal inputs."""
    smooth = _smooth(model.module)
    if smooth is not None:
        _gradients(part, (subject.through_torch(smooth), smooth), (twin := copy.deepcopy(smooth), twin), model.inputs)
    if part.failures:
        return
    eager = copy.deepcopy(model.module)
    compiled = subject.through_torch(model.module)
    ways = {BACKEND: _step(model.module, compiled), EAGER: _step(eager, eager)}
    batches = [model.inputs, model.fresh()]
    with vendor_sdk.observe() as observed:
        if smooth is None:
            _gradients(part, (compiled, model.module), (eager, eager), model.inputs)
        if part.failures:
            return
        part.losses += [_both(ways, inputs) for inputs in batches]
        part.see(observed, subject)
    with vendor_sdk.observe() as observed:
        for number in range(len(batches), STEPS):
            inputs = batches[number % 2]
            if STEPS - number > rounds:
                part.losses.append(_both(ways, inputs))
                continue
            order = list(ways) if number % 2 else list(reversed(ways))
            samples = {name: timed(ways[name], [inputs], subject.synchronize, {}) for name in order}
            part.race.add({name: sample.seconds for name, sample in samples.items()})
            part.losses.append((float(samples[BACKEND].results[0][0]), float(samples[EAGER].results[0][0])))
        part.recompiles = len(observed.recompiles)
        for reason in observed.recompiles:
            print("compiled again:", reason, flush=True)
    _judge_losses(part, model)
    if part.losses[-2][1] < part.losses[0][1] and not part.losses[-2][0] < part.losses[0][0]:
        part.failures.append(Failure(-1, part.label, "value", "the loss does not fall, and eager's does"))


def _judge_losses(part: _Part, model: _Model) -> None:
    judged, whose, allowed = part.losses, "eager's", APART
    if not all(_off(*pair) <= APART for pair in part.losses):
        exact = _exact_losses(model.again())
        judged, whose = [(mine, right) for (mine, _), right in zip(part.losses, exact, strict=True)], "float64's"
        allowed += TIMES_EAGER * max(_off(plain, right) for (_, plain), right in zip(part.losses, exact, strict=True))
    for number, (mine, wanted) in enumerate(judged):
        off = _off(mine, wanted)
        part.worst = max(part.worst, off / allowed if math.isfinite(off) else math.inf)
        if not off <= allowed:
            text = f"step {number}: loss {mine:.6g}, {whose} is {wanted:.6g}; allowed is a difference of {allowed:.3g} of it"
            part.failures.append(Failure(-1, part.label, "value", text))
            return
        part.verified += 1


def _off(loss: float, wanted: float) -> float:
    return abs(loss - wanted) / max(abs(wanted), 1e-6)


def _exact_losses(model: _Model) -> list[float]:
    """Of the same steps in float64.

    Where batch norms see few numbers and activations have corners, rounding leads the losses of a network apart, eager's from
    these too: how far, says how far others' may be.
    """
    exact = _exact(model.module)
    step = _step(exact, exact)
    batches = [[_double(each) for each in inputs] for inputs in (model.inputs, model.fresh())]
    return [float(step(*batches[number % 2])) for number in range(STEPS)]


def _gradients(
    part: _Part, mine: tuple[Callable[..., Any], nn.Module], eager: tuple[Callable[..., Any], nn.Module], inputs: list[Tensor]
) -> None:
    """Those of all parameters, before any step, against float64's with room for eager's own error; a call and the module whose
    parameters it uses, of both."""
    found = []
    exact = _exact(eager[1])
    wide = [t.double() if t.is_floating_point() else t for t in inputs]
    for call, module, given in ((*mine, inputs), (*eager, inputs), (exact, exact, wide)):
        call(*given)[0].backward()
        found.append([(name, p.grad) for name, p in module.named_parameters() if p.requires_grad])
    largest = max(float(grad.norm()) for _, grad in found[2] if grad is not None)
    for (name, one), (_, plain), (_, wanted) in zip(*found, strict=True):
        if (one is None) != (wanted is None):
            part.failures.append(Failure(-1, part.label, "value", f"{name}: a gradient where eager has none, or none"))
        elif one is not None and plain is not None and wanted is not None:
            size = max(float(wanted.norm()), SMALL * largest, 1e-30)
            off, other = (float((each.double() - wanted).norm()) / size for each in (one, plain))
            allowed = GRADIENTS + TIMES_EAGER * other
            part.worst = max(part.worst, off / allowed if math.isfinite(off) else math.inf)
            if not off <= allowed:
                text = f"gradient of {name} differs from float64's by {off:.3g} of its norm, allowed are {allowed:.3g}"
                part.failures.append(Failure(-1, part.label, "value", text))
    for _, module in (mine, eager):
        module.zero_grad(set_to_none=True)


def _step(module: nn.Module, call: Callable[..., Any]) -> Callable[..., Tensor]:
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=RATE)

    def step(*inputs: Tensor) -> Tensor:
        loss: Tensor = call(*inputs)[0]
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def _both(ways: Mapping[str, Callable[..., Tensor]], inputs: list[Tensor]) -> tuple[float, float]:
    return float(ways[BACKEND](*inputs)), float(ways[EAGER](*inputs))


def _compare(part: _Part, results: Any, eager: Any, exact: Any) -> None:
    """Against float64 where it is given; else against eager, with room for eager's own error."""
    for index, (one, plain) in enumerate(zip(results, eager, strict=True)):
        reference = (exact[index] if exact is not None else plain).double()
        scale = float(reference.square().mean().sqrt())
        allowed = FLOOR * scale + TIMES_EAGER * float((plain.double() - reference).abs().max())
        if exact is None:
            allowed = 2 * TIMES_EAGER * FLOOR * scale
        off = float((one.double() - reference).abs().max())
        part.worst = max(part.worst, off / allowed if math.isfinite(off) else math.inf)
        if not off <= allowed:
            text = f"result {index} is off by {off:.3g}, allowed is {allowed:.3g}"
            part.failures.append(Failure(-1, part.label, "value", text))
            return
    part.verified += 1


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor
