"""Programs whose behaviour is certified: right backends pass, and each planted bug is found by the group meant for it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from conformance import behaviour, limits
from conformance.cases import BEHAVIOUR, HUGE, Selection, all_cases
from conformance.draw import Draw
from conformance.guards import storage_bytes
from conformance.outcome import Outcome
from conformance.subject import Subject, TorchSubject
from vendor_sdk import Effort

Tensor = torch.Tensor
Call = Callable[..., Any]


def certified(subject: Subject, group: str, only: int | None = None, memory: int | None = None) -> Outcome:
    return behaviour.certify(
        subject, group, effort=Effort.STANDARD, seed=1, device=torch.device("cpu"), only=only, memory=memory
    )


@pytest.fixture(autouse=True)
def _collections_are_short() -> Iterator[None]:
    """Groups have garbage collected again and again, and what other tests hold takes half a second to go through."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large tensors have few rows, and the edge is where it would be."""
    rows = 101
    monkeypatch.setattr(limits, "ROWS", rows)
    monkeypatch.setattr(limits, "COUNT", rows * limits.COLUMNS)
    monkeypatch.setattr(limits, "EDGE", 1 << 21)


@pytest.mark.parametrize("group", [group for group in behaviour.GROUPS if group not in HUGE])
def test_what_torch_itself_does_is_right(group: str) -> None:
    outcome = certified(TorchSubject("eager"), group)
    assert (outcome.verdict, outcome.failures) == ("pass", [])
    assert outcome.compared == outcome.samples == len(behaviour.GROUPS[group])


def test_every_group_is_a_case() -> None:
    assert {case.prim for case in all_cases() if case.kind == BEHAVIOUR} == set(behaviour.GROUPS)


@pytest.mark.parametrize("group", sorted(HUGE))
@pytest.mark.parametrize("backend", ["eager", "cpp_cpu"])
def test_what_is_right_of_large_tensors(small: None, backend: str, group: str) -> None:
    outcome = certified(TorchSubject(backend), group)
    assert (outcome.verdict, outcome.failures, outcome.reason) == ("pass", [], "")


def test_large_tensors_have_more_elements_than_32_bits_count() -> None:
    assert (1 << 31) < limits.COUNT < (1 << 31) + (1 << 22)
    assert all(program.nbytes > limits.COUNT for group in HUGE for program in limits.FULL_ONLY[group.partition("/")[2]])


def test_sums_and_products_of_changing_sizes_are_exact_in_any_order() -> None:
    """A chip may multiply the halves of a column apart: neither may overflow where the other is zero."""
    (program,) = (each for each in limits.RESIZED if each.name.startswith("sums of all"))
    for seed in range(20):
        (x,) = program.inputs(Draw(seed, torch.device("cpu")), 257)
        found, halves = program.function(x), [program.function(part) for part in (x[:128], x[128:])]
        assert torch.equal(found[1], halves[0][1] + halves[1][1])
        assert torch.equal(found[3], halves[0][3] * halves[1][3])


def test_what_there_is_no_memory_for_is_left_out_and_said() -> None:
    outcome = certified(TorchSubject("eager"), "limits/large-moved", memory=2 << 30)
    assert (outcome.verdict, outcome.compared, outcome.failures) == ("no-samples", 0, [])
    assert outcome.reason.startswith("3 of 3 programs did not run: joined: it takes 4.2 GiB, and ")


def test_large_tensors_are_run_with_effort_full_or_where_they_are_named() -> None:
    def chosen(effort: str, *globs: str) -> set[str]:
        return {case.prim for case in Selection(globs, effort=effort).cases()} & HUGE

    assert chosen("full") == chosen("exhaustive") == HUGE
    assert chosen("standard") == chosen("quick") == chosen("standard", "limits/*") == set()
    assert chosen("standard", "limits/large-moved") == {"limits/large-moved"}


@pytest.mark.parametrize("backend", ["cpp_cpu", "onnxruntime"])
@pytest.mark.parametrize("group", ["limits/sizes", "limits/memory"])
def test_the_reference_backends_at_the_limits(backend: str, group: str) -> None:
    outcome = certified(TorchSubject(backend), group)
    assert (outcome.verdict, outcome.failures) == ("pass", [])


