"""The example chip: the simulator, the plugin's kernels, and that nothing but handles, numbers and bytes reaches it."""

from __future__ import annotations

import copy
import functools
import gc
import sys
import threading
import tomllib
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import vendor_sdk
from vendor_sdk import Decline, DeviceTensor, NodeContext, Supported, TensorInfo, debug
from vendor_sdk.contract import loader
from vendor_sdk.run.memory import DeviceMemory
from vendor_sdk.scaffold import Scaffold

MYCHIP = Path(__file__).parents[1] / "examples" / "mychip"
sys.path.append(str(MYCHIP))  # where it is not installed

from mychip import plugin  # noqa: E402
from mychip.chip import Chip, ChipError  # noqa: E402


class Border:
    """The chip with a guard: a call with anything but handles, numbers and (in copies) bytes fails.

    ``lent`` are the memoryviews of copies; all must be dead afterwards.
    """

    def __init__(self, chip: Chip) -> None:
        self.chip = chip
        self.handles: set[int] = set(chip._buffers)
        self.lent: list[weakref.ref[memoryview]] = []

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.chip, name)
        if not callable(value):
            return value

        def guarded(*arguments: Any) -> Any:
            copy = name in ("write", "read")
            for argument in arguments[1:] if name == "launch" else arguments:
                assert type(argument) in ((int, memoryview) if copy else (int, float)), f"{name} got {argument!r}"
                if type(argument) is memoryview:
                    self.lent.append(weakref.ref(argument))
            for handle in self.handles_in(name, arguments):
                assert handle in self.handles, f"{name} got {handle}, which is no handle"
            result = value(*arguments)
            if name == "allocate":
                self.handles.add(result)
            elif name == "release":
                self.handles.discard(arguments[0])
            return result

        return guarded

    @staticmethod
    def handles_in(name: str, arguments: tuple[Any, ...]) -> list[Any]:
        if name in ("write", "read", "release"):
            return [arguments[0]]
        if name == "copy":
            return [arguments[0], arguments[2]]
        if name == "launch":
            from mychip.chip import POINTWISE

            opcode = arguments[0]
            operands = len(POINTWISE[opcode][0]) if opcode in POINTWISE else {"matmul": 3, "fill": 1}.get(opcode, 2)
            return list(arguments[1 : 1 + 2 * operands : 2])
        return []

    def nothing_kept(self) -> bool:
        return all(reference() is None for reference in self.lent)


@pytest.fixture(scope="module")
def chip() -> Iterator[Border]:
    """The plugin's own chip behind the guard: what earlier and later tests of the process hold on it stays valid."""
    unguarded = plugin.CHIP
    plugin.CHIP = border = Border(unguarded)  # type: ignore[assignment]
    yield border
    plugin.CHIP = unguarded


@pytest.fixture
def border(chip: Border) -> Iterator[Border]:
    yield chip
    assert chip.nothing_kept()


@pytest.fixture
def memory(border: Border) -> Iterator[DeviceMemory]:
    before = set(border.handles)
    memory = DeviceMemory(plugin.device())
    yield memory
    memory.release()
    assert border.handles == before


def test_border_sees_what_must_not_pass() -> None:
    border = Border(Chip(1024))
    handle = border.allocate(16)
    for forbidden in (torch.zeros(4), torch.zeros(4).numpy(), (1,), None, torch.tensor(1.0).storage_offset):
        with pytest.raises(AssertionError, match="launch got"):
            border.launch("fill", handle, 0, 4, forbidden)
    with pytest.raises(AssertionError, match="launch got"):
        border.launch("fill", torch.zeros(4).data_ptr(), 0, 4, 1.0)
    with pytest.raises(AssertionError, match="write got"):
        border.write(handle, 0, torch.zeros(4))
    kept = memoryview(bytes(16))
    border.write(handle, 0, kept)
    assert not border.nothing_kept()
    del kept
    assert border.nothing_kept()


# The simulator


