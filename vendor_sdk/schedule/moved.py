"""Images that are copied into another order, stored so by the kernel that computes them.

Templates finish results a tile at a time, and in any order. A convolution with groups, or gradients with respect to several
operands, start no group that a copy could join: such a prim and the copy become a group that has the prim's loops.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from torch import fx

from vendor_sdk.ir.primgraph import PrimGraph, prim_name, tensors_of
from vendor_sdk.schedule.fuse import Schedule
from vendor_sdk.schedule.group import Group

IMAGES: Mapping[str, int] = {"convolution": 0, "convolution_backward": 0}
"""Contractions, and which of their results is an image. Weights are finished along windows, which are short."""


def store_moved(
    graph: PrimGraph, schedule: Schedule, contractions: Collection[fx.Node], folds: Callable[[fx.Node], bool], fuel: int | None
) -> None:
    """Adds such groups to a schedule, each in place of the copy's own.

    Args:
        contractions: on the emitter route.
        fuel: at most so many.
    """
    grouped = {node for groups in schedule.kernels for group in groups for node in group.members}
    alone = {next(iter(groups[0].members)): groups for groups in schedule.kernels if len(groups) == 1 == len(groups[0].members)}
    for node in graph.calls():
        if fuel is not None and schedule.fused >= fuel:
            return
        if node not in contractions or node in grouped:
            continue
        copy = _copy(node, folds)
        if copy not in alone or copy in schedule.again.operands or copy in schedule.again.unread:
            continue
        schedule.kernels[schedule.kernels.index(alone[copy])] = [Group(-1, "moved", {}, {}, {node: (), copy: ()})]
        schedule.fused += 1


def _copy(node: fx.Node, folds: Callable[[fx.Node], bool]) -> fx.Node | None:
    """The copy of an image in another order, where nobody else reads the image."""
    wanted = IMAGES.get(prim_name(node))
    results = tensors_of(node.meta["val"])
    if isinstance(node.meta["val"], tuple | list):
        read = {user for user in node.users if user.users}
        image = next((user for user in read if user.args[1] == wanted), None)
        if len(read) < len(results):
            return None
    else:
        image = node
    moved = _only_user(image)
    if moved is None or prim_name(moved) != "permute" or not folds(moved):
        return None
    copy = _only_user(moved)
    return copy if copy is not None and prim_name(copy) == "clone" else None


def _only_user(node: fx.Node | None) -> fx.Node | None:
    return next(iter(node.users)) if node is not None and len(node.users) == 1 else None
