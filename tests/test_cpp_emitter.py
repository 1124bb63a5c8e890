"""Fused kernels through the C++ emitter: right at every size, dtype and number of threads."""

from __future__ import annotations

import math
import shutil
import subprocess
import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest
import torch

import vendor_sdk
from reference_backends.cpp_cpu import compiler, reductions, units
from reference_backends.cpp_cpu.emitter import CppEmitter
from reference_backends.cpp_cpu.machine import cache_bytes
from reference_backends.cpp_cpu.table import CTYPES
from tests import kernels
from tests.kernels import Case
from tests.lowered import call
from vendor_sdk.ir.loop_interpreter import interpret
from vendor_sdk.ir.loop_verify import verify

EMITTER = CppEmitter()
NUMBERS = count()


def rename(case: Case) -> Case:
    """The case with a name of its own, as one translation unit needs."""
    object.__setattr__(case.kernel, "name", f"{case.kernel.name}_{next(NUMBERS)}")
    return case


def launch(cases: Sequence[Case]) -> list[list[torch.Tensor]]:
    """All kernels compiled together and launched once: new content of "inout" params, then outputs."""
    named = []
    for case in cases:
        rename(case)
        verify(case.kernel)
        named.append((case.kernel, EMITTER.emit(case.kernel)))
    found = []
    for case, run in zip(cases, EMITTER.compile(named), strict=True):
        inputs = [t.clone() for t in case.inputs]
        results = case.results()
        run([*inputs, *results], case.symbols)
        given = [p for p in case.kernel.params if p.role != "out"]
        found.append([t for t, p in zip(inputs, given, strict=True) if p.role == "inout"] + results)
    return found


def expected(case: Case) -> list[torch.Tensor]:
    """What the kernel means, in float64."""
    wide = [t.double() if t.is_floating_point() else t for t in case.inputs]
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        result = case.eager(*wide)
    finally:
        torch.set_default_dtype(before)
    return list(result) if isinstance(result, list | tuple) else [result]


def check(cases: Sequence[Case]) -> None:
    for case, results in zip(cases, launch(cases), strict=True):
        if case.kernel.name.startswith("dropout"):
            continue
        for result, exact in zip(results, expected(case), strict=True):
            half = result.dtype in (torch.bfloat16, torch.float16)
            size = max(exact.abs().max().item(), 1e-30) if exact.numel() else 1.0
            error = (result.double() - exact.reshape(result.shape)).abs().max().item() / size if exact.numel() else 0.0
            assert error < (1e-2 if half else 2e-6), f"{case.kernel.name}: error {error} of {size}"


