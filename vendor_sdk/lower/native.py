"""Native kernels: launches of the backend's own code, with the views above their operands as strides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vendor_sdk.contract.kernel import Kernel, NativeCall, Operand, Size
from vendor_sdk.errors import LoweringError
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.index import Int
from vendor_sdk.ir.primgraph import map_nodes
from vendor_sdk.lower.build import Builder, LayoutOf, Node, contiguous_strides
from vendor_sdk.lower.view import read_through


@dataclass(frozen=True)
class LoweredCall:
    """A node as a launch of its kernel.

    Attributes:
        call: what the kernel answered.
        inputs: the materialised nodes whose buffers it gets, in order.
    """

    call: NativeCall
    inputs: tuple[Node, ...]


def native_call(node: Node, kernel: Kernel, layout: LayoutOf, ignored: frozenset[str]) -> LoweredCall | None:
    """``node`` as a launch of its kernel; None where the kernel has none, or strides do not say where an operand lies.

    Args:
        kernel: of the node's prim.
        layout: for an input node, its ``Layout``, or None when it is itself a view to fold.
        ignored: keyword arguments that kernels do not receive.
    """
    if kernel.native is None:
        return None
    builder = Builder(node, "native", layout)
    sources: dict[int, Node] = {}

    def operand(source: Node) -> Operand:
        root, found = _operand(builder, source)
        sources[id(found)] = root
        return found

    kwargs = {key: value for key, value in node.kwargs.items() if key not in ignored}
    try:
        args, kwargs = map_nodes((node.args, kwargs), operand)
        results = [_placed(spec.dtype, spec.shape, contiguous_strides(spec.shape), ix.ZERO) for spec in builder.outputs]
        call = kernel.native(*results, *args, **kwargs)
    except LoweringError:
        return None
    return None if call is None else LoweredCall(call, tuple(sources[id(each)] for each in call.operands))


def _operand(k: Builder, source: Node) -> tuple[Node, Operand]:
    """Where the elements of ``source`` lie in the buffer of what it is a view of."""
    if not isinstance(source.meta["val"], torch.Tensor):
        raise k.fail("a number that is computed for each call")
    shape = k.shape(source)
    variables = [ix.ZERO if size == 1 else ix.variable(f"native.{d}", size) for d, size in enumerate(shape)]
    root, position = read_through(k, source, tuple(variables))
    found = k.layout(root)
    assert found is not None
    flat = ix.ZERO
    for i, step in zip(position, found.strides, strict=True):
        flat = flat + i * step
    strides: list[Int] = []
    offset = flat
    for d, variable in enumerate(variables):
        stride = ix.stride(flat, f"native.{d}")
        if stride is None:
            raise k.fail("a view that has no strides")
        strides.append(stride)
        offset = offset - variable * stride
    if any(name.startswith("native.") for name in ix.symbols(offset)):
        raise k.fail("a view that has no strides")
    return root, _placed(source.meta["val"].dtype, shape, strides, offset)


def _placed(dtype: torch.dtype, shape: Sequence[Int], strides: Sequence[Int], offset: Int) -> Operand:
    return Operand(dtype, tuple(map(_size, shape)), tuple(map(_size, strides)), _size(offset))


def _size(expression: Int) -> Size:
    return expression if expression.value is None else expression.value
