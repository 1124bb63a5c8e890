"""The compiler's stages on small graphs: placement, legalization, partitions, transfers, wrapper, errors, explain."""

from __future__ import annotations

import json
import operator
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import fx

import vendor_sdk
from tests.toys import DTYPES, KINDS, register_toys
from vendor_sdk import (
    Backend,
    CaptureError,
    Decline,
    GraphCompiler,
    GraphError,
    Kernel,
    KernelError,
    Kind,
    Legalization,
    NodeContext,
    PrimGraph,
    Route,
    Support,
    Supported,
    UnsupportedPrimError,
    destination,
    hookimpl,
    routes,
    torch_private,
)
from vendor_sdk import pipeline as stages
from vendor_sdk.capture.graph import to_prim_graph
from vendor_sdk.ir.primgraph import prim_name
from vendor_sdk.normalize.canonicalize import canonicalize
from vendor_sdk.normalize.legalize import legalize
from vendor_sdk.pipeline import recording, static_support
from vendor_sdk.run.steps import TorchRuntime

aten = torch.ops.aten


class Plugin:
    """A backend made of what a test gives it."""

    def __init__(
        self,
        kernels: Mapping[str, Kernel | Callable[..., Any]],
        supports: Callable[[NodeContext], Support] = lambda node: Supported(),
        compiler: GraphCompiler | None = None,
        **limits: Any,
    ) -> None:
        self.name = f"t{uuid.uuid4().hex[:8]}"
        self._kernels, self._supports, self._compiler, self._limits = kernels, supports, compiler, limits

    @hookimpl
    def backend(self) -> Backend:
        return Backend(**{"name": self.name, "version": "0", "dtypes": DTYPES, **self._limits})

    @hookimpl
    def kernels(self) -> Mapping[str, Any]:
        return self._kernels

    @hookimpl
    def supports(self, node: NodeContext) -> Support:
        return self._supports(node)

    @hookimpl
    def graph_compiler(self) -> GraphCompiler | None:
        return self._compiler


@pytest.fixture
def make() -> Iterator[Callable[..., str]]:
    """Registers a plugin, returning its name; all are withdrawn afterwards."""
    names = []

    def register(*args: Any, **kwargs: Any) -> str:
        plugin = Plugin(*args, **kwargs)
        vendor_sdk.register(plugin)
        names.append(plugin.name)
        return plugin.name

    yield register
    for name in names:
        vendor_sdk.unregister(name)


def kinds(compiled: Any) -> dict[str, Kind]:
    return {p.prim: p.placement.kind for p in compiled.placements}


# Capture and normalization


def test_constants_become_placeholders_with_values() -> None:
    graph = vendor_sdk.trace(lambda x: x + torch.tensor([1.0, 2.0]), [torch.zeros(2)])
    assert len(graph.placeholders) == 2
    assert torch.equal(*graph.constants.values(), torch.tensor([1.0, 2.0]))
    torch.testing.assert_close(graph.interpret(torch.ones(2)), [torch.tensor([2.0, 3.0])])


def test_a_decomposition_that_changes_the_dtype_is_caught() -> None:
    module = torch.fx.experimental.proxy_tensor.make_fx(lambda x: aten.hardswish.default(x), tracing_mode="fake")(torch.ones(3))
    fakes = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    with pytest.raises(CaptureError, match=r"float32\[3\].*float64\[3\]"):
        to_prim_graph(module, fakes, {aten.hardswish.default: lambda x: x.double()})


def test_copies_and_equal_nodes_vanish() -> None:
    graph = canonicalize(vendor_sdk.trace(lambda x: (x.clone() + 1) * (x.contiguous() + 1), [torch.ones(3)]))
    assert [prim_name(node) for node in graph.calls()] == ["add", "mul"]


def test_random_nodes_are_not_merged() -> None:
    graph = canonicalize(vendor_sdk.trace(lambda x: torch.rand_like(x) + torch.rand_like(x), [torch.ones(3)]))
    assert [prim_name(node) for node in graph.calls()].count("rand") == 2


def test_constants_that_differ_in_sign_or_type_are_not_merged() -> None:
    graph = canonicalize(vendor_sdk.trace(lambda x: (x / 0.0, x / -0.0), [torch.ones(3)]))
    first, second = graph.interpret(torch.ones(1))
    assert first.item() == float("inf")
    assert second.item() == float("-inf")


