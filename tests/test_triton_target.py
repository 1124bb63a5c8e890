"""``options={"target": "cuda:90"}`` of the Triton backend: a GPU that is elsewhere, its kernels compiled here and kept."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import vendor_sdk
from reference_backends.triton_gpu import compiler, flash_launch, grouped, launch, machine_code, ptx
from reference_backends.triton_gpu.machine import TARGETS
from reference_backends.triton_gpu.machine_code import Argument
from vendor_sdk import Decline, MachineError, NodeContext, OptionError, TensorInfo

ROOT = Path(__file__).resolve().parent.parent
HALF = torch.bfloat16
Tensor = torch.Tensor
H100 = {"target": "cuda:90"}

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Triton's cache, empty, and ours."""
    torch._dynamo.reset()
    monkeypatch.setenv("VENDOR_SDK_CACHE_DIR", str(tmp_path / "ours"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "tritons"))
    yield tmp_path / "tritons"
    torch._dynamo.reset()


def entries(cache: Path) -> set[str]:
    """Machine code in Triton's cache."""
    return {path.parent.name for path in cache.glob("*/*.cubin")}


def kernels(found: vendor_sdk.Explanation) -> list[Any]:
    return [kernel for graph in found.graphs for kernel in graph.kernels.kernels]


class Block(torch.nn.Module):
    """Projections, attention with negated scores under a mask (which no library computes), a layer norm; or a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.join, self.norm = torch.nn.Linear(64, 192, dtype=HALF), torch.nn.LayerNorm(64, dtype=HALF)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        q, k, v = (part.unflatten(2, (2, 32)).transpose(1, 2) for part in self.join(x).chunk(3, 2))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=-0.2)
        return self.norm(x + mixed.transpose(1, 2).flatten(2)).tanh()


def block() -> tuple[Block, tuple[Tensor, Tensor]]:
    return Block(), (torch.randn(2, 80, 64, dtype=HALF), torch.rand(1, 1, 80, 80) > 0.3)


# What a user does


@needs_triton
def test_a_model_is_explained_and_compiled_with_no_gpu(cache: Path) -> None:
    model, inputs = block()
    found = vendor_sdk.explain(model, *inputs, backend="triton_gpu", options=H100, show=False)
    assert [graph.name for graph in found.graphs] == ["forward (0)", "backward (1)"]
    names = {"registers", "stack bytes", "shared bytes"}
    emitted = [kernel for kernel in kernels(found) if kernel.route == "emitter"]
    attention = [kernel for kernel in kernels(found) if "attention" in kernel.name]
    assert len(emitted) >= 4
    assert len(attention) == 2
    for kernel in (*emitted, *attention):
        assert kernel.resources.keys() == names
        assert 8 <= kernel.resources["registers"] <= 255
        assert kernel.resources["stack bytes"] == 0
    assert all(kernel.resources["shared bytes"] > 0 for kernel in attention), "operands of tensor cores"
    assert all(not kernel.resources for kernel in kernels(found) if kernel.name in ("mm", "addmm")), "the library's"
    made = entries(cache)
    assert len(made) >= len(emitted) + 3
    torch._dynamo.reset()
    with pytest.raises(MachineError, match=r"compiled for 'cuda:90'.*\n.*Triton's cache"):
        torch.compile(model, backend="triton_gpu", options=H100)(*inputs)
    assert entries(cache) == made, "the second time all is there"


@needs_triton
def test_convolutions_are_the_librarys_and_what_follows_is_compiled() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()).eval()
    with torch.no_grad():
        found = vendor_sdk.explain(model, torch.randn(2, 3, 16, 16), backend="triton_gpu", options=H100, show=False)
    taken = {kernel.route: kernel.resources for kernel in kernels(found) if kernel.name != "clone"}
    assert taken["kernel"] == {}
    assert taken["emitter"]["registers"] >= 8


class Stem(torch.nn.Module):
    """What begins a ResNet, and the convolution behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False), torch.nn.BatchNorm2d(8)
        self.last = torch.nn.Conv2d(8, 8, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.max_pool2d(self.norm(self.first(x)).relu(), 3, 2, 1))


