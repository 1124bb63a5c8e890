"""What the SDK does where a backend says nothing: a plugin like any other, registered through the same hooks, last in line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from vendor_sdk.contract.backend import NodeContext, Supported
from vendor_sdk.contract.device import TorchDevice
from vendor_sdk.contract.hookspecs import hookimpl
from vendor_sdk.prims.opset import BY_TARGET, COMPOSITE_BY_TARGET, COMPOSITES, OPSET
from vendor_sdk.prims.reference import target_of


@hookimpl(trylast=True)
def device() -> TorchDevice:
    return TorchDevice("cpu")


@hookimpl(trylast=True)
def supports(node: NodeContext) -> Supported:
    return Supported()


@hookimpl(trylast=True)
def kernels() -> Mapping[str, Any]:
    return {}


@hookimpl(trylast=True)
def emitter() -> None:
    return None


@hookimpl(trylast=True)
def graph_compiler() -> None:
    return None


@hookimpl(trylast=True)
def decompositions() -> Mapping[str, Callable[..., Any]]:
    table = {name: row.decomposition for name, row in OPSET.items() if row.decomposition is not None}
    for composite in COMPOSITES.values():
        table.update({decomposition_key(target): decompose for target, decompose in composite.targets.items()})
    return table


@hookimpl(trylast=True)
def graph_passes(stage: str) -> Sequence[Callable[..., Any]]:
    return ()


@hookimpl(trylast=True)
def host_fallback(prim: str) -> Callable[..., Any]:
    if prim == "view":
        return torch.ops.aten.reshape.default  # operands may lie otherwise than those of the trace
    return target_of(OPSET[prim] if prim in OPSET else COMPOSITES[prim])


@hookimpl(trylast=True)
def fingerprint() -> str:
    return ""


@hookimpl(trylast=True)
def conformance() -> Mapping[str, str]:
    return {}


def decomposition_key(target: Any) -> str:
    """Key of an operator in ``LoadedBackend.decompositions``.

    The name of its prim; for the first operator of a composite the composite's name; for a composite's other operators, whose
    arguments differ, torch's spelling (``"aten.native_batch_norm.default"``).
    """
    if target in BY_TARGET:
        return BY_TARGET[target].name
    composite = COMPOSITE_BY_TARGET[target]
    return composite.name if target == next(iter(composite.targets)) else str(target)


def decomposition_keys() -> Iterator[str]:
    """Every key a ``decompositions`` table may have."""
    yield from OPSET
    yield from COMPOSITES
    yield from map(decomposition_key, COMPOSITE_BY_TARGET)
