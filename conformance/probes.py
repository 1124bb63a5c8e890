"""Probes: a numerics datasheet of a backend, measured from outside by inputs whose results tell how they were computed.

The order of accumulation follows FPRev (Xie and others, Revealing floating-point summation order, 2024): among ones stand M and
-M, too large for a one to count beside them; the ones that survive are those that were added after M and -M met.
"""

from __future__ import annotations

import itertools
import math
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.nn import functional

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
KEYS = 256
"""Terms of those of attention and of scattered ones."""

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
    kwargs: Mapping[str, Any] = field(default_factory=dict)


Probing = Generator[None, None, list[Finding]]
"""A probe with a pause after its program was handed to the subject's compiler, which may go on in the background."""


def datasheet(subject: Subject, device: torch.device) -> list[Finding]:
    """Runs all probes; one that cannot be compiled or run has the value ``"unknown"``."""
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    asked = {
        dtype: [_begun(name, _asked(subject, questions, device)) for name, questions in _questions(dtype).items()]
        for dtype in dtypes
    }
    others = [
        _begun("attention float32", _attention(subject, device)),
        _begun("mul+add float32 contraction", _contraction(subject, device)),
        _begun("float32 determinism", _determinism(subject, device)),
    ]
    found: list[Finding] = []
    for dtype in dtypes:
        for probe in asked[dtype]:
            found += probe()
        found.append(_subnormals_of_all(dtype, found))
    return found + [each for probe in others for each in probe()]


def _begun(name: str, probing: Probing) -> Callable[[], list[Finding]]:
    """Begins a probe; what is returned ends it."""

    def step() -> list[Finding] | None:
        try:
            next(probing)
        except StopIteration as end:
            found: list[Finding] = end.value
            return found
        except Exception as error:
            traceback.print_exc()
            return [_unknown(name, error)]
        return None

    first = step()

    def ended() -> list[Finding]:
        found = first
        while found is None:
            found = step()
        return found

    return ended


def _unknown(name: str, error: Exception) -> Finding:
    return Finding(name, "unknown", f"{type(error).__name__}: {error}".splitlines()[0][:200])


def compared(found: Sequence[Finding], declared: Mapping[str, str]) -> list[dict[str, Any]]:
    """Findings beside what the backend declares, as they stand in a report. A declaration without a probe does not agree."""

    def agrees(each: Finding) -> bool:
        promised = declared.get(each.probe, each.value)
        if promised in DETERMINISM and each.value in DETERMINISM:
            return DETERMINISM.index(promised) <= DETERMINISM.index(each.value)
        return promised == each.value

    rows = [
        {
            "probe": each.probe,
            "value": each.value,
            "detail": each.detail,
            "declared": declared.get(each.probe),
            "agrees": agrees(each),
        }
        for each in found
    ]
    names = {each.probe for each in found}
    return rows + [
        {"probe": name, "value": "not probed", "detail": "no probe has this name", "declared": value, "agrees": False}
        for name, value in declared.items()
        if name not in names
    ]


def _asked(subject: Subject, questions: Sequence[_Question], device: torch.device) -> Probing:
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
        nodes.append((question.target, tuple(args), dict(question.kwargs)))
    graph.output(tuple(graph.call_function(*node) for node in nodes))
    results = yield from _called(subject, graph, inputs)
    return [finding for question, result in zip(questions, results, strict=True) for finding in question.read(result)]


def _called(subject: Subject, graph: fx.Graph, inputs: list[Tensor]) -> Generator[None, None, list[Tensor]]:
    program = Program(fx.GraphModule(torch.nn.Module(), graph), inputs, [0] * len(inputs), [])
    compiled = subject.compile(program)
    yield
    return [result.detach().cpu().clone() for result in compiled.call(*inputs)]


