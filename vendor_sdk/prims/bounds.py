"""Error bounds: how far from the reference a result may be, as a function of the operation, never a global tolerance.

Each bound turns (reference in float64, sample, result dtype) into an absolute allowance per element. NaN and infinities must
agree in place and sign under every bound but ``Distribution``. Integer and bool results are exact under every bound that
compares. A float64 result is compared with a float64 reference that has errors of its own, so there the allowance is doubled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from vendor_sdk.prims.reference import Expected, evaluate, flat, upcast
from vendor_sdk.prims.samples import Sample
from vendor_sdk.prims.statistics import Errors, largest_statistic

if TYPE_CHECKING:
    from vendor_sdk.prims.row import Row


@dataclass(frozen=True)
class Exact:
    """The reference rounded to the result dtype, bit for bit (signed zeros may differ only where ``signed_zero`` is False).
    Halves are rounded at once or through float32, which differ beside ties.

    ``others`` is for definitions that leave open what is rounded: called with the sample's arguments, it returns further
    tensors of the result's shape and dtype, and each element may be that of any of them.
    """

    signed_zero: bool = False
    others: Callable[..., Sequence[torch.Tensor]] | None = None


@dataclass(frozen=True)
class Ulp:
    """At most ``units`` units in the last place of the result dtype from the reference, which is not rounded first: the
    correctly rounded result has an error of at most 0.5.

    ``by_dtype`` overrides for single dtypes. ``absolute`` is an absolute floor in the same dtype's units at 1.0, for functions
    whose relative condition number is unbounded near a zero that is not at the origin (``lgamma`` near 1 and 2); for halves
    in ``by_dtype`` in float32's units, since they are computed in it.
    """

    units: float
    by_dtype: Mapping[torch.dtype, float] = field(default_factory=dict)
    absolute: float = 0.0


ROUNDED_ONCE = 0.51
"""Units in the last place of a half: 0.5 of the rounding, and what 64 units of float32 are, less than 0.01 of float16. A
truncated result has up to 1, which OpenCL's half-precision table (2) would let pass."""


def in_float32(units: float, absolute: float = 0.0) -> Ulp:
    """``units`` in float32 and float64; halves are rounded once from a float32 result that has at most so many."""
    return Ulp(units, dict.fromkeys((torch.float16, torch.bfloat16), ROUNDED_ONCE), absolute)


@dataclass(frozen=True)
class Accumulated:
    """Input-dependent bound for sums of products and reductions.

    ``|result - reference| <= constant * growth(n) * u * magnitude + u' * |reference|`` with ``u'`` the unit roundoff of the
    *result* dtype for the final rounding and ``u`` that of the accumulation dtype (float32 for halves) for the sum, ``n`` the
    number of terms, and ``magnitude`` the same operation on absolute values. ``growth(n) = min(n, 8 sqrt(n))``: the first is
    the worst case (Higham, Accuracy and Stability of Numerical Algorithms, 2002, sections 3.1 and 4.2), the second holds with
    probability ``1 - 2 exp(-32)`` for any order of summation (Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019, theorem 2.4).

    With ``shared``, the errors of all elements together must be those of independent roundings to nearest (``statistics``). The
    variance of a sum in any order is at most ``(constant * u * magnitude)**2 * n / 3``: each of its roundings has at most
    ``(u * magnitude)**2 / 3``. The last one, to the result dtype, has half the square of half a unit: a third where what is
    rounded is spread evenly, a half where it is a multiple of half a unit, as sums of two. The mean is zero, but for

    * ``bias * u * magnitude``;
    * ``n**2 / 6 * u**2 * magnitude``: addends below half a unit of the partial sum are lost, at step ``k`` those below
      ``u k m``, with ``m`` the mean addend: ``(u k m)**2 / (2 m)`` in the mean where their density there is ``1 / m``;
    * ``n / 2 * u * |reference|`` in halves, since accumulators of tensor cores truncate (Fasi, Higham, Mikaitis and Pranesh,
      Numerical behavior of NVIDIA tensor cores, PeerJ Comput. Sci. 7, 2021), which shows in no half: truncated partial sums
      ``S_k`` lose ``u S_k`` at most, in the mean, and they grow evenly to the result.

    Nothing is said where ``n u > 1/16``, since sums stagnate altogether there; nor of float64, whose reference is no more
    exact than the result.

    With ``narrowed``, a factor of each product may have been computed and rounded to a half, since matrix units take operands
    of that dtype: a half's unit roundoff of the sum of those products is allowed besides.

    Attributes:
        terms: number of terms ``n`` of one output element, from the arguments.
        magnitude: called with the sample's float64 arguments, returns the operation on absolute values (same structure as the
            result); ``None``: call the prim's own reference with absolute values.
        constant: multiplies the growth; 1 unless the operation rounds more than once per term.
        own_dtype: halves that may be summed in themselves, as kernels of torch for this operation do; float32 otherwise.
        shared: from the arguments, the dimensions of a result along which elements have parts of their sums in common
            (``apart``: no dimension); ``None`` for operations whose elements are not independent otherwise.
        bias: mean error of a right result in units of ``u * magnitude``: of a number that is rounded once for all elements, of
            functions in one ulp that is always on the same side. ``None``: ``constant - 1``, since sums of products have none.
        narrowed: called as ``magnitude``, returns for each result the sums of the absolute values of those products, and of
            their squares; ``None`` for a result without.
    """

    terms: Callable[..., int]
    magnitude: Callable[..., Any] | None = None
    constant: float = 1.0
    own_dtype: tuple[torch.dtype, ...] = ()
    shared: Callable[..., Sequence[int]] | None = None
    bias: float | None = None
    narrowed: Callable[..., Sequence[tuple[torch.Tensor, torch.Tensor] | None]] | None = None


