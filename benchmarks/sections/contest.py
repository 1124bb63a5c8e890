"""One row's contest: prepare every contestant, judge its outputs, then sample those that were right in turns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click
import torch

from benchmarks.accuracy import Judge, Verdict, checked
from benchmarks.contestants import Contestant, Eager, Entry, Unsupported
from benchmarks.program import Call, Mode, Program, TrainingStep
from benchmarks.results import Figures, RowResult, State
from benchmarks.sections.row import During
from benchmarks.spawn import Setting
from benchmarks.timing import interleave

REASON_CHARACTERS = 600


@dataclass
class Prepared:
    """Contestants of one program after the judge has seen them.

    Attributes:
        figures: by name.
        calls: of those that were right.
        outputs: what eager computed.
    """

    figures: dict[str, Figures]
    calls: dict[str, Call]
    outputs: list[torch.Tensor]


def contest(
    result: RowResult,
    program: Program,
    contestants: Sequence[Contestant],
    setting: Setting,
    during: During,
    copies: Mapping[str, Call] | None = None,
) -> RowResult:
    """Fills ``result`` with figures and samples of ``contestants``, and of ``copies`` taken in the same rounds."""
    with torch.set_grad_enabled(program.mode is not Mode.INFERENCE):
        prepared = prepare(program, contestants, setting, during)
        result.contestants = prepared.figures
        result.ideal_bytes = program.least_bytes(prepared.outputs)
        prepared.outputs.clear()
        sample_all(result, prepared.calls, setting, during, copies or {})
    return result


def prepare(program: Program, contestants: Sequence[Contestant], setting: Setting, during: During) -> Prepared:
    """Prepares and judges; eager first, because its error is part of the others' limit."""
    judge, skipped = Judge(program), dict(setting.skip)
    eager = Eager("eager").prepare(program.own())
    outputs = checked(eager.call)
    verdict = judge.judge(outputs, eager=True)
    prepared = Prepared({}, {}, outputs)
    for contestant in contestants:
        name = contestant.name
        during(name)
        if name in skipped:
            prepared.figures[name] = Figures(State.FAILED, skipped[name])
        elif missing := contestant.missing():
            prepared.figures[name] = Figures(State.MISSING, missing)
        elif isinstance(contestant, Eager):
            _enter(prepared, name, verdict, eager)
        else:
            _try(prepared, contestant, program, judge)
    return prepared


def sample_all(
    result: RowResult, calls: Mapping[str, Call], setting: Setting, during: During, copies: Mapping[str, Call]
) -> None:
    """Samples into ``result``; a call that raises now has failed."""

    def watched(name: str, call: Call) -> Call:
        def first() -> object:
            during(name)
            return call()

        return first

    for name, call in calls.items():
        watched(name, call)()
    during("")

    def failed(name: str, error: Exception) -> None:
        if name in copies:
            raise error
        result.contestants[name] = Figures(State.FAILED, reason_of(error))

    samples = interleave({**calls, **copies}, setting.rounds, at_least=setting.sample_seconds, failed=failed)
    for name, seconds in samples.items():
        if name in copies:
            result.copies[name] = seconds
        else:
            result.contestants[name].samples = seconds


def reason_of(error: BaseException) -> str:
    """What went wrong, short enough for a table's footnote, without a terminal's colours."""
    text = click.unstyle(f"{type(error).__name__}: {error}".strip())
    return text if len(text) <= REASON_CHARACTERS else text[:REASON_CHARACTERS] + " ..."


def _try(prepared: Prepared, contestant: Contestant, program: Program, judge: Judge) -> None:
    try:
        own = program.own()
        entry = contestant.prepare(own)
        if isinstance(entry.call, TrainingStep):
            verdict = judge.judge(entry.call.checked())
        else:
            first = entry.fetch(entry.call())
            if not program.mutates:  # The second result must not have replaced the first.
                second = entry.fetch(entry.call())
                verdict = judge.judge(first)
                if not all(map(torch.equal, first, second)):
                    verdict = _worse(verdict, judge.judge(second))
            else:
                verdict = judge.judge(first)
    except Unsupported as error:
        prepared.figures[contestant.name] = Figures(State.UNSUPPORTED, str(error))
    except Exception as error:
        prepared.figures[contestant.name] = Figures(State.FAILED, reason_of(error))
    else:
        _enter(prepared, contestant.name, verdict, entry)


def _worse(first: Verdict, second: Verdict) -> Verdict:
    if first.wrong or second.wrong:
        return first if first.wrong else second
    return max(first, second, key=lambda verdict: verdict.error or 0.0)


def _enter(prepared: Prepared, name: str, verdict: Verdict, entry: Entry) -> None:
    error = verdict.error if verdict.error is None or math.isfinite(verdict.error) else None
    state = State.WRONG if verdict.wrong else State.OK
    prepared.figures[name] = Figures(state, verdict.wrong, error=error, limit=verdict.limit)
    if state is State.OK:
        prepared.calls[name] = entry.call
