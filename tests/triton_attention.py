"""Attention in Triton, run through its interpreter: masks, shared heads, odd sizes, strides, against float64."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from reference_backends.triton_gpu import attention, compiler, flash_launch, flash_masks
from reference_backends.triton_gpu.machine import machine
from tests import triton_masks
from vendor_sdk import COMPOSITES, Computed

Tensor = torch.Tensor


@dataclass(frozen=True)
class Case:
    """Heads of queries and keys, rows, keys, width and depth; a mask made of (batch, heads, rows, keys), whose numbers are of
    ``mask_dtype``, or that of the others."""

    shape: tuple[int, int, int, int, int, int]
    dtype: torch.dtype = torch.bfloat16
    causal: bool = False
    mask: Callable[[int, int, int, int], Tensor | Computed] | None = None
    scale: float | None = None
    across: bool = False
    dropout: float = 0.0
    cap: float | None = None
    mask_dtype: torch.dtype | None = None


SEED = 7_400_123_456_789_012_345
"""Of cases with dropout: more than a word."""


def _seen(batch: int, heads: int, rows: int, keys: int) -> Tensor:
    """Bools with a row that sees no key."""
    mask = torch.rand(1, heads, rows, keys) > 0.3
    mask[..., rows // 2, :] = False
    return mask


def _padding(batch: int, heads: int, rows: int, keys: int) -> Tensor:
    return torch.arange(keys) < torch.randint(1, keys, (batch, 1, 1, 1))


def _added_alike(batch: int, heads: int, rows: int, keys: int) -> Tensor:
    return torch.randn(rows, keys)


def _added(batch: int, heads: int, rows: int, keys: int) -> Tensor:
    mask = torch.randn(batch, 1, rows, keys)
    mask[..., 1, :] = -math.inf
    return mask


def _least(batch: int, heads: int, rows: int, keys: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """The least number where a key is hidden, which all are from some rows: these weigh all keys alike."""
    hidden = torch.rand(batch, 1, rows, keys) > 0.7
    hidden[..., 1, :] = True
    return torch.where(hidden, torch.finfo(dtype).min, 0.0)


def _window(batch: int, heads: int, rows: int, keys: int) -> Tensor:
    """Of which some blocks are hidden and some are not, for each head others."""
    distance = torch.arange(rows)[:, None] - torch.arange(keys)
    reach = torch.arange(1, heads + 1)[:, None, None] * 90
    return (distance >= 0) & (distance < reach)


CASES: Mapping[str, Case] = {
    "one row": Case((1, 1, 1, 70, 64, 64)),
    "causal, odd": Case((1, 1, 150, 150, 64, 64), causal=True),
    "strides of a projection": Case((1, 1, 37, 90, 64, 64), across=True),
    "shared heads, some rows see nothing": Case((2, 1, 40, 150, 24, 40), torch.float16, mask=_seen),
    "some rows see nothing": Case((2, 2, 40, 72, 64, 64), torch.float16, mask=_seen),
    "numbers added": Case((2, 1, 34, 64, 64, 64), mask=_added),
    "numbers of another dtype added": Case((2, 1, 34, 64, 64, 64), mask=_added, mask_dtype=torch.float32),
    "the least number added": Case((2, 1, 34, 64, 64, 64), torch.float32, mask=_least),
    "the least number added to halves": Case((1, 1, 34, 64, 64, 64), mask=_least, mask_dtype=torch.float32),
    "the least number of halves": Case((1, 1, 34, 64, 64, 64), mask=functools.partial(_least, dtype=torch.bfloat16)),
    "shared heads, causal": Case((2, 1, 70, 70, 32, 32), causal=True),
    "float32, numbers added": Case((2, 1, 70, 50, 16, 16), torch.float32, causal=True, mask=_added, scale=0.3),
    "numbers added, the same for all heads": Case((2, 2, 34, 40, 16, 16), mask=_added_alike),
    "padding, negative scale": Case((1, 1, 33, 129, 128, 128), mask=_padding, scale=-0.3),
    "fewer keys than rows": Case((1, 1, 160, 140, 72, 72), causal=True),
    "more keys than rows": Case((1, 1, 70, 200, 128, 128), causal=True),
    "dropout, shared heads, causal": Case((2, 1, 70, 70, 32, 32), causal=True, dropout=0.25),
    "dropout, an odd number of keys": Case((2, 2, 40, 71, 16, 24), torch.float32, dropout=0.1),
    "dropout, some rows see nothing": Case((2, 1, 40, 150, 64, 64), torch.float16, mask=_seen, dropout=0.5),
    "dropout, several blocks": Case((2, 2, 150, 150, 16, 16), causal=True, dropout=0.3),
    "dropout, one row": Case((1, 1, 1, 70, 64, 64), dropout=0.5),
    "a window": Case((2, 1, 200, 270, 16, 16), mask=_window),
    "a window, no block beyond the last key": Case((1, 1, 200, 256, 16, 16), mask=_window),
    "a window, causal": Case((2, 2, 270, 200, 64, 64), torch.float16, causal=True, mask=_window),
    "a window, negative scale": Case((2, 1, 300, 260, 24, 16), torch.float32, mask=_window, scale=-0.2),
    "a window, dropout": Case((2, 1, 140, 200, 32, 32), mask=_window, dropout=0.25),
    "capped, causal, odd": Case((2, 2, 70, 70, 24, 40), torch.float32, causal=True, cap=2.0),
    "capped, shared heads, some rows see nothing": Case((2, 1, 40, 150, 64, 64), torch.float16, mask=_seen, cap=0.5),
    "capped, numbers added, negative scale": Case((2, 1, 34, 70, 64, 64), mask=_added, cap=30.0, scale=-0.3),
    "capped, dropout": Case((2, 1, 40, 71, 16, 24), torch.float32, cap=1.0, dropout=0.3),
    "capped, documents, computed": Case((2, 1, 100, 90, 16, 16), mask=triton_masks.documents, cap=1.5),
    "capped, slopes, computed": Case((2, 1, 70, 90, 32, 32), torch.float32, mask=triton_masks.slopes, cap=0.7, causal=True),
    "a window, capped": Case((2, 1, 140, 200, 16, 16), mask=_window, cap=2.0),
    "nothing is kept": Case((1, 1, 20, 33, 16, 16), dropout=1.0),
    "slopes, computed": Case((2, 1, 70, 90, 64, 64), mask=triton_masks.slopes),
    "slopes, computed, causal": Case((4, 2, 130, 130, 32, 24), torch.float32, causal=True, mask=triton_masks.slopes),
    "slopes of places, computed": Case((2, 2, 40, 72, 16, 16), torch.float16, mask=triton_masks.slopes_of_places),
    "slopes of places, computed, dropout": Case((2, 1, 37, 70, 16, 16), mask=triton_masks.slopes_of_places, dropout=0.25),
    "documents, computed": Case((2, 1, 100, 150, 16, 16), mask=triton_masks.documents, scale=-0.3),
    "for all heads, computed": Case((2, 2, 70, 70, 64, 64), causal=True, mask=triton_masks.flat),
    "padded, computed": Case((2, 2, 40, 71, 16, 16), torch.float32, mask=triton_masks.padded),
    "numbers of the call, computed": Case((2, 1, 100, 90, 24, 16), mask=triton_masks.numbers),
    "a window, computed": Case((2, 1, 270, 200, 16, 16), mask=triton_masks.documents),
    "a window, computed, both ways": Case((2, 1, 270, 330, 16, 16), mask=triton_masks.both_ways),
    "a window, computed, causal besides": Case((2, 2, 270, 270, 16, 16), causal=True, mask=triton_masks.both_ways),
    "a window, computed, float32": Case((1, 1, 150, 200, 16, 16), torch.float32, causal=True, mask=triton_masks.documents),
    "a window of numbers, computed": Case((2, 1, 200, 270, 32, 16), mask=triton_masks.far),
    "a window of numbers, computed, no block beyond": Case((2, 2, 140, 256, 16, 16), torch.float16, mask=triton_masks.far),
    "a window of numbers, computed, dropout": Case((2, 1, 140, 200, 32, 32), mask=triton_masks.far, dropout=0.25),
    "a window, computed, numbers of the call": Case((2, 1, 200, 130, 16, 16), mask=triton_masks.numbers),
}
LISTED = tuple(what for what in CASES if what.startswith("a window"))
"""Cases whose masks hide blocks as a whole, and leave others as they are."""


def drawn(case: Case, device: str) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor | Computed | None]:
    """Queries, keys and values, and the mask."""
    heads, shared, rows, keys, width, depth = case.shape
    sizes = (heads, rows, width), (shared, keys, width), (shared, keys, depth)
    tensors = [
        (torch.randn(2, n, h, w).transpose(1, 2) if case.across else torch.randn(2, h, n, w)).to(device, case.dtype)
        for h, n, w in sizes
    ]
    mask = None if case.mask is None else case.mask(2, heads, rows, keys)
    if isinstance(mask, Computed):
        mask = dataclasses.replace(mask, buffers=tuple(each.to(device) for each in mask.buffers))
    elif mask is not None:
        mask = mask.to(device, mask.dtype if mask.dtype == torch.bool else case.mask_dtype or case.dtype)
    return (tensors[0], tensors[1], tensors[2]), mask


def in_memory(mask: Tensor | Computed | None, device: str) -> Tensor | None:
    return triton_masks.dense(mask).to(device) if isinstance(mask, Computed) else mask


def reference(case: Case, tensors: Sequence[Tensor], mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The composite's definition, in float64."""
    (rule,) = COMPOSITES[attention.GENERAL_FORWARD].targets.values()
    wide = mask if mask is None or mask.dtype == torch.bool else mask.double()
    seed = torch.tensor([SEED], device=tensors[0].device) if case.dropout else None
    result: tuple[Tensor, Tensor] = rule(
        *(t.double() for t in tensors), seed, case.dropout, case.causal, wide, scale=case.scale, cap=case.cap
    )
    return result


