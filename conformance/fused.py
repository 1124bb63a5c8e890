"""Whether generated graphs of prims, fused as a backend likes, give results that some unfused sequence of prims could give.

Graphs are compiled several at a time, which is cheaper and lets a scheduler fuse across them. One that fails is compiled alone,
made smaller, and written down as a program of its own (``script.py``).
"""

from __future__ import annotations

import math
import operator
import random
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import hypothesis
import torch
from hypothesis import strategies as st
from torch import fx

from conformance import graphs, script, spans
from conformance.counters import NOT_EXECUTED, said, stood_still
from conformance.graphs import Drawn
from conformance.outcome import MESSAGE_LIMIT, UNKNOWN, Failure, Outcome, Wrong
from conformance.program import Program
from conformance.slack import extended, flushed
from conformance.spans import Span
from conformance.subject import OPAQUE, Placed, Subject
from conformance.subnormals import NOWHERE, Flushing
from conformance.values import flat
from vendor_sdk import OPSET, Effort

ROWS = {row.target: row for row in OPSET.values()}

Call = Callable[..., Sequence[torch.Tensor]]
Compile = Callable[[Program], Call]
"""What makes a program ready, and raises what the compiler raises."""


@dataclass
class Tally:
    """What was shown: graphs, elements that were compared, and those that the bounds leave open."""

    graphs: int = 0
    elements: int = 0
    open: int = 0


def spans_of(module: fx.GraphModule, inputs: Sequence[torch.Tensor], flushing: Flushing = NOWHERE) -> list[Span]:
    """What each result may be; ``flushing`` says which subnormals may be zero."""
    return list(_Interpreter(module, flushing).run(*(flushed(spans.exactly(value), flushing.everywhere) for value in inputs)))


class _Interpreter(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, flushing: Flushing) -> None:
        super().__init__(module)
        self.flushing = flushing

    def run_node(self, node: fx.Node) -> Any:
        if node.op != "call_function":
            return super().run_node(node)
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        if node.target is operator.getitem:
            return args[0][args[1]]
        value = node.meta["val"]
        dtypes = [each.dtype for each in value] if isinstance(value, tuple | list) else [value.dtype]
        found = extended(ROWS[node.target], args, kwargs, dtypes, self.flushing)
        return tuple(found) if isinstance(value, tuple | list) else found[0]


def judge(wanted: Sequence[Span], found: Sequence[Any], tally: Tally) -> Wrong | None:
    """The first thing wrong with results, on the CPU, whose spans are known."""
    if len(found) != len(wanted):
        return Wrong("count", f"{len(found)} results where {len(wanted)} are expected")
    for output, (span, result) in enumerate(zip(wanted, found, strict=True)):
        if type(result) is not torch.Tensor:
            return Wrong("count", f"result {output} is a {type(result).__name__}, no tensor", output)
        if result.dtype != span.dtype:
            return Wrong("dtype", f"result {output}: dtype {result.dtype} where {span.dtype} is expected", output)
        if result.shape != span.low.shape:
            return Wrong(
                "shape", f"result {output}: shape {list(result.shape)} where {list(span.low.shape)} is expected", output
            )
        free = int(span.free.sum())
        tally.open += free
        tally.elements += result.numel() - free
        if not result.numel():
            continue
        errors = spans.errors(span, result)
        place = int(errors.reshape(-1).argmax())
        if float(errors.reshape(-1)[place]) > 0:
            index = tuple(int(part) for part in torch.unravel_index(torch.tensor(place), errors.shape))
            low, high = (spans.stored(end, span.dtype)[index].item() for end in (span.low, span.high))
            got = result[index].item()
            between = f"{low!r} is expected" if low == high or low != low else f"between {low!r} and {high!r} is expected"
            many = f"{int((errors > 0).sum())} of {errors.numel()} elements wrong"
            return Wrong(
                "value", f"result {output}: {got!r} at {index} where {between}; {many}", output, 0, index, got, low, high
            )
    return None


# Several graphs as one program


def together(drawn: Sequence[Drawn], device: torch.device) -> Program:
    """One program of all of them, one after the other."""
    graph = fx.Graph()
    inputs: list[torch.Tensor] = []
    results: list[Any] = []
    counts: list[int] = []
    owners: list[int] = []
    places: dict[fx.Node, fx.Node] = {}
    for position, each in enumerate(drawn):
        for node, value in zip(each.module.graph.find_nodes(op="placeholder"), each.values(), strict=True):
            places[node] = graph.placeholder(f"x{len(inputs)}")
            inputs.append(value.to(device))
            owners.append(position)
    for each in drawn:
        for node in each.module.graph.nodes:
            if node.op == "call_function":
                places[node] = graph.node_copy(node, places.__getitem__)
            elif node.op == "output":
                found = [places[one] for one in node.args[0]]
                results += found
                counts.append(len(found))
    graph.output(tuple(results))
    return Program(fx.GraphModule(torch.nn.Module(), graph), inputs, owners, counts)


