"""One pattern, from drawing its inputs to a verdict: is it right while it is timed, is it faster than its parts, how far is it
from what the device can do. Runs in a worker process, alone on the machine.

In each round all contestants run on inputs that were drawn for this round: the pattern as the subject compiles it, the chain of
its prims, each compiled alone by the same subject, a copy, and for products a plain product.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import random
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import fx

import vendor_sdk
from conformance import roofline, witness
from conformance.cases import Case, seed_of
from conformance.certify import STRENGTH
from conformance.guards import same_bits
from conformance.outcome import Failure, Outcome
from conformance.patterns import PATTERNS, Operand, Pattern, Size
from conformance.program import build
from conformance.roofline import Machine, copies
from conformance.subject import OPAQUE, Compiled, Placed, Subject
from conformance.timing import Race, at_least, interval, probes, read, timed
from vendor_sdk import OPSET, Effort, Family, Sample

Tensor = torch.Tensor

ROUNDS = {Effort.QUICK: 5, Effort.STANDARD: 7, Effort.FULL: 15}
FEWER = {"large": 1.0, "odd": 0.6, "dynamic": 0.6}
"""Rounds at the sizes at which no chain runs, in parts of ``ROUNDS``."""
MORE_ROUNDS = 2
"""While a verdict is open, up to so many times as many rounds."""
NO_SLOWER = 0.95
"""Fused is at least as fast as unfused: from this part of it on, since a pattern that is one prim ties with itself."""
SAMPLE_SECONDS, MOST_SETS = 0.005, 8
"""A sample is so many calls, each with inputs of its own, that it takes this long."""
SETS_BYTES = 1 << 31
"""Of all sets of inputs."""
LIMITS = {torch.float32: 64.0, torch.bfloat16: 6.0, torch.float16: 8.0}
"""Largest error in units of the dtype's epsilon times (magnitude of the element + root mean square of all). Rounding to half
precision costs float32 results thousands of them."""
OFF_BY_ONE = 1e-3
"""Part of integer results that may be off by one: rounding decides them."""
PART = 1 << 17
"""Elements compared at a time, so that they stay in a cache."""
TINY = 1e-37
"""Added to magnitudes that are divided by."""
UNCHANGED = (Family.VIEW, Family.CREATION)
"""Families whose operators the SDK's own wrapper uses too."""
FASTEST = "the pattern"
CHAIN, COPY, PRODUCT = "its prims, one by one", "copy", "product"


@dataclass
class Inputs:
    """Operands of a pattern that are drawn anew in no more time than it takes to write them: each is a part, at random, of a
    longer tensor of random numbers."""

    pattern: Pattern
    size: Size
    dtype: torch.dtype
    device: torch.device
    generator: torch.Generator
    sets: list[list[Tensor]] = field(default_factory=list)

    def draw(self, count: int = 1) -> None:
        """Makes ``count`` sets, in the same memory as before."""
        while len(self.sets) < count:
            self.sets.append(
                [torch.empty(o.shape(self.size), dtype=o.dtype(self.dtype), device=self.device) for o in self.pattern.operands]
            )
        del self.sets[count:]
        for tensors in self.sets:
            for operand, tensor in zip(self.pattern.operands, tensors, strict=True):
                source = self._source(operand, tensor)
                start = int(torch.randint(source.numel() - tensor.numel() + 1, (), generator=self.generator))
                tensor.view(-1).copy_(source[start : start + tensor.numel()])

    def _source(self, operand: Operand, like: Tensor) -> Tensor:
        high = operand.high(self.size) if operand.high else 0
        key = operand.draw, like.dtype, high, self.device
        need = like.numel() + 4096 + like.numel() // 8
        if key not in _sources or _sources[key].numel() < need:
            _sources[key] = self._random(operand.draw, need, high).to(self.device, like.dtype)
        return _sources[key]

    def _random(self, draw: str, count: int, high: int) -> Tensor:
        match draw:
            case "normal":
                return torch.randn(count, generator=self.generator)
            case "positive":
                return torch.rand(count, generator=self.generator) + 0.5
            case "mask":
                return torch.rand(count, generator=self.generator) < 0.25
            case "int8":
                return torch.randint(-127, 128, (count,), generator=self.generator)
            case _:
                return torch.randint(high, (count,), generator=self.generator)


_sources: dict[Any, Tensor] = {}
"""Random numbers by kind, drawn once in a process."""


