"""The ONNX Runtime backend: every prim it claims meets its bound, every gap has its reason, and models run whole."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
from torch.nn import functional

import vendor_sdk
from vendor_sdk import (
    ALL,
    COMPOSITES,
    FLOATS,
    OPSET,
    Composite,
    Effort,
    Kind,
    NodeContext,
    OptionError,
    Prim,
    Route,
    Sample,
    SampleContext,
    TensorInfo,
)
from vendor_sdk.pipeline import recording

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from reference_backends.onnxruntime import control, in_torch, linalg, plugin, special  # noqa: E402
from reference_backends.onnxruntime.translate import CLAIMED, RULES, single, translate  # noqa: E402

NAME = "onnxruntime"
DTYPES = tuple(dtype for dtype in ALL if dtype != torch.bfloat16)

ABSENT = frozenset({"clone", "alias", "baddbmm"})
"""Prims that normalization removes or rewrites, so that only decompositions could bring them: their rules are run alone."""

NOT_IN_DOUBLE = (
    "acos acosh asin asinh atan atan2 atanh convolution convolution_backward cos erf erfc sin special_spherical_bessel_j0 tan"
)
DECLINED: dict[tuple[str, torch.dtype], tuple[str, ...]] = {
    **{(name, torch.float64): ("float64",) for name in NOT_IN_DOUBLE.split()},
    **{(name, torch.float64): ("exact to float32 only",) for name in special.RULES},
    ("linalg_matrix_exp", torch.float64): ("last digits of float64",),
    **{("pow", dtype): ("integer powers",) for dtype in (torch.int64, torch.int32, torch.uint8)},
    ("view.dtype", torch.float16): ("equal width", "int16"),
}
"""Prims and dtypes that are not claimed though the prim is, with words of the reasons."""

PARTLY: dict[str, tuple[str, ...]] = {
    "_to_copy": ("bfloat16",),
    "embedding_dense_backward": ("scaled by frequency",),
    "masked_scatter": ("empty source",),
    "view.dtype": ("equal width", "int8"),
    "segment_reduce": ("the first dimension",),
    "_segment_reduce_backward": ("the first dimension",),
    **dict.fromkeys(linalg.FUNCTIONS, ("too large a graph",)),
}
"""Prims that decline single samples of dtypes they have, with words of the reasons."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch._dynamo.reset()
    yield
    torch.set_num_threads(before)


def call_of(row: Prim | Composite, sample: Sample) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """The sample's call as a function of its tensors, with those tensors.

    The result of a view is read by a node that leaves every value as it is, so that the view stands inside a partition.
    """
    tensors: list[torch.Tensor] = []

    def outside(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return len(tensors) - 1, "tensor"
        return [outside(item) for item in value] if isinstance(value, list | tuple) else (value, "value")

    def inside(entry: Any, given: tuple[torch.Tensor, ...]) -> Any:
        if isinstance(entry, list):
            return [inside(item, given) for item in entry]
        value, kind = entry
        return given[value] if kind == "tensor" else value

    args = [outside(value) for value in sample.args]
    kwargs = {name: outside(value) for name, value in sample.kwargs.items()}

    target: Any = row.target if isinstance(row, Prim) else next(iter(row.targets))

    def call(*given: torch.Tensor) -> Any:
        result = target(*(inside(a, given) for a in args), **{name: inside(v, given) for name, v in kwargs.items()})
        return torch.ops.aten.maximum.default(result, result) if isinstance(row, Prim) and row.is_view else result

    return call, tensors


def calls_of(row: Prim, batch: Sequence[Sample]) -> tuple[Callable[..., Any], list[torch.Tensor], list[int]]:
    """The calls of samples as one function of the tensors of all, those tensors, and each call's number of results.

    Tracing the function is what sets these numbers.
    """
    calls = [call_of(row, sample) for sample in batch]
    counts: list[int] = []

    def function(*given: torch.Tensor) -> list[Any]:
        rest = iter(given)
        found = [call(*itertools.islice(rest, len(tensors))) for call, tensors in calls]
        results = [list(each) if isinstance(each, list | tuple) else [each] for each in found]
        counts[:] = map(len, results)
        return list(itertools.chain.from_iterable(results))

    return function, [tensor for _, tensors in calls for tensor in tensors], counts


RARE = frozenset({*special.RULES, *in_torch.FUNCTIONS})
"""Prims with long graphs, tested with fewer dtypes and samples; the conformance suite has them all."""


def dtypes_of(row: Prim) -> list[torch.dtype]:
    known = [dtype for dtype in row.dtypes if dtype in DTYPES]
    return [dtype for dtype in known if dtype.is_floating_point or dtype == torch.int64] if row.name in RARE else known


def samples(row: Prim) -> Iterator[tuple[torch.dtype, Sample]]:
    """The quick samples, and for one dtype the standard ones too: kernels of ONNX Runtime have trapped on empty tensors."""
    for dtype in dtypes_of(row):
        effort = Effort.STANDARD if dtype == row.dtypes[0] and row.name not in RARE else Effort.QUICK
        for sample in row.samples(SampleContext.make(dtype, effort)):
            yield dtype, sample


def judge(row: Prim | Composite, sample: Sample, results: list[Any]) -> None:
    expected = vendor_sdk.reference(row, sample)
    verdict = vendor_sdk.violations(row.bound, row, sample, results[0] if len(expected) == 1 else tuple(results), expected)
    assert verdict.ok, f"{row.name} [{sample.label}]: {verdict.message}"


@pytest.mark.parametrize("name", sorted(CLAIMED - {"rms_norm"}))
def test_claimed_composites_meet_their_bounds(name: str) -> None:
    row = COMPOSITES[name]
    for dtype in (dtype for dtype in FLOATS if dtype in DTYPES):
        for sample in row.samples(SampleContext.make(dtype, Effort.STANDARD)):
            function, tensors = call_of(row, sample)
            compiled = vendor_sdk.compile_graph(vendor_sdk.trace(function, tensors, composites=CLAIMED), backend=NAME)
            placement = next(each.placement for each in compiled.placements if each.prim == name)
            if placement.kind is Kind.NATIVE:
                judge(row, sample, compiled(*tensors))
            else:
                assert "float64" in placement.reason or "left to the decomposition" in placement.reason


def attend(q: torch.Tensor, k: torch.Tensor, **keywords: Any) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, k, k, enable_gqa=True, **keywords)


