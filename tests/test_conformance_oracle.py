"""The oracle is tested: every planted bug is caught, by the case and the check meant for it, and a right backend passes.

Each bug is a subclass of a chip that passes. What takes its process down (crashes, hangs, exits) is in ``test_conformance.py``.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

import vendor_sdk
from conformance import cases, fused, guards, judge, probes, witness
from conformance.cases import Case
from conformance.certify import certify
from conformance.outcome import Outcome, finished
from conformance.subject import BackendSubject
from conformance.subnormals import Flushing
from tests.toys import ToyMemory

aten = torch.ops.aten
Tensor = torch.Tensor
SEED = 11


def array(x: Tensor) -> Any:
    """The values as float64, integers and bool as they are."""
    return (x.double() if x.dtype.is_floating_point else x).numpy()


def tensor(values: Any, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(np.array(values)).to(dtype)


class Chip:
    """Right, and torch nowhere: float64 arithmetic of numpy, rounded once."""

    numerics: Mapping[str, str] = {}

    @vendor_sdk.hookimpl
    def backend(self) -> vendor_sdk.Backend:
        return vendor_sdk.Backend(name="planted", version="1", dtypes=frozenset(vendor_sdk.ALL), numerics=self.numerics)

    @vendor_sdk.hookimpl
    def kernels(self) -> Mapping[str, Callable[..., Any]]:
        names = (
            "abs",
            "add",
            "argmax",
            "avg_pool2d",
            "cat",
            "clone",
            "convolution",
            "cumsum",
            "div.Tensor_mode",
            "exp",
            "floor",
        )
        names += ("maximum", "mm", "mul", "neg", "rand", "relu", "round", "scatter_add", "sin", "sort", "sqrt", "sub", "sum")
        return {name: getattr(self, name.partition(".")[0]) for name in names}

    def _of(self, function: Callable[..., Any], *operands: Any, to_float: bool = False) -> Tensor:
        dtype = torch.result_type(*operands) if len(operands) == 2 else operands[0].dtype
        if to_float and not dtype.is_floating_point:
            dtype = torch.float32
        with np.errstate(all="ignore"):
            return tensor(function(*(array(x) if isinstance(x, Tensor) else x for x in operands)), dtype)

    def abs(self, x: Tensor) -> Tensor:
        return self._of(np.abs, x)

    def add(self, x: Tensor, y: Any) -> Tensor:
        return self._of(np.add if x.dtype != torch.bool else np.logical_or, x, y)

    def sub(self, x: Tensor, y: Any) -> Tensor:
        return self._of(np.subtract, x, y)

    def mul(self, x: Tensor, y: Any) -> Tensor:
        return self._of(np.multiply, x, y)

    def maximum(self, x: Tensor, y: Tensor) -> Tensor:
        return self._of(np.maximum, x, y)

    def neg(self, x: Tensor) -> Tensor:
        return self._of(np.negative, x)

    def exp(self, x: Tensor) -> Tensor:
        return self._of(np.exp, x, to_float=True)

    def sin(self, x: Tensor) -> Tensor:
        return self._of(np.sin, x, to_float=True)

    def sqrt(self, x: Tensor) -> Tensor:
        return self._of(np.sqrt, x, to_float=True)

    def round(self, x: Tensor) -> Tensor:
        return self._of(np.rint, x)

    def floor(self, x: Tensor) -> Tensor:
        return self._of(np.floor, x)

    def clone(self, x: Tensor, *, memory_format: Any = None) -> Tensor:
        return self._of(np.copy, x)

    def relu(self, x: Tensor) -> Tensor:
        return self._of(lambda v: np.where(v < 0, 0, v), x)

    def div(self, x: Tensor, y: Any, *, rounding_mode: str) -> Tensor:
        def whole(a: Any, b: Any) -> Any:
            return np.floor_divide(a, b) if rounding_mode == "floor" else np.trunc(np.true_divide(a, b))

        return self._of(whole, x, y)

    def sum(self, x: Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
        wanted = dtype or (x.dtype if x.dtype.is_floating_point else torch.int64)
        axes = tuple(dim) if x.dim() else None
        with np.errstate(all="ignore"):
            return tensor(array(x).sum(axis=axes, keepdims=keepdim and x.dim() > 0), wanted)

    def cumsum(self, x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
        wanted = dtype or (x.dtype if x.dtype.is_floating_point else torch.int64)
        with np.errstate(all="ignore"):
            return tensor(array(x).cumsum(axis=dim if x.dim() else None).reshape(x.shape), wanted)

    def argmax(self, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        axis = dim if x.dim() else None
        return tensor(np.argmax(array(x), axis=axis, keepdims=keepdim and x.dim() > 0), torch.int64)

    def sort(self, x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
        values = array(x)
        if x.dim() == 0:
            return tensor(values, x.dtype), torch.zeros((), dtype=torch.int64)
        flipped = np.flip(values, dim) if descending else values
        order = np.argsort(flipped, axis=dim, kind="stable")
        if descending:
            order = np.flip(values.shape[dim] - 1 - order, dim)
        return tensor(np.take_along_axis(values, order, dim), x.dtype), tensor(order, torch.int64)

    def scatter_add(self, x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
        out, indices, values = (np.atleast_1d(array(operand)).copy() for operand in (x, index, src))
        for place in np.ndindex(*indices.shape):
            self._accumulate(out, (*place[:dim], indices[place], *place[dim:][1:]), values[place])
        return tensor(out.reshape(x.shape), x.dtype)

    def _accumulate(self, out: Any, place: tuple[int, ...], value: Any) -> None:
        out[place] += value

    def mm(self, a: Tensor, b: Tensor) -> Tensor:
        return self._of(np.matmul, a, b)

    def cat(self, tensors: list[Tensor], dim: int = 0) -> Tensor:
        return tensor(np.concatenate([array(x) for x in tensors], dim), tensors[0].dtype)

    def avg_pool2d(
        self,
        x: Tensor,
        kernel: Any,
        stride: Any = (),
        padding: Any = (0, 0),
        ceil: Any = False,
        counted: Any = True,
        divisor: Any = None,
    ) -> Tensor:
        values, steps = array(x), stride or kernel
        sizes = []
        for size, k, s, p in zip(values.shape[-2:], kernel, steps, padding, strict=True):
            count = (size + 2 * p - k + (s - 1 if ceil else 0)) // s + 1
            sizes.append(count - (ceil and (count - 1) * s >= size + p))
        result = np.zeros((*values.shape[:-2], *sizes))
        for place in np.ndindex(*sizes):
            firsts = [o * s - p for o, s, p in zip(place, steps, padding, strict=True)]
            ends = [min(f + k, n + p) for f, k, n, p in zip(firsts, kernel, values.shape[-2:], padding, strict=True)]
            inside = [slice(max(f, 0), min(e, n)) for f, e, n in zip(firsts, ends, values.shape[-2:], strict=True)]
            window = values[(..., *inside)]
            padded = (ends[0] - firsts[0]) * (ends[1] - firsts[1])
            count = divisor or (padded if counted else window.shape[-1] * window.shape[-2])
            with np.errstate(all="ignore"):
                result[(..., *place)] = window.sum(axis=(-2, -1)) / count
        return tensor(result, x.dtype)

    def convolution(self, x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
        stride, padding, dilation, transposed, more, groups = rest
        values, factors = array(x), array(weight)
        batch, channels, *sizes = values.shape
        kernel = factors.shape[2:]
        reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
        if transposed:
            counts, whole = sizes, [(n - 1) * s + r for n, s, r in zip(sizes, stride, reach, strict=True)]
            values = values.reshape(batch, groups, channels // groups, *sizes)
            factors = factors.reshape(groups, channels // groups, -1, *kernel).swapaxes(1, 2)
        else:
            values = np.pad(values, [(0, 0), (0, 0), *((p, p) for p in padding)])
            counts = whole = [(n - r) // s + 1 for n, r, s in zip(values.shape[2:], reach, stride, strict=True)]
            values = values.reshape(batch, groups, channels // groups, *values.shape[2:])
            factors = factors.reshape(groups, -1, channels // groups, *kernel)
        result = np.zeros((batch, groups, factors.shape[1], *whole))
        for k in np.ndindex(*kernel):
            steps = zip(k, dilation, stride, counts, strict=True)
            window = (..., *(slice(o * d, o * d + (n - 1) * s + 1, s) for o, d, s, n in steps))
            with np.errstate(all="ignore"):
                terms = np.einsum("ngc...,goc->ngo...", values if transposed else values[window], factors[(..., *k)])
                result[window if transposed else ...] += terms
        if transposed:
            result = np.pad(result, [(0, 0)] * 3 + [(0, m) for m in more])
            result = result[(..., *(slice(p, n + m - p) for p, n, m in zip(padding, whole, more, strict=True)))]
        result = result.reshape(batch, -1, *result.shape[3:])
        with np.errstate(all="ignore"):
            return tensor(result if bias is None else result + array(bias).reshape(-1, *[1] * len(kernel)), x.dtype)

    def rand(self, size: list[int], *, dtype: torch.dtype | None = None, **rest: Any) -> Tensor:
        seed = int(torch.empty((), dtype=torch.int64).random_())
        return self._numbers(seed, size, dtype or torch.float32)

    def _numbers(self, seed: int, size: list[int], dtype: torch.dtype) -> Tensor:
        values = np.random.default_rng(seed % 2**32).random(size)
        bits = {torch.bfloat16: 8, torch.float16: 11}.get(dtype, 24)
        return tensor(np.floor(values * 2**bits) / 2**bits, dtype)


# What is computed is wrong


class TruncatesHalves(Chip):
    """The low bits of float32 are cut off where they should be rounded."""

    def add(self, x: Tensor, y: Any) -> Tensor:
        if x.dtype != torch.bfloat16:
            return super().add(x, y)
        exact = self._of(np.add, x.float(), y.float() if isinstance(y, Tensor) else y)
        return (exact.view(torch.int32) & -65536).view(torch.float32).to(torch.bfloat16)


class DropsTheTail(Chip):
    """What does not fill a vector of 16 is never written."""

    def abs(self, x: Tensor) -> Tensor:
        right = super().abs(x)
        right.reshape(-1)[x.numel() // 16 * 16 :] = 0
        return right


class OneWrongElement(Chip):
    def exp(self, x: Tensor) -> Tensor:
        right = super().exp(x)
        if x.numel() > 100:
            right.reshape(-1)[x.numel() // 2] *= 1.001
        return right


class IgnoresStrides(Chip):
    """Elements in the order of memory."""

    def exp(self, x: Tensor) -> Tensor:
        if x.dim() == 2 and x.stride() == (1, x.shape[0]):
            x = x.t().reshape(x.shape)
        return super().exp(x)


class SwallowsNan(Chip):
    def maximum(self, x: Tensor, y: Tensor) -> Tensor:
        return self._of(np.fmax, x, y)


class LosesNegativeZero(Chip):
    def neg(self, x: Tensor) -> Tensor:
        return self._of(lambda v: 0 - v, x)


class TiesAwayFromZero(Chip):
    def round(self, x: Tensor) -> Tensor:
        return self._of(lambda v: np.copysign(np.floor(np.abs(v) + 0.5), v), x)


class FlushesSubnormals(Chip):
    def mul(self, x: Tensor, y: Any) -> Tensor:
        right = super().mul(x, y)
        if not right.dtype.is_floating_point:
            return right
        return torch.where(right.abs() < torch.finfo(right.dtype).smallest_normal, 0.0, right)


class Saturates(Chip):
    """Integers stop at the end of their range instead of wrapping."""

    def sub(self, x: Tensor, y: Any) -> Tensor:
        if x.dtype != torch.int32:
            return super().sub(x, y)
        exact = x.long() - (y.long() if isinstance(y, Tensor) else int(y))
        return exact.clamp(-(2**31), 2**31 - 1).int() if not isinstance(y, float) else super().sub(x, y)


class DividesTowardZero(Chip):
    def div(self, x: Tensor, y: Any, *, rounding_mode: str) -> Tensor:
        return super().div(x, y, rounding_mode="trunc")


class AccumulatesInHalf(Chip):
    def sum(self, x: Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
        if x.dtype != torch.float16 or x.dim() != 2 or list(dim) != [1] or not x.numel():
            return super().sum(x, dim, keepdim, dtype=dtype)
        with np.errstate(all="ignore"):
            sums = np.add.accumulate(x.numpy(), axis=1)[:, -1:]
        return torch.from_numpy(sums if keepdim else sums[:, 0])


class TenBitProducts(Chip):
    """Operands of matrix products lose their low bits, as in TF32."""

    def mm(self, a: Tensor, b: Tensor) -> Tensor:
        if a.dtype != torch.float32:
            return super().mm(a, b)
        short = [(x.contiguous().view(torch.int32) & -8192).view(torch.float32) for x in (a, b)]
        return super().mm(*short)


class DropsTheLastProduct(Chip):
    def mm(self, a: Tensor, b: Tensor) -> Tensor:
        return super().mm(a[:, : a.shape[1] // 8 * 8], b[: a.shape[1] // 8 * 8])


class CleansOperands(Chip):
    """NaN counts as zero, an infinity as the largest number."""

    def mm(self, a: Tensor, b: Tensor) -> Tensor:
        return super().mm(a.nan_to_num(), b.nan_to_num())

    def cat(self, tensors: list[Tensor], dim: int = 0) -> Tensor:
        return super().cat([x.nan_to_num() for x in tensors], dim)

    def avg_pool2d(self, x: Tensor, *rest: Any, **named: Any) -> Tensor:
        return super().avg_pool2d(x.nan_to_num(), *rest, **named)

    def convolution(self, x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
        return super().convolution(x.nan_to_num(), weight, bias, *rest)


class SkipsZeros(Chip):
    """A product with zero is taken for zero, also that with an infinity."""

    def mm(self, a: Tensor, b: Tensor) -> Tensor:
        skipped = torch.where(a[:, :, None] == 0, 0.0, b.expand(a.shape[0], *b.shape)) if a.dtype == torch.float32 else None
        return (
            super().mm(a, b)
            if skipped is None
            else torch.cat(
                [Chip.mm(self, row[None], matrix) for row, matrix in zip(a, skipped, strict=True)] or [super().mm(a, b)]
            )
        )


class CountsInTenBits(Chip):
    """Sums end after 1024 terms."""

    def mm(self, a: Tensor, b: Tensor) -> Tensor:
        return super().mm(a[:, :1024], b[:1024])


class SharesAnExponent(Chip):
    """Operands as integers of 24 bits, with one exponent for all."""

    def mm(self, a: Tensor, b: Tensor) -> Tensor:
        if a.dtype != torch.float32 or not a.numel() or not b.numel() or not (a.isfinite().all() and b.isfinite().all()):
            return super().mm(a, b)
        units = [x.abs().max().clamp(min=1e-30) * 2.0**-24 for x in (a, b)]
        return super().mm(*((x / unit).round() * unit for x, unit in zip((a, b), units, strict=True)))


class ScalesBefore(Chip):
    """A product in float32 that is four times too large on its way."""

    def mm(self, a: Tensor, b: Tensor) -> Tensor:
        return super().mm(a * 2, b * 2) / 4 if a.dtype == torch.float32 else super().mm(a, b)


class AddsIntegersInFloat64(Chip):
    """As long as they are small it does not show."""

    def sum(self, x: Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
        if x.dtype != torch.int64:
            return super().sum(x, dim, keepdim, dtype=dtype)
        return super().sum(x.double(), dim, keepdim, dtype=torch.float64).long()


class ShortBlocks(Chip):
    """The carry from one block of a scan to the next is lost."""

    def cumsum(self, x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
        blocks = x.split(32, dim) if x.dim() else (x,)
        return torch.cat([Chip.cumsum(self, block, dim, dtype=dtype) for block in blocks], dim) if x.dim() else x.clone()


class LastOfEqual(Chip):
    """The last of equal maxima, where the first is asked for."""

    def argmax(self, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        if x.dim() == 0 or dim is None:
            return super().argmax(x, dim, keepdim)
        return x.shape[dim] - 1 - super().argmax(x.flip(dim), dim, keepdim)


class UnstableSort(Chip):
    def sort(self, x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
        if x.dim() == 0:
            return super().sort(x, dim=dim)
        values, order = super().sort(x.flip(dim), dim=dim, descending=descending)
        return values, x.shape[dim] - 1 - order


class LosesDuplicates(Chip):
    """Of several values for one place, the last wins."""

    def scatter_add(self, x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
        self._start = array(x).reshape(-1) if x.dim() == 0 else array(x)
        return super().scatter_add(x, dim, index, src)

    def _accumulate(self, out: Any, place: tuple[int, ...], value: Any) -> None:
        out[place] = self._start[place] + value


# What is computed is right, once


class Remembers(Chip):
    """An answer is kept by shape."""

    def __init__(self) -> None:
        self.answers: dict[Any, Tensor] = {}

    def sin(self, x: Tensor) -> Tensor:
        return self.answers.setdefault(tuple(x.shape), super().sin(x)).clone()


class RemembersAddresses(Remembers):
    """An answer is kept by the operand's address, shape and strides."""

    def sin(self, x: Tensor) -> Tensor:
        return self.answers.setdefault((x.data_ptr(), x.shape, x.stride()), Chip.sin(self, x)).clone()


