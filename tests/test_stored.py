"""Whole compiled graphs on disk: another process goes on from them, with the same kernels, numbers, placements and errors."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import vendor_sdk
from tests.toys import register_toys
from tests.without import python_path
from vendor_sdk import aot, pipeline
from vendor_sdk.contract.loader import load
from vendor_sdk.ir import index, pickled
from vendor_sdk.pipeline import recording
from vendor_sdk.run.compiled import CompiledGraph
from vendor_sdk.torch_private import dynamo as torch_dynamo

Tensor = torch.Tensor
register_toys()


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of our own that all tests share: what is in it is found by its content."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, kernels: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """torch's cache empty, and a process that has compiled nothing; graphs of every size are stored."""
    monkeypatch.setenv("VENDOR_SDK_CACHE_DIR", str(kernels))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))
    monkeypatch.setattr(aot, "WORTH_STORING", 0)
    torch.compiler.reset()
    counters.clear()
    yield tmp_path
    torch.compiler.reset()


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """An entry for every graph that went through all stages: whether it was a backward graph."""
    graphs: list[bool] = []
    whole = pipeline.decide

    def decide(graph: Any, *rest: Any) -> Any:
        graphs.append(graph.backward)
        return whole(graph, *rest)

    monkeypatch.setattr(pipeline, "decide", decide)
    return graphs