def _questions(dtype: torch.dtype) -> dict[str, list[_Question]]:
    name = str(dtype).removeprefix("torch.")
    shown = {f"{operation} {name} accumulator": [_width_of(operation, call, dtype)] for operation, call in SUMS.items()}
    shown |= {
        f"add {name} rounding": [_Question(aten.add.Tensor, _ties(dtype), lambda r: [_rounding(f"add {name}", r, dtype)])],
        f"mul {name} subnormals": [_Question(aten.mul.Tensor, _factors(dtype), lambda r: [_subnormals("mul", name, r)])],
        f"add {name} subnormals": [_Question(aten.add.Tensor, _addends(dtype), lambda r: [_subnormals("add", name, r)])],
        f"exp {name} subnormals": [_Question(aten.exp.default, (_exponents(dtype),), lambda r: [_written("exp", name, r)])],
    }
    families = {**SUMS, **MORE_WITH_SUBNORMALS}
    shown |= {f"{operation} {name} subnormals": [_small_of(operation, call, dtype)] for operation, call in families.items()}
    if dtype != torch.float32:
        shown[f"float32 to {name} rounding"] = [_converted(torch.float32, dtype)]
        shown[f"float64 to {name} rounding"] = [_converted(torch.float64, dtype)]
        return shown
    bits = 1 + 2.0 ** -torch.arange(1, 24, dtype=torch.float64)
    factors = bits.to(dtype)[:, None].expand(-1, 4).contiguous()
    first = torch.zeros(4, COLUMNS)
    first[0] = 1.0
    shown["mm float32 operands"] = [_Question(aten.mm.default, (factors, first), lambda r: [_operands(r[:, 0])])]
    shown |= {f"{operation} float32 order": [_order_of(operation, call)] for operation, call in SUMS.items()}
    return shown


@dataclass(frozen=True)
class _Sum:
    """A prim that adds up the rows of a matrix.

    Attributes:
        target: the prim.
        args: of the matrix (rows, terms).
        sums: of its result, a sum a row.
        over: what it divides such a sum of so many terms by.
        kwargs: of the prim.
        ordered: terms of the sums whose order is measured.
    """

    target: Callable[..., Any]
    args: Callable[[Tensor], tuple[Any, ...]]
    sums: Callable[[Tensor], Tensor] = lambda result: result
    over: Callable[[int], int] = lambda terms: 1
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    ordered: int = ORDERED


def _width_of(operation: str, call: _Sum, dtype: torch.dtype) -> _Question:
    terms, depth = _width_terms(dtype)
    name = f"{operation} {str(dtype).removeprefix('torch.')}"
    return _Question(call.target, call.args(terms), lambda r: [_width(name, call.sums(r), depth)], call.kwargs)


def _order_of(operation: str, call: _Sum) -> _Question:
    def read(result: Tensor) -> list[Finding]:
        return [_order(operation, call.sums(result) * call.over(call.ordered), call.ordered)]

    return _Question(call.target, call.args(_masked(call.ordered)), read, call.kwargs)


def _small_of(operation: str, call: _Sum, dtype: torch.dtype) -> _Question:
    """Of four subnormals, whose sum is one too."""
    small = torch.full((3, 4), torch.finfo(dtype).smallest_normal / 8).to(dtype)
    name = str(dtype).removeprefix("torch.")
    return _Question(call.target, call.args(small), lambda r: [_written(operation, name, call.sums(r))], call.kwargs)


def _ones(terms: Tensor) -> Tensor:
    return torch.ones(terms.shape[1], COLUMNS, dtype=terms.dtype)


def _window(terms: Tensor) -> tuple[Any, ...]:
    """Channels of images of one pixel."""
    weight = torch.ones(COLUMNS, terms.shape[1], 1, 1, dtype=terms.dtype)
    return (terms[:, :, None, None].contiguous(), weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)


def _rows_of(terms: Tensor) -> tuple[Any, ...]:
    """All terms of a row into its one element."""
    rows, count = terms.shape
    return torch.zeros(rows, 1, dtype=terms.dtype), 1, torch.zeros(rows, count, dtype=torch.int64), terms


SUMS: Mapping[str, _Sum] = {
    "mm": _Sum(aten.mm.default, lambda terms: (terms, _ones(terms)), lambda r: r[:, 0]),
    "bmm": _Sum(aten.bmm.default, lambda terms: (terms[None], _ones(terms)[None]), lambda r: r[0, :, 0]),
    "convolution": _Sum(aten.convolution.default, _window, lambda r: r[:, 0, 0, 0]),
    "sum": _Sum(aten.sum.dim_IntList, lambda terms: (terms, [1])),
    "mean": _Sum(aten.mean.dim, lambda terms: (terms, [1]), over=lambda terms: terms),
    "scatter_add": _Sum(aten.scatter_add.default, _rows_of, lambda r: r[:, 0], ordered=KEYS),
}
"""Prims whose accumulators and order are measured."""
MORE_WITH_SUBNORMALS: Mapping[str, _Sum] = {
    "cumsum": _Sum(aten.cumsum.default, lambda terms: (terms, 1), lambda r: r[:, -1]),
    "amax": _Sum(aten.amax.default, lambda terms: (terms, [1])),
    "gt": _Sum(aten.gt.Tensor, lambda terms: (terms, torch.zeros_like(terms)), lambda r: r[:, 0]),
    "to float64": _Sum(aten._to_copy.default, lambda terms: (terms,), lambda r: r[:, 0], kwargs={"dtype": torch.float64}),
}
"""Further prims whose operands below the normal range are looked at: a family each."""


