"""Programs at the limits: tensors of more than 2^31 elements, memory that runs out, sizes that become zero and one.

Tables by group, with how each kind of program is judged. Large tensors repeat a pattern whose length is prime, so that what is
read 2^31 or 2^32 elements too early differs. What is right is computed for some rows at a time, so that nothing large is held
for it.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import vendor_sdk
from conformance import resident, witness
from conformance.draw import Draw
from conformance.outcome import Misbehaved
from conformance.subject import Subject
from conformance.values import flat

Tensor = torch.Tensor
Pair = tuple[Tensor, Tensor]
"""Part of a result, and what it must be."""


class NoRoom(Exception):
    """There is less memory than a program takes; the message says how much of each."""


# Tensors of more than 2^31 elements

ROWS, COLUMNS = 65_539, 32_783
"""Primes whose product is a little more than 2^31."""
COUNT = ROWS * COLUMNS
EDGE = 1 << 31
PERIOD = 251
PART = 64
"""Rows that are compared at a time."""
LOOKED_AT = 24
"""Parts that are compared where a result has the rows of an operand, besides the last two, which show what wraps at 2^31."""


@dataclass(frozen=True)
class Large:
    """A program of large tensors.

    Attributes:
        name: what it does, in a few words.
        function: of tensors; returns one, or a tuple.
        inputs: makes them.
        parts: of inputs and results, what is compared.
        copies: bytes of inputs, results and what eager mode needs between them, for each element of a large tensor.
        small: inputs of the first call, where sizes are to change between calls; None: sizes are fixed.
    """

    name: str
    function: Callable[..., Any]
    inputs: Callable[[Draw], Sequence[Tensor]]
    parts: Callable[[Sequence[Tensor], Sequence[Tensor]], Iterable[Pair]]
    copies: float
    small: Callable[[Draw], Sequence[Tensor]] | None = None

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return int(self.copies * COUNT)


def _pattern(draw: Draw, dtype: torch.dtype, rows: int, most: int = PERIOD) -> Tensor:
    """A matrix that repeats whole numbers below ``most`` (0 and 1 of bool), each with the period."""
    numbers = torch.randperm(PERIOD, generator=torch.Generator().manual_seed(draw.seed)) % most
    pattern = (numbers % 3 == 0 if dtype == torch.bool else numbers).to(draw.device, dtype)
    flat = torch.empty(rows * COLUMNS, dtype=dtype, device=draw.device)
    whole = len(flat) // PERIOD
    flat[: whole * PERIOD].view(whole, PERIOD).copy_(pattern)
    flat[whole * PERIOD :] = pattern[: len(flat) - whole * PERIOD]
    return flat.view(rows, COLUMNS)


def _matrix(dtype: torch.dtype = torch.uint8, most: int = PERIOD) -> Callable[[Draw], list[Tensor]]:
    return lambda draw: [_pattern(draw, dtype, ROWS, most)]


def _peak(draw: Draw) -> list[Tensor]:
    """With its largest element near the end."""
    x = _pattern(draw, torch.uint8, ROWS)
    x[-2, 5] = 255
    return [x]


def _places(draw: Draw) -> Tensor:
    """Indices into all elements, on both sides of 2^31."""
    near = torch.tensor([0, EDGE - 1, EDGE, EDGE + 1, COUNT - 1, -1, 1 - COUNT])
    far = torch.randint(EDGE, COUNT, (500,), generator=torch.Generator().manual_seed(draw.seed))
    return torch.cat([near, far]).to(draw.device)


def _every(x: Tensor) -> Iterator[tuple[int, int]]:
    """Where parts of so many rows begin and end."""
    for start in range(0, len(x), 8 * PART):
        yield start, min(start + 8 * PART, len(x))


def _some(x: Tensor) -> Iterator[tuple[int, int]]:
    """Of these the first, the last two and some between."""
    starts = range(0, len(x), PART)
    for start in sorted({*starts[:: max(len(starts) // LOOKED_AT, 1)], *starts[-2:]}):
        yield start, min(start + PART, len(x))


def _by_rows(function: Callable[..., Any]) -> Callable[[Sequence[Tensor], Sequence[Tensor]], Iterator[Pair]]:
    """Of programs whose results have the rows of their first input: eager mode of the same rows."""

    def parts(inputs: Sequence[Tensor], results: Sequence[Tensor]) -> Iterator[Pair]:
        for start, end in _some(results[0]):
            rows = [each[start:end] if len(each) == len(results[0]) else each for each in inputs]
            yield from zip((each[start:end] for each in results), flat(function(*rows)), strict=True)

    return parts


def _extremes(inputs: Sequence[Tensor], results: Sequence[Tensor]) -> Iterator[Pair]:
    (x,), (by_column, by_row) = inputs, results
    largest = torch.full_like(by_column, -128 if x.dtype == torch.int8 else 0)
    for start, end in _every(x):
        largest = torch.maximum(largest, x[start:end].amax(0))
        yield by_row[start:end], x[start:end].amin(1)
    yield by_column, largest


def _sums(inputs: Sequence[Tensor], results: Sequence[Tensor]) -> Iterator[Pair]:
    """Of few small whole numbers: exact in float16."""
    (x,), (by_column, by_row) = inputs, results
    total = torch.zeros(COLUMNS, dtype=torch.float32, device=x.device)
    for start, end in _every(x):
        total += x[start:end].float().sum(0)
        yield by_row[start:end], x[start:end].float().sum(1).half()
    yield by_column, total.half()


def _count(inputs: Sequence[Tensor], results: Sequence[Tensor]) -> Iterator[Pair]:
    (x,) = inputs
    counted = sum(int(torch.count_nonzero(x[start:end])) for start, end in _every(x))
    yield results[0], torch.tensor(counted, device=x.device)


def _written(inputs: Sequence[Tensor], results: Sequence[Tensor]) -> Iterator[Pair]:
    x, index, values = inputs
    (y,) = results
    yield y[index], values
    y[index] = x[index]
    rows = x.view(ROWS, COLUMNS)
    yield from ((y.view(ROWS, COLUMNS)[a:b], rows[a:b]) for a, b in _some(rows))


def _joined(inputs: Sequence[Tensor], results: Sequence[Tensor]) -> Iterator[Pair]:
    start = 0
    for each in inputs:
        yield from ((results[0][start + a : start + b], each[a:b]) for a, b in _some(each))
        start += len(each)


def _transposed(inputs: Sequence[Tensor], results: Sequence[Tensor]) -> Iterator[Pair]:
    yield from ((results[0][:, a:b], inputs[0][a:b].t()) for a, b in _some(inputs[0]))


def _reversed(inputs: Sequence[Tensor], results: Sequence[Tensor]) -> Iterator[Pair]:
    yield from ((results[0][a:b], inputs[0][len(inputs[0]) - b : len(inputs[0]) - a].flip(0)) for a, b in _some(results[0]))


def _whole(function: Callable[..., Any]) -> Callable[[Sequence[Tensor], Sequence[Tensor]], Iterator[Pair]]:
    """Of programs with small results, which eager mode computes without much memory."""
    return lambda inputs, results: zip(results, flat(function(*inputs)), strict=True)


def _large(
    copies: float,
    inputs: Callable[[Draw], Sequence[Tensor]],
    functions: Mapping[str, Callable[..., Any]],
    parts: Callable[[Sequence[Tensor], Sequence[Tensor]], Iterable[Pair]] | Callable[..., Any] = _by_rows,
    small: Callable[[Draw], Sequence[Tensor]] | None = None,
) -> list[Large]:
    """Programs by name; ``_by_rows`` and ``_whole`` ask the program itself what is right."""
    return [
        Large(
            name, function, inputs, parts(function) if parts in (_by_rows, _whole) else parts, copies, small
        )
        for name, function in functions.items()
    ]  # fmt: skip


ELEMENTWISE: list[Large] = [
    *_large(3.1, _matrix(), {"elementwise": lambda x: (x ^ 21) + 3}),
    *_large(3.1, _matrix(torch.int8, 128), {"elementwise, compared": lambda x: -x > -50}),
    *_large(2.1, _matrix(torch.bool), {"elementwise, of truth values": lambda x: x.logical_not()}),
    *_large(4.2, _matrix(torch.float16, 16), {"elementwise, of halves": lambda x: x * 2}),
    *_large(3.1, _matrix(), {"elementwise, of sizes that change": lambda x: (x ^ 21) + 3},
            small=lambda draw: [draw.whole(3, 5, dtype=torch.uint8)]),
    *_large(1.1, lambda draw: [draw.whole(ROWS, 1, dtype=torch.uint8), draw.whole(1, COLUMNS, dtype=torch.uint8) * 9],
            {"broadcast": lambda x, y: x ^ y}),
]  # fmt: skip
REDUCED: list[Large] = [
    *_large(1.1, _matrix(), {"largest and smallest, by column and by row": lambda x: (x.amax(0), x.amin(1))}, _extremes),
    *_large(1.1, _peak, {"the last is the largest": lambda x: (x.view(-1).argmax(), x.amax())}, _whole),
    *_large(2.1, _matrix(torch.float16, 2), {"sums by column and by row": lambda x: (x.sum(0), x.sum(1))}, _sums),
    # Many count in int64, and some copy what they count.
    *_large(10.1, _matrix(most=2), {"counted": lambda x: torch.count_nonzero(x)}, _count),
]  # fmt: skip
INDEXED: list[Large] = [
    *_large(1.1, lambda draw: [_pattern(draw, torch.uint8, ROWS).view(-1), _places(draw)], {
        "read at indices": lambda x, index: x[index],
        "slices beyond, and their sums so far": lambda x, index: (x[EDGE - 100 : EDGE + 100].cumsum(0), x[-7:] + 1),
    }, _whole),
    *_large(1.1, lambda draw: [_pattern(draw, torch.uint8, ROWS), _places(draw) % ROWS], {
        "rows and columns at indices": lambda x, index: (x[index, index % COLUMNS], x.index_select(1, index[:3])),
    }, _whole),
    *_large(3.2, lambda draw: [
        _pattern(draw, torch.uint8, ROWS).view(-1), _places(draw)[:3], draw.whole(3, dtype=torch.uint8)
    ], {
        "written at indices": lambda x, index, values: x.index_put((index,), values),
    }, _written),
]  # fmt: skip
MOVED: list[Large] = [
    *_large(2.1, lambda draw: [_pattern(draw, torch.uint8, rows) for rows in (ROWS // 2, ROWS - ROWS // 2)],
            {"joined": lambda x, y: torch.cat([x, y])}, _joined),
    *_large(2.1, _matrix(), {"transposed": lambda x: x.t().contiguous()}, _transposed),
    *_large(2.1, _matrix(), {"reversed": lambda x: x.flip(0)}, _reversed),
]  # fmt: skip


def _check_large(subject: Subject, program: Large, draw: Draw, memory: int | None) -> None:
    known = subject.free(), None if memory is None else memory - resident.resident(os.getpid())
    free = min((each for each in known if each is not None), default=program.nbytes)
    if free < program.nbytes:
        raise NoRoom(f"it takes {program.nbytes / 2**30:.1f} GiB, and {free / 2**30:.1f} are left")
    try:
        compiled = subject.through_torch(program.function, dynamic=True if program.small else None)
        if program.small is not None:
            compiled(*program.small(draw))
        inputs = program.inputs(draw)
        results = flat(compiled(*inputs))
        subject.synchronize()
        for found, wanted in program.parts(inputs, results):
            _same(found, wanted, "a part of the result")
    finally:
        inputs = results = []
        gc.collect()
        vendor_sdk.release_memory()


# Memory that runs out


@dataclass(frozen=True)
class Exhausting:
    """A program that cannot have the memory that it takes for some inputs.

    Attributes:
        name: what it does, in a few words.
        function: of tensors; returns one, or a tuple.
        small, huge: inputs that it has memory for, and that nobody has.
        dynamic: as of ``torch.compile``.
    """

    name: str
    function: Callable[..., Any]
    small: Callable[[Draw], Sequence[Tensor]]
    huge: Callable[[Draw], Sequence[Tensor]]
    dynamic: bool | None = None


BEYOND = 1 << 48
"""Elements of float32 in 2^50 bytes, which no processor addresses."""


def _endless(draw: Draw) -> list[Tensor]:
    """A tensor of one element that is seen as too many."""
    return [draw.normal(1).expand(BEYOND)]


def _outer(size: int) -> Callable[[Draw], list[Tensor]]:
    return lambda draw: [draw.whole(size), draw.whole(size)]


EXHAUSTING: list[Exhausting] = [
    Exhausting("a result", lambda x: x + 1, lambda draw: [draw.whole(37)], _endless),
    Exhausting("an intermediate", lambda x: x.sort().values[:3] + 1, lambda draw: [draw.whole(37)], _endless),
    Exhausting(
        "one result of several, of sizes that change",
        lambda x, y: (x * 2, x.flip(0) + y, x.unsqueeze(1) * y, y - 1),
        _outer(37),
        _outer(1 << 24),
        True,
    ),
    Exhausting(
        "an intermediate, of sizes that change",
        lambda x, y: ((x + 1).cumsum(0), (x.unsqueeze(1) * y).sort(1).values[:, 0]),
        _outer(37),
        _outer(1 << 24),
        True,
    ),
]

BYTES = re.compile(r"\d\s*([KMGTPE]i?B|bytes)\b")
"""How a message says how much memory it is about."""
FAILING = 2
"""Calls that fail between two that are looked at."""
LEAST_LEAK = 1 << 16
"""Bytes that a failing call must leave behind to be wrong: tensors that it had made. Libraries keep a few kilobytes of what
they said of the error."""
COARSE = 1 << 20
"""Bytes in which the memory of a process is counted, which grows by pages for many reasons."""


def _check_exhausting(subject: Subject, program: Exhausting, draw: Draw) -> None:
    compiled = subject.through_torch(program.function, dynamic=program.dynamic)
    small, huge = program.small(draw), program.huge(draw)
    right = flat(program.function(*small))

    def works(when: str) -> None:
        found = flat(compiled(*small))
        subject.synchronize()
        for index, (one, other) in enumerate(zip(found, right, strict=True)):
            _same(one, other, f"result {index} {when}")

    def fails() -> None:
        try:
            compiled(*huge)
            subject.synchronize()
        except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is the first
            if not BYTES.search(str(error)):
                raise Misbehaved("memory", f"the error says nothing of how many bytes it wanted: {_brief(error)}") from error
        except Exception as error:
            text = "no error of those that programs catch when memory runs out (RuntimeError, MemoryError)"
            raise Misbehaved("memory", f"{text}: {_brief(error)}") from error
        else:
            raise Misbehaved("memory", f"{4 * BEYOND} bytes were to be computed, and no error came")

    works("before")
    fails()
    works("after memory had run out")
    leaked = witness.leak(fails, [*subject.memories(), _held], FAILING)
    if leaked >= LEAST_LEAK:
        raise Misbehaved("leak", f"each call that fails leaves {leaked} bytes allocated")
    works("after memory had run out again and again")


def _held() -> int:
    return resident.resident(os.getpid()) // COARSE * COARSE


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:500]


# Sizes that change


@dataclass(frozen=True)
class Resized:
    """A program that is compiled once, with ``torch.compile(dynamic=True)``, and called with inputs of several sizes.

    Attributes:
        name: what it computes.
        function: of tensors; returns one, or a tuple.
        inputs: draws them at a size.
        sizes: in the order of the calls.
    """

    name: str
    function: Callable[..., Any]
    inputs: Callable[[Draw, int], Sequence[Tensor]]
    sizes: Sequence[int] = (5, 0, 1, 257, 2, 0, 67)


def _rows(draw: Draw, size: int) -> list[Tensor]:
    return [draw.whole(size, 7)]


def _resized(inputs: Callable[[Draw, int], Sequence[Tensor]], functions: Mapping[str, Callable[..., Any]]) -> list[Resized]:
    return [Resized(name, function, inputs) for name, function in functions.items()]


RESIZED: list[Resized] = [
    *_resized(_rows, {
        "elementwise": lambda x: (x * 2 + 1, x > 0, x.to(torch.int64)),
        # Products of -1, 0 and 1: parts of others overflow, and may meet a zero, in some orders.
        "sums of all, of columns, of rows": lambda x: (
            x.sum(), x.sum(0), x.sum(1), x.clamp(-1, 1).prod(0), (x > 0).any(0), (x > 0).all()
        ),
        "means of rows": lambda x: (x.mean(1), x.sum(1), x.amax(1), x.argmax(1)),
        "softmax": lambda x: (torch.softmax(x, 1), torch.softmax(x, 0), torch.logsumexp(x, 1)),
        "sorted, and sums so far": lambda x: (x.sort(0).values, x.cumsum(0), x.topk(3, 1).values),
        "joined, stacked, padded": lambda x: (torch.cat([x, x * 2]), torch.stack([x, x]), F.pad(x, (1, 2, 3, 0))),
        "views": lambda x: (x.t(), x.reshape(-1), x.flip(0), x.unsqueeze(1).expand(-1, 3, -1) + 1, x[:, 2:5], x.roll(1, 0)),
        "where, at a mask": lambda x: (torch.where(x > 0, x, -x), x.masked_fill(x < 0, 3.0), x.tril()),
        "layer_norm": lambda x: F.layer_norm(x, (7,)),
        "positions, times what 32 bits do not hold": lambda x: (
            torch.arange(x.shape[0], device=x.device) * 3_000_000_019,
            torch.arange(7, device=x.device) * 1_000_000_007 // 3 - x.to(torch.int64),
        ),
    }),
    *_resized(lambda draw, size: [draw.whole(size, 7), draw.whole(7, 3), draw.whole(3)], {
        "product of as many rows": lambda x, w, b: (F.linear(x, w.t(), b), torch.relu(x @ w)),
    }),
    *_resized(lambda draw, size: [draw.whole(5, size), draw.whole(size, 3), draw.whole(5, 3)], {
        "product over as many": lambda x, y, z: (x @ y, torch.addmm(z, x, y), (x @ y).sum()),
    }),
    *_resized(lambda draw, size: [draw.whole(size, 3, 9, 8), draw.whole(4, 3, 3, 3)], {
        "convolution of as many images": lambda x, w: F.relu(F.conv2d(x, w, padding=1)),
        "pooled": lambda x, w: (F.max_pool2d(x, 2), F.avg_pool2d(x, 3, 2)),
    }),
    *_resized(lambda draw, size: [draw.whole(11, 7), draw.index(11, size), draw.whole(size, 7)], {
        "at as many indices": lambda x, index, y: (x[index], x.index_add(0, index, y), F.embedding(index, x) + y),
    }),
]  # fmt: skip


def _check_resized(subject: Subject, program: Resized, draw: Draw) -> None:
    compiled = subject.through_torch(program.function, dynamic=True)
    for size in program.sizes:
        inputs = program.inputs(draw, size)
        found, wanted = flat(compiled(*inputs)), flat(program.function(*inputs))
        subject.synchronize()
        for index, (one, other) in enumerate(zip(found, wanted, strict=True)):
            _same(one, other, f"result {index} at size {size}")


FULL_ONLY: Mapping[str, Sequence[Large]] = {
    "large-elementwise": ELEMENTWISE,
    "large-reduced": REDUCED,
    "large-indexed": INDEXED,
    "large-moved": MOVED,
}
"""Groups that take gigabytes."""
GROUPS: Mapping[str, Sequence[Large | Exhausting | Resized]] = {"sizes": RESIZED, "memory": EXHAUSTING, **FULL_ONLY}
"""All programs by group."""


def check(subject: Subject, program: Large | Exhausting | Resized, draw: Draw, memory: int | None) -> None:
    """Runs a program and judges it.

    Args:
        memory: bytes that this process may hold; None: as many as there are.

    Raises:
        Misbehaved: it did not do what eager does.
        NoRoom: there is no memory for it.
    """
    match program:
        case Large():
            _check_large(subject, program, draw, memory)
        case Exhausting():
            _check_exhausting(subject, program, draw)
        case Resized():
            _check_resized(subject, program, draw)


def _same(found: Tensor, wanted: Tensor, what: str) -> None:
    for name in ("dtype", "shape"):
        if getattr(found, name) != getattr(wanted, name):
            raise Misbehaved(name, f"{what} has {name} {getattr(found, name)}, in eager {getattr(wanted, name)}")
    if found.is_floating_point():
        right = torch.allclose(found.double(), wanted.double(), rtol=1e-5, atol=1e-5, equal_nan=True)
    else:
        right = torch.equal(found, wanted)
    if not right:
        raise Misbehaved("value", f"{what} is {_shown(found)}, in eager {_shown(wanted)}")


def _shown(tensor: Tensor) -> str:
    return f"{tensor.flatten()[:8].tolist()}{'...' if tensor.numel() > 8 else ''}"
