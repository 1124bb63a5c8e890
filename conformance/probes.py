"""Probes: a numerics datasheet of a backend, measured from outside by inputs whose results tell how they were computed.

The order of accumulation follows FPRev (Xie and others, Revealing floating-point summation order, 2024): among ones stand M and
-M, too large for a one to count beside them; the ones that survive are those that were added after M and -M met.
"""

from __future__ import annotations

import itertools
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from conformance import subnormals
from conformance.program import Program, to_device
from conformance.subject import Subject

aten = torch.ops.aten

WIDTHS = {8: "bfloat16", 11: "float16", 24: "float32", 53: "float64"}
"""Names of significands by their bits, the hidden one included. TF32 has as many as float16."""
ORDERED = 1024
"""Terms of the sums whose order is measured."""
COLUMNS = 8
REPEATS = 10

Tensor = torch.Tensor


@dataclass(frozen=True)
class Finding:
    """What one probe found: ``probe`` names it, as a backend declares it in ``Backend.numerics``; ``detail`` is for people."""

    probe: str
    value: str
    detail: str = ""


FAILED: dict[str, Any] = {
    "probe": "all", "value": "unknown", "detail": "the worker died, or took too long", "declared": None, "agrees": False,
}  # fmt: skip
"""In place of findings, in a report."""


