"""Loops whose sizes are symbols: masks of windows that reach over the right edge are left to the last iterations."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from reference_backends.cpp_cpu.emitter import CppEmitter
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.loop import Compute, Const, Index, Load, Stmt, Store
from vendor_sdk.lower.interior import interior
from vendor_sdk.pipeline import recording
from vendor_sdk.run.compiled import CompiledGraph

Tensor = torch.Tensor
BOOL, F32 = torch.bool, torch.float32


def steps(text: str) -> list[str]:
    """The bodies of the vector loops of a kernel, in order."""
    return re.findall(r"const auto step_\d+ = (.*?)\n *};\n", text, re.DOTALL)


def test_a_pool_of_symbolic_size_masks_its_interior_as_one_of_known_size() -> None:
    graphs: list[CompiledGraph] = []
    for dynamic in (False, True):
        with recording(graphs.append):
            torch.compile(POOLS["3x3, 2"], backend="cpp_cpu", dynamic=dynamic)(torch.randn(2, 4, 112, 112))
        torch._dynamo.reset()
    kernels = [kernel for graph in graphs for kernel in graph.loops.values()]
    (known,), (inner, rest) = (steps(CppEmitter().emit(kernel)) for kernel in kernels)
    assert inner.count("_where(") == known.count("_where(") < rest.count("_where(")


POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "3x3, 2": lambda x: F.max_pool2d(x, 3, 2, 1),
    "2x2": lambda x: F.max_pool2d(x, 2),
    "3x3, 1": lambda x: F.max_pool2d(x, 3, 1, 1),
    "5x5, 2": lambda x: F.max_pool2d(x, 5, 2, 2),
    "ceil": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "dilated": lambda x: F.max_pool2d(x, 3, 1, 1, dilation=2),
    "mean": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "indices": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)[1],
    "padded": lambda x: F.pad(torch.sin(x), (2, 3)) + F.pad(x, (4, 1)),
}


@pytest.mark.parametrize("pool", POOLS.values(), ids=list(POOLS))
def test_widths_at_which_windows_end_anywhere_in_a_vector(pool: Callable[[Tensor], Tensor]) -> None:
    """One kernel for all of them."""
    compiled = torch.compile(pool, backend="cpp_cpu", dynamic=True, fullgraph=True)
    for width in (*range(7, 40), 63, 64, 65, 97, 130):
        x = torch.randn(2, 3, 9, width)
        wanted = pool(x.double())
        found = compiled(x)
        assert found.shape == wanted.shape
        torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-5, atol=1e-5)


def body(*middle: Stmt) -> list[Stmt]:
    """``out[i] = i + 1 < bound ? in[i + 1] : 0``, with other statements before the store."""
    i = ix.symbol("i")
    return [
        Const("zero", 0, F32),
        Index("next", i + 1),
        Compute("there", "lt", ("next", "bound"), BOOL),
        Load("value", "in", i + 1, F32, mask="there", other="zero"),
        *middle,
        Store("out", i, "value"),
    ]


def test_conditions_inside() -> None:
    """A mask goes, of a conjunction what does not hold everywhere stays, and what else reads a condition finds it."""
    i = ix.symbol("i")
    middle = [
        Compute("both", "bitand", ("other", "there"), BOOL),
        Load("second", "in", i + 1, F32, mask="both", other="zero"),
        Compute("chosen", "where", ("there", "second", "zero"), F32),
        Compute("not", "bitnot", ("there",), BOOL),
        Compute("twice", "bitand", ("there", "there"), BOOL),
        Compute("never", "bitnot", ("twice",), BOOL),
        Store("out", i, "chosen", mask="twice"),
    ]
    found = interior(body(*middle), "i", {"i", "next", "there", "other", "both"})
    assert found is not None
    (edge,) = found.edges
    assert (edge.expression, edge.step, edge.bound) == (i + 1, 1, "bound")
    by = {s.to: s for s in found.body if not isinstance(s, Store)}  # type: ignore[union-attr]
    assert [by[name].mask for name in ("value", "second")] == [None, "other"]  # type: ignore[union-attr]
    assert by.keys() & {"there", "twice", "not", "never", "chosen", "both"} == {"there", "twice", "not", "never"}
    stores = [s for s in found.body if isinstance(s, Store)]
    assert [(s.value, s.mask) for s in stores] == [("second", None), ("value", None)]


def test_loops_without_an_edge() -> None:
    """A bound that changes along the loop; a condition that masks nothing; a position that falls."""
    i = ix.symbol("i")
    assert interior(body(), "i", {"i", "next", "there", "bound"}) is None
    unmasked = [s if not isinstance(s, Load) else Load("value", "in", i, F32) for s in body()]
    assert interior(unmasked, "i", {"i", "next", "there"}) is None
    falling = [s if not isinstance(s, Index) else Index("next", 9 - i) for s in body()]
    assert interior(falling, "i", {"i", "next", "there"}) is None
