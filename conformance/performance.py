"""One pattern, from drawing its inputs to a verdict: is it right while it is timed, is it faster than its parts, how far is it
from what the device can do. Runs in a worker process, alone on the machine.

In each round all contestants run on inputs that were drawn for this round: the pattern as the subject compiles it, the chain of
its prims, each compiled alone by the same subject, a copy, and for products a plain product.
"""

from __future__ import annotations

import math
import random
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import vendor_sdk
from conformance import witness
from conformance.cases import Case, seed_of
from conformance.closeness import Judge, alike
from conformance.counters import NOT_EXECUTED, said, stood_still
from conformance.guards import same_bits
from conformance.memory import peak_memory
from conformance.outcome import Failure, Outcome
from conformance.patterns import PATTERNS, Operand, Pattern, Size
from conformance.placements import weakest
from conformance.roofline import Machine, copies
from conformance.subject import OPAQUE, Compiled, Placed, Subject
from conformance.timing import Race, at_least, interval, probes, read, timed
from conformance.unfused import chain, operations
from conformance.values import flat
from vendor_sdk import OPSET, Effort, Family

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


def measure_pattern(
    subject: Subject, case: Case, machine: Machine, *, effort: Effort, seed: int, device: torch.device
) -> tuple[Outcome, dict[str, Any]]:
    """Runs a pattern at its sizes; what came out, and the measurements as they stand in the report."""
    pattern, dtype = PATTERNS[case.prim], getattr(torch, case.dtype)
    outcome, found, judge = Outcome("pass"), _Found(pattern), Judge(pattern, dtype)
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
    judge: Judge
    placed: list[Placed] = field(default_factory=list)
    native: bool = False
    """Some node that computes is placed native."""

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
            self.native = any(each.kind == "native" for each in self.placed)
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
        fewer = Inputs(self.pattern, self.size.half, self.dtype, self.device, self.generator)
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

        with vendor_sdk.observe() as observed:
            call(*fewer.sets[0])
        placements = [each.placement.kind for graph in observed.graphs for each in graph.placements]
        self.native = any(str(kind) == "native" for kind in placements)
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
        judge: Judge,
        outcome: Outcome,
        moved: tuple[int, int],
    ) -> tuple[Race, dict[str, int]]:
        """Rounds until the verdicts are clear, or there were many, or a result was wrong."""
        race, chance = Race(), random.Random(int(torch.randint(2**31, (), generator=self.generator)))
        for call in contestants.values():
            call(*inputs.sets[0])
        sets = self._sets(contestants[FASTEST], inputs)
        places = probes([t.shape for t in flat(contestants[FASTEST](*inputs.sets[0]))], chance, self.device)
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
                    if self.native and stood_still(self.subject, before):
                        outcome.failures.append(Failure(-1, f"{self.label}, timed", NOT_EXECUTED, said(self.subject)))
                        return race, counted
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
        judge: Judge,
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
            if judge.pattern.check is None and any(alike(early, old) for old in judge.before):
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
        return sum(t.nbytes for t in (*inputs.sets[0], *flat(call(*inputs.sets[0])))), flops

    def _disguised(self, compiled: Compiled, inputs: Inputs, outcome: Outcome) -> None:
        """Prims placed native, wherever they stand, for which torch's own operator ran on the host."""
        names, elsewhere = {}, set()
        for each in compiled.placements:
            row = OPSET.get(each.prim)
            schema = getattr(row.target, "_schema", None) if row else None
            if row is None or schema is None or row.family in UNCHANGED:
                continue
            if each.kind == "native":
                names[schema.name] = each.prim
            else:
                elsewhere.add(schema.name)
        with witness.HostOperators() as mode:
            compiled.call(*inputs.sets[0])
        ran = sorted(mode.seen & set(names) - elsewhere)
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
            "rounds": race.rounds(),
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


def _rate(amount: float, seconds: Sequence[float]) -> float:
    return float(f"{amount / sorted(seconds)[len(seconds) // 2]:.4g}")
