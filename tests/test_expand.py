"""What repeats is traced once, and the graph is what tracing all of it gives."""

from collections.abc import Callable
from operator import getitem
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from vendor_sdk import torch_private
from vendor_sdk.capture import expand
from vendor_sdk.capture.graph import _check_counts as check_counts
from vendor_sdk.capture.graph import to_prim_graph
from vendor_sdk.errors import CaptureError
from vendor_sdk.normalize.decompose import prim_table

F = torch.nn.functional
TABLE = prim_table(frozenset())


def captured(function: Callable[..., Any], *inputs: Tensor, dynamic: bool = False) -> tuple[fx.GraphModule, list[Any]]:
    mode = torch_private.new_fake_mode()
    fakes = [mode.from_tensor(value, static_shapes=not dynamic) for value in inputs]
    with mode:
        return torch_private.functional_trace(function, fakes), fakes


def described(module: fx.GraphModule) -> list[Any]:
    """A graph without the names of its nodes."""
    module.graph.eliminate_dead_code()
    numbers = {node: number for number, node in enumerate(module.graph.nodes)}

    def lying(value: Any) -> Any:
        if isinstance(value, Tensor):
            return tuple(value.shape), value.stride(), value.storage_offset(), value.dtype
        return [lying(item) for item in value] if isinstance(value, list | tuple) else value

    return [
        (
            node.op,
            node.op == "call_function" and node.target,
            fx.node.map_arg((node.args, node.kwargs), numbers.__getitem__),
            lying(node.meta.get("val")),
        )
        for node in module.graph.nodes
    ]