def each(returned: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(returned, Tensor):
        return change(returned)
    return None if returned is None else tuple(change(item) for item in returned)


def forgets_what_is_done_in_place(call: Call) -> Call:
    return lambda *given: call(*(x.clone(memory_format=torch.preserve_format) for x in given))


def makes_results_contiguous(call: Call) -> Call:
    return lambda *given: each(call(*given), lambda x: x.contiguous())


def copies_views(call: Call) -> Call:
    return lambda *given: each(call(*given), lambda x: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x))


def writes_unseen_by_autograd(call: Call) -> Call:
    return lambda *given: call(*(x.data for x in given))


def writes_between_elements(call: Call) -> Call:
    def wrong(*given: Tensor) -> Any:
        returned = call(*given)
        for x in given:
            if not x.is_contiguous() and x.untyped_storage().nbytes() > x.numel() * x.element_size():
                storage_bytes(x)[-1] ^= 1
        return returned

    return wrong


def returns_an_input_for_a_result(call: Call) -> Call:
    """Where it has room in one, as a plan of memory with a wrong lifetime."""

    def wrong(*given: Tensor) -> Any:
        def placed(x: Tensor) -> Tensor:
            same = [g for g in given if g.shape == x.shape and g.dtype == x.dtype and g.stride() == x.stride()]
            return same[0].copy_(x) if same and not x.requires_grad else x

        return each(call(*given), placed)

    return wrong


def overwrites_earlier_results(call: Call) -> Call:
    buffers: dict[Any, Tensor] = {}

    def kept(x: Tensor) -> Tensor:
        place = buffers.setdefault((tuple(x.shape), x.stride(), x.dtype), x)
        return x if place is x else place.copy_(x)

    return lambda *given: each(call(*given), kept)


def gives_equal_results_once(call: Call) -> Call:
    def wrong(*given: Tensor) -> Any:
        returned = call(*given)
        if isinstance(returned, tuple) and len(returned) == 2 and torch.equal(returned[0], returned[-1]):
            return returned[0], returned[0]
        return returned

    return wrong


def scales_results(call: Call) -> Call:
    return lambda *given: each(call(*given), lambda x: x * 1.001 if x.is_floating_point() else x)


def forgets_gradients(call: Call) -> Call:
    return lambda *given: each(call(*given), lambda x: x.detach())


def changed_gradients(change: Callable[[Tensor], Tensor]) -> Callable[[Call], Call]:
    def plant(call: Call) -> Call:
        def hooked(x: Tensor) -> Tensor:
            if x.requires_grad:
                x.register_hook(change)
            return x

        return lambda *given: each(call(*given), hooked)

    return plant


def dropped_tail(grad: Tensor) -> Tensor:
    kept = grad.clone()
    kept.reshape(-1)[-1:] = 0
    return kept


def forgets_one_input(call: Call) -> Call:
    return lambda *given: call(*given[:-1], given[-1].detach())


def differentiates_the_last_call(call: Call) -> Call:
    """What a forward call saved is overwritten by the next one's."""

    class Wrong(torch.autograd.Function):
        last: Sequence[Tensor] = ()

        @staticmethod
        def forward(context: Any, *given: Tensor) -> Any:
            Wrong.last = [x.detach() for x in given]
            with torch.no_grad():
                return call(*given)

        @staticmethod
        def backward(context: Any, *grads: Tensor) -> Any:
            with torch.enable_grad():
                leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in Wrong.last]
                returned = call(*leaves)
                results = [returned] if isinstance(returned, Tensor) else [x for x in returned if x.requires_grad]
            wanted = [x for x in leaves if x.requires_grad]
            found = iter(torch.autograd.grad(results, wanted, grads[: len(results)]))
            return tuple(next(found) if x.requires_grad else None for x in leaves)

    return Wrong.apply


def second_derivatives_to_half_precision(call: Call) -> Call:
    return lambda *given: each(call(*given), lambda x: x.bfloat16().to(x.dtype))


def answers_with_another_error(call: Call) -> Call:
    def wrong(*given: Tensor) -> Any:
        try:
            return call(*given)
        except RuntimeError as error:
            raise OSError("cannot") from error

    return wrong


