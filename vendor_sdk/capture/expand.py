"""From an ATen graph to prims: what is one already is not traced, and what a model repeats is traced once.

A graph of static sizes is read as *applications*: an operator, its constants, and how its operands lie. An operator that has no
decomposition stays as it was captured. Of the others, equal applications decompose into the same nodes. So every distinct one
stands once in a small graph, which is traced with the table of decompositions; the *expansions* found there are written out for
each call. A layer that stands twelve times in a model costs one trace, and twelve copies of nodes.

What is not known to be alike is traced as a whole: symbolic sizes, operators of operators (cond), and ``as_strided`` of a view,
whose memory is that of another value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.ir.calls import computed
from vendor_sdk.ir.primgraph import tensors_of
from vendor_sdk.prims.opset import BY_TARGET

Table = Mapping[Any, Callable[..., Any]]
Key = tuple[Any, ...]

PLAIN = (int, float, bool, str, complex, torch.dtype, torch.device, torch.layout, torch.memory_format)


class Unlike(Exception):
    """Something in a graph may not be what an equal call elsewhere is."""


@dataclass(frozen=True)
class Expansion:
    """What an application decomposes into.

    Attributes:
        operands: placeholders, in the order in which the application's operands are first read.
        nodes: calls, in order.
        result: the nodes it returns, nested as the operator returns them.
    """

    operands: tuple[fx.Node, ...]
    nodes: tuple[fx.Node, ...]
    result: Any


def decompose(module: fx.GraphModule, fake_inputs: Sequence[Any], table: Table, *, inline: bool = False) -> fx.GraphModule:
    """``torch_private.decompose`` in less time.

    Args:
        module: a functional ATen graph as the dispatcher traces one, with fake values.
        fake_inputs: of its placeholders.
        table: ATen overload to decomposition.
        inline: write out what calls of subgraphs (``invoke_subgraph``) do.
    """
    try:
        return _Expanding(module, fake_inputs, table).run()
    except Unlike:
        return torch_private.decompose(module, fake_inputs, table, inline=inline)


class _Expanding:
    def __init__(self, module: fx.GraphModule, fake_inputs: Sequence[Any], table: Table) -> None:
        self.module, self.fake_inputs, self.table = module, fake_inputs, table
        self.graph = fx.Graph()
        self.values: dict[fx.Node, Any] = {}
        self.expansions: dict[Key, Expansion] = {}

    def run(self) -> fx.GraphModule:
        calls = [node for node in self.module.graph.nodes if node.op == "call_function" and node.target is not operator.getitem]
        if not all(map(_stands_alone, calls)):
            raise Unlike
        staying = {node for node in calls if self._stays(node)}
        if distinct := {_key(node, _captured): node for node in calls if node not in staying}:
            self._trace(distinct, _captured)
        inputs = iter(enumerate(self.fake_inputs))
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                index, value = next(inputs)
                self.values[node] = self.graph.placeholder(f"arg{index}_1")
                self.values[node].meta["val"] = _static(value)
            elif node.op == "output":
                self.graph.output(fx.node.map_aggregate(node.args[0], self._new))
            elif node.op != "call_function":
                raise Unlike
            elif node.target is operator.getitem and not isinstance(self._new(node.args[0]), fx.Node):
                self.values[node] = self._new(node.args[0])[node.args[1]]
            elif node.target is operator.getitem or (node in staying and self._lies_as_captured(node)):
                # Who changed a captured graph need not have said how what follows lies now.
                made = self.values[node] = self.graph.node_copy(node, self._new)
                made.meta["val"] = computed(made)
            else:
                self.values[node] = self._write(node)
        self.graph.eliminate_dead_code()
        return torch_private.lazy_graph_module(torch.nn.Module(), self.graph)

    def _new(self, value: Any) -> Any:
        return self.values[value] if isinstance(value, fx.Node) else value

    def _now(self, node: fx.Node) -> Any:
        """The fake value of an operand as it is in the new graph."""
        new = self._new(node)
        if not isinstance(new, fx.Node):
            raise Unlike
        return new.meta["val"]

    def _stays(self, node: fx.Node) -> bool:
        """Whether an operator is its own decomposition, as prims are; of some, the table has a rule for other arguments."""
        target = cast(torch_private.OpOverload, node.target)
        if torch_private.is_composite(target) or not _as_dispatched(node):
            return False
        if target not in self.table:
            return True
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), _captured)
        return target in BY_TARGET and self.table[target](*args, **kwargs) is NotImplemented

    def _lies_as_captured(self, node: fx.Node) -> bool:
        """Whether its operands do."""
        now = ((self._now(each), _captured(each)) for each in node.all_input_nodes)
        return all(new is old or _lying(new) == _lying(old) for new, old in now)

    def _trace(self, applications: Mapping[Key, fx.Node], value_of: Callable[[fx.Node], Any]) -> None:
        """Finds the expansions of calls, whose operands have these values."""
        graph = fx.Graph()
        # Not the values themselves: one may be an operand of several, and the trace knows operands by their tensors.
        fakes = {
            key: [torch_private.fake_like(value_of(each)) for each in node.all_input_nodes]
            for key, node in applications.items()
        }
        places = {key: [graph.placeholder("operand") for _ in each] for key, each in fakes.items()}
        results = []
        for key, node in applications.items():
            mine = dict(zip(node.all_input_nodes, places[key], strict=True))
            results.append(graph.node_copy(node, mine.__getitem__))
        graph.output(tuple(results))
        inputs = [fake for each in fakes.values() for fake in each]
        traced = torch_private.decompose(torch_private.lazy_graph_module(torch.nn.Module(), graph), inputs, self.table).graph
        operands = iter(traced.find_nodes(op="placeholder"))
        order = {node: index for index, node in enumerate(traced.nodes) if node.op not in ("placeholder", "output")}
        for key, result in zip(applications, cast(Sequence[Any], traced.output_node().args[0]), strict=True):
            nodes = sorted(_above(result), key=order.__getitem__)
            for node in nodes:
                _static(node.meta["val"])
                del order[node]
            self.expansions[key] = Expansion(tuple(next(operands) for _ in fakes[key]), tuple(nodes), result)
        if any(node.op != "call_function" or node.is_impure() for node in order):  # constants, and what is there for its effect
            raise Unlike

    def _write(self, node: fx.Node) -> Any:
        """Writes what a call decomposes into; its result."""
        key = _key(node, self._now)
        if key not in self.expansions:  # a decomposition before it left its operands in another way than the operator does
            self._trace({key: node}, self._now)
        expansion = self.expansions[key]
        mine = dict(zip(expansion.operands, map(self._new, node.all_input_nodes), strict=True))
        about = {name: item for name, item in node.meta.items() if name not in ("val", "tensor_meta")}
        for each in expansion.nodes:
            name: str = getattr(each.target, "overloadpacket", each.target).__name__  # type: ignore[union-attr]
            args, kwargs = fx.node.map_arg((each.args, each.kwargs), mine.__getitem__)
            mine[each] = self.graph.create_node("call_function", each.target, args, kwargs, name)
            mine[each].meta = {**about, "val": each.meta["val"]}
        return fx.node.map_arg(expansion.result, mine.__getitem__)


def _captured(node: fx.Node) -> Any:
    return node.meta.get("val")


def _stands_alone(node: fx.Node) -> bool:
    """Whether a call is one of an operator, of static sizes, which depends on nothing but its operands' elements."""
    if not isinstance(node.target, torch_private.OpOverload):
        return False
    _static(_captured(node))
    return node.target is not torch.ops.aten.as_strided.default or not _is_view(node.all_input_nodes[0])