@dataclass(frozen=True)
class Failed:
    """A graph whose results are wrong."""

    drawn: Drawn
    wrong: Wrong


def run(
    compiled: Compile, drawn: Sequence[Drawn], device: torch.device, tally: Tally, flushing: Flushing = NOWHERE
) -> list[Failed]:
    """Compiles graphs together, calls them with two sets of values, of other sizes where those are dynamic, and judges each.
    Raises what the backend raises."""
    program = together(drawn, device)
    call = compiled(program)
    failed: dict[int, Failed] = {}
    for again in (0, 1):
        values = [each.values(again, other=again == 1) for each in drawn]
        given = [value.to(device) for each in values for value in each]
        before = [value.clone() for value in given]
        outputs = flat(call(*given))
        modified = [not _equal(one, two) for one, two in zip(given, before, strict=True)]
        for position, (each, own, found) in enumerate(zip(drawn, values, program.split(outputs), strict=True)):
            wrong = judge(spans_of(each.module, own, flushing), [_host(value) for value in found], tally)
            if wrong is None and any(m for m, owner in zip(modified, program.owners, strict=True) if owner == position):
                wrong = Wrong("input-modified", "an input tensor was modified")
            if wrong is not None:
                failed.setdefault(position, Failed(each, replace(wrong, call=again)))
    tally.graphs += len(drawn)
    return list(failed.values())


def _equal(one: torch.Tensor, two: torch.Tensor) -> bool:
    return bool(((one == two) | ((one != one) & (two != two))).all())


