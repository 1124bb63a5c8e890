"""Attention kernels: what ``attention.cpp`` and ``attention_backward.cpp`` compute, as launches.

Queries, keys and values have shape (batch, heads, rows, width) and any strides; no score matrix is ever held. Halves are
computed in float32. Memory beyond the results: blocks of 128 keys per thread (and, backward, the gradient of one head's
queries in the computation dtype); where a few heads are split into spans of keys, a part of the result for each span.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from reference_backends.cpp_cpu import compiler
from reference_backends.cpp_cpu.headers import library
from reference_backends.cpp_cpu.program import CompiledFunction, native_kernel
from vendor_sdk import Decline, Kernel, NativeCall, NodeContext, Operand, TensorInfo, kept_factor, words_kept

Tensor = torch.Tensor

_ELEMENTS = {
    torch.float32: ("float", "float"),
    torch.float64: ("double", "double"),
    torch.bfloat16: ("float", "bf16"),
    torch.float16: ("float", "f16"),
}
"""C++ types of accumulators and elements."""
_DROPOUT_P = {"scaled_dot_product_attention": 3, "scaled_dot_product_attention_backward": 6}
"""Position of ``dropout_p`` in the arguments of those that have no seed."""
_VARIANTS = {
    "scaled_dot_product_attention": ("attention", False),
    "scaled_dot_product_attention_backward": ("attention_backward", False),
    "general_attention": ("attention", True),
    "general_attention_backward": ("attention_backward", True),
}
"""File of each composite's kernel, and whether it is compiled with dropout and caps, which a call then has or not."""
COMPOSITES = frozenset(_VARIANTS)
_NO_MASK, _BOOL_MASK, _WIDE_MASK, _OWN_MASK = range(4)
"""``MaskKind`` of attention_tile.h."""


def _source(direction: str, dtype: torch.dtype, general: bool) -> str:
    """The text for one dtype: compiled alone, since few programs use several."""
    accumulator, element = _ELEMENTS[dtype]
    random = ("philox.h", "attention_dropout.h") if general else ()
    files = ("base.h", "attention.h", *random, "attention_tile.h", f"{direction}.cpp")
    text = "".join(map(library, files)) + f"ATTENTION({accumulator}, {element}, {str(dtype).removeprefix('torch.')})\n"
    return f"#define GENERAL 1\n{text}" if general else text


def prepare(composite: str, dtype: torch.dtype) -> None:
    """Begins to compile in the background what runs a composite in a dtype."""
    if dtype in _ELEMENTS:
        direction, general = _VARIANTS[composite]
        compiler.start(_source(direction, dtype, general))


@functools.cache
def _function(direction: str, dtype: torch.dtype, general: bool) -> CompiledFunction:
    """The entry point for one dtype."""
    prefix = direction if direction.endswith("backward") else f"{direction}_forward"
    name = f"{prefix}_{str(dtype).removeprefix('torch.')}"
    return CompiledFunction(lambda: compiler.load(_source(direction, dtype, general)), name)


def _mask_kind(mask: Operand | None, dtype: torch.dtype) -> int | None:
    """How the C++ reads a mask; None: not in its dtype."""
    if mask is None:
        return _NO_MASK
    if mask.dtype == torch.bool:
        return _BOOL_MASK
    return _OWN_MASK if mask.dtype == dtype else _WIDE_MASK if mask.dtype == _wide(dtype) else None


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


class _General(NamedTuple):
    """What our own operator has besides: the seed of which weights are kept, an int64 in memory, with the probability of the
    others; the cap of scores."""

    seed: Operand | None
    probability: float
    cap: float | None

    @property
    def numbers(self) -> list[Any]:
        """Those of ``problem_of``. Where nothing is kept, what is multiplied by 0 may be any."""
        cap = _bits(self.cap or 0.0)
        if self.seed is None:
            return [cap, 0, 0, 0, 0]
        return [cap, 1, self.seed.offset, max(words_kept(self.probability) - 1, 0), _bits(kept_factor(self.probability))]


def _bits(value: float) -> int:
    bits: int = struct.unpack("q", struct.pack("d", value))[0]
    return bits


def _problem(
    query: Operand,
    key: Operand,
    value: Operand,
    causal: bool,
    mask: Operand | None,
    scale: float | None,
    general: _General | None,
) -> list[Any] | None:
    """The numbers of ``problem_of``; None where they are not known while compiling."""
    batch, heads, rows, width = query.shape
    shared, keys, depth = key.shape[1], key.shape[2], value.shape[3]
    kind = _mask_kind(mask, query.dtype)
    if kind is None or not isinstance(heads, int) or not isinstance(shared, int) or not isinstance(width, int):
        return None
    if heads % max(shared, 1):
        raise RuntimeError(f"attention: {heads} heads of queries do not divide among {shared} heads of keys")
    if scale is None:
        scale = 1 / math.sqrt(width) if width else 0.0
    at: list[Any] = [0] * 5
    if mask is not None:
        steps = [0 if size == 1 else step for size, step in zip(mask.shape, mask.strides, strict=True)]
        at = [*[0] * (4 - len(steps)), *steps, mask.offset]
    numbers = [batch, heads, shared, rows, keys, width, depth, kind, int(causal), _bits(scale)]
    for operand in (query, key, value):
        numbers += [*operand.strides, operand.offset]
    return [*numbers, *at, *(general.numbers if general else ())]


