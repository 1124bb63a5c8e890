"""A backend whose emitter is the loop interpreter, for the SDK's own tests: the emitter route with no compiler.

Its target language is loop IR as text, its compiler reads that, and a launch interprets it on memory of which it knows the
address alone, as compiled code would. It has whatever the SDK offers emitters: templates of contractions, panels, programs,
native kernels.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from vendor_sdk import (
    ALL,
    COMPOSITES,
    Backend,
    Computed,
    Emitter,
    Entry,
    Kernel,
    Launch,
    Limits,
    LoopKernel,
    NativeCall,
    Operand,
    Program,
    StepError,
    TorchDevice,
    flat,
    hookimpl,
    program,
    warm_empty,
)
from vendor_sdk.ir import index as ix
from vendor_sdk.ir.contraction import Contraction, Factor, match
from vendor_sdk.ir.loop import Load, Nest, Param, Range, Store
from vendor_sdk.ir.loop_interpreter import interpret
from vendor_sdk.ir.loop_ops import COMBINE, OPS
from vendor_sdk.ir.loop_print import read, text

Tensor = torch.Tensor
Memory = dict[str, Tensor]
Numbers = Sequence[int | float]


def over(address: int, count: int, dtype: torch.dtype) -> Tensor:
    """``count`` elements at an address."""
    if not count:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(address), dtype=dtype)


class Compiled:
    """A launch that needs the addresses of its buffers and no more."""

    def __init__(self, at: Callable[[Sequence[int], Numbers], None]) -> None:
        self.at = at

    def __call__(self, buffers: Sequence[Tensor], numbers: Numbers) -> None:
        self.at([buffer.data_ptr() for buffer in buffers], numbers)


def compiled(kernel: LoopKernel) -> Compiled:
    """A kernel, nest by nest: the interpreter runs each, but for what is a contraction."""
    params = (*kernel.params, *kernel.scratch)
    products = [match(nest) for nest in kernel.body]

    def run(nest: Nest, memory: Memory, numbers: Numbers, *more: Param) -> None:
        alone = LoopKernel(kernel.name, (*params, *more), kernel.symbols, (nest,), ())
        interpret(alone, [memory[p.name] for p in alone.params], numbers)

    def at(addresses: Sequence[int], numbers: Numbers) -> None:
        values = {s.name: value for s, value in zip(kernel.symbols, numbers, strict=True)}

        def sized(size: ix.Int) -> int:
            return int(ix.evaluate(size, values))

        memory = {p.name: over(a, sized(p.size), p.dtype) for p, a in zip(kernel.params, addresses, strict=True)}
        memory |= {p.name: torch.empty(sized(p.size), dtype=p.dtype) for p in kernel.scratch}
        for nest, product in zip(kernel.body, products, strict=True):
            if product is None:
                run(nest, memory, numbers)
            else:
                multiply(product, memory, sized, lambda nest, memory, *more: run(nest, memory, numbers, *more))

    return Compiled(at)


def multiply(product: Contraction, memory: Memory, sized: Callable[[ix.Int], int], run: Callable[..., None]) -> None:
    """Both factors are computed once, as matrices; then the product; then the epilogue, which reads it."""

    def position(ranges: Sequence[Range]) -> ix.Int:
        at = ix.ZERO
        for r in ranges:
            at = at * r.size + ix.variable(r.var, r.size)
        return at

    def count(ranges: Sequence[Range]) -> int:
        return math.prod(sized(r.size) for r in ranges)

    def matrix(factor: Factor) -> Tensor:
        ranges = (*product.batch, *factor.free, *factor.reduced)
        flat = torch.empty(count(ranges), dtype=product.dtype)
        nest = Nest(ranges, (*factor.body, Store("factor", position(ranges), factor.value)))
        run(nest, {**memory, "factor": flat}, Param("factor", product.dtype, ix.wrap(len(flat)), "out"))
        return flat.reshape(count(product.batch), count(factor.free), count(factor.reduced))

    result = (matrix(product.left) @ matrix(product.right).mT).reshape(-1)
    ranges = (*product.batch, *product.rows, *product.columns)
    epilogue = (Load(product.total, "product", position(ranges), product.dtype), *product.epilogue)
    run(Nest(ranges, epilogue), {**memory, "product": result}, Param("product", product.dtype, ix.wrap(len(result)), "in"))


def linked(given: Program) -> Entry | None:
    """What a program says, step by step."""
    launches = [step.launch for step in given.steps if isinstance(step.launch, Compiled)]
    if len(launches) < len(given.steps):
        return None

    def entry(arena: int, offsets: int, *operands: Any) -> Any:
        numbers = operands[len(given.inputs) :]

        def number(value: program.Number) -> int | float:
            return numbers[value.index] if isinstance(value, program.Argument) else value  # type: ignore[no-any-return]

        def sizes(values: Sequence[program.Number]) -> tuple[int, ...]:
            return tuple(int(number(value)) for value in values)

        inputs = [
            operand if strides is None else given.as_traced(operand, sizes(strides))
            for operand, strides in zip(operands, given.inputs, strict=False)
        ]
        results = [warm_empty(sizes(result.shape), result.dtype) for result in given.results]

        def address(buffer: program.Buffer) -> int:
            shift = buffer.offset
            if isinstance(shift, program.Offset):
                shift = ctypes.c_int64.from_address(offsets + 8 * shift.index).value
            if buffer.base == "arena":
                return arena + shift
            return (inputs if buffer.base == "input" else results)[buffer.index].data_ptr() + shift  # type: ignore[no-any-return]

        for i, (step, launch) in enumerate(zip(given.steps, launches, strict=True)):
            try:
                launch.at([*map(address, step.buffers)], [*map(number, step.numbers)])
            except Exception as error:
                raise StepError(i, error) from error
        return results[0] if len(results) == 1 else tuple(results) or None

    return entry


class LoopEmitter(Emitter):
    """Launches run in the loop interpreter.

    Args:
        wrong: loop ops to the one that is emitted in their place.
    """

    ops = {  # noqa: RUF012
        **dict.fromkeys(
            (*OPS, "nest", "local", "scratch", "contraction", *(f"store.{m}" for m in ("add", "mul", "max", "min")))
        ),
        **{f"reduce.{name}": None for name, row in COMBINE.items() if row.reduce},
        **{f"scan.{name}": None for name, row in COMBINE.items() if row.scan},
    }
    limits = Limits(local_bytes=1 << 16, local_dynamic=True, buffers=4096, nests=512)

    def __init__(self, wrong: Mapping[str, str] | None = None) -> None:
        self.wrong = wrong or {}

    def emit(self, kernel: LoopKernel) -> str:
        emitted = text(kernel)
        for op, other in self.wrong.items():
            emitted = emitted.replace(f"op={op!r}", f"op={other!r}")
        return emitted

    def compile(self, kernels: Sequence[tuple[LoopKernel, str]]) -> list[Launch]:
        return [compiled(read(emitted)) for _, emitted in kernels]

    def link(self, program: Program) -> Entry | None:
        return linked(program)

    def panel(self, dtype: torch.dtype, rows: int | None, columns: int, steps: int) -> int:
        width = 256 // dtype.itemsize
        return width if columns >= width and steps else 0


def in_memory(operand: Any) -> Any:
    """An argument of a kernel, filled where it came as loops."""
    if not isinstance(operand, Computed):
        return operand
    values = torch.empty(math.prod(operand.shape), dtype=operand.dtype)
    interpret(operand.loops, [*map(flat, operand.buffers), values], operand.numbers)
    return values.reshape(operand.shape)


def native(function: Callable[..., Any], results: int, computes: Sequence[str] = ()) -> Kernel:
    """A kernel launched with addresses, sizes and strides, of which it makes tensors for ``function``."""

    def fill(given: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        values = function(*map(in_memory, given[results:]), **{name: in_memory(value) for name, value in kwargs.items()})
        for result, value in zip(given, values if isinstance(values, tuple) else (values,), strict=False):
            result.copy_(value)

    def launched(*given: Any, **kwargs: Any) -> NativeCall:
        values, where = [*given, *kwargs.values()], list(range(len(given) + len(kwargs)))
        where = [i for i in (*where[results:], *where[:results]) if isinstance(values[i], Operand)]
        operands = [values[i] for i in where]

        def at(addresses: Sequence[int], numbers: Numbers) -> None:
            found, rest = list(values), iter(map(int, numbers))
            for i, address, operand in zip(where, addresses, operands, strict=True):
                shape, strides = ([next(rest) for _ in operand.shape] for _ in range(2))
                offset, last = next(rest), sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
                memory = over(address, (offset + last + 1) * (0 not in shape), operand.dtype)
                found[i] = memory.as_strided(shape, strides, offset) if len(memory) else memory.reshape(shape)
            fill(found[: len(given)], dict(zip(kwargs, found[len(given) :], strict=True)))

        numbers = tuple(number for o in operands for number in (*o.shape, *o.strides, o.offset))
        return NativeCall(Compiled(at), tuple(operands[: len(operands) - results]), numbers)

    wanted = dict.fromkeys(computes, lambda node, loops: True)
    return Kernel(lambda *given, **kwargs: fill(given, kwargs), destination=True, native=launched, computes=wanted)


def _sort(x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """Returns its results, called from Python."""
    values, indices = torch.sort(x, stable=True, dim=dim, descending=descending)
    return values, indices


CLAIMED = {"scaled_dot_product_attention": 2, "scaled_dot_product_attention_backward": 3, "grouped_mm": 1}
"""Composites and how many results they have."""


@hookimpl
def backend() -> Backend:
    return Backend(name="toyloops", version="1", dtypes=frozenset(ALL), composites=frozenset(CLAIMED))


@hookimpl
def device() -> TorchDevice:
    return TorchDevice("cpu")


@hookimpl
def kernels() -> Mapping[str, Any]:
    rules = {}
    for name, results in CLAIMED.items():
        (rule,) = COMPOSITES[name].targets.values()
        rules[name] = native(rule, results, ["attn_mask"] if name.startswith("scaled_dot_product_attention") else [])
    return {"sort": _sort, **rules}


@hookimpl
def emitter() -> Emitter:
    return LoopEmitter()
