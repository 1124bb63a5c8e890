"""The template of cpp_cpu for contractions, against float64 and against the interpreter."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from reference_backends.cpp_cpu import compiler, machine
from reference_backends.cpp_cpu.emitter import CppEmitter
from tests.lowered import Call, call, flat
from vendor_sdk import explain
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.loop import (
    Accumulator,
    Compute,
    Const,
    Index,
    Load,
    LoopKernel,
    Nest,
    Param,
    Range,
    Reduce,
    Store,
    required_ops,
)
from vendor_sdk.ir.loop_interpreter import interpret
from vendor_sdk.pipeline import recording

aten = torch.ops.aten
F32 = torch.float32


def sized(*values: int) -> list[ix.Int]:
    return [ix.wrap(v) for v in values]


def launch(one: Call, spare: torch.Tensor | None = None) -> list[torch.Tensor]:
    outputs = one.outputs()
    buffers = [*map(flat, one.inputs), *outputs]
    (run,) = CppEmitter().compile([(one.lowered.kernel, CppEmitter().emit(one.lowered.kernel))])
    run(buffers, one.symbols(), spare)
    return outputs


def close(actual: torch.Tensor, expected: torch.Tensor, magnitude: torch.Tensor) -> None:
    """Within float32 rounding of the sum of absolute values."""
    assert actual.shape == expected.shape
    error = (actual.double() - expected).abs()
    assert bool((error <= 2e-6 * magnitude + 1e-30).all()), f"off by {error.max()}"


def check_mm(a: torch.Tensor, b: torch.Tensor, *, dynamic: bool = False) -> torch.Tensor:
    target = aten.mm.default if a.dim() == 2 else aten.bmm.default
    (result,) = launch(call(target, (a, b), dynamic=dynamic))
    close(result, a.double() @ b.double(), a.double().abs() @ b.double().abs())
    return result


SHAPES = [
    (1, 1, 200),
    (1, 70, 513),
    (70, 1, 513),
    (2, 3, 1),
    (13, 15, 17),
    (14, 32, 128),
    (15, 33, 129),
    (29, 65, 1500),
    (100, 10, 40),
    (10, 100, 40),
    (3, 4, 0),
    (0, 4, 3),
    (4, 0, 3),
]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sizes(shape: tuple[int, int, int], dynamic: bool) -> None:
    m, n, k = shape
    check_mm(torch.randn(m, k), torch.randn(k, n), dynamic=dynamic)


@pytest.mark.parametrize("right", ["rows", "columns", "strided", "expanded"])
@pytest.mark.parametrize("left", ["rows", "columns", "strided", "expanded"])
def test_operands_lie_as_they_like(left: str, right: str) -> None:
    def laid(rows: int, columns: int, how: str) -> torch.Tensor:
        if how == "rows":
            return torch.randn(rows, columns)
        if how == "columns":
            return torch.randn(columns, rows).t()
        if how == "strided":
            return torch.randn(rows * 2, columns * 3)[::2, ::3]
        return torch.randn(1, columns).expand(rows, columns)

    check_mm(laid(37, 70, left), laid(70, 45, right))


def test_blocks_of_the_left_factor_and_of_the_sum() -> None:
    # 5,000 steps of 230 rows are more than one block holds; the results of the second are too many to keep unfinished.
    check_mm(torch.randn(230, 5000), torch.randn(5000, 40))
    check_mm(torch.randn(1100, 1300), torch.randn(1300, 1000))


@pytest.mark.parametrize("nbytes", [64, 100_032, 1 << 20, 1 << 23])
@pytest.mark.parametrize("shape", [(1024, 512, 512), (103, 700, 3000), (64, 300, 500), (256, 250, 4096)], ids=str)
def test_what_is_packed_goes_where_memory_is_spare(shape: tuple[int, int, int], nbytes: int) -> None:
    """Whatever was there; and nothing is written behind it."""
    m, n, k = shape
    spare = torch.full((nbytes + 128,), 0xFF, dtype=torch.uint8)  # NaN
    start = -spare.data_ptr() % 64
    for left in (torch.randn(k, m).t(), torch.randn(m, k)):
        right = torch.randn(k, n)
        (result,) = launch(call(aten.mm.default, (left, right)), spare[start : start + nbytes])
        close(result, left.double() @ right.double(), left.double().abs() @ right.double().abs())
    assert bool((spare[:start] == 0xFF).all())
    assert bool((spare[start + nbytes :] == 0xFF).all())


def test_many_batches() -> None:
    check_mm(torch.randn(9, 33, 20), torch.randn(9, 20, 17))
    check_mm(torch.randn(3, 20, 200).transpose(1, 2), torch.randn(1, 20, 31).expand(3, 20, 31))


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    a, b = torch.randn(150, 2000), torch.randn(2000, 70)
    batches = torch.randn(6, 64, 64)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append((check_mm(a, b), check_mm(batches, batches)))
    finally:
        torch.set_num_threads(before)
    for others in results[1:]:
        assert all(torch.equal(x, y) for x, y in zip(results[0], others, strict=True))


FEW_ROWS = [
    (1, 70, 4500),
    (1, 7, 69),
    (2, 17, 256),
    (3, 70, 129),
    (5, 1000, 777),
    (16, 35, 512),
    (33, 40, 600),
    (64, 66, 1100),
    (6, 19, 5000),
    (65, 64, 1100),
    (13, 300, 128),
    (14, 129, 4099),
    (16, 1024, 256),
    (17, 67, 261),
    (20, 66, 1101),
    (23, 515, 130),
    (24, 37, 513),
]
"""Rows, columns and steps of products whose factors lie along the sum: where nothing is packed, and just beyond."""


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("shape", FEW_ROWS, ids=str)
def test_few_rows(shape: tuple[int, int, int], dynamic: bool) -> None:
    m, n, k = shape
    check_mm(torch.randn(m, k), torch.randn(n, k).t(), dynamic=dynamic)
    check_mm(torch.randn(n, k), torch.randn(m, k).t(), dynamic=dynamic)


FEWER_ROWS_THAN_COLUMNS = [
    (25, 1500, 70),
    (47, 200, 256),
    (64, 129, 257),
    (65, 1100, 300),
    (130, 1000, 700),
    (40, 5000, 130),
    (150, 5000, 40),
]
"""Rows, columns and steps of products whose right factor lies along the sum: their transposes are computed; and just beyond."""


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("shape", FEWER_ROWS_THAN_COLUMNS, ids=str)
def test_fewer_rows_than_columns(shape: tuple[int, int, int], dynamic: bool) -> None:
    m, n, k = shape
    check_mm(torch.randn(m, k), torch.randn(n, k).t(), dynamic=dynamic)
    check_mm(torch.randn(k, m).t(), torch.randn(n, k).t(), dynamic=dynamic)


def test_fewer_rows_than_columns_that_are_apart() -> None:
    check_mm(torch.randn(60, 310)[:, 5:305], torch.randn(700, 309)[:, 3:303].t())
    check_mm(torch.randn(60, 310)[:, 5:305], torch.randn(700, 901)[::2, 3:303].t())


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.int64], ids=str)
def test_fewer_rows_than_columns_of_other_dtypes(dtype: torch.dtype) -> None:
    a, b = torch.randint(-9, 9, (70, 301)).to(dtype), torch.randint(-9, 9, (450, 301)).to(dtype).t()
    (result,) = launch(call(aten.mm.default, (a, b)))
    assert torch.equal(result, a @ b)


def test_fewer_rows_than_columns_do_not_depend_on_the_number_of_threads() -> None:
    a, b = torch.randn(70, 700), torch.randn(1331, 700).t()
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(check_mm(a, b))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_nan_stays_in_its_row_and_column_where_the_transpose_is_computed() -> None:
    a, b = torch.randn(50, 301), torch.randn(200, 301)
    a[49, 300], b[199, 0] = float("nan"), float("inf")
    (result,) = launch(call(aten.mm.default, (a, b.t())))
    assert torch.equal(result.isnan(), (a @ b.t()).isnan())
    assert torch.equal(result.isinf(), (a @ b.t()).isinf())


@pytest.mark.parametrize("rows", [3, 18])
def test_few_rows_of_many_batches(rows: int) -> None:
    check_mm(torch.randn(5, rows, 200), torch.randn(5, 33, 200).mT)


@pytest.mark.parametrize("rows", [3, 14])
def test_few_rows_of_rows_that_are_apart(rows: int) -> None:
    check_mm(torch.randn(rows, 500)[:, 7:307], torch.randn(40, 901)[::2, 3:303].t())


@pytest.mark.parametrize("rows", [7, 15, 22])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.int64], ids=str)
def test_few_rows_of_other_dtypes(dtype: torch.dtype, rows: int) -> None:
    a, b = torch.randint(-9, 9, (rows, 301)).to(dtype), torch.randint(-9, 9, (45, 301)).to(dtype).t()
    (result,) = launch(call(aten.mm.default, (a, b)))
    assert torch.equal(result, a @ b)


def test_nan_stays_in_its_row_and_column_where_rows_are_few() -> None:
    a, b = torch.randn(18, 301), torch.randn(45, 301)
    a[17, 300], b[44, 0] = float("nan"), float("inf")
    (result,) = launch(call(aten.mm.default, (a, b.t())))
    assert torch.equal(result.isnan(), (a @ b.t()).isnan())
    assert torch.equal(result.isinf(), (a @ b.t()).isinf())


@pytest.mark.parametrize("rows", [16, 64])
def test_products_with_weights_that_lie_along_the_sum_need_no_memory(rows: int) -> None:
    """Of their own, beside what a thread has on its stack."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        CppEmitter().release()
        check_mm(torch.randn(rows, 700), torch.randn(1024, 700).t())
        assert CppEmitter().release() == 0
    finally:
        torch.set_num_threads(before)


