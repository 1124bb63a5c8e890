"""Convolutions with windows that move by one element, found in contractions: for ``winograd.h`` and ``slides.h``.

Nothing here knows of the prim: the gradient of a convolution with respect to its input is a convolution too, and so is one
whose input is computed where it is read. The gradient of the weights has the same windows, positions and offsets exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from vendor_sdk import contraction, index, loop

WINDOW = 3
"""Height and width of what is filtered minimally."""
TAPS = 64
"""Weights of a window at most."""


@dataclass(frozen=True)
class Windows:
    """The right factor of a contraction, where it slides over something.

    Attributes:
        images: the ranges before the last two of those that count positions of a window; the last two are the position.
        height, width: sizes of the position.
        tall, wide: sizes of a window.
        down, across: whether the offset in a window is added to its position, or subtracted from it.
        elements: what the windows cover: as the factor, without offsets, with positions up to
            ``height + tall - 1``, ``width + wide - 1``.
    """

    images: tuple[loop.Range, ...]
    height: index.Int
    width: index.Int
    tall: int
    wide: int
    down: bool
    across: bool
    elements: contraction.Factor


def windows(c: contraction.Contraction) -> Windows | None:
    """The right factor of ``c`` as windows over elements, its columns being their positions and its last steps the offsets in
    them; None when it is anything else."""
    f = c.right
    if len(c.n) < 2 or len(c.k) < 3 or not _ends(f.free, c.n) or not _ends(f.reduced, c.k):
        return None
    found = _windows(c, c.n, c.k, lambda place, body: contraction.Factor((*f.free[:-2], *place), f.reduced[:-2], body, f.value))
    # Of a gradient of weights, the whole image is such a window, and has few positions.
    positions = (found.height * found.width).value if found is not None else None
    return found if found is None or positions is None or found.tall * found.wide <= positions else None


def overlaps(c: contraction.Contraction) -> Windows | None:
    """The right factor of ``c`` as windows of 3x3 over elements, its steps being their positions and its last columns the
    offsets in them, which are added; None when it is anything else."""
    f = c.right
    if len(c.n) < 3 or len(c.k) < 2 or not _ends(f.free, c.n) or not _ends(f.reduced, c.k):
        return None
    found = _windows(c, c.k, c.n, lambda place, body: contraction.Factor(f.free[:-2], (*f.reduced[:-2], *place), body, f.value))
    return found if found is not None and filters(found) and found.down and found.across else None


def filters(w: Windows) -> bool:
    """Whether windows are of the size that is filtered minimally."""
    return (w.tall, w.wide) == (WINDOW, WINDOW)


def _ends(merged: Sequence[loop.Range], ranges: Sequence[loop.Range]) -> bool:
    """Whether a factor walks the last two of ``ranges`` as they are."""
    return tuple(merged[-2:]) == tuple(ranges[-2:])


def _windows(
    c: contraction.Contraction,
    positions: tuple[loop.Range, ...],
    offsets: tuple[loop.Range, ...],
    factor: Callable[[Sequence[loop.Range], tuple[loop.Stmt, ...]], contraction.Factor],
) -> Windows | None:
    places, within = positions[-2:], offsets[-2:]
    tall, wide = (r.size.value or 0 for r in within)
    if c.dtype != torch.float32 or not 1 < tall * wide <= TAPS:
        return None
    signs = [_sign(c.right, place.var, offset.var) for place, offset in zip(places, within, strict=True)]
    if None in signs:
        return None
    wider = [loop.Range(r.var, r.size + size - 1) for r, size in zip(places, (tall, wide), strict=True)]
    moved: dict[str, index.Int | int] = {}
    for place, offset, size, sign in zip(wider, within, (tall, wide), signs, strict=True):
        variable = index.variable(place.var, place.size)
        # The first element is that of the first position at the first offset, or at the last one where that is subtracted.
        moved[place.var] = variable if sign == 1 else variable - (size - 1)
        moved[offset.var] = 0
    body = tuple(_moved(s, moved) for s in c.right.body)
    height, width = (r.size for r in places)
    return Windows(positions[:-2], height, width, tall, wide, signs[0] == 1, signs[1] == 1, factor(wider, body))


def _sign(f: contraction.Factor, place: str, offset: str) -> int | None:
    """1 or -1 where everything in a factor depends on ``place + offset`` or on ``place - offset`` alone."""
    signs = set()
    for s in f.body:
        if not isinstance(s, loop.Load | loop.Index):
            continue
        near, far = index.stride(s.index, place), index.stride(s.index, offset)
        if near is None or far is None:
            return None
        if near != 0 or far != 0:
            signs.add(1 if near == far else -1 if near == far * -1 else 0)
    return signs.pop() if len(signs) == 1 and 0 not in signs else None


def _moved(s: loop.Stmt, values: Mapping[str, index.Int | int]) -> loop.Stmt:
    return replace(s, index=index.substitute(s.index, values)) if isinstance(s, loop.Load | loop.Index) else s
