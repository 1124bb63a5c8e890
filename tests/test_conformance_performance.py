"""What is timed: patterns are right and fraud is caught, statistics, models, profiles, levels, charts."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

import vendor_sdk
from conformance import charts, models, profiles, roofline, zoo
from conformance.cases import MODEL, PATTERN, PRIM, Case, Selection, SelectionError, every_case
from conformance.closeness import ITEMS, LIMITS, Judge, error
from conformance.compare import compare
from conformance.console import next_step
from conformance.levels import LEVELS, NONE, best, levels
from conformance.outcome import Outcome
from conformance.patterns import PATTERNS, Pattern, Size
from conformance.performance import Inputs, measure_pattern
from conformance.roofline import Machine, copies
from conformance.subject import BackendSubject, Compiled, Description, TorchSubject
from conformance.timing import Interval, Race, at_least, interval, probes, read, timed
from tests.test_conformance_oracle import Chip, Lazy, subject_of
from vendor_sdk import ALL, OPSET, Effort

Tensor = torch.Tensor
CPU = torch.device("cpu")
SMALL = Size(37, 128, 32)


class Toy(Machine):
    """A machine whose caches hold next to nothing."""

    def size(self, dtype: torch.dtype, *, odd: bool = False) -> Size:
        return Size(36, 129, 33) if odd else Size(48, 128, 32)


MACHINE = Toy(0, 1e9, {"float32": 1e9, "bfloat16": 1e9})


@pytest.mark.parametrize(
    ("cache", "rate", "most", "main"),
    [
        (32, 1e12, 0, 64),
        (480, 1e12, 0, 960),
        (480, 1e12, 384, 384),
        (480, 1e12, 16, 64),
        (32, 1e12, 384, 64),
        (480, 1e11, 0, 238),
    ],
)
def test_large_tensors_are_past_the_cache_where_they_may_be(cache: int, rate: float, most: int, main: int) -> None:
    size = Machine(cache << 20, rate, {"float32": 1e9}, most << 20).size(torch.float32)
    assert size.rows * size.columns * 4 >> 20 == main


@pytest.mark.parametrize(
    ("device", "host", "effort", "most"),
    [(1, 64, Effort.STANDARD, 64), (0, 24, Effort.STANDARD, 384), (0, 24, Effort.QUICK, 64), (141, 0, Effort.STANDARD, 9024)],
)
def test_timed_tensors_fit_in_memory(
    device: int, host: int, effort: Effort, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Described(BackendSubject):
        def __init__(self) -> None:
            self.name = "described"

        def describe(self) -> Description:
            return Description("described", "1", "", {"memory_bytes": device << 30})

    monkeypatch.setattr(roofline, "host_memory", lambda: host << 30)
    assert roofline.most_bytes(Described(), effort) == most << 20


@pytest.fixture(autouse=True)
def _clocks_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", time.perf_counter)  # restored afterwards


# The table


def test_there_are_forward_and_backward_patterns_of_every_profile() -> None:
    assert len(PATTERNS) >= 25
    assert sum(pattern.backward for pattern in PATTERNS.values()) >= 8
    for profile in ("inference", "training", "llm", "vision"):
        assert sum(profile in pattern.profiles for pattern in PATTERNS.values()) >= 10
    assert not [name for name in PATTERNS if set(name) & set("*?[],")], "names stand in globs, which commas separate"


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_is_within_its_limit_in_every_dtype(name: str) -> None:
    """So the limit rejects no right backend, where torch's own results are the reference's neighbours."""
    pattern = PATTERNS[name]
    for dtype, limit in LIMITS.items():
        inputs = Inputs(pattern, SMALL, dtype, CPU, torch.Generator().manual_seed(1))
        inputs.draw(2)
        one, other = inputs.sets
        assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True)), "each set is another one"
        results = flat(pattern(*one))
        assert all(result.numel() for result in results)
        if pattern.check is not None:
            assert pattern.check(results, one) == ""
            continue
        exact = flat(pattern(*(x.double() if x.is_floating_point() else x for x in one)))
        for result, wanted in zip(results, exact, strict=True):
            assert error(result, wanted, dtype)[0] <= limit, name
            if result.is_floating_point() and dtype is torch.float32:
                assert error(result.bfloat16().float(), wanted, dtype)[0] > limit, "half precision is rejected"


def flat(returned: Any) -> list[Tensor]:
    return [returned] if isinstance(returned, Tensor) else list(returned)


@pytest.mark.parametrize("change", ["zeros", "last", "nan", "off by two"])
def test_the_judge_sees_what_is_wrong(change: str) -> None:
    wanted = torch.randn(700, 301) if change != "off by two" else torch.randint(-9, 9, (700, 301))
    found = wanted.clone()
    assert error(found, wanted, torch.float32)[0] == 0
    match change:
        case "zeros":
            found.zero_()
        case "last":
            found[-1, -1] = 0
        case "nan":
            found[600, 7] = torch.nan
        case _:
            found[600, 7] += 2
    off, where = error(found, wanted, torch.float32)
    assert off > 1e4
    assert where == {"last": [699, 300], "zeros": where}.get(change, [600, 7])


# Statistics


@pytest.mark.parametrize("name", [name for name, pattern in PATTERNS.items() if pattern.itemwise])
def test_independent_items_are_judged_a_few_at_a_time(name: str) -> None:
    """Scores of thousands of sequences in float64 fill the memory of a device of 80 GB."""
    rows: list[int] = []

    def attend(*tensors: Tensor) -> Tensor:
        rows.append(len(tensors[0]) if tensors[0].dtype == torch.float64 else 0)
        return PATTERNS[name](*tensors)

    inputs = [torch.randn(2 * ITEMS + 5, 1, 9, 8) for _ in range(3)]
    (found,) = Judge(dataclasses.replace(PATTERNS[name], function=attend), torch.float32).expected(inputs)
    assert rows == [ITEMS, ITEMS, 5, 0]
    torch.testing.assert_close(found, PATTERNS[name](*(x.double() for x in inputs)), rtol=1e-14, atol=1e-14)


def test_intervals_and_verdicts() -> None:
    found = interval([1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 9.0])
    assert found.median == 1.02
    assert 0.9 <= found.low <= found.median <= found.high <= 9.0
    assert interval([2.0] * 5) == Interval(2.0, 2.0, 2.0)
    assert [at_least(Interval(1, low, high), 0.95) for low, high in ((0.96, 2), (0.5, 0.9), (0.9, 1.1))] == [
        "pass",
        "fail",
        "inconclusive",
    ]
    race = Race()
    for slow in (1.0, 5.0, 1.0):  # what disturbs both shows in neither's ratio
        race.add({"a": 2.0 * slow, "b": 1.0 * slow})
    assert race.ratio("a", "b") == Interval(2.0, 2.0, 2.0)


def test_the_last_element_is_read_before_the_clock_stops() -> None:
    import random

    x = torch.arange(12.0).view(3, 4).t()
    places = probes([x.shape], random.Random(0), CPU)
    assert read(x, places)[-1] == 11
    sample = timed(lambda y: y + 1, [[x], [x * 2]], lambda: None, places)
    assert [float(seen[0][-1]) for seen in sample.seen] == [12.0, 23.0]
    source, target = torch.arange(1001), torch.zeros(1001, dtype=torch.int64)
    for way in copies(source, target):
        target.zero_()
        way()
        assert torch.equal(source, target)


# Fraud: each is caught by the case meant for it


class Summing(Chip):
    """Right; its sums take some time."""


class Early(Chip):
    """The call returns at once, and the result follows."""

    def sum(self, x: Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
        right = super().sum(x, dim, keepdim, dtype=dtype)
        result = torch.zeros_like(right)
        threading.Timer(0.001, lambda: result.copy_(right)).start()
        return result


class Remembering(Chip):
    """Answers from memory where the operand lies at an address that it knows."""

    def __init__(self) -> None:
        self.answers: dict[Any, Tensor] = {}

    def sum(self, x: Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
        key = x.data_ptr(), tuple(x.shape)
        if key not in self.answers:
            self.answers[key] = super().sum(x, dim, keepdim, dtype=dtype)
        return self.answers[key].clone()


class RememberingContent(Remembering):
    """Looks at some of the content too, which costs next to nothing."""

    def sum(self, x: Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
        key = float(x.reshape(-1)[:4].double().sum() > 1e9), tuple(x.shape)
        if key not in self.answers:
            self.answers[key] = Chip.sum(self, x, dim, keepdim, dtype=dtype)
        return self.answers[key].clone()


class WorksTwice(Chip):
    """Does all the work while it is looked at, and half of it from then on."""

    calls = 0

    def sum(self, x: Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
        self.calls += 1
        rows = x if self.calls <= 5 else x[: x.shape[0] // 2]
        result = super().sum(rows, dim, keepdim, dtype=dtype)
        return result if self.calls <= 5 else result * 2


class Host(Chip):
    """Says native, and lets torch do it."""

    def sum(self, x: Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
        return torch.ops.aten.sum.dim_IntList(x, dim, keepdim, dtype=dtype)


class Promises(Chip):
    """Returns something that computes when it is read."""

    def sum(self, x: Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
        return super().sum(x, dim, keepdim, dtype=dtype).as_subclass(Lazy)


class Clock(Chip):
    """Time stands still."""

    def sum(self, x: Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
        time.perf_counter = lambda: 0.0
        return super().sum(x, dim, keepdim, dtype=dtype)


FRAUDS = [
    (Early, {"late", "value", "stale"}),
    (Remembering, {"stale"}),
    (RememberingContent, {"stale", "value"}),
    (WorksTwice, {"value"}),
    (Host, {"disguised"}),
    (Promises, {"value"}),
    (Clock, {"tampered"}),
]


def measured(chip: Chip, name: str = "sum over dim 0", effort: Effort = Effort.QUICK) -> tuple[Outcome, dict[str, Any]]:
    with subject_of(chip) as subject:
        return measure_pattern(subject, Case(name, "float32", PATTERN), MACHINE, effort=effort, seed=3, device=CPU)


def test_a_right_chip_passes_at_every_size() -> None:
    outcome, found = measured(Summing(), effort=Effort.STANDARD)
    assert outcome.verdict in ("pass", "inconclusive"), outcome
    assert (outcome.placement, outcome.samples, outcome.compared, outcome.fresh) == ("native", 3, 3, 3)
    large, odd, dynamic = found["sizes"]
    assert (large["label"], odd["label"], dynamic["label"]) == ("large", "odd", "dynamic")
    assert (large["rows"], odd["columns"], large["kernels"], dynamic["recompiles"]) == (48, 129, 1, 0)
    assert large["bytes"] == (48 + 1) * 128 * 4
    assert large["verified_results"] >= 14, "pattern and chain, seven rounds"
    assert large["unfused"] is not None
    assert odd["unfused"] is None


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=list(PATTERNS))
@pytest.mark.parametrize("edge", [roofline.EDGES[0], 768, roofline.EDGES[1]])
def test_what_varies_is_nowhere_one(pattern: Pattern, edge: int) -> None:
    """At one, ``torch.compile`` makes it a constant, and compiling again for another size was laid to the backend."""
    size = Size(1 << 12, roofline.COLUMNS, edge)
    varied = 0
    for operand in pattern.operands:
        for small, large in zip(operand.shape(size.half), operand.shape(size), strict=True):
            varied += small != large
            assert small == large or small >= 2, (operand.shape(size.half), operand.shape(size))
    assert varied


@pytest.mark.parametrize(("chip", "kinds"), FRAUDS, ids=[chip.__name__ for chip, _ in FRAUDS])
def test_fraud_is_caught(chip: type[Chip], kinds: set[str]) -> None:
    outcome, _ = measured(chip())
    assert outcome.verdict == "fail", outcome
    assert {failure.kind for failure in outcome.failures} <= kinds | {"value"}, outcome.failures
    assert {failure.kind for failure in outcome.failures} & kinds


class SelectsFloats(Chip):
    """Selects numbers itself, and leaves positions to the host: cross entropy does both."""

    @vendor_sdk.hookimpl
    def supports(self, node: vendor_sdk.NodeContext) -> vendor_sdk.Decline | None:
        positions = node.prim == "where" and node.outputs[0].dtype == torch.int64
        return vendor_sdk.Decline("the selector is float32") if positions else None

    @vendor_sdk.hookimpl
    def kernels(self) -> Any:
        return {"where": lambda c, x, y: torch.from_numpy(np.where(c.numpy(), x.numpy(), y.numpy()))}


def test_what_is_declined_in_one_place_is_not_disguised_in_another() -> None:
    outcome, _ = measured(SelectsFloats(), "cross_entropy")
    assert not [failure for failure in outcome.failures if failure.kind == "disguised"]


def test_what_is_slower_than_its_parts_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = BackendSubject.prepare

    def prepare(self: BackendSubject, function: Callable[..., Any], inputs: Sequence[Tensor]) -> Compiled:
        made = ready(self, function, inputs)
        if function is not PATTERNS["sum over dim 0"].function:
            return made

        def late(*given: Tensor) -> Any:
            time.sleep(0.005)
            return made.call(*given)

        return dataclasses.replace(made, call=late)

    monkeypatch.setattr(BackendSubject, "prepare", prepare)
    outcome, found = measured(Summing())
    assert outcome.verdict == "slow"
    assert found["sizes"][0]["gate"] == "fail"
    assert found["sizes"][0]["unfused"]["high"] < 0.95


def test_counters_are_those_of_the_timed_calls() -> None:
    class Counting(Chip):
        read = 0

        @vendor_sdk.hookimpl
        def backend(self) -> vendor_sdk.Backend:
            given = Chip.backend(self)
            return dataclasses.replace(given, counters=lambda: {"bytes read": self.read})

        def sum(self, x: Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
            self.read += x.nbytes
            return super().sum(x, dim, keepdim, dtype=dtype)

    outcome, found = measured(Counting())
    assert found["sizes"][0]["counters"] == {"bytes read": 48 * 128 * 4}
    assert not [failure for failure in outcome.failures if failure.kind == "not-executed"]


def test_a_native_pattern_that_moves_no_counter_was_not_executed() -> None:
    class Idle(Chip):
        @vendor_sdk.hookimpl
        def backend(self) -> vendor_sdk.Backend:
            return dataclasses.replace(Chip.backend(self), counters=lambda: {"bytes read": 7})

    outcome, found = measured(Idle())
    assert (outcome.verdict, {failure.kind for failure in outcome.failures}) == ("fail", {"not-executed"})
    assert "none of the device's counters moved: bytes read" in outcome.failures[0].message
    assert found["sizes"][0]["seconds"] is None


def test_raw_rounds_are_kept() -> None:
    _, found = measured(Chip())
    (size,) = found["sizes"]
    rounds = size["rounds"]
    assert {"the pattern", "copy"} <= set(rounds)
    assert len({len(seconds) for seconds in rounds.values()}) == 1
    middle = float(np.median(rounds["the pattern"]))
    assert middle == pytest.approx(size["seconds"]["median"], rel=1e-3)


# Models


class Small(nn.Module):
    """A classifier with everything that a model case looks at: norm, dropout, a loss, logits."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))

    def forward(self, x: Tensor, labels: Tensor) -> Any:
        logits = self.layers(x)
        loss = nn.functional.cross_entropy(logits, labels)
        return type("Output", (), {"loss": loss, "logits": logits})()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    build = lambda: (Small(), {"x": torch.randn(16, 8), "labels": torch.randint(4, (16,))})  # noqa: E731
    monkeypatch.setattr(models, "ZOO", {"lstm": build})
    yield Case("lstm", "float32", MODEL)
    torch.compiler.reset()


