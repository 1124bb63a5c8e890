"""Runs loop kernels on flat CPU tensors with torch operators: the executable definition of the loop IR.

A value at loop depth ``d`` is a tensor with ``d`` dims, one a loop, outer first, of size 1 where it does not vary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from vendor_sdk.ir import index as ix
from vendor_sdk.ir.loop import (
    Compute,
    Const,
    Index,
    Load,
    Local,
    LoopKernel,
    Nest,
    Range,
    Reduce,
    Scalar,
    Scan,
    Stmt,
    Store,
)
from vendor_sdk.ir.loop_ops import COMBINE, OPS

_COMBINING = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def interpret(kernel: LoopKernel, buffers: Sequence[torch.Tensor], symbols: Sequence[int | float] = ()) -> None:
    """Runs ``kernel``. ``buffers``: flat CPU tensors in the order of ``kernel.params``; those of role "out" and "inout" are
    written. ``symbols``: values in the order of ``kernel.symbols``."""
    memory = {p.name: b for p, b in zip(kernel.params, buffers, strict=True)}
    numbers = {s.name: v for s, v in zip(kernel.symbols, symbols, strict=True)}
    for p in kernel.scratch:
        size = int(ix.evaluate(p.size, numbers))
        memory[p.name] = torch.empty(size, dtype=p.dtype)
    for nest in kernel.body:
        _Frame(memory, numbers).nest(nest)


@dataclass
class _Frame:
    memory: Mapping[str, torch.Tensor]
    numbers: Mapping[str, int | float]
    shape: tuple[int, ...] = ()
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    scope: dict[str, Any] = field(default_factory=dict)
    locals: dict[str, tuple[torch.Tensor, tuple[int, ...], int]] = field(default_factory=dict)
    """Content for all iterations side by side, the loops around it, and elements an iteration."""
    active: torch.Tensor | None = None
    """Which iterations there are, where an inner loop is longer in some iterations of an outer one than in others."""

    def enter(self, ranges: Sequence[Range]) -> _Frame:
        inner = _Frame(
            self.memory, self.numbers, self.shape, dict(self.values), dict(self.scope), dict(self.locals), self.active
        )
        for r in ranges:
            sizes = torch.as_tensor(self.index(r.size))
            size = int(sizes.max()) if sizes.numel() else 0
            depth = len(inner.shape)
            inner.shape = (*inner.shape, size)
            inner.scope[r.var] = torch.arange(size).reshape((1,) * depth + (size,))
            if inner.active is not None:
                inner.active = inner.active.unsqueeze(-1)
            if sizes.dim():
                ragged = inner.scope[r.var] < sizes.reshape(sizes.shape + (1,) * (depth + 1 - sizes.dim()))
                inner.active = ragged if inner.active is None else inner.active & ragged
        return inner

    def read(self, name: str) -> torch.Tensor:
        value = self.values[name]
        return value.reshape(value.shape + (1,) * (len(self.shape) - value.dim()))

    def index(self, expression: ix.Int) -> Any:
        env: dict[str, Any] = {}
        for name in ix.symbols(expression):
            if name in self.scope:
                value = self.scope[name]
                env[name] = value.reshape(value.shape + (1,) * (len(self.shape) - value.dim()))
            elif name in self.values:
                env[name] = self.read(name)
            else:
                env[name] = self.numbers[name]
        return ix.evaluate(expression, env)

    def full(self, value: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(value, dtype=dtype).expand(self.shape)

    def nest(self, nest: Nest) -> None:
        inner = self.enter(nest.ranges)
        if 0 not in inner.shape:
            inner.run(nest.body)

    def run(self, body: Sequence[Stmt]) -> None:
        for stmt in body:
            self.step(stmt)

    def step(self, stmt: Stmt) -> None:
        if isinstance(stmt, Load):
            self.values[stmt.to] = self.load(stmt)
        elif isinstance(stmt, Const):
            self.values[stmt.to] = torch.tensor(stmt.value, dtype=stmt.dtype).reshape((1,) * len(self.shape))
        elif isinstance(stmt, Scalar):
            value = torch.tensor(self.numbers[stmt.symbol], dtype=stmt.dtype)
            self.values[stmt.to] = value.reshape((1,) * len(self.shape))
        elif isinstance(stmt, Index):
            value = torch.as_tensor(self.index(stmt.index), dtype=torch.int64)
            self.values[stmt.to] = value.reshape((1,) * (len(self.shape) - value.dim()) + value.shape)
        elif isinstance(stmt, Compute):
            row = OPS[stmt.op]
            extra = {"dtype": stmt.dtype} if row.result == "given" else {}
            self.values[stmt.to] = row.reference(*(self.read(a) for a in stmt.args), **extra)
        elif isinstance(stmt, Reduce):
            inner = self.enter(stmt.ranges)
            if 0 not in inner.shape:
                inner.run(stmt.body)
            for accumulator in stmt.accumulators:
                combine = COMBINE[accumulator.op]
                assert combine.reduce is not None, f"{accumulator.op} is a scan only"
                if 0 in inner.shape:
                    operands = [torch.empty(inner.shape, dtype=d) for d in accumulator.dtypes]
                else:
                    operands = [inner.read(a).expand(inner.shape) for a in accumulator.args]
                    nothing = combine.nothing(accumulator.dtype)
                    operands = [inner.only_active(o, other) for o, other in zip(operands, nothing, strict=True)]
                results = combine.reduce(*operands, len(stmt.ranges))
                for to, result in zip(accumulator.to, results if combine.results > 1 else (results,), strict=True):
                    self.values[to] = result
        elif isinstance(stmt, Scan):
            inner = self.enter((stmt.range,))
            if 0 in inner.shape:
                return
            inner.run(stmt.body)
            for accumulator in stmt.accumulators:
                combine = COMBINE[accumulator.op]
                assert combine.scan is not None, f"{accumulator.op} is a reduction only"
                results = combine.scan(*(inner.read(a).expand(inner.shape) for a in accumulator.args))
                for to, result in zip(accumulator.to, results if combine.results > 1 else (results,), strict=True):
                    inner.values[to] = result
            inner.run(stmt.then)
        elif isinstance(stmt, Nest):
            self.nest(stmt)
        elif isinstance(stmt, Local):
            size = int(self.index(stmt.param.size))
            content = torch.empty(math.prod(self.shape) * size, dtype=stmt.param.dtype)
            self.locals[stmt.param.name] = content, self.shape, size
        else:
            self.store(stmt)

    def access(self, param: str, index: ix.Int) -> tuple[torch.Tensor, torch.Tensor]:
        """A buffer and the positions in it that this body touches."""
        position = torch.as_tensor(self.index(index), dtype=torch.int64)
        if position.dim() < len(self.shape):
            position = position.reshape((1,) * (len(self.shape) - position.dim()) + position.shape)
        if param not in self.locals:
            return self.memory[param], position
        content, around, size = self.locals[param]
        first = torch.arange(math.prod(around)).reshape(around + (1,) * (len(self.shape) - len(around))) * size
        return content, position + first

    def only_active(self, value: torch.Tensor, other: Any) -> torch.Tensor:
        """``value``, and ``other`` in iterations that there are not."""
        if self.active is None:
            return value
        return torch.where(self.active, value, torch.as_tensor(other, dtype=value.dtype))

    def load(self, stmt: Load) -> torch.Tensor:
        memory, position = self.access(stmt.param, stmt.index)
        position = self.only_active(position, 0)
        if stmt.mask is None:
            return memory[_from_the_start(position)]
        assert stmt.other is not None, f"{stmt.to}: a masked load needs a value for where the mask is false"
        mask, other = self.read(stmt.mask), self.read(stmt.other)
        position, mask = torch.broadcast_tensors(position, mask)  # type: ignore[no-untyped-call]
        if memory.numel() == 0:
            return other.expand(mask.shape)
        return torch.where(mask, memory[_from_the_start(torch.where(mask, position, 0))], other)

    def store(self, stmt: Store) -> None:
        memory, position = self.access(stmt.param, stmt.index)
        position = position.expand(self.shape).reshape(-1)
        value = self.read(stmt.value).expand(self.shape).reshape(-1)
        masks = [self.read(stmt.mask)] if stmt.mask is not None else []
        masks += [self.active] if self.active is not None else []
        if masks:
            kept = torch.stack([mask.expand(self.shape).reshape(-1) for mask in masks]).all(0)
            position, value = position[kept], value[kept]
        if stmt.mode == "set":
            memory[_from_the_start(position)] = value
        else:
            memory.scatter_reduce_(0, position, value, reduce=_COMBINING[stmt.mode], include_self=True)


def _from_the_start(position: torch.Tensor) -> torch.Tensor:
    """Positions as they are; torch would count negative ones from the end."""
    if position.numel() and int(position.min()) < 0:
        raise IndexError(f"element {int(position.min())} of a buffer")
    return position
