"""Every row of the opset: its samples, its dtype and shape rules, its bound against torch, planted errors, decomposition."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

from tests.calls import Calls
from vendor_sdk.prims.bounds import Accumulated, Distribution, Exact, Ulp, Verdict, ulp, violations
from vendor_sdk.prims.derived import DERIVED
from vendor_sdk.prims.opset import BY_TARGET, COMPOSITES, OPSET
from vendor_sdk.prims.reference import Expected, reference
from vendor_sdk.prims.row import FLOAT8, Composite, Family, Prim
from vendor_sdk.prims.rules import result_dtype, result_shape
from vendor_sdk.prims.samples import Effort, Interval, Sample, SampleContext, draw

every_row = pytest.mark.parametrize("row", OPSET.values(), ids=OPSET.keys())
WITHOUT_SAMPLES = {Family.COLLECTIVE, Family.CONTROL}
"""Families whose prims cannot be called on their own: collectives need a process group, control flow needs subgraphs."""

HALF_STEPS = "computes its intermediate results in the half precision instead of float32"
SLEEF_FMOD = "vectorised fmod divides by the subnormal divisor, overflows, and returns NaN for a remainder that exists"
SINGLE_SERIES = "its float64 version has the accuracy of a float32 one"
TORCH_WRONG = {
    ("polygamma", torch.float64): SINGLE_SERIES,
    ("special_airy_ai", torch.float32): "off by up to 2.6e-6",
    ("special_airy_ai", torch.float64): "off by up to 2.6e-6",
    ("special_bessel_j0", torch.float64): SINGLE_SERIES,
    ("special_bessel_j1", torch.float64): SINGLE_SERIES,
    ("special_bessel_y0", torch.float64): SINGLE_SERIES,
    ("special_bessel_y1", torch.float64): SINGLE_SERIES,
    ("erf", torch.float16): "its vectorised series has an absolute error of 1.5e-7, a tenth of a unit near 0.001",
    ("erf", torch.bfloat16): "flushes results of subnormal size to zero",
    ("fmod", torch.float32): SLEEF_FMOD,
    ("fmod", torch.bfloat16): SLEEF_FMOD,
    ("fmod", torch.float64): SLEEF_FMOD,
    ("remainder", torch.float32): SLEEF_FMOD,
    ("remainder", torch.bfloat16): SLEEF_FMOD,
    ("remainder", torch.float64): SLEEF_FMOD,
    ("rsqrt", torch.bfloat16): HALF_STEPS,
    ("rsqrt", torch.float16): HALF_STEPS,
    ("special_bessel_y1", torch.float32): "overflows for subnormal x, where y1 is still finite",
    ("special_i0e", torch.bfloat16): HALF_STEPS,
    ("special_i0e", torch.float16): HALF_STEPS,
    ("_embedding_bag", torch.bfloat16): "offset2bag is empty where torch's own shape function announces one",
    ("prod", torch.bfloat16): HALF_STEPS,
    ("prod", torch.float16): HALF_STEPS,
}
"""Where eager torch on the CPU misses a row's bound; the rows keep the bound, backends are held to it."""
CPU = Path("/proc/cpuinfo").read_text().split()
# Convolutions are oneDNN's, which has a kernel for each kind of processor.
if "avx512f" not in CPU:
    TORCH_WRONG["convolution_backward", torch.bfloat16] = HALF_STEPS
if "avx512_fp16" not in CPU:
    TORCH_WRONG["convolution_backward", torch.float16] = HALF_STEPS
if "amx_bf16" in CPU:
    TORCH_WRONG["convolution", torch.bfloat16] = "multiplies infinite elements that a window does not reach by zero"

WITH_SPECIALS = {*Family} - {Family.LINALG, Family.RANDOM, Family.SYMBOLIC, *WITHOUT_SAMPLES}
WITHOUT_SPECIALS = {
    "arange": "counts",
    "_upsample_bilinear2d_aa": "weights of zero may or may not be read",
    "_upsample_bilinear2d_aa_backward": "weights of zero may or may not be read",
    "convolution_backward": "at effort standard: its first samples have padding, beside which a weight may or may not be read",
    "mode": "torch's own result is wrong beside NaN",
}
"""Prims without samples of special values at effort quick."""


