"""What shows only when a compiled graph is called again and again: remembered answers, races, leaks, seeds that do not count.

A call is right when it gives the bits of an earlier call that was judged with the same inputs; where the bits differ, it is
judged by itself. So hundreds of calls cost little more than running them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch

from conformance import independence, witness
from conformance.guards import Guarded, overwrite, same_bits
from conformance.judge import Expectation
from conformance.program import build
from conformance.streams import Streams
from conformance.subject import Subject
from conformance.values import flat
from vendor_sdk import Distribution, Row, Sample

BUDGET = 0.15
"""Seconds that the repeated calls of one program may take, about; at least two windows of two calls are made."""
PAUSED = 10 * BUDGET
"""A call that took less may have waited for other processes, and is timed again before it counts as long."""
TOGETHER = 4
"""Calls that each of two threads makes, and that are made on each of two streams."""
ENTROPY = 64
"""Elements from which on two random results are never equal by chance."""

Outputs = Sequence[Sequence[torch.Tensor]]
"""Results by sample."""


@dataclass(frozen=True)
class Problem:
    """Attributes:
    position: of the sample in the program, ``None`` when it is not known which.
    kind: ``stale`` (an answer remembered by address), ``nondeterministic``, ``leak``, ``threads``, ``streams`` or ``seed``.
    message: one line.
    """

    position: int | None
    kind: str
    message: str


def endure(
    call: Callable[[Sequence[torch.Tensor]], Outputs],
    inputs: tuple[Guarded, Guarded],
    right: tuple[Outputs, Outputs],
    fixed: Sequence[Sequence[bool]],
    judged: Callable[[int, int, Sequence[torch.Tensor]], str],
    *,
    seeds: tuple[int, int],
    memories: Sequence[witness.Memory],
    streams: Streams | None,
    deterministic: bool,
    random: bool,
) -> list[Problem]:
    """Calls a program until its first problem.

    Args:
        call: runs the program, results by sample.
        inputs: two sets of inputs that fit the program.
        right: results for each of them that were found right.
        fixed: by sample and result, whether its bits mean anything (contents of an undefined result do not).
        judged: what is wrong with the results of the sample at a position for the first or second (0 or 1) inputs; ``""``.
        seeds: of torch's generator for each of the inputs.
        memories: where leaks may show.
        streams: of the device, where it has any.
        deterministic: whether equal inputs must give equal bits.
        random: whether results depend on torch's generator.
    """

    def differing(outputs: Outputs, which: int) -> list[int]:
        return [
            position
            for position, (mine, wanted) in enumerate(zip(outputs, right[which], strict=True))
            if not all(same_bits(one, two) for one, two, counts in zip(mine, wanted, fixed[position], strict=True) if counts)
        ]

    def called(tensors: Sequence[torch.Tensor], which: int) -> Outputs:
        if random:
            torch.manual_seed(seeds[which])
        return call(tensors)

    def wrong(outputs: Outputs, which: int, kind: str, when: str) -> list[Problem]:
        """Of what differs: what is not right either."""
        found = ((position, judged(position, which, outputs[position])) for position in differing(outputs, which))
        return [Problem(position, kind, f"{when}: {message}") for position, message in found if message]

    # Other values at the same addresses.
    first, second = inputs
    before = Guarded(first.tensors)
    if overwrite(first.tensors, second.tensors):
        problems = wrong(called(first.tensors, 1), 1, "stale", "other values in the same memory")
        overwrite(first.tensors, before.tensors)
        if problems:
            return problems

    # The same inputs over and over.
    unequal: set[int] = set()
    spoiled: list[Problem] = []

    def again() -> None:
        outputs = called(first.tensors, 0)
        different = differing(outputs, 0)
        if different and (deterministic or random):
            unequal.update(different)
        elif different:
            spoiled.extend(wrong(outputs, 0, "nondeterministic", "a later call with the same values"))

    def seconds() -> float:
        started = time.perf_counter()
        again()
        return time.perf_counter() - started

    took = seconds()
    if BUDGET < took < PAUSED:
        took = min(took, seconds(), seconds())
    window = min(witness.WINDOW, max(2, int(BUDGET / witness.WINDOWS / max(took, 1e-6))))
    leaked = witness.leak(again, memories, window) if took < BUDGET else 0
    if spoiled:
        return spoiled[:1]
    if unequal:
        promise = "with the same seed" if random else "of a backend that is declared deterministic"
        return [
            Problem(i, "nondeterministic", f"calls with equal inputs give different bits, {promise}") for i in sorted(unequal)
        ]
    if leaked:
        return [Problem(None, "leak", f"each call leaves {leaked} bytes allocated")]
    if random or took > BUDGET:
        return []
    return _together(call, inputs, wrong) or _on_streams(call, inputs, wrong, streams)


def _together(
    call: Callable[[Sequence[torch.Tensor]], Outputs],
    inputs: tuple[Guarded, Guarded],
    wrong: Callable[[Outputs, int, str, str], list[Problem]],
) -> list[Problem]:
    """Two threads call one program at a time, each with inputs of its own. Every call of theirs begins at once."""
    barrier = threading.Barrier(2)
    results: tuple[list[Outputs], list[Outputs]] = ([], [])
    raised: list[Problem] = []

    def work(which: int) -> None:
        try:
            for _ in range(TOGETHER):
                barrier.wait()
                results[which].append(call(inputs[which].tensors))
        except threading.BrokenBarrierError:  # The other's call raised.
            pass
        except Exception as error:
            barrier.abort()
            raised.append(Problem(None, "threads", f"in two threads at a time: {type(error).__name__}: {error}"))

    threads = [threading.Thread(target=work, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        return raised[:1]
    for which, calls in enumerate(results):
        for outputs in calls:
            problems = wrong(outputs, which, "threads", "in two threads at a time")
            if problems:
                return problems
    return []


def _on_streams(
    call: Callable[[Sequence[torch.Tensor]], Outputs],
    inputs: tuple[Guarded, Guarded],
    wrong: Callable[[Outputs, int, str, str], list[Problem]],
    streams: Streams | None,
) -> list[Problem]:
    """Two streams have calls of one program at a time, each with inputs of its own."""
    if streams is None:
        return []
    when = "on two streams at a time"
    try:
        results = streams.interleaved([lambda: call(inputs[0].tensors), lambda: call(inputs[1].tensors)], TOGETHER)
    except Exception as error:
        return [Problem(None, "streams", f"{when}: {type(error).__name__}: {error}")]
    for which, calls in enumerate(results):
        for outputs in calls:
            problems = wrong(outputs, which, "streams", when)
            if problems:
                return problems
    return []


SEEDS = (1, 2, 1 + 2**31)
"""Of which the last differs from the first in a high bit alone. torch's own generator on the CPU has seeds of 32 bits."""


