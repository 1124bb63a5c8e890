"""Kernels beside the emitter's: hand-written C++ for prims whose loops depend on the data (sorting, search, compaction,
rejection sampling), and torch's own products of complex matrices.

Each takes the prim's arguments and returns its results, contiguous.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from reference_backends.cpp_cpu import attention, compiler, grouped, linalg, resample, solvers
from reference_backends.cpp_cpu.table import CTYPES
from reference_backends.cpp_cpu.written import Written
from vendor_sdk import FLOAT8, Kernel, NodeContext, TensorInfo

Tensor = torch.Tensor


# Products of complex numbers, which loops do not compute with

COMPLEX = frozenset((torch.complex64, torch.complex128))


def _mm(a: Tensor, b: Tensor) -> Tensor:
    return torch.mm(a, b)


def _bmm(a: Tensor, b: Tensor) -> Tensor:
    return torch.bmm(a, b)


def _addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return torch.addmm(c, a, b, beta=beta, alpha=alpha)


def _baddbmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return torch.baddbmm(c, a, b, beta=beta, alpha=alpha)


# Selection


_FUNCTIONS: Mapping[str, tuple[str, ...]] = {
    "sort": ("sort",),
    "topk": ("topk",),
    **dict.fromkeys(("kthvalue", "median", "nanmedian"), ("select",)),
    "mode": ("mode",),
    "searchsorted": ("search",),
    "nonzero": ("count", "nonzero"),
    "masked_select": ("masked",),
    "bincount": ("bincount",),
}
"""Prim to functions of ``selection.cpp`` for elements of its first operand's type."""


@functools.cache
def _library(function: str, dtype: torch.dtype) -> Written:
    name = str(dtype).removeprefix("torch.")
    return Written("base.h", "selection.cpp", **{function.upper(): "", "TYPE": CTYPES[dtype], "NAME": name})


def _selection(function: str, dtype: torch.dtype, *arguments: Tensor | int | None) -> int:
    return compiler.call(_library(function, dtype)(), function, dtype, *arguments)


_sampling = Written("base.h", "philox.h", "sampling.cpp")


def _lines(x: Tensor, dim: int) -> tuple[Tensor, int, int, int, int]:
    """``x`` contiguous, the dimension, and sizes (outer, n, inner) around it; a 0-d tensor is one line of one element."""
    x = x.contiguous()
    if x.dim() == 0:
        return x, 0, 1, 1, 1
    dim %= x.dim()
    return x, dim, math.prod(x.shape[:dim]), x.shape[dim], math.prod(x.shape[dim + 1 :])


