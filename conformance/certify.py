"""One case, from drawing its samples to a verdict. Runs in a worker process.

The samples of a case are compiled together, for speed. When that compile or that run raises, they are compiled one by one,
to say which sample is to blame. What is compiled is called with two sets of values, and, once both are right, again and again
(``endure``).
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from conformance import exhibit, witness
from conformance.cases import EXHAUSTIVE, PRIM, Case, draw
from conformance.counters import NOT_EXECUTED, said, stood_still
from conformance.curves import Curve, curve, larger
from conformance.endure import Problem, endure, independent
from conformance.guards import Guarded, same_bits, storage_bytes
from conformance.judge import Expectation, Judgement, expected_result, judge
from conformance.mutants import Right, Score
from conformance.outcome import MESSAGE_LIMIT, Failure, Outcome, Steps
from conformance.placements import placement
from conformance.pool import LOST_DEVICE
from conformance.program import Program, build, inputs_of, interchangeable, tensors
from conformance.subject import OPAQUE, Compiled, Placed, Subject
from conformance.subnormals import Flushing
from conformance.values import flat
from vendor_sdk import Distribution, Effort, Family, Prim, Row, Sample, errors


@dataclass(frozen=True)
class _Trial:
    """A sample with the values it must give; ``fresh`` is an independent draw of it for the second call."""

    index: int
    sample: Sample
    expected: Expectation
    fresh: Sample
    fresh_expected: Expectation

    @property
    def is_fresh(self) -> bool:
        return self.fresh is not self.sample


def certify(
    subject: Subject,
    case: Case,
    *,
    effort: Effort,
    seed: int,
    device: torch.device,
    only: int | None = None,
    apart: bool = False,
    announce: Callable[[int], None] = lambda index: None,
) -> Steps:
    """Runs ``case`` and judges every result, with a pause where the program of all samples is with the compiler.

    Args:
        subject: what is certified.
        case: prim or composite, and dtype.
        effort, seed: of the run; with ``case`` they determine the samples.
        device: where the program's tensors live.
        only: index of the single sample to run, ``None`` for all.
        apart: compile the samples one by one from the start (after a crash of all together).
        announce: called with a sample's index before it runs alone, so that a crash can be attributed.
    """
    started = time.perf_counter()
    outcome = Outcome("pass")
    try:
        trials = _trials(case, effort, seed, only, device.type, subject.target(case.row))
    except Exception as error:
        traceback.print_exc()
        outcome.failures.append(Failure(-1, "", "suite", f"the suite's own sampler or reference raised {_brief(error)}"))
        outcome.verdict = "error"
        return outcome
    outcome.samples = len(trials)
    placed: list[Placed] = []
    score = Score() if case.kind != EXHAUSTIVE and only is None else None
    ran = False
    if not apart and trials:
        try:
            result = yield from _run(subject, case, trials, device, score)
        except Exception as error:
            traceback.print_exc()
            _leave_a_lost_device(device)
            apart = len(trials) > 1
            if not apart and not _refused(trials[0], error):
                outcome.failures.append(_exception(case, trials[0]))
            else:
                trials = _trials(case, effort, seed, only, device.type, subject.target(case.row))
        else:
            placed = list(result.placed)
            ran = True
            _add(outcome, result)
    if apart:
        for trial in trials:
            announce(trial.index)
            try:
                result = yield from _run(subject, case, [trial], device, score)
            except Exception as error:
                traceback.print_exc()
                _leave_a_lost_device(device)
                if not _refused(trial, error):
                    outcome.failures.append(_exception(case, trial))
            else:
                placed += result.placed
                ran = True
                _add(outcome, result)
    if subject.opaque:
        outcome.placement = OPAQUE
    elif ran:
        outcome.placement, outcome.reason = placement(case, placed)
    outcome.verdict = _verdict(outcome)
    if score is not None and outcome.verdict == "pass":
        # Of a case that fails, the samples that would have killed a mutant may be among those that are wrong.
        outcome.mutants = score.record()
    outcome.failures = [
        failure if number < exhibit.MOST_FAILURES else replace(failure, operands=(), elements=())
        for number, failure in enumerate(outcome.failures)
    ]
    outcome.seconds = time.perf_counter() - started
    return outcome


def _random(case: Case) -> bool:
    return isinstance(case.row.bound, Distribution)


def _refused(trial: _Trial, error: Exception) -> bool:
    """Whether a kernel raised where torch leaves the values open, as torch's own kernels do for some."""
    if isinstance(error, errors.KernelError):
        raised = error.__cause__ is not None
    else:
        raised = isinstance(error, RuntimeError | IndexError)
    return trial.sample.undefined and raised