def says_nothing_of_bytes(call: Call) -> Call:
    def wrong(*given: Tensor) -> Any:
        try:
            return call(*given)
        except RuntimeError as error:
            raise MemoryError("cannot") from error

    return wrong


def keeps_what_failed(call: Call) -> Call:
    kept = []

    def wrong(*given: Tensor) -> Any:
        try:
            return call(*given)
        except RuntimeError:
            kept.append(torch.ones(1 << 18))
            raise

    return wrong


def is_broken_by_what_failed(call: Call) -> Call:
    failed = []

    def wrong(*given: Tensor) -> Any:
        try:
            returned = call(*given)
        except RuntimeError:
            failed.append(1)
            raise
        return each(returned, lambda x: x + 1) if failed else returned

    return wrong


def forgets_empty_results(call: Call) -> Call:
    return lambda *given: each(call(*given), lambda x: x + 1 if not any(g.numel() for g in given) else x)


def reads_the_first_for_the_last(call: Call) -> Call:
    """As an index that does not hold the number of all elements."""

    def wrong(*given: Tensor) -> Any:
        def wrapped(x: Tensor) -> Tensor:
            if x.dim() == 2 and x.numel() > limits.EDGE:
                x = x.clone()
                over = x.numel() - limits.EDGE
                x.view(-1)[limits.EDGE :] = x.view(-1)[:over].clone()
            return x

        return each(call(*given), wrapped)

    return wrong


PLANTED: list[tuple[Callable[[Call], Call], str, set[str]]] = [
    (forgets_what_is_done_in_place, "semantics/in-place", {"value", "alias"}),
    (makes_results_contiguous, "semantics/strides", {"stride"}),
    (makes_results_contiguous, "semantics/views", {"stride"}),
    (copies_views, "semantics/views", {"alias"}),
    (copies_views, "semantics/aliases", {"alias"}),
    (writes_unseen_by_autograd, "semantics/in-place", {"version"}),
    (writes_between_elements, "semantics/in-place", {"input-modified"}),
    (returns_an_input_for_a_result, "semantics/aliases", {"value", "alias"}),
    (overwrites_earlier_results, "semantics/strides", {"value"}),
    (gives_equal_results_once, "semantics/aliases", {"alias"}),
    (forgets_gradients, "semantics/aliases", {"gradient"}),
    (forgets_gradients, "gradients/pointwise", {"gradient"}),
    (scales_results, "gradients/losses", {"value"}),
    (changed_gradients(lambda grad: grad * 1.001), "gradients/norms", {"gradient"}),
    (changed_gradients(lambda grad: grad.bfloat16().float()), "gradients/products", {"gradient"}),
    (changed_gradients(dropped_tail), "gradients/views", {"gradient"}),
    (forgets_one_input, "gradients/convolutions", {"gradient"}),
    (differentiates_the_last_call, "gradients/attention", {"gradient"}),
    (differentiates_the_last_call, "gradients/autograd", {"gradient"}),
    (second_derivatives_to_half_precision, "gradients/second", {"gradient"}),
    (answers_with_another_error, "limits/memory", {"memory"}),
    (says_nothing_of_bytes, "limits/memory", {"memory"}),
    (keeps_what_failed, "limits/memory", {"leak"}),
    (is_broken_by_what_failed, "limits/memory", {"value"}),
    (forgets_empty_results, "limits/sizes", {"value"}),
    (reads_the_first_for_the_last, "limits/large-elementwise", {"value"}),
    (reads_the_first_for_the_last, "limits/large-moved", {"value"}),
]


@pytest.mark.parametrize(("plant", "group", "kinds"), PLANTED)
def test_a_planted_bug_is_found_by_the_group_meant_for_it(
    small: None, plant: Callable[[Call], Call], group: str, kinds: set[str]
) -> None:
    class Planted(TorchSubject):
        def through_torch(self, function: Call, *, dynamic: bool | None = None) -> Call:
            return plant(super().through_torch(function, dynamic=dynamic))

    outcome = certified(Planted("eager"), group)
    assert outcome.verdict in ("fail", "error")
    assert kinds & {failure.kind for failure in outcome.failures}


def test_one_program_is_run_alone() -> None:
    outcome = certified(TorchSubject("eager"), "semantics/views", only=3)
    assert (outcome.verdict, outcome.samples) == ("pass", 1)
