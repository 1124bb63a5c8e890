"""``vendor_sdk.export``: the file computes what the model does, in plain ONNX Runtime, and bad input leaves nothing behind."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from rich.progress import Progress
from torch import nn
from torch.export import Dim

import vendor_sdk
from vendor_sdk import CaptureError, OptionError, UnsupportedPrimError, model_file

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
ml_dtypes = pytest.importorskip("ml_dtypes")

from onnx.reference import ReferenceEvaluator  # noqa: E402

from reference_backends.onnxruntime import saving  # noqa: E402
from reference_backends.onnxruntime.providers import Provider  # noqa: E402


class _Tied(nn.Module):
    """A classifier of tokens whose embedding is its last layer's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 11)
        self.head.weight = self.embed.weight
        self.register_buffer("position", torch.randn(16, 8))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.block(self.embed(ids) + self.position[: ids.shape[1]])
        return self.head(x) * mask.unsqueeze(-1), x.mean(1).reshape(-1)


@pytest.fixture
def tied() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return _Tied().eval(), (torch.randint(0, 11, (3, 5)), torch.rand(3, 5))


LENGTH = Dim("length", max=16)
DYNAMIC = {"ids": {0: "batch", 1: LENGTH}, "mask": {0: "batch", 1: LENGTH}}


def check(path: Path, model: Callable[..., Any], *inputs: torch.Tensor) -> None:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    found = session.run(None, {name: value.numpy() for name, value in zip(names, inputs, strict=True)})
    expected = model(*inputs)
    for got, want in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(torch.from_numpy(got), want.detach(), rtol=1e-4, atol=1e-5)


def test_one_file_serves_all_sizes_in_its_range(tied: Any, tmp_path: Path) -> None:
    model, inputs = tied
    path = vendor_sdk.export(model, inputs, tmp_path / "model.onnx", dynamic=DYNAMIC)
    assert [each.name for each in tmp_path.iterdir()] == ["model.onnx"]
    proto = onnx.load(str(path))
    onnx.checker.check_model(proto, full_check=True)
    shapes = {each.name: [d.dim_param or d.dim_value for d in each.type.tensor_type.shape.dim] for each in proto.graph.input}
    assert shapes == {"ids": ["batch", "length"], "mask": ["batch", "length"]}
    assert [each.name for each in proto.graph.output] == ["output_0", "output_1"]
    about = {each.key: each.value for each in proto.metadata_props}
    assert about["model"] == "_Tied"
    assert about["size length"] == "0 to 16"
    assert about["torch"] == torch.__version__
    weights = [each.name for each in proto.graph.initializer]
    assert weights.count("embed.weight") == 1
    assert "head.weight" not in weights  # one tensor, one initializer
    for rows, length in ((3, 5), (2, 16), (7, 9)):
        check(path, model, torch.randint(0, 11, (rows, length)), torch.rand(rows, length))
    session = ort.InferenceSession(str(path), _silent())
    for ids, mask, words in (
        ((2, 17), (2, 17), r"length \(dimension 1 of ids\) must be 0 to 16"),
        ((2, 5), (2, 6), "dimension 1 of mask must equal dimension 1 of ids"),
    ):
        with pytest.raises(Exception, match=words):
            session.run(None, {"ids": torch.zeros(ids, dtype=torch.int64).numpy(), "mask": torch.zeros(mask).numpy()})


def _silent() -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return options


def test_parameters_beyond_a_message_go_beside_the_model(tied: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "MOST_INLINE", 100)
    model, inputs = tied
    path = vendor_sdk.export(model, inputs, tmp_path / "model.onnx")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
    assert path.stat().st_size < 60_000
    check(path, model, *inputs)


def test_keyword_inputs_have_their_names(tied: Any, tmp_path: Path) -> None:
    model, (ids, mask) = tied
    path = vendor_sdk.export(model, {"mask": mask, "ids": ids}, tmp_path / "model.onnx", backend="onnxruntime")
    session = ort.InferenceSession(str(path))
    assert {each.name for each in session.get_inputs()} == {"ids", "mask"}


