"""Symbolic sizes: one kernel for all sizes of a symbol, and the same loops as static ones would get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.toys import register_toys
from vendor_sdk.ir.loop import Load, LoopKernel, Nest, walk
from vendor_sdk.pipeline import recording

Tensor = torch.Tensor
Shapes = Sequence[tuple[int, ...]]


def kernels(function: Callable[..., Any], calls: Sequence[Shapes]) -> list[LoopKernel]:
    """The kernels of a function that is compiled once and called with inputs of several shapes, each result checked."""
    register_toys()
    torch._dynamo.reset()
    graphs: list[Any] = []
    compiled = torch.compile(function, backend="toyloops", dynamic=True)
    with recording(graphs.append):
        for shapes in calls:
            inputs = [torch.randn(shape) for shape in shapes]
            torch.testing.assert_close(compiled(*inputs), function(*inputs), rtol=1e-6, atol=1e-6)
    (graph,) = graphs
    return list(graph.loops.values())


def masked(kernel: LoopKernel) -> list[Load]:
    return [s for s in walk(kernel.body) if isinstance(s, Load) and s.mask]


def rope(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = q.chunk(2, -1)
    return q * cos + torch.cat((-second, first), -1) * sin


def test_rope_is_one_kernel_without_conditions() -> None:
    """Both halves of a row, whose lengths differ where the size is odd, are loops over the same row."""
    calls = [
        ((heads, rows, width), (rows, width), (rows, width)) for heads, rows, width in ((3, 5, 64), (2, 40, 33), (7, 4, 5))
    ]
    (kernel,) = kernels(rope, calls)
    (nest,) = kernel.body
    assert [type(s) for s in nest.body if isinstance(s, Nest)] == [Nest, Nest]
    assert not masked(kernel)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_parts_of_several_sizes(dim: int) -> None:
    """Three parts, each of a size of its own, make three loops in the order of memory."""

    def joined(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return torch.cat((a * 2, -b, c - 1), dim) + 1

    calls = [
        [tuple(size if d == dim else other for d, other in enumerate(others)) for size in sizes]
        for sizes, others in (((4, 9, 30), (3, 8, 5)), ((50, 2, 3), (6, 4, 70)))
    ]
    (kernel,) = kernels(joined, calls)
    assert not masked(kernel)
    assert len(kernel.body if dim == 0 else [s for s in kernel.body[0].body if isinstance(s, Nest)]) == 3


def test_padding_of_a_symbolic_size() -> None:
    """Rows that are padding are loops of their own; a column of padding is not worth one."""

    def padded(x: Tensor) -> Tensor:
        return F.pad(x * 3, (1, 2, x.shape[0], 4), value=7.0) - 1

    (kernel,) = kernels(padded, [((6, 9),), ((3, 40),), ((30, 2),)])
    assert len(kernel.body) == 3
    assert len(masked(kernel)) == 1


def test_a_part_within_a_part() -> None:
    """What is padded is itself joined: a row of padding, two parts, a row of padding."""

    def nested(a: Tensor, b: Tensor) -> Tensor:
        return F.pad(torch.cat((a * 3, b), 0), (0, 0, 1, 1)) * 2

    (kernel,) = kernels(nested, [((5, 3), (2, 3)), ((2, 8), (40, 8))])
    assert len(kernel.body) == 4
    assert not masked(kernel)


@pytest.mark.parametrize("dim", [0, 1])
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_results_of_sizes_that_only_data_tells_have_the_strides_of_eager(dim: int) -> None:
    """Strides are promised before the program is traced to prims, where such a size is a new symbol."""

    def function(x: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        places = chosen.nonzero().squeeze(1)
        return x.index_select(dim, places), places

    register_toys()
    torch._dynamo.reset()
    x, chosen = torch.randn(4, 4), torch.tensor([1, 0, 1, 1])
    for found, expected in zip(torch.compile(function, backend="toyloops")(x, chosen), function(x, chosen), strict=True):
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()


@pytest.mark.parametrize(
    "rows",
    [
        lambda x, y: max(1, x.shape[0] - 6),
        lambda x, y: x.shape[0] // 2 - y.shape[1],
        lambda x, y: -(-y.shape[0] // 3),
        lambda x, y: x.shape[0] * x.shape[0] % y.shape[1],
    ],
    ids=["maximum", "difference", "quotient", "remainder"],
)
def test_a_size_that_torch_took_for_one_is_one(rows: Callable[[Tensor, Tensor], int]) -> None:
    """Broadcasting asks whether a size is one, and a guard keeps the answer; its expression has symbols all the same."""
    kernels(lambda x, y: x[: rows(x, y)] * y, [((7, 2), (3, 2))])


def test_norms_of_an_order_that_is_a_symbol() -> None:
    register_toys()
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, order: x.norm(order, dim=0), backend="toyloops", dynamic=True)
    x = torch.randn(5, 3)
    for order in (3, 4):
        torch.testing.assert_close(compiled(x, order), x.norm(order, dim=0))
