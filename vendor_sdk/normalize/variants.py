"""ATen's overload variants to the one overload that the opset has: scalars, factories, defaults of arguments, copies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from vendor_sdk import torch_private
from vendor_sdk.ir.orders import inverse
from vendor_sdk.normalize.rules import Rules, aten, cast, computation_dtype, full, named, number

VARIANTS = Rules()
rule = VARIANTS.rule

# --- arithmetic with numbers: ATen's add, sub, mul and div take a Python number for either operand ---


def _times(x: Any, alpha: Any) -> Any:
    return x if alpha == 1 else x * alpha


@rule(aten.add.Scalar)
def add_scalar(x: torch.Tensor, other: Any, alpha: Any = 1) -> Any:
    return aten.add.Tensor(x, _times(other, alpha))


@rule(aten.sub.Scalar)
def sub_scalar(x: torch.Tensor, other: Any, alpha: Any = 1) -> Any:
    return aten.sub.Tensor(x, _times(other, alpha))


@rule(aten.add.Tensor)
def add_alpha(x: Any, other: Any, *, alpha: Any = 1) -> Any:
    return NotImplemented if alpha == 1 else aten.add.Tensor(x, _scaled(other, alpha))


@rule(aten.sub.Tensor)
def sub_alpha(x: Any, other: Any, *, alpha: Any = 1) -> Any:
    return NotImplemented if alpha == 1 else aten.sub.Tensor(x, _scaled(other, alpha))


def _scaled(x: Any, alpha: Any) -> Any:
    if isinstance(x, torch.Tensor) and x.dtype == torch.bool and isinstance(alpha, bool):
        return aten.logical_and.default(x, number(alpha, torch.bool, x))
    return aten.mul.Tensor(x, alpha) if isinstance(x, torch.Tensor) else x * alpha


@rule(aten.rsub.Scalar, aten.rsub.Tensor)
def rsub(x: torch.Tensor, other: Any, alpha: Any = 1) -> Any:
    return aten.sub.Tensor(other, _times(x, alpha))


@rule(aten.mul.Scalar)
def mul_scalar(x: torch.Tensor, other: Any) -> Any:
    return aten.mul.Tensor(x, other)


@rule(aten.div.Scalar)
def div_scalar(x: torch.Tensor, other: Any) -> Any:
    return aten.div.Tensor(x, other)


@rule(aten.div.Scalar_mode)
def div_scalar_mode(x: torch.Tensor, other: Any, *, rounding_mode: str | None) -> Any:
    return aten.div.Tensor_mode(x, other, rounding_mode=rounding_mode)


@rule(aten.div.Tensor_mode)
def div_without_mode(x: Any, other: Any, *, rounding_mode: str | None) -> Any:
    return aten.div.Tensor(x, other) if rounding_mode is None else NotImplemented


@rule(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(x: Any, other: Any) -> Any:
    return aten.div.Tensor_mode(x, other, rounding_mode="floor")


# --- other operators with numbers: the number becomes a 0-d tensor of the dtype the operation has anyway ---


def _exact(value: float, dtype: torch.dtype) -> bool:
    """Whether a number is a value of a floating ``dtype`` (of moderate size: exponents of powers)."""
    significant = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24}.get(dtype, 53)
    return math.isfinite(value) and math.ldexp(math.frexp(value)[0], significant).is_integer()


def _wrapped(target: Any) -> Any:
    """A rule for an overload whose number operands are converted to the common dtype, as TensorIterator does."""

    def with_number(x: Any, other: Any) -> Any:
        dtype = torch.result_type(x, other)
        if isinstance(x, torch.Tensor):
            return target(x, number(other, dtype, x))
        return target(number(x, dtype, other), other)

    return with_number


for _scalar, _tensor in {
    "eq.Scalar": "eq.Tensor",
    "ne.Scalar": "ne.Tensor",
    "lt.Scalar": "lt.Tensor",
    "le.Scalar": "le.Tensor",
    "gt.Scalar": "gt.Tensor",
    "ge.Scalar": "ge.Tensor",
    "remainder.Scalar": "remainder.Tensor",
    "remainder.Scalar_Tensor": "remainder.Tensor",
    "fmod.Scalar": "fmod.Tensor",
    "bitwise_and.Scalar": "bitwise_and.Tensor",
    "bitwise_and.Scalar_Tensor": "bitwise_and.Tensor",
    "bitwise_or.Scalar": "bitwise_or.Tensor",
    "bitwise_or.Scalar_Tensor": "bitwise_or.Tensor",
    "bitwise_xor.Scalar": "bitwise_xor.Tensor",
    "bitwise_xor.Scalar_Tensor": "bitwise_xor.Tensor",
    "bitwise_left_shift.Tensor_Scalar": "bitwise_left_shift.Tensor",
    "bitwise_left_shift.Scalar_Tensor": "bitwise_left_shift.Tensor",
    "bitwise_right_shift.Tensor_Scalar": "bitwise_right_shift.Tensor",
    "bitwise_right_shift.Scalar_Tensor": "bitwise_right_shift.Tensor",
    "__and__.Scalar": "bitwise_and.Tensor",
    "__or__.Scalar": "bitwise_or.Tensor",
    "__xor__.Scalar": "bitwise_xor.Tensor",
    "__lshift__.Scalar": "bitwise_left_shift.Tensor",
    "__rshift__.Scalar": "bitwise_right_shift.Tensor",
    "copysign.Scalar": "copysign.Tensor",
    "special_zeta.other_scalar": "special_zeta",
    "special_zeta.self_scalar": "special_zeta",
    "bucketize.Scalar": "bucketize.Tensor",
}.items():
    _key, _value = named(f"aten::{_scalar}"), named(f"aten::{_tensor}")
    if _key is not None and _value is not None and _scalar != "bucketize.Scalar":
        VARIANTS[_key] = _wrapped(_value)

VARIANTS[aten.__lshift__.Tensor] = aten.bitwise_left_shift.Tensor
VARIANTS[aten.__rshift__.Tensor] = aten.bitwise_right_shift.Tensor


@rule(aten.pow.Tensor_Scalar)
def pow_tensor_scalar(x: torch.Tensor, exponent: Any) -> Any:
    """The special exponents are those of torch's own CPU kernel, which multiplies or takes roots for them."""
    dtype = torch.result_type(x, exponent)
    base = cast(x, dtype)
    if isinstance(exponent, int | float) and not isinstance(exponent, bool):
        if exponent == 0:
            return full(1, x.shape, dtype, x)
        if exponent == 1:
            return aten.clone.default(base)
        if exponent == 2:
            return aten.mul.Tensor(base, base)
        if exponent == 3:
            return aten.mul.Tensor(aten.mul.Tensor(base, base), base)
        if dtype.is_floating_point:
            if exponent == 0.5:
                return aten.sqrt.default(base)
            if exponent == -0.5:
                return aten.rsqrt.default(base)
            if exponent == -1:
                return aten.reciprocal.default(base)
    if dtype.is_floating_point and not (isinstance(exponent, int | float) and _exact(exponent, dtype)):
        wide = computation_dtype(dtype)
        return cast(aten.pow.Tensor_Tensor(cast(base, wide), number(exponent, wide, x)), dtype)
    return aten.pow.Tensor_Tensor(base, number(exponent, dtype, x))


