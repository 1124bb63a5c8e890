"""Index expressions, the loop IR, its printer, verifier and interpreter."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from tests.lowered import call, flat
from vendor_sdk.errors import LoweringError
from vendor_sdk.ir import index as ix
from vendor_sdk.ir import loop
from vendor_sdk.ir.loop import Accumulator, Compute, Const, Index, Load, LoopKernel, Nest, Param, Range, Reduce, Scan, Store
from vendor_sdk.ir.loop_interpreter import interpret
from vendor_sdk.ir.loop_ops import COMBINE, OPS, philox
from vendor_sdk.ir.loop_print import read, text
from vendor_sdk.ir.loop_verify import verify
from vendor_sdk.lower import LOWERINGS, VIEWS
from vendor_sdk.prims.opset import OPSET
from vendor_sdk.prims.samples import Effort, SampleContext

F32 = torch.float32
N = ix.symbol("n", 2)
M = ix.symbol("m", 2)
I = ix.variable("i", N)  # noqa: E741
J = ix.variable("j", M)
K = ix.variable("k", 8)
L = ix.variable("l", 8 * N * M)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ((I * M + J) // M, I),
        ((I * M + J) % M, J),
        ((K // 4) * 4 + K % 4, K),
        ((J * 8 + K) // 8, J),
        ((J * 8 + K) % 8, K),
        (K // 2 // 2, K // 4),
        (L // N // M, L // (N * M)),
        (L % N + N * (L // N), L),
        (L % N + N * (L // N % M) + N * M * (L // N // M), L),
        ((K * N * M + L) // (N * M) % 64, K + L // (N * M)),
        (ix.minimum(L // N % M, M), L // N % M),
        ((N * M) // M, N),
        ((K * 2) % 4, (K % 2) * 2),
        (ix.minimum(I, N), I),
        (ix.maximum(K, 0), K),
        (ix.minimum((N + 1) // 2, N), (N + 1) // 2),
        (ix.maximum(N - N // 3, 1), N - N // 3),
        (ix.maximum(N * M * 3, N * M + 2 * M), N * M * 3),
        (ix.maximum(M * N - M * (N // 2), M), M * N - M * (N // 2)),
        (I - I, ix.ZERO),
    ],
)
def test_index_expressions_simplify(expression: ix.Int, expected: ix.Int) -> None:
    assert expression == expected


def test_symbols_of_one_name_have_what_is_known_of_each() -> None:
    """Expressions are equal by their names alone; what follows from a symbol's range does not carry over to another range."""
    for below in (4, 8, 4):
        i = ix.variable("i", below)
        assert (i // 4 == 0) == (i % 4 == i) == ix.less(i, 4) == (below == 4)
    for size in (ix.symbol("s", 3), ix.symbol("s", 2), ix.symbol("s", 3)):
        i = ix.variable("i", size - 2)  # a range within a range
        assert ix.nonnegative(size - 3 - i * 0) == (ix.symbols(size)["s"].lower == 3)
        assert ix.nonnegative(size - 3 - i) is True


def test_index_expressions_keep_their_value() -> None:
    """Random expressions: simplified or not, printed or not, the value is what Python computes."""
    draw = random.Random(0)
    for _ in range(1200):
        variables = {"a": draw.randint(0, 6), "b": draw.randint(0, 4), "s": draw.randint(2, 9), "c": 0}
        variables["c"] = draw.randint(0, variables["s"] - 1)
        s = ix.symbol("s", 2)
        terms: list[tuple[ix.Int, int]] = [
            (ix.variable("a", 7), variables["a"]),
            (ix.variable("b", 5), variables["b"]),
            (ix.variable("c", s), variables["c"]),
            (s, variables["s"]),
        ]
        for _ in range(draw.randint(1, 6)):
            (left, x), (right, y) = draw.choice(terms), draw.choice(terms)
            c = draw.randint(1, 6)
            terms.append(
                draw.choice(
                    [
                        (left + right, x + y),
                        (left - right, x - y),
                        (left * c, x * c),
                        (left * right, x * y),
                        (left // c, x // c),
                        (left % c, x % c),
                        (ix.minimum(left, right), min(x, y)),
                        (ix.maximum(left, right), max(x, y)),
                        (left // s, x // variables["s"]),
                        (left % s, x % variables["s"]),
                        (left // s * s + left % s, x),
                        (left // s // (s + c), x // variables["s"] // (variables["s"] + c)),
                    ]
                )
            )
        expression, value = terms[-1]
        assert ix.evaluate(expression, variables) == value
        assert eval(ix.to_python(expression), {"min": min, "max": max}, variables) == value
        low, high = ix.bounds(expression)
        assert low is None or low <= value
        assert high is None or value <= high
        assert value >= 0 or not ix.nonnegative(expression)


def test_a_stride_is_what_one_step_adds() -> None:
    position = I * M * 3 + J + 5
    assert ix.stride(position, "i") == M * 3
    assert ix.stride(position, "j") == 1
    assert ix.stride(position, "k") == 0
    assert ix.stride(J // 2, "j") is None


def softmax() -> LoopKernel:
    """What fusion will make of softmax: two reductions and a store over one row."""
    rows, columns, row, column = Range("i", N), M, ix.variable("i", N), "j"

    def element(to: str, var: str) -> Load:
        return Load(to, "x", row * columns + ix.variable(var, columns), F32)

    top = Reduce((Range("r", columns),), (element("a", "r"),), (Accumulator(("top",), "max", ("a",), F32),))
    total = Reduce(
        (Range("q", columns),),
        (element("b", "q"), Compute("c", "sub", ("b", "top"), F32), Compute("d", "exp", ("c",), F32)),
        (Accumulator(("total",), "sum", ("d",), F32),),
    )
    out = Nest(
        (Range(column, columns),),
        (
            element("e", column),
            Compute("f", "sub", ("e", "top"), F32),
            Compute("g", "exp", ("f",), F32),
            Compute("h", "div", ("g", "total"), F32),
            Store("y", row * columns + ix.variable(column, columns), "h"),
        ),
    )
    return LoopKernel(
        "softmax",
        (Param("x", F32, N * M, "in"), Param("y", F32, N * M, "out")),
        (loop.Symbol("m", lower=2), loop.Symbol("n", lower=2)),
        (Nest((rows,), (top, total, out)),),
    )


def test_a_fused_kernel_is_expressible() -> None:
    kernel = softmax()
    verify(kernel)
    assert loop.required_ops(kernel) == {"reduce.max", "reduce.sum", "sub", "exp", "div", "nest"}
    x, y = torch.randn(5, 7), torch.empty(35)
    interpret(kernel, [flat(x), y], [7, 5])
    torch.testing.assert_close(y.view(5, 7), x.softmax(1))


def test_kernels_print_and_read_back() -> None:
    kernel = softmax()
    assert read(text(kernel)) == kernel


def _lowered_rows() -> list[str]:
    return sorted(name for name in OPSET if name in LOWERINGS or name in VIEWS)


@pytest.mark.parametrize("name", _lowered_rows())
def test_every_lowering_is_valid_and_reads_back(name: str) -> None:
    row = OPSET[name]
    checked = 0
    for sample in row.samples(SampleContext.make(row.dtypes[0], Effort.QUICK)):
        try:
            kernel = call(row.target, sample.args, sample.kwargs).lowered.kernel
        except LoweringError:
            continue
        checked += 1
        verify(kernel)
        assert text(read(text(kernel))) == text(kernel)
        assert read(text(kernel)) == kernel or "nan" in text(kernel)
    assert checked, "no sample of this prim was lowered"


@pytest.mark.parametrize(
    "source",
    ["__import__('os')", "LoopKernel.__class__", "[1]", "Load(to='a', param='x', index=q, dtype=torch.float32)", "1 ** 2"],
)
def test_reading_refuses_anything_else(source: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read(source)


def _copy(place: ix.Int, size: int) -> LoopKernel:
    """Three elements at ``place``, a function of the loop variable i."""
    params = Param("x", F32, ix.wrap(size), "in"), Param("y", F32, ix.wrap(3), "out")
    stores = Load("a", "x", place, F32), Store("y", ix.variable("i", 3), "a")
    return LoopKernel("copy", params, (), (Nest((Range("i", ix.wrap(3)),), stores),))


def test_the_verifier_takes_the_first_and_the_last_element() -> None:
    for place in (ix.variable("i", 3) * 2 + 1, ix.variable("i", 3) * -2 + 4, ix.variable("i", 3) + 3):
        verify(_copy(place, 6))


@pytest.mark.parametrize("stored", [False, True])
def test_the_interpreter_knows_nothing_before_the_first_element(*, stored: bool) -> None:
    before = ix.variable("i", 3) - 1
    kernel = _copy(before, 6)
    if stored:
        (nest,) = kernel.body
        load, store = nest.body
        body = dataclasses.replace(load, index=ix.ZERO), dataclasses.replace(store, index=before)
        kernel = dataclasses.replace(kernel, body=(dataclasses.replace(nest, body=body),))
    with pytest.raises(IndexError, match="element -1 of a buffer"):
        interpret(kernel, [torch.zeros(6), torch.zeros(3)], [])


def _broken() -> list[tuple[str, LoopKernel]]:
    good = softmax()
    nest = good.body[0]

    def body(*stmts: loop.Stmt) -> LoopKernel:
        return dataclasses.replace(good, body=(Nest(nest.ranges, stmts),))

    load = Load("a", "x", ix.variable("i", N), F32)
    return [
        ("assigned twice", body(load, load)),
        ("not in scope", body(Store("y", ix.ZERO, "nothing"))),
        ("no param", body(dataclasses.replace(load, param="z"))),
        ("needs an output", body(load, Store("x", ix.ZERO, "a"))),
        ("no such op", body(load, Compute("b", "frobnicate", ("a",), F32))),
        ("takes 2 operands", body(load, Compute("b", "add", ("a",), F32))),
        ("one dtype", body(load, Index("b", ix.ZERO), Compute("c", "add", ("a", "b"), F32))),
        ("param's dtype", body(Const("b", 1.0, torch.float64), Store("y", ix.ZERO, "b"))),
        ("no loop variable", body(dataclasses.replace(load, index=ix.symbol("q")))),
        ("mask and other", body(Const("t", True, torch.bool), dataclasses.replace(load, mask="t"))),
        ("elements 2 to 6 of a param of 6", _copy(ix.variable("i", 3) * 2 + 2, 6)),
        ("elements -1 to 1 of a param of 6", _copy(ix.variable("i", 3) - 1, 6)),
        ("no reduce of", body(Reduce((), (load,), (Accumulator(("b",), "logaddexp", ("a",), F32),)))),
    ]


@pytest.mark.parametrize(("rule", "kernel"), _broken(), ids=[rule for rule, _ in _broken()])
def test_the_verifier_names_the_broken_rule(rule: str, kernel: LoopKernel) -> None:
    with pytest.raises(AssertionError, match=rule):
        verify(kernel)


def test_a_scan_runs_in_order_and_shows_each_step() -> None:
    i = ix.variable("i", 6)
    kernel = LoopKernel(
        "running",
        (Param("x", torch.int64, ix.wrap(6), "in"), Param("y", torch.int64, ix.wrap(6), "out")),
        (),
        (
            Nest(
                (),
                (
                    Scan(
                        Range("i", ix.wrap(6)),
                        (Load("a", "x", i, torch.int64),),
                        (Accumulator(("s",), "sum", ("a",), torch.int64),),
                        (Store("y", i, "s"),),
                    ),
                ),
            ),
        ),
    )
    verify(kernel)
    y = torch.empty(6, dtype=torch.int64)
    interpret(kernel, [torch.arange(6), y])
    assert y.tolist() == [0, 1, 3, 6, 10, 15]


def test_an_index_out_of_range_is_an_error() -> None:
    with pytest.raises(IndexError):
        OPS["wrap_index"].reference(torch.tensor([3]), torch.tensor([3]))
    assert OPS["wrap_index"].reference(torch.tensor([-1]), torch.tensor([3])).tolist() == [2]


def test_philox_matches_the_published_vectors() -> None:
    """Random123's known-answer test for a zero counter and key."""
    zero = torch.zeros((), dtype=torch.int64)
    words = [int(philox(zero, zero, torch.tensor(w))) for w in range(4)]
    assert words == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_the_tables_are_of_the_promised_size_and_documented() -> None:
    assert 60 <= len(OPS) <= 110
    assert all(row.meaning and row.name == name for name, row in OPS.items())
    assert all(row.meaning and row.name == name for name, row in COMBINE.items())


def softmax_rows() -> LoopKernel:
    """A fused kernel as the scheduler makes it: one row an iteration, its exponentials kept for the second inner loop."""
    row, r0, r1, col = ix.variable("row", N), ix.variable("r0", M), ix.variable("r1", M), ix.variable("col", M)
    kept = Param("kept", F32, M, "local")
    body = (
        loop.Local(kept),
        Reduce((Range("r0", M),), (Load("v0", "x", row * M + r0, F32),), (Accumulator(("top",), "max", ("v0",), F32),)),
        Reduce(
            (Range("r1", M),),
            (
                Load("v1", "x", row * M + r1, F32),
                Compute("v2", "sub", ("v1", "top"), F32),
                Compute("v3", "exp", ("v2",), F32),
                Store("kept", r1, "v3"),
            ),
            (Accumulator(("total",), "sum", ("v3",), F32),),
        ),
        Nest(
            (Range("col", M),),
            (
                Load("v4", "kept", col, F32),
                Compute("v5", "div", ("v4", "total"), F32),
                Store("out", row * M + col, "v5"),
            ),
        ),
    )
    params = (Param("x", F32, N * M, "in"), Param("out", F32, N * M, "out"))
    symbols = (loop.Symbol("m", lower=2), loop.Symbol("n", lower=2))
    return LoopKernel("softmax", params, symbols, (Nest((Range("row", N),), body),))


def test_a_row_is_kept_in_a_local_buffer() -> None:
    kernel = softmax_rows()
    verify(kernel)
    assert read(text(kernel)) == kernel
    assert {"local", "nest"} <= loop.required_ops(kernel)
    x, out = torch.randn(5, 7), torch.empty(35)
    interpret(kernel, [x.flatten(), out], [7, 5])
    torch.testing.assert_close(out.reshape(5, 7), torch.softmax(x, -1))


def test_a_local_buffer_ends_with_its_body() -> None:
    kernel = softmax_rows()
    (nest,) = kernel.body
    outside = dataclasses.replace(kernel, body=(nest, Nest((), (Load("w", "kept", ix.ZERO, F32),))))
    with pytest.raises(AssertionError, match="no param is called kept"):
        verify(outside)
