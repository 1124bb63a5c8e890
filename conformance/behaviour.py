"""Whether programs behave under ``torch.compile`` as they do without: what they change and alias, what their gradients are, and
what quantized ones compute, and what happens at the limits of size and memory.

Each program of a group is compiled by itself and called twice, with other values. What eager does is right; for gradients, what
it does in float64 with room for its own error in float32; for quantized programs, what the operation is in float64.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import vendor_sdk
from conformance import derivatives, limits, quantized, roofline
from conformance.closeness import LIMITS, error
from conformance.derivatives import Differentiable
from conformance.draw import Draw
from conformance.guards import storage_bytes
from conformance.limits import Exhausting, Large, NoRoom, Resized
from conformance.outcome import MESSAGE_LIMIT, Failure, Misbehaved, Outcome
from conformance.placements import weakest
from conformance.quantized import Quantized, Right
from conformance.semantics import ACTS, Act
from conformance.subject import OPAQUE, Placed, Subject
from conformance.values import flat, tensors
from vendor_sdk import Effort

Tensor = torch.Tensor

GROUPS: dict[str, Sequence[Act | Differentiable | Quantized | Large | Exhausting | Resized]] = {
    **{f"semantics/{group}": acts for group, acts in ACTS.items()},
    **{f"gradients/{group}": programs for group, programs in derivatives.GROUPS.items()},
    **{f"quantized/{group}": programs for group, programs in quantized.GROUPS.items()},
    **{f"limits/{group}": programs for group, programs in limits.GROUPS.items()},
}
"""Programs by the name of their case."""
QUICK = 2
"""Programs of each group that are run with effort quick."""
TIMES_EAGER = 4.0
"""An error may be so many times that of eager float32, beside what ``closeness.LIMITS`` allows."""


def certify(
    subject: Subject,
    group: str,
    *,
    effort: Effort,
    seed: int,
    device: torch.device,
    only: int | None = None,
    apart: bool = False,
    announce: Callable[[int], None] = lambda index: None,
    memory: int | None = None,
) -> Outcome:
    """Runs the programs of a group; the arguments are those for the cases of prims, and a program takes a sample's place.

    Args:
        memory: bytes that this process may hold; None: as many as there are.
    """
    programs = list(enumerate(GROUPS[group]))[: QUICK if effort is Effort.QUICK else None]
    if only is not None:
        programs = [programs[only]]
    outcome, placed, left_out = Outcome("pass", samples=len(programs)), list[Placed](), list[str]()
    for index, program in programs:
        announce(index)
        torch.compiler.reset()
        given = [Draw(seed + turn, device) for turn in range(2)], [Draw(seed + turn, device) for turn in range(2)]
        try:
            with vendor_sdk.observe() as observed:
                if isinstance(program, Act):
                    _acts(subject, program, *given)
                elif isinstance(program, Quantized):
                    outcome.worst = max(outcome.worst, _quantized(subject, program, given[0]))
                elif isinstance(program, Large | Exhausting | Resized):
                    limits.check(subject, program, given[0][0], memory)
                else:
                    if program in derivatives.TWICE:
                        worst = _differentiated_twice(subject, program, given[0])
                    else:
                        worst = _differentiated(subject, program, *given)
                    outcome.worst = max(outcome.worst, worst)
        except NoRoom as small:
            left_out.append(f"{program.name}: {small}")
        except Misbehaved as wrong:
            outcome.failures.append(Failure(index, program.name, wrong.kind, str(wrong)[:MESSAGE_LIMIT]))
        except Exception as problem:
            traceback.print_exc()
            text = f"{type(problem).__name__}: {problem}".strip()[:MESSAGE_LIMIT]
            outcome.failures.append(Failure(index, program.name, "exception", text))
        else:
            outcome.compared += 1
            outcome.fresh += 1
        placed += [
            Placed(each.name, each.prim, str(each.placement.kind), each.placement.reason)
            for graph in observed.graphs
            for each in graph.placements
            if not each.prim.startswith(derivatives.OWN)
        ]
    outcome.placement, outcome.reason = (OPAQUE, "") if subject.opaque else weakest(placed)
    if left_out:
        outcome.reason = f"{len(left_out)} of {len(programs)} programs did not run: {'; '.join(left_out)}"[:MESSAGE_LIMIT]
    kinds = {failure.kind for failure in outcome.failures}
    shown = "pass" if outcome.compared else "no-samples"
    outcome.verdict = "error" if "exception" in kinds else "fail" if kinds else shown
    return outcome


# What programs change and alias


@dataclass(frozen=True)
class _Seen:
    """What a user can see after a call: results and inputs, with what was so before it."""

    results: list[Any]
    inputs: Sequence[Tensor]
    versions: Sequence[int]
    before: Sequence[Tensor]


def _seen(call: Callable[..., Any], inputs: Sequence[Tensor]) -> _Seen:
    versions, before = [tensor._version for tensor in inputs], [storage_bytes(tensor).clone() for tensor in inputs]
    returned = call(*inputs)
    return _Seen([returned] if isinstance(returned, Tensor) else list(returned or ()), inputs, versions, before)


def _acts(subject: Subject, act: Act, mine: Sequence[Draw], eager: Sequence[Draw]) -> None:
    compiled = subject.through_torch(act.function)
    earlier: list[tuple[_Seen, _Seen]] = []
    for turn, (one, other) in enumerate(zip(mine, eager, strict=True)):
        pair = _seen(compiled, act.inputs(one)), _seen(act.function, act.inputs(other))
        earlier.append(pair)
        subject.synchronize()
        for call, (found, wanted) in enumerate(earlier):
            when = "second call" if turn else "first call"
            _compare(found, wanted, when if call == turn else "results of the first call, after the second")


def _compare(found: _Seen, wanted: _Seen, when: str) -> None:
    if len(found.results) != len(wanted.results):
        raise Misbehaved("count", f"{when}: {len(found.results)} results, eager gives {len(wanted.results)}")
    for index, (one, other) in enumerate(zip(found.results, wanted.results, strict=True)):
        what = f"{when}: result {index}"
        if type(one) is not type(other):
            raise Misbehaved("class", f"{what} is a {type(one).__name__}, eager gives a {type(other).__name__}")
        _same_values(one, other, what)
        if _strides(one) != _strides(other):
            raise Misbehaved(
                "stride", f"{what} of shape {list(one.shape)} has strides {one.stride()}, in eager {other.stride()}"
            )
        if one.requires_grad != other.requires_grad:
            raise Misbehaved("gradient", f"{what}: requires_grad is {one.requires_grad}, in eager {other.requires_grad}")
    for index, (one, other) in enumerate(zip(found.inputs, wanted.inputs, strict=True)):
        what = f"{when}: input {index}"
        _same_values(one, other, f"{what}, afterwards,")
        beside = storage_bytes(other).clone()  # with the same elements, which may differ by a rounding
        if 0 not in _strides(other):
            beside.view(one.dtype).as_strided(other.shape, other.stride(), other.storage_offset()).copy_(one.detach())
        if not torch.equal(storage_bytes(one), beside):
            raise Misbehaved("input-modified", f"{what}: memory between its elements is not as eager leaves it")
        moved, moves = one._version != found.versions[index], other._version != wanted.versions[index]
        # Eager writes running statistics without a word.
        if moved != moves and (moves or torch.equal(storage_bytes(one), found.before[index])):
            said = "was written" if moves else "was not written"
            raise Misbehaved("version", f"{what} {said}, and its version counter says otherwise: autograd would be misled")
    mine, theirs = _sharing(found), _sharing(wanted)
    for index, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        if one != other:
            text = f"{when}: result {index} {_said(one)}; in eager it {_said(other)}"
            raise Misbehaved("alias", text)


def _same_values(one: Tensor, other: Tensor, what: str) -> None:
    for name in ("dtype", "shape"):
        if getattr(one, name) != getattr(other, name):
            raise Misbehaved(name, f"{what} has {name} {getattr(one, name)}, in eager {getattr(other, name)}")
    if not torch.allclose(one.detach().double(), other.detach().double(), rtol=1e-5, atol=1e-5):
        raise Misbehaved("value", f"{what} is {one.flatten()[:8].tolist()}..., in eager {other.flatten()[:8].tolist()}...")


def _strides(tensor: Tensor) -> list[int]:
    """Of dimensions along which there is a step."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return [stride for size, stride in sizes if size > 1] if tensor.numel() else []


