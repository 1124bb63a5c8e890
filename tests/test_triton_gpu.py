"""The Triton backend on a machine without a GPU: numerics through Triton's interpreter, machine code for named GPUs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

import vendor_sdk
from reference_backends.triton_gpu import indices, launch, plugin
from reference_backends.triton_gpu.analysis import late
from reference_backends.triton_gpu.divide import divided
from reference_backends.triton_gpu.emitter import OPS, Elsewhere, TritonEmitter, functions
from reference_backends.triton_gpu.together import independent
from tests import lowered
from tests.test_hoist import halves
from vendor_sdk import ALL, STORED, Backend, Launch, LoopKernel, TorchDevice, hoist, hookimpl, index, loop
from vendor_sdk.lower.group import chunks_apart
from vendor_sdk.prims.opset import OPSET

ROOT = Path(__file__).resolve().parent.parent

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed: pip install 'triton>=3.6' (in the extra 'test')",
)
of_triton_3_6 = importlib.util.find_spec("triton") is not None and version("triton").startswith("3.6.")
"""Whether machine code is of the assembler that the figures are of."""


class Recorder(TritonEmitter):
    """Keeps what a graph would compile, and computes nothing."""

    def __init__(self) -> None:
        self.kernels: list[tuple[LoopKernel, str]] = []

    def compile(self, kernels: Sequence[tuple[LoopKernel, str]]) -> list[Launch]:
        self.kernels.extend(kernels)
        return [lambda buffers, symbols: None for _ in kernels]


class OnPaper:
    """The plugin with an emitter that records, on any machine."""

    name = "triton_on_paper"

    def __init__(self) -> None:
        self.recorder = Recorder()

    @hookimpl
    def backend(self) -> Backend:
        return Backend(name=self.name, version="0", dtypes=frozenset(STORED))

    @hookimpl
    def device(self) -> TorchDevice:
        return TorchDevice("cpu")

    @hookimpl
    def emitter(self) -> Recorder:
        return self.recorder


@pytest.fixture
def emitted(register: Callable[..., str]) -> Callable[..., list[tuple[LoopKernel, str]]]:
    """``emitted(function, *inputs)``: the kernels of a function of tensors, with their text."""
    chip = OnPaper()
    register(chip)

    def kernels(function: Callable[..., Any], *inputs: torch.Tensor) -> list[tuple[LoopKernel, str]]:
        chip.recorder.kernels.clear()
        vendor_sdk.compile_graph(vendor_sdk.trace(function, inputs), backend=chip.name)
        return list(chip.recorder.kernels)

    return kernels


# What the machine lacks


def test_the_plugin_needs_neither_triton_nor_a_gpu_to_be_read() -> None:
    code = "import sys; sys.modules['triton'] = None; from reference_backends.triton_gpu import plugin; plugin.backend()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Mapping[str, Any] = {"triton": object()}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found.get(name))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert plugin.backend().requires().startswith("no CUDA device")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Old GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert plugin.backend().requires() == "Old GPU has compute capability 7.5, and 8.0 is needed"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert plugin.backend().requires() == ""
    found = {}
    assert plugin.backend().requires() == "triton is not installed: pip install 'triton>=3.6'"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_loading_gives_the_reason() -> None:
    with pytest.raises(vendor_sdk.PluginLoadError, match=re.escape(plugin.backend().requires())):
        vendor_sdk.load("triton_gpu")


# Text


def test_every_op_of_the_table_is_an_op() -> None:
    from vendor_sdk.ir.loop_ops import COMBINE
    from vendor_sdk.ir.loop_ops import OPS as KNOWN

    rows = {*KNOWN, "scratch", "nest", *(f"{kind}.{name}" for kind in ("reduce", "scan") for name in COMBINE)}
    rows |= {"contraction", *(f"store.{mode}" for mode in ("add", "mul", "max", "min"))}
    assert set(OPS) <= rows


def test_equal_kernels_give_equal_text(emitted: Callable[..., list[tuple[LoopKernel, str]]]) -> None:
    x = torch.ones(3, 67)
    first, second = (emitted(lambda a: a.softmax(1), x) for _ in range(2))
    assert first == second
    assert len(first) == 1


def test_other_dtypes_have_other_text(emitted: Callable[..., list[tuple[LoopKernel, str]]]) -> None:
    dtypes = [d for d in ALL if d is not torch.bool]
    assert len({emitted(torch.abs, torch.ones(3, 67).to(d))[0][1] for d in dtypes}) == len(dtypes)


def test_contiguous_operands_are_read_in_order(emitted: Callable[..., list[tuple[LoopKernel, str]]]) -> None:
    ((_, text),) = emitted(lambda a: a.exp(), torch.ones(5, 6, 7))
    assert "tl.load(in0 + (x_index), mask=x_mask" in text


def test_a_row_is_read_once_and_divided_by_its_own_reciprocal(emitted: Callable[..., list[tuple[LoopKernel, str]]]) -> None:
    ((_, text),) = emitted(lambda a: a.softmax(1), torch.ones(64, 5000))
    assert text.count("tl.load(in0") == 2  # 4,096 and 904 columns
    assert "for " not in text
    assert text.count("libdevice.exp") == 2
    assert "base.div_by" in text


def test_quotients_that_are_rounded_take_two_multiplications(
    emitted: Callable[..., list[tuple[LoopKernel, str]]],
) -> None:
    half = torch.ones(64, 256, dtype=torch.bfloat16)
    ((_, text),) = emitted(lambda a: a.softmax(1), half)
    assert "base.quotient_by" in text
    for function in (lambda a: a.softmax(1, dtype=torch.float32), lambda a: a.half().softmax(1)):
        ((_, text),) = emitted(function, half)
        assert "base.div_by" in text
        assert "quotient_by" not in text


def test_gelu_that_is_rounded_takes_one_fit(emitted: Callable[..., list[tuple[LoopKernel, str]]]) -> None:
    def quick(function: Callable[..., Any], dtype: torch.dtype = torch.bfloat16) -> bool:
        ((_, text),) = emitted(function, torch.ones(64, 256, dtype=dtype))
        return "base.one_and_erf" in text

    gelu = torch.nn.functional.gelu
    assert quick(gelu)
    assert quick(gelu, torch.float16)
    assert not quick(gelu, torch.float32)
    assert not quick(lambda a: gelu(a.float()))
    # Where something is taken away, what is left may be as small as the error.
    assert not quick(lambda a: torch.ops.aten.gelu_backward(a, a * 2))
    assert not quick(lambda a: (1 + a.float().erf() - 1).bfloat16())
    assert not quick(lambda a: (2 + a.float().erf()).bfloat16())


def test_weights_of_which_only_halves_follow_take_two_instructions(
    emitted: Callable[..., list[tuple[LoopKernel, str]]],
) -> None:
    def exponentials(function: Callable[..., Any], x: torch.Tensor) -> tuple[int, int, int]:
        ((_, text),) = emitted(function, x)
        return tuple(text.count(name) for name in ("libdevice.exp(", "base.weight(", "== float('-inf')"))  # type: ignore[return-value]

    halves, singles = torch.ones(64, 256, dtype=torch.bfloat16), torch.ones(64, 256)
    long = torch.ones(1, 1, dtype=torch.bfloat16).expand(600, 32_000).contiguous()
    longer = torch.ones(1, 1, dtype=torch.bfloat16).expand(600, 40_000).contiguous()
    assert exponentials(lambda a: a.softmax(1), halves) == (0, 1, 0)
    assert exponentials(lambda a: a.log_softmax(1), halves) == (0, 1, 0)
    assert exponentials(lambda a: a.half().softmax(1), halves) == (0, 1, 0)
    assert exponentials(lambda a: a.softmax(1), singles) == (1, 0, 0)
    assert exponentials(lambda a: a.softmax(1, dtype=torch.float32), halves) == (1, 0, 0)
    # What is compared, or no gap to the largest value, may not be off.
    assert exponentials(lambda a: (a.float().softmax(1) > 0.5).bfloat16(), halves) == (1, 0, 0)
    assert exponentials(lambda a: (a.float() - 3).exp().bfloat16(), halves) == (1, 0, 0)

    def other_rows(a: torch.Tensor) -> torch.Tensor:
        """Of which all may be too small for float32."""
        return (a.float() - (a.float() * 2).amax(1, keepdim=True)).exp().sum(1).log().bfloat16()

    assert exponentials(other_rows, halves) == (1, 0, 0)
    # In parts: the powers of a tile's elements and of the running sums, compared once for each of these, and those that remain.
    _, powers, compared = exponentials(lambda a: a.softmax(1), long)
    assert (powers, compared) == (3, 1)
    # In parts of several programs: an element's gap to the largest of its part, and to that of the row.
    _, powers, compared = exponentials(lambda a: a.softmax(1), longer)
    assert (powers, compared) == (2, 0)


@pytest.mark.parametrize(
    ("columns", "rows", "parts", "kind"),
    [
        (4096, 16384, 8, "deep"),
        (1024, 65536, 32, "deep"),
        (32768, 2048, 1, "deep"),
        (262144, 256, 1, "across"),
        (64, 300, 1, "across"),
    ],
)
def test_columns_are_divided_among_as_many_programs_as_run_at_once(
    emitted: Callable[..., list[tuple[LoopKernel, str]]], columns: int, rows: int, parts: int, kind: str
) -> None:
    assert launch.parts(columns, [rows], "across", vectors=True) == parts
    ((_, text),) = emitted(lambda a: a.sum(0), torch.empty(rows, columns))
    assert f'_0, "{kind}"' in text


@pytest.mark.parametrize(("columns", "most", "loops"), [(4096, 17, 2), (1023, 64, 4)])
def test_columns_of_as_many_rows_as_a_call_has_have_masks_in_their_last_tiles_only(columns: int, most: int, loops: int) -> None:
    """They are in as many parts as columns of known length are, begin with vectors, and do not stay in caches."""
    rows = index.symbol("s0", 0)
    place = index.variable("i1", rows) * columns + index.variable("i0", index.wrap(columns))
    total = loop.Reduce(
        (loop.Range("i1", rows),),
        (loop.Load("v0", "in0", place, torch.bfloat16), loop.Compute("v1", "convert", ("v0",), torch.float32)),
        (loop.Accumulator(("a0",), "sum", ("v1",), torch.float32),),
    )
    store = loop.Store("out0", index.variable("i0", index.wrap(columns)), "a0")
    params = (
        loop.Param("in0", torch.bfloat16, rows * columns, "in"),
        loop.Param("out0", torch.float32, index.wrap(columns), "out"),
    )
    nest = loop.Nest((loop.Range("i0", index.wrap(columns)),), (total, store))
    text = TritonEmitter().emit(LoopKernel("columns", params, (loop.Symbol("s0"),), (nest,)))
    assert f"min((s0 // 256), {most})" in text
    (function,) = (each for each in text.split("@triton.jit") if "def columns_0(" in each)
    assert ("if (x_start > 0)" in function) == (loops == 4)
    bounds = re.findall(r"for start_\d+ in range\((.*), (.*), R0\):", function)
    loads = re.findall(r"tl.load\(in0.*\)", function)
    assert len(bounds) == len(loads) == loops
    for k in range(0, loops, 2):
        assert bounds[k][1] == bounds[k + 1][0]
        assert ("r_0_mask" in loads[k], "r_0_mask" in loads[k + 1]) == (False, True)
    assert all("evict_first" in load for load in loads)


def test_two_totals_of_wide_rows_are_one_kernel_of_small_tiles(
    emitted: Callable[..., list[tuple[LoopKernel, str]]],
) -> None:
    """What a total is of is computed again, from what the other one reads."""
    assert launch.parts(32768, [2048], "across", vectors=True, small=True) == 2
    row, number = torch.empty(32768, dtype=torch.bfloat16), torch.empty(1, 1).expand(2048, 1).contiguous()
    matrix = row.expand(2048, -1).contiguous()

    def backward(g: torch.Tensor, x: torch.Tensor, m: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
        return torch.ops.aten.native_layer_norm_backward(g, x, [32768], m, r, w, w, [True, True, True])

    _, (kernel, totals) = emitted(backward, matrix, matrix.clone(), number, number, row)
    assert [p.role for p in kernel.params].count("out") == 2
    assert '_0, "across"' in totals


def test_rows_with_totals_are_taken_in_even_blocks(emitted: Callable[..., list[tuple[LoopKernel, str]]]) -> None:
    assert [len(launch.even_blocks(n)) for n in (614, 615, 1024, 3072, 5000, 5200, 10240, 10241)] == [0, 3, 0, 3, 5, 3, 5, 0]

    def text_of(rows: int, columns: int) -> str:
        matrix, number = torch.empty(rows, columns, dtype=torch.bfloat16), torch.empty(rows, 1)

        def backward(g: torch.Tensor, x: torch.Tensor, m: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
            return torch.ops.aten.native_layer_norm_backward(g, x, [columns], m, r, w, w, [True, True, True])

        return emitted(backward, matrix, matrix.clone(), number, number, matrix[0])[0][1]

    text = text_of(600, 5000)
    rows, _ = text.split("\n\n\nlaunch_", 1)
    # One reduction of all pieces, and what follows from the operands is computed again after it.
    assert rows.count("tl.reduce(") == 2
    assert rows.count("base.again(") == 15
    assert "base.again(" not in text_of(600, 4096)


def test_rows_that_are_read_again_stay_in_the_cache(emitted: Callable[..., list[tuple[LoopKernel, str]]]) -> None:
    """What the last loop reads, and rows that two programs have no room for, are left to the cache's own judgement."""

    def policies(columns: int, dtype: torch.dtype) -> list[str]:
        x = torch.empty(512, columns, dtype=dtype)
        ((_, text),) = emitted(lambda x, w: x * (x.square().mean(1, True) + 1e-6).rsqrt() * w, x, x[0])
        return [line.partition("eviction_policy=")[2][:-1] for line in text.splitlines() if "tl.load(in0" in line]

    assert policies(4096, torch.bfloat16) == [""]
    assert policies(32768, torch.bfloat16) == ['"evict_last"', ""]
    large = policies(32761, torch.float32)
    assert len(large) > 1
    assert not any(large)