def test_few_rows_do_not_depend_on_the_number_of_threads() -> None:
    a, b = torch.randn(13, 5000), torch.randn(331, 5000).t()
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(check_mm(a, b))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_nan_stays_in_its_row_where_tiles_have_fewer() -> None:
    a, b = torch.randn(3, 301), torch.randn(21, 301)
    a[0, 300], b[0, 0] = float("nan"), float("inf")
    (result,) = launch(call(aten.mm.default, (a, b.t())))
    assert result[0].isnan().all()
    assert torch.equal(result[1:].isfinite(), torch.ones(2, 21, dtype=torch.bool).index_fill(1, torch.tensor([0]), False))


@pytest.mark.parametrize("instructions", ["x86-64-v3", "x86-64-v2"])
def test_other_instruction_sets(instructions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("for x86")
    flags = tuple(f"-march={instructions}" if f.startswith("-march=") else f for f in compiler.FLAGS)
    monkeypatch.setattr(compiler, "FLAGS", flags)
    compiler.toolchain.cache_clear()
    try:
        check_mm(torch.randn(15, 301), torch.randn(301, 33))
        check_mm(torch.randn(1, 301), torch.randn(33, 301).t())
        check_mm(torch.randn(7, 301), torch.randn(33, 301).t())
        check_mm(torch.randn(50, 301), torch.randn(333, 301).t())
        check_mm(torch.randn(18, 301), torch.randn(333, 301).t())
        test_few_rows_of_other_dtypes(torch.float64, 7)
        test_few_rows_of_other_dtypes(torch.int64, 15)
    finally:
        compiler.toolchain.cache_clear()


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64], ids=str)
def test_integers_wrap(dtype: torch.dtype) -> None:
    a, b = torch.randint(0, 100, (19, 70)).to(dtype), torch.randint(0, 100, (70, 33)).to(dtype)
    (result,) = launch(call(aten.mm.default, (a, b)))
    assert torch.equal(result, a @ b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves_are_rounded_once(dtype: torch.dtype) -> None:
    a, b = torch.randn(19, 300).to(dtype), torch.randn(300, 33).to(dtype)
    (result,) = launch(call(aten.mm.default, (a, b)))
    exact = a.double() @ b.double()
    ulp = torch.finfo(dtype).eps * exact.abs() / 2
    assert bool(((result.double() - exact).abs() <= ulp * 1.01 + 1e-4).all())


def test_double_is_summed_in_double() -> None:
    a, b = torch.randn(19, 70, dtype=torch.float64), torch.randn(70, 33, dtype=torch.float64)
    (result,) = launch(call(aten.mm.default, (a, b)))
    torch.testing.assert_close(result, a @ b, rtol=1e-13, atol=1e-13)


def test_infinities_and_nan_go_where_they_belong() -> None:
    a, b = torch.randn(15, 70), torch.randn(70, 33)
    a[3, 5], b[60, 20] = float("inf"), float("nan")
    (result,) = launch(call(aten.mm.default, (a, b)))
    expected = a @ b
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(result.isinf(), expected.isinf())


@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0, 1), (0.5, 2.0), (1, -1)])
def test_scaled_sums(beta: float, alpha: float) -> None:
    c, a, b = torch.randn(9, 1), torch.randn(9, 70), torch.randn(70, 5)
    given = torch.full_like(c, float("nan")) if beta == 0 else c
    (result,) = launch(call(aten.addmm.default, (given, a, b), {"beta": beta, "alpha": alpha}))
    close(result, beta * c.double() + alpha * (a.double() @ b.double()), c.abs() + 3 * (a.double().abs() @ b.double().abs()))


