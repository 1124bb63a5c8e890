"""Collective prims: functional collectives over the ranks of a process group.

Each starts its operation and ``wait_tensor`` ends it. They have no samples: a single process without a process group cannot
call them, and certifying them needs several ranks. On the host they run as torch.distributed's own.
"""

from __future__ import annotations

import functools

from vendor_sdk import torch_private
from vendor_sdk.prims import draw
from vendor_sdk.prims.bounds import BY_DEFINITION, OF_SUMS, Accumulated, Exact
from vendor_sdk.prims.row import ALL, NUMBERS, Family, Prim, Result, Shape

c10d = torch_private.functional_collectives()

_row = functools.partial(
    Prim,
    family=Family.COLLECTIVE,
    dtypes=ALL,
    result=Result.SAME,
    shape=Shape.OPERATOR,
    bound=Exact(),
    samples=draw.no_samples,
    source=BY_DEFINITION,
)
# The number of ranks that are added is not among the arguments of all_reduce; 2**10 covers the groups one host can test.
_REDUCED = Accumulated(terms=lambda *args, **kwargs: 1024)

ROWS: tuple[Prim, ...] = (
    _row(
        name="all_reduce",
        target=c10d.all_reduce.default,
        summary="input combined over all ranks by reduce_op (sum, avg, product, min, max), on every rank",
        dtypes=NUMBERS,
        shape=Shape.SAME,
        bound=_REDUCED,
        source=OF_SUMS + ", a term a rank, in any order",
    ),
    _row(
        name="all_gather_into_tensor",
        target=c10d.all_gather_into_tensor.default,
        summary="inputs of all ranks joined along the first dimension, on every rank",
    ),
    _row(
        name="reduce_scatter_tensor",
        target=c10d.reduce_scatter_tensor.default,
        summary="inputs combined over all ranks by reduce_op, of which each rank keeps its part of the first dimension",
        dtypes=NUMBERS,
        bound=_REDUCED,
        source=OF_SUMS + ", a term a rank, in any order",
    ),
    _row(
        name="all_to_all_single",
        target=c10d.all_to_all_single.default,
        summary="the first dimension cut by input_split_sizes, part i sent to rank i, the parts received joined",
    ),
    _row(
        name="broadcast",
        target=c10d.broadcast.default,
        summary="the input of rank src, on every rank",
        shape=Shape.SAME,
    ),
    _row(
        name="wait_tensor",
        target=c10d.wait_tensor.default,
        summary="the result of a collective, once it has arrived",
        shape=Shape.SAME,
    ),
)