def _sharing(seen: _Seen) -> list[tuple[str, frozenset[str]]]:
    """Of each result, which input or earlier result it is, if one, and with which of these it shares memory, and where."""
    known = [(f"input {i}", tensor) for i, tensor in enumerate(seen.inputs)]
    found = []
    for index, result in enumerate(seen.results):
        same = next((name for name, tensor in known if tensor is result), "")
        shared = frozenset(
            f"{name} at {(result.data_ptr() - tensor.data_ptr()) // result.dtype.itemsize}"
            for name, tensor in known
            if result.numel() and tensor.numel() and _address(tensor) == _address(result)
        )
        found.append((same, shared))
        known.append((f"result {index}", result))
    return found


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _said(sharing: tuple[str, frozenset[str]]) -> str:
    same, shared = sharing
    return f"is {same}" if same else f"shares memory with {', '.join(sorted(shared))}" if shared else "has memory of its own"


# Gradients


Values = Sequence[Tensor | None]


@dataclass(frozen=True)
class _Right:
    """What eager gives, in float32 and in float64: results that have gradients, and the gradients of the inputs for these
    cotangents."""

    cotangents: Sequence[Tensor]
    results: tuple[Values, Values]
    gradients: tuple[Values, Values]


def _differentiated(subject: Subject, program: Differentiable, mine: Sequence[Draw], eager: Sequence[Draw]) -> float:
    """Two calls, then the two backward passes, the first call's first; then the same leaves with new values, whose gradients
    add up. The largest error, in units of what is allowed."""
    compiled = subject.through_torch(program.function)
    both = [_leaves(program.inputs(draw)) for draw in mine]
    outputs = [_floating(compiled(*leaves)) for leaves in both]
    rights = [_right(program, draw) for draw in eager]
    worst = 0.0
    for leaves, found, right in zip(both, outputs, rights, strict=True):
        if len(found) != len(right.cotangents):
            raise Misbehaved("gradient", f"{len(found)} results have a gradient, in eager {len(right.cotangents)}")
        worst = max(worst, _close("value", "result", [each.detach() for each in found], right.results))
        torch.autograd.backward(found, right.cotangents)
        subject.synchronize()
        worst = max(worst, _close("gradient", "the gradient by input", _slopes(leaves), right.gradients))
    # As after a step of an optimizer.
    with torch.no_grad():
        for one, other in zip(*both, strict=True):
            one.copy_(other)
    torch.autograd.backward(_floating(compiled(*both[0])), rights[1].cotangents)
    added = [
        [a + b if a is not None and b is not None else None for a, b in zip(*both_calls, strict=True)]
        for both_calls in zip(*(right.gradients for right in rights), strict=True)
    ]
    what = "the gradient of two calls, added up, by input"
    return max(worst, _close("gradient", what, _slopes(both[0]), (added[0], added[1])))


