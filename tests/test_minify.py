"""The search for the smallest failing graph, with processes that die and hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import vendor_sdk
from vendor_sdk import minify, repro
from vendor_sdk.cli import main
from vendor_sdk.dump.program import program
from vendor_sdk.errors import OptionError
from vendor_sdk.ir.primgraph import PrimGraph, prim_name
from vendor_sdk.minify import reduce
from vendor_sdk.minify.worker import Failure, Pool

PLUGIN = """
import os, signal, time, torch, vendor_sdk
from vendor_sdk import hookimpl

def sigmoid(x):
    os.kill(os.getpid(), signal.SIGSEGV)

def sinh(x):
    time.sleep(600)

def tanh(x):
    print("printed by a kernel")
    return torch.tanh(x) * 1.01

calls = []

def asinh(x):
    calls.append(x)
    if len(calls) == 1:
        raise ZeroDivisionError("at first")
    return torch.asinh(x)

@hookimpl
def backend():
    return vendor_sdk.Backend(name="badchip", version="1", dtypes=frozenset({torch.float32}))

@hookimpl
def kernels():
    return {"sigmoid": sigmoid, "sinh": sinh, "tanh": tanh, "asinh": asinh}
"""


def network(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    hidden = torch.layer_norm(torch.relu(x @ first) * 2 + 1, (32,))
    weights = torch.tanh(hidden @ second)
    return (weights.softmax(-1) * weights).sum(0), hidden.exp()


def traced(function: Callable[..., Any], *inputs: torch.Tensor) -> PrimGraph:
    return vendor_sdk.trace(function, inputs)


def written(graph: PrimGraph, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text, constants = program(graph, "badchip", {})
    (folder / "repro.py").write_text(text)
    if constants is not None:
        (folder / "repro_constants.pt").write_bytes(constants)
    return folder / "repro.py"


class Imagined(Pool):
    """Judges graphs by looking at them: ``fails(prims, graph)``."""

    def __init__(self, fails: Callable[[list[str], PrimGraph], bool]) -> None:
        super().__init__((), 1)
        self.fails = fails

    def run(self, path: Path, seed: int) -> Failure | None:
        graph = repro.read(path).graph()
        return Failure("crash") if self.fails([prim_name(node) for node in graph.calls()], graph) else None


def search(function: Callable[..., Any], inputs: Any, fails: Callable[..., bool], folder: Path) -> minify.Minified:
    path = written(traced(function, *inputs), folder / "whole")
    (folder / "tried").mkdir()
    with Imagined(fails) as pool:
        found, seed, failure = minify.find([path], pool)
        return minify.minify(found, seed, failure, pool, folder / "tried")


def test_one_operator_at_the_smallest_size(tmp_path: Path) -> None:
    def fails(prims: list[str], graph: PrimGraph) -> bool:
        wide = [node for node in graph.calls() if prim_name(node) == "tanh" and node.meta["val"].shape[-1] > 4]
        return bool(wide)

    found = search(network, [torch.randn(6, 24), torch.randn(24, 32), torch.randn(32, 40)], fails, tmp_path)
    assert found.before > 10
    assert [prim_name(node) for node in found.graph.calls()] == ["tanh"]
    (value,) = (node.meta["val"] for node in found.graph.placeholders)
    assert tuple(value.shape) == (1, 5)
    found.write(tmp_path / "minified.py")
    assert [prim_name(n) for n in repro.read(tmp_path / "minified.py").graph().calls()] == ["tanh"]


def test_operators_far_apart_that_fail_together_stay(tmp_path: Path) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = (x + 1).cos().exp()
        b = a.sum(0).sqrt().tanh()
        return a * 2, b.sin() + 3, x.erf()

    both = search(function, [torch.rand(4, 6)], lambda prims, graph: {"cos", "tanh"} <= set(prims), tmp_path)
    prims = [prim_name(node) for node in both.graph.calls()]
    assert {"cos", "tanh"} <= set(prims)
    assert len(prims) == 2
    assert len(both.graph.outputs) == 2


def test_several_results_and_integers_stay_together(tmp_path: Path) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, places = (x * 2).max(1)
        return values + 1, places * 3, x.gather(1, places[:, None])

    found = search(function, [torch.randn(3, 5)], lambda prims, graph: "max.dim" in prims, tmp_path)
    assert reduce.size(found.graph) == 1
    assert prim_name(next(found.graph.calls())) == "max.dim"


def test_the_suite_leaves_no_report_of_a_case_and_names_none(tmp_path: Path) -> None:
    line = minify.case_command("sin[float32]", "torch:eager", (), 30)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "report:" not in done.stdout
    assert not list(tmp_path.iterdir())


def test_what_does_not_fail_is_said(tmp_path: Path) -> None:
    path = written(traced(torch.sin, torch.ones(3)), tmp_path / "whole")
    with Imagined(lambda prims, graph: False) as pool, pytest.raises(OptionError, match="none of 1 compiled graphs fails"):
        minify.find([path], pool)
    with pytest.raises(OptionError, match="names no case"):
        minify.case_command("exp", "badchip", (), 1)


@pytest.mark.parametrize(
    ("program", "seconds", "said"),
    [
        ("pass", 60, "the program compiled no graph"),
        ("import sys; sys.exit(3)", 60, "ended with exit status 3 and compiled no graph"),
        ("import time; time.sleep(60)", 1, "did not end in 1 seconds and compiled no graph"),
    ],
)
def test_a_program_without_graphs_is_said(program: str, seconds: float, said: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=said):
        minify.dumped([sys.executable, "-c", program], tmp_path, seconds)


def test_what_is_no_program_of_a_dump_is_said(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import torch")
    with pytest.raises(OptionError, match=r"is no repro\.py of a dump"):
        repro.read(tmp_path / "model.py")
    (tmp_path / "model.py").write_text("1 / 0")
    with pytest.raises(OptionError, match="ended with ZeroDivisionError"):
        repro.read(tmp_path / "model.py")


def test_crashes_hangs_and_wrong_numbers_in_one_worker_after_the_other(tmp_path: Path) -> None:
    plugin = tmp_path / "badchip.py"
    plugin.write_text(PLUGIN)
    programs = {
        prim: written(traced(getattr(torch, prim), torch.ones(3)), tmp_path / prim)
        for prim in ("sigmoid", "sinh", "tanh", "cos")
    }
    with Pool([str(plugin)], 60) as pool:
        assert pool.run(programs["tanh"], 0) == Failure("WrongResultError", "kernel")
        assert pool.run(programs["cos"], 0) is None
        assert pool.run(programs["sigmoid"], 0) == Failure("signal SIGSEGV")
        assert pool.run(programs["cos"], 0) is None
        pool.seconds = 1
        assert pool.run(programs["sinh"], 0) == Failure("timeout")


def test_what_could_not_be_checked_is_said(tmp_path: Path) -> None:
    plugin = tmp_path / "badchip.py"
    plugin.write_text(PLUGIN)
    paths = [written(traced(getattr(torch, prim), torch.ones(3)), tmp_path / prim) for prim in ("cos", "asinh")]
    with Pool([str(plugin)], 60) as pool:
        with pytest.raises(OptionError, match=r"1 of 2 compiled graphs could not be checked(.|\n)*ZeroDivisionError: at first"):
            minify.find(paths, pool, (0,))
        assert list(pool.unchecked) == [paths[1]]


def test_minify_on_the_command_line(tmp_path: Path) -> None:
    plugin = tmp_path / "badchip.py"
    plugin.write_text(PLUGIN)
    path = written(traced(lambda x: (x * 2).tanh() + 1, torch.ones(3, 4)), tmp_path / "dump")
    output = tmp_path / "small.py"
    given = ["minify", "--repro", str(path), "--plugin", str(plugin), "--output", str(output), "--json"]
    done = CliRunner().invoke(main, given)
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert (answer["before"], answer["after"], answer["failure"]) == (3, 1, "WrongResultError at stage 'kernel'")
    assert [prim_name(node) for node in repro.read(output).graph().calls()] == ["tanh"]
    assert CliRunner().invoke(main, ["minify", "--case", "exp[float32]"]).exit_code == 2
    told = CliRunner().invoke(main, given[:-1]).stdout.partition("run it:  python ")[2].split()
    assert told == [str(output), "--plugin", str(plugin)]
    ran = subprocess.run([sys.executable, *told], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "WrongResultError" in ran.stdout


def test_minify_of_a_case_leaves_one_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "badchip.py").write_text(PLUGIN)
    given = ["minify", "--case", "tanh[float32]", "--backend", "badchip", "--plugin", str(tmp_path / "badchip.py"), "--json"]
    done = CliRunner().invoke(main, given)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["after"] == 1
    assert {path.name for path in tmp_path.iterdir()} <= {"badchip.py", "minified.py", "__pycache__"}
    assert [prim_name(node) for node in repro.read(tmp_path / "minified.py").graph().calls()] == ["tanh"]


SPECIAL = """
import torch, vendor_sdk
from vendor_sdk import hookimpl