def test_as_strided_counts_in_the_logical_tensor() -> None:
    x = torch.arange(24.0).reshape(4, 6)
    graph = canonicalize(vendor_sdk.trace(lambda v: (v + 0).t()[1:].as_strided((2, 3), (7, 2), 5), [x]))
    torch.testing.assert_close(graph.interpret(x), [x.as_strided((2, 3), (7, 2), 5)])


def test_verify_names_what_is_wrong() -> None:
    graph = vendor_sdk.trace(lambda x: x + 1, [torch.ones(3)])
    (node,) = graph.calls()
    value = node.meta.pop("val")
    with pytest.raises(GraphError, match=r"add.*has no meta"):
        graph.verify()
    node.meta["val"] = value
    node.target = aten.add_.Tensor
    with pytest.raises(GraphError, match="writes to its argument"):
        graph.verify()


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.bfloat16), (torch.int64, torch.float32), (torch.bool, torch.int32)])
def test_legalization_spells_everything_out(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + y, torch.where(x > 1, y, 2), (x * 3) == y, x / y

    inputs = [torch.randint(0, 2, (4, 1)).to(dtypes[0]), torch.randint(1, 2, (3,)).to(dtypes[1])]
    graph = canonicalize(vendor_sdk.trace(f, inputs))
    legal = legalize(graph.copy(), Legalization(explicit_broadcast=True, explicit_promotion=True, no_scalars=True))
    legal.verify()
    seen = 0
    for node in legal.calls():
        row = vendor_sdk.OPSET.get(prim_name(node))
        if row is None or row.shape != "broadcast":
            continue
        seen += 1
        operands = [n.meta["val"] for n in node.all_input_nodes]
        assert len(operands) == len(node.args), "a Python number is left"
        assert {v.shape for v in operands} == {node.meta["val"].shape}
        values = operands[1:] if prim_name(node) == "where" else operands
        assert len({v.dtype for v in values}) == 1
    assert seen >= 4
    for got, expected in zip(legal.interpret(*inputs), f(*inputs), strict=True):
        assert got.dtype == expected.dtype
        torch.testing.assert_close(got, expected, equal_nan=True)


# Placement


def test_placement_reasons(make: Callable[..., str]) -> None:
    def supports(node: NodeContext) -> Support:
        if node.prim == "mm" and node.args[0].shape[1] > 4:
            return Decline("k > 4")
        return Supported()

    name = make({"mm": torch.mm, "add": torch.add, "sin": torch.sin}, supports)
    graph = vendor_sdk.trace(
        lambda x, y: (x @ y.t() + 1, x.double().sin(), x.erf(), x.t()), [torch.ones(2, 5), torch.ones(3, 5)]
    )
    compiled = vendor_sdk.compile_graph(graph, backend=name)
    found = {p.prim: str(p.placement) for p in compiled.placements}
    assert found == {
        "permute": "view",
        "mm": "host: k > 4",
        "add": "native (kernel)",
        "_to_copy": "host: float64 is not among the backend's dtypes",
        "sin": "host: float64 is not among the backend's dtypes",
        "erf": "host: the backend has no kernel for it",
    }


def test_a_compiled_graph_is_printed_in_a_line(make: Callable[..., str]) -> None:
    name = make({"neg": torch.neg})
    compiled = vendor_sdk.compile_graph(vendor_sdk.trace(lambda x: -x, [torch.ones(3)]), backend=name)
    assert repr(compiled) == f"<CompiledGraph for {name}: 1 prims, 1 launches>"


def test_decomposition_is_used_only_when_all_of_it_is_native(make: Callable[..., str]) -> None:
    graph = vendor_sdk.trace(torch.sigmoid, [torch.randn(3)])
    some, all_parts = {"neg": torch.neg}, {"neg": torch.neg, "exp": torch.exp, "add": torch.add, "reciprocal": torch.reciprocal}
    x = torch.randn(3)
    for kernels in (some, all_parts | {"div": torch.div, "full": torch.full, "where": torch.where}):
        compiled = vendor_sdk.compile_graph(graph, backend=make(kernels))
        torch.testing.assert_close(compiled(x), [x.sigmoid()])
        (entry,) = compiled.placements
        assert entry.placement.kind is (Kind.HOST if kernels is some else Kind.DECOMPOSED), entry
    assert "runs as" in entry.placement.reason


def test_fallback_error_names_everything(make: Callable[..., str]) -> None:
    graph = vendor_sdk.trace(lambda x: x.cumsum(0), [torch.randn(3, 2)])
    name = make({})
    with pytest.raises(UnsupportedPrimError) as caught:
        vendor_sdk.compile_graph(graph, backend=name, options={"fallback": "error"})
    text = str(caught.value)
    for part in (name, "'cumsum'", "float32[3, 2]", "no kernel", "fix:", "fallback"):
        assert part in text
    (entry,) = vendor_sdk.compile_graph(graph, backend=name).placements
    assert entry.placement.kind is Kind.HOST


def test_fallback_error_through_torch_compile_names_the_users_line(make: Callable[..., str]) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(0)

    with pytest.raises(Exception, match=r"(?s)cannot run on the backend.*test_pipeline\.py:\d+ in model: return x\.cumsum"):
        torch.compile(model, backend=make({}), options={"fallback": "error"})(torch.ones(3))


def test_static_support_covers_the_opset() -> None:
    register_toys()
    found = static_support(vendor_sdk.load("toy"))
    assert found.keys() == vendor_sdk.OPSET.keys()
    assert found["add"].route is Route.KERNEL
    assert found["permute"].kind is Kind.VIEW
    assert found["erf"].kind is Kind.HOST
    assert found["erf"].reason


# Graph route


class Recorder(GraphCompiler):
    """Runs partitions with the interpreter, remembering them."""

    prims = frozenset({"add", "mul", "sin", "permute", "max.dim"})

    def __init__(self) -> None:
        self.graphs: list[PrimGraph] = []

    def compile(self, graph: PrimGraph) -> Callable[[Sequence[Any]], Sequence[Any]]:
        self.graphs.append(graph)
        return lambda values: graph.interpret(*values)


def test_partitions_are_maximal_and_acyclic(make: Callable[..., str]) -> None:
    compiler = Recorder()

    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = (x + y).sin()
        b = a.erf()  # host: leaves the partition and comes back below
        values, places = torch.max(a.t() * 2, 1)
        return a + b, values + 1, places, y * 3

    x, y = torch.randn(4, 4), torch.randn(4, 4)
    compiled = vendor_sdk.compile_graph(vendor_sdk.trace(f, [x, y]), backend=make({}, compiler=compiler))
    torch.testing.assert_close(compiled(x, y), list(f(x, y)))
    sizes = [sum(1 for n in graph.calls() if n.target is not operator.getitem) for graph in compiler.graphs]
    assert sizes == [7, 1]
    assert kinds(compiled)["erf"] is Kind.HOST


@pytest.mark.parametrize("wanted", [True, False])
def test_partitions_receive_contiguous_tensors_where_the_backend_wants_them(make: Callable[..., str], wanted: bool) -> None:
    lying = []

    class Whole(Recorder):
        prims = frozenset({"add", "mul"})

        def compile(self, graph: PrimGraph) -> Callable[[Sequence[Any]], Sequence[Any]]:
            def run(values: Sequence[Any]) -> Sequence[Any]:
                lying.extend(value.is_contiguous() for value in values)
                return graph.interpret(*values)

            return run

    def f(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return x.t() * y + z.erf().expand(4, 3)  # a view, an argument that lies otherwise, a view of the host's

    values = [torch.randn(3, 4), torch.randn(3, 4).t(), torch.randn(3)]
    name = make({}, compiler=Whole(), legalize=Legalization(contiguous_inputs=wanted))
    compiled = vendor_sdk.compile_graph(vendor_sdk.trace(f, values), backend=name)
    torch.testing.assert_close(compiled(*values), [f(*values)])
    assert len(lying) == 3
    assert all(lying) == wanted


def test_results_of_partitions_lie_as_others_read_them(make: Callable[..., str]) -> None:
    class Turned(Recorder):
        prims = frozenset({"add"})

        def compile(self, graph: PrimGraph) -> Callable[[Sequence[Any]], Sequence[Any]]:
            return lambda values: [value.t().contiguous().t() for value in graph.interpret(*values)]

    lying = []

    def kernel(x: torch.Tensor) -> torch.Tensor:
        lying.append(x.is_contiguous())
        return x.sin()

    name = make({"sin": kernel}, compiler=Turned(), legalize=Legalization(contiguous_inputs=True))
    x = torch.randn(3, 4)
    compiled = vendor_sdk.compile_graph(vendor_sdk.trace(lambda x: ((x + 1).sin(), (x + 2)), [x]), backend=name)
    sine, two = compiled(x)
    torch.testing.assert_close([sine, two], [(x + 1).sin(), x + 2])
    assert lying == [True]
    assert two.is_contiguous()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: [x[:1]], r"returned torch.float32 \(1,\) on cpu.*result here is torch.float32 \(3,\)"),
        (lambda x: [x.half()], "returned torch.float16"),
        (lambda x: [x, x], "returned 2 instead of 1 results"),
        (lambda x: None, "returned NoneType instead of 1 results"),
    ],
)
def test_a_bad_partition_is_reported(make: Callable[..., str], change: Callable[..., Any], message: str) -> None:
    class Wrong(Recorder):
        def compile(self, graph: PrimGraph) -> Callable[[Sequence[Any]], Sequence[Any]]:
            return lambda values: change(*graph.interpret(*values))

    def model(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).sin()

    name = make({}, compiler=Wrong())
    with pytest.raises(KernelError, match=f"(?s){name}: .*add and sin.*{message}"):
        torch.compile(model, backend=name)(torch.randn(3))


