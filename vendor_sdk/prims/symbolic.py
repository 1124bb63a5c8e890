"""Symbolic prims: arithmetic on sizes and other Python numbers, which the wrapper computes on the host.

Targets are the Python callables that torch records. Samples and results are Python numbers, so the rows have no dtypes; the
rules are Python's own (``floordiv`` and ``mod`` round to negative infinity).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch

from vendor_sdk.prims import draw
from vendor_sdk.prims.bounds import Exact
from vendor_sdk.prims.row import Family, Prim, Result, Sampler, Shape
from vendor_sdk.prims.samples import Sample, SampleContext

aten = torch.ops.aten


def _calls(*arguments: tuple[Any, ...]) -> Sampler:
    def sampler(ctx: SampleContext) -> Iterator[Sample]:
        return (Sample(args, label=", ".join(map(str, args))) for args in arguments)

    return draw.by_effort(sampler)


_PAIRS = _calls((7, 3), (1, 1), (0, 5), (2.5, 4), (2**40, 67), (-7, 3), (131, -2))
_BOOLS = _calls((True, False), (True, True), (False, False), (False, True))
_REALS = _calls((2.5,), (-2.5,), (7,), (0.0,), (-0.5,), (131.0,))


@draw.by_effort
def _sized(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((torch.zeros(3, 67), 1), label="last")
    yield Sample((torch.zeros(3, 67).t(), -2), label="negative dim of transposed")
    yield Sample((torch.zeros(0, 4), 0), label="empty")


@draw.by_effort
def _elements(ctx: SampleContext) -> Iterator[Sample]:
    yield Sample((torch.tensor(7),), label="int64")
    yield Sample((torch.tensor(-2.5),), label="float32")
    yield Sample((torch.tensor(True),), label="bool")
    yield Sample((torch.tensor([[131]], dtype=torch.uint8),), label="one element")


def _row(name: str, target: Callable[..., Any], samples: Sampler, summary: str) -> Prim:
    return Prim(
        name=name,
        target=target,
        family=Family.SYMBOLIC,
        summary=summary,
        dtypes=(),
        result=Result.SCALAR,
        shape=Shape.SCALAR,
        bound=Exact(),
        samples=samples,
        source="Python's own arithmetic, on the same numbers",
    )


ROWS: tuple[Prim, ...] = (
    _row("sym_size", aten.sym_size.int, _sized, "the size of one dimension of a tensor"),
    _row("_local_scalar_dense", aten._local_scalar_dense.default, _elements, "the one element of a tensor as a Python number"),
    # No samples: the assertion has no result to compare.
    _row("_assert_scalar", aten._assert_scalar.default, draw.no_samples, "fails with the message if the number is 0 or False"),
    _row("sym_add", operator.add, _PAIRS, "a + b"),
    _row("sym_sub", operator.sub, _PAIRS, "a - b"),
    _row("sym_mul", operator.mul, _PAIRS, "a * b"),
    _row("sym_floordiv", operator.floordiv, _PAIRS, "floor(a / b)"),
    _row("sym_mod", operator.mod, _PAIRS, "a - b * floor(a / b)"),
    _row("sym_truediv", operator.truediv, _PAIRS, "a / b as a float"),
    _row("sym_pow", operator.pow, _calls((7, 2), (2, 10), (2.5, 2), (9, 0.5), (3, 0)), "a to the power b"),
    _row("sym_eq", operator.eq, _PAIRS, "a = b"),
    _row("sym_ne", operator.ne, _PAIRS, "a != b"),
    _row("sym_lt", operator.lt, _PAIRS, "a < b"),
    _row("sym_le", operator.le, _PAIRS, "a <= b"),
    _row("sym_gt", operator.gt, _PAIRS, "a > b"),
    _row("sym_ge", operator.ge, _PAIRS, "a >= b"),
    _row("sym_and", operator.and_, _BOOLS, "a and b"),
    _row("sym_or", operator.or_, _BOOLS, "a or b"),
    _row("sym_not", torch.sym_not, _calls((True,), (False,)), "not a"),
    _row("sym_max", torch.sym_max, _PAIRS, "the larger of a and b"),
    _row("sym_min", torch.sym_min, _PAIRS, "the smaller of a and b"),
    _row("sym_float", torch.sym_float, _REALS, "a as a float"),
    _row("sym_trunc", math.trunc, _REALS, "a rounded towards zero, as an integer"),
    _row("sym_floor", math.floor, _REALS, "a rounded down, as an integer"),
    _row("sym_ceil", math.ceil, _REALS, "a rounded up, as an integer"),
)
