"""Lowering, without any target: every lowered prim interpreted against its row; views, broadcasting, promotion, symbols."""

from __future__ import annotations

import pytest
import torch

from tests.lowered import Call, call, chain, flat
from vendor_sdk.errors import LoweringError
from vendor_sdk.ir.index import ONE, variable, wrap
from vendor_sdk.ir.loop import Const, Load, Nest, Range, Store, walk
from vendor_sdk.ir.loop_interpreter import interpret
from vendor_sdk.lower import LOWERINGS, VIEWS, Layout, lower
from vendor_sdk.lower.simplify import live
from vendor_sdk.prims.bounds import violations
from vendor_sdk.prims.opset import OPSET
from vendor_sdk.prims.reference import reference
from vendor_sdk.prims.samples import Effort, SampleContext

aten = torch.ops.aten


def run(one: Call, seed: int = 1234) -> list[torch.Tensor]:
    outputs = one.outputs()
    buffers = [*map(flat, one.inputs), *(o.view(-1) for o in outputs)]
    interpret(one.lowered.kernel, buffers, one.symbols(seed))
    return outputs


INEXACT_IN_TORCH = {
    "fmod": "torch's float32 kernel gives NaN for some subnormal divisors",
    "remainder": "torch's float32 kernel gives NaN for some subnormal divisors",
    "special_bessel_y1": "torch's float32 kernel overflows for subnormal arguments",
}
"""Rows whose interpretation inherits an error of torch's own float32 operator."""


def _rows() -> list[str]:
    return sorted(name for name in OPSET if (name in LOWERINGS or name in VIEWS) and name not in INEXACT_IN_TORCH)


@pytest.mark.parametrize("name", _rows())
def test_the_interpreted_kernel_is_the_prim(name: str) -> None:
    row = OPSET[name]
    checked = 0
    for sample in row.samples(SampleContext.make(row.dtypes[0], Effort.QUICK)):
        try:
            one = call(row.target, sample.args, sample.kwargs)
        except LoweringError:
            continue
        verdict = violations(row.bound, row, sample, one.results(run(one)), reference(row, sample))
        assert verdict.ok, f"{sample.label}: {verdict.message}"
        checked += 1
    assert checked, "no sample of this prim was lowered"


X = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)

VIEW_CHAINS = {
    "permuted reshape": (lambda s, x: s(aten.view.default, s(aten.permute.default, x, [2, 0, 1]), [4, 6]), (4, 6)),
    "slice of a flip": (lambda s, x: s(aten.slice.Tensor, s(aten.flip.default, x, [2]), 2, 1, 4, 2), (2, 3, 2)),
    "diagonal of a select": (lambda s, x: s(aten.diagonal.default, s(aten.select.int, x, 0, -1), 1), (3,)),
    "expanded unsqueeze": (lambda s, x: s(aten.expand.default, s(aten.unsqueeze.default, x, 1), [2, 5, 3, 4]), (2, 5, 3, 4)),
    "windows": (lambda s, x: s(aten.unfold.default, x, 2, 2, 1), (2, 3, 3, 2)),
    "strided": (lambda s, x: s(aten.as_strided.default, x, [3, 2], [2, 7], 1), (3, 2)),
    "squeezed": (lambda s, x: s(aten.squeeze.dims, s(aten.slice.Tensor, x, 1, 1, 2), [1]), (2, 4)),
}


@pytest.mark.parametrize("name", VIEW_CHAINS)
def test_chains_of_views_fold_into_their_reader(name: str) -> None:
    views, shape = VIEW_CHAINS[name]
    one = chain(lambda s, x: s(aten.neg.default, views(s, x)), [X])
    (result,) = run(one)
    assert tuple(result.shape) == shape
    assert len(one.lowered.inputs) == 1, "only the materialised tensor is read"

    def eager(target: object, *args: object) -> torch.Tensor:
        return target(*args)  # type: ignore[operator, no-any-return]

    view = (
        views(lambda t, *a: t.reshape(*a) if t is aten.view.default else eager(t, *a), X)
        if name != "permuted reshape"
        else (X.permute(2, 0, 1).reshape(4, 6))
    )
    assert torch.equal(result, -view)