# Fused factors and epilogues


def fused(m: int, n: int, k: int) -> LoopKernel:
    """relu(exp(a[i, r]) * where(r < 30, b[r, j] + 1, 2)) summed over r, times the column's scale, and the same negated."""
    i, j, r = (ix.variable(name, ix.wrap(size)) for name, size in (("i", m), ("j", n), ("r", k)))
    body = (
        Load("a", "in0", i * k + r, F32),
        Compute("left", "exp", ("a",), F32),
        Index("at", r),
        Const("limit", 30, torch.int64),
        Compute("inside", "lt", ("at", "limit"), torch.bool),
        Const("one", 1.0, F32),
        Load("b", "in1", r * n + j, F32, "inside", "one"),
        Compute("right", "add", ("b", "one"), F32),
        Compute("product", "mul", ("left", "right"), F32),
    )
    nest = Nest(
        (Range("i", ix.wrap(m)), Range("j", ix.wrap(n))),
        (
            Reduce((Range("r", ix.wrap(k)),), body, (Accumulator(("total",), "sum", ("product",), F32),)),
            Load("scale", "in2", j, F32),
            Compute("scaled", "mul", ("total", "scale"), F32),
            Compute("negated", "neg", ("scaled",), F32),
            Store("out0", i * n + j, "scaled"),
            Store("out1", j * m + i, "negated"),
        ),
    )
    sizes = {"in0": m * k, "in1": k * n, "in2": n, "out0": m * n, "out1": m * n}
    params = tuple(Param(p, F32, ix.wrap(s), "in" if p.startswith("in") else "out") for p, s in sizes.items())
    return LoopKernel("kernel", params, (), (nest,))


