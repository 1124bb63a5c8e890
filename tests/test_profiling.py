"""Profiles: every launch by name, with bytes and shapes, whatever the route; and nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import vendor_sdk
from tests.toys import register_toys


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