def _host(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


# A case


GRAPHS = {Effort.QUICK: 2, Effort.STANDARD: 12, Effort.FULL: 240}
"""Graphs of a case."""
TOGETHER = 12
"""Graphs that are compiled together."""
SHRINKING = 60.0
"""Seconds for making a failing graph smaller, at most until half of the case's time is up: a graph that is not yet small says
more than that there was no result."""


def certify(
    subject: Subject,
    kind: str,
    *,
    effort: Effort,
    seed: int,
    device: torch.device,
    only: int | None = None,
    apart: bool = False,
    announce: Callable[[int], None] = lambda index: None,
    timeout: float = 0.0,
) -> Outcome:
    """Runs the graphs of a case: those that hypothesis draws of this kind from this seed.

    Args:
        subject, effort, device, only, apart, announce: as for the cases of prims; a graph takes a sample's place.
        kind: one of ``graphs.KINDS``.
        seed: of the case.
        timeout: seconds after which the case is given up, 0 for never.
    """
    started = time.perf_counter()
    half = time.monotonic() + (timeout / 2 or math.inf)
    drawn = dict(enumerate(drawn_by_hypothesis(kind, seed, GRAPHS[effort])))
    if only is not None:
        drawn = {only: drawn[only]}
    outcome = Outcome("pass", samples=len(drawn))
    placed: list[Placed] = []
    tally, idle = Tally(), False
    beside: dict[str, None] = {}

    def compiled(program: Program) -> Call:
        if graphs.KINDS[kind].dynamic:
            torch.compiler.reset()
            return subject.through_torch(program.module, dynamic=True)
        made = subject.compile(program)
        computed = [placement for placement in made.placements if placement.node not in made.empty]
        placed.extend(computed)
        native = any(placement.kind == "native" for placement in computed)
        guarded = made.guarded

        def call(*inputs: torch.Tensor) -> Any:
            nonlocal idle, guarded
            if guarded is not None:
                beside.update(dict.fromkeys(f"a launch {breach}" for breach in guarded(*inputs)[1]))
                guarded = None
            counters = subject.counters()
            results = made.call(*inputs)
            idle |= native and stood_still(subject, counters)
            return results

        return call

    numbers = list(drawn)
    width = 1 if apart else TOGETHER
    for part in (numbers[i : i + width] for i in range(0, len(numbers), width)):
        if width == 1:
            announce(part[0])
        for number, wrong in _tried(compiled, drawn, part, device, tally, subject.flushing).items():
            if graphs.KINDS[kind].dynamic and wrong.kind == "exception" and not followed(drawn[number], device):
                print(
                    f"{label(drawn[number])}: torch {torch.__version__} itself does not follow it at changing sizes", flush=True
                )
                outcome.samples -= 1
                continue
            until = min(time.monotonic() + SHRINKING, half)
            small = smaller(compiled, kind, seed, number, drawn[number], wrong, device, until, subject.flushing)
            text = (
                script.text(subject.describe().name, subject.options, small.drawn, small.wrong, graphs.KINDS[kind].dynamic)
                if small
                else ""
            )
            print(text, flush=True)
            outcome.failures.append(Failure(number, label(drawn[number]), wrong.kind, wrong.message[:MESSAGE_LIMIT], text))
    if idle:
        outcome.failures.append(Failure(-1, "together", NOT_EXECUTED, said(subject)))
    outcome.failures += [Failure(-1, "together", "out-of-bounds", message) for message in beside]
    outcome.compared = tally.graphs - len({failure.sample for failure in outcome.failures}) if tally.elements else 0
    outcome.fresh = outcome.compared
    outcome.worst = math.inf if outcome.failures else 0.0
    outcome.placement, outcome.reason = (OPAQUE, "") if subject.opaque else _placement(placed)
    kinds = {failure.kind for failure in outcome.failures}
    outcome.verdict = "error" if "exception" in kinds else "fail" if kinds else "pass" if outcome.compared else "empty"
    outcome.seconds = time.perf_counter() - started
    return outcome


def _tried(
    compiled: Compile,
    drawn: Mapping[int, Drawn],
    part: Sequence[int],
    device: torch.device,
    tally: Tally,
    flushing: Flushing,
) -> dict[int, Wrong]:
    """What is wrong with which of some graphs, found together and then, as far as it shows there, alone."""
    try:
        failed = run(compiled, [drawn[number] for number in part], device, tally, flushing)
    except Exception as error:
        traceback.print_exc()
        if len(part) == 1:
            return {part[0]: _raised(error)}
        suspects = list(part)
        wrongs = dict.fromkeys(suspects[:1], _raised(error))
    else:
        suspects = [number for number in part if any(each.drawn is drawn[number] for each in failed)]
        wrongs = {number: next(e.wrong for e in failed if e.drawn is drawn[number]) for number in suspects}
    if len(part) == 1:
        return wrongs
    alone: dict[int, Wrong] = {}
    for number in suspects:
        wrong = fails(compiled, drawn[number], device, flushing)
        if wrong is not None:
            alone[number] = wrong
    if alone or not wrongs:
        return alone
    return {number: replace(wrong, message=f"only with others: {wrong.message}") for number, wrong in wrongs.items()}


def fails(compiled: Compile, drawn: Drawn, device: torch.device, flushing: Flushing = NOWHERE) -> Wrong | None:
    """What is wrong with a graph by itself."""
    try:
        failed = run(compiled, [drawn], device, Tally(), flushing)
    except Exception as error:
        return _raised(error)
    return failed[0].wrong if failed else None


def label(drawn: Drawn) -> str:
    return f"{drawn.operators} prims"


def followed(drawn: Drawn, device: torch.device) -> bool:
    """Whether torch captures a graph for sizes that change, and runs it as it is. Of one that it does not (some version of it:
    what sizes it can prove to be equal differs between them) no backend is told."""
    torch.compiler.reset()
    program = together([drawn], device)
    call = torch.compile(program.module, backend="eager", dynamic=True)
    try:
        for again in (0, 1):
            call(*(value.to(device) for value in drawn.values(again, other=again == 1)))
    except Exception:
        traceback.print_exc()
        return False
    return True


def _raised(error: Exception) -> Wrong:
    return Wrong("exception", f"{type(error).__name__}: {error}".strip())


def _placement(placed: Sequence[Placed]) -> tuple[str, str]:
    """Of the graphs as a whole: on the host where all of it is there."""
    host = [entry for entry in placed if entry.kind == "host"]
    if host and len(host) == len(placed):
        return "host", host[0].reason
    note = f"{len(host)} of {len(placed)} nodes on the host: {host[0].reason}" if host else ""
    return ("native" if placed else UNKNOWN), note


# Drawing and shrinking


def drawn_by_hypothesis(kind: str, seed: int, count: int) -> list[Drawn]:
    """The graphs that hypothesis draws from a seed."""
    found: list[Drawn] = []
    _drive(kind, seed, count, [hypothesis.Phase.generate], found.append)
    return found


def smaller(
    compiled: Compile,
    kind: str,
    seed: int,
    number: int,
    drawn: Drawn,
    wrong: Wrong,
    device: torch.device,
    until: float,
    flushing: Flushing,
) -> Failed | None:
    """The smallest graph found, until ``until`` on the monotonic clock, that fails as the graph of this number does; None where
    it does not fail by itself."""
    best: list[Failed] = []
    seen = -1

    def test(candidate: Drawn) -> None:
        nonlocal seen
        seen += 1
        if seen < number or time.monotonic() > until:
            return
        found = fails(compiled, candidate, device, flushing)
        if found is not None and found.kind == wrong.kind:
            if not best or _extent(candidate) <= _extent(best[0].drawn):
                best[:] = [Failed(candidate, found)]
            raise AssertionError(found.kind)

    try:
        _drive(kind, seed, number + 1, [hypothesis.Phase.generate, hypothesis.Phase.shrink], test)
    except BaseException as error:
        # The failure itself, or hypothesis's complaint that it comes and goes once time is up.
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
    if not best:
        again = fails(compiled, drawn, device, flushing)
        best = [Failed(drawn, again)] if again is not None else []
    while best and time.monotonic() < until:
        candidates = (each for each in _reductions(best[0]) if _extent(each) < _extent(best[0].drawn))
        less = next(
            (Failed(each, found) for each in candidates
             if time.monotonic() < until and (found := fails(compiled, each, device, flushing)) and found.kind == wrong.kind),
            None,
        )  # fmt: skip
        if less is None:
            break
        best = [less]
    return best[0] if best else None


def _extent(drawn: Drawn) -> tuple[int, int, int]:
    outputs = len(list(drawn.module.graph.nodes)[-1].args[0])
    return drawn.operators, outputs, sum(value.numel() for value in drawn.values())


def _reductions(failed: Failed) -> Iterator[Drawn]:
    """Graphs with less in them: one output of several, a prim's operand in place of its result."""
    drawn = failed.drawn
    ends: Any = list(drawn.module.graph.nodes)[-1].args[0]
    if len(ends) > 1:
        for index in range(len(ends)):
            yield _changed(drawn, lambda nodes: None, lambda results: (results[index],))
    calls = [node for node in drawn.module.graph.nodes if node.op == "call_function"]
    for place, node in reversed(list(enumerate(calls))):
        value = node.meta["val"]
        for operand in node.all_input_nodes:
            other = operand.meta["val"]
            alike = isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor)
            if alike and value.dtype == other.dtype and value.shape == other.shape:
                name = operand.name

                def bypass(nodes: Mapping[str, fx.Node], place: int = place, name: str = name) -> None:
                    found = [each for each in nodes.values() if each.op == "call_function"][place]
                    found.replace_all_uses_with(nodes[name])

                yield _changed(drawn, bypass, lambda results: results)


