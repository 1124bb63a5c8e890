"""``vendor_sdk.export`` itself: what a graph compiler is asked to write, and that bad input leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import vendor_sdk
from vendor_sdk import ALL, OPSET, Backend, CaptureError, GraphCompiler, ModelFile, OptionError, PrimGraph, hookimpl


class Writer(GraphCompiler):
    """Interprets graphs; its files say what they were asked to hold, and it remembers the graphs."""

    prims = frozenset(OPSET)
    suffixes = frozenset((".toy",))

    def __init__(self) -> None:
        self.written: list[tuple[PrimGraph, ModelFile]] = []
        self.fails = False

    def compile(self, graph: PrimGraph) -> Callable[[Sequence[Any]], Sequence[Any]]:
        return lambda values: graph.interpret(*values)

    def save(self, graph: PrimGraph, file: ModelFile) -> None:
        if self.fails:
            raise OSError(28, "No space left on device")
        self.written.append((graph, file))
        file.path.write_text(f"{file.names} -> {file.outputs}")


class Plugin:
    def __init__(self) -> None:
        self.compiler = Writer()

    @hookimpl
    def backend(self) -> Backend:
        return Backend(name="toywriter", version="1", dtypes=frozenset(ALL))

    @hookimpl
    def graph_compiler(self) -> GraphCompiler:
        return self.compiler


@pytest.fixture
def writer(register: Callable[..., str]) -> Writer:
    plugin = Plugin()
    register(plugin)
    return plugin.compiler


class Tied(nn.Module):
    """An embedding is its last layer's weight, and keyword arguments may come in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids)) * mask.unsqueeze(-1)


IDS, MASK = torch.randint(0, 11, (3, 5)), torch.rand(3, 5)


def test_a_file_holds_parameters_once_and_sizes_by_name(writer: Writer, tmp_path: Path) -> None:
    model = Tied()
    length = Dim("length", max=16)
    dynamic = {"ids": {0: "batch", 1: length}, "mask": {0: "batch", 1: length}}
    path = vendor_sdk.export(model, {"mask": MASK, "ids": IDS}, tmp_path / "model.toy", dynamic=dynamic, backend="toywriter")
    ((graph, file),) = writer.written
    assert path == file.path
    inputs = [name for i, name in enumerate(file.names) if i not in file.values]
    assert sorted(inputs) == ["ids", "mask"]
    assert len({value.data_ptr() for value in file.values.values()}) == 2, "a weight that two share, and a bias"
    assert sorted(file.sizes.values()) == [("batch", 0, None), ("length", 0, 16)]
    assert (file.about["model"], file.about["torch"]) == ("Tied", torch.__version__)
    given = {"ids": IDS, "mask": MASK}
    values = [file.values[i] if i in file.values else given[name] for i, name in enumerate(file.names)]
    torch.testing.assert_close(graph.interpret(*values)[0], model(IDS, MASK).detach())


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.calls


def _asserting(x: torch.Tensor) -> torch.Tensor:
    raise AssertionError


@pytest.mark.parametrize(
    ("model", "name", "kind", "words"),
    [
        (torch.sin, "nowhere/model.toy", OptionError, "no directory"),
        (torch.sin, ".", OptionError, "it is a directory"),
        (torch.sin, "model.bin", OptionError, r"a backend writes: \.toy"),
        (Counted(), "model.toy", CaptureError, "writes to calls"),
        (lambda x: (x, x.shape[0]), "model.toy", CaptureError, "output 1 of the model is int"),
        (lambda x: x.nonexistent(), "model.toy", CaptureError, "nonexistent"),
        (torch.sin, "m" * 300 + ".toy", OptionError, "File name too long"),
        (lambda x, y: x + y, "model.toy", CaptureError, "missing a required argument: 'y'"),
        (_asserting, "model.toy", CaptureError, "AssertionError"),
    ],
)
def test_bad_input_is_an_error_and_leaves_nothing(
    model: Any, name: str, kind: type[Exception], words: str, writer: Writer, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=words):
        vendor_sdk.export(model, (torch.randn(3),), tmp_path / name, backend="toywriter")
    assert not list(tmp_path.iterdir())


def test_a_tensor_is_no_list_of_arguments(writer: Writer, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="inputs is a tensor"):
        vendor_sdk.export(torch.sin, torch.randn(1, 3), tmp_path / "model.toy", backend="toywriter")


def test_a_backend_that_cannot_write_says_so(writer: Writer, tmp_path: Path) -> None:
    writer.fails = True
    with pytest.raises(OptionError, match="No space left"):
        vendor_sdk.export(torch.sin, (torch.randn(3),), tmp_path / "model.toy", backend="toywriter")
