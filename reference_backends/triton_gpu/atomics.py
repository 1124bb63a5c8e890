"""Stores that combine with what is there, for which the GPU has no instruction: device functions that generated kernels call.

All take a block of pointers to 32 or 64 bits, of the values, the mask (or None), and the buffer's first address.
"""

# mypy: disable-error-code="misc, no-untyped-def, no-untyped-call, untyped-decorator"
# Triton compiles these functions itself, see ``base``.

import triton
import triton.language as tl

from reference_backends.triton_gpu import base


@triton.jit
def _update(pointers, values, mask, first, combine: tl.constexpr):
    """Reads, combines, and writes where nobody else wrote meanwhile, until all are through."""
    if len(pointers.shape) > 0:
        values = tl.broadcast_to(values, pointers.shape)
    if mask is None:
        waiting = (values == values) | True
    elif len(pointers.shape) > 0:
        waiting = tl.broadcast_to(mask, pointers.shape)
    else:
        waiting = mask
    if values.dtype.primitive_bitwidth == 32:
        bits = tl.int32
    else:
        bits = tl.int64
    cells = pointers.to(tl.pointer_type(bits), bitcast=True)
    # Compare-and-swap has no mask: idle lanes swap a zero of the first element, if it is one, for a zero.
    spare = first.to(tl.pointer_type(bits), bitcast=True)
    found = tl.load(cells, mask=waiting, other=0)
    while base.some(waiting):
        before = found
        after = combine(before.to(values.dtype, bitcast=True), values).to(bits, bitcast=True)
        places = tl.where(waiting, cells, spare)
        found = tl.atomic_cas(places, tl.where(waiting, before, 0), tl.where(waiting, after, 0), sem="relaxed")
        waiting = waiting & (found != before)


@triton.jit
def mul(pointers, values, mask, first):
    _update(pointers, values, mask, first, base.combine_prod)


@triton.jit
def max(pointers, values, mask, first):
    """NaN is above all."""
    if values.dtype.is_floating():
        _update(pointers, values, mask, first, base.combine_max)
    else:
        tl.atomic_max(pointers, values, mask=mask, sem="relaxed")


@triton.jit
def min(pointers, values, mask, first):
    """NaN is below all."""
    if values.dtype.is_floating():
        _update(pointers, values, mask, first, base.combine_min)
    else:
        tl.atomic_min(pointers, values, mask=mask, sem="relaxed")


@triton.jit
def add(pointers, values, mask, first):
    tl.atomic_add(pointers, values, mask=mask, sem="relaxed")