class ReusesItsResult(Remembers):
    def sin(self, x: Tensor) -> Tensor:
        return self.answers.setdefault(tuple(x.shape), torch.empty(x.shape)).copy_(Chip.sin(self, x))


class WorksInPlace(Chip):
    def relu(self, x: Tensor) -> Tensor:
        right = super().relu(x)
        if x.is_contiguous():
            x.copy_(right)
        return right


class WritesBeside(Chip):
    """A vector of 32 bytes is stored where less is left of the operand."""

    def relu(self, x: Tensor) -> Tensor:
        if x.is_contiguous() and x.numel():
            ctypes.memset(x.data_ptr() + x.nbytes, 0, 32)
        return super().relu(x)


class WritesBehindResults(Chip):
    """The last vector of a result is stored whole, where its memory has an element less."""

    @vendor_sdk.hookimpl
    def kernels(self) -> Mapping[str, Any]:
        def relu(out: Tensor, x: Tensor) -> None:
            out.copy_(super(WritesBehindResults, self).relu(x))
            if out.nbytes % 16 and out.is_contiguous():  # where the host's allocator has nothing of its own
                ctypes.memset(out.data_ptr() + out.nbytes, 0, 4)

        return {**super().kernels(), "relu": vendor_sdk.Kernel(relu, destination=True)}


