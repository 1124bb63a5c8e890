"""Loop kernels as Python text, and back: ``read(text(kernel)) == kernel``.

The text is an expression of the classes of ``vendor_sdk.ir.loop``; index expressions are arithmetic over the names of loop
variables, symbols and values. Reading evaluates it with an interpreter of its own that knows nothing but these classes.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vendor_sdk.ir import index as ix
from vendor_sdk.ir import loop
from vendor_sdk.ir.index import Int

_CLASSES: Mapping[str, type[Any]] = {
    c.__name__: c
    for c in (
        loop.LoopKernel,
        loop.Param,
        loop.Symbol,
        loop.Range,
        loop.Load,
        loop.Const,
        loop.Scalar,
        loop.Index,
        loop.Compute,
        loop.Accumulator,
        loop.Reduce,
        loop.Scan,
        loop.Store,
        loop.Nest,
        loop.Local,
    )
}


def text(kernel: loop.LoopKernel) -> str:
    """``kernel`` as a Python expression, one statement a line."""
    known: dict[str, ix.Symbol] = {}
    for expression in _expressions(kernel):
        known.update(ix.symbols(expression))
    return _Printer(known).kernel(kernel)


def _expressions(part: Any) -> list[Int]:
    if isinstance(part, Int):
        return [part]
    if isinstance(part, tuple):
        return [e for item in part for e in _expressions(item)]
    fields = getattr(part, "__dataclass_fields__", None)
    return [e for name in fields for e in _expressions(getattr(part, name))] if fields else []


class _Printer:
    def __init__(self, known: Mapping[str, ix.Symbol]) -> None:
        self.known = known

    def kernel(self, kernel: loop.LoopKernel) -> str:
        lines = ["LoopKernel(", f"    {kernel.name!r},"]
        lines += self.block("params", kernel.params, 1)
        lines += self.block("symbols", kernel.symbols, 1)
        lines += self.block("body", kernel.body, 1)
        if kernel.scratch:
            lines += self.block("scratch", kernel.scratch, 1)
        return "\n".join([*lines, ")"]) + "\n"

    def block(self, name: str, items: Sequence[Any], depth: int) -> list[str]:
        pad = "    " * depth
        if not items:
            return [f"{pad}{name}=(),"]
        inner = [line for item in items for line in self.item(item, depth + 1)]
        return [f"{pad}{name}=(", *inner, f"{pad}),"]

    def item(self, item: Any, depth: int) -> list[str]:
        pad = "    " * depth
        if isinstance(item, loop.Nest | loop.Reduce):
            ranges = ", ".join(self.inline(r) for r in item.ranges)
            lines = [f"{pad}{type(item).__name__}(", f"{pad}    ranges=({ranges}{',' if item.ranges else ''}),"]
            lines += self.block("body", item.body, depth + 1)
            if isinstance(item, loop.Reduce):
                lines += self.block("accumulators", item.accumulators, depth + 1)
            return [*lines, f"{pad}),"]
        if isinstance(item, loop.Scan):
            lines = [f"{pad}Scan(", f"{pad}    range={self.inline(item.range)},"]
            for name in ("body", "accumulators", "then"):
                lines += self.block(name, getattr(item, name), depth + 1)
            return [*lines, f"{pad}),"]
        return [f"{pad}{self.inline(item)},"]

    def inline(self, item: Any) -> str:
        values = []
        for name, spec in item.__dataclass_fields__.items():
            value = getattr(item, name)
            if not (value is None and spec.default is None):
                values.append(f"{name}={self.value(value)}")
        if isinstance(item, loop.Compute | loop.Load | loop.Const | loop.Scalar | loop.Index | loop.Store):
            values += self.facts(item)
        return f"{type(item).__name__}({', '.join(values)})"

    def facts(self, item: Any) -> list[str]:
        """What is known of a value that indexes: part of the index expressions that use it."""
        fact = self.known.get(getattr(item, "to", ""))
        if fact is None:
            return []
        return [f"lower={fact.lower}", f"upper={fact.upper}", f"below={self.value(fact.below)}"]

    def value(self, value: Any) -> str:
        if isinstance(value, Int):
            return ix.to_python(value)
        if isinstance(value, torch.dtype):
            return str(value)
        if isinstance(value, loop.Param):
            return self.inline(value)
        if isinstance(value, tuple):
            return f"({', '.join(map(self.value, value))}{',' if len(value) == 1 else ''})"
        if isinstance(value, float) and not math.isfinite(value):
            return "nan" if math.isnan(value) else ("-inf" if value < 0 else "inf")
        return repr(value)


def read(source: str) -> loop.LoopKernel:
    """The kernel that ``source`` prints. Raises ``ValueError`` for anything but the constructors and index arithmetic."""
    kernel = _Reader().value(ast.parse(source.strip(), mode="eval").body)
    if not isinstance(kernel, loop.LoopKernel):
        raise ValueError("the text is not a LoopKernel")
    return kernel


class _Reader:
    def __init__(self) -> None:
        self.names: dict[str, Int] = {}

    def value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Tuple):
            return tuple(self.value(item) for item in node.elts)
        if isinstance(node, ast.Name):
            return {"inf": math.inf, "nan": math.nan}[node.id] if node.id in ("inf", "nan") else self.name(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
            dtype = getattr(torch, node.attr, None)
            if isinstance(dtype, torch.dtype):
                return dtype
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.value(node.operand)
        if isinstance(node, ast.BinOp):
            return self.arithmetic(node.op, self.value(node.left), self.value(node.right))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("min", "max"):
                combine = ix.minimum if node.func.id == "min" else ix.maximum
                return combine(*(self.value(a) for a in node.args))
            if node.func.id in _CLASSES:
                return self.construct(_CLASSES[node.func.id], node)
        raise ValueError(f"not part of a loop kernel: {ast.unparse(node)}")

    def name(self, name: str) -> Int:
        if name not in self.names:
            raise ValueError(f"{name} is used before it is bound")
        return self.names[name]

    @staticmethod
    def arithmetic(operator: ast.operator, left: Any, right: Any) -> Any:
        if isinstance(operator, ast.Add):
            return left + right
        if isinstance(operator, ast.Sub):
            return left - right
        if isinstance(operator, ast.Mult):
            return left * right
        if isinstance(operator, ast.FloorDiv):
            return left // right
        if isinstance(operator, ast.Mod):
            return left % right
        raise ValueError(f"{type(operator).__name__} is not index arithmetic")

    def construct(self, cls: type[Any], node: ast.Call) -> Any:
        fields = list(cls.__dataclass_fields__)
        if cls is loop.LoopKernel:
            # Symbols bind names that params use.
            keywords = {k.arg: k.value for k in node.keywords}
            symbols = self.value(keywords["symbols"])
            name = self.value(node.args[0])
            scratch = self.value(keywords["scratch"]) if "scratch" in keywords else ()
            return cls(name, self.value(keywords["params"]), symbols, self.value(keywords["body"]), scratch)
        values = dict(zip(fields, (self.value(a) for a in node.args), strict=False))
        for keyword in node.keywords:
            values[str(keyword.arg)] = self.value(keyword.value)
        facts = {name: values.pop(name) for name in ("lower", "upper", "below") if name in values and name not in fields}
        for name in ("size", "index"):
            if name in values and name in fields and isinstance(values[name], int):
                values[name] = ix.wrap(values[name])
        made = cls(**values)
        if isinstance(made, loop.Range):
            self.names[made.var] = ix.variable(made.var, made.size)
        elif isinstance(made, loop.Symbol) and made.role == "size":
            self.names[made.name] = ix.symbol(made.name, made.lower, made.upper)
        elif facts:
            self.names[made.to] = ix.symbol(made.to, facts["lower"], None, facts["below"])
        elif isinstance(made, loop.Accumulator):
            for to in made.to:
                self.names[to] = ix.symbol(to)
        return made
