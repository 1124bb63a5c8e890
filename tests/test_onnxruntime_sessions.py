"""Sessions of the ONNX Runtime backend: memory is shared, parameters are seen when they change, errors say what is there."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from google.protobuf.message import DecodeError
from torch import nn

import vendor_sdk
from vendor_sdk import CompilerError, Kind, OptionError
from vendor_sdk.pipeline import recording

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from reference_backends.onnxruntime import plugin, refusal, stored  # noqa: E402
from reference_backends.onnxruntime.builder import Builder, Outline, value_info  # noqa: E402
from reference_backends.onnxruntime.partition import Partition  # noqa: E402
from reference_backends.onnxruntime.providers import Provider, _awake  # noqa: E402
from reference_backends.onnxruntime.session import OnnxCompiler  # noqa: E402
from reference_backends.onnxruntime.translate import traced  # noqa: E402

NAME = "onnxruntime"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    before = torch.get_num_threads()
    torch._dynamo.reset()
    yield
    torch.set_num_threads(before)


def compiled(function: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    return vendor_sdk.compile_graph(vendor_sdk.trace(function, inputs), backend=NAME)


def partition_of(graph: Any) -> Partition:
    (found,) = (node.target.run for node in graph.graph.calls() if hasattr(node.target, "run"))
    assert isinstance(found, Partition)
    return found


def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the models from which sessions are started from now on, those that ask for support aside."""
    sizes: list[int] = []
    start = Provider.start

    def counted(self: Provider, model: bytes, options: Any) -> Any:
        if not self.has("graph_optimization_level"):
            sizes.append(len(model))
        return start(self, model, options)

    monkeypatch.setattr(Provider, "start", counted)
    return sizes


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool)


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_of_every_dtype_and_layout_pass_unchanged(dtype: torch.dtype) -> None:
    values = torch.arange(24).reshape(2, 3, 4).to(dtype)
    for x in (values, values[:, ::2], values.transpose(0, 2), values.expand(5, 2, 3, 4), values[0, 0, 1], values[:, :0]):
        run = compiled(lambda x: torch.cat([x.flatten(), x.flatten()]), x)
        (out,) = run(x)
        assert torch.equal(out, torch.cat([x.flatten(), x.flatten()]))


def test_inputs_and_outputs_are_not_copied() -> None:
    x = torch.randn(64, 8)
    run = compiled(torch.sin, x)
    (calls,) = partition_of(run).sessions().made()
    (out,) = run(x)
    (binding,) = calls._idle
    (taken,), (given,) = calls.session.get_inputs(), calls.session.get_outputs()
    assert binding.bound == {taken.name: (x.data_ptr(), x.shape), given.name: out.data_ptr()}
    x.mul_(2)
    (again,) = run(x)
    torch.testing.assert_close(again, torch.sin(x))
    assert again.data_ptr() != out.data_ptr()


class _Counted:
    """A binding that lists what was bound."""

    def __init__(self, raw: Any) -> None:
        self.raw, self.names = raw, []  # type: ignore[var-annotated]

    def bind_input(self, name: str, *rest: Any) -> None:
        self.names.append(name)
        self.raw.bind_input(name, *rest)

    def bind_output(self, name: str, *rest: Any) -> None:
        self.names.append(name)
        self.raw.bind_output(name, *rest)


def test_only_what_moved_is_bound_again(monkeypatch: pytest.MonkeyPatch) -> None:
    x, other = torch.randn(2, 64, 8)
    blocks = [torch.empty(64, 8) for _ in range(2)]
    monkeypatch.setattr("reference_backends.onnxruntime.partition.warm_allocator", lambda shape, dtype: lambda: blocks[0])
    run = compiled(torch.sin, x)
    (calls,) = partition_of(run).sessions().made()
    run(x)
    (binding,) = calls._idle
    binding.run = lambda counted, options: calls.session._sess.run_with_iobinding(counted.raw, options)
    binding.raw = counted = _Counted(binding.raw)
    run(x)
    assert counted.names == []
    run(other)
    assert counted.names == [calls.session.get_inputs()[0].name]
    torch.testing.assert_close(blocks[0], torch.sin(other))
    blocks.reverse()
    run(other)
    assert counted.names[1:] == [calls.session.get_outputs()[0].name]
    torch.testing.assert_close(blocks[0], torch.sin(other))


