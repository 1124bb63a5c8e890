"""The benchmark harness on tiny rows: what it rejects, what follows from samples, what it says when asked wrongly."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import json
import math
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

from benchmarks import cli, copying, gpu_patterns, machine, native, pages, report, run, timing
from benchmarks.accuracy import Judge, checked, outcome
from benchmarks.contestants import PEERS, Compiled, Contestant, Eager, Entry, OnnxRuntime, Unsupported, contestants
from benchmarks.gpu_patterns import PATTERNS
from benchmarks.kernels import DROPPED, KERNELS, Maker, dropped_and_normed
from benchmarks.networks import NETWORKS, Recurrent, ResNet18, Trained
from benchmarks.program import BenchmarkError, Mode, Program, caller
from benchmarks.results import Figures, Results, RowResult, State, row_from_json, schema
from benchmarks.sections import SECTIONS
from benchmarks.sections.contest import contest
from benchmarks.sections.row import Row, Selection
from benchmarks.spawn import Setting, job
from benchmarks.targets import TARGETS, outcomes

ROOT = Path(__file__).resolve().parent.parent
QUICK = Selection(True, cli.QUICK_SIZES, cli.QUICK_DTYPES)
FULL = Selection(False, cli.SIZES, cli.DTYPES)


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting("eager", (), rounds=2, threads=1, folder=str(tmp_path), sample_seconds=1e-4)


@dataclasses.dataclass(frozen=True)
class Planted(Contestant):
    """Eager with a change of its outputs."""

    change: Callable[[list[torch.Tensor]], Any] = list

    def prepare(self, program: Program) -> Entry:
        call = caller(program, program.function)
        return Entry(lambda: self.change([t.clone() for t in Entry(call).fetch(call())]))


def one_off(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    outputs[0].view(-1)[7] += 0.01
    return outputs


def softmax_program() -> Program:
    return KERNELS["softmax"].build(Maker(1 << 16, torch.float32))


# Accuracy


WRONG = {
    "one element": one_off,
    "zeros": lambda outputs: [torch.zeros_like(o) for o in outputs],
    "half precision": lambda outputs: [o.bfloat16().float() for o in outputs],
    "not a number": lambda outputs: [o / o.sum() * math.nan for o in outputs],
    "shape": lambda outputs: [o[:-1] for o in outputs],
    "number of outputs": lambda outputs: [*outputs, *outputs],
}


@pytest.mark.parametrize("planted", WRONG)
def test_wrong_contestant_has_no_time(planted: str, setting: Setting) -> None:
    result = Row("kernels", "softmax", mebibytes=1).result()
    taking_part = [Planted("right"), Planted("wrong", change=WRONG[planted]), Eager("eager")]
    contest(result, softmax_program(), taking_part, setting, lambda _: None)
    states = {name: figures.state for name, figures in result.contestants.items()}
    assert states == {"right": State.OK, "wrong": State.WRONG, "eager": State.OK}
    assert result.contestants["wrong"].samples == []
    assert result.contestants["wrong"].reason
    assert [len(result.contestants[name].samples) for name in ("right", "eager")] == [2, 2]


def test_second_result_that_replaces_the_first_is_wrong(setting: Setting) -> None:
    calls: list[int] = []

    def second_is_stale(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        calls.append(0)
        return outputs if len(calls) == 1 else [o * 0 for o in outputs]

    result = Row("kernels", "softmax").result()
    contest(result, softmax_program(), [Planted("stale", change=second_is_stale)], setting, lambda _: None)
    assert result.contestants["stale"].state is State.WRONG


def test_contestant_that_raises_or_declines_is_told_apart(setting: Setting) -> None:
    class Raises(Contestant):
        def prepare(self, program: Program) -> Entry:
            raise RuntimeError("no kernel")

    class Declines(Contestant):
        def prepare(self, program: Program) -> Entry:
            raise Unsupported("no training")

    taking_part = [Raises("raises"), Declines("declines"), Eager("absent", requires=("no_such_module",)), Eager("eager")]
    result = contest(Row("kernels", "softmax").result(), softmax_program(), taking_part, setting, lambda _: None)
    assert {name: figures.state for name, figures in result.contestants.items()} == {
        "raises": State.FAILED,
        "declines": State.UNSUPPORTED,
        "absent": State.MISSING,
        "eager": State.OK,
    }
    assert "no_such_module" in result.contestants["absent"].reason
    assert result.contestants["raises"].reason == "RuntimeError: no kernel"


def test_contestant_that_fails_while_sampled_has_failed(setting: Setting) -> None:
    calls: list[int] = []

    def third_raises(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        calls.append(0)
        if len(calls) > 3:
            raise RuntimeError("worn out")
        return outputs

    taking_part = [Planted("tired", change=third_raises), Eager("eager")]
    result = contest(Row("kernels", "softmax").result(), softmax_program(), taking_part, setting, lambda _: None)
    assert result.contestants["tired"].state is State.FAILED
    assert result.measured("eager")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_in_eager_pass_their_own_judge(name: str, dtype: torch.dtype) -> None:
    program = KERNELS[name].build(Maker(1 << 16, dtype))
    before = [t.detach().clone() for t in program.tensors()]
    outputs = outcome(program)
    assert not Judge(program).judge(outputs, eager=True).wrong
    assert all(torch.equal(a, b) for a, b in zip(before, program.tensors(), strict=True)), "inputs are shared by contestants"
    moved = program.least_bytes(outputs)
    assert 0.25 * (1 << 16) <= moved <= 20 * (1 << 16)


@pytest.mark.parametrize("name", ["dropout", "bias + dropout + residual + layer_norm"])
@pytest.mark.parametrize("wrong", ["nothing dropped", "not scaled", "off"])
def test_random_kernels_are_verified(name: str, wrong: str) -> None:
    program = KERNELS[name].build(Maker(1 << 18, torch.float32))
    judge = Judge(program)
    outputs = [t.clone() for t in outcome(program)]
    assert not judge.judge(outputs).wrong
    if wrong == "off":
        outputs[0].view(-1)[outputs[0].argmax()] *= 1.001
    elif wrong == "not scaled":
        outputs[0] *= 0.9
    elif name == "dropout":
        outputs[0] = program.inputs[0] / 0.9
    else:
        outputs[1] = outputs[1] + 0.01
    assert judge.judge(outputs).wrong


def test_gradient_is_measured_beside_gradients_alone() -> None:
    program = KERNELS["cross_entropy with gradient"].build(Maker(1 << 18, torch.float32))
    judge, outputs = Judge(program), outcome(program)
    judge.judge(outputs, eager=True)
    loss, gradient = outputs
    assert not judge.judge([loss, gradient]).wrong
    assert judge.judge([loss, gradient * 1.001]).wrong, "the loss is a million times larger than its gradient"


def test_infinities_and_nan_must_match() -> None:
    program = Program(lambda x: x / x.clamp(max=0), (torch.tensor([1.0, -1.0, 0.0, 2.0]),))
    judge = Judge(program)
    assert not judge.judge([torch.tensor([math.inf, 1.0, math.nan, math.inf])]).wrong
    assert judge.judge([torch.tensor([-math.inf, 1.0, math.nan, math.inf])]).wrong
    assert judge.judge([torch.tensor([math.inf, 1.0, 0.0, math.inf])]).wrong


def test_integers_are_exact() -> None:
    program = Program(lambda x: x.argmax(-1), (torch.randn(4, 8),))
    judge, (right,) = Judge(program), outcome(program)
    assert not judge.judge([right]).wrong
    assert judge.judge([right + 1]).wrong


# Programs


def tiny(name: str) -> nn.Module:
    return {
        "mlp": lambda: nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4)),
        "recurrent": lambda: Recurrent(8, 4),
        "resnet": lambda: ResNet18(4),
    }[name]()


@pytest.mark.parametrize(("name", "shape"), [("mlp", (3, 8)), ("recurrent", (3, 5, 8)), ("resnet", (4, 3, 96, 96))])
def test_training_step_is_judged_by_gradients_and_losses(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module = Trained(tiny(name))
    program = Program(module, (torch.randint(4, shape[:1]), torch.randn(shape)), Mode.STEP, discontinuous=name == "resnet")
    before = [p.detach().clone() for p in module.parameters()]
    judge, outputs = Judge(program), outcome(program)
    assert not judge.judge(outputs, eager=True).wrong
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True)), "each contestant trains its own"
    assert outputs[0] > outputs[1] > outputs[2], "three steps lower the loss"
    outputs[-1] = outputs[-1] * 1.2
    assert judge.judge(outputs).wrong


def test_contestants_share_no_compiled_code() -> None:
    seen: list[str] = []

    def named(name: str) -> Callable[..., Any]:
        def backend(graph: Any, _inputs: Any) -> Any:
            seen.append(name)
            return graph.forward

        return backend

    program = Program(lambda x: x + 1, (torch.ones(3),))
    for name in ("first", "second", "first"):
        Compiled(name, keywords={"backend": named(name)}).prepare(program).call()
    assert seen == ["first", "second", "first"]


def test_backend_is_not_taken_for_the_peer_of_its_name() -> None:
    names = [each.name for each in contestants("onnxruntime", ("eager", "onnxruntime"))]
    assert len(set(names)) == 3


@pytest.mark.filterwarnings("ignore")  # The exporter uses what torch has deprecated.
def test_exported_peer_is_right_and_declines_training() -> None:
    peer = PEERS["onnxruntime"]
    if missing := peer.missing():
        pytest.skip(missing)
    assert isinstance(peer, OnnxRuntime)
    program = KERNELS["residual + layer_norm"].build(Maker(1 << 14, torch.float32))
    with torch.no_grad():
        entry = peer.prepare(program)
        first, second = (entry.fetch(entry.call()) for _ in range(2))
    judge = Judge(program)
    assert not judge.judge(first).wrong
    assert not judge.judge(second).wrong
    with pytest.raises(Unsupported, match="training"):
        peer.prepare(KERNELS["rms_norm, forward and backward"].build(Maker(1 << 14, torch.float32)))
    with pytest.raises(Unsupported, match="write"):
        peer.prepare(KERNELS["adamw step"].build(Maker(1 << 14, torch.float32)))


# Timing and copies


def test_every_contestant_gives_one_sample_a_round() -> None:
    order: list[str] = []
    calls = {name: lambda name=name: order.append(name) for name in ("a", "b", "c")}
    samples = timing.interleave(calls, 12, at_least=1e-9)
    assert {name: len(each) for name, each in samples.items()} == {"a": 12, "b": 12, "c": 12}
    turns = {(before, after) for before, after in itertools.pairwise(order) if before != after}
    assert len(turns) == 6, "the order is random: each follows each"


def test_samples_are_long_enough_for_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def call() -> None:
        now[0] += 1e-5 if next(clock) else 1e-2  # the first call is slow

    count = timing.repetitions(call, at_least=2e-3)
    assert timing.sample(call, count) * count >= 2e-3


def test_copies_copy(tmp_path: Path) -> None:
    calls = copying.copies(1 << 16, 1, tmp_path)
    assert copying.PLAIN in calls
    for call in calls.values():
        call()


def test_refused_source_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "HERE", tmp_path)
    (tmp_path / "broken.cpp").write_text("no C++")
    with pytest.raises(BenchmarkError, match="refused"):
        native.build("broken", tmp_path)


# Results


def made_up() -> Results:
    """Two kernels and a model: the backend is twice as fast as the peer, then twice as slow; the last has a failed peer."""
    rows = [
        RowResult(
            "kernels", "softmax", mebibytes=64, ideal_bytes=100, copied_bytes=100,
            contestants={
                "chip": Figures(State.OK, samples=[1.0, 2.0, 4.0]), "inductor": Figures(State.OK, samples=[2.0, 4.0, 8.0]),
            },
            copies={copying.PLAIN: [0.5, 1.0, 2.0]},
        ),
        RowResult(
            "kernels", "layer_norm", mebibytes=64, ideal_bytes=100, copied_bytes=100,
            contestants={"chip": Figures(State.OK, samples=[4.0, 4.0]), "inductor": Figures(State.OK, samples=[2.0, 2.0])},
            copies={copying.PLAIN: [1.0, 1.0]},
        ),
        RowResult(
            "models", "MLP", contestants={
                "chip": Figures(State.OK, samples=[1.0]), "inductor": Figures(State.FAILED, "RuntimeError: a | b"),
            },
        ),
    ]  # fmt: skip
    settings = {"rounds": 3, "threads": 1, "sample_seconds": 0.02, "quick": True}
    return Results("chip", ["inductor"], machine.describe(), settings, rows)


def test_figures_follow_from_samples() -> None:
    results = made_up()
    first, second, model = results.rows
    ratio = first.ratio("inductor", "chip")
    assert ratio is not None
    assert (ratio.median, ratio.low, ratio.high) == (2.0, 2.0, 2.0), "within rounds, though the rounds differ fourfold"
    assert first.of_copy("chip", copying.PLAIN) == 0.5
    assert first.strongest(["eager", "inductor"], "chip") == ("inductor", ratio)
    assert second.strongest(["eager"], "chip") is None
    assert model.ratio("inductor", "chip") is None
    found = {outcome.target.text: outcome for outcome in outcomes(results)}
    mean = found["kernels, 64 MiB: mean against Inductor"]
    assert mean.figure == pytest.approx(1.0)
    assert not mean.reached
    worst = found["kernels, 64 MiB: worst against the best of eager, Inductor, ONNX Runtime"]
    assert worst.figure == pytest.approx(0.5)
    assert set(found) <= {target.text for target in TARGETS}
    assert "compilation, cold: mean against Inductor" not in found, "nothing is said of what was not measured"


def test_results_round_trip_through_json() -> None:
    results = made_up()
    assert Results.from_json(results.to_json()) == results
    jsonschema.Draft202012Validator.check_schema(schema())
    row = results.rows[0]
    assert row_from_json(json.loads(json.dumps(dataclasses.asdict(row)))) == row


@pytest.mark.parametrize("text", ["no json", "{}", '{"version": 2}'])
def test_other_files_are_no_results(text: str) -> None:
    with pytest.raises(BenchmarkError, match="no results") as error:
        Results.from_json(text, "here.json")
    assert error.value.where == "here.json"
    assert error.value.fix


def test_table_says_where_a_peer_wins_and_what_failed() -> None:
    kernels, models, targets = report.grids(made_up())
    assert [cells[-1] for cells, _ in kernels.lines] == ["chip", "inductor wins 2.00x", ""]
    assert [style for _, style in kernels.lines][:2] == ["ahead", "wins"]
    assert kernels.lines[0][0][kernels.head.index("x inductor")] == "2.00"
    assert kernels.lines[2][0][kernels.head.index("x inductor")] == "1.00"
    assert models.notes == ["MLP, inductor: failed: RuntimeError: a | b"]
    assert targets.lines
    text = report.markdown(made_up())
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in rows)
    assert "inductor wins 2.00x" in text


def test_peer_that_wins_within_rounds_wins_though_another_has_the_better_median() -> None:
    row = RowResult(
        "models", "MLP", contestants={
            "chip": Figures(State.OK, samples=[8.0, 8.0, 0.1]),
            "eager": Figures(State.OK, samples=[9.0, 0.2, 0.2]),
            "inductor": Figures(State.OK, samples=[0.3, 0.3, 0.3]),
        },
    )  # fmt: skip
    results = dataclasses.replace(made_up(), rows=[row])
    grid, *_ = report.grids(results)
    assert grid.lines[0][0][-1].startswith("inductor wins")


def test_backend_without_a_figure_does_not_win() -> None:
    results = made_up()
    results.rows[0].contestants["chip"] = Figures(State.WRONG, "output 0 is off")
    kernels, *_ = report.grids(results)
    assert kernels.lines[0][0][-1] == "no figure"
    assert kernels.lines[0][1] == "failed"


def test_plots_are_self_contained(tmp_path: Path) -> None:
    plots = pytest.importorskip("benchmarks.plots")
    written = plots.draw(made_up(), tmp_path / "plots")
    assert {path.name for path in written} == {
        "kernels-64-float32.svg", "kernels-64-float32-bandwidth.svg", "models.svg",
    }  # fmt: skip
    assert all("<svg" in path.read_text() and 'href="http' not in path.read_text() for path in written)


def test_page_holds_what_the_committed_results_say() -> None:
    result = CliRunner().invoke(cli.main, ["docs", "--check"])
    assert result.exit_code == 0, result.output
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        Results.from_json(path.read_text(), str(path))


def test_page_is_rewritten_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{pages.BEGIN}\nold\n{pages.END}\nafter\n")
    text = pages.rewrite(page, pages.figures(made_up(), "made-up.json"))
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "inductor wins 2.00x" in text
    page.write_text("nothing")
    with pytest.raises(BenchmarkError, match="no place"):
        pages.rewrite(page, "x")


def test_machine_is_described() -> None:
    described = machine.describe()
    jsonschema.validate(described, schema()["properties"]["machine"])
    assert described["versions"]["torch"] in machine.sentence(described)


# Sections and processes


def test_rows_are_distinct_and_the_quick_ones_a_subset() -> None:
    for selection in (QUICK, FULL):
        rows = [row for section in SECTIONS.values() for row in section.rows(selection)]
        assert len(set(rows)) == len(rows)
        assert {row.section for row in rows} == set(cli.CHOICES)
    full = {row for section in SECTIONS.values() for row in section.rows(FULL)}
    assert {row for section in SECTIONS.values() for row in section.rows(QUICK)} <= full


def test_page_names_the_rows_of_the_quick_mode() -> None:
    page = " ".join((ROOT / "docs" / "performance.md").read_text().split())
    quick = page.partition("## Quick mode")[2].partition("## Results")[0]
    assert all(kernel.name in quick for kernel in KERNELS.values() if kernel.quick)
    assert all(network.name.split(",")[0] in quick for network in NETWORKS.values() if network.quick)


def test_worker_measures_a_row_in_a_process_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import torch\ndef build():\n    return torch.sin, (torch.ones(8),)\n")
    setting = Setting("eager", ("eager",), rounds=2, threads=1, folder=str(tmp_path), sample_seconds=1e-4)
    (result,) = run.measure(Row("user", f"{path}:build"), setting)
    assert result.contestants["eager backend"].state is State.OK, result.contestants["eager backend"].reason
    assert len(result.contestants["eager"].samples) == 2
    assert result.ideal_bytes == 64


def test_crash_is_laid_at_its_contestants_door(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        textwrap.dedent("""
        import os, torch
        def function(x):
            if torch.compiler.is_compiling():
                os.kill(os.getpid(), 9)
            return x + 1
        def build():
            return function, (torch.ones(8),)
        """)
    )
    setting = Setting("eager", ("eager",), rounds=1, threads=1, folder=str(tmp_path), sample_seconds=1e-4)
    (result,) = run.measure(Row("user", f"{path}:build"), setting)
    assert result.contestants["eager backend"].state is State.FAILED
    assert "SIGKILL" in result.contestants["eager backend"].reason
    assert result.measured("eager")


def test_memory_is_counted_by_allocation(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import ctypes, mmap, torch
        count = ctypes.CDLL(None)
        for name in ("live", "peak"):
            getattr(count, f"benchmark_{name}_bytes").restype = ctypes.c_int64
        kept = torch.empty(1000, dtype=torch.uint8)
        zero = count.benchmark_live_bytes()
        count.benchmark_reset_peak()
        temporary = torch.empty(3 << 20, dtype=torch.uint8)
        kept = torch.empty(5000, dtype=torch.uint8)
        del temporary
        table = {i: i for i in range(200_000)}  # The interpreter's own.
        print(count.benchmark_live_bytes() - zero, count.benchmark_peak_bytes() - zero)
        arena = mmap.mmap(-1, 5 << 20)
        print(count.benchmark_live_bytes() - zero)
        arena.close()
        print(count.benchmark_live_bytes() - zero)
    """)
    library = native.build("allocations", tmp_path)
    variables = {"LD_PRELOAD": str(library), "PYTHONMALLOC": "malloc", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True, timeout=120
    )
    assert [int(each) for each in done.stdout.split()] == [4000, (3 << 20) + 5000, 4000 + (5 << 20), 4000]