def run_model(case: Case, subject: TorchSubject) -> tuple[Outcome, dict[str, Any]]:
    return models.measure_model(subject, case, effort=Effort.QUICK, seed=2, device=CPU)


def test_a_model_is_run_and_trained(small: Case) -> None:
    outcome, found = run_model(small, TorchSubject("eager"))
    assert not outcome.failures
    assert (outcome.placement, outcome.compared) == ("opaque", 2)
    inference, training = found["parts"]
    assert (inference["verified_results"], training["verified_results"]) == (7, 20)
    assert len(training["losses"]) == 20
    assert training["losses"][-2][0] < training["losses"][0][0]
    assert (training["recompiles"], training["graphs"], training["graph_breaks"]) == (0, None, 1), "where a type is made"


@pytest.mark.parametrize(
    ("mine", "eager", "exact", "wrong"),
    [
        (1.001, 1.0, None, ""),
        (1.03, 1.0, 1.01, ""),
        (1.10, 1.0, 1.01, "allowed is a difference of 0.0416"),
        (1.10, 1.0, 1.0, "allowed is a difference of 0.002"),
        (float("nan"), 1.0, 1.01, "loss nan"),
        (1.0, float("nan"), 1.0, ""),
    ],
)
def test_losses_may_be_as_far_from_float64_as_rounding_leads_eagers(
    mine: float, eager: float, exact: float | None, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exactly(model: Any) -> list[float]:
        assert exact is not None
        return [1.5, exact]

    monkeypatch.setattr(models, "_exact_losses", exactly)
    part = models._Part("training", losses=[(1.5, 1.5), (mine, eager)])
    models._judge_losses(part, mock.Mock())
    assert "".join(failure.message for failure in part.failures).endswith(" of it") == bool(wrong)
    assert all(wrong in failure.message for failure in part.failures)


def test_float64_of_mixtures_of_experts_takes_no_copy_of_weights_a_token() -> None:
    pytest.importorskip("transformers")
    model = models._build("mixtral", 1, CPU)
    config = next(each.config for each in models._exact(model.module).modules() if hasattr(each, "config"))
    assert config._experts_implementation == "eager"


def test_gradients_are_compared_where_derivatives_do_not_jump() -> None:
    jumps = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Sequential(torch.nn.MaxPool2d(2)))
    smooth = models._smooth(jumps)
    assert smooth is not None
    assert [type(m).__name__ for m in smooth.modules()] == ["Sequential", "Conv2d", "GELU", "Sequential", "AvgPool2d"]
    assert isinstance(jumps[1], torch.nn.ReLU), "the model itself stays as it is"
    x = torch.randn(1, 1, 8, 8)
    assert smooth(x).shape == jumps(x).shape
    assert models._smooth(torch.nn.Linear(2, 2)) is None


