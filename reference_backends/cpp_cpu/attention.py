"""Attention kernels: what ``attention.cpp`` and ``attention_backward.cpp`` compute, called with torch's arguments.

Queries, keys and values have shape (batch, heads, rows, width) and any strides; no score matrix is ever held. Halves are
computed in float32. Memory beyond the results: blocks of 128 keys per thread (and, backward, the gradient of one head's
queries in the computation dtype); where a few heads are split into spans of keys, a part of the result for each span.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Callable, Mapping

import torch

from reference_backends.cpp_cpu import compiler
from reference_backends.cpp_cpu.units import library
from vendor_sdk import Decline, Kernel, NodeContext, TensorInfo, destination

Tensor = torch.Tensor

_ELEMENTS = {
    torch.float32: ("float", "float"),
    torch.float64: ("double", "double"),
    torch.bfloat16: ("float", "bf16"),
    torch.float16: ("float", "f16"),
}
"""C++ types of accumulators and elements."""
_STATUS = {2: IndexError, 3: MemoryError}
_DROPOUT = {"scaled_dot_product_attention": 3, "scaled_dot_product_attention_backward": 6}
"""Position of ``dropout_p`` in the arguments."""
_DIRECTION = {
    "scaled_dot_product_attention": "attention",
    "scaled_dot_product_attention_backward": "attention_backward",
}
"""File of each composite's kernel."""
COMPOSITES = frozenset(_DROPOUT)


def _source(direction: str, dtype: torch.dtype) -> str:
    """The text for one dtype: compiled alone, since few programs use several."""
    accumulator, element = _ELEMENTS[dtype]
    files = ("base.h", "attention.h", "attention_tile.h", f"{direction}.cpp")
    return "".join(map(library, files)) + f"ATTENTION({accumulator}, {element}, {str(dtype).removeprefix('torch.')})\n"


def prepare(node: NodeContext) -> None:
    """Begins to compile in the background what ``node`` will run, if it is attention."""
    operand = node.args[0] if node.prim in COMPOSITES else None
    if isinstance(operand, TensorInfo) and operand.dtype in _ELEMENTS:
        compiler.start(_source(_DIRECTION[node.prim], operand.dtype))


@functools.cache
def _function(direction: str, dtype: torch.dtype) -> Callable[..., int]:
    """The entry point for one dtype."""
    name = str(dtype).removeprefix("torch.")
    prefix = direction if direction.endswith("backward") else f"{direction}_forward"
    function = getattr(compiler.load(_source(direction, dtype)), f"{prefix}_{name}")
    function.restype = ctypes.c_int32
    return function  # type: ignore[no-any-return]


def _call(direction: str, tensors: tuple[Tensor | None, ...], dtype: torch.dtype, numbers: list[int]) -> None:
    buffers = (ctypes.c_void_p * len(tensors))(*(None if t is None else t.data_ptr() for t in tensors))
    status = _function(direction, dtype)(buffers, (ctypes.c_int64 * len(numbers))(*numbers))
    if status:
        raise _STATUS[status](f"cpp_cpu: {direction}: no memory for a work area")


def _prepared_mask(mask: Tensor | None, dtype: torch.dtype) -> tuple[Tensor | None, int]:
    """The mask in a dtype that the C++ reads, and which: 1 bool, 2 the accumulators', 3 the operands' own."""
    if mask is None:
        return None, 0
    if mask.dtype == torch.bool:
        return mask, 1
    if mask.dtype == dtype:
        return mask, 3
    return mask.to(torch.float64 if dtype == torch.float64 else torch.float32), 2


def _problem(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, mask: Tensor | None, kind: int, scale: float | None
) -> list[int]:
    batch, heads, rows, width = query.shape
    shared, keys = key.shape[1], key.shape[2]
    if heads % max(shared, 1):
        raise RuntimeError(f"attention: {heads} heads of queries do not divide among {shared} heads of keys")
    if scale is None:
        scale = 1 / math.sqrt(width) if width else 0.0
    (bits,) = struct.unpack("q", struct.pack("d", scale))
    at: tuple[int, ...] = (0, 0, 0, 0)
    if mask is not None:
        whole = mask.expand(batch, heads, rows, keys)
        at = tuple(stride if size > 1 else 0 for size, stride in zip(whole.shape, whole.stride(), strict=True))
    sizes = (batch, heads, shared, rows, keys, width, value.shape[3])
    return [*sizes, kind, int(causal), bits, *query.stride(), *key.stride(), *value.stride(), *at]


@destination
def _forward(
    out: Tensor,
    logsumexp: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> None:
    mask, kind = _prepared_mask(attn_mask, query.dtype)
    numbers = _problem(query, key, value, is_causal, mask, kind, scale)
    numbers += (*out.stride(), *logsumexp.stride(), 0, logsumexp.dtype == torch.float64)
    _call("attention", (out, logsumexp, query, key, value, mask), query.dtype, numbers)


@destination
def _backward(
    grad_query: Tensor,
    grad_key: Tensor,
    grad_value: Tensor,
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> None:
    mask, kind = _prepared_mask(attn_mask, query.dtype)
    numbers = _problem(query, key, value, is_causal, mask, kind, scale)
    for tensor in (grad, out):
        numbers += tensor.stride()
    numbers += (*logsumexp.stride(), 0)
    for tensor in (grad_query, grad_key, grad_value):
        numbers += tensor.stride()
    numbers.append(logsumexp.dtype == torch.float64)
    tensors = (grad_query, grad_key, grad_value, grad, query, key, value, out, logsumexp, mask)
    _call("attention_backward", tensors, query.dtype, numbers)


def declined(node: NodeContext) -> Decline | None:
    """Why these kernels don't take ``node``, or None."""
    if node.prim not in COMPOSITES:
        return None
    position = _DROPOUT[node.prim]
    if len(node.args) > position and node.args[position]:
        return Decline(
            "dropout inside attention: the operator has no seed from which its backward could draw the same numbers again"
        )
    if len({v.dtype for v in node.args[:5] if isinstance(v, TensorInfo)}) > 1:
        return Decline("query, key and value of different dtypes")
    return None


KERNELS: Mapping[str, Kernel] = {
    "scaled_dot_product_attention": _forward,
    "scaled_dot_product_attention_backward": _backward,
}
"""Composite to kernel."""
