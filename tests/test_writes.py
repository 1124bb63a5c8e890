"""Programs that write to their inputs: the same values as eager, whoever reads them when, and in place where possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from tests.toys import KINDS, use_kind
from vendor_sdk.pipeline import CompiledGraph, recording

Tensor = torch.Tensor


@pytest.fixture(params=KINDS)
def backend(request: pytest.FixtureRequest) -> str:
    return use_kind(request.param)


def r(*shape: int) -> Tensor:
    return torch.randn(shape)


def twin(value: Tensor) -> Tensor:
    """The same values in the same strides, and memory of its own."""
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    return copy.copy_(value)


def agree(
    function: Callable[..., Any],
    inputs: Sequence[Tensor],
    backend: str,
    names: Sequence[str] = (),
    *,
    dynamic: bool | None = None,
) -> list[CompiledGraph]:
    """Three calls, compiled and eager on tensors of their own: results, inputs and who was written to are the same.

    Args:
        names: of the inputs, for what is said of them.
        dynamic: as of ``torch.compile``.
    """
    names = names or [f"input {number}" for number in range(len(inputs))]
    ours, theirs = ([twin(value) for value in inputs] for _ in range(2))
    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    graphs: list[CompiledGraph] = []
    with recording(graphs.append):
        for _ in range(3):
            before = [(a._version, b._version) for a, b in zip(ours, theirs, strict=True)]
            torch.testing.assert_close(compiled(*ours), function(*theirs))
            torch.testing.assert_close(dict(zip(names, ours, strict=True)), dict(zip(names, theirs, strict=True)))
            for name, a, b, (old, other) in zip(names, ours, theirs, before, strict=True):
                assert (a._version > old) == (b._version > other), name
    return graphs


def accumulate(p: Tensor, x: Tensor) -> Tensor:
    p.mul_(0.9).add_(x)
    return x.sum()


def overwrite(p: Tensor, x: Tensor) -> Tensor:
    p.copy_(x * 2)
    return x.sum()


def read_before(p: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    y = p * 2
    p.mul_(x)
    return y, p.sum()


def old_value_returned(p: Tensor, x: Tensor) -> Tensor:
    old = p.clone()
    p.add_(x)
    return old


def written_value_returned(p: Tensor, x: Tensor) -> Tensor:
    y = x + 1
    p.copy_(y)
    return y


def swapped(p: Tensor, x: Tensor) -> Tensor:
    old = p.clone()
    p.copy_(x)
    x.copy_(old)
    return p + 1


def same_value_twice(p: Tensor, x: Tensor) -> Tensor:
    y = x * 3
    p.copy_(y)
    x.copy_(y)
    return y.sum()


def part(p: Tensor, x: Tensor) -> Tensor:
    p[1:3] = x[1:3]
    return p.sum(0)


def views_returned(p: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    p.add_(x)
    return p[1:], p


def through_a_view(p: Tensor, x: Tensor) -> Tensor:
    p.t()[1].mul_(2)
    return x + p


def broken_graph(p: Tensor, x: Tensor) -> Tensor:
    p.add_(x)
    torch._dynamo.graph_break()
    p.mul_(2)
    return p + x


def hidden_from_autograd(p: Tensor, x: Tensor) -> Tensor:
    p.detach().add_(x)
    return x * 2


PROGRAMS = [
    accumulate,
    overwrite,
    read_before,
    old_value_returned,
    written_value_returned,
    swapped,
    same_value_twice,
    part,
    views_returned,
    through_a_view,
    broken_graph,
    hidden_from_autograd,
]


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "contiguous": lambda: r(4, 5),
    "transposed": lambda: r(5, 4).t(),
    "strided": lambda: r(8, 10)[::2, ::2],
    "offset": lambda: r(6, 5)[1:5],
    "empty": lambda: r(4, 0),
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_inputs_are_written_as_in_eager(program: Callable[..., Any], backend: str) -> None:
    """In every layout, all of them in one graph."""
    # Of what is empty there is nothing to view.
    layouts = [layout for layout in LAYOUTS if layout != "empty" or program is not through_a_view]
    written = [LAYOUTS[layout]() for layout in layouts]
    inputs = [tensor for p in written for tensor in (p, r(*p.shape))]

    def all_layouts(*inputs: Tensor) -> dict[str, Any]:
        return {layout: program(*inputs[2 * at : 2 * at + 2]) for at, layout in enumerate(layouts)}

    # Where a program has a graph break, what follows is compiled once for each layout, not for symbols in their place.
    agree(all_layouts, inputs, backend, [f"{layout} {name}" for layout in layouts for name in "px"], dynamic=False)


def test_transposed_itself(backend: str) -> None:
    def f(p: Tensor) -> Tensor:
        p.copy_(p.t().clone())
        return p.sum()

    agree(f, [r(6, 6)], backend)


def test_dtypes_are_converted(backend: str) -> None:
    def f(p: Tensor, n: Tensor, x: Tensor) -> Tensor:
        p.add_(x)
        n.add_(1)
        return x.abs()

    agree(f, [r(4, 4).bfloat16(), torch.zeros((), dtype=torch.int64), r(4, 4)], backend)


def test_shared_memory(backend: str) -> None:
    """Inputs that overlap, one of them written."""

    def f(p: Tensor, q: Tensor) -> Tensor:
        p.mul_(2)
        return q + 1

    compiled = torch.compile(f, backend=backend)
    ours, theirs = (torch.arange(8.0) for _ in range(2))
    for _ in range(2):
        torch.testing.assert_close(compiled(ours[2:6], ours[:4]), f(theirs[2:6], theirs[:4]))
        torch.testing.assert_close(ours, theirs)


def test_sizes_that_change(backend: str) -> None:
    def f(p: Tensor, x: Tensor) -> Tensor:
        p.mul_(0.5).add_(x)
        return p.sum()

    compiled = torch.compile(f, backend=backend, dynamic=True)
    for rows in (3, 7, 2, 16):
        p, x = r(rows, 4), r(rows, 4)
        q = p.clone()
        torch.testing.assert_close(compiled(p, x), f(q, x))
        torch.testing.assert_close(p, q)


def test_running_statistics_of_a_trained_model(backend: str) -> None:
    torch.manual_seed(0)
    model, other = (nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)) for _ in range(2))
    other.load_state_dict(model.state_dict())
    compiled = torch.compile(model, backend=backend)
    for _ in range(3):
        x = r(6, 5)
        compiled(x).square().sum().backward()
        other(x).square().sum().backward()
    for (name, a), (_, b) in zip(model.state_dict().items(), other.state_dict().items(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(compiled.eval()(x), other.eval()(x), rtol=1e-4, atol=1e-5)


def test_a_kept_value_made_of_old_parameters_is_made_anew(backend: str) -> None:
    """Whatever is kept of a parameter between calls follows a compiled optimizer step."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    compiled = torch.compile(model, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    step = torch.compile(optimizer.step, backend=backend)
    x = r(2, 4)
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x))
        model(x).square().sum().backward()
        step()
        optimizer.zero_grad()


