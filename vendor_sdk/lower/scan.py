"""Scans: running sums, products and extremes along one dimension."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vendor_sdk.ir.index import Int
from vendor_sdk.lower.build import Builder, Lowering, Value, opmath


def _scan(op: str, *, positions: bool = False) -> Lowering:
    def lowering(k: Builder) -> None:
        source = k.args["self"]
        shape = k.shape(source)
        dtype = opmath(k.outputs[0].dtype)
        if not shape:
            with k.nest(()):
                k.store(0, (), k.load(source, ()))
                if positions:
                    k.store(1, (), k.const(0, k.outputs[1].dtype))
            return
        dim = k.args["dim"] % len(shape)
        with k.nest((*shape[:dim], *shape[dim + 1 :])) as i:

            def at(r: Int) -> tuple[Int, ...]:
                return (*i[:dim], r, *i[dim:])

            def step(r: Int) -> list[tuple[Any, ...]]:
                value = k.convert(k.load(source, at(r)), dtype)
                return [(op, value, k.index(r))] if positions else [(op, value)]

            def then(r: Int, running: tuple[Any, ...]) -> None:
                (result,) = running
                if positions:
                    k.store(0, at(r), result[0])
                    k.store(1, at(r), result[1])
                else:
                    assert isinstance(result, Value)
                    k.store(0, at(r), result)

            k.scan(shape[dim], step, then)

    return lowering


LOWERINGS: Mapping[str, Lowering] = {
    "cumsum": _scan("sum"),
    "cumprod": _scan("prod"),
    "cummax": _scan("argmax", positions=True),
    "cummin": _scan("argmin", positions=True),
    "logcumsumexp": _scan("logaddexp"),
}