MASK = torch.tensor([[True] * 11, [False] * 11, [False] * 10 + [True]]).repeat(3, 1)
WHOLE: dict[str, tuple[str, Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "rms_norm": ("rms_norm", lambda x, w: functional.rms_norm(x, (16,), w, 1e-6), ((3, 5, 16), (16,))),
    "rms_norm, no weight": ("rms_norm", lambda x: functional.rms_norm(x, (5, 16)), ((3, 5, 16),)),
    "attention": ("scaled_dot_product_attention", attend, ((2, 4, 9, 8), (2, 2, 11, 8))),
    "attention, causal": (
        "scaled_dot_product_attention",
        lambda q, k: attend(q, k, is_causal=True, scale=0.3),
        ((2, 4, 9, 8), (2, 4, 9, 8)),
    ),
    "attention, rows with no key": (
        "scaled_dot_product_attention",
        lambda q, k: attend(q, k, attn_mask=MASK),
        ((2, 4, 9, 8), (2, 2, 11, 8)),
    ),
    "group_norm": ("group_norm", lambda x, w: functional.group_norm(x, 3, w), ((2, 6, 4, 5), (6,))),
    "layer_norm": ("layer_norm", lambda x, w: functional.layer_norm(x, (16,), w), ((3, 5, 16), (16,))),
}


@pytest.mark.parametrize("name", WHOLE)
def test_composites_run_whole_in_inference_and_have_gradients(name: str) -> None:
    composite, function, shapes = WHOLE[name]
    torch.manual_seed(0)
    inputs = [torch.randn(shape) for shape in shapes]
    graphs: list[Any] = []
    with recording(graphs.append):
        found = torch.compile(function, backend=NAME)(*inputs)
    torch.testing.assert_close(found, function(*inputs), rtol=1e-5, atol=1e-5)
    assert composite in {each.prim for each in graphs[0].placements if each.placement.kind is Kind.NATIVE}
    ours, theirs = ([x.clone().requires_grad_() for x in inputs] for _ in range(2))
    torch._dynamo.reset()
    for call, given in ((torch.compile(function, backend=NAME), ours), (function, theirs)):
        torch.autograd.backward(call(*given).square().sum())
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", sorted(set(RULES) - ABSENT - CLAIMED - set(control.RULES)))
def test_claimed_prims_meet_their_bounds(name: str) -> None:
    """The samples of a dtype are calls of one graph; each is a graph of its own where any of them is declined."""
    row = OPSET[name]
    native: set[torch.dtype] = set()
    for dtype, group in itertools.groupby(samples(row), operator.itemgetter(0)):
        cases = [sample for _, sample in group]
        alone = name in PARTLY or (name, dtype) in DECLINED
        batches = [[sample] for sample in cases] if alone else [cases]
        while batches:
            batch = batches.pop(0)
            function, tensors, counts = calls_of(row, batch)
            before = [tensor.clone() for tensor in tensors]
            compiled = vendor_sdk.compile_graph(vendor_sdk.trace(function, tensors), backend=NAME)
            placements = [each.placement for each in compiled.placements if each.prim == name]
            if not placements:  # nothing to do for these samples: a conversion to the same dtype
                continue
            if len(batch) > 1 and any(each.kind is not Kind.NATIVE for each in placements):
                batches = [[sample] for sample in batch]
                continue
            placement = placements[0]
            if placement.kind is not Kind.NATIVE:
                wanted = DECLINED.get((name, dtype)) or PARTLY.get(name, ("no reason is good enough",))
                label = batch[0].label
                assert any(each in placement.reason for each in wanted), f"{name}[{dtype}] on sample {label!r}: {placement}"
                continue
            assert (name, dtype) not in DECLINED, f"{name}[{dtype}] is listed as declined and runs"
            assert {each.route for each in placements} == {Route.GRAPH}
            native.add(dtype)
            results = iter(compiled(*tensors))
            for sample, count in zip(batch, counts, strict=True):
                judge(row, sample, list(itertools.islice(results, count)))
            assert next(results, None) is None
            for tensor, copied in zip(tensors, before, strict=True):
                torch.testing.assert_close(tensor, copied, rtol=0, atol=0, equal_nan=True)
    assert native == {dtype for dtype in dtypes_of(row) if (name, dtype) not in DECLINED}


@pytest.mark.parametrize("name", sorted(ABSENT))
def test_rules_that_normalization_keeps_from_graphs(name: str) -> None:
    row = OPSET[name]
    for _, sample in samples(row):
        outlines = vendor_sdk.outlined(row.target, sample)
        tensors: list[torch.Tensor] = []

        def info(value: Any, tensors: list[torch.Tensor] = tensors) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            tensors.append(value)
            return TensorInfo(tuple(value.shape), value.dtype)

        args, kwargs = tuple(map(info, sample.args)), {key: info(value) for key, value in sample.kwargs.items()}
        result = (TensorInfo(tuple(outlines.shape), outlines.dtype),)
        model = single(NodeContext(prim=name, args=args, kwargs=kwargs, outputs=result, backward=False))
        onnx.checker.check_model(model)
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        feeds = {each.name: value.contiguous().numpy() for each, value in zip(session.get_inputs(), tensors, strict=True)}
        judge(row, sample, [torch.from_numpy(value) for value in session.run(None, feeds)])


def test_at_least_200_prims_have_a_rule() -> None:
    assert len(set(RULES) & set(OPSET)) >= 200
    assert set(RULES) <= {*OPSET, *COMPOSITES}


def test_a_model_is_one_partition_a_graph_and_none_of_it_runs_on_the_host() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.LayerNorm(9), nn.Linear(9, 2))
    twin = copy.deepcopy(model)
    x = torch.randn(5, 6)
    graphs: list[Any] = []
    with recording(graphs.append):
        out = torch.compile(model, backend=NAME)(x)
        out.square().sum().backward()
    twin(x).square().sum().backward()
    assert len(graphs) == 2  # forward and backward
    for graph in graphs:
        assert {each.placement.kind for each in graph.placements} == {Kind.NATIVE}
        assert sum(node.target is not operator.getitem for node in graph.graph.calls()) == 1
    torch.testing.assert_close(out, twin(x))
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_gpt2_forward_and_backward_are_as_accurate_as_eager() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=1, n_embd=48, n_head=3, vocab_size=101, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    model = transformers.GPT2LMHeadModel(config)
    ids = torch.randint(0, 101, (2, 9))

    def run(module: nn.Module, call: Callable[..., Any]) -> list[torch.Tensor]:
        out = call(input_ids=ids, labels=ids)
        out.loss.backward()
        return [out.logits.detach(), *(p.grad for p in module.parameters() if p.grad is not None)]

    def error(values: list[torch.Tensor]) -> float:
        return max(
            ((value.double() - want).norm() / want.norm().clamp_min(1e-30)).item()
            for value, want in zip(values, exact, strict=True)
        )

    eager, wide, ours = copy.deepcopy(model), copy.deepcopy(model).double(), copy.deepcopy(model)
    exact = run(wide, wide)
    graphs: list[Any] = []
    with recording(graphs.append):
        found = run(ours, torch.compile(ours, backend=NAME))
    assert error(found) <= 2 * error(run(eager, eager))
    host = [each for graph in graphs for each in graph.placements if each.placement.kind is Kind.HOST]
    assert not host


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(1 << 24,), (4096, 4096), (4095, 4097), (256, 1, 255, 257)], ids=str)
def test_sums_of_millions_of_terms_keep_their_digits(shape: tuple[int, ...], dynamic: bool) -> None:
    """One node adds them in a few running sums, which are off by more."""
    if dynamic and len(shape) == 1:
        pytest.skip("where the only size changes nothing says how to divide it")

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(), x.mean(tuple(range(x.ndim)), keepdim=True), x.var()

    torch.compiler.reset()
    x = torch.rand(shape, generator=torch.Generator().manual_seed(3)) + 0.5
    results = torch.compile(function, backend=NAME, dynamic=dynamic)(x)
    for result, exact in zip(results, function(x.double()), strict=True):
        assert result.shape == exact.shape
        torch.testing.assert_close(result.double(), exact, rtol=2e-6, atol=0)