def test_tables_that_many_iterations_read_stay_in_the_cache(emitted: Callable[..., list[tuple[LoopKernel, str]]]) -> None:
    x, table = torch.empty(8, 64, 96), torch.empty(64, 96)
    ((kernel, text),) = emitted(lambda x, t, s: x * t + s, x, table, table[:, :1])
    kept = [line for line in text.splitlines() if "tl.load(" in line and "evict_last" in line]
    shared = next(p.name for p in kernel.params if p.size.value == 64 * 96)
    assert kept
    assert all(f"tl.load({shared} " in line for line in kept)


def test_what_is_read_once_makes_room(emitted: Callable[..., list[tuple[LoopKernel, str]]]) -> None:
    ((_, text),) = emitted(lambda x: x.square().sum(), torch.empty(1 << 26, dtype=torch.bfloat16))
    first, *others = [line for line in text.splitlines() if "tl.load(" in line]
    assert "evict_first" in first
    assert not any("evict" in line for line in others)


@pytest.mark.parametrize(
    ("columns", "operands", "dtype", "part", "thread"),
    [
        (262144, 1, torch.bfloat16, 4096, 64),
        (262144, 1, torch.float32, 4096, 32),
        (262144, 2, torch.bfloat16, 4096, 32),
        (32768, 2, torch.bfloat16, 2048, 64),
        (32768, 2, torch.float32, 2048, 32),
    ],
)
def test_threads_hold_more_of_a_row_where_registers_suffice(
    columns: int,
    operands: int,
    dtype: torch.dtype,
    part: int,
    thread: int,
    emitted: Callable[..., list[tuple[LoopKernel, str]]],
) -> None:
    x = torch.empty(64, columns, dtype=dtype)

    def function(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        total = sum(others, x)
        return total / (total.square().mean(1, True) + 1).sqrt()

    ((_, text),) = emitted(function, x, *(x.clone() for _ in range(operands - 1)))
    assert f"tl.arange(0, {part})" in text
    assert f'"team", {thread}, ' in text


@pytest.mark.parametrize(("width", "rows"), [(768, 1584), (1024, 1056), (4096, 264), (5000, 264), (8192, 132)])
def test_rows_with_totals_are_as_many_as_run_at_once(width: int, rows: int) -> None:
    assert launch.rows_at_once(width) == rows
    chunks = chunks_apart(index.wrap(1 << 20), 128, launch.rows_at_once, index.wrap(width))
    assert chunks == rows // 16 * 16
    assert chunks_apart(index.wrap(300), 128, launch.rows_at_once, index.wrap(width)) == min(rows, 256) // 16 * 16


@pytest.mark.parametrize(("columns", "rows"), [(5000, 13421), (4097, 16380), (1023, 65600), (768, 8192), (7, 1 << 20)])
def test_columns_of_unequal_parts(columns: int, rows: int) -> None:
    vectors = columns % 8 == 0
    parts = launch.parts(columns, [rows], "across", vectors=vectors)
    assert vectors or parts % launch.split.LINE == 0
    assert rows // parts >= 2 * launch.SHORT_TURN
    assert parts * -(-columns // launch.ACROSS) <= 4 * launch.AT_ONCE


def test_few_long_rows_whose_sums_fill_a_word_are_divided(emitted: Callable[..., list[tuple[LoopKernel, str]]]) -> None:
    """What programs of a row tell each other has 32 bits; of others each part leaves its results to the next launch."""
    for dtype, told in ((torch.float32, True), (torch.float64, False)):
        ((_, text),) = emitted(lambda a: a / a.sum(1, keepdim=True), torch.empty(5, 1 << 18, dtype=dtype))
        assert ("base.tell(" in text) == told
        assert text.count("@triton.jit\ndef") >= 2


@pytest.mark.parametrize(("columns", "rows"), [(1023, 524800), (4097, 131040), (1023, 1 << 23)])
def test_long_columns_of_odd_rows_begin_alike_in_every_part(columns: int, rows: int) -> None:
    """Rows as far apart as there are parts begin at one place of their vectors, whole turns of rows or not."""
    parts = launch.parts(columns, [rows], "across", vectors=False)
    assert parts % launch.split.LINE == 0
    assert 2 * launch.SHORT_TURN <= rows // parts <= launch.LONG_PART


def test_a_part_ends_in_one_place(emitted: Callable[..., list[tuple[LoopKernel, str]]]) -> None:
    """Parts are whole turns, and what lies beyond the rows is zero: a sum needs no other mask than its loads have."""
    ((_, text),) = emitted(lambda a: a.sum(0), torch.empty(13421, 5000))
    body = text[: text.index("launch_")]
    (length,) = map(int, re.findall(r"range\(0, (\d+), R0\)", body))
    assert length % launch.SHORT_TURN == 0
    assert length * launch.parts(5000, [13421], "across", vectors=True) >= 13421
    assert not re.search(r"tl\.where\(w", body)


def test_totals_over_rows_stay_in_registers(emitted: Callable[..., list[tuple[LoopKernel, str]]]) -> None:
    def backward(g: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return g * x - (g * x).mean(1, keepdim=True), (g * x).sum(0), g.sum(0)

    ((kernel, text),) = emitted(backward, torch.ones(4096, 1024), torch.ones(4096, 1024))
    assert len(kernel.scratch) == 2
    assert "atomic" not in text
    assert text.count("tl.store(buffer0") == 1


def test_tiles_turn_what_is_read_across(emitted: Callable[..., list[tuple[LoopKernel, str]]]) -> None:
    ((_, text),) = emitted(lambda a, b: a.t() + b, torch.ones(300, 200), torch.ones(200, 300))
    assert '"spread"' in text


@pytest.mark.parametrize(("count", "length"), [(4096, 320), (1280, 9), (9, 1280), (5000, 3), (20, 20), (1, 1)])
def test_programs_that_transpose_have_elements_enough(count: int, length: int) -> None:
    """The filters of a convolution have nine pixels: a square's edge of them would leave a program little to move."""
    x, (block,), _ = launch.tile(count, [length], "spread")
    assert x * block <= launch.SQUARE**2
    assert x * block == launch.SQUARE**2 or (x >= count and block >= length)


def test_tiles_that_turn_halves_are_larger_where_they_are_many(emitted: Callable[..., list[tuple[LoopKernel, str]]]) -> None:
    given = [torch.ones(shape, dtype=torch.bfloat16) for shape in ((300, 200), (200, 300), (200, 300))]
    ((_, narrow),) = emitted(lambda a, b: a.t() + b, *given[:2])
    ((_, more),) = emitted(lambda a, b, c: a.t() + b * c, *given)
    ((_, wide),) = emitted(lambda a, b: a.t() + b, *(x.float() for x in given[:2]))
    threads = [int(re.search(r'"spread", (\d+)', text).group(1)) for text in (narrow, more, wide)]  # type: ignore[union-attr]
    assert threads == [2 * launch.THREAD, launch.THREAD, launch.THREAD]
    assert launch.tile(16384, [4096], "spread", 2 * launch.THREAD) == (128, [128], 8)
    assert launch.tile(16384, [4096], "spread") == (64, [64], 16)
    assert launch.tile(2048, [2048], "spread", 2 * launch.THREAD) == (64, [64], 16)
    assert launch.tile(2048, [2048], "spread", 2 * launch.THREAD, 16) == (128, [128], 8)


def test_loops_are_not_cut_where_lines_would_be(emitted: Callable[..., list[tuple[LoopKernel, str]]]) -> None:
    def turned(x: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, -1)
        return torch.cat((-right, left), -1) + x

    ((short, _),) = emitted(turned, torch.ones(64, 64, dtype=torch.bfloat16))
    ((long, text),) = emitted(turned, torch.ones(64, 128, dtype=torch.bfloat16))
    assert not [s for s in short.body[0].body if isinstance(s, loop.Nest)]
    assert sum(isinstance(s, loop.Nest) for s in long.body[0].body) == 2
    assert text.count("tl.load") == 2


def test_what_normalizes_columns_stores_in_programs_of_one_tile(
    emitted: Callable[..., list[tuple[LoopKernel, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many, each of neighbouring rows, whose reads wait for no store; sums have fewer."""

    def norm(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.batch_norm(x, None, None, training=True)

    x = torch.ones(64, 64, 56, 56, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    ((_, text),) = emitted(norm, x)
    *sums, last = re.findall(r'Launcher\(\w+, "(\w+)", \d+\)', text)
    assert set(sums) == {"across"}
    assert last == "short"
    assert f".fixed({64 * 56 * 56 // 64}, 64, (64, ), {x.numel()})" in text
    assert text.rpartition("@triton.jit")[2].count("for ") == 0


@pytest.mark.parametrize(("dim", "shape"), [(1, (32, 64, 512)), (0, (512, 2048)), (2, (3, 5, 1000, 96))])
def test_short_columns_are_read_once_by_programs_that_walk_along_lines(
    emitted: Callable[..., list[tuple[LoopKernel, str]]], dim: int, shape: tuple[int, ...]
) -> None:
    ((_, text),) = emitted(lambda x: x.softmax(dim), torch.ones(shape))
    assert '"columns"' in text
    assert text.count("tl.load(in0") == len(launch.blocks_for(shape[dim], launch.PIECES))
    ((_, sums),) = emitted(lambda x: x.sum(dim), torch.ones(shape))
    assert '"across"' in sums or shape[dim] <= launch.SQUARE, "what is read once in any case needs no tile as a whole"


@pytest.mark.parametrize("kind", ["columns", "whole columns"])
def test_programs_of_columns_have_lines_and_are_enough(kind: launch.Kind) -> None:
    assert launch.tile(512, [64], kind, leads=32)[0] == 64, "other dimensions have programs, too"
    for count, length, leads in ((512, 64, 1), (2048, 512, 1), (1 << 20, 1024, 1), (20, 64, 9000)):
        x, _, warps = launch.tile(count, [length], kind, leads=leads)
        assert x >= min(launch.NARROW[kind], count)
        assert x * length <= max(launch.ELEMENTS, 2 * launch.NARROW[kind] * length)
        assert 1 <= warps <= 16


def test_few_programs_have_more_warps() -> None:
    x, _, warps = launch.tile(1024, [512], "fixed")
    many, _, fewer = launch.tile(1 << 20, [512], "fixed")
    assert x * 512 // (32 * warps) < many * 512 // (32 * fewer) == launch.THREAD
    assert launch.tile(1 << 20, [], "lean", 16)[0] < launch.tile(1 << 26, [], "lean", 16)[0] == 16 * 32 * launch.WARPS
    for kind, thread in (("team", launch.THREAD), ("row", 40), ("row", launch.THREAD // 2)):
        at_once, more = (launch.tile(count, [5120], kind, thread)[2] for count in (256, 1 << 20))
        assert at_once == more


def test_sums_of_rows_parts_are_added_by_many_programs(emitted: Callable[..., list[tuple[LoopKernel, str]]]) -> None:
    """Two totals read other columns: as one tile, each would be read by few programs."""

    def backward(g: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return g * x - (g * x).mean(1, keepdim=True), (g * x).sum(0), g.sum(0)

    ((_, text),) = emitted(backward, torch.empty(16384, 4096), torch.empty(16384, 4096))
    assert re.findall(r'Launcher\(\w+, "(\w+)"', text)[-1] == "across"


def test_a_thread_has_few_elements_where_neighbours_read_apart(emitted: Callable[..., list[tuple[LoopKernel, str]]]) -> None:
    x = torch.ones(2, 3, 64, 64)
    functions = (lambda x: torch.nn.functional.max_pool2d(x, 3, 2, 1)), (lambda x: x[..., ::2] * 2), (lambda x: x.roll(5, -1))
    for function in functions:
        ((_, text),) = emitted(function, x)
        assert f'"lean", {launch.ACROSS_VECTORS})' in text
    for function in ((lambda x: x.flip(-1)), torch.neg, (lambda x: x[:, [2, 0]])):
        ((_, text),) = emitted(function, x)
        assert f'"lean", {launch.ACROSS_VECTORS})' not in text


def test_parts_of_one_result_are_one_launch(emitted: Callable[..., list[tuple[LoopKernel, str]]]) -> None:
    x, y = torch.ones(64, 512), torch.ones(64, 768)
    for function in ((lambda x, y: torch.cat((x, y), -1)), (lambda x, y: torch.stack((x, y[:, :512]), -1))):
        ((kernel, text),) = emitted(function, x, y)
        assert len(kernel.body) == 2
        assert text.count("@triton.jit") == 1


@pytest.mark.parametrize(
    ("one", "other", "beside"),
    [
        (lambda i: 2 * i, lambda i: 2 * i + 1, True),
        (lambda i: 2 * i, lambda i: 4 * i + 2, False),
        (lambda i: 2 * i, lambda i: 3 * i, False),
        (lambda i: i, lambda i: i + 40, True),
        (lambda i: i, lambda i: i + 39, False),
        (lambda i: 50 * (i // 8) + i % 8, lambda i: 50 * (i // 10) + i % 10 + 8, True),
        (lambda i: 50 * (i // 8) + i % 8, lambda i: 50 * (i // 10) + i % 10 + 7, False),
        (lambda i: 50 * (i // 8) + i % 8, lambda i: 50 * (i // 10) + 5 * (i % 10) + 8, False),
    ],
)
def test_launches_are_shared_by_what_never_meets(
    one: Callable[[index.Int], index.Int], other: Callable[[index.Int], index.Int], beside: bool
) -> None:
    i = index.variable("i", index.wrap(40))

    def nest(place: index.Int, *loads: loop.Stmt) -> loop.Nest:
        return loop.Nest((loop.Range("i", index.wrap(40)),), (*loads, loop.Store("out0", place, "v")))

    value = loop.Const("v", 1.0, torch.float32)
    assert independent([nest(one(i), value), nest(other(i), value)]) == beside
    reading = loop.Load("v", "out0", other(i), torch.float32)
    assert independent([nest(one(i), value), loop.Nest(nest(i).ranges, (reading, loop.Store("out1", i, "v")))]) == beside


def test_a_flip_is_made_where_it_is_read(emitted: Callable[..., list[tuple[LoopKernel, str]]]) -> None:
    for function in ((lambda x: x + x.flip(-1)), (lambda x: x.flip(0).softmax(-1)), (lambda x: x.sin().flip(1).cos())):
        assert len(emitted(function, torch.ones(20, 30))) == 1


def test_a_max_pools_gradient_takes_no_arithmetic_of_int64(register: Callable[..., str]) -> None:
    """Where in its window a maximum lies is a byte, and so few bits tell whether that is here."""
    chip = OnPaper()
    register(chip)
    pool = torch.compile(lambda x: torch.nn.functional.max_pool2d(x, 3, 2, 1), backend=chip.name)
    pool(torch.randn(2, 3, 8, 8, requires_grad=True)).sum().backward()
    ((kernel, _),) = [each for each in chip.recorder.kernels if "max_pool2d_with_indices_backward" in each[0].name]
    computed = [s for s in loop.walk(kernel.body) if isinstance(s, loop.Compute)]
    assert sum(s.op == "eq" for s in computed) == 6, "windows over a position and the one below"
    assert not [s for s in computed if s.dtype == torch.int64]


def test_long_loops_of_few_iterations_are_divided(emitted: Callable[..., list[tuple[LoopKernel, str]]]) -> None:
    ((kernel, text),) = emitted(lambda a: a.sum(), torch.ones(1 << 22))
    assert len(kernel.body) == 1
    assert text.count("@triton.jit") == 2


def test_long_loops_of_lengths_that_the_call_tells_are_divided_by_the_call() -> None:
    kernel = lowered.call(torch.ops.aten.sum.dim_IntList, [torch.ones(600, 5), [0]], dynamic=True).lowered.kernel
    text = TritonEmitter().emit(kernel)
    # The parts, their sum, and the loop as it stands, each of them for rows that fit into a tile and for others.
    assert text.count("@triton.jit") == 6
    assert (text.count("    if d0 > 1:"), text.count("    if d0 <= 1:")) == (2, 1)
    assert text.count("    else:") == 3


def test_what_follows_from_sizes_alone_is_computed_by_the_host() -> None:
    text = TritonEmitter().emit(halves())
    device, host = text.split("\ndef halves(")
    assert "d0 = ((s0 + 1) // 2)" in host
    rounded = {"s0 // s0_by * s0_by", "s1 // s1_by * s1_by", "d0 // d0_by * d0_by"}
    values = {line for line in device.splitlines() if "//" in line and not any(each in line for each in rounded)}
    assert all("tl.int64" in line for line in values)  # the quotient that is stored


@pytest.mark.parametrize(
    ("target", "args", "several"),
    [
        (torch.ops.aten.amax.default, [torch.ones(40, 60), [1]], 1),  # not of how many rows
        (torch.ops.aten.sin.default, [torch.ones(40, 60)], 2),
        (torch.ops.aten.amax.default, [torch.ones(40, 60), [0]], 1),
    ],
)
def test_functions_are_told_divisors_of_the_sizes_that_vectors_follow_from(target: Any, args: list[Any], several: int) -> None:
    text = TritonEmitter().emit(lowered.call(target, args, dynamic=True).lowered.kernel)
    last = [line for line in text.splitlines() if line.startswith("def ") and "tl.constexpr" in line][-1]
    assert last.count("_by: tl.constexpr") == several


def test_random_numbers_of_four_neighbours_come_of_one_counter() -> None:
    """Of rows whose length is a multiple of four, whoever knows it."""
    row, column = index.variable("i0", index.symbol("s1", 0)), index.variable("i1", index.symbol("s0", 0))
    text = indices.value((row * index.symbol("s0", 0) + column) // 4, {"s0", "s1"})
    near, far = "tl.cast(i1, tl.int64)", "tl.cast(i0, tl.int64) * tl.cast(s0, tl.int64)"
    assert text == f"base.quotient({near}, {far}, 2, (s0_by % 4 == 0))"
    text = indices.value((row * index.symbol("s0", 0) + column) % 4, {"s0", "s1"})
    assert text == f"base.remainder({near}, {far}, 2, (s0_by % 4 == 0))"
    assert indices.value((row * 7 + column) // 4, {"s0"}).endswith(" >> 2)")


def test_steps_of_many_parameters_share_launches(emitted: Callable[..., list[tuple[LoopKernel, str]]]) -> None:
    def step(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [torch.sqrt(t) * 2 for t in tensors]

    sizes = [1, 7, 768, 4096, 2309, 100_000]
    ((kernel, text),) = emitted(step, *map(torch.ones, sizes))
    assert len(kernel.body) == len(sizes)
    assert text.count("@triton.jit") == 1
    # One whose end cuts a vector has its whole blocks apart: no mask there.
    assert text.count("if start <") == len(sizes) + 1
    assert text.count("x_mask =") == 4


def test_an_inner_loop_of_varying_length_is_refused() -> None:
    x, n = index.variable("i0", 4), index.variable("i0", 4) + 1
    load = loop.Load("v0", "in0", x + index.variable("r0", n), torch.float32)
    total = loop.Reduce((loop.Range("r0", n),), (load,), (loop.Accumulator(("a0",), "sum", ("v0",), torch.float32),))
    nest = loop.Nest((loop.Range("i0", index.wrap(4)),), (total, loop.Store("out0", x, "a0")))
    params = tuple(
        loop.Param(name, torch.float32, index.wrap(8), role)  # type: ignore[arg-type]
        for name, role in (("in0", "in"), ("out0", "out"))
    )
    with pytest.raises(vendor_sdk.LoweringError, match="length varies"):
        TritonEmitter().emit(LoopKernel("k", params, (), (nest,)))


@needs_triton
@pytest.mark.parametrize("rows", [4, 40])
def test_chunks_of_padded_rows_that_differ_in_length_need_no_mask_in_full_programs(
    emitted: Callable[..., list[tuple[LoopKernel, str]]], rows: int
) -> None:
    def less_the_largest(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        moved = torch.nn.functional.pad(x, [0, 0, 1, 1]) - y
        return moved - moved.amax(1, True)

    x = torch.randint(-9, 9, (rows * 4,)).as_strided((1, rows, 4), (1, 1, rows))
    kernels = emitted(less_the_largest, x, torch.tensor(-2.5))
    assert any("turn_1_mask = (turn_1 <" in text for _, text in kernels)
    TritonEmitter(target="cuda:90").compile(kernels)


@pytest.mark.parametrize("count", [1, 2, 7, 1000, 1 << 20])
@pytest.mark.parametrize("longest", [1, 33, 4097, 1 << 20])
@pytest.mark.parametrize("kind", ["along", "across", "spread"])
def test_blocks_are_powers_of_two_that_fit(count: int, longest: int, kind: launch.Kind) -> None:
    x, (r,), warps = launch.tile(count, [longest], kind)
    assert x & (x - 1) == r & (r - 1) == warps & (warps - 1) == 0
    assert 1 <= x * r <= 2 * launch.ELEMENTS
    assert x < 2 * count
    assert r < 2 * max(longest, 1)


@pytest.mark.parametrize("kind", get_args(launch.Kind))
def test_tiles_of_all_kinds_have_powers_of_two(kind: launch.Kind) -> None:
    for count in (1, 7, 100, 5000, 3_000_000):
        for length in (1, 3, 7, 21, 33, 64):
            x, blocks, warps = launch.tile(count, [length], kind)
            assert all(n & (n - 1) == 0 for n in (x, *blocks, warps)), (count, length)


@pytest.mark.parametrize("length", [1, 16, 17, 64, 67, 1000, 1023, 4097, 5000, 16384])
def test_pieces_hold_a_row(length: int) -> None:
    blocks = launch.blocks_for(length, launch.PIECES)
    assert all(b & (b - 1) == 0 for b in blocks)
    assert sum(blocks[:-1]) < length <= sum(blocks)
    assert sum(blocks) <= max(1.25 * length, length + launch.SMALLEST)
    assert len(blocks) <= launch.PIECES
    _, _, warps = launch.tile(1 << 20, [sum(blocks)], "fixed")
    assert warps & (warps - 1) == 0


class Driver:
    """What a launcher asks of Triton's driver and of its settings, with no GPU."""

    interpret = False
    launch_enter_hook = launch_exit_hook = None

    @property
    def active(self) -> Driver:
        return self

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 7


class Counted:
    """In place of a function of Triton's: counts what is compiled and keeps what is launched."""

    __name__ = "counted"
    function = packed_metadata = None
    global_scratch_size = profile_scratch_size = 0
    launch_cooperative_grid = launch_pdl = False

    def __init__(self) -> None:
        self.compiled = 0
        self.launched: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def compile(*arguments: Any, **options: Any) -> Any:
            self.compiled += 1
            return self

        return compile

    @property
    def run(self) -> Counted:
        return self

    def launch(self, *arguments: Any) -> None:
        self.launched.append(arguments)

    __call__ = launch  # other versions than Triton 3.6


def counted(kind: launch.Kind) -> tuple[Counted, launch.Launcher]:
    function = Counted()
    launcher = launch.Launcher(function, kind, launch.THREAD)
    launcher.driver = launcher.settings = Driver()
    return function, launcher


@needs_triton
def test_sizes_with_equal_blocks_share_a_kernel() -> None:
    function, launcher = counted("whole")
    buffers = (torch.empty(0),)
    for rows in range(1000, 3000):  # neither divisible by 16 throughout nor full blocks throughout
        launcher(buffers, (rows,), 1, rows, (4096,), rows * 4096)
    assert function.compiled <= 4
    assert len(function.launched) == 2000 - function.compiled
    assert launcher.planned.cache_info().currsize == launch.PLANS


@needs_triton
def test_a_launch_is_compiled_for_what_triton_specializes() -> None:
    function, launcher = counted("along")
    memory = torch.empty(64)
    for buffer in (memory, memory[4:], memory[1:], memory):
        launcher((buffer,), (), 1, 1024, (), 1024)
    assert function.compiled == 2  # aligned to 16 bytes, and not
    assert len(function.launched) == 2


@needs_triton
@pytest.mark.skipif(not of_triton_3_6, reason="launchers of other versions of Triton are called")
@pytest.mark.parametrize("hooked", [False, True])
def test_a_launch_of_fixed_sizes_calls_few_functions_of_python(hooked: bool) -> None:
    function, launcher = counted("along")
    if hooked:
        launcher.settings.launch_enter_hook = launcher.settings.launch_exit_hook = print
    launch_ = launcher.fixed(1, 1024, (), 1024)
    buffers = (torch.empty(64),)
    launch_(buffers, ())
    called: list[str] = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        launch_(buffers, ())
    finally:
        sys.setprofile(None)
    fake = ["active", "get_current_device", "get_current_stream", "launch"]  # this test's own
    assert [name for name in called if name not in fake] == ["__call__", "at"]
    (*_, begin, end, address) = function.launched[-1][: -len(launch_.constants)]
    assert (begin, end) == ((print, print) if hooked else (None, None))
    assert address == buffers[0].data_ptr()


def test_the_current_device_is_asked_in_one_call() -> None:
    driver = Driver()
    assert launch.current_device(driver)() == 0
    driver.get_current_device = torch.cuda.current_device  # type: ignore[method-assign]
    assert launch.current_device(driver) is torch.accelerator.current_device_index


@needs_triton
def test_launches_of_fixed_sizes_are_those_of_the_launcher() -> None:
    function, launcher = counted("along")
    launch_ = launcher.fixed(1, 1024, (), 1024)
    memory = torch.empty(64)
    for buffer in (memory, memory[4:], memory[1:], memory, memory[1:]):
        launch_((buffer,), ())
        launcher((buffer,), (), 1, 1024, (), 1024)
    assert function.compiled == 2, "aligned to 16 bytes, and not"
    assert len(function.launched) == 10 - function.compiled
    addresses = [arguments[-1 - len(launcher.planned(1, 1024, (), 1024)[0].values)] for arguments in function.launched]
    assert set(addresses) == {memory.data_ptr(), memory[4:].data_ptr(), memory[1:].data_ptr()}
    by_address: dict[int, set[tuple[Any, ...]]] = {}
    for address, arguments in zip(addresses, function.launched, strict=True):
        by_address.setdefault(address, set()).add(tuple(map(str, arguments)))
    assert all(len(found) == 1 for found in by_address.values()), "both ways pass the same"


@needs_triton
def test_hooks_are_called_where_somebody_listens() -> None:
    """Triton's launcher calls chains of no hooks, too."""
    from triton.knobs import HookChain

    function, launcher = counted("along")
    chain: Any = HookChain()
    launcher.settings.launch_enter_hook = chain
    launch_ = launcher.fixed(1, 1024, (), 1024)
    for _ in range(3):
        launch_((torch.empty(64),), ())
    assert function.launched
    assert not any(chain in arguments for arguments in function.launched)
    chain.add(print)
    for call in (lambda: launch_((torch.empty(64),), ()), lambda: launcher((torch.empty(64),), (), 1, 1024, (), 1024)):
        call()
        assert chain in function.launched[-1]


@needs_triton
def test_no_iterations_launch_nothing() -> None:
    function, launcher = counted("spread")
    for leads, count, length in ((0, 5, 5), (5, 0, 5), (5, 5, 0)):
        launcher((), (), leads, count, (length,), 0)
    assert not function.compiled
    assert not function.launched


# Numerics


PARTS = 5
"""Of the prims, each in a process of its own: one would work while others wait for it."""


@pytest.fixture
def interpreted(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """``interpreted("prim", ..., "attention")`` is what Triton's interpreter makes of these."""

    def report(*what: str) -> dict[str, Any]:
        environment = {**os.environ, "TRITON_INTERPRET": "1", "VENDOR_SDK_CACHE_DIR": str(tmp_path)}
        command = [sys.executable, "-m", "tests.triton_interpreted", *what]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, done.stderr[-4000:]
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    return report


@needs_triton
@pytest.mark.parametrize("part", range(PARTS))
def test_every_emitted_prim_is_right(interpreted: Callable[..., dict[str, Any]], part: int) -> None:
    names = sorted(OPSET)[part::PARTS]
    found = interpreted(*names)
    assert found["failures"] == {}
    assert {*found["passed"], *found["declined"]} == {*names}
    assert len(found["passed"]) >= 140 / PARTS
    assert not [prim for prim, reason in found["declined"].items() if "emitter lacks" in reason]


@needs_triton
def test_symbols_are_passed_exactly(interpreted: Callable[..., dict[str, Any]]) -> None:
    sizes = (
        "sizes",
        "sizes around tiles",
        "divided by sizes",
        "more rows",
        "beyond 32 bits",
        "no rows",
        "nothing to add",
        "kinds of rows",
    )
    numbers = ("float", "index out of range", "rounded quotients", "rounded gelu")
    assert interpreted("symbolic")["symbolic"] == dict.fromkeys((*sizes, *numbers), "")


@needs_triton
@pytest.mark.parametrize("what", ["contractions", "attention", "fused"])
def test_kernels_of_several_prims_are_right(interpreted: Callable[..., dict[str, Any]], what: str) -> None:
    assert interpreted(what)[what] == {}


# Machine code

KERNELS: Mapping[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "pointwise": (lambda a, b: torch.tanh(a) * b, (torch.empty(64, 1024), torch.empty(1024))),
    "a scalar and a block": (
        lambda a, b: (torch.gcd(a, b), torch.pow(a, b)),
        (torch.empty((), dtype=torch.int32), torch.empty(6, dtype=torch.int32)),
    ),
    "a step of parameters": (
        lambda a, b, c: (a.exp(), b.exp(), c.exp()),
        (torch.empty(1001, 33), torch.empty(768), torch.empty(512, 768)),
    ),
    "bfloat16": (lambda a: torch.sigmoid(a), (torch.empty(64, 1024, dtype=torch.bfloat16),)),
    "floats of eight bits": (
        lambda a, b: (a.to(torch.float32), b.to(torch.float8_e4m3fn), b.to(torch.float8_e5m2)),
        (torch.empty(64, 1024, dtype=torch.float8_e4m3fn), torch.empty(64, 1024)),
    ),
    "rows": (lambda a: a.sum(1), (torch.empty(64, 5000),)),
    "columns": (lambda a: a.amax(0), (torch.empty(5000, 64),)),
    "all": (lambda a: a.any(), (torch.empty(5000, 64, dtype=torch.bool),)),
    "argmax": (lambda a: a.argmax(1), (torch.empty(64, 5000),)),
    "argmax of one odd row": (lambda a: a.argmax(0), (torch.empty(67, dtype=torch.int32),)),
    "scan": (lambda a: a.cumsum(1), (torch.empty(64, 5000, dtype=torch.int64),)),
    "scatter": (lambda a, i, b: a.scatter_add(0, i, b), (torch.empty(99), torch.empty(50, dtype=torch.int64), torch.empty(50))),
    "scatter by compare and swap": (
        lambda a, i, b: (a.scatter_reduce(0, i, b, "prod"), a.scatter_reduce(0, i, b, "amax")),
        (torch.empty(99), torch.empty(50, dtype=torch.int64), torch.empty(50)),
    ),
    "special functions": (
        lambda a, b: (
            torch.special.zeta(a, b),
            torch.special.gammainc(a, b),
            torch.special.airy_ai(torch.special.modified_bessel_k1(a)),
        ),
        (torch.empty(99), torch.empty(99)),
    ),
    "random": (lambda a: torch.rand_like(a), (torch.empty(64, 1024),)),
    "softmax": (lambda a: a.softmax(1), (torch.empty(1024, 4096, dtype=torch.bfloat16),)),
    "softmax of odd rows": (lambda a: a.softmax(1), (torch.empty(1024, 4097, dtype=torch.bfloat16),)),
    "softmax of short odd rows": (lambda a: a.softmax(1), (torch.empty(4096, 1023, dtype=torch.bfloat16),)),
    "softmax of long rows": (lambda a: a.softmax(1), (torch.empty(1024, 32768, dtype=torch.bfloat16),)),
    "softmax of rows of several programs": (lambda a: a.softmax(1), (torch.empty(1024, 65536, dtype=torch.bfloat16),)),
    "norm of rows of several programs": (
        lambda a, b, w: torch.layer_norm(a + b, w.shape, w, w),
        tuple(torch.empty(shape, dtype=torch.bfloat16) for shape in ((9, 151936), (9, 151936), (151936,))),
    ),
    "softmax of long odd rows": (lambda a: a.softmax(1), (torch.empty(1023, 65537, dtype=torch.bfloat16),)),
    "cross entropy": (
        lambda a, t: torch.nn.functional.cross_entropy(a, t),
        (torch.empty(4096, 65536, dtype=torch.bfloat16), torch.zeros(4096, dtype=torch.int64)),
    ),
    "elements of an odd count": (
        lambda a, b: a * b.exp(),
        (torch.empty(999, 4097, dtype=torch.bfloat16), torch.empty(999, 4097, dtype=torch.bfloat16)),
    ),
    "positions of odd rows": (
        lambda a, t: torch.where(torch.arange(5000)[None, :] == t[:, None], a - a.sum(1, keepdim=True), a.exp()),
        (torch.empty(1024, 5000, dtype=torch.bfloat16), torch.zeros(1024, dtype=torch.int64)),
    ),
    "layer norm": (
        lambda a, w, b: torch.nn.functional.layer_norm(a, (4096,), w, b),
        (torch.empty(1024, 4096, dtype=torch.bfloat16), *(torch.empty(4096, dtype=torch.bfloat16) for _ in "wb")),
    ),
    "totals": (
        lambda g, x: (g * x - (g * x).mean(1, keepdim=True), (g * x).sum(0), g.sum(0)),
        (torch.empty(16384, 4096, dtype=torch.bfloat16), torch.empty(16384, 4096, dtype=torch.bfloat16)),
    ),
    "totals of bytes": (lambda a: (a.amax(1).amin(0), a.any(1).amin(0)), (torch.empty(5000, 67, dtype=torch.uint8),)),
    "transposed": (lambda a, b: a.t() + b, (torch.empty(300, 200), torch.empty(200, 300))),
    "float64": (lambda a: a.var(1), (torch.empty(64, 500, dtype=torch.float64),)),
}


TABLES = ("special functions",)
"""Kernels with NVIDIA's sine of large numbers, which keeps a few in memory."""


VECTORS: Mapping[str, tuple[int, int]] = {
    "softmax": (4, 4),
    "softmax of odd rows": (4, 4),
    "softmax of short odd rows": (4, 4),
    "softmax of long rows": (6, 2),  # twice read, the first of two tiles apart
    "softmax of rows of several programs": (8, 8),  # once
    "softmax of long odd rows": (4, 2),
    "cross entropy": (2, 0),  # once
    "elements of an odd count": (2, 1),
}
"""Loads and stores of 16 bytes in a kernel's text of machine instructions."""


def vectors(cubin: bytes, folder: Path) -> tuple[int, int]:
    """How many loads and stores of 16 bytes there are in machine code."""
    import triton

    file = folder / "kernel.cubin"
    file.write_bytes(cubin)
    command = [triton.knobs.nvidia.nvdisasm.path, "-c", str(file)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    loads, stores = (len(re.findall(rf"\b{op}\.E\.\S*\b128\b", text)) for op in ("LDG", "STG"))
    return loads, stores


def unordered(module: str) -> list[str]:
    """Reductions of several operands at once, in Triton's first representation, of which one may be in an order of its own."""
    free = set(re.findall(r"(%\S+) = tt\.reshape \S+ allow_reorder", module))
    found = re.findall(r'"tt\.reduce"\((%[^)]*)\)', module)
    return [operands for operands in found if "," in operands and free & set(operands.split(", "))]


@needs_triton
@pytest.mark.parametrize("name", ["argmax", "argmax of one odd row", "layer norm", "positions of odd rows"])
def test_values_and_their_places_are_reduced_in_one_order(
    name: str, emitted: Callable[..., list[tuple[LoopKernel, str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton may reorder what is flattened only to be reduced, each operand by itself; its interpreter never does."""
    import triton

    assert unordered('%0 = tt.reshape %a allow_reorder : x\n%2:2 = "tt.reduce"(%0, %1)')
    monkeypatch.setenv("VENDOR_SDK_CACHE_DIR", str(tmp_path))
    modules: list[str] = []
    compile_ = triton.compile

    def spied(*arguments: Any, **keywords: Any) -> Any:
        made = compile_(*arguments, **keywords)
        modules.append(made.asm["ttir"])
        return made

    monkeypatch.setattr(triton, "compile", spied)
    function, inputs = KERNELS[name]
    TritonEmitter(target="cuda:90").compile(emitted(function, *inputs))
    assert any("tt.reduce" in module for module in modules)
    assert not [operands for module in modules for operands in unordered(module)]


def test_a_store_over_what_was_loaded_waits_unless_it_stores_what_follows_from_it() -> None:
    """Threads that load an element are not always those that store it."""
    x = index.variable("x", index.wrap(64))
    load = [loop.Load(f"v{n}", name, x, torch.float32) for n, name in enumerate(("out0", "in0"))]
    total = loop.Compute("s", "add", ("v0", "v1"), torch.float32)
    own, other = loop.Store("out0", x, "s"), loop.Store("out0", x, "v1")
    assert late([*load, total, own]) == frozenset()
    assert late([*load, total, other]) == {id(other)}
    assert late([load[1], other]) == frozenset(), "nothing was loaded"
    second = loop.Store("out0", x, "v1")
    assert late([*load, other, second]) == {id(other)}, "once is enough"
    r = loop.Range("r", index.wrap(64))
    sum_ = loop.Reduce((r,), (load[0],), (loop.Accumulator(("a",), "sum", ("v0",), torch.float32),))
    first = loop.Load("w", "in0", index.variable("r", index.wrap(64)), torch.float32)
    after = loop.Store("out0", index.variable("r", index.wrap(64)), "w")
    assert late([sum_, loop.Nest((r,), (first, after))]) == {id(after)}
    whole = loop.Store("out0", index.variable("r", index.wrap(64)), "q")
    scaled = loop.Compute("q", "mul", ("w", "a"), torch.float32)
    assert late([sum_, loop.Nest((r,), (first, scaled, whole))]) == frozenset()


@needs_triton
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90"])
def test_what_dropout_keeps_is_drawn_by_the_thread_that_has_the_weight(target: str) -> None:
    """No words go through shared memory, which holds what it holds without dropout; and registers suffice."""
    from reference_backends.triton_gpu import flash_launch
    from reference_backends.triton_gpu.machine import TARGETS
    from reference_backends.triton_gpu.machine_code import binary

    def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    x, saved = drawn(8, 12, 1024, 64), drawn(8, 12, 1024, dtype=torch.float32)
    dropped = flash_launch.Dropout(drawn(1, dtype=torch.int64), 0.1)
    found = []
    for dropout in (None, dropped):
        rest = False, None, None, dropout
        calls = flash_launch.forward_calls(x, x, x, *rest)[1] + flash_launch.backward_calls(x, x, x, x, x, saved, *rest)[1]
        for call, blocks in zip(calls, ((128, 64, 8, 2), (128, 64, 8, 2), (32, 128, 8, 2)), strict=True):
            call.launcher.blocks = lambda *_, blocks=blocks: blocks
        begun = [call.ahead(TARGETS[target]) for call in calls]
        found.append([binary(each.result()) for each in begun if each is not None])
    for plain, own in zip(*found, strict=True):
        assert own.shared_bytes == plain.shared_bytes
        assert own.stack_bytes == 0
    assert (found[1][0].registers <= flash_launch.TWICE) == (target == "cuda:90")


@needs_triton
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90"])
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compile_for_gpus_that_are_not_here(
    name: str,
    target: str,
    emitted: Callable[..., list[tuple[LoopKernel, str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VENDOR_SDK_CACHE_DIR", str(tmp_path))
    function, inputs = KERNELS[name]
    kernels = emitted(function, *inputs)
    assert kernels
    for (kernel, _), made in zip(kernels, TritonEmitter(target=target).compile(kernels), strict=True):
        assert isinstance(made, Elsewhere)
        binaries = made.binaries
        assert [b.name for b in binaries] == [
            f"{kernel.name}_{n}" for n in range(len(functions(hoist.hoist(divided(kernel).kernel), divided(kernel).when)))
        ]
        for binary in binaries:
            assert binary.cubin.startswith(b"\x7fELF")
            assert 8 <= binary.registers <= 255
            assert binary.stack_bytes == 0 or name in TABLES
            assert binary.shared_bytes <= 48 * 1024
        if name in VECTORS and of_triton_3_6:
            longest = max(binaries, key=lambda each: len(each.cubin))
            assert vectors(longest.cubin, tmp_path) == VECTORS[name]


def test_triton_gpu_records_where_it_is_asked_to() -> None:
    from reference_backends.triton_gpu import plugin

    assert plugin.device({"mode": "reduce-overhead"}).recorder is not None
    assert plugin.device({"mode": "default"}).recorder is None