def test_an_executable_may_vouch_for_its_results(make: Callable[..., str]) -> None:
    class Executable:
        def __init__(self, graph: PrimGraph, *, verified: bool) -> None:
            self.graph, self.verified = graph, verified

        def __call__(self, values: Sequence[Any]) -> Sequence[Any]:
            return self.graph.interpret(*values)

    class Vouching(Recorder):
        verified = True

        def compile(self, graph: PrimGraph) -> Callable[[Sequence[Any]], Sequence[Any]]:
            return Executable(graph, verified=self.verified)

    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x + 1).sin(), (x * 2).t()

    x = torch.randn(3, 4)
    compiler = Vouching()
    name = make({}, compiler=compiler)
    for verified in (True, False):
        compiler.verified = verified
        run = vendor_sdk.compile_graph(vendor_sdk.trace(model, [x]), backend=name)
        assert ("RT.checked_several" in run.source) is not verified
        found, expected = run(x), model(x)
        torch.testing.assert_close(tuple(found), expected)
        assert [each.stride() for each in found] == [each.stride() for each in expected]


def test_partitioning_is_linear(make: Callable[..., str]) -> None:
    import time

    def chain(length: int) -> float:
        graph = fx.Graph()
        node = graph.placeholder("x")
        fake = vendor_sdk.trace(lambda v: v + 1, [torch.ones(2)]).placeholders[0].meta["val"]
        node.meta["val"] = fake
        for index in range(length):
            node = graph.call_function(aten.add.Tensor if index % 3 else aten.erf.default, (node, 1) if index % 3 else (node,))
            node.meta["val"] = fake
        graph.output((node,))
        prim_graph = PrimGraph(fx.GraphModule({}, graph))
        start = time.perf_counter()
        vendor_sdk.compile_graph(prim_graph, backend=name)
        return time.perf_counter() - start

    name = make({}, compiler=Recorder())
    chain(50)
    small, large = chain(300), chain(2400)
    assert large < 8 * small * 4, (small, large)  # quadratic would be 64 times


