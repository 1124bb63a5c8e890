"""Which blocks of scores a mask leaves, in Triton: those that it hides as a whole are not computed, and where a mask of bools
hides nothing it is not read.

Importing it needs triton; ``flash_launch.py`` launches one of its functions before a function of attention, for the blocks of
that one. Lists lie as (batch, heads, blocks of rows, 2 + blocks of keys), where batch and heads are those of the mask: how many
blocks are seen in part, and how many as a whole; then the first ones' numbers from the left, the others' from the right.
"""

# mypy: disable-error-code="misc, no-untyped-def, no-untyped-call, untyped-decorator"
# Triton compiles these functions itself, see ``flash``.

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
    PART: tl.constexpr,
    ELEMENT: tl.constexpr = None,
):
    """Lists for one block of ``ROWS`` rows the blocks of ``KEYS`` keys that some of its rows see, by each element.

    TURNED: "rows" are keys here, and "keys" rows. WIDE: blocks of keys at a time, a power of two; PART: rows at a time, of
    these. ELEMENT: what computes whether an element is seen (as true says in a mask), from row, key, batch, head and what
    ``mask`` is then a tuple of.
    """
    blocks, others = tl.cdiv(rows, ROWS), tl.cdiv(keys, KEYS)
    first = tl.program_id(0) % blocks * ROWS
    matrix = (tl.program_id(0) // blocks).to(tl.int64)
    batch, head = matrix // heads, matrix % heads
    at = lists + tl.program_id(0).to(tl.int64) * (2 + others)
    count = min(ROWS, rows - first)
    some, plain = 0, 0
    for start in range(0, others, WIDE):
        number = start + tl.arange(0, WIDE)
        counts = _counts(
            mask, number, first, count, rows, keys, batch, head, mask_batch, mask_head, mask_row, mask_column,
            CAUSAL, TURNED, ROWS, KEYS, WIDE, PART, ELEMENT,
        )  # fmt: skip
        full = (counts == count * KEYS).to(tl.int32)
        part = (counts > 0).to(tl.int32) - full
        tl.store(at + 1 + some + tl.cumsum(part, 0), number, mask=part > 0)
        tl.store(at + 2 + others - plain - tl.cumsum(full, 0), number, mask=full > 0)
        some += tl.sum(part, 0)
        plain += tl.sum(full, 0)
    tl.store(at, some)
    tl.store(at + 1, plain)


@triton.jit
def bounded(
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
    FEW: tl.constexpr,
    PART: tl.constexpr,
    ELEMENT: tl.constexpr,
    BOUNDS: tl.constexpr,
):
    """The same by bounds, of ``WIDE`` blocks at a time; those that bounds leave open are looked at by element, ``FEW`` at a
    time, and are seen in part if any is seen.

    BOUNDS: what computes whether blocks are seen as a whole, and whether they may be seen in part (``flash_bounds.py``), from
    rows and keys, and the first and last of them.
    """
    blocks, others = tl.cdiv(rows, ROWS), tl.cdiv(keys, KEYS)
    first = tl.program_id(0) % blocks * ROWS
    matrix = (tl.program_id(0) // blocks).to(tl.int64)
    batch, head = matrix // heads, matrix % heads
    at = lists + tl.program_id(0).to(tl.int64) * (2 + others)
    count = min(ROWS, rows - first)
    row = tl.minimum(first + tl.arange(0, ROWS)[:, None], rows - 1)
    last = first + count - 1
    some, plain = 0, 0
    for start in range(0, others, WIDE):
        number = start + tl.arange(0, WIDE)
        left = (number * KEYS)[:, None]
        key = tl.minimum(left + tl.arange(0, KEYS)[None, :], keys - 1)
        right = tl.minimum(left + KEYS, keys) - 1
        if TURNED:
            every, any_ = BOUNDS(key, row, left, right, first, last, batch, head, 1, *mask)
        else:
            every, any_ = BOUNDS(row, key, first, last, left, right, batch, head, 0, *mask)
        if CAUSAL and TURNED:
            every, any_ = every & (last <= left), any_ & (first <= right)
        elif CAUSAL:
            every, any_ = every & (right <= first), any_ & (left <= last)
        there = number < others
        full = (_line(every, WIDE) & there & ((number + 1) * KEYS <= keys)).to(tl.int32)
        open_ = (_line(any_, WIDE) & there).to(tl.int32) * (1 - full)
        tl.store(at + 1 + some + tl.cumsum(open_, 0), number, mask=open_ > 0)
        tl.store(at + 2 + others - plain - tl.cumsum(full, 0), number, mask=full > 0)
        some += tl.sum(open_, 0)
        plain += tl.sum(full, 0)
    tl.debug_barrier()
    kept = 0
    for start in range(0, some, FEW):
        place = start + tl.arange(0, FEW)
        number = tl.load(at + 2 + place, mask=place < some, other=others)
        counts = _counts(
            mask, number, first, count, rows, keys, batch, head, mask_batch, mask_head, mask_row, mask_column,
            CAUSAL, TURNED, ROWS, KEYS, FEW, PART, ELEMENT,
        )  # fmt: skip
        part = (counts > 0).to(tl.int32)
        tl.debug_barrier()  # What is read here is overwritten.
        tl.store(at + 1 + kept + tl.cumsum(part, 0), number, mask=part > 0)
        kept += tl.sum(part, 0)
    tl.store(at, kept)
    tl.store(at + 1, plain)


@triton.jit
def _line(block, WIDE: tl.constexpr):
    """Bools of blocks, in one dimension."""
    return tl.reshape(tl.broadcast_to(block.to(tl.int32), [WIDE, 1]), [WIDE]) != 0


@triton.jit
def _counts(
    mask,
    number,
    first,
    count,
    rows,
    keys,
    batch,
    head,
    mask_batch,
    mask_head,
    mask_row,
    mask_column,
    CAUSAL: tl.constexpr,
    TURNED: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDE: tl.constexpr,
    PART: tl.constexpr,
    ELEMENT: tl.constexpr,
):
    """How many elements are seen of each of ``WIDE`` blocks."""
    key = (number * KEYS)[None, :, None] + tl.arange(0, KEYS)[None, None, :]
    each = tl.zeros([PART, WIDE, KEYS], tl.int32)
    for lower in range(0, ROWS if PART == ROWS else count, PART):
        row = (first + lower + tl.arange(0, PART))[:, None, None]
        there = (row < rows) & (key < keys)
        if ELEMENT is None:
            from_here = mask + batch * mask_batch + head * mask_head
            given = tl.load(from_here + row.to(tl.int64) * mask_row + key.to(tl.int64) * mask_column, mask=there, other=0)
            seen = there & (given != 0)
        elif TURNED:
            seen = there & ELEMENT(tl.minimum(key, keys - 1), tl.minimum(row, rows - 1), batch, head, *mask)
        else:
            seen = there & ELEMENT(tl.minimum(row, rows - 1), tl.minimum(key, keys - 1), batch, head, *mask)
        if CAUSAL:
            seen = seen & (row <= key if TURNED else key <= row)
        each += seen.to(tl.int32)
    # What lies side by side is a thread's own, and is counted first.
    return tl.sum(tl.sum(each, 0), 1) if TURNED else tl.sum(tl.sum(each, 2), 0)