@rule(aten.pow.Scalar)
def pow_scalar(base: Any, exponent: torch.Tensor) -> Any:
    dtype = torch.result_type(base, exponent)
    if isinstance(base, int | float) and base == 1:
        return full(1, exponent.shape, dtype, exponent)
    if isinstance(base, int | float) and base == 2 and dtype.is_floating_point:
        return aten.exp2.default(cast(exponent, dtype))
    wide = computation_dtype(dtype)
    return cast(aten.pow.Tensor_Tensor(number(base, wide, exponent), cast(exponent, wide)), dtype)


@rule(aten.where.Scalar)
def where_scalars(condition: torch.Tensor, x: Any, y: Any) -> Any:
    dtype = torch.result_type(x, y)
    return aten.where.self(condition, number(x, dtype, condition), number(y, dtype, condition))


@rule(aten.where.ScalarOther)
def where_scalar_other(condition: torch.Tensor, x: torch.Tensor, y: Any) -> Any:
    return aten.where.self(condition, x, number(y, torch.result_type(x, y), x))


@rule(aten.where.ScalarSelf)
def where_scalar_self(condition: torch.Tensor, x: Any, y: torch.Tensor) -> Any:
    return aten.where.self(condition, number(x, torch.result_type(x, y), y), y)


@rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(x: torch.Tensor, mask: torch.Tensor, value: Any) -> Any:
    filling = cast(value, x.dtype) if isinstance(value, torch.Tensor) else number(value, x.dtype, x)
    return aten.where.self(mask, filling, x)


