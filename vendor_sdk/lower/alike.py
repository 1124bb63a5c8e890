"""Whether values of two loops are the same, iteration by iteration."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from vendor_sdk.ir import index as ix
from vendor_sdk.ir.loop import Compute, Const, Index, Load, Scalar, Stmt

Row = Mapping[str, Stmt]
"""Statements of a loop's body, by the value that they make."""


def meaning(name: str, row: Row, variables: Mapping[str, ix.Int], written: set[str]) -> Hashable | None:
    """Equal for values of two loops that are equal in each iteration; ``None`` where memory may have changed in between, and
    for results of a loop inside."""
    s = row.get(name)
    if s is None:
        return name
    if not isinstance(s, Const | Scalar | Load | Index | Compute):
        return None
    if isinstance(s, Const):
        return "const", repr(s.value), s.dtype
    if isinstance(s, Scalar):
        return "scalar", s.symbol, s.dtype
    if isinstance(s, Load | Index) and row.keys() & ix.symbols(s.index).keys():
        return None
    if isinstance(s, Index):
        return "index", ix.substitute(s.index, variables)
    operands = s.args if isinstance(s, Compute) else [each for each in (s.mask, s.other) if each] if isinstance(s, Load) else []
    parts = tuple(meaning(each, row, variables, written) for each in operands)
    if None in parts or (isinstance(s, Load) and s.param in written):
        return None
    if isinstance(s, Load):
        return "load", s.param, ix.substitute(s.index, variables), s.dtype, parts
    return s.op, parts, s.dtype