@pytest.mark.needs("cpp_cpu")
def test_an_mlp_holds_two_activations(tmp_path: Path) -> None:
    """Its result comes when only one is left, and nothing is packed beside the plan."""
    setting = Setting("cpp_cpu", (), rounds=1, threads=1, folder=str(tmp_path))
    (result,) = run.measure(Row("memory", "MLP, batch 64", variant="inference"), setting)
    assert result.contestants["cpp_cpu"].samples == [2 * 64 * 1024 * 4]
    assert result.facts["planned"] == result.facts["lower bound"] == 2 * 64 * 1024 * 4


def test_hanging_and_dying_jobs_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting("eager", (), rounds=1, threads=1, folder=str(tmp_path))
    ended = job("no such job", {}, setting)
    assert ended.found is None
    assert "KeyError" in ended.how
    monkeypatch.setattr("benchmarks.spawn.ROW_SECONDS", 0.05)
    assert "no result after" in job("no such job", {}, setting).how


# Command line


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, list(arguments))


@pytest.mark.needs("cpp_cpu")
@pytest.mark.parametrize(
    ("arguments", "what", "where"),
    [
        (["kernel"], "'kernel' is nothing to measure", "WHAT"),
        (["--backend", "no_chip"], "there is no torch.compile backend 'no_chip'", "--backend"),
        (["--peers", "eager,tvm"], "there is no peer 'tvm'", "--peers"),
        (["--only", "nothing like it"], "no row matches", "--only"),
        (["--sizes", "1,big"], "'big' is no size", "--sizes"),
        (["--dtypes", "float64"], "kernels have no dtype 'float64'", "--dtypes"),
        (["absent.py:build"], "absent.py is no file", "absent.py:build"),
    ],
)
def test_wrong_usage_says_what_where_and_how_to_fix(arguments: list[str], what: str, where: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert what in result.output
    assert f"where: {where}" in result.output
    assert "fix: " in result.output


@pytest.mark.parametrize("body", ["x = 1", "def build(): return 3", "def build(): return len, ([],)"])
def test_own_function_must_come_with_inputs(tmp_path: Path, body: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(body)
    result = invoke(f"{path}:build")
    assert result.exit_code == 1
    assert "fix: define `def build(): return function, (input, ...)` there" in result.output


def test_list_prints_rows_and_measures_nothing() -> None:
    result = invoke("--quick", "--list", "models", "kernels", "--sizes", "64", "--only", "softmax,MLP*")
    assert result.exit_code == 0
    assert result.output.splitlines() == ["models: MLP, batch 64", "kernels: softmax, 64 MiB"]


def test_run_writes_results_and_prints_tables(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    arguments = (
        "kernels --backend eager --peers eager --sizes 1 --dtypes float32 --only softmax --rounds 2 --threads 1 --sample 0.0001"
    )
    result = invoke(*arguments.split(), "--json", str(path))
    assert result.exit_code == 0, result.output
    (row,) = Results.from_json(path.read_text()).rows
    assert row.measured("eager")
    assert len(row.copies[copying.PLAIN]) == 2
    assert "softmax" in result.output


def test_extra_names_what_the_peers_need() -> None:
    extra = " ".join(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["bench"])
    for peer in PEERS.values():
        assert all(module in extra for module in peer.requires)


@pytest.mark.parametrize("kind", ["", "dynamic", "autotuned"])
def test_the_gpu_page_is_that_of_its_result(kind: str) -> None:
    from benchmarks.gpu import page

    result, name = "_".join(filter(None, (kind, "h200"))), "_".join(filter(None, ("performance_gpu", kind)))
    measured = json.loads((ROOT / "benchmarks" / "results" / "gpu" / f"{result}.json").read_text())
    assert (ROOT / "docs" / f"{name}.md").read_text() == page(measured)


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_gpu_patterns_are_judged(name: str) -> None:
    program = PATTERNS[name](gpu_patterns.Maker(48, 128, torch.float32, "cpu"))
    judge = Judge(program.own())
    with torch.set_grad_enabled(program.mode is not Mode.INFERENCE):
        own = program.own()
        outputs = checked(caller(own, own.function))
    assert not judge.judge(outputs, eager=True).wrong
    bent = [out + 0.01 * (0.5 + torch.rand_like(out)) * out.abs().max() if out.is_floating_point() else out for out in outputs]
    assert judge.judge(bent).wrong


def test_a_dropout_that_keeps_everything_is_wrong() -> None:
    x, r, w, b = (torch.randn(s) for s in ((48, 128), (48, 128), (128,), (128,)))
    for scale in (0.0, 1 / (1 - DROPPED)):
        total = x * scale + r
        assert "are kept" in dropped_and_normed(total, torch.layer_norm(total, (128,), w, b), x, r, w, b)


@pytest.mark.parametrize("name", ["gpu_models", "gpu_products"])
def test_names_that_match_no_row_on_a_gpu_are_refused(name: str) -> None:
    pytest.importorskip("triton")
    benchmark = importlib.import_module(f"benchmarks.{name}")
    result = CliRunner().invoke(benchmark.main, ["--only", "nonsense*"])
    assert result.exit_code == 2
    assert "no row has such a name" in result.output


def test_what_no_checkpoint_has_keeps_its_dtype_in_half_a_model() -> None:
    """Rotary frequencies in bfloat16 turn late tokens to other places."""
    transformers = pytest.importorskip("transformers")
    from benchmarks.gpu_models import halved

    small = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "vocab_size": 9}
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**small))
    half = halved(model)
    assert {each.dtype for each in half.parameters()} == {torch.bfloat16}
    assert half.model.rotary_emb.inv_freq.dtype == torch.float32
    torch.testing.assert_close(half.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq, rtol=0, atol=0)
    batch_norm = halved(nn.BatchNorm1d(3))
    assert batch_norm.running_mean.dtype == torch.bfloat16  # a checkpoint has it


def test_what_a_diffusion_model_predicts_follows_from_image_and_time() -> None:
    from benchmarks.diffusion import UNet

    torch.manual_seed(0)
    model = UNet((64, 128)).double()
    images, times = torch.randn(2, 4, 8, 12, dtype=torch.float64), torch.tensor([3, 700])
    made = model(images, times, images)
    assert made.logits.shape == images.shape
    torch.testing.assert_close(made.loss, (made.logits - images).square().mean())
    torch.testing.assert_close(model(images[1:], times[1:]).logits, made.logits[1:])
    assert not torch.allclose(model(images, times.flip(0)).logits, made.logits)
