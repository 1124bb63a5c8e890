"""Streams of random numbers: whether two are one and the same, or one of them another's continuation, from any place on.

All shifts of two streams against each other are tried, and of a stream against itself: where streams overlap, or one has a
period, their numbers are correlated at some shift. Numbers are replaced by their ranks, so that whatever the distribution the
terms of sums of products are bounded: of ``n`` terms of variance one a sum exceeds ``DEVIATIONS sqrt(n)`` with a probability of
at most ``2 exp(-DEVIATIONS**2 / 2)`` (as a normal deviate; ranks are nearly uniform, whose moments are below the normal ones,
and sums of few terms are left out). A row draws at most 20 streams, each eleven times, which are 26 comparisons at fewer than
20,000 shifts: a right one fails with a probability below 1e-6.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

Tensor = torch.Tensor

DEVIATIONS = 8.0
LENGTH = 16384
"""Numbers of a stream that are looked at."""
SHORTEST = 4096
"""Numbers of a stream below which nothing is said."""
OVERLAP = 2
"""At a shift at least this part (a half) of a stream must have a partner: of fewer products the sums are not yet normal."""
FEW = 8
"""Rows or columns of a result up to which each is a stream of its own, whose numbers have one distribution."""


def parts(result: Tensor) -> Sequence[Tensor]:
    """A result's streams, 1-d, each of numbers of one distribution: rows where these are few (a row a parameter), columns where
    those are (draws without replacement), all elements otherwise."""
    if result.dim() == 2 and result.shape[0] <= FEW:
        return result.unbind(0)
    if result.dim() == 2 and result.shape[1] <= FEW:
        return result.unbind(1)
    return (result.reshape(-1),)


def spectra(draws: Sequence[Tensor]) -> Tensor | None:
    """(draws, frequencies): Fourier transforms of streams, as ``shift_of`` takes them, with room for all shifts.

    Args:
        draws: of one distribution and length, on the CPU.

    Returns:
        ``None`` where nothing can be said: of few numbers, and of a distribution of one number.
    """
    length = min(LENGTH, draws[0].numel())
    if length < SHORTEST:
        return None
    ranks = torch.stack([_ranks(each[:length]) for each in draws])
    centred = ranks - ranks.mean(1, keepdim=True)
    spread = centred.square().mean(1, keepdim=True).sqrt()
    return torch.fft.rfft(centred / spread, 2 * length) if bool((spread > 0).all()) else None


def _ranks(values: Tensor) -> Tensor:
    """Equal numbers share the middle of their ranks."""
    _, place, counts = torch.unique(values.double(), return_inverse=True, return_counts=True)
    last = counts.cumsum(0)
    ranks: Tensor = (last - (counts - 1) / 2).double()[place]
    return ranks


def shift_of(one: Tensor, other: Tensor, length: int) -> int | None:
    """By how many places ``other`` has to be shifted to be correlated with ``one``; ``None`` where no shift does it.

    Args:
        one, other: rows of ``spectra``; the same one twice for a period.
        length: of the streams.
    """
    length = min(LENGTH, length)
    sums = torch.fft.irfft(one.conj() * other, 2 * length)
    shifts = torch.arange(2 * length)
    shifts = torch.where(shifts < length, shifts, shifts - 2 * length)
    products = length - shifts.abs()
    excess = sums.abs() / products.clamp(min=1).double().sqrt()
    excess[products < length // OVERLAP] = 0.0
    if one is other:
        excess[0] = 0.0
    worst = int(excess.argmax())
    return int(shifts[worst]) if float(excess[worst]) > DEVIATIONS else None


def overlapping(draws: Sequence[Tensor], pairs: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Pairs of ``draws`` of which one repeats numbers of the other, and by how many places they are shifted.

    Args:
        draws: random results of equal calls, on the CPU.
        pairs: which of them to compare; each is compared with itself too.
    """
    for streams in zip(*(parts(each) for each in draws), strict=True):
        rows = spectra(streams)
        if rows is None:
            continue
        of = rows.unbind(0)
        for one, other in [*((each, each) for each in range(len(draws))), *pairs]:
            shift = shift_of(of[one], of[other], streams[0].numel())
            if shift is not None:
                yield one, other, shift
