"""Debugging: dumps and their programs, the first wrong stage found by name, bisection, and what explain says of kernels."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import vendor_sdk
from tests.toyloops import LoopEmitter
from tests.toys import ToyChip, offer, register_toys
from tests.without import python_path
from vendor_sdk import (
    Backend,
    Device,
    Emitter,
    Kernel,
    KernelError,
    Launch,
    LoopKernel,
    OptionError,
    PrimGraph,
    WrongResultError,
    debug,
    hookimpl,
    pipeline,
)
from vendor_sdk.contract import loader
from vendor_sdk.dump.folder import STAGES, Dump
from vendor_sdk.ir.loop_print import read, text
from vendor_sdk.ir.memory import Place

ROOT = Path(__file__).resolve().parents[1]
aten = torch.ops.aten
register_toys()


class Plugin:
    """A backend with an emitter (and kernels) that a test gives it."""

    def __init__(
        self,
        wrong: Mapping[str, str] | None = None,
        kernels: Mapping[str, Any] | None = None,
        passes: Mapping[str, Callable[[PrimGraph], PrimGraph]] | None = None,
    ) -> None:
        self.name = f"d{uuid.uuid4().hex[:8]}"
        self._wrong, self._kernels, self._passes = wrong, kernels or {}, passes or {}

    @hookimpl
    def backend(self) -> Backend:
        dtypes = frozenset({torch.float32, torch.bfloat16, torch.int64, torch.bool})
        return Backend(name=self.name, version="0", dtypes=dtypes)

    @hookimpl
    def emitter(self) -> Emitter | None:
        return None if self._wrong is None else LoopEmitter(self._wrong)

    @hookimpl
    def kernels(self) -> Mapping[str, Kernel]:
        return self._kernels

    @hookimpl
    def graph_passes(self, stage: str) -> list[Any]:
        return [self._passes[stage]] if stage in self._passes else []


@pytest.fixture
def backend(register: Callable[..., str]) -> Callable[..., str]:
    """``backend(wrong, kernels, passes)`` registers a plugin and returns its name."""
    return lambda *args, **kwargs: register(Plugin(*args, **kwargs))


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (debug.DIRECTORY, debug.CHECK, debug.FUEL):
        monkeypatch.delenv(name, raising=False)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def dumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(debug.DIRECTORY, str(tmp_path / "dumps"))
    return tmp_path / "dumps"


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(debug.CHECK, "1")


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.tanh(x) * 3, -1)


def compiled(function: Callable[..., Any], name: str, **options: Any) -> Any:
    return torch.compile(function, backend=name, **options)


def program(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VENDOR_SDK_DEBUG")}
    installed = folder / "installed"
    if not installed.exists():
        offer("toyloops", "tests.toyloops", installed)
    return subprocess.run(
        [sys.executable, str(folder / "repro.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "PYTHONPATH": python_path(ROOT, installed), "OMP_NUM_THREADS": "1"},
        cwd=folder,
    )


# Dumps


def test_a_dump_holds_every_stage_in_order(dumps: Path, backend: Callable[..., str]) -> None:
    x = torch.randn(4, 6, requires_grad=True)
    compiled(softmax, backend({}))(x).sum().backward()
    forward, backward = sorted(dumps.iterdir())
    assert re.fullmatch(r"0000_d\w+_forward", forward.name)
    assert re.fullmatch(r"0001_d\w+_backward", backward.name)
    names = sorted(path.name for path in forward.iterdir())
    stages = [name.split("_", 1)[1].split(".")[0] for name in names if name != "repro.py"]
    wanted = ["aten", "captured", "normalized", "legalized", "placed", "scheduled", "lowered", "emitted", "plan", "wrapper"]
    assert stages == wanted == [stage for stage in STAGES if stage in wanted]
    assert "torch.ops.aten.tanh" in (forward / "01_captured.py").read_text()
    assert "iterations" in (forward / "07_scheduled.py").read_text() or "rows" in (forward / "07_scheduled.py").read_text()
    assert "def call(args)" in (forward / "12_wrapper.py").read_text()
    assert "lower bound" in (forward / "11_plan.txt").read_text()
    (kernel,) = (forward / "08_lowered").iterdir()
    assert text(read(kernel.read_text())) == kernel.read_text()
    assert not list(dumps.rglob(".part*"))


def test_the_program_of_a_dump_runs_by_itself(dumps: Path) -> None:
    """Forward, with a constant, random numbers and a symbolic size; and backward."""

    def f(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(softmax(x.t()), 0.3)[rows] + torch.tensor([1.0, 2.0, 3.0, 4.0])

    x = torch.randn(4, 6, requires_grad=True)
    compiled(f, "toyloops", dynamic=True)(x, torch.tensor([1, 0, 1])).sum().backward()
    for folder in sorted(dumps.iterdir()):
        done = program(folder)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "all stages agree" in done.stdout
    source = (sorted(dumps.iterdir())[0] / "repro.py").read_text()
    assert re.search(r"def inputs\(s\d+", source)
    assert "torch.tensor([1.0, 2.0, 3.0, 4.0]" in source


def test_a_program_exits_with_1_where_numbers_differ(dumps: Path) -> None:
    """The backend is another plugin by then: one whose tanh is wrong."""
    compiled(softmax, "toyloops")(torch.randn(4, 6))
    (folder,) = dumps.iterdir()
    source = (folder / "repro.py").read_text()
    planted = "import vendor_sdk, tests.test_debug as t\nplugin = t.Plugin({'tanh': 'exp'})\nvendor_sdk.register(plugin)\n"
    assert source.count("backend='toyloops'") == 1
    source = source.replace("backend='toyloops'", "backend=plugin.name").replace("\nif __name__", f"\n{planted}\nif __name__")
    (folder / "repro.py").write_text(source)
    done = program(folder)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"largest difference \d", done.stdout)
    assert "tanh" in done.stdout


def broken_once(x: torch.Tensor) -> torch.Tensor:
    """A kernel that raises where the check launches it, and not in the call."""
    if not _broken:
        _broken.append(x)
        raise ZeroDivisionError("at first")
    return torch.tanh(x)


_broken: list[torch.Tensor] = []


def test_a_program_whose_check_stops_exits_with_1(dumps: Path) -> None:
    compiled(softmax, "toyloops")(torch.randn(4, 6))
    (folder,) = dumps.iterdir()
    source = (folder / "repro.py").read_text()
    planted = "import vendor_sdk, tests.test_debug as t\nplugin = t.Plugin(None, {'tanh': t.broken_once})\n"
    planted += "vendor_sdk.register(plugin)\n"
    source = source.replace("backend='toyloops'", "backend=plugin.name").replace("\nif __name__", f"\n{planted}\nif __name__")
    (folder / "repro.py").write_text(source)
    done = program(folder)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "largest difference from torch" in done.stdout
    assert "the stages were not checked: the check stopped at ZeroDivisionError: at first" in done.stdout
    assert "agree" not in done.stdout


def test_large_constants_lie_beside_the_program(dumps: Path) -> None:
    table = torch.randn(500).tolist()
    graph = vendor_sdk.trace(lambda x: x + torch.tensor(table), [torch.zeros(500)])
    vendor_sdk.compile_graph(graph, backend="toyloops")
    (folder,) = dumps.iterdir()
    assert (folder / "repro_constants.pt").is_file()
    done = program(folder)
    assert done.returncode == 0, done.stdout + done.stderr


def test_strides_of_inputs_are_rebuilt(dumps: Path) -> None:
    expanded = torch.randn(1, 5).expand(3, 5)
    compiled(lambda a, b, c: a + b.t() * c, "toyloops")(expanded, torch.randn(5, 3), torch.randn(3, 10)[:, ::2])
    (folder,) = dumps.iterdir()
    source = (folder / "repro.py").read_text()
    for strides in ("(0, 1)", "(3, 1)", "(10, 2)"):
        assert strides in source
    done = program(folder)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_chip_with_its_own_memory_dumps_its_transfers(dumps: Path) -> None:
    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(lambda x: torch.tanh(x) @ x.t(), "toychip")(x), torch.tanh(x) @ x.t())
    (folder,) = dumps.iterdir()
    assert "to_device" in (folder / "06_transferred.py").read_text()


def test_a_directory_that_cannot_be_written_teaches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv(debug.DIRECTORY, str(file / "dumps"))
    graph = vendor_sdk.trace(torch.tanh, [torch.zeros(2)])
    with pytest.raises(OptionError, match=r"VENDOR_SDK_DEBUG: .* cannot be written\n  why: NotADirectory.*\n  fix: Set"):
        vendor_sdk.compile_graph(graph, backend="toyloops")


def test_files_of_a_dump_appear_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = Dump(tmp_path, "x")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OptionError, match="No space left"):
        dump.text("a.txt", "text")
    assert list(dump.folder.iterdir()) == []


def test_two_processes_share_a_directory(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from vendor_sdk.dump.folder import Dump\n"
        "for i in range(30): Dump(Path(sys.argv[1]), 'chip_' + sys.argv[2]).text('a.txt', sys.argv[2])\n"
    )
    runs = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path), label]) for label in ("one", "two")]
    assert [run.wait() for run in runs] == [0, 0]
    folders = sorted(path.name for path in tmp_path.iterdir())
    assert len(folders) == 60
    assert len({name[:4] for name in folders}) == 60
    assert all((tmp_path / name / "a.txt").read_text() == name[-3:] for name in folders)


def test_failures_say_where_the_dump_is(dumps: Path, backend: Callable[..., str]) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("in the kernel")

    graph = vendor_sdk.trace(torch.tanh, [torch.zeros(2)])
    run = vendor_sdk.compile_graph(graph, backend=backend(None, {"tanh": broken}))
    with pytest.raises(KernelError, match=rf"prim 'tanh'(.|\n)*dump: {re.escape(str(dumps))}/0000_"):
        run(torch.zeros(2))


def test_a_compiler_that_fails_has_dumped_what_it_got(
    dumps: Path, backend: Callable[..., str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: LoopEmitter, kernels: Any) -> list[Launch]:
        raise RuntimeError("does not compile")

    monkeypatch.setattr(LoopEmitter, "compile", refuse)
    graph = vendor_sdk.trace(torch.tanh, [torch.zeros(2)])
    with pytest.raises(RuntimeError, match="does not compile") as raised:
        vendor_sdk.compile_graph(graph, backend=backend({}))
    (folder,) = dumps.iterdir()
    assert str(folder) in raised.value.__notes__[0]
    assert str(folder) in caplog.text
    assert list((folder / "10_emitted").iterdir())


# The first wrong stage

FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "rows": (softmax, (torch.randn(7, 9),)),
    "halves": (lambda x: torch.nn.functional.layer_norm(x, (9,)) * 2, (torch.randn(7, 9).bfloat16(),)),
    "ties": (lambda x: (torch.tanh(x * 9) + x.sum(-1, keepdim=True)).argmax(-1), (torch.randn(30, 20),)),
    "cancellation": (lambda x: (x + 1000) - 1000 - x, (torch.randn(50),)),
    "special": (lambda x: torch.log(x) + x.exp(), (torch.tensor([-1.0, 0.0, 1e30, float("nan"), float("inf"), 100.0]),)),
    "integers": (lambda x: (x * 3 // 2).sum(0), (torch.arange(12).reshape(3, 4),)),
    "empty": (lambda x: (x * 2).sum(0), (torch.randn(0, 3),)),
    "nothing": (lambda x: x.t(), (torch.randn(2, 3),)),
    "in place": (lambda x: torch.tanh(x @ x) @ x, (torch.randn(6, 6),)),
    "ordered": (lambda x: x.round().topk(3)[0] * 2, (torch.randn(4, 9),)),
    "sized by data": (lambda x: x[x.nonzero()[:, 0]] * 2, (torch.randn(9),)),
    "dropout": (lambda x: torch.nn.functional.dropout(x, 0.5) * 2, (torch.randn(40, 3),)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.usefixtures("checks")
def test_right_graphs_pass_and_results_do_not_change(
    name: str, dynamic: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    function, inputs = FUNCTIONS[name]
    results = []
    for check in ("1", "0"):
        monkeypatch.setenv(debug.CHECK, check)
        torch._dynamo.reset()
        torch.manual_seed(3)
        run = compiled(function, "toyloops", dynamic=dynamic)
        results.append((run(*inputs), run(*inputs), torch.rand(2)))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one.nan_to_num(7.5), other.nan_to_num(7.5))
    assert "stopped" not in caplog.text


@pytest.mark.usefixtures("checks")
def test_training_passes() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Dropout(0.2))
    x = torch.randn(5, 6, requires_grad=True)
    compiled(model, "toyloops")(x).square().mean().backward()
    assert x.grad is not None


@pytest.mark.usefixtures("checks")
def test_chips_with_their_own_memory_pass() -> None:
    x, w = torch.randn(5, 4), torch.randn(3, 4)

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ w.t()).exp() * 2 + torch.arange(3)

    torch.testing.assert_close(compiled(f, "toychip")(x, w), f(x, w))


@pytest.mark.usefixtures("checks")
def test_a_wrong_emitter_op_is_found_by_name(dumps: Path, backend: Callable[..., str]) -> None:
    name = backend({"tanh": "exp"})
    with pytest.raises(WrongResultError) as raised:
        compiled(softmax, name)(torch.randn(4, 6))
    error = raised.value
    assert error.stage == "emitted"
    assert error.error > 0.1
    message = str(error)
    assert "wrong when compiled alone too: tanh (node tanh)" in message
    assert "kernel k0_tanh" in message
    assert "float32[4, 6]" in message
    assert "test_debug.py" in message
    assert str(dumps) in message


@pytest.mark.usefixtures("checks")
def test_a_wrong_op_in_a_backward_graph_is_found(backend: Callable[..., str]) -> None:
    name = backend({"cos": "sin"})
    x = torch.randn(5, requires_grad=True)
    y = compiled(torch.sin, name)(x).sum()
    with pytest.raises(WrongResultError, match=r"'emitted'.*cos"):
        y.backward()


@pytest.mark.usefixtures("checks")
def test_a_wrong_op_in_a_dynamic_graph_is_found(backend: Callable[..., str]) -> None:
    with pytest.raises(WrongResultError, match=r"'emitted'(.|\n)*: exp \(node exp"):
        compiled(softmax, backend({"exp": "tanh"}), dynamic=True)(torch.randn(4, 6))


@pytest.mark.usefixtures("checks")
def test_a_wrong_kernel_is_found(backend: Callable[..., str]) -> None:
    name = backend(None, {"mul": torch.mul, "tanh": lambda x: torch.tanh(x) * 1.001, "exp": torch.exp})
    with pytest.raises(WrongResultError) as raised:
        compiled(lambda x: torch.tanh(x * 2).exp(), name)(torch.randn(50))
    assert (raised.value.stage, raised.value.node) == ("kernel", "tanh")


class WrongChip:
    """The toy chip under another name, with ``tanh`` where ``exp`` should be."""

    def __init__(self) -> None:
        self.chip = ToyChip()
        self.described = dataclasses.replace(self.chip.backend(), name=f"w{uuid.uuid4().hex[:6]}")

    @hookimpl
    def backend(self) -> Backend:
        return self.described

    @hookimpl
    def device(self) -> Device:
        return self.chip.memory

    @hookimpl
    def kernels(self) -> Mapping[str, Kernel]:
        table = self.chip.kernels()
        return {**table, "exp": table["tanh"]}


@pytest.mark.usefixtures("checks")
def test_a_wrong_chip_is_found(register: Callable[..., str]) -> None:
    with pytest.raises(WrongResultError) as raised:
        compiled(lambda x: x.exp() * 2, register(WrongChip()))(torch.randn(5))
    assert (raised.value.stage, raised.value.node) == ("kernel", "exp")


@pytest.mark.parametrize(("stage", "named"), [("normalize", "normalized"), ("legalize", "legalized"), ("place", "placed")])
@pytest.mark.usefixtures("checks")
def test_a_wrong_graph_pass_is_found(stage: str, named: str, backend: Callable[..., str]) -> None:
    def swap(graph: PrimGraph) -> PrimGraph:
        for node in graph.calls():
            if node.target is aten.tanh.default:
                node.target = aten.exp.default
        graph.module.recompile()
        return graph

    with pytest.raises(WrongResultError) as raised:
        compiled(softmax, backend({}, passes={stage: swap}))(torch.randn(4, 6))
    assert (raised.value.stage, raised.value.node) == (named, "tanh")


@pytest.mark.usefixtures("checks")
def test_a_wrong_memory_plan_is_found(backend: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """All buffers of the arena in one place."""
    real = pipeline.lay_out

    def crowded(*args: Any, **kwargs: Any) -> Any:
        layout = real(*args, **kwargs)
        places = {k: Place(None, 0) if p.block is None else p for k, p in layout.places.items()}
        return dataclasses.replace(layout, places=places)

    monkeypatch.setattr(pipeline, "lay_out", crowded)

    def f(x: torch.Tensor) -> torch.Tensor:
        a, b = x @ x, x @ x.t()
        return (a @ b) @ (b @ a)

    with pytest.raises(WrongResultError) as raised:
        compiled(f, "toyloops")(torch.randn(6, 6))
    assert raised.value.stage == "wrapper"


@pytest.mark.usefixtures("checks")
def test_only_the_first_call_is_checked(backend: Callable[..., str]) -> None:
    calls = []

    def tanh(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        return torch.tanh(x)

    graph = vendor_sdk.trace(torch.tanh, [torch.zeros(2)])
    run = vendor_sdk.compile_graph(graph, backend=backend(None, {"tanh": tanh}))
    for _ in range(3):
        run(torch.zeros(2))
    assert len(calls) == 4


@pytest.mark.usefixtures("checks")
def test_a_kernel_that_raises_is_told_by_the_call(backend: Callable[..., str], caplog: pytest.LogCaptureFixture) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("in the kernel")

    graph = vendor_sdk.trace(torch.tanh, [torch.zeros(2)])
    run = vendor_sdk.compile_graph(graph, backend=backend(None, {"tanh": broken}))
    with pytest.raises(KernelError, match="prim 'tanh'"):
        run(torch.zeros(2))
    assert "the check of a graph stopped: ZeroDivisionError" in caplog.text


def test_a_switch_that_is_neither_0_nor_1_teaches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(debug.CHECK, "yes")
    with pytest.raises(OptionError, match="VENDOR_SDK_DEBUG_CHECK is 'yes'"):
        debug.checking()


# Fuel


@pytest.mark.parametrize("culprit", [1, 2, 3, 7, 100])
def test_bisect_finds_the_smallest_fuel_that_fails(culprit: int) -> None:
    assert debug.bisect(lambda: (n := debug.fuel()) is not None and n < culprit) == culprit
    assert debug.fuel() is None


def test_bisect_of_a_real_miscompile(backend: Callable[..., str]) -> None:
    """An emitter that is wrong where a kernel computes both an exponential and a sum: no prim alone is."""
    name = backend({})
    session = loader.load(name).session(None)
    emitter = session.emitter
    assert isinstance(emitter, LoopEmitter)

    def emit(kernel: LoopKernel) -> str:
        emitted = text(kernel)
        both = "op='exp'" in emitted and "op='sum'" in emitted
        return emitted.replace("op='exp'", "op='tanh'") if both else emitted

    emitter.emit = emit  # type: ignore[method-assign]
    x = torch.randn(4, 6)

    def check() -> bool:
        return torch.allclose(compiled(lambda x: x.exp().sum(-1), name)(x), x.exp().sum(-1))

    assert debug.bisect(check) == 1
    with pytest.raises(ValueError, match="does not fail"):
        debug.bisect(lambda: True)
    assert debug.bisect(lambda: False) == 0
    assert debug.bisect(lambda: debug.fuel() is not None) is None


# Explain


class Blocks(torch.nn.Module):
    """Six equal blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(8) for _ in range(6))

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for norm in self.norms:
            x = torch.tanh(norm(x) @ w)
        return x


