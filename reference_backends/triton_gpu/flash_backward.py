"""Attention backward in Triton: two passes over blocks of scores, which are computed again and never in memory.

Dao et al., FlashAttention-2, 2023. Importing it needs triton; ``attention.py`` launches both.

With weights ``p = exp2(s - logsumexp)`` and ``d = rowsum(grad * out)``, the gradient of the scores is ``p * (grad @ v.T - d)``,
times the derivative ``1 - tanh(s / cap) ** 2`` where they are capped.
``by_query`` sums over the keys for a block of queries, and leaves ``d``. ``by_key`` sums over the queries, those of all heads
that share it, for a block of keys; its scores lie as (keys, queries). So no program waits for another, and equal calls give
equal bits. With dropout, the gradients of weights that are not kept (``flash.kept``) are zero, and so are these weights where
they weigh values; what the others are multiplied by is left to the sums, and ``d`` is divided by it. Each pass draws again what
is kept: a bit for each weight, written by the first, would take memory with the square of the rows. Operands and masks are as
``flash.forward`` takes them; gradients lie as (batch, rows, heads, width), ``d`` and ``logsumexp`` as (batch, heads, rows).
"""

# ruff: noqa: RET505
# mypy: disable-error-code="misc, no-untyped-def, no-untyped-call, untyped-decorator"
# Triton compiles these functions itself, see ``flash``.

import triton
import triton.language as tl

from reference_backends.triton_gpu.flash import LN2, LOG2E, block_of, kept, masked, of_matrix, saturation


@triton.jit
def weights_of(scores, base, row, key, keys, MASK: tl.constexpr, CAUSAL: tl.constexpr, EDGE: tl.constexpr):
    """Weights from masked scores and the logarithms of their sums, in units of log 2 where no numbers are added. EDGE: whether
    some keys are beyond the last, or hidden from some row."""
    if EDGE:
        seen = key < keys
        if CAUSAL:
            seen = seen & (key <= row)
        scores = tl.where(seen, scores, float("-inf"))
    if MASK == 2 or MASK == 4:
        return tl.exp2((scores - base) * LOG2E)
    else:
        return tl.exp2(scores - base)


@triton.jit
def keys_at(
    total,
    q,
    grad,
    base,
    inner,
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
    EDGE: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    WHOLE: tl.constexpr,
    PRECISION: tl.constexpr,
    ELEMENT: tl.constexpr,
):
    """Adds what ``KEYS`` keys from ``start`` on give to the queries' gradient, but for the scale."""
    k = block_of(k_first, start, k_row, k_step, keys, width, EDGE, KEYS, WIDTH, WHOLE)
    v = block_of(v_first, start, v_row, v_step, keys, depth, EDGE, KEYS, DEPTH, WHOLE)
    key = (start + tl.arange(0, KEYS))[None, :]
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if CAP > 0:
        part = saturation(scores, FACTOR, CAP)
        scores = part * (CAP if MASK == 2 or MASK == 4 else CAP * LOG2E)
    else:
        scores = scores * (FACTOR * LN2 if MASK == 2 or MASK == 4 else FACTOR)
    scores = masked(scores, mask_first, mask_row, mask_column, row[:, None], key, rows, keys, MASK, ALIKE, ELEMENT)
    weights = weights_of(scores, base[:, None], row[:, None], key, keys, MASK, CAUSAL, EDGE)
    of_weights = tl.dot(grad, tl.trans(v), input_precision=PRECISION)
    if LAST >= 0:
        of_weights = tl.where(kept(seed, line, start, LAST, q.shape[0], KEYS), of_weights, 0.0)
    change = weights * (of_weights - inner[:, None])
    if CAP > 0:
        change = change * (1 - part * part)
    return tl.dot(change.to(k.dtype), k, total, input_precision=PRECISION)


