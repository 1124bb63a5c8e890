"""The hooks: everything a vendor can tell the SDK, on one page.

Each hook answers once, when the backend is loaded or a graph is compiled; nothing here runs per call of a compiled model.
A plugin is any object (usually a module) with functions of these names marked ``@vendor_sdk.hookimpl``. A function may take
any subset of the documented arguments. Only ``backend`` must be implemented; every other hook has a default, which the SDK
registers as a plugin of its own through the same hooks (``vendor_sdk/contract/defaults.py``), last in line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

from vendor_sdk.contract.backend import Backend, KnownFailure, NodeContext, Support

if TYPE_CHECKING:
    from vendor_sdk.contract.device import Device, TorchDevice
    from vendor_sdk.contract.emitter import Emitter
    from vendor_sdk.contract.graph import GraphCompiler
    from vendor_sdk.contract.kernel import Kernel
    from vendor_sdk.ir.primgraph import PrimGraph

PROJECT = "vendor_sdk"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function of a plugin as its implementation of the hook of that name."""


@hookspec(firstresult=True)
def backend() -> Backend:
    """Identity and limits. Required. Asked once, at load."""


@hookspec(firstresult=True)
def device(options: Mapping[str, Any]) -> Device | TorchDevice:
    """Where tensors live: an instance of ``Device`` for a chip with its own memory, ``TorchDevice("cpu")`` (the default) or
    ``TorchDevice("cuda")`` for memory that torch owns. Asked once for each distinct set of compile ``options``."""


@hookspec(firstresult=True)
def supports(node: NodeContext, options: Mapping[str, Any]) -> Support | None:
    """Whether the backend takes this prim in this context: ``Supported()`` or ``Decline("reason")``; ``None`` passes the
    question on. Asked once per node while a graph is compiled under ``options``, and only for prims that a route below offers.
    Default: ``Supported()``."""


@hookspec
def kernels() -> Mapping[str, Kernel | Callable[..., Any]]:
    """Route 1: prim name to kernel. The presence of a key is the capability. Tables of several plugins are merged; where two
    have one key, the plugin registered last wins. Asked once, at load."""


@hookspec(firstresult=True)
def emitter(options: Mapping[str, Any]) -> Emitter | None:
    """Route 2: turns loop kernels into target code. Asked once for each distinct set of compile ``options``. Default: None."""


@hookspec(firstresult=True)
def graph_compiler(options: Mapping[str, Any]) -> GraphCompiler | None:
    """Route 3: compiles partitions as a whole. Asked once for each distinct set of compile ``options``. Default: None."""


@hookspec
def decompositions() -> Mapping[str, Callable[..., Any]]:
    """Prim or composite name to a function in other prims, used where no route takes the node. Merged like ``kernels``.
    Default: the decompositions of the prim and composite rows. Asked once, at load."""


@hookspec
def graph_passes(stage: str) -> Sequence[Callable[[PrimGraph], PrimGraph]]:
    """Passes to run on the prim graph after ``stage`` (``"normalize"``, ``"legalize"``, ``"place"``), each a pure function,
    verified afterwards. Asked once per stage, at load. Default: none."""


@hookspec(firstresult=True)
def host_fallback(prim: str) -> Callable[..., Any] | None:
    """What runs a prim that no route takes, on torch tensors in host memory (on torch's own device for ``TorchDevice``), in
    the prim's argument order. Default: the torch operator itself; for branches and loops on torch's devices, their graphs,
    compiled."""


@hookspec(firstresult=True)
def fingerprint() -> str:
    """Everything beside name and version that changes compiled artefacts (compiler version, instruction set, driver). Part of
    every cache key. Asked once, at load. Default: ``""``."""


@hookspec
def conformance() -> Mapping[str, KnownFailure | str]:
    """Expected failures of the conformance suite: case id or glob (``"erfinv[float16]"``) to the reason, or to a
    ``KnownFailure`` where it is not a wrong result. An expected failure that passes, or fails in another way, fails the run.
    Merged like ``kernels``. Default: none."""


HOOKS: Sequence[str] = (
    "backend",
    "device",
    "supports",
    "kernels",
    "emitter",
    "graph_compiler",
    "decompositions",
    "graph_passes",
    "host_fallback",
    "fingerprint",
    "conformance",
)
"""Every hook of this contract version, in the order of the documentation."""