def test_results_that_are_still_held_are_not_written_to() -> None:
    inputs = torch.randn(5, 64, 8)
    run = compiled(torch.sin, inputs[0])
    results = [run(x)[0] for x in inputs]
    assert torch.equal(torch.stack(results), torch.stack([run(x)[0] for x in inputs]))
    torch.testing.assert_close(torch.stack(results), torch.sin(inputs))


def test_results_of_known_sizes_are_not_looked_at_again() -> None:
    x = torch.randn(4, 3)
    known = compiled(lambda x: (x.exp(), x.sum(1)), x)
    assert partition_of(known).verified
    assert "checked" not in known.source
    graphs: list[Any] = []
    with recording(graphs.append):
        call = torch.compile(lambda x: x.exp(), backend=NAME, dynamic=True)
        torch.testing.assert_close(call(x), x.exp())
    assert not partition_of(graphs[0]).verified
    assert "checked" in graphs[0].source


def test_a_negated_view_is_what_it_stands_for() -> None:
    x = torch.randn(4, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    run = compiled(lambda y: y * 2, x.clone())
    torch.testing.assert_close(run(x)[0], x * 2)


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 5)
        self.register_buffer("shift", torch.randn(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.shift


def inference(model: nn.Module, x: torch.Tensor) -> tuple[Callable[..., Any], Partition]:
    graphs: list[Any] = []
    call = torch.compile(model, backend=NAME)
    with torch.no_grad(), recording(graphs.append):
        call(x)
    return call, partition_of(graphs[0])


def test_parameters_are_initializers_in_their_own_memory_until_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = _Scaled(), torch.randn(3, 6)
    sizes = started(monkeypatch)
    call, partition = inference(model, x)
    (session,) = partition.made()
    assert len(session.get_inputs()) == 1  # x alone
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(call(x), model(x))
        assert len(sizes) == 1
        model.linear.weight.mul_(2)
        torch.testing.assert_close(call(x), model(x))
        model.shift.add_(1)
        torch.testing.assert_close(call(x), model(x))
        model.linear.bias.data = torch.randn(5)
        torch.testing.assert_close(call(x), model(x))
    (session,) = partition.made()
    assert len(session.get_inputs()) == 4
    assert len(sizes) == 2  # one with the parameters inside, one with them outside


def test_a_parameter_that_no_node_reads_is_no_initializer() -> None:
    class Joined(nn.Module):
        """Joins rows with a parameter without elements, which torch passes over whatever its dimensions."""

        def __init__(self) -> None:
            super().__init__()
            self.nothing, self.weight = nn.Parameter(torch.empty(0)), nn.Parameter(torch.randn(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x @ self.weight, self.nothing], 0) * 2

    module, x = Joined(), torch.randn(3, 4)
    compiled = torch.compile(module, backend="onnxruntime")
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), module(x))
    compiled(x).sum().backward()
    torch.testing.assert_close(module.weight.grad, (x.T @ torch.full((3, 4), 2.0)))


@pytest.mark.parametrize("keep", [True, False])
def test_writes_past_the_version_counter(keep: bool) -> None:
    """Samples of the content tell of a whole tensor; of a few elements the user does, or keeps nothing."""
    model, x = nn.Linear(300, 40), torch.randn(3, 300)
    call: Any = torch.compile(model, backend=NAME, options={"keep": keep})
    with torch.no_grad():
        torch.testing.assert_close(call(x), model(x))
        model.weight.data.mul_(2)
        torch.testing.assert_close(call(x), model(x))
        model.bias.detach().numpy()[:] = 1
        torch.testing.assert_close(call(x), model(x))
        model.weight.data[0, 0] = 5.0
        if keep:
            vendor_sdk.release_memory()
        torch.testing.assert_close(call(x), model(x))


