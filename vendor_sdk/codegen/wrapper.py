"""The wrapper: one generated Python function per graph, which runs its steps in order and frees each value after its last use.

Every line belongs to a node, so an exception's line number names the prim, its shapes and the user's source line; no per-step
``try`` is needed. The function takes its inputs as one list, which it empties (so that inputs die as early as possible).
"""

from __future__ import annotations

import linecache
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.contract.emitter import Launch
from vendor_sdk.contract.kernel import Kernel
from vendor_sdk.contract.placement import Kind, Route
from vendor_sdk.errors import GraphError
from vendor_sdk.ir.index import from_size, symbols, to_python
from vendor_sdk.ir.primgraph import PrimGraph, prim_name, tensors_of
from vendor_sdk.ir.transfer import to_device, to_host


class Runtime(Protocol):
    """What the writer must know of the functions that wrapper text calls as ``RT`` (``vendor_sdk/run/steps.py`` lists them)."""

    contiguous_operands: bool
    """whether kernels take row-major contiguous operands only"""


STORAGE_ARGUMENTS = frozenset({"device", "layout", "pin_memory", "memory_format"})
"""Keyword arguments about storage: logical tensors have none, so kernels do not receive them."""


@dataclass(frozen=True)
class EmittedCall:
    """How the wrapper launches one emitted kernel.

    Attributes:
        launch: the compiled kernel.
        inputs: nodes whose buffers it reads, in parameter order; the node's results follow them.
        symbols: Python text of each run-time number, in the kernel's order.
    """

    launch: Launch
    inputs: tuple[fx.Node, ...]
    symbols: tuple[str, ...]


@dataclass
class Wrapper:
    """Generated source with what it refers to.

    Attributes:
        source: Python text of one function ``call(args)``.
        nodes: line number to the node it runs.
        namespace: globals of the function.
    """

    source: str
    nodes: Mapping[int, fx.Node]
    namespace: dict[str, Any]
    filename: str = field(default="")

    def compile(self) -> Callable[[list[Any]], list[Any]]:
        """The function itself. Its source stays visible in tracebacks and debuggers."""
        self.filename = f"<vendor_sdk wrapper {id(self):x}>"
        linecache.cache[self.filename] = (len(self.source), None, self.source.splitlines(keepends=True), self.filename)
        exec(compile(self.source, self.filename, "exec"), self.namespace)
        return self.namespace["call"]  # type: ignore[no-any-return]


def generate(
    graph: PrimGraph,
    runtime: Runtime,
    kernels: Mapping[str, Kernel],
    emitted: Mapping[fx.Node, EmittedCall],
    host: Callable[[fx.Node], Callable[..., Any]],
) -> Wrapper:
    """Writes the wrapper of a placed graph.

    Args:
        runtime: allocation, transfers, views and checks for the session's device.
        kernels: the backend's kernels by prim.
        emitted: how each node on the emitter route is launched.
        host: the operator that runs a host node.
    """
    return _Writer(graph, runtime, kernels, emitted, host).write()