def _leave_a_lost_device(device: torch.device) -> None:
    """Ends the process where the device no longer works, as after a GPU kernel's stray access: what follows would be blamed for
    it. The pool takes it for a crash of the sample that runs."""
    try:
        torch.empty(1, device=device).zero_().cpu()
    except Exception as error:
        print(f"the device {device} works no more: {_brief(error)}", flush=True)
        os._exit(LOST_DEVICE)


@dataclass
class _RunResult:
    placed: list[Placed]
    failures: list[Failure] = field(default_factory=list)
    worst: float = 0.0
    compared: int = 0
    fresh: int = 0
    statistic: float | None = None
    curve: Curve | None = None


def _trials(case: Case, effort: Effort, seed: int, only: int | None, device: str, target: Any) -> list[_Trial]:
    samples = draw(case, effort, seed)
    others = draw(case, effort, seed, "second call")
    trials = []
    for index, sample in enumerate(samples):
        if only is not None and index != only:
            continue
        expected = expected_result(case.row, sample, device, target)
        other = others[index] if index < len(others) else sample
        if tensors(sample) and interchangeable(sample, other):
            trials.append(_Trial(index, sample, expected, other, expected_result(case.row, other, device, target)))
        else:
            trials.append(_Trial(index, sample, expected, sample, expected))
    if only is not None and not trials:
        raise IndexError(f"{case.id} has {len(samples)} samples at effort {effort.name.lower()}; there is no sample {only}")
    return trials


def _run(
    subject: Subject, case: Case, trials: Sequence[_Trial], device: torch.device, score: Score | None
) -> Generator[None, None, _RunResult]:
    """Compiles one program, pauses, calls it with different values, and judges every call; then, for ``score``, what is wrong
    on purpose in results that are right."""
    program = build(subject.target(case.row), [t.sample for t in trials], [t.expected.outline for t in trials], device)
    compiled = subject.compile(program)
    yield
    result = _RunResult([p for p in compiled.placements if p.node not in compiled.empty])
    inputs, others = Guarded(program.inputs), Guarded(inputs_of([t.fresh for t in trials], device))

    torch.manual_seed(SEEDS[0])
    counters = subject.counters()
    first, damage = _call(compiled, program, inputs)
    idle = stood_still(subject, counters)
    kept = [[tensor.clone() for tensor in outputs] for outputs in first]
    torch.manual_seed(SEEDS[1])
    counters = subject.counters()
    second, more_damage = _call(compiled, program, others)
    idle |= stood_still(subject, counters)
    if idle and any(p.kind == "native" and p.prim == case.row.name for p in result.placed):
        result.failures.append(Failure(-1, "", NOT_EXECUTED, said(subject)))
    calls: list[Right] = []
    for position, trial in enumerate(trials):
        for kind, message in DAMAGE.items():
            if position in damage[kind] | more_damage[kind]:
                result.failures.append(_failure(case, trial, kind, message))
        seen = _Seen(case, trial, trial.sample, trial.expected, _on_host(kept[position]), subject.flushing)
        judgement = seen.judged(result)
        if judgement.problem:
            kind = (
                "torch" if _is_torchs(case, trial.sample, trial.expected.outline, kept[position], judgement) else judgement.kind
            )
            result.failures.append(seen.failure(kind, judgement))
            continue
        result.compared += judgement.elements > 0
        if not all(same_bits(one, other) for one, other in zip(first[position], kept[position], strict=True)):
            result.failures.append(_failure(case, trial, "overwritten", "the second call overwrote the results of the first"))
        another = _on_host(second[position]) if trial.is_fresh else None
        calls.append(Right(trial.sample, trial.expected, _on_host(kept[position]), another))
        if not tensors(trial.sample):
            continue
        result.fresh += trial.is_fresh
        seen = _Seen(case, trial, trial.fresh, trial.fresh_expected, _on_host(second[position]), subject.flushing)
        judgement = seen.judged(result)
        if judgement.problem:
            values = "other values" if trial.is_fresh else "the same values"
            kind = (
                "torch"
                if _is_torchs(case, trial.fresh, trial.fresh_expected.outline, second[position], judgement)
                else "second-call"
            )
            result.failures.append(seen.failure(kind, judgement, f"second call, {values}: "))
    if score is not None and not result.failures:
        score.plant(case.row, calls)
    if not result.failures:
        kept_second = [[tensor.clone() for tensor in outputs] for outputs in second]
        del first, second
        result.failures += _lasting(subject, case, trials, compiled, program, inputs, others, kept, kept_second)
    if _random(case) and not result.failures:
        for trial in trials:
            problem = independent(subject, case.row, trial.sample, trial.expected, device)
            if problem:
                result.failures.append(_failure(case, trial, problem.kind, problem.message))
    return result