def apart(*_: Any, **__: Any) -> Sequence[int]:
    """``Accumulated.shared`` where each element of a result is a sum of its own."""
    return ()


@dataclass(frozen=True)
class Distribution:
    """Random prims: samples must fit the distribution (mean, variance, support), not equal anything."""

    check: Callable[..., str | None]
    """Called with (result, sample); returns what is wrong, or None."""
    drawn: Sequence[int] | None = None
    """Which results are random numbers by themselves, not made of operands; None for all."""


@dataclass(frozen=True)
class Property:
    """Results defined up to a choice (eigenvectors, index of an equal maximum): a check instead of a comparison."""

    check: Callable[..., str | None]
    """Called with (result, sample); returns what is wrong, or None."""


BY_DEFINITION = "exact by definition"
"""``source`` of a row that moves, compares or counts."""
HIGHAM = "Higham, Accuracy and Stability of Numerical Algorithms (2002), "
"""Begins the ``source`` of a row whose results are sums or products of many terms, or factors of matrices."""
OF_SUMS = HIGHAM + "section 4.2"
"""``source`` of sums; the probabilistic part of ``Accumulated`` is Higham and Mary's for all of them."""
OF_EXPONENTIALS = OF_SUMS + ", and Blanchard, Higham and Higham, IMA J. Numer. Anal. 41 (2021)"
"""``source`` of sums of exponentials and what is made of them."""
OF_VARIANCES = "Chan, Golub and LeVeque, Algorithms for computing the sample variance (1983)"
"""``source`` of variances and what is made of them."""
OF_PRODUCTS = HIGHAM + "section 3.1"
"""``source`` of sums of products."""

Bound = Exact | Ulp | Accumulated | Distribution | Property
"""What a prim's results must meet: one of these."""


@dataclass(frozen=True)
class Verdict:
    """Whether a result meets its bound.

    Attributes:
        ok: it does.
        error: the worst error as a multiple of what the bound allows (1.0 is just allowed), ``inf`` for a result of the wrong
            shape, dtype or class, 0 for an exact one.
        index: of the worst element in its result, ``None`` where no single element is to blame.
        output: which of several results that is.
        message: what is wrong, one sentence; ``""`` when ``ok``.
        statistic: the largest statistic over the errors of all results as a multiple of its limit (``statistics``), ``None``
            where none is made; only of results of which each element by itself is right.
    """

    ok: bool
    error: float = 0.0
    index: tuple[int, ...] | None = None
    output: int = 0
    message: str = ""
    statistic: float | None = None