@functools.cache
def samples(name: str, dtype: torch.dtype) -> list[Sample]:
    return list(OPSET[name].samples(SampleContext.make(dtype, Effort.QUICK)))


@functools.cache
def expectations(name: str, dtype: torch.dtype) -> list[tuple[Expected, ...]]:
    return [reference(OPSET[name], sample) for sample in samples(name, dtype)]


def eager(row: Prim, sample: Sample) -> Any:
    torch.manual_seed(7)
    return row.target(*sample.args, **sample.kwargs)


def cases(row: Prim) -> Iterator[tuple[torch.dtype, Sample, tuple[Expected, ...]]]:
    for dtype in row.dtypes:
        yield from ((dtype, *pair) for pair in zip(samples(row.name, dtype), expectations(row.name, dtype), strict=True))


def test_size() -> None:
    assert 240 <= len(OPSET) <= 260


@every_row
def test_samples(row: Prim) -> None:
    assert row.summary
    for dtype in row.dtypes:
        drawn = samples(row.name, dtype)
        if not drawn:
            assert row.family in WITHOUT_SAMPLES, f"{row.name} has no samples for {dtype}"
        elif dtype.is_floating_point and row.family in WITH_SPECIALS:
            special = any(sample.special for sample in drawn)
            assert special == (row.name not in WITHOUT_SPECIALS), f"{row.name} and special values of {dtype}"


@every_row
def test_sampling_is_repeatable_and_private(row: Prim) -> None:
    """Equal seeds give equal samples, and torch's global generator is not used."""
    state = torch.get_rng_state()
    for dtype in row.dtypes[:1]:
        again = list(row.samples(SampleContext.make(dtype, Effort.QUICK)))
        for first, second in zip(samples(row.name, dtype), again, strict=True):
            assert repr(first.args) == repr(second.args)
    assert torch.equal(state, torch.get_rng_state())


@every_row
def test_rules(row: Prim) -> None:
    """The declared dtype and shape rules give what torch's meta kernel gives."""
    for dtype, sample, expected in cases(row):
        where = f"{row.name} {dtype} {sample.label}"
        ruled = result_dtype(row, sample.args, sample.kwargs)
        assert ruled is None or {item.dtype for item in expected} == {ruled}, where
        shape = result_shape(row, sample.args, sample.kwargs)
        assert shape is None or {item.shape for item in expected} == {shape}, where


@every_row
def test_torch_meets_bound(row: Prim) -> None:
    """Eager torch on the CPU, at the sample's own dtype, is within the bound, but for the named exceptions."""
    failures: dict[torch.dtype, str] = {}
    for dtype, sample, expected in cases(row):
        verdict = violations(row.bound, row, sample, eager(row, sample), expected)
        if not verdict.ok:
            failures.setdefault(dtype, f"{sample.label}: {verdict.message}")
    known = {dtype for name, dtype in TORCH_WRONG if name == row.name}
    assert set(failures) == known, failures


def step(dtype: torch.dtype) -> float:
    """The size of a planted error: 1%, but sixteen units where the last place of the dtype is about as large as that."""
    real = dtype.to_real() if dtype.is_complex else dtype
    return max(0.01, 16 * torch.finfo(real).eps)


def zeros(result: torch.Tensor, random: bool) -> torch.Tensor:
    return torch.zeros_like(result)


def shifted(result: torch.Tensor, random: bool) -> torch.Tensor:
    """All elements off by ``step`` of the largest; the next whole number, the opposite truth value."""
    if result.dtype == torch.bool:
        return ~result
    if not (result.dtype.is_floating_point or result.dtype.is_complex):
        return result + 1
    if result.dtype in FLOAT8:
        return shifted(result.float(), random).to(result.dtype)
    finite = result[result.isfinite()].abs()
    return result + (step(result.dtype) * finite.max().to(torch.float64) + 1e-30).to(finite.dtype) if finite.numel() else result


