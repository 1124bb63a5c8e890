"""Operators over lists of tensors (``_foreach_*``, what optimizers call): the operator of that name on each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from vendor_sdk import torch_private
from vendor_sdk.normalize.rules import Rule, Rules, aten, named

FOREACH = Rules()

Tensor = torch.Tensor
PREFIX = "aten::_foreach_"


def _norm(x: Tensor, ord: float = 2, dtype: torch.dtype | None = None) -> Tensor:
    return aten.linalg_vector_norm.default(x, ord, dtype=dtype)  # type: ignore[no-any-return]


def _powsum(x: Tensor, ord: float = 2, dtype: torch.dtype | None = None) -> Tensor:
    return aten.sum.default(aten.pow.Tensor_Scalar(aten.abs.default(x), ord), dtype=dtype)  # type: ignore[no-any-return]


def _copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return aten.copy.default(x, source)  # type: ignore[no-any-return]


_NAMED_OTHERWISE: Mapping[str, Callable[..., Any]] = {
    "addcdiv": lambda x, left, right, value=1: aten.addcdiv.default(x, left, right, value=value),
    "addcmul": lambda x, left, right, value=1: aten.addcmul.default(x, left, right, value=value),
    "copy": _copy,
    "maximum.Scalar": aten.clamp_min.default,
    "maximum.ScalarList": aten.clamp_min.default,
    "minimum.Scalar": aten.clamp_max.default,
    "minimum.ScalarList": aten.clamp_max.default,
    "norm": _norm,
    "powsum": _powsum,
    "zero": aten.zeros_like.default,
}


UNTRACEABLE = ("addcdiv.Tensor", "addcmul.Tensor")
"""torch wants their numbers on the CPU, where fake tensors are not: no graph contains them."""


def _on_each(operator: Callable[..., Any]) -> Rule:
    """``operator`` on the elements of lists, one by one; what is no list goes with each."""

    def rule(*args: Any, **kwargs: Any) -> list[Any]:
        length = next(len(a) for a in args if isinstance(a, list | tuple))
        return [operator(*(a[i] if isinstance(a, list | tuple) else a for a in args), **kwargs) for i in range(length)]

    return rule


def _register() -> None:
    for name in torch_private.operator_names(PREFIX):
        own, _, overload = name.removeprefix(PREFIX).partition(".")
        if own.endswith("_") or overload.endswith("out") or f"{own}.{overload}" in UNTRACEABLE:
            continue
        target = named(name)
        operator = _NAMED_OTHERWISE.get(f"{own}.{overload}") or _NAMED_OTHERWISE.get(own) or getattr(aten, own, None)
        if target is not None and operator is not None:
            FOREACH[target] = _on_each(operator)


_register()
