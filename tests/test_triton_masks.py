"""Attention masks that the Triton backend's kernels compute, on a machine without a GPU: which, and their machine code.

What they compute is in ``triton_attention.py``.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import vendor_sdk
from reference_backends.triton_gpu import attention, flash_launch, flash_masks, machine_code
from reference_backends.triton_gpu.machine import TARGETS
from tests import triton_masks
from tests.triton_masks import BOOL, FLOAT, LONG, Body
from vendor_sdk import Computed, LoopKernel, NodeContext, TensorInfo, index, loop

HALF = torch.bfloat16
Tensor = torch.Tensor
Make = Callable[..., Computed]
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_SDK_CACHE_DIR", str(tmp_path))


def nowhere(mask: Computed) -> Computed:
    return dataclasses.replace(mask, buffers=tuple(each.to("meta") for each in mask.buffers))


# Which are computed


def node(name: str, *, width: int = 64, dtype: torch.dtype = HALF) -> NodeContext:
    operands = [TensorInfo((2, 4, 100, width), dtype)] * 3
    before = [operands[0]] if "backward" in name else []
    return NodeContext(prim=name, args=(*before, *operands), kwargs={}, outputs=(), backward=bool(before))


@pytest.mark.parametrize("name", sorted(attention.COMPOSITE_NAMES))
def test_all_kernels_of_attention_compute_masks(name: str) -> None:
    wanted = attention.KERNELS[name].computes["attn_mask"]
    for make in (triton_masks.slopes, triton_masks.documents, triton_masks.flat, triton_masks.numbers):
        loops = make(2, 4, 100, 90).loops
        assert wanted(node(name), loops)
        # In float32 a library's forward comes first.
        assert wanted(node(name, dtype=torch.float32), loops) == (name != attention.FORWARD)
        assert not wanted(node(name, width=512), loops), "all scores are in memory then"
        assert not wanted(node(name, dtype=torch.float64), loops)


def _many(count: int) -> LoopKernel:
    b = Body((20, 30))
    value = b.compute(FLOAT, "convert", b.place(b.at[0] - b.at[1]))
    for _ in range(count - 1):
        value = b.compute(FLOAT, "exp", value)
    return b.finish(value, FLOAT).loops


def _of_one(count: int) -> LoopKernel:
    """Operations that no pair of row and key needs."""
    b = Body((20, 30))
    value = b.compute(FLOAT, "convert", b.place(b.at[0]))
    for _ in range(count):
        value = b.compute(FLOAT, "exp", value)
    return b.finish(b.compute(FLOAT, "add", value, b.compute(FLOAT, "convert", b.place(b.at[1]))), FLOAT).loops


def _gathered() -> LoopKernel:
    b = Body((20, 30))
    place = b.compute(LONG, "wrap_index", b.load("in0", b.at[1], LONG), b.const(9, LONG))
    return b.finish(b.load("in1", index.symbol(place), FLOAT), FLOAT, [torch.zeros(30, dtype=LONG), torch.zeros(9)]).loops


def _read(dtype: torch.dtype, *, place_read: bool = False) -> LoopKernel:
    """A number for each row and key, from memory: from its own place, or from one that is read."""
    b = Body((20, 30))
    at = b.at[0] * 30 + b.at[1]
    if place_read:
        at = index.symbol(b.load("in1", at, torch.int8))
    return b.finish(b.compute(FLOAT, "convert", b.load("in0", at, dtype)), FLOAT, [torch.zeros(600, dtype=dtype)] * 2).loops


def _wide() -> LoopKernel:
    b = Body((20, 30))
    return b.finish(b.compute(torch.float64, "convert", b.place(b.at[0] - b.at[1])), torch.float64).loops


def _summed() -> LoopKernel:
    mask = triton_masks.flat(2, 4, 20, 30).loops
    (nest,) = mask.body
    inner = loop.Reduce((loop.Range("r", index.wrap(3)),), (), ())
    return dataclasses.replace(mask, body=(dataclasses.replace(nest, body=(inner, *nest.body)),))


@pytest.mark.parametrize(
    ("loops", "taken"),
    [
        (_many(flash_masks.MOST), True),
        (_many(flash_masks.MOST + 1), False),
        (_of_one(3 * flash_masks.MOST), True),
        (_gathered(), False),
        (_read(torch.int8), True),
        (_read(LONG), False),
        (_read(torch.int8, place_read=True), False),
        (_wide(), False),
        (_summed(), False),
        (triton_masks.documents(2, 4, 1, 90).loops, False),
        (triton_masks.slopes(2, 4, 20, 1).loops, False),
    ],
    ids=[
        "most operations",
        "too many",
        "of rows alone",
        "asserts",
        "little read",
        "much read",
        "gathered",
        "float64",
        "inner loop",
        "one row",
        "one key",
    ],
)
def test_masks_are_computed_in_few_operations(loops: LoopKernel, *, taken: bool) -> None:
    assert flash_masks.takes(loops) == taken


def test_only_generated_attention_computes_masks() -> None:
    for dtype in (HALF, torch.float32):
        query = torch.empty(2, 4, 100, 64, dtype=dtype)
        for make in (triton_masks.slopes, triton_masks.documents):
            for backward in (False, True):
                p = attention.problem(query, query, query, False, make(2, 4, 100, 100), None, backward=backward)
                for asked in (p, p._replace(general=True)):
                    assert attention.ways(asked, 9) == ("triton",)


# What is hidden


def _padding() -> Computed:
    b = Body((20, 30))
    return b.finish(b.compute(BOOL, "lt", b.place(b.at[1]), b.const(17, LONG)), BOOL)


def _chosen(known: bool) -> Computed:
    """Minus infinity, or not, as a constant says."""
    b = Body((20, 30))
    past = b.compute(BOOL, "ge", b.place(b.at[0]), b.place(b.at[1]))
    inner = b.compute(FLOAT, "where", past, b.const(0.0, FLOAT), b.const(-math.inf, FLOAT))
    return b.finish(b.compute(FLOAT, "where", b.const(known, BOOL), inner, b.const(-math.inf, FLOAT)), FLOAT)


@needs_triton
@pytest.mark.parametrize(
    ("mask", "differs"),
    [
        (triton_masks.documents(2, 4, 20, 30), (True, False)),
        (triton_masks.flat(2, 4, 20, 30), (False, False)),
        (triton_masks.far(2, 4, 20, 30), (False, False)),
        (triton_masks.slopes(2, 4, 20, 30), None),
        (triton_masks.padded(2, 4, 20, 30), None),
        (_padding(), (False, False)),
        (_chosen(True), (False, False)),
        (_chosen(False), None),
    ],
    ids=["documents", "rows and keys", "numbers of heads", "slopes", "loaded", "padding", "constant", "all hidden"],
)
def test_what_is_hidden_differs_along_what_its_conditions_do(mask: Computed, differs: tuple[bool, bool] | None) -> None:
    found = flash_masks.module(mask).DIFFERS
    assert found == differs
    query = torch.empty(2, 4, 1024, 64)
    assert flash_launch.is_listed(query, query, mask) == (differs is not None)
    assert not flash_launch.is_listed(query[:, :, :256], query[:, :, :256], mask)


# Machine code


def _attention(query: Tensor, slopes: Tensor, documents: Tensor) -> Tensor:
    places = torch.arange(query.shape[2])
    back = places[:, None] - places
    seen = ((back >= 0) & (back < 100) & (documents[:, :, None] == documents[:, None]))[:, None]
    bias = torch.where(seen, slopes[:, None, None] * back.to(query.dtype), -math.inf)
    once = torch.nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=seen)
    return torch.nn.functional.scaled_dot_product_attention(once, query, query, attn_mask=bias.to(query.dtype))


@needs_triton
def test_masks_of_a_compiled_program_are_in_no_memory() -> None:
    """Forward and backward, of bools and of numbers: nothing has as many elements as the scores."""
    query = torch.randn(2, 4, 800, 64, dtype=HALF, requires_grad=True)
    given = torch.rand(4, dtype=HALF), torch.randint(3, (2, 800))
    found = vendor_sdk.explain(_attention, query, *given, backend="triton_gpu", options={"target": "cuda:90"}, show=False)
    kernels = [kernel for graph in found.graphs if graph.kernels is not None for kernel in graph.kernels.kernels]
    attention = [each for each in kernels if each.name.startswith("scaled_dot_product_attention")]
    assert len(attention) == 4
    assert all("eq" in each.prims and each.resources["registers"] for each in attention)
    assert max(each.read or 0 for each in kernels) < 2 * 4 * 800 * 800, "bytes; a mask of numbers alone would be twice as many"


@needs_triton
def test_equal_masks_share_functions_and_others_do_not() -> None:
    one, same = triton_masks.slopes(2, 4, 20, 30), triton_masks.slopes(2, 4, 20, 30)
    assert one.loops is not same.loops
    assert flash_masks.module(one) is flash_masks.module(same)
    halves = dataclasses.replace(one.loops, params=tuple(dataclasses.replace(p, dtype=HALF) for p in one.loops.params))
    others = [
        dataclasses.replace(one, loops=halves),
        triton_masks.slopes_of_places(2, 4, 20, 30),
        triton_masks.documents(2, 4, 20, 30),
        triton_masks.documents(2, 4, 20, 30, reach=41),
    ]
    query = torch.empty(2, 4, 20, 64, dtype=HALF, device="meta")
    key = torch.empty(2, 4, 30, 64, dtype=HALF, device="meta")
    launchers = [
        flash_launch.forward_launcher(flash_launch.form_of(query, key, key, False, mask, None, None))
        for mask in (one, same, *others)
    ]
    assert launchers[0] is launchers[1]
    assert len(set(launchers[1:])) == len(launchers[1:])
    keys = [launcher.kernel.cache_key for launcher in launchers]
    assert keys[1] == keys[2], "pointers have other types: the function is the same"
    assert len(set(keys[2:])) == len(keys[2:])


def _near_by_floats(batch: int, heads: int, rows: int, keys: int) -> Computed:
    b = Body((rows, keys))
    distance = b.compute(FLOAT, "convert", b.place(b.at[0] - b.at[1]))
    return b.finish(b.compute(BOOL, "lt", distance, b.const(9.5, FLOAT)), BOOL)


@pytest.mark.parametrize(
    ("make", "decides"),
    [
        (triton_masks.documents, True),
        (triton_masks.both_ways, True),
        (triton_masks.far, True),
        (triton_masks.flat, True),
        (triton_masks.numbers, True),
        (_near_by_floats, False),
    ],
    ids=["documents", "both ways", "numbers", "for all heads", "numbers of the call", "floats"],
)
def test_blocks_are_decided_by_bounds_where_whole_numbers_say_what_is_hidden(make: Make, *, decides: bool) -> None:
    assert ("def bounds" in flash_masks.text(make(2, 4, 100, 100).loops, wide=False)) == decides


@needs_triton
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90"])
@pytest.mark.parametrize(
    ("make", "width", "options"),
    [
        (triton_masks.slopes, 64, {"causal": True}),
        (triton_masks.documents, 64, {}),
        (triton_masks.far, 64, {}),
        (triton_masks.numbers, 64, {}),
        (triton_masks.slopes_of_places, 64, {"dropout": 0.1}),
    ],
    ids=["slopes", "documents", "numbers", "numbers of the call", "slopes, dropout"],
)
def test_computed_masks_compile_without_spills(make: Make, width: int, options: dict[str, Any], target: str) -> None:
    """But for a few bytes of one function on compute capability 9.0, which is faster with blocks of that size (H200)."""

    def heads() -> Tensor:
        return torch.empty(4, 4096, 16, width, dtype=HALF, device="meta").transpose(1, 2)

    query, key, value, saved = heads(), heads(), heads(), torch.empty(4, 16, 4096, device="meta")
    seed = torch.empty(1, dtype=torch.int64, device="meta")
    dropout = flash_launch.Dropout(seed, options["dropout"]) if "dropout" in options else None
    rest = options.get("causal", False), nowhere(make(4, 16, 4096, 4096)), None, dropout
    calls = flash_launch.forward_calls(query, key, value, *rest)[1]
    calls += flash_launch.backward_calls(heads(), query, key, value, heads(), saved, *rest)[1]
    listed = make not in (triton_masks.slopes, triton_masks.slopes_of_places)
    assert len(calls) == (6 if listed else 3)
    for call in calls:
        begun = call.ahead(TARGETS[target])
        assert begun is not None
        binary = machine_code.binary(begun.result())
        few = listed and binary.name == "by_key" and target == "cuda:90"
        assert binary.stack_bytes <= (64 if few else 0), binary.name
        assert binary.shared_bytes <= TARGETS[target].shared
