"""Libraries that kernels leave products to, and begin before a graph is traced."""

from __future__ import annotations

import pytest
import torch

from reference_backends.cpp_cpu import compiler, contraction, machine, products, units
from reference_backends.cpp_cpu.emitter import CppEmitter
from vendor_sdk.pipeline import recording
from vendor_sdk.run.compiled import CompiledGraph

Tensor = torch.Tensor
f32, f64 = torch.float32, torch.float64


@pytest.mark.parametrize("pairs", [False, True])
def test_libraries_are_begun_before_the_graph_is_traced(pairs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr(machine, "multiplies_pairs", lambda: pairs)
    monkeypatch.setattr(compiler, "start", begun.append)
    monkeypatch.setattr(products, "_loaded", {})
    CppEmitter().foresee({"mm": frozenset((torch.bfloat16,)), "convolution": frozenset((f32, f64))})
    kinds = ["float", "double", *([contraction.PAIR] if pairs else [])]
    expected = [(library, kind) for library in (products.TILES, products.MATRICES) for kind in kinds]
    assert set(begun) == {products.source(need) for need in (*expected, (products.FILTERS, "float"))}
    begun.clear()
    CppEmitter().foresee({"mm": frozenset((torch.bool,)), "sort": frozenset((f32,))})
    assert not begun


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize(
    ("rows", "libraries"),
    [
        (1, [products.DOT_PRODUCTS]),
        (5, [products.TILES, products.MATRICES, products.DOT_PRODUCTS]),
        (24, [products.TILES, products.MATRICES, products.DOT_PRODUCTS]),
        (25, [products.TILES, products.MATRICES]),
    ],
)
def test_factors_that_lie_in_memory_need_no_code(rows: int, libraries: list[str], across: bool) -> None:
    compiled: list[CompiledGraph] = []
    a, b = torch.randn(rows, 200), torch.randn(200, 300) if across else torch.randn(300, 200).t()
    torch._dynamo.reset()
    with recording(compiled.append), torch.no_grad():
        result = torch.compile(lambda x, y: (x @ y).relu(), backend="cpp_cpu")(a, b)
    assert torch.allclose(result.double(), (a.double() @ b.double()).relu(), atol=1e-4)
    (kernel,) = compiled[0].loops.values()
    unit = units._unit(kernel, CppEmitter().emit(kernel))
    assert unit.calls == tuple((library, "float") for library in libraries)
    assert "fill_with" not in unit.text