def test_functions_and_sizes_computed_from_sizes(tmp_path: Path) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = x.shape[0]
        return x.reshape(rows // 2, -1)[:1] * rows, torch.arange(rows * 2 + 1), x.new_ones(max(rows - 3, 1), min(rows, 5)), x

    x = torch.randn(6, 4)
    path = vendor_sdk.export(f, (x,), tmp_path / "f.onnx", dynamic=({0: 2 * Dim("half", min=2, max=9)},))
    session = ort.InferenceSession(str(path))
    (name,) = (each.name for each in session.get_inputs())
    for rows in (6, 4, 18):
        x = torch.randn(rows, 4)
        for got, want in zip(session.run(None, {name: x.numpy()}), f(x), strict=True):
            torch.testing.assert_close(torch.from_numpy(got), want)


class _Masked(nn.Module):
    """A mask made of numbers, as models of texts take it: torch.export leaves an assertion about the dtype where it casts."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(~mask.to(torch.bool), -1.0)


def test_what_torch_asserts_of_dtypes_is_no_part_of_the_file(tmp_path: Path) -> None:
    inputs = torch.randn(2, 3), torch.tensor([[1, 0, 1], [0, 1, 1]])
    path = vendor_sdk.export(_Masked(), inputs, tmp_path / "model.onnx")
    check(path, _Masked(), *inputs)


def test_dtypes_of_parameters(tmp_path: Path) -> None:
    class Tables(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for dtype in (torch.float16, torch.float64, torch.int32, torch.bool, torch.uint8):
                self.register_buffer(str(dtype).removeprefix("torch."), torch.tensor([0, 1, 2, 3]).to(dtype))
            self.register_buffer("nothing", torch.empty(0, 4))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            every = (x * self.float16, x * self.float64, x + self.int32, x.where(self.bool, 0.0), x - self.uint8)
            return (*every, torch.cat([x.unsqueeze(0), self.nothing]))

    path = vendor_sdk.export(Tables(), (torch.randn(4),), tmp_path / "tables.onnx")
    check(path, Tables(), torch.randn(4))


class _Halves(nn.Module):
    """In bfloat16, with operators for which the CPU's provider has no bfloat16 kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4, dtype=torch.bfloat16)
        self.norm = nn.LayerNorm(4, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(self.linear(x).relu() + x)
        return y


def test_a_file_may_hold_what_no_provider_here_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unasked(self: Any, *_: Any) -> None:
        raise AssertionError("a provider was asked")

    monkeypatch.setattr(Provider, "start", unasked)
    model, x = _Halves().eval(), torch.randn(3, 4, dtype=torch.bfloat16)
    path = vendor_sdk.export(model, (x,), tmp_path / "model.onnx")
    onnx.checker.check_model(str(path), full_check=True)
    proto = onnx.load(str(path))
    (given,) = proto.graph.input
    assert given.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16
    (result,) = ReferenceEvaluator(proto).run(None, {given.name: x.float().numpy().astype(ml_dtypes.bfloat16)})
    found = torch.from_numpy(np.asarray(result).astype(np.float32))
    torch.testing.assert_close(found, model(x).float().detach(), rtol=0.02, atol=0.02)


def test_what_the_format_has_no_type_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedPrimError, match="random numbers, inside of a branch or loop or in a file"):
        vendor_sdk.export(lambda x: x + torch.rand(3), X, tmp_path / "model.onnx")


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("large", [False, True])
def test_large_exports_show_progress_on_a_terminal(
    tied: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, large: bool, beside: bool
) -> None:
    model, inputs = tied
    total = sum(value.nbytes for value in {*model.parameters(), *model.buffers()})
    monkeypatch.setattr(model_file, "LARGE", total if large else total + 1)
    monkeypatch.setattr(saving, "MOST_INLINE", 100 if beside else total)
    monkeypatch.setattr(model_file, "Console", functools.partial(Console, force_terminal=True, width=100))
    shown: list[tuple[bool, float, float | None]] = []
    advance = Progress.advance

    def noted(self: Progress, task: Any, count: float = 1) -> None:
        advance(self, task, count)
        (only,) = self.tasks
        shown.append((not self.disable, only.completed, only.total))

    monkeypatch.setattr(Progress, "advance", noted)
    vendor_sdk.export(model, inputs, tmp_path / "model.onnx")
    done = [completed for _, completed, _ in shown]
    assert {(on, whole) for on, _, whole in shown} == {(large, float(done[-1]))}
    assert len(done) > 5
    assert done == sorted(done)
    assert done[-1] == total


def test_exports_are_silent_where_there_is_no_terminal(
    tied: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(model_file, "LARGE", 0)
    model, inputs = tied
    vendor_sdk.export(model, inputs, tmp_path / "model.onnx")
    assert "writing" not in capfd.readouterr().err


class _Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.calls


@torch.library.custom_op("vendor_sdk_tests::unknown_to_all", mutates_args=())
def _unknown(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@_unknown.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


X = (torch.randn(3),)


@pytest.mark.parametrize(
    ("model", "inputs", "name", "kind", "words"),
    [
        (torch.sin, X, "nowhere/model.onnx", OptionError, "no directory"),
        (torch.sin, X, ".", OptionError, "it is a directory"),
        (torch.sin, X, "model.bin", OptionError, r"a backend writes: \.onnx"),
        (_Counted(), X, "model.onnx", CaptureError, "writes to calls"),
        (lambda x: (x, x.shape[0]), X, "model.onnx", CaptureError, "output 1 of the model is int"),
        (lambda x: torch.ops.vendor_sdk_tests.unknown_to_all(x) + 1, X, "model.onnx", UnsupportedPrimError, "unknown_to_all"),
        (lambda x: x.nonexistent(), X, "model.onnx", CaptureError, "nonexistent"),
    ],
)
def test_bad_input_is_an_error_and_leaves_nothing(
    model: Any, inputs: Any, name: str, kind: type[Exception], words: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=words):
        vendor_sdk.export(model, inputs, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_sizes_that_contradict_the_inputs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="cannot be exported"):
        vendor_sdk.export(torch.sin, X, tmp_path / "model.onnx", dynamic=({0: Dim("rows", max=2)},))
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_finished_leaves_the_old_one(tied: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    path.write_text("old")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OptionError, match="No space left"):
        vendor_sdk.export(torch.sin, X, path)
    assert [each.name for each in tmp_path.iterdir()] == ["model.onnx"]
    assert path.read_text() == "old"


class _Counting(nn.Module):
    """Torch's kernels write to the running statistics by operators whose schemas do not say so."""

    def __init__(self, *, track: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4, track_running_stats=track)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(x)
        return y


def test_batch_norms_are_whole_in_inference_and_refused_where_they_count(tmp_path: Path) -> None:
    x = torch.randn(6, 4)
    path = vendor_sdk.export(_Counting(track=True).eval(), (x,), tmp_path / "model.onnx")
    assert [node.op_type for node in onnx.load(str(path)).graph.node].count("BatchNormalization") == 1
    check(path, _Counting(track=True).eval(), x)
    check(vendor_sdk.export(_Counting(track=False), (x,), tmp_path / "own.onnx"), _Counting(track=False), x)
    with pytest.raises(CaptureError, match=r"writes to norm\.running_mean, norm\.running_var"):
        vendor_sdk.export(_Counting(track=True).train(), (x,), tmp_path / "not.onnx")


def test_what_writes_to_its_own_values_is_made_functional(tmp_path: Path) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        y[:, 1:].mul_(2).relu_()
        return y.masked_fill_(y > 3, 0.0)

    x = torch.randn(6, 4)
    check(vendor_sdk.export(function, (x,), tmp_path / "model.onnx"), function, x)


class _Layers(nn.Module):
    """Recurrent layers between two others, with or without a state to begin with."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.layers = kind(5, 6, **options)

    def forward(self, x: torch.Tensor, *state: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = state if len(state) > 1 else state[0] if state else None
        y, last = self.layers(x.tanh(), given)
        return y * 2, *(last if isinstance(last, tuple) else (last,))


RECURRENT = [nn.LSTM, nn.GRU, nn.RNN]
VARIANTS: list[dict[str, Any]] = [
    {},
    {"batch_first": True},
    {"num_layers": 2, "dropout": 0.5},
    {"bidirectional": True, "bias": False},
    {"bidirectional": True, "num_layers": 2, "batch_first": True},
]


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")  # torch.export about nn.RNNBase itself
@pytest.mark.parametrize("options", VARIANTS, ids=lambda options: "-".join(options) or "plain")
@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers(kind: type[nn.RNNBase], options: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = _Layers(kind, **options).eval()
    x = torch.randn(4, 3, 5)
    path = vendor_sdk.export(model, (x,), tmp_path / "model.onnx")
    exact = model.double()(x.double())
    (given,) = ort.InferenceSession(str(path)).get_inputs()
    found = ort.InferenceSession(str(path)).run(None, {given.name: x.numpy()})
    for got, want in zip(found, exact, strict=True):
        torch.testing.assert_close(torch.from_numpy(got).double(), want.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")
@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers_of_any_batch_from_a_given_state(kind: type[nn.RNNBase], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = _Layers(kind, bidirectional=True, batch_first=True).eval()

    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        states = 2 if kind is nn.LSTM else 1
        return torch.randn(batch, 4, 5), *(torch.randn(2, batch, 6) for _ in range(states))

    traced = inputs(3)
    dynamic = ({0: "batch"}, tuple({1: "batch"} for _ in traced[1:]))
    path = vendor_sdk.export(model, traced, tmp_path / "model.onnx", dynamic=dynamic)
    for batch in (3, 1, 7):
        check(path, model, *inputs(batch))