@needs_triton
def test_group_norms_between_convolutions_read_and_write_images_in_order() -> None:
    """A block of a diffusion model, trained in halves: images have their channels last throughout, and no element divides."""
    width, side = 320, 16
    model = torch.nn.Sequential(
        torch.nn.Conv2d(width, width, 3, padding=1),
        torch.nn.GroupNorm(32, width),
        torch.nn.SiLU(),
        torch.nn.Conv2d(width, width, 3, padding=1),
    ).to(HALF)
    x = torch.randn(2, width, side, side, dtype=HALF)
    found = vendor_sdk.explain(model, x, backend="triton_gpu", options=H100, show=False)
    forward, _ = found.graphs
    statistics, result = (next(each for each in forward.kernels.kernels if name in each.name) for name in ("var", "sigmoid"))
    image, numbers = x.numel() * x.itemsize, 16 * x.shape[0] * width
    # The convolution's bias is added where the image is read first; what is saved is the image, and its norm.
    assert image < statistics.read <= image + numbers
    assert statistics.written <= image + numbers
    assert result.read <= image + numbers
    assert result.written <= 2 * image + numbers
    assert all(each.resources["stack bytes"] == 0 for each in (statistics, result))
    # The image that comes in, the one that goes out, and both weights.
    moved = [each for each in forward.kernels.kernels if "clone" in each.name and each is not result]
    assert sum(each.read for each in moved) <= 2 * image + (2 * model[0].weight.numel() + width) * x.itemsize


@needs_triton
def test_what_max_pools_save_is_stored_and_read_by_their_own_kernels() -> None:
    found = vendor_sdk.explain(
        Stem().to(HALF), torch.randn(4, 3, 32, 32, dtype=HALF), backend="triton_gpu", options=H100, show=False
    )
    pool, gradient = (kernel for kernel in kernels(found) if "max_pool2d" in kernel.name)
    image, pooled = 4 * 8 * 32 * 32, 4 * 8 * 16 * 16
    assert (pool.read, pool.written) == (2 * image, (2 + 1) * pooled)
    # Beside the pool's gradient, that of a relu, whose mask was saved, and of a batch norm, whose operand was.
    channels = 64
    assert gradient.read <= (2 + 1) * pooled + (1 + 2) * image + channels
    assert [len(graph.kernels.kernels) for graph in found.graphs] == [7, 5]


@needs_triton
def test_sizes_and_seeds_that_only_a_call_knows_are_compiled(cache: Path) -> None:
    def function(x: Tensor) -> Tensor:
        return F.dropout(x.softmax(1), 0.5)

    compiled = torch.compile(function, backend="triton_gpu", options=H100, dynamic=True)
    with pytest.raises(MachineError):
        compiled(torch.randn(30, 40))
    assert len(entries(cache)) >= 2, "rows that fit in a tile, and others"


@needs_triton
def test_columns_of_a_length_that_only_a_call_knows_are_compiled_for_the_longest_that_a_tile_holds() -> None:
    """Tiles as long as those along memory would have hundreds of elements in each thread, and take half a minute to compile."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.cumsum(0), x.log_softmax(0)

    x = torch.randn(37, 41)
    torch._dynamo.mark_dynamic(x, (0, 1))
    found = vendor_sdk.explain(function, x, backend="triton_gpu", options=H100, show=False)
    assert [kernel.route for kernel in kernels(found)] == ["emitter"] * 2
    assert all(kernel.resources["stack bytes"] == 0 for kernel in kernels(found)), [k.resources for k in kernels(found)]


def marked(t: Tensor, seen: Tensor, x: Tensor, rows: Tensor) -> Tensor:
    """Rows less the sums of others, of which no element is read."""
    found = torch.where((torch.arange(rows.shape[1]) < t.unsqueeze(1)) & seen.unsqueeze(1), x.unsqueeze(1), 0.0)
    return found - rows.exp() * found.to(HALF).float().sum(1, keepdim=True)


def normed(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return total, F.layer_norm(total, total.shape[1:])


@needs_triton
@pytest.mark.parametrize("width", [4096, 5000, 32768])
def test_rows_stay_in_registers(width: int) -> None:
    """No more than a few bytes of a thread's rows lie in memory, where lanes lie along rows."""
    rows = torch.randn(40, width, dtype=HALF)
    labels = torch.randint(width, (40,)), torch.randn(40) > 0, torch.randn(40)
    for function, inputs in ((marked, (*labels, rows)), (normed, (rows, rows))):
        found = vendor_sdk.explain(function, *inputs, backend="triton_gpu", options=H100, show=False)
        assert all(kernel.resources["stack bytes"] <= 32 for kernel in kernels(found)), function.__name__


