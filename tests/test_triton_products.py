"""Matrix products and attention of the Triton backend, on a machine without a GPU: who computes what, and machine code."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import vendor_sdk
from reference_backends.triton_gpu import attention, flash_launch, machine_code, plugin, products, tuning
from reference_backends.triton_gpu.emitter import Elsewhere, TritonEmitter
from reference_backends.triton_gpu.kernels import rounded_once
from reference_backends.triton_gpu.machine import TARGETS, machine
from tests.test_triton_gpu import OnPaper, of_triton_3_6
from vendor_sdk import ALL, COMPOSITES, Backend, Decline, Kernel, Supported, hookimpl
from vendor_sdk.run.compiled import CompiledGraph

HALF = torch.bfloat16
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def empty(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


class WithLibrary(OnPaper):
    """The plugin's kernels too, beside the emitter that records."""

    @hookimpl
    def backend(self) -> Backend:
        return Backend(name=self.name, version="0", dtypes=frozenset((*ALL, torch.int8)))

    @hookimpl
    def kernels(self) -> Mapping[str, Any]:
        return {name: kernel for name, kernel in plugin.KERNELS.items() if name not in COMPOSITES}


@pytest.fixture
def chip(register: Callable[..., str]) -> WithLibrary:
    chip = WithLibrary()
    register(chip)
    return chip


def compile_for(chip: WithLibrary, function: Callable[..., Any], *inputs: torch.Tensor) -> CompiledGraph:
    chip.recorder.kernels.clear()
    return vendor_sdk.compile_graph(vendor_sdk.trace(function, inputs), backend=chip.name)


def routes(compiled: CompiledGraph) -> dict[str, str]:
    return {p.name: p.placement.route.value for p in compiled.placements if "mm" in p.prim}


# Who computes a product


def gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w, b))


def test_a_product_alone_is_the_librarys(chip: WithLibrary) -> None:
    compiled = compile_for(chip, lambda x, w: x @ w.t(), empty(8192, 768), empty(3072, 768))
    assert routes(compiled) == {"mm": "kernel"}
    assert compiled.launches == 1
    assert not chip.recorder.kernels


