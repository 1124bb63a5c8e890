"""Rows of the random family: values drawn from a distribution, tested as such.

Same seed, same result within a backend; backends need not agree with each other or with torch. Other distributions are
functions of these: ``uniform``, ``exponential``, ``geometric`` and ``cauchy`` of ``rand``, ``normal`` and ``log_normal`` of
``randn``.

Each comparison has a false alarm rate below 1e-8 and a row makes fewer than a hundred, so a correct implementation fails a
row with probability below 1e-6: distribution functions are compared by the Dvoretzky-Kiefer-Wolfowitz inequality, which
holds for every sample size, moments and frequencies by normal deviates at 5.8 standard deviations (two-sided tail 6.6e-9)
over samples large enough for the central limit theorem to hold there.
"""

# mypy: disable-error-code="no-any-return"
# (torch.ops is untyped: every operator call is an Any.)

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from vendor_sdk.prims.bounds import Distribution
from vendor_sdk.prims.elementary import cast
from vendor_sdk.prims.row import FLOATS, INTS, Family, Prim, Result, Shape
from vendor_sdk.prims.samples import Sample, SampleContext, Sampler

aten = torch.ops.aten
Tensor = torch.Tensor

COUNT = 65536
"""Numbers drawn for one distribution test."""
DEVIATIONS = 5.8
DISTANCE = math.sqrt(math.log(2 / 1e-8) / (2 * COUNT))
"""Largest distance between the distribution functions: P(more) <= 2 exp(-2 COUNT DISTANCE**2) = 1e-8 (Massart, Annals of
Probability 18, 1990)."""

_SINGLE_DOUBLE = (torch.float32, torch.float64)


def misfit(
    values: Tensor, cdf: Callable[[Tensor], Tensor], mean: float, variance: float, fourth: float, resolution: float = 0.0
) -> str | None:
    """What keeps ``COUNT`` values from being independent draws from a distribution; ``None`` when nothing does.

    Args:
        values: the draws, any shape and floating dtype.
        cdf: distribution function on float64 tensors.
        mean, variance, fourth: moments, the last about the mean.
        resolution: how far the dtype's rounding may move the mean.
    """
    draws = values.detach().cpu().reshape(-1).to(torch.float64)
    if not bool(draws.isfinite().all()):
        return "not all values are finite"
    count = draws.numel()
    found_mean, found_variance = float(draws.mean()), float(draws.var(correction=0))
    if abs(found_mean - mean) > DEVIATIONS * math.sqrt(variance / count) + resolution:
        return f"mean {found_mean:.5g} where {mean:.5g} is expected"
    # The variance about the found mean is smaller by the square of the mean's own error.
    spread = math.sqrt(max(fourth - variance**2, 0.0) / count)
    variance_error = DEVIATIONS * spread + DEVIATIONS**2 * variance / count + resolution
    if abs(found_variance - variance) > variance_error:
        return f"variance {found_variance:.5g} where {variance:.5g} is expected"
    distinct, counts = torch.unique(draws, return_counts=True)
    distance = float((counts.cumsum(0) / count - cdf(distinct)).abs().max())
    if distance > DISTANCE + resolution:
        return f"distribution function is off by {distance:.3g}, more than {DISTANCE + resolution:.3g}"
    centred = draws - found_mean
    correlation = float((centred[1:] * centred[:-1]).mean()) / found_variance
    if abs(correlation) > DEVIATIONS / math.sqrt(count):
        return f"neighbouring values are correlated: {correlation:.3g}"
    return None


def frequency_misfit(hits: int, count: int, probability: float, event: str) -> str | None:
    """What is wrong with seeing ``event`` ``hits`` times of ``count``, when it has ``probability``."""
    if abs(hits - count * probability) <= DEVIATIONS * math.sqrt(count * probability * (1 - probability)):
        return None
    return f"{event} came {hits} times of {count}, expected {count * probability:.1f}"