def _changed(
    drawn: Drawn, change: Callable[[Mapping[str, fx.Node]], None], kept: Callable[[tuple[Any, ...]], tuple[Any, ...]]
) -> Drawn:
    graph = fx.Graph()
    places: dict[fx.Node, fx.Node] = {}
    ends = graph.graph_copy(drawn.module.graph, places)
    nodes = {old.name: new for old, new in places.items()}
    output = graph.output(kept(ends))  # type: ignore[arg-type]
    change(nodes)
    # A result that was bypassed may be an input now, or stand twice.
    results = dict.fromkeys(
        graph.call_function(torch.ops.aten.clone.default, (node,)) if node.op == "placeholder" else node
        for node in output.args[0]
    )
    for node in results:
        if "val" not in node.meta:
            node.meta["val"] = node.args[0].meta["val"]  # type: ignore[union-attr]
    graph.erase_node(output)
    graph.output(tuple(results))
    graph.eliminate_dead_code()
    return graphs.pruned(fx.GraphModule(torch.nn.Module(), graph), drawn.inputs, drawn.sizes, drawn.other_sizes)


def _drive(kind: str, seed: int, count: int, phases: Sequence[hypothesis.Phase], use: Callable[[Drawn], None]) -> None:
    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count, deadline=None, database=None, phases=phases, report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck), verbosity=hypothesis.Verbosity.quiet,
    )  # fmt: skip
    @hypothesis.given(st.data())
    def draw(data: st.DataObject) -> None:
        use(_draw(kind, lambda n: data.draw(st.integers(0, n - 1))))

    draw()


def _draw(kind: str, pick: graphs.Pick) -> Drawn:
    return graphs.draw(pick, graphs.KINDS[kind])


def by_seed(kind: str, seed: int) -> Drawn:
    """A graph drawn without hypothesis, evenly: for a search by hand."""
    source = random.Random(seed)
    return _draw(kind, lambda n: source.randrange(n))
