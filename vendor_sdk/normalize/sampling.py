"""Rules for random operators that are no prims. One with a generator of its own stays whole and runs on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vendor_sdk.normalize.rules import Rules, aten, cast, number

SAMPLING = Rules()
rule = SAMPLING.rule

Tensor = torch.Tensor


def _as(x: Tensor, dtype: torch.dtype | None, device: Any) -> Any:
    return {"dtype": dtype or x.dtype, "device": device or x.device}


@rule(aten.rand_like.default)
def rand_like(x: Tensor, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    # torch's decompositions ask for uniform numbers like an integer tensor and round them afterwards
    kind = dtype or (x.dtype if x.dtype.is_floating_point else torch.get_default_dtype())
    return aten.rand.default(list(x.shape), dtype=kind, device=device or x.device)


@rule(aten.randn_like.default)
def randn_like(x: Tensor, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return aten.randn.default(list(x.shape), **_as(x, dtype, device))


@rule(aten.randint.default)
def randint(high: Any, size: Sequence[Any], *, dtype: Any = torch.int64, device: Any = None, **_: Any) -> Any:
    return aten.randint.low(0, high, size, dtype=dtype or torch.int64, device=device or "cpu")


@rule(aten.randint_like.default)
def randint_like(x: Tensor, high: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return aten.randint.low(0, high, list(x.shape), **_as(x, dtype, device))


@rule(aten.randint_like.low_dtype)
def randint_like_low(x: Tensor, low: Any, high: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return aten.randint.low(low, high, list(x.shape), **_as(x, dtype, device))


def _canonical(target: Any, default: torch.dtype | None) -> Any:
    """A rule that states dtype and device and leaves out the rest; ``default`` is the schema's, which the dispatcher drops."""

    def stated(
        *args: Any, dtype: Any = default, layout: Any = None, device: Any = None, pin_memory: Any = None, **kwargs: Any
    ) -> Any:
        if layout is None and pin_memory is None and dtype is not None and device is not None:
            return NotImplemented
        return target(*args, dtype=dtype or torch.get_default_dtype(), device=device or "cpu", **kwargs)

    return stated


SAMPLING[aten.rand.default] = _canonical(aten.rand.default, None)
SAMPLING[aten.randn.default] = _canonical(aten.randn.default, None)
SAMPLING[aten.randint.low] = _canonical(aten.randint.low, torch.int64)
SAMPLING[aten.randperm.default] = _canonical(aten.randperm.default, torch.int64)


@rule(aten.normal_functional.default)
def normal(x: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Any:
    if generator is not None:
        return NotImplemented
    drawn = aten.randn.default(list(x.shape), dtype=x.dtype, device=x.device)
    return aten.add.Tensor(aten.mul.Tensor(drawn, std), mean)


@rule(aten.uniform.default)
def uniform(x: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Any:
    if generator is not None:
        return NotImplemented
    drawn = aten.rand.default(list(x.shape), dtype=x.dtype, device=x.device)
    return aten.add.Tensor(aten.mul.Tensor(drawn, high - low), low)


@rule(aten.bernoulli.p)
def bernoulli_p(x: Tensor, p: float = 0.5, *, generator: Any = None) -> Any:
    if generator is not None:
        return NotImplemented
    drawn = aten.rand.default(list(x.shape), dtype=torch.float32, device=x.device)
    return cast(aten.lt.Tensor(drawn, number(p, torch.float32, x)), x.dtype)