def _outside(values: Tensor, low: float, high: float) -> str | None:
    """Values must lie in ``[low, high]``."""
    wrong = ~((values >= low) & (values <= high))
    return f"{int(wrong.sum())} values outside [{low:g}, {high:g}]" if bool(wrong.any()) else None


def _whole(values: Tensor) -> str | None:
    return None if bool((values == values.round()).all()) else "not all values are whole numbers"


def _first(*problems: str | None) -> str | None:
    return next((problem for problem in problems if problem), None)


def _resolution(dtype: torch.dtype, scale: float = 1.0) -> float:
    return scale * torch.finfo(dtype).eps


def _check_rand(result: Tensor, sample: Sample) -> str | None:
    if bool((result >= 1).any()):
        return "a value is 1 or more"
    uniform = misfit(result, lambda x: x, 1 / 2, 1 / 12, 1 / 80, _resolution(result.dtype))
    return _first(_outside(result, 0, 1), uniform)


def _check_randn(result: Tensor, sample: Sample) -> str | None:
    # P(|x| > 7.5) = 6.4e-14 a value.
    normal = misfit(result, torch.special.ndtr, 0.0, 1.0, 3.0, _resolution(result.dtype))
    return _first(_outside(result, -7.5, 7.5), normal)


def _check_randint(result: Tensor, sample: Sample) -> str | None:
    low, high = sample.args[0], sample.args[1]
    span = high - low
    if (problem := _outside(result, low, high - 1)) is not None:
        return problem
    # Moments of the uniform distribution on `span` consecutive whole numbers.
    variance, fourth = (span**2 - 1) / 12, (span**2 - 1) * (3 * span**2 - 7) / 240
    return misfit(result, lambda x: (x - low + 1) / span, (low + high - 1) / 2, variance, fourth)


def _check_randperm(result: Tensor, sample: Sample) -> str | None:
    count = sample.args[0]
    order = result.detach().cpu().to(torch.float64)
    if not torch.equal(order.sort().values, torch.arange(count, dtype=torch.float64)):
        return f"no permutation of 0..{count - 1}"
    if count < 100:
        return None
    centre, variance = (count - 1) / 2, (count**2 - 1) / 12
    places = torch.arange(count, dtype=torch.float64) - centre
    correlation = float((places * (order - centre)).mean()) / variance
    limit = DEVIATIONS / math.sqrt(count - 1)  # the permutation distribution has variance 1 / (count - 1)
    return f"order correlates with place: {correlation:.3g}" if abs(correlation) > limit else None


def _check_bernoulli(result: Tensor, sample: Sample) -> str | None:
    probabilities = sample.args[0].to(torch.float64)
    values = result.detach().cpu().to(torch.float64)
    if not bool(((values == 0) | (values == 1)).all()):
        return "a value is neither 0 nor 1"
    for row, probability in enumerate(probabilities[:, 0].tolist()):
        event = f"1 with probability {probability:g}"
        if problem := frequency_misfit(int(values[row].sum()), values.shape[1], probability, event):
            return problem
        # Neighbours must be independent: pairs of ones.
        both = int((values[row, 1:-1:2] * values[row, 2::2]).sum())
        if problem := frequency_misfit(both, values[row, 2::2].numel(), probability**2, f"two neighbours, {event}"):
            return problem
    return None


def _check_multinomial(result: Tensor, sample: Sample) -> str | None:
    weights, _, replacement = sample.args
    chances = weights.to(torch.float64) / weights.to(torch.float64).sum(dim=1, keepdim=True)
    drawn = result.detach().cpu()
    categories = weights.shape[1]
    if (problem := _outside(drawn, 0, categories - 1)) is not None:
        return problem
    if replacement:
        groups = [(chances[row], drawn[row]) for row in range(drawn.shape[0])]
    else:
        if bool((drawn.sort(dim=1).values.diff(dim=1) == 0).any()):
            return "a category was drawn twice without replacement"
        groups = [(chances[0], drawn[:, 0])]  # rows are equal: the first draws of all rows have the weights' frequencies
    for chance, values in groups:
        hits = torch.bincount(values, minlength=categories)
        for category in range(categories):
            event = f"category {category}"
            probability = float(chance[category])
            if problem := frequency_misfit(int(hits[category]), values.numel(), probability, event):
                return problem
    return None