def _as_dispatched(node: fx.Node) -> bool:
    """Whether the arguments of a functional operator are written as the dispatcher hands them on: by position or by name as its
    schema has them, lists as lists, and the last of them only where it is not the default."""
    schema = cast(torch_private.OpOverload, node.target)._schema
    named = {each.name: each for each in schema.arguments if each.kwarg_only}
    given = [*zip((each for each in schema.arguments if not each.kwarg_only), node.args, strict=False)]
    if schema.is_mutable or not named.keys() >= node.kwargs.keys():
        return False
    said = [*given[-1:], *((named[name], value) for name, value in node.kwargs.items())]
    if any(each.has_default_value() and _same(each.default_value, value) for each, value in said):
        return False
    return not any(isinstance(value, tuple) or (type(value) is int and str(each.type) == "float") for each, value in given)


def _same(default: Any, value: Any) -> bool:
    if isinstance(value, list):
        return isinstance(default, list) and default == value
    return type(default) is type(value) and bool(default == value)


def _is_view(node: fx.Node) -> bool:
    keys = {torch_private.storage_key(tensor) for tensor in tensors_of(_captured(node))}
    return any(
        torch_private.storage_key(tensor) in keys for each in node.all_input_nodes for tensor in tensors_of(_captured(each))
    )


def _above(result: Any) -> set[fx.Node]:
    """The calls that a result depends on."""
    found: set[fx.Node] = set()
    left: list[fx.Node] = []
    fx.node.map_arg(result, left.append)
    while left:
        node = left.pop()
        if node.op == "call_function" and node not in found:
            found.add(node)
            left += node.all_input_nodes
    return found


def _key(node: fx.Node, value_of: Callable[[fx.Node], Any]) -> Key:
    """Equal for calls that decompose alike."""
    slots = {operand: slot for slot, operand in enumerate(node.all_input_nodes)}
    constants = tuple(_constants((node.args, dict(node.kwargs)), slots))
    return (node.target, constants, *(_lying(value_of(operand)) for operand in slots))


def _constants(value: Any, slots: Mapping[fx.Node, int]) -> Iterator[Any]:
    """Arguments, flat: operands by their slots; equal numbers of different types, and zeros of different signs, are apart."""
    if isinstance(value, fx.Node):
        yield "operand", slots[value]
    elif isinstance(value, list | tuple):
        yield "list", len(value)
        for item in value:
            yield from _constants(item, slots)
    elif isinstance(value, dict):
        for name, item in sorted(value.items()):
            yield "named", name
            yield from _constants(item, slots)
    elif value is None or type(value) in PLAIN:
        yield type(value), repr(value)
    else:
        raise Unlike


def _lying(value: Any) -> Key:
    """How an operand lies in memory."""
    if not isinstance(_static(value), torch.Tensor):
        raise Unlike
    return (tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, value.device)


def _static(value: Any) -> Any:
    """The value, if nothing about it is symbolic or lazy."""
    for tensor in tensors_of(value):
        lying = tensor.layout is torch.strided and not tensor.is_conj() and not tensor.is_neg()
        if not lying or any(isinstance(n, torch.SymInt) for n in (*tensor.shape, *tensor.stride(), tensor.storage_offset())):
            raise Unlike
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        raise Unlike
    return value