def _differentiated_twice(subject: Subject, program: Differentiable, mine: Sequence[Draw]) -> float:
    """The second derivative by the first input times a vector, of a sum of the results with weights."""

    def loss(x: Tensor, *rest: Tensor) -> Tensor:
        result: Tensor = program.function(x, *rest)
        return (result * torch.linspace(0.5, 1.5, result.numel(), dtype=x.dtype, device=x.device).view(result.shape)).sum()

    def product(vector: Tensor, *inputs: Tensor) -> Tensor:
        def along(x: Tensor) -> Tensor:
            slope: Tensor = torch.func.grad(loss)(x, *inputs[1:])
            return (slope * vector).sum()

        found: Tensor = torch.func.grad(along)(inputs[0])
        return found

    compiled = subject.through_torch(product)
    worst = 0.0
    for draw in mine:
        inputs = program.inputs(draw)
        vector = draw.normal(*inputs[0].shape)
        right = [product(vector, *inputs)], [product(*(_wide(each) for each in (vector, *inputs)))]
        worst = max(worst, _close("gradient", "the second derivative by input", [compiled(vector, *inputs)], right))
    return worst


def _leaves(inputs: Sequence[Tensor]) -> list[Tensor]:
    return [each.requires_grad_() if each.is_floating_point() else each for each in inputs]


def _floating(returned: Any) -> list[Tensor]:
    return [each for each in tensors(returned) if each.requires_grad]


def _slopes(leaves: Sequence[Tensor]) -> Values:
    return [each.grad for each in _floating(leaves)]


