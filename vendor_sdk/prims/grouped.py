"""Matrix products of groups of rows as a composite: what a mixture of experts computes.

Torch's operator for it (``aten._grouped_mm``) is bound to one vendor's hardware: while tracing it refuses all dtypes but
bfloat16, and rows that are not a multiple of 16 bytes. So the composite has an operator of its own, to which torch's and that
of ``transformers`` are rewritten (``normalize/experts.py``). It also expresses both of its gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from vendor_sdk import torch_private
from vendor_sdk.prims.bounds import OF_PRODUCTS, Accumulated, apart
from vendor_sdk.prims.row import Composite
from vendor_sdk.prims.samples import Effort, Sample, SampleContext, draw
from vendor_sdk.prims.widen import cast, number

aten = torch.ops.aten
Tensor = torch.Tensor

_LIBRARY = torch.library.Library("vendor_sdk", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define("grouped_mm(Tensor self, Tensor mat2, Tensor offs) -> Tensor")  # type: ignore[no-untyped-call]
OPERATOR = torch.ops.vendor_sdk.grouped_mm.default
"""``grouped_mm(self, mat2, offs)``: group ``g`` consists of the rows from ``offs[g - 1]`` (0 for the first) to ``offs[g]``.

* self (rows, k), mat2 (groups, k, n): the result (rows, n) has each row times its group's matrix, zeros behind the last group.
* self (m, rows), mat2 (rows, n): the result (groups, m, n) has for each group the product over its rows alone.

