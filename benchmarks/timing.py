"""Samples in rounds: every contestant once a round, in random order, each sample long enough for the clock."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Mapping

from vendor_sdk import without_collections

SAMPLE_SECONDS = 0.02
"""A sample repeats the call until it takes at least this long."""
SETTLE_SECONDS = 0.025
SETTLE_LIMIT = 0.5
"""Between two contestants, worker threads of the previous one spin for a while (ONNX Runtime's for tens of milliseconds), in
the way of the next one's: so many seconds at a time, and at most so many, until the process has used a tenth of one processor
or less. Under two ticks of the kernel (10 ms where they are longest) says nothing: threads that run are charged at ticks."""
LONG_CALLS = 10
"""A call this many samples long needs no untimed call before it: what the caches held does not show."""

Call = Callable[[], object]


def settle() -> None:
    """Waits until the process is idle."""
    end = time.perf_counter() + SETTLE_LIMIT
    while True:
        busy, start = time.process_time(), time.perf_counter()
        time.sleep(SETTLE_SECONDS)
        if time.process_time() - busy <= 0.1 * (time.perf_counter() - start) or start > end:
            return


def sample(call: Call, repetitions: int) -> float:
    """Seconds per call over ``repetitions``; results are dropped at once, as in a loop that needs nothing of them."""
    loop = itertools.repeat(None, repetitions)
    start = time.perf_counter()
    for _ in loop:
        call()
    return (time.perf_counter() - start) / repetitions


def repetitions(call: Call, at_least: float = SAMPLE_SECONDS) -> int:
    """How often to call so that a sample takes ``at_least`` seconds; warms the call up on the way."""
    call()  # the first call may compile, map pages and start threads
    count, call_seconds = 1, sample(call, 1)
    while call_seconds * count < at_least:
        count = max(2 * count, min(int(at_least / max(call_seconds, 1e-9)), 8 * count))
        call_seconds = sample(call, count)
    return count


def interleave(
    calls: Mapping[str, Call],
    rounds: int,
    *,
    at_least: float = SAMPLE_SECONDS,
    seed: int = 0,
    failed: Callable[[str, Exception], None] | None = None,
) -> dict[str, list[float]]:
    """Seconds per call, ``rounds`` samples of each of ``calls``.

    A call that raises is dropped from the result; ``failed`` is told, and without it the exception passes.
    """
    names, order = list(calls), random.Random(seed)
    counts: dict[str, int] = {}
    samples: dict[str, list[float]] = {}
    for index in range(-1, rounds):  # Round -1 counts repetitions and warms up.
        order.shuffle(names)
        for name in list(names):
            settle()
            try:
                with without_collections():
                    if index < 0:
                        counts[name] = repetitions(calls[name], at_least)
                        samples[name] = []
                        continue
                    if counts[name] > 1 or not samples[name] or samples[name][-1] < LONG_CALLS * at_least:
                        calls[name]()
                    samples[name].append(sample(calls[name], counts[name]))
            except Exception as error:
                if failed is None:
                    raise
                failed(name, error)
                names.remove(name)
                samples.pop(name, None)
    return {name: samples[name] for name in calls if name in samples}
