"""Fused kernels of a GPU backend beside eager PyTorch, Inductor and a copy, in one process.

    python -m benchmarks.gpu [--rows 16384] [--columns 4096] [--dtype bfloat16] [--only 'softmax*'] [--peers eager,inductor]
                             [--dynamic]

Each pattern's outputs are compared with float64 before anything is timed. In each round all contestants, and a copy of as many
bytes as the pattern's main tensor, run one after the other in random order, timed by events of the device. A figure is the
median over rounds of: bytes that must move, over time, as a fraction of the copy's rate in the same round. What the host does
in a call is hidden behind copies that precede it. A short table ends the output.
"""

from __future__ import annotations

import datetime
import fnmatch
import json
import math
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import click
import torch

from benchmarks.accuracy import Judge, checked
from benchmarks.gpu_patterns import PATTERNS, Maker
from benchmarks.program import Mode, Program, caller
from benchmarks.sections.dynamic import SUFFIX

CALLS = 9
"""Of a sample, which is their median."""
MOST = 200
"""Copies before a call, at most."""
DYNAMIC = "Where it says *dynamic*, all sizes are symbols (`torch.compile(dynamic=True)`)."


def seconds(call: Callable[[], Any], cover: Callable[[], Any], covers: int) -> float:
    """Of one call, by the device's own clock. ``cover`` runs ``covers`` times before it: work for the device while the host
    prepares the call, whose own time other benchmarks measure."""
    begin, end = (torch.Event("cuda", enable_timing=True) for _ in range(2))
    for _ in range(covers):
        cover()
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def covers_for(call: Callable[[], Any], cover: Callable[[], Any]) -> int:
    """How many times ``cover`` takes the device as long as ``call`` takes the host, twice over."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(3):
        call()
    host = (time.perf_counter() - start) / 3
    torch.cuda.synchronize()
    return min(max(2, math.ceil(2 * host / max(seconds(cover, cover, 2), 1e-6))), MOST)


def compiled(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` as a contestant runs it, whose name is a backend's, with ":" and a mode behind it where it has one, and with
    ``SUFFIX`` where sizes are symbols."""
    backend, _, mode = name.removesuffix(SUFFIX).partition(":")
    return torch.compile(function, backend=backend, mode=mode or None, dynamic=name.endswith(SUFFIX))


