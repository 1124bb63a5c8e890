"""Every prim that triton_gpu emits, run through Triton's interpreter on CPU tensors and judged by its row. No GPU is needed.

    TRITON_INTERPRET=1 python -m tests.triton_interpreted [GLOB ...]

prints one JSON object: ``failures`` (case to what is wrong), ``passed`` (prims), ``declined`` (prim to the reason why it is not
emitted), ``symbolic`` (what is wrong with run-time numbers), ``fused`` (with groups of prims),
``contractions`` (with products of matrices), ``attention``. The interpreter executes
everything but NVIDIA's library of functions, for which torch's stand here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import functools
import json
import math
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch

import vendor_sdk
import vendor_sdk.aot
import vendor_sdk.pipeline
from conformance.judge import expected_result, judge
from conformance.program import build
from reference_backends.triton_gpu import divide, launch, plugin
from tests import triton_attention, triton_products
from vendor_sdk import (
    OPSET,
    STORED,
    Backend,
    Effort,
    Kind,
    LoopKernel,
    Prim,
    Route,
    SampleContext,
    TorchDevice,
    hookimpl,
    index,
    loop,
)

PREFERRED = (torch.float32, torch.int64, torch.bool)
"""The dtype of a prim's samples: the first of these that its row has."""
IN_FLOAT64 = ("digamma", "polygamma", "igamma", "igammac", "special_i*e", "special_*k[01]", "special_airy_ai", "special_zeta")
"""Prims that run with float64 too: functions of the emitter's own that compute in it."""
THOROUGH = ("scatter*", "*_scatter", "index*", "gather", "gcd", "logical_*", "sum", "amax", "cumsum", "any", "where", "pow")
"""Prims that run with all their samples: empty and 0-d operands among them, where accesses may leave the buffers."""
SMALLER = ("scatter_*", "index_put", "embedding_dense_backward")
"""Prims that run with these dtypes too, since their sums are kept in others."""
EIGHT_BITS = ("_to_copy", "cat", "index_select", "constant_pad_nd")
"""Prims that run with floats of eight bits too."""


class OnCPU:
    """The plugin as it is, but for the device: the interpreter reads and writes CPU tensors."""

    emitter = staticmethod(plugin.emitter)

    def __init__(self) -> None:
        self.name = f"interpreted_{uuid.uuid4().hex[:8]}"

    @hookimpl
    def backend(self) -> Backend:
        return Backend(name=self.name, version="0", dtypes=frozenset((*STORED, torch.int8)))

    @hookimpl
    def device(self) -> TorchDevice:
        return TorchDevice("cpu")


# NVIDIA's library of functions


def _ilogb(x: torch.Tensor) -> torch.Tensor:
    return torch.frexp(x).exponent - 1


LIBRARY: Mapping[str, Callable[..., torch.Tensor]] = {
    **{
        name: getattr(torch, name)
        for name in [
            "floor",
            "ceil",
            "trunc",
            "exp",
            "exp2",
            "expm1",
            "log",
            "log2",
            "log10",
            "log1p",
            "sin",
            "cos",
            "tan",
            "asin",
            "acos",
            "atan",
            "atan2",
            "sinh",
            "cosh",
            "tanh",
            "asinh",
            "acosh",
            "atanh",
            "hypot",
            "erf",
            "erfc",
            "erfinv",
            "lgamma",
            "copysign",
            "nextafter",
            "fmod",
            "pow",
            "ldexp",
            "sqrt",
        ]
    },
    "rint": torch.round,
    "ilogb": _ilogb,
    "erfcx": torch.special.erfcx,
    "normcdfinv": torch.special.ndtri,
    "cyl_bessel_i0": torch.special.i0,
    "cyl_bessel_i1": torch.special.i1,
    "j0": torch.special.bessel_j0,
    "j1": torch.special.bessel_j1,
    "y0": torch.special.bessel_y0,
    "y1": torch.special.bessel_y1,
}