def independent(subject: Subject, row: Row, sample: Sample, expected: Expectation, device: torch.device) -> Problem | None:
    """Of a row with a ``Distribution``: whether its numbers depend on the seed, on the call, and on the place in the program,
    and are those of no other."""
    program = build(subject.target(row), [sample, sample], [expected.outline, expected.outline], device)
    compiled = subject.compile(program)
    drawn: dict[tuple[int, int, int], Sequence[torch.Tensor]] = {}
    for seed in range(len(SEEDS)):
        torch.manual_seed(SEEDS[seed])
        for call in range(2):
            both = program.split(flat(compiled.call(*program.inputs)))
            for place, outputs in enumerate(both):
                drawn[seed, call, place] = [tensor.detach().cpu().clone() for tensor in outputs]
    assert isinstance(row.bound, Distribution)
    there = [index for index, item in enumerate(expected.results) if item.shape is not None]
    random = [there.index(index) for index in (there if row.bound.drawn is None else row.bound.drawn)]
    for (one, mine), (other, theirs) in combinations(drawn.items(), 2):
        for index in random:
            if mine[index].numel() >= ENTROPY and same_bits(mine[index], theirs[index]):
                return Problem(None, "seed", f"equal random numbers from {_said(one)}, and from {_said(other)}")
    # What differs in one thing only; of the last seed, the first call.
    some = [each for each in drawn if each[0] < len(SEEDS) - 1 or each[1] == 0]
    pairs = [
        (first, second)
        for (first, draw), (second, another) in combinations(enumerate(some), 2)
        if sum(x != y for x, y in zip(draw, another, strict=True)) == 1
    ]
    for index in random:
        for first, second, shift in independence.overlapping([drawn[each][index] for each in some], pairs):
            numbers = f"the random numbers of {_said(some[first])}"
            whose = "themselves" if first == second else f"those of {_said(some[second])}"
            return Problem(None, "seed", f"{numbers} depend on {whose}, {abs(shift)} places apart")
    return None


def _said(drawn: tuple[int, int, int]) -> str:
    seed, call, place = drawn
    names = ("first", "second")
    return f"the {names[place]} of two equal nodes, {names[call]} call, seed {SEEDS[seed]}"