@needs_triton
def test_what_the_first_rows_of_a_chunk_share_is_loaded_for_each() -> None:
    """A loop over rows loads the next one's numbers ahead: those too that are one for all rows of a tile in the first."""

    def function(x: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
        pixels = ((x - 1) * scales).view(2, 32, 4096, 10).permute(0, 2, 1, 3).reshape(2, 4096, 320).to(HALF)
        return pixels, pixels.sum((0, 1), dtype=torch.float32)

    inputs = torch.randn(2, 32, 40960), torch.rand(2, 32, 1).to(HALF)
    found = vendor_sdk.explain(function, *inputs, backend="triton_gpu", options=H100, show=False)
    assert [kernel.route for kernel in kernels(found)] == ["emitter"]


@needs_triton
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.sum(), x.sum(0), x.sum(1), x.prod(0), (x > 0).any(0), (x > 0).all()),
        lambda x: (x.sort(0).values, x.cumsum(0), x.topk(3, 1).values),
    ],
)
def test_kernels_of_no_rows_are_compiled(function: Any) -> None:
    compiled = torch.compile(function, backend="triton_gpu", options={"target": "cuda:90"}, dynamic=True)
    for rows in (5, 0):
        with pytest.raises(MachineError):  # compiled, and not run
            compiled(torch.ones(rows, 7))