def test_parameters_that_stay_become_initializers_again() -> None:
    model, x = _Scaled(), torch.randn(3, 6)
    call, partition = inference(model, x)
    with torch.no_grad():
        model.linear.weight.mul_(2)
        call(x)
        partition.sessions()._spent = 1e9  # as long as many sessions take to make
        torch.testing.assert_close(call(x), model(x))
    (session,) = partition.made()
    assert len(session.get_inputs()) == 1


def test_training_sees_every_step_of_the_optimizer_in_two_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    ours, theirs, x = _Scaled(), _Scaled(), torch.randn(3, 6)
    theirs.load_state_dict(ours.state_dict())
    sizes = started(monkeypatch)
    call = torch.compile(ours, backend=NAME)
    for model, forward in ((ours, call), (theirs, theirs)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            forward(x).square().sum().backward()
            optimizer.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
    assert len(sizes) == 2  # forward and backward


def test_parameters_made_in_inference_mode_are_inputs() -> None:
    with torch.inference_mode():
        model = _Scaled()
        x = torch.randn(3, 6)
        call = torch.compile(model, backend=NAME)
        torch.testing.assert_close(call(x), model(x))
        model.linear.weight.mul_(2)
        torch.testing.assert_close(call(x), model(x))


def test_sessions_have_as_many_threads_as_torch() -> None:
    run = compiled(torch.sin, torch.ones(3))
    partition = partition_of(run)
    for threads in (2, 1, 2):
        torch.set_num_threads(threads)
        run(torch.ones(3))
        (calls,) = partition.sessions().made()
        assert calls.session.get_session_options().intra_op_num_threads == threads
    assert len(partition.made()) <= 3


def test_calls_from_many_threads_do_not_meet() -> None:
    run = compiled(lambda x, y: torch.softmax(x @ y, -1), torch.ones(40, 40), torch.ones(40, 40))
    wrong: list[Any] = []

    def work(seed: int) -> None:
        torch.set_num_threads(1)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(30):
            x, y = torch.randn(2, 40, 40, generator=generator)
            (out,) = run(x, y)
            if not torch.allclose(out, torch.softmax(x @ y, -1), atol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_dynamic_outputs_come_without_a_copy_from_one_session() -> None:
    graphs: list[Any] = []
    call = torch.compile(lambda x: (x > 0, x.half() * 2, x.sum()), backend=NAME, dynamic=True)
    with recording(graphs.append):
        for rows in (3, 7, 2):
            x = torch.randn(rows, 4)
            flags, halves, total = call(x)
            assert torch.equal(flags, x > 0)
            assert torch.equal(halves, x.half() * 2)
            torch.testing.assert_close(total, x.sum())
    (graph,) = graphs
    assert len(partition_of(graph).made()) == 1


# On disk


def _deep() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(16)])