def test_a_root_read_twice_is_one_input() -> None:
    one = chain(lambda s, x: s(aten.mul.Tensor, x, s(aten.permute.default, x, [1, 0])), [torch.randn(3, 3)])
    assert len(one.lowered.inputs) == 1
    (result,) = run(one)
    x = one.inputs[0]
    assert torch.equal(result, x * x.t())


def test_contiguous_loops_merge_to_one() -> None:
    (nest,) = call(aten.exp.default, [X]).lowered.kernel.body
    assert [r.size.value for r in nest.ranges] == [24]
    (nest,) = call(aten.exp.default, [X.transpose(1, 2)]).lowered.kernel.body
    assert len(nest.ranges) == 3, "a transposed read keeps its loops"


def test_loops_that_never_run_are_gone() -> None:
    (nest,) = call(aten.sum.dim_IntList, [torch.ones(3, 0), [1]]).lowered.kernel.body
    assert [type(stmt) for stmt in nest.body] == [Const, Store]
    empty = torch.empty(0)
    assert call(aten.masked_scatter.default, [empty, empty.bool(), empty]).lowered.kernel.body == ()


def test_loops_around_what_never_runs_are_gone() -> None:
    i = variable("i", 16)
    length = (-i + 4) // 16 + 1
    store = Store("out0", i, "v0")
    inner = Nest((Range("j", length), Range("k", wrap(0))), (Const("v0", 1.0, torch.float32), store))
    kept = Nest((Range("i", wrap(16)),), (Const("v0", 1.0, torch.float32), store))
    assert live((Nest((Range("i", wrap(16)),), (inner,)), kept), set()) == (kept,)


@pytest.mark.parametrize(
    ("target", "args", "dtype"),
    [
        (aten.add.Tensor, (torch.arange(4), 2.5), torch.float32),
        (aten.add.Tensor, (torch.arange(4, dtype=torch.int32), torch.arange(4)), torch.int64),
        (aten.mul.Tensor, (torch.ones(4, dtype=torch.bfloat16), 0.1), torch.bfloat16),
        (aten.div.Tensor, (torch.arange(4), torch.full((4,), 3)), torch.float32),
        (aten.add.Tensor, (torch.tensor([True, False]), torch.tensor([True, True])), torch.bool),
        (aten.lt.Tensor, (torch.tensor([0.1], dtype=torch.bfloat16), torch.tensor(0.1)), torch.bool),
        (aten.eq.Tensor, (torch.tensor([2**53]), torch.tensor([2**53 + 1])), torch.bool),
        (aten.where.self, (torch.tensor([True, False]), torch.tensor([1, 2]), torch.tensor(0.5)), torch.float32),
        (aten.add.Tensor, (torch.tensor([127, 1], dtype=torch.int8), 1), torch.int8),
    ],
)
def test_promotion_follows_torch(target: object, args: tuple[object, ...], dtype: torch.dtype) -> None:
    (result,) = run(call(target, args))
    expected = target(*args)  # type: ignore[operator]
    assert result.dtype == dtype == expected.dtype
    assert torch.equal(result, expected)


