"""What other kernels compute again rather than read: a result that is stored for them alone, and follows from no more bytes.

A sum over all rows and what is done with it are two kernels, and both want what is summed (``where`` and ``sub`` of a
normalization's gradient). The second kernel reads what the first one read, and nothing is stored between them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import fx

from vendor_sdk.contract.emitter import Limits
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.index import Int
from vendor_sdk.lower.summary import Summary
from vendor_sdk.schedule.group import Group, count, results

DEAREST = 32
"""Cost up to which an element is computed again: processors add as many numbers while memory moves one to them and back."""
SMALL = 16
"""Operands by so many times smaller than the result, a number a row or a column, are not counted."""


@dataclass
class Again:
    """What is computed again.

    Attributes:
        by: members of others that a group computes for itself.
        unread: members that nobody reads from memory any more.
        operands: values that groups read for it.
    """

    by: dict[Group, set[fx.Node]] = field(default_factory=dict)
    unread: set[fx.Node] = field(default_factory=set)
    operands: dict[fx.Node, set[Group]] = field(default_factory=dict)


@dataclass
class _Computed:
    """A member with what it follows from.

    Attributes:
        members: of its group, itself among them, that are computed with it.
        operands: values that are read.
        statements: of the members.
    """

    members: set[fx.Node] = field(default_factory=set)
    operands: set[fx.Node] = field(default_factory=set)
    statements: int = 0


def compute_again(
    groups: Collection[Group],
    owner: Mapping[fx.Node, Group],
    summaries: Mapping[fx.Node, Summary],
    readers: Callable[[fx.Node], Collection[fx.Node]],
    limits: Limits,
    fuel: int | None,
) -> Again:
    """What groups should compute for themselves.

    Args:
        owner: the group of each member.
        summaries: of all members, with what is inlined read through.
        readers: who reads a member outside its group, below views and what is inlined; the graph's output too.
        fuel: at most so many members.
    """
    again = Again()
    before = -1
    while before < len(again.unread):  # one that is computed again may bring another's operands
        before = len(again.unread)
        for group in groups:
            for node in [node for node in group.members if node not in again.unread]:
                others = {owner.get(user) for user in readers(node)} | again.operands.get(node, set())
                takers = [other for other in others if other is not None]
                if len(takers) < max(len(others), 1):
                    continue
                for computed in _ways(node, group, summaries) if fuel is None or fuel > len(again.unread) else ():
                    if computed.operands & again.unread:
                        continue
                    if all(_takes(taker, node, computed, limits) for taker in takers):
                        again.unread.add(node)
                        for taker in takers:
                            _take(again, taker, node, computed)
                        break
    return again


def _take(again: Again, taker: Group, node: fx.Node, computed: _Computed) -> None:
    again.by.setdefault(taker, set()).update(computed.members)
    taker.statements += computed.statements
    taker.inputs.pop(node, None)
    for operand in computed.operands - taker.members.keys():
        taker.inputs.setdefault(operand, ())
        again.operands.setdefault(operand, set()).add(taker)


def _ways(node: fx.Node, group: Group, summaries: Mapping[fx.Node, Summary]) -> Iterator[_Computed]:
    """What a member follows from: what its group reads, or a member of fewer bytes that is stored in its place. Nothing where
    it is a reduction, random, dear, or somewhere that data decides."""
    price = group.prices[node]
    if price is None or price > DEAREST or not isinstance(node.meta["val"], torch.Tensor):
        return
    whole = _computed(node, None, group, summaries)
    if whole is None:
        return
    yield whole
    for member in reversed([member for member in group.members if member in whole.members]):
        if ix.nonnegative(_bytes(node) - 2 * _bytes(member)):
            part = _computed(node, member, group, summaries)
            if part is not None and member in part.operands:
                yield part


def _computed(node: fx.Node, stored: fx.Node | None, group: Group, summaries: Mapping[fx.Node, Summary]) -> _Computed | None:
    """What ``node`` follows from, where ``stored`` is read rather than computed."""
    computed = _Computed()
    waiting = [node]
    while waiting:
        member = waiting.pop()
        if member in computed.members:
            continue
        summary = summaries[member]
        if summary.random or any(summary.depends_on_data(read) for read in summary.reads):
            return None
        computed.members.add(member)
        computed.statements += summary.statements
        for read in summary.reads:
            if read.node is not stored and group.prices.get(read.node) is not None:
                waiting.append(read.node)
            else:
                computed.operands.add(read.node)
    return computed


def _takes(group: Group, node: fx.Node, computed: _Computed, limits: Limits) -> bool:
    """Whether a group may as well read what ``node`` follows from: no more bytes, no more often."""
    if group.shape == "contraction" or group.statements + computed.statements > limits.statements:
        return False
    more = computed.operands - group.inputs.keys() - group.members.keys()
    if len(group.inputs) + len(more) + results(group) > limits.buffers:
        return False
    own = _bytes(node)
    large = [nbytes for nbytes in map(_bytes, more) if not ix.nonnegative(own - nbytes * SMALL)]
    often = count(group.rows) * count(group.columns) - ix.product([ix.from_size(n) for n in node.meta["val"].shape])
    return ix.nonnegative(own - sum(large, ix.ZERO)) and ix.nonnegative(-often)


def _bytes(node: fx.Node) -> Int:
    value: torch.Tensor = node.meta["val"]
    return ix.product([ix.from_size(n) for n in value.shape]) * value.dtype.itemsize
