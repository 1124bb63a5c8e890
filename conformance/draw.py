"""Inputs of programs: numbers drawn from a seed, on a device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

Tensor = torch.Tensor


@dataclass
class Draw:
    """Draws tensors; equal seeds give equal ones.

    Attributes:
        seed: of all values.
        device: where the tensors lie.
    """

    seed: int
    device: torch.device

    def __post_init__(self) -> None:
        self._generator = torch.Generator().manual_seed(self.seed)

    def whole(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Whole numbers from -8 to 8 (0 to 8 without a sign, 0 and 1 of bool): sums and products of few are exact."""
        low, high = (0, 2) if dtype == torch.bool else (0 if dtype == torch.uint8 else -8, 9)
        return torch.randint(low, high, shape, generator=self._generator).to(self.device, dtype)

    def normal(self, *shape: int) -> Tensor:
        """float32 numbers of the normal distribution."""
        return torch.randn(shape, generator=self._generator).to(self.device)

    def positive(self, *shape: int) -> Tensor:
        """float32 numbers from 0.5 to 1.5."""
        return torch.rand(shape, generator=self._generator).add(0.5).to(self.device)

    def index(self, high: int, *shape: int) -> Tensor:
        """int64 numbers below ``high``."""
        return torch.randint(high, shape, generator=self._generator).to(self.device)

    def apart(self, *shape: int) -> Tensor:
        """float32 numbers, no two alike: what picks one of them has a gradient."""
        count = torch.Size(shape).numel()
        return (torch.randperm(count, generator=self._generator) / count - 0.5).reshape(shape).to(self.device)