@pytest.mark.parametrize("nodes", [1, 40], ids=["small", "stored"])
def test_factors_of_float64_products_keep_their_digits(nodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime makes factors of products attributes of float32; of sessions that come back from disk, too."""
    monkeypatch.setenv("VENDOR_SDK_CACHE_DIR", str(tmp_path))

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = (x @ y) / 3 + (x * 0.1) @ y
        for _ in range(nodes):
            product = (product @ y) * 0.7
        return product, torch.addmm(x, x, y, alpha=1 / 3, beta=0.1)

    x, y = (torch.rand(5, 5, dtype=torch.float64) / 5 + torch.eye(5, dtype=torch.float64) for _ in range(2))
    for _ in range(2):
        torch.compiler.reset()
        for result, right in zip(torch.compile(function, backend=NAME)(x, y), function(x, y), strict=True):
            torch.testing.assert_close(result, right, rtol=1e-13, atol=0)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_sums_and_products_of_integers_wrap_around(dtype: torch.dtype, dynamic: bool) -> None:
    """ONNX Runtime's own nodes add and multiply integers in float64, which keeps 53 bits of them."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sums = x.sum(), x.sum(0), x.sum(1), x.sum(-1, keepdim=True), x.sum((0, 2)), x.sum((0, 2), dtype=torch.int32)
        products = x.prod(), x.prod(0), x.prod(1, keepdim=True), x.prod(-1, dtype=torch.int32)
        return *sums, *products

    torch.compiler.reset()
    limits, generator = torch.iinfo(dtype), torch.Generator().manual_seed(5)
    compiled = torch.compile(function, backend=NAME, dynamic=dynamic)
    for shape in ((9, 8, 7), (2, 33, 5)):
        x = torch.randint(limits.min, limits.max, shape, dtype=dtype, generator=generator) | 1
        for result, right in zip(compiled(x), function(x), strict=True):
            torch.testing.assert_close(result, right, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1)], ids=str)