@pytest.mark.parametrize("what", ["logits", "gradients", "raises"])
def test_a_wrong_model_fails(small: Case, what: str) -> None:
    class Wrong(TorchSubject):
        def through_torch(self, function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*inputs: Tensor) -> Any:
                loss, logits = function(*inputs)
                if what == "raises":
                    raise ValueError("no such kernel")
                if what == "logits":
                    logits = logits * 1.001
                return loss if what != "gradients" else loss + 0.2 * (loss - loss.detach()), logits

            return lambda *inputs: (lambda made: made if isinstance(made, tuple) else (made,))(call(*inputs))

    outcome, _ = run_model(small, Wrong("eager"))
    assert outcome.verdict == ("error" if what == "raises" else "fail")
    labels = {failure.label for failure in outcome.failures}
    assert labels == {"logits": {"inference"}, "gradients": {"training"}, "raises": {"inference", "training"}}[what]


def test_a_model_whose_packages_are_missing_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: None)
    outcome, found = run_model(Case("gpt2", "float32", MODEL), TorchSubject("eager"))
    assert (outcome.verdict, found) == ("no-samples", {"parts": []})
    assert "transformers" in outcome.reason


# Selection, profiles, levels


def test_what_is_selected() -> None:
    count = lambda **given: {kind: sum(c.kind == kind for c in Selection(**given).cases()) for kind in (PRIM, PATTERN, MODEL)}  # noqa: E731
    everything = count()
    assert everything[PATTERN] == len(PATTERNS)
    assert everything[MODEL] == len(zoo.EFFORTS["standard"])
    assert 0 < count(effort="quick")[PATTERN] < everything[PATTERN]
    assert count(effort="full")[PATTERN] == 3 * len(PATTERNS)
    assert count(prims=["exp"]) == {PRIM: 8, PATTERN: 0, MODEL: 0}
    assert count(patterns=["softmax*"], dtypes=["bfloat16"]) == {PRIM: 0, PATTERN: 2, MODEL: 0}
    assert count(models=["swin"], effort="quick") == {PRIM: 0, PATTERN: 0, MODEL: 1}
    assert 0 < count(profile="vision")[PRIM] < everything[PRIM]
    with pytest.raises(SelectionError, match="no pattern matches 'sofmax'"):
        Selection(patterns=["sofmax"]).cases()
    ids = [case.id for case in every_case()]
    assert len(set(ids)) == len(ids)
    assert "pattern:softmax[bfloat16]" in ids