def test_allocator_merges_what_is_freed() -> None:
    chip = Chip(64 * 8)
    handles = [chip.allocate(64) for _ in range(8)]
    with pytest.raises(ChipError, match="memory full: 1 bytes wanted, 512 of 512 in use"):
        chip.allocate(1)
    for handle in (handles[1], handles[3], handles[2], handles[7], handles[0]):
        chip.release(handle)
    assert chip._free == [(0, 256), (448, 64)]
    big = chip.allocate(256)
    for handle in (big, *handles[4:7]):
        chip.release(handle)
    assert chip._free == [(0, 512)]
    assert (chip.statistics.used, chip.statistics.peak) == (0, 512)


def test_chip_refuses_bad_handles_ranges_and_opcodes() -> None:
    chip = Chip(1024)
    handle = chip.allocate(10)
    with pytest.raises(ChipError, match="bytes 8 to 12 are outside buffer"):
        chip.write(handle, 8, memoryview(b"1234"))
    with pytest.raises(ChipError, match="no such opcode: sin"):
        chip.launch("sin", handle, 0)
    chip.release(handle)
    with pytest.raises(ChipError, match="no buffer has handle"):
        chip.release(handle)
    with pytest.raises(ChipError, match="no buffer has handle"):
        chip.read(handle, 0, memoryview(bytearray(1)))


def test_out_of_memory_is_a_device_error(border: Border) -> None:
    memory = DeviceMemory(plugin.device())
    with pytest.raises(vendor_sdk.DeviceError, match=r"mychip: cannot allocate 4294967296 bytes with \d+ of \d+ bytes in use"):
        memory.empty((1 << 30,), torch.float32)


# Kernels against torch

X, Y = torch.linspace(-3, 3, 60).view(3, 4, 5), torch.linspace(2, -1, 60).view(3, 4, 5)
P = X.abs() + 0.1
KERNEL_CASES: list[tuple[str, Callable[..., torch.Tensor], tuple[Any, ...], dict[str, Any]]] = [
    *((name, getattr(torch, name), (X,), {}) for name in ("neg", "abs", "relu", "exp", "tanh", "reciprocal")),
    *((name, getattr(torch, name), (P,), {}) for name in ("log", "sqrt", "rsqrt")),
    *((name, getattr(torch, name), (X, Y), {}) for name in ("mul", "div", "maximum", "minimum")),
    *((name, getattr(torch, name), (X, X.round()), {}) for name in ("eq", "lt", "le", "gt", "ge")),
    ("add", torch.add, (X, Y), {}),
    ("add", torch.add, (X, Y), {"alpha": 0.5}),
    ("sub", torch.sub, (X, Y), {"alpha": 3}),
    ("where", torch.where, (X > 0, X, Y), {}),
    ("mm", torch.mm, (X[0], Y[1].t().contiguous()), {}),
    ("mm", torch.mm, (torch.ones(2, 0), torch.ones(0, 3)), {}),
    ("bmm", torch.bmm, (X, Y.transpose(1, 2).contiguous()), {}),
    ("sum", torch.sum, (X, [0, 1]), {}),
    ("sum", torch.sum, (X, [-1], True), {}),
    ("sum", torch.sum, (torch.tensor(2.0), []), {}),
    ("mean", torch.mean, (X, [1, 2]), {"keepdim": True}),
    ("mean", torch.mean, (X[:0], [0]), {}),
    ("amax", torch.amax, (X, [1]), {}),
    ("full", torch.full, ([2, 3], 1.5), {}),
    ("clone", torch.clone, (X.permute(2, 0, 1),), {}),
    ("clone", torch.clone, (X[:, 1:2, ::2].expand(3, 4, 3) > 0,), {}),
    ("clone", torch.clone, (X[:, :0].transpose(0, 1),), {}),
]


def test_every_kernel_has_a_case() -> None:
    assert {name for name, _, _, _ in KERNEL_CASES} == set(plugin.kernels())


@pytest.mark.parametrize(("name", "expected", "args", "kwargs"), KERNEL_CASES, ids=[case[0] for case in KERNEL_CASES])
def test_kernel(
    memory: DeviceMemory, name: str, expected: Callable[..., torch.Tensor], args: Any, kwargs: dict[str, Any]
) -> None:
    result = expected(*args, **kwargs)
    operands = [on_device(memory, arg) for arg in args]
    out = memory.empty(result.shape, result.dtype)
    assert plugin.kernels()[name].call(out, *operands, **kwargs) is None
    torch.testing.assert_close(memory.download(out), result, equal_nan=True)


