"""Quantized programs find the bugs that are planted for them, and operators of torch's quantization become prims."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import vendor_sdk
from conformance import behaviour, levels
from conformance.outcome import Outcome
from conformance.subject import TorchSubject
from vendor_sdk import Effort
from vendor_sdk.ir.primgraph import prim_name
from vendor_sdk.prims.opset import OPSET

aten = torch.ops.aten
Tensor = torch.Tensor
Call = Callable[..., Any]
Changes = Mapping[Any, Call]


def planted(changes: Changes, group: str) -> Outcome:
    """Of a backend that does as eager, but for some operators."""

    class Changed(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return changes.get(func, func)(*args, **(kwargs or {}))

    class Planted(TorchSubject):
        def through_torch(self, function: Call, *, dynamic: bool | None = None) -> Call:
            def changed(*given: Tensor) -> Any:
                with Changed():
                    return function(*given)

            return changed

    return behaviour.certify(Planted("eager"), group, effort=Effort.STANDARD, seed=1, device=torch.device("cpu"))


def half_away(x: Tensor) -> Any:
    return torch.trunc(x + torch.copysign(torch.tensor(0.5), x))


def wrapped(x: Tensor, low: Any = None, high: Any = None) -> Any:
    return torch.remainder(x - low, high - low + 1) + low


def without_sign(x: Tensor, by: int) -> Tensor:
    return x.view(torch.uint8).bitwise_right_shift(by).view(x.dtype)


NIBBLES_SWAPPED: Changes = {
    aten.bitwise_and.Scalar: lambda x, mask: x >> 4,
    aten.__rshift__.Scalar: lambda x, by: x & 15,
}


def next_groups_scale(x: Tensor, y: Tensor) -> Any:
    """Where what is multiplied has a scale for each group."""
    return aten.mul.Tensor(x, y.roll(1, -2)) if y.dim() == 3 and y.shape[-1] == 1 and y.shape[-2] > 1 else aten.mul.Tensor(x, y)


def sums_of_16_bits(a: Tensor, b: Tensor) -> Any:
    return aten._int_mm.default(a, b).clamp(-(1 << 15), (1 << 15) - 1)


FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def converted(narrow: Callable[[Tensor, torch.dtype], Tensor]) -> Changes:
    """Conversions to floats of eight bits are those of ``narrow``, which is given float32."""

    def copy(x: Tensor, *, dtype: torch.dtype, **rest: Any) -> Tensor:
        return narrow(x.float(), dtype) if dtype in FLOAT8 else aten._to_copy.default(x, dtype=dtype, **rest)

    return {aten._to_copy.default: copy}


def overflow_otherwise(x: Tensor, dtype: torch.dtype) -> Tensor:
    """NaN where torch gives the largest number, and that where it gives NaN or an infinity."""
    right = x.to(dtype)
    largest = torch.finfo(dtype).max
    beyond = x.abs() > 1e8
    other = torch.full_like(x, math.nan) if bool((right.float().abs() == largest)[beyond].any()) else largest * x.sign()
    return torch.where(beyond, other, right.float()).to(dtype)


def ties_away(x: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.nextafter(x, x.sign() * math.inf).to(dtype)


def truncated(x: Tensor, dtype: torch.dtype) -> Tensor:
    bits = 3 if dtype == torch.float8_e4m3fn else 2
    return (x.view(torch.int32) & -(1 << (23 - bits))).view(torch.float32).to(dtype)


def other_format(x: Tensor, dtype: torch.dtype) -> Tensor:
    """By the bits of the format beside it, whose exponents have another bias."""
    beside = {torch.float8_e4m3fn: torch.float8_e4m3fnuz, torch.float8_e5m2: torch.float8_e5m2fnuz}[dtype]
    return x.to(beside).view(torch.uint8).view(dtype)


def without_second_scale(*given: Any, **rest: Any) -> Any:
    return aten._scaled_mm.default(*given[:3], torch.ones_like(given[3]), *given[4:], **rest)


PLANTED: list[tuple[str, Changes, str, set[str]]] = [
    ("ties away from zero", {aten.round.default: half_away}, "quantized/round-trip", {"value"}),
    ("truncation", {aten.round.default: torch.trunc}, "quantized/int8", {"value"}),
    ("wrapped where it is saturated", {aten.clamp.default: wrapped}, "quantized/round-trip", {"value"}),
    ("nibbles swapped", NIBBLES_SWAPPED, "quantized/int4", {"value"}),
    ("shifts without the sign", {aten.__rshift__.Scalar: without_sign}, "quantized/int4", {"value"}),
    ("a group's scale off by one", {aten.mul.Tensor: next_groups_scale}, "quantized/int4", {"value"}),
    ("sums of 16 bits", {aten._int_mm.default: sums_of_16_bits}, "quantized/int8", {"value"}),
    ("sums in bfloat16", {aten.mm.default: lambda a, b: aten.mm.default(a.bfloat16(), b.bfloat16()).to(a.dtype)},
     "quantized/int8", {"value"}),
    ("what is too large is something else", converted(overflow_otherwise), "quantized/float8", {"value"}),
    ("conversions round ties away", converted(ties_away), "quantized/float8", {"value"}),
    ("conversions truncate", converted(truncated), "quantized/float8", {"value"}),
    ("conversions to a format beside", converted(other_format), "quantized/float8", {"value"}),
    ("a scale forgotten", {aten._scaled_mm.default: without_second_scale}, "quantized/float8", {"value"}),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "group", "kinds"), [row[1:] for row in PLANTED], ids=[row[0] for row in PLANTED])
def test_a_planted_bug_is_found(changes: Changes, group: str, kinds: set[str]) -> None:
    outcome = planted(changes, group)
    assert outcome.verdict == "fail"
    assert kinds <= {failure.kind for failure in outcome.failures}


def test_floats_of_eight_bits_may_be_left_to_the_host_and_must_be_right() -> None:
    def said(verdict: str, placement: str, dtype: str) -> dict[str, str]:
        entry = {"id": f"cat[{dtype}]", "kind": "prim", "prim": "cat", "dtype": dtype, "verdict": verdict}
        run = levels.levels([{**entry, "placement": placement, "expectation": None}], None)
        return {each["name"]: f"{each['state']}: {each['found']}" for each in run["full"]["criteria"]}

    on_chip = "90% of the calls of prims, as its models make them, run on the device"
    assert said("pass", "host", "float8_e5m2")[on_chip].startswith("not shown: 100.0%")
    assert said("pass", "host", "float32")[on_chip].startswith("not shown: 0.0%")
    assert any("cat[float8_e5m2]" in text for text in said("host-fail", "host", "float8_e5m2").values())


# Operators of torch's quantization


def registered() -> Any:
    importlib.import_module("torch.ao.quantization.fx._decomposed")
    return torch.ops.quantized_decomposed


X = torch.cat([torch.arange(-300, 300) / 32, torch.randn(200, generator=torch.Generator().manual_seed(0)) * 5]).reshape(40, 20)
SCALES = torch.linspace(0.01, 0.2, 40)
ZEROS = torch.arange(40) - 20
ROWS = SCALES.unsqueeze(1), ZEROS.unsqueeze(1).to(torch.int32)
RANGE = (-128, 127, torch.int8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("quantize", "dequantize", "given"),
    [
        ("quantize_per_tensor", "dequantize_per_tensor", (0.0625, 3, *RANGE)),
        ("quantize_per_channel", "dequantize_per_channel", (SCALES, ZEROS, 0, *RANGE)),
        ("quantize_per_channel", "dequantize_per_channel", (SCALES[:20], ZEROS[:20], 1, *RANGE)),
        ("quantize_per_token", "dequantize_per_token", (*ROWS, *RANGE)),
    ],
)
def test_operators_that_quantize_are_prims(quantize: str, dequantize: str, given: tuple[Any, ...], dtype: torch.dtype) -> None:
    operators = registered()
    last = (torch.float32,) if dequantize.endswith("token") else ()

    tensors = [each for each in given if isinstance(each, Tensor)]

    def both(x: Tensor, *values: Tensor) -> tuple[Tensor, Tensor]:
        arguments = (*values, *given[len(values) :])
        q = getattr(operators, quantize)(x, *arguments)
        return q, getattr(operators, dequantize)(q, *arguments, *last)

    inputs = (X.to(dtype), *tensors)
    graph = vendor_sdk.trace(both, inputs)
    assert {prim_name(node) for node in graph.calls()} <= OPSET.keys()
    for found, expected in zip(graph.interpret(*inputs), both(*inputs), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_an_integer_product_is_one_of_int32() -> None:
    a, b = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((24, 64), (64, 48)))
    graph = vendor_sdk.trace(lambda a, b: aten._int_mm(a, b), (a, b))
    assert [prim_name(node) for node in graph.calls()] == ["_to_copy", "_to_copy", "mm"]
    assert torch.equal(graph.interpret(a, b)[0], aten._int_mm(a, b))