@dataclass(frozen=True)
class Elements:
    """One result beside its reference, element by element. Complex elements are pairs of real ones, in a last dimension.

    Attributes:
        actual: of the dtype of the result, on the CPU.
        expected: float64 where the result is floating, of the dtype of the reference elsewhere.
        allowed: absolute error, float64; ``None`` where equality is asked for.
        errors: in units of ``allowed``, at least float32; infinite where the two disagree on NaN, infinities or equality.
    """

    actual: torch.Tensor
    expected: torch.Tensor
    allowed: torch.Tensor | None
    errors: torch.Tensor

    def ulps(self) -> torch.Tensor | None:
        """Errors in units in the last place of the result's dtype, float64; ``None`` for integers and bool."""
        if not self.actual.is_floating_point():
            return None
        value = self.expected.to(torch.float64)
        return (self.actual.to(torch.float64) - value).abs() / ulp(value, self.actual.dtype)


def violations(bound: Bound, row: Row, sample: Sample, result: Any, reference: Sequence[Expected]) -> Verdict:
    """Compares what a backend computed with what it must be.

    Args:
        bound: usually ``row.bound``.
        row, sample: the call; input-dependent bounds look at its arguments.
        result: a tensor, a Python number, or a tuple of them, on any device.
        reference: from ``vendor_sdk.prims.reference.reference(row, sample)``.
    """
    results = flat(result)
    if len(results) != len(reference):
        return Verdict(False, math.inf, message=f"{len(results)} results where {len(reference)} are expected")
    for output, (item, expected) in enumerate(zip(results, reference, strict=True)):
        message = _outline_error(item, expected)
        if message:
            return Verdict(False, math.inf, output=output, message=_of(output, len(results)) + message)
    if sample.undefined:
        return Verdict(True)
    if isinstance(bound, Distribution | Property):
        broken = _checked(bound, result, sample)
        return Verdict(True) if broken is None else Verdict(False, math.inf, message=broken)
    sums = _Sums.of(bound, row, sample) if isinstance(bound, Accumulated) else None
    found = _elements(bound, sums, row, sample, results, reference)
    verdicts = [
        _compare(item, expected, each, output, _of(output, len(results)))
        for output, (item, expected, each) in enumerate(zip(results, reference, found, strict=True))
    ]
    worst = max(verdicts, key=lambda verdict: (not verdict.ok, verdict.error), default=Verdict(True))
    if sums is None or not worst.ok:
        return worst
    largest = largest_statistic(sums.errors(results, reference))
    if largest is None:
        return worst
    if largest.ratio > 1.0:
        return Verdict(False, largest.ratio, message=largest.message, statistic=largest.ratio)
    return replace(worst, statistic=largest.ratio)


def elements(bound: Bound, row: Row, sample: Sample, result: Any, reference: Sequence[Expected]) -> list[Elements | None]:
    """Each result element by element, for those who show errors; ``None`` where no element is judged by itself: results that
    are no tensors, undefined ones, and bounds that look at a whole.

    Args: as of ``violations``, and a result of the right shapes and dtypes.
    """
    if sample.undefined or isinstance(bound, Distribution | Property):
        return [None] * len(reference)
    sums = _Sums.of(bound, row, sample) if isinstance(bound, Accumulated) else None
    return _elements(bound, sums, row, sample, flat(result), reference)


def _elements(
    bound: Exact | Ulp | Accumulated,
    sums: _Sums | None,
    row: Row,
    sample: Sample,
    results: Sequence[Any],
    reference: Sequence[Expected],
) -> list[Elements | None]:
    allowed = sums.allowances(reference) if sums else allowances(bound, row, sample, reference)
    others = bound.others(*sample.args, **sample.kwargs) if isinstance(bound, Exact) and bound.others else ()
    return [
        None
        if expected.dtype is None or expected.value is None
        else _beside(bound, item.detach().cpu(), expected, expected.dtype, allowance, others)
        for item, expected, allowance in zip(results, reference, allowed, strict=True)
    ]


def _checked(bound: Distribution | Property, result: Any, sample: Sample) -> str | None:
    try:
        return bound.check(result, sample)
    except (RuntimeError, ValueError, IndexError) as error:
        # Checks put results into torch operators, which refuse what breaks their preconditions (pivots out of range).
        return f"the result cannot be checked, since torch refuses it: {error}"


