"""Attention forward in Triton: one pass over the keys for a block of queries, no scores in memory.

Dao et al., FlashAttention-2, 2023. Importing it needs triton; ``attention.py`` launches it.

Queries, keys and values have shape (batch, heads, rows, width) and any strides; several heads of queries may share one of keys.
Scores are kept in units of log 2, so that their exponentials are the hardware's own; where numbers are added to them they are
not, since the least number of float32, which hides a key, has no such units. Keys that no query of the block sees are not read;
only blocks that some query sees in part are masked: a causal mask says so itself, of another mask ``flash_lists.py`` says it,
unless its numbers are added. Scores may be capped before all that. With dropout, what is kept is drawn for each block, and the
sums are over all weights. A mask is read from memory, or computed by a function that is given (``flash_masks.py``).
"""

# ruff: noqa: RET505, RUF005
# mypy: disable-error-code="misc, no-untyped-def, no-untyped-call, untyped-decorator"
# Triton compiles these functions itself: their parameters are blocks, which Python's types cannot name; where it knows a
# condition, it needs the ``else`` to leave out the other branch; and what is in a tuple it unpacks in calls only.

import triton
import triton.language as tl

from reference_backends.triton_gpu.base import ratio

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
LEAST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def block_of(
    first,
    start,
    row_step,
    step,
    limit,
    width,
    EDGE: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """``SIZE`` rows of a matrix from ``start`` on, with zeros beyond ``limit`` rows (where EDGE) and ``width`` columns."""
    down, across = tl.arange(0, SIZE), tl.arange(0, WIDTH)
    at = first + tl.cast(start, tl.int64) * row_step + down[:, None] * row_step + across[None, :] * step
    if EDGE:
        return tl.load(at, mask=(start + down < limit)[:, None] & ((across < width) | WHOLE)[None, :], other=0)
    elif WHOLE:
        return tl.load(at)
    else:
        return tl.load(at, mask=(across < width)[None, :], other=0)


@triton.jit
def of_matrix(mask, batch, head, mask_batch, mask_head, MASK: tl.constexpr):
    """What ``masked`` takes of a mask: where that of a head begins, or what its elements follow from beside row and key."""
    if MASK > 2:
        return (batch, head) + mask
    else:
        return mask + batch * mask_batch + head * mask_head


@triton.jit
def saturation(products, FACTOR: tl.constexpr, CAP: tl.constexpr):
    """Capped scores in units of the cap, from products of queries and keys: a hyperbolic tangent, within 6e-7 of itself.

    Less than half of the library's arithmetic, of which there is more for a score than for all else. Near zero a fit of 4e-8.
    """
    x = products * (FACTOR * LN2 / CAP)
    z = x * x
    near = tl.fma(z, -0.0491484771, 0.13299825)
    near = tl.fma(near, z, -0.333326632)
    near = tl.fma(near * z, x, x)
    far = 1.0 + ratio(tl.full([], -2.0, tl.float32), 1.0 + tl.exp2(products * (2 * FACTOR / CAP)))
    return tl.where(tl.abs(x) < 0.35, near, far)


@triton.jit
def masked(
    scores,
    mask_first,
    mask_row,
    mask_column,
    row,
    key,
    rows,
    keys,
    MASK: tl.constexpr,
    ALIKE: tl.constexpr,
    ELEMENT: tl.constexpr,
):
    """Scores under a mask. ``row`` and ``key`` broadcast to their shape, whichever comes first."""
    if MASK == 0:
        return scores
    elif MASK > 2:
        given = ELEMENT(tl.minimum(row, rows - 1), tl.minimum(key, keys - 1), *mask_first)
        if MASK == 3:
            return tl.where(given, scores, float("-inf"))
        else:
            return scores + given.to(tl.float32)
    else:
        at, there = mask_first + key.to(tl.int64) * mask_column, key < keys
        if not ALIKE:
            at, there = at + row.to(tl.int64) * mask_row, there & (row < rows)
        given = tl.load(at, mask=there, other=0)
        if MASK == 1:
            return tl.where(given != 0, scores, float("-inf"))
        else:
            return scores + given.to(tl.float32)


@triton.jit
def words(seed, first, second):
    """The four words of Philox 4x32-7 of counters (first, second, 0, 0), as ``vendor_sdk/prims/dropout.py`` has them.

    A product of 64 bits is one instruction, where the halves of it that Triton's own generator takes are two.
    """
    a, b = first.to(tl.uint32), second.to(tl.uint32)
    c = tl.zeros_like(a)
    d = c
    low, high = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    for _ in tl.static_range(7):
        left, right = a.to(tl.uint64) * 0xD2511F53, c.to(tl.uint64) * 0xCD9E8D57
        a = (right >> 32).to(tl.uint32) ^ b ^ low
        c = (left >> 32).to(tl.uint32) ^ d ^ high
        b, d = right.to(tl.uint32), left.to(tl.uint32)
        low += 0x9E3779B9
        high += 0xBB67AE85
    return a, b, c, d


@triton.jit
def spread(word, ROWS: tl.constexpr, KEYS: tl.constexpr):
    """Words of counters, (ROWS / 2, KEYS / 4), as (ROWS, KEYS): for each weight that some word of the counter is for."""
    parts = word.reshape(ROWS // 16, 1, 8, KEYS // 16, 1, 4, 1)
    return tl.broadcast_to(parts, [ROWS // 16, 2, 8, KEYS // 16, 2, 4, 2]).reshape(ROWS, KEYS)


@triton.jit
def kept(seed, line, start, LAST: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr):
    """Whether weights are kept, of ``ROWS`` rows, whose first has the counter ``line``, and ``KEYS`` keys from ``start`` on, as
    (ROWS, KEYS). Both are whole squares of 16.

    A counter's weights are those of one thread wherever the product that gave the scores left them. Said so, with nothing
    but elementwise functions of one layout, Triton has each thread draw what it needs, and nothing is exchanged: which word a
    weight has is known when it compiles. (Joined words, or bits, it moves through shared memory.)
    """
    group, place = tl.broadcast((start // 4 + tl.arange(0, KEYS // 4))[None, :], (line + tl.arange(0, ROWS // 2))[:, None])
    a, b, c, d = words(seed, group, place)
    row, key = tl.arange(0, ROWS)[:, None], tl.arange(0, KEYS)[None, :]
    lower = tl.where(key // 8 % 2 == 0, spread(a, ROWS, KEYS), spread(b, ROWS, KEYS))
    upper = tl.where(key // 8 % 2 == 0, spread(c, ROWS, KEYS), spread(d, ROWS, KEYS))
    word = tl.where(row // 8 % 2 == 0, lower, upper)
    # Its half is compared where it is uppermost; what is below does not matter then.
    return (word << (16 - key % 2 * 16).to(tl.uint32)) <= (LAST << 16 | 0xFFFF)


@triton.jit
def keys_at(
    total,
    weight,
    peak,
    q,
    k_first,
    v_first,
    mask_first,
    seed,
    line,
    row,
    start,
    rows,
    keys,
    width,
    depth,
    k_row,
    k_step,
    v_row,
    v_step,
    mask_row,
    mask_column,
    FACTOR: tl.constexpr,
    CAP: tl.constexpr,
    MASK: tl.constexpr,
    ALIKE: tl.constexpr,
    CAUSAL: tl.constexpr,
    LAST: tl.constexpr,
    FAR: tl.constexpr,
    EDGE: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    WHOLE: tl.constexpr,
    PRECISION: tl.constexpr,
    ELEMENT: tl.constexpr,
):
    """Adds ``KEYS`` keys from ``start`` on: the weighted sum of values, the sum of weights and the largest score of each row.

    EDGE: whether some of these keys are beyond the last, or hidden from some row.
    """
    along = start + tl.arange(0, KEYS)
    across = tl.arange(0, WIDTH)
    deep = tl.arange(0, DEPTH)
    there = along < keys
    down = along.to(tl.int64) if FAR else along
    k_at = k_first + down[None, :] * k_row + across[:, None] * k_step
    v_at = v_first + down[:, None] * v_row + deep[None, :] * v_step
    if EDGE:
        k = tl.load(k_at, mask=there[None, :] & ((across < width) | WHOLE)[:, None], other=0)
    elif WHOLE:
        k = tl.load(k_at)
    else:
        k = tl.load(k_at, mask=(across < width)[:, None], other=0)
    scores = tl.dot(q, k, input_precision=PRECISION)
    ADDED: tl.constexpr = MASK == 2 or MASK == 4
    SCALE: tl.constexpr = CAP * LOG2E if CAP > 0 else FACTOR
    if CAP > 0:
        scores = saturation(scores, FACTOR, CAP)
    # Where nothing is added, the factor's product is one instruction with the subtraction of the largest.
    if ADDED or SCALE <= 0:
        scores = scores * (SCALE * LN2 if ADDED else SCALE)
        scale = 1.0
    else:
        scale = SCALE
    scores = masked(scores, mask_first, mask_row, mask_column, row[:, None], along[None, :], rows, keys, MASK, ALIKE, ELEMENT)
    if EDGE:
        seen = there[None, :]
        if CAUSAL:
            seen = seen & (along[None, :] <= row[:, None])
        scores = tl.where(seen, scores, float("-inf"))
    following = tl.maximum(peak, tl.max(scores, 1) * scale, propagate_nan=tl.PropagateNan.ALL)
    # A row that saw no key yet has no largest score to subtract: any number leaves minus infinity.
    base = tl.maximum(following, LEAST, propagate_nan=tl.PropagateNan.ALL) if MASK > 0 else following
    if ADDED:
        weights = tl.exp2((scores - base[:, None]) * LOG2E)
        fade = tl.exp2((peak - base) * LOG2E)
    else:
        weights = tl.exp2(scores * scale - base[:, None])
        fade = tl.exp2(peak - base)
    weight = weight * fade + tl.sum(weights, 1)
    if LAST >= 0:
        weights = tl.where(kept(seed, line, start, LAST, q.shape[0], KEYS), weights, 0.0)
    if EDGE:
        v = tl.load(v_at, mask=there[:, None] & ((deep < depth) | WHOLE)[None, :], other=0)
    elif WHOLE:
        v = tl.load(v_at)
    else:
        v = tl.load(v_at, mask=(deep < depth)[None, :], other=0)
    total = tl.dot(weights.to(v.dtype), v, total * fade[:, None], input_precision=PRECISION)
    return total, weight, following


@triton.jit
def forward(
    query,
    key,
    value,
    mask,
    seed,
    lists,
    out,
    logsumexp,
    heads,
    shared,
    rows,
    keys,
    width,
    depth,
    q_batch,
    q_head,
    q_row,
    q_step,
    k_batch,
    k_head,
    k_row,
    k_step,
    v_batch,
    v_head,
    v_row,
    v_step,
    mask_batch,
    mask_head,
    mask_row,
    mask_column,
    list_batch,
    list_head,
    FACTOR: tl.constexpr,
    CAP: tl.constexpr,
    MASK: tl.constexpr,
    ALIKE: tl.constexpr,
    LISTED: tl.constexpr,
    CAUSAL: tl.constexpr,
    LAST: tl.constexpr,
    KEPT: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    WHOLE: tl.constexpr,
    PRECISION: tl.constexpr,
    FAR: tl.constexpr,
    ELEMENT: tl.constexpr = None,
):
    """Attention of one block of queries: ``out`` as (batch, rows, heads, depth), ``logsumexp`` as (batch, heads, rows).

    MASK: 0 none, 1 of bools (true: seen), 2 of numbers that are added, 3 and 4 the same where ELEMENT computes them, from row,
    key, batch, head and what ``mask`` is then a tuple of; ALIKE: the same ones for all rows. LISTED: 1 where ``lists`` says
    which blocks of keys there are, 2 where none of them besides goes beyond the last key, and there is no causal mask;
    list_batch and list_head: steps through it, in lists of a matrix. FACTOR: of the scores, times log2(e). CAP: of
    the scores, 0 without one. LAST: the largest of the words of 16 bits whose weights are kept, times KEPT; -1 without dropout.
    WHOLE: whether width and depth are WIDTH and DEPTH. FAR: whether a key lies so far from the first of its head that 32 bits
    do not count its elements.
    """
    blocks = tl.cdiv(rows, ROWS)
    # Of a causal mask the longest blocks come first.
    block = blocks - 1 - tl.program_id(0) % blocks if CAUSAL else tl.program_id(0) % blocks
    matrix = (tl.program_id(0) // blocks).to(tl.int64)
    batch, head = matrix // heads, matrix % heads
    own = head // (heads // shared)
    first = block * ROWS
    row = first + tl.arange(0, ROWS)
    row_mask = row < rows
    deep = tl.arange(0, DEPTH)
    q = block_of(query + batch * q_batch + head * q_head, first, q_row, q_step, rows, width, True, ROWS, WIDTH, WHOLE)
    k_first = key + batch * k_batch + own * k_head
    v_first = value + batch * v_batch + own * v_head
    mask_first = of_matrix(mask, batch, head, mask_batch, mask_head, MASK)
    total = tl.zeros([ROWS, DEPTH], tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    drawn = tl.load(seed) if LAST >= 0 else 0
    line = matrix * (tl.cdiv(rows, 16) * 8) + first // 2
    full = keys // KEYS * KEYS
    end = keys
    if CAUSAL:
        full = min(full, first // KEYS * KEYS)
        end = min(keys, first + ROWS)
    if LISTED:
        others = tl.cdiv(keys, KEYS)
        listed = lists + ((batch * list_batch + head * list_head) * blocks + block) * (2 + others)
        for place in range(2, 2 + tl.load(listed)):
            start = tl.load(listed + place) * KEYS
            total, weight, peak = keys_at(
                total, weight, peak, q, k_first, v_first, mask_first, drawn, line, row, start, rows, keys, width, depth,
                k_row, k_step, v_row, v_step, mask_row, mask_column,
                FACTOR, CAP, MASK, ALIKE, CAUSAL, LAST, FAR, LISTED == 1, KEYS, WIDTH, DEPTH, WHOLE, PRECISION, ELEMENT,
            )  # fmt: skip
        for place in range(2 + others - tl.load(listed + 1), 2 + others):
            start = tl.load(listed + place) * KEYS
            total, weight, peak = keys_at(
                total, weight, peak, q, k_first, v_first, mask_first, drawn, line, row, start, rows, keys, width, depth,
                k_row, k_step, v_row, v_step, mask_row, mask_column,
                FACTOR, CAP, 4 if MASK == 4 else 0, ALIKE, CAUSAL, LAST, FAR, False, KEYS, WIDTH, DEPTH, WHOLE, PRECISION,
                ELEMENT,
            )  # fmt: skip
    else:
        for start in range(0, full, KEYS):
            total, weight, peak = keys_at(
                total, weight, peak, q, k_first, v_first, mask_first, drawn, line, row, start, rows, keys, width, depth,
                k_row, k_step, v_row, v_step, mask_row, mask_column,
                FACTOR, CAP, MASK, ALIKE, CAUSAL, LAST, FAR, False, KEYS, WIDTH, DEPTH, WHOLE, PRECISION, ELEMENT,
            )  # fmt: skip
        for start in range(full, end, KEYS):
            total, weight, peak = keys_at(
                total, weight, peak, q, k_first, v_first, mask_first, drawn, line, row, start, rows, keys, width, depth,
                k_row, k_step, v_row, v_step, mask_row, mask_column,
                FACTOR, CAP, MASK, ALIKE, CAUSAL, LAST, FAR, True, KEYS, WIDTH, DEPTH, WHOLE, PRECISION, ELEMENT,
            )  # fmt: skip
    none = weight == 0
    sure = tl.where(none, 1.0, weight)
    # Pointers of 64 bits for each row would take registers from the loops.
    o_at = out + ((batch * rows + first) * heads + head) * depth + tl.arange(0, ROWS)[:, None] * (heads * depth) + deep[None, :]
    if LAST >= 0:
        total = total * KEPT
    result = (total / sure[:, None]).to(out.dtype.element_ty)
    tl.store(o_at, result, mask=row_mask[:, None] & ((deep < depth) | WHOLE)[None, :])
    if MASK == 2 or MASK == 4:
        known = peak + tl.log2(sure) * LN2
    else:
        known = (peak + tl.log2(sure)) * LN2
    tl.store(logsumexp + matrix * rows + row, tl.where(none, 0.0, known), mask=row_mask)