def _masked(terms: int) -> Tensor:
    """(terms - 1, terms): ones, but M at 0 and -M at j in row j - 1."""
    masked = torch.ones(terms - 1, terms)
    masked[:, 0] = 2.0**100
    masked[torch.arange(terms - 1), torch.arange(1, terms)] = -(2.0**100)
    return masked


def _converted(source: torch.dtype, dtype: torch.dtype) -> _Question:
    """Ties and quarters, and of float64 a number so little above a tie that float32 does not see it."""
    name = str(dtype).removeprefix("torch.")
    operation, eps = f"{str(source).removeprefix('torch.')} to {name}", torch.finfo(dtype).eps
    steps = torch.tensor([0.5, 1.5, 0.75, 0.25], dtype=torch.float64)
    values = torch.cat([1 + steps * eps, -1 - steps * eps, torch.tensor([1 + 0.5 * eps + 2.0**-40], dtype=torch.float64)])

    def read(result: Tensor) -> list[Finding]:
        found = _rounding(operation, result[:8], dtype)
        if source != torch.float64 or found.value != "nearest, ties to even":
            return [found]
        how = "at once" if float(result[8]) > 1 else "through float32"
        return [Finding(found.probe, f"{found.value}, {how}", found.detail)]

    return _Question(aten._to_copy.default, (values.to(source),), read, {"dtype": dtype})


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


def _order(operation: str, sums: Tensor, terms: int = ORDERED) -> Finding:
    """``sums[j - 1]``: with M at 0 and -M at j. Terms that had met by the time 0 met j are the ones that did not survive."""
    probe = f"{operation} float32 order"
    together = (terms - sums.double()).tolist()
    if not all(float(size).is_integer() and 2 <= size <= terms for size in together):
        return Finding(probe, "unknown", "terms are neither kept nor lost as a tree of additions would")
    partners = [j + 1 for j, size in enumerate(together) if size == min(together)]
    if together == [j + 1.0 for j in range(1, terms)]:
        return Finding(probe, "sequential", "one after the other")
    if together == [2.0 ** (j.bit_length()) for j in range(1, terms)]:
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


def _rounding(operation: str, sums: Tensor, dtype: torch.dtype) -> Finding:
    """Steps above one, of: a tie below an even neighbour, a tie above one, three quarters, one quarter; then the negatives."""
    steps = tuple(int(x) for x in ((sums.double().abs() - 1) / torch.finfo(dtype).eps).tolist())
    modes: Mapping[tuple[int, ...], str] = {
        (0, 2, 1, 0, 0, 2, 1, 0): "nearest, ties to even",
        (1, 2, 1, 0, 1, 2, 1, 0): "nearest, ties away from zero",
        (0, 1, 0, 0, 0, 1, 0, 0): "toward zero",
        (1, 2, 1, 1, 0, 1, 0, 0): "upward",
        (0, 1, 0, 0, 1, 2, 1, 1): "downward",
    }
    return Finding(f"{operation} rounding", modes.get(steps, "other"), f"steps {steps}")


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


def _contraction(subject: Subject, device: torch.device) -> Probing:
    """(1 + 2**-12)**2 - (1 + 2**-11) is 2**-24, which only survives when the product is not rounded."""
    graph = fx.Graph()
    x, y, z = (graph.placeholder(name) for name in "xyz")
    product = graph.call_function(aten.mul.Tensor, (x, y))
    graph.output((graph.call_function(aten.add.Tensor, (product, z)),))
    inputs = [to_device(torch.full((64,), value), device) for value in (1 + 2.0**-12, 1 + 2.0**-12, -(1 + 2.0**-11))]
    (result,) = yield from _called(subject, graph, inputs)
    fused = result != 0
    value = "always" if bool(fused.all()) else "sometimes" if bool(fused.any()) else "never"
    return [Finding("mul+add float32 contraction", value, "a product and a sum in one rounding")]