ROUGH = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float32: 2e-6}


def wrong(device: str = "cpu") -> dict[str, str]:
    """What is wrong in generated Triton, by case: of masks that leave few blocks, and of some others, with lists of these."""
    found = _wrong({what: case for what, case in CASES.items() if what not in LISTED}, device)
    with mock.patch.object(flash_launch, "WORTH", 0):
        listed = {what: CASES[what] for what in (*LISTED, "shared heads, some rows see nothing")}
        return found | {f"{what}, listed": why for what, why in _wrong(listed, device).items()} | _wrong_lists(device)


def _wrong_lists(device: str) -> dict[str, str]:
    """What is wrong in lists of the blocks that a mask leaves."""
    found = {}
    for what in LISTED:
        operands, mask = drawn(CASES[what], device)
        form = flash_launch.form_of(*operands, CASES[what].causal, mask, None, None)
        for name, got, expected in _lists(form, operands, mask, device):
            if form.computed is not None and form.computed.BOUNDED:  # Bounds need not know all blocks that are seen as a whole.
                whole = all(set(own[1]) <= set(other[1]) for own, other in zip(got, expected, strict=True))
                right = whole and list(map(_seen_at_all, got)) == list(map(_seen_at_all, expected))
            else:
                right = got == expected
            if not right:
                found[f"{what}, lists of {name}"] = f"{got} where {expected} is expected"
    for make in (triton_masks.far, triton_masks.numbers, triton_masks.flat):
        # Of one condition bounds say all that can be said of whole blocks, and elements do not count.
        operands, mask = drawn(Case((2, 2, 200, 270, 16, 16), mask=make), device)
        assert isinstance(mask, Computed)
        form = flash_launch.form_of(*operands, False, mask, None, None)
        before, _, seen = flash_masks.text(mask.loops, wide=False).partition("def seen(")
        for result in ("{} & (row < 0)", "{} | (row >= 0)"):
            changed = re.sub(
                r"return (.*)", lambda line, result=result: "return " + result.format(f"({line[1]})"), seen, count=1
            )
            bounded = form._replace(computed=compiler.load(f"{before}def seen({changed}"))
            for name, got, expected in _lists(bounded, operands, mask, device):
                told = _seen_as_whole if "&" in result else _seen_at_all
                if list(map(told, got)) != list(map(told, expected)):
                    found[f"{make.__name__}, bounds of {name}, {result}"] = f"{got} where {expected} is expected"
    return found


