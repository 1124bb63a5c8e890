"""The C++ emitter, its compiler and cache, and the hand-written kernels."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import vendor_sdk
from reference_backends.cpp_cpu import compiler
from reference_backends.cpp_cpu.emitter import OPS, CppEmitter, KernelText
from reference_backends.cpp_cpu.kernels import KERNELS
from reference_backends.cpp_cpu.written import Written
from tests.chips import use_chip
from tests.destinations import filled
from tests.lowered import Call, call, chain
from vendor_sdk import Kernel, load, pipeline, torch_private
from vendor_sdk.capture.graph import trace
from vendor_sdk.contract.loader import Session
from vendor_sdk.errors import CompilerError, LoweringError
from vendor_sdk.ir import loop_ops
from vendor_sdk.lower import LOWERINGS, VIEWS
from vendor_sdk.partition.place import place
from vendor_sdk.prims.bounds import violations
from vendor_sdk.prims.opset import COMPOSITES, OPSET
from vendor_sdk.prims.reference import reference
from vendor_sdk.prims.samples import Effort, Sample, SampleContext
from vendor_sdk.routes import Routes
from vendor_sdk.run.kept import kept

aten = torch.ops.aten
EMITTER = CppEmitter()


def run(calls: Sequence[Call], seed: int = 1234) -> list[list[torch.Tensor]]:
    """All calls compiled as one translation unit and launched."""
    kernels = []
    for position, one in enumerate(calls):
        kernel = one.lowered.kernel
        object.__setattr__(kernel, "name", f"kernel{position}")
        kernels.append((kernel, EMITTER.emit(kernel)))
    results = []
    for one, launch in zip(calls, EMITTER.compile(kernels), strict=True):
        outputs = one.outputs()
        launch([*one.inputs, *outputs], one.symbols(seed))
        results.append(outputs)
    return results


UNTRUSTED_REFERENCE = {f"special_{name}" for name in ("airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1")}
"""Rows whose reference, torch's own float64 function, is off by 1e-9 to 1e-5; checked against SciPy below instead."""


def _rows() -> list[str]:
    return sorted(name for name in OPSET if (name in LOWERINGS or name in VIEWS) and name not in UNTRUSTED_REFERENCE)


@pytest.mark.parametrize("name", _rows())
def test_emitted_code_is_the_prim(name: str) -> None:
    row = OPSET[name]
    samples: list[Sample] = []
    calls: list[Traced] = []
    for dtype in {row.dtypes[0], row.dtypes[min(1, len(row.dtypes) - 1)]}:
        for sample in row.samples(SampleContext.make(dtype, Effort.QUICK)):
            try:
                calls.append(call(row.target, sample.args, sample.kwargs))
            except LoweringError:
                continue
            samples.append(sample)
    assert calls, "no sample of this prim was lowered"
    for sample, lowered, outputs in zip(samples, calls, run(calls), strict=True):
        verdict = violations(row.bound, row, sample, lowered.results(outputs), reference(row, sample))
        assert verdict.ok, f"{sample.label}: {verdict.message}"


@pytest.mark.parametrize("name", sorted(name for name in KERNELS if name in OPSET))
def test_hand_written_kernels_are_the_prims(name: str) -> None:
    row, kernel = OPSET[name], KERNELS[name]
    one = kernel if isinstance(kernel, Kernel) else Kernel(kernel)
    for dtype in row.dtypes if one.dtypes is None else sorted(one.dtypes, key=str):
        for sample in row.samples(SampleContext.make(dtype, Effort.QUICK)):
            call = functools.partial(filled, one, row.target) if one.destination else one.call
            result = call(*sample.args, **sample.kwargs)
            verdict = violations(row.bound, row, sample, result, reference(row, sample))
            assert verdict.ok, f"{dtype} {sample.label}: {verdict.message}"


