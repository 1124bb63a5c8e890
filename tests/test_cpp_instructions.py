"""Code of the C++ backend for processors with fewer instructions than this one may have."""

from __future__ import annotations

import math
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from reference_backends.cpp_cpu import compiler, machine
from reference_backends.cpp_cpu.emitter import CppEmitter
from tests import kernels, test_cpp_emitter, test_cpp_wide
from tests.lowered import call
from tests.toys import use_kind
from vendor_sdk.errors import LoweringError
from vendor_sdk.lower import LOWERINGS, VIEWS
from vendor_sdk.prims.bounds import violations
from vendor_sdk.prims.opset import OPSET
from vendor_sdk.prims.reference import reference
from vendor_sdk.prims.samples import Effort, SampleContext

EMITTER = CppEmitter()
MOVES = ("view", "indexing", "conversion")
"""Families whose loops are short, masked, of every width of an element, or turned."""
NEEDED = {"x86-64-v2": set(), "x86-64-v3": {"avx2", "fma"}, "x86-64-v4": {"avx512f", "avx512bw", "avx512dq", "avx512vl"}}
"""What a processor must have to run code for another, besides what all have."""


@pytest.fixture(params=["x86-64-v3", "x86-64-v2"])
def _instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if platform.machine() != "x86_64":
        pytest.skip("for x86")
    if not NEEDED[request.param] <= machine.flags():
        pytest.skip("this processor lacks instructions")
    flags = tuple(f"-march={request.param}" if f.startswith("-march=") else f for f in compiler.FLAGS)
    monkeypatch.setattr(compiler, "FLAGS", flags)
    compiler.toolchain.cache_clear()
    yield
    compiler.toolchain.cache_clear()


@pytest.mark.usefixtures("_instructions")
def test_fused_kernels() -> None:
    test_cpp_emitter.check([*kernels.cases(20_000, 333), *kernels.cases(5000, 77, torch.bfloat16)])
    test_cpp_emitter.test_nests_across_memory()


@pytest.mark.usefixtures("_instructions", "fresh_graphs")
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["rows", "channels last"])
def test_windows_of_each_channel(layout: torch.memory_format) -> None:
    x, w = (
        torch.randn(2, 19, 9, 21).contiguous(memory_format=layout).requires_grad_(),
        torch.randn(19, 1, 7, 7, requires_grad=True),
    )
    compiled = torch.compile(lambda x, w: F.conv2d(x, w, padding=3, groups=19), backend="cpp_cpu", dynamic=False)
    exact = [t.detach().double().requires_grad_() for t in (x, w)]
    wanted, found = F.conv2d(*exact, padding=3, groups=19), compiled(x, w)
    given = torch.randn(wanted.shape)
    for one, other in zip(
        (found, *torch.autograd.grad(found, (x, w), given)),
        (wanted, *torch.autograd.grad(wanted, exact, given.double())),
        strict=True,
    ):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("_instructions")
def test_what_moves_elements() -> None:
    made, kept = [], []
    for name, row in sorted(OPSET.items()):
        if row.family not in MOVES or (name not in LOWERINGS and name not in VIEWS):
            continue
        for dtype in row.dtypes[:3]:
            for sample in row.samples(SampleContext.make(dtype, Effort.QUICK)):
                try:
                    lowered = call(row.target, sample.args, sample.kwargs)
                except LoweringError:
                    continue
                kernel = lowered.lowered.kernel
                object.__setattr__(kernel, "name", f"kernel{len(made)}")
                made.append((kernel, EMITTER.emit(kernel)))
                kept.append((name, row, sample, lowered))
    assert len({name for name, *_ in kept}) > 20
    for (name, row, sample, lowered), launch in zip(kept, EMITTER.compile(made), strict=True):
        outputs = lowered.outputs()
        launch([*lowered.inputs, *outputs], lowered.symbols(1234))
        verdict = violations(row.bound, row, sample, lowered.results(outputs), reference(row, sample))
        assert verdict.ok, f"{name}: {sample.label}: {verdict.message}"


@pytest.mark.usefixtures("_instructions")
@pytest.mark.parametrize("name", ["tan", "sinh", "atanh", "lgamma", "erfinv"])
def test_functions_by_wider_arithmetic(name: str) -> None:
    test_cpp_wide.test_nearly_all_are_rounded_once(name)
    test_cpp_wide.test_special_values_are_those_of_torch(name)


