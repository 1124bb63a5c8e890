"""Every hook does what its documentation says, and the documentation says what the hookspecs do."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import vendor_sdk
from vendor_sdk import (
    Backend,
    Decline,
    Device,
    DeviceProperties,
    Emitter,
    GraphCompiler,
    Kernel,
    LoopKernel,
    MemoryStats,
    NodeContext,
    Option,
    PrimGraph,
    Supported,
    TensorInfo,
    hookimpl,
)
from vendor_sdk.contract import defaults, hookspecs, loader
from vendor_sdk.pages import PAGES, torch_release
from vendor_sdk.prims.opset import OPSET

DOCS = Path(__file__).resolve().parent.parent / "docs"


class Base:
    @hookimpl
    def backend(self) -> Backend:
        return Backend(
            name="hookchip",
            version="1.0",
            dtypes=frozenset({torch.float32}),
            options={"tile": Option(default=16, help="tile size")},
        )


class Memory(Device):
    """A device that only has to exist."""

    def allocate(self, nbytes: int) -> Any: ...
    def free(self, buffer: Any) -> None: ...
    def copy_in(self, source: memoryview, target: Any, offset: int) -> None: ...
    def copy_out(self, source: Any, offset: int, target: memoryview) -> None: ...
    def copy(self, source: Any, source_offset: int, target: Any, target_offset: int, nbytes: int) -> None: ...
    def synchronize(self) -> None: ...
    def memory_stats(self) -> MemoryStats:
        return MemoryStats(used=0, peak=0)

    def properties(self) -> DeviceProperties:
        return DeviceProperties(name="memory")


class Text(Emitter):
    ops = {"add": "+"}  # noqa: RUF012

    def emit(self, kernel: LoopKernel) -> str:
        return kernel.name

    def compile(self, kernels: Sequence[tuple[LoopKernel, str]]) -> list[Any]:
        return []


class Whole(GraphCompiler):
    prims = frozenset({"add"})

    def compile(self, graph: PrimGraph) -> Any:
        return lambda values: values


def loaded(register: Any, **hooks: Any) -> loader.LoadedBackend:
    """A backend with these hooks beside ``backend``."""
    plugin = type("Plugin", (Base,), {name: staticmethod(hookimpl(function)) for name, function in hooks.items()})()
    return vendor_sdk.load(register(plugin))


def test_backend(register: Any) -> None:
    backend = loaded(register).backend
    assert (backend.name, backend.dtypes) == ("hookchip", {torch.float32})


def test_device(register: Any) -> None:
    given = []

    def device(options: Any) -> Device:
        given.append(options["tile"])
        return Memory()

    backend = loaded(register, device=device)
    assert isinstance(backend.session({"tile": 8}).device, Memory)
    assert backend.session({"tile": 8}).device is backend.session({"tile": 8}).device
    assert backend.session().device is not backend.session({"tile": 8}).device
    assert given == [8, 16]


def test_supports(register: Any) -> None:
    def supports(node: NodeContext) -> Any:
        return Decline("k > 4096") if node.prim == "mm" and node.args[0].shape[1] > 4096 else None

    backend = loaded(register, supports=supports)

    def mm(k: int) -> NodeContext:
        left, right, out = (TensorInfo(shape, torch.float32) for shape in ((2, k), (k, 2), (2, 2)))
        return NodeContext(prim="mm", args=(left, right), kwargs={}, outputs=(out,), backward=False)

    assert backend.supports(mm(4097)) == Decline("k > 4096")
    assert backend.supports(mm(4096)) == Supported()


def test_kernels(register: Any) -> None:
    @vendor_sdk.destination
    def mul(out: Any, x: Any, y: Any) -> None:
        torch.mul(x, y, out=out)

    backend = loaded(register, kernels=lambda: {"add": torch.add, "mul": mul})
    assert backend.kernels == {"add": Kernel(torch.add), "mul": Kernel(mul.call, destination=True)}


def test_emitter(register: Any) -> None:
    session = loaded(register, emitter=lambda: Text()).session()
    assert session.emitter is not None
    assert session.emitter.ops == {"add": "+"}


def test_graph_compiler(register: Any) -> None:
    session = loaded(register, graph_compiler=lambda options: Whole() if options["tile"] == 16 else None).session()
    assert isinstance(session.graph_compiler, Whole)
    assert session.loaded.session({"tile": 8}).graph_compiler is None


def test_decompositions(register: Any) -> None:
    def relu(x: Any) -> Any:
        return torch.clamp_min(x, 0)

    backend = loaded(register, decompositions=lambda: {"relu": relu})
    own = {name: row.decomposition for name, row in OPSET.items() if row.decomposition is not None and name != "relu"}
    assert backend.decomposition(OPSET["relu"].target) is relu
    assert own.items() <= backend.decompositions.items()


def test_graph_passes(register: Any) -> None:
    def first(graph: PrimGraph) -> PrimGraph:
        return graph

    def second(graph: PrimGraph) -> PrimGraph:
        return graph

    class Extension:
        @hookimpl
        def graph_passes(self, stage: str) -> Any:
            return [second] if stage == "legalize" else []

    loaded(register, graph_passes=lambda stage: [first] if stage != "place" else ())
    vendor_sdk.extend("hookchip", Extension())
    backend = vendor_sdk.load("hookchip")
    assert [backend.passes(stage) for stage in ("normalize", "legalize", "place")] == [(first,), (first, second), ()]


def test_host_fallback(register: Any) -> None:
    def slow_mm(x: Any, y: Any) -> Any:
        return (x[:, :, None] * y[None]).sum(1)

    backend = loaded(register, host_fallback=lambda prim: slow_mm if prim == "mm" else None)
    assert backend.host_fallback("mm") is slow_mm
    assert backend.host_fallback("add") is OPSET["add"].target


def test_fingerprint(register: Any) -> None:
    assert loaded(register, fingerprint=lambda: "g++ 13").fingerprint.startswith("g++ 13")


def test_conformance(register: Any) -> None:
    crash = vendor_sdk.KnownFailure("not linked in", verdict="crash")
    given = {"erfinv[float16]": "the table has 10 bits", "sort": crash}
    known = {"erfinv[float16]": vendor_sdk.KnownFailure("the table has 10 bits"), "sort": crash}
    assert loaded(register, conformance=lambda: given).expected_failures == known


@pytest.mark.parametrize("wrong", [3, " ", vendor_sdk.KnownFailure("slow on Mondays", verdict="slow")])
def test_a_known_failure_has_a_reason_and_a_way_to_fail(register: Any, wrong: Any) -> None:
    with pytest.raises(vendor_sdk.errors.ContractError, match="conformance"):
        loaded(register, conformance=lambda: {"sort": wrong})


def test_every_hook_has_a_test_a_default_and_a_place_in_the_list() -> None:
    specs = {name for name, value in vars(hookspecs).items() if hasattr(value, "vendor_sdk_spec")}
    assert specs == set(hookspecs.HOOKS)
    assert {name for name in hookspecs.HOOKS if f"test_{name}" not in globals()} == set()
    impls = {name for name, value in vars(defaults).items() if hasattr(value, "vendor_sdk_impl")}
    assert impls == specs - {"backend"}
    for name in impls:
        assert getattr(defaults, name).vendor_sdk_impl["trylast"], f"the default of {name} must come last"
        assert set(inspect.signature(getattr(defaults, name)).parameters) <= set(
            inspect.signature(getattr(hookspecs, name)).parameters
        )


@pytest.mark.parametrize("page", PAGES)
def test_generated_page_is_up_to_date(page: str) -> None:
    text = (DOCS / page).read_text()
    if page.startswith("prims") and f"Schemas are torch {torch_release()}'s" not in (DOCS / "prims.md").read_text():
        pytest.skip("the page quotes the schemas of another torch release")
    assert text == PAGES[page](), f"docs/{page} is out of date: run vendor-sdk docs"


def test_every_public_name_has_an_entry_with_words() -> None:
    text = (DOCS / "api.md").read_text()
    entries = re.split(r"^### `(\w+)`$", text, flags=re.MULTILINE)[1:]
    said = dict(zip(entries[::2], entries[1::2], strict=True))
    assert sorted(said) == sorted(vendor_sdk.__all__)
    silent = [
        name for name, words in said.items() if not re.search(r"[a-z]{3}", re.sub(r"```.*?```", "", words, flags=re.DOTALL))
    ]
    assert not silent, "say in a docstring what these are"


def test_page_gives_the_real_signature_of_every_hook() -> None:
    text = (DOCS / "hooks.md").read_text()
    documented = dict(re.findall(r"^def (\w+)(\(.*) -> .*$", text.partition("## The hooks")[2], re.MULTILINE))
    for name in hookspecs.HOOKS:
        function = getattr(hookspecs, name)
        parameters = [f"{each}: {kind}" for each, kind in function.__annotations__.items() if each != "return"]
        assert documented[name] == f"({', '.join(parameters)})"


def test_plugin_of_the_page_works_as_it_stands(register: Any) -> None:
    (source,) = re.findall(r"```python\n(import torch\n.*?)```", (DOCS / "hooks.md").read_text(), re.DOTALL)
    plugin = ModuleType("chip_of_the_page")
    exec(source.replace("mychip", "pagechip"), plugin.__dict__)  # the example chip may be known by that name already
    called = []
    for name in ("add", "relu"):
        plugin.__dict__[name] = _counting(plugin.__dict__[name], called)
    register(plugin)

    @torch.compile(backend="pagechip")
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + y) * 2

    x, y = torch.randn(3, 5), torch.randn(5)
    torch.testing.assert_close(model(x, y), torch.relu(x + y) * 2)
    assert called == ["add", "relu"]


def _counting(kernel: Any, called: list[str]) -> Any:
    def counted(*args: Any, **kwargs: Any) -> Any:
        called.append(kernel.__name__)
        return kernel(*args, **kwargs)

    return counted
