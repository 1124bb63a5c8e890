"""Rules of the control prims: branches and loops as ONNX's If and Loop, whose graphs read the values around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from reference_backends.onnxruntime.builder import Builder, Operand, Rule, Subgraph, Untranslatable, Value

BOOL = torch.bool
Step = Callable[[Builder, list[Value]], tuple[Value, list[Value]]]
"""From a builder and the state to whether to go on and the new state."""


def loop(b: Builder, condition: Value, state: Sequence[Value], step: Step) -> tuple[Value, ...]:
    """ONNX's Loop: as long as the condition holds, ``step``; returns the last state."""
    body = b.child()
    body.operand(torch.int64, ())  # which iteration it is
    body.operand(BOOL, ())
    again, after = step(body, [body.open_operand(value.dtype) for value in state])
    graph = b.inner(body, "step", [again, *after])
    return b.ops("Loop", None, condition, *state, dtypes=[value.dtype for value in state], body=graph)


def _flag(b: Builder, value: Any) -> Value:
    """A condition as ONNX wants it: 0-d."""
    return b.reshape(b.tensor(value, BOOL), [])


def _cond(b: Builder, out: Any, pred: Any, yes: Subgraph, no: Subgraph, operands: Sequence[Any] = ()) -> tuple[Value, ...]:
    _only_tensors(operands)
    branches = b.child(), b.child()
    results = [branch(child, operands) for branch, child in zip((yes, no), branches, strict=True)]
    graphs = [b.inner(child, "branch", values) for child, values in zip(branches, results, strict=True)]
    dtypes = [value.dtype for value in results[0]]
    return b.ops("If", _flag(b, pred), dtypes=dtypes, then_branch=graphs[0], else_branch=graphs[1])


def _while_loop(
    b: Builder, out: Any, going: Subgraph, body: Subgraph, carried: Sequence[Any], additional: Sequence[Any] = ()
) -> tuple[Value, ...]:
    _only_tensors([*carried, *additional])

    def shaped(values: Sequence[Value]) -> list[Value]:
        return [Operand(value.name, value.dtype, like.shape) for value, like in zip(values, carried, strict=True)]

    def step(inner: Builder, state: list[Value]) -> tuple[Value, list[Value]]:
        after: list[Value] = list(body(inner, [*shaped(state), *additional]))
        return _flag(inner, going(inner, [*shaped(after), *additional])[0]), after

    return loop(b, _flag(b, going(b, [*carried, *additional])[0]), carried, step)


def _only_tensors(operands: Sequence[Any]) -> None:
    if not all(isinstance(each, Operand) for each in operands):
        raise Untranslatable("a number passed into a branch or loop has no translation")


def _invoke(b: Builder, out: Any, subgraph: Subgraph, identifier: str, *operands: Any) -> tuple[Value, ...]:
    _only_tensors(operands)
    return tuple(subgraph(b, operands))


RULES: Mapping[str, Rule] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "invoke_subgraph": _invoke,
}