# Run time


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (lambda x: x[:1], r"returned torch.float32 \(1,\) on cpu.*result here is torch.float32 \(3,\)"),
        (lambda x: x.double(), r"returned torch.float64"),
        (lambda x: x.to("meta"), r"on meta"),
        (lambda x: None, r"returned NoneType"),
        (lambda x: 1 / 0, r"raised ZeroDivisionError: division by zero"),
    ],
)
def test_a_bad_kernel_is_reported_by_prim(make: Callable[..., str], kernel: Callable[..., Any], message: str) -> None:
    name = make({"sin": kernel})
    x = torch.randn(3)
    before = x.clone()

    def model(v: torch.Tensor) -> torch.Tensor:
        return v.sin() + 1

    with pytest.raises(KernelError, match=f"(?s){name}: the kernel of prim 'sin'.*{message}") as caught:
        torch.compile(model, backend=name)(x)
    assert "in model: return v.sin()" in str(caught.value)
    assert torch.equal(x, before)


def test_a_kernel_with_the_wrong_number_of_results(make: Callable[..., str]) -> None:
    name = make({"max.dim": lambda x, dim, keepdim=False: (x.amax(dim),)})
    graph = vendor_sdk.trace(lambda x: torch.max(x, 0), [torch.ones(3, 2)])
    with pytest.raises(KernelError, match="returned 1 instead of 2 results"):
        vendor_sdk.compile_graph(graph, backend=name)(torch.ones(3, 2))


