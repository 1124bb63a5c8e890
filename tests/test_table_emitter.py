"""Emitters that are tables: the text of every kind of statement, run and compared with the loop interpreter.

The target here is Python, a language of expressions whose running results must be started; `examples/vecchip` is one of
instructions that starts them itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest
import torch

import vendor_sdk
from vendor_sdk import Backend, ContractError, Emitter, Launch, LoopKernel, TableEmitter, flat, hookimpl, index
from vendor_sdk.contract import loader
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.loop import Const, Index, Load, Nest, Param, Range, Reduce, Scan, Store, Symbol, dtypes
from vendor_sdk.ir.loop_interpreter import interpret

OPS: Mapping[str, str] = {
    "const": "{to} = {value}",
    "move": "{to} = {0}",
    "load": "{to} = {param}[{index}]",
    "load.masked": "{to} = {param}[{index}] if {mask} else {other}",
    "store": "{param}[{index}] = {0}",
    "store.masked": "if {mask}: {store}",
    "store.add": "{param}[{index}] += {0}",
    "loop": "for {var} in range({size}):",
    "end": "pass",
    "accumulator": "{to} = {value}",
    "compute": "{to} = {expression}",
    "local": "{param} = [None] * {size}",
    "scratch": "{param} = [None] * {size}",
    "reduce.sum": "{to} = {to} + {0}",
    "reduce.max": "{to} = max({to}, {0})",
    "reduce.argmax": "if {0} > {to} or ({0} == {to} and {1} < {at}): {to}, {at} = {0}, {1}",
    "scan.sum": "{to} = {to} + {0}",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "exp": "math.exp({0})",
    "tanh": "math.tanh({0})",
    "max": "max({0}, {1})",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "ge": "{0} >= {1}",
    "gt": "{0} > {1}",
    "eq": "{0} == {1}",
    "bitand": "{0} & {1}",
    "where": "{1} if {0} else {2}",
    "convert": "{R}({0})",
    "nest": "",
    "contraction": "",
}


class PythonEmitter(TableEmitter):
    ops = OPS
    types = {torch.float32: "float", torch.float64: "float", torch.int64: "int", torch.bool: "bool"}  # noqa: RUF012

    def head(self, kernel: LoopKernel) -> str:
        return f"def {kernel.name}({', '.join([*(p.name for p in kernel.params), *map(self.number, kernel.symbols)])}):"

    def tail(self, kernel: LoopKernel) -> str:
        return "    return"

    def literal(self, value: bool | int | float, dtype: torch.dtype) -> str:
        return f"float('{value}')" if dtype.is_floating_point else repr(value)

    def index(self, expression: index.Int) -> str | None:
        return index.to_python(expression)

    def compile(self, kernels: Sequence[tuple[LoopKernel, str]]) -> list[Launch]:
        scope: dict[str, Any] = {"math": math}
        exec("\n".join(text for _, text in kernels), scope)

        def launch(name: str) -> Launch:
            return lambda buffers, symbols: scope[name](*map(flat, buffers), *symbols)

        return [launch(kernel.name) for kernel, _ in kernels]


class Python:
    @hookimpl
    def backend(self) -> Backend:
        return Backend(name="pythontext", version="1", dtypes=frozenset({torch.float32, torch.int64, torch.bool}))

    @hookimpl
    def emitter(self, options: Mapping[str, Any]) -> Emitter:
        return PythonEmitter()


def ran(function: Callable[..., torch.Tensor], *inputs: torch.Tensor, fallback: str = "error", **options: Any) -> torch.Tensor:
    if not loader.known("pythontext"):
        vendor_sdk.register(Python())
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(function, backend="pythontext", options={"fallback": fallback}, **options)
        return cast(torch.Tensor, compiled(*inputs))


def test_a_kernel_that_raises_is_named_with_its_prims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast(dict[str, str], OPS), "tanh", "{0}.nonsense()")
    with pytest.raises(vendor_sdk.KernelError, match=r"'tanh_mul', which fuses tanh and mul, on .*AttributeError") as caught:
        ran(lambda x: torch.tanh(x) * x, torch.randn(3))
    assert "--prims tanh,mul`" in str(caught.value)


def test_an_index_out_of_range_is_the_programs_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast(dict[str, str], OPS), "wrap_index", "range({1})[{0}]")
    table = torch.randn(5, 3)

    def rows(table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(places, table) * 2

    torch.testing.assert_close(ran(rows, table, torch.tensor([4, 0])), rows(table, torch.tensor([4, 0])))
    with pytest.raises(IndexError, match="out of range") as caught:
        ran(rows, table, torch.tensor([1, 5]))
    (note,) = caught.value.__notes__
    assert "which fuses index and mul, on (int64[2], float32[5, 3])" in note
    assert "test_table_emitter.py" in note


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x, y: torch.tanh(x) * y - 1, [(3, 5), (5,)]),
        (lambda x, w: x @ w, [(3, 5), (5, 2)]),
        (lambda x: torch.softmax(x, -1), [(3, 5)]),
        (lambda x: torch.nn.functional.pad(x, (1, 2), value=7.0), [(3, 5)]),
        (lambda x: x.argmax(0), [(4, 5)]),
        (lambda x: torch.full_like(x, -math.inf).argmax(1), [(4, 5)]),
        (lambda x: x.cumsum(1), [(3, 5)]),
        (lambda x: x.sum(1), [(3, 0)]),
        (lambda x: x.sum(), [(130, 3)]),
    ],
)
def test_what_a_table_writes_computes_what_torch_does(
    function: Callable[..., torch.Tensor], inputs: Sequence[tuple[int, ...]]
) -> None:
    values = [torch.randn(shape) for shape in inputs]
    torch.testing.assert_close(ran(function, *values), function(*values))


def test_an_output_of_another_dtype_is_not_rearranged_by_the_backend() -> None:
    x = torch.arange(15, dtype=torch.int16).reshape(3, 5)
    result = ran(lambda x: x.t() * 2, x, fallback="host")
    assert result.stride() == (1, 5)
    assert torch.equal(result, x.t() * 2)


def test_flat_memory_is_what_indices_count_in() -> None:
    x = torch.randn(4, 6)[1:, 2:5].t().requires_grad_()
    assert torch.equal(flat(x)[1 * 1 + 2 * 6], x[1, 2])
    assert len(flat(x)) == 2 * 6 + 3
    assert len(flat(x[:0])) == 0
    y = torch.randn(5, 3)
    torch.testing.assert_close(ran(lambda x, y: x.exp() + y[:3], x, y), (x.exp() + y[:3]).detach())


def test_symbolic_sizes_and_numbers_reach_the_text() -> None:
    for rows in (3, 4, 6):
        x = torch.randn(rows, 5)
        torch.testing.assert_close(ran(lambda x: (x * x.shape[0]).sum(0), x, dynamic=True), (x * rows).sum(0))


def test_text_of_one_kernel() -> None:
    n, row, column = ix.symbol("n", 1), ix.variable("i", ix.symbol("n", 1)), ix.variable("j", 4)
    body = (
        Const("zero", 0.0, torch.float32),
        Scan(
            Range("j", ix.wrap(4)),
            (Load("v", "x", row * 4 + column, torch.float32),),
            (vendor_sdk.loop.Accumulator(("s",), "sum", ("v",), torch.float32),),
            (Store("y", row * 4 + column, "s"),),
        ),
        Index("at", n // 3),
    )
    params = (Param("x", torch.float32, n * 4, "in"), Param("y", torch.float32, n * 4, "out"))
    kernel = LoopKernel("k", params, (Symbol("n"),), (Nest((Range("i", n),), body),))
    assert PythonEmitter().emit(kernel) == (
        "def k(x, y, n):\n"
        "    for i in range(n):\n"
        "        zero = float('0.0')\n"
        "        s = float('0')\n"
        "        for j in range(4):\n"
        "            v = x[4 * i + j]\n"
        "            s = s + v\n"
        "            y[4 * i + j] = s\n"
        "        pass\n"
        "        at = (n // 3)\n"
        "    pass\n"
        "    return\n"
    )
    buffers = [torch.randn(12), torch.zeros(12)]
    interpret(kernel, buffers, [3])
    assert torch.equal(buffers[1], buffers[0].reshape(3, 4).cumsum(1).reshape(-1))


def test_an_index_without_expressions_is_computed_by_the_table() -> None:
    class Registers(PythonEmitter):
        ops = {**OPS, "floordiv": "{0} // {1}"}  # noqa: RUF012

        def index(self, expression: index.Int) -> str | None:
            return None

    i = ix.variable("i", 12)
    kernel = LoopKernel(
        "k",
        (Param("x", torch.float32, ix.wrap(12), "in"), Param("y", torch.float32, ix.wrap(12), "out")),
        (),
        (Nest((Range("i", ix.wrap(12)),), (Load("v", "x", i // 5 * 3 + 2, torch.float32), Store("y", i, "v"))),),
    )
    emitter = Registers()
    text = emitter.emit(kernel)
    assert "index3 = i // index2" in text
    x, y = torch.randn(12), torch.zeros(12)
    emitter.compile([(kernel, text)])[0]([x, y], [])
    assert torch.equal(y, x[torch.arange(12) // 5 * 3 + 2])


def test_a_prim_whose_loops_need_another_type_is_declined_with_the_reason(register: Callable[..., str]) -> None:
    class Single(PythonEmitter):
        types = {dtype: name for dtype, name in PythonEmitter.types.items() if dtype != torch.float64}  # noqa: RUF012

    class Chip:
        @hookimpl
        def backend(self) -> Backend:
            return Backend(name="singletext", version="1", dtypes=frozenset(Single.types))

        @hookimpl
        def emitter(self) -> Emitter:
            return Single()

    register(Chip())
    call = vendor_sdk.trace(lambda: (torch.arange(0.1, 2, 0.3), torch.arange(5)), ())
    compiled = vendor_sdk.compile_graph(call, backend="singletext")
    placed = [(str(each.placement.kind), each.placement.reason) for each in compiled.placements if each.prim == "arange"]
    assert placed == [("host", "the emitter lacks the types float64"), ("native", "")]
    assert torch.equal(compiled()[0], torch.arange(0.1, 2, 0.3))


def test_texts_have_numbers_of_their_own_and_ends_know_their_range() -> None:
    class Numbered(PythonEmitter):
        ops = {**OPS, "store": "at{n} = {index}\n{param}[at{n}] = {0}", "end": "pass  # {var} < {size}"}  # noqa: RUF012

    i = ix.variable("i", 12)
    kernel = LoopKernel(
        "k",
        (Param("x", torch.float32, ix.wrap(12), "in"), Param("y", torch.float32, ix.wrap(12), "out")),
        (),
        (Nest((Range("i", ix.wrap(12)),), (Load("v", "x", i, torch.float32), Store("y", i, "v"), Store("y", i, "v"))),),
    )
    text = Numbered().emit(kernel)
    places = re.findall(r"(at\d+) = i\n", text)
    assert len(set(places)) == len(places) == 2
    assert "pass  # i < 12" in text
    assert Numbered().emit(kernel) == text


def test_missing_statements_are_named() -> None:
    class Half(PythonEmitter):
        ops = {name: text for name, text in OPS.items() if name not in ("move", "end")}  # noqa: RUF012

    with pytest.raises(ContractError, match=r"Half\.ops has no text for 'move', 'end'"):
        Half()


def test_dtypes_of_all_values() -> None:
    i, j = ix.variable("i", 3), ix.variable("j", 4)
    maximum = vendor_sdk.loop.Accumulator(("m", "p"), "argmax", ("v", "q"), torch.float32)
    inner = Reduce((Range("j", ix.wrap(4)),), (Load("v", "x", i * 4 + j, torch.float32), Index("q", j)), (maximum,))
    params = (Param("x", torch.float32, ix.wrap(12), "in"), Param("y", torch.int64, ix.wrap(3), "out"))
    kernel = LoopKernel("k", params, (), (Nest((Range("i", ix.wrap(3)),), (inner, Store("y", i, "p"))),))
    whole = torch.int64
    assert dtypes(kernel) == {"i": whole, "j": whole, "v": torch.float32, "q": whole, "m": torch.float32, "p": whole}


def test_folding_an_index_gives_its_value() -> None:
    i, s = ix.variable("i", 7), ix.symbol("s", 1)
    expression = ix.minimum(i * s * 2 + 5, s % 4 - 3) + (i + s) // 3
    arithmetic = {
        "add": int.__add__,
        "mul": int.__mul__,
        "floordiv": int.__floordiv__,
        "mod": int.__mod__,
        "min": min,
        "max": max,
    }
    for values in ({"i": 2, "s": 5}, {"i": 6, "s": 1}):
        folded = ix.fold(
            expression, lambda leaf: leaf if isinstance(leaf, int) else values[leaf], lambda op, a, b: arithmetic[op](a, b)
        )
        assert folded == ix.evaluate(expression, values) == eval(ix.to_python(expression), {"min": min}, dict(values))