class ReadsBeside(Chip):
    """The element behind the last one counts."""

    def sum(self, x: Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
        right = super().sum(x, dim, keepdim, dtype=dtype)
        if x.is_contiguous() and x.dtype == torch.float32 and x.numel() and right.numel():
            right.reshape(-1)[-1] += ctypes.c_float.from_address(x.data_ptr() + x.nbytes).value
        return right


class Shuffles(Chip):
    """Sums in an order that changes from call to call."""

    def sum(self, x: Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
        right = super().sum(x, dim, keepdim, dtype=dtype)
        if right.dtype != torch.float32:
            return right
        towards = torch.tensor(np.random.default_rng().choice([-1e38, 1e38], tuple(right.shape)), dtype=torch.float32)
        return torch.where(right.isfinite(), torch.nextafter(right, towards), right)


class SharesScratch(Chip):
    """Threads that run at the same time overwrite each other's intermediate results."""

    scratch: Any = None

    def mul(self, x: Tensor, y: Any) -> Tensor:
        self.scratch = super().mul(x, y)
        time.sleep(1e-3)
        return self.scratch if self.scratch.shape == x.shape and self.scratch.dtype == x.dtype else super().mul(x, y)


class Leaks(Chip):
    def sqrt(self, x: Tensor) -> Tensor:
        kept.append(x.clone())
        return super().sqrt(x)


kept: list[Tensor] = []


class OneStream(Chip):
    """The same numbers whatever the seed."""

    def rand(self, size: list[int], *, dtype: torch.dtype | None = None, **rest: Any) -> Tensor:
        return self._numbers(7, size, dtype or torch.float32)


class SeedAlone(Chip):
    """All calls and all nodes draw the same numbers: only the seed counts, not what was drawn since."""

    def rand(self, size: list[int], *, dtype: torch.dtype | None = None, **rest: Any) -> Tensor:
        return self._numbers(torch.initial_seed(), size, dtype or torch.float32)


class OneLongStream(Chip):
    """Each call begins one number after the one before: all have their numbers from one stream."""

    def rand(self, size: list[int], *, dtype: torch.dtype | None = None, **rest: Any) -> Tensor:
        start = drawn_since_seeding()
        values = self._numbers(torch.initial_seed(), [start + math.prod(size)], dtype or torch.float32)
        return values[start:].reshape(size)


class SeedsShareAStream(Chip):
    """The seed says where in one stream to begin."""

    def rand(self, size: list[int], *, dtype: torch.dtype | None = None, **rest: Any) -> Tensor:
        start = torch.initial_seed() % 2**16
        key = 7 + drawn_since_seeding()
        return self._numbers(key, [start + math.prod(size)], dtype or torch.float32)[start:].reshape(size)


class SixteenBitsOfSeed(Chip):
    """The high bits of the seed do not count."""

    def rand(self, size: list[int], *, dtype: torch.dtype | None = None, **rest: Any) -> Tensor:
        return self._numbers(torch.initial_seed() % 2**16 + 2**16 * drawn_since_seeding(), size, dtype or torch.float32)


class ShortPeriod(Chip):
    """A generator of 2**13 numbers, which then repeat."""

    def rand(self, size: list[int], *, dtype: torch.dtype | None = None, **rest: Any) -> Tensor:
        values = super().rand([2**13], dtype=dtype)
        return values.repeat(-(-math.prod(size) // 2**13))[: math.prod(size)].reshape(size)


def drawn_since_seeding() -> int:
    """How many numbers torch's generator has given since its seed; one more afterwards."""
    now, again = torch.get_rng_state(), torch.Generator().manual_seed(torch.initial_seed())
    count = 0
    while not torch.equal(again.get_state(), now):
        torch.empty((), dtype=torch.int64).random_(generator=again)
        count += 1
    torch.empty((), dtype=torch.int64).random_()
    return count


class IgnoresTheSeed(Chip):
    def rand(self, size: list[int], *, dtype: torch.dtype | None = None, **rest: Any) -> Tensor:
        return self._numbers(time.perf_counter_ns(), size, dtype or torch.float32)


class CorrelatedNeighbours(Chip):
    """Every number comes twice."""

    def rand(self, size: list[int], *, dtype: torch.dtype | None = None, **rest: Any) -> Tensor:
        right = super().rand(size, dtype=dtype)
        flat = right.reshape(-1)
        flat[1::2] = flat[: flat.numel() // 2 * 2 : 2]
        return right


# It is somebody else's work, or no work yet


class Disguise(Chip):
    """Claims a prim, and calls torch for it."""

    def add(self, x: Tensor, y: Any) -> Tensor:
        return x + y


class ReturnsEarly(Chip):
    """A worker is still computing when the call has returned: fast, as long as nobody looks."""

    def floor(self, x: Tensor) -> Tensor:
        result = torch.zeros_like(x)
        threading.Timer(0.2, lambda: result.copy_(Chip.floor(self, x))).start()
        return result


class Lazy(Tensor):
    """A tensor that could compute when it is read."""


class ComputesWhenRead(Chip):
    def floor(self, x: Tensor) -> Tensor:
        return super().floor(x).as_subclass(Lazy)


class SlowClock(Chip):
    """Time passes more slowly from the first call on."""

    def floor(self, x: Tensor) -> Tensor:
        time.perf_counter = lambda: 0.0
        return super().floor(x)


PLANTED: list[tuple[type[Chip], str, str, str]] = [
    (TruncatesHalves, "add[bfloat16]", "value", ""),
    (DropsTheTail, "abs[float32]", "value", "odd"),
    (OneWrongElement, "exp[float32]", "value", "odd"),
    (IgnoresStrides, "exp[float32]", "value", "transposed"),
    (SwallowsNan, "maximum[float32]", "value", "special values"),
    (LosesNegativeZero, "neg[float32]", "value", "special values"),
    (TiesAwayFromZero, "round[float32]", "value", "special values"),
    (FlushesSubnormals, "mul[float32]", "value", "special values"),
    (Saturates, "sub[int32]", "value", "integer limits"),
    (DividesTowardZero, "div.Tensor_mode[float32]", "value", ""),
    (AccumulatesInHalf, "sum[float16]", "value", "last dimension"),
    (TenBitProducts, "mm[float32]", "value", ""),
    (DropsTheLastProduct, "mm[float32]", "value", ""),
    (CleansOperands, "mm[float32]", "value", "special values, odd"),
    (CleansOperands, "cat[bfloat16]", "value", "special values, rows"),
    (CleansOperands, "avg_pool2d[float32]", "value", "special values, padded"),
    (CleansOperands, "convolution[float32]", "value", "special values, 2-d"),
    (SkipsZeros, "mm[float32]", "value", "special values, odd"),
    (CountsInTenBits, "mm[float32]", "value", "long sum"),
    (SharesAnExponent, "mm[float32]", "value", "wide range, odd"),
    (ScalesBefore, "mm[float32]", "value", "near overflow, odd"),
    (AddsIntegersInFloat64, "sum[int64]", "value", "whole range, last dimension"),
    (ShortBlocks, "cumsum[float32]", "value", ""),
    (LastOfEqual, "argmax[int64]", "value", ""),
    (UnstableSort, "sort[int64]", "value", ""),
    (LosesDuplicates, "scatter_add[float32]", "value", ""),
    (Remembers, "sin[float32]", "second-call", ""),
    (RemembersAddresses, "sin[float32]", "stale", ""),
    (ReusesItsResult, "sin[float32]", "overwritten", ""),
    (WorksInPlace, "relu[float32]", "input-modified", ""),
    (WritesBeside, "relu[float32]", "out-of-bounds", ""),
    (WritesBehindResults, "relu[float32]", "out-of-bounds", ""),
    (ReadsBeside, "sum[float32]", "value", ""),
    (Shuffles, "sum[float32]", "nondeterministic", ""),
    (SharesScratch, "mul[float32]", "threads", ""),
    (Leaks, "sqrt[float32]", "leak", ""),
    (OneStream, "rand[float32]", "seed", ""),
    (SeedAlone, "rand[float32]", "seed", ""),
    (OneLongStream, "rand[float32]", "seed", ""),
    (SeedsShareAStream, "rand[float32]", "seed", ""),
    (SixteenBitsOfSeed, "rand[float32]", "seed", ""),
    (ShortPeriod, "rand[float32]", "seed", ""),
    (IgnoresTheSeed, "rand[float32]", "nondeterministic", ""),
    (CorrelatedNeighbours, "rand[float32]", "value", ""),
    (Disguise, "add[float32]", "disguised", ""),
    (ReturnsEarly, "floor[float32]", "value", ""),
    (ComputesWhenRead, "floor[float32]", "class", ""),
    (SlowClock, "floor[float32]", "tampered", ""),
]
"""Chip, case meant for its bug, kind of the failure, label of a sample that must be among the failing ones."""


@contextlib.contextmanager
def subject_of(chip: Chip | Apart) -> Iterator[BackendSubject]:
    vendor_sdk.register(chip)
    try:
        yield BackendSubject("planted")
    finally:
        vendor_sdk.unregister("planted")


def outcome(chip: Chip | Apart, case: str) -> Outcome:
    prim, _, dtype = case.removesuffix("]").partition("[")
    with subject_of(chip) as subject:
        case = Case(prim, dtype)
        return finished(certify(subject, case, effort=vendor_sdk.Effort.STANDARD, seed=SEED, device=torch.device("cpu")))


@pytest.fixture(autouse=True)
def _clocks_go_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(time, "perf_counter", time.perf_counter)  # restored afterwards
    kept.clear()
    yield
    kept.clear()


@pytest.mark.parametrize("case", sorted({case for _, case, _, _ in PLANTED}))
def test_the_right_chip_passes(case: str) -> None:
    made = outcome(Chip(), case)
    assert (made.verdict, made.placement, made.failures) == ("pass", "native", [])


@pytest.mark.parametrize(("chip", "case", "kind", "label"), PLANTED, ids=[chip.__name__ for chip, *_ in PLANTED])
def test_a_planted_bug_is_caught_by_the_case_meant_for_it(chip: type[Chip], case: str, kind: str, label: str) -> None:
    made = outcome(chip(), case)
    assert made.verdict == "fail", made
    kinds = {failure.kind for failure in made.failures}
    assert kind in kinds, made.failures
    assert kinds <= {kind, "second-call"}, made.failures  # with other values it shows, or not
    assert not label or label in {failure.label for failure in made.failures}


class Refuses(Chip):
    """Divisions of integers by zero raise, as in eager."""

    def div(self, x: Tensor, y: Any, *, rounding_mode: str) -> Tensor:
        if not x.dtype.is_floating_point and bool((y == 0).any()):
            raise ZeroDivisionError
        return super().div(x, y, rounding_mode=rounding_mode)


class Widens(Chip):
    """What is divided by zero becomes float64."""

    def div(self, x: Tensor, y: Any, *, rounding_mode: str) -> Tensor:
        right = super().div(x, y, rounding_mode=rounding_mode)
        return right.double() if bool((y == 0).any()) else right


def test_any_value_is_right_where_torch_leaves_it_open() -> None:
    for chip in (Chip(), Refuses()):
        assert outcome(chip, "div.Tensor_mode[int32]").verdict == "pass"
    made = outcome(Widens(), "div.Tensor_mode[int32]")
    assert {(failure.kind, failure.label) for failure in made.failures} == {("exception", "by zero")}


def sheet(chip: Chip) -> dict[str, str]:
    with subject_of(chip) as subject:
        return {each.probe: each.value for each in probes.datasheet(subject, torch.device("cpu"))}


def test_probes_read_a_chip_that_rounds_once() -> None:
    found = sheet(Chip())
    assert "unknown" not in found.values(), found
    assert found["mm float32 accumulator"] == found["sum float32 accumulator"] == "float64"
    assert found["mm float16 accumulator"] == "more than 32 bits"
    assert found["mm float32 operands"] == "float32"
    assert found["mul+add float32 contraction"] == "never"
    for dtype in ("float32", "float16", "bfloat16"):
        assert found[f"add {dtype} rounding"] == "nearest, ties to even"
        assert found[f"mul {dtype} subnormals"] == found[f"{dtype} subnormals"] == "kept"


class Flushes(Chip):
    """Takes subnormals for zero, whether it reads or writes them."""

    def _of(self, function: Callable[..., Any], *operands: Any, to_float: bool = False) -> Tensor:
        read = (self._flushed(each) if isinstance(each, Tensor) else each for each in operands)
        return self._flushed(super()._of(function, *read, to_float=to_float))

    def clone(self, x: Tensor, *, memory_format: Any = None) -> Tensor:
        return tensor(np.copy(array(x)), x.dtype)

    def _flushed(self, x: Tensor) -> Tensor:
        if not x.dtype.is_floating_point:
            return x
        return torch.where(x.abs() < torch.finfo(x.dtype).smallest_normal, torch.copysign(torch.zeros(()), x).to(x.dtype), x)


class FlushesAsDeclared(Flushes):
    numerics = {f"{dtype} subnormals": "flushed" for dtype in ("float32", "float16", "bfloat16")}  # noqa: RUF012


class FlushesMore(FlushesAsDeclared):
    """What is small, but not subnormal."""

    def _flushed(self, x: Tensor) -> Tensor:
        if not x.dtype.is_floating_point:
            return x
        return torch.where(x.abs() < 4 * torch.finfo(x.dtype).smallest_normal, 0.0, x)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("prim", ["mul", "add", "exp", "sqrt"])
def test_who_flushes_subnormals_must_say_so(prim: str, dtype: str) -> None:
    case = f"{prim}[{dtype}]"
    assert outcome(FlushesAsDeclared(), case).verdict == "pass"
    assert outcome(Flushes(), case).verdict == "fail"
    assert outcome(FlushesMore(), case).verdict == "fail"


@pytest.mark.parametrize(("prim", "may"), [("abs", True), ("clone", False)])
def test_what_only_moves_data_keeps_subnormals(prim: str, may: bool) -> None:
    row, sample = vendor_sdk.OPSET[prim], vendor_sdk.Sample((torch.tensor([1e-39, 1.0]),))
    expected = judge.expected_result(row, sample)
    found = [torch.tensor([0.0, 1.0])]
    assert judge.judge(row, sample, expected, found, Flushing(frozenset({torch.float32}))).kind == ("" if may else "value")
    assert judge.judge(row, sample, expected, found, Flushing(frozenset({torch.float16}))).kind == "value"
    assert judge.judge(row, sample, expected, found).kind == "value"


def test_probes_hold_what_is_declared_of_subnormals() -> None:
    found = sheet(Flushes())
    assert [found[f"{prim} float32 subnormals"] for prim in ("mul", "add", "exp")] == ["flushed"] * 3
    assert [found[f"{dtype} subnormals"] for dtype in ("float32", "float16", "bfloat16")] == ["flushed"] * 3
    assert sheet(FlushesSubnormals())["float32 subnormals"] == "either"  # products alone
    kept = probes.Finding("float32 subnormals", sheet(Chip())["float32 subnormals"])
    assert not probes.compared([kept], FlushesAsDeclared.numerics)[0]["agrees"]


class Odd(TenBitProducts, AccumulatesInHalf, Shuffles, FlushesSubnormals, TruncatesHalves):
    """Several at once, and sums of float32 one after the other."""

    def sum(self, x: Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
        if x.dtype == torch.float32 and x.shape[1] == probes.ORDERED:
            return torch.from_numpy(np.add.accumulate(x.numpy(), axis=1)[:, -1].copy())
        return super().sum(x, dim, keepdim, dtype=dtype)


def test_probes_read_odd_arithmetic() -> None:
    found = sheet(Odd())
    assert found["mm float32 operands"] == "TF32"
    assert found["sum float16 accumulator"] == "float16"
    assert found["sum float32 determinism"] == "none"
    assert found["sum float32 order"] == "sequential"
    assert found["mul float32 subnormals"] == "flushed when written"
    assert found["add bfloat16 rounding"] == "toward zero"
    assert found["add float32 rounding"] == "nearest, ties to even"
    rows = probes.compared([probes.Finding("mm float32 operands", "TF32")], {"mm float32 operands": "float32", "mm fp64": "x"})
    assert [(row["probe"], row["declared"], row["agrees"]) for row in rows] == [
        ("mm float32 operands", "float32", False),
        ("mm fp64", "x", False),
    ]


class OddElsewhere(Chip):
    """Batched products in halves, scattered sums in any order, conversions that truncate, a row's mean otherwise alone,
    the largest subnormal number zero."""

    @vendor_sdk.hookimpl
    def kernels(self) -> Mapping[str, Callable[..., Any]]:
        return {**super().kernels(), **{name: getattr(self, name) for name in ("bmm", "mean", "amax", "_to_copy")}}

    def bmm(self, x: Tensor, y: Tensor) -> Tensor:
        total = torch.zeros(x.shape[0], x.shape[1], y.shape[2], dtype=torch.bfloat16)
        for k in range(x.shape[2]):
            total = (total.float() + x[:, :, k : k + 1].float() * y[:, k : k + 1].float()).bfloat16()
        return total.to(x.dtype)

    def scatter_add(self, x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
        order = torch.from_numpy(np.random.default_rng().permutation(index.shape[dim]))
        return x.scatter_add(dim, index.index_select(dim, order), src.index_select(dim, order))

    def mean(self, x: Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
        if x.shape[0] == 1:
            return x.flip(1).sum(dim, keepdim) * (1 / x.shape[1])
        return x.mean(dim, keepdim)

    def amax(self, x: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
        found = x.amax(dim, keepdim)
        return torch.where(found.abs() < torch.finfo(x.dtype).smallest_normal, 0, found) if x.is_floating_point() else found

    def _to_copy(self, x: Tensor, *, dtype: torch.dtype | None = None, **rest: Any) -> Tensor:
        if dtype != torch.bfloat16:
            return x.to(dtype)
        return (x.float().view(torch.int32) & -65536).view(torch.float32).to(torch.bfloat16)


def test_probes_look_at_further_operations() -> None:
    right, odd = sheet(Chip()), sheet(OddElsewhere())
    wanted = {
        "bmm float32 accumulator": ("float32", "bfloat16"),
        "scatter_add float32 determinism": ("across batch sizes", "none"),
        "float32 to bfloat16 rounding": ("nearest, ties to even", "toward zero"),
        "float32 to float16 rounding": ("nearest, ties to even", "nearest, ties to even"),
        "mean float32 determinism": ("across batch sizes", "run to run"),
        "amax float32 subnormals": ("kept", "flushed"),
        "gt float32 subnormals": ("kept", "kept"),
        "softmax float32 determinism": ("across batch sizes", "across batch sizes"),
        "attention float32 accumulator": ("float32", "bfloat16"),
    }
    assert {probe: (right[probe], odd[probe]) for probe in wanted} == wanted
    assert not [probe for probe, value in right.items() if value in ("unknown", "other")]


@pytest.mark.parametrize("declared", range(3))
@pytest.mark.parametrize("found", range(3))
def test_determinism_may_be_better_than_declared(found: int, declared: int) -> None:
    name = "sum float32 determinism"
    (row,) = probes.compared([probes.Finding(name, probes.DETERMINISM[found])], {name: probes.DETERMINISM[declared]})
    assert row["agrees"] == (found >= declared)
    (row,) = probes.compared([probes.Finding(name, "unknown")], {name: probes.DETERMINISM[declared]})
    assert not row["agrees"]


def test_guard_zones_keep_layout_and_see_a_write_beside() -> None:
    base = torch.arange(24.0)
    row, column, lone = base[4:12].view(2, 4).t(), base[1::5], torch.tensor(7, dtype=torch.int32)
    made = guards.Guarded([row, column, lone, torch.empty(0, 3)])
    for mine, given in zip(made.tensors, [row, column, lone, torch.empty(0, 3)], strict=True):
        assert torch.equal(mine, given)
        assert (mine.stride(), mine.storage_offset(), mine.dtype) == (given.stride(), given.storage_offset(), given.dtype)
    assert made.tensors[0].untyped_storage().data_ptr() == made.tensors[1].untyped_storage().data_ptr() != base.data_ptr()
    assert not made.breached()
    made.tensors[0].zero_()
    assert base[4] == 4
    ctypes.memset(made.tensors[2].data_ptr() - 1, 0, 1)
    assert made.breached() == {2}
    assert not made.breached()


def test_memory_that_is_kept_once_is_no_leak() -> None:
    measure = witness.heap()
    if measure is None:
        pytest.skip("the C library does not tell what is allocated")
    gc.collect()  # What other tests left would be freed meanwhile, and hide growth.
    caches: list[Tensor] = []
    assert witness.leak(lambda: caches.append(torch.ones(1000)) if len(caches) < 20 else None, [measure]) == 0
    lost: list[Tensor] = []
    found = witness.leak(lambda: lost.append(torch.ones(1000)), [measure])
    assert 4000 <= found < 6000


def test_nothing_of_the_oracle_is_replaced_by_the_sdk_itself() -> None:
    assert witness.replaced() == []


def test_fractional_windows_may_begin_where_more_digits_say() -> None:
    case = cases.Case("fractional_max_pool3d", "float16")
    sample = cases.draw(case, vendor_sdk.Effort.STANDARD, 606)[0]
    expected = judge.expected_result(case.row, sample)
    own = case.row.target(*sample.args)
    exact = [each.value.to(one.dtype) for each, one in zip(expected.results, own, strict=True) if each.value is not None]
    assert not torch.equal(own[0], exact[0])  # else the sample shows nothing
    for found in (own, exact):
        assert judge.judge(case.row, sample, expected, list(found)).problem == ""
    assert judge.judge(case.row, sample, expected, [own[0].flip(0), own[1]]).problem


class Counts(Chip):
    """Has a counter, which moves as it says."""

    launches = 0
    step = 1

    @vendor_sdk.hookimpl
    def backend(self) -> vendor_sdk.Backend:
        return dataclasses.replace(Chip.backend(self), counters=lambda: {"launches": self.launches})

    def _of(self, function: Callable[..., Any], *operands: Any, to_float: bool = False) -> Tensor:
        self.launches += self.step
        return super()._of(function, *operands, to_float=to_float)


class CountsNothing(Counts):
    step = 0


def test_what_is_native_moves_the_devices_counters() -> None:
    assert outcome(Counts(), "exp[float32]").verdict == "pass"
    found = outcome(CountsNothing(), "exp[float32]")
    assert (found.verdict, {failure.kind for failure in found.failures}) == ("fail", {"not-executed"})
    assert found.failures[0].message == "placed native, but none of the device's counters moved: launches"
    on_the_host = outcome(CountsNothing(), "tanh[float32]")
    assert (on_the_host.verdict, on_the_host.placement) == ("pass", "host")


@pytest.mark.parametrize(("chip", "kinds"), [(Counts, set()), (CountsNothing, {"not-executed"})])
def test_generated_graphs_move_them_too(chip: type[Chip], kinds: set[str]) -> None:
    with subject_of(chip()) as subject:
        found = fused.certify(subject, "float32", effort=vendor_sdk.Effort.QUICK, seed=1, device=torch.device("cpu"))
    assert {failure.kind for failure in found.failures} == kinds


class Apart:
    """A chip with memory of its own, which reads bytes as another dtype by itself."""

    def __init__(self) -> None:
        self.memory = ToyMemory()

    @vendor_sdk.hookimpl
    def backend(self) -> vendor_sdk.Backend:
        legalize = vendor_sdk.Legalization(contiguous_inputs=True)
        return vendor_sdk.Backend(name="planted", version="1", dtypes=frozenset(vendor_sdk.ALL), legalize=legalize)

    @vendor_sdk.hookimpl
    def device(self) -> vendor_sdk.Device:
        return self.memory

    @vendor_sdk.hookimpl
    def kernels(self) -> Mapping[str, vendor_sdk.Kernel]:
        return {"view.dtype": vendor_sdk.destination(self.seen_as)}

    def seen_as(self, out: vendor_sdk.DeviceTensor, x: vendor_sdk.DeviceTensor, dtype: torch.dtype) -> None:
        memory, begin = self.memory.buffers, x.offset * x.dtype.itemsize
        memory[out.buffer][:] = memory[x.buffer][begin : begin + len(memory[out.buffer])]


class ApartAndDisguised(Apart):
    """Torch does it, in host memory."""

    def seen_as(self, out: vendor_sdk.DeviceTensor, x: vendor_sdk.DeviceTensor, dtype: torch.dtype) -> None:
        self.memory.array(out).copy_(self.memory.array(x).view(dtype))


def test_transfers_are_no_disguise() -> None:
    """To see a tensor's bytes, the SDK itself views it as another dtype."""
    made = outcome(Apart(), "view.dtype[float32]")
    assert (made.verdict, made.placement, made.failures) == ("pass", "native", [])
    made = outcome(ApartAndDisguised(), "view.dtype[float32]")
    assert {failure.kind for failure in made.failures} == {"disguised"}