class Block(nn.Module):
    """Contractions, a normalisation with its two passes, indexing, a view chain, a mask made in the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 16)
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        x = x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        mask = torch.tril(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool))
        scores = (x @ x.transpose(1, 2)).masked_fill(~mask, float("-inf")).softmax(-1)
        return torch.cat((scores @ x, x), -1).flatten(1)


def fresh(function: Any, **options: Any) -> tuple[Callable[..., Any], list[CompiledGraph]]:
    """``function`` compiled as a new process would, with the graphs it will compile."""
    torch.compiler.reset()
    graphs: list[CompiledGraph] = []
    compiled = torch.compile(function, backend="toyloops", **options)

    def call(*inputs: Any) -> Any:
        with recording(graphs.append):
            return compiled(*inputs)

    return call, graphs


def tokens(batch: int = 3, length: int = 5) -> Tensor:
    return torch.randint(11, (batch, length))


def described(graph: CompiledGraph) -> tuple[Any, ...]:
    return (
        graph.source,
        graph.plan.text(),
        graph.placements,
        [str(kernel) for kernel in graph.loops.values()],
        list(graph.refusals),
        graph.launches,
        graph.native_calls,
        graph.graph.backward,
        [node.name for node in graph.graph.graph.nodes],
        [node.meta.get("stack_trace") for node in graph.graph.graph.nodes],
    )


def test_inference_from_the_cache(decided: list[bool]) -> None:
    torch.manual_seed(0)
    model = Block().eval()
    with torch.no_grad():
        first, compiled = fresh(model)
        expected = first(tokens())
        assert decided == [False]
        torch.manual_seed(1)
        other = tokens()
        again, restored = fresh(model)
        again(other)
        assert decided == [False], "nothing but linking and the wrapper ran again"
        assert counters["aot_autograd"]["autograd_cache_hit"] == 1
        assert described(compiled[0]) == described(restored[0])
        torch.testing.assert_close(again(other), model(other), rtol=1e-5, atol=1e-5)
        assert expected.shape == again(other).shape


def test_training_from_the_cache(decided: list[bool]) -> None:
    torch.manual_seed(0)
    model = Block()
    inputs = tokens()

    def gradients(call: Callable[..., Any], **keywords: Any) -> list[Tensor]:
        model.zero_grad()
        call(inputs).square().sum().backward(**keywords)
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    expected = gradients(model)
    first, compiled = fresh(model)
    with recording(compiled.append):
        ours = gradients(first)
    assert sorted(decided) == [False, True]
    again, restored = fresh(model)
    theirs = gradients(again)
    assert sorted(decided) == [False, True]
    assert sorted(g.graph.backward for g in restored) == [False, True], "the backward graph comes with the forward one"
    for a, b, c in zip(expected, ours, theirs, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)
        assert torch.equal(b, c)
    assert not torch._functorch.config.bundled_autograd_cache, "a setting of ours must not stay"


def test_masks_that_kernels_compute_come_from_the_cache(decided: list[bool]) -> None:
    def attention(q: Tensor, slopes: Tensor) -> Tensor:
        places = torch.arange(q.shape[2])
        mask = slopes[:, None, None] * (places - places[:, None]).float()
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask[None])

    for _ in range(2):
        q, slopes = torch.randn(2, 3, 20, 8, requires_grad=True), torch.rand(3)
        run, graphs = fresh(attention)
        found = run(q, slopes)
        torch.testing.assert_close(found, attention(q, slopes), rtol=1e-5, atol=1e-5)
        (expected,) = torch.autograd.grad(attention(q, slopes).sin().sum(), q)
        torch.testing.assert_close(torch.autograd.grad(found.sin().sum(), q)[0], expected, rtol=1e-4, atol=1e-5)
        assert all("attn_mask=" in graph.source and "numbers=" in graph.source for graph in graphs)
    assert decided == [False, True], "the second time nothing but linking and the wrapper ran"


def test_a_graph_without_gradients_comes_from_the_cache_with_the_whole_one(decided: list[bool]) -> None:
    model = nn.Linear(6, 4)

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        logits = model(x)
        return logits.square().mean(), logits

    for time in range(2):
        call, _ = fresh(step)
        for both in (False, True):
            found = []
            x = torch.randn(3, 6)
            for function in (call, step):
                model.zero_grad()
                loss, logits = function(x)
                (loss + logits.sum() if both else loss).backward()
                found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
            torch.testing.assert_close(*found)
        assert decided == [False, True, True] + [True] * time, "the whole graph is compiled where it is wanted"


def test_a_graph_that_is_never_differentiated_comes_from_the_cache_too(decided: list[bool]) -> None:
    model = Block()
    for _ in range(2):
        fresh(model)[0](tokens())
    assert decided == [False, True], "compiled once, with its backward graph"


def test_settings_of_torch_hold_for_a_compilation_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def settings() -> tuple[Any, ...]:
        config, tag = torch._functorch.config, torch.compiler.config.cache_key_tag
        ours = config.bundled_autograd_cache, config.force_non_lazy_backward_lowering
        return *ours, tag, torch_dynamo._keys.short, gc.isenabled()

    before = settings()
    model = Block()
    call, _ = fresh(model)
    call(tokens()).sum().backward()
    assert settings() == before

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(pipeline, "finish", broken)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
        torch.compile(Block().double(), backend="toyloops")(tokens())
    assert settings() == before


def test_random_numbers_are_the_same_from_the_cache(decided: list[bool]) -> None:
    def noisy(x: Tensor) -> Tensor:
        return torch.dropout(x, 0.5, True) + torch.rand_like(x)

    x = torch.randn(64, 64)
    results = []
    for _ in range(2):
        call, _ = fresh(noisy)
        torch.manual_seed(3)
        results.append(call(x))
    assert len(decided) == 1
    assert torch.equal(*results)


def test_explain_says_the_same() -> None:
    model = Block().eval()
    with torch.no_grad():
        inputs = tokens()
        first, second = (str(vendor_sdk.explain(model, inputs, backend="toyloops", show=False)) for _ in range(2))
    assert first == second
    assert "native" in first


def test_options_and_backends_have_entries_of_their_own(decided: list[bool]) -> None:
    model = Block().eval()
    with torch.no_grad():
        fresh(model)[0](tokens())
        fresh(model, options={"fuse": False})[0](tokens())
        assert len(decided) == 2
        fresh(model, options={"fuse": False})[0](tokens())
        assert len(decided) == 2
        torch.compiler.reset()
        torch.compile(model, backend="toy")(tokens())
    assert len(decided) == 3


@pytest.mark.parametrize("damage", ["gone", "truncated"])
def test_a_damaged_artefact_is_made_anew(
    damage: str, caches: Path, decided: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VENDOR_SDK_CACHE_DIR", str(caches / "ours"))
    model = Block().eval()
    inputs = tokens()
    with torch.no_grad():
        expected = fresh(model)[0](inputs)
        (entry,) = (caches / "ours" / "toyloops").glob("*.graph")
        if damage == "gone":
            entry.unlink()
        else:
            entry.write_bytes(entry.read_bytes()[:-9])
        assert torch.equal(fresh(model)[0](inputs), expected)
        assert len(decided) == 2
        assert torch.equal(fresh(model)[0](inputs), expected)
        assert len(decided) == 2, "the second process wrote it again"


def test_symbolic_sizes_are_compiled_anew(decided: list[bool]) -> None:
    model = Block().eval()
    with torch.no_grad():
        for _ in range(2):
            call, _ = fresh(model, dynamic=True)
            for shape in ((3, 5), (4, 7)):
                inputs = tokens(*shape)
                torch.testing.assert_close(call(inputs), model(inputs), rtol=1e-5, atol=1e-5)


def test_tensors_that_a_graph_holds_are_no_part_of_a_key(decided: list[bool]) -> None:
    """Two constants of equal shape: the second program must not get the first one's."""

    def holder(value: float) -> Any:
        constant = torch.full((4,), value)
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        graph.output((graph.call_function(torch.add, (x, graph.get_attr("constant"))),))
        return torch.fx.GraphModule({"constant": constant}, graph)

    x = torch.zeros(4)
    backend = vendor_sdk.dynamo.toyloops  # type: ignore[attr-defined]
    for value in (1.0, 2.0):
        assert torch.equal(backend(holder(value), [x])(x)[0], torch.full((4,), value))