def test_sums_and_products_of_no_integers(shape: tuple[int, int]) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(), x.sum(0), x.sum(1, keepdim=True), x.prod(0, keepdim=True), x.prod(1), x.prod()

    torch.compiler.reset()
    x = torch.full(shape, 2**62 + 1)
    for result, right in zip(torch.compile(function, backend=NAME)(x), function(x), strict=True):
        torch.testing.assert_close(result, right, rtol=0, atol=0)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool])
def test_sums_by_index_count_every_row(dtype: torch.dtype, dynamic: bool) -> None:
    def f(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x.index_put((i,), v[:, :1, :1], accumulate=True),
            x.index_put((i, j), v[:, 0], accumulate=True),
            x.index_put((i.unsqueeze(1), j, i), v[0, 0, 0], accumulate=True),
            torch.ops.aten.index_put(x, [None, j], v[:1], True),
            torch.ops.aten.index_put(x, [i, None, j], v[:, 0, :6], True),
        )

    torch._dynamo.reset()
    graphs: list[Any] = []
    compiled = torch.compile(f, backend=NAME, dynamic=dynamic)
    with recording(graphs.append):
        for rows in (40, 17):
            x = torch.randint(-4, 4, (5, 6, 7)).to(dtype)
            i, j = torch.randint(-5, 5, (rows,)), torch.randint(-6, 6, (rows,))
            v = torch.randint(0, 3, (rows, rows, 7)).to(dtype)
            for got, want in zip(compiled(x, i, j, v), f(x, i, j, v), strict=True):
                torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert {each.placement.kind for graph in graphs for each in graph.placements if each.prim == "index_put"} == {Kind.NATIVE}
    with pytest.raises(Exception, match=r"(?i)index|bound"):
        compiled(x, i, j + 6, v)


