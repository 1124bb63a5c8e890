"""Tables of rules: an ATen overload to a function of the same arguments written in other operators.

A rule that returns ``NotImplemented`` leaves the node as it is: rules of prims use this to change only the spellings that
are not canonical (``add`` with ``alpha``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from vendor_sdk.prims.widen import cast, computation_dtype, number
from vendor_sdk.torch_private import OpOverload

__all__ = ["Rule", "Rules", "aten", "broadcast_shapes", "cast", "computation_dtype", "full", "named", "number"]

Rule = Callable[..., Any]
F = TypeVar("F", bound=Rule)


class Lacking:
    """An operator that the installed torch does not have, or no longer has, and its overloads: their rules are left out."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, overload: str) -> Lacking:
        return Lacking(f"{self._name}.{overload}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"torch {torch.__version__} has no operator {self._name}")


class _Operators:
    def __getattr__(self, name: str) -> Any:
        found = getattr(torch.ops.aten, name, None) or Lacking(f"aten::{name}")
        setattr(self, name, found)
        return found


aten = _Operators()
"""``torch.ops.aten``, with what other versions of torch have."""


class Rules(dict[OpOverload, Rule]):
    """A table filled by decorating functions."""

    def rule(self, *overloads: OpOverload | Lacking) -> Callable[[F], F]:
        """Registers the decorated function for each of ``overloads`` that torch has."""

        def register(function: F) -> F:
            for overload in overloads:
                if isinstance(overload, Lacking):
                    continue
                if overload in self:
                    raise AssertionError(f"two rules for {overload}")
                self[overload] = function
            return function

        return register


def named(name: str) -> OpOverload | None:
    """The overload ``"namespace::op.overload"``, or ``None`` on a torch version that lacks it."""
    namespace, _, qualified = name.partition("::")
    op, _, overload = qualified.partition(".")
    packet = getattr(getattr(torch.ops, namespace), op, None)
    found = getattr(packet, overload or "default", None) if packet is not None else None
    return found if isinstance(found, OpOverload) else None


def full(value: Any, shape: Any, dtype: torch.dtype, like: torch.Tensor) -> torch.Tensor:
    """A tensor of ``shape`` filled with the number ``value``, on the device of ``like``."""
    return aten.full.default(list(shape), value, dtype=dtype, device=like.device)  # type: ignore[no-any-return]


def broadcast_shapes(*shapes: Any) -> list[Any]:
    """The shape to which ``shapes`` broadcast together."""
    return list(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
