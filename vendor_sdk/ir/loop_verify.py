"""Rules of the loop IR, checked: tests run it on what is lowered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from vendor_sdk.ir import index as ix
from vendor_sdk.ir.loop import (
    Accumulator,
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
from vendor_sdk.ir.loop_ops import ACCEPTS, COMBINE, NARROW, OPS


def verify(kernel: LoopKernel) -> None:
    """Raises ``AssertionError`` naming the kernel and the first statement that breaks a rule: a name used before it is
    assigned or assigned twice, an unknown param or symbol, a store to an input, an op with operands it does not take, an
    element beyond a param of known size."""
    names = [p.name for p in (*kernel.params, *kernel.scratch)] + [s.name for s in kernel.symbols]
    _require(len(set(names)) == len(names), kernel, "two params or symbols share a name")
    scope = _Scope(kernel, {s.name for s in kernel.symbols if s.role == "size"})
    for param in (*kernel.params, *kernel.scratch):
        _require((param.role == "scratch") == (param in kernel.scratch), param, "scratch stands apart")
        scope.index(param.size, param)
    for nest in kernel.body:
        _require(isinstance(nest, Nest), kernel, "the body of a kernel is nests")
        scope.statements((nest,))


def _require(condition: bool, where: object, rule: str) -> None:
    if not condition:
        raise AssertionError(f"{rule}: {where}")


@dataclass
class _Scope:
    kernel: LoopKernel
    integers: set[str]
    types: dict[str, torch.dtype] = field(default_factory=dict)
    assigned: set[str] = field(default_factory=set)
    locals: dict[str, torch.dtype] = field(default_factory=dict)
    sizes: dict[str, int | None] = field(default_factory=dict)
    """Of loop variables."""

    def inner(self, ranges: Sequence[Range], where: Stmt) -> _Scope:
        scope = _Scope(self.kernel, set(self.integers), dict(self.types), self.assigned, dict(self.locals), dict(self.sizes))
        for r in ranges:
            self.index(r.size, where)
            _require(r.var not in scope.integers, where, f"loop variable {r.var} is already bound")
            scope.integers.add(r.var)
            scope.sizes[r.var] = r.size.value
        return scope

    def inside(self, stmt: Load | Store) -> None:
        """An access without a mask, at a sum of multiples of loop variables, is to one of the param's elements each time."""
        size = next((p.size.value for p in (*self.kernel.params, *self.kernel.scratch) if p.name == stmt.param), None)
        counts = {name: self.sizes.get(name) for name in ix.symbols(stmt.index)}
        steps = {name: ix.stride(stmt.index, name) for name in counts}
        if stmt.mask is not None or size is None or not all(self.sizes.values()):
            return
        first = ix.substitute(stmt.index, dict.fromkeys(counts, ix.ZERO)).value
        ends = [step.value * (n - 1) for name, n in counts.items() if n and (step := steps[name]) and step.value is not None]
        if first is None or len(ends) < len(counts):
            return
        least, most = (first + sum(pick(end, 0) for end in ends) for pick in (min, max))
        _require(least >= 0 and most < size, stmt, f"elements {least} to {most} of a param of {size}")

    def index(self, expression: ix.Int, where: object) -> None:
        for name in ix.symbols(expression):
            known = name in self.integers or self.types.get(name) == torch.int64
            _require(known, where, f"index uses {name}, which is no loop variable, size symbol or int64 value in scope")

    def assign(self, name: str, dtype: torch.dtype, where: object) -> None:
        _require(name not in self.assigned, where, f"{name} is assigned twice")
        self.assigned.add(name)
        self.types[name] = dtype

    def value(self, name: str, where: object) -> torch.dtype:
        _require(name in self.types, where, f"value {name} is not in scope")
        return self.types[name]

    def param(self, name: str, where: object) -> torch.dtype:
        if name in self.locals:
            return self.locals[name]
        found = [p for p in (*self.kernel.params, *self.kernel.scratch) if p.name == name]
        _require(bool(found), where, f"no param is called {name}")
        return found[0].dtype

    def statements(self, body: Sequence[Stmt]) -> None:
        for stmt in body:
            self.statement(stmt)

    def statement(self, stmt: Stmt) -> None:
        if isinstance(stmt, Load):
            self.index(stmt.index, stmt)
            _require(self.param(stmt.param, stmt) == stmt.dtype, stmt, "a load has its param's dtype")
            self.inside(stmt)
            _require((stmt.mask is None) == (stmt.other is None), stmt, "mask and other come together")
            if stmt.mask is not None and stmt.other is not None:
                _require(self.value(stmt.mask, stmt) == torch.bool, stmt, "a mask is bool")
                _require(self.value(stmt.other, stmt) == stmt.dtype, stmt, "other has the load's dtype")
            self.assign(stmt.to, stmt.dtype, stmt)
        elif isinstance(stmt, Const):
            _require(stmt.dtype not in NARROW, stmt, "constants have a dtype that is computed with")
            self.assign(stmt.to, stmt.dtype, stmt)
        elif isinstance(stmt, Scalar):
            known = [s for s in self.kernel.symbols if s.name == stmt.symbol and s.role != "size"]
            _require(bool(known) and known[0].dtype == stmt.dtype, stmt, "no such scalar of this dtype")
            self.assign(stmt.to, stmt.dtype, stmt)
        elif isinstance(stmt, Index):
            self.index(stmt.index, stmt)
            self.assign(stmt.to, torch.int64, stmt)
        elif isinstance(stmt, Compute):
            self.compute(stmt)
        elif isinstance(stmt, Nest):
            self.inner(stmt.ranges, stmt).statements(stmt.body)
        elif isinstance(stmt, Reduce):
            scope = self.inner(stmt.ranges, stmt)
            scope.statements(stmt.body)
            self.accumulators(stmt.accumulators, scope, self, "reduce", stmt)
        elif isinstance(stmt, Scan):
            scope = self.inner((stmt.range,), stmt)
            scope.statements(stmt.body)
            self.accumulators(stmt.accumulators, scope, scope, "scan", stmt)
            scope.statements(stmt.then)
        elif isinstance(stmt, Local):
            _require(stmt.param.role == "local", stmt, "what a Local declares has role local")
            _require(stmt.param.name not in self.assigned, stmt, f"{stmt.param.name} is declared twice")
            self.index(stmt.param.size, stmt)
            self.assigned.add(stmt.param.name)
            self.locals[stmt.param.name] = stmt.param.dtype
        else:
            self.store(stmt)

    def compute(self, stmt: Compute) -> None:
        _require(stmt.op in OPS, stmt, "no such op")
        row = OPS[stmt.op]
        _require(len(stmt.args) == row.arity, stmt, f"{row.name} takes {row.arity} operands")
        types = [self.value(a, stmt) for a in stmt.args]
        if row.name in ("convert", "bitcast"):
            accepted = ACCEPTS["any"] | set(NARROW)
            _require(types[0] in accepted and stmt.dtype in accepted, stmt, "a dtype that has no conversion")
        else:
            operands = types[1:] if row.name == "where" else types
            _require(all(t in ACCEPTS[row.kind] for t in operands), stmt, f"{row.name} takes {row.kind} operands")
            _require(len(set(operands)) == 1, stmt, "operands of one op have one dtype")
            _require(row.name != "where" or types[0] == torch.bool, stmt, "the condition is bool")
            results = {"same": operands[0], "bool": torch.bool, "int64": torch.int64, "int32": torch.int32}
            _require(stmt.dtype == results[row.result], stmt, f"the result of {row.name} is {results[row.result]}")
        self.assign(stmt.to, stmt.dtype, stmt)

    def accumulators(self, rows: Sequence[Accumulator], read: _Scope, write: _Scope, kind: str, where: Stmt) -> None:
        for a in rows:
            _require(a.op in COMBINE, where, f"no such combination: {a.op}")
            combine = COMBINE[a.op]
            _require((combine.reduce if kind == "reduce" else combine.scan) is not None, where, f"no {kind} of {a.op}")
            _require(len(a.to) == len(a.args) == combine.results, where, f"{a.op} has {combine.results} results")
            types = [read.value(name, where) for name in a.args]
            _require(types[0] == a.dtype and a.dtype in ACCEPTS[combine.kind], where, f"{a.op} of {types[0]}")
            _require(types == [*a.dtypes], where, f"operands of {a.op} are of {a.dtypes}")
            for name, dtype in zip(a.to, types, strict=True):
                write.assign(name, dtype, where)

    def store(self, stmt: Store) -> None:
        self.index(stmt.index, stmt)
        dtype = self.param(stmt.param, stmt)
        self.inside(stmt)
        written = stmt.param in self.locals or self.kernel.param(stmt.param).role != "in"
        _require(written, stmt, "a store needs an output")
        _require(self.value(stmt.value, stmt) == dtype, stmt, "a stored value has its param's dtype")
        _require(stmt.mask is None or self.value(stmt.mask, stmt) == torch.bool, stmt, "a mask is bool")