@pytest.mark.parametrize("_instructions", ["x86-64-v4"], indirect=True)
@pytest.mark.usefixtures("_instructions")
def test_quotients_by_one_number(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of wide registers without the name of a processor whose divisions are quick: by its reciprocal."""
    monkeypatch.setenv("VENDOR_SDK_CACHE_DIR", str(tmp_path))
    torch.compiler.reset()
    test_cpp_emitter.test_quotients_by_one_number_are_rounded_as_divisions_are()
    for c in (3.0, -3.0, -0.0, math.inf, math.nan, 1e-40, -(2.0**-56), 2.0**56, 2.0**57):
        test_cpp_emitter.test_quotients_of_special_values_by_one_number(c)
    divided = torch.compile(lambda x, c: x / c, backend="cpp_cpu", dynamic=False)
    exponents = torch.arange(256, dtype=torch.int64).repeat_interleave(64) << 23
    bits = exponents | torch.randint(1 << 23, exponents.shape) | torch.randint(2, exponents.shape) << 31
    x = torch.cat((bits.int().view(torch.float32), torch.full((33,), -0.0)))
    for exponent in range(-149, 128, 9):
        for c in (2.0**exponent, -1.7 * 2.0**exponent):
            divisor = torch.tensor(c, dtype=torch.float32)
            found, expected = divided(x, divisor), x / divisor
            assert torch.equal(found.view(torch.int32)[~expected.isnan()], expected.view(torch.int32)[~expected.isnan()]), c
            assert torch.equal(found.isnan(), expected.isnan()), c


@pytest.mark.parametrize("_instructions", ["x86-64-v3"], indirect=True)
@pytest.mark.usefixtures("_instructions")
@pytest.mark.skipif(shutil.which("objdump") is None, reason="reads instructions with objdump")
def test_bytes_are_widened_without_a_detour_through_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Eight bytes are written there and sixteen read back, which waits until the write has ended: three times as slow."""
    monkeypatch.setenv("VENDOR_SDK_CACHE_DIR", str(tmp_path))

    def function(mask: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.where(mask, 1.0, x * y.float()).sum(-1)

    torch.compiler.reset()
    inputs = torch.rand(64, 4096) < 0.5, torch.randn(64, 4096), torch.randint(-9, 9, (64, 4096), dtype=torch.int8)
    found = torch.compile(function, backend=use_kind("cpp_cpu"))(*inputs)
    torch.testing.assert_close(found, function(*inputs), rtol=1e-5, atol=1e-4)
    libraries = [str(path) for path in tmp_path.rglob("*.so")]
    text = subprocess.run(["objdump", "-d", *libraries], capture_output=True, text=True, check=True).stdout
    assert "vpmovzxbd" in text
    assert "vpmovsxbd" in text
    detour = re.compile(r"\tvmovdqa +[^%]*\(%r[sb]p\),(%xmm\d+)\n(.*\n){0,3}?.*\tvpmov[sz]xbd +\1")
    assert not detour.search(text)


SIZES = [(1, 5, 3), (6, 16, 64), (7, 300, 65), (61, 513, 130), (97, 260, 17), (130, 40, 192), (200, 1030, 80)]


@pytest.mark.usefixtures("_instructions")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_products(dtype: torch.dtype) -> None:
    """Tiles that fill the registers, spans of them, blocks of the sum, what is left of each; factors that lie either way."""
    backend = use_kind("cpp_cpu")
    for rows, steps, columns in SIZES:
        for turned in range(4):
            a = torch.randn(steps, rows, dtype=dtype).t() if turned & 1 else torch.randn(rows, steps, dtype=dtype)
            b = torch.randn(columns, steps, dtype=dtype).t() if turned & 2 else torch.randn(steps, columns, dtype=dtype)
            bias = torch.randn(columns, dtype=dtype)
            found = torch.compile(lambda a, b, c: F.relu(a @ b + c), backend=backend, dynamic=False)(a, b, bias)
            exact = F.relu(a.double() @ b.double() + bias.double())
            allowed = torch.finfo(dtype).eps * (a.double().abs() @ b.double().abs() + bias.double().abs())
            assert ((found.double() - exact).abs() <= 4 * allowed).all(), (rows, steps, columns, turned)


@pytest.mark.usefixtures("_instructions")
def test_convolutions_and_attention() -> None:
    backend = use_kind("cpp_cpu")
    x, w = torch.randn(2, 19, 23, 21, requires_grad=True), torch.randn(37, 19, 3, 3, requires_grad=True)
    q, k, v = (torch.randn(2, 3, 45, 24, requires_grad=True) for _ in range(3))
    for function, inputs in [
        (lambda x, w: F.conv2d(x, w, padding=1), (x, w)),
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v)),
    ]:
        wide = [t.detach().double().requires_grad_() for t in inputs]
        exact, found = function(*wide), torch.compile(function, backend=backend)(*inputs)
        g = torch.randn_like(found)
        wanted = [exact, *torch.autograd.grad(exact, wide, g.double())]
        for one, other in zip([found, *torch.autograd.grad(found, inputs, g)], wanted, strict=True):
            assert (one.double() - other).norm() <= 1e-6 * other.norm() + 1e-6
