"""Rows of the conversion family: dtypes and complex numbers. All are exact up to the rounding to the result's dtype."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from vendor_sdk.prims.bounds import BY_DEFINITION, Exact
from vendor_sdk.prims.reference import OwnDtype
from vendor_sdk.prims.row import ALL, FLOAT8, FLOATS, HALVES, INTS, STORED, Family, Prim, Result, Shape
from vendor_sdk.prims.samples import (
    COUNTS,
    Effort,
    Interval,
    Layout,
    Sample,
    SampleContext,
    draw,
    everywhere,
    layouts,
    limits,
    specials,
    tensor,
)

aten = torch.ops.aten

SINGLE_DOUBLE = (torch.float32, torch.float64)
_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
    torch.int64: torch.float64,
    torch.int32: torch.float32,
    torch.uint8: torch.int8,
    torch.float8_e4m3fn: torch.int8,
    torch.float8_e5m2: torch.int8,
}
"""For each dtype another of the same size."""


def _conversions(context: SampleContext) -> Iterator[Sample]:
    if context.dtype in FLOAT8:
        yield from _conversions_of_eight_bits(context)
        return
    targets = ALL if context.effort >= Effort.STANDARD else (torch.float32, torch.bfloat16, torch.int32, torch.bool)
    for target in targets:
        # What a negative float becomes as an unsigned integer is undefined in C and differs between processors.
        domain = Interval(0.0, 99.0) if target == torch.uint8 else Interval(-99.0, 99.0)
        yield Sample((draw(context, (3, 31), domain),), {"dtype": target}, f"to {_name(target)}")
        if context.dtype.is_floating_point and (target.is_floating_point or target == torch.bool):
            yield Sample((specials(context.dtype),), {"dtype": target}, f"special values to {_name(target)}", special=True)
            if target.is_floating_point and context.effort >= Effort.STANDARD:
                values = torch.cat([everywhere(context), _ties(context, target)])
                yield Sample((values,), {"dtype": target}, f"everywhere, and ties of {_name(target)}", special=True)
        if context.dtype.is_floating_point and target in INTS and context.effort >= Effort.STANDARD:
            # NaN and what lies beyond the integers have no value there.
            values = torch.cat([specials(context.dtype), -draw(context, (10,), Interval(1.0, 300.0))])
            yield Sample((values,), {"dtype": target}, f"out of range of {_name(target)}", special=True, undefined=True)
        if context.dtype in INTS:
            yield Sample((limits(context.dtype),), {"dtype": target}, f"integer limits to {_name(target)}")
    for layout in layouts(context):
        yield Sample((tensor(context, layout, COUNTS),), {"dtype": torch.float32}, layout.label)


def _ties(context: SampleContext, target: torch.dtype) -> torch.Tensor:
    """Values of the context's dtype half way between two neighbours of a narrower one, and next to them on both sides."""
    if torch.finfo(target).eps <= torch.finfo(context.dtype).eps:
        return torch.empty(0, dtype=context.dtype)
    narrow = everywhere(SampleContext(target, context.effort, context.generator), Interval(0.0, torch.finfo(target).max / 2))
    narrow = narrow[~narrow.isnan()]
    above = torch.nextafter(narrow, torch.full_like(narrow, math.inf))
    middle = ((narrow.double() + above.double()) / 2).to(context.dtype)
    signs = torch.randint(0, 2, middle.shape, generator=context.generator, dtype=torch.int8).to(context.dtype) * 2 - 1
    if context.dtype == torch.float64 and target in HALVES:
        return signs * middle  # torch itself rounds through float32: beside a tie of float64 it and IEEE 754 differ
    beside = [torch.nextafter(middle, torch.full_like(middle, end)) for end in (-math.inf, math.inf)]
    return torch.cat([signs * values for values in (middle, *beside)])


def _conversions_of_eight_bits(context: SampleContext) -> Iterator[Sample]:
    """From the context's dtype, and to it: all 256 values, all of the halves, of float32 some of everywhere, all ties and their
    neighbours, what is beyond the range. NaN may have any of its encodings."""
    dtype, standard = context.dtype, context.effort >= Effort.STANDARD
    other = next(each for each in FLOAT8 if each != dtype)
    for target in (torch.float32, torch.bfloat16, torch.float16, other, *((torch.float64,) if standard else ())):
        yield Sample((everywhere(context),), {"dtype": target}, f"all to {_name(target)}", special=True)
    single = SampleContext(torch.float32, context.effort, context.generator)
    values = _ties_of_eight_bits(context)
    yield Sample((values[torch.randperm(values.numel(), generator=context.generator)],), {"dtype": dtype}, "ties", special=True)
    for source in (*HALVES, torch.float32) if standard else ():
        given = everywhere(SampleContext(source, context.effort, context.generator))
        yield Sample((given,), {"dtype": dtype}, f"{_name(source)}, everywhere", special=True)
    for source in (torch.int32, torch.uint8, torch.bool, torch.float64) if standard else ():
        given = draw(context, (3, 31), Interval(0.0 if source == torch.uint8 else -99.0, 99.0), dtype=source)
        yield Sample((given,), {"dtype": dtype}, f"from {_name(source)}")
    for target in (torch.int32, torch.bool) if standard else ():
        yield Sample((draw(context, (3, 31), COUNTS),), {"dtype": target}, f"to {_name(target)}")
    for layout in layouts(context):
        yield Sample((tensor(context, layout, COUNTS),), {"dtype": torch.float32}, layout.label)
        yield Sample((tensor(single, layout, COUNTS),), {"dtype": dtype}, f"{layout.label}, from float32")