@pytest.mark.parametrize(("elements", "columns"), [(3000, 5), (40_000, 64), (100_000, 1000), (300_000, 4099), (1, 1)])
def test_fused_kernels(elements: int, columns: int) -> None:
    check(list(kernels.cases(elements, columns)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fused_kernels_of_other_dtypes(dtype: torch.dtype) -> None:
    check(list(kernels.cases(50_000, 331, dtype)))


@pytest.mark.parametrize(("rows", "columns"), [(1, 3), (7, 33), (40, 1000)])
def test_dropout_draws_the_defined_stream(rows: int, columns: int) -> None:
    case = kernels.dropout(rows, columns)
    ((result,),) = launch([case])
    exact = torch.empty(rows * columns)
    interpret(case.kernel, [case.inputs[0].flatten(), exact], case.symbols)
    assert torch.equal(result.flatten(), exact)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    chosen = list(kernels.cases(300_000, 1024))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = launch(chosen)
        torch.set_num_threads(2)
        two = launch(chosen)
        again = launch(chosen)
    finally:
        torch.set_num_threads(before)
    for case, *results in zip(chosen, one, two, again, strict=True):
        for first, *others in zip(*results, strict=True):
            assert all(torch.equal(first, other) for other in others), case.kernel.name


def test_few_long_rows() -> None:
    check([kernels.softmax(3, 300_001), kernels.layer_norm(2, 1 << 18), kernels.cross_entropy(2, 200_000)])


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("more", [-1, 0, 777, 70_001])
def test_long_loops_read_several_places_at_once(more: int, *, dynamic: bool) -> None:
    """All elements count, once: of parts that are and are not whole blocks, and of loops a little too short for it."""

    def totals(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(), (x - y).square().mean(), (x * 2).norm()

    n = reductions.LONG + more
    drawn = torch.Generator().manual_seed(n)
    x, y = (torch.randn(n, generator=drawn) + 0.1 for _ in range(2))
    torch.compiler.reset()
    compiled = torch.compile(totals, backend="cpp_cpu", dynamic=dynamic)
    for found, exact in zip(compiled(x, y), totals(x.double(), y.double()), strict=True):
        torch.testing.assert_close(found.double(), exact, rtol=2e-7, atol=0)
    ones = torch.ones(n)
    assert [float(each) for each in compiled(ones, 0 * ones)[:2]] == [float(torch.tensor(float(n))), 1.0]
    halves = ones.bfloat16()
    assert float(torch.compile(lambda x: x.sum(dtype=torch.float32), backend="cpp_cpu", dynamic=dynamic)(halves)) == float(
        torch.tensor(float(n))
    )
    before = torch.get_num_threads()
    try:
        first = compiled(x, y)
        torch.set_num_threads(3 - min(before, 2))
        assert all(map(torch.equal, compiled(x, y), first))
    finally:
        torch.set_num_threads(before)


def test_only_long_loops_read_several_places_at_once() -> None:
    for columns in (reductions.LONG, reductions.LONG // 2):
        case = kernels.sum_all(1, columns)
        assert ("run_streams(" in EMITTER.emit(case.kernel)) == (columns == reductions.LONG)
        check([case])


def test_results_larger_than_the_caches() -> None:
    """Stored past them, from an address that is and one that is not aligned."""
    n = cache_bytes(3) // 4 + 1000
    case = kernels.swiglu(1, n)
    ((result,),) = launch([case])
    torch.testing.assert_close(result, case.eager(*case.inputs), rtol=1e-5, atol=1e-6)
    (run,) = EMITTER.compile([(case.kernel, EMITTER.emit(case.kernel))])
    shifted = torch.empty(n + 1)[1:]
    run([*case.inputs, shifted], ())
    assert torch.equal(shifted, result.flatten())


def test_equal_nests_share_a_function() -> None:
    text = EMITTER.emit(kernels.adamw([100 + n for n in range(150)]).kernel)
    assert text.count("static void") == 1
    assert text.count("_nest0(") == 151


def test_nests_wait_for_what_they_read() -> None:
    """A nest side by side with the one that writes its operand."""
    k = kernels.Writer("chain")
    n = 200_000
    x, middle, y = k.param("x", n), k.out("middle", n), k.out("y", n)
    with k.nest(n) as (i,):
        k.store(middle, i, k.op("mul", k.load(x, i), 2.0))
    with k.nest(n) as (i,):
        k.store(y, i, k.op("add", k.load(middle, n - 1 - i), 1.0))
    data = torch.randn(n)
    case = Case(k.kernel(), (data,), (((n,), torch.float32),) * 2, lambda x: (x * 2, (x * 2).flip(0) + 1))
    check([case])


CONVERTED = [dtype for dtype in CTYPES if dtype not in vendor_sdk.FLOAT8]
"""Floats of eight bits, which loops convert to and from float32 alone, are in test_cpp_float8."""


def conversions(dtype: torch.dtype) -> Case:
    """A number as every other type, in whole vectors and at a loop's end."""
    k = kernels.Writer("conversions")
    n = 103
    x, outs = k.param("x", n, dtype), [k.out(f"y{at}", n, to) for at, to in enumerate(CONVERTED)]
    with k.nest(n) as (i,):
        value = k.load(x, i)
        for out in outs:
            k.store(out, i, value)
    data = (
        (torch.randn(n) * torch.exp(torch.randn(n) * 6)).to(dtype)
        if dtype.is_floating_point
        else torch.randint(0, 256, (n,)).to(dtype)
    )
    if dtype.is_floating_point:
        data[:10] = torch.tensor([torch.inf, -torch.inf, 3e4, -3e4, 6e4, -0.0, 127.5, 1e-39, -3e-40, 2**-149])
    return Case(k.kernel(), (data,), tuple(((n,), to) for to in CONVERTED), lambda x: tuple(x.to(to) for to in CONVERTED))


def test_conversions_are_torchs() -> None:
    chosen = [conversions(dtype) for dtype in CONVERTED]
    for case, results in zip(chosen, launch(chosen), strict=True):
        for result, exact in zip(results, case.eager(*case.inputs), strict=True):
            assert torch.equal(result, exact), (case.inputs[0].dtype, result.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32])
@pytest.mark.parametrize("shape", [(3, 5), (67, 201), (5, 37, 130), (2000, 3), (1, 5000), (300, 1100), (0, 7)])
def test_scans_along_and_across_memory(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype) if dtype.is_floating_point else torch.randint(-2, 3, shape, dtype=dtype)
    if dtype.is_floating_point and x.numel() > 1000:
        x.view(-1)[500], x.view(-1)[900] = torch.inf, torch.nan

    def scans(x: torch.Tensor) -> list[torch.Tensor]:
        sums = [torch.cumsum(x, dim, dtype=x.dtype) for dim in range(x.dim())]
        return sums + [torch.cumprod(x * 2, dim, dtype=x.dtype) for dim in range(x.dim())]

    graph = vendor_sdk.trace(scans, (x,))
    results = vendor_sdk.compile_graph(graph, backend="cpp_cpu")(x)
    exact = scans(x.double() if dtype.is_floating_point else x)
    for result, wide in zip(results, exact, strict=True):
        torch.testing.assert_close(result, wide.to(dtype), rtol=2e-6, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize(("count", "width", "rows"), [(3000, 77, 50), (2048, 128, 512), (5000, 1, 9), (20, 5000, 3)])
def test_rows_added_where_the_data_says(count: int, width: int, rows: int) -> None:
    """In the order of the rows, whatever the number of threads."""

    def scatter(table: torch.Tensor, at: torch.Tensor, each: torch.Tensor, added: torch.Tensor) -> list[torch.Tensor]:
        return [torch.index_put(table, (at,), added, accumulate=True), torch.scatter_add(table, 0, each, added)]

    table, added = torch.randn(rows, width), torch.randn(count, width)
    at, each = torch.randint(0, rows, (count,)), torch.randint(0, rows, (count, width))
    compiled = vendor_sdk.compile_graph(vendor_sdk.trace(scatter, (table, at, each, added)), backend="cpp_cpu")
    before = torch.get_num_threads()
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(compiled(table, at, each, added))
    torch.set_num_threads(before)
    for one, *others in zip(*found, strict=True):
        assert all(torch.equal(one, other) for other in others)
    for result, exact in zip(found[0], scatter(table.double(), at, each, added.double()), strict=True):
        torch.testing.assert_close(result.double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(4096, 64), (5001, 3), (900, 256), (40, 50, 33), (2, 20_000, 16)])
def test_few_columns_of_many_rows(shape: tuple[int, ...]) -> None:
    """All threads share the rows, cut the same way however many there are."""
    rows = list(range(len(shape) - 1))

    def columns(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.sum(rows), x.amax(rows), (x * x).mean(rows), x.argmin(0), (x > 3).any(0), x.var(rows)]

    x = torch.randn(shape)
    compiled = vendor_sdk.compile_graph(vendor_sdk.trace(columns, (x,)), backend="cpp_cpu")
    before = torch.get_num_threads()
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(compiled(x))
    torch.set_num_threads(before)
    for exact, one, *others in zip(columns(x.double()), *found, strict=True):
        assert all(torch.equal(one, other) for other in others)
        torch.testing.assert_close(one.to(exact.dtype), exact, rtol=1e-5, atol=1e-4)


def turned(batch: int, rows: int, columns: int, dtype: torch.dtype) -> Case:
    """A result that is read across memory, and one that is stored across it, in one nest."""
    k = kernels.Writer("turned")
    n = batch * rows * columns
    x, z, y, w = k.param("x", n, dtype), k.param("z", n, dtype), k.out("y", n, dtype), k.out("w", n, dtype)
    with k.nest(batch, columns, rows) as (b, i, j):
        k.store(y, (b * columns + i) * rows + j, k.load(x, (b * rows + j) * columns + i))
        k.store(w, (b * rows + j) * columns + i, k.load(z, (b * columns + i) * rows + j))
    data = [torch.randint(0, 2, (n,), dtype=torch.uint8).to(dtype), torch.randint(0, 100, (n,), dtype=torch.uint8).to(dtype)]
    inputs = data[0].view(batch, rows, columns), data[1].view(batch, columns, rows)
    shapes = ((batch, columns, rows), dtype), ((batch, rows, columns), dtype)
    return Case(k.kernel(), inputs, shapes, lambda x, z: (x.mT, z.mT))


TURNED = (
    *(turned(1, 67, 201, dtype) for dtype in CTYPES),
    *(turned(3, 33, 70, dtype) for dtype in (torch.float32, torch.bfloat16, torch.float64)),
    turned(2, 3, 500, torch.float32),
    turned(2, 500, 3, torch.uint8),
    turned(1, 256, 1024, torch.float16),
    turned(0, 5, 9, torch.float32),
)


def test_nests_across_memory() -> None:
    """Transposed operands and results of every width; edges, few rows, few columns, many."""
    for case, results in zip(TURNED, launch(TURNED), strict=True):
        for result, exact in zip(results, case.eager(*case.inputs), strict=True):
            assert torch.equal(result.reshape(exact.shape), exact), case.kernel.name
    text = EMITTER.emit(TURNED[0].kernel)
    assert text.count("transpose(") == 2


def by_channel(images: int, channels: int, pixels: int) -> Case:
    """Numbers of a channel lie along the channels, what they are combined with lies along the pixels."""
    k = kernels.Writer("by_channel")
    n = images * channels * pixels
    x, numbers, y = k.param("x", n), [k.param(f"c{p}", channels) for p in range(3)], k.out("y", n)
    with k.nest(images, channels, pixels) as (b, c, i):
        value = k.load(x, (b * channels + c) * pixels + i)
        for number in numbers:
            value = k.op("add", value, k.load(number, c))
        k.store(y, (b * channels + c) * pixels + i, value)
    inputs = torch.randn(images, channels, pixels), *(torch.randn(channels, 1) for _ in range(3))
    return Case(k.kernel(), inputs, (((images, channels, pixels), torch.float32),), lambda x, a, b, c: x + a + b + c)


def test_numbers_of_a_row_do_not_turn_the_loops() -> None:
    case = by_channel(3, 64, 71)
    check([case])
    assert "transpose(" not in EMITTER.emit(case.kernel)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_choices_by_what_is_gathered_are_vectors_where_processors_gather_nothing(dtype: torch.dtype) -> None:
    """A compiler makes a branch of each comparison of halves, and a vector of those of float32."""
    case = call(torch.ops.aten.max_pool2d_with_indices.default, (torch.randn(2, 3, 37, 41).to(dtype), [3, 3], [3, 3]))
    text = EMITTER.emit(case.lowered.kernel)
    assert ("#pragma omp simd" in text) == (dtype is torch.float32)


@pytest.mark.parametrize("step", [1, 2, 7])
@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge"])
def test_positions_are_compared_with_a_bound_once_for_all_lanes(name: str, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compare, emit = getattr(torch, name), CppEmitter.emit
    texts: list[str] = []
    monkeypatch.setattr(CppEmitter, "emit", lambda self, kernel: texts.append(emit(self, kernel)) or texts[-1])

    def function(bound: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(100) * step - 20
        return compare(positions, bound), compare(bound, positions)

    compiled = vendor_sdk.compile_graph(vendor_sdk.trace(function, (torch.tensor(0),)), backend="cpp_cpu")
    assert "".join(texts).count("_lanes(lanes_") + "".join(texts).count("lanes_from(lanes_") == 2
    for value in (-(2**63), -(2**62), -21, -20, -19, 0, 11, 12, 13, 79, 80, 81, 700, 2**62, 2**63 - 1):
        bound = torch.tensor(value)
        for found, expected in zip(compiled(bound), function(bound), strict=True):
            assert torch.equal(found, expected), value


def test_code_compiles_for_arm(tmp_path: Path) -> None:
    cross = shutil.which("aarch64-linux-gnu-g++")
    if cross is None:
        pytest.skip("needs g++-aarch64-linux-gnu")
    file = tmp_path / "kernels.cpp"
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        cases = kernels.cases(20_000, 101, dtype)
        file.write_text(units._source([units._unit(c.kernel, EMITTER.emit(c.kernel)) for c in cases]))
        assert dtype is not torch.float32 or "op_div_by" in file.read_text().partition('extern "C" int32_t kernel_')[2]
        flags = [f for f in compiler.FLAGS if not f.startswith("-march=") and f != "-shared"]
        subprocess.run([cross, *flags, "-c", str(file), "-o", str(tmp_path / "kernels.o")], check=True)


ELEMENTARY = {
    "exp": 1.5,
    "exp2": 1.5,
    "expm1": 2.0,
    "log": 1.5,
    "log2": 2.0,
    "log10": 2.0,
    "log1p": 1.5,
    "sin": 2.0,
    "cos": 2.0,
    "tanh": 2.0,
    "erf": 2.0,
    "erfc": 8.0,
    "sigmoid": 3.0,
}
"""Float32 functions of this backend's own and their largest error in units in the last place; the rows allow more."""


def ulps(result: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Errors in units in the last place of float32; 0 where the result is the rounded value, infinite where NaN differ."""
    rounded = exact.float()
    unit = torch.exp2(torch.floor(torch.log2(exact.abs().clamp(min=2.0**-126))) - 23)
    error = ((result.double() - exact).abs() / unit).nan_to_num(torch.inf)
    same = (result == rounded) | (result.isnan() & rounded.isnan())
    return torch.where(same, 0.0, error)


@pytest.mark.parametrize("name", ELEMENTARY)
def test_elementary_functions_over_all_exponents(name: str) -> None:
    x = torch.arange(-(2**31), 2**31, 10007, dtype=torch.int64).to(torch.int32).view(torch.float32)
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1.0, -1.0, 2**-149, 3.4e38, -3.4e38, 88.7, -103.9])
    x = torch.cat((x, special, torch.linspace(-12, 12, 100_003)))
    k = kernels.Writer(name)
    source, target = k.param("x", len(x)), k.out("y", len(x))
    with k.nest(len(x)) as (i,):
        k.store(target, i, k.op(name, k.load(source, i)))
    function = {"erf": torch.special.erf, "erfc": torch.special.erfc}.get(name) or getattr(torch, name)
    case = Case(k.kernel(), (x,), (((len(x),), torch.float32),), function)
    ((result,),) = launch([case])
    exact = function(x.double())
    error = ulps(result, exact)
    worst = int(error.argmax())
    assert error[worst] <= ELEMENTARY[name], f"{name}({x[worst]}) = {result[worst]}, exact {exact[worst]}"


def test_powers_of_special_values() -> None:
    values = torch.tensor([0.0, 1.0, 2.0, 3.0, 0.5, torch.inf, torch.nan, 1e-40, 3e38, 16777217.0])
    values = torch.cat((values, -values))
    base, exponent = (t.flatten() for t in torch.meshgrid(values, values, indexing="ij"))
    n = len(base)
    k = kernels.Writer("power")
    a, b, y = k.param("a", n), k.param("b", n), k.out("y", n)
    with k.nest(n) as (i,):
        k.store(y, i, k.op("pow", k.load(a, i), k.load(b, i)))
    case = Case(k.kernel(), (base, exponent), (((n,), torch.float32),), torch.pow)
    ((result,),) = launch([case])
    exact = torch.pow(base.double(), exponent.double())
    assert ulps(result, exact).max() <= 1.0
    assert bool((result.signbit() == exact.float().signbit())[~result.isnan()].all())


def test_a_number_that_is_rounded_to_float32_and_back_is_rounded() -> None:
    """GCC 12.2 leaves it as it is where it makes vectors of statements side by side."""

    def function(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
        return ((a @ b).float().double(),)

    a, b = torch.randn(4, 4, 3, dtype=torch.float64), torch.randn(4, 3, 1, dtype=torch.float64)
    (found,) = vendor_sdk.compile_graph(vendor_sdk.trace(function, [a, b]), backend="cpp_cpu")(a, b)
    assert torch.equal(found, found.float().double())
    torch.testing.assert_close(found, *function(a, b), rtol=1e-7, atol=1e-7)


def test_the_first_launch_waits_for_the_compiler_and_says_what_it_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VENDOR_SDK_CACHE_DIR", str(tmp_path))
    wait, compile_one = threading.Event(), compiler._compile

    def slow(key: str, source: str) -> Path:
        wait.wait(60)
        return compile_one(key, source)

    monkeypatch.setattr(compiler, "_compile", slow)
    case = rename(next(iter(kernels.cases(2_000, 10, torch.float32))))
    text = EMITTER.emit(case.kernel)
    (good,) = EMITTER.compile([(case.kernel, f"// {case.kernel.name}\n{text}")])
    (bad,) = EMITTER.compile([(case.kernel, f"{text}\nnot_a_type x;")])
    wait.set()
    good([*case.inputs, *case.results()], case.symbols)
    for _ in range(2):
        with pytest.raises(vendor_sdk.CompilerError, match="refused generated code"):
            bad([*case.inputs, *case.results()], case.symbols)


def test_a_half_that_is_computed_fills_what_a_slice_leaves() -> None:
    x, y = torch.randn(6, 8).bfloat16(), torch.randn(2, 8).bfloat16()

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.slice_scatter(x * 3, y, 0, 1, 3) + 1

    assert torch.equal(torch.compile(function, backend="cpp_cpu")(x, y), function(x, y))


DIVISORS = [3.0, 10.0, 0.09977534660552057, 1.0 + 2.0**-23, 2.0 - 2.0**-23, 2.0 - 2.0**-22]
"""Beside ordinary ones, those whose reciprocals are rounded worst."""


def test_quotients_by_one_number_are_rounded_as_divisions_are() -> None:
    divided = torch.compile(lambda x, c: x / c, backend="cpp_cpu")
    mantissas = (torch.arange(1 << 23, dtype=torch.int32) + 0x3F800000).view(torch.float32)
    for c in [*DIVISORS, *(torch.rand(2) + 1).tolist()]:
        divisor = torch.tensor(c, dtype=torch.float32)
        assert torch.equal(divided(mantissas, divisor), mantissas / divisor), c


@pytest.mark.parametrize("c", [3.0, -3.0, 0.0, -0.0, math.inf, math.nan, 1e-40, 1e38, 2.0**-56, 2.0**57])
def test_quotients_of_special_values_by_one_number(c: float) -> None:
    divided = torch.compile(lambda x, c: x / c, backend="cpp_cpu")
    small = [1e-45, 1e-38, 2.0**-57, 2.0**-56]
    x = torch.tensor([[value, -value] for value in [0.0, math.inf, math.nan, 1.5, 3e38, 2.0**56, *small]]).flatten()
    for operand in (x, x.repeat(5)[: 7 * len(x) // 2], torch.full((64,), -0.0)):
        found, expected = divided(operand, torch.tensor(c)), operand / torch.tensor(c)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(found.signbit()[~found.isnan()], expected.signbit()[~found.isnan()])
