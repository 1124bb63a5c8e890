"""A compiled graph: the wrapper with what is known about it, and errors that name the prim they come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

from torch import fx

from vendor_sdk.contract.placement import Kind, NodePlacement
from vendor_sdk.errors import KernelError, VendorSDKError
from vendor_sdk.ir.primgraph import PrimGraph, describe, prim_name, user_line
from vendor_sdk.ir.transfer import TRANSFERS
from vendor_sdk.run.memory import DeviceMemory


class WrapperCode(Protocol):
    """What ``CompiledGraph`` needs of the generated wrapper."""

    source: str
    filename: str
    nodes: Any

    def compile(self) -> Callable[[list[Any]], list[Any]]: ...


@dataclass
class CompiledGraph:
    """An executable graph.

    Attributes:
        graph: the placed graph it was compiled from.
        placements: one entry per node of the graph as captured, in order.
        wrapper: generated code.
        backend: name.
        memory: device memory, ``None`` on torch's own devices.
    """

    graph: PrimGraph
    placements: tuple[NodePlacement, ...]
    wrapper: WrapperCode
    backend: str
    memory: DeviceMemory | None = None
    _run: Callable[[list[Any]], list[Any]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._run = self.wrapper.compile()

    @property
    def source(self) -> str:
        """The generated wrapper."""
        return self.wrapper.source

    def __call__(self, *inputs: Any) -> list[Any]:
        """Runs the graph; inputs are left as they were.

        Raises:
            KernelError: a vendor kernel raised, or returned something else than the prim's rule says.
        """
        return self._guarded(list(inputs))

    def boxed(self) -> Callable[[list[Any]], list[Any]]:
        """The form AOTAutograd wants: takes one list, which it empties."""
        guarded = self._guarded

        def call(args: list[Any]) -> list[Any]:
            return guarded(args)

        call._boxed_call = True  # type: ignore[attr-defined]
        call.compiled_graph = self  # type: ignore[attr-defined]
        return call

    def _guarded(self, args: list[Any]) -> list[Any]:
        try:
            return self._run(args)
        except Exception as error:
            node = self._node_at(error.__traceback__)
            if node is None:
                raise
            self._explain(error, node)
            raise

    def _node_at(self, trace: TracebackType | None) -> fx.Node | None:
        node = None
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self.wrapper.filename:
                node = self.wrapper.nodes.get(trace.tb_lineno, node)
            trace = trace.tb_next
        return node

    def _explain(self, error: Exception, node: fx.Node) -> None:
        """Raises ``KernelError`` for a native node; adds a note to what the host or a transfer raised."""
        if node.op != "call_function" or node.target in TRANSFERS or "placement" not in node.meta:
            return
        name = prim_name(node)
        operands = ", ".join(describe(n.meta.get("val")) for n in node.all_input_nodes)
        call = f"prim {name!r} on ({operands}) -> {describe(node.meta['val'])}"
        if node.meta["placement"].kind is not Kind.NATIVE:
            error.add_note(f"raised on the host by {call}{_at(node)} (backend {self.backend})")
            return
        if isinstance(error, VendorSDKError) and not isinstance(error, KernelError):
            error.add_note(f"raised by {call}{_at(node)} (backend {self.backend})")
            return
        if isinstance(error, KernelError):
            raise KernelError(
                f"{self.backend}: the kernel of {call} {error.what}", where=user_line(node), why=error.why, fix=error.fix
            ) from None
        raise KernelError(
            f"{self.backend}: the kernel of {call} raised {type(error).__name__}: {error}",
            where=user_line(node),
            why="the exception above came out of the vendor's code",
            fix="run that prim alone with `vendor-sdk conformance --backend "
            f"{self.backend} --prims {name}`, or decline this case in the `supports` hook",
        ) from error


def _at(node: fx.Node) -> str:
    line = user_line(node)
    return f" at {line}" if line else ""