def test_explain_lists_kernels_bytes_and_reasons() -> None:
    model = Blocks().requires_grad_(False)
    found = vendor_sdk.explain(model, torch.randn(16, 8), torch.randn(8, 8), backend="toyloops", show=False)
    (graph,) = found.graphs
    kernels = graph.kernels
    norms = [kernel for kernel in kernels.kernels if "rsqrt" in kernel.prims]
    assert len(norms) == 6
    assert norms[0].read == (16 * 8 + 8 + 8) * 4
    assert norms[0].written == 16 * 8 * 4
    assert norms[0].route == "emitter"
    assert any("test_debug.py" in where for where in norms[0].where)
    assert kernels.ideal == (16 * 8 + 8 * 8 + 6 * 16 + 16 * 8) * 4
    assert kernels.moved == sum((k.read or 0) + (k.written or 0) for k in kernels.kernels)
    assert kernels.peak is not None
    assert kernels.bound is not None
    assert kernels.peak >= kernels.bound > 0
    assert any(each.reason for each in kernels.apart)
    assert not any({each.producer, each.consumer} <= set(norms[0].prims) - {"add", "mul"} for each in kernels.apart)
    console = Console(width=220, record=True, file=io.StringIO())
    found.print(console)
    printed = console.export_text()
    assert re.search(r"x6\s", printed) or re.search(r"x5\s", printed)
    assert "lower bound" in printed
    assert "why neighbours are not one kernel" in printed
    assert "why neighbours are not one kernel" in str(found)
    assert repr(found) == "<Explanation of 1 graphs on toyloops>"
    record = json.loads(found.to_json())["graphs"][0]
    assert record["moved_bytes"] == kernels.moved
    assert record["kernels"][0]["prims"] == list(kernels.kernels[0].prims)
    assert record["not_fused"]


def test_explain_counts_with_the_sizes_of_the_trace() -> None:
    torch._dynamo.reset()
    x = torch.randn(6, 5)
    torch._dynamo.mark_dynamic(x, 0)
    found = vendor_sdk.explain(lambda x: torch.softmax(x, -1), x, backend="toyloops", show=False)
    (kernel,) = found.graphs[0].kernels.kernels
    assert (kernel.read, kernel.written) == (120, 120)
    assert list(found.graphs[0].kernels.sizes.values()) == [6]
    assert found.graphs[0].kernels.ideal == found.graphs[0].kernels.moved == 240


def test_explain_of_routes_without_an_emitter() -> None:
    found = vendor_sdk.explain(lambda x: torch.sin(x).exp() @ x, torch.randn(4, 4), backend="toychip", show=False)
    (graph,) = found.graphs
    assert [(k.name, k.route) for k in graph.kernels.kernels] == [("sin", "host"), ("exp", "kernel"), ("mm", "kernel")]
    reasons = {(each.producer, each.consumer): each.reason for each in graph.kernels.apart}
    assert "host" in reasons["sin", "exp"]
    assert "kernel of the backend" in reasons["exp", "mm"]