def _ties_of_eight_bits(context: SampleContext) -> torch.Tensor:
    """float32 values half way between neighbours of the context's dtype, one of which is beyond its range, and next to them."""
    values = torch.arange(1 << 7).to(torch.uint8).view(context.dtype).double()
    values = values[values.isfinite()]
    beyond = values[-1] * 2 - values[-2]
    middle = ((values + torch.cat([values[1:], beyond[None]])) / 2).float()
    beside = [torch.nextafter(middle, torch.full_like(middle, end)) for end in (-math.inf, math.inf)]
    found = torch.cat([middle, *beside, torch.tensor([math.inf, math.nan, float(beyond), 1e9])])
    return torch.cat([found, -found])


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _bit_patterns(context: SampleContext) -> Iterator[Sample]:
    for layout in layouts(context):
        yield Sample((tensor(context, layout, COUNTS), _BITS[context.dtype]), label=layout.label)
    yield Sample((draw(context, (3, 8), COUNTS), torch.uint8), label="to bytes")
    if context.dtype == torch.uint8:
        yield Sample((draw(context, (3, 8), Interval(0.0, 60.0)), torch.float32), label="from bytes")
    if context.dtype.is_floating_point:
        yield Sample((specials(context.dtype), _BITS[context.dtype]), label="special values", special=True)


def _parts(context: SampleContext) -> Iterator[Sample]:
    for layout in layouts(context):
        second = tensor(context, Layout("", layout.shape), COUNTS)
        yield Sample((tensor(context, layout, COUNTS), second), label=layout.label)
    yield Sample((draw(context, (3, 1)), draw(context, (4,))), label="broadcast")
    values = specials(context.dtype)
    yield Sample((values, values.flip(0)), label="special values", special=True)


def _complex_values(context: SampleContext) -> Iterator[Sample]:
    for layout in layouts(context):
        imaginary = tensor(context, Layout("", layout.shape), COUNTS)
        yield Sample((torch.complex(tensor(context, layout, COUNTS), imaginary),), label=layout.label)
    values = specials(context.dtype)
    yield Sample((torch.complex(values, values.flip(0)),), label="special values", special=True)


def _conjugate(x: torch.Tensor) -> torch.Tensor:
    """``complex(real, -imaginary)``; a real tensor is its own conjugate."""
    if not x.dtype.is_complex:
        same: torch.Tensor = aten.clone.default(x)
        return same
    parts = aten.view_as_real.default(x)
    real, imaginary = (aten.select.int(parts, -1, part) for part in (0, 1))
    conjugate: torch.Tensor = aten.complex.default(real, aten.neg.default(imaginary))
    return conjugate


ROWS = (
    Prim(
        name="_to_copy",
        target=aten._to_copy.default,
        family=Family.CONVERSION,
        summary="x in another dtype: to nearest even for floats, toward zero to integers, x != 0 to bool",
        dtypes=STORED,
        result=Result.ARGUMENT,
        shape=Shape.SAME,
        bound=Exact(signed_zero=True),
        samples=_conversions,
        source="IEEE 754-2019, 5.4.2 and 5.8",
    ),
    Prim(
        name="view.dtype",
        target=aten.view.dtype,
        family=Family.CONVERSION,
        summary="the same bytes read as another dtype; the last dimension scales with the element size",
        dtypes=(*FLOATS, *INTS, *FLOAT8),
        result=Result.OPERATOR,
        shape=Shape.OPERATOR,
        bound=Exact(signed_zero=True),
        samples=_bit_patterns,
        reference=OwnDtype(aten.view.dtype),
        source=BY_DEFINITION + "; bytes in little-endian order",
    ),
    Prim(
        name="complex",
        target=aten.complex.default,
        family=Family.CONVERSION,
        summary="x + i y",
        dtypes=SINGLE_DOUBLE,
        result=Result.OPERATOR,
        shape=Shape.BROADCAST,
        bound=Exact(signed_zero=True),
        samples=_parts,
        source=BY_DEFINITION,
    ),
    Prim(
        name="_conj_physical",
        target=aten._conj_physical.default,
        family=Family.CONVERSION,
        summary="complex conjugate, computed (not torch's lazy bit); samples are complex numbers of the dtype's parts",
        dtypes=SINGLE_DOUBLE,
        result=Result.SAME,
        shape=Shape.SAME,
        bound=Exact(signed_zero=True),
        samples=_complex_values,
        decomposition=_conjugate,
        source=BY_DEFINITION,
    ),
)
"""The conversion prims; ``view_as_real`` and ``view_as_complex`` are views."""