def test_memory_of_known_sizes_comes_from_the_quick_allocator(
    make: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on devices that have one: on the host large tensors come from warm memory instead."""
    made = []

    class Elsewhere(TorchRuntime):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            plain = torch_private.plain_allocator(torch.device("cpu"))
            assert plain is not None
            self.allocate = lambda shape, strides, dtype: made.append(shape) or plain(shape, strides, dtype)

    monkeypatch.setattr(stages, "TorchRuntime", Elsewhere)
    name = make({"sin": destination(lambda out, x: out.copy_(x.sin())), "cos": destination(lambda out, x: out.copy_(x.cos()))})
    x = torch.randn(3, 4, 5)
    compiled = vendor_sdk.compile_graph(vendor_sdk.trace(lambda v: (v.sin(), v.sin().cos()), [x]), backend=name)
    torch.testing.assert_close(compiled(x), [x.sin(), x.sin().cos()])
    assert made == [(3, 4, 5), (3, 4, 5)]
    assert torch_private.plain_allocator(torch.device("cpu", 0)) is None


def test_destination_kernels_fill_what_the_sdk_allocated(make: Callable[..., str]) -> None:
    def top(values: torch.Tensor, places: torch.Tensor, x: torch.Tensor, dim: int, keepdim: bool = False) -> None:
        values.copy_(x.amax(dim, keepdim))
        places.copy_(x.argmax(dim, keepdim))

    name = make({"max.dim": destination(top)})
    x = torch.randn(3, 4)
    compiled = vendor_sdk.compile_graph(vendor_sdk.trace(lambda v: torch.max(v, 1), [x]), backend=name)
    torch.testing.assert_close(compiled(x), list(torch.max(x, 1)))
    assert kinds(compiled) == {"max.dim": Kind.NATIVE}


def test_host_errors_keep_their_type(make: Callable[..., str]) -> None:
    graph = vendor_sdk.trace(lambda x, i: x[i], [torch.ones(3), torch.tensor([0])])
    compiled = vendor_sdk.compile_graph(graph, backend=make({}))
    with pytest.raises(IndexError) as caught:
        compiled(torch.ones(3), torch.tensor([7]))
    assert any("prim 'index'" in note for note in caught.value.__notes__)


def test_memory_that_the_host_has_not_is_no_error_of_the_kernel(make: Callable[..., str]) -> None:
    compiled = torch.compile(torch.sin, backend=make({"sin": torch.sin}), dynamic=True)
    with pytest.raises(RuntimeError, match=r"\d bytes") as caught:
        compiled(torch.ones(1).expand(1 << 48))
    assert any("prim 'sin'" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, MemoryError])
def test_memory_that_runs_out_in_a_kernel_keeps_its_type(make: Callable[..., str], kind: type[Exception]) -> None:
    def sin(x: torch.Tensor) -> torch.Tensor:
        if len(x) > 3:
            raise kind("no 8 GiB are left")
        return x.sin()

    compiled = torch.compile(torch.sin, backend=make({"sin": sin}), dynamic=True)
    with pytest.raises(kind) as caught:
        compiled(torch.ones(4))
    assert any("prim 'sin'" in note for note in caught.value.__notes__)
    torch.testing.assert_close(compiled(torch.ones(3)), torch.ones(3).sin())


def test_memory_that_runs_out_in_a_partition_is_said_by_the_names_of_its_prims(make: Callable[..., str]) -> None:
    class Small(Recorder):
        def compile(self, graph: PrimGraph) -> Callable[[Sequence[Any]], Sequence[Any]]:
            def full(values: Sequence[Any]) -> Sequence[Any]:
                raise torch.OutOfMemoryError("no 8 GiB are left")

            return full

    compiled = torch.compile(lambda x: x.sin() + x, backend=make({}, compiler=Small()))
    with pytest.raises(torch.OutOfMemoryError) as caught:
        compiled(torch.ones(4))
    (note,) = (note for note in caught.value.__notes__ if "raised by" in note)
    assert "the partition of sin and add" in note
    assert "partition_" not in note


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("name", KINDS)
def test_results_that_are_views_of_one_value_share_its_memory(name: str, dtype: torch.dtype) -> None:
    """Also where it is copied from a device's memory: once, and the views are taken on the host."""
    register_toys()
    x = torch.arange(30).reshape(5, 6).to(dtype)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + x
        return (*y.chunk(2, 1), y.t()[1], *x.add(1).max(1))

    found, eager = torch.compile(f, backend=name)(x), f(x)
    for one, expected in zip(found, eager, strict=True):
        assert torch.equal(one, expected)
        assert one.stride() == expected.stride()
    storages = [one.untyped_storage().data_ptr() for one in found]
    assert len(set(storages[:3])) == 1
    assert len(set(storages)) == 3
    found[0].zero_()
    eager[0].zero_()
    assert torch.equal(found[2], eager[2])


@pytest.mark.parametrize("name", ["toy", "toychip", "toyloops"])
def test_inputs_may_have_other_strides_than_the_traced_ones(name: str) -> None:
    register_toys()
    x = torch.randn(3, 4)
    compiled = vendor_sdk.compile_graph(vendor_sdk.trace(lambda v: v.sin() + v, [x]), backend=name)
    for other in (x, torch.randn(4, 3).t(), torch.randn(6, 8)[::2, ::2], torch.randn(1, 4).expand(3, 4)):
        torch.testing.assert_close(compiled(other), [other.sin() + other])


def test_values_die_after_their_last_use(make: Callable[..., str]) -> None:
    import weakref

    alive: list[weakref.ref[torch.Tensor]] = []
    peak = 0

    def add(x: torch.Tensor, y: Any) -> torch.Tensor:
        nonlocal peak
        out = torch.add(x, y)
        alive.append(weakref.ref(out))
        peak = max(peak, sum(ref() is not None for ref in alive))
        return out

    def f(x: torch.Tensor) -> torch.Tensor:
        for step in range(6):
            x = x + (step + 1)
        return x

    compiled = vendor_sdk.compile_graph(vendor_sdk.trace(f, [torch.ones(2)]), backend=make({"add": add}))
    compiled(torch.ones(2))
    assert peak == 2


def test_int64_that_does_not_fit_is_refused_on_a_chip_without_it() -> None:
    register_toys()
    graph = vendor_sdk.trace(lambda i: i + 1, [torch.zeros(2, dtype=torch.int64)])
    compiled = vendor_sdk.compile_graph(graph, backend="toychip")
    assert compiled(torch.tensor([5, -7]))[0].tolist() == [6, -6]
    assert compiled(torch.tensor([5, -7]))[0].dtype is torch.int64
    with pytest.raises(vendor_sdk.DeviceError, match=str(2**40)):
        compiled(torch.tensor([5, 2**40]))


# Explain


def test_explain_tells_what_ran_where(capsys: pytest.CaptureFixture[str]) -> None:
    register_toys()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Softplus())
    before = [p.detach().clone() for p in model.parameters()]
    x = torch.randn(5, 4)
    found = vendor_sdk.explain(model, x, backend="toychip")
    printed = capsys.readouterr().out
    assert "why not native" in printed
    assert [graph.name.split()[0] for graph in found.graphs] == ["forward", "backward"]
    by_prim = {p.prim: p.placement for p in found.placements()}
    assert by_prim["mm"].kind is Kind.NATIVE
    assert by_prim["tanh"].kind is Kind.NATIVE
    hosts = [p for p in found.placements() if p.placement.kind is Kind.HOST]
    assert hosts
    assert all(p.placement.reason for p in hosts)
    assert found.graphs[0].traffic.to_device >= x.nbytes + sum(p.nbytes for p in model.parameters())
    assert found.graphs[0].traffic.to_host > 0
    assert json.loads(found.to_json())["counts"] == found.counts
    assert found.measured is not None
    again = vendor_sdk.explain(model, x, backend="toychip", show=False).measured
    assert again is not None
    # of this call alone: what is resident (the parameters, the input) does not cross a second time
    assert 0 < again.to_device <= found.measured.to_device - sum(p.nbytes for p in model.parameters())
    assert again.to_host == found.measured.to_host
    assert all(p.grad is None for p in model.parameters())
    for parameter, value in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, value)