@triton.jit
def by_query(
    query,
    key,
    value,
    mask,
    seed,
    lists,
    grad,
    out,
    logsumexp,
    inner,
    grad_query,
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
    g_batch,
    g_head,
    g_row,
    g_step,
    o_batch,
    o_head,
    o_row,
    o_step,
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
    ELEMENT: tl.constexpr = None,
):
    """The gradient of one block of queries, and ``inner``: the product of each row of ``grad`` and ``out``, over KEPT."""
    blocks = tl.cdiv(rows, ROWS)
    # Of a causal mask the longest blocks come first.
    block = blocks - 1 - tl.program_id(0) % blocks if CAUSAL else tl.program_id(0) % blocks
    matrix = (tl.program_id(0) // blocks).to(tl.int64)
    batch, head = matrix // heads, matrix % heads
    own = head // (heads // shared)
    first = block * ROWS
    row = first + tl.arange(0, ROWS)
    q = block_of(query + batch * q_batch + head * q_head, first, q_row, q_step, rows, width, True, ROWS, WIDTH, WHOLE)
    g = block_of(grad + batch * g_batch + head * g_head, first, g_row, g_step, rows, depth, True, ROWS, DEPTH, WHOLE)
    o = block_of(out + batch * o_batch + head * o_head, first, o_row, o_step, rows, depth, True, ROWS, DEPTH, WHOLE)
    product = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    if LAST >= 0:
        product = product * (1 / KEPT if KEPT > 0 else 0.0)
    tl.store(inner + matrix * rows + row, product, mask=row < rows)
    # Rows beyond the last weigh nothing.
    base = tl.load(logsumexp + matrix * rows + row, mask=row < rows, other=float("inf")) * (
        1.0 if MASK == 2 or MASK == 4 else LOG2E
    )
    k_first = key + batch * k_batch + own * k_head
    v_first = value + batch * v_batch + own * v_head
    mask_first = of_matrix(mask, batch, head, mask_batch, mask_head, MASK)
    total = tl.zeros([ROWS, WIDTH], tl.float32)
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
            total = keys_at(
                total, q, g, base, product, k_first, v_first, mask_first, drawn, line, row, start, rows, keys, width, depth,
                k_row, k_step, v_row, v_step, mask_row, mask_column,
                FACTOR, CAP, MASK, ALIKE, CAUSAL, LAST, LISTED == 1, KEYS, WIDTH, DEPTH, WHOLE, PRECISION, ELEMENT,
            )  # fmt: skip
        for place in range(2 + others - tl.load(listed + 1), 2 + others):
            start = tl.load(listed + place) * KEYS
            total = keys_at(
                total, q, g, base, product, k_first, v_first, mask_first, drawn, line, row, start, rows, keys, width, depth,
                k_row, k_step, v_row, v_step, mask_row, mask_column,
                FACTOR, CAP, 4 if MASK == 4 else 0, ALIKE, CAUSAL, LAST, False, KEYS, WIDTH, DEPTH, WHOLE, PRECISION, ELEMENT,
            )  # fmt: skip
    else:
        for start in range(0, full, KEYS):
            total = keys_at(
                total, q, g, base, product, k_first, v_first, mask_first, drawn, line, row, start, rows, keys, width, depth,
                k_row, k_step, v_row, v_step, mask_row, mask_column,
                FACTOR, CAP, MASK, ALIKE, CAUSAL, LAST, False, KEYS, WIDTH, DEPTH, WHOLE, PRECISION, ELEMENT,
            )  # fmt: skip
        for start in range(full, end, KEYS):
            total = keys_at(
                total, q, g, base, product, k_first, v_first, mask_first, drawn, line, row, start, rows, keys, width, depth,
                k_row, k_step, v_row, v_step, mask_row, mask_column,
                FACTOR, CAP, MASK, ALIKE, CAUSAL, LAST, True, KEYS, WIDTH, DEPTH, WHOLE, PRECISION, ELEMENT,
            )  # fmt: skip
    across = tl.arange(0, WIDTH)
    at = grad_query + ((batch * rows + row) * heads + head)[:, None] * width + across[None, :]
    result = (total * (FACTOR * LN2 * (KEPT if LAST >= 0 else 1.0))).to(grad_query.dtype.element_ty)
    tl.store(at, result, mask=(row < rows)[:, None] & ((across < width) | WHOLE)[None, :])


@triton.jit
def rows_at(
    by_k,
    by_v,
    k,
    v,
    q_first,
    g_first,
    mask_first,
    base_first,
    inner_first,
    seed,
    line,
    key,
    first,
    start,
    rows,
    keys,
    width,
    depth,
    q_row,
    q_step,
    g_row,
    g_step,
    mask_row,
    mask_column,
    FACTOR: tl.constexpr,
    CAP: tl.constexpr,
    MASK: tl.constexpr,
    ALIKE: tl.constexpr,
    CAUSAL: tl.constexpr,
    LAST: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    WHOLE: tl.constexpr,
    PRECISION: tl.constexpr,
    ELEMENT: tl.constexpr,
):
    """Adds what ``ROWS`` queries from ``start`` on give to the gradients of keys and values, but for the keys' scale."""
    q = block_of(q_first, start, q_row, q_step, rows, width, True, ROWS, WIDTH, WHOLE)
    g = block_of(g_first, start, g_row, g_step, rows, depth, True, ROWS, DEPTH, WHOLE)
    row = start + tl.arange(0, ROWS)
    base = tl.load(base_first + row, mask=row < rows, other=float("inf"))
    base = base * (1.0 if MASK == 2 or MASK == 4 else LOG2E)
    inner = tl.load(inner_first + row, mask=row < rows, other=0)
    scores = tl.dot(k, tl.trans(q), input_precision=PRECISION)
    if CAP > 0:
        part = saturation(scores, FACTOR, CAP)
        scores = part * (CAP if MASK == 2 or MASK == 4 else CAP * LOG2E)
    else:
        scores = scores * (FACTOR * LN2 if MASK == 2 or MASK == 4 else FACTOR)
    scores = masked(scores, mask_first, mask_row, mask_column, row[None, :], key, rows, keys, MASK, ALIKE, ELEMENT)
    # What keys beyond the last get is not stored. One loop does for all rows: two, of which one is without the comparison, take
    # more registers than there are.
    weights = weights_of(scores, base[None, :], row[None, :], key, keys, MASK, CAUSAL, CAUSAL)
    of_weights = tl.dot(v, tl.trans(g), input_precision=PRECISION)
    if LAST >= 0:
        remain = tl.trans(kept(seed, line + start // 2, first, LAST, ROWS, KEYS))
        change = weights * (tl.where(remain, of_weights, 0.0) - inner[None, :])
        weights = tl.where(remain, weights, 0.0)
    else:
        change = weights * (of_weights - inner[None, :])
    if CAP > 0:
        change = change * (1 - part * part)
    by_v = tl.dot(weights.to(g.dtype), g, by_v, input_precision=PRECISION)
    by_k = tl.dot(change.to(q.dtype), q, by_k, input_precision=PRECISION)
    return by_k, by_v


@triton.jit
def by_key(
    query,
    key,
    value,
    mask,
    seed,
    lists,
    grad,
    logsumexp,
    inner,
    grad_key,
    grad_value,
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
    g_batch,
    g_head,
    g_row,
    g_step,
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
    ELEMENT: tl.constexpr = None,
):
    """The gradients of one block of keys and values, from ``inner`` as ``by_query`` left it."""
    blocks = tl.cdiv(keys, KEYS)
    first = tl.program_id(0) % blocks * KEYS
    matrix = (tl.program_id(0) // blocks).to(tl.int64)
    batch, own = matrix // shared, matrix % shared
    group = heads // shared
    along = first + tl.arange(0, KEYS)
    k = block_of(key + batch * k_batch + own * k_head, first, k_row, k_step, keys, width, True, KEYS, WIDTH, WHOLE)
    v = block_of(value + batch * v_batch + own * v_head, first, v_row, v_step, keys, depth, True, KEYS, DEPTH, WHOLE)
    by_k = tl.zeros([KEYS, WIDTH], tl.float32)
    by_v = tl.zeros([KEYS, DEPTH], tl.float32)
    drawn = tl.load(seed) if LAST >= 0 else 0
    begin = first // ROWS * ROWS if CAUSAL else 0
    for member in range(group):
        head = own * group + member
        q_first = query + batch * q_batch + head * q_head
        g_first = grad + batch * g_batch + head * g_head
        mask_first = of_matrix(mask, batch, head, mask_batch, mask_head, MASK)
        place = (batch * heads + head) * rows
        line = (batch * heads + head) * (tl.cdiv(rows, 16) * 8)
        if LISTED:
            others = tl.cdiv(rows, ROWS)
            listed = lists + ((batch * list_batch + head * list_head) * blocks + first // KEYS) * (2 + others)
            for at in range(2, 2 + tl.load(listed)):
                start = tl.load(listed + at) * ROWS
                by_k, by_v = rows_at(
                    by_k, by_v, k, v, q_first, g_first, mask_first, logsumexp + place, inner + place, drawn, line,
                    along[:, None], first, start, rows, keys, width, depth, q_row, q_step, g_row, g_step, mask_row, mask_column,
                    FACTOR, CAP, MASK, ALIKE, CAUSAL, LAST, ROWS, KEYS, WIDTH, DEPTH, WHOLE, PRECISION, ELEMENT,
                )  # fmt: skip
            for at in range(2 + others - tl.load(listed + 1), 2 + others):
                start = tl.load(listed + at) * ROWS
                by_k, by_v = rows_at(
                    by_k, by_v, k, v, q_first, g_first, mask_first, logsumexp + place, inner + place, drawn, line,
                    along[:, None], first, start, rows, keys, width, depth, q_row, q_step, g_row, g_step, mask_row, mask_column,
                    FACTOR, CAP, 4 if MASK == 4 else 0, ALIKE, False, LAST, ROWS, KEYS, WIDTH, DEPTH, WHOLE, PRECISION, ELEMENT,
                )  # fmt: skip
        else:
            for start in range(begin, rows, ROWS):
                by_k, by_v = rows_at(
                    by_k, by_v, k, v, q_first, g_first, mask_first, logsumexp + place, inner + place, drawn, line,
                    along[:, None], first, start, rows, keys, width, depth, q_row, q_step, g_row, g_step, mask_row, mask_column,
                    FACTOR, CAP, MASK, ALIKE, CAUSAL, LAST, ROWS, KEYS, WIDTH, DEPTH, WHOLE, PRECISION, ELEMENT,
                )  # fmt: skip
    if LAST >= 0:
        by_k, by_v = by_k * KEPT, by_v * KEPT
    across, deep = tl.arange(0, WIDTH), tl.arange(0, DEPTH)
    place = ((batch * keys + along) * shared + own)[:, None]
    there = (along < keys)[:, None]
    k_result, v_result = (by_k * (FACTOR * LN2)).to(grad_key.dtype.element_ty), by_v.to(grad_value.dtype.element_ty)
    tl.store(grad_key + place * width + across[None, :], k_result, mask=there & ((across < width) | WHOLE)[None, :])
    tl.store(grad_value + place * depth + deep[None, :], v_result, mask=there & ((deep < depth) | WHOLE)[None, :])