def test_a_quick_run_has_two_dtypes_of_each_prim() -> None:
    """Its first, and one other, all that are computed with among those of some prim; of a prim that is named, all."""
    found: dict[str, set[str]] = {}
    for case in Selection(effort="quick").cases():
        if case.kind == PRIM:
            found.setdefault(case.prim, set()).add(case.dtype)
    every = [case for case in Selection().cases() if case.kind == PRIM]
    assert found.keys() == {case.prim for case in every}
    assert all(len(names) == min(2, sum(case.prim == prim for case in every)) for prim, names in found.items())
    firsts = {prim: next(dtype for dtype in OPSET[prim].dtypes if dtype in ALL) for prim in found}
    assert all(str(dtype).removeprefix("torch.") in found[prim] for prim, dtype in firsts.items())
    assert set.union(*found.values()) == {str(dtype).removeprefix("torch.") for dtype in ALL}
    assert {case.dtype for case in Selection(prims=["exp"], effort="quick").cases()} == {
        c.dtype for c in every if c.prim == "exp"
    }
    assert {case.dtype for case in Selection(dtypes=["float16"], effort="quick").cases()} == {"float16"}


def test_a_run_without_some_dtypes_does_not_show_that_all_are_right() -> None:
    quick = {(case.prim, case.dtype) for case in Selection(effort="quick").cases()}
    found = levels([e for e in entries() if e["kind"] != PRIM or (e["prim"], e["dtype"]) in quick], True)["full"]
    (criterion,) = [c for c in found["criteria"] if c["name"].startswith("every prim passes")]
    assert criterion["state"] == "not shown"
    assert found["level"] == "runs"