def _check_poisson(result: Tensor, sample: Sample) -> str | None:
    for row, rate in enumerate(sample.args[0][:, 0].to(torch.float64).tolist()):
        scale = torch.tensor(rate, dtype=torch.float64)

        def cdf(x: Tensor) -> Tensor:
            return torch.special.gammaincc(x + 1, scale)

        values = result[row]
        # Chernoff: P(x > rate + t) <= exp(-t**2 / (2 (rate + t))), 1e-13 at this t.
        highest = rate + 30 + 8 * math.sqrt(rate)
        problem = _first(_outside(values, 0, highest), _whole(values), misfit(values, cdf, rate, rate, rate + 3 * rate**2))
        if problem:
            return f"rate {rate:g}: {problem}"
    return None


def _check_binomial(result: Tensor, sample: Sample) -> str | None:
    counts, probabilities = sample.args
    for row in range(result.shape[0]):
        n, p = int(counts[row, 0]), float(probabilities[row, 0])
        variance = n * p * (1 - p)
        mass = torch.tensor([math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)], dtype=torch.float64)
        cumulated = mass.cumsum(0)

        def cdf(x: Tensor) -> Tensor:
            return cumulated[x.long()]

        fourth = variance * (1 + 3 * (n - 2) * p * (1 - p))
        problem = _first(_outside(result[row], 0, n), _whole(result[row]))
        problem = problem or misfit(result[row], cdf, n * p, variance, fourth)
        if problem:
            return f"{n} trials with probability {p:g}: {problem}"
    return None


def _check_gamma(result: Tensor, sample: Sample) -> str | None:
    for row, shape in enumerate(sample.args[0][:, 0].to(torch.float64).tolist()):
        parameter = torch.tensor(shape, dtype=torch.float64)

        def cdf(x: Tensor) -> Tensor:
            return torch.special.gammainc(parameter, x)

        # P(x > shape + t) <= exp(-t / 2) for t >= 4 shape: 1e-13 at t = 60.
        problem = _first(
            _outside(result[row], 0, shape + 60 + 4 * shape),
            misfit(result[row], cdf, shape, shape, 3 * shape**2 + 6 * shape, _resolution(result.dtype, shape)),
        )
        if problem:
            return f"shape parameter {shape:g}: {problem}"
    return None