def test_optimized_sessions_come_back_from_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VENDOR_SDK_CACHE_DIR", str(tmp_path))
    model, x = _deep(), torch.randn(2, 4)
    levels: list[Any] = []
    start = Provider.start

    def noted(self: Provider, text: bytes, options: Any) -> Any:
        if not self.has("graph_optimization_level"):
            levels.append(options.graph_optimization_level)
        return start(self, text, options)

    monkeypatch.setattr(Provider, "start", noted)
    fresh, known = ort.GraphOptimizationLevel.ORT_ENABLE_ALL, ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    _, partition = inference(model, x)
    maker = partition._make
    static = {index: list(model.parameters())[n].detach() for n, index in enumerate(partition.signature.static)}
    assert levels == [fresh]
    (entry,) = tmp_path.glob("onnxruntime/*.onnx")
    assert entry.stat().st_size < 20_000

    def again() -> None:
        session = maker(static)
        name = session.get_inputs()[0].name
        (out,) = session.run(None, {name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(out), model(x).detach())

    again()
    assert levels == [fresh, known]
    entry.write_bytes(entry.read_bytes()[:-3] + b"bad")
    again()
    assert levels == [fresh, known, fresh]
    again()
    assert levels[-1] == known
    with torch.no_grad():
        next(iter(static.values())).mul_(2)  # other values are another entry
    again()
    assert levels[-1] == fresh


def _no_room(*_: Any, **__: Any) -> Any:
    raise OSError(28, "No space left on device")


def _unreadable(*_: Any, **__: Any) -> Any:
    raise DecodeError("Error parsing message")


@pytest.mark.parametrize(
    ("where", "fails"),
    [
        ("tempfile.TemporaryDirectory", _no_room),
        ("onnx.load", _unreadable),  # of a file that was written in part
    ],
)
def test_a_session_does_without_what_cannot_be_written(
    where: str, fails: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VENDOR_SDK_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(where, fails)
    inference(_deep(), torch.randn(2, 4))
    assert not list(tmp_path.glob("onnxruntime/*.onnx"))


def test_an_optimized_model_that_no_session_can_write_is_done_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VENDOR_SDK_CACHE_DIR", str(tmp_path))
    start = Provider.start

    def full(self: Provider, model: bytes, options: Any) -> Any:
        if options.optimized_model_filepath:
            raise CompilerError("no room")
        return start(self, model, options)

    monkeypatch.setattr(Provider, "start", full)
    inference(_deep(), torch.randn(2, 4))


def test_an_entry_that_is_no_model_is_made_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VENDOR_SDK_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(stored._ARTIFACTS, "read", lambda key, suffix: b"no model")
    inference(_deep(), torch.randn(2, 4))


def test_a_session_without_entry_is_made_anew_each_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VENDOR_SDK_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(stored, "MOST_BYTES", 8)
    inference(_deep(), torch.randn(2, 4))
    assert not list(tmp_path.glob("onnxruntime/*.onnx"))


# Options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"provider": "CpuExecutionProvider"}, "did you mean 'CPUExecutionProvider'"),
        ({"provider": "NoneProvider"}, "CPUExecutionProvider"),
        ({"provider": "Mine", "provider_library": "/nowhere/libmine.so"}, "no provider library /nowhere/libmine.so"),
        ({"provider": "CPUExecutionProvider", "provider_library": "x"}, "no provider library x"),
        ({"session_options": {"intra_op_num_thread": 1}}, "did you mean 'intra_op_num_threads'"),
        ({"session_options": {"intra_op_num_threads": "all"}}, "must be of type int"),
        ({"session_options": {"graph_optimization_level": "ORT_ENABLE_SOME"}}, "one of ORT_DISABLE_ALL, ORT_ENABLE_BASIC"),
        ({"session_options": {"optimized_model_filepath": "/nowhere/m.onnx"}}, "there is no directory /nowhere"),
        ({"session_options": {"profile_file_prefix": "/nowhere/profile"}}, "there is no directory /nowhere"),
        ({"session_options": {3: 4}}, "session_options has no 3"),
        ({"provider_options": {"use_arena": "1"}}, "CPUExecutionProvider has no options: 'use_arena'"),
        ({"provider": 3}, "of type int"),
    ],
)
def test_wrong_options_say_what_there_is(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        vendor_sdk.compile_graph(vendor_sdk.trace(torch.neg, [torch.ones(3)]), backend=NAME, options=options)


def test_a_library_that_is_no_provider_is_refused(tmp_path: Path) -> None:
    library = tmp_path / "libnothing.so"
    library.write_bytes(b"\x7fELF no library")
    with pytest.raises(OptionError, match="no library of an execution provider"):
        Provider.of({"provider": "Nothing", "provider_library": str(library), "provider_options": {}, "session_options": {}})


def test_options_of_the_session_reach_it() -> None:
    options = {"session_options": {"intra_op_num_threads": 3, "session.intra_op.allow_spinning": "0"}}
    graph = vendor_sdk.trace(torch.neg, [torch.ones(3)])
    run = vendor_sdk.compile_graph(graph, backend=NAME, options=options)
    (session,) = partition_of(run).made()
    assert session.get_session_options().intra_op_num_threads == 3
    assert session.get_session_options().get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert run(torch.ones(3))[0].tolist() == [-1, -1, -1]


def test_threads_of_a_session_stay_awake_for_a_moment_only() -> None:
    assert _awake("1.26.0") == _awake("1.20.1") == {"session.force_spinning_stop": "1"}
    ((key, value),) = _awake("1.31.1").items()
    assert (key, int(value) <= 1000) == ("session.intra_op.spin_duration_us", True)
    for key, value in _awake(ort.__version__).items():
        assert Provider().session_options().get_session_config_entry(key) == value
        user = Provider(session=((key, "0"),)).session_options()
        assert user.get_session_config_entry(key) == "0"


def test_what_the_provider_refuses_is_an_error_that_names_it() -> None:
    provider = Provider()
    with pytest.raises(CompilerError, match="CPUExecutionProvider refused"):
        provider.start(b"no model", provider.session_options())


# Providers

AZURE = "AzureExecutionProvider"
"""A provider without a kernel, which many builds have."""
needs_azure = pytest.mark.skipif(AZURE not in ort.get_available_providers(), reason=f"this build has no {AZURE}")


@needs_azure
def test_what_a_provider_has_no_kernel_for_is_declined_in_its_name() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU())
    explanation = vendor_sdk.explain(model, torch.randn(2, 3), backend=NAME, options={"provider": AZURE}, show=False)
    forward = explanation.graphs[0].placements
    assert {each.placement.kind for each in forward} == {Kind.HOST}
    assert any(f"{AZURE} has no kernel for Gemm (of float)" in each.placement.reason for each in forward)
    explanation = vendor_sdk.explain(model, torch.randn(2, 3), backend=NAME, show=False)
    assert not any(each.placement.reason for each in explanation.placements())