@pytest.mark.parametrize("variable", ["VENDOR_SDK_DEBUG", "VENDOR_SDK_FUEL"])
def test_debugging_sees_every_stage(variable: str, caches: Path, decided: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    model = Block().eval()
    monkeypatch.setenv(variable, str(caches / "dump") if variable == "VENDOR_SDK_DEBUG" else "1")
    with torch.no_grad():
        for _ in range(2):
            fresh(model)[0](tokens())
    assert len(decided) == 2


def test_small_graphs_are_compiled_without_asking_torch(monkeypatch: pytest.MonkeyPatch, decided: list[bool]) -> None:
    monkeypatch.setattr(aot, "WORTH_STORING", 100)
    with torch.no_grad():
        for _ in range(2):
            fresh(torch.nn.Linear(4, 4))[0](torch.randn(2, 4))
    assert len(decided) == 2
    assert not counters["aot_autograd"]["autograd_cache_miss"]


def test_small_graphs_that_are_differentiated_are_stored(monkeypatch: pytest.MonkeyPatch, decided: list[bool]) -> None:
    monkeypatch.setattr(aot, "WORTH_STORING", 2 * aot.DIFFERENTIATED)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    for _ in range(2):
        fresh(model)[0](torch.randn(2, 4)).sum().backward()
    assert decided == [False, True]
    with torch.no_grad():
        for _ in range(2):
            fresh(model)[0](torch.randn(2, 4))
    assert decided == [False, True, False, False]


def test_the_garbage_collector_rests_while_dynamo_traces() -> None:
    seen: list[bool] = []

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.traced()
            return x + 1

        @torch._dynamo.assume_constant_result
        def traced(self) -> int:
            seen.append(gc.isenabled())
            return 0

    torch._dynamo.reset()  # Forgets who is told of compilations; the first one tells it again.
    torch.compile(nn.Tanh(), backend="toyloops")(torch.randn(3))
    assert gc.isenabled()
    torch.compile(Model(), backend="toyloops")(torch.randn(3))
    assert seen == [False]
    assert gc.isenabled()


OTHER = """
import sys, torch, tests.test_stored as here
from torch._dynamo.utils import counters
import vendor_sdk
from vendor_sdk import aot
aot.WORTH_STORING = 0
torch.manual_seed(0)
model = here.Block()
inputs = here.tokens()
if sys.argv[1] == "load":
    vendor_sdk.load("toyloops")
    torch.compiler.load_cache_artifacts(open(sys.argv[2], "rb").read())
torch.compile(model, backend="toyloops")(inputs).square().sum().backward()
if sys.argv[1] == "save":
    open(sys.argv[2], "wb").write(torch.compiler.save_cache_artifacts()[0])
print(counters["aot_autograd"]["autograd_cache_hit"], float(model.table.weight.grad.norm()))
"""


def other_process(folder: Path, *arguments: str) -> list[str]:
    environment = {
        **os.environ,
        "VENDOR_SDK_CACHE_DIR": str(folder / "ours"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"),
        "PYTHONPATH": python_path(Path(__file__).parent.parent),
        "PYTHONHASHSEED": "7" if arguments[0] == "save" else "8",
    }
    done = subprocess.run(
        [sys.executable, "-c", OTHER, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_saved_artefacts_serve_another_machine(tmp_path: Path) -> None:
    bundle = str(tmp_path / "bundle")
    assert other_process(tmp_path / "here", "save", bundle)[0] == "0"
    first = other_process(tmp_path / "here", "again")
    second = other_process(tmp_path / "there", "load", bundle)
    assert first[0] == second[0] == "1"
    assert first[1] == second[1]


def test_expressions_hash_as_those_of_this_process() -> None:
    i, n = index.variable("i", 8), index.symbol("n", 1)
    for expression in (i * n + 3, (i + n) // 4, (i * 3 + n) % 5, index.minimum(i, n), i * n * n, index.ZERO):
        read = pickle.loads(pickle.dumps(expression))
        assert read == expression
        assert hash(read) == hash(expression)
        assert index.bounds(read) == index.bounds(expression)


def test_tensors_are_written_and_read_as_they_are_while_torch_traces() -> None:
    given = torch.tensor([0.5, -2], dtype=torch.bfloat16)
    with torch._subclasses.FakeTensorMode():
        content = pickled.dumps(given)
        read = pickled.loads(content)
    assert type(read) is torch.Tensor
    torch.testing.assert_close(read, given)


def test_what_only_this_process_knows_is_not_picklable() -> None:
    with pytest.raises(pickled.NotPicklable):
        pickled.dumps(lambda: 0)
    environment = torch.fx.experimental.symbolic_shapes.ShapeEnv()
    with pytest.raises(pickled.NotPicklable, match="symbolic"):
        pickled.dumps(environment.create_unbacked_symint())


def test_a_plugin_of_unknown_source_has_no_identity() -> None:
    assert load("toyloops").identity is not None
    assert load("toy").identity is None
