"""Targets: graphs compiled for a device that this machine lacks, on a chip whose device never comes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch

import vendor_sdk
from tests import toyloops
from vendor_sdk import (
    Backend,
    Decline,
    Emitter,
    Kernel,
    Launch,
    LoopKernel,
    MachineError,
    NodeContext,
    Option,
    OptionError,
    Target,
    TorchDevice,
    hookimpl,
)
from vendor_sdk.explanation import Traffic

Tensor = torch.Tensor
REV_B = {"target": "rev B"}


class Rehearsing(toyloops.LoopEmitter):
    """Compiles kernels that fail when they are launched, and counts their registers."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, int] = {}

    def compile(self, kernels: Sequence[tuple[LoopKernel, str]]) -> list[Launch]:
        def launch(buffers: Sequence[Any], symbols: Sequence[int]) -> None:
            raise AssertionError("nothing is launched")

        launches: list[Launch] = [lambda buffers, symbols: launch(buffers, symbols) for _ in kernels]
        self.made |= {id(one): len(kernel.params) for one, (kernel, _) in zip(launches, kernels, strict=True)}
        return launches

    def link(self, program: Any) -> None:
        return None

    def resources(self, launch: Launch) -> Mapping[str, int]:
        return {"registers": self.made[id(launch)]}


class Absent:
    """A chip that no machine has, on memory that torch owns, with a kernel for ``sort`` and an emitter."""

    def __init__(self, compiler: str = "") -> None:
        self.compiler = compiler
        self.asked: list[Mapping[str, Any]] = []
        self.ahead: list[tuple[Any, ...]] = []

    @hookimpl
    def backend(self) -> Backend:
        option = Target(choices=(None, "rev A", "rev B"), help="compiles for a chip elsewhere", requires=lambda: self.compiler)
        return Backend(
            name="absentchip",
            version="1",
            dtypes=frozenset({torch.float32, torch.int64}),
            requires=lambda: "no such chip",
            options={"target": option},
        )

    @hookimpl
    def device(self) -> TorchDevice:
        return TorchDevice("cuda")

    @hookimpl
    def supports(self, node: NodeContext, options: Mapping[str, Any]) -> Decline | None:
        self.asked.append(options)
        return Decline("not before rev B") if node.prim == "exp" and options["target"] == "rev A" else None

    @hookimpl
    def kernels(self) -> Mapping[str, Kernel]:
        def sort(*_: Any, **__: Any) -> None:
            raise AssertionError("nothing is called")

        def ahead(target: str, x: Tensor, **kwargs: Any) -> Mapping[str, int]:
            self.ahead.append((target, x.device.type, tuple(x.shape), x.stride(), x.storage_offset(), kwargs["dim"]))
            return {"registers": 77, "stack bytes": 1234}

        return {"sort": Kernel(sort, ahead=ahead)}

    @hookimpl
    def emitter(self) -> Emitter:
        return Rehearsing()


@pytest.fixture
def chip(register: Callable[..., str]) -> Iterator[Absent]:
    torch._dynamo.reset()
    chip = Absent()
    register(chip)
    yield chip
    torch._dynamo.reset()


def test_a_chip_that_is_not_here_can_be_loaded_for_a_target_alone(chip: Absent) -> None:
    for call in (
        lambda: vendor_sdk.load("absentchip"),
        lambda: vendor_sdk.load("absentchip", {"target": None}),
        lambda: vendor_sdk.load("absentchip", REV_B).session(),
    ):
        with pytest.raises(MachineError, match=r"no such chip\n.*options={'target': 'rev A'}"):
            call()
    session = vendor_sdk.load("absentchip", REV_B).session(REV_B)
    assert session.target == "rev B"
    assert session.tensors_on == "cpu"


def test_without_its_compiler_it_cannot_be_loaded(register: Callable[..., str]) -> None:
    with pytest.raises(MachineError, match="no such chip"):
        register(Absent("no compiler"))


def test_a_compiler_that_is_gone_is_named(chip: Absent) -> None:
    chip.compiler = "no compiler"
    vendor_sdk.unregister("absentchip")
    with pytest.raises(MachineError, match="no such chip"):
        vendor_sdk.register(chip)
    chip.compiler = ""
    vendor_sdk.register(chip)
    loaded = vendor_sdk.load("absentchip", REV_B)
    assert loaded.session(REV_B).target == "rev B"


@pytest.mark.parametrize("target", ["rev C", "", 7])
def test_a_target_that_there_is_not_is_named_with_those_that_there_are(chip: Absent, target: Any) -> None:
    with pytest.raises(OptionError, match=r"option 'target' is .*\n.*'rev A', 'rev B'"):
        vendor_sdk.load("absentchip", {"target": target})


def test_a_target_is_one_option_and_no_default(register: Callable[..., str]) -> None:
    def refusal(**options: Option) -> str:
        class Chip:
            @hookimpl
            def backend(self) -> Backend:
                return Backend(name="targets", version="1", dtypes=frozenset({torch.float32}), options=options)

        with pytest.raises(vendor_sdk.ContractError) as caught:
            register(Chip())
        return str(caught.value)

    assert "several targets: a, b" in refusal(a=Target(help="one"), b=Target(help="two"))
    assert "a target of its own accord: a" in refusal(a=Target(help="one", default="x"))


def test_a_call_says_that_nothing_runs_and_what_to_do(chip: Absent) -> None:
    compiled = torch.compile(lambda x: x.tanh() + 1, backend="absentchip", options=REV_B)
    for _ in range(2):
        with pytest.raises(MachineError) as caught:
            compiled(torch.ones(3))
    assert str(caught.value) == (
        "absentchip: this graph was compiled for 'rev B', and is not run on this machine, which lacks what that needs: "
        "no such chip\n"
        "  why: option 'target' compiles for a chip elsewhere\n"
        "  fix: Look at the kernels with vendor_sdk.explain(model, *inputs, backend='absentchip', options={'target': 'rev B'});"
        " on a machine with such a device leave the option out."
    )