def stand_in(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """What kernels call in place of a function of NVIDIA's library: torch's, on the interpreter's blocks."""
    from triton import language
    from triton.runtime.interpreter import TensorHandle

    def call(*arguments: Any) -> Any:
        own = [torch.from_numpy(np.asarray(a.handle.data)) for a in arguments]
        # In float64, since torch's float32 functions err more than NVIDIA's; the next number is one of its own dtype.
        wide = own if function is torch.nextafter else [t.double() if t.dtype == torch.float32 else t for t in own]
        result = function(*wide)
        if result.dtype.is_floating_point:
            result = result.to(own[0].dtype)
        blocks = [a for a in arguments if a.type.is_block()]
        dtype = {torch.float32: language.float32, torch.float64: language.float64, torch.int32: language.int32}[result.dtype]
        shape = list(torch.broadcast_shapes(*(tuple(map(int, b.shape)) for b in blocks)))
        return language.tensor(TensorHandle(result.numpy(), dtype), language.block_type(dtype, shape) if blocks else dtype)

    return call


MEMORY: list[tuple[int, int]] = []
"""Where the buffers of the launch begin and end."""


def bounded(first: Callable[..., Any]) -> Callable[..., Any]:
    """A launch whose loads and stores ``inside`` holds to its buffers."""

    def call(self: launch.Launcher, plan: launch.Plan, arguments: tuple[Any, ...]) -> Any:
        storages = [a.untyped_storage() for a in arguments if isinstance(a, torch.Tensor)]
        MEMORY[:] = [(s.data_ptr(), s.data_ptr() + s.nbytes()) for s in storages]  # a view's elements may lie apart
        return first(self, plan, arguments)

    return call


def inside(pointers: Any, mask: Any) -> None:
    """Raises ``IndexError`` where a lane that counts is outside of all buffers."""
    places = pointers[np.broadcast_to(mask, pointers.shape).astype(bool)]
    known = np.zeros(places.shape, bool)
    for begin, end in MEMORY:
        known |= (places >= begin) & (places < end)
    if not known.all():
        raise IndexError(f"{np.count_nonzero(~known)} lanes leave the buffers")


def hasten(interpreter: Any) -> None:
    """Has the interpreter combine blocks, in as many turns as they can be halved, where it would call a function for each
    element; prepare the language once a launch, where it would for each function that is called; and say what is in a tuple
    where that is asked, as it is of no shape; and know how numpy calls a dtype that it has met."""
    from triton import language

    def combined(self: Any, left: list[Any], right: list[Any], kinds: list[Any]) -> list[Any]:
        pairs = [self.to_tensor(d, kind) for side in (left, right) for d, kind in zip(side, kinds, strict=True)]
        result = self.combine_fn.fn(*pairs)
        return [r.handle.data for r in (result if isinstance(result, tuple) else (result,))]

    def reduced(self: Any, given: tuple[Any, ...]) -> list[Any]:
        rank, kinds = len(given[0].shape), [t.dtype for t in given]
        inputs, axis = self.unravel(given, self.axis)
        data = [np.moveaxis(t.handle.data, axis, 0) for t in inputs]
        while len(data[0]) > 1:
            found = combined(self, [d[::2] for d in data], [d[1::2] for d in data], kinds)
            data = [f.reshape(d[::2].shape) for f, d in zip(found, data, strict=True)]
        ends = [d[0] if self.axis is not None else d.item() for d in data]
        if self.keep_dims:
            ends = [np.expand_dims(d, axis) if self.axis is not None else np.full((1,) * rank, d) for d in ends]
        return [self.to_tensor(d, kind) for d, kind in zip(ends, kinds, strict=True)]

    def scanned(self: Any, given: list[Any]) -> list[Any]:
        kinds = [t.dtype for t in given]
        data = [np.moveaxis(t.handle.data, self.axis, 0) for t in given]
        step = 1
        while step < len(data[0]):
            found = combined(self, [np.roll(d, step, 0) for d in data], data, kinds)  # Blocks have powers of two.
            data = [np.concatenate([d[:step], f.reshape(d.shape)[step:]]) for f, d in zip(found, data, strict=True)]
            step *= 2
        return [self.to_tensor(np.moveaxis(d, 0, self.axis), kind) for d, kind in zip(data, kinds, strict=True)]

    prepare = interpreter._patch_lang

    def prepared(function: Any) -> Any:
        modules = [each for each in (language, language.core) if any(each is value for value in function.__globals__.values())]
        ready = all(not language.core.is_builtin(each.load) for each in modules)
        return interpreter._LangPatchScope() if ready else prepare(function)

    core = language.core

    def filled(self: Any, values: Sequence[Any], type: Any = None) -> None:
        self.values = list(values)
        if type is not None:
            self.type = type if isinstance(type, core.tuple_type) else core.tuple_type(type)

    def missing(self: Any, name: str) -> Any:
        if name != "type":
            return self.values[self.type.fields.index(name)]
        self.type = core._type_for_tuple_values(self.values)
        return self.type

    of_numpy, known = interpreter._get_np_dtype, {}

    def recalled(kind: Any) -> Any:
        if kind.name not in known:
            known[kind.name] = of_numpy(kind)
        return known[kind.name]

    interpreter._get_np_dtype = recalled
    core.tuple.__init__, core.tuple.__getattr__ = filled, missing
    interpreter.ReduceOps.generic_reduce = reduced
    interpreter.ScanOps.generic_scan = scanned
    interpreter._patch_lang = prepared


def install() -> None:
    """Puts torch's functions where kernels look for NVIDIA's, lets assertions count, mends what the interpreter gets wrong."""
    from triton import language
    from triton.language.extra.cuda import libdevice
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    hasten(interpreter)
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, debug=True, sanitize_overflow=False)
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        """A scalar is an array of one element, which numpy 2.4 makes no integer of."""
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched
    narrow, widen = InterpreterBuilder.create_fp_trunc, InterpreterBuilder.create_fp_ext

    def narrowed(self: Any, value: Any, dtype: Any) -> Any:
        """The interpreter drops the low bits of a float32 that becomes a bfloat16, where the GPU rounds to nearest even."""
        if (value.dtype.scalar, dtype.scalar) != (language.float32, language.bfloat16):
            return narrow(self, value, dtype)
        halves = torch.from_numpy(np.asarray(value.data)).to(torch.bfloat16)
        return TensorHandle(halves.view(torch.uint16).numpy(), language.bfloat16)

    def widened(self: Any, value: Any, dtype: Any) -> Any:
        """The interpreter takes subnormal bfloat16 numbers for zero."""
        if (value.dtype.scalar, dtype.scalar) != (language.bfloat16, language.float32):
            return widen(self, value, dtype)
        halves = torch.from_numpy(np.asarray(value.data)).view(torch.bfloat16)
        return TensorHandle(halves.to(torch.float32).numpy(), language.float32)

    def fused(self: Any, x: Any, y: Any, z: Any) -> Any:
        """The interpreter rounds the product too; float64 holds that of float32 numbers exactly."""
        total = x.data.astype(np.float64) * y.data + z.data
        return TensorHandle(total.astype(x.data.dtype), x.dtype.scalar)

    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def guarded_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        inside(pointers.data, mask.data)
        return load(self, pointers, mask, *rest)

    def guarded_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        inside(pointers.data, mask.data)
        return store(self, pointers, value, mask, *rest)

    InterpreterBuilder.create_masked_load = guarded_load
    InterpreterBuilder.create_masked_store = guarded_store
    launch.Launcher.first = bounded(launch.Launcher.first)  # type: ignore[method-assign]
    multiply = InterpreterBuilder.create_dot

    def dot(self: Any, a: Any, b: Any, d: Any, *settings: Any) -> Any:
        """The interpreter multiplies the bits of bfloat16 numbers as integers."""
        return multiply(self, *(exact(x, widened(self, x, language.float32)) for x in (a, b)), d, *settings)

    def exact(x: Any, wide: Any) -> Any:
        return wide if x.dtype.scalar == language.bfloat16 else x

    InterpreterBuilder.create_dot = dot
    splat = InterpreterBuilder.create_splat

    def splatted(self: Any, kind: Any, value: Any) -> Any:
        """The interpreter takes the dtype of what was compared for that of the result, where it makes a scalar a block."""
        if np.asarray(value.data).dtype != np.bool_:
            return splat(self, kind, value)
        return TensorHandle(np.full(kind.shape, np.asarray(value.data).item()), language.int1)

    InterpreterBuilder.create_splat = splatted
    InterpreterBuilder.create_fma = fused
    InterpreterBuilder.create_fp_trunc = narrowed
    InterpreterBuilder.create_fp_ext = widened

    for name, function in LIBRARY.items():
        assert hasattr(libdevice, name), name
        setattr(libdevice, name, stand_in(function))


