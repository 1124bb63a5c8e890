"""Operands that a kernel computes where it needs them: masks of attention that follow from little."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import vendor_sdk
from tests import toyloops
from tests.toys import use_kind
from vendor_sdk import Backend, Emitter, LoopKernel, NodeContext, TorchDevice, hookimpl
from vendor_sdk.ir.loop import Load, Nest, Store
from vendor_sdk.pipeline import recording
from vendor_sdk.run.compiled import CompiledGraph

Tensor = torch.Tensor
Attention = Callable[..., Any]
BATCH, HEADS, WIDTH = 2, 4, 8


def _places(q: Tensor) -> tuple[Tensor, Tensor]:
    places = torch.arange(q.shape[-2])
    return places[:, None], places


def _alibi(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, _: Tensor) -> Tensor:
    row, key = _places(q)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(slopes[:, None, None] * (key - row).to(q.dtype))[None])


def _window(q: Tensor, k: Tensor, v: Tensor, _: Tensor, documents: Tensor) -> Tensor:
    row, key = _places(q)
    near = (row >= key) & (row - key < 7)
    seen = near & (documents[:, :, None] == documents[:, None, :])[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def _flat(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Tensor:
    row, key = _places(q)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=torch.where(row - key > -5, -0.1 * (row - key), -torch.inf).to(q.dtype)
    )


def _twice(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Tensor:
    row, key = _places(q)
    seen = (row - key).abs() < 9
    once = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    return F.scaled_dot_product_attention(once, k, v, attn_mask=seen)


def _packed(q: Tensor, k: Tensor, v: Tensor, _: Tensor, starts: Tensor) -> Tensor:
    """Documents as a kernel of the graph counts them."""
    row, key = _places(q)
    documents = (starts == 0).cumsum(1)
    seen = (row >= key) & (documents[:, :, None] == documents[:, None, :])[:, None]
    return F.scaled_dot_product_attention(q * 2, k, v, attn_mask=seen)


COMPUTED: dict[str, Attention] = {"alibi": _alibi, "window": _window, "flat": _flat, "twice": _twice, "packed": _packed}


def _of_an_input(q: Tensor, k: Tensor, v: Tensor, _: Tensor, documents: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask > 0)


def _returned(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Any:
    row, key = _places(q)
    bias = (row - key).abs().to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias), bias


def _summed(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Tensor:
    row, key = _places(q)
    weights = (row - key).abs().float().cumsum(0)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(weights / 100).sin())


IN_MEMORY: dict[str, Attention] = {"of an input": _of_an_input, "returned too": _returned, "of a sum": _summed}


def _operands(rows: int, *, grad: bool = False) -> list[Tensor]:
    inputs = [torch.randn(BATCH, HEADS, rows, WIDTH, requires_grad=grad) for _ in range(3)]
    return [*inputs, torch.rand(HEADS), torch.randint(3, (BATCH, rows))]


def _kernels(function: Attention, *inputs: Tensor) -> list[Any]:
    report = vendor_sdk.explain(function, *inputs, backend=use_kind("toyloops"), show=False)
    return [kernel for graph in report.graphs if graph.kernels for kernel in graph.kernels.kernels]


def _first(value: Any) -> Tensor:
    return value[0] if isinstance(value, tuple) else value


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", COMPUTED)
def test_masks_that_follow_from_little_are_in_no_memory(name: str, grad: bool) -> None:
    inputs = _operands(40, grad=grad)
    kernels = _kernels(COMPUTED[name], *inputs)
    attention = [each for each in kernels if each.name.startswith("scaled_dot_product_attention")]
    assert len(attention) == (2 if name == "twice" else 1) * (1 + grad)
    masks = {"where", "bitwise_and", "ge", "lt", "gt", "sub"}
    assert not any(masks & set(each.prims) for each in kernels if each not in attention)
    # Operands of a call: three of the forward's, six and the logarithms of the backward's; and little more.
    nbytes = BATCH * HEADS * 40 * WIDTH * 4
    assert all(each.read < (4 if "backward" not in each.name else 6) * nbytes for each in attention)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", COMPUTED)
def test_such_masks_are_right(name: str, dynamic: bool) -> None:
    compiled = torch.compile(COMPUTED[name], backend=use_kind("toyloops"), dynamic=dynamic)
    for rows in (40, 33, 57) if dynamic else (40,):
        inputs = _operands(rows, grad=True)
        wide = [x.detach().double().requires_grad_() if x.requires_grad else x for x in inputs]
        wide[3] = inputs[3].double()
        found, expected = compiled(*inputs), COMPUTED[name](*wide)
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
        direction = torch.randn(found.shape)
        grads = torch.autograd.grad(found, inputs[:3], direction)
        wanted = torch.autograd.grad(expected, wide[:3], direction.double())
        for one, other in zip(grads, wanted, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


def test_one_kernel_serves_all_sizes_of_a_symbol() -> None:
    compiled = torch.compile(_window, backend=use_kind("toyloops"), dynamic=True)
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (40, 33, 57):
            inputs = _operands(rows)
            torch.testing.assert_close(compiled(*inputs), _window(*inputs))


@pytest.mark.parametrize("name", IN_MEMORY)
def test_other_masks_stay_in_memory(name: str) -> None:
    inputs = [*_operands(40), torch.randn(40, 40)]
    attention = [each for each in _kernels(IN_MEMORY[name], *inputs) if each.name == "scaled_dot_product_attention"]
    (kernel,) = attention
    assert kernel.prims == ("scaled_dot_product_attention",)
    found = torch.compile(IN_MEMORY[name], backend=use_kind("toyloops"))(*inputs)
    torch.testing.assert_close(_first(found), _first(IN_MEMORY[name](*inputs)))


class _Asked:
    """The loop interpreter as a backend whose attention says whether it computes masks, once it has seen their loops."""

    def __init__(self, *, takes: bool) -> None:
        self.takes = takes
        self.seen: list[tuple[NodeContext, LoopKernel]] = []

    def wanted(self, node: NodeContext, loops: LoopKernel) -> bool:
        self.seen.append((node, loops))
        return self.takes

    @hookimpl
    def backend(self) -> Backend:
        return replace(toyloops.backend(), name="asked")

    @hookimpl
    def device(self) -> TorchDevice:
        return toyloops.device()

    @hookimpl
    def kernels(self) -> Mapping[str, Any]:
        name = "scaled_dot_product_attention"
        return {name: replace(toyloops.kernels()[name], computes={"attn_mask": self.wanted}), **_BACKWARD}

    @hookimpl
    def emitter(self) -> Emitter:
        return toyloops.emitter()


_BACKWARD = {"scaled_dot_product_attention_backward": toyloops.kernels()["scaled_dot_product_attention_backward"]}


@pytest.mark.parametrize("takes", [False, True], ids=["declined", "taken"])
def test_a_kernel_sees_the_loops_before_it_answers(takes: bool, register: Callable[..., str]) -> None:
    plugin = _Asked(takes=takes)
    name = register(plugin)
    torch.compiler.reset()
    inputs = _operands(40)
    graphs: list[CompiledGraph] = []
    with recording(graphs.append), torch.no_grad():
        found = torch.compile(_window, backend=name)(*inputs)
    torch.testing.assert_close(found, _window(*inputs))
    ((node, loops),) = plugin.seen
    assert node.prim == "scaled_dot_product_attention"
    assert node.kwargs["attn_mask"].shape == (BATCH, 1, 40, 40)
    (nest,) = loops.body
    assert [r.size.value for r in nest.ranges] == [BATCH, 1, 40, 40]
    assert [p.role for p in loops.params] == ["in", "out"]
    *body, last = nest.body
    assert isinstance(last, Store)
    assert not any(isinstance(s, Store | Nest) for s in body)
    assert sum(isinstance(s, Load) for s in body) == 2, "the document of the row, and that of the key"
    (graph,) = graphs
    assert len(graph.loops) == (0 if takes else 1)


@pytest.mark.parametrize("variable", ["VENDOR_SDK_DEBUG_CHECK", "VENDOR_SDK_DEBUG_GUARD", "VENDOR_SDK_DEBUG"])
def test_debugging_works_with_them(variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, str(tmp_path) if variable == "VENDOR_SDK_DEBUG" else "1")
    for name in ("alibi", "window"):
        inputs = _operands(40, grad=True)
        found = torch.compile(COMPUTED[name], backend=use_kind("toyloops"), dynamic=name == "window")(*inputs)
        found.sum().backward()
        torch.testing.assert_close(found, COMPUTED[name](*inputs))
    if variable == "VENDOR_SDK_DEBUG":
        wrappers = [path.read_text() for path in tmp_path.rglob("*wrapper.py")]
        assert len(wrappers) == 4
        assert all("attn_mask=" in text and "numbers=(" in text for text in wrappers), "masks are passed as loops"


def test_the_profiler_sees_what_they_read() -> None:
    """Sizes of a call follow from its tensors, in the order in which the kernel gets them."""
    inputs = _operands(40)
    compiled = torch.compile(_window, backend=use_kind("toyloops"), dynamic=True)
    with vendor_sdk.profile() as seen, torch.no_grad():
        compiled(*inputs)
        compiled(*_operands(33))
    for rows, total in zip((40, 33), sorted(seen.totals(), key=lambda each: -each.bytes), strict=True):
        q, k, v, _, documents = _operands(rows)
        results = BATCH * HEADS * rows * (WIDTH + 1) * 4
        assert total.bytes == sum(x.nbytes for x in (q, k, v, documents)) + results
        assert total.flops == 4 * BATCH * HEADS * rows * rows * WIDTH