def traced_nodes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the graphs that are traced from here on."""
    sizes: list[int] = []
    trace = torch_private.decompose

    def note(module: fx.GraphModule, *rest: Any) -> fx.GraphModule:
        sizes.append(sum(node.op == "call_function" for node in module.graph.nodes))
        return trace(module, *rest)

    monkeypatch.setattr(torch_private, "decompose", note)
    return sizes


def same(function: Callable[..., Any], *inputs: Tensor, dynamic: bool = False) -> fx.GraphModule:
    """Both ways give one graph, which it returns."""
    module, fakes = captured(function, *inputs, dynamic=dynamic)
    with torch_private.fake_mode_of(fakes):
        expanded = expand.decompose(module, fakes, TABLE)
        assert described(expanded) == described(torch_private.decompose(module, fakes, TABLE))
    return expanded


def layers(x: Tensor, weight: Tensor) -> Tensor:
    for _ in range(6):
        queries, keys, values = F.layer_norm(x, (16,)).unflatten(-1, (2, 8)).transpose(-3, -2).chunk(3, dim=0)
        x = x + F.gelu(
            F.linear((F.softmax(queries @ keys.mT, -1) @ values).repeat(3, 1, 1, 1).transpose(-3, -2).flatten(-2), weight)
        )
    return x


def test_layers_are_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = traced_nodes(monkeypatch)
    same(layers, torch.randn(3, 5, 16), torch.randn(16, 16))
    assert 3 * sizes[0] < sizes[-1]  # the first is of distinct applications, the last of everything


def test_gradients_of_layers() -> None:
    def step(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        y = x
        for weight in weights:
            y = F.gelu(F.layer_norm(y @ weight, (8,)))
        return torch.autograd.grad(y.square().mean(), (x, *weights))

    same(step, torch.randn(4, 8, requires_grad=True), *(torch.randn(8, 8, requires_grad=True) for _ in range(4)))


def test_numbers_of_different_types_are_apart() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        repeated = [x.sum(0) for _ in range(6)]
        return (*repeated, x + 1, x + 1.0, x + True, x * 0.0, x * -0.0, torch.pow(x, 2), torch.pow(x, 2.0))

    same(function, torch.arange(12).reshape(3, 4))


def test_one_operand_twice_is_not_two_operands() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (
            *[F.mse_loss(x, x) for _ in range(4)],
            *[F.mse_loss(x, y) for _ in range(4)],
            *[F.mse_loss(y, x) for _ in range(4)],
        )

    same(function, torch.randn(3, 4), torch.randn(3, 4))


def test_each_draw_is_a_node() -> None:
    def function(x: Tensor) -> Tensor:
        for _ in range(5):
            x = F.dropout(x, 0.5, training=True)
        return x

    graph = same(function, torch.randn(8, 8)).graph
    assert sum("rand" in str(node.target) or "bernoulli" in str(node.target) for node in graph.nodes) == 5


def test_operands_that_lie_differently() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        rows = [F.softmax(x, 1) for _ in range(3)]
        return *rows, F.softmax(x.t(), 1), F.softmax(x.t(), 1), F.softmax(x[:, 1:], 1), F.softmax(x[:, 1:], 1)

    same(function, torch.randn(5, 6))


def test_results_that_lie_otherwise_than_the_operator_says() -> None:
    """What reads them is traced as they lie."""
    asinh, exp = torch.ops.aten.asinh.default, torch.ops.aten.exp.default
    table = {**TABLE, asinh: lambda x: torch.ops.aten.neg.default(x).t().contiguous().t()}
    module, fakes = captured(lambda x: [torch.asinh(x).exp() for _ in range(5)], torch.randn(3, 4))
    with torch_private.fake_mode_of(fakes):
        expanded = expand.decompose(module, fakes, table)
        assert described(expanded) == described(torch_private.decompose(module, fakes, table))
    found = expanded.graph.find_nodes(op="call_function", target=exp)
    assert [node.meta["val"].stride() for node in found] == [(1, 3)] * 5


def test_symbolic_sizes_are_traced_as_a_whole() -> None:
    same(lambda x: [F.gelu(x) for _ in range(6)], torch.randn(5, 4), dynamic=True)


def test_sizes_that_torch_learned_are_numbers() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        torch._check(x.shape[0] == 5)  # of what is before it, too
        return y, y.t().exp()

    module, fakes = captured(function, torch.randn(5, 4), dynamic=True)
    graph = to_prim_graph(module, fakes, TABLE)
    for node in graph.graph.nodes:
        if isinstance(value := node.meta.get("val"), Tensor):
            numbers = [size for size in (*value.shape, *value.stride()) if isinstance(size, int)]
            assert 5 in numbers, f"{node}: {value}"
            assert {str(size) for size in value.shape} - {"5"} == {str(fakes[0].shape[1])}


@pytest.mark.parametrize(("announced", "read"), [(torch.int64, True), (torch.int64, False), (torch.float64, True)])
def test_counts_that_torch_announces_wrongly_are_refused(announced: torch.dtype, read: bool) -> None:
    """As torch 2.11 does, where something reads them."""
    module, _ = captured(lambda x: x.bool().logical_not() if read else x.bool(), torch.ones(5, dtype=torch.int64))
    (indices,) = module.graph.find_nodes(op="placeholder")
    counts = next(iter(indices.users))
    counts.target, counts.args, counts.kwargs = torch.ops.aten.bincount.default, (indices, indices), {}
    counts.meta["val"] = counts.meta["val"].to(announced)
    if announced == torch.int64 and read:
        with pytest.raises(CaptureError, match=r"announces torch.int64 for a bincount that gives torch.float64"):
            check_counts(module.graph)
    else:
        check_counts(module.graph)


def test_windows_of_a_view() -> None:
    def function(x: Tensor) -> list[Tensor]:
        return [x[1:].as_strided((2, 2), (1, 1), 3) for _ in range(6)]

    same(function, torch.randn(5, 6))


def test_source_lines_stay() -> None:
    def function(x: Tensor) -> list[Tensor]:
        return [F.gelu(x) for _ in range(6)]

    module, fakes = captured(function, torch.randn(4))
    for number, node in enumerate(module.graph.find_nodes(op="call_function", target=torch.ops.aten.gelu.default)):
        node.meta["stack_trace"] = f"line {number}"
    with torch_private.fake_mode_of(fakes):
        traces = [node.meta.get("stack_trace") for node in expand.decompose(module, fakes, TABLE).graph.nodes]
    assert {f"line {number}" for number in range(6)} <= {*traces}


def test_what_is_a_prim_already_is_not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        values, places = torch.sort(x.permute(1, 0) @ y.exp(), stable=True, dim=0)
        return values[1:].sum(1), places.flip(0), torch.where(values > x[0, 0], values, -values), x.expand(2, *x.shape) - x

    sizes = traced_nodes(monkeypatch)
    same(function, torch.randn(4, 6), torch.randn(4, 5))
    assert len(sizes) == 1  # all of it, by the test itself


def test_of_a_graph_without_repetition_the_rest_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = traced_nodes(monkeypatch)
    same(lambda x: F.gelu(x.exp().permute(1, 0) + x[0, 0]).cos(), torch.randn(3, 5))
    assert sizes == [1, 7]


def test_what_is_there_for_its_effect_stays() -> None:
    def function(x: Tensor) -> Tensor:
        torch._assert_async((x > 0).all(), "not positive")
        return x.exp()

    graph = same(function, torch.rand(3) + 1).graph
    (node,) = graph.find_nodes(op="call_function", target=torch.ops.aten._assert_async.msg)
    assert node.meta["val"] is None


def test_arguments_are_written_as_torch_dispatches_them() -> None:
    aten = torch.ops.aten
    graph, mode = fx.Graph(), torch_private.new_fake_mode()
    fakes = [mode.from_tensor(torch.randn(3, 4), static_shapes=True)]
    x = graph.placeholder("x")
    x.meta["val"] = fakes[0]
    calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (aten.sum.dim_IntList, (x, [1], False), {}),
        (aten.sum.dim_IntList, (x,), {"dim": [1]}),
        (aten.sum.dim_IntList, (x, (0, 1), True), {"dtype": None}),
        (aten.permute.default, (x, (1, 0)), {}),
        (aten.add.Tensor, (x, x), {"alpha": 1}),
        (aten.native_dropout.default, (x, 1, True), {}),
        (aten.clone.default, (x,), {"memory_format": None}),
    ]
    nodes = [graph.call_function(*call) for call in calls]
    with mode:
        for node in nodes:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
            node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]
    graph.output(
        tuple(node if isinstance(node.meta["val"], Tensor) else graph.call_function(getitem, (node, 0)) for node in nodes)
    )
    module = fx.GraphModule(torch.nn.Module(), graph)
    with mode:
        assert described(expand.decompose(module, fakes, TABLE)) == described(torch_private.decompose(module, fakes, TABLE))