def last_wrong(result: torch.Tensor, random: bool) -> torch.Tensor:
    """The last element wrong: by ``step``; outside the support of a random prim."""
    wrong = result.clone(memory_format=torch.contiguous_format)
    if not wrong.numel():
        return wrong
    flat = wrong.view(-1)
    if random:
        flat[-1] = -1000.0 if wrong.dtype.is_floating_point else torch.iinfo(wrong.dtype).max
    elif wrong.dtype == torch.bool:
        flat[-1] = ~flat[-1]
    else:
        inexact = wrong.dtype.is_floating_point or wrong.dtype.is_complex
        last = flat[-1].float() if wrong.dtype in FLOAT8 else flat[-1]
        flat[-1] = last * (1 + step(wrong.dtype)) + step(wrong.dtype) if inexact else last + 1
    return wrong


@pytest.mark.parametrize("plant", [zeros, shifted, last_wrong])
@every_row
def test_planted_errors_are_rejected(row: Prim, plant: Any) -> None:
    if row.family in WITHOUT_SAMPLES and not samples(row.name, row.dtypes[0]):
        return
    random = isinstance(row.bound, Distribution)

    def spoil(result: Any) -> Any:
        if isinstance(result, torch.Tensor):
            return plant(result.resolve_conj(), random)
        return result + 1 if isinstance(result, int | float) else result

    def rejected(dtype: torch.dtype) -> bool:
        return any(
            not violations(row.bound, row, sample, tree_map(spoil, eager(row, sample)), expected).ok
            for sample, expected in zip(samples(row.name, dtype), expectations(row.name, dtype), strict=True)
        )

    inexact = [dtype for dtype in row.dtypes if dtype.is_floating_point]
    missed = [dtype for dtype in inexact if not rejected(dtype)]
    if not inexact:  # an integer or bool prim may be zero on all of a small dtype's domain
        missed = [] if any(rejected(dtype) for dtype in row.dtypes) else list(row.dtypes)
    assert not missed, f"{row.name}: {plant.__name__} passes for {missed}"


INEXACT = {
    name: row
    for name, row in OPSET.items()
    if isinstance(row.bound, Ulp | Accumulated) and torch.float32 in row.dtypes and row.family not in WITHOUT_SAMPLES
}


@pytest.mark.parametrize("row", INEXACT.values(), ids=INEXACT.keys())
def test_half_precision_is_rejected_for_float32(row: Prim) -> None:
    def halve(result: Any) -> Any:
        inexact = isinstance(result, torch.Tensor) and result.dtype == torch.float32
        return result.to(torch.bfloat16).to(torch.float32) if inexact else result

    dtype = torch.float32
    assert any(
        not violations(row.bound, row, sample, tree_map(halve, eager(row, sample)), expected).ok
        for sample, expected in zip(samples(row.name, dtype), expectations(row.name, dtype), strict=True)
        if not sample.special
    )


DESCRIBED = {**OPSET, **{row.name: row for row in DERIVED.values()}, **COMPOSITES}


@pytest.mark.parametrize("row", DESCRIBED.values(), ids=DESCRIBED.keys())
def test_every_bound_has_its_source_or_derivation(row: Prim | Composite) -> None:
    """A work with its place, a year or a version; or how the bound follows from the definition or from other bounds."""
    cited = re.search(r"\b(19|20)\d\d\b|\d\.\d|section|theorem|Euclid|Python", row.source)
    derived = re.search(r"by definition|added|rounding|product|quotient|no standard|exactly", row.source)
    assert cited or derived, f"{row.name} does not say where its bound comes from: {row.source!r}"