def ulp(reference: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The unit in the last place of ``dtype`` at float64 values ``reference``: spacing of the binade that holds each value,
    never less than the smallest subnormal. Non-finite values count as the largest finite one."""
    info = torch.finfo(dtype)
    magnitude = reference.abs().nan_to_num(nan=0.0, posinf=info.max).clamp(info.smallest_normal, info.max)
    _, exponent = torch.frexp(magnitude)  # magnitude = m * 2**exponent with 0.5 <= m < 1
    return torch.ldexp(torch.full_like(magnitude, info.eps), exponent - 1)


_HALVES = frozenset((torch.float16, torch.bfloat16))
NARROW = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
"""Dtypes that torch rounds float64 to by way of float32."""


def rounded_once(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float64 values in one of ``NARROW``, rounded to nearest even at once: by float32 rounded to odd, after which no second
    rounding shows (Boldo and Melquiond, Emulation of FMA and correctly rounded sums, IEEE Trans. Comput. 57(4), 2008)."""
    single = values.float()
    bits = single.view(torch.int32)
    bits = torch.where(single.double().abs() > values.abs(), bits - 1, bits)  # toward zero
    odd = torch.where(single.double() != values, bits | 1, bits).view(torch.float32)
    return torch.where(values.isfinite(), odd, single).to(dtype)


def _signbit(values: torch.Tensor) -> torch.Tensor:
    # torch has it for no float of eight bits.
    return torch.signbit(values.float() if values.dtype.itemsize == 1 else values)


def _of(output: int, count: int) -> str:
    return f"result {output}: " if count > 1 else ""


def _outline_error(item: Any, expected: Expected) -> str:
    if expected.dtype is None:
        return "a tensor where a Python value is expected" if isinstance(item, torch.Tensor) else ""
    if not isinstance(item, torch.Tensor):
        return f"{type(item).__name__} where a tensor is expected"
    if item.dtype != expected.dtype:
        return f"dtype {item.dtype} where {expected.dtype} is expected"
    if tuple(item.shape) != expected.shape:
        return f"shape {tuple(item.shape)} where {expected.shape} is expected"
    return ""


def allowances(
    bound: Exact | Ulp | Accumulated, row: Row, sample: Sample, reference: Sequence[Expected]
) -> list[torch.Tensor | None]:
    """Per result, the allowed absolute error of each element in float64; ``None`` where equality is asked for.

    Args:
        bound, row: usually ``row.bound`` and its row.
        sample: the call; only a bound of sums looks at its arguments.
        reference: the exact results, with the dtype that each has.
    """
    if isinstance(bound, Exact):
        return [None] * len(reference)
    if isinstance(bound, Ulp):
        return [_ulp_allowance(bound, expected) for expected in reference]
    return _Sums.of(bound, row, sample).allowances(reference)


@dataclass(frozen=True)
class _Sums:
    """A bound of sums for one call.

    Attributes:
        bound: it.
        terms: of one element.
        magnitudes: of each result.
        narrowed: of each result, as ``bound.narrowed`` says.
        shared: dimensions, as ``bound.shared`` says; ``None`` for no statistics.
    """

    bound: Accumulated
    terms: int
    magnitudes: Sequence[Any]
    narrowed: Sequence[tuple[torch.Tensor, torch.Tensor] | None]
    shared: Sequence[int] | None

    @classmethod
    def of(cls, bound: Accumulated, row: Row, sample: Sample) -> _Sums:
        args, kwargs = upcast(sample.args), upcast(sample.kwargs)
        if bound.magnitude is not None:
            magnitudes = flat(bound.magnitude(*args, **kwargs))
        else:
            magnitudes = flat(evaluate(row, _absolute(args), _absolute(kwargs)))
        shared = None if bound.shared is None else bound.shared(*args, **kwargs)
        narrowed = [None] * len(magnitudes) if bound.narrowed is None else bound.narrowed(*args, **kwargs)
        return cls(bound, max(bound.terms(*args, **kwargs), 1), magnitudes, narrowed, shared)

    def allowances(self, reference: Sequence[Expected]) -> list[torch.Tensor | None]:
        """As the function of that name."""
        each = zip(self.magnitudes, self.narrowed, reference, strict=True)
        return [self._allowance(magnitude, narrowed, expected) for magnitude, narrowed, expected in each]

    def _roundoff(self, real: torch.dtype) -> float:
        """Of the dtype that is summed in, for results of ``real``."""
        summed_in_float32 = real != torch.float64 and real not in self.bound.own_dtype
        return torch.finfo(torch.float32 if summed_in_float32 else real).eps / 2

    def _allowance(self, magnitude: Any, narrowed: Any, expected: Expected) -> torch.Tensor | None:
        if not _inexact(expected) or expected.value is None:
            return None
        assert expected.dtype is not None
        real = expected.dtype.to_real() if expected.dtype.is_complex else expected.dtype
        growth = min(float(self.terms), 8.0 * math.sqrt(self.terms))
        summing: torch.Tensor = self.bound.constant * growth * self._roundoff(real) * magnitude.abs().to(torch.float64)
        rounding = 0.5 * ulp(expected.value.abs(), real)
        # Each term may underflow by itself, which no relative bound covers.
        underflow = self.terms * torch.finfo(real).smallest_normal * torch.finfo(real).eps
        allowance = summing + rounding + underflow
        if narrowed is not None and real in _HALVES:
            allowance = allowance + torch.finfo(real).eps / 2 * narrowed[0]
        return allowance * 2 if real == torch.float64 else allowance

    def errors(self, results: Sequence[Any], reference: Sequence[Expected]) -> list[Errors]:
        """Of the results that statistics are made of."""
        if self.shared is None:
            return []
        return [
            self._errors(item, magnitude, narrowed, expected, expected.dtype)
            for item, magnitude, narrowed, expected in zip(results, self.magnitudes, self.narrowed, reference, strict=True)
            if expected.dtype in (torch.float32, *_HALVES)
            and expected.value is not None
            and self.terms * self._roundoff(expected.dtype) <= STAGNANT
        ]

    def _errors(
        self, item: torch.Tensor, magnitude: torch.Tensor, narrowed: Any, expected: Expected, dtype: torch.dtype
    ) -> Errors:
        actual, value = item.detach().cpu().to(torch.float64), expected.value
        info, half = torch.finfo(dtype), 0.5 * ulp(value, dtype)
        roundoff = self._roundoff(dtype)
        unit = roundoff * magnitude.abs().to(torch.float64)
        units = self.bound.constant - 1 if self.bound.bias is None else self.bound.bias
        bias = (units + self.terms**2 / 6 * roundoff) * unit
        if roundoff < info.eps / 2:
            bias = bias + self.terms / 2 * roundoff * value.abs()
        variance = self.bound.constant**2 * self.terms / 3 * unit.square() + half.square() / 2
        if narrowed is not None and dtype in _HALVES:
            variance = variance + (info.eps / 2) ** 2 / 3 * narrowed[1]
        # Near the ends of the range roundings are no longer relative.
        told = actual.isfinite() & (value.abs() >= info.smallest_normal) & (value.abs() <= info.max)
        told &= unit > self.terms * torch.finfo(torch.float32).smallest_normal
        return Errors((actual - value)[told], value[told].sign(), variance[told], bias[told], self._groups(value)[told])

    def _groups(self, value: torch.Tensor) -> torch.Tensor:
        """The number of the group of each element: what is equal, as rows of an expanded tensor, is one group too."""
        assert self.shared is not None
        dims = [dim for dim in self.shared if -value.dim() <= dim < value.dim()]
        sizes = value.nan_to_num().square()
        sizes = sizes.sum(dims, True) if dims else sizes
        number: torch.Tensor = torch.unique(sizes, return_inverse=True)[1]
        return number.expand(value.shape)


STAGNANT = 1 / 16
"""Number of terms, in reciprocals of the unit roundoff, above which errors of sums are no longer symmetric: terms are lost."""


def _inexact(expected: Expected) -> bool:
    return expected.dtype is not None and (expected.dtype.is_floating_point or expected.dtype.is_complex)


def _ulp_allowance(bound: Ulp, expected: Expected) -> torch.Tensor | None:
    if not _inexact(expected):
        return None
    assert expected.dtype is not None
    real = expected.dtype.to_real() if expected.dtype.is_complex else expected.dtype
    units = bound.by_dtype.get(expected.dtype, bound.units)
    value = expected.value.abs() if expected.dtype.is_complex else expected.value
    floor = torch.float32 if expected.dtype in bound.by_dtype else real
    allowance = units * ulp(value, real) + bound.absolute * torch.finfo(floor).eps
    return allowance * 2 if real == torch.float64 else allowance


def _absolute(value: Any) -> Any:
    """``value`` with its floating tensors replaced by their absolute values."""
    if isinstance(value, torch.Tensor):
        return value.abs() if value.dtype.is_floating_point or value.dtype.is_complex else value
    if isinstance(value, dict):
        return {key: _absolute(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_absolute(item) for item in value]
    return tuple(_absolute(item) for item in value) if type(value) is tuple else value


def _beside(
    bound: Exact | Ulp | Accumulated,
    actual: torch.Tensor,
    expected: Expected,
    dtype: torch.dtype,
    allowance: torch.Tensor | None,
    others: Sequence[torch.Tensor],
) -> Elements:
    value = expected.value
    if dtype.is_complex:
        actual, value = torch.view_as_real(actual.resolve_conj()), torch.view_as_real(value.resolve_conj())
        dtype, others = dtype.to_real(), ()
        allowance = None if allowance is None else allowance.unsqueeze(-1).expand(value.shape)
    if allowance is None:
        return Elements(actual, value, None, _unequal(bound, actual, value, dtype, others))
    errors = _relative_errors(actual.to(torch.float64), value.to(torch.float64), dtype, allowance)
    return Elements(actual, value, allowance, errors)


def _unequal(
    bound: Exact | Ulp | Accumulated,
    actual: torch.Tensor,
    value: torch.Tensor,
    dtype: torch.dtype,
    others: Sequence[torch.Tensor],
) -> torch.Tensor:
    """Infinity where a result is not the rounded reference, zero elsewhere."""
    rounded = value.to(dtype)
    wrong = (actual != rounded) & ~((actual != actual) & (rounded != rounded))
    if value.dtype == torch.float64 and dtype in NARROW:
        # torch goes through float32, which IEEE 754 does not ask for: both are right.
        wrong &= actual != rounded_once(value, dtype)
    for other in others:
        wrong &= actual != other
    if isinstance(bound, Exact) and bound.signed_zero and dtype.is_floating_point:
        wrong |= _signbit(actual) != _signbit(rounded)
        wrong &= ~(actual.isnan() & rounded.isnan())
    return torch.where(wrong, math.inf, 0.0)


def _compare(item: Any, expected: Expected, found: Elements | None, output: int, where: str) -> Verdict:
    """The verdict on one result."""
    if found is None and expected.dtype is not None:
        return Verdict(True, output=output)  # of any contents
    if found is None:
        same = type(item) is type(expected.value) and item == expected.value
        message = "" if same else f"{where}{item!r} where {expected.value!r} is expected"
        return Verdict(same, 0.0 if same else math.inf, output=output, message=message)
    errors, actual = found.errors, found.actual
    if actual.numel() == 0:
        return Verdict(True, output=output)
    flat_index = int(errors.reshape(-1).argmax())
    worst = float(errors.reshape(-1)[flat_index])
    index = tuple(int(part) for part in torch.unravel_index(torch.tensor(flat_index), actual.shape))
    if worst <= 1.0:
        return Verdict(True, worst, index, output)
    count = int((errors > 1.0).sum())
    got, wanted = actual[index].item(), found.expected[index].item()
    size = f"{worst:.3g} times the allowed error" if math.isfinite(worst) else "no error is allowed there"
    message = f"{where}{got!r} at {index} where {wanted!r} is expected ({size}); {count} of {actual.numel()} elements wrong"
    return Verdict(False, worst, index, output, message)


def _relative_errors(actual: torch.Tensor, value: torch.Tensor, dtype: torch.dtype, allowance: torch.Tensor) -> torch.Tensor:
    """Errors as multiples of ``allowance``; ``inf`` where NaN or infinities disagree.

    A reference too large for ``dtype`` counts as the first value beyond its range, and so does an infinite result: rounding
    the last finite value up, or not quite reaching the first infinite one, is an error of few units like any other.
    """
    info = torch.finfo(dtype)
    # In float64 itself that value does not exist: an infinity stands for the largest finite value there.
    beyond = info.max if dtype == torch.float64 else info.max * (1 + info.eps / 2)
    distance = (actual.clamp(-beyond, beyond) - value.clamp(-beyond, beyond)).abs()
    errors = distance / allowance.clamp(max=info.max)
    errors = torch.where(distance == 0, 0.0, errors)
    disagree = (actual.isnan() != value.isnan()) | (value.isinf() & (actual != value))
    errors = torch.where(actual.isnan() & value.isnan(), 0.0, errors)
    return torch.where(disagree | errors.isnan(), math.inf, errors)