@needs_azure
def test_nodes_that_a_provider_leaves_to_the_cpu_have_a_remark() -> None:
    graph = vendor_sdk.trace(lambda x: torch.sin(x), [torch.ones(3)])
    compiler = OnnxCompiler(Provider(AZURE))
    executable = compiler.compile(graph)
    (node,) = graph.calls()
    assert compiler.remarks(executable) == {node.name: f"{AZURE} left it, or a part of it, to CPUExecutionProvider"}


def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The providers that are asked what they take, from now on."""
    names: list[str] = []
    start = Provider.start

    def noted(self: Provider, model: bytes, options: Any) -> Any:
        if self.has("graph_optimization_level"):
            names.append(self.name)
        return start(self, model, options)

    monkeypatch.setattr(Provider, "start", noted)
    return names


@needs_azure
def test_every_provider_is_asked_once_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal, "_refusals", {})
    names = asked(monkeypatch)
    graph = vendor_sdk.trace(torch.sin, [torch.ones(3, 7)])
    for provider in ("CPUExecutionProvider", AZURE) * 2:
        vendor_sdk.compile_graph(graph, backend=NAME, options={"provider": provider})
    assert names == ["CPUExecutionProvider", AZURE, AZURE]  # the second time for what it leaves to others


def test_attributes_of_a_session_are_not_those_of_a_question(tmp_path: Path) -> None:
    path = tmp_path / "optimized.onnx"
    options = {"session_options": {"optimized_model_filepath": str(path), "session.intra_op.allow_spinning": "0"}}
    defaults = {name: option.default for name, option in plugin.backend().options.items()}
    asks = Provider.of({**defaults, **options}).asked()
    assert not asks.has("optimized_model_filepath")
    assert asks.has("session.intra_op.allow_spinning")


def test_bfloat16_is_asked_of_the_provider() -> None:
    x = torch.randn(5, 4, dtype=torch.bfloat16)
    run = compiled(lambda x: (x @ x.t(), x + 1), x)
    where = {each.prim: each.placement for each in run.placements}
    assert where["linear"].kind is Kind.NATIVE
    assert where["add"].kind is Kind.HOST
    assert "Could not find an implementation for Add" in where["add"].reason
    product, more = run(x)
    torch.testing.assert_close(product, x @ x.t())
    torch.testing.assert_close(more, x + 1)


@pytest.fixture
def library() -> str:
    """A plugin library: that of the package ``nxrt-ep-cpu``, where it is installed."""
    path: str = pytest.importorskip("nxrt_ep_cpu").get_library_path()
    return path


def test_a_provider_of_a_library_runs_what_it_has_kernels_for(library: str) -> None:
    x = torch.randn(4, 4, dtype=torch.bfloat16)
    graph = vendor_sdk.trace(lambda x: x + x * x, [x])
    with pytest.raises(OptionError, match=r"no provider 'cpu_eq' in .*; did you mean 'cpu_ep'") as error:
        vendor_sdk.compile_graph(graph, backend=NAME, options={"provider": "cpu_eq", "provider_library": library})
    assert "the library offers cpu_ep" in str(error.value)
    options = {"provider": "cpu_ep", "provider_library": library}
    for _ in range(2):
        run = vendor_sdk.compile_graph(graph, backend=NAME, options=options)
        (session,) = partition_of(run).made()
        assert session.get_providers()[0] == "cpu_ep"
        torch.testing.assert_close(run(x)[0], x + x * x)
    with pytest.raises(OptionError, match="no provider 'CPUExecutionProvider' in"):
        vendor_sdk.compile_graph(graph, backend=NAME, options={"provider_library": library})


def test_a_library_that_the_process_loaded_itself_is_not_loaded_again(library: str) -> None:
    """In a process of its own, since no library leaves one."""
    script = f"""