@dataclass(frozen=True)
class _Question:
    """One call, and what its result says."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    read: Callable[[Tensor], Sequence[Finding]]


def datasheet(subject: Subject, device: torch.device) -> list[Finding]:
    """Runs all probes; one that cannot be compiled or run has the value ``"unknown"``."""
    found: list[Finding] = []
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for name, questions in _questions(dtype).items():
            try:
                results = _asked(subject, questions, device)
                found += [f for question, result in zip(questions, results, strict=True) for f in question.read(result)]
            except Exception as error:
                traceback.print_exc()
                found.append(Finding(name, "unknown", f"{type(error).__name__}: {error}".splitlines()[0][:200]))
        found.append(_subnormals_of_all(dtype, found))
    for name, probe in {"mul+add float32 contraction": _contraction, "float32 determinism": _determinism}.items():
        try:
            found += probe(subject, device)
        except Exception as error:
            traceback.print_exc()
            found.append(Finding(name, "unknown", f"{type(error).__name__}: {error}".splitlines()[0][:200]))
    return found


def compared(found: Sequence[Finding], declared: Mapping[str, str]) -> list[dict[str, Any]]:
    """Findings beside what the backend declares, as they stand in a report. A declaration without a probe does not agree."""
    rows = [
        {
            "probe": each.probe,
            "value": each.value,
            "detail": each.detail,
            "declared": declared.get(each.probe),
            "agrees": declared.get(each.probe, each.value) == each.value,
        }
        for each in found
    ]
    names = {each.probe for each in found}
    return rows + [
        {"probe": name, "value": "not probed", "detail": "no probe has this name", "declared": value, "agrees": False}
        for name, value in declared.items()
        if name not in names
    ]


def _asked(subject: Subject, questions: Sequence[_Question], device: torch.device) -> list[Tensor]:
    """One program with all questions in it."""
    graph = fx.Graph()
    inputs: list[Tensor] = []
    nodes = []
    for question in questions:
        args = []
        for arg in question.args:
            if isinstance(arg, Tensor):
                args.append(graph.placeholder(f"input_{len(inputs)}"))
                inputs.append(to_device(arg, device))
            else:
                args.append(arg)
        nodes.append((question.target, tuple(args)))
    graph.output(tuple(graph.call_function(target, args) for target, args in nodes))
    return _called(subject, graph, inputs)[0]


def _called(subject: Subject, graph: fx.Graph, inputs: list[Tensor], times: int = 1) -> list[list[Tensor]]:
    program = Program(fx.GraphModule(torch.nn.Module(), graph), inputs, [0] * len(inputs), [])
    compiled = subject.compile(program)
    return [[result.detach().cpu().clone() for result in compiled.call(*inputs)] for _ in range(times)]


def _questions(dtype: torch.dtype) -> dict[str, list[_Question]]:
    name = str(dtype).removeprefix("torch.")
    terms, scale = _width_terms(dtype)
    ones = torch.ones(3, COLUMNS, dtype=dtype)
    shown = {
        f"mm {name} accumulator": [_Question(aten.mm.default, (terms, ones), lambda r: [_width(f"mm {name}", r[:, 0], scale)])],
        f"sum {name} accumulator": [_Question(aten.sum.dim_IntList, (terms, [1]), lambda r: [_width(f"sum {name}", r, scale)])],
        f"add {name} rounding": [_Question(aten.add.Tensor, _ties(dtype), lambda r: [_rounding(name, r, dtype)])],
        f"mul {name} subnormals": [_Question(aten.mul.Tensor, _factors(dtype), lambda r: [_subnormals("mul", name, r)])],
        f"add {name} subnormals": [_Question(aten.add.Tensor, _addends(dtype), lambda r: [_subnormals("add", name, r)])],
        f"exp {name} subnormals": [_Question(aten.exp.default, (_exponents(dtype),), lambda r: [_written("exp", name, r)])],
    }
    if dtype == torch.float32:
        bits = 1 + 2.0 ** -torch.arange(1, 24, dtype=torch.float64)
        factors = bits.to(dtype)[:, None].expand(-1, 4).contiguous()
        first = torch.zeros(4, COLUMNS)
        first[0] = 1.0
        shown["mm float32 operands"] = [_Question(aten.mm.default, (factors, first), lambda r: [_operands(r[:, 0])])]
        masked = torch.ones(ORDERED - 1, ORDERED)
        masked[:, 0] = 2.0**100
        masked[torch.arange(ORDERED - 1), torch.arange(1, ORDERED)] = -(2.0**100)
        dense = torch.ones(ORDERED, COLUMNS)
        shown["mm float32 order"] = [_Question(aten.mm.default, (masked, dense), lambda r: [_order("mm", r[:, 0])])]
        shown["sum float32 order"] = [_Question(aten.sum.dim_IntList, (masked, [1]), lambda r: [_order("sum", r)])]
    return shown


def _width_terms(dtype: torch.dtype) -> tuple[Tensor, int]:
    """Rows of S, S 2**-k and -S in every order, for k from 1; and the largest k."""
    top, depth = (8, 32) if dtype == torch.float16 else (0, 60)
    rows = [order for k in range(1, depth + 1) for order in itertools.permutations((2.0**top, 2.0 ** (top - k), -(2.0**top)))]
    return torch.tensor(rows, dtype=torch.float64).to(dtype), depth


def _width(operation: str, sums: Tensor, depth: int) -> Finding:
    """The first k whose small term is lost in some order tells the bits of the accumulator."""
    lost = (sums.reshape(depth, 6) == 0).any(dim=1)
    if not bool(lost.any()):
        return Finding(f"{operation} accumulator", f"more than {depth} bits", f"2**-{depth} times the largest is not lost")
    bits = int(lost.to(torch.int64).argmax()) + 1
    return Finding(f"{operation} accumulator", WIDTHS.get(bits, f"{bits} bits"), f"{bits} bits of significand")


def _operands(products: Tensor) -> Finding:
    kept = products != 1
    bits = 24 if bool(kept.all()) else int((~kept).to(torch.int64).argmax()) + 1
    names = {24: "float32", 11: "TF32", 8: "bfloat16"}
    return Finding("mm float32 operands", names.get(bits, f"{bits} bits"), f"{bits} bits of each factor count")


def _order(operation: str, sums: Tensor) -> Finding:
    """``sums[j - 1]``: with M at 0 and -M at j. Terms that had met by the time 0 met j are the ones that did not survive."""
    probe = f"{operation} float32 order"
    together = (ORDERED - sums.double()).tolist()
    if not all(float(size).is_integer() and 2 <= size <= ORDERED for size in together):
        return Finding(probe, "unknown", "terms are neither kept nor lost as a tree of additions would")
    partners = [j + 1 for j, size in enumerate(together) if size == min(together)]
    if together == [j + 1.0 for j in range(1, ORDERED)]:
        return Finding(probe, "sequential", "one after the other")
    if together == [2.0 ** (j.bit_length()) for j in range(1, ORDERED)]:
        return Finding(probe, "pairwise", "a balanced tree")
    sizes = ", ".join(f"{size:g}" for size in sorted(set(together))[:6])
    detail = f"the first term meets term {partners[0]} first; groups of {sizes}, ..."
    if min(together) == 2 and partners[0] > 1:
        return Finding(probe, f"{partners[0]} interleaved sums", detail)
    return Finding(probe, "blocked", detail)


def _ties(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    eps = torch.finfo(dtype).eps
    pairs = [(1.0, eps / 2), (1.0 + eps, eps / 2), (1.0, 0.75 * eps), (1.0, 0.25 * eps)]
    signed = [*pairs, *((-x, -y) for x, y in pairs)]
    left, right = torch.tensor(signed, dtype=torch.float64).to(dtype).unbind(1)
    return left.contiguous(), right.contiguous()


def _rounding(name: str, sums: Tensor, dtype: torch.dtype) -> Finding:
    """Steps above one, of: a tie below an even neighbour, a tie above one, three quarters, one quarter; then the negatives."""
    steps = tuple(int(x) for x in ((sums.double().abs() - 1) / torch.finfo(dtype).eps).tolist())
    modes: Mapping[tuple[int, ...], str] = {
        (0, 2, 1, 0, 0, 2, 1, 0): "nearest, ties to even",
        (1, 2, 1, 0, 1, 2, 1, 0): "nearest, ties away from zero",
        (0, 1, 0, 0, 0, 1, 0, 0): "toward zero",
        (1, 2, 1, 1, 0, 1, 0, 0): "upward",
        (0, 1, 0, 0, 1, 2, 1, 1): "downward",
    }
    return Finding(f"add {name} rounding", modes.get(steps, "other"), f"steps {steps}")


def _factors(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Subnormals that are read and written, only read, only written."""
    normal = torch.finfo(dtype).smallest_normal
    return _columns([(normal / 2, 1.0), (normal / 2, 4.0), (normal, 0.5)], dtype)