def test_explain_lists_forward_and_backward_with_what_they_take(chip: Absent, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Softmax(1))
    before = [p.detach().clone() for p in model.parameters()]
    found = vendor_sdk.explain(model, torch.ones(3, 4), backend="absentchip", options=REV_B)
    assert [graph.name for graph in found.graphs] == ["forward (0)", "backward (1)"]
    kernels = [kernel for graph in found.graphs for kernel in graph.kernels.kernels]
    assert kernels
    assert all(kernel.resources["registers"] > 0 for kernel in kernels if kernel.route == "emitter")
    assert found.target == "rev B"
    report = json.loads(found.to_json())
    assert report["target"] == "rev B"
    assert report["graphs"][0]["kernels"][0]["resources"] == kernels[0].resources
    printed = capsys.readouterr().out
    assert "registers" in printed
    assert "Compiled for rev B; nothing ran." in printed
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_kernels_of_its_own_are_told_their_operands_as_a_call_has_them(chip: Absent) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x.t() * 2)[:, 1:].t()
        return torch.sort(y, dim=0, stable=True)[0], torch.sort(x.t(), dim=1, stable=True)[0]

    found = vendor_sdk.explain(function, torch.ones(6, 4), backend="absentchip", options=REV_B, show=False)
    computed, given = ("rev B", "meta", (5, 4), (1, 6), 1, 0), ("rev B", "meta", (4, 6), (1, 4), 0, 1)
    assert sorted(chip.ahead) == sorted([computed, given])
    taken = [kernel.resources for kernel in found.graphs[0].kernels.kernels if kernel.name == "sort"]
    assert taken == [{"registers": 77, "stack bytes": 1234}] * 2


def test_sizes_that_only_a_call_knows_are_those_of_the_trace(chip: Absent) -> None:
    compiled = torch.compile(
        lambda x: torch.sort(x * 2, dim=0, stable=True)[0], backend="absentchip", options=REV_B, dynamic=True
    )
    with pytest.raises(MachineError):
        compiled(torch.ones(6, 4))
    assert chip.ahead == [("rev B", "meta", (6, 4), (4, 1), 0, 0)]


def test_what_is_supported_may_depend_on_the_target(chip: Absent) -> None:
    routes = {}
    for target in ("rev A", "rev B"):
        options = {"target": target}
        found = vendor_sdk.explain(torch.exp, torch.ones(3), backend="absentchip", options=options, show=False)
        routes[target] = [str(p.placement) for p in found.placements()]
    assert routes == {"rev A": ["host: not before rev B"], "rev B": ["native (emitter)"]}
    assert {asked["target"] for asked in chip.asked} == {"rev A", "rev B"}


def test_a_model_with_a_graph_break_is_explained_up_to_it(chip: Absent) -> None:
    def function(x: Tensor) -> Tensor:
        y = x.tanh()
        torch._dynamo.graph_break()
        return y.exp()

    found = vendor_sdk.explain(function, torch.ones(3), backend="absentchip", options=REV_B, show=False)
    assert len(found.graphs) == len(found.graph_breaks) == 1


def test_a_compiled_graph_that_is_called_directly_refuses_too(chip: Absent) -> None:
    graph = vendor_sdk.trace(lambda x: (x * 2).relu(), (torch.ones(3),))
    compiled = vendor_sdk.compile_graph(graph, backend="absentchip", options=REV_B)
    assert compiled.launches == 1
    with pytest.raises(MachineError, match="'rev B'"):
        compiled(torch.ones(3))


class Unreachable(vendor_sdk.Device):
    """Memory of a chip that is not here: whoever touches it fails."""

    def allocate(self, nbytes: int) -> Any:
        raise AssertionError("touched")

    def free(self, buffer: Any) -> None:
        raise AssertionError("touched")

    def copy_in(self, source: memoryview, target: Any, offset: int) -> None:
        raise AssertionError("touched")

    def copy_out(self, source: Any, offset: int, target: memoryview) -> None:
        raise AssertionError("touched")

    def copy(self, source: Any, source_offset: int, target: Any, target_offset: int, nbytes: int) -> None:
        raise AssertionError("touched")

    def synchronize(self) -> None:
        raise AssertionError("touched")

    def memory_stats(self) -> vendor_sdk.MemoryStats:
        raise AssertionError("touched")

    def properties(self) -> vendor_sdk.DeviceProperties:
        raise AssertionError("touched")


class AbsentWithMemory(Absent):
    """The same chip with memory of its own."""

    @hookimpl
    def device(self) -> vendor_sdk.Device:  # type: ignore[override]
        return Unreachable()


def test_a_chip_with_memory_of_its_own_is_not_touched(register: Callable[..., str]) -> None:
    torch._dynamo.reset()
    register(AbsentWithMemory())
    found = vendor_sdk.explain(lambda x: x.tanh() + 1, torch.ones(3), backend="absentchip", options=REV_B, show=False)
    assert [kernel.route for kernel in found.graphs[0].kernels.kernels] == ["emitter"]
    assert found.graphs[0].traffic == Traffic(12, 12)
    assert found.measured is None


def test_debugging_writes_the_stages(chip: Absent, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_SDK_DEBUG", str(tmp_path))
    monkeypatch.setenv("VENDOR_SDK_DEBUG_CHECK", "1")
    found = vendor_sdk.explain(lambda x: x.tanh() + 1, torch.ones(3), backend="absentchip", options=REV_B, show=False)
    assert len(found.graphs) == 1
    assert [*tmp_path.glob("*/*emitted*")]
