"""Fused groups: several prims that run as one kernel, as one node of the graph.

The node's target is a ``Fused``: the subgraph it stands for, and the loops its members share. Called, it interprets the
subgraph with torch operators, so a scheduled graph still runs as it stands.

Members agree on an *iteration space*: ``rows`` times ``columns``. A member that reduces over the columns has one value a row;
one that reduces over the rows has one value a column, complete when the last row is done. ``Place.index`` says where, in
the member's own shape, an iteration's element lies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import fx

from vendor_sdk.ir.index import Int
from vendor_sdk.ir.loop import Range
from vendor_sdk.ir.primgraph import PrimGraph

Where = Literal["row", "element", "column"]


@dataclass(frozen=True)
class Place:
    """Where one member's element lies in an iteration.

    Attributes:
        where: "element": one an iteration of rows and columns; "row": one a row; "column": one a column, after all rows.
        index: index in the member's shape, in variables of the rows and columns it varies with.
    """

    where: Where
    index: tuple[Int, ...]


@dataclass(frozen=True)
class Total:
    """A member that reduces over the rows.

    Attributes:
        name: of its node in the subgraph.
        step: "element" where what it combines varies with the columns, "row" where it is one value a row.
        index: of its result, in column variables.
        reduced: index along each reduced dimension, in row variables.
    """

    name: str
    step: Where
    index: tuple[Int, ...]
    reduced: tuple[Int, ...]


@dataclass(frozen=True)
class Loops:
    """The iteration space of a group and what it leaves behind.

    Attributes:
        rows: outer loops.
        columns: inner loops; empty where no member reduces.
        results: output of the subgraph to its place; the outputs of other loops of the kernel are not in it.
        totals: members that reduce over the rows.
    """

    rows: tuple[Range, ...]
    columns: tuple[Range, ...]
    results: tuple[tuple[int, Place], ...]
    totals: tuple[Total, ...] = ()


class Fused:
    """A fused group, callable as a node's target: its operands in order, its result or a tuple of results out.

    Attributes:
        graph: placeholders are the operands, outputs the results that somebody outside reads.
        loops: one entry a set of members that share an iteration space; several where independent loops share a launch. None
            for a prim that has loops of its own, and stores its results in the order of the copies that are made of them.
    """

    def __init__(self, name: str, graph: PrimGraph, loops: tuple[Loops, ...]) -> None:
        self.__name__ = name
        self.__module__ = "vendor_sdk.schedule"
        self.graph = graph
        self.loops = loops

    def __str__(self) -> str:
        return self.__name__

    def __call__(self, *operands: Any) -> Any:
        results = self.graph.interpret(*operands)
        return results[0] if len(results) == 1 else tuple(results)


class Computing(Fused):
    """A prim on the kernel route whose kernel computes some operands itself, as a group: these, and the prim.

    Attributes:
        call: the prim's node in the graph.
        computed: names of those operands. Each follows in the graph, element by element, from placeholders.
        lowered: their loops, once they are known, with the positions of what these read among the node's arguments; not stored.
    """

    def __init__(self, name: str, graph: PrimGraph, call: fx.Node, computed: tuple[str, ...]) -> None:
        super().__init__(name, graph, ())
        self.call, self.computed = call, computed
        self.lowered: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "lowered": {}}


def members(node: fx.Node) -> list[fx.Node]:
    """The prims that a call node runs: those of a fused group, or itself."""
    return list(node.target.graph.calls()) if isinstance(node.target, Fused) else [node]
