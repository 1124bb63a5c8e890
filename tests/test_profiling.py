"""Profiles: every launch by name, with bytes and shapes, whatever the route; and nothing left behind."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import vendor_sdk
from tests.toys import Toy, ToyChip, ToyMemory, register_toys
from vendor_sdk import Backend, DeviceProperties, hookimpl


def test_launches_of_an_emitter_by_name(tmp_path: Path) -> None:
    register_toys()
    x = torch.randn(64, 32)

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2, -1)

    with vendor_sdk.profile() as seen, torch.profiler.profile() as torchs:
        compiled = torch.compile(model, backend="toyloops")
        for _ in range(3):
            torch.testing.assert_close(compiled(x), model(x))
    kernels = [event for event in seen.events if event.kind == "kernel"]
    assert len(kernels) == 3
    assert [event.first for event in kernels] == [True, False, False]
    assert kernels[0].bytes == 2 * x.nbytes
    assert kernels[0].shapes == ("float32[64, 32]", "float32[64, 32]")
    assert f"toyloops::{kernels[0].name}" in {event.name for event in torchs.events()}
    (total,) = seen.totals()
    assert (total.calls, total.share, total.bytes) == (2, pytest.approx(1), 4 * x.nbytes)
    assert total.of_peak is not None
    seen.chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["name"] for event in events] == [event.name for event in seen.events]
    assert all(event["ph"] == "X" and event["dur"] >= 0 for event in events)
    assert json.loads(seen.to_json())["totals"][0]["name"] == total.name
    console = Console(record=True, width=160)
    seen.print(console)
    assert total.name in console.export_text()
    assert total.name in str(seen)
    assert repr(seen) == f"<Profile of {len(seen.events)} launches>"
    # Afterwards nothing is observed.
    before = len(seen.events)
    torch.compile(model, backend="toyloops")(x)
    assert len(seen.events) == before


@pytest.mark.parametrize("name", ["toy", "toychip"])
def test_kernels_and_what_the_host_does(name: str) -> None:
    register_toys()
    x = torch.randn(4, 5)

    def model(x: Any) -> torch.Tensor:
        return (x + x).erf() * 2

    with vendor_sdk.profile() as seen:
        torch.testing.assert_close(torch.compile(model, backend=name)(x), model(x))
    names = {(event.name, event.kind) for event in seen.events}
    assert {("add", "kernel"), ("erf", "host")} <= names
    assert {event.backend for event in seen.events} == {name}
    assert all(total.of_peak is None for total in seen.totals() if total.kind == "host")


def test_steps_of_two_graphs_and_shapes_are_apart() -> None:
    register_toys()

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2, -1)

    with vendor_sdk.profile() as seen:
        for x in (torch.randn(8), torch.randn(4096, 64)):
            torch.compile(model, backend="toyloops", dynamic=False)(x)
    small, large = sorted(seen.totals(), key=lambda total: total.bytes)
    assert small.name.split("_")[0] == large.name.split("_")[0]
    assert (small.shapes, large.shapes) == (("float32[8]",) * 2, ("float32[4096, 64]",) * 2)
    assert {small.graph, large.graph} == {"0 forward", "1 forward"}


def test_prims_of_one_name_are_apart_by_their_shapes() -> None:
    register_toys()
    x, a, b = torch.randn(4, 64), torch.randn(64, 8), torch.randn(8, 3)
    with vendor_sdk.profile() as seen:
        torch.compile(lambda x, a, b: x @ a @ b, backend="toy")(x, a, b)
    products = [total for total in seen.totals() if total.name == "mm"]
    assert {total.shapes[0] for total in products} == {"float32[4, 64]", "float32[4, 8]"}


PEAKS = {"copy GB/s": 1e6, "float32 TFLOP/s": 1e-3}


class PeakedMemory(ToyMemory):
    def properties(self) -> DeviceProperties:
        return DeviceProperties(name="peaked", peaks=PEAKS)


class Peaked(ToyChip):
    """A toy chip that declares its peaks."""

    def __init__(self) -> None:
        self.memory = PeakedMemory()

    @hookimpl
    def backend(self) -> Backend:
        return dataclasses.replace(super().backend(), name="peaked")


class Failing(Toy):
    """Its kernel raises when told to."""

    fails = False

    @hookimpl
    def backend(self) -> Backend:
        return dataclasses.replace(super().backend(), name="failing")

    @hookimpl
    def kernels(self) -> Mapping[str, Callable[..., Any]]:
        def exp(x: torch.Tensor) -> torch.Tensor:
            if self.fails:
                raise ValueError("no")
            return torch.exp(x)

        return {"exp": exp}


@pytest.fixture
def plugin(request: pytest.FixtureRequest) -> Iterator[Any]:
    made = request.param()
    vendor_sdk.register(made)
    yield made
    vendor_sdk.unregister(made.backend().name)


@pytest.mark.parametrize("plugin", [Peaked], indirect=True)
def test_products_are_held_against_their_rate(plugin: Peaked) -> None:
    left, right = torch.randn(16, 64), torch.randn(64, 8)
    with vendor_sdk.profile() as seen:
        torch.compile(torch.mm, backend="peaked")(left, right)
    (event,) = [event for event in seen.events if event.name == "mm"]
    assert event.flops == 2 * 16 * 64 * 8
    assert event.at_peak == pytest.approx(event.flops / 1e9)
    assert event.at_peak is not None
    assert event.of_peak == pytest.approx(event.at_peak / event.seconds)
    assert seen.peaks["peaked"] == PEAKS


def test_products_of_dynamic_sizes_count_as_they_are_called() -> None:
    register_toys()
    right = torch.randn(64, 8)
    with vendor_sdk.profile() as seen:
        for name in ("toy", "toyloops"):
            compiled = torch.compile(lambda x: torch.tanh(x) @ right, backend=name, dynamic=True)
            for rows in (6, 9):
                compiled(torch.randn(rows, 64))
    counted = {(event.backend, event.flops) for event in seen.events if event.flops}
    assert counted == {(name, 2 * rows * 64 * 8) for name in ("toy", "toyloops") for rows in (6, 9)}


@pytest.mark.parametrize("name", ["toy", "toychip", "toyloops"])
def test_torchs_profiler_sees_launches_of_graphs_compiled_before(name: str) -> None:
    register_toys()
    x, y = torch.randn(4, 64, requires_grad=True), torch.randn(64, 8)

    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x + x).tanh() @ y

    compiled = torch.compile(model, backend=name)
    gradient = torch.autograd.grad(compiled(x, y).sum(), x)[0]
    with torch.profiler.profile(record_shapes=True) as seen:
        for _ in range(2):
            again = torch.autograd.grad(compiled(x, y).sum(), x)[0]
            torch.testing.assert_close(again, gradient)
    launches = [event for event in seen.events() if event.name.startswith(f"{name}::")]
    products = [event for event in launches if "mm" in event.name]
    assert len(products) == 4
    arguments = products[0].kwinputs
    assert arguments["flops"] == 2 * 4 * 64 * 8
    assert arguments["bytes"] > 0
    assert "float32[4, 8]" in arguments["shapes"]
    assert ("us at peak" in arguments) is (name != "toychip")
    with torch.profiler.profile() as after:
        model(x, y)
    assert not [event for event in after.events() if event.name.startswith(f"{name}::")]
    torch.testing.assert_close(compiled(x, y), model(x, y))


@pytest.mark.parametrize("plugin", [Failing], indirect=True)
def test_a_kernel_that_raises_under_torchs_profiler_names_its_prim(plugin: Failing) -> None:
    compiled = torch.compile(torch.exp, backend="failing")
    compiled(torch.ones(3))
    plugin.fails = True
    with torch.profiler.profile(), pytest.raises(vendor_sdk.KernelError, match="'exp'"):
        compiled(torch.ones(3))
