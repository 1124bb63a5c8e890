"""Closure of the opset: what torch's operator database can produce ends in prims, or the operator is a named exclusion.

Each sample of the database is captured forward and backward through AOTAutograd with ``capture_table`` and min-cut, then taken
to prims with ``prim_table``, exactly as a compiled model is. ``python -m vendor_sdk.closure`` runs all samples and
writes the percentages.
"""

from __future__ import annotations

import argparse
import datetime
import json
import operator
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from vendor_sdk import torch_private
from vendor_sdk.capture.graph import to_prim_graph
from vendor_sdk.normalize.decompose import capture_table, prim_table
from vendor_sdk.prims.exclusions import EXCLUSIONS
from vendor_sdk.prims.opset import BY_TARGET

DTYPES = (torch.float32, torch.int64, torch.bool)
SECONDS_PER_SAMPLE = 60


@dataclass
class Outcome:
    """What became of one operator's samples.

    Attributes:
        samples: how many were captured and taken to prims, closed or not.
        closed: how many of them ended in prims alone.
        foreign: operators that remained, with the number of samples in which they did.
        unexported: why samples could not be captured, with counts; they do not count for or against closure.
        errors: samples on which a rule itself failed, by message; they count as not closed.
    """

    samples: int = 0
    closed: int = 0
    foreign: dict[str, int] = field(default_factory=dict)
    unexported: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def is_closed(self) -> bool:
        """At least one sample was captured, and every captured one ends in prims."""
        return self.samples > 0 and self.closed == self.samples

    def add(self, other: Outcome) -> None:
        """Merges the outcome of another entry of the same name."""
        self.samples += other.samples
        self.closed += other.closed
        for mine, its in ((self.foreign, other.foreign), (self.unexported, other.unexported), (self.errors, other.errors)):
            for key, count in its.items():
                mine[key] = mine.get(key, 0) + count

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
        yield from entry.sample_inputs("cpu", dtype, requires_grad=dtype.is_floating_point and entry.supports_autograd)
    except (RuntimeError, AssertionError, ValueError, ImportError, NotImplementedError) as error:
        _count(outcome.unexported, f"sampling: {_first_line(error)}")


def _examine_sample(entry: Any, sample: Any, outcome: Outcome) -> bool:
    """Adds one sample to ``outcome``; returns whether it was captured."""
    foreign: set[str] = set()
    try:
        with _time_limit(SECONDS_PER_SAMPLE):
            _capture(entry, sample, foreign)
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
    return True


def _capture(entry: Any, sample: Any, foreign: set[str]) -> None:
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    positions = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
        values = list(leaves)
        for position, value in zip(positions, tensors, strict=True):
            values[position] = value
        first, args, kwargs = pytree.tree_unflatten(values, spec)
        result = entry.op(first, *args, **kwargs)
        return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]

    inputs = [leaves[i].detach().clone().requires_grad_(leaves[i].requires_grad) for i in positions]
    with _compiling(foreign) as compiler:
        outputs = torch_private.aot_function(function, compiler, capture_table())(*inputs)
        wanted = [output for output in outputs if output.requires_grad]
        if wanted:
            torch.autograd.backward(wanted, [torch.ones_like(output) for output in wanted])


class _compiling:
    """A compiler that records what is foreign in each graph, and runs the graph as captured."""

    def __init__(self, foreign: set[str]) -> None:
        self.foreign = foreign
        self.table = prim_table(frozenset())

    def __enter__(self) -> Any:
        return self.compile

    def __exit__(self, *exception: object) -> None:
        pass

    def compile(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        try:
            graph = to_prim_graph(module, inputs, self.table)
            graph.verify()
        except _TimeoutError:
            raise
        except Exception as error:
            raise _CompilerFailure(f"decomposition failed with {type(error).__name__}: {_first_line(error)}") from error
        self.foreign.update(foreign_operators(graph.module))
        return torch_private.boxed(module.forward)


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


def _count(table: dict[str, int], key: str) -> None:
    table[key] = table.get(key, 0) + 1


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")[:160]


def measure(limit: int | None = None, show: bool = False) -> dict[str, Any]:
    """Runs the database and returns the report that ``docs/closure.json`` holds."""
    outcomes: dict[str, Outcome] = {}
    for entry in entries():
        torch.manual_seed(0)
        outcome = outcomes.setdefault(entry.full_name, Outcome())
        outcome.add(examine(entry, limit))
        if show and not outcome.is_closed:
            print(f"{entry.full_name}: {outcome.explanation()}", file=sys.stderr, flush=True)
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
    report = measure(options.samples, show=True)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=2) + "\n")
    for kind in ("operators", "samples"):
        counts = report[kind]
        print(f"{kind}: {counts['closed']} of {counts['exported']} end in prims ({counts['percent']} %)")
    for text in report["disagreements"].values():
        print(text)
    return 1 if report["disagreements"] else 0


if __name__ == "__main__":
    sys.exit(main())