@dataclass(frozen=True)
class _Seen:
    """The results of one call of a sample, on the host, beside what they must be."""

    case: Case
    trial: _Trial
    sample: Sample
    expected: Expectation
    outputs: Sequence[torch.Tensor]
    flushing: Flushing

    def judged(self, result: _RunResult) -> Judgement:
        """What ``judge`` says, noted in ``result``, too."""
        judgement = judge(self.case.row, self.sample, self.expected, self.outputs, self.flushing)
        result.worst = max(result.worst, judgement.worst)
        result.statistic = _largest(result.statistic, judgement.statistic)
        if self.case.kind == PRIM and judgement.kind in ("", "value"):
            result.curve = larger(result.curve, curve(self.case.row, self.sample, self.expected, self.outputs, self.flushing))
        return judgement

    def failure(self, kind: str, judgement: Judgement, which: str = "") -> Failure:
        """That the results are wrong, with the call's operands and their worst elements."""
        worst: Sequence[Mapping[str, Any]] = ()
        if judgement.kind == "value":
            worst = exhibit.worst_elements(self.case.row, self.sample, self.expected, self.outputs, self.flushing)
        failure = _failure(self.case, self.trial, kind, which + judgement.problem)
        return replace(failure, operands=exhibit.operands(self.case.row, self.sample), elements=worst)


def _largest(one: float | None, other: float | None) -> float | None:
    return max((each for each in (one, other) if each is not None), default=None)


SEEDS = (1, 2)
"""Of torch's generator, at the first call and at the second. What is drawn follows from the run's seed only in that both are
fixed: random prims are judged by their distribution."""

DAMAGE = {
    "input-modified": "an input tensor was modified",
    "out-of-bounds": "something was written beside an input tensor, outside of its memory",
}


def _lasting(
    subject: Subject,
    case: Case,
    trials: Sequence[_Trial],
    compiled: Compiled,
    program: Program,
    inputs: Guarded,
    others: Guarded,
    first: Sequence[Sequence[torch.Tensor]],
    second: Sequence[Sequence[torch.Tensor]],
) -> list[Failure]:
    """What shows only after two right calls."""

    def judged(position: int, call: int, outputs: Sequence[torch.Tensor]) -> str:
        trial = trials[position]
        sample, expected = (trial.fresh, trial.fresh_expected) if call else (trial.sample, trial.expected)
        return judge(case.row, sample, expected, _on_host(outputs), subject.flushing).problem

    problems: list[Problem] = endure(
        lambda tensors: program.split(flat(compiled.call(*tensors))),
        (inputs, others),
        (first, second),
        [[expected.value is not None or _random(case) for expected in t.expected.results if expected.dtype]
         for t in trials],
        judged,
        seeds=SEEDS,
        memories=subject.memories(),
        streams=subject.streams(),
        deterministic=subject.deterministic,
        random=_random(case),
    )  # fmt: skip
    if not problems and not subject.opaque:
        problems += _disguised(case, compiled, inputs)
    if not problems:
        problems += _beside(compiled, program, inputs, first, judged)
    tampered = witness.replaced()
    if tampered:
        problems.append(Problem(None, "tampered", f"replaced by the backend: {', '.join(tampered)}"))
    return [
        Failure(-1, "", problem.kind, problem.message)
        if problem.position is None
        else _failure(case, trials[problem.position], problem.kind, problem.message)
        for problem in problems
    ]