# Cases


def named(row: Prim, globs: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(row.name, glob) for glob in globs)


def dtypes(row: Prim) -> list[torch.dtype]:
    """Those that a prim runs with."""

    first = next((d for d in PREFERRED if d in row.dtypes), next(iter(row.dtypes), torch.float32))
    others = (torch.float64,) * named(row, IN_FLOAT64) + (torch.bfloat16, torch.uint8, torch.bool) * named(row, SMALLER)
    others += vendor_sdk.FLOAT8 * named(row, EIGHT_BITS)
    return [first, *(d for d in others if d in row.dtypes)]


def run(row: Prim, dtype: torch.dtype, name: str) -> str:
    """The reason why no sample is emitted, or ``""`` when all that are emitted are right. Raises ``AssertionError``."""
    effort = Effort.STANDARD if named(row, THOROUGH) else Effort.QUICK
    samples = list(row.samples(SampleContext.make(dtype, effort)))
    if not samples:
        return "the row has no samples"
    expectations = [expected_result(row, s) for s in samples]
    program = build(row.target, samples, [e.outline for e in expectations], torch.device("cpu"))
    graph = vendor_sdk.trace(program.module, program.inputs)
    compiled = vendor_sdk.compile_graph(graph, backend=name)
    own = [p.placement for p in compiled.placements if p.prim == row.name]
    if not any(p.kind is Kind.NATIVE and p.route is Route.EMITTER for p in own):
        return next((p.reason or str(p.kind) for p in own), "it is rewritten to other prims")
    torch.manual_seed(0)
    results = program.split(compiled(*program.inputs))
    for sample, expectation, result in zip(samples, expectations, results, strict=True):
        judgement = judge(row, sample, expectation, result)
        assert not judgement.problem, f"{sample.label}: {judgement.problem}"
    return ""


