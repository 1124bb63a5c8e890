"""Gradients of paddings by reflection and by the outermost element."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from vendor_sdk.normalize.padding import PADDING

CASES: list[tuple[tuple[int, ...], list[tuple[int, ...]]]] = [
    ((2, 3, 7), [(2, 3), (0, 4), (-2, 3), (-1, -2), (6, 0), (3, -2), (-6, 5)]),
    ((3, 5), [(1, 2)]),
    ((2, 3, 6, 5), [(2, 1, 0, 3), (-1, 4, 2, -2), (4, 4, 5, 5), (0, 0, 0, 0)]),
    ((2, 2, 4, 5, 6), [(1, 2, 3, 1, 0, 2), (-1, 2, 0, -1, 1, 1)]),
    ((1, 1, 1), [(0, 0)]),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("mode", "name"), [("reflect", "reflection"), ("replicate", "replication")])
def test_gradients(mode: str, name: str, dtype: torch.dtype) -> None:
    for shape, paddings in CASES:
        for padding in paddings:
            x = torch.randn(shape, dtype=torch.float64).to(dtype)
            exact = x.double().requires_grad_()
            padded = F.pad(exact, padding, mode=mode)
            given = torch.randn(padded.shape).to(dtype)
            (wanted,) = torch.autograd.grad(padded, exact, given.double())
            overload = getattr(torch.ops.aten, f"{name}_pad{len(padding) // 2}d_backward").default
            found = PADDING[overload](given, x, padding)
            assert found.dtype == dtype
            tolerance = 1e-12 if dtype == torch.float64 else 1e-2
            torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)


def test_a_side_that_cuts_off_everything() -> None:
    """What is left then are copies of one element."""
    x, given = torch.randn(1, 1, 3), torch.randn(1, 1, 4)
    found = PADDING[torch.ops.aten.replication_pad1d_backward.default](given, x, (-5, 6))
    torch.testing.assert_close(found, torch.stack((*[torch.zeros(())] * 2, given.sum())).reshape(1, 1, 3))