def _beside(
    compiled: Compiled,
    program: Program,
    inputs: Guarded,
    first: Sequence[Sequence[torch.Tensor]],
    judged: Callable[[int, int, Sequence[torch.Tensor]], str],
) -> list[Problem]:
    """Launches that write beside their operands and results, or for which it matters what lies there."""
    if compiled.guarded is None:
        return []
    torch.manual_seed(SEEDS[0])
    outputs, breaches = compiled.guarded(*inputs.tensors)
    problems = [Problem(None, "out-of-bounds", f"a launch {breach}") for breach in breaches]
    for position, (found, before) in enumerate(zip(program.split(flat(outputs)), first, strict=True)):
        if not all(same_bits(one, other) for one, other in zip(found, before, strict=True)):
            problem = judged(position, 0, found)
            if problem:
                problems.append(Problem(position, "out-of-bounds", f"between guard zones, {problem}"))
    return problems


def _disguised(case: Case, compiled: Compiled, inputs: Guarded) -> list[Problem]:
    """Native nodes for which torch's own operator ran on the host."""
    own = [p for p in compiled.placements if p.prim == case.row.name and p.node not in compiled.empty]
    schema = getattr(case.row.target, "_schema", None)
    if schema is None or not own or any(p.kind != "native" for p in own) or _moves(case.row):
        return []
    with witness.HostOperators() as mode:
        compiled.call(*inputs.tensors)
    if schema.name not in mode.seen:
        return []
    return [Problem(None, "disguised", f"placed native, but torch's own {schema.name} ran in host memory")]


def _moves(row: Row) -> bool:
    return isinstance(row, Prim) and row.family in WITHOUT_ARITHMETIC


WITHOUT_ARITHMETIC = (Family.VIEW, Family.CREATION)
"""Families whose operators the SDK's own wrapper uses too, on results of whatever prim."""


def _is_torchs(case: Case, sample: Sample, outline: Any, outputs: Sequence[torch.Tensor], judgement: Judgement) -> bool:
    """Whether a wrong result is torch's own: what the operator gives on the same device, bit for bit."""
    if judgement.kind not in ("value", "shape", "dtype"):
        return False
    program = build(case.row.target, [sample], [outline], outputs[0].device)
    try:
        own = program.module(*program.inputs)
    except NotImplementedError:  # of composites that torch has for some devices only
        return False
    return all(same_bits(one, other) for one, other in zip(own, outputs, strict=True))


def _call(compiled: Compiled, program: Program, inputs: Guarded) -> tuple[list[list[torch.Tensor]], dict[str, set[int]]]:
    """Results by sample, and by kind of damage the positions of the samples whose inputs suffered it (undone here)."""
    before = [storage_bytes(tensor).clone() for tensor in inputs.tensors]
    outputs = flat(compiled.call(*inputs.tensors))
    breached = inputs.breached()
    modified = [i for i, tensor in enumerate(inputs.tensors) if not torch.equal(storage_bytes(tensor), before[i])]
    if modified:
        outputs = [tensor.clone() for tensor in outputs]  # results may alias the inputs that are restored next
        for i in modified:
            storage_bytes(inputs.tensors[i]).copy_(before[i])
    damage = {"input-modified": modified, "out-of-bounds": breached}
    return program.split(outputs), {kind: {program.owners[i] for i in which} for kind, which in damage.items()}


def _on_host(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [value.cpu() for value in values]


def _add(outcome: Outcome, result: _RunResult) -> None:
    outcome.failures += result.failures
    outcome.worst = max(outcome.worst, result.worst)
    outcome.compared += result.compared
    outcome.fresh += result.fresh
    outcome.statistic = _largest(outcome.statistic, result.statistic)
    outcome.curve = larger(outcome.curve, result.curve)


def _verdict(outcome: Outcome) -> str:
    kinds = {failure.kind for failure in outcome.failures}
    if kinds & {"exception", "suite"}:
        return "error"
    if kinds == {"torch"} and outcome.placement == "host":
        return "host-fail"
    if outcome.failures:
        return "fail"
    if not outcome.samples:
        return "no-samples"
    return "pass" if outcome.compared else "empty"


def _failure(case: Case, trial: _Trial, kind: str, message: str) -> Failure:
    shown = exhibit.operands(case.row, trial.sample)
    return Failure(trial.index, trial.sample.label, kind, message[:MESSAGE_LIMIT], operands=shown)


def _exception(case: Case, trial: _Trial) -> Failure:
    """Call inside an ``except`` block."""
    error = sys.exception()
    assert error is not None
    return _failure(case, trial, "exception", _brief(error))


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip()[:MESSAGE_LIMIT]
