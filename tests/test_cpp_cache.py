"""What cpp_cpu keeps in the cache: units and kernels, by many processes at once, and made anew where they are damaged."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import vendor_sdk
from reference_backends.cpp_cpu import compiler, units
from reference_backends.cpp_cpu import program as launching
from reference_backends.cpp_cpu.emitter import CppEmitter
from vendor_sdk import LoopKernel
from vendor_sdk.contract import artifacts, cache
from vendor_sdk.pipeline import recording
from vendor_sdk.run.compiled import CompiledGraph


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a process that has loaded nothing."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("VENDOR_SDK_CACHE_DIR", str(folder))
    monkeypatch.delenv("VENDOR_SDK_CACHE_SIZE", raising=False)
    monkeypatch.setattr(artifacts, "_complained", False)
    monkeypatch.setattr(artifacts, "_unpruned", None)
    monkeypatch.setattr(artifacts, "_temporary", None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(units, "_loaded", {})
    monkeypatch.setattr(units, "_home", {})
    return folder


def test_a_model_compiles_without_a_directory(root: Path) -> None:
    root.write_text("a file where the directory should be")
    torch.compiler.reset()
    x = torch.randn(7)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = torch.compile(lambda x: torch.sin(x) * 31, backend="cpp_cpu")(x)
    torch.testing.assert_close(result, torch.sin(x) * 31)
    assert sum("takes no files" in str(each.message) for each in said) == 1


MODEL = """
import sys, warnings, torch
from vendor_sdk.contract import cache
warnings.simplefilter("error", UserWarning)
factor = float(sys.argv[1])
torch.manual_seed(0)
x = torch.randn(64, 65)
def model(x):
    return torch.softmax(x * factor, -1) + torch.sin(x)
result = torch.compile(model, backend="cpp_cpu")(x)
torch.testing.assert_close(result, model(x), rtol=1e-5, atol=1e-5)
print("right")
"""


def started(program: str, *arguments: object, **variables: str) -> subprocess.Popen[str]:
    file = Path(tempfile.mkdtemp()) / "program.py"  # a file, which a process that has imported torch can run
    file.write_text(program)
    command = [sys.executable, str(file), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def finished(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return output.strip()


def test_processes_compile_the_same_and_other_graphs_at_once(root: Path) -> None:
    running = [started(MODEL, factor) for factor in (2, 3, 2, 2)]
    assert [finished(process) for process in running] == ["right"] * 4
    assert not list(root.rglob(f"{cache.UNFINISHED}*"))
    entries = list(root.rglob("*.so"))
    assert entries
    for path in entries:
        assert compiler.ARTIFACTS.find(path.stem, ".so") == path


def test_processes_that_evict_one_another_stay_right(root: Path) -> None:
    running = [started(MODEL, factor, VENDOR_SDK_CACHE_SIZE="60k") for factor in (2, 3, 4, 2)]
    assert [finished(process) for process in running] == ["right"] * 4


def compiled(function: Any, *inputs: torch.Tensor) -> CompiledGraph:
    """What ``cpp_cpu`` makes of a function, with its answer checked."""
    torch.compiler.reset()
    graphs: list[CompiledGraph] = []
    with recording(graphs.append):
        candidate: Callable[..., torch.Tensor] = torch.compile(function, backend="cpp_cpu")
        result = candidate(*inputs)
    torch.testing.assert_close(result, function(*inputs))
    return graphs[0]


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The translation units that a compiler saw."""
    seen: list[str] = []
    honest = compiler._compile

    def watched(key: str, source: str) -> Path:
        seen.append(source)
        return honest(key, source)

    monkeypatch.setattr(compiler, "_compile", watched)
    return seen


def kernels_in(sources: list[str]) -> int:
    return sum(source.count('extern "C" int32_t flat_kernel_') for source in sources)


def layers(count: int) -> Any:
    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(count):
            x = torch.softmax(torch.cumsum(x, -1) @ w, -1)
        return x

    return model


def test_equal_kernels_are_compiled_once_in_a_graph_and_among_graphs(sources: list[str]) -> None:
    x, w = torch.randn(4, 6), torch.randn(6, 6)
    graph = compiled(layers(5), x, w)
    assert graph.launches >= 10
    few = kernels_in(sources)
    assert few < graph.launches / 2
    compiled(layers(7), x, w)
    assert kernels_in(sources) == few, "the kernels of another graph are the same"


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """One core, at work until the event is set."""
    assert launching._linker().library  # for which programs wait, too
    one, free = ThreadPoolExecutor(1), threading.Event()
    monkeypatch.setattr(compiler, "_pool", lambda: one)
    monkeypatch.setattr(compiler, "cores", lambda: 1)
    one.submit(free.wait)
    yield free
    free.set()
    one.shutdown()


def test_kernels_that_wait_for_a_core_share_a_unit_whatever_graph_they_are_of(
    sources: list[str], busy: threading.Event
) -> None:
    x = torch.randn(5, 7)
    functions = (torch.sin, lambda x: torch.softmax(x, -1), lambda x: torch.cumsum(x, 1) * 2)
    graphs = [vendor_sdk.compile_graph(vendor_sdk.trace(each, (x,)), backend="cpp_cpu") for each in functions]
    assert not kernels_in(sources)
    busy.set()
    for graph, function in zip(graphs, functions, strict=True):
        torch.testing.assert_close(graph(x)[0], function(x))
    assert [kernels_in([source]) for source in sources if kernels_in([source])] == [sum(graph.launches for graph in graphs)]