OPENCL = {
    "acos": 4, "acosh": 4, "asin": 4, "asinh": 4, "atan": 5, "atan2": 6, "atanh": 5, "cos": 4, "cosh": 4, "div": 2.5, "erf": 16,
    "erfc": 16, "exp": 3, "exp2": 3, "expm1": 3, "hypot": 4, "log": 3, "log10": 3, "log1p": 2, "log2": 3, "pow": 16,
    "reciprocal": 2.5, "rsqrt": 2, "sin": 4, "sinh": 4, "sqrt": 3, "tan": 5, "tanh": 5,
}  # fmt: skip
"""Units of OpenCL C 3.0's full profile in float32, section 7.4."""
TOSA = {"erf": 5, "exp": 1, "log": 5, "pow": 2, "reciprocal": 1, "rsqrt": 2, "sigmoid": 2}
"""Units that Arm's TOSA 1.0 allows in float32; the fewest where they depend on operands. Its sine and cosine have 12 bits."""
EXACT = {"add", "sub", "mul", "fmod", "abs", "neg", "ceil", "floor", "round", "trunc", "fmax", "fmin", "copysign", "nextafter"}


@pytest.mark.parametrize("name", [*OPENCL, *sorted(EXACT)])
def test_no_bound_is_wider_than_opencls(name: str) -> None:
    bound = OPSET[name].bound
    assert isinstance(bound, Exact) if name in EXACT else isinstance(bound, Ulp) and bound.units <= OPENCL[name]
    if name in OPENCL:
        assert "OpenCL" in OPSET[name].source


@pytest.mark.parametrize("name", TOSA)
def test_a_bound_wider_than_tosas_says_why(name: str) -> None:
    row = OPSET[name]
    assert isinstance(row.bound, Ulp)
    assert row.bound.units <= TOSA[name] or "TOSA" in row.source


@pytest.mark.parametrize(("name", "units"), [("div", 1.25), ("sqrt", 1.25), ("exp", 2.75), ("erf", 11.0), ("pow", 9.0)])
def test_a_function_with_the_errors_that_opencl_allows_is_not_accurate_enough(name: str, units: float) -> None:
    """Planted: as many units too many as the row no longer allows, and OpenCL does."""
    row = OPSET[name]
    assert units < OPENCL[name]

    def off(expected: Expected, by: float) -> torch.Tensor:
        unit = ulp(expected.value, torch.float32)
        return torch.where(expected.value.isfinite(), expected.value + by * unit, expected.value).float()

    pairs = list(zip(samples(name, torch.float32), expectations(name, torch.float32), strict=True))
    assert any(not violations(row.bound, row, sample, off(exact, units), (exact,)).ok for sample, (exact,) in pairs)
    assert isinstance(row.bound, Ulp)
    allowed = row.bound.units - 1  # which rounding makes up to one more, above a power of two
    assert all(violations(row.bound, row, sample, off(exact, allowed), (exact,)).ok for sample, (exact,) in pairs)