def _pair(x: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    return torch.empty(shape, dtype=x.dtype), torch.empty(shape, dtype=torch.int64)


def _sort(x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    x, dim, outer, n, inner = _lines(x, dim)
    values, indices = _pair(x, x.shape)
    _selection("sort", x.dtype, x, values, indices, outer, n, inner, int(descending))
    return values, indices


def _topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    x, dim, outer, n, inner = _lines(x, dim)
    if not 0 <= k <= n:
        raise RuntimeError("selected index k out of range")
    values, indices = _pair(x, (*x.shape[:dim], k, *x.shape[dim + 1 :]) if x.dim() else x.shape)
    if values.numel():
        _selection("topk", x.dtype, x, values, indices, outer, n, inner, k, int(largest))
    return values, indices


def _reduced(x: Tensor, dim: int, keepdim: bool) -> list[int]:
    shape = list(x.shape)
    if shape:
        shape[dim : dim + 1] = [1] if keepdim else []
    return shape


def _ranked(x: Tensor, rank: int, dim: int, keepdim: bool, skip_nan: bool) -> tuple[Tensor, Tensor]:
    x, dim, outer, n, inner = _lines(x, dim)
    values, indices = _pair(x, _reduced(x, dim, keepdim))
    if values.numel():
        if n == 0 or rank >= n:
            raise IndexError("selection from a dimension with too few elements")
        _selection("select", x.dtype, x, values, indices, outer, n, inner, rank, int(skip_nan))
    return values, indices


def _kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if k < 1:
        raise RuntimeError("selected number k out of range")
    return _ranked(x, k - 1, dim, keepdim, False)


def _median(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _ranked(x, -1, dim, keepdim, False)


def _nanmedian(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _ranked(x, -1, dim, keepdim, True)


def _mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    x, dim, outer, n, inner = _lines(x, dim)
    values, indices = _pair(x, _reduced(x, dim, keepdim))
    if values.numel():
        if n == 0:
            raise IndexError("mode of a dimension of size 0")
        _selection("mode", x.dtype, x, values, indices, outer, n, inner)
    return values, indices


def _search(sequence: Tensor, values: Tensor, order: Tensor | None, right: bool, out_int32: bool) -> Tensor:
    dtype = torch.promote_types(sequence.dtype, values.dtype)
    n = sequence.shape[-1]
    shared = sequence.dim() == 1
    rows = 1 if shared else math.prod(sequence.shape[:-1])
    # Operands of different dtypes are compared in their common one.
    sequence, query = sequence.to(dtype).contiguous(), values.to(dtype).contiguous()
    out = torch.empty(values.shape, dtype=torch.int64)
    if out.numel():
        count = out.numel() // rows
        places = None if order is None else order.contiguous()
        _selection("search", dtype, sequence, query, places, out, rows, n, count, int(shared), int(right))
    return out.to(torch.int32) if out_int32 else out


def _searchsorted(
    sequence: Tensor,
    values: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    return _search(sequence, values, sorter, right or side == "right", out_int32)


def _nonzero(x: Tensor) -> Tensor:
    x = x.contiguous()
    found = _selection("count", x.dtype, x, x.numel())
    out = torch.empty((found, x.dim()), dtype=torch.int64)
    shape = torch.tensor(x.shape, dtype=torch.int64)
    _selection("nonzero", x.dtype, x, out, shape, x.dim(), x.numel())
    return out


def _masked_select(x: Tensor, mask: Tensor) -> Tensor:
    x, mask = (t.contiguous() for t in torch.broadcast_tensors(x, mask))  # type: ignore[no-untyped-call]
    out = torch.empty((_selection("count", torch.bool, mask, mask.numel()),), dtype=x.dtype)
    _selection("masked", x.dtype, x, mask, out, x.numel())
    return out


def _bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    x = x.contiguous()
    size = max(int(x.max()) + 1 if x.numel() else 0, minlength)
    counts = torch.zeros(size if weights is None else 0, dtype=torch.int64)
    sums = torch.zeros(0 if weights is None else size, dtype=torch.float64)
    wide = None if weights is None else weights.to(torch.float64).contiguous()
    if _selection("bincount", x.dtype, x, wide, counts, sums, x.numel()):
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is None:
        return counts
    return sums if weights.dtype != torch.float32 else sums.to(torch.float32)


# Sampling


def _seed() -> int:
    """Drawn from torch's generator, so that ``torch.manual_seed`` fixes the result."""
    return int(torch.empty((), dtype=torch.int64).random_().item())


def _own_generator(generator: Any) -> None:
    if generator is not None:
        raise NotImplementedError("cpp_cpu draws from torch's default generator only")


def _elements(name: str) -> Callable[..., Tensor]:
    def kernel(a: Tensor, generator: Any = None) -> Tensor:
        _own_generator(generator)
        a = a.contiguous()
        out = torch.empty_like(a)
        compiler.call(_sampling(), name, a.dtype, a, None, out, a.numel(), _seed())
        return out

    return kernel


def _binomial(count: Tensor, prob: Tensor, generator: Any = None) -> Tensor:
    _own_generator(generator)
    count, prob = (t.contiguous() for t in torch.broadcast_tensors(count, prob))  # type: ignore[no-untyped-call]
    out = torch.empty_like(count)
    compiler.call(_sampling(), "binomial", count.dtype, count, prob, out, out.numel(), _seed())
    return out


def _multinomial(weights: Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None) -> Tensor:
    _own_generator(generator)
    weights = weights.contiguous()
    rows, n = (1, weights.shape[0]) if weights.dim() == 1 else weights.shape
    out = torch.empty((*weights.shape[:-1], num_samples), dtype=torch.int64)
    sums = torch.empty(n, dtype=torch.float64)
    arguments = (weights, out, sums, rows, n, num_samples, int(replacement), _seed())
    if compiler.call(_sampling(), "multinomial", weights.dtype, *arguments):
        raise RuntimeError(
            "invalid multinomial distribution (weights must be finite, not negative, and enough of them positive)"
        )
    return out


def _randperm(n: int, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    out = torch.empty(n, dtype=torch.int64)
    compiler.call(_sampling(), "permutation", None, out, n, _seed())
    return out.to(dtype or torch.int64)


# Complex numbers, segments


_segments = Written("base.h", "segments.cpp")


def _complex(real: Tensor, imaginary: Tensor) -> Tensor:
    real, imaginary = (t.contiguous() for t in torch.broadcast_tensors(real, imaginary))  # type: ignore[no-untyped-call]
    out = torch.empty((*real.shape, 2), dtype=real.dtype)
    compiler.call(_segments(), "complex", real.dtype, real, imaginary, out, real.numel())
    return torch.view_as_complex(out)


def _conjugate(x: Tensor) -> Tensor:
    if not x.is_complex():
        return x.clone(memory_format=torch.contiguous_format)
    pairs = torch.view_as_real(x.resolve_conj()).contiguous()
    out = torch.empty_like(pairs)
    compiler.call(_segments(), "conjugate", pairs.dtype, pairs, out, x.numel())
    return torch.view_as_complex(out)


_SEGMENT_KINDS = {"sum": 0, "mean": 1, "max": 2, "min": 3, "prod": 4}


class _Segments:
    """Where segments begin, as the C++ takes it, from ``lengths`` or ``offsets`` along ``axis``."""

    def __init__(self, data: Tensor, lengths: Tensor | None, offsets: Tensor | None, axis: int) -> None:
        if lengths is None and offsets is None:
            raise RuntimeError("segment_reduce(): Either lengths or offsets must be defined.")
        if offsets is None:
            assert lengths is not None
            offsets = torch.zeros((*lengths.shape[:-1], lengths.shape[-1] + 1), dtype=torch.int64)
            torch.cumsum(lengths, -1, out=offsets[..., 1:])
        self.first = offsets.to(torch.int64).contiguous()
        self.count = self.first.shape[-1] - 1
        self.outer, self.n = math.prod(data.shape[:axis]), data.shape[axis]
        self.inner = math.prod(data.shape[axis + 1 :])
        self.shape = (*data.shape[:axis], self.count, *data.shape[axis + 1 :])
        if self.count > 0 and self.first.numel() and (int(self.first.min()) < 0 or int(self.first.max()) > self.n):
            raise RuntimeError("segment_reduce(): a segment lies outside the data")

    def rest(self, reduce: str, initial: float | None) -> tuple[Tensor | int, ...]:
        start = torch.tensor(0.0 if initial is None else float(initial), dtype=torch.float64)
        sizes = (self.outer, self.count, self.n, self.inner)
        return (self.first, *sizes, _SEGMENT_KINDS[reduce], int(initial is not None), start)


def _segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Tensor:
    data = data.contiguous()
    segments = _Segments(data, lengths, offsets, axis)
    out = torch.empty(segments.shape, dtype=data.dtype)
    compiler.call(_segments(), "segments", data.dtype, data, out, *segments.rest(reduce, initial))
    return out


def _segment_reduce_backward(
    gradient: Tensor,
    output: Tensor,
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    initial: float | None = None,
) -> Tensor:
    gradient, output, data = gradient.contiguous(), output.contiguous(), data.contiguous()
    segments = _Segments(data, lengths, offsets, axis)
    out = torch.empty_like(data)
    compiler.call(_segments(), "segments_backward", data.dtype, gradient, output, data, out, *segments.rest(reduce, initial))
    return out


KERNELS: Mapping[str, Kernel | Callable[..., Any]] = {
    "mm": Kernel(_mm, dtypes=COMPLEX),
    "bmm": Kernel(_bmm, dtypes=COMPLEX),
    "addmm": Kernel(_addmm, dtypes=COMPLEX),
    "baddbmm": Kernel(_baddbmm, dtypes=COMPLEX),
    "sort": _sort,
    "topk": _topk,
    "kthvalue": _kthvalue,
    "median": _median,
    "nanmedian": _nanmedian,
    "mode": _mode,
    "searchsorted": _searchsorted,
    "nonzero": _nonzero,
    "masked_select": _masked_select,
    "bincount": _bincount,
    "poisson": _elements("poisson"),
    "_standard_gamma": _elements("standard_gamma"),
    "binomial": _binomial,
    "multinomial": _multinomial,
    "randperm": _randperm,
    "complex": _complex,
    "_conj_physical": _conjugate,
    "segment_reduce": _segment_reduce,
    "_segment_reduce_backward": _segment_reduce_backward,
    **attention.KERNELS,
    **grouped.KERNELS,
    **linalg.KERNELS,
    **resample.KERNELS,
    **solvers.KERNELS,
}
"""Prim to kernel; the presence of a key is the capability."""

_LIBRARIES: Mapping[str, Written] = {
    **dict.fromkeys(("poisson", "_standard_gamma", "binomial", "multinomial", "randperm"), _sampling),
    **dict.fromkeys(("segment_reduce", "_segment_reduce_backward"), _segments),
    **dict.fromkeys(linalg.KERNELS, linalg.LIBRARY),
    **resample.LIBRARIES,
}
"""Prim to the library that its kernel calls, whatever the types."""


def libraries(node: NodeContext) -> list[Written]:
    """What the kernel of a node calls."""
    if node.prim in _LIBRARIES:
        return [_LIBRARIES[node.prim]]
    dtypes = [each.dtype for each in node.args if isinstance(each, TensorInfo)]
    if node.prim in solvers.KERNELS:
        return [solvers.LIBRARIES[dtypes[0]]]
    if node.prim == "searchsorted":  # Operands of different dtypes are compared in their common one.
        dtypes = [functools.reduce(torch.promote_types, dtypes[:2])]
    calls = [(function, dtypes[0]) for function in _FUNCTIONS.get(node.prim, ())]
    if node.prim == "masked_select":
        calls.append(("count", torch.bool))
    return [_library(function, dtype) for function, dtype in calls if dtype in CTYPES and dtype not in FLOAT8]