# Run-time numbers


def sizes(name: str) -> str:
    """Kernels compiled once for all sizes of a symbol."""
    graphs: list[Any] = []

    def function(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        columns = a.sum(0) * a.shape[0]
        return a.softmax(1), columns, a.sum(), a.transpose(0, 1).reshape(-1), a.cumsum(1), torch.cat((a, -a), 1).exp()

    backend = functools.partial(vendor_sdk.aot.compile_dynamo, backend=name)
    with vendor_sdk.pipeline.recording(graphs.append):
        compiled = torch.compile(function, backend=backend, dynamic=True)
        for shape in ((3, 67), (40, 5), (2, 300)):
            a = torch.rand(shape) * 4  # of one sign, so that sums lose no digits
            for result, expected in zip(compiled(a), function(a), strict=True):
                torch.testing.assert_close(result, expected)
    return "" if len(graphs) == 1 else f"{len(graphs)} graphs were compiled for three shapes"


def sizes_around_tiles(name: str) -> str:
    """Several axes whose sizes are symbols lie around those that are tiled together."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.permute(2, 1, 0) + y

    compiled = torch.compile(function, backend=functools.partial(vendor_sdk.aot.compile_dynamo, backend=name), dynamic=True)
    for first, *inner in ((3, 4, 5, 6), (2, 9, 7, 40)):
        x, y = torch.randn(inner), torch.randn(first, *reversed(inner))
        torch.testing.assert_close(compiled(x, y), function(x, y))
    return ""


def divided_by_sizes(name: str) -> str:
    """Loops whose lengths are symbols, divided or not as these tell: of columns, of all elements, of halves of rows, of a
    norm, whose gradients have as many chunks as rows allow."""
    cases: list[tuple[Callable[..., Any], list[tuple[int, ...]]]] = [
        (lambda x: x.sum(0), [(600, 5), (3, 5), (1100, 131), (5, 600), (0, 5), (5, 0)]),
        (lambda x: (x - x.mean(0)) * 2, [(600, 5), (7, 65), (2, 3)]),
        (lambda x: torch.linalg.vector_norm(x), [(90, 100), (200, 333), (3, 5), (1, 4096), (0, 3)]),
        (lambda x: x.amax(), [(190, 173), (128, 192), (3, 5)]),
        (lambda x: x.unflatten(1, (-1, 70)).sum((0, 2)), [(600, 140), (3, 210)]),
        (lambda x: torch.cat([-x.chunk(2, 1)[1], x.chunk(2, 1)[0]], 1), [(5, 64), (3, 7), (4, 2)]),
        (_norm_gradients, [(70, 48), (300, 40), (3, 33), (16, 5)]),
    ]
    backend = functools.partial(vendor_sdk.aot.compile_dynamo, backend=name)
    wrong = []
    for number, (function, shapes) in enumerate(cases):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend=backend, dynamic=True)
        for shape in shapes:
            x = torch.randn(shape)
            try:
                torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-4)
            except AssertionError as error:
                wrong.append(f"{number}: {shape}: {error}")
    return "\n".join(wrong)


def more_rows(name: str) -> str:
    """Columns of a known number, some of which begin inside of vectors, in parts of as many rows as the call tells."""
    backend = functools.partial(vendor_sdk.aot.compile_dynamo, backend=name)
    wrong = []
    for function in (lambda x: x.sum(0), lambda x: x.amax(0), lambda x: (x * x).mean((0, 1))):
        for columns in (9, 16):
            torch._dynamo.reset()
            compiled = torch.compile(function, backend=backend)
            for rows in (4100, 8192, 511, 512, 70, 2):
                x = torch.randn(rows, columns)
                torch._dynamo.mark_dynamic(x, 0)
                try:
                    torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-3)
                except AssertionError as error:
                    wrong.append(f"{rows}x{columns}: {error}")
    return "\n".join(wrong)


def _norm_gradients(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    weight = x[0] + 1
    gradient, mean, rstd = x * 3, x.mean(1, keepdim=True), (x.var(1, keepdim=True, correction=0) + 1e-5).rsqrt()
    args = (gradient, x, [x.shape[1]], mean, rstd, weight, weight, [True, True, True])
    return torch.ops.aten.native_layer_norm_backward(*args)  # type: ignore[no-any-return]


def float_symbol(name: str) -> str:
    """A float64 number that no float32 equals, and an integer beyond 32 bits, arrive as they are."""
    emitter = plugin.emitter({})
    i = index.variable("i0", 3)
    body = (
        loop.Scalar("v0", "rate", torch.float64),
        loop.Scalar("v1", "seed", torch.int64),
        loop.Store("out0", i, "v0"),
        loop.Store("out1", i, "v1"),
    )
    outputs = (
        loop.Param("out0", torch.float64, index.wrap(3), "out"),
        loop.Param("out1", torch.int64, index.wrap(3), "out"),
    )
    symbols = (loop.Symbol("rate", torch.float64, "scalar"), loop.Symbol("seed", torch.int64, "seed"))
    kernel = LoopKernel("k", outputs, symbols, (loop.Nest((loop.Range("i0", index.wrap(3)),), body),))
    (launch,) = emitter.compile([(kernel, emitter.emit(kernel))])
    results = torch.empty(3, dtype=torch.float64), torch.empty(3, dtype=torch.int64)
    for rate, seed in ((0.1, 1), (1e300, 2**62 + 1)):
        launch(results, (rate, torch.tensor([seed])))  # type: ignore[arg-type]
        if results[0].tolist() != [rate] * 3 or results[1].tolist() != [seed] * 3:
            return f"{rate} and {seed} arrive as {results}"
    return ""


def out_of_range(name: str) -> str:
    """An index beyond its tensor stops the kernel."""
    arguments = torch.ones(5), torch.tensor([4, 5])
    compiled = vendor_sdk.compile_graph(vendor_sdk.trace(lambda a, i: a.index_select(0, i), arguments), backend=name)
    try:
        compiled(*arguments)
    except vendor_sdk.VendorSDKError as error:
        return "" if "index out of range" in str(error) else str(error)
    return "it was read"


def no_rows(name: str) -> str:
    """A loop over as many rows as a symbol says reads none ahead where there is none."""
    emitter = plugin.emitter({})
    rows, c = index.symbol("s0", 0), index.variable("c", 64)
    row = index.variable("i", rows)
    load = loop.Load("v0", "in0", row * 64 + c, torch.float32)
    body = loop.Nest((loop.Range("c", index.wrap(64)),), (load, loop.Store("out0", row * 64 + c, "v0")))
    total = loop.Reduce(
        (loop.Range("c", index.wrap(64)),), (load,), (loop.Accumulator(("a0",), "sum", ("v0",), torch.float32),)
    )
    by_row = loop.Nest((loop.Range("i", rows),), (total, loop.Store("out1", row, "a0"), body))
    params = tuple(
        loop.Param(name, torch.float32, size, role)  # type: ignore[arg-type]
        for name, size, role in (("in0", rows * 64, "in"), ("out0", rows * 64, "out"), ("out1", rows, "out"))
    )
    kernel = LoopKernel("k", params, (loop.Symbol("s0"),), (loop.Nest((), (by_row,)),))
    (launched,) = emitter.compile([(kernel, emitter.emit(kernel))])
    for length in (3, 0):
        x = torch.randn(length, 64)
        copy, totals = torch.empty_like(x), torch.empty(length)
        launched((x, copy, totals), (length,))
        if not torch.equal(copy, x) or not torch.allclose(totals, x.sum(1), atol=1e-4):
            return f"{length} rows: {copy}, {totals}"
    return ""


def nothing_to_add(name: str) -> str:
    """A total over as many elements as a symbol says is zero where there is none, and nothing is read for it."""
    emitter = plugin.emitter({})
    columns, rows = index.symbol("s0", 0), index.symbol("u0", 0)
    c, r = index.variable("c", columns), index.variable("r", rows)
    load = loop.Load("v0", "in0", c + r * columns, torch.float32)
    total = loop.Reduce((loop.Range("r", rows),), (load,), (loop.Accumulator(("a0",), "sum", ("v0",), torch.float32),))
    nest = loop.Nest((loop.Range("c", columns),), (total, loop.Store("out0", c, "a0")))
    params = (
        loop.Param("in0", torch.float32, rows * columns, "in"),
        loop.Param("out0", torch.float32, columns, "out"),
    )
    kernel = LoopKernel("k", params, (loop.Symbol("s0"), loop.Symbol("u0")), (nest,))
    (launched,) = emitter.compile([(kernel, emitter.emit(kernel))])
    for count in (3, 0, 64, 200):
        x, result = torch.rand(count, 5), torch.full((5,), math.nan)
        launched((x, result), (5, count))
        if not torch.allclose(result, x.sum(0)):
            return f"of {count} rows: {result}, not {x.sum(0)}"
    return ""


def kinds_of_rows(name: str) -> str:
    """Tiles of several rows, each of which begins elsewhere in a vector; rows too long for a tile, with infinities."""
    short, long, odd = torch.randn(11, 133), torch.randn(4, 1200), torch.randn(3, 1205)
    long[0, 5::7] = long[1] = -math.inf
    long[2, 900] = math.inf
    # Few programs are enough, so that no row is divided.
    with long_early(), mock.patch.object(launch, "PROGRAMS", 1):
        try:
            for x in (short, long, odd, odd[:, :1201]):
                compiled = vendor_sdk.compile_graph(vendor_sdk.trace(lambda x: x.softmax(1), (x,)), backend=name)
                result = compiled(x)
                result = result[0] if isinstance(result, tuple | list) else result
                torch.testing.assert_close(result, x.softmax(1), rtol=1e-5, atol=1e-6, equal_nan=True)
        except AssertionError as error:
            return str(error)
    return ""


def rounded_quotients(name: str) -> str:
    """Quotients of bfloat16 numbers by rows' divisors are rounded correctly, whatever the numbers."""
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -3.0, 2.0**-126, 2.0**-133, 1e-35, 3e38, -1e35]
    patterns = torch.randint(-(2**15), 2**15, (240,)).to(torch.int16).view(torch.bfloat16)
    x = torch.cat([torch.tensor(special, dtype=torch.bfloat16), patterns])
    divisors = x[torch.randperm(len(x))[:40]]
    rows = (x.expand(52, -1).contiguous(), torch.cat([x[: len(special)], divisors])[:, None])
    result = vendor_sdk.compile_graph(vendor_sdk.trace(lambda x, d: x / d, rows), backend=name)(*rows)
    result = result[0] if isinstance(result, tuple | list) else result
    right = (rows[0].double() / rows[1].double()).to(torch.bfloat16)
    # Below the normal numbers, a tie of bfloat16 may be one of float32 that was rounded before.
    wrong = (result != right) & ~(result.isnan() & right.isnan()) & (right.abs() >= 2.0**-126)
    wrong |= (result - right).abs() > 2.0**-133
    wrong &= ~(result.isnan() & right.isnan()) & (result != right)
    if not wrong.any():
        return ""
    row, column = wrong.nonzero()[0].tolist()
    return f"{x[column].item()} / {rows[1][row].item()} is {result[row, column].item()}, not {right[row, column].item()}"


