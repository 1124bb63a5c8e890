"""Fusion: named patterns become exactly so many kernels, and fused kernels compute what torch computes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

import vendor_sdk
from tests.fusing import ROOM, compiled
from tests.toys import register_toys
from vendor_sdk.contract.emitter import Limits
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.loop import Compute, Load, Nest, Reduce, walk
from vendor_sdk.schedule.batch import SMALL

aten = torch.ops.aten
Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...], int]


def rope(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = q.shape[-1] // 2
    return q * cos + torch.cat((-q[..., half:], q[..., :half]), -1) * sin


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def batch_norm_relu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.relu(F.batch_norm(x, None, None, w, b, True))


def residual_norm(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x + r, F.layer_norm(x + r, (10,), w, b)


def layer_norm_backward(*args: torch.Tensor) -> Any:
    dy, x, mean, rstd, w, b = args
    return aten.native_layer_norm_backward(dy, x, [10], mean, rstd, w, b, [True] * 3)


def adamw(*tensors: torch.Tensor) -> list[torch.Tensor]:
    n = len(tensors) // 4
    results = []
    for p, g, m, v in zip(tensors[:n], tensors[n : 2 * n], tensors[2 * n : 3 * n], tensors[3 * n :], strict=True):
        m = m * 0.9 + g * 0.1
        v = v * 0.99 + g * g * 0.01
        results += [p * 0.99 - 0.01 * m / (v.sqrt() + 1e-8), m, v]
    return results


def _cases() -> dict[str, Case]:
    torch.manual_seed(0)
    x, r, dy, w, b = torch.randn(100, 10), torch.randn(100, 10), torch.randn(100, 10), torch.randn(10), torch.randn(10)
    mean, rstd = x.mean(-1, keepdim=True), torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)
    q, target = torch.randn(2, 3, 5, 8), torch.randint(0, 10, (100,))
    image, c0, c1 = torch.randn(4, 6, 5, 7), torch.randn(6), torch.randn(6)
    half = [t.bfloat16() for t in (x, w, b)]
    return {
        "chain": (lambda x, r: torch.tanh(x + r) * 2 + 1, (x, r), 1),
        "softmax": (lambda x: torch.softmax(x, -1), (x,), 1),
        "softmax over the first dimension": (lambda x: torch.softmax(x, 0), (x,), 1),
        "log_softmax": (lambda x: torch.log_softmax(x, -1), (x,), 1),
        "masked, scaled softmax": (
            lambda x, m: torch.softmax(x.masked_fill(m, -1e9) * 0.5, -1),
            (torch.randn(2, 3, 5, 7), torch.rand(5, 7) > 0.5),
            1,
        ),
        "softmax of heads": (lambda x: torch.softmax(x.view(4, 25, 2, 5).transpose(1, 2), -1), (x,), 1),
        "layer_norm": (lambda x, w, b: F.layer_norm(x, (10,), w, b), (x, w, b), 1),
        "layer_norm, bfloat16": (lambda x, w, b: F.layer_norm(x, (10,), w, b), tuple(half), 1),
        "layer_norm of residual and bias": (
            lambda x, r, w, b: F.layer_norm(x + r + b, (10,), w, b).to(torch.bfloat16),
            (x, r, w, b),
            1,
        ),
        "residual + layer_norm": (residual_norm, (x, r, w, b), 1),
        "layer_norm backward": (layer_norm_backward, (dy, x, mean, rstd, w, b), 1),
        "rms_norm": (rms_norm, (x, w), 1),
        "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (image, c0, c1), 1),
        "batch_norm + relu, training": (batch_norm_relu, (image, c0, c1), 1),
        "softmax backward": (lambda g, o: aten._softmax_backward_data(g, o, -1, torch.float32), (dy, x), 1),
        "gelu, erf": (lambda x, b: F.gelu(x + b), (x, b), 1),
        "gelu, tanh": (lambda x, b: F.gelu(x + b, approximate="tanh"), (x, b), 1),
        "gelu backward": (lambda g, x: aten.gelu_backward(g, x, approximate="tanh"), (dy, x), 1),
        "swiglu": (lambda x, r: F.silu(x) * r, (x, r), 1),
        "packed swiglu": (lambda x: F.silu(x[:, :5]) * x[:, 5:], (x,), 1),
        "rope": (rope, (q, torch.randn(5, 8), torch.randn(5, 8)), 1),
        "cross_entropy": (lambda x, t: F.cross_entropy(x, t), (x, target), 1),
        "mean squared error": (lambda x, r: F.mse_loss(x, r), (x, r), 1),
        "sum over all of a product": (lambda x, r: (x * r).sum(), (x, r), 1),
        "sum over dim 0 of a product": (lambda x, r: (x * r).sum(0), (x, r), 1),
        "row and column sums": (lambda x: (x.sum(0), x.sum(1)), (x,), 1),
        "transpose + add": (lambda x, y: x.t() + y, (x, torch.randn(10, 100)), 1),
        "cat of products": (lambda x, r: torch.cat((x * 2, r * x), 1) + 1, (x, r), 1),
        "pad of a sum": (lambda x, r: F.pad(x + r, (1, 2)) * 3, (x, r), 1),
        "padded rows of a softmax": (lambda x: F.pad(torch.softmax(x, -1), (0, 1), value=2.0), (x,), 1),
        "padded rows, and what they are": (lambda x, r: [y := torch.softmax(x, -1) + r, F.pad(y, (0, 1)), y.exp()], (x, r), 1),
        "rows padded with more rows": (lambda x: F.pad(torch.softmax(x, -1), (0, 0, 0, 12)), (x,), 1),
        "padding on both sides": (lambda x: F.pad(torch.log_softmax(x, -1), (0, 1, 0, 2)), (torch.randn(100, 20),), 1),
        "padding in front": (lambda x: F.pad(torch.softmax(x, -1), (1, 0)), (x,), 2),
        "more padding than rows": (lambda x: F.pad(torch.softmax(x, -1), (0, 0, 0, 100)), (x,), 2),
        "embedding + position": (lambda w, i, p: w[i] + p, (torch.randn(20, 8), torch.randint(0, 20, (3, 5)), q[0, 0]), 1),
        "bias and gelu of a product": (lambda x, w, b: F.gelu(x @ w + b), (x, torch.randn(10, 12), torch.randn(12)), 1),
        "siblings": (lambda x: (x * 2, x.exp(), x.sum(-1)), (x,), 1),
    }


CASES = _cases()


@pytest.mark.parametrize("name", CASES)
def test_pattern_is_so_many_kernels(name: str) -> None:
    function, inputs, kernels = CASES[name]
    program = compiled(function, inputs)
    _check(program.run(*inputs), function(*inputs))
    assert len(program.kernels) == kernels, [str(node.target) for node in program.kernels]


def _check(got: list[torch.Tensor], want: Any) -> None:
    want = want if isinstance(want, tuple | list) else (want,)
    for one, expected in zip(got, want, strict=True):
        tolerance = 2e-2 if expected.dtype == torch.bfloat16 else 2e-5
        torch.testing.assert_close(one, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["softmax", "layer_norm backward", "cross_entropy", "rope"])
@pytest.mark.parametrize("limits", [Limits(), Limits(statements=12, buffers=4), Limits(local_bytes=64)])
def test_limits_change_kernels_and_no_numbers(name: str, limits: Limits) -> None:
    function, inputs, _ = CASES[name]
    program = compiled(function, inputs, limits)
    _check(program.run(*inputs), function(*inputs))
    for lowered in program.kernels.values():
        assert len(lowered.inputs) + len(lowered.outputs) <= limits.buffers or len(program.plan.kernels) == 1


@pytest.mark.parametrize("fuel", range(7))
def test_fuel_stops_fusion(fuel: int) -> None:
    function, inputs, _ = CASES["layer_norm"]
    program = compiled(function, inputs, fuel=fuel)
    _check(program.run(*inputs), function(*inputs))
    assert program.plan.fused <= fuel


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 127, 200, 211])
def test_totals_over_any_number_of_rows(rows: int) -> None:
    """Rows are summed in chunks; the last one may be short."""
    torch.manual_seed(rows)
    inputs = _norm_inputs(rows)
    program = compiled(layer_norm_backward, inputs)
    _check(program.run(*inputs), layer_norm_backward(*inputs))
    assert len(program.kernels) == 1 or rows == 1


def _norm_inputs(rows: int) -> tuple[torch.Tensor, ...]:
    x, dy, w = torch.randn(rows, 10), torch.randn(rows, 10), torch.randn(10)
    mean, rstd = x.mean(-1, keepdim=True), torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)
    return dy, x, mean, rstd, w, w


def test_totals_share_a_kernel_where_one_is_of_what_the_others_operand_gives() -> None:
    """Rows too long for totals: these have a kernel of their own, one for both, which computes the products again."""

    def function(g: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor) -> Any:
        return aten.native_layer_norm_backward(g, x, [64], mean, rstd, torch.ones(64), torch.ones(64), [True] * 3)

    inputs = torch.randn(33, 64), torch.randn(33, 64), torch.randn(33, 1), torch.rand(33, 1)
    program = compiled(function, inputs, replace(ROOM, total_width=63))
    _check(program.run(*inputs), function(*inputs))
    rows, totals = [lowered for lowered in program.kernels.values() if len(lowered.inputs) > 1]
    assert [len(each.outputs) for each in (rows, totals)] == [1, 2]
    (nest,) = totals.kernel.body
    (loop,) = [s for s in walk((nest,)) if isinstance(s, Reduce)]
    assert len(loop.accumulators) == 2


@pytest.mark.parametrize(("rows", "chunks"), [(700, 32), (256, 32), (211, 16), (31, 16), (5, 16)])
def test_rows_that_lie_apart_are_as_many_as_run_at_once(rows: int, chunks: int) -> None:
    inputs = _norm_inputs(rows)
    limits = replace(ROOM, chunk_apart=True, chunks=8, chunks_at_once={10: 40}.__getitem__)
    program = compiled(layer_norm_backward, inputs, limits)
    _check(program.run(*inputs), layer_norm_backward(*inputs))
    (lowered,) = program.kernels.values()
    assert chunks in [r.size.value for s in lowered.kernel.body if isinstance(s, Nest) for r in s.ranges]


@pytest.mark.parametrize("rows", [1, 65, 211])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16], ids=str)
def test_totals_of_narrow_integers_are_kept_in_32_bits(dtype: torch.dtype, rows: int) -> None:
    """Few processors combine less in memory."""
    torch.manual_seed(rows)
    x = torch.randint(2, (rows, 10)).bool() if dtype == torch.bool else torch.randint(-128, 128, (rows, 10)).to(dtype)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        most, least = x.amax(1), x.amin(1)
        return most.amin(0), least.amax(0), most.amax(0), least.amin(0)

    program = compiled(function, (x,))
    _check(program.run(x), function(x))
    buffers = [p for each in program.kernels.values() for p in each.kernel.scratch]
    assert {p.dtype for p in buffers} <= {torch.int32}
    assert rows == 1 or buffers


def test_a_foreach_optimizer_step_is_one_kernel() -> None:
    torch.manual_seed(0)
    inputs = tuple(torch.rand(3 + size, 4) for _ in range(4) for size in range(5))
    program = compiled(adamw, inputs)
    _check(program.run(*inputs), adamw(*inputs))
    (lowered,) = program.kernels.values()
    assert len(lowered.kernel.body) == 5


@pytest.mark.parametrize("size", [200, 300])
@pytest.mark.parametrize(("read", "saved"), [(True, False), (True, True), (False, True)])
def test_large_results_that_are_read_alone_are_made_where_they_are_read(read: bool, saved: bool, size: int) -> None:
    """One launch for all of them would have them all live at once, from the first reader to the last."""

    def layers(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scaled = [w.exp() for w in weights]
        if not read:
            return tuple(scaled)
        for w in scaled:
            x = torch.relu(x @ w)
        return (x, *scaled) if saved else (x,)

    weights = [torch.randn(size, size) / 100 for _ in range(4)]
    found = compiled(layers, (torch.randn(2, size), *weights))
    several = [lowered for lowered in found.kernels.values() if len(lowered.kernel.body) > 1]
    assert len(several) == (saved or size * size <= SMALL)
    for value, expected in zip(found.run(torch.ones(2, size), *weights), layers(torch.ones(2, size), *weights), strict=True):
        torch.testing.assert_close(value, expected)


def test_what_follows_from_inputs_alone_comes_where_it_is_read() -> None:
    """Behind a view of it, too, and before the first of several readers."""

    def layers(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, ...]:
        turned, twice, last = v.exp().t(), w.exp(), u.exp()
        x = torch.relu(x @ x)
        x = torch.relu(x @ x)
        x = torch.relu(x @ twice)
        x = torch.relu(x @ turned) @ twice
        return x, last @ x

    inputs = [torch.rand(300, 300) / 300 for _ in range(4)]
    found = compiled(layers, inputs)
    expected = layers(*[i.clone() for i in inputs])
    steps = ["exp" if "exp" in node.name else "mm" for node in found.graph.calls()]
    assert steps == ["mm", "mm", "exp", "mm", "exp", "mm", "mm", "exp", "mm"]
    for value, one in zip(found.run(*inputs), expected, strict=True):
        torch.testing.assert_close(value, one)


def test_what_a_concatenation_reads_is_made_where_its_operands_are() -> None:
    """One value is stored for it, not two that nobody else needs; what follows from what is stored anyway it makes itself."""

    def cell(x: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        new = torch.sigmoid(x[:, :5]) * c
        return torch.cat((x[:, 10:], torch.sigmoid(x[:, 5:10]) * torch.tanh(new)), 1), new

    inputs = torch.randn(6, 15), torch.randn(6, 5)
    found = compiled(cell, inputs)
    assert [[p.size for p in lowered.kernel.params if p.role == "out"] for lowered in found.kernels.values()] == [[30], [60]]
    for value, expected in zip(found.run(*inputs), cell(*inputs), strict=True):
        torch.testing.assert_close(value, expected)


def test_a_concatenation_is_cut_into_its_parts() -> None:
    """Where parts are long enough no condition is left, and what both parts read is read in one pass over the rows."""
    q, cos, sin = torch.randn(3, 5, 64), torch.randn(5, 64), torch.randn(5, 64)
    program = compiled(rope, (q, cos, sin))
    _check(program.run(q, cos, sin), rope(q, cos, sin))
    (lowered,) = program.kernels.values()
    (nest,) = lowered.kernel.body
    assert [type(s) for s in nest.body if isinstance(s, Nest)] == [Nest, Nest]
    assert not [s for s in walk(lowered.kernel.body) if isinstance(s, Load) and s.mask]


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_concatenation_of_three_along_any_dimension(dim: int) -> None:
    parts = [torch.randn([20 if d == dim else 17 for d in range(3)]) for _ in range(3)]

    def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch.cat((a * 2, b.exp(), c), dim) + 1

    program = compiled(run, parts)
    _check(program.run(*parts), run(*parts))
    assert len(program.kernels) == 1


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("first", [0, 3, 5])
@pytest.mark.parametrize("then", ["sum", "softmax", "cumsum", "pointwise"])
def test_slices_of_one_tensor_keep_their_own_loops(then: str, first: int, dim: int) -> None:
    """Elements of one are in step with those of another, at a distance, and beyond the end of its results."""

    def run(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        part = x.narrow(dim, 5, 5) * 2
        reduced = {"sum": part.sum(dim), "softmax": part.softmax(dim), "cumsum": part.cumsum(dim), "pointwise": part.cos()}
        return x.narrow(dim, first, 5).exp(), reduced[then]

    def turned(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        part = x.narrow(dim, first, 5) * 2
        return x.narrow(dim, 5, 5).exp(), part.sum(1 - dim)

    x = torch.randn(10, 10)
    for function in (run, turned):
        program = compiled(function, (x,))
        _check(program.run(x), function(x))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("along", [0, 1])
def test_what_is_read_at_a_distance_is_computed_as_a_whole(along: int, dim: int) -> None:
    """A sequence and the same moved on by one, over which rows or columns are normalized."""

    def run(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.erfinv(x).exp().log1p()
        moved = torch.nn.functional.pad(y.narrow(along, 0, 9), (0, 0, 1, 0) if along == 0 else (1, 0))
        return y, moved.softmax(dim)

    x = torch.rand(10, 10)
    program = compiled(run, (x,))
    _check(program.run(x), run(x))


@pytest.mark.parametrize("columns", [1, 5])
def test_rows_of_which_a_view_takes_some_are_all_computed(columns: int) -> None:
    register_toys()

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        c = torch.cosh(x)
        row = c.amax(2, keepdim=True)[2]
        return row - row.amax(1, keepdim=True), c

    x = torch.randn(3, 7, columns)
    graph = vendor_sdk.compile_graph(vendor_sdk.trace(function, [x]), backend="toyloops")
    torch.testing.assert_close(graph(x), list(function(x)))


def test_a_part_in_common_is_not_all_that_a_reduction_keeps() -> None:
    """The group reads one column of what the variance reads: its only row was taken for all columns."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        column = y + x.select(1, 1).amin(0, keepdim=True)
        return torch.var(x, 0, correction=0, keepdim=True), column

    x, y = torch.randn(2, 2, dtype=torch.float64), torch.randn(2, dtype=torch.float64)
    _check(compiled(function, (x, y)).run(x, y), function(x, y))