def test_what_cannot_be_called_alone_is_said() -> None:
    found = entries()
    for entry in found:
        if entry["prim"] == "wait_tensor":
            entry["verdict"] = "no-samples"
    (criterion,) = [c for c in levels(found, True)["full"]["criteria"] if c["name"].startswith("every prim passes")]
    assert criterion["state"] == "met"
    assert "8 cannot be called alone" in criterion["found"]


@pytest.mark.parametrize("profile", profiles.PROFILES)
def test_weights_of_a_profile(profile: str) -> None:
    weights = profiles.weights(profile)
    assert sum(weights.values()) == pytest.approx(1)
    assert weights["mm"] > weights.get("erfinv", 0) or profile == "full"
    assert set(weights) <= set(vendor_sdk.OPSET)


def entries(**changes: Any) -> list[dict[str, Any]]:
    """All cases of a run, with all that a chip can reach; ``changes`` by kind replace fields."""
    made = []
    for case in Selection().cases():
        spot = {"median": 0.9, "low": 0.8, "high": 1.0}
        size = {
            "label": "large",
            "fraction": spot,
            "seconds": spot,
            "flops": 0,
            "operations": 4,
            "bytes": 8,
            "copy_bytes_per_second": 1e9,
            "unfused": spot,
            "kernels": 1,
            "peak_bytes": 5,
            "spread": 0.1,
            "product_flops_per_second": None,
        }
        part = {"label": "training", "graphs": 1, "host_prims": [], "seconds": spot, "speedup": spot, "kernels": 1}
        part |= {"graph_breaks": 0, "recompiles": 0, "host_nodes": 0, "peak_bytes": None}
        performance: Mapping[str, Any] | None = None
        if case.kind == PATTERN:
            performance = {"limit": "memory", "sizes": [{**size, "label": label} for label in ("large", "odd", "dynamic")]}
        elif case.kind == MODEL:
            performance = {"parts": [part]}
        entry = {"id": case.id, "kind": case.kind, "prim": case.prim, "dtype": case.dtype, "verdict": "pass"}
        entry["expectation"] = None
        made.append({**entry, "placement": "native", "performance": performance, **changes.get(case.kind, {})})
    return made