def _attention(subject: Subject, device: torch.device) -> Probing:
    """Equal weights, which are a power of two: a sum of values. Each row of the matrix is a head's."""
    terms, scale = _width_terms(torch.float32)
    calls = []
    for matrix in (torch.cat([terms, torch.zeros(len(terms), 1)], 1), _masked(KEYS)):
        rows, count = matrix.shape
        query, key = torch.zeros(rows, 1, 1, 2 * COLUMNS), torch.zeros(rows, 1, count, 2 * COLUMNS)
        value = matrix[:, None, :, None].expand(key.shape).contiguous()
        inputs = [to_device(each, device) for each in (query, key, value)]
        calls.append((subject.prepare(_attended, inputs), inputs, count))
    yield
    padded, masked = (made.call(*inputs)[0].detach().cpu()[:, 0, 0, 0] * count for made, inputs, count in calls)
    return [_width("attention float32", padded, scale), _order("attention", masked, KEYS)]


def _attended(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor]:
    return (functional.scaled_dot_product_attention(query, key, value),)


def _bags(places: Tensor, table: Tensor) -> Tensor:
    return functional.embedding_bag(places, table, mode="sum")


def _gathered(places: Tensor, values: Tensor) -> Tensor:
    return torch.zeros(ROWS, values.shape[1], device=values.device).scatter_add(0, places, values)


ROWS = 16
"""Of a batch whose first row is computed alone too."""
DETERMINISM = ("none", "run to run", "across batch sizes")
"""Equal bits, each with those before it. Declared is what holds for all sizes; the probe's may have more."""


def _batches() -> dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], tuple[Tensor, ...]]]:
    """By operation: a function, its operands, and those of the first row (of ``scatter_add``, column) alone."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    a, b, heads, image, kernel = (
        normal(64, 1000),
        normal(1000, 32),
        normal(ROWS, 2, 96, 32),
        normal(ROWS, 8, 9, 9),
        normal(8, 8, 3, 3),
    )
    batch, others, weight = normal(ROWS, 24, 200), normal(ROWS, 200, 24), normal(1000)
    places, table = torch.randint(50, (ROWS, 300), generator=generator), normal(50, 32)
    targets, sources = torch.randint(ROWS, (4096, 8), generator=generator), normal(4096, 8)
    column = targets[:, :1].contiguous(), sources[:, :1].contiguous()
    return {
        "mm": (torch.mm, (a, b), (a[:1], b)),
        "bmm": (torch.bmm, (batch, others), (batch[:1], others[:1])),
        "convolution": (functional.conv2d, (image, kernel), (image[:1], kernel)),
        "sum": (lambda x: x.sum(1), (a,), (a[:1],)),
        "mean": (lambda x: x.mean(1), (a,), (a[:1],)),
        "softmax": (lambda x: x.softmax(1), (a,), (a[:1],)),
        "layer_norm": (lambda x, w: functional.layer_norm(x, w.shape, w), (a, weight), (a[:1], weight)),
        "attention": (lambda x: functional.scaled_dot_product_attention(x, x, x), (heads,), (heads[:1],)),
        "embedding_bag": (_bags, (places, table), (places[:1], table)),
        "scatter_add": (_gathered, (targets, sources), column),
    }


def _determinism(subject: Subject, device: torch.device) -> Probing:
    """Equal bits from call to call, and of a part of a batch alone. All in one program, or one a program where that fails."""
    batches = _batches()
    try:
        return (yield from _repeated(subject, device, batches))
    except Exception:
        traceback.print_exc()
    found = []
    for operation, batch in batches.items():
        try:
            found += yield from _repeated(subject, device, {operation: batch})
        except Exception as error:
            found.append(_unknown(f"{operation} float32 determinism", error))
    return found


def _repeated(subject: Subject, device: torch.device, batches: Mapping[str, Any]) -> Probing:
    inputs: list[Tensor] = []
    calls: list[tuple[Callable[..., Tensor], slice]] = []
    for function, whole, alone in batches.values():
        for operands in (whole, alone):
            calls.append((function, slice(len(inputs), len(inputs) + len(operands))))
            inputs += [to_device(each.contiguous(), device) for each in operands]

    def all_of_them(*given: Tensor) -> tuple[Tensor, ...]:
        return tuple(function(*given[operands]) for function, operands in calls)

    compiled = subject.prepare(all_of_them, inputs)
    yield
    runs = [[each.detach().cpu().clone() for each in compiled.call(*inputs)] for _ in range(REPEATS)]
    found = []
    for number, operation in enumerate(batches):
        whole, alone = runs[0][2 * number], runs[0][2 * number + 1]
        repeats = all(torch.equal(run[part], runs[0][part]) for run in runs for part in (2 * number, 2 * number + 1))
        first = whole[:, :1] if operation == "scatter_add" else whole[:1]
        value = "across batch sizes" if torch.equal(first, alone) else "run to run"
        found.append(Finding(f"{operation} float32 determinism", value if repeats else "none", f"{REPEATS} runs, a row alone"))
    return found