@pytest.mark.parametrize(("m", "n", "k"), [(20, 35, 64), (5, 3, 40), (33, 17, 20)])
def test_producers_and_consumers_run_inside(m: int, n: int, k: int) -> None:
    kernel = fused(m, n, k)
    assert "contraction" in required_ops(kernel)
    text = CppEmitter().emit(kernel)
    assert "matrix_product(" in text
    (run,) = CppEmitter().compile([(kernel, text)])
    inputs = [torch.randn(m * k), torch.randn(k * n), torch.randn(n)]
    mine, defined = ([torch.full((m * n,), float("nan")) for _ in range(2)] for _ in range(2))
    run([*inputs, *mine], [])
    interpret(kernel, [*inputs, *defined], [])
    for x, y in zip(mine, defined, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-3)


# Convolutions

CONVOLUTIONS = {
    "same": ((2, 5, 13, 14), (7, 5, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    "strided": ((2, 3, 17, 16), (20, 3, 7, 7), [2, 2], [3, 3], [1, 1], False, [0, 0], 1),
    "pointwise, strided": ((2, 8, 9, 9), (4, 8, 1, 1), [2, 2], [0, 0], [1, 1], False, [0, 0], 1),
    "dilated, uneven": ((1, 4, 19, 18), (6, 4, 3, 2), [3, 2], [2, 1], [2, 3], False, [0, 0], 1),
    "groups": ((2, 8, 9, 9), (12, 2, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 4),
    "depthwise": ((2, 6, 9, 9), (6, 1, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 6),
    "one dimension": ((3, 4, 50), (5, 4, 7), [1], [3], [1], False, [0], 1),
    "three dimensions": ((1, 3, 6, 7, 8), (4, 3, 3, 2, 3), [1, 2, 1], [1, 0, 1], [1, 1, 1], False, [0, 0, 0], 1),
    "transposed": ((2, 6, 7, 7), (6, 5, 3, 3), [2, 2], [1, 1], [1, 1], True, [1, 1], 1),
    "transposed, groups, dilated": ((1, 6, 5, 6), (6, 2, 3, 3), [2, 3], [1, 0], [2, 1], True, [0, 1], 3),
    "transposed, stride larger than window": ((2, 3, 4, 5), (3, 4, 2, 1), [3, 3], [0, 0], [1, 1], True, [0, 0], 1),
}


def convolution(name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[Any]]:
    shape, weight, *rest = CONVOLUTIONS[name]
    channels = weight[1] * rest[-1] if rest[3] else weight[0]
    return torch.randn(shape), torch.randn(weight), torch.randn(channels), list(rest)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str, dynamic: bool) -> None:
    x, weight, bias, rest = convolution(name)
    (result,) = launch(call(aten.convolution.default, (x, weight, bias, *rest), dynamic=dynamic and not rest[3]))
    exact = aten.convolution.default(x.double(), weight.double(), bias.double(), *rest)
    close(result, exact, aten.convolution.default(x.double().abs(), weight.double().abs(), bias.double().abs(), *rest))


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_gradients(name: str) -> None:
    x, weight, bias, rest = convolution(name)
    gradient = torch.randn_like(aten.convolution.default(x, weight, bias, *rest))
    rest += [[True, True, True]]
    wide = [t.double() for t in (gradient, x, weight)]
    exact = aten.convolution_backward.default(*wide, [len(bias)], *rest)
    magnitude = aten.convolution_backward.default(*(t.abs() for t in wide), [len(bias)], *rest)
    results = launch(call(aten.convolution_backward.default, (gradient, x, weight, [len(bias)], *rest)))
    for mine, right, size in zip(results, exact, magnitude, strict=True):
        close(mine, right, size)


@pytest.mark.parametrize("mask", [[True, False, False], [False, True, False], [False, False, True]], ids=str)
def test_only_the_gradients_asked_for(mask: list[bool]) -> None:
    x, weight, bias, rest = convolution("strided")
    gradient = torch.randn_like(aten.convolution.default(x, weight, bias, *rest))
    one = call(aten.convolution_backward.default, (gradient, x, weight, [len(bias)], *rest, mask))
    (result,) = launch(one)
    expected = aten.convolution_backward.default(gradient, x, weight, [len(bias)], *rest, mask)
    torch.testing.assert_close(result, expected[mask.index(True)], rtol=1e-4, atol=1e-4)
    assert len(one.lowered.inputs) <= 2, "what a gradient does not need is not read"


def test_a_window_at_the_edge_reads_nothing_outside() -> None:
    # NaN just before and behind the image: a masked load must not let it through.
    memory = torch.full((3 * 64 + 128,), float("nan"))
    x = memory[64 : 64 + 192].view(1, 3, 8, 8)
    x.normal_()
    weight = torch.randn(4, 3, 3, 3)
    rest = [[1, 1], [1, 1], [1, 1], False, [0, 0], 1]
    (result,) = launch(call(aten.convolution.default, (x, weight, None, *rest)))
    torch.testing.assert_close(result, aten.convolution.default(x, weight, None, *rest), rtol=1e-4, atol=1e-4)


class Normalised(torch.nn.Module):
    """A convolution with what follows it in networks."""

    def __init__(self, kernel: int, groups: int) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(16, 16, kernel, padding=kernel // 2, groups=groups, bias=False)
        self.norm = torch.nn.BatchNorm2d(16)
        self.norm.running_mean.normal_()  # type: ignore[union-attr]
        self.norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]

    def forward(self, x: torch.Tensor, shortcut: torch.Tensor | None) -> torch.Tensor:
        y = self.norm(self.convolution(x))
        return torch.relu(y if shortcut is None else y + shortcut)


@pytest.mark.parametrize(("kernel", "groups"), [(3, 1), (1, 1), (3, 16), (3, 4)])
@pytest.mark.parametrize("added", [False, True])
def test_normalisation_and_activation_end_a_convolution(kernel: int, groups: int, added: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Normalised(kernel, groups).eval()
    x, shortcut = torch.randn(2, 16, 12, 12), torch.randn(2, 16, 12, 12) if added else None
    graphs: list[Any] = []
    with torch.no_grad(), recording(graphs.append):
        result = torch.compile(model, backend="cpp_cpu")(x, shortcut)
        torch.testing.assert_close(result, model(x, shortcut), rtol=1e-4, atol=1e-4)
    # With groups of several channels, the nest of a convolution is not one over its results: what follows is another kernel.
    assert [graph.launches for graph in graphs] == [2 if groups == 4 else 1]


def kernels_of(function: Any, *inputs: torch.Tensor) -> list[str]:
    """Names of the kernels that ``function`` runs as; its result is compared with eager's."""
    torch._dynamo.reset()
    with torch.no_grad():
        seen = explain(function, *inputs, backend="cpp_cpu", show=False)
        result = torch.compile(function, backend="cpp_cpu")(*inputs)
        torch.testing.assert_close(result, function(*inputs), rtol=1e-4, atol=1e-4)
    return [kernel.name for graph in seen.graphs for kernel in graph.kernels.kernels]


def test_what_stands_between_two_contractions_ends_the_first() -> None:
    x, first, second = torch.randn(2, 8, 9, 9), torch.randn(8, 8, 3, 3), torch.randn(8, 8, 3, 3)

    def convolutions(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return torch.conv2d(torch.relu(torch.conv2d(x, first)), second)

    assert kernels_of(convolutions, x, first, second) == ["k0_convolution_relu", "k1_convolution"]

    def products(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ first) @ second

    assert kernels_of(products, *(torch.randn(9, 9) for _ in range(3))) == ["k0_mm_relu", "k1_mm"]


def test_what_a_contraction_alone_reads_of_an_input_is_made_on_the_way() -> None:
    assert len(kernels_of(lambda x, w: torch.conv2d(torch.relu(x), w), torch.randn(2, 8, 9, 9), torch.randn(8, 8, 3, 3))) == 1


def test_a_transposed_convolution_is_ended_too() -> None:
    x, weight = torch.randn(2, 6, 7, 7), torch.randn(6, 5, 3, 3)
    assert len(kernels_of(lambda x, w: torch.relu(torch.conv_transpose2d(x, w)), x, weight)) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.uint8, torch.int64, torch.float64])
@pytest.mark.parametrize(("m", "k", "n"), [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)])
def test_products_with_nothing_in_them(m: int, k: int, n: int, dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    a, b = torch.ones(m, k, dtype=dtype), torch.ones(k, n, dtype=dtype)
    torch.testing.assert_close(torch.compile(torch.mm, backend="cpp_cpu")(a, b), torch.zeros(m, n, dtype=dtype))


# Factors that lie in several dimensions


def merged_heads(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """What ends an attention layer."""
    return x.transpose(1, 2).flatten(2) @ w


def in_windows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Tokens of windows of an image, as Swin has them."""
    batch, height, width, channels = x.shape
    x = x.view(batch, height // 4, 4, width // 4, 4, channels)
    return x.transpose(2, 3).reshape(-1, 4 * channels) @ w


SEVERAL: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "heads": (merged_heads, [(2, 6, 37, 32), (1, 3, 40, 64), (3, 2, 1, 16), (2, 4, 19, 8), (1, 1, 5, 64)]),
    "windows": (in_windows, [(2, 8, 8, 24), (1, 4, 12, 17), (3, 8, 4, 64)]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", SEVERAL)
def test_factors_that_lie_in_several_dimensions(name: str, dynamic: bool, dtype: torch.dtype) -> None:
    """Results and gradients, in which each of them is a left and a right factor, and a result."""
    function, shapes = SEVERAL[name]
    compiled = torch.compile(function, backend="cpp_cpu", dynamic=dynamic)
    for shape in shapes:
        x = torch.randn(shape, dtype=dtype, requires_grad=True)
        w = torch.randn(shape[1] * shape[3] if name == "heads" else 4 * shape[3], 23, dtype=dtype, requires_grad=True)
        exact = [t.detach().double().requires_grad_() for t in (x, w)]
        wanted = function(*exact)
        found = compiled(x, w)
        gradient = torch.randn(wanted.shape, dtype=dtype)
        results = [found, *torch.autograd.grad(found, (x, w), gradient)]
        expected = [wanted, *torch.autograd.grad(wanted, exact, gradient.double())]
        tolerance = {torch.float32: 2e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2}[dtype]
        for one, other in zip(results, expected, strict=True):
            largest = float(other.detach().abs().max())
            torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance * largest)
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_factors_in_several_dimensions_are_filled_in_stretches(dynamic: bool) -> None:
    """No element's place is divided for."""
    graphs: list[Any] = []
    with recording(graphs.append):
        torch.compile(merged_heads, backend="cpp_cpu", dynamic=dynamic)(torch.randn(4, 6, 197, 64), torch.randn(384, 48))
    torch._dynamo.reset()
    (kernel,) = (kernel for graph in graphs for kernel in graph.loops.values())
    text = CppEmitter().emit(kernel)
    assert "per_lane" not in text
    assert all("%" not in line and "/" not in line for line in text.splitlines() if "load(" in line)


# Products of bfloat16s in pairs of steps


@pytest.fixture(params=["by the processor", "by two products"])
def pairs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Has bfloat16s multiplied in pairs, also where the processor has no instruction for that."""
    monkeypatch.setattr(machine, "multiplies_pairs", lambda: True)
    if request.param == "by two products" and platform.machine() == "x86_64":
        monkeypatch.setattr(compiler, "FLAGS", (*compiler.FLAGS, "-mno-avx512bf16"))
    compiler.toolchain.cache_clear()
    yield
    compiler.toolchain.cache_clear()


def check_pairs(a: torch.Tensor, b: torch.Tensor, *, dynamic: bool = False) -> None:
    target = aten.mm.default if a.dim() == 2 else aten.bmm.default
    one = call(target, (a, b), dynamic=dynamic)
    assert "bfloat16_pair" in CppEmitter().emit(one.lowered.kernel)
    (result,) = launch(one)
    exact, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    assert bool(((result.double() - exact).abs() <= 2**-8 * exact.abs() + 2e-6 * magnitude).all())


def halves(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.bfloat16)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("shape", [s for s in SHAPES if 0 not in s and max(s[:2]) > 1 < s[2]], ids=str)
def test_pairs_of_steps(shape: tuple[int, int, int], dynamic: bool, pairs: None) -> None:
    m, n, k = shape
    check_pairs(halves(m, k), halves(k, n), dynamic=dynamic)
    check_pairs(halves(m, k), halves(n, k).t(), dynamic=dynamic)
    check_pairs(halves(k, m).t(), halves(k, n), dynamic=dynamic)


def test_pairs_of_factors_that_lie_as_they_like(pairs: None) -> None:
    check_pairs(halves(37, 140)[:, ::2], halves(70, 45))
    check_pairs(halves(37, 71)[:, 1:], halves(45, 71)[:, :-1].t())  # rows an odd number of elements apart
    check_pairs(halves(3, 20, 200).transpose(1, 2), halves(1, 20, 31).expand(3, 20, 31))
    check_pairs(halves(230, 5000), halves(5000, 40))
    check_pairs(halves(1100, 1301), halves(1301, 1000))


def test_pairs_of_computed_factors(pairs: None) -> None:
    """What comes before a product is rounded to its operand's dtype, and what comes after has all digits of the sum."""

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.addmm(b, torch.relu(x) * 0.5, w.t()))

    for rows, steps in ((33, 65), (70, 128), (1, 200)):
        x, w, b = halves(rows, steps), halves(40, steps), halves(40)
        expected = function(x.double(), w.double(), b.double())
        torch.testing.assert_close(
            torch.compile(function, backend="cpp_cpu", dynamic=False)(x, w, b).double(), expected, rtol=2**-7, atol=2**-7
        )


def test_special_values_in_pairs(pairs: None) -> None:
    """Each is where it is in products of one step at a time; the processor takes subnormal numbers for zero."""
    a = halves(20, 33)
    a[3, 4], a[5, 32], a[7, 0], a[9, 9] = math.inf, math.nan, -math.inf, 2.0**-130
    b = halves(33, 18)
    b[0, 2] = 0
    (result,) = launch(call(aten.mm.default, (a, b)))
    exact = a.double() @ b.double()
    torch.testing.assert_close(result.double(), exact, rtol=0.02, atol=0.02, equal_nan=True)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32], ids=str
)
def test_vectors_times_matrices_that_lie_across(dtype: torch.dtype) -> None:
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-13, torch.float16: 2e-3, torch.bfloat16: 1e-2}.get(dtype, 0)
    for *batch, steps, count in ((3, 3, 70), (37, 2049), (700, 33), (64, 3 * 2048 + 1)):
        matrix, vector = ((torch.randn(*batch, steps, n) * 8).to(dtype) for n in (count, 1))
        torch._dynamo.reset()
        found = torch.compile(lambda m, v: (m.mT @ v).squeeze(-1), backend="cpp_cpu", dynamic=False)(matrix, vector)
        wanted = (matrix.double().mT @ vector.double()).squeeze(-1)
        most = (matrix.double().abs().mT @ vector.double().abs()).squeeze(-1)
        assert ((found.double() - wanted).abs() <= tolerance * most).all()
