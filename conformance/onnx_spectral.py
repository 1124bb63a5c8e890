"""Rules of Fourier transforms and windows. ONNX's complex numbers are a last dimension of two."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from conformance.onnx_types import Array, Tensor, dtype_of, ints, refuse

STATIC: Mapping[str, tuple[int, ...]] = {
    "DFT": (1, 2),
    "STFT": (1, 3),
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow"), (0,)),
}


def _dft(
    x: Tensor,
    length: Array | None = None,
    at: Array | None = None,
    *,
    axis: int | None = None,
    inverse: int = 0,
    onesided: int = 0,
) -> Tensor:
    dim = ints(at)[0] if at is not None else -2 if axis is None else axis  # an attribute, 1 unless given, in older opsets
    dim = dim % x.dim()
    refuse(dim == x.dim() - 1, "DFT of the parts of complex numbers")
    count = None if length is None else ints(length)[0]
    if onesided and inverse:
        result: Tensor = torch.fft.irfft(torch.view_as_complex(x), count, dim)
        return result.unsqueeze(-1)
    if onesided:
        return torch.view_as_real(torch.fft.rfft(x.squeeze(-1), count, dim))
    value = x if x.shape[-1] == 2 else torch.cat([x, torch.zeros_like(x)], -1)
    function = torch.fft.ifft if inverse else torch.fft.fft
    return torch.view_as_real(function(torch.view_as_complex(value), count, dim))


def _stft(x: Tensor, step: Array, window: Tensor | None = None, length: Array | None = None, *, onesided: int = 1) -> Tensor:
    refuse(x.dim() != 3 or x.shape[-1] != 1, "STFT of complex numbers")
    assert window is not None or length is not None
    count = ints(length)[0] if length is not None else window.shape[0]  # type: ignore[union-attr]
    frames = x.squeeze(-1).unfold(1, count, ints(step)[0])
    frames = frames if window is None else frames * window
    return _dft(frames.unsqueeze(-1), axis=2, onesided=onesided)


def _window(*weights: float) -> Callable[..., Tensor]:
    """A sum of cosines, with these weights."""

    def rule(size: Array, *, output_datatype: int = 1, periodic: int = 1) -> Tensor:
        (count,) = ints(size)
        turns = torch.arange(count, dtype=torch.float64) * (2 * math.pi / (count if periodic else count - 1))
        return _cosines(turns, weights).to(dtype_of(output_datatype))

    return rule


def _cosines(turns: Tensor, weights: Sequence[float]) -> Tensor:
    total = torch.zeros_like(turns)
    for order, weight in enumerate(weights):
        total = total + weight * torch.cos(order * turns)
    return total


RULES: Mapping[str, Callable[..., Any]] = {
    "DFT": _dft,
    "STFT": _stft,
    "BlackmanWindow": _window(0.42, -0.5, 0.08),
    "HammingWindow": _window(25 / 46, -21 / 46),
    "HannWindow": _window(0.5, -0.5),
}