def test_order_holds_fewer_bytes() -> None:
    """Each large product is reduced before the next one is made, wherever the program had the sums."""

    def run(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        wide = [torch.mm(x * k, w) for k in range(1, 6)]
        return [torch.mm(one, w.t()) for one in wide]

    # Of numbers that cancel each other, float32 would say little.
    x, w = torch.randn(8, 16, dtype=torch.float64), torch.randn(16, 256, dtype=torch.float64)
    program = compiled(run, (x, w))
    _check(program.run(x, w), run(x, w))
    wide = [node.meta["val"].shape[1] == 256 for node in program.kernels]
    assert wide == [True, False] * 5


@pytest.mark.parametrize("donated", [(), (0, 1)])
def test_order_counts_what_the_graph_is_given_for_good(donated: tuple[int, ...]) -> None:
    """Activations are read for the last time before something large is made, wherever the program had that."""

    def run(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        wide = torch.mm(x, w)
        return torch.mm(wide, torch.mm(a, b))

    register_toys()
    inputs = torch.ones(8, 512), torch.ones(512, 8), torch.ones(512, 4), torch.ones(4, 8)
    graph = vendor_sdk.trace(run, inputs)
    graph.donated_inputs = frozenset(donated)
    program = vendor_sdk.compile_graph(graph, backend="toyloops")
    torch.testing.assert_close(program(*inputs), [run(*inputs)])
    lengths = [node.meta["val"].shape[0] for node in program.plan.steps]
    assert lengths == ([8, 512, 512] if donated else [512, 8, 512])


def test_a_sum_of_columns_does_not_turn_the_rows() -> None:
    """The gradients of a bias and of the layer norm before it: one kernel over rows, whichever comes first in the program."""

    def function(g: torch.Tensor, h: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor) -> Any:
        bias = g.sum(0)
        ones = torch.ones(48, dtype=torch.float64)
        return bias, *aten.native_layer_norm_backward(g + h, x, [48], mean, rstd, ones, ones, [True] * 3)

    rows = [torch.randn(1024, 48, dtype=torch.float64) for _ in range(3)]
    inputs = (*rows, torch.randn(1024, 1, dtype=torch.float64), torch.rand(1024, 1, dtype=torch.float64))
    program = compiled(function, inputs)
    _check(program.run(*inputs), function(*inputs))
    ((_, lowered),) = program.kernels.items()
    assert not [p for p in lowered.kernel.scratch if p.size.value is None or p.size.value >= 1024 * 48 // 2]


def test_a_sum_of_columns_is_not_taken_where_rows_are_turned() -> None:
    """What is read lies along the columns of the result: a kernel over the result's rows would read a line for an element."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        turned = (x * 2).transpose(1, 2).contiguous()
        return turned, turned.sum((0, 1))

    inputs = (torch.randn(3, 48, 512, dtype=torch.float64),)
    program = compiled(function, inputs)
    _check(program.run(*inputs), function(*inputs))
    assert len(program.kernels) == 2


def _normalized_backward(dy: torch.Tensor, x: torch.Tensor, mask: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """What is summed over all rows, and then used for each of them: half the bytes of what is summed are read."""
    dy, x = torch.where(mask > 0, dy, 0).float() * w, x.float()
    return (dy - dy.mean(0) - x * (dy * x).mean(0)).bfloat16()


def test_what_follows_from_no_more_bytes_is_computed_again_not_stored() -> None:
    rows, columns = 600, 16
    dy, x, mask = (torch.randn(rows, columns).bfloat16() for _ in range(3))
    program = compiled(_normalized_backward, (dy, x, mask, torch.randn(columns)))
    _check(program.run(dy, x, mask, w := torch.randn(columns)), _normalized_backward(dy, x, mask, w))
    sums, uses = program.kernels.values()
    assert all(ix.product(spec.shape) == columns for spec in sums.outputs), "nothing of a row is stored"
    assert {node.name for node in uses.inputs} >= {"arg0_1", "arg1_1", "arg2_1"}


def test_of_more_bytes_a_narrower_member_is_stored() -> None:
    rows, columns = 600, 16

    def function(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> Any:
        """``total`` follows from three operands, and two that are as wide again follow from it."""
        total = a + b * c
        one, two = total.float() * w, total.float() * v
        return (one - one.mean(0)).bfloat16(), (two - two.mean(0)).bfloat16()

    inputs = (*(torch.randint(-8, 8, (rows, columns)).bfloat16() for _ in range(3)), torch.rand(columns), torch.rand(columns))
    program = compiled(function, inputs)
    _check(program.run(*inputs), function(*inputs))
    stored = [spec for spec in next(iter(program.kernels.values())).outputs if ix.product(spec.shape) == rows * columns]
    assert [spec.dtype for spec in stored] == [torch.bfloat16]


def test_what_is_returned_or_dear_is_not_computed_again() -> None:
    x = torch.randn(600, 16)

    def returned(x: torch.Tensor) -> Any:
        y = x * 2
        return y, y - y.sum(0)

    def dear(x: torch.Tensor) -> Any:
        y = x.exp().sin().tan().tanh().erf()
        return y - y.sum(0)

    for function, count in ((returned, 2), (dear, 2)):
        program = compiled(function, (x,))
        _check(program.run(x), function(x))
        first = next(iter(program.kernels.values()))
        assert any(ix.product(spec.shape) == x.numel() for spec in first.outputs)
        assert len(program.kernels) == count


def test_a_scale_of_the_columns_has_no_kernel_where_launches_cost() -> None:
    x, variance = torch.randn(300, 40), torch.rand(40)
    wide = torch.rand(75, 40)

    def normalized(x: torch.Tensor, v: torch.Tensor) -> Any:
        return (x * torch.rsqrt(torch.exp(v) + 1e-5)).relu()

    def large(x: torch.Tensor, v: torch.Tensor) -> Any:
        """A number for every fourth one of the result."""
        return x.view(4, 75, 40) * torch.rsqrt(torch.exp(v) + 1e-5)

    def returned(x: torch.Tensor, v: torch.Tensor) -> Any:
        scale = torch.rsqrt(torch.exp(v) + 1e-5)
        return x * scale, scale

    cases = (normalized, variance), (returned, variance), (large, wide)
    for launch_bytes, counts in ((0, (2, 2, 2)), (x.nbytes - 1, (2, 2, 2)), (x.nbytes, (1, 2, 2)), (1 << 20, (1, 2, 2))):
        for (function, v), count in zip(cases, counts, strict=True):
            program = compiled(function, (x, v), Limits(launch_bytes=launch_bytes))
            _check(program.run(x, v), function(x, v))
            assert len(program.kernels) == count


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_bytes_become_numbers_in_one_step(dtype: torch.dtype, half: torch.dtype) -> None:
    """Halves hold them exactly: nothing is rounded on the way to the arithmetic."""
    q = torch.arange(256).to(dtype)
    program = compiled(lambda q: q.to(half) * 3, (q,))
    (lowered,) = program.kernels.values()
    converted = [s for s in walk(lowered.kernel.body) if isinstance(s, Compute) and s.op == "convert"]
    assert [s.dtype for s in converted] == [torch.float32, half]
    (found,) = program.run(q)
    assert torch.equal(found, q.to(half) * 3)


def test_what_follows_from_many_values_by_many_ways_is_scheduled_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum of columns asks what its operand follows from: of 16 steps that read the one before twice, 65,536 elements."""
    steps = 16

    def shifted(x: torch.Tensor) -> torch.Tensor:
        for k in range(steps):
            x = torch.sin(x[:, 1 << k :] + x[:, : -(1 << k)])
        return x.sum(0)

    fusing = sys.modules["vendor_sdk.schedule.fuse"]
    moved = mock.Mock(side_effect=fusing.moved)
    monkeypatch.setattr(fusing, "moved", moved)
    found = compiled(shifted, [torch.randn(3, (1 << steps) + 64)])
    assert len(found.plan.kernels) > steps // 2
    assert moved.call_count < 100 * steps


def test_what_is_made_where_it_is_read_counts_once_in_a_kernel() -> None:
    """A weight that ten members read is one value of their kernel: a limit of statements is not reached by it ten times."""

    def weighted(x: torch.Tensor) -> torch.Tensor:
        weight = (torch.arange(40).float() + 0.5) * 0.25 - 0.5
        for _ in range(10):
            x = x * weight
        return x

    x = torch.randn(30, 40)
    for statements, count in ((60, 1), (30, 4)):
        program = compiled(weighted, (x,), Limits(statements=statements, launch_bytes=1 << 20))
        _check(program.run(x), weighted(x))
        assert len(program.kernels) == count, statements


def test_a_launch_is_saved_by_its_price_in_a_kernel() -> None:
    """What reads the step before twice computes it once: the price of eight such steps is not two to the power of eight."""

    def squared(x: torch.Tensor) -> torch.Tensor:
        weight = (torch.arange(40).float() + 0.5) * 0.01
        for _ in range(8):
            weight = weight * weight + weight
        return x * weight

    x = torch.randn(30, 40)
    (result,) = (program := compiled(squared, (x,), Limits(launch_bytes=1 << 20))).run(x)
    torch.testing.assert_close(result, squared(x))
    assert len(program.kernels) == 1
    assert len(compiled(squared, (x,), Limits(launch_bytes=x.nbytes // 2)).kernels) == 2, (
        "where the result is large, it is dearer"
    )


def both(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    given = torch.ones(2, 4, 5, 6)
    to_x, to_w, _ = aten.convolution_backward(given, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 2, [True, True, False])
    return to_w, to_x.permute(0, 2, 3, 1).clone()


MOVED: dict[str, tuple[Callable[..., Any], int]] = {
    "a convolution with groups": (lambda x, w: F.conv2d(x, w, padding=1, groups=2).permute(0, 2, 3, 1).clone(), 1),
    "gradients": (both, 2),  # one of them fills what is given
    "read by others": (lambda x, w: ((y := F.conv2d(x, w, padding=1, groups=2)).permute(0, 2, 3, 1).clone(), y + 1), 3),
}


@pytest.mark.parametrize("name", MOVED)
def test_an_image_that_is_copied_in_another_order_is_stored_so(name: str) -> None:
    function, count = MOVED[name]
    inputs = [torch.randn(2, 6, 5, 6), torch.randn(4, 3, 3, 3)]
    found = compiled(function, inputs, ROOM)
    wanted = function(*(each.double() for each in inputs)) if name != "gradients" else function(*inputs)
    for one, other in zip(found.run(*inputs), wanted if isinstance(wanted, tuple) else [wanted], strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-5, atol=1e-5)
    assert len(found.kernels) <= count


def test_fuel_stops_images_from_being_stored_in_another_order() -> None:
    function, _ = MOVED["a convolution with groups"]
    inputs = [torch.randn(2, 6, 5, 6), torch.randn(4, 3, 3, 3)]
    assert [len(compiled(function, inputs, ROOM, fuel=fuel).kernels) for fuel in (0, 1)] == [2, 1]


def turned(q: torch.Tensor) -> torch.Tensor:
    a, b = q.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([-b, a], -1).flatten(-2)


def test_an_operand_that_is_also_computed_with_again_is_one() -> None:
    """Rotations of two normalized vectors: one of them is stored, multiplied where that is done and again where it is added."""

    def f(x: torch.Tensor, y: torch.Tensor, angles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k = (each * (each.square().mean(-1, True) + 1e-6).rsqrt() for each in (x, y))
        angles = angles.transpose(-1, -2).flatten(2)[..., None].expand(2, 32, 6, 2).flatten(2)
        cos = torch.cat([aten.full([2, 32, 4], 1.0), angles.cos()], -1)
        sin = torch.cat([aten.full([2, 32, 4], 0.0), angles.sin()], -1)
        return q * cos + turned(q) * sin, k * cos + turned(k) * sin

    inputs = [torch.randn(2, 32, 16), torch.randn(2, 32, 16), torch.randn(2, 32, 2, 3)]
    for one, other in zip(compiled(f, inputs, ROOM).run(*inputs), f(*inputs), strict=True):
        torch.testing.assert_close(one, other)
