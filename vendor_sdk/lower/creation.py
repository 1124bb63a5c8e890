"""Creation: tensors from numbers."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from vendor_sdk.lower.build import Builder, Lowering, fake, opmath


def _full(k: Builder) -> None:
    dtype = k.outputs[0].dtype
    with k.nest(k.outputs[0].shape) as i:
        k.store(0, i, k.operand(k.args["fill_value"], (), opmath(dtype)))


def _arange(k: Builder) -> None:
    dtype = k.outputs[0].dtype
    start, step = k.args["start"], k.args["step"]
    # In float64 where a product or a sum could round: torch accumulates there too. Small whole numbers are exact in float32.
    (count,) = k.outputs[0].shape
    exact = count.value is not None and all(
        isinstance(fake(v), int) or (isinstance(v, float) and v.is_integer()) for v in (start, step)
    )
    exact = exact and all(abs(fake(v)) * max(count.value or 0, 1) < 2**23 for v in (start, step))
    wide = torch.int64 if not dtype.is_floating_point else torch.float32 if exact else torch.float64
    if wide == torch.int64 and not all(isinstance(fake(v), int | torch.SymInt) for v in (start, step)):
        wide = torch.float64
    with k.nest((count,)) as i:
        scaled = k.compute("mul", k.convert(k.index(i[0]), wide), k.operand(step, (), wide))
        k.store(0, i, k.compute("add", k.operand(start, (), wide), scaled))


LOWERINGS: Mapping[str, Lowering] = {"full": _full, "arange": _arange}