def test_a_kernel_that_the_compiler_refuses_takes_no_other_of_its_unit_along(
    sources: list[str], busy: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(5, 7)
    right = vendor_sdk.compile_graph(vendor_sdk.trace(torch.sin, (x,)), backend="cpp_cpu")
    with monkeypatch.context() as patched:
        honest = CppEmitter.emit
        patched.setattr(CppEmitter, "emit", lambda self, kernel: honest(self, kernel) + "not_a_type y;\n")
        wrong = vendor_sdk.compile_graph(vendor_sdk.trace(torch.cos, (x,)), backend="cpp_cpu")
    busy.set()
    torch.testing.assert_close(right(x)[0], torch.sin(x))
    with pytest.raises(vendor_sdk.CompilerError, match="not_a_type") as refused:
        wrong(x)
    assert kernels_in([Path(refused.value.where).read_text()]) == 1, "the source that is kept is the refused kernel's own"
    torch.testing.assert_close(right(x)[0], torch.sin(x))


def test_layers_that_differ_in_their_seeds_share_kernels(sources: list[str]) -> None:
    def noisy(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(12):
            x = torch.dropout(x @ w, 0.5, True)
        return x

    torch.manual_seed(0)
    x, w = torch.ones(64, 16), torch.eye(16)
    graph = compiled(noisy, x, w)
    assert kernels_in(sources) <= 3
    (out,) = graph(x, w)
    assert out.count_nonzero().item() < out.numel() / 64, "every layer draws numbers of its own"


def test_a_new_process_runs_no_compiler(root: Path) -> None:
    finished(started(MODEL, 2))
    silent = MODEL + "\nfrom reference_backends.cpp_cpu import compiler\nprint(compiler._pool.cache_info().currsize)"
    assert finished(started(silent, 2)).splitlines() == ["right", "0"]


@pytest.mark.parametrize("suffix", [".so", ".kernel"])
@pytest.mark.parametrize("damage", ["truncated", "gone"])
def test_a_damaged_cache_is_rebuilt(suffix: str, damage: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.randn(4, 6), torch.randn(6, 6)
    compiled(layers(2), x, w)
    monkeypatch.setattr(units, "_loaded", {})
    monkeypatch.setattr(units, "_home", {})
    entries = sorted(root.rglob(f"*{suffix}"))
    assert entries
    for path in entries:
        data = path.read_bytes()
        path.unlink()  # A loaded library must not change under the feet of this process.
        if damage == "truncated":
            path.write_bytes(data[: len(data) // 2])
    compiled(layers(2), x, w)
    assert all(compiler.ARTIFACTS.find(path.stem, suffix) is not None for path in entries if suffix == ".kernel")


def test_a_kernel_has_one_key_whatever_its_name() -> None:
    kernel = next(iter(compiled(layers(1), torch.randn(4, 6), torch.randn(6, 6)).loops.values()))
    first, second = (replace(kernel, name=name) for name in ("k0_sum", "k17_softmax"))
    one, two = (units._unit(each, CppEmitter().emit(each)) for each in (first, second))
    assert one == two
    assert "k0_sum" not in one.text


def test_units_take_about_equally_long(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = LoopKernel("k", (), (), ())

    def unit(name: str, size: int, *more: str) -> units.Unit:
        return units.Unit(name, kernel, "x" * size, more)

    monkeypatch.setattr(compiler, "cores", lambda: 2)
    products, others = [unit(f"p{n}", 3500, "products.h") for n in range(3)], [unit(f"o{n}", 4000) for n in range(3)]
    assert sorted(sorted(each.key for each in group) for group in units._split(products + others)) == [
        ["o0", "o1", "o2"],
        ["p0", "p1", "p2"],
    ]
    assert len(units._split([unit("a", 300), unit("b", 300)])) == 1, "what is small is compiled together"
    assert units._split([]) == []
    monkeypatch.setattr(compiler, "cores", lambda: 64)
    assert len(units._split([unit(str(n), 9000) for n in range(4)])) == 4


SAVE = (
    MODEL
    + """
saved = torch.compiler.save_cache_artifacts()
assert saved is not None
open(sys.argv[2], "wb").write(saved[0])
print(sorted(saved[1].artifacts))
"""
)
LOAD = (
    """
import sys, torch, vendor_sdk
vendor_sdk.load("cpp_cpu")
info = torch.compiler.load_cache_artifacts(open(sys.argv[2], "rb").read())
assert info is not None and info.artifacts["vendor_sdk"], info
"""
    + MODEL
    + """
from reference_backends.cpp_cpu import compiler
print(compiler._pool.cache_info().currsize)
"""
)


def test_saved_artefacts_serve_another_machine(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    assert "vendor_sdk" in finished(started(SAVE, 2, bundle)).splitlines()[-1]
    elsewhere = str(tmp_path / "elsewhere")
    assert finished(started(LOAD, 2, bundle, VENDOR_SDK_CACHE_DIR=elsewhere)).splitlines() == ["right", "0"]