def test_explain_reports_graph_breaks() -> None:
    register_toys()

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    found = vendor_sdk.explain(f, torch.ones(3), backend="toy", show=False)
    assert len(found.graphs) == 2
    assert len(found.graph_breaks) == 1
    assert "test_pipeline.py" in found.graph_breaks[0]


# Composites


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


COMPOSITE_USES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "softmax": (lambda x: torch.softmax(x, -1), [(3, 5)]),
    "log_softmax": (lambda x: torch.log_softmax(x, 0), [(3, 5)]),
    "gelu": (lambda x: torch.nn.functional.gelu(x, approximate="tanh"), [(3, 5)]),
    "silu": (torch.nn.functional.silu, [(3, 5)]),
    "layer_norm": (lambda x, w, b: torch.nn.functional.layer_norm(x, (5,), w, b), [(3, 5), (5,), (5,)]),
    "rms_norm": (lambda x, w: torch.nn.functional.rms_norm(x, (5,), w), [(3, 5), (5,)]),
    "group_norm": (lambda x: torch.nn.functional.group_norm(x, 2), [(2, 4, 3)]),
    "linear": (torch.nn.functional.linear, [(3, 5), (4, 5), (4,)]),
    "scaled_dot_product_attention": (_attention, [(1, 2, 4, 8)] * 3),
    "embedding": (lambda x, w: torch.nn.functional.embedding((x[:, 0] > 0).long(), w), [(3, 5), (4, 5)]),
    "cross_entropy": (lambda x: torch.nn.functional.cross_entropy(x, torch.tensor([1, 0, 4])), [(3, 5)]),
}