def _beside(query: Operand, mask: Operand | None, general: _General | None) -> tuple[Operand, ...]:
    """The mask, and the seed where the function takes one; anything in place of one that there is not."""
    return mask or query, *((general.seed or query,) if general else ())


def _forward(
    out: Operand,
    logsumexp: Operand,
    query: Operand,
    key: Operand,
    value: Operand,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Operand | None = None,
    scale: float | None = None,
    general: _General | None = None,
) -> NativeCall | None:
    numbers = _problem(query, key, value, is_causal, attn_mask, scale, general)
    if numbers is None:
        return None
    numbers += [*out.strides, *logsumexp.strides, 0, int(logsumexp.dtype == torch.float64)]
    operands = query, key, value, *_beside(query, attn_mask, general)
    return NativeCall(_function("attention", query.dtype, general is not None), operands, tuple(numbers))


def _backward(
    grad_query: Operand,
    grad_key: Operand,
    grad_value: Operand,
    grad: Operand,
    query: Operand,
    key: Operand,
    value: Operand,
    out: Operand,
    logsumexp: Operand,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Operand | None = None,
    scale: float | None = None,
    general: _General | None = None,
) -> NativeCall | None:
    numbers = _problem(query, key, value, is_causal, attn_mask, scale, general)
    if numbers is None:
        return None
    for operand in (grad, out):
        numbers += [*operand.strides, operand.offset]
    numbers += [*logsumexp.strides, 0, logsumexp.offset]
    for result in (grad_query, grad_key, grad_value):
        numbers += result.strides
    numbers.append(int(logsumexp.dtype == torch.float64))
    operands = grad, query, key, value, out, logsumexp, *_beside(query, attn_mask, general)
    return NativeCall(_function("attention_backward", query.dtype, general is not None), operands, tuple(numbers))


def _of_general(native: Callable[..., NativeCall | None], tensors: int) -> Callable[..., NativeCall | None]:
    """For the arguments of our own operator, which has a seed behind its first ``tensors`` operands."""

    def call(
        *args: Any, attn_mask: Operand | None = None, scale: float | None = None, cap: float | None = None
    ) -> NativeCall | None:
        first, (seed, dropout_p, *rest) = args[:tensors], args[tensors:]
        causal = rest[0] if rest else False
        mask = rest[1] if len(rest) > 1 else attn_mask
        return native(*first, 0.0, causal, attn_mask=mask, scale=scale, general=_General(seed, dropout_p, cap))

    return call


def _kernel(native: Callable[..., NativeCall | None], mask_at: int = -1) -> Kernel:
    """As ``native_kernel`` makes it, for masks of any dtype.

    Args:
        mask_at: position of the mask among results and operands, where it need not be a keyword.
    """
    kernel = native_kernel(native)

    def call(*args: Any, attn_mask: Tensor | None = None, **options: Any) -> None:
        if len(args) == mask_at + 1:
            *args, attn_mask = args  # type: ignore[assignment]
        if attn_mask is not None and attn_mask.dtype not in (torch.bool, args[0].dtype):
            attn_mask = attn_mask.to(_wide(args[0].dtype))
        kernel.call(*args, attn_mask=attn_mask, **options)

    return replace(kernel, call=call)


def declined(node: NodeContext) -> Decline | None:
    """Why these kernels don't take ``node``, or None."""
    if node.prim not in COMPOSITES:
        return None
    position = _DROPOUT_P.get(node.prim)
    if position is not None and len(node.args) > position and node.args[position]:
        return Decline(
            "dropout inside attention: the operator has no seed from which its backward could draw the same numbers again"
        )
    if len({v.dtype for v in node.args[:5] if isinstance(v, TensorInfo) and v.dtype.is_floating_point}) > 1:
        return Decline("query, key and value of different dtypes")
    return None


KERNELS: Mapping[str, Kernel] = {
    "scaled_dot_product_attention": _kernel(_forward),
    "scaled_dot_product_attention_backward": _kernel(_backward),
    "general_attention": _kernel(_of_general(_forward, 5), 8),
    "general_attention_backward": _kernel(_of_general(_backward, 9), 12),
}
"""Composite to kernel."""
