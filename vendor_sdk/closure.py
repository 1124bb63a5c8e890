"""Closure of the opset: what torch's operator database can produce ends in prims, or the operator is a named exclusion.

Each sample of the database is captured forward and backward through AOTAutograd with ``capture_table`` and min-cut, then taken
to prims with ``prim_table``, exactly as a compiled model is; the prim graphs are run and compared with eager torch.
``python -m vendor_sdk.closure`` runs all samples and writes the percentages.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import multiprocessing
import operator
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from vendor_sdk import torch_private
from vendor_sdk.capture.graph import to_prim_graph
from vendor_sdk.normalize.decompose import capture_table, prim_table
from vendor_sdk.prims.exclusions import EXCLUSIONS
from vendor_sdk.prims.opset import BY_TARGET
from vendor_sdk.torch_private import dynamo as torch_dynamo
from vendor_sdk.torch_private import pytree

DTYPES = (torch.float32, torch.int64, torch.bool)
SECONDS_PER_SAMPLE = 60

_RANDOM = "random numbers: torch's generators differ from the prims'"
_UNDEFINED = "contents are undefined"

UNCOMPARED: Mapping[str, str] = {
    **dict.fromkeys(
        [
            "bernoulli",
            "cauchy",
            "exponential",
            "geometric",
            "log_normal",
            "multinomial",
            "normal",
            "normal.in_place",
            "normal.number_mean",
            "rand_like",
            "randint",
            "randint_like",
            "randn",
            "randn_like",
            "uniform",
            "nn.functional.alpha_dropout",
            "nn.functional.dropout",
            "nn.functional.dropout2d",
            "nn.functional.dropout3d",
            "nn.functional.feature_alpha_dropout.with_train",
            "nn.functional.fractional_max_pool2d",
            "nn.functional.fractional_max_pool3d",
            "nn.functional.multi_head_attention_forward",
            "nn.functional.rrelu",
            "nn.functional.scaled_dot_product_attention",
            "pca_lowrank",
            "svd_lowrank",
        ],
        _RANDOM,
    ),
    **dict.fromkeys(
        ["empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_", "resize_as_"],
        _UNDEFINED,
    ),
    "argsort": "torch's unstable sort orders equal elements as it likes",
    "sort": "torch's unstable sort orders equal elements as it likes",
    "linalg.eig": "eigenvectors are defined up to a factor, and so are gradients through them",
}
"""Operators whose results are not compared with torch's, with the reason."""


@dataclass
class Outcome:
    """What became of one operator's samples.

    Attributes:
        samples: how many were captured and taken to prims, closed or not.
        closed: how many of them ended in prims alone.
        foreign: operators that remained, with the number of samples in which they did.
        unexported: why samples could not be captured, with counts; they do not count for or against closure.
        errors: samples on which a rule itself failed, by message; they count as not closed.
        wrong: samples on which the prims computed something else than torch does, by message.
    """

    samples: int = 0
    closed: int = 0
    foreign: dict[str, int] = field(default_factory=dict)
    unexported: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    wrong: dict[str, int] = field(default_factory=dict)

    @property
    def is_closed(self) -> bool:
        """At least one sample was captured, and every captured one ends in prims."""
        return self.samples > 0 and self.closed == self.samples

    def add(self, other: Outcome) -> None:
        """Merges the outcome of another entry of the same name."""
        self.samples += other.samples
        self.closed += other.closed
        for name in ("foreign", "unexported", "errors", "wrong"):
            for key, count in getattr(other, name).items():
                _count(getattr(self, name), key, count)

    def explanation(self) -> str:
        """What stands in the way, ``""`` when nothing does."""
        parts = [f"{name} remains" for name in self.foreign] + list(self.errors)
        if not self.samples:
            parts += [f"cannot be captured: {reason}" for reason in self.unexported] or ["has no sample of these dtypes"]
        return "; ".join(parts)


class _CompilerFailure(Exception):
    """A failure inside our stage, as opposed to one of torch's capture."""


class _TimeoutError(Exception):
    pass


def entries() -> list[Any]:
    """The operator database; several entries may share a name (variants)."""
    return torch_private.operator_database()


def examine(entry: Any, limit: int | None = None, dtypes: Sequence[torch.dtype] = DTYPES) -> Outcome:
    """Captures the samples of a database entry, at most ``limit`` of each dtype, on the CPU.

    Where a sample cannot be captured the next one is tried in its place.
    """
    outcome = Outcome()
    for dtype in dtypes:
        if dtype not in entry.dtypes:
            continue
        captured = 0
        for sample in _samples(entry, dtype, outcome):
            if _examine_sample(entry, sample, outcome):
                captured += 1
            if captured == limit or (limit is not None and sum(outcome.unexported.values()) >= 8 * limit):
                break
    return outcome