def on_device(memory: DeviceMemory, value: Any) -> Any:
    """Tensors uploaded with the strides they have (``clone`` takes any), at an offset inside their buffer."""
    if not isinstance(value, torch.Tensor):
        return value
    flat = memory.upload(torch.cat([value.new_zeros(3), value.as_strided((extent(value),), (1,))]))
    return DeviceTensor(flat.buffer, flat.dtype, tuple(value.shape), value.stride(), 3, flat.owner)


def extent(value: torch.Tensor) -> int:
    if not value.numel():
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))


def node(prim: str, *args: Any, out: torch.dtype = torch.float32, **kwargs: Any) -> NodeContext:
    return NodeContext(prim=prim, args=args, kwargs=kwargs, outputs=(TensorInfo((2,), out),), backward=False)


def test_supports_declines_with_a_reason() -> None:
    floats, flags = TensorInfo((2, 3, 4, 5), torch.float32), TensorInfo((2, 3, 4, 5), torch.bool)
    for taken in (
        node("add", floats, floats),
        node("lt", floats, floats, out=torch.bool),
        node("where", flags, floats, floats),
        node("clone", flags, out=torch.bool),
        node("sum", floats, [-1, 2]),
        node("amax", floats),
    ):
        assert plugin.supports(taken) == Supported()
    for declined, reason in (
        (node("mul", flags, flags, out=torch.bool), "float32"),
        (node("eq", flags, flags, out=torch.bool), "float32"),
        (node("where", flags, flags, flags, out=torch.bool), "float32"),
        (node("sum", flags, [0], out=torch.int64), "float32"),
        (node("sum", floats, [0, 2, 3]), "adjacent"),
        (node("mean", floats, dim=[0, 2]), "adjacent"),
    ):
        answer = plugin.supports(declined)
        assert isinstance(answer, Decline)
        assert reason in answer.reason


# Whole models


@pytest.fixture
def compiled(border: Border) -> Iterator[Callable[[torch.nn.Module], Any]]:
    """``compiled(model)`` compiles for the guarded chip."""
    if not loader.known("mychip"):
        vendor_sdk.register(plugin)
    torch._dynamo.reset()
    yield lambda model, **kwargs: torch.compile(model, backend="mychip", **kwargs)
    torch._dynamo.reset()


def train(model: torch.nn.Module, call: Callable[..., Any], batches: list[tuple[Any, ...]]) -> list[torch.Tensor]:
    """Three vectors: the losses of AdamW steps, all gradients of the first, all parameters after the last."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses: list[torch.Tensor] = []
    gradients: list[torch.Tensor] = []
    for batch in batches:
        optimizer.zero_grad()
        loss = call(*batch)
        torch.autograd.backward(loss)
        losses.append(loss.detach())
        if not gradients:
            gradients = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
        optimizer.step()
    parameters = [parameter.detach().flatten() for parameter in model.parameters()]
    return [torch.stack(losses), torch.cat(gradients), torch.cat(parameters)]


def relative_errors(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> list[float]:
    return [float((a.double() - e).norm() / e.norm()) for a, e in zip(actual, expected, strict=True)]


def as_accurate_as_eager(
    model: torch.nn.Module, compiled: Callable[..., Any], loss: Callable[..., torch.Tensor], batches: list[tuple[Any, ...]]
) -> None:
    """Losses, gradients and parameters after the steps: at most twice eager's own error, against a float64 run."""
    exact, eager = copy.deepcopy(model).double(), copy.deepcopy(model)
    doubles = [tuple(t.double() if t.is_floating_point() else t for t in batch) for batch in batches]
    expected = train(exact, functools.partial(loss, exact), doubles)
    own = relative_errors(train(eager, functools.partial(loss, eager), batches), expected)
    call = compiled(model)
    ours = relative_errors(train(model, functools.partial(loss, call), batches), expected)
    rounding = torch.finfo(torch.float32).eps
    for what, mine, eagers in zip(("losses", "gradients", "parameters"), ours, own, strict=True):
        assert mine <= 2 * max(eagers, rounding), f"{what}: {mine:.2e}, eager {eagers:.2e}"


def gpt2(layers: int = 2) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=layers, n_head=2, n_embd=32, vocab_size=97, n_positions=32, use_cache=False,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)  # fmt: skip
    return GPT2LMHeadModel(config)