def reached(found: Sequence[Mapping[str, Any]], numerics: bool | None = True) -> str:
    return str(levels(found, numerics)["llm"]["level"])


def test_each_level_asks_for_all_below() -> None:
    assert set(levels(entries(), True)) == set(profiles.PROFILES)
    assert reached(entries()) == "fast"
    assert best(levels(entries(), True)) == ("full", "fast")
    assert reached(entries(pattern={"verdict": "slow"})) == "accurate"
    assert reached(entries(pattern={"verdict": "inconclusive"})) == "accurate", "what is not known is not shown"
    assert reached(entries(pattern={"verdict": "fail", "performance": None})) == "runs"
    assert reached(entries(), numerics=False) == "runs"
    assert reached(entries(), numerics=None) == "runs", "nobody probed"
    assert reached(entries(prim={"verdict": "host-fail"})) == "runs", "wrong, whoever computes it"
    hollow = entries()
    next(entry for entry in hollow if entry["id"] == "add[float32]")["verdict"] = "empty"
    assert reached(hollow) == "runs", "nothing was shown"
    declared = {"verdict": "expected-failure", "expectation": {"verdict": "fail"}}
    assert reached(entries(prim=declared)) == "runs"
    assert reached(entries(prim={**declared, "expectation": {"verdict": "crash"}})) == NONE, "declared or not, it crashes"
    assert reached(entries(model=declared)) == NONE, "its results are wrong, and nobody has allowed it"
    waived = {"verdict": "waived", "expectation": {"verdict": "fail"}}
    assert reached(entries(prim=waived)) == "runs"
    assert reached(entries(model=waived)) == "runs"
    assert reached(entries(model={"verdict": "fail"})) == NONE
    assert reached(entries(prim={"placement": "host"})) == NONE
    assert reached(entries(prim={"placement": "opaque"})) == NONE
    assert reached(entries(prim={"verdict": "crash"})) == NONE
    assert reached([e for e in entries() if e["kind"] == PRIM]) == NONE, "models were not run"
    states = {c["state"] for c in levels([], True)["llm"]["criteria"] if c["level"] != "accurate"}
    assert states == {"not shown"}
    assert {c["level"] for c in levels([], True)["llm"]["criteria"]} == set(LEVELS)