def _samples(entry: Any, dtype: torch.dtype, outcome: Outcome) -> Iterator[Any]:
    try:
        yield from torch_private.samples(entry, dtype, dtype.is_floating_point and entry.supports_autograd)
    except (RuntimeError, AssertionError, ValueError, ImportError, NotImplementedError) as error:
        _count(outcome.unexported, f"sampling: {_first_line(error)}")


def _examine_sample(entry: Any, sample: Any, outcome: Outcome) -> bool:
    """Adds one sample to ``outcome``; returns whether it was captured."""
    foreign: set[str] = set()
    call = _Call(entry, sample)
    try:
        with _time_limit(SECONDS_PER_SAMPLE):
            results = call.through_prims(foreign)
    except _CompilerFailure as error:
        outcome.samples += 1
        _count(outcome.errors, str(error))
        return True
    except Exception as error:  # capture fails in as many ways as torch has operators: each is reported by its message
        _count(outcome.unexported, f"{type(error).__name__}: {_first_line(error)}")
        return False
    outcome.samples += 1
    outcome.closed += not foreign
    for name in foreign:
        _count(outcome.foreign, name)
    if not foreign and entry.full_name not in UNCOMPARED:
        try:
            difference = _difference(results, call.eager())
        except (RuntimeError, NotImplementedError) as error:
            difference = f"eager torch raises {_first_line(error)}"
        if difference:
            _count(outcome.wrong, difference)
    return True


