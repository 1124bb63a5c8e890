"""Which blocks of scores a mask of bools leaves, in Triton: those that it hides as a whole are not computed, and where it hides
nothing it is not read.

Importing it needs triton; ``flash_launch.py`` launches it before a function of attention, for the blocks of that one.
"""

# mypy: disable-error-code="misc, no-untyped-def, no-untyped-call, untyped-decorator"
# Triton compiles this function itself, see ``flash``.

import triton
import triton.language as tl


@triton.jit
def listed(
    mask,
    lists,
    heads,
    rows,
    keys,
    mask_batch,
    mask_head,
    mask_row,
    mask_column,
    CAUSAL: tl.constexpr,
    TURNED: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Lists for one block of ``ROWS`` rows the blocks of ``KEYS`` keys that some of its rows see.

    ``lists`` lies as (batch, heads, blocks of rows, 2 + blocks of keys), where batch and heads are those of the mask (true:
    seen): how many blocks are seen in part, and how many as a whole; then the first ones' numbers from the left, the others'
    from the right. TURNED: "rows" are keys here, and "keys" rows. WIDE: blocks of keys at a time, a power of two.
    """
    blocks, others = tl.cdiv(rows, ROWS), tl.cdiv(keys, KEYS)
    first = tl.program_id(0) % blocks * ROWS
    matrix = (tl.program_id(0) // blocks).to(tl.int64)
    from_here = mask + matrix // heads * mask_batch + matrix % heads * mask_head
    at = lists + tl.program_id(0).to(tl.int64) * (2 + others)
    row = (first + tl.arange(0, ROWS))[:, None, None]
    every = min(ROWS, rows - first) * KEYS
    some, plain = 0, 0
    for start in range(0, others, WIDE):
        number = start + tl.arange(0, WIDE)
        key = (number * KEYS)[None, :, None] + tl.arange(0, KEYS)[None, None, :]
        there = (row < rows) & (key < keys)
        given = tl.load(from_here + row.to(tl.int64) * mask_row + key.to(tl.int64) * mask_column, mask=there, other=0)
        seen = there & (given != 0)
        if CAUSAL:
            seen = seen & (row <= key if TURNED else key <= row)
        # What lies side by side is a thread's own, and is counted first.
        each = seen.to(tl.int32)
        counts = tl.sum(tl.sum(each, 0), 1) if TURNED else tl.sum(tl.sum(each, 2), 0)
        full = (counts == every).to(tl.int32)
        part = (counts > 0).to(tl.int32) - full
        tl.store(at + 1 + some + tl.cumsum(part, 0), number, mask=part > 0)
        tl.store(at + 2 + others - plain - tl.cumsum(full, 0), number, mask=full > 0)
        some += tl.sum(part, 0)
        plain += tl.sum(full, 0)
    tl.store(at, some)
    tl.store(at + 1, plain)