def _sized(context: SampleContext) -> Iterator[Sample]:
    yield Sample(([256, COUNT // 256],), {"dtype": context.dtype}, "two dimensions")


def _randint_samples(context: SampleContext) -> Iterator[Sample]:
    yield Sample((2, 12, [COUNT]), {"dtype": context.dtype}, "few values")
    low = 0 if context.dtype == torch.uint8 else -100
    yield Sample((low, low + 200, [256, COUNT // 256]), {"dtype": context.dtype}, "many values")


def _randperm_samples(context: SampleContext) -> Iterator[Sample]:
    yield Sample((250,), {"dtype": context.dtype}, "fits a byte")
    if context.dtype != torch.uint8:
        yield Sample((4099,), {"dtype": context.dtype}, "large")
    yield Sample((1,), {"dtype": context.dtype}, "size one")
    yield Sample((0,), {"dtype": context.dtype}, "empty")


def _parameters(*values: float) -> Callable[[SampleContext], Tensor]:
    """One row of ``COUNT`` equal parameters a value."""

    def parameters(context: SampleContext) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).to(context.dtype).unsqueeze(1).expand(len(values), COUNT).contiguous()

    return parameters


def _rows_of(*parameters: Callable[[SampleContext], Tensor]) -> Sampler:
    def sample(context: SampleContext) -> Iterator[Sample]:
        yield Sample(tuple(parameter(context) for parameter in parameters), label="a row a parameter")

    return sample


def _multinomial_samples(context: SampleContext) -> Iterator[Sample]:
    weights = torch.tensor([[1.0, 4.0, 0.0, 2.0, 9.0], [3.0, 3.0, 3.0, 0.5, 0.0]], dtype=context.dtype)
    yield Sample((weights, COUNT // 2, True), label="with replacement")
    yield Sample((weights[:1].expand(8192, 5).contiguous(), 3, False), label="without replacement")


def _bernoulli(probability: Tensor, generator: Any = None) -> Tensor:
    if generator is not None:
        raise ValueError("bernoulli with a generator of its own cannot be decomposed")
    # Halves are compared in float32, where rand has enough values to hit a small probability.
    computing = torch.float32 if probability.dtype in (torch.float16, torch.bfloat16) else probability.dtype
    uniform = aten.rand.default(list(probability.shape), dtype=computing, device=probability.device)
    return cast(aten.lt.Tensor(uniform, cast(probability, computing)), probability.dtype)


def _row(
    name: str,
    target: Any,
    summary: str,
    check: Callable[..., str | None],
    samples: Sampler,
    dtypes: tuple[torch.dtype, ...],
    *,
    result: Result = Result.ARGUMENT,
    shape: Shape = Shape.ARGUMENT,
    by: Callable[..., Any] | None = None,
    source: str = "Dvoretzky, Kiefer and Wolfowitz, with Massart's constant; moments by the central limit theorem",
) -> Prim:
    return Prim(
        name=name,
        target=target,
        family=Family.RANDOM,
        summary=summary,
        dtypes=dtypes,
        result=result,
        shape=shape,
        bound=Distribution(check),
        samples=samples,
        decomposition=by,
        source=source,
    )


ROWS = (
    _row("rand", aten.rand.default, "uniform on [0, 1)", _check_rand, _sized, FLOATS),
    _row("randn", aten.randn.default, "standard normal", _check_randn, _sized, FLOATS),
    _row("randint", aten.randint.low, "uniform over the whole numbers low <= k < high", _check_randint, _randint_samples, INTS),
    _row(
        "randperm",
        aten.randperm.default,
        "a random order of 0..n-1, all equally likely",
        _check_randperm,
        _randperm_samples,
        INTS,
        shape=Shape.OPERATOR,
        source="exactly a permutation; rank correlation has variance 1 / (n - 1)",
    ),
    _row(
        "bernoulli",
        aten.bernoulli.default,
        "1 with probability x, else 0",
        _check_bernoulli,
        _rows_of(_parameters(0.0, 0.1, 0.5, 1.0)),
        FLOATS,
        result=Result.SAME,
        shape=Shape.SAME,
        by=_bernoulli,
        source="binomial frequencies by the central limit theorem",
    ),
    _row(
        "multinomial",
        aten.multinomial.default,
        "category indices drawn by weight, with or without replacement",
        _check_multinomial,
        _multinomial_samples,
        FLOATS,
        result=Result.INT64,
        shape=Shape.OPERATOR,
        source="binomial frequencies by the central limit theorem",
    ),
    _row(
        "poisson",
        aten.poisson.default,
        "Poisson with rate x",
        _check_poisson,
        _rows_of(_parameters(0.5, 3.0, 20.0)),
        FLOATS,
        result=Result.SAME,
        shape=Shape.SAME,
    ),
    _row(
        "binomial",
        aten.binomial.default,
        "successes in n trials of probability p",
        _check_binomial,
        _rows_of(_parameters(1.0, 10.0, 40.0), _parameters(0.5, 0.25, 0.75)),
        _SINGLE_DOUBLE,
        result=Result.SAME,
        shape=Shape.SAME,
    ),
    _row(
        "_standard_gamma",
        aten._standard_gamma.default,
        "gamma with shape parameter x and scale 1",
        _check_gamma,
        _rows_of(_parameters(0.5, 1.0, 6.0)),
        _SINGLE_DOUBLE,
        result=Result.SAME,
        shape=Shape.SAME,
    ),
)
"""The random prims."""
