"""Subnormals: kept, or taken for zero, as the backend declares for each dtype.

The declaration is that of the probe ``DTYPE subnormals``, in ``Backend.numerics``: ``kept``, which is what counts without one,
``flushed``, ``flushed when read``, ``flushed when written``, or ``either``, where operations differ. Families that add up have
one of their own besides, since chips multiply matrices in other units than they add in (``mm bfloat16 subnormals``). The judge
lets those that do not keep them flush; whether they do as they say is for the probes to find.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.utils import _pytree as pytree

from vendor_sdk import Composite, Expected, Family, Row, Sample, reference

KEPT, EITHER = "kept", "either"
COMPUTING = frozenset((
    Family.POINTWISE, Family.COMPARISON, Family.CONVERSION, Family.REDUCTION, Family.SCAN, Family.CONTRACTION,
    Family.CONVOLUTION,
))  # fmt: skip
"""Families whose prims may flush. What only moves data is exact."""
ADDING: Mapping[Family, str] = {
    Family.CONTRACTION: "mm", Family.CONVOLUTION: "convolution", Family.REDUCTION: "sum", Family.SCAN: "cumsum",
}  # fmt: skip
"""Families that have a declaration of their own: the operation whose probe it is."""

Tensor = torch.Tensor


@dataclass(frozen=True)
class Flushing:
    """The dtypes whose subnormals may be taken for zero: ``everywhere`` something is computed, and besides in the prims of some
    ``families``."""

    everywhere: frozenset[torch.dtype] = frozenset()
    families: Mapping[Family, frozenset[torch.dtype]] = field(default_factory=dict)

    def by(self, row: Row) -> frozenset[torch.dtype]:
        """Those of a prim; a composite may be made of prims of all families."""
        if isinstance(row, Composite):
            return self.everywhere.union(*self.families.values())
        if row.family not in COMPUTING:
            return frozenset()
        return self.everywhere | self.families.get(row.family, frozenset())


NOWHERE = Flushing()


def declared(numerics: Mapping[str, str]) -> Flushing:
    """What a backend with these declarations may take for zero."""

    def flushed(name: str) -> frozenset[torch.dtype]:
        dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
        return frozenset(each for each in dtypes if numerics.get(f"{name}{probe(each)}", KEPT) != KEPT)

    return Flushing(flushed(""), {family: flushed(f"{operation} ") for family, operation in ADDING.items()})


def probe(dtype: torch.dtype) -> str:
    """Name of the probe and of the declaration."""
    return f"{str(dtype).removeprefix('torch.')} subnormals"


def subnormal(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Where ``x`` is below the normal range of ``dtype``, and not zero."""
    return (x != 0) & (x.abs() < torch.finfo(dtype).smallest_normal)


def admitted(
    row: Row, sample: Sample, expected: Sequence[Expected], found: Sequence[Tensor], flushing: Flushing
) -> tuple[Expected, ...]:
    """The reference, with for each element what is closest to what was found: the exact result, that of operands without
    subnormals, or, where one of them is subnormal, zero of either sign.

    Args:
        row, sample, expected: the call and its reference.
        found: the tensors of the result, on the CPU, with the reference's shapes and dtypes.
        flushing: which may be taken for zero.
    """
    dtypes = flushing.by(row)
    if not dtypes:
        return tuple(expected)

    def flushed(x: Tensor) -> Tensor:
        return torch.where(subnormal(x, x.dtype), x * 0, x) if x.dtype in dtypes else x

    args, kwargs = pytree.tree_map_only(torch.Tensor, flushed, (sample.args, sample.kwargs))
    others = reference(row, Sample(args, kwargs))
    tensors = iter(found)
    return tuple(
        one if one.dtype is None else _closest(one, other, next(tensors), dtypes)
        for one, other in zip(expected, others, strict=True)
    )


def _closest(one: Expected, other: Expected, found: Tensor, dtypes: frozenset[torch.dtype]) -> Expected:
    if not isinstance(one.value, Tensor) or one.dtype is None or one.dtype.is_complex:
        return one
    actual = found.to(one.value.dtype)
    value = torch.where(_distance(actual, other.value) < _distance(actual, one.value), other.value, one.value)
    if one.dtype.is_floating_point:
        zero = (other.value == 0) & (one.value != 0)
        if one.dtype in dtypes:
            zero |= subnormal(one.value, one.dtype) | subnormal(other.value, one.dtype)
        value = torch.where(zero & (actual == 0), actual, value)
    return Expected(value, one.shape, one.dtype)


def _distance(x: Tensor, y: Tensor) -> Tensor:
    same = (x == y) | ((x != x) & (y != y))
    return torch.where(same, 0.0, (x.double() - y.double()).abs().nan_to_num(nan=torch.inf))