def test_criteria_name_what_keeps_them_from_being_met_and_what_shows_more() -> None:
    found = entries()
    for entry in found:
        if entry["id"] in ("exp[float32]", "softmax[bfloat16]"):
            entry["verdict"] = "fail"
        if entry["prim"] == "sort":
            entry["placement"] = "host"
        if entry["id"] == "pattern:swiglu[float32]":
            spots = [{**size, "fraction": {"median": 0.1}} for size in entry["performance"]["sizes"]]
            entry["performance"] = {**entry["performance"], "sizes": spots}
    criteria = levels(found, True)["full"]["criteria"]
    by_name = {each["name"].partition(",")[0]: each for each in criteria}
    assert by_name["every prim passes in every dtype"]["cases"] == ["exp[float32]"]
    each = by_name["25% of the roofline by each pattern"]
    assert (each["state"], each["cases"]) == ("not met", ["pattern:swiglu[float32]"])
    assert "below: pattern:swiglu[float32]" in each["found"]
    commands = {"add[float32]": "vendor-sdk conformance --prims add"}
    wrong = {**each, "cases": ["add[float32]"]}
    assert next_step(wrong, "mychip", commands) == "vendor-sdk conformance --prims add"
    few = levels([e for e in found if e["prim"] in ("exp", "sort")], None)["full"]["criteria"]
    steps = {each["name"].partition(" of the calls")[0]: next_step(each, "mychip", {}) for each in few}
    assert steps["90%"] == "vendor-sdk conformance --backend mychip --effort standard"
    share = next(each for each in few if each["name"].startswith("90%"))
    assert "on the host: sort" in share["found"]
    assert "prims did not run: " in share["found"]
    hosted = levels([{**e, "placement": "host"} if e["kind"] == PRIM else e for e in entries()], True)["full"]["criteria"]
    share = next(each for each in hosted if each["name"].startswith("90%"))
    assert next_step(share, "mychip", {}) == "vendor-sdk next --backend mychip"
    assert share["cases"]