Listed = tuple[list[int], list[int]]
"""Of a row of blocks those that are seen in part, and those that are as a whole, from the right."""


def _seen_as_whole(blocks: Listed) -> list[int]:
    return blocks[1]


def _seen_at_all(blocks: Listed) -> list[int]:
    return sorted(blocks[0] + blocks[1])


def _lists(
    form: flash_launch.Form, operands: tuple[Tensor, Tensor, Tensor], mask: Tensor | Computed | None, device: str
) -> Iterator[tuple[str, list[Listed], list[Listed]]]:
    """The lists of each function, and what they are to be."""
    query, key, _ = operands
    given = in_memory(mask, device)
    assert mask is not None
    assert given is not None
    given = given[(None,) * (4 - given.dim())]
    mask = mask if isinstance(mask, Computed) else given
    seen = given if given.dtype == torch.bool else given != -math.inf
    seen = seen.tril() if form.causal else seen
    for launcher in (flash_launch.forward_launcher(form), *flash_launch.backward_launchers(form)):
        lists = flash_launch.lists_of(launcher, mask, query, key)
        for call in lists.calls:
            call.launch()
        own, other = launcher.divided((query, key)[launcher.along].shape[2], machine())
        expected = []
        batch, heads = lists.buffer.shape[:2]  # along which it differs
        for matrix in (seen.mT if launcher.along else seen)[:batch, :heads].flatten(0, 1):
            for of_rows in matrix.split(own):
                blocks = of_rows.split(other, 1)
                full = [k for k, each in enumerate(blocks) if each.all() and each.shape[1] == other]
                part = [k for k, each in enumerate(blocks) if each.any() and k not in full]
                expected.append((part, full[::-1]))
        got = [(line[2 : 2 + line[0]], line[len(line) - line[1] :]) for line in lists.buffer.flatten(0, 2).tolist()]
        yield launcher.kernel.__name__, got, expected