LATER_SAMPLES = ("scatter_reduce", "embedding_dense_backward", "grid_sampler_2d", "grid_sampler_2d_backward", "view.dtype")
"""Prims whose harder cases (means, frequencies, cubic weights, widths) the first samples leave out."""


@pytest.mark.parametrize("name", LATER_SAMPLES)
def test_emitted_code_is_the_prim_in_every_sample(name: str) -> None:
    row = OPSET[name]
    samples = list(row.samples(SampleContext.make(row.dtypes[0], Effort.STANDARD)))
    for sample, outputs in zip(samples, run([call(row.target, s.args, s.kwargs) for s in samples]), strict=True):
        result = tuple(outputs) if len(outputs) > 1 else outputs[0]
        verdict = violations(row.bound, row, sample, result, reference(row, sample))
        assert verdict.ok, f"{sample.label}: {verdict.message}"


def test_factors_are_those_of_lapack() -> None:
    """Pivots, signs and storage, which the rows leave open: what reads the factors may be torch's own."""
    generator = torch.Generator().manual_seed(0)
    for m, n in ((6, 6), (7, 3), (3, 7)):
        a = torch.randn(2, m, n, dtype=torch.float64, generator=generator)
        for name, operator in (
            ("geqrf", aten.geqrf.default),
            ("linalg_qr", aten.linalg_qr.default),
        ):
            torch.testing.assert_close(KERNELS[name](a), tuple(operator(a)), msg=f"{name} {m} x {n}")
    indefinite = torch.randn(20, 6, 6, dtype=torch.float64, generator=generator)
    indefinite = indefinite + indefinite.mT
    indefinite.diagonal(dim1=-2, dim2=-1).mul_(0.1)
    expected = tuple(aten.linalg_ldl_factor_ex.default(indefinite))
    assert bool((expected[1] < 0).any()), "no matrix needed a block of two"
    torch.testing.assert_close(KERNELS["linalg_ldl_factor_ex"](indefinite), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_exponentials_of_matrices_of_halves(dtype: torch.dtype) -> None:
    a = torch.randn(2, 5, 5).to(dtype)
    found = torch.compile(torch.linalg.matrix_exp, backend="cpp_cpu", fullgraph=True)(a)
    torch.testing.assert_close(found, torch.linalg.matrix_exp(a.double()).to(dtype))


def test_an_index_out_of_range_is_an_index_error_in_compiled_programs() -> None:
    def f(weight: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(at, weight) * 2 + weight.sort(0).values[:2]

    weight, compiled = torch.randn(10, 3), torch.compile(f, backend="cpp_cpu")
    for _ in range(2):
        with torch.no_grad(), pytest.raises(IndexError, match="out of range") as caught:
            compiled(weight, torch.tensor([1, 99]))
        (note,) = caught.value.__notes__
        assert "index" in note
        assert "test_cpp_cpu.py" in note
        with torch.no_grad():
            torch.testing.assert_close(compiled(weight, torch.tensor([1, 9])), f(weight, torch.tensor([1, 9])))


def test_bags_check_indices_and_offsets() -> None:
    weight, entries = torch.randn(3, 2), torch.tensor([0, 2, 1])
    with pytest.raises(IndexError):
        KERNELS["_embedding_bag"](weight, torch.tensor([0, 3]), torch.tensor([0]))
    with pytest.raises(IndexError):
        KERNELS["_embedding_bag"](weight, entries, torch.tensor([0, 2, 1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("width", [0, 1, 17, 64, 83])
def test_bags_of_rows_of_any_width(width: int, dtype: torch.dtype) -> None:
    """Whole vectors of columns and what is left of them; so many entries that threads share the rows of the gradient."""
    rows, bags, padding = 50, 40, 7
    weight, gradient = torch.randn(rows, width, dtype=dtype), torch.randn(bags, width, dtype=dtype)
    entries = torch.randint(0, rows, (2000,))
    first = torch.cat((torch.zeros(2, dtype=torch.int64), torch.randint(0, 2000, (bags - 2,)).sort().values))
    tolerance = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 300 * min(torch.finfo(dtype).eps, 1e-6)}
    for mode, factor in (("sum", None), ("sum", torch.randn(2000, dtype=dtype)), ("mean", None), ("max", None)):
        exact = weight.double().requires_grad_()
        scales = None if factor is None else factor.double()
        expected = torch.nn.functional.embedding_bag(
            entries, exact, first, mode=mode, per_sample_weights=scales, padding_idx=padding
        )
        number = ("sum", "mean", "max").index(mode)
        out, *kept = KERNELS["_embedding_bag"](weight, entries, first, False, number, False, factor, False, padding)
        torch.testing.assert_close(out.double(), expected, **tolerance)
        known = (entries, first, *kept, rows, False, number, False, factor, padding)
        found = KERNELS["_embedding_bag_backward"](gradient, *known)
        (wanted,) = torch.autograd.grad(expected, exact, gradient.double())
        torch.testing.assert_close(found.double(), wanted, **tolerance)


def test_special_functions_against_scipy() -> None:
    special = pytest.importorskip("scipy.special")
    x = torch.linspace(0.3, 15.0, 301, dtype=torch.float64)
    pairs = {
        aten.special_bessel_j0.default: special.j0,
        aten.special_bessel_j1.default: special.j1,
        aten.special_bessel_y0.default: special.y0,
        aten.special_bessel_y1.default: special.y1,
        aten.special_modified_bessel_k0.default: special.k0,
        aten.special_modified_bessel_k1.default: special.k1,
        aten.special_airy_ai.default: lambda v: special.airy(v)[0],
        aten.digamma.default: special.digamma,
        aten.lgamma.default: special.gammaln,
        aten.i0.default: special.i0,
        aten.special_erfcx.default: special.erfcx,
    }
    results = run([call(target, [x]) for target in pairs])
    for (target, expected), (result,) in zip(pairs.items(), results, strict=True):
        wanted = torch.from_numpy(expected(x.numpy()))
        torch.testing.assert_close(result, wanted, rtol=2e-13, atol=2e-14, msg=str(target))


def test_no_route_is_for_what_is_no_prim() -> None:
    native = LOWERINGS.keys() | VIEWS.keys() | KERNELS.keys()
    assert native <= OPSET.keys() | COMPOSITES.keys(), "a lowering or kernel for what is no prim is never used"


def _strength(name: str, session: Session) -> str:
    """The weakest placement of a prim over all samples of its first dtype and one of each other: "native" only if every one is,
    "" without samples."""
    row, order = OPSET[name], ("native", "view", "wrapper", "decomposed", "host")
    calls: list[Traced] = []
    for number, dtype in enumerate(row.dtypes):
        samples = row.samples(SampleContext.make(dtype, Effort.STANDARD))
        for sample in itertools.islice(samples, None if number == 0 else 1):
            calls.append(torch_private.as_function(row.target, sample.args, sample.kwargs))
    return max(_kinds(name, calls, session), key=order.index, default="")


Traced = tuple[Callable[..., Any], Sequence[Any]]


def _kinds(name: str, calls: Sequence[Traced], session: Session) -> list[str]:
    """Where the calls run, all of them in one graph: tracing is dear."""

    def together(*inputs: Any) -> list[Any]:
        rest = iter(inputs)
        return pytree.tree_leaves([function(*itertools.islice(rest, len(own))) for function, own in calls])

    if not calls:
        return []
    graph = trace(together, [value for _, own in calls for value in own], {})
    with torch_private.real_tensors():
        placed = place(graph, Routes(session))
    kinds = [str(p.placement.kind) for p in placed if p.prim == name]
    if len(calls) == 1:
        # A prim that is decomposed leaves no node of its name.
        return kinds or [str(p.placement.kind) for p in placed][-1:]
    if len(kinds) != len(calls):
        return [kind for call in calls for kind in _kinds(name, [call], session)]
    return kinds


def test_native_prims_do_not_become_fewer() -> None:
    session = load("cpp_cpu").session(None)
    strengths = {name: _strength(name, session) for name in OPSET}
    weak = {name: strength for name, strength in strengths.items() if strength not in ("", "native", "view")}
    assert list(strengths.values()).count("native") >= NATIVE, weak
    assert list(strengths.values()).count("view") >= 13, weak


NATIVE = 202
"""Prims that run native in every case."""


def test_every_loop_op_is_emitted() -> None:
    """The capability list is complete, so no prim is declined for want of an op; ``expsum`` is what other emitters ask for."""
    reductions = {f"reduce.{name}" for name, row in loop_ops.COMBINE.items() if row.reduce and name != "expsum"}
    scans = {f"scan.{name}" for name, row in loop_ops.COMBINE.items() if row.scan}
    assert OPS.keys() == loop_ops.OPS.keys() | reductions | scans | {"scratch", "nest", "local", "contraction"} | {
        f"store.{mode}" for mode in ("add", "mul", "max", "min")
    }


def test_text_is_deterministic() -> None:
    texts = {EMITTER.emit(call(aten.var.correction, [torch.randn(5, 7), [1]]).lowered.kernel) for _ in range(3)}
    assert len(texts) == 1


@pytest.mark.parametrize("target", [aten.remainder.Tensor, aten.fmod.Tensor])
def test_integer_division_by_zero_raises_and_does_not_kill(target: object) -> None:
    one = call(target, [torch.tensor([7, -7]), torch.tensor([2, 0])])
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run([one])


def test_lowest_integer_divided_by_minus_one_does_not_trap() -> None:
    low = torch.tensor([torch.iinfo(torch.int64).min])
    one = call(aten.div.Tensor_mode, [low, torch.tensor([-1])], {"rounding_mode": "trunc"})
    ((result,),) = run([one])
    assert result.item() == low.item()


def test_an_index_out_of_range_raises() -> None:
    one = call(aten.index_select.default, [torch.randn(3, 2), 0, torch.tensor([0, 3])])
    with pytest.raises(IndexError):
        run([one])


def test_out_of_range_floats_convert_without_crashing() -> None:
    x = torch.tensor([1e30, -1e30, torch.nan, torch.inf, -torch.inf, 3.7, -3.7])
    calls = [call(aten._to_copy.default, [x], {"dtype": d}) for d in (torch.int64, torch.int32, torch.uint8, torch.int8)]
    for (result,) in run(calls):
        assert result[-2].item() == 3


def test_dynamic_shapes() -> None:
    x = torch.randn(33, 70)
    builds = [
        (lambda s, v: s(aten.sum.dim_IntList, v, [0]), lambda v: v.sum(0)),
        (lambda s, v: s(aten.sum.dim_IntList, v, [1]), lambda v: v.sum(1)),
        (lambda s, v: s(aten.sum.dim_IntList, v, [0, 1]), lambda v: v.sum()),
        (lambda s, v: s(aten.exp.default, s(aten.permute.default, v, [1, 0])), lambda v: v.t().exp()),
    ]
    for (_, eager), (result,) in zip(builds, run([chain(b, [x], dynamic=True) for b, _ in builds]), strict=True):
        torch.testing.assert_close(result, eager(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dims", [[0], [1], [0, 1]])
def test_large_sums_are_at_least_as_accurate_as_eager(dims: list[int]) -> None:
    x = torch.rand(3000, 700)
    exact = x.double().sum(dims)
    ((result,),) = run([call(aten.sum.dim_IntList, [x, dims])])
    ours, eager = ((r.double() - exact).abs().max().item() for r in (result, x.sum(dims)))
    assert ours <= max(eager, exact.abs().max().item() * 2**-24)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    x = torch.randn(400, 3000)
    calls = [call(aten.sum.dim_IntList, [x, d]) for d in ([0], [1], [0, 1])]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = run(calls)
        torch.set_num_threads(2)
        two = run(calls)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for (a,), (b,) in zip(one, two, strict=True))


def test_one_openmp_runtime_is_loaded() -> None:
    run([call(aten.neg.default, [torch.randn(3)])])
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libgomp" in line}
    assert len({Path(p).resolve() for p in loaded}) == 1


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("VENDOR_SDK_CACHE_DIR", raising=False)
    return tmp_path / "vendor-sdk" / "cpp_cpu"


SOURCE = 'extern "C" int answer() { return 42; }\n'


def test_the_cache_keeps_rebuilds_and_shares(cache: Path) -> None:
    entry = compiler.build(SOURCE)
    assert entry.parent == cache
    assert ctypes.CDLL(str(entry)).answer() == 42
    stamp = entry.stat().st_mtime_ns
    assert compiler.build(SOURCE) == entry
    assert entry.stat().st_mtime_ns == stamp, "a kept entry is not built again"
    truncated = entry.read_bytes()[:-100]
    entry.unlink()
    entry.write_bytes(truncated)
    assert compiler.build(SOURCE) == entry
    assert entry.read_bytes()[:-32].startswith(b"\x7fELF")
    assert len(entry.read_bytes()) > len(truncated), "a damaged entry is built anew"
    assert not list(cache.glob("build-*")), "no build directory stays"


def test_many_processes_build_one_entry(cache: Path) -> None:
    code = f"from reference_backends.cpp_cpu import compiler; print(compiler.build({SOURCE!r}))"
    running = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    found = {process.communicate(timeout=120)[0].strip() for process in running}
    assert len(found) == 1
    assert ctypes.CDLL(found.pop()).answer() == 42


def test_processes_wait_for_the_one_that_compiles(cache: Path, tmp_path: Path) -> None:
    log, wrapper = tmp_path / "log", tmp_path / "slowly"
    wrapper.write_text(
        f'#!/bin/sh\nif [ "$1" != --version ]; then echo once >> {log}; sleep 1; fi\nexec {compiler.compiler()} "$@"\n'
    )
    wrapper.chmod(0o755)
    code = (
        "import sys; from reference_backends.cpp_cpu import compiler; compiler.toolchain(); print('ready', flush=True); "
        f"input(); print(compiler.build({SOURCE!r}))"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, "CXX": str(wrapper)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert len({process.communicate(timeout=120)[0].strip() for process in running}) == 1
    assert log.read_text() == "once\n"
    assert not list(cache.glob("*.lock"))


def test_refused_code_keeps_the_source_and_the_compilers_words(cache: Path) -> None:
    with pytest.raises(CompilerError, match="not_a_type") as caught:
        compiler.build("not_a_type x;")
    assert Path(caught.value.where).read_text() == "not_a_type x;"


def test_without_a_compiler_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    compiler.compiler.cache_clear()
    try:
        assert "install g++" in compiler.requires()
    finally:
        compiler.compiler.cache_clear()


def test_the_same_seed_draws_the_same_numbers() -> None:
    calls = [call(aten.randn.default, [[1000]])]
    assert torch.equal(run(calls, 1)[0][0], run(calls, 1)[0][0])
    assert not torch.equal(run(calls, 1)[0][0], run(calls, 2)[0][0])
    torch.manual_seed(0)
    first = KERNELS["randperm"](50)
    torch.manual_seed(0)
    assert torch.equal(KERNELS["randperm"](50), first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("window", [(2, 2, 0, 1), (3, 2, 1, 1), (3, 1, 1, 2), (5, 3, 2, 1)])
def test_max_pools(window: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    """Values are torch's, NaN above all; so are positions, the first of equals (of several NaN torch takes the last)."""
    use_chip("cpp_cpu")
    kernel, stride, padding, dilation = window
    x = torch.randint(-2, 3, (2, 3, 37, 41)).to(dtype)
    if dtype.is_floating_point:
        x[0, 0] = -torch.inf
        x[1][torch.rand(3, 37, 41) < 0.05] = torch.nan

    def pooled(x: torch.Tensor, indices: bool) -> Any:
        return torch.nn.functional.max_pool2d(x, kernel, stride, padding, dilation, True, indices)

    torch._dynamo.reset()
    compiled = torch.compile(pooled, backend="cpp_cpu")
    values, positions = pooled(x, True)
    ours, found = compiled(x, True)
    for each in (ours, compiled(x, False)):
        torch.testing.assert_close(each, values, rtol=0, atol=0, equal_nan=True)
    number = values == values
    assert torch.equal(found[number], positions[number])


# Memory


def build(function: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    return vendor_sdk.compile_graph(vendor_sdk.trace(function, inputs), backend="cpp_cpu")


def test_blocks_of_outputs_fit_and_come_back_from_any_thread() -> None:
    vendor_sdk.release_memory()
    inputs = [torch.randn(rows, 1024) for rows in (64, 66, 96, 1500)]
    compiled = (
        build(lambda v: v + 1, inputs[0]),
        build(lambda v: v + 1, inputs[1]),
        *(build(lambda v: v + 1, x) for x in inputs[2:]),
    )
    made = [graph(x)[0] for graph, x in zip(compiled, inputs, strict=True)]
    for x, y in zip(inputs, made, strict=True):
        torch.testing.assert_close(y, x + 1)
    del y
    address = made[0].data_ptr()
    thread = threading.Thread(target=made.clear)
    thread.start()
    thread.join()
    (larger,) = compiled[2](inputs[2])
    (again,) = compiled[0](inputs[0])
    assert again.data_ptr() == address
    assert larger.data_ptr() != address
    del again, larger
    assert vendor_sdk.release_memory() >= sum(x.nbytes for x in inputs)


def test_panels_of_kept_parameters_are_read_in_place() -> None:
    graphs: list[vendor_sdk.CompiledGraph] = []
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.Tanh())
    with pipeline.recording(graphs.append), torch.no_grad():
        torch.compile(model, backend="cpp_cpu", options={"keep": True})(torch.randn(16, 512))
    kept.release()
    ((kernel,),) = (graph.loops.values() for graph in graphs)
    text = KernelText(kernel).text()
    assert text.count("nullptr, nullptr, false, address_with") == 1, text


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.cat([x, x * 2]),
        lambda x: torch.stack([x, x + 1]),
        lambda x: (x.sum(), x.sum(0), x.prod(0), (x > 0).any(0)),
    ],
)
def test_emitted_kernels_of_no_elements(function: Callable[..., Any]) -> None:
    x = torch.ones(0, 7)
    torch.testing.assert_close(torch.compile(function, backend="cpp_cpu")(x), function(x))


@pytest.mark.parametrize(
    ("function", "files", "macros"),
    [
        (lambda x: x.topk(2)[0], ("base.h", "selection.cpp"), {"TOPK": "", "TYPE": "float", "NAME": "float32"}),
        (lambda x: x.masked_select(x > 0), ("base.h", "selection.cpp"), {"COUNT": "", "TYPE": "bool", "NAME": "bool"}),
        (lambda x: torch.linalg.qr(x)[0], ("base.h", "linalg.cpp"), {}),
        (lambda x: x + 1, (), {}),
    ],
)
def test_written_libraries_compile_before_their_first_call(
    function: Callable[..., torch.Tensor], files: tuple[str, ...], macros: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Written] = []
    monkeypatch.setattr(Written, "start", lambda self: begun.append(self))
    vendor_sdk.compile_graph(vendor_sdk.trace(function, (torch.rand(4, 4),)), backend="cpp_cpu")
    assert {each.files for each in begun} == ({files} if files else set())
    assert macros in [*(each.macros for each in begun), {}]
