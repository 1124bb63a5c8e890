"""A U-Net as diffusion models have it: what it predicts of an image at a time, and the loss against what was there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

Tensor = torch.Tensor

GROUPS = 32
HEAD = 64
"""Channels of a head."""


class Predicted(NamedTuple):
    """
    Attributes:
        logits: the prediction, of the image's shape.
        loss: its mean squared distance from labels, where these were given.
    """

    logits: Tensor
    loss: Tensor | None


class Residual(nn.Module):
    """Ho, Jain and Abbeel, Denoising Diffusion Probabilistic Models (2020), appendix B: convolutions behind group norms, the
    time between them."""

    def __init__(self, before: int, after: int, time: int) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(GROUPS, before), nn.GroupNorm(GROUPS, after)
        self.enter, self.leave = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
        self.time = nn.Linear(time, after)
        self.short: nn.Module = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.enter(F.silu(self.first(x))) + self.time(time)[:, :, None, None]
        made: Tensor = self.leave(F.silu(self.second(y))) + self.short(x)
        return made


class Attention(nn.Module):
    """Attention among all pixels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, channels)
        self.join, self.leave = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        words = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = self.join(words).view(n, h * w, 3, c // HEAD, HEAD).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, h * w, c)
        made: Tensor = x + self.leave(seen).transpose(1, 2).reshape(n, c, h, w)
        return made


class UNet(nn.Module):
    """Two residual blocks a level on the way down and three on the way up, attention on the coarsest; joined across.

    Args:
        widths: channels by level, multiples of ``GROUPS`` and ``HEAD``; each level has half the other's edge.
        latents: channels of the image.
    """

    def __init__(self, widths: Sequence[int] = (320, 640, 1280), latents: int = 4) -> None:
        super().__init__()
        time = 4 * widths[0]
        self.frequencies = widths[0] // 2
        self.time = nn.Sequential(nn.Linear(widths[0], time), nn.SiLU(), nn.Linear(time, time), nn.SiLU())
        self.stem = nn.Conv2d(latents, widths[0], 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        kept, now = [widths[0]], widths[0]
        for level, width in enumerate(widths):
            for _ in range(2):
                self.down.append(Residual(now, width, time))
                kept.append(now := width)
            if level + 1 < len(widths):
                self.down.append(nn.Conv2d(width, width, 3, 2, 1))
                kept.append(width)
        self.middle = nn.ModuleList([Residual(now, now, time), Attention(now), Residual(now, now, time)])
        for level, width in reversed(list(enumerate(widths))):
            for _ in range(3):
                self.up.append(Residual(now + kept.pop(), width, time))
                now = width
            if level:
                self.up.append(nn.Sequential(nn.Upsample(scale_factor=2.0), nn.Conv2d(width, width, 3, padding=1)))
        self.out = nn.Sequential(nn.GroupNorm(GROUPS, now), nn.SiLU(), nn.Conv2d(now, latents, 3, padding=1))

    def forward(self, pixel_values: Tensor, times: Tensor, labels: Tensor | None = None) -> Predicted:
        """``times``: a number for each image, of which sines and cosines are taken."""
        rates = torch.exp(torch.arange(self.frequencies, device=times.device) * (-math.log(10000) / self.frequencies))
        angles = times[:, None].float() * rates
        time = self.time(torch.cat([angles.cos(), angles.sin()], 1).to(pixel_values.dtype))
        x = self.stem(pixel_values)
        kept = [x]
        for layer in self.down:
            x = layer(x, time) if isinstance(layer, Residual) else layer(x)
            kept.append(x)
        for layer in self.middle:
            x = layer(x, time) if isinstance(layer, Residual) else layer(x)
        for layer in self.up:
            x = layer(torch.cat([x, kept.pop()], 1), time) if isinstance(layer, Residual) else layer(x)
        made: Tensor = self.out(x)
        return Predicted(made, None if labels is None else F.mse_loss(made, labels))