def toward_zero(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    rounded = value.to(dtype)
    beyond = (rounded.double().abs() > value.abs()) & rounded.isfinite()
    return (rounded.view(torch.int16) - beyond.to(torch.int16)).view(dtype)


ROUNDED = {name: row for name, row in OPSET.items() if isinstance(row.bound, Ulp) and row.family is Family.POINTWISE}


@pytest.mark.parametrize("row", ROUNDED.values(), ids=ROUNDED.keys())
def test_truncated_halves_are_rejected(row: Prim) -> None:
    """In halves a function of an element is a rounded float32 result."""
    for dtype in {torch.bfloat16, torch.float16} & {*row.dtypes}:
        verdicts = []
        for sample, (expected,) in zip(samples(row.name, dtype), expectations(row.name, dtype), strict=True):
            if expected.dtype != dtype:
                continue
            assert violations(row.bound, row, sample, expected.value.to(dtype), (expected,)).ok
            verdicts.append(violations(row.bound, row, sample, toward_zero(expected.value, dtype), (expected,)).ok)
        assert not all(verdicts), dtype


DECOMPOSED = {name: row for name, row in OPSET.items() if row.decomposition is not None}


def loosened(bound: Any) -> Any:
    """What holds a decomposition that declares a cost: right to 1 part in 500 (float32), which tells a wrong formula from a
    costly one."""
    if isinstance(bound, Ulp):
        halves = {torch.bfloat16: 4.0, torch.float16: 4.0}
        return replace(bound, units=2.0**14, by_dtype=halves, absolute=max(bound.absolute, 2.0**14))
    if isinstance(bound, Accumulated):
        return replace(bound, constant=bound.constant * 2.0**16)
    return bound


@functools.cache
def decomposed(name: str) -> tuple[frozenset[Any], tuple[tuple[torch.dtype, Sample, Verdict], ...]]:
    """The operators that a row's decomposition calls, and how its results meet the row's bound."""
    row = OPSET[name]
    assert row.decomposition is not None
    bound = loosened(row.bound) if row.decomposition_cost else row.bound
    verdicts = []
    calls = Calls()
    for dtype, sample, expected in cases(row):
        if sample.special and row.decomposition_cost:
            continue
        torch.manual_seed(7)
        with calls:
            result = row.decomposition(*sample.args, **sample.kwargs)
        verdicts.append((dtype, sample, violations(bound, row, sample, result, expected)))
    return frozenset(calls.targets), tuple(verdicts)


@pytest.mark.parametrize("row", DECOMPOSED.values(), ids=DECOMPOSED.keys())
def test_decomposition_meets_bound(row: Prim) -> None:
    """A decomposition is the same function; it meets the row's bound where it declares no cost."""
    _, verdicts = decomposed(row.name)
    failures = [f"{dtype} {sample.label}: {verdict.message}" for dtype, sample, verdict in verdicts if not verdict.ok]
    if row.name in DECOMPOSITION_NEEDS_EXACT_PARTS:
        assert failures, f"{row.name}: take it out of DECOMPOSITION_NEEDS_EXACT_PARTS"
    else:
        assert not failures, failures


DECOMPOSITION_NEEDS_EXACT_PARTS = {
    "remainder": "torch's fmod (see TORCH_WRONG)",
}
"""Decompositions that would meet the bound if torch's operators that they call did."""


def test_decompositions_end_in_prims() -> None:
    """Decompositions call prims only, and never lead back to the prim they decompose."""
    edges: dict[str, set[str]] = {}
    for row in DECOMPOSED.values():
        calls, _ = decomposed(row.name)
        assert calls <= set(BY_TARGET), f"{row.name} calls {sorted(map(str, calls - set(BY_TARGET)))}"
        edges[row.name] = {BY_TARGET[target].name for target in calls}

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"decompositions go in a circle: {' -> '.join((*path, name))}"
        for part in edges.get(name, ()):
            visit(part, (*path, name))

    for name in edges:
        visit(name, ())


def row_of(bound: Any) -> Prim:
    return replace(OPSET["exp"], bound=bound)


def expect(*values: float, dtype: torch.dtype = torch.float32) -> tuple[Expected, ...]:
    value = torch.tensor(values, dtype=torch.float64)
    return (Expected(value, tuple(value.shape), dtype),)


def judge(bound: Any, result: Any, expected: tuple[Expected, ...]) -> Verdict:
    return violations(bound, row_of(bound), Sample((torch.zeros(1),)), result, expected)


@pytest.mark.parametrize("bound", [Exact(), Ulp(2.0), Accumulated(lambda x: 1, lambda x: torch.ones(1))])
@pytest.mark.parametrize(
    ("value", "wanted", "ok"),
    [
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (1.0, math.nan, False),
        (math.inf, math.inf, True),
        (-math.inf, math.inf, False),
        (torch.finfo(torch.float32).max, math.inf, False),
        (math.inf, 1.0, False),
        (math.inf, 1e39, True),  # beyond float32
        (-0.0, 0.0, True),
        (1.0, 1.0, True),
        (1.001, 1.0, False),
    ],
)
def test_special_values_agree(bound: Any, value: float, wanted: float, ok: bool) -> None:
    assert judge(bound, torch.tensor([value]), expect(wanted)).ok is ok


def test_signed_zero() -> None:
    assert not judge(Exact(signed_zero=True), torch.tensor([-0.0]), expect(0.0)).ok
    assert judge(Exact(signed_zero=True), torch.tensor([-0.0]), expect(-0.0)).ok


def quotients(mode: str, *results: float, dtype: torch.dtype = torch.bfloat16) -> list[bool]:
    """Whether 7.25 / 0.3027, which is 23.95 and rounds to 24 in bfloat16, may be each of ``results``."""
    row = OPSET["div.Tensor_mode"]
    x, y = torch.tensor([7.25], dtype=dtype), torch.tensor([0.302734375], dtype=dtype)
    sample = Sample((x, y), {"rounding_mode": mode})
    expected = reference(row, sample)
    return [violations(row.bound, row, sample, torch.tensor([each], dtype=dtype), expected).ok for each in results]


def test_a_quotient_may_be_rounded_before_it_is_truncated() -> None:
    assert quotients("trunc", 22.0, 23.0, 24.0, 25.0) == [False, True, True, False]
    assert quotients("trunc", 23.0, 24.0, dtype=torch.float32) == [True, False]
    assert quotients("floor", 22.0, 23.0, 24.0) == [False, True, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["scatter_add", "scatter_reduce"])
def test_what_is_scattered_may_be_summed_in_halves(name: str, dtype: torch.dtype) -> None:
    """As with index_put: torch's CUDA kernels add by atomic operations on the halves. A forgotten addend is still found."""
    row, kind = OPSET[name], ("sum",) if name == "scatter_reduce" else ()
    source = draw(SampleContext.make(dtype), (5, 40), Interval(0.5, 2.0))
    index = torch.arange(40).expand(5, 40) % 5
    sample = Sample((torch.ones(5, 5, dtype=dtype), 1, index, source, *kind))
    expected = reference(row, sample)
    rounded, forgotten = torch.ones(5, 5, dtype=dtype), torch.ones(5, 5, dtype=dtype)
    for place in range(40):
        rounded[:, place % 5] += source[:, place]
        forgotten[:, place % 5] += source[:, place] if place < 39 else 0
    assert not torch.equal(rounded, expected[0].value.to(dtype))
    assert violations(row.bound, row, sample, rounded, expected).ok
    assert not violations(row.bound, row, sample, forgotten, expected).ok


def test_ulp_counts_units() -> None:
    eps = torch.finfo(torch.float32).eps
    verdict = judge(Ulp(2.0), torch.tensor([1.0, 1.0 + 3 * eps]), expect(1.0, 1.0))
    assert not verdict.ok
    assert verdict.error == pytest.approx(1.5)
    assert verdict.index == (1,)
    assert judge(Ulp(3.0), torch.tensor([1.0 + 3 * eps]), expect(1.0)).ok
    tiny = torch.finfo(torch.float32).smallest_normal * eps
    assert judge(Ulp(1.0), torch.tensor([tiny]), expect(0.0)).ok
    assert not judge(Ulp(1.0), torch.tensor([2 * tiny]), expect(0.0)).ok


@pytest.mark.parametrize(
    ("result", "word"),
    [
        (torch.ones(1, dtype=torch.float64), "dtype"),
        (torch.ones(2), "shape"),
        ((torch.ones(1), torch.ones(1)), "2 results"),
        (1.0, "float"),
    ],
)
def test_outline_is_checked(result: Any, word: str) -> None:
    verdict = judge(Ulp(2.0), result, expect(1.0))
    assert not verdict.ok
    assert word in verdict.message


def test_empty_result_is_right_only_in_outline() -> None:
    expected = (Expected(torch.zeros(0, 3, dtype=torch.float64), (0, 3), torch.float32),)
    assert judge(Ulp(2.0), torch.zeros(0, 3), expected).ok
    assert not judge(Ulp(2.0), torch.zeros(3, 0), expected).ok


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8])
def test_draw_stays_inside(dtype: torch.dtype) -> None:
    values = draw(SampleContext.make(dtype), (1000,), Interval(0.1, 7.3)).to(torch.float64)
    assert bool(((values >= 0.1) & (values <= 7.3)).all())
    assert values.unique().numel() > 5