def _wrong(cases: Mapping[str, Case], device: str) -> dict[str, str]:
    found = {}
    for what, case in cases.items():
        tensors, mask = drawn(case, device)
        seed = torch.tensor([SEED], device=device)
        dropout = flash_launch.Dropout(seed, case.dropout) if case.dropout else None
        rest = case.causal, mask, case.scale, dropout, case.cap
        result = flash_launch.forward(*tensors, *rest)
        leaves = [t.double().requires_grad_() for t in tensors]
        exact = reference(case, leaves, in_memory(mask, device))
        grad = (torch.randn(*exact[0].shape[:2], exact[0].shape[3], exact[0].shape[2], device=device).mT).to(case.dtype)
        # Of rows that the least number hides from all keys no digit of the logarithm is saved.
        grad = torch.where(exact[1][..., None] < -1e30, 0, grad)
        gradients = torch.autograd.grad(exact[0], leaves, grad.double())
        rough = ROUGH[case.dtype]
        try:
            given = exact[0].detach().to(case.dtype), exact[1].detach().float()
            own = flash_launch.backward(grad, *tensors, *given, *rest)
            for one, expected in zip(own, gradients, strict=True):
                size = float(expected.abs().max())
                torch.testing.assert_close(one.double(), expected, rtol=rough, atol=rough * size)
            torch.testing.assert_close(result[0].double(), exact[0].detach(), rtol=rough, atol=rough)
            torch.testing.assert_close(result[1].double(), exact[1].detach().double(), rtol=4e-6, atol=4e-6)
        except AssertionError as error:
            found[what] = str(error)
    return found


def wrong_ways(device: str) -> dict[str, str]:
    """What is wrong where a GPU's libraries compute it, by case, direction and way; what one refuses is no fault."""
    found = {}
    for what, case in CASES.items():
        if what in LISTED:
            continue  # Others have masks for libraries.
        tensors, mask = drawn(case, device)
        leaves = [t.detach().double().requires_grad_() for t in tensors]
        exact, saved = reference(case, leaves, in_memory(mask, device))
        # Of rows that the least number hides from all keys no digit of the logarithm is saved.
        grad = torch.where(saved[..., None] < -1e30, 0, torch.randn_like(exact))
        gradients = torch.autograd.grad(exact, leaves, grad)
        given: dict[str, Any] = {"attn_mask": mask, "scale": case.scale}
        saved_for = *tensors, exact.detach().to(case.dtype), saved.detach().float()
        names = attention.FORWARD, attention.BACKWARD
        dropped: tuple[Any, ...] = (0.0,)
        general = case.dropout > 0 or case.cap is not None
        if general:
            names = attention.GENERAL_FORWARD, attention.GENERAL_BACKWARD
            dropped = torch.tensor([SEED], device=device) if case.dropout else None, case.dropout
            given["cap"] = case.cap
        runs: Mapping[str, tuple[tuple[Any, ...], Sequence[Tensor]]] = {
            names[0]: ((*tensors, *dropped, case.causal), (exact, saved)),
            names[1]: ((grad.to(case.dtype), *saved_for, *dropped, case.causal), gradients),
        }
        for name, (arguments, expected) in runs.items():
            problem = attention.problem(*tensors, case.causal, mask, case.scale, backward=name == names[1])
            problem = problem._replace(general=general)
            for way in attention.ways(problem, attention.capability()):
                with mock.patch.object(attention, "ways", return_value=(way,)), contextlib.suppress(AssertionError):
                    results = attention.KERNELS[name].call(*arguments, **given)
                    for result, one in zip(results, expected, strict=True):
                        least = one < -1e29  # Nor has the logarithm of such rows a digit to compare.
                        size = one.detach().masked_fill(least, 0).abs().max().clamp(min=1e-30)
                        error = float((result.double() - one.detach()).masked_fill(least, 0).abs().max() / size)
                        if not error < 2 * max(ROUGH[case.dtype], 1e-4):  # TF32 where torch allows it
                            found[f"{what}, {name}, {way}"] = f"an error of {error:.2g} of the largest"
    return found