def test_sums_by_index_are_whole_with_several_threads() -> None:
    """ONNX Runtime's ScatterND loses some where threads add to one row."""

    def f(g: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.ops.aten.embedding_dense_backward(g, i, 5, -1, False), x.index_put((i,), g, accumulate=True)

    i, g = torch.randint(0, 5, (4000,)), torch.ones(4000, 256)
    compiled = torch.compile(f, backend=NAME)
    wanted = torch.bincount(i, minlength=5).float()[:, None].expand(5, 256)
    for _ in range(30):
        for found in compiled(g, torch.zeros(5, 256), i):
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def _grouped(x: torch.Tensor, mat2: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.ops.vendor_sdk.grouped_mm(x, mat2, offs)
    return result


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("ends", [(3, 3, 9), (0, 0, 0), (9, 9, 9), (2, 4, 7)])
def test_groups_of_rows_are_multiplied_with_their_own_matrix(ends: tuple[int, ...], dtype: torch.dtype) -> None:
    """As they come and turned; none of the products has rows of another group."""
    x, y, w = torch.randn(9, 5).to(dtype), torch.randn(9, 4).to(dtype), torch.randn(3, 4, 5).to(dtype)
    offs = torch.tensor(ends)
    for function, inputs in (
        (_grouped, (x, w.mT.contiguous(), offs)),
        (lambda x, w, offs: _grouped(x, w.mT, offs), (x, w, offs)),
        (lambda x, y, offs: _grouped(x.t(), y, offs), (x, y, offs)),
        (_grouped, (x.t().contiguous(), y, offs)),
    ):
        graph = vendor_sdk.trace(function, inputs, composites=CLAIMED)
        run = vendor_sdk.compile_graph(graph, backend=NAME)
        assert {each.placement.kind for each in run.placements if each.prim == "grouped_mm"} == {Kind.NATIVE}
        tolerance = {} if dtype != torch.float32 else {"rtol": 1e-5, "atol": 1e-5}
        torch.testing.assert_close(run(*inputs)[0], function(*inputs), **tolerance)
        kinds = Counter(node.op_type for node in translate(graph).graph.node)
        assert (kinds["MatMul"], kinds["Where"]) == (3, 0)


@pytest.mark.parametrize("ends", [(4, 3, 9), (4, 9, 10), (-1, 4, 9)])
def test_offsets_that_are_none_are_an_index_error(ends: tuple[int, ...]) -> None:
    x, w, offs = torch.randn(9, 4), torch.randn(3, 4, 5), torch.tensor(ends)
    for inputs in ((x, w, offs), (x.t().contiguous(), x, offs)):
        run = vendor_sdk.compile_graph(vendor_sdk.trace(_grouped, inputs, composites=CLAIMED), backend=NAME)
        with pytest.raises(IndexError, match="split"):
            run(*inputs)


def test_groups_of_any_number_of_rows_share_one_session() -> None:
    w = torch.randn(3, 4, 5)
    graphs: list[Any] = []
    with recording(graphs.append):
        call = torch.compile(_grouped, backend=NAME, dynamic=True)
        for rows in (9, 7, 12):
            x, offs = torch.randn(rows, 4), torch.tensor([2, 5, rows])
            torch.testing.assert_close(call(x, w, offs), _grouped(x, w, offs))
    assert len(graphs) == 1


def test_dynamic_sizes_share_one_session() -> None:
    def f(x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = x.shape[0]
        y = torch.softmax(x @ w, -1) + torch.arange(rows, device=x.device).unsqueeze(1)
        z = torch.cat([y, x.new_full((rows, 2), 3.0)], 1)
        return (
            z.mean(0),
            z.var(0),
            z.reshape(rows * 2, -1).cumsum(0),
            z[ids],
            z[1:, ::2].flip(0).amax(0),
            torch.gather(z, 1, ids.unsqueeze(1)[:rows] % 2),
            nn.functional.pad(z, (1, 2)).sort(0)[0],
            z.expand(3, -1, -1).sum((0, 2)),
            torch.zeros_like(z).index_put((ids,), z[ids]),
            z.argmax(),
            z * rows,
        )

    graphs: list[Any] = []
    compiled = torch.compile(f, backend=NAME, dynamic=True)
    w = torch.randn(6, 4)
    with recording(graphs.append):
        for rows in (5, 3, 16):
            x, ids = torch.randn(rows, 6), torch.arange(rows).flip(0)
            torch.testing.assert_close(compiled(x, w, ids), f(x, w, ids))
    assert len(graphs) == 1
    kinds = {each.prim: each.placement for each in graphs[0].placements}
    assert all(placement.kind in (Kind.NATIVE, Kind.WRAPPER) for placement in kinds.values()), kinds


def branches(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = x * 2
    return torch.cond(z.sum() > 0, lambda z, y: (z + y, z.softmax(0)), lambda z, y: (z - y, functional.gelu(z)), (z, y))


def repeated(x: torch.Tensor, y: torch.Tensor) -> Any:
    def step(count: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return count + 1, x * 1.5 + y

    count, value = while_loop(  # type: ignore[no-untyped-call]
        lambda count, x: count < 5, step, (torch.zeros((), dtype=torch.int64), x)
    )
    return count, value - 1


@pytest.mark.parametrize("function", [branches, repeated])
def test_control_flow_is_part_of_a_partition(function: Callable[..., Any]) -> None:
    compiled = torch.compile(function, backend=NAME)
    graphs: list[Any] = []
    with recording(graphs.append):
        for x in (torch.rand(5), -torch.rand(5)):
            y = torch.randn(5)
            for found, wanted in zip(compiled(x, y), function(x, y), strict=True):
                torch.testing.assert_close(found, wanted)
    (graph,) = graphs
    assert {each.placement.kind for each in graph.placements} == {Kind.NATIVE}
    assert sum(node.target is not operator.getitem for node in graph.graph.calls()) == 1


def test_what_a_branch_has_and_onnx_does_not_goes_to_the_host() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.cond(x.sum() > 0, lambda x: x.to(torch.bfloat16).neg().float(), lambda x: x * 2, (x,))
        return result

    graphs: list[Any] = []
    x = torch.rand(5)
    with recording(graphs.append):
        torch.testing.assert_close(torch.compile(f, backend=NAME)(x), f(x))
    placement = next(each.placement for each in graphs[0].placements if each.prim == "cond")
    assert placement.kind is Kind.HOST
    assert "implementation for Neg" in placement.reason


def test_sizes_that_depend_on_data_run_in_partitions() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.nonzero(x), torch.masked_select(x, x > 0), torch.bincount(x.abs())

    x = torch.tensor([3, 0, -2, 7, 0])
    compiled = vendor_sdk.compile_graph(vendor_sdk.trace(f, [x]), backend=NAME)
    for values in (x, torch.tensor([0, 0, -1, 0, 0]), torch.zeros(5, dtype=torch.int64)):
        for found, wanted in zip(compiled(values), f(values), strict=True):
            torch.testing.assert_close(found, wanted)
    assert {each.placement.kind for each in compiled.placements} == {Kind.NATIVE}


def test_a_polynomial_of_a_table_may_have_a_lower_degree() -> None:
    """Of each length as many, though a last coefficient is zero: which rounding decides, on some processors."""
    table = special._Table(lambda x: np.maximum(x, 0.0), -1.0, 1.0, pieces=2)
    assert table.coefficients.shape == (table.degree + 1, 2)
    assert not table.coefficients[:, 0].any()
    np.testing.assert_allclose(table.coefficients[:2, 1], 0.5)


@pytest.mark.parametrize("name", ["lgamma", "digamma", "erfinv", "special_bessel_j0", "special_modified_bessel_k0"])
def test_special_functions_far_from_the_samples(name: str) -> None:
    row = OPSET[name]
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4001, generator=generator) * torch.exp2(torch.randint(-120, 60, (4001,), generator=generator).float())
    x = x[(x == x.round()).logical_not() | (x > 0)]  # whole numbers below one are poles, or next to them in float32
    sample = Sample((x,))
    judge(row, sample, vendor_sdk.compile_graph(vendor_sdk.trace(row.target, [x]), backend=NAME)(x))


def test_the_logarithm_of_gamma_is_zero_at_its_roots() -> None:
    found = torch.compile(torch.lgamma, backend=NAME)(torch.tensor([1.0, 2.0]))
    assert found.tolist() == [0, 0]


@pytest.mark.parametrize("function", [torch.log2, torch.log10])
def test_logarithms_to_other_bases_are_within_three_units_everywhere(function: Callable[..., torch.Tensor]) -> None:
    x = torch.arange(0.75, 0.8, 2.0**-24)
    found = torch.compile(function, backend="onnxruntime")(x).double()
    wanted = function(x.double())
    units = (found - wanted).abs() / torch.exp2(torch.floor(torch.log2(wanted.abs())) - 23)
    assert float(units.max()) <= 3


def test_views_of_one_value_keep_sharing_its_memory_as_outputs() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return y.t(), y, y.view(-1)[2:]

    x = torch.randn(3, 4)
    first, second, third = torch.compile(f, backend=NAME)(x)
    second.zero_()
    assert not first.any()
    assert not third.any()


def test_a_number_that_changes_is_an_input() -> None:
    graphs: list[Any] = []
    compiled = torch.compile(lambda x, s: x * s + s, backend=NAME)
    x = torch.randn(5)
    with recording(graphs.append):
        for scale in (0.5, 0.25, 3.0, -1.0):
            torch.testing.assert_close(compiled(x, scale), x * scale + scale)
    assert len(graphs) == 2  # Dynamo takes the first value for a constant


@pytest.mark.parametrize("function", [torch.floor_divide, torch.remainder, torch.fmod])
def test_division_by_integer_zero_is_an_error_that_names_the_prim(function: Callable[..., torch.Tensor]) -> None:
    x, y = torch.tensor([4, 5]), torch.tensor([2, 0])
    compiled = vendor_sdk.compile_graph(vendor_sdk.trace(function, [x, y]), backend=NAME)
    with pytest.raises(vendor_sdk.KernelError, match="zero"):
        compiled(x, y)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: torch.nn.functional.embedding(i, x) * 2,
        lambda x, i: x[i, i % 3],
        lambda x, i: x.gather(0, i[:, None]),
        lambda x, i: x.scatter(0, i[:, None], 2.0),
        lambda x, i: x.index_put((i,), torch.ones(2, 3)),
    ],
)
def test_an_index_out_of_range_is_an_index_error(function: Callable[..., torch.Tensor]) -> None:
    x, at = torch.randn(10, 3), torch.tensor([1, 99])
    with pytest.raises(IndexError, match="index out of range: ") as caught, torch.no_grad():
        torch.compile(function, backend=NAME)(x, at)
    (note,) = caught.value.__notes__
    assert note.startswith("raised by the partition of ")
    assert "test_onnxruntime.py" in note
    torch.testing.assert_close(torch.compile(function, backend=NAME)(x, at % 10), function(x, at % 10))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_smallest_integer_divided_by_minus_one_does_not_trap(dtype: torch.dtype) -> None:
    low = torch.iinfo(dtype).min
    x, y = torch.tensor([low, 7, -7], dtype=dtype), torch.tensor([-1, -1, -2], dtype=dtype)

    def f(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.div(a, b, rounding_mode="floor"), torch.fmod(a, b), torch.remainder(a, b)

    quotient, *remainders = vendor_sdk.compile_graph(vendor_sdk.trace(f, [x, y]), backend=NAME)(x, y)
    assert quotient.tolist() == [low, -7, 3]
    assert [r.tolist() for r in remainders] == [[0, 0, -1], [0, 0, -1]]


def test_remainders_have_all_64_bits() -> None:
    """ONNX Runtime computes Mod with the sign of the dividend in float64, of integers too."""
    x = torch.tensor([2**53 + 3, 2**62 - 1, -(2**60) - 7, 12])
    y = torch.tensor([5, 2**40 + 1, 2**53 + 1, -7])

    def f(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.fmod(a, b), torch.remainder(a, b), torch.div(a, b, rounding_mode="floor"), torch.gcd(a, b * 3)

    found = vendor_sdk.compile_graph(vendor_sdk.trace(f, [x, y]), backend=NAME)(x, y)
    assert [each.tolist() for each in found] == [each.tolist() for each in f(x, y)]


def test_an_unknown_provider_is_refused_with_those_there_are() -> None:
    graph = vendor_sdk.trace(torch.neg, [torch.ones(3)])
    with pytest.raises(OptionError, match="CPUExecutionProvider"):
        vendor_sdk.compile_graph(graph, backend=NAME, options={"provider": "CpuExecutionProvider"})


def test_missing_packages_are_named_with_what_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name.startswith("onnx") else find(name))
    needs = plugin.backend().requires()
    assert "onnx and onnxruntime" in needs
    assert "pip install 'vendor-sdk[onnx]'" in needs


def test_bfloat16_runs_on_the_host_with_that_reason() -> None:
    x = torch.randn(4, dtype=torch.bfloat16)
    compiled = vendor_sdk.compile_graph(vendor_sdk.trace(torch.neg, [x]), backend=NAME)
    (placement,) = (each.placement for each in compiled.placements)
    assert placement.kind is Kind.HOST
    assert placement.reason == "CPUExecutionProvider: Could not find an implementation for Neg(13) (of bfloat16)"
    torch.testing.assert_close(compiled(x), [-x])


def test_symbols_become_dimension_parameters() -> None:
    symbol = torch.export.Dim("rows")
    program = torch.export.export(_Neg(), (torch.randn(3, 4),), dynamic_shapes={"x": {0: symbol}})
    size = next(node.meta["val"] for node in program.graph.nodes if node.op == "placeholder").shape[0]
    info = TensorInfo((size, 4), torch.float32)
    model = single(NodeContext(prim="neg", args=(info,), kwargs={}, outputs=(info,), backward=False))
    (declared,) = model.graph.input
    first, second = declared.type.tensor_type.shape.dim
    assert first.dim_param
    assert second.dim_value == 4


class _Neg(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -x


@pytest.mark.needs("cpp_cpu")
def test_random_numbers_are_those_of_the_loops() -> None:
    """The same seeds, drawn from torch's generator, give what every other backend of the SDK draws."""

    def draw(chances: torch.Tensor) -> tuple[torch.Tensor, ...]:
        size = (chances.shape[0], 3)
        return (
            torch.rand(size), torch.rand(7, dtype=torch.float64), torch.rand(9, dtype=torch.float16), torch.randn(size),
            torch.randint(-3, 10, size), torch.bernoulli(chances), torch.rand(0),
        )  # fmt: skip

    for chances in (torch.rand(5, 3), torch.rand(4, 2)):
        torch.manual_seed(7)
        expected = vendor_sdk.compile_graph(vendor_sdk.trace(draw, [chances]), backend="cpp_cpu")(chances)
        run = vendor_sdk.compile_graph(vendor_sdk.trace(draw, [chances]), backend=NAME, options={"fallback": "error"})
        torch.manual_seed(7)
        for mine, other in zip(run(chances), expected, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-6)
        assert not torch.equal(run(chances)[0], expected[0])
    call: Any = torch.compile(torch.rand_like, backend=NAME, dynamic=True)
    for rows in (3, 6):
        assert call(torch.ones(rows, 5)).unique().numel() == 5 * rows


def test_a_view_on_the_host_takes_operands_that_lie_otherwise() -> None:
    graph = vendor_sdk.trace(lambda x: x.view(16), [torch.ones(4, 4, dtype=torch.int8)])
    compiled = vendor_sdk.compile_graph(graph, backend="onnxruntime")
    assert [str(each.placement.kind) for each in compiled.placements] == ["host"]
    x = torch.arange(36, dtype=torch.int8).as_strided((4, 4), (9, 2), 1)
    torch.testing.assert_close(compiled(x), [x.reshape(16)])


def test_rms_norm_over_a_size_of_the_call_stays_spelled_out() -> None:
    """An argument of a prim graph is a number or a node of it, never a symbol."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt((x * x).mean(0, keepdim=True) + 0.125)

    compiled = torch.compile(function, backend="onnxruntime", dynamic=True)
    for count in (5, 3, 9):
        x = torch.randn(count)
        torch.testing.assert_close(compiled(x), function(x))


def test_steps_and_masks_of_sizes_of_the_call() -> None:
    def function(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        source = mask.cumsum(0).float()
        return x[1 :: x.shape[0] // 3], torch.masked_scatter(x, mask, source), torch.masked_scatter(source, x > 0, source)

    graphs: list[Any] = []
    compiled = torch.compile(function, backend=NAME, dynamic=True, fullgraph=True)
    with recording(graphs.append):
        for rows in (7, 12, 9):
            x, mask = torch.randn(rows), torch.rand(5, rows) > 0.5
            torch.testing.assert_close(compiled(x, mask), function(x, mask))
    assert len(graphs) == 1
    assert {str(each.placement.kind) for each in graphs[0].placements if each.prim in ("slice", "masked_scatter")} == {"native"}


def test_a_size_that_a_guard_fixed_is_a_number() -> None:
    """``squeeze`` of a gradient whose one row is a symbol of the forward graph."""

    arguments = [(1,), (1,), 0]

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.as_strided_copy(x, *arguments)

    x = torch.randn(1, requires_grad=True)
    (found,) = torch.autograd.grad(torch.compile(function, backend=NAME, dynamic=True, fullgraph=True)(x).sum(), x)
    assert found.tolist() == [1]


@pytest.mark.parametrize(("dtype", "other"), [(torch.float16, torch.bfloat16), (torch.bfloat16, torch.float16)])
def test_what_was_converted_to_the_other_half_is_rounded(dtype: torch.dtype, other: torch.dtype) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rounded = x.to(other).to(dtype)
        return rounded * 3, torch.where(rounded > 1.5, rounded / 3, rounded)

    # Neither half has these numbers' digits and range: 1 + k / 1024, and what is subnormal in float16.
    x = torch.cat([1 + torch.arange(1024) / 1024, torch.arange(1, 256) * 2.0**-26]).to(dtype)
    compiled = vendor_sdk.compile_graph(vendor_sdk.trace(function, [x]), backend="onnxruntime")
    for found, right in zip(compiled(x), function(x), strict=True):
        assert torch.equal(found, right)


def test_what_was_converted_to_float16_is_rounded() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        half = x.to(torch.float16)
        return (half * 3).unsqueeze(2).float(), half.exp()

    # Halves of 4 to 8 are 1/256 apart, so an exponential of what was not rounded is off by up to 4 units of its last place.
    x = torch.rand(41, 7) * 16 - 8
    compiled = vendor_sdk.compile_graph(vendor_sdk.trace(function, [x]), backend="onnxruntime")
    product, power = compiled(x)
    rounded = x.to(torch.float16).double()
    torch.testing.assert_close(product.double(), rounded.unsqueeze(2) * 3, rtol=2.0**-11, atol=0)
    torch.testing.assert_close(power.double(), rounded.exp(), rtol=1.01 * 2.0**-11, atol=2.0**-25)
