"""Random programs: fused and run in the loop interpreter they compute what torch computes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fusing import ROOM, compiled
from vendor_sdk.contract.emitter import Limits

Tensor = torch.Tensor
Shapes = tuple[tuple[int, ...], ...]
SHAPES: Shapes = ((4, 6), (4, 1), (6,), (2, 4, 6), (1,), (2, 2, 6), (24,), (4, 3, 2))
SQUARE: Shapes = ((2, 2), (2,), (2, 1), (1, 2), (3, 3), (3,), (3, 3, 3), (3, 1, 3))
"""Where loops of one prim are easily taken for others."""
UNARY: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.tanh,
    torch.exp,
    torch.neg,
    lambda t: t * 0.5,
    lambda t: t.abs() + 1,
    lambda t: torch.where(t > 0, t, t * 0.1),
    lambda t: t.to(torch.float32).to(torch.float64),
)
BINARY: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (torch.add, torch.sub, torch.mul, torch.maximum)
REDUCE: tuple[Callable[[Tensor, int, bool], Tensor], ...] = (
    lambda t, d, k: t.sum(d, keepdim=k),
    lambda t, d, k: t.amax(d, keepdim=k),
    lambda t, d, k: t.mean(d, keepdim=k),
    lambda t, d, k: t.var(d, keepdim=k, correction=0),
)


def _view(draw: random.Random, t: Tensor, shapes: Shapes) -> Tensor:
    kind = draw.randrange(8 if shapes is SHAPES else 10)
    if kind == 0 and t.dim() > 1:
        a, b = draw.sample(range(t.dim()), 2)
        return t.transpose(a, b)
    if kind == 1:
        same = [s for s in shapes if torch.Size(s).numel() == t.numel()]
        return t.reshape(draw.choice(same)) if same else t.reshape(-1)
    if kind == 2 and t.dim():
        d = draw.randrange(t.dim())
        return t.narrow(d, draw.randrange((t.shape[d] + 1) // 2), (t.shape[d] + 1) // 2)
    if kind == 3:
        return t.unsqueeze(draw.randrange(t.dim() + 1)).expand(*([2] if t.dim() == 0 else [-1] * (t.dim() + 1)))
    if kind == 4 and t.dim():
        return torch.flip(t, [draw.randrange(t.dim())])
    if kind == 5 and t.dim():
        return torch.cat((t, t * 2), draw.randrange(t.dim()))
    if kind == 6 and t.dim():
        return torch.nn.functional.pad(t, (1, 1), value=0.5)
    if kind == 7 and t.dim():
        index = torch.tensor([draw.randrange(t.shape[0]) for _ in range(3)])
        return t[index]
    if kind >= 8 and t.dim():
        d = draw.randrange(t.dim())
        return t.select(d, draw.randrange(t.shape[d]))
    return t


def _program(seed: int, shapes: Shapes) -> Callable[..., list[Tensor]]:
    def run(*inputs: Tensor) -> list[Tensor]:
        draw = random.Random(seed)
        known = list(inputs)
        for _ in range(draw.randint(3, 14)):
            t = draw.choice(known[-6:])
            kind = draw.random()
            if kind < 0.3:
                known.append(draw.choice(UNARY)(t))
            elif kind < 0.6:
                others = [o for o in known if _broadcasts(o, t)]
                known.append(draw.choice(BINARY)(t, draw.choice(others)))
            elif kind < 0.8 and t.dim():
                known.append(draw.choice(REDUCE)(t, draw.randrange(t.dim()), draw.random() < 0.6))
            else:
                known.append(_view(draw, t, shapes))
        made = known[len(inputs) :]
        return [made[-1] * 1.5, *(draw.choice(made) + 0.25 for _ in range(2))]

    return run


def _broadcasts(a: Tensor, b: Tensor) -> bool:
    try:
        torch.broadcast_shapes(a.shape, b.shape)
    except RuntimeError:
        return False
    return True


def check(seed: int, limits: Limits = ROOM, shapes: Shapes = SHAPES) -> None:
    generator = torch.Generator().manual_seed(seed)
    inputs = tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    program = _program(seed, shapes)
    expected = program(*inputs)
    got = compiled(program, inputs, limits).run(*inputs)
    for one, want in zip(got, expected, strict=True):
        torch.testing.assert_close(one, want, rtol=1e-9, atol=1e-9, equal_nan=True)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_random_programs(seed: int) -> None:
    check(seed)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_random_programs_of_squares(seed: int) -> None:
    check(seed, shapes=SQUARE)


@pytest.mark.parametrize("seed", [3912])
def test_programs_that_were_wrong_once(seed: int) -> None:
    """3912: a mean of all columns joined a kernel over a slice of them."""
    check(seed)


@pytest.mark.parametrize("limits", [Limits(), Limits(statements=10, buffers=5), Limits(local_bytes=64, nests=8)])
@pytest.mark.parametrize("seed", range(6))
def test_random_programs_within_limits(seed: int, limits: Limits) -> None:
    check(seed, limits)


def explore(first: int, count: int, shapes: Shapes = SHAPES) -> list[tuple[int, Any]]:
    """Seeds that fail, with their errors: for a search by hand."""
    failed: list[tuple[int, Any]] = []
    for seed in range(first, first + count):
        try:
            check(seed, shapes=shapes)
        except Exception as error:
            failed.append((seed, error))
    return failed
