"""What a call costs on this machine's GPU when there is nothing to compute: functions of eight numbers.

    python -m benchmarks.gpu_calls [--backend triton_gpu] [--peers eager,inductor] [--rounds 9] [--json FILE]

A figure is the median over rounds of seconds a call, of calls that follow each other without waiting for the device, whose
kernels take less than the host needs for the next. Dynamo's guards, AOTAutograd's wrapper and allocations are part of it. The
functions are those of ``python -m benchmarks overhead``, with and without gradients.
"""

from __future__ import annotations

import functools
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks.gpu import environment
from benchmarks.sections.overhead import CALL, ELEMENTS, FUNCTIONS, TRAINED

CALLS = 300


def seconds(call: Callable[[], Any]) -> float:
    """A call, host time."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / CALLS


def contest(name: str, variant: str, names: list[str], rounds: int) -> dict[str, float]:
    """Seconds a call, by contestant.

    Raises:
        ValueError: a contestant gave something else than eager mode.
    """
    function, count = FUNCTIONS[name]
    inputs = [torch.randn(ELEMENTS, device="cuda", requires_grad=variant == TRAINED) for _ in range(count)]
    wanted = function(*inputs)
    calls: dict[str, Callable[[], Any]] = {}
    for each in names:
        torch._dynamo.reset()
        run = function if each == "eager" else torch.compile(function, backend=each)
        for found, expected in zip(run(*inputs), wanted, strict=True):
            if not torch.equal(found, expected):
                raise ValueError(f"{each}: {name} gave {found}, in eager mode {expected}")
        calls[each] = functools.partial(run, *inputs)
        seconds(calls[each])
    samples: dict[str, list[float]] = {each: [] for each in names}
    for _ in range(rounds):
        for each in random.sample(names, len(names)):
            samples[each].append(seconds(calls[each]))
    return {each: statistics.median(found) for each, found in samples.items()}


@click.command()
@click.option("--backend", default="triton_gpu", help="The backend to time.")
@click.option("--peers", default="eager,inductor")
@click.option("--rounds", default=9)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the result there.")
def main(backend: str, peers: str, rounds: int, json_path: Path | None) -> None:
    """Time calls of tiny functions on this machine's GPU."""
    if not torch.cuda.is_available():
        raise click.ClickException("no CUDA device: this benchmark times calls on one")
    names = [*(p for p in peers.split(",") if p), backend]
    table = {}
    for name in FUNCTIONS:
        for variant in (CALL, TRAINED):
            found = table[f"{name}, {variant}"] = contest(name, variant, names, rounds)
            print(f"{name}, {variant:20} {'  '.join(f'{n} {1e6 * s:.1f} us' for n, s in found.items())}", flush=True)
    if json_path:
        json_path.write_text(
            json.dumps({**environment(), "rounds": rounds, "contestants": names, "rows": table}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