def _addends(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """As ``_factors``."""
    normal = torch.finfo(dtype).smallest_normal
    return _columns([(normal / 2, 0.0), (normal / 2, normal / 2), (normal * 1.5, -normal)], dtype)


def _columns(pairs: Sequence[tuple[float, float]], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    left, right = torch.tensor(pairs, dtype=torch.float64).to(dtype).unbind(1)
    return left.contiguous(), right.contiguous()


def _exponents(dtype: torch.dtype) -> Tensor:
    """Of ``e``, for results of a quarter, a half and three quarters of the smallest normal number."""
    normal = math.log(torch.finfo(dtype).smallest_normal)
    return torch.tensor([normal + math.log(part) for part in (0.25, 0.5, 0.75)]).to(dtype)


def _written(operation: str, name: str, results: Tensor) -> Finding:
    kept = (results != 0).tolist()
    value = "kept" if all(kept) else "other" if any(kept) else "flushed"
    return Finding(f"{operation} {name} subnormals", value, "results below the normal range")


def _subnormals_of_all(dtype: torch.dtype, found: Sequence[Finding]) -> Finding:
    """What an element-wise operation does with subnormals, if all do the same."""
    name, values = subnormals.probe(dtype), {each.probe: each.value for each in found}
    operations = ("mul", "add", "exp")
    product, total, power = (values[f"{operation} {name}"] for operation in operations)
    detail = ", ".join(f"{operation} {values[f'{operation} {name}']}" for operation in operations)
    if "unknown" in (product, total, power):
        return Finding(name, "unknown", detail)
    written = "flushed" if product in ("flushed", "flushed when written") else "kept"
    same = product == total and power == written and product != "other"
    return Finding(name, product if same else subnormals.EITHER, detail)


def _subnormals(operation: str, name: str, results: Tensor) -> Finding:
    through, read, made = (bool(x) for x in results != 0)
    value = {
        (True, True, True): "kept",
        (False, False, False): "flushed",
        (False, False, True): "flushed when read",
        (False, True, False): "flushed when written",
    }
    return Finding(
        f"{operation} {name} subnormals",
        value.get((through, read, made), "other"),
        "operands and results below the normal range",
    )


def _contraction(subject: Subject, device: torch.device) -> list[Finding]:
    """(1 + 2**-12)**2 - (1 + 2**-11) is 2**-24, which only survives when the product is not rounded."""
    graph = fx.Graph()
    x, y, z = (graph.placeholder(name) for name in "xyz")
    product = graph.call_function(aten.mul.Tensor, (x, y))
    graph.output((graph.call_function(aten.add.Tensor, (product, z)),))
    inputs = [to_device(torch.full((64,), value), device) for value in (1 + 2.0**-12, 1 + 2.0**-12, -(1 + 2.0**-11))]
    ((result,),) = _called(subject, graph, inputs)
    fused = result != 0
    value = "always" if bool(fused.all()) else "sometimes" if bool(fused.any()) else "never"
    return [Finding("mul+add float32 contraction", value, "a product and a sum in one rounding")]


def _determinism(subject: Subject, device: torch.device) -> list[Finding]:
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(shape, generator=generator) for shape in ((64, 1000), (1000, 32)))
    inputs = [to_device(x, device) for x in (a, b, a[:1].contiguous())]
    graph = fx.Graph()
    x, y, row = (graph.placeholder(name) for name in ("a", "b", "row"))
    graph.output(
        tuple(
            graph.call_function(target, args)
            for target, args in (
                (aten.mm.default, (x, y)),
                (aten.mm.default, (row, y)),
                (aten.sum.dim_IntList, (x, [1])),
                (aten.sum.dim_IntList, (row, [1])),
            )
        )
    )
    runs = _called(subject, graph, inputs, REPEATS)
    found = []
    for operation, whole, alone in (("mm", 0, 1), ("sum", 2, 3)):
        repeats = all(torch.equal(run[part], runs[0][part]) for run in runs for part in (whole, alone))
        value = "across batch sizes" if torch.equal(runs[0][whole][:1], runs[0][alone]) else "run to run"
        found.append(Finding(f"{operation} float32 determinism", value if repeats else "none", f"{REPEATS} runs, a row alone"))
    return found