def resnet() -> torch.nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    labels = dict(enumerate("abcde"))
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic", id2label=labels)
    return ResNetForImageClassification(config)


def test_gpt2_trains_as_accurately_as_eager(border: Border, compiled: Callable[..., Any]) -> None:
    before = border.statistics.commands["matmul"]
    batches = [(torch.randint(97, (2, 16)),) for _ in range(3)]
    as_accurate_as_eager(gpt2(), compiled, lambda model, ids: model(input_ids=ids, labels=ids).loss, batches)
    assert border.statistics.commands["matmul"] - before >= 3 * 2 * 4


def test_gpt2_with_dynamic_batch_and_sequence(border: Border, compiled: Callable[..., Any]) -> None:
    model = gpt2(layers=1).eval()  # sizes are what is new here
    call = compiled(model, dynamic=True)
    graphs = torch._dynamo.utils.counters["stats"]
    compiled_before = graphs["unique_graphs"]
    with torch.no_grad():
        for index, (batch, length) in enumerate([(2, 8), (3, 12), (5, 7), (4, 31)]):
            ids = torch.randint(97, (batch, length))
            torch.testing.assert_close(call(input_ids=ids).logits, model(input_ids=ids).logits, rtol=1e-5, atol=1e-5)
            if index == 0:
                compiled_before = graphs["unique_graphs"]
    assert graphs["unique_graphs"] == compiled_before


def test_resnet_trains_as_accurately_as_eager(border: Border, compiled: Callable[..., Any]) -> None:
    before = border.statistics.commands["add"]
    batches = [(torch.randn(2, 3, 32, 32), torch.randint(5, (2,))) for _ in range(3)]
    as_accurate_as_eager(
        resnet(), compiled, lambda model, images, labels: model(pixel_values=images, labels=labels).loss, batches
    )
    assert border.statistics.commands["add"] > before


def test_parameters_go_up_once_and_follow_the_optimizer(border: Border, compiled: Callable[..., Any]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    call = compiled(model)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    x = torch.randn(1, 64)
    with torch.no_grad():
        call(x)
        before = border.statistics.bytes_in
        torch.testing.assert_close(call(x), model(x))
        assert border.statistics.bytes_in - before < weights / 10
        for parameter in model.parameters():
            parameter.mul_(1.5)
        before = border.statistics.bytes_in
        torch.testing.assert_close(call(x), model(x))
        assert border.statistics.bytes_in - before >= weights


def test_memory_is_given_back(border: Border, compiled: Callable[..., Any]) -> None:
    def use_and_forget() -> int:
        call = compiled(torch.nn.Linear(32, 32))
        torch.autograd.backward(call(torch.randn(4, 32)).sum())
        del call
        torch._dynamo.reset()
        gc.collect()
        return int(border.statistics.used)

    use_and_forget()
    used = use_and_forget()  # what the collection found is freed by the next allocation: one round behind
    assert [use_and_forget() for _ in range(3)] == [used] * 3


def test_threads_share_one_compiled_model(compiled: Callable[..., Any]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh())
    call = compiled(model)
    inputs = [torch.randn(3, 16) for _ in range(4)]
    with torch.no_grad():
        call(inputs[0])
    failures: list[BaseException] = []

    def work(x: torch.Tensor) -> None:
        try:
            with torch.no_grad():
                for _ in range(20):
                    torch.testing.assert_close(call(x), model(x))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(x,)) for x in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_it_began_as_a_new_package() -> None:
    made = Scaffold("mychip", "kernels", "own-memory").files()
    test_file = "tests/test_conformance.py"
    assert made[test_file] == (MYCHIP / test_file).read_text()
    ours, theirs = tomllib.loads(made["pyproject.toml"]), tomllib.loads((MYCHIP / "pyproject.toml").read_text())
    assert ours["project"]["entry-points"] == theirs["project"]["entry-points"]
    assert ours["tool"]["pytest"] == theirs["tool"]["pytest"]


def test_stages_agree_in_debug_mode(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(debug.CHECK, "1")
    x, w = torch.randn(5, 4), torch.randn(3, 4)

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ w.t()).exp() * 2 + torch.arange(3)

    torch.testing.assert_close(compiled(f)(x, w), f(x, w))
