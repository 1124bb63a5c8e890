"""Products of groups of rows: what ``grouped.cpp`` computes, as launches.

Both factors may have any strides, so that gradients take transposed factors as they lie. Halves are summed in float32.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch

from reference_backends.cpp_cpu import compiler, products
from reference_backends.cpp_cpu.headers import library
from reference_backends.cpp_cpu.program import CompiledFunction, native_kernel
from vendor_sdk import Kernel, NativeCall, Operand

COMPOSITES = frozenset(("grouped_mm",))
_ELEMENTS = {
    torch.float32: ("float", "float"),
    torch.float64: ("double", "double"),
    torch.bfloat16: ("float", "bf16"),
    torch.float16: ("float", "f16"),
}
"""C++ types of sums and elements."""


def _needs(dtype: torch.dtype) -> tuple[products.Need, ...]:
    return products.needs(f"FewRowsProduct<{_ELEMENTS[dtype][0]}>")


def _source(dtype: torch.dtype) -> str:
    files = "".join(map(library, ("base.h", "products.h", "grouped.cpp")))
    accumulator, element = _ELEMENTS[dtype]
    named = str(dtype).removeprefix("torch.")
    return f"#define PRODUCTS_KEY {products.key()}\n{files}GROUPED({accumulator}, {element}, {named})\n"


def prepare(dtype: torch.dtype) -> None:
    """Begins to compile in the background what multiplies in a dtype."""
    if dtype in _ELEMENTS:
        for need in _needs(dtype):
            products.start(need)
        compiler.start(_source(dtype))


@functools.cache
def _function(dtype: torch.dtype) -> CompiledFunction:
    def load() -> object:
        for need in _needs(dtype):
            products.load(need)
        return compiler.load(_source(dtype))

    return CompiledFunction(load, f"grouped_mm_{str(dtype).removeprefix('torch.')}")  # type: ignore[arg-type]


def _native(out: Operand, self: Operand, mat2: Operand, offs: Operand) -> NativeCall:
    whole = len(mat2.shape) == 2
    rows = self.shape[1 if whole else 0]
    numbers = (
        *(int(whole), offs.shape[0], rows, self.shape[0], mat2.shape[-1], self.shape[1]),
        *(*self.strides, self.offset),
        *(*((0,) if whole else ()), *mat2.strides, mat2.offset),
        *(*offs.strides, offs.offset, int(offs.dtype == torch.int64)),
    )
    return NativeCall(_function(self.dtype), (self, mat2, offs), numbers)


KERNELS: Mapping[str, Kernel] = {"grouped_mm": native_kernel(_native)}
"""Composite to kernel."""
