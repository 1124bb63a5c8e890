"""Calls put into a graph of operators, each with the value that it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx


def call_before(place: fx.Node, target: Callable[..., Any], *args: Any, like: fx.Node | None = None, **kwargs: Any) -> fx.Node:
    """A new call before ``place``. What is known besides its value, such as its user's line, is known of ``like``, or of
    ``place``."""
    with place.graph.inserting_before(place):
        node = place.graph.call_function(target, args, kwargs)
    node.meta = {**(like or place).meta, "val": computed(node)}
    return node


def computed(node: fx.Node) -> Any:
    """What a call makes of the values of its arguments."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
    return node.target(*args, **kwargs)  # type: ignore[operator]