def exp(x):
    return torch.where(x.isnan(), torch.zeros_like(x), torch.exp(x))

def round(x):
    return torch.round(x) + 0.0

def sqrt(x):
    return torch.sqrt(x) * (1 + 5e-7)

def abs(x):
    return torch.where(x == -3, x, torch.abs(x))

def logical_not(x):
    return torch.where(x, x, ~x)

def sin(x):
    return torch.sin(x) * 1.01

@hookimpl
def backend():
    return vendor_sdk.Backend(name="special", version="1", dtypes=frozenset({torch.float32, torch.int32, torch.bool}))

@hookimpl
def kernels():
    return {"exp": exp, "round": round, "sqrt": sqrt, "abs": abs, "logical_not": logical_not, "sin": sin}
"""


@pytest.mark.parametrize(
    ("case", "wrong"),
    [
        ("exp[float32]", lambda value: value.isnan()),
        ("round[float32]", lambda value: torch.signbit(torch.round(value))),
        ("sqrt[float32]", lambda value: value > 0),
        ("abs[int32]", lambda value: value == -3),
        ("logical_not[bool]", lambda value: value),
    ],
)
def test_a_case_that_fails_on_some_values_keeps_them(
    case: str, wrong: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    plugin = tmp_path / "special.py"
    plugin.write_text(SPECIAL)
    output = tmp_path / "small.py"
    given = ["minify", "--case", case, "--backend", "special", "--plugin", str(plugin), "--output", str(output)]
    done = CliRunner().invoke(main, given)
    assert done.exit_code == 0, done.output
    (value,) = (value.made(torch.Generator()) for value in repro.read(output).inputs())
    assert value.numel() == 1
    assert bool(wrong(value).all())
    ran = subprocess.run(
        [sys.executable, str(output), "--plugin", str(plugin)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (ran.returncode, ran.stdout.partition(":")[0]) == (1, "WrongResultError"), ran.stdout + ran.stderr
    assert "python small.py --plugin FILE" in output.read_text()


def test_another_backend_runs_the_graphs_of_a_program(tmp_path: Path) -> None:
    plugin = tmp_path / "special.py"
    plugin.write_text(SPECIAL)
    path = written(traced(lambda x: (x.cos() + 1).sin() * 2, torch.ones(3, 4)), tmp_path / "dump")
    output = tmp_path / "small.py"
    given = ["minify", "--repro", str(path), "--plugin", str(plugin), "--backend", "special", "--output", str(output)]
    done = CliRunner().invoke(main, given)
    assert done.exit_code == 0, done.output
    program = repro.read(output)
    assert program.backend == "special"
    assert [prim_name(node) for node in program.graph().calls()] == ["sin"]
    again = CliRunner().invoke(main, [*given[:2], str(output), *given[3:]])
    assert again.exit_code == 0, again.output
    assert "nothing became shorter" in again.stdout


def test_sizes_shrink_beside_constants_and_values(tmp_path: Path) -> None:
    table = torch.arange(48.0).reshape(6, 8)
    graph = traced(lambda x, y: x @ y + 1, torch.ones(4, 6), table)
    graph.constants = {graph.placeholders[-1].name: table}
    small = reduce.resized(graph, 6, 2, last=True)
    assert small is not None
    (constant,) = small.constants.values()
    assert torch.equal(constant, table[-2:])
    torch.testing.assert_close(small.interpret(torch.ones(4, 2))[0], torch.ones(4, 2) @ table[-2:] + 1)
    path = written(graph, tmp_path / "whole")
    (tmp_path / "tried").mkdir()
    with Imagined(lambda prims, graph: "mm" in prims) as pool:
        found = minify.minify(path, 0, Failure("crash"), pool, tmp_path / "tried")
    assert {tuple(node.meta["val"].shape) for node in found.graph.placeholders} == {(1, 1)}
    assert found.shorter
