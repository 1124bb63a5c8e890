"""Control prims: branches and loops over subgraphs, random state around a call, assertions on data.

None has samples. Those with subgraphs take graph modules that live as attributes of the graph around them, which a list of
arguments cannot say; the subgraphs' own nodes are prims and are certified as such. ``_assert_async`` has no result.
"""

from __future__ import annotations

import functools

import torch

from vendor_sdk.prims import draw
from vendor_sdk.prims.bounds import BY_DEFINITION, Exact
from vendor_sdk.prims.row import ALL, Family, Prim, Result, Shape
from vendor_sdk.torch_private import invoke_subgraph, run_and_save_rng_state, run_with_rng_state, while_loop_op

_row = functools.partial(
    Prim,
    family=Family.CONTROL,
    dtypes=ALL,
    result=Result.OPERATOR,
    shape=Shape.OPERATOR,
    bound=Exact(),
    samples=draw.no_samples,
    source=BY_DEFINITION + ": calls other prims, whose own bounds hold",
)

ROWS: tuple[Prim, ...] = (
    _row(
        name="cond",
        target=torch.ops.higher_order.cond,
        summary="true_fn(*operands) where pred is True, else false_fn(*operands); both give the same shapes and dtypes",
    ),
    _row(
        name="while_loop",
        target=while_loop_op,
        summary="carried = body_fn(*carried, *additional) as long as cond_fn(*carried, *additional); the last carried",
    ),
    _row(name="invoke_subgraph", target=invoke_subgraph, summary="subgraph(*operands), traced once and called several times"),
    _row(
        name="run_and_save_rng_state",
        target=run_and_save_rng_state,
        summary="(the random state before the call, op(*args)): recomputation can draw the same numbers again",
    ),
    _row(
        name="run_with_rng_state",
        target=run_with_rng_state,
        summary="op(*args) under the given random state; the state outside is untouched",
    ),
    _row(
        name="_assert_async",
        target=torch.ops.aten._assert_async.msg,
        summary="fails with the message if self is 0 or False; no result",
    ),
)