@dataclass
class _Judge:
    """Compares results with torch's own, which once is computed in float64 too."""

    pattern: Pattern
    dtype: torch.dtype
    worst: float = 0.0
    compared: int = 0
    eager_error: float | None = None
    before: list[list[Tensor]] = field(default_factory=list)
    """What was right in earlier rounds, at the places that are read."""

    def expected(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Torch's results; the first time in float64."""
        if self.eager_error is not None or self.pattern.check is not None:
            return _flat(self.pattern(*inputs))
        exact = _flat(self.pattern(*(x.double() if x.is_floating_point() else x for x in inputs)))
        plain = _flat(self.pattern(*inputs))
        self.eager_error = max(error(a, b, self.dtype)[0] for a, b in zip(plain, exact, strict=True))
        return [e.to(p.dtype) if not p.is_floating_point() else e for p, e in zip(plain, exact, strict=True)]

    def problem(self, results: Sequence[Tensor], inputs: Sequence[Tensor], expected: Sequence[Tensor]) -> str:
        """What is wrong, ``""`` when nothing is."""
        if len(results) != len(expected):
            return f"{len(results)} results, expected {len(expected)}"
        for index, (one, wanted) in enumerate(zip(results, expected, strict=True)):
            if type(one) is not Tensor:
                return f"result {index} is a {type(one).__name__}, which may compute when it is read"
            shape = f"{roofline.name(one.dtype)}{list(one.shape)}"
            if one.shape != wanted.shape or (one.dtype != wanted.dtype and wanted.dtype != torch.float64):
                return f"result {index} is {shape}, expected {list(wanted.shape)}"
        if self.pattern.check is not None:
            self.compared += 1
            return self.pattern.check(results, inputs)
        limit = LIMITS[self.dtype] + (self.eager_error or 0.0)
        for index, (one, wanted) in enumerate(zip(results, expected, strict=True)):
            found, where = error(one, wanted, self.dtype)
            self.worst = max(self.worst, found / limit)
            if not found <= limit:
                return f"result {index} is off by {found:.3g} units at {where}, allowed are {limit:.3g}"
        self.compared += 1
        return ""


def error(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> tuple[float, list[int]]:
    """The largest error of a result in the units of ``LIMITS``, and where it is. Integers may be off by one in few places."""
    if found.shape != wanted.shape or not found.numel():
        return (0.0 if found.shape == wanted.shape else math.inf), []
    parts = list(zip(torch.split(found.reshape(-1), PART), torch.split(wanted.reshape(-1), PART), strict=True))
    if not found.is_floating_point():
        steps = [(one.long() - other.long()).abs() for one, other in parts]
        most, where = max((int(each.max()), number) for number, each in enumerate(steps))
        many = sum(int((each > 0).sum()) for each in steps) > OFF_BY_ONE * found.numel() + 1
        return (math.inf if most > 1 or many else 0.0), _index(where * PART + int(steps[where].argmax()), found.shape)
    kind = torch.float64 if wanted.dtype is torch.float64 else torch.float32
    total = sum(float(other.to(kind).square().sum()) for _, other in parts)
    magnitude = math.sqrt(total / found.numel()) if math.isfinite(total) else 0.0
    worst, place = 0.0, 0
    for number, (one, other) in enumerate(parts):
        reference = other.to(kind)
        off = torch.sub(one.to(kind), reference).abs_().div_(reference.abs().add_(magnitude + TINY))
        largest, at = off.max(0)
        if not float(largest) <= worst:  # NaN too
            off = torch.where((one == other) | (one.isnan() & other.isnan()), 0.0, off.nan_to_num_(nan=math.inf))
            largest, at = off.max(0)
            worst, place = max((worst, place), (float(largest), number * PART + int(at)))
    return worst / torch.finfo(dtype).eps, _index(place, found.shape)


def _index(place: int, shape: torch.Size) -> list[int]:
    found = []
    for size in reversed(shape):
        found.append(place % size)
        place //= size
    return found[::-1]


def chain(subject: Subject, pattern: Pattern, inputs: Sequence[Tensor], device: torch.device) -> Callable[..., list[Tensor]]:
    """The prims of a pattern as a function that calls them one by one, each compiled alone. Views stay views."""
    graph = vendor_sdk.trace(pattern.function, inputs)
    known = {row.target: row for row in OPSET.values()}
    made: dict[Any, Callable[..., Any]] = {}
    constants = dict(graph.constants)

    class Chain(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            if n.op == "placeholder" and n.target in constants:
                return constants[str(n.target)].to(device)
            return super().run_node(n)

        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            row = known.get(target)
            if row is None or row.family is Family.VIEW:
                return target(*args, **kwargs)
            sample = Sample(args, dict(kwargs))
            tensors = _tensors((args, sample.kwargs))
            identities = [id(tensor) for tensor in tensors]
            repeated = [identities.index(identity) for identity in identities]
            key = target, str(repeated), str(_outline((args, sample.kwargs)))
            if key not in made:
                made[key] = _alone(subject, target, sample, device)
            return made[key](tensors)

    interpreter = Chain(graph.module)
    return lambda *given: _flat(interpreter.run(*given))


def operations(pattern: Pattern, inputs: Sequence[Tensor], flops: int) -> int:
    """Operations of one call: of products as ``flops`` says, one of every other prim for each element that it has."""
    graph, views = vendor_sdk.trace(pattern.function, inputs), (Family.VIEW, Family.CONTRACTION, Family.CREATION)
    known = {row.target: row for row in OPSET.values()}
    total = flops
    for node in graph.graph.nodes:
        row = known.get(node.target)
        if row is not None and row.family not in views:
            tensors = _tensors([node.meta["val"], *(each.meta.get("val") for each in node.all_input_nodes)])
            total += max((int(tensor.numel()) for tensor in tensors), default=0)
    return total


def _alone(subject: Subject, target: Any, sample: Sample, device: torch.device) -> Callable[[list[Tensor]], Any]:
    """``target`` as a program of its own, a function of the tensors among its arguments."""
    result = target(*sample.args, **sample.kwargs)
    program = build(target, [sample], [result], device)
    compiled = subject.prepare(program.module, program.inputs)
    single = isinstance(result, Tensor)

    def call(tensors: list[Tensor]) -> Any:
        results = compiled.call(*{id(tensor): tensor for tensor in tensors}.values())
        return _flat(results)[0] if single else tuple(_flat(results))

    return call


def _outline(value: Any) -> Any:
    """What a compiled prim depends on: of tensors shape, strides and dtype, of the rest the value."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.stride(), value.dtype
    if isinstance(value, Mapping):
        return {key: _outline(item) for key, item in value.items()}
    return [_outline(item) for item in value] if isinstance(value, list | tuple) else value


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    return [tensor for item in value for tensor in _tensors(item)]


def measure_pattern(
    subject: Subject, case: Case, machine: Machine, *, effort: Effort, seed: int, device: torch.device
) -> tuple[Outcome, dict[str, Any]]:
    """Runs a pattern at its sizes; what came out, and the measurements as they stand in the report."""
    pattern, dtype = PATTERNS[case.prim], getattr(torch, case.dtype)
    outcome, found, judge = Outcome("pass"), _Found(pattern), _Judge(pattern, dtype)
    generator = torch.Generator().manual_seed(seed_of(case, seed))
    plans = [("large", machine.size(dtype)), ("odd", machine.size(dtype, odd=True)), ("dynamic", machine.size(dtype))]
    if effort is Effort.QUICK:
        del plans[1:]
    for label, size in plans:
        trial = _Trial(subject, pattern, dtype, device, label, size, generator, round(FEWER[label] * ROUNDS[effort]), judge)
        try:
            found.sizes.append(trial.run(outcome))
            found.placed += trial.placed
        except Exception as problem:
            traceback.print_exc()
            outcome.failures.append(Failure(-1, label, "exception", f"{type(problem).__name__}: {problem}"[:2000]))
    tampered = witness.replaced()
    if tampered:
        outcome.failures.append(Failure(-1, "", "tampered", f"replaced by the backend: {', '.join(tampered)}"))
    outcome.placement, outcome.reason = (OPAQUE, "") if subject.opaque else weakest(found.placed)
    outcome.verdict = _verdict(outcome, found.sizes)
    return outcome, {"limit": "products" if pattern.flops(machine.size(dtype)) else "memory", "sizes": found.sizes}


@dataclass
class _Found:
    pattern: Pattern
    sizes: list[dict[str, Any]] = field(default_factory=list)
    placed: list[Placed] = field(default_factory=list)


def _verdict(outcome: Outcome, sizes: Sequence[Mapping[str, Any]]) -> str:
    if any(failure.kind == "exception" for failure in outcome.failures):
        return "error"
    if outcome.failures:
        return "fail"
    gates = {size["gate"] for size in sizes}
    if "fail" in gates:
        return "slow"
    return "inconclusive" if "inconclusive" in gates else "pass"


def weakest(placed: Sequence[Placed]) -> tuple[str, str]:
    """The weakest placement of all nodes that compute, with the reason for it."""
    computing = [entry for entry in placed if entry.kind not in ("view", "wrapper")]
    if not computing:
        return "absent", "nothing was compiled"
    kind = max((entry.kind for entry in computing), key=lambda k: STRENGTH.index(k) if k in STRENGTH else len(STRENGTH))
    prims = sorted({entry.prim for entry in computing if entry.kind == kind})
    reason = next((entry.reason for entry in computing if entry.kind == kind and entry.reason), "")
    return kind, f"{', '.join(prims)}: {reason}" if kind != "native" else ""


@dataclass
class _Trial:
    """A pattern at one size."""

    subject: Subject
    pattern: Pattern
    dtype: torch.dtype
    device: torch.device
    label: str
    size: Size
    generator: torch.Generator
    rounds: int
    judge: _Judge
    placed: list[Placed] = field(default_factory=list)

    def run(self, outcome: Outcome) -> dict[str, Any]:
        """Compiles, races, judges. Adds failures to ``outcome``."""
        inputs = Inputs(self.pattern, self.size, self.dtype, self.device, self.generator)
        recompiled = 0
        if self.label == "dynamic":
            call, recompiled = self._dynamic(inputs)
            compiled = None
        else:
            inputs.draw()
            compiled = self.subject.prepare(self.pattern.function, inputs.sets[0])
            self.placed = [each for each in compiled.placements if each.node not in compiled.empty]
            call = compiled.call
        judge, compared = self.judge, self.judge.compared
        judge.before.clear()
        contestants = self._contestants(call, inputs)
        moved = self._moved(inputs, call)
        counted_operations = operations(self.pattern, inputs.sets[0], moved[1]) if self.label == "large" else None
        race, counted = self._race(contestants, inputs, judge, outcome, moved)
        if compiled is not None and not outcome.failures:
            self._disguised(compiled, inputs, outcome)
        outcome.samples += 1
        outcome.worst = max(outcome.worst, judge.worst)
        outcome.compared += judge.compared > compared
        outcome.fresh += judge.compared > compared + 1
        return self._record(
            race, moved, judge.compared - compared, compiled, recompiled, counted, self._peak(call, inputs), counted_operations
        )

    def _dynamic(self, inputs: Inputs) -> tuple[Callable[..., Any], int]:
        """Compiled at half as many rows; what runs then is how often it was compiled again for all of them."""
        half = Size(max(2, self.size.rows // 2), self.size.columns, max(2, self.size.edge // 2))
        fewer = Inputs(self.pattern, half, self.dtype, self.device, self.generator)
        fewer.draw()
        inputs.draw()
        for small, large in zip(fewer.sets[0], inputs.sets[0], strict=True):
            for axis, (one, other) in enumerate(zip(small.shape, large.shape, strict=True)):
                if one != other:
                    torch._dynamo.mark_dynamic(small, axis)

        def function(*given: Tensor) -> Any:
            return self.pattern.function(*given)

        function.__code__ = function.__code__.replace()  # Dynamo keeps what it compiled with the code object
        compiled = self.subject.through_torch(function)

        def call(*given: Tensor) -> Any:
            with torch.no_grad():
                return compiled(*given)

        call(*fewer.sets[0])
        with vendor_sdk.observe() as observed:
            call(*inputs.sets[0])
        return call, len(observed.recompiles)

    def _contestants(self, call: Callable[..., Any], inputs: Inputs) -> dict[str, Callable[..., Any]]:
        contestants: dict[str, Callable[..., Any]] = {FASTEST: call}
        if self.label == "large":
            contestants[CHAIN] = chain(self.subject, self.pattern, inputs.sets[0], self.device)
        return contestants

    def _race(
        self,
        contestants: Mapping[str, Callable[..., Any]],
        inputs: Inputs,
        judge: _Judge,
        outcome: Outcome,
        moved: tuple[int, int],
    ) -> tuple[Race, dict[str, int]]:
        """Rounds until the verdicts are clear, or there were many, or a result was wrong."""
        race, chance = Race(), random.Random(int(torch.randint(2**31, (), generator=self.generator)))
        for call in contestants.values():
            call(*inputs.sets[0])
        sets = self._sets(contestants[FASTEST], inputs)
        places = probes([t.shape for t in _flat(contestants[FASTEST](*inputs.sets[0]))], chance, self.device)
        if self.pattern.check is None:
            judge.before.append([read(tensor, places) for tensor in judge.expected(inputs.sets[0])])
        yardsticks = self._yardsticks()
        counted: dict[str, int] = {}
        done = 0
        while done < self.rounds or (done < MORE_ROUNDS * self.rounds and self._open(race)):
            done += 1
            inputs.draw(sets)
            found: dict[str, float] = {}
            expected: list[list[Tensor]] = []
            names = [*contestants, *yardsticks]
            chance.shuffle(names)
            for name in names:
                if name in yardsticks:
                    found[name] = min(
                        timed(way, [given], self.subject.synchronize, {}).seconds for way, given in yardsticks[name]
                    )
                    continue
                before = self.subject.counters()
                sample = timed(contestants[name], inputs.sets, self.subject.synchronize, places)
                if name == FASTEST:
                    counted = {k: (v - before.get(k, 0)) // sets for k, v in self.subject.counters().items()}
                found[name] = sample.seconds
                expected = expected or [judge.expected(given) for given in inputs.sets]
                problem = self._wrong(name, sample.results, sample.seen, inputs, expected, judge, places)
                if problem is not None:
                    outcome.failures.append(problem)
                    return race, counted
            judge.before.append([read(tensor, places) for tensor in expected[-1]])
            race.add(found)
        return race, counted

    def _wrong(
        self,
        name: str,
        results: Sequence[Sequence[Tensor]],
        seen: Sequence[Sequence[Tensor]],
        inputs: Inputs,
        expected: Sequence[Sequence[Tensor]],
        judge: _Judge,
        places: Mapping[Any, Any],
    ) -> Failure | None:
        where = f"{self.label}, timed" if name == FASTEST else f"{self.label}, {name}, timed"
        for tensors, early, given, wanted in zip(results, seen, inputs.sets, expected, strict=True):
            for index, (tensor, first) in enumerate(zip(tensors, early, strict=True)):
                if first.numel() and not same_bits(read(tensor, places), first):
                    text = f"result {index} changed after the call had returned and the device had been waited for"
                    return Failure(-1, where, "late", text)
            problem = judge.problem(tensors, given, wanted)
            if not problem:
                continue
            if judge.pattern.check is None and any(_alike(early, old) for old in judge.before):
                return Failure(-1, where, "stale", "the answer to an earlier call, though the inputs are others")
            return Failure(-1, where, "value", problem)
        return None

    def _sets(self, call: Callable[..., Any], inputs: Inputs) -> int:
        """Calls of a sample."""
        seconds = timed(call, inputs.sets[:1], self.subject.synchronize, {}).seconds
        room = SETS_BYTES // max(1, sum(tensor.nbytes for tensor in inputs.sets[0]))
        return max(1, min(math.ceil(SAMPLE_SECONDS / seconds), MOST_SETS, room))

    def _yardsticks(self) -> dict[str, list[tuple[Callable[..., Any], list[Tensor]]]]:
        """Ways to do the plain thing, with what each is called with: the fastest counts."""
        nbytes = self.size.rows * self.size.columns * self.dtype.itemsize
        source, target = (torch.ones(nbytes, dtype=torch.uint8, device=self.device) for _ in range(2))
        found: dict[str, list[tuple[Callable[..., Any], list[Tensor]]]] = {COPY: [(way, []) for way in copies(source, target)]}
        if self.pattern.flops(self.size):
            edge = self.size.edge
            factors = [torch.randn(edge, edge, generator=self.generator).to(self.device, self.dtype) for _ in range(2)]
            own = self.subject.prepare(torch.mm, factors)
            found[PRODUCT] = [(torch.mm, factors), (own.call, factors)]
        for ways in found.values():
            for way, given in ways:
                way(*given)
        return found

    def _open(self, race: Race) -> bool:
        return CHAIN in race.seconds and at_least(race.ratio(CHAIN, FASTEST), NO_SLOWER) == "inconclusive"

    def _moved(self, inputs: Inputs, call: Callable[..., Any]) -> tuple[int, int]:
        """Bytes that must be moved, and floating point operations of products."""
        flops = self.pattern.flops(self.size)
        if self.pattern.moved is not None:
            return self.pattern.moved(self.size, self.dtype.itemsize), flops
        return sum(t.nbytes for t in (*inputs.sets[0], *_flat(call(*inputs.sets[0])))), flops

    def _disguised(self, compiled: Compiled, inputs: Inputs, outcome: Outcome) -> None:
        """Prims placed native for which torch's own operator ran on the host."""
        names = {}
        for each in compiled.placements:
            row = OPSET.get(each.prim)
            schema = getattr(row.target, "_schema", None) if row else None
            if each.kind == "native" and row is not None and schema is not None and row.family not in UNCHANGED:
                names[schema.name] = each.prim
        with witness.HostOperators() as mode:
            compiled.call(*inputs.sets[0])
        ran = sorted(mode.seen & set(names))
        if ran:
            text = (
                f"{', '.join(names[each] for each in ran)} placed native, but torch's own {', '.join(ran)} ran in host memory"
            )
            outcome.failures.append(Failure(-1, self.label, "disguised", text))

    def _peak(self, call: Callable[..., Any], inputs: Inputs) -> int | None:
        with peak_memory(self.device) as measured:
            call(*inputs.sets[0])
            self.subject.synchronize()
        return measured.bytes

    def _record(
        self,
        race: Race,
        moved: tuple[int, int],
        verified: int,
        compiled: Compiled | None,
        recompiled: int,
        counted: Mapping[str, int],
        peak: int | None,
        operations: int | None,
    ) -> dict[str, Any]:
        nbytes, flops = moved
        size = self.size
        record: dict[str, Any] = {
            "label": self.label, "rows": size.rows, "columns": size.columns, "edge": size.edge if flops else None,
            "bytes": nbytes, "flops": flops, "operations": operations, "recompiles": recompiled,
            "kernels": compiled.launches if compiled else None,
            "peak_bytes": peak, "counters": dict(counted), "verified_results": verified,
            "seconds": None, "spread": None, "fraction": None, "copy_bytes_per_second": None, "product_flops_per_second": None,
            "unfused": None, "gate": "inconclusive",
        }  # fmt: skip
        if FASTEST not in race.seconds:
            return record
        copied = 2 * size.rows * size.columns * self.dtype.itemsize
        ideal = [t * nbytes / copied for t in race.seconds[COPY]]
        record["copy_bytes_per_second"] = _rate(copied, race.seconds[COPY])
        if flops:
            rate = 2 * size.edge**3
            record["product_flops_per_second"] = _rate(rate, race.seconds[PRODUCT])
            ideal = [max(a, t * flops / rate) for a, t in zip(ideal, race.seconds[PRODUCT], strict=True)]
        race.seconds["ideal"] = ideal
        record["seconds"] = interval(race.seconds[FASTEST]).record()
        record["spread"] = round(race.spread(FASTEST), 4)
        record["fraction"] = race.ratio("ideal", FASTEST).record()
        record["gate"] = "pass" if not recompiled else "fail"
        if CHAIN in race.seconds:
            ratio = race.ratio(CHAIN, FASTEST)
            record["unfused"] = ratio.record()
            record["gate"] = at_least(ratio, NO_SLOWER)
        return record


def _alike(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether two readings of results are of the same ones, up to rounding."""
    if len(some) != len(others) or not any(one.numel() for one in some):
        return False
    return all(
        a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-5) for a, b in zip(some, others, strict=True)
    )


def _rate(amount: float, seconds: Sequence[float]) -> float:
    return float(f"{amount / sorted(seconds)[len(seconds) // 2]:.4g}")


@dataclass
class Peak:
    """By how many bytes memory grew at most; ``None`` where nobody says."""

    bytes: int | None = None


@contextlib.contextmanager
def peak_memory(device: torch.device) -> Iterator[Peak]:
    """Measures what the block allocates at most, beyond what was allocated before."""
    peak = Peak()
    if device.type != "cpu":
        module = torch.get_device_module(device.type)
        module.reset_peak_memory_stats()
        allocated = module.memory_allocated()
        yield peak
        peak.bytes = module.max_memory_allocated() - allocated
        return
    vendor_sdk.release_memory()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    before = _resident("VmRSS")
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark back, see proc(5)
    yield peak
    if before is not None:
        peak.bytes = max(0, (_resident("VmHWM") or before) - before)


def _resident(which: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{which}:")), None)


def _flat(returned: Any) -> list[Any]:
    return [returned] if isinstance(returned, Tensor) else list(returned)