class _Writer:
    def __init__(
        self,
        graph: PrimGraph,
        runtime: Runtime,
        kernels: Mapping[str, Kernel],
        emitted: Mapping[fx.Node, EmittedCall],
        host: Callable[[fx.Node], Callable[..., Any]],
    ) -> None:
        self.graph, self.runtime, self.kernels, self.emitted, self.host = graph, runtime, kernels, emitted, host
        self.lines: list[str] = []
        self.nodes: dict[int, fx.Node] = {}
        self.namespace: dict[str, Any] = {"RT": runtime, "math": math}
        self.constants: dict[Any, str] = {}
        self.bound: set[str] = set()
        self.static = {graph.placeholders[index] for index in graph.static_inputs}

    def write(self) -> Wrapper:
        needed = self._needed()
        dies = self._last_uses(needed)
        self._prologue()
        for node in self.graph.calls():
            if node in needed:
                self._step(node)
                for name in dies.get(node, ()):
                    self.lines[-1] += f"; del {name}"
        self._epilogue()
        source = "def call(args):\n" + "".join(f"    {line}\n" for line in self.lines)
        return Wrapper(source, {index + 2: node for index, node in self.nodes.items()}, self.namespace)

    # What runs, and how long values live

    def _needed(self) -> set[fx.Node]:
        """Nodes whose value is read at run time: views that every reader folds into its index map are not."""
        needed: set[fx.Node] = set()
        stack = [n for n in self.graph.outputs if isinstance(n, fx.Node)]
        stack += [n for n in self.graph.calls() if _must_run(n)]
        while stack:
            node = stack.pop()
            if node in needed:
                continue
            needed.add(node)
            stack += self._reads(node)
        return needed

    def _reads(self, node: fx.Node) -> list[fx.Node]:
        call = self.emitted.get(node)
        if call is None:
            return list(node.all_input_nodes)
        numbers = [n for n in node.all_input_nodes if not tensors_of(n.meta.get("val"))]
        return [*call.inputs, *numbers]

    def _last_uses(self, needed: set[fx.Node]) -> dict[fx.Node, list[str]]:
        kept = {n for n in self.graph.outputs if isinstance(n, fx.Node)}
        dies: dict[fx.Node, list[str]] = {}
        seen: set[fx.Node] = set()
        for node in reversed(list(self.graph.calls())):
            if node not in needed:
                continue
            for read in dict.fromkeys([*self._reads(node), node]):
                if read not in seen and read not in kept and read.op != "get_attr":
                    dies.setdefault(node, []).append(read.name)
                seen.add(read)
        return dies

    # Boundary

    def _prologue(self) -> None:
        placeholders = self.graph.placeholders
        passed = [node for node in placeholders if node.name not in self.graph.constants]
        if passed:
            self._line(f"{', '.join(node.name for node in passed)}, = args")
        self._line("args.clear()")
        for name, value in self.graph.constants.items():
            self._line(f"{name} = {self._constant(value)}")
        for node in placeholders:
            value = node.meta["val"]
            if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
                self._bind(torch_private.sympy_of(value), node.name)
        for node in placeholders:
            value = node.meta["val"]
            if isinstance(value, torch.Tensor):
                for dim, size in enumerate(value.shape):
                    if isinstance(size, torch.SymInt):
                        self._bind(torch_private.sympy_of(size), f"{node.name}.size({dim})")
                for dim, stride in enumerate(value.stride()):
                    if isinstance(stride, torch.SymInt):
                        self._bind(torch_private.sympy_of(stride), f"{node.name}.stride({dim})")
        # Emitted loops index memory by the traced strides; everything else goes by the tensor's own.
        indexed = {source for call in self.emitted.values() for source in call.inputs}
        for node in placeholders:
            if node in indexed:
                strides = self._tuple(node.meta["val"].stride())
                self._line(f"{node.name} = RT.as_traced({node.name}, {strides})", node)

    def _bind(self, expression: Any, text: str, node: fx.Node | None = None) -> None:
        name = str(expression)
        if getattr(expression, "is_symbol", False) and name not in self.bound:
            self.bound.add(name)
            self._line(f"{name} = {text}", node)

    def _epilogue(self) -> None:
        returned: list[str] = []
        layouts = self.graph.output_layouts
        owners: dict[fx.Node, list[tuple[str, int]]] = {}
        for index, node in enumerate(self.graph.placeholders):
            owners[node] = [("input", index)]
        for index, value in enumerate(self.graph.outputs):
            if not isinstance(value, fx.Node) or not isinstance(value.meta["val"], torch.Tensor) or not layouts:
                returned.append(self._text(value))
                continue
            layout = layouts[index]
            assert layout.strides is not None
            shares = owners.setdefault(_root(value), [])
            fresh = bool(set(shares) - layout.alias_of)
            shares.append(("output", index))
            if value.op == "placeholder" and not fresh:  # an input handed back; torch's effect tokens are None here
                returned.append(value.name)
                continue
            returned.append(f"RT.output({value.name}, {self._tuple(layout.strides)}, {fresh})")
        self._line(f"return [{', '.join(returned)}]", self.graph.graph.output_node())

    # Steps

    def _step(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            self._line(f"{node.name} = {self._text(node.args[0])}[{node.args[1]!r}]", node)
        elif node.target is to_device:
            static = _root(node.args[0]) in self.static  # type: ignore[arg-type]
            dtype = self._constant(node.meta["val"].dtype)
            self._line(f"{node.name} = RT.to_device({self._text(node.args[0])}, {dtype}, {static})", node)
        elif node.target is to_host:
            self._line(f"{node.name} = RT.to_host({self._text(node.args[0])}, {self._constant(node.meta['val'].dtype)})", node)
        else:
            placement = node.meta["placement"]
            {
                Kind.WRAPPER: self._number,
                Kind.VIEW: self._view,
                Kind.HOST: self._host,
                Kind.NATIVE: self._native,
            }[placement.kind](node)
        self._bind_data_dependent(node)

    def _bind_data_dependent(self, node: fx.Node) -> None:
        """Sizes that only the value tells (of ``nonzero``) become variables as soon as it is there."""
        value = node.meta["val"]
        results = enumerate(value) if isinstance(value, list | tuple) else [(None, value)]
        for index, result in results:
            name = node.name if index is None else f"{node.name}[{index}]"
            if isinstance(result, torch.Tensor):
                for dim, size in enumerate(result.shape):
                    if isinstance(size, torch.SymInt):
                        self._bind(torch_private.sympy_of(size), f"{name}.shape[{dim}]", node)
            elif isinstance(result, torch.SymInt):
                self._bind(torch_private.sympy_of(result), name, node)

    def _number(self, node: fx.Node) -> None:
        self._line(f"{node.name} = {self._call(self._constant(node.target), node.args, node.kwargs)}", node)

    def _view(self, node: fx.Node) -> None:
        if node.meta.get("on_device"):
            self._line(f"{node.name} = RT.view({prim_name(node)!r}, {self._arguments(node.args, node.kwargs)})", node)
        elif prim_name(node) == "view":
            self._line(f"{node.name} = {self._text(node.args[0])}.reshape({self._text(node.args[1])})", node)
        elif prim_name(node) == "as_strided":
            self._line(f"{node.name} = RT.as_strided({self._arguments(node.args, node.kwargs)})", node)
        else:
            call = self._call(self._constant(node.target), node.args, node.kwargs)
            source = node.all_input_nodes[0].meta["val"]
            # A view of another dtype folds into no index map: whoever reads it reads memory, which is contiguous.
            text = call if node.meta["val"].dtype == source.dtype else f"RT.contiguous({call})"
            self._line(f"{node.name} = {text}", node)

    def _host(self, node: fx.Node) -> None:
        call = self._call(self._constant(self.host(node)), node.args, node.kwargs)
        self._line(f"{node.name} = RT.contiguous({call})" if tensors_of(node.meta["val"]) else f"{node.name} = {call}", node)

    def _native(self, node: fx.Node) -> None:
        route = node.meta["placement"].route
        if route is Route.EMITTER:
            self._emitted(node)
        elif route is Route.GRAPH:
            inputs = ", ".join(self._text(argument) for argument in node.args)
            self._line(f"{node.name} = {self._constant(node.target)}({inputs})", node)
        else:
            self._kernel(node)

    def _kernel(self, node: fx.Node) -> None:
        kernel = self.kernels[prim_name(node)]
        name = self._constant(kernel.call)
        kwargs = {key: value for key, value in node.kwargs.items() if key not in STORAGE_ARGUMENTS}
        # ``clone`` is the one kernel that takes any strides: it is how operands become contiguous.
        arguments = self._arguments(node.args, kwargs, kernel_operands=prim_name(node) != "clone")
        several = not isinstance(node.meta["val"], torch.Tensor)
        if kernel.destination:
            self._allocate_and_call(node, lambda outs: f"{name}({', '.join([*outs, arguments] if arguments else outs)})")
            return
        self._line(f"{node.name} = {name}({arguments})", node)
        self._bind_data_dependent(node)
        results = node.meta["val"] if several else (node.meta["val"],)
        expected = [
            "None" if result is None else f"({self._tuple(result.shape)}, {self._constant(result.dtype)})" for result in results
        ]
        check = f"checked_several({node.name}, ({', '.join(expected)},))" if several else f"checked({node.name}, {expected[0]})"
        self._line(f"{node.name} = RT.{check}", node)

    def _allocate_and_call(self, node: fx.Node, call: Callable[[list[str]], str]) -> None:
        """Allocates the results of ``node``, then fills them; results that the prim leaves out stay ``None``."""
        value = node.meta["val"]
        several = not isinstance(value, torch.Tensor)
        results = list(value) if several else [value]
        names = [f"{node.name}_{i}" for i in range(len(results))] if several else [node.name]
        steps = [
            f"{name} = RT.empty({self._tuple(result.shape)}, {self._constant(result.dtype)})"
            for name, result in zip(names, results, strict=True)
            if result is not None
        ]
        filled = [name for name, result in zip(names, results, strict=True) if result is not None]
        steps.append(call(filled))
        if several:
            texts = [name if name in filled else "None" for name in names]
            steps.append(f"{node.name} = ({', '.join(texts)},); del {', '.join(filled)}")
        self._line("; ".join(steps), node)

    def _emitted(self, node: fx.Node) -> None:
        call = self.emitted[node]
        inputs = [self._text(source) for source in call.inputs]
        numbers = "".join(f"{text}, " for text in call.symbols)
        self._allocate_and_call(
            node, lambda outs: f"{self._constant(call.launch)}(({', '.join([*inputs, *outs])},), ({numbers}))"
        )

    # Text

    def _line(self, text: str, node: fx.Node | None = None) -> None:
        if node is not None:
            self.nodes[len(self.lines)] = node
        self.lines.append(text)

    def _constant(self, value: Any) -> str:
        key = value if isinstance(value, torch.dtype | torch.device) else id(value)
        if key not in self.constants:
            self.constants[key] = name = f"C{len(self.constants)}"
            self.namespace[name] = value
        return self.constants[key]

    def _tuple(self, values: Iterable[Any]) -> str:
        items = [self._size(value) for value in values]
        return f"({', '.join(items)},)" if len(items) == 1 else f"({', '.join(items)})"

    def _size(self, value: Any) -> str:
        if isinstance(value, int):
            return repr(value)
        names: Iterable[str]
        try:
            expression = from_size(value)
            names, text = symbols(expression), to_python(expression)
        except ValueError:  # outside the index algebra, as the padded statistics of some attention operators are
            names, text = torch_private.size_text(value)
        missing = sorted(set(names) - self.bound)
        if missing:
            raise GraphError(f"size {value} depends on {', '.join(missing)}, which no input of the graph determines")
        return text

    def _call(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        return f"{name}({self._arguments(args, kwargs)})"

    def _arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, kernel_operands: bool = False) -> str:
        parts = [self._text(value, kernel_operands) for value in args]
        parts += [f"{key}={self._text(value, kernel_operands)}" for key, value in kwargs.items()]
        return ", ".join(parts)

    def _text(self, value: Any, kernel_operand: bool = False) -> str:
        if isinstance(value, fx.Node):
            if value.op == "get_attr":
                return self._constant(torch_private.attribute(self.graph.module, str(value.target)))
            if kernel_operand and self.runtime.contiguous_operands and _may_have_gaps(value):
                return f"RT.contiguous({value.name})"
            return value.name
        if isinstance(value, list | tuple):
            items = [self._text(item, kernel_operand) for item in value]
            return f"[{', '.join(items)}]"
        if isinstance(value, float) and not math.isfinite(value):
            return "math.nan" if math.isnan(value) else ("math.inf" if value > 0 else "-math.inf")
        if value is None or isinstance(value, bool | int | float | str):
            return repr(value)
        if isinstance(value, torch.SymInt):
            return self._size(value)
        if isinstance(value, slice):
            return f"slice({self._text(value.start)}, {self._text(value.stop)}, {self._text(value.step)})"
        return self._constant(value)


def _must_run(node: fx.Node) -> bool:
    """Nodes that act without being read: assertions, waits."""
    return not tensors_of(node.meta["val"]) and node.meta["val"] is None


def _root(node: fx.Node) -> fx.Node:
    """The value whose storage ``node`` may share: itself, or what it is a view of."""
    while node.op == "call_function" and (node.meta["placement"].kind is Kind.VIEW if "placement" in node.meta else False):
        source = node.args[0]
        assert isinstance(source, fx.Node)
        node = source
    return node


def _may_have_gaps(node: fx.Node) -> bool:
    """Whether the value may be something else than row-major contiguous: a view, or the caller's tensor."""
    return node.op == "placeholder" or ("placement" in node.meta and node.meta["placement"].kind is Kind.VIEW)