@pytest.mark.parametrize("target", TARGETS)
def test_each_target_can_be_compiled_for(target: str) -> None:
    def function(x: Tensor, w: Tensor, s: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        y = (x @ (w.to(x.dtype) * s).t()).relu()
        q = y.view(1, 64, 2, 4096).transpose(1, 2)[..., :64]
        return F.scaled_dot_product_attention(q, q, q, attn_mask=seen), y.float().softmax(1)

    weights = torch.randint(-9, 9, (8192, 512), dtype=torch.int8), torch.randn(8192, 1, dtype=HALF)
    inputs = torch.randn(64, 512, dtype=HALF), *weights, torch.rand(64, 64) > 0.3
    options = {"target": target}
    found = vendor_sdk.explain(function, *inputs, backend="triton_gpu", options=options, show=False)
    taken = [kernel.resources for kernel in kernels(found) if kernel.resources]
    assert len(taken) == len(kernels(found)) == 3, "product, attention, rows"
    assert all(each["shared bytes"] <= TARGETS[target].shared for each in taken)


@pytest.mark.parametrize("target", ["cuda:9x", "rocm", "cuda:70", "", "cuda"])
@needs_triton
def test_what_is_no_target_is_refused_with_those_that_are(target: str) -> None:
    with pytest.raises(OptionError, match=r"legal values: None, 'cuda:80', .*'cuda:90'"):
        vendor_sdk.load("triton_gpu", {"target": target})


def test_targets_are_not_older_than_what_runs() -> None:
    assert min(gpu.capability for gpu in TARGETS.values()) == compiler.OLDEST
    assert [f"cuda:{10 * major + minor}" for major, minor in (gpu.capability for gpu in TARGETS.values())] == [*TARGETS]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@needs_triton
def test_the_list_says_that_there_is_no_gpu_and_the_error_how_to_do_without() -> None:
    with pytest.raises(MachineError, match=r"no CUDA device.*\n.*options={'target': 'cuda:80'}"):
        vendor_sdk.load("triton_gpu")
    command = [sys.executable, "-m", "vendor_sdk.cli", "list", "--check", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    (state,) = [each for each in json.loads(done.stdout)["backends"] if each["name"] == "triton_gpu"]
    assert state["state"] == "unavailable"
    assert "no CUDA device" in state["reason"]


def test_without_triton_no_target_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert compiler.compiles() == "triton is not installed: pip install 'triton>=3.6'"


def test_the_target_says_what_its_libraries_take() -> None:
    def node() -> NodeContext:
        infos = TensorInfo((32, 64), HALF), TensorInfo((4, 64, 64), HALF), TensorInfo((4,), torch.int64)
        return NodeContext(prim=grouped.NAME, args=infos, kwargs={}, outputs=(TensorInfo((32, 64), HALF),), backward=False)

    assert grouped.declined(node(), TARGETS["cuda:90"]) is None
    assert isinstance(grouped.declined(node(), TARGETS["cuda:80"]), Decline)


# Triton's cache


class Driver:
    """A driver of Triton's with a GPU that is none."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


class Buffer:
    """A tensor as Triton's binder sees it."""

    def __init__(self, argument: Argument) -> None:
        (self.dtype,) = [dtype for dtype, name in machine_code.SIGNATURE.items() if name == argument.type]
        self.address = 32 if argument.even else 8

    def data_ptr(self) -> int:
        return self.address


def passed(argument: Argument) -> Any:
    """What a call might pass for an argument."""
    if argument.type.startswith("*"):
        return Buffer(argument)
    return 1 if argument.one else (0 if argument.type == "i32" else 1 << 40) + (32 if argument.even else 7)


@needs_triton
def test_a_launch_finds_what_was_compiled_for_its_gpu(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's own way to a launch asks for the same entries: kernels with seeds, asserts, numbers; attention."""
    import triton

    asked: list[tuple[Any, ...]] = []

    def noted(*arguments: Any) -> Any:
        asked.append(arguments)
        return machine_code.compiled(*arguments)

    monkeypatch.setattr(launch, "compiled", noted)
    model, inputs = block()
    vendor_sdk.explain(model, *inputs, backend="triton_gpu", options=H100, show=False)

    def rest(x: Tensor, i: Tensor) -> Tensor:
        return F.dropout(x[i].softmax(1), 0.5) * x.shape[1]

    torch._dynamo.reset()
    with pytest.raises(MachineError):
        torch.compile(rest, backend="triton_gpu", options=H100, dynamic=True)(torch.randn(30, 40), torch.arange(7))
    query, key, value = (torch.empty(1, 1, 33, 24, dtype=HALF, device="meta")[..., 1:] for _ in "qkv")
    for one in flash_launch.forward_calls(query, key, value, True, None, None)[1]:
        begun = one.ahead(TARGETS["cuda:90"])
        assert begun is not None
        begun.result()

    arguments = {argument for _, given, *_ in asked for argument in given}
    assert {argument.even for argument in arguments if argument.type.startswith("*")} == {True, False}
    assert any(argument.one for argument in arguments)
    assert any(function.debug for function, *_ in asked), "an index is checked"
    made = entries(cache)
    assert len(made) >= 10
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver())
    for function, given, values, settings, _ in asked:
        try:
            function.warmup(*map(passed, given), *values, grid=(1, 1, 1), **settings)
        finally:
            function.device_caches.clear()
    assert entries(cache) == made


@needs_triton
@pytest.mark.parametrize("number", [0, 1, 7, 16, -16, 2**31 - 1, 2**31, -(2**31), 2**40])
def test_numbers_are_what_triton_takes_them_for(number: int) -> None:
    from triton._C.libtriton import native_specialize_impl
    from triton.backends.nvidia.compiler import CUDABackend

    kind, special = native_specialize_impl(CUDABackend(Driver().get_current_target()), number, False, True, True)
    ours = machine_code.number(number)
    assert (kind, special) == (("constexpr", 1) if ours.one else (ours.type, "D" if ours.even else ""))


@needs_triton
def test_what_fails_in_a_thread_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def compile_() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise SystemError("AST constructor recursion depth mismatch")
        return "made"

    begun = launch.Begun(compile_)
    assert begun.wait() is None
    assert begun.result() == "made"


def test_what_other_threads_parsing_disturbs_is_done_again() -> None:
    """Wherever Triton's words for it have the error: itself, its cause, or its text."""
    found = SystemError(f"{machine_code.DISTURBED} (before=18, after=11)")

    def disturbed(error: Exception, cause: Exception | None, times: int) -> Callable[[], int]:
        left = iter(range(times))

        def call() -> int:
            if next(left, None) is None:
                return 5
            raise error from cause

        return call

    for error, cause in ((found, None), (RuntimeError("at 1:0"), found), (RuntimeError(repr(found)), None)):
        assert machine_code.undisturbed(disturbed(error, cause, 3)) == 5
        with pytest.raises(type(error)):
            machine_code.undisturbed(disturbed(error, cause, machine_code.TRIES))
    other = disturbed(RuntimeError("at 1:0"), None, 1)
    with pytest.raises(RuntimeError):
        machine_code.undisturbed(other)
    assert other() == 5, "not asked again"


def test_what_fails_with_one_layout_is_compiled_with_another() -> None:
    def call(settings: dict[str, Any]) -> int:
        if settings["num_warps"] > least:
            raise RuntimeError(machine_code.FAILED)
        return int(settings["num_warps"])

    settings = {"num_warps": 4}
    for least in (1, 2, 4):
        assert machine_code.with_layouts(call, settings) == least
    least = 0
    with pytest.raises(RuntimeError):
        machine_code.with_layouts(call, settings)
    assert settings == {"num_warps": 4}


@needs_triton
def test_a_launch_that_triton_cannot_compile_says_so() -> None:
    """At a first launch, too; what else fails in it is nobody's to explain."""

    class Kernel:
        __name__ = "copied"
        fn = staticmethod(lambda: None)

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            def run(*arguments: Any, **settings: Any) -> None:
                raise RuntimeError(said)

            return run

    launcher, plan = launch.Launcher(Kernel(), "fixed", 0), launch.Plan(1, (), {"num_warps": 4})
    said = machine_code.FAILED
    with pytest.raises(vendor_sdk.CompilerError, match="Triton cannot compile copied"):
        launcher.first(plan, ())
    said = "out of memory"
    with pytest.raises(RuntimeError, match="out of memory"):
        launcher.first(plan, ())


@needs_triton
def test_no_program_adds_packed_numbers(cache: Path) -> None:
    """Places of windows are small enough for LLVM to pack, and ptxas forgets what it adds to them."""
    vendor_sdk.explain(
        lambda x: F.adaptive_avg_pool2d(x, 7), torch.randn(2, 2, 6, 6), backend="triton_gpu", options=H100, show=False
    )
    (program,) = cache.glob("*/*.ptx")
    text = program.read_text()
    assert "halves4" in text, "nothing was mended: take a pattern that LLVM still packs"
    assert "16x2" not in text


@needs_triton
@pytest.mark.parametrize("columns", [784, 520, 1040])
def test_threads_wait_before_they_write_what_others_read(cache: Path, columns: int) -> None:
    """The last elements of a row are fewer than threads: Triton has them loaded by several, once for each layout."""

    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.gelu(x @ w)
        return y, y.mean(1)

    x, w = torch.randn(1024, 64), torch.randn(64, columns)
    vendor_sdk.explain(f, x, w, backend="triton_gpu", options=H100, show=False)
    few, waits = False, 0
    for program in cache.glob("*/*.ttgir"):
        text, loaded = program.read_text(), False
        (warps,) = re.findall(r'"ttg.num-warps" = (\d+)', text)
        for line in text.splitlines():
            sizes = re.search(r"(?:tt.load|tt.store) .*tensor<(\d+)x(\d+)x!tt.ptr", line)
            if sizes and int(sizes[2]) > 1 and int(sizes[1]) * int(sizes[2]) <= 32 * int(warps):
                assert "tt.load" in line or not loaded, "stored before all have read"
                few, loaded = True, "tt.load" in line
            elif "barrier" in line:
                waits, loaded = waits + loaded, False
    assert few, "no block is so small: take another length"
    assert waits


def test_what_is_mended_adds_both_halves() -> None:
    text = "\tadd.s16x2 \t%r3, %r1, %r2;\n\tadd.s32 \t%r4, %r3, 1;\n\tadd.u16x2 %r5, %r3, %r4;"
    first, kept, second = ptx.mended(text).splitlines()
    assert kept == "\tadd.s32 \t%r4, %r3, 1;"
    for line, (result, left, right) in ((first, ("%r3", "%r1", "%r2")), (second, ("%r5", "%r3", "%r4"))):
        assert "16x2" not in line
        for part in (f"}}, {left};", f"}}, {right};", f"mov.b32 {result}, {{"):
            assert part in line


@needs_triton
def test_hooks_of_others_are_called_first(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton

    seen = []

    def theirs(*given: Any) -> tuple[str, str] | None:
        seen.append(given)
        return None if given else ("key", "digest")

    knobs = triton.knobs.runtime
    monkeypatch.setattr(knobs, "add_stages_inspection_hook", theirs)
    ptx.install()
    ptx.install()
    stages = {"ptx": lambda source, metadata: source}
    knobs.add_stages_inspection_hook("backend", stages, "options", "language", 90)
    assert seen == [("backend", stages, "options", "language", 90)]
    assert "16x2" not in stages["ptx"]("add.s16x2 %r3, %r1, %r2;", {})
    key, digest = knobs.add_stages_inspection_hook()
    assert (key, digest) == (f"key-{ptx.KEY}", f"digest-{ptx.KEY}")
