"""Launches between guard zones: each tensor that a launch gets is a copy with bytes of one kind before and behind it.

What a kernel writes beside its operands and results is found, with the launch that did it; what it reads there is NaN (in
integers -1). What it wrote where it may goes back to where it belongs, so all that follows is as without zones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from vendor_sdk.contract.device import DeviceTensor
from vendor_sdk.contract.kernel import Computed
from vendor_sdk.contract.loader import Session
from vendor_sdk.errors import KernelError
from vendor_sdk.ir.primgraph import prim_name, tensors_of
from vendor_sdk.launches import Launch, Observe, Tensor, parts, shape_of
from vendor_sdk.run.memory import DeviceMemory
from vendor_sdk.run.zones import Breach, Region, enclosed, regions

Tell = Callable[[Breach], None]


def refuse(breach: Breach) -> None:
    """Raises ``KernelError``."""
    raise KernelError(
        str(breach),
        why="guard zones lie there, which no kernel may write to",
        fix="look at the masks of its last block, at its loops' ends, and at offsets that it adds to a tensor's address",
    )


def guarding(memory: DeviceMemory | None, tell: Tell) -> Observe:
    """What makes a launch run between zones.

    Args:
        memory: of a device that the host cannot address; None: tensors are torch's own. Buffers there begin with the tensor, as
            allocated ones do, unless it lies inside of one.
        tell: called with each breach, after the launch's results are where they belong.
    """

    def observe(session: Session, launch: Launch, function: Callable[..., Any]) -> Callable[..., Any]:
        if launch.kind == "host":
            return function

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            found = list(_tensors((args, kwargs)))
            copies: dict[int, Tensor] = {}
            there = [(region, enclosed(region, memory)) for region in regions({id(t): t for t in found}.values())]
            for region, zones in there:
                copies |= {id(tensor): zones.holds(tensor) for tensor in region.tensors}
            given, named = _with((args, kwargs), copies)
            result = function(*given, **named)
            breaches = [
                Breach(launch.name, _prims(launch), _described(launch, found, region), *breach)
                for region, zones in there
                for breach in zones.close()
            ]
            for breach in breaches:
                tell(breach)
            return result

        return run

    return observe


# Tensors among a launch's arguments


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, torch.Tensor | DeviceTensor):
        yield value
    elif isinstance(value, Computed):
        yield from value.buffers
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _with(value: Any, copies: dict[int, Tensor]) -> Any:
    if isinstance(value, torch.Tensor | DeviceTensor):
        return copies.get(id(value), value)
    if isinstance(value, Computed):
        return replace(value, buffers=_with(value.buffers, copies))
    if isinstance(value, dict):
        return {name: _with(item, copies) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_with(item, copies) for item in value)
    return value


def _prims(launch: Launch) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(prim_name, parts(launch.node))))


def _described(launch: Launch, found: Sequence[Tensor], region: Region) -> str:
    """What the last tensor of a region is to the launch: results come after the operands in whose memory they are."""
    tensor = region.tensors[-1]
    position = next(n for n, each in enumerate(found) if each is tensor)
    count = len(tensors_of(launch.node.meta["val"]))
    first = {"first": 0, "last": len(found) - count}.get(launch.fills, len(found))
    if first <= position < first + count:
        return f"result {position - first}, {shape_of(tensor)}"
    return f"operand {position - (count if launch.fills == 'first' else 0)}, {shape_of(tensor)}"