@pytest.mark.parametrize("composite", COMPOSITE_USES)
def test_a_claimed_composite_arrives_whole_and_others_as_prims(make: Callable[..., str], composite: str) -> None:
    function, shapes = COMPOSITE_USES[composite]
    torch.manual_seed(0)
    inputs = [torch.randn(shape) for shape in shapes]
    expected = function(*inputs)
    calls: list[str] = []
    whole = vendor_sdk.COMPOSITES[composite]
    canonical = next(iter(whole.targets))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        calls.append(composite)
        return canonical(*args, **kwargs)

    claiming = make({composite: kernel}, composites=frozenset({composite}))
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(function, backend=claiming)(*inputs), expected, rtol=1e-5, atol=1e-6)
        assert calls == [composite]
        torch._dynamo.reset()
        graphs: list[Any] = []
        with recording(graphs.append):
            torch.testing.assert_close(torch.compile(function, backend=make({}))(*inputs), expected, rtol=1e-5, atol=1e-6)
    (graph,) = graphs
    assert {p.prim for p in graph.placements} <= vendor_sdk.OPSET.keys()


def test_a_declined_composite_decomposes_when_its_parts_run(make: Callable[..., str]) -> None:
    def supports(node: NodeContext) -> Support:
        return Decline("rows longer than 4") if node.prim == "softmax" and node.args[0].shape[1] > 4 else Supported()

    parts = {"sub": torch.sub, "exp": torch.exp, "div": torch.div, "amax": torch.amax, "sum": torch.sum}
    parts |= {"eq": torch.eq, "full": torch.full, "where": torch.where, "logical_not": torch.logical_not, "any": torch.any}
    name = make({"softmax": torch.ops.aten._softmax.default, **parts}, supports, composites=frozenset({"softmax"}))
    for columns, kind in ((4, Kind.NATIVE), (5, Kind.DECOMPOSED)):
        x = torch.randn(3, columns)
        graph = vendor_sdk.trace(lambda v: torch.softmax(v, -1), [x], composites=["softmax"])
        compiled = vendor_sdk.compile_graph(graph, backend=name)
        assert kinds(compiled) == {"softmax": kind}, compiled.placements
        torch.testing.assert_close(compiled(x), [torch.softmax(x, -1)])