class _Call:
    """One sample as a function of its tensors."""

    def __init__(self, entry: Any, sample: Any) -> None:
        self.entry = entry
        self.leaves, self.spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        self.positions = [index for index, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]

    def function(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        values = list(self.leaves)
        for position, value in zip(self.positions, tensors, strict=True):
            values[position] = value
        first, args, kwargs = pytree.tree_unflatten(values, self.spec)
        result = self.entry.op(first, *args, **kwargs)
        return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]

    def through_prims(self, foreign: set[str]) -> list[torch.Tensor | None]:
        """Results and gradients computed by the prim graphs; names of operators that are no prims go to ``foreign``."""
        table = prim_table(frozenset())

        def compiler(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
            try:
                graph = to_prim_graph(module, inputs, table)
                graph.verify()
            except _TimeoutError:
                raise
            except Exception as error:
                raise _CompilerFailure(f"decomposition failed with {type(error).__name__}: {_first_line(error)}") from error
            foreign.update(foreign_operators(graph.module))
            return torch_private.boxed(lambda *values: graph.interpret(*values))

        return self._run(torch_dynamo.aot_function(self.function, compiler, capture_table()))

    def eager(self) -> list[torch.Tensor | None]:
        """Results and gradients computed by torch, none where eager torch itself has no gradient."""
        return self._run(self.function)

    def _run(self, function: Any) -> list[torch.Tensor | None]:
        inputs = [self.leaves[i].detach().clone().requires_grad_(self.leaves[i].requires_grad) for i in self.positions]
        generator = torch.Generator().manual_seed(0)
        with torch.random.fork_rng(devices=[]):
            outputs = function(*inputs)
            wanted = [output for output in outputs if output.requires_grad]
            # by shape, not like the output: its strides would decide which element gets which number
            grads = [torch.randn(output.shape, generator=generator, dtype=output.dtype) for output in wanted]
            if wanted:
                torch.autograd.backward(wanted, grads)
        return [*(output.detach() for output in outputs), *(value.grad for value in inputs if value.requires_grad)]


def _difference(results: Sequence[torch.Tensor | None], expected: Sequence[torch.Tensor | None]) -> str:
    """Where two lists of results differ by more than rounding in float32 explains, ``""`` when nowhere."""
    for index, (actual, wanted) in enumerate(zip(results, expected, strict=True)):
        if actual is None or wanted is None:
            other = actual if wanted is None else wanted
            if other is not None and bool((other != 0).any()):
                return f"result {index} is missing on one side"
            continue
        if actual.shape != wanted.shape or actual.dtype != wanted.dtype:
            return f"result {index} is {actual.dtype}{list(actual.shape)} where torch has {wanted.dtype}{list(wanted.shape)}"
        scale = wanted.abs().nan_to_num(0, 0, 0).max().item() if wanted.numel() and wanted.dtype != torch.bool else 1
        if not torch.allclose(actual, wanted, rtol=1e-3, atol=5e-4 * max(1, scale), equal_nan=True):
            return f"result {index} differs from torch"
    return ""


def foreign_operators(module: torch.fx.GraphModule) -> set[str]:
    """Names of the call targets of ``module`` and its subgraphs that are no prims."""
    names = set()
    for submodule in module.modules():
        if isinstance(submodule, torch.fx.GraphModule):
            for node in submodule.graph.nodes:
                if node.op == "call_function" and node.target not in BY_TARGET and node.target is not operator.getitem:
                    names.add(str(node.target))
    return names


class _time_limit:
    """Raises in the main thread after ``seconds``: a hanging capture is one failed sample."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds

    def __enter__(self) -> None:
        signal.signal(signal.SIGALRM, self._expire)
        signal.alarm(self.seconds)

    def __exit__(self, *exception: object) -> None:
        signal.alarm(0)

    def _expire(self, number: int, frame: FrameType | None) -> None:
        raise _TimeoutError(f"no result after {self.seconds} s")


def _count(table: dict[str, int], key: str, count: int = 1) -> None:
    table[key] = table.get(key, 0) + count


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")[:160]


def _examine_at(index: int, limit: int | None) -> tuple[str, Outcome]:
    """One entry by its place in the database: the form that crosses between processes."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    entry = entries()[index]
    return entry.full_name, examine(entry, limit)


def measure(limit: int | None = None, show: bool = False, workers: int = 1) -> dict[str, Any]:
    """Runs the database in ``workers`` processes and returns the report that ``docs/closure.json`` holds."""
    outcomes: dict[str, Outcome] = {}
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        results = pool.map(_examine_at, range(len(entries())), itertools.repeat(limit))
        for name, examined in track(results, "closure", total=len(entries()), console=Console(stderr=True), disable=not show):
            outcome = outcomes.setdefault(name, Outcome())
            outcome.add(examined)
            if show and (outcome.wrong or disagreement(name, outcome)):
                print(f"{name}: {outcome.explanation()} {'; '.join(outcome.wrong)}", file=sys.stderr, flush=True)
    exportable = {name: outcome for name, outcome in outcomes.items() if outcome.samples}
    samples = sum(outcome.samples for outcome in exportable.values())
    closed = sum(outcome.closed for outcome in exportable.values())
    operators = sum(outcome.is_closed for outcome in exportable.values())
    wrong = {name: text for name, outcome in outcomes.items() if (text := disagreement(name, outcome))}
    return {
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "opset_prims": len(BY_TARGET),
        "samples_per_operator": limit or "all",
        "operators": {"exported": len(exportable), "closed": operators, "percent": _percent(operators, len(exportable))},
        "samples": {"exported": samples, "closed": closed, "percent": _percent(closed, samples)},
        "not_exported": {name: o.explanation() for name, o in outcomes.items() if not o.samples},
        "not_closed": {name: o.explanation() for name, o in exportable.items() if not o.is_closed},
        "wrong": {name: list(outcome.wrong) for name, outcome in exportable.items() if outcome.wrong},
        "exclusions": dict(EXCLUSIONS),
        "disagreements": wrong,
    }


def disagreement(name: str, outcome: Outcome) -> str:
    """What is wrong between an outcome and the list of exclusions, ``""`` when they agree."""
    if outcome.is_closed and name in EXCLUSIONS:
        return f"{name} is excluded ({EXCLUSIONS[name]}) but ends in prims: remove it from EXCLUSIONS"
    if not outcome.is_closed and name not in EXCLUSIONS:
        return f"{name} does not end in prims: {outcome.explanation()}"
    return ""


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 2) if whole else 0.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; exit status 1 when the list of exclusions is wrong."""
    parser = argparse.ArgumentParser(description="closure of the opset over torch's operator database")
    parser.add_argument("--samples", type=int, default=None, help="samples per operator and dtype (default: all)")
    parser.add_argument("--output", type=Path, default=Path("docs/closure.json"), help="report to write")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    report = measure(options.samples, show=True, workers=os.cpu_count() or 1)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=2) + "\n")
    for kind in ("operators", "samples"):
        counts = report[kind]
        print(f"{kind}: {counts['closed']} of {counts['exported']} end in prims ({counts['percent']} %)")
    for text in report["disagreements"].values():
        print(text)
    for name, differences in report["wrong"].items():
        print(f"{name}: {'; '.join(differences)}")
    return 1 if report["disagreements"] or report["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
