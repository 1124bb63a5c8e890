"""Generated graphs: right fusions are accepted however they round, planted wrong ones are found and written down."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

import vendor_sdk
from conformance import fused, graphs, spans
from conformance.fused import Tally, by_seed
from conformance.program import Program
from conformance.slack import extended
from conformance.subject import Compiled, Description, Subject
from conformance.subnormals import NOWHERE, Flushing, declared
from vendor_sdk import OPSET, Effort, Family, Sample, reference, violations

CPU = torch.device("cpu")
aten = torch.ops.aten
Tensor = torch.Tensor
HALVES = (torch.bfloat16, torch.float16)


class Interpreted(Subject):
    """A backend that runs whole graphs, as ``interpreter`` says."""

    opaque = True

    def __init__(self, interpreter: type[fx.Interpreter]) -> None:
        self.interpreter = interpreter

    def describe(self) -> Description:
        return Description("torch:eager", "1", "", {"name": "none"})

    def synchronize(self) -> None:
        """Everything is done at once."""

    def prepare(self, function: Callable[..., Any], inputs: Sequence[Tensor]) -> Compiled:
        return Compiled(function, ())

    def through_torch(self, function: Callable[..., Any], *, dynamic: bool | None = None) -> Callable[..., Any]:
        return function

    def compile(self, program: Program) -> Compiled:
        return Compiled(lambda *inputs: self.interpreter(program.module).run(*inputs), ())


class Eager(fx.Interpreter):
    """Unfused, in the graph's own dtypes."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)

    def run_node(self, node: fx.Node) -> Any:
        if node.op != "call_function" or node.target is operator.getitem:
            return super().run_node(node)
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        return self.call(node, args, kwargs)

    def call(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return node.target(*args, **kwargs)  # type: ignore[operator]


# Right ones


class InFloat32(Eager):
    """Halves are computed in float32 and rounded where the graph says so, and at its end."""

    wide = torch.float32
    narrow: Sequence[torch.dtype] = HALVES

    def call(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        dtype = kwargs.get("dtype")
        if node.target is aten._to_copy.default and dtype in self.narrow:
            return self.widened(super().call(node, args, kwargs))
        if node.target is aten._to_copy.default and isinstance(dtype, torch.dtype):
            return super().call(node, args, kwargs)
        return self.widened(super().call(node, args, kwargs))

    def widened(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return tuple(map(self.widened, value))
        return value.to(self.wide) if value.dtype in self.narrow else value

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self.widened(super().placeholder(target, args, kwargs))

    def output(self, target: Any, args: Any, kwargs: Any) -> Any:
        ends = list(self.module.graph.nodes)[-1].args[0]  # type: ignore[union-attr]
        return tuple(value.to(node.meta["val"].dtype) for value, node in zip(args[0], ends, strict=True))


class InFloat64(InFloat32):
    """Everything but the end, and conversions, in float64."""

    wide = torch.float64
    narrow = (*HALVES, torch.float32)


class Backwards(Eager):
    """Sums in another order: the last element first."""

    def call(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if node.target in (aten.sum.dim_IntList, aten.mean.dim) and args[0].is_floating_point():
            return super().call(node, (args[0].flip(args[1]), *args[1:]), kwargs)
        if node.target is aten.mm.default and args[0].dtype == torch.float32:
            return super().call(node, (args[0].flip(1), args[1].flip(0)), kwargs)
        return super().call(node, args, kwargs)


# Wrong ones


class DropsCasts(Eager):
    """To a half precision and back is taken for nothing."""

    def call(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        source = node.args[0]
        if (
            node.target is aten._to_copy.default
            and isinstance(source, fx.Node)
            and source.target is aten._to_copy.default
            and source.meta["val"].dtype in HALVES
            and node.meta["val"].dtype.is_floating_point
        ):
            args = (self.env[source.args[0]], *args[1:])  # type: ignore[index]
        return super().call(node, args, kwargs)


class BroadcastsTheOtherWay(Eager):
    """A row is added as a column where the matrix is square."""

    def call(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if node.target in (aten.add.Tensor, aten.mul.Tensor, aten.sub.Tensor) and isinstance(args[1], Tensor):
            a, b = args[:2]
            if a.dim() == 2 and b.dim() == 1 and a.shape[0] == a.shape[1] == b.shape[0] > 1:
                args = (a, b.unsqueeze(1))
        return super().call(node, args, kwargs)


class ReusesABuffer(Eager):
    """Two pointwise results of one shape share memory, whether or not the first is read again."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.buffers: dict[Any, Tensor] = {}

    def call(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = super().call(node, args, kwargs)
        if node.target in (aten.mul.Tensor, aten.add.Tensor) and value.numel():
            return self.buffers.setdefault((value.shape, value.dtype), torch.empty_like(value)).copy_(value)
        return value


class ReducesFirst(Eager):
    """A reduction moves past the pointwise prim below it."""

    def call(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        source = node.args[0] if node.args else None
        moves = (aten.exp.default, aten.abs.default, aten.relu.default, aten.tanh.default, aten.sigmoid.default)
        if node.target is aten.sum.dim_IntList and isinstance(source, fx.Node) and source.target in moves:
            inner = super().call(node, (self.env[source.args[0]], *args[1:]), kwargs)  # type: ignore[index]
            return source.target(inner)  # type: ignore[operator]
        return super().call(node, args, kwargs)


class DropsTheTail(Eager):
    """Sums leave out the last element of a long row."""

    def call(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if node.target is aten.sum.dim_IntList and len(args[1]) == 1 and args[0].shape[args[1][0]] > 16:
            dim = args[1][0]
            args = (args[0].narrow(dim, 0, args[0].shape[dim] - 1), *args[1:])
        return super().call(node, args, kwargs)


class SwallowsNan(Eager):
    """The maximum of a number and NaN is the number."""

    def call(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if node.target is aten.relu.default:
            return super().call(node, args, kwargs).nan_to_num(0.0, float("inf"), float("-inf"))
        return torch.fmax(*args) if node.target is aten.maximum.default else super().call(node, args, kwargs)


def failures(interpreter: type[fx.Interpreter], kind: str, seeds: Sequence[int]) -> tuple[list[fused.Failed], Tally]:
    tally = Tally()
    subject = Interpreted(interpreter)
    found = [failed for seed in seeds for failed in fused.run(call_of(subject), [by_seed(kind, seed)], CPU, tally)]
    return found, tally


def call_of(subject: Subject) -> Callable[[Program], Any]:
    return lambda program: subject.compile(program).call


@pytest.mark.parametrize("kind", ["float32", "mixed", "bfloat16"])
@pytest.mark.parametrize("interpreter", [Eager, InFloat32, InFloat64, Backwards])
def test_right_fusions_are_accepted(interpreter: type[fx.Interpreter], kind: str) -> None:
    found, tally = failures(interpreter, kind, range(8))
    assert not found, found[0].wrong
    assert tally.graphs == 8
    assert tally.open < 0.05 * tally.elements, "bounds that leave results open show nothing"


@pytest.mark.parametrize(
    ("interpreter", "kind", "first"),
    [
        (DropsCasts, "mixed", 63),
        (BroadcastsTheOtherWay, "float32", 30),
        (ReusesABuffer, "float32", 5),
        (ReducesFirst, "float32", 2),
        (DropsTheTail, "float32", 34),
        (SwallowsNan, "mixed", 119),
    ],
)
def test_planted_bugs_are_found(interpreter: type[fx.Interpreter], kind: str, first: int) -> None:
    # ``first`` is where one is found, so that this takes no time; others follow.
    assert any(fused.fails(call_of(Interpreted(interpreter)), by_seed(kind, seed), CPU) for seed in range(first, first + 100))


def test_a_failure_is_made_small_and_written_down(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(fused, "SHRINKING", 5.0)
    outcome = fused.certify(Interpreted(Negates), "float32", effort=Effort.QUICK, seed=1, device=CPU)
    assert outcome.verdict == "fail"
    failure = outcome.failures[0]
    assert failure.kind == "value"
    assert len(re.findall(r"= torch\.ops\.", failure.script)) <= 2, failure.script
    assert failure.script in capsys.readouterr().out
    # Run by itself with what is right, it says so; with what is wrong, its status is 1.
    assert _status(failure.script) == 0
    assert (
        _status(failure.script.replace("compiled = ", "compiled = lambda *given: [-each for each in program(*given)]  # ")) == 1
    )


def test_any_of_bytes_that_are_not_known_is_judged() -> None:
    """The suite's own error was laid to the backend."""
    x = torch.tensor([[0.4, 1.0, 7.0], [0.5, 1.0, 0.2], [0.0, 0.1, 0.2]], dtype=torch.float64).log()

    def function(x: Tensor) -> Tensor:
        return aten.any.dims(aten._to_copy.default(aten.exp.default(x), dtype=torch.uint8), [1], True)  # type: ignore[no-any-return]

    (span,) = fused.spans_of(vendor_sdk.trace(function, [x]).module, [x])
    assert span.dtype == torch.uint8
    assert not span.free.any()
    assert span.low.flatten().tolist() == [1, 0, 0]
    assert span.high.flatten().tolist() == [1, 1, 0]


def test_a_failure_is_told_before_the_time_of_its_case_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong graph whose smaller ones took long to compile was a timeout in the report."""
    tried: list[graphs.Drawn] = []
    fails = fused.fails

    def counted(compiled: Any, drawn: graphs.Drawn, *rest: Any) -> Any:
        tried.append(drawn)
        return fails(compiled, drawn, *rest)

    monkeypatch.setattr(fused, "fails", counted)
    outcome = fused.certify(Interpreted(Negates), "float32", effort=Effort.QUICK, seed=1, device=CPU, timeout=1e-3)
    assert outcome.verdict == "fail"
    assert outcome.failures[0].script
    assert len(tried) <= 2 * outcome.samples, "alone, and once more for the script"


class Refuses(Interpreted):
    """Compiles nothing for sizes that change."""

    def through_torch(self, function: Callable[..., Any], *, dynamic: bool | None = None) -> Callable[..., Any]:
        raise RuntimeError("what sizes are these?")


@pytest.mark.parametrize("followed", [True, False])
def test_no_backend_is_told_of_graphs_that_torch_itself_does_not_follow(
    followed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fused, "SHRINKING", 0.0)
    if not followed:
        broken = torch.fx.symbolic_trace(lambda x, y: (aten.mm.default(x, x),))  # of 2x3 and 2x3
        unlike = graphs.Drawn(broken, [], [], [])
        monkeypatch.setattr(graphs.Drawn, "values", lambda self, again=0, *, other=False: [torch.ones(2, 3), torch.ones(1)])
        monkeypatch.setattr(fused, "drawn_by_hypothesis", lambda kind, seed, count: [unlike] * count)
    outcome = fused.certify(Refuses(Eager), "dynamic", effort=Effort.QUICK, seed=1, device=CPU)
    said = "itself does not follow it" in capsys.readouterr().out
    if followed:
        assert (outcome.verdict, outcome.samples, said) == ("error", fused.GRAPHS[Effort.QUICK], False)
    else:
        assert (outcome.verdict, outcome.samples, said) == ("empty", 0, True)


def test_what_a_graph_does_to_its_inputs_is_seen() -> None:
    def compiled(program: Program) -> Callable[..., Any]:
        return lambda *inputs: [value.clone() for value in program.module(*(each.add_(0.5) for each in inputs))]

    wrong = fused.fails(compiled, by_seed("float32", 4), CPU)
    assert wrong is not None


class Negates(Eager):
    def call(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = super().call(node, args, kwargs)
        return -value if isinstance(value, Tensor) and value.is_floating_point() else value


def _status(text: str) -> int:
    with pytest.raises(SystemExit) as ended:
        exec(compile(text, "script", "exec"), {"__name__": "__main__"})
    return int(ended.value.code or 0)


@pytest.mark.parametrize("kind", sorted(graphs.KINDS))
def test_graphs_follow_from_their_seed(kind: str) -> None:
    one, other = (fused.drawn_by_hypothesis(kind, 3, 2) for _ in range(2))
    assert [each.module.code for each in one] == [each.module.code for each in other]
    for each in one:
        fused.spans_of(each.module, each.values())
        fused.spans_of(each.module, each.values(1, other=True))


def test_places_of_bools_have_spans() -> None:
    x = torch.tensor([[False, True, False], [False, False, False]])
    value, place = fused.spans_of(vendor_sdk.trace(lambda x: tuple(x.max(1)), [x]).module, [x])
    assert value.low.tolist() == value.high.tolist() == [True, False]
    assert place.low.tolist() == [1, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("function", [torch.sub, torch.maximum, torch.mul], ids=lambda function: function.__name__)
def test_a_scalar_of_float64_may_be_rounded_to_the_dtype_it_meets(function: Callable[..., Tensor], dtype: torch.dtype) -> None:
    x, scalar = torch.linspace(-3, 3, 100, dtype=dtype), torch.tensor(0.4133661940690838, dtype=torch.float64)
    (span,) = fused.spans_of(vendor_sdk.trace(function, [x, scalar]).module, [x, scalar])
    assert span.dtype == dtype
    for rounded in (scalar, scalar.to(dtype), scalar.to(torch.float32)):
        for precision in (torch.float64, torch.float32, dtype):
            found = function(x.to(precision), rounded.to(precision))
            assert not spans.errors(span, found.to(dtype)).any(), (rounded, precision)
    assert spans.errors(span, function(x, scalar + 0.01)).any()


@pytest.mark.parametrize(("dtype", "other"), [(torch.bfloat16, torch.float16), (torch.float16, torch.bfloat16)])
@pytest.mark.parametrize("function", [torch.sub, torch.maximum, torch.gt, torch.eq], ids=lambda function: function.__name__)
def test_a_scalar_of_the_other_half_may_be_rounded(
    function: Callable[..., Tensor], dtype: torch.dtype, other: torch.dtype
) -> None:
    """Torch rounds it to the dtype of a tensor that has dimensions, which may not hold its digits, or not its range."""
    for number in (2.2295, 1.001, 3e-7, 3e-20, 70000.0):
        scalar = torch.tensor(number).to(other)
        x = torch.stack([scalar.to(dtype), scalar.to(dtype) * 0.5, scalar.to(dtype) + 1])
        (span,) = fused.spans_of(vendor_sdk.trace(function, [x, scalar]).module, [x, scalar])
        for found in (function(x, scalar), function(x.float(), scalar.float()).to(span.dtype)):
            assert not spans.errors(span, found).any(), number


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_integer_may_meet_a_half_in_float32(dtype: torch.dtype) -> None:
    """Fused, it is not rounded to the half first: a difference from infinity is NaN or infinite then."""
    x = torch.tensor([3, 2049, -70001, 2147483646], dtype=torch.int32)
    half = torch.tensor([1.5, 2048, -7, float("inf")]).to(dtype)
    (span,) = fused.spans_of(vendor_sdk.trace(torch.sub, [x, half]).module, [x, half])
    for found in (x - half, (x.float() - half.float()).to(dtype)):
        assert not spans.errors(span, found).any()
    assert spans.errors(span, (x - half + 1)[:2].repeat(2)).any()


@pytest.mark.parametrize("function", [lambda x: x.cosh() - x.cosh(), lambda x: x.sinh() + (-x).sinh()])
def test_what_is_too_large_meets_itself_as_infinity(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.tensor([-253.0, 253.0, 1.0])
    (span,) = fused.spans_of(vendor_sdk.trace(function, [x]).module, [x])
    assert function(x)[:2].isnan().all()
    assert not spans.errors(span, function(x)).any()
    assert spans.errors(span, torch.tensor([0.0, 0.0, 1.0])).tolist()[2]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.to(torch.bfloat16),
        lambda x: x.to(torch.bfloat16).to(torch.int64) > 7,
        lambda x: x.argmax(),
        lambda x: x.max(0).indices,
        lambda x: x.var(correction=0),
        lambda x: x.amax() * 0,
        lambda x: x.sum(),
    ],
)
def test_what_is_too_large_for_a_half_may_be_infinite_for_whoever_reads_it(function: Callable[[Tensor], Tensor]) -> None:
    x, y = torch.tensor([300.0, 490.0, 3.0], dtype=torch.float16), torch.tensor([0.004, 0.004, 1.0], dtype=torch.float16)
    module = vendor_sdk.trace(lambda x, y: function(x / y), [x, y]).module
    (span,) = fused.spans_of(module, [x, y])
    for found in (function(x / y), function(x.float() / y.float())):
        assert not spans.errors(span, found.to(span.dtype)).any()


def test_subnormal_sigmoids_of_float64_are_right() -> None:
    x = torch.tensor([-744.0, -715.857, -709.8, -700.5, -699.5, -1.0], dtype=torch.float64)
    (span,) = fused.spans_of(vendor_sdk.trace(torch.sigmoid, [x]).module, [x])
    with mpmath.workprec(200):
        right = torch.tensor([float(1 / (1 + mpmath.exp(-each))) for each in x.tolist()], dtype=torch.float64)
    assert not spans.errors(span, right).any()
    assert spans.errors(span, right * 1.001)[1:].all(), "but for numbers of a few bits"


PRODUCTS = declared({"mm bfloat16 subnormals": "flushed", "sum bfloat16 subnormals": "kept"})
NORMAL = torch.finfo(torch.bfloat16).smallest_normal


def test_units_that_multiply_matrices_may_flush_where_others_do_not() -> None:
    """AVX512_BF16 takes subnormals for zero, which the processor's other instructions keep."""
    nothing = frozenset[torch.dtype]()
    assert declared({}) == Flushing(nothing, dict.fromkeys(PRODUCTS.families, nothing))
    assert PRODUCTS.everywhere == nothing
    assert {family for family, dtypes in PRODUCTS.families.items() if dtypes} == {Family.CONTRACTION}
    by_name = {name: PRODUCTS.by(OPSET[name]) for name in ("mm", "bmm", "mul", "sum", "view")}
    assert by_name == {"mm": {torch.bfloat16}, "bmm": {torch.bfloat16}, "mul": nothing, "sum": nothing, "view": nothing}


@pytest.mark.parametrize(
    ("factors", "others", "found", "may"),
    [
        ([NORMAL, 0.0], [0.5, 0.0], 0.0, True),  # the result is subnormal
        ([NORMAL / 2, 0.0], [8.0, 0.0], 0.0, True),  # an operand is
        ([NORMAL, NORMAL], [0.75, 0.5], 0.0, True),  # the terms are, and their sum is not
        ([NORMAL, 1.0], [0.5, 1.0], 1.0, True),
        ([2 * NORMAL, 2 * NORMAL], [8.0, 8.0], 0.0, False),
        ([1.0, 2.0**-100], [0.0, 1.0], 0.0, False),
    ],
)
def test_sums_of_products_may_drop_what_is_subnormal(
    factors: list[float], others: list[float], found: float, may: bool
) -> None:
    inputs = [torch.tensor(each, dtype=torch.bfloat16) for each in ([factors], [[other] for other in others])]
    module = vendor_sdk.trace(torch.mm, inputs).module
    result = torch.tensor([[found]], dtype=torch.bfloat16)
    accepted = [fused.judge(fused.spans_of(module, inputs, f), [result], Tally()) is None for f in (PRODUCTS, NOWHERE)]
    assert accepted == [may, found == 1.0]


def test_what_reads_a_product_that_flushes_flushes_nothing_itself() -> None:
    """A product of 512 times the smallest normal number may not be zero, nor may that, halved nine times and more."""
    inputs = [torch.tensor([[512 * NORMAL, 1.0]], dtype=torch.bfloat16), torch.tensor([[1.0], [0.0]], dtype=torch.bfloat16)]
    module = vendor_sdk.trace(lambda x, y: torch.mm(x, y) * 2.0**-11, inputs).module
    (span,) = fused.spans_of(module, inputs, PRODUCTS)
    assert fused.judge([span], [torch.tensor([[NORMAL / 4]], dtype=torch.bfloat16)], Tally()) is None
    assert fused.judge([span], [torch.tensor([[0.0]], dtype=torch.bfloat16)], Tally()) is not None


def test_spans_hold_every_conforming_result() -> None:
    """By definition: any value within the bound of a prim, at any place in a chain, stays within the chain's span."""
    x = torch.linspace(-2, 2, 33)
    graph = fx.Graph()
    node = graph.placeholder("x")
    node.meta["val"] = x.to("meta")
    for target in (aten.exp.default, aten.sigmoid.default, aten.log.default, aten.tanh.default):
        node = graph.call_function(target, (node,))
        node.meta["val"] = x.to("meta")
    graph.output((node,))
    (span,) = fused.spans_of(fx.GraphModule(torch.nn.Module(), graph), [x])
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        value = x.double()
        for function, units in ((torch.exp, 3), (torch.sigmoid, 2), (torch.log, 3), (torch.tanh, 5)):
            exact = function(value)
            noise = torch.rand(exact.shape, generator=generator, dtype=torch.float64) * 2 - 1
            value = exact + noise * units * exact.abs() * torch.finfo(torch.float32).eps / 2
        assert ((value >= span.low) & (value <= span.high)).all()
    assert ((span.high - span.low) < 1e-4).all(), "and not much more"


def test_a_conversion_rounds_whatever_precision_came_before() -> None:
    third = spans.exactly(torch.tensor([1 / 3], dtype=torch.float32))
    half = spans.converted(third, torch.float16)
    assert half.low.item() == half.high.item() == torch.tensor(1 / 3).half().item()
    # Beside a tie: at once, or through float32.
    beside = spans.converted(spans.exactly(torch.tensor([1 + 2.0**-11 + 2.0**-40], dtype=torch.float64)), torch.float16)
    assert (beside.low.item(), beside.high.item()) == (1.0, 1 + 2.0**-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_float64_may_be_rounded_to_halves_at_once_or_through_float32(dtype: torch.dtype) -> None:
    row, unit = OPSET["_to_copy"], torch.finfo(dtype).eps
    sample = Sample((torch.tensor([1 + unit / 2 + 2.0**-40], dtype=torch.float64),), {"dtype": dtype})
    expected = reference(row, sample)
    right = {
        value: violations(row.bound, row, sample, torch.tensor([value]).to(dtype), expected).ok
        for value in (1 - unit, 1.0, 1 + unit, 1 + 2 * unit)
    }
    assert right == {1 - unit: False, 1.0: True, 1 + unit: True, 1 + 2 * unit: False}


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_spans_of_whole_numbers_and_bools_stay_such(dtype: torch.dtype) -> None:
    """The least of two results of which the bounds leave one open."""

    def program(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        ratio = torch.ops.aten.div.Tensor(x, x)
        less = torch.ops.aten.lt.Tensor(ratio, ratio)
        less = less if dtype == torch.bool else torch.ops.aten._to_copy.default(less, dtype=dtype)
        least = torch.ops.aten.minimum.default(less, y)
        return least, torch.ops.aten.where.self(least if dtype == torch.bool else torch.ops.aten.gt.Tensor(least, y), least, y)

    inputs = torch.tensor([0.0, 1.5, -2.0]), torch.tensor([1, 1, 0]).to(dtype)
    module = make_fx(program, tracing_mode="fake")(*inputs)
    for span, found in zip(fused.spans_of(module, inputs), program(*inputs), strict=True):
        assert span.low.dtype == span.high.dtype == dtype
        assert bool((span.free | ((span.low <= found) & (found <= span.high))).all())


WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
BINARY: tuple[Callable[..., Tensor], ...] = (
    *(aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.maximum.default, aten.minimum.default),
    *(aten.bitwise_and.Tensor, aten.bitwise_or.Tensor, aten.bitwise_xor.Tensor),
)
STEPS: tuple[Callable[..., Tensor], ...] = (
    *(aten.neg.default, aten.abs.default, aten.relu.default, aten.sign.default, aten.bitwise_not.default),
    *(aten.cumsum.default, aten._to_copy.default),
    *BINARY,
)


@pytest.mark.parametrize("dtype", WHOLE, ids=str)
def test_spans_of_whole_numbers_hold_what_wraps(dtype: torch.dtype) -> None:
    """Random chains, from intervals of which the value that is computed with is one. By definition."""
    bounded = 0
    for seed in range(150):
        generator = torch.Generator().manual_seed(seed)
        value = _whole(dtype, generator)
        span = _around(value, int(torch.randint(3, (), generator=generator)), generator)
        for pick in torch.randint(len(STEPS), (5,), generator=generator).tolist():
            target, row = STEPS[pick], _row(STEPS[pick])
            rest: list[Any] = []
            kwargs: dict[str, Any] = {}
            if target is aten._to_copy.default:
                kwargs["dtype"] = WHOLE[int(torch.randint(len(WHOLE), (), generator=generator))]
            elif target is aten.cumsum.default:
                rest, kwargs = [0], {"dtype": value.dtype}
            elif target in BINARY:
                rest = [_whole(value.dtype, generator)]
            given = [spans.exactly(each) if isinstance(each, Tensor) else each for each in rest]
            value = target(value, *rest, **kwargs)
            (span,) = extended(row, [span, *given], kwargs, [value.dtype])
            assert span.low.dtype == torch.int64
            assert not spans.errors(span, value).any(), (seed, str(target), value, span)
            bounded += int((~span.free & (span.low < span.high)).sum())
    assert bounded > 200, "and some are intervals yet"


def test_the_opposite_of_a_byte_is_one() -> None:
    x = torch.tensor([0, 1, 255], dtype=torch.uint8)
    ratio = torch.tensor([0.0, 1.0, 1.0])

    def program(x: Tensor, ratio: Tensor) -> tuple[Tensor]:
        unsure = aten._to_copy.default(ratio / ratio < ratio / ratio, dtype=torch.uint8)  # open where the ratio is NaN
        return (aten.neg.default(torch.maximum(x, unsure)),)

    (span,) = fused.spans_of(make_fx(program, tracing_mode="fake")(x, ratio), (x, ratio))
    assert not spans.errors(span, program(x, ratio)[0]).any()
    assert spans.errors(span, program(x, ratio)[0] - 1)[2] > 0


def _row(target: Callable[..., Tensor]) -> vendor_sdk.Prim:
    return next(row for row in OPSET.values() if row.target is target)


def _whole(dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Numbers near zero and near the ends of the range."""
    info = torch.iinfo(dtype)
    near = torch.randint(-3, 4, (8,), generator=generator)
    ends = torch.tensor([0, info.min, info.max])[torch.randint(3, (8,), generator=generator)]
    return (ends + near).to(dtype)


def _around(value: Tensor, width: int, generator: torch.Generator) -> spans.Span:
    """Intervals that have ``value`` in them, and are so wide at most on each side."""
    info, wide = torch.iinfo(value.dtype), value.to(torch.int64)
    low, high = (torch.randint(width + 1, wide.shape, generator=generator) for _ in range(2))
    low = wide - torch.minimum(low, torch.where(wide < info.min + 4, wide - info.min, 4))
    high = wide + torch.minimum(high, torch.where(wide > info.max - 4, info.max - wide, 4))
    return spans.Span(low, high, torch.zeros(wide.shape, dtype=torch.bool), value.dtype)