import torch, vendor_sdk, onnxruntime
onnxruntime.register_execution_provider_library("mine", {library!r})
graph = vendor_sdk.trace(torch.neg, [torch.ones(2)])
options = {{"provider": "cpu_ep", "provider_library": {library!r}}}
print(vendor_sdk.compile_graph(graph, backend="onnxruntime", options=options)(torch.ones(2))[0].tolist())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[-1.0, -1.0]"


def test_outputs_that_reshape_a_product_are_not_copied() -> None:
    """ONNX Runtime copies what a Reshape gives out; the product goes out as it is."""
    model, x = nn.Linear(6, 5), torch.randn(2, 3, 6)
    call, partition = inference(model, x)
    with torch.no_grad():
        torch.testing.assert_close(call(x), model(x))
    (session,) = partition.made()
    assert [tuple(each.shape) for each in session.get_outputs()] == [(6, 5)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_constants_of_every_dtype_are_taken_in(dtype: torch.dtype) -> None:
    table = torch.tensor([[0, 1, 2], [3, 0, 1]]).to(dtype)
    model = nn.Module()
    model.register_buffer("table", table.t())  # not contiguous
    model.register_buffer("nothing", table.t()[:0])
    model.forward = lambda rows: torch.cat([model.table[rows], model.nothing])  # type: ignore[method-assign]
    rows = torch.tensor([2, 0])
    call, partition = inference(model, rows)
    with torch.no_grad():
        assert torch.equal(call(rows), table.t()[rows])
    (session,) = partition.made()
    assert len(session.get_inputs()) == 1


def test_a_product_that_becomes_a_number_has_no_dimension() -> None:
    x, y = torch.randn(2, 5)
    (found,) = compiled(lambda x, y: (x.reshape(1, 1, 5) @ y.reshape(1, 5, 1)).reshape([]), x, y)(x, y)
    torch.testing.assert_close(found, x @ y)


class _Layer(nn.Module):
    """A layer of a transformer, with a gated step as in a recurrent cell."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(16), nn.LayerNorm(16)
        self.heads, self.joined = nn.Linear(16, 48), nn.Linear(16, 16)
        self.wide, self.narrow = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [each.unflatten(-1, (2, 8)).transpose(1, 2) for each in self.heads(self.before(x)).chunk(3, -1)]
        x = x + self.joined(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))
        x = x + self.narrow(F.gelu(self.wide(self.after(x))))
        return torch.sigmoid(x) * torch.tanh(x)


def test_a_layer_is_as_few_nodes_as_onnx_has_words_for() -> None:
    torch.manual_seed(0)
    model, x = _Layer().eval(), torch.randn(3, 5, 16)
    call, partition = inference(model, x)
    torch.testing.assert_close(call(x), model(x))
    kinds = Counter(node.op_type for node in partition._make.model.graph.node)  # type: ignore[attr-defined]
    views = {kind: kinds.pop(kind) for kind in ("Reshape", "Transpose", "Split") if kind in kinds}
    assert kinds == {
        "LayerNormalization": 2,
        "Gemm": 4,
        "Attention": 1,
        "Gelu": 1,
        "Add": 2,  # residuals
        "Tanh": 1,
        "Min": 1,
        "Exp": 1,
        "Softsign": 1,  # of exp(min(x, 80)): the sigmoid
        "Mul": 1,
    }
    assert "Transpose" not in views  # Attention takes the heads as they come
    assert views["Split"] == 1


def test_values_that_only_a_branch_reads_are_kept_and_others_are_not() -> None:
    builder = Builder()
    x, flag = builder.operand(torch.float32, [2]), builder.operand(torch.bool, [])
    negative = builder.op("Neg", x)
    builder.op("Abs", x)
    make = onnx.helper.make_node
    branches = {
        name: onnx.helper.make_graph([make(kind, [negative.name], [name])], name, [], [value_info(name, torch.float32, [2])])
        for name, kind in (("then_branch", "Exp"), ("else_branch", "Neg"))
    }
    result = builder.op("If", flag, dtype=torch.float32, **branches)
    model = builder.model([(result, Outline(torch.float32, (2,)))])
    assert [node.op_type for node in model.graph.node] == ["Neg", "If"]
    session = ort.InferenceSession(model.SerializeToString())
    values = torch.tensor([1.0, -2.0])
    for condition, want in ((True, torch.exp(-values)), (False, values)):
        (out,) = session.run(None, {x.name: values.numpy(), flag.name: torch.tensor(condition).numpy()})
        torch.testing.assert_close(torch.from_numpy(out), want)


def test_a_rule_written_in_torch_is_traced_once_for_what_is_the_same() -> None:
    calls: list[object] = []

    def shifted(x: torch.Tensor, by: object) -> torch.Tensor:
        calls.append(by)
        return x + by  # type: ignore[operator]

    for _ in range(2):  # equal numbers are not the same: their types decide that of the result, and so may the sign of a zero
        for dtype, shape in ((torch.float32, (2,)), (torch.float32, (3,)), (torch.int32, (2,))):
            for by in (1, 1.0, True, 0.0, -0.0):
                builder = Builder()
                (found,) = traced(builder, shifted, builder.operand(dtype, shape), by)
                assert (found.dtype, tuple(found.shape)) == (torch.result_type(torch.empty(shape, dtype=dtype), by), shape)
    assert [repr(by) for by in calls] == ["1", "1.0", "True", "0.0", "-0.0"] * 3