def rounded_gelu(name: str) -> str:
    """Of every bfloat16 number, with its gradient: float64's, rounded, but for an error of 1 + erf of 2e-6 before that."""
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    one = torch.ones_like(x)

    def both(a: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.nn.functional.gelu(a), torch.ops.aten.gelu_backward(g, a)

    right = both(x.double(), one.double())
    for result, expected in zip(
        vendor_sdk.compile_graph(vendor_sdk.trace(both, (x, one)), backend=name)(x, one), right, strict=True
    ):
        exact = expected.to(torch.bfloat16)
        half = torch.exp2(expected.frexp().exponent.clamp(min=-125).double() - 9)  # of an ulp
        near = (result.double() - expected).abs() <= half + 1e-6 * x.double().abs().clamp(max=8)
        bad = ~(near | (result == exact) | (result.isnan() & (exact.isnan() | x.isinf())))
        if bad.any():
            return f"of {x[bad][0].item()}: {result[bad][0].item()}, not {expected[bad][0].item()}"
    return ""


@contextlib.contextmanager
def long_early() -> Iterator[None]:
    """Rows are long from 1,024 elements on: the interpreter combines pairs one by one."""
    with contextlib.ExitStack() as stack:
        for module, constant, value in ((launch, "ELEMENTS", 256), (launch, "LONGEST", 1024), (divide, "LONGEST", 1024)):
            stack.enter_context(mock.patch.object(module, constant, value))
        yield


# Fused groups


def _cross_entropy(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(x, t)


def _norm_backward(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    xd = x - x.mean(1, keepdim=True)
    rstd = (xd.square().mean(1, keepdim=True) + 1e-5).rsqrt()
    h, gw = xd * rstd, g * w
    return (gw - gw.mean(1, keepdim=True) - h * (gw * h).mean(1, keepdim=True)) * rstd, (g * h).sum(0), g.sum(0)


def _norm(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)


def _rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * (x.square().mean((1, 2), keepdim=True) + 1e-5).rsqrt() * w


def _masked_softmax(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    """Of rows whose first fifth is masked: a part of nothing but negative infinities."""
    return torch.where(torch.arange(x.shape[1]) * 5 < x.shape[1], -math.inf, x + m).softmax(1)


def _rope(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * c + torch.cat((-second, first), -1)


def _rows_and_weight(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), w) + x.transpose(0, 1).reshape(x.shape).mean(-1, keepdim=True)


def _steps(*tensors: torch.Tensor) -> list[torch.Tensor]:
    params, moments = tensors[:4], tensors[4:]
    moments = torch._foreach_mul(moments, 0.9)  # type: ignore[assignment]
    return [*torch._foreach_add(params, torch._foreach_abs(moments), alpha=-0.1), *moments]


GROUPS: Mapping[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "softmax in one tile": (lambda x: x.softmax(1), ((5, 64),)),
    "softmax beside zeros": (lambda x: torch.nn.functional.pad(x.softmax(1), (0, 5)), ((5, 67),)),
    "softmax in pieces": (lambda x: x.softmax(1), ((5, 67),)),
    "softmax of rows that begin anywhere": (lambda x: x.softmax(1), ((9, 263),)),
    "softmax of rows that end anywhere": (lambda x: x[:, :263].softmax(1), ((3, 264),)),
    "losses of rows that end anywhere": (lambda x: -x[:, :263].log_softmax(1)[:, 0].sum(), ((9, 264),)),
    "rows that begin anywhere, and a weight": (_rows_and_weight, ((2, 5, 263), (263,))),
    "softmax of a divided row": (lambda x: x.softmax(1), ((1, 1300),)),
    "layer norm backward": (_norm_backward, ((70, 48), (70, 48), (48,))),
    "layer norm backward, pieces and a ragged last chunk": (_norm_backward, ((71, 37), (71, 37), (37,))),
    "layer norm backward, even pieces": (_norm_backward, ((40, 704), (40, 704), (704,))),
    "layer norm backward, even pieces of odd rows": (_norm_backward, ((33, 1301), (33, 1301), (1301,))),
    "transposed": (lambda x, y: x.t() + y, ((70, 130), (130, 70))),
    "batch of transposed": (lambda x, y: x.transpose(1, 2) * y, ((3, 65, 66), (3, 66, 65))),
    "columns": (lambda x: (x * 2).sum(0), ((300, 70),)),
    "softmax of columns": (lambda x: x.softmax(1), ((3, 70, 64),)),
    "softmax of columns that begin anywhere": (lambda x: x.softmax(1), ((3, 300, 67),)),
    "softmax of few columns": (lambda x: x.softmax(1).sin(), ((4, 41, 5),)),
    "norm of channels": (lambda x: _norm(x.transpose(1, 2)).transpose(1, 2), ((2, 96, 49),)),
    "standardized columns": (lambda x: (x - x.mean(0)) / x.std(0), ((1000, 20),)),
    "parts of a result": (lambda x, y: torch.cat((x.exp(), y, x.flip(1)), 1), ((37, 100), (37, 33))),
    "interleaved": (lambda x, y: torch.stack((x, y.t()), -1), ((37, 30), (30, 37))),
    "columns divided": (lambda x: (x * 2).sum(0), ((601, 72),)),
    "columns divided, no zeros between": (lambda x: (x + 2).sum(0), ((601, 72),)),
    "the largest of a divided row, and where": (lambda x: (x.amax(), x.argmax()), ((1301,),)),
    "elements whose count no vector divides": (lambda x, y: (x * y).exp(), ((3, 1001), (1001,))),
    "rope": (_rope, ((6, 5, 64), (5, 64))),
    "odd rows and copies of a weight": (lambda x, w: x * x.square().mean(1, keepdim=True).rsqrt() * w, ((257, 263), (263,))),
    "odd rows, and totals": (_norm_backward, ((261, 259), (261, 259), (259,))),
    "odd columns divided": (lambda x: (x * 2).sum(0), ((1100, 131),)),
    "totals of long rows": (lambda x: (x.exp() / x.exp().sum(1, keepdim=True), x.exp().sum(0)), ((3, 17000),)),
    "cumulative": (lambda x: x.cumsum(1) - x.mean(1, keepdim=True), ((5, 67),)),
    "steps of parameters": (_steps, ((33,), (1,), (5, 257), (16, 128), (33,), (1,), (5, 257), (16, 128))),
    "team: softmax": (lambda x: x.softmax(1), ((3, 40000),)),
    "team: nothing but infinities": (lambda x: (x - torch.where(x > -9, math.inf, 0)).softmax(1).nan_to_num(7), ((1, 36000),)),
    "team: infinities in a part": (_masked_softmax, ((2, 40000), (40000,))),
    "team: parts of unequal length": (lambda x: x.log_softmax(1), ((2, 50004),)),
    "team: norm": (lambda x, w: torch.layer_norm(x * 3 + 50, (40000,), w, w), ((3, 40000), (40000,))),
    "team: norm with statistics": (lambda x: torch.ops.aten.native_layer_norm(x, [50004], None, None, 1e-5), ((2, 50004),)),
    "team: norm of a sum": (lambda x, y, w: _rms_norm(x + y, w), ((2, 3, 20000), (2, 3, 20000), (20000,))),
    "team: reductions that follow each other": (
        lambda x: x - (x - x.amax(1, keepdim=True)).sum(1, keepdim=True),
        ((2, 36864),),
    ),
    "team: norm of padded rows": (lambda x: _norm(torch.nn.functional.pad(x, (5, 9))), ((2, 49990),)),
    "team: norm of masked rows": (lambda x, m: _norm(torch.where(m > 0, x, 0.5)), ((2, 50004), (50004,))),
    "team: integers": (lambda x: (x * 64).int() - (x * 64).int().amax(-1, keepdim=True), ((2, 40000),)),
    "columns, of which there are none": (
        lambda x, y, z: (x == y, x == z, (x == y).sum(0), (x == z).sum(0)),
        ((5, 0, 5), (0, 5), (0, 5)),
    ),
    "two reductions of a row": (lambda x: (x.sum(1), x.amax(1), x.argmin(1)), ((9, 100),)),
}


def fused(name: str) -> dict[str, str]:
    """What is wrong with groups of prims that run as one kernel, against float64."""
    wrong: dict[str, str] = {}
    for what, (function, shapes) in GROUPS.items():
        inputs = [torch.randn(shape) for shape in shapes]
        exact = function(*(t.double() for t in inputs))
        with long_early() if "divided row" in what else contextlib.nullcontext():
            results = vendor_sdk.compile_graph(vendor_sdk.trace(function, inputs), backend=name)(*inputs)
        exact, results = (list(r) if isinstance(r, tuple | list) else [r] for r in (exact, results))
        for result, expected in zip(results, exact, strict=True):
            try:
                torch.testing.assert_close(result.to(expected.dtype), expected, rtol=2e-5, atol=2e-4)
            except AssertionError as error:
                wrong[what] = str(error)
    targets = torch.randint(0, 48, (70,))
    x = torch.randn(70, 48)
    graph = vendor_sdk.trace(_cross_entropy, (x, targets))
    (loss,) = [vendor_sdk.compile_graph(graph, backend=name)(x, targets)]
    loss = loss[0] if isinstance(loss, tuple | list) else loss
    if abs(float(loss) - float(_cross_entropy(x.double(), targets))) > 1e-5:
        wrong["cross entropy"] = f"{loss}"
    return wrong


def beyond_32_bits(name: str) -> str:
    """Numbers that follow from positions, and that no dtype of indices holds."""

    def numbers(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        row, column = torch.arange(6)[:, None], torch.arange(5)
        return (
            row * 3_528_531_795 + x,
            (row * 5 + column) * 1_000_000_007 + x,
            (row * 2_000_000_000 + column * 900_000_000) // 7 % 1_000_003 + x,
            torch.arange(5) - 3_000_000_000 + x,
        )

    x = torch.randint(9, (6, 5))
    results = vendor_sdk.compile_graph(vendor_sdk.trace(numbers, (x,)), backend=name)(x)
    wrong = [place for place, (one, other) in enumerate(zip(results, numbers(x), strict=True)) if not torch.equal(one, other)]
    return f"results {wrong}" if wrong else ""


SYMBOLIC = {
    "beyond 32 bits": beyond_32_bits,
    "sizes": sizes,
    "sizes around tiles": sizes_around_tiles,
    "divided by sizes": divided_by_sizes,
    "more rows": more_rows,
    "float": float_symbol,
    "index out of range": out_of_range,
    "no rows": no_rows,
    "nothing to add": nothing_to_add,
    "kinds of rows": kinds_of_rows,
    "rounded quotients": rounded_quotients,
    "rounded gelu": rounded_gelu,
}


def main(globs: list[str]) -> None:
    install()
    torch.manual_seed(0)
    np.seterr(all="ignore")  # what is computed outside the masks
    chip = OnCPU()
    vendor_sdk.register(chip)
    passed: list[str] = []
    declined: dict[str, str] = {}
    failures: dict[str, str] = {}
    seconds: dict[str, float] = {}
    for row in OPSET.values():
        if globs and not any(fnmatch.fnmatchcase(row.name, glob) for glob in globs):
            continue
        start = time.perf_counter()
        for dtype in dtypes(row):
            case = f"{row.name}[{str(dtype).removeprefix('torch.')}]"
            try:
                reason = run(row, dtype, chip.name)
            except Exception as error:
                traceback.print_exc()
                failures[case] = f"{type(error).__name__}: {error}"
            else:
                if reason:
                    declined[row.name] = reason
                elif row.name not in passed:
                    passed.append(row.name)
        seconds[row.name] = round(time.perf_counter() - start, 2)
    contractions = triton_products.wrong(chip.name) if not globs or "contractions" in globs else {}
    symbolic = {what: check(chip.name) for what, check in SYMBOLIC.items()} if not globs or "symbolic" in globs else {}
    groups = fused(chip.name) if not globs or "fused" in globs else {}
    slowest = dict(sorted(seconds.items(), key=lambda item: -item[1])[:10])
    report = {"failures": failures, "passed": passed, "declined": declined, "symbolic": symbolic, "fused": groups}
    report["contractions"] = contractions
    report["attention"] = triton_attention.wrong() if not globs or "attention" in globs else {}
    print(json.dumps({**report, "slowest": slowest}))


if __name__ == "__main__":
    main(sys.argv[1:])