# In place, exactly


def one_graph(function: Callable[..., Any], *inputs: Tensor) -> CompiledGraph:
    use_kind("toyloops")
    (graph,) = agree(function, list(inputs), "toyloops")
    return graph


@pytest.mark.parametrize("program", [accumulate, overwrite, part])
def test_no_memory_is_planned_for_what_an_input_can_hold(program: Callable[..., Any]) -> None:
    graph = one_graph(program, r(32, 32), r(32, 32))
    written = [graph.graph.outputs[-1]]
    assert not any((node, 0) in graph.plan.slots for node in written)
    assert "RT.write(" not in graph.source


@pytest.mark.parametrize("program", [written_value_returned, swapped])
def test_no_input_is_written_before_all_have_read_it(program: Callable[..., Any]) -> None:
    assert "RT.write(" in one_graph(program, r(32, 32), r(32, 32)).source


def test_running_statistics_are_updated_where_they_lie() -> None:
    """The gradient of a batch norm is given them, and reads none in training: the old ones are not kept for it."""
    model, other = (nn.BatchNorm2d(8) for _ in range(2))
    graphs: list[CompiledGraph] = []
    compiled = torch.compile(model, backend=use_kind("toyloops"))
    for _ in range(2):
        x, y = (r(4, 8, 5, 5).requires_grad_() for _ in range(2))
        y.data.copy_(x)
        with recording(graphs.append):
            compiled(x).sin().sum().backward()
        other(y).sin().sum().backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)
    for (name, a), (_, b) in zip(model.state_dict().items(), other.state_dict().items(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=name)
    forward, backward = graphs
    assert "RT.write(" not in forward.source
    assert len(forward.graph.written) == 3
    # The gradient, x, the weight, the batch's mean and its deviation.
    assert len(backward.graph.placeholders) == 5


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"amsgrad": True}, {"maximize": True}], ids=str)
def test_adamw_is_one_kernel_over_all_parameters_in_place(options: dict[str, Any]) -> None:
    """One more computes the corrections of the bias, which hang on the step alone."""
    use_kind("toyloops")
    torch.manual_seed(0)
    shapes = [(7, 3), (5,), (4, 4), (2, 3, 2), (33,)]
    ours, theirs = ([nn.Parameter(torch.ones(shape)) for shape in shapes] for _ in range(2))
    pairs = [torch.optim.AdamW(parameters, lr=1e-2, **options) for parameters in (ours, theirs)]
    graphs: list[CompiledGraph] = []
    steps = [torch.compile(pairs[0].step, backend="toyloops"), pairs[1].step]
    with recording(graphs.append):
        for _ in range(4):
            for a, b in zip(ours, theirs, strict=True):
                a.grad = torch.randn_like(a)
                b.grad = a.grad.clone()
            for step in steps:
                step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert len(graphs) == 1
    (graph,) = graphs
    assert graph.launches == 2
    assert graph.native_calls == 1
    assert graph.layout().peak <= 64 * 4 * len(shapes)  # numbers without dimensions only
    assert "RT.write(" not in graph.source