``offs`` is int32 or int64, of shape (groups,), and never falls. Offsets that do, or lie outside the rows, are an
``IndexError``.
"""


def _result(self: Tensor, mat2: Tensor, offs: Tensor) -> Tensor:
    """Checked for shapes and dtypes; its elements are anything."""
    if self.dim() != 2 or mat2.dim() not in (2, 3) or offs.dim() != 1:
        counts = f"{self.dim()}, {mat2.dim()} and {offs.dim()}"
        raise RuntimeError(f"grouped_mm takes a matrix, one or a batch of them, and offsets, not {counts} dimensions")
    if self.shape[1] != mat2.shape[-2]:
        raise RuntimeError(f"grouped_mm: {self.shape[1]} columns do not go with {mat2.shape[-2]} rows")
    if self.dtype != mat2.dtype:
        raise RuntimeError(f"grouped_mm: {self.dtype} times {mat2.dtype}; convert one of them")
    if mat2.dim() == 2:
        return self.new_empty((offs.shape[0], self.shape[0], mat2.shape[1]))
    if offs.shape[0] != mat2.shape[0]:
        raise RuntimeError(f"grouped_mm: {offs.shape[0]} offsets for {mat2.shape[0]} matrices")
    return self.new_empty((self.shape[0], mat2.shape[2]))


def _one_by_one(self: Tensor, mat2: Tensor, offs: Tensor) -> Tensor:
    """What the operator means; runs wherever torch multiplies matrices."""
    result = _result(self, mat2, offs).zero_()
    rows = mat2.shape[0] if mat2.dim() == 2 else self.shape[0]
    start = 0
    for group, end in enumerate(offs.tolist()):
        if not start <= end <= rows:
            raise IndexError(f"grouped_mm: group {group} of {rows} rows reaches from {start} to {end}")
        if mat2.dim() == 2:
            result[group] = self[:, start:end] @ mat2[start:end]
        else:
            result[start:end] = self[start:end] @ mat2[group]
        start = end
    return result


_LIBRARY.impl("grouped_mm", _one_by_one, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake("vendor_sdk::grouped_mm", _result, lib=_LIBRARY)


def gradients(grad: Tensor, self: Tensor, mat2: Tensor, offs: Tensor) -> tuple[Tensor, Tensor]:
    """Of (rows, k) times (groups, k, n), by both factors; the second lies in memory as the factor does."""
    by_self = OPERATOR(grad, aten.permute.default(mat2, [0, 2, 1]), offs)
    if torch_private.surely_equal(mat2.stride(1), 1):
        turned = OPERATOR(aten.permute.default(grad, [1, 0]), self, offs)
        return by_self, aten.permute.default(turned, [0, 2, 1])
    return by_self, OPERATOR(aten.permute.default(self, [1, 0]), grad, offs)


def _membership(offs: Tensor, rows: Any) -> Tensor:
    """(groups, rows): whether a row is in a group."""
    ends = aten.unsqueeze.default(cast(offs, torch.int64), 1)
    first = aten.full.default([1, 1], 0, dtype=torch.int64, device=offs.device)
    starts = aten.cat.default([first, aten.slice.Tensor(ends, 0, 0, -1)], 0)
    position = aten.unsqueeze.default(aten.arange.start_step(0, rows, 1, dtype=torch.int64, device=offs.device), 0)
    return aten.logical_and.default(aten.ge.Tensor(position, starts), aten.lt.Tensor(position, ends))  # type: ignore[no-any-return]


def grouped_mm(self: Tensor, mat2: Tensor, offs: Tensor) -> Tensor:
    """All rows with all groups' matrices, since the sizes of groups are data; then each row's own. Not checked: the offsets."""
    groups, zero = offs.shape[0], number(0, self.dtype, self)
    if mat2.dim() == 2:
        inside = _membership(offs, mat2.shape[0])
        left = aten.where.self(aten.unsqueeze.default(inside, 1), aten.unsqueeze.default(self, 0), zero)
        right = aten.where.self(aten.unsqueeze.default(inside, 2), aten.unsqueeze.default(mat2, 0), zero)
        return aten.bmm.default(left, right)  # type: ignore[no-any-return]
    repeated = aten.expand.default(aten.unsqueeze.default(self, 0), [groups, self.shape[0], self.shape[1]])
    inside = aten.unsqueeze.default(_membership(offs, self.shape[0]), 2)
    own = aten.where.self(inside, aten.bmm.default(repeated, mat2), zero)
    return aten.sum.dim_IntList(own, [0])  # type: ignore[no-any-return]


def _samples(context: SampleContext) -> Iterator[Sample]:
    def offsets(*ends: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.tensor(ends, dtype=dtype)

    yield Sample(
        (draw(context, (23, 67)), draw(context, (4, 67, 33)), offsets(9, 9, 17, 23)), label="groups of rows, one empty"
    )
    yield Sample((draw(context, (23, 19)).t(), draw(context, (23, 33)), offsets(9, 9, 17, 23)), label="a product a group")
    if context.effort >= Effort.STANDARD:
        turned = draw(context, (3, 17, 40)).transpose(1, 2)
        yield Sample((draw(context, (12, 40)), turned, offsets(1, 4, 9, dtype=torch.int64)), label="rows behind the last group")
        yield Sample((draw(context, (9, 12)), draw(context, (12, 17)), offsets(1, 4, 9)), label="rows in no product")
        yield Sample((draw(context, (40, 8)).t(), draw(context, (2, 40, 300)), offsets(0, 8)), label="the last group has all")
        yield Sample((draw(context, (0, 5)), draw(context, (2, 5, 3)), offsets(0, 0)), label="no rows")
        yield Sample((draw(context, (5, 0)), draw(context, (0, 3)), offsets(0, 0)), label="products over no rows")


def _terms(self: Tensor, mat2: Tensor, offs: Tensor) -> int:
    return self.shape[1]


GROUPED_ROWS: tuple[Composite, ...] = (
    Composite(
        name="grouped_mm",
        summary="rows in groups, each times its group's matrix; or a product for each group, over its rows",
        targets={OPERATOR: grouped_mm},
        bound=Accumulated(terms=_terms, shared=apart),
        samples=_samples,
        source=OF_PRODUCTS,
    ),
)