def test_an_epilogue_that_saves_more_than_the_template_loses_is_fused(
    chip: WithLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert routes(compile_for(chip, gelu, empty(8192, 768), empty(3072, 768), empty(3072))) == {"addmm": "kernel"}
    monkeypatch.setattr(products, "SURE", 1.0)
    compiled = compile_for(chip, gelu, empty(8192, 768), empty(3072, 768), empty(3072))
    assert routes(compiled) == {"addmm": "emitter"}
    assert compiled.launches == len(chip.recorder.kernels) == 1


def test_a_long_sum_is_the_librarys_and_says_why(chip: WithLibrary) -> None:
    compiled = compile_for(chip, gelu, empty(8192, 4096), empty(4096, 4096), empty(4096))
    assert routes(compiled) == {"addmm": "kernel"}
    assert compiled.launches == 2
    assert any("what fusing saves" in r.reason for r in compiled.refusals)


def test_what_would_be_fused_with_the_next_row_kernel_saves_nothing(chip: WithLibrary) -> None:
    def norm(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x @ w.t() + r, (768,), g)

    compiled = compile_for(chip, norm, empty(8192, 768), empty(768, 768), empty(8192, 768), empty(768))
    assert routes(compiled) == {"mm": "kernel"}
    assert compiled.launches == 2


def test_of_two_products_one_takes_what_joins_them(chip: WithLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "SURE", 1.0)

    def swiglu(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.silu(x @ a.t()) * (x @ b.t())

    compiled = compile_for(chip, swiglu, empty(8192, 512), empty(2048, 512), empty(2048, 512))
    assert sorted(routes(compiled).values()) == ["emitter", "kernel"]
    assert compiled.launches == 2


def test_weights_are_dequantized_on_the_way(chip: WithLibrary) -> None:
    q, s = empty(2048, 512, dtype=torch.int8), empty(2048, 1)
    compiled = compile_for(chip, lambda x, q, s: (x @ (q.to(x.dtype) * s).t()).relu(), empty(4096, 512), q, s)
    assert compiled.launches == 1
    ((_, text),) = chip.recorder.kernels
    assert '"computed"' in text


def test_rows_that_begin_anywhere_are_stored_by_a_fused_kernel(chip: WithLibrary) -> None:
    """The library takes several times as long for such a result, and padding it would store it twice."""
    for words, route in ((50257, "emitter"), (50264, "kernel")):
        compiled = compile_for(chip, lambda x, w: x @ w.t(), empty(8192, 768), empty(words, 768))
        assert routes(compiled) == {"mm": route}


def test_float32_is_the_librarys(chip: WithLibrary) -> None:
    inputs = (empty(*shape, dtype=torch.float32) for shape in ((4096, 256), (1024, 256), (1024,)))
    assert routes(compile_for(chip, gelu, *inputs)) == {"addmm": "kernel"}


def test_products_fill_what_was_planned() -> None:
    x, w, b = torch.randn(5, 7, requires_grad=True), torch.randn(7, 3), torch.randn(3)
    out = torch.empty(5, 3)
    kernel = plugin.KERNELS["addmm"]
    assert isinstance(kernel, Kernel)
    assert kernel.yields
    kernel.call(out, b, x, w, beta=2)
    torch.testing.assert_close(out, (2 * b + x @ w).detach())
    whole = torch.arange(6).reshape(2, 3)
    result = torch.empty(2, 2, dtype=torch.int64)
    mm = plugin.KERNELS["mm"]
    assert isinstance(mm, Kernel)
    mm.call(result, whole, whole.t())
    assert result.tolist() == (whole @ whole.t()).tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_is_added_to_a_product_of_halves_is_rounded_with_it(dtype: torch.dtype) -> None:
    """The product, 1, is below what the dtype tells from the one before the sum; the sum's rounding is the only one."""
    digits = 8 if dtype == torch.bfloat16 else 11
    product = torch.full((2, 3), 1 + 2.0**-digits)
    out = torch.empty(2, 3, dtype=dtype)
    rounded_once(out, torch.full((2, 1), 2.0**-digits, dtype=dtype), product, 1, 1)
    assert (out == 1 + 2.0 ** (1 - digits)).all()
    rounded_once(out, torch.full((1, 3), 1.0, dtype=dtype), product, -4, 4)
    assert (out == 2.0 ** (2 - digits)).all()


# The model of time


@pytest.mark.parametrize("sizes", [(1, 1, 4096, 1024), (1, 8192, 8192, 8192), (96, 512, 512, 64), (1, 17, 33, 1), (3, 5, 7, 0)])
@pytest.mark.parametrize("factors", ["halves", "computed", "mixed", "float32"])
@needs_triton
def test_tiles_fit(sizes: tuple[int, int, int, int], factors: products.Factors) -> None:
    tiles = products.candidates(*sizes, factors, machine())
    assert tiles
    for t in tiles:
        assert all(n & (n - 1) == 0 and n >= 16 for n in (t.x, t.y, t.k))
        assert t.x * t.y <= 128 * 32 * t.warps
        plan = products.plan_for(t, sizes, 1 << 20, factors)
        assert plan.programs == sizes[0] * math.ceil(sizes[1] / t.x) * math.ceil(sizes[2] / t.y)


@needs_triton
def test_the_model_knows_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton

    h200 = {"multiprocessor_count": 132, "sm_clock_rate": 1_980_000, "mem_clock_rate": 3_201_000, "mem_bus_width": 6144}
    utils = SimpleNamespace(get_device_properties=lambda device: {**h200, "max_shared_mem": 232448})
    monkeypatch.setattr(triton.runtime, "driver", SimpleNamespace(active=SimpleNamespace(utils=utils)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    found = machine.__wrapped__()
    assert found.flops == pytest.approx(1.07e15, rel=0.01)
    assert found.bytes == pytest.approx(4.18e12, rel=0.01)
    assert found.shared == 232448


def test_large_products_have_large_tiles_and_few_rows_small_ones() -> None:
    assert products.candidates(1, 8192, 8192, 8192, "halves", machine())[0].rate == 1
    assert products.candidates(1, 8, 4096, 4096, "halves", machine())[0].x <= 32


@needs_triton
@pytest.mark.parametrize("library", [1.0, 4.0])
def test_what_is_measured_decides_and_is_remembered(
    library: float, chip: WithLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VENDOR_SDK_CACHE_DIR", str(tmp_path))
    tuning.remembered.cache_clear()
    variants = tuning._variants(tuning.Product(1, 8192, 3072, 768, HALF, True))
    calls: list[Callable[[], Any]] = []

    def timer(call: Callable[[], Any]) -> float:
        calls.append(call)
        return library if len(calls) > len(variants) else 2 + len(calls) / 100

    monkeypatch.setattr(tuning, "seconds", timer)
    chip.recorder.tune = True
    inputs = empty(8192, 768), empty(3072, 768), empty(3072)
    assert routes(compile_for(chip, gelu, *inputs)) == {"addmm": "emitter" if library > 2 else "kernel"}
    made = len(calls)
    tuning.remembered.cache_clear()  # as another process would start
    chip.recorder.tune = False
    assert routes(compile_for(chip, gelu, *inputs)) == {"addmm": "emitter" if library > 2 else "kernel"}
    assert len(calls) == made
    assert products.best_tiles((1, 8192, 3072, 768), "halves", machine()) == variants[0]
    tuning.remembered.cache_clear()


# Machine code


def _linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w, b), approximate="tanh") + r


PROGRAMS: Mapping[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "bias, gelu, residual": (_linear, (empty(4096, 1024), empty(2048, 1024), empty(2048), empty(4096, 2048))),
    "dequantized": (
        lambda x, q, s: (x @ (q.to(x.dtype) * s).t()).relu(),
        (empty(4096, 512), empty(2048, 512, dtype=torch.int8), empty(2048, 1)),
    ),
    "batch": (lambda a, b: torch.bmm(a, b.transpose(1, 2)).exp(), (empty(96, 512, 64), empty(96, 512, 64))),
}


@needs_triton
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_products_compile_without_spills(
    name: str, target: str, chip: WithLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VENDOR_SDK_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(products, "takes_over", lambda *_, **__: Supported())
    function, inputs = PROGRAMS[name]
    assert compile_for(chip, function, *inputs).launches == 1
    ((kernel, text),) = chip.recorder.kernels
    (made,) = TritonEmitter(target=target).compile([(kernel, text)])
    assert isinstance(made, Elsewhere)
    (binary,) = made.binaries
    assert binary.cubin.startswith(b"\x7fELF")
    assert binary.stack_bytes == 0
    assert binary.shared_bytes <= TARGETS[target].shared


def _attention(
    width: int, *, causal: bool, masked: bool, backward: bool, dropout: float = 0.0, cap: float | None = None
) -> list[flash_launch.Call]:
    """Launches for operands that are nowhere, with their heads beside each other."""

    def heads(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
        return torch.empty(4, 4096, *shape, dtype=dtype, device="meta").transpose(1, 2)

    query, key, value = (heads(16, width) for _ in range(3))
    mask = torch.empty(4, 1, 1 if width == 64 else 4096, 4096, dtype=torch.bool, device="meta") if masked else None
    seed = torch.empty(1, dtype=torch.int64, device="meta")
    rest = causal, mask, None, flash_launch.Dropout(seed, dropout) if dropout else None, cap
    if not backward:
        return flash_launch.forward_calls(query, key, value, *rest)[1]
    saved = torch.empty(4, 16, 4096, device="meta")
    return flash_launch.backward_calls(heads(16, width), query, key, value, heads(16, width), saved, *rest)[1]


@needs_triton
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90"])
@pytest.mark.parametrize(
    ("width", "causal", "masked", "backward"),
    [(64, True, False, False), (64, False, True, True), (128, True, False, True), (128, False, True, False)],
)
def test_attention_compiles_without_spills(width: int, causal: bool, masked: bool, backward: bool, target: str) -> None:
    calls = _attention(width, causal=causal, masked=masked, backward=backward)
    listed = masked and width == 128  # another mask for each row
    assert len(calls) == (2 if backward else 1) * (2 if listed else 1)
    for call in calls:
        begun = call.ahead(TARGETS[target])
        assert begun is not None
        binary = machine_code.binary(begun.result())
        assert binary.stack_bytes <= (0 if of_triton_3_6 else 32), binary.name
        assert binary.shared_bytes <= TARGETS[target].shared


@needs_triton
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90"])
@pytest.mark.parametrize(("width", "backward"), [(64, False), (64, True), (128, True)])
def test_attention_with_dropout_compiles_without_spills(width: int, backward: bool, target: str) -> None:
    for call in _attention(width, causal=True, masked=False, backward=backward, dropout=0.1):
        begun = call.ahead(TARGETS[target])
        assert begun is not None
        assert machine_code.binary(begun.result()).stack_bytes == 0


@needs_triton
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90"])
@pytest.mark.parametrize(("width", "backward"), [(64, True), (128, False)])
def test_attention_with_a_cap_compiles_almost_without_spills(width: int, backward: bool, target: str) -> None:
    for call in _attention(width, causal=True, masked=False, backward=backward, cap=50.0):
        begun = call.ahead(TARGETS[target])
        assert begun is not None
        assert machine_code.binary(begun.result()).stack_bytes <= 32


@needs_triton
def test_masks_of_different_dtypes_do_not_share_machine_code() -> None:
    """What a launch finds compiled is known by the launcher, the constants and the alignments alone."""
    query = torch.empty(1, 2, 64, 16, dtype=HALF, device="meta")
    dtypes = torch.bool, HALF, torch.float16, torch.float32
    forms = {
        flash_launch.form_of(query, query, query, False, torch.empty(64, 64, dtype=dtype, device="meta"), None, None)
        for dtype in dtypes
    }
    assert len({flash_launch.forward_launcher(form) for form in forms}) == len(dtypes)


@pytest.mark.parametrize(
    ("mask", "listed"),
    [
        (torch.ones(1024, 1024, dtype=torch.bool), True),
        (torch.ones(1, 12, 1024, 1024, dtype=torch.bool), True),
        (torch.zeros(1, 1, 1024, 1024), False),
        (torch.ones(1, 1, 1, 1024, dtype=torch.bool), False),
        (torch.ones(1024, dtype=torch.bool).expand(1024, 1024), False),
    ],
)
def test_blocks_are_listed_of_masks_that_differ_from_row_to_row(mask: torch.Tensor, *, listed: bool) -> None:
    query = torch.empty(8, 12, 1024, 64)
    assert flash_launch.is_listed(query, query, mask) == listed
    assert not flash_launch.is_listed(query[:, :, :256], query[:, :, :256], mask[..., :256, :256])


# Who computes attention


def problem(*shape: int, dtype: torch.dtype = HALF, mask: torch.dtype | None = None, **flags: bool) -> attention.Problem:
    flags = {"causal": True, "backward": False, **flags}
    return attention.Problem(shape, dtype, flags["causal"], mask, flags["backward"])  # type: ignore[arg-type]


def test_libraries_compute_what_they_are_for() -> None:
    plain = 2, 8, 8, 512, 512, 64, 64
    assert attention.ways(problem(*plain), 9)[0] == "cudnn"
    assert attention.ways(problem(*plain), 8)[0] == "flash"
    assert attention.ways(problem(*plain), 0) == ("triton", "scores")
    assert attention.ways(problem(*plain, backward=True), 9) == ("cudnn", "flash", "triton", "scores")
    assert attention.ways(problem(*plain, mask=torch.bool), 9)[0] == "triton"
    assert attention.ways(problem(*plain, mask=torch.bool, causal=False, backward=True), 9) == ("triton", "scores")
    wide = 2, 8, 8, 512, 512, 128, 128
    assert attention.ways(problem(*wide, mask=torch.bool, causal=False, backward=True), 9) == ("cudnn", "triton", "scores")
    sparse = problem(*wide, mask=torch.bool, causal=False, backward=True)._replace(listed=True)
    assert attention.ways(sparse, 9) == ("triton", "scores")
    assert attention.ways(problem(*plain, mask=torch.bool, backward=True), 9) == ("triton", "scores")
    numbers = problem(*plain, mask=HALF, causal=False)
    assert attention.ways(numbers, 9)[0] == "triton"
    assert attention.ways(numbers._replace(backward=True), 9)[0] == "cudnn"
    assert attention.ways(numbers, 8)[0] == "triton"
    for backward in (False, True):
        turned = numbers._replace(turned=True, backward=backward)
        assert "cudnn" not in attention.ways(turned, 9), "minus infinity would change its sign"
    assert attention.ways(problem(*plain, dtype=torch.float32, backward=True), 9) == ("triton", "scores")
    shared = 2, 8, 2, 512, 512, 64, 64
    assert attention.ways(problem(*shared), 9)[:2] == ("cudnn", "triton")
    assert attention.ways(problem(*shared, backward=True), 8) == ("triton", "scores")
    assert attention.ways(problem(2, 8, 8, 512, 400, 64, 64), 9)[0] == "triton"
    assert attention.ways(problem(*plain, dtype=torch.float32), 9)[0] == "efficient"
    for backward in (False, True):
        dropping = problem(*plain, backward=backward)._replace(general=True)
        assert attention.ways(dropping, 9) == ("triton", "scores"), "a library keeps other weights"
    assert attention.ways(problem(2, 8, 8, 512, 512, 320, 320), 9)[-1] == "scores"


def test_a_library_that_refuses_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(attention, "_refused", set())
    monkeypatch.setattr(attention, "ways", lambda *_: ("cudnn", "flash", "scores"))
    query, key, value = (torch.randn(1, 2, 6, 8) for _ in range(3))

    def refuse(*args: Any, **kwargs: Any) -> Any:
        asked.append("cudnn")
        raise RuntimeError("no engine")

    class Operators:
        _scaled_dot_product_cudnn_attention = staticmethod(refuse)

        @staticmethod
        def _scaled_dot_product_flash_attention(*args: Any, **kwargs: Any) -> Any:
            asked.append("flash")
            raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(attention, "aten", Operators)
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            attention.KERNELS[attention.FORWARD].call(query, key, value)
    assert asked == ["cudnn", "flash", "flash"]


@pytest.mark.parametrize("mask", [torch.bool, torch.float32])
def test_masks_are_aligned_numbers_for_the_library(mask: torch.dtype) -> None:
    given = torch.rand(2, 1, 1, 13) > 0.4 if mask == torch.bool else torch.randn(2, 1, 1, 13)
    bias = attention._bias(given, torch.empty(2, 3, 5, 8), 13)
    assert bias is not None
    assert bias.shape == (2, 3, 5, 13)
    assert bias.stride(0) % 8 == 0
    query, key, value = (torch.randn(2, 3, n, 8) for n in (5, 13, 13))
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=given)
    torch.testing.assert_close(F.scaled_dot_product_attention(query, key, value, attn_mask=bias), expected)


@pytest.mark.parametrize("keys", [13, 16], ids=["copied", "as they are"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_least_number_is_one_that_the_library_can_count_with(dtype: torch.dtype, keys: int) -> None:
    given = torch.zeros(2, 1, 4, keys, dtype=dtype)
    given[:, :, 1], given[:, :, 2] = torch.finfo(dtype).min, -torch.inf
    bias = attention._bias(given, torch.empty(2, 3, 4, 8, dtype=dtype), keys)
    assert bias is not None
    assert bias.dtype == dtype
    assert (bias[:, :, 2] == -torch.inf).all()
    assert (bias[:, :, 1] < -9e29).all()
    assert (bias[:, :, 1] * 1.45 > -torch.inf).all()
    assert not bias[:, :, [0, 3]].any()
    torch.testing.assert_close(given[0, 0, 1], torch.full((keys,), torch.finfo(dtype).min, dtype=dtype))  # the user's own


def test_gradients_with_scores_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "WIDEST", 4)
    attention.ways.cache_clear()
    query, key, value = (torch.randn(1, 2, 6, 8, requires_grad=True) for _ in range(3))
    expected = torch.autograd.grad(F.scaled_dot_product_attention(query, key, value, is_causal=True).sum(), (query, key, value))
    (rule,) = COMPOSITES[attention.FORWARD].targets.values()
    out, saved = rule(query.detach(), key.detach(), value.detach(), 0.0, True)
    backward = attention.KERNELS[attention.BACKWARD].call
    for found, exact in zip(backward(torch.ones_like(out), query, key, value, out, saved, 0.0, True), expected, strict=True):
        torch.testing.assert_close(found, exact)
    attention.ways.cache_clear()


def test_what_attention_declines() -> None:
    def node(dtype: torch.dtype, dropout: float = 0.0) -> vendor_sdk.NodeContext:
        info = vendor_sdk.TensorInfo((1, 2, 6, 8), dtype)
        return vendor_sdk.NodeContext(
            prim=attention.FORWARD, args=(info, info, info, dropout), kwargs={}, outputs=(info,), backward=False
        )

    assert attention.declined(node(HALF)) is None
    assert isinstance(attention.declined(node(torch.float64)), Decline)
    assert isinstance(attention.declined(node(HALF, 0.1)), Decline)
    for dtype, declined in ((HALF, False), (torch.float64, True)):
        info, seed = (vendor_sdk.TensorInfo(shape, t) for shape, t in (((1, 2, 6, 8), dtype), ((1,), torch.int64)))
        arguments = info, info, info, seed, 0.1
        given = vendor_sdk.NodeContext(
            prim=attention.GENERAL_FORWARD, args=arguments, kwargs={}, outputs=(info,), backward=False
        )
        assert isinstance(attention.declined(given), Decline) == declined