# --- factories: every one is full, arange or a random prim ---


def _like(x: torch.Tensor, value: Any, dtype: torch.dtype | None, device: Any) -> Any:
    return aten.full.default(list(x.shape), value, dtype=dtype or x.dtype, device=device or x.device)


@rule(aten.full_like.default)
def full_like(x: torch.Tensor, value: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _like(x, value, dtype, device)


@rule(aten.zeros_like.default, aten.empty_like.default)
def zeros_like(x: torch.Tensor, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _like(x, _zero(dtype or x.dtype), dtype, device)


@rule(aten.ones_like.default)
def ones_like(x: torch.Tensor, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _like(x, _one(dtype or x.dtype), dtype, device)


def _zero(dtype: torch.dtype) -> Any:
    return False if dtype == torch.bool else 0


def _one(dtype: torch.dtype) -> Any:
    return True if dtype == torch.bool else 1


def _make(size: Sequence[Any], value: Any, dtype: torch.dtype | None, device: Any) -> Any:
    return aten.full.default(list(size), value, dtype=dtype or torch.get_default_dtype(), device=device or "cpu")


@rule(aten.zeros.default, aten.empty.memory_format)
def zeros(size: Sequence[Any], *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _make(size, _zero(dtype), dtype, device)


@rule(aten.empty_strided.default, aten.empty_permuted.default)
def empty_strided(size: Sequence[Any], stride: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _make(size, _zero(dtype), dtype, device)


@rule(aten.ones.default)
def ones(size: Sequence[Any], *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _make(size, _one(dtype), dtype, device)


@rule(aten.new_full.default)
def new_full(x: torch.Tensor, size: Sequence[Any], value: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return aten.full.default(list(size), value, dtype=dtype or x.dtype, device=device or x.device)


@rule(aten.new_zeros.default, aten.new_empty.default)
def new_zeros(x: torch.Tensor, size: Sequence[Any], *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return new_full(x, size, _zero(dtype or x.dtype), dtype=dtype, device=device)


@rule(aten.new_ones.default)
def new_ones(x: torch.Tensor, size: Sequence[Any], *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return new_full(x, size, _one(dtype or x.dtype), dtype=dtype, device=device)


@rule(aten.new_empty_strided.default)
def new_empty_strided(x: torch.Tensor, size: Any, stride: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return new_full(x, size, _zero(dtype or x.dtype), dtype=dtype, device=device)


@rule(aten.scalar_tensor.default)
def scalar_tensor(value: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _make((), value, dtype or torch.get_default_dtype(), device)


@rule(aten._efficientzerotensor.default)
def efficient_zeros(size: Sequence[Any], *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _make(size, _zero(dtype), dtype, device)


@rule(aten.full.default)
def full_with_layout(
    size: Any, value: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Any:
    """Canonical: dtype and device stated, nothing else."""
    if layout is None and pin_memory is None and dtype is not None and device is not None:
        return NotImplemented
    if dtype is None:
        dtype = torch.result_type(value, value) if isinstance(value, bool) else _dtype_of_number(value)
    return aten.full.default(size, value, dtype=dtype, device=device or "cpu")


def _dtype_of_number(value: Any) -> torch.dtype:
    if isinstance(value, int | torch.SymInt):
        return torch.int64
    return torch.get_default_dtype() if isinstance(value, float | torch.SymFloat) else torch.complex64


@rule(aten.linspace.default, aten.linspace.Tensor_Tensor, aten.linspace.Tensor_Scalar, aten.linspace.Scalar_Tensor)
def linspace(start: Any, end: Any, steps: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    """From both ends to the middle, as torch's kernel does; integer results are truncated from float64."""
    tensors = [x for x in (start, end) if isinstance(x, torch.Tensor)]
    dtype, device = dtype or torch.get_default_dtype(), device or (tensors[0].device if tensors else "cpu")
    wide = computation_dtype(dtype) if dtype.is_floating_point or dtype.is_complex else torch.float64
    start, end = (_end(value, dtype, wide) for value in (start, end))
    index = aten.arange.start_step(0, steps, 1, dtype=torch.int64, device=device)
    step = aten.div.Tensor(end - start, steps - 1) if tensors and steps > 1 else (end - start) / max(steps - 1, 1)
    position = aten._to_copy.default(index, dtype=wide)
    upward = aten.add.Tensor(aten.mul.Tensor(position, step), start)
    downward = aten.sub.Tensor(end, aten.mul.Tensor(aten.sub.Tensor(steps - 1, position), step))
    lower = aten.lt.Tensor(index, number(max(steps // 2, 1), torch.int64, index))
    return cast(aten.where.self(lower, upward, downward), dtype)


def _end(value: Any, dtype: torch.dtype, wide: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return cast(cast(value, dtype), wide)
    return value if dtype.is_floating_point or dtype.is_complex else int(value)


@rule(aten.arange.default)
def arange(end: Any, **kwargs: Any) -> Any:
    return aten.arange.start_step(0, end, 1, **kwargs)


@rule(aten.arange.start)
def arange_start(start: Any, end: Any, **kwargs: Any) -> Any:
    return aten.arange.start_step(start, end, 1, **kwargs)


@rule(aten.arange.start_step)
def arange_with_layout(
    start: Any, end: Any, step: Any = 1, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Any:
    if layout is None and pin_memory is None and dtype is not None and device is not None:
        return NotImplemented
    if dtype is None:
        integers = all(isinstance(value, int | torch.SymInt) for value in (start, end, step))
        dtype = torch.int64 if integers else torch.get_default_dtype()
    return aten.arange.start_step(start, end, step, dtype=dtype, device=device or "cpu")


# --- copies and conversions ---


@rule(aten.lift_fresh.default, aten.detach.default, aten.detach_.default, aten.lift.default)
def alias(x: torch.Tensor) -> Any:
    return aten.alias.default(x)


@rule(aten.lift_fresh_copy.default)
def lift_fresh_copy(x: torch.Tensor) -> Any:
    return aten.clone.default(x)


@rule(aten.clone.default)
def clone_with_format(x: torch.Tensor, *, memory_format: Any = None) -> Any:
    """Channels last, in the order of dimensions (``permute``); of other formats only the elements count."""
    if memory_format is None or memory_format == torch.contiguous_format:
        return NotImplemented
    if memory_format == torch.preserve_format:
        return aten.clone.default(x, memory_format=torch.contiguous_format)
    order = [0, *range(2, x.dim()), 1]
    moved = aten.clone.default(aten.permute.default(x, order), memory_format=torch.contiguous_format)
    return aten.permute.default(moved, inverse(order))


@rule(aten._to_copy.default)
def to_copy(
    x: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> Any:
    """Canonical: ``dtype`` alone, or ``dtype`` and ``device`` where the device changes."""
    if not isinstance(x, torch.Tensor):  # ``torch.vmap`` promotes a number beside a tensor.
        return aten.full.default([], x, dtype=dtype or torch_private.promote([x]), device=device or "cpu")
    moves = device is not None and torch.device(device) != x.device
    kwargs: dict[str, Any] = {"device": device} if moves else {}
    if (dtype is not None and dtype != x.dtype) or moves:
        kwargs["dtype"] = dtype or x.dtype
    if not kwargs:
        return aten.clone.default(x)
    canonical = layout is None and pin_memory is None and not non_blocking and memory_format is None
    if canonical and dtype is not None and moves == (device is not None):
        return NotImplemented
    return aten._to_copy.default(x, **kwargs)


@rule(aten.copy.default)
def copy(x: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> Any:
    converted = cast(source, x.dtype)
    if converted.device != x.device:
        converted = aten._to_copy.default(converted, dtype=x.dtype, device=x.device)
    return aten.expand.default(converted, list(x.shape))


@rule(aten.expand.default)
def expand_with_implicit(x: torch.Tensor, size: Sequence[Any], *, implicit: bool = False) -> Any:
    return aten.expand.default(x, size) if implicit else NotImplemented


# --- shapes ---


@rule(aten.view.default)
def view(x: torch.Tensor, size: Sequence[Any]) -> Any:
    """A decomposition may lay out its result otherwise than the operator did; then the elements are put in order first."""
    if x.is_contiguous() or _viewable(list(x.shape), list(x.stride()), _without_minus_one(x, size)):
        return NotImplemented
    return aten.view.default(aten.clone.default(x, memory_format=torch.contiguous_format), size)


def _without_minus_one(x: torch.Tensor, size: Sequence[Any]) -> list[Any]:
    known = 1
    for length in size:
        known = known * (1 if isinstance(length, int) and length == -1 else length)
    return [x.numel() // known if isinstance(length, int) and length == -1 else length for length in size]


def _viewable(shape: list[Any], strides: list[Any], size: list[Any]) -> bool:
    """Whether a tensor can be seen in ``size`` without a copy: each run of dimensions that lie together splits exactly."""
    if any(length == 0 for length in shape):
        return True
    dims = [(length, stride) for length, stride in zip(shape, strides, strict=True) if length != 1]
    runs: list[Any] = []
    for index, (length, stride) in enumerate(dims):
        if index and dims[index - 1][1] == length * stride:
            runs[-1] = runs[-1] * length
        else:
            runs.append(length)
    remaining = [length for length in size if length != 1]
    for run in runs:
        product: Any = 1
        while remaining and product < run:
            product = product * remaining.pop(0)
        if product != run:
            return False
    return not remaining


@rule(aten._unsafe_view.default, aten._reshape_alias.default)
def unsafe_view(x: torch.Tensor, size: Sequence[Any], stride: Any = None) -> Any:
    return aten.reshape.default(x, size)


@rule(aten.t.default)
def t(x: torch.Tensor) -> Any:
    return aten.permute.default(x, [1, 0]) if x.dim() == 2 else aten.alias.default(x)


@rule(aten.transpose.int)
def transpose(x: torch.Tensor, dim0: int, dim1: int) -> Any:
    if x.dim() == 0:
        return aten.alias.default(x)
    order = list(range(x.dim()))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return aten.permute.default(x, order)


@rule(aten.squeeze.default)
def squeeze(x: torch.Tensor) -> Any:
    return aten.squeeze.dims(x, [dim for dim, size in enumerate(x.shape) if size == 1])


@rule(aten.squeeze.dim)
def squeeze_dim(x: torch.Tensor, dim: int) -> Any:
    return aten.squeeze.dims(x, [dim])


@rule(aten.split.Tensor, aten.unsafe_split.Tensor)
def split(x: torch.Tensor, size: Any, dim: int = 0) -> Any:
    length = x.shape[dim]
    if length == 0 and size == 0:
        return [aten.alias.default(x)]
    starts = range(0, max(int(length), 1), int(size))
    return [aten.slice.Tensor(x, dim, start, min(start + size, length)) for start in starts]


@rule(aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default)
def split_with_sizes(x: torch.Tensor, sizes: Sequence[Any], dim: int = 0) -> Any:
    pieces, start = [], 0
    for size in sizes:
        pieces.append(aten.slice.Tensor(x, dim, start, start + size))
        start = start + size
    return pieces


@rule(aten.unbind.int)
def unbind(x: torch.Tensor, dim: int = 0) -> Any:
    return [aten.select.int(x, dim, index) for index in range(int(x.shape[dim]))]


@rule(aten.stack.default)
def stack(tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
    dim = dim % (tensors[0].dim() + 1)
    return aten.cat.default([aten.unsqueeze.default(x, dim) for x in tensors], dim)


def _copy_of(view: Any) -> Any:
    def rule_of_copy(*args: Any, **kwargs: Any) -> Any:
        result = view(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            return aten.clone.default(result)
        return [aten.clone.default(piece) for piece in result]

    return rule_of_copy


for _name in [
    "alias",
    "as_strided",
    "diagonal",
    "expand",
    "permute",
    "select.int",
    "slice.Tensor",
    "squeeze",
    "squeeze.dim",
    "squeeze.dims",
    "t",
    "transpose.int",
    "unfold",
    "unsqueeze",
    "view",
    "view.dtype",
    "split.Tensor",
    "split_with_sizes",
    "unbind.int",
    "detach",
    "view_as_complex",
    "view_as_real",
]:
    _op, _, _overload = _name.partition(".")
    _key, _value = named(f"aten::{_op}_copy.{_overload}"), named(f"aten::{_name}")
    if _key is not None:
        VARIANTS[_key] = _copy_of(_value)


@rule(aten.narrow_copy.default)
def narrow_copy(x: torch.Tensor, dim: int, start: Any, length: Any) -> Any:
    return aten.clone.default(aten.slice.Tensor(x, dim, start, start + length))


# --- reductions ---


def _all(x: torch.Tensor) -> list[int]:
    return list(range(x.dim()))


@rule(aten.sum.default)
def sum_all(x: torch.Tensor, *, dtype: Any = None) -> Any:
    return aten.sum.dim_IntList(x, _all(x), dtype=dtype)


@rule(aten.sum.dim_IntList)
def sum_no_dims(x: torch.Tensor, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return NotImplemented if dim or x.dim() == 0 else aten.sum.dim_IntList(x, _all(x), keepdim, dtype=dtype)


@rule(aten.mean.default)
def mean_all(x: torch.Tensor, *, dtype: Any = None) -> Any:
    return aten.mean.dim(x, _all(x), dtype=dtype)


@rule(aten.mean.dim)
def mean_no_dims(x: torch.Tensor, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return NotImplemented if dim or x.dim() == 0 else aten.mean.dim(x, _all(x), keepdim, dtype=dtype)


@rule(aten.max.default)
def max_all(x: torch.Tensor) -> Any:
    return aten.amax.default(x, _all(x))


@rule(aten.min.default)
def min_all(x: torch.Tensor) -> Any:
    return aten.amin.default(x, _all(x))


@rule(aten.amax.default)
def amax_no_dims(x: torch.Tensor, dim: Any = (), keepdim: bool = False) -> Any:
    return NotImplemented if dim or x.dim() == 0 else aten.amax.default(x, _all(x), keepdim)


@rule(aten.amin.default)
def amin_no_dims(x: torch.Tensor, dim: Any = (), keepdim: bool = False) -> Any:
    return NotImplemented if dim or x.dim() == 0 else aten.amin.default(x, _all(x), keepdim)


@rule(aten.var.default)
def var_default(x: torch.Tensor, unbiased: bool = True) -> Any:
    return aten.var.correction(x, _all(x), correction=int(unbiased))


@rule(aten.var.dim)
def var_dim(x: torch.Tensor, dim: Any, unbiased: bool = True, keepdim: bool = False) -> Any:
    return aten.var.correction(x, dim or _all(x), correction=int(unbiased), keepdim=keepdim)


@rule(aten.var.correction)
def var_canonical(x: torch.Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    if (dim or x.dim() == 0) and correction is not None:
        return NotImplemented
    return aten.var.correction(x, dim or _all(x), correction=1 if correction is None else correction, keepdim=keepdim)


@rule(aten.std.correction)
def std(x: torch.Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    wide = computation_dtype(x.dtype)
    variance = aten.var.correction(cast(x, wide), dim, correction=correction, keepdim=keepdim)
    return cast(aten.sqrt.default(variance), torch.empty((), dtype=x.dtype).real.dtype if x.dtype.is_complex else x.dtype)


@rule(aten.var_mean.correction)
def var_mean(x: torch.Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    dim = dim or _all(x)
    return aten.var.correction(x, dim, correction=correction, keepdim=keepdim), aten.mean.dim(x, dim, keepdim)


@rule(aten.any.default)
def any_all(x: torch.Tensor) -> Any:
    return aten.any.dims(x, _all(x))


@rule(aten.any.dim)
def any_dim(x: torch.Tensor, dim: int, keepdim: bool = False) -> Any:
    return aten.any.dims(x, [dim], keepdim)


@rule(aten.all.default)
def all_all(x: torch.Tensor) -> Any:
    return aten.logical_not.default(aten.any.dims(aten.logical_not.default(x), _all(x)))


@rule(aten.prod.default)
def prod_all(x: torch.Tensor, *, dtype: Any = None) -> Any:
    return aten.prod.dim_int(aten.reshape.default(x, [-1]), 0, dtype=dtype)


# --- contractions ---


@rule(aten.addmm.default)
def addmm_scaled(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if beta == 1 and alpha == 1:
        return NotImplemented
    return _blend(bias, aten.mm.default, a, b, beta, alpha)


@rule(aten.addmv.default)
def addmv(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _blend(
        bias, lambda x, y: aten.squeeze.dims(aten.mm.default(x, aten.unsqueeze.default(y, 1)), [1]), a, b, beta, alpha
    )


@rule(aten.baddbmm.default)
def baddbmm(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if beta == 1 and alpha == 1:
        return NotImplemented
    return _blend(bias, aten.bmm.default, a, b, beta, alpha)


@rule(aten.native_batch_norm.default)
def native_batch_norm(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
) -> Any:
    if mean is None:
        return aten._native_batch_norm_legit.no_stats(x, weight, bias, training, momentum, eps)
    if training:
        return aten._native_batch_norm_legit.default(x, weight, bias, mean, variance, training, momentum, eps)
    return aten._native_batch_norm_legit_no_training.default(x, weight, bias, mean, variance, momentum, eps)


@rule(aten.addbmm.default)
def addbmm(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    # the batch joins the contracted dimension: one matrix product
    left = aten.reshape.default(aten.permute.default(a, [1, 0, 2]), [a.shape[1], a.shape[0] * a.shape[2]])
    right = aten.reshape.default(b, [b.shape[0] * b.shape[1], b.shape[2]])
    return _blend(bias, aten.mm.default, left, right, beta, alpha)


def _blend(bias: torch.Tensor, multiply: Any, a: torch.Tensor, b: torch.Tensor, beta: Any, alpha: Any) -> Any:
    """``beta * bias + alpha * (a @ b)``; with ``beta`` 0 a NaN in ``bias`` does not count.

    Halves are scaled and added in float32, so that the result is rounded once, as torch rounds it.
    """
    dtype = a.dtype
    if dtype in (torch.bfloat16, torch.float16):
        bias, a, b = (cast(value, torch.float32) for value in (bias, a, b))
    if not (dtype.is_floating_point or dtype.is_complex):
        beta, alpha = int(beta), int(alpha)  # as torch does for integers
    result = multiply(a, b)
    if alpha != 1:
        result = aten.mul.Tensor(result, alpha)
    if not (isinstance(beta, int | float) and beta == 0):
        result = aten.add.Tensor(bias if beta == 1 else aten.mul.Tensor(bias, beta), result)
    return cast(result, dtype)


# --- distances ---


@rule(aten._cdist_backward.default)
def cdist_backward_of_nothing(grad: torch.Tensor, x1: torch.Tensor, x2: torch.Tensor, p: float, cdist: torch.Tensor) -> Any:
    """Of no pairs torch returns zeros that lie as ``x1``, without the batches that only ``x2`` has."""
    if not any(isinstance(size, int) and size == 0 for size in grad.shape):
        return NotImplemented
    return full(0, x1.shape, x1.dtype, x1)


# --- distinct elements ---


@rule(aten._unique.default)
def unique(x: torch.Tensor, sorted: bool = True, return_inverse: bool = False) -> Any:
    distinct, places, _ = aten._unique2.default(x, sorted, return_inverse, False)
    return distinct, places