def test_equal_layers_are_probed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether an emitter can have a prim is found out by lowering it; what a lowering cannot tell apart is lowered once."""
    probed: list[str] = []
    lower = routes.lower

    def counted(node: torch.fx.Node, name: str, *rest: Any) -> Any:
        probed.extend([str(node.target)] if name == "probe" else [])
        return lower(node, name, *rest)

    monkeypatch.setattr(routes, "lower", counted)

    def layers(x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = torch.sin(x + 1) + x.transpose(0, 1)
        return x

    register_toys()
    graph = stages.trace(layers, [torch.randn(5, 5)])
    compiled = stages.compile_graph(graph, backend="toyloops")
    # The first sum reads what the caller laid out, and each kind reads once through a view and once as it is.
    assert probed.count("aten.sin.default") == 1
    assert probed.count("aten.add.Tensor") <= 4
    x = torch.randn(5, 5)
    torch.testing.assert_close(compiled(x)[0], layers(x))


def test_strides_that_make_one_element_many_are_promised_for_views_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def misled(function: Callable[..., Any], fakes: list[torch.Tensor]) -> torch.fx.GraphModule:
        """As where a meta rule copies the strides of an expanded operand."""
        traced = trace(function, fakes)
        (node,) = (n for n in traced.graph.nodes if n.target is torch.ops.aten.slice_scatter.default)
        node.meta["val"] = node.meta["val"][:1].expand(4, 5)
        return traced

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.slice_scatter(x, y, 0, 1, 3), (x + 1)[:1].expand(4, 5), x.expand(3, 4, 5)

    register_toys()
    trace = torch_private.functional_trace
    monkeypatch.setattr(torch_private, "functional_trace", misled)
    x, y = torch.randn(1, 5).expand(4, 5), torch.randn(2, 5)
    graph = vendor_sdk.trace(function, (x, y))
    assert [layout.strides for layout in graph.output_layouts] == [(5, 1), (0, 1), (0, 0, 1)]
    for result, expected in zip(vendor_sdk.compile_graph(graph, backend="toyloops")(x, y), function(x, y), strict=True):
        assert torch.equal(result, expected)


@pytest.mark.parametrize("strided", [False, True])
def test_what_a_traced_function_writes_is_seen(strided: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.layer_norm(x.t(), (4,)).clone()
        (y.as_strided((2, 2), (3, 1), 1) if strided else y[1:]).mul_(3)
        return y

    x = torch.randn(4, 6)
    graph = vendor_sdk.trace(function, [x])
    torch.testing.assert_close(graph.interpret(x), [function(x)])
    torch.testing.assert_close(canonicalize(graph).interpret(x), [function(x)])


def test_tensors_that_a_traced_function_closes_over_are_constants() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.GELU()).eval()
    offset = torch.randn(7)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = model(x) * 2
        z = offset.clone()
        z.add_(y.sum(0))
        y.mul_(offset)[0].copy_(z)
        return y

    register_toys()
    x, before = torch.randn(3, 5), offset.clone()
    graph = vendor_sdk.trace(function, [x])
    compiled = vendor_sdk.compile_graph(graph, backend="toyloops")
    offset.mul_(3)  # what it is at a call
    torch.testing.assert_close(compiled(x)[0], function(x))
    torch.testing.assert_close(graph.interpret(x), [function(x)])
    assert torch.equal(offset, before * 3)


@pytest.mark.parametrize(
    "write",
    [
        lambda x, y: y.add_(x),
        lambda x, y: torch.add(x, 1, out=y),
        lambda x, y: y[:1].copy_(x[:1]),
        lambda x, y: torch._foreach_add_([x.clone(), y.view(3, 1)], 1) or x,
    ],
)
def test_what_a_traced_function_closes_over_is_not_written_to(write: Callable[..., torch.Tensor]) -> None:
    x, held = torch.ones(3), torch.zeros(3)
    with pytest.raises(CaptureError, match="writes to memory of a tensor that the traced function closes over"):
        vendor_sdk.trace(lambda x: write(x, held) + 1, [x])
    assert not held.any()