DYNAMIC = {
    "broadcast add": (lambda s, x: s(aten.add.Tensor, x, 1.0), lambda x: x + 1),
    "sum of rows": (lambda s, x: s(aten.sum.dim_IntList, x, [1]), lambda x: x.sum(1)),
    "variance of columns": (lambda s, x: s(aten.var.correction, x, [0]), lambda x: x.var(0)),
    "flattened": (lambda s, x: s(aten.exp.default, s(aten.view.default, x, [-1])), lambda x: x.view(-1).exp()),
    "transposed tail": (
        lambda s, x: s(aten.neg.default, s(aten.slice.Tensor, s(aten.permute.default, x, [1, 0]), 0, 2, 2**63 - 1)),
        lambda x: -x.t()[2:],
    ),
    "running sum": (lambda s, x: s(aten.cumsum.default, x, 1), lambda x: x.cumsum(1)),
    "joined": (lambda s, x: s(aten.cat.default, [x, x], 1), lambda x: torch.cat([x, x], 1)),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_one_kernel_serves_all_sizes_of_a_symbol(name: str) -> None:
    build, eager = DYNAMIC[name]
    kernels = set()
    for shape in ((6, 8), (5, 9)):
        x = torch.randn(shape)
        one = chain(build, [x], dynamic=True)
        assert {s.role for s in one.lowered.kernel.symbols} == {"size"}
        (result,) = run(one)
        torch.testing.assert_close(result, eager(x))
        kernels.add(tuple(stmt for stmt in walk(one.lowered.kernel.body) if isinstance(stmt, Nest)))
    assert not any(r.size.value is not None for nest in kernels.pop() for r in nest.ranges if isinstance(r, Range))


def test_symbolic_reshapes_need_no_division() -> None:
    """Known ranges cancel: reading a flattened (n, m) tensor through (n, m, 1) again is affine."""
    one = chain(
        lambda s, x: s(
            aten.exp.default,
            s(aten.permute.default, s(aten.view.default, s(aten.unsqueeze.default, x, 2), x.meta["val"].shape), [1, 0]),
        ),
        [torch.randn(4, 6)],
        dynamic=True,
    )
    (load,) = [s for s in walk(one.lowered.kernel.body) if isinstance(s, Load)]
    assert "//" not in repr(load.index)
    assert "%" not in repr(load.index)


def test_random_numbers_do_not_depend_on_how_the_loop_is_cut() -> None:
    flat_draw, square = (run(call(aten.rand.default, [size]))[0] for size in ([64], [8, 8]))
    assert torch.equal(flat_draw.view(8, 8), square)
    again, other = (run(call(aten.rand.default, [[64]]), seed)[0] for seed in (1234, 1235))
    assert torch.equal(again, flat_draw)
    assert not torch.equal(other, flat_draw)


@pytest.mark.parametrize(
    ("target", "args", "reason"),
    [
        (aten.pow.Tensor_Scalar, (torch.arange(3), 2), "no prim"),
        (aten.index.Tensor, (torch.randn(3), [torch.tensor([True, False, True])]), "mask"),
        (aten.neg.default, (torch.zeros(2, dtype=torch.complex64),), "complex"),
    ],
)
def test_what_is_not_lowered_says_why(target: object, args: tuple[object, ...], reason: str) -> None:
    try:
        one = call(target, args)
    except (LoweringError, RuntimeError) as error:
        assert reason in str(error) or "nonzero" in str(error)  # noqa: PT017
    else:
        pytest.fail(f"lowered to {one.lowered.kernel}")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("count", "rows"), [((3, 4), 50), ((1, 1), 5), ((40,), 50)])
@pytest.mark.parametrize("scaled", [False, True])
def test_few_gradients_of_an_embedding_take_no_table_of_sums(
    count: tuple[int, ...], rows: int, dtype: torch.dtype, *, scaled: bool
) -> None:
    """Each position adds up all that name its row, in float32; many go through a table of float32."""
    positions = torch.randint(rows // 4, rows // 2, count)
    gradient = torch.randn(*count, 6).to(dtype)
    one = call(aten.embedding_dense_backward.default, (gradient, positions, rows, rows // 3, scaled))
    (found,) = run(one)
    wanted = aten.embedding_dense_backward.default(gradient.double(), positions, rows, rows // 3, scaled)
    torch.testing.assert_close(found.double(), wanted, rtol=torch.finfo(dtype).eps, atol=1e-6)
    few = positions.numel() ** 2 <= 4 * rows
    assert [p.name for p in one.lowered.kernel.scratch if p.dtype == torch.float32] == ([] if few else ["wide0"])


def test_histograms_of_whole_numbers() -> None:
    """As mixtures of experts count their tokens on a GPU; torch has none on a CPU."""
    graph = torch.fx.Graph()
    source = graph.placeholder("x")
    source.meta["val"] = torch.empty(200, dtype=torch.int32, device="meta")
    node = graph.call_function(aten.histc.default, (source, 8, 0, 7))
    node.meta["val"] = torch.empty(8, dtype=torch.int32, device="meta")
    kernel = lower(node, "k0", lambda _: Layout((ONE,))).kernel
    x, counts = torch.randint(-1, 10, (200,), dtype=torch.int32), torch.empty(8, dtype=torch.int32)
    interpret(kernel, [x, counts], [])
    torch.testing.assert_close(counts, torch.histc(x.float(), 8, 0, 7).to(torch.int32))
