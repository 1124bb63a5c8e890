"""Nodes of Dynamo's graphs: what they stand for, and how to put others in their place."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

_WRITES = frozenset(
    getattr(operator, name)
    for name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior", "ixor", "setitem")
)
_WRITING_METHODS = frozenset(f"__{each.__name__}__" for each in _WRITES)


def word_of(node: fx.Node) -> str:
    """The name of the function or method that a node calls, whether it writes or not: ``add`` of ``torch.add``, ``x + y``,
    ``x.add(y)`` and ``x.add_(y)``. Empty for other nodes."""
    if node.op not in ("call_function", "call_method"):
        return ""
    target = node.target
    name: str = target if isinstance(target, str) else getattr(target, "__name__", "")
    if target in _WRITES:
        name = name[1:]
    return name.partition(".")[0].strip("_")


def writes(node: fx.Node) -> bool:
    """Whether a node may change one of its operands."""
    if node.op == "call_method":
        name = str(node.target)
        return name in _WRITING_METHODS or (name.endswith("_") and not name.endswith("__"))
    if node.op != "call_function":
        return node.op == "call_module"
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.is_mutable
    name = getattr(target, "__name__", "")
    place = _place_of_inplace(target)
    told = node.kwargs.get("inplace") or node.kwargs.get("out") is not None or any(each is True for each in node.args[3:])
    told = told or (place is not None and place < len(node.args) and bool(node.args[place]))
    return not is_torchs(node) or target in _WRITES or bool(told) or (name.endswith("_") and not name.endswith("__"))


def is_torchs(node: fx.Node) -> bool:
    """Whether a node calls a function or method of torch's, or an operator of Python's: nobody knows what others do."""
    if node.op != "call_function":
        return node.op == "call_method"
    module = getattr(node.target, "__module__", None) or "torch"
    place, _, space = module.partition("._ops")
    return module in ("_operator", "builtins", "math") or (place.partition(".")[0] == "torch" and space in ("", ".aten"))


@functools.lru_cache(1024)
def _place_of_inplace(function: Any) -> int | None:
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # written in C
        return None
    return names.index("inplace") if "inplace" in names else None


def value_of(given: Any) -> Any:
    """The fake value of a node; None of what is none, or has none."""
    return given.meta.get("example_value") if isinstance(given, fx.Node) else None


def origin_of(node: fx.Node) -> dict[str, Any]:
    """What a node's meta says of where in the user's program it stands: for those that come in its place."""
    return {key: said for key, said in node.meta.items() if key in ("stack_trace", "nn_module_stack", "source_fn_stack")}


class Maker:
    """Makes nodes in place of one, with the values that they have while Dynamo traces, whose fake mode must be entered."""

    def __init__(self, instead: fx.Node) -> None:
        self.graph = instead.graph
        self.meta = origin_of(instead)

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        return self._valued(self.graph.call_function(function, args, kwargs), function)

    def method(self, name: str, *args: Any) -> fx.Node:
        """A call of a method of the first argument."""
        return self._valued(self.graph.call_method(name, args), getattr(torch.Tensor, name))

    def _valued(self, node: fx.Node, function: Callable[..., Any]) -> fx.Node:
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda each: each.meta.get("example_value"))
        node.meta.update(self.meta, example_value=function(*args, **kwargs))
        return node
