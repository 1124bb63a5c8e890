"""What the compiler does for a program grows as the program does: four times as many layers, some four times the work.

Work is counted in calls of the SDK's own functions, which no machine changes. The search for offsets has a bound of its own
(``offsets.EFFORT``), so that it alone may grow faster below it.
"""

from __future__ import annotations

import cProfile
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import torch
from torch import nn

import vendor_sdk
from tests.toys import use_kind
from vendor_sdk import aot

SDK = str(Path(vendor_sdk.__file__).parent)
TIMES = 4
MORE = 1.5
"""How much more than ``TIMES`` the work of all functions, and that of each that is called often, may grow."""
OFTEN = 0.01
BOUNDED = {"plan/offsets.py"}

Tensor = torch.Tensor


class Layers(nn.Module):
    """A sum of layers, whose weights' gradients are outputs of one graph."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3, bias=False) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return x


class Chain(nn.Module):
    """Pointwise all along."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count, self.scale = count, nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        for k in range(self.count):
            x = torch.sin(x * self.scale + k)
        return x


class Recurrent(nn.Module):
    """One cell's steps, each of which is an output."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count, self.cell = count, nn.GRUCell(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        state, found = x.new_zeros(3, 4), []
        for _ in range(self.count):
            state = self.cell(x, state)
            found.append(state)
        return torch.stack(found)


class Dense(nn.Module):
    """Every layer reads all that came before."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3 + k, 1) for k in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(torch.relu(x))], 1)
        return x


def trained(kind: Callable[[int], nn.Module], count: int) -> Callable[[], Any]:
    """Compiles a model and its backward graph."""
    model = torch.compile(kind(count), backend=use_kind("toyloops"), dynamic=False)
    return lambda: model(torch.randn(3, 3)).sum().backward()


def stepped(count: int) -> Callable[[], Any]:
    """Compiles a step of an optimizer, all of whose parameters differ in size."""
    parameters = [nn.Parameter(torch.randn(2 + k)) for k in range(count)]
    optimizer = torch.optim.AdamW(parameters, lr=torch.tensor(0.01))
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return torch.compile(optimizer.step, backend=use_kind("toyloops"), dynamic=False)


def work(run: Callable[[], Any]) -> Counter[str]:
    """Calls of each function of the SDK."""
    profile = cProfile.Profile(subcalls=False, builtins=False)
    profile.runcall(run)
    found: Counter[str] = Counter()
    for entry in profile.getstats():
        if isinstance(entry.code, CodeType) and entry.code.co_filename.startswith(SDK):
            found[entry.code.co_filename[len(SDK) + 1 :] + ":" + entry.code.co_name] += entry.callcount
    return found


CASES: dict[str, tuple[int, Callable[[int], Callable[[], Any]]]] = {
    "layers": (10, lambda count: trained(Layers, count)),
    "chain": (12, lambda count: trained(Chain, count)),
    "recurrent": (3, lambda count: trained(Recurrent, count)),
    "dense": (7, lambda count: trained(Dense, count)),
    "optimizer": (10, stepped),
}


@pytest.mark.usefixtures("fresh_graphs")
@pytest.mark.parametrize("name", CASES)
def test_four_times_the_layers_are_four_times_the_work(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aot, "WORTH_STORING", sys.maxsize)  # Graphs that come back from disk are no work.
    count, prepare = CASES[name]
    few, many = work(prepare(count)), work(prepare(TIMES * count))
    bounded = {function for function in many if function.split(":")[0] in BOUNDED}
    total = sum(calls for function, calls in many.items() if function not in bounded)
    before = sum(calls for function, calls in few.items() if function not in bounded)
    assert total <= MORE * TIMES * before
    grown = {
        function: (few[function], calls)
        for function, calls in many.items()
        if function not in bounded and calls > OFTEN * total and calls > MORE * TIMES * few[function]
    }
    assert not grown