def test_a_prim_weighs_as_much_as_models_call_it() -> None:
    found = entries()
    for entry in found:
        if entry["prim"] == "erfinv":
            entry["placement"] = "host"
    assert reached(found) == "fast", "no model calls it"
    for entry in found:
        if entry["prim"] in ("mul", "add"):
            entry["placement"] = "host"
    assert reached(found) == NONE


def test_charts() -> None:
    found = [entry for entry in entries() if entry["kind"] != PRIM]
    chart = charts.roofline(found)
    assert chart is not None
    assert len(chart.marks) == len(PATTERNS)
    assert all(chart.left <= mark.x <= chart.right and chart.top <= mark.y <= chart.bottom for mark in chart.marks)
    assert charts.roofline([]) is None
    assert np.isfinite([bar["median"] for bar in charts.bars(found)]).all()


def of_two_runs(one: Mapping[str, Any], two: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Reports of one case each, and nothing else that differs."""
    run = {
        "backend": {"name": "a", "version": "1", "device": {"name": "d"}}, "effort": "quick", "suite": "", "interrupted": False,
        "versions": {"torch": "2"}, "host": {"processor": "p"},
    }  # fmt: skip
    rest: dict[str, Any] = {"run": run, "summary": {"levels": {}}, "numerics": []}
    return [{**rest, "cases": [{**each, "failures": [], "reason": "", "worst_error": 0.1}]} for each in (one, two)]


def test_getting_slow_is_a_regression() -> None:
    pair = of_two_runs(entries()[-10], entries(pattern={"verdict": "slow"})[-10])
    name = pair[0]["cases"][0]["id"]
    assert [change.case for change in compare(*pair).regressions] == [name]
    assert [change.case for change in compare(*reversed(pair)).improvements] == [name]


@pytest.mark.parametrize(
    ("before", "after", "significant"),
    [
        ((1.0, 0.9, 1.1), (1.3, 1.2, 1.4), True),
        ((1.0, 0.9, 1.1), (1.3, 1.05, 1.4), False),  # the intervals touch
        ((1.0, 0.99, 1.01), (1.04, 1.03, 1.05), False),  # as fast as 0.95
    ],
)
def test_times_differ_where_their_intervals_do_not_touch(
    before: tuple[float, ...], after: tuple[float, ...], significant: bool
) -> None:
    def case(values: tuple[float, ...]) -> dict[str, Any]:
        (found,) = (entry for entry in entries() if entry["id"] == "pattern:softmax[float32]")
        found["performance"]["sizes"] = [
            {"label": "large", "seconds": dict(zip(("median", "low", "high"), values, strict=True)), "fraction": None}
        ]
        return dict(found)

    pair = of_two_runs(case(before), case(after))
    names = ["pattern:softmax[float32], large, time"] if significant else []
    there, back = compare(*pair), compare(*reversed(pair))
    assert ([change.case for change in there.slower], there.faster, there.worse) == (names, [], significant)
    assert ([change.case for change in back.faster], back.slower, back.worse) == (names, [], False)
    pair[1]["run"] = {**pair[1]["run"], "host": {"processor": "q"}}
    assert not compare(*pair).slower, "another machine"


def test_levels_and_numerics_are_compared() -> None:
    pair = of_two_runs(entries()[0], entries()[0])
    probe = {"probe": "mm float32 operands", "declared": "float32", "value": "float32", "agrees": True}
    for each, crash in zip(pair, ("pass", "crash"), strict=True):
        each["summary"] = {"levels": levels(entries(prim={"verdict": crash}), True)}
    pair[0]["numerics"], pair[1]["numerics"] = [probe], [{**probe, "value": "TF32", "agrees": False}]
    found = compare(*pair)
    assert {(change.before, change.after) for change in found.lower} == {("fast", NONE)}
    assert [(c.case, c.before, c.after) for c in found.numerics] == [("mm float32 operands", "float32", "TF32")]
    assert [change.why for change in found.regressions] == ["declared is float32"]
    assert not compare(*reversed(pair)).worse
