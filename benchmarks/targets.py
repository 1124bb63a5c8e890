"""What the project aims for, and whether a run reached it. The figures are those of the issue that set them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.results import Results, RowResult, geometric_mean
from benchmarks.sections import dynamic, memory, overhead, training
from benchmarks.sections.compile_time import COLD, FILE, WARM

BEST_OF = ("eager", "inductor", "onnxruntime")
"""Peers among which the best counts, where a target speaks of the best."""


@dataclass(frozen=True)
class Target:
    """One aim.

    Attributes:
        text: what is measured.
        measure: results to the figure, None where the run has no such rows.
        reached: compares figure and ``aim``.
        unit: printed after figures.
    """

    text: str
    measure: Callable[[Results], float | None]
    reached: Callable[[float, float], bool]
    aim: float
    unit: str = ""


@dataclass(frozen=True)
class Outcome:
    """A target with what the run found."""

    target: Target
    figure: float
    reached: bool


def outcomes(results: Results) -> list[Outcome]:
    """Of all targets about which the run can say something."""
    found = []
    for target in TARGETS:
        figure = target.measure(results)
        if figure is not None:
            found.append(Outcome(target, figure, target.reached(figure, target.aim)))
    return found


def mean_over(peer: str, rows: Callable[[Results], list[RowResult]]) -> Callable[[Results], float | None]:
    """Geometric mean over rows of the median ratio of a peer's time to the backend's."""

    def measure(results: Results) -> float | None:
        ratios = [ratio.median for row in rows(results) if (ratio := row.ratio(peer, results.backend)) is not None]
        return geometric_mean(ratios)

    return measure


def _kernels(mebibytes: int) -> Callable[[Results], list[RowResult]]:
    return lambda results: [row for row in results.section("kernels") if row.mebibytes == mebibytes and row.dtype == "float32"]


def _ending(section: str, suffix: str = "") -> Callable[[Results], list[RowResult]]:
    return lambda results: [row for row in results.section(section) if row.name.endswith(suffix)]


def _worst_kernel(results: Results) -> float | None:
    """The smallest ratio of the best peer's time to the backend's."""
    ratios = []
    for row in _kernels(64)(results):
        strongest = row.strongest(BEST_OF, results.backend)
        if strongest is not None:
            ratios.append(strongest[1].median)
    return min(ratios, default=None)


def _inside(results: Results) -> float | None:
    rows = [row for row in _ending("overhead", overhead.INSIDE)(results) if row.measured(results.backend)]
    return max((row.contestants[results.backend].spread.median * 1e6 for row in rows), default=None)


def _memory(divisor: Callable[[Results, RowResult], float | None]) -> Callable[[Results], float | None]:
    def shares(results: Results) -> Iterator[float]:
        for row in results.section("memory"):
            if row.measured(results.backend) and (other := divisor(results, row)):
                yield row.contestants[results.backend].spread.median / other

    return lambda results: max(shares(results), default=None)


def _of_eager(_results: Results, row: RowResult) -> float | None:
    return row.contestants["eager"].spread.median if row.measured("eager") else None


def _of_bound(_results: Results, row: RowResult) -> float | None:
    return row.facts.get(memory.LOWER_BOUND)


def _dynamic(results: Results) -> float | None:
    pairs = (row.ratio(results.backend + dynamic.SUFFIX, results.backend) for row in results.section("dynamic"))
    return max((ratio.median for ratio in pairs if ratio is not None), default=None)


AT_LEAST, AT_MOST = operator.ge, operator.le
_EXPORTED = _ending("compile", f"{FILE}, {COLD}")
_COMPILED = _ending("training", training.COMPILED_OPTIMIZER)
TARGETS = (
    Target("kernels, 64 MiB: mean against Inductor", mean_over("inductor", _kernels(64)), AT_LEAST, 2.0, "x"),
    Target("kernels, 64 MiB: worst against the best of eager, Inductor, ONNX Runtime", _worst_kernel, AT_LEAST, 0.97, "x"),
    Target("kernels, 1 MiB: mean against Inductor", mean_over("inductor", _kernels(1)), AT_LEAST, 2.0, "x"),
    Target("models, inference: mean against Inductor", mean_over("inductor", _ending("models")), AT_LEAST, 2.2, "x"),
    Target("models, inference: mean against ONNX Runtime", mean_over("onnxruntime", _ending("models")), AT_LEAST, 1.1, "x"),
    Target("training step, compiled optimizer: mean against Inductor", mean_over("inductor", _COMPILED), AT_LEAST, 1.5, "x"),
    Target("compilation, cold: mean against Inductor", mean_over("inductor", _ending("compile", COLD)), AT_LEAST, 6.0, "x"),
    Target("compilation, warm: mean against Inductor", mean_over("inductor", _ending("compile", WARM)), AT_LEAST, 4.0, "x"),
    Target("export and session: mean against torch's export", mean_over("onnxruntime", _EXPORTED), AT_LEAST, 2.0, "x"),
    Target("inside the backend, with a kernel over eight numbers: worst", _inside, AT_MOST, 0.6, " us"),
    Target("peak memory: worst against eager", _memory(_of_eager), AT_MOST, 1.0, "x"),
    Target("peak memory: worst against the lower bound", _memory(_of_bound), AT_MOST, 1.02, "x"),
    Target("dynamic shapes: worst against static", _dynamic, AT_MOST, 1.03, "x"),
)
"""Means are geometric, kernels float32."""