def _right(program: Differentiable, draw: Draw) -> _Right:
    inputs = program.inputs(draw)
    cotangents: list[Tensor] = []
    results: list[Values] = []
    gradients: list[Values] = []
    for leaves in (_leaves(inputs), _leaves([_wide(each.detach()) for each in inputs])):
        found = _floating(program.function(*leaves))
        cotangents = cotangents or [draw.normal(*each.shape) for each in found]
        given = [one.to(each.dtype) for one, each in zip(cotangents, found, strict=True)]
        gradients.append(torch.autograd.grad(found, _floating(leaves), given, allow_unused=True))
        results.append([each.detach() for each in found])
    return _Right(cotangents, (results[0], results[1]), (gradients[0], gradients[1]))


def _wide(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _close(kind: str, what: str, found: Values, right: tuple[Values, Values]) -> float:
    """The largest error, in units of what is allowed; ``right`` are eager's values in float32 and in float64."""
    worst = 0.0
    for index, (one, near, exact) in enumerate(zip(found, *right, strict=True)):
        if (one is None) != (exact is None):
            said = "there is none, and eager has one" if one is None else "there is one, and eager has none"
            raise Misbehaved(kind, f"{what} {index}: {said}")
        if one is None or near is None or exact is None:
            continue
        if one.shape != near.shape or one.dtype != near.dtype:
            raise Misbehaved(kind, f"{what} {index} is {_told(one)}, expected {_told(near)}")
        limit = LIMITS[near.dtype] + TIMES_EAGER * error(near, exact, near.dtype)[0]
        off, where = error(one, exact, near.dtype)
        worst = max(worst, off / limit)
        if not off <= limit:
            raise Misbehaved(kind, f"{what} {index} is off by {off:.3g} units at {where}, allowed are {limit:.3g}")
    return worst


# Quantized programs


def _quantized(subject: Subject, program: Quantized, mine: Sequence[Draw]) -> float:
    """Two calls; their results and inputs are looked at after both. The largest error, in units of what is allowed."""
    compiled = subject.through_torch(program.function)
    calls = []
    for draw in mine:
        inputs = program.inputs(draw)
        before = [storage_bytes(each).clone() for each in inputs]
        calls.append((inputs, before, flat(compiled(*inputs))))
        subject.synchronize()
    worst = 0.0
    for given, before, returned in calls:
        for index, (tensor, then) in enumerate(zip(given, before, strict=True)):
            if not torch.equal(storage_bytes(tensor), then):
                raise Misbehaved("input-modified", f"input {index} was changed")
        # In host memory: not every device has all these operators.
        inputs, found = [each.cpu() for each in given], [each.cpu() for each in returned]
        rights = program.right(*inputs)
        if len(found) != len(rights):
            raise Misbehaved("count", f"{len(found)} results, expected {len(rights)}")
        # What eager gives, as far as it does not compute: torch's own operators lack some of these scales on the host.
        near = flat(program.function(*(each.to("meta") for each in inputs)))
        for index, (one, right, like) in enumerate(zip(found, rights, near, strict=True)):
            worst = max(worst, _as_quantized(one, right, like, f"result {index}"))
    return worst


def _as_quantized(found: Tensor, right: Right, like: Tensor, what: str) -> float:
    """The error in units of what is allowed; ``like`` has the dtype and the shape that eager gives."""
    if found.dtype != like.dtype or found.shape != like.shape:
        raise Misbehaved("dtype" if found.dtype != like.dtype else "shape", f"{what} is {_told(found)}, in eager {_told(like)}")
    value, exact = found.double(), right.value.double()
    alike = (value == exact) | (value.isnan() & exact.isnan())
    if right.magnitude is None:
        off = torch.where(alike, 0.0, math.inf)
    else:
        off = torch.where(alike, 0.0, ((value - exact).abs() / right.allowance(found.dtype)).nan_to_num(nan=math.inf))
    worst = float(off.max()) if off.numel() else 0.0
    if worst > 1:
        at = [int(each) for each in torch.unravel_index(off.argmax(), off.shape)]
        got, wanted = float(value[tuple(at)]), float(exact[tuple(at)])
        size = f"{worst:.3g} times what is allowed" if math.isfinite(worst) else "no error is allowed"
        wrong = int((off > 1).sum())
        raise Misbehaved(
            "value", f"{what} is {got!r} at {at}, expected {wanted!r} ({size}); {wrong} of {off.numel()} are wrong"
        )
    return worst


def _told(tensor: Tensor) -> str:
    return f"{roofline.name(tensor.dtype)}{list(tensor.shape)}"