def contest(program: Program, names: Sequence[str], rounds: int) -> dict[str, Any]:
    """Fractions of the copy's rate, by contestant, or what was wrong.

    Args:
        names: "eager", and what ``compiled`` takes.
    """
    main = max(program.tensors(), key=lambda t: t.nbytes)
    source = torch.empty(main.nbytes // 4, device="cuda")
    target = torch.empty_like(source)
    judge = Judge(program.own())
    calls: dict[str, Callable[[], Any]] = {"copy": lambda: target.copy_(source)}
    result: dict[str, Any] = {}
    least = 0
    for name in ("eager", *(name for name in names if name != "eager")):
        torch._dynamo.reset()
        own = program.own()
        try:
            function = own.function if name == "eager" else compiled(name, own.function)
            call = caller(own, function)
            outputs = checked(call)
            least = least or program.least_bytes(outputs)
            verdict = judge.judge(outputs, eager=name == "eager")
            del outputs
            if verdict.wrong:
                result[name] = f"wrong: {verdict.wrong}"
            elif name not in names:
                continue
            else:
                calls[name] = call
        except Exception as error:
            result[name] = f"{type(error).__name__}: {error}"[:500]
    del judge
    samples: dict[str, list[float]] = {name: [] for name in calls}
    copy = calls["copy"]
    covers = {name: covers_for(call, copy) for name, call in calls.items()}
    for _ in range(rounds):
        for name in random.sample(list(calls), len(calls)):
            samples[name].append(statistics.median(seconds(calls[name], copy, covers[name]) for _ in range(CALLS)))
    rate = [2 * source.nbytes / s for s in samples["copy"]]
    result["copy GB/s"] = round(statistics.median(rate) / 1e9)
    for name in calls:
        if name != "copy":
            result[name] = statistics.median(least / s / r for s, r in zip(samples[name], rate, strict=True))
            result[f"{name} ms"] = 1e3 * statistics.median(samples[name])
    return result


def cell(value: Any) -> str:
    """A fraction of the copy, or why there is none."""
    return f"{value:.2f}" if isinstance(value, float) else str(value).split(":")[0]


def fractions(table: dict[str, dict[str, Any]], name: str) -> list[float]:
    """A contestant's fractions of the copy, where there are any."""
    return [row[name] for row in table.values() if isinstance(row.get(name), float)]


def summary(table: dict[str, dict[str, Any]], names: Sequence[str]) -> list[str]:
    """The geometric mean and the least fraction of each contestant."""
    lines = []
    for name in names:
        if found := fractions(table, name):
            lines.append(
                f"{name}: geometric mean {statistics.geometric_mean(found):.3f} of {len(found)}, least {min(found):.2f}"
            )
    return lines


def widths(result: dict[str, Any]) -> list[str]:
    """A table with a line for each shape: geometric means, and the row that is furthest behind a peer."""
    *peers, backend = result["contestants"]
    by_shape: dict[str, dict[str, dict[str, Any]]] = {}
    for name, row in result["rows"].items():
        kernel, _, shape = name.rpartition(" ")
        by_shape.setdefault(shape, {})[kernel] = row
    lines = [f"| shape | {' | '.join([*peers, backend])} | furthest behind |", f"|---|{'--:|' * (len(peers) + 1)}---|"]
    for shape, rows in by_shape.items():
        known = [fractions(rows, name) for name in (*peers, backend)]
        cells = [f"{statistics.geometric_mean(found):.2f}" if found else "" for found in known]
        behind = [
            (row[backend] / row[peer], kernel, peer)
            for kernel, row in rows.items()
            for peer in peers
            if isinstance(row.get(backend), float) and isinstance(row.get(peer), float)
        ]
        ratio, kernel, peer = min(behind, default=(1.0, "", ""))
        lines.append(f"| {shape} | {' | '.join(cells)} | {f'{ratio:.2f} of {peer}: {kernel}' if ratio < 1 else 'none'} |")
    return lines


def page(result: dict[str, Any]) -> str:
    """The Markdown page of a result."""
    names = result["contestants"]
    dynamic = any(name.endswith(SUFFIX) for name in names)
    kind = SUFFIX + " shapes" if dynamic else ", beside autotuned ones" if any(":" in name for name in names) else ""
    lines = [
        "<!-- Generated by `python -m benchmarks.gpu --page`: change the benchmark, not this page. -->",
        "",
        "# Fused kernels on a GPU" + kind,
        "",
        f"{result['device']}, driver {result['driver']}, torch {result['torch']}, Triton {result['triton']}, {result['date']};",
        f"{result['dtype']}; medians of {result['rounds']} rounds. A figure is the bytes that must move over their time, as a",
        "fraction of what a copy reached in the same round (`benchmarks/gpu.py` says how).",
        *([DYNAMIC] if dynamic else []),
        "",
        "Geometric means by shape:",
        "",
        *widths(result),
        "",
        f"| kernel | shape | {' | '.join(names)} | ahead |",
        f"|---|---|{'--:|' * len(names)}---|",
    ]
    for name, row in result["rows"].items():
        kernel, _, shape = name.rpartition(" ")
        known = {n: row[n] for n in names if isinstance(row.get(n), float)}
        ahead = max(known, key=lambda n: known[n]) if known else ""
        lines.append(f"| {kernel} | {shape} | {' | '.join(cell(row.get(n, '')) for n in names)} | {ahead} |")
    lines += ["", *(f"- {line}" for line in summary(result["rows"], names))]
    return "\n".join(lines) + "\n"


Row = TypeVar("Row")


def chosen(rows: Mapping[str, Row], only: Sequence[str]) -> dict[str, Row]:
    """Those whose names match one of the globs.

    Raises:
        click.BadParameter: none does.
    """
    found = {name: row for name, row in rows.items() if any(fnmatch.fnmatchcase(name, glob) for glob in only)}
    if not found:
        raise click.BadParameter(f"no row has such a name; there are {', '.join(rows)}", param_hint="--only")
    return found


def environment() -> dict[str, str]:
    """What a result says of the machine and the day."""
    software = {"driver": _driver(), "torch": torch.__version__, "triton": version("triton")}
    return {"device": torch.cuda.get_device_name(), **software, "date": f"{datetime.date.today()}"}


def _driver() -> str:
    """The driver's version, as the tool beside it says."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


@click.command()
@click.option("--backend", default="triton_gpu", help="The backend to time.")
@click.option("--rows", default=16384, help="Rows at the first number of columns; other widths get as many elements.")
@click.option("--columns", default=[4096], multiple=True)
@click.option("--dtype", default="bfloat16")
@click.option("--only", default=["*"], multiple=True, help="Names or globs.")
@click.option("--peers", default="eager,inductor", help="eager, and compilers as NAME or NAME:MODE.")
@click.option("--dynamic", is_flag=True, help="Whatever compiles also takes part with sizes that are symbols.")
@click.option("--rounds", default=5)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the result there.")
@click.option("--page", "page_of", type=click.Path(path_type=Path), help="Measure nothing; print the page of this result.")
def main(
    backend: str,
    rows: int,
    columns: tuple[int, ...],
    dtype: str,
    only: tuple[str, ...],
    peers: str,
    dynamic: bool,
    rounds: int,
    json_path: Path | None,
    page_of: Path | None,
) -> None:
    """Time fused kernels on this machine's GPU."""
    if page_of:
        click.echo(page(json.loads(page_of.read_text())), nl=False)
        return
    if not torch.cuda.is_available():
        raise click.ClickException("no CUDA device: this benchmark times kernels on one")
    patterns = chosen(PATTERNS, only)
    table: dict[str, dict[str, Any]] = {}
    ways = ("", SUFFIX) if dynamic else ("",)
    names = [p + way for p in (*filter(None, peers.split(",")), backend) for way in (ways if p != "eager" else ("",))]
    for width in columns:
        height = max(1, rows * columns[0] // width)
        for name, build in patterns.items():
            program = build(Maker(height, width, getattr(torch, dtype)))
            with torch.set_grad_enabled(program.mode is not Mode.INFERENCE):
                row = table[f"{name} {height}x{width}"] = contest(program, names, rounds)
            cells = "  ".join(f"{n} {cell(row.get(n, '-'))}" for n in names)
            print(f"{name:34} {f'{height}x{width}':>14} {row['copy GB/s']} GB/s  {cells}", flush=True)
            del program
            torch.cuda.empty_cache()
        if json_path:  # after each width: there may be many
            result = {**environment(), "dtype": dtype, "rounds": rounds, "contestants": names, "rows": table}
            json_path.write_text(json.dumps(result, indent=1) + "\n")
    print("\n".join(summary(table, names)))


if __name__ == "__main__":
    main()
