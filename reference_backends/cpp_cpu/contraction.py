"""Contractions to C++: what ``products.h`` asks of a kernel, generated from a matched nest.

A kernel fills blocks of its two factors and finishes tiles of the result. Each of these is a lambda whose innermost loop runs
along memory: the factors' along whichever of their variables the loads are contiguous in, the tiles' along their columns.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from reference_backends.cpp_cpu import interval, machine, products, winograd
from reference_backends.cpp_cpu.sliding import window
from vendor_sdk import contraction, index, loop

if TYPE_CHECKING:
    from reference_backends.cpp_cpu.emitter import KernelText

SUMS: Mapping[torch.dtype, str] = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int32: "int32_t",
    torch.int64: "int64_t",
}
"""Element types of ``products.h``."""
PAIR = "bfloat16_pair"
"""The element type of factors that are bfloat16s, where the processor multiplies them in pairs (``machine``): two steps of the
sum, which is float32."""
SHORT = 64
"""Steps below which the product of a matrix and a vector is left to the plain reduction."""
LONG = 64
"""Elements of a stretch beyond which a longer one is no better."""
PACK = 16
"""Products of a left factor's element in whose time it is packed."""
STRETCHES = 16
"""Iterations of a dimension from which on a factor over several is filled in stretches that end where it ends."""
STRETCH = 128
"""Steps that must lie at one distance for a factor to be read where it lies: blocks of the sum end where they do."""
FEW_ROWS, DOT_STEPS = 24, 128
"""Rows of a left factor up to which, and steps from which on, ``dots.h`` may compute a product."""
CHUNKED_ROWS, CHUNKED_STEPS = range(13, FEW_ROWS + 1), DOT_STEPS
"""Rows of a left factor, and steps from which on, with which AVX-512 multiplies both factors fastest where they lie."""

Access = type[loop.Load] | type[loop.Store]
Run = Callable[[str, str], None]


def template(nest: loop.Nest) -> contraction.Contraction | None:
    """The contraction that ``write`` can write, if ``nest`` is one."""
    found = contraction.match(nest)
    if found is None or found.dtype not in SUMS:
        return None
    if not found.is_matrix_product:
        steps = contraction.sizes(found.k).value
        if (steps is not None and steps < SHORT) or _side_by_side(found) or window(nest) is not None:
            return None
    return found


def _side_by_side(c: contraction.Contraction) -> bool:
    """Whether the factors of neighbouring products lie side by side: sums of columns read them along memory."""
    loads = [s.index for f in (c.left, c.right) for s in f.body if isinstance(s, loop.Load)]
    return any(all(index.stride(place, r.var) == 1 for place in loads) for r in c.batch)


def prepare(dtype: torch.dtype, *, convolutions: bool) -> None:
    """Begins to compile in the background what products with results of this dtype call."""
    kind = SUMS.get(torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype)
    if dtype == torch.bfloat16 and machine.multiplies_pairs():
        kind = PAIR
    filtered = f"Windows<{kind}>" if convolutions and kind == "float" else ""
    for need in products.needs(f"Product<{kind}> {filtered}") if kind is not None else ():
        products.start(need)


def panel(dtype: torch.dtype) -> int:
    """Columns of a panel in which a right factor that is a parameter is best kept (``Emitter.panel``)."""
    return machine.tile_bytes() // dtype.itemsize if dtype in (torch.float32, torch.float64) else 0


def reads_along(dtype: torch.dtype, rows: int | None, columns: int, steps: int) -> bool:
    """Whether ``chunk_products`` of ``dots.h`` computes a product (``Emitter.reads_along``)."""
    fitting = rows in CHUNKED_ROWS and columns >= SHORT and steps >= CHUNKED_STEPS
    return fitting and dtype in SUMS and "avx512f" in machine.flags()


def write(text: KernelText, c: contraction.Contraction) -> None:
    """The nest as one call of ``products.h``, in a block of its own."""
    kernel = text.kernel
    # What the lambdas are given to write and to read are buffers like others.
    given = (loop.Param("to", c.dtype, index.wrap(0), "scratch"), loop.Param("sums", c.dtype, index.wrap(0), "scratch"))
    text.kernel = replace(kernel, scratch=(*kernel.scratch, *given))
    text.out.open("")
    c = replace(c, left=contraction.affine(c.left, STRETCHES), right=contraction.affine(c.right, STRETCHES))
    if not _windows(text, c):
        if _lies_in_panels(text, c.left):
            c = c.exchanged()
        if _lies_in_panels(text, c.right):
            _matrices(text, c, SUMS[c.dtype])
        elif c.is_matrix_product:
            _matrices(text, _oriented(c, text.symbols), _elements(c))
        else:
            _vector(text, c, _elements(c))
    text.out.close()
    text.kernel = kernel


def _windows(text: KernelText, c: contraction.Contraction) -> bool:
    """Writes a convolution whose windows move by one element, or the gradient of its weights; whether ``c`` is one."""
    for each in (c, c.exchanged()):
        windows, overlaps = winograd.windows(each), winograd.overlaps(each)
        if overlaps is not None:
            _by_points(text, each, "weight_gradient", "Overlaps", overlaps)
            return True
        if windows is not None and (_elements(c) != PAIR or winograd.filters(windows)):
            _by_points(text, each, "convolution", "Windows", windows)
            return True
    return False


def _elements(c: contraction.Contraction) -> str:
    """Of what ``products.h`` is asked to multiply."""
    return PAIR if machine.multiplies_pairs() and _is_half(c.left) and _is_half(c.right) else SUMS[c.dtype]


def _is_half(f: contraction.Factor) -> bool:
    """Whether the values of a factor are those of bfloat16s, in float32."""
    by = {to: s for s in f.body if isinstance(s, loop.Compute | loop.Load) for to in (s.to,)}
    last = by.get(f.value)
    if not isinstance(last, loop.Compute) or last.op != "convert" or last.dtype != torch.float32:
        return False
    before = by.get(last.args[0])
    return before is not None and before.dtype == torch.bfloat16


def _ease(body: Sequence[loop.Stmt], ranges: Sequence[loop.Range], access: Access) -> float:
    """How well the accesses of ``body`` go along the last of ``ranges``: elements to a stretch, fewer where they jump."""
    if not ranges:
        return 0
    size = ranges[-1].size.value
    length = LONG if size is None else min(size, LONG)
    steps = [index.stride(s.index, ranges[-1].var) for s in body if isinstance(s, access)]
    costs = [{1: 1, 2: 2}.get(step.value or LONG, 16) if step is not None else 16 for step in steps if step != 0]
    return length / min(costs, default=1)


def _oriented(c: contraction.Contraction, symbols: Container[str]) -> contraction.Contraction:
    """The factors exchanged where that fills tiles better, or where results lie along the left factor's variables."""
    rows, columns, steps = (contraction.sizes(r).value for r in (c.m, c.n, c.k))
    along_rows, along_columns = (_ease(c.epilogue, r, loop.Store) for r in (c.rows, c.columns))
    if rows is None or columns is None:
        return c.exchanged() if along_rows > along_columns else c
    # Results finished across memory cost one lane after the other, as if for so many more steps of the sum.
    apart = 16 * len(c.epilogue) / max(steps or 1, 1)
    as_it_is = _tiled(rows, columns) * (1 + (apart if along_rows > along_columns else 0) + _packed(c.left, columns, symbols))
    other_way = _tiled(columns, rows) * (1 + (apart if along_columns > along_rows else 0) + _packed(c.right, rows, symbols))
    return c.exchanged() if other_way < as_it_is else c


def _packed(left: contraction.Factor, columns: int, symbols: Container[str]) -> float:
    """What packing the left factor adds to the products with it, as a part of them."""
    lies = _lie(left, symbols) if not _is_half(left) or not machine.multiplies_pairs() else _lie_of_pairs(left, symbols)
    return 0 if lies is not None else PACK / max(columns, 1)


def _tiled(rows: int, columns: int) -> float:
    """Products computed for a result of this size in tiles of AVX-512, as a measure of time."""
    panels, rest = divmod(rows, 6)
    whole, tail = divmod(columns, 64)
    # A tile of few rows waits for its columns, one of few columns for its rows.
    height = panels * 6 + (max(rest, 3) if rest else 0)
    width = whole * 64 + (0 if not tail else 24 if tail <= 16 else (tail + 15) // 16 * 16)
    return height * width


def _along(f: contraction.Factor) -> bool:
    """Whether the factor is filled along the steps of the sum rather than across them."""
    if not f.free:
        return True
    along, across = (_ease(f.body, r, loop.Load) for r in (f.reduced, f.free))
    return along > across


def _matrices(text: KernelText, c: contraction.Contraction, kind: str) -> None:
    rows, steps = contraction.sizes(c.m).value, contraction.sizes(c.k).value
    few = (rows is None or rows <= FEW_ROWS) and (steps is None or steps >= DOT_STEPS) and not _lies_in_panels(text, c.right)
    product = _product(text, c, kind, "FewRowsProduct" if few else "Product")
    text.out(f"if (const int32_t failed = matrix_product({product})) status = failed;")


def _by_points(text: KernelText, c: contraction.Contraction, way: str, record: str, w: winograd.Windows) -> None:
    """A product by ``way``, a function of ``products.h``, whose ``record`` says what slides under its windows."""
    product = _product(text, c, SUMS[c.dtype])
    elements = _fill(text, c, w.elements, SUMS[c.dtype])
    windows = text.fresh("windows")
    text.out(f"{record}<{SUMS[c.dtype]}> {windows} = {{}};")
    named = zip(("images", "height", "width"), (contraction.sizes(w.images), w.height, w.width), strict=True)
    text.out(
        ", ".join(f"{windows}.{name} = {index.to_c(size)}" for name, size in named) + f", {windows}.elements = {elements};"
    )
    if record == "Windows":
        text.out(f"{windows}.tall = {w.tall}, {windows}.wide = {w.wide};")
        text.out(f"{windows}.down = {_truth(w.down)}, {windows}.across = {_truth(w.across)};")
        if _ease(c.epilogue, c.rows, loop.Store) > _ease(c.epilogue, c.columns, loop.Store):
            _say_finish(text, windows, _finish(text, c.exchanged()), SUMS[c.dtype])
    text.out(f"if (const int32_t failed = {way}({product}, {windows})) status = failed;")


def _truth(value: bool) -> str:
    return "true" if value else "false"


def _product(text: KernelText, c: contraction.Contraction, kind: str, record: str = "Product") -> str:
    """Writes the factors and what finishes tiles of the result; the name of the ``record`` of elements of ``kind``."""
    left = _fill(text, c, c.left, kind)
    right = (_panels if _lies_in_panels(text, c.right) else _fill)(text, c, c.right, kind)
    finish = _finish(text, c)
    product = text.fresh("product")
    text.out(f"{record}<{kind}> {product} = {{}};")
    _sizes(text, product, ("batches", c.batch), ("m", c.m), ("n", c.n))
    _steps(text, product, c, kind)
    text.out(f"{product}.left = {left}, {product}.right = {right};")
    _say_finish(text, product, finish, kind)
    text.out(f"{product}.spare = spare;")
    return product


def _finish(text: KernelText, c: contraction.Contraction) -> str:
    """Writes the lambda that finishes tiles of the result; its name."""
    finish = text.fresh("finish")
    arguments = "int64_t row, int64_t rows, int64_t column, int64_t columns"
    _open(text, finish, f"int64_t batch, {arguments}, const {SUMS[c.dtype]} *sums, int64_t pitch")
    _split(text, "batch", c.batch)
    _begin(text, c.columns, "column")
    with_row = _Walk(text, c.rows, "row", "rows", "sums += pitch")
    with_row.open()
    _runs(text, c.columns, "column", "columns", _results(text, c, c.columns))
    with_row.close()
    _close(text)
    return finish


def _say_finish(text: KernelText, record: str, finish: str, kind: str) -> None:
    text.out(f"{record}.context = &{finish}, {record}.finish = finish_with<decltype({finish}), {kind}>;")


def _vector(text: KernelText, c: contraction.Contraction, kind: str) -> None:
    matrix, vector = (c.left, c.right) if c.m else (c.right, c.left)
    matrix_name, vector_name = _fill(text, c, matrix, kind), _fill(text, c, vector, kind)
    finish = text.fresh("finish")
    _open(text, finish, f"int64_t batch, int64_t first, int64_t count, const {SUMS[c.dtype]} *sums")
    _split(text, "batch", c.batch)
    results = c.rows if c.m else c.columns
    _begin(text, results, "first")
    _runs(text, results, "first", "count", _results(text, c, results))
    _close(text)
    product = text.fresh("product")
    text.out(f"VectorProduct<{kind}> {product} = {{}};")
    _sizes(text, product, ("batches", c.batch), ("n", c.m or c.n))
    _steps(text, product, c, kind)
    text.out(f"{product}.vector = {vector_name}, {product}.matrix = {matrix_name};")
    text.out(f"{product}.context = &{finish}, {product}.finish = finish_line_with<decltype({finish}), {kind}>;")
    text.out(f"{product}.spare = spare;")
    text.out(f"if (const int32_t failed = vector_product({product})) status = failed;")


def _sizes(text: KernelText, product: str, *named: tuple[str, Sequence[loop.Range]]) -> None:
    text.out(", ".join(f"{product}.{name} = {index.to_c(contraction.sizes(ranges))}" for name, ranges in named) + ";")


def _steps(text: KernelText, product: str, c: contraction.Contraction, kind: str) -> None:
    steps = index.to_c(contraction.sizes(c.k))
    text.out(f"{product}.k = {f'parts({steps}, 2)' if kind == PAIR else steps};")


def _fill(text: KernelText, c: contraction.Contraction, f: contraction.Factor, kind: str) -> str:
    """The text of the ``Factor`` that ``products.h`` takes, after a lambda that tells where it lies or fills blocks of it."""
    along = _along(f)
    address = _address(text, c, f, kind)
    if address:
        return f"{{nullptr, nullptr, {_truth(along)}{address}}}"
    fill = (_pairs if kind == PAIR else _values)(text, c, f, along=along)
    return f"{{&{fill}, fill_with<decltype({fill}), {kind}>, {_truth(along)}}}"


_BLOCK = "int64_t batch, int64_t first, int64_t count, int64_t from, int64_t depth"


def _pairs(text: KernelText, c: contraction.Contraction, f: contraction.Factor, *, along: bool) -> str:
    """Writes the lambda that fills blocks of a factor with pairs of bfloat16s; its name."""
    lie = _lie(_stored(f), text.symbols)
    steps = index.to_c(contraction.sizes(f.reduced))
    across = lie is not None and lie.row.value == 1 and len(f.reduced) == 1 and f.free and not along
    whole = f"batch, first, count, from, depth, {steps}, to, pitch"
    position = _position(text, c, _stored(f)) if across else _values(text, c, f, along=along)
    fill = text.fresh("pairs")
    _open(text, fill, f"{_BLOCK}, {PAIR} *to, int64_t pitch")
    if across:
        assert lie is not None
        rest = f"{index.to_c(lie.step)}, count, depth, {steps} - 2 * from, to, pitch"
        text.out(f"interleave({position}(batch, first, 2 * from), {rest});")
    else:
        text.out(f"pair_up({position}, {_truth(along)}, {whole});")
    _close(text)
    return fill


def _stored(f: contraction.Factor) -> contraction.Factor:
    """A factor of bfloat16s as it is stored, without the conversion of what is loaded; itself for any other."""
    load = f.body[0]
    return replace(f, body=(load,)) if len(f.body) == 2 and _is_half(f) and isinstance(load, loop.Load) else f


def _values(text: KernelText, c: contraction.Contraction, f: contraction.Factor, *, along: bool) -> str:
    """Writes the lambda that fills blocks of a factor, whatever it is computed from; its name."""
    kind = SUMS[c.dtype]
    fill = text.fresh("fill")
    _open(text, fill, f"{_BLOCK}, {kind} *to, int64_t pitch")
    _split(text, "batch", c.batch)
    free, reduced = _Block(f.free, "first", "count"), _Block(f.reduced, "from", "depth")
    outer, inner = (free, reduced) if along else (reduced, free)
    _begin(text, inner.ranges, inner.first)
    window = interval.split(f.body, f.value, inner.ranges[-1].var) if inner.ranges else None
    lines = interval.split(f.body, f.value, outer.ranges[-1].var) if outer.ranges else None
    if lines is not None and _copies_lines(lines, outer, inner):
        _copy_lines(text, lines, outer, inner)
    elif window is not None and _copies(window, outer, inner):
        _copy(text, window, outer, inner)
    else:
        walk = _Walk(text, outer.ranges, outer.first, outer.count, "to += pitch")
        walk.open()
        _runs(text, inner.ranges, inner.first, inner.count, _stretch(text, f, inner.ranges, window))
        walk.close()
    _close(text)
    return fill


@dataclass(frozen=True)
class _Lie:
    """How a factor lies that is a tensor as it stands: its rows are ``row`` elements apart, and steps of the sum ``step``, for
    ``stretch`` steps. One of the two distances is 1."""

    row: index.Int
    step: index.Int
    stretch: index.Int


def _lie(f: contraction.Factor, symbols: Container[str]) -> _Lie | None:
    """None for a factor that is computed, or that lies otherwise; ``symbols`` are those that the kernel knows."""
    load = f.body[0]
    if len(f.body) > 1 or not isinstance(load, loop.Load) or load.mask or len(f.free) > 1 or not f.reduced:
        return None
    last = f.reduced[-1]
    row = index.stride(load.index, f.free[0].var) if f.free else index.ZERO
    step = index.stride(load.index, last.var)
    if row is None or step is None or 1 not in (row.value, step.value):
        return None
    if len(f.reduced) > 1 and (last.size.value is None or last.size.value < STRETCH):
        return None
    known = all(name in symbols for distance in (row, step) for name in index.symbols(distance))
    return _Lie(row, step, last.size) if known else None


def _lie_of_pairs(f: contraction.Factor, symbols: Container[str]) -> _Lie | None:
    """How a factor of bfloat16s lies, in elements, if its pairs lie together too, and rows of them a whole number apart."""
    lie = _lie(_stored(f), symbols) if _is_half(f) else None
    if lie is None or lie.step.value != 1 or len(f.reduced) > 1:
        return None
    even = all(size.value is not None and size.value % 2 == 0 for size in (lie.row, lie.stretch))
    return lie if even else None


def _address(text: KernelText, c: contraction.Contraction, f: contraction.Factor, kind: str) -> str:
    """Writes the lambda that tells where a factor lies that is a tensor as it stands, and gives the rest of the text of its
    ``Factor``; "" for any other."""
    if kind != PAIR:
        lie = _lie(f, text.symbols)
        if lie is None:
            return ""
        address = _position(text, c, f)
        distances = f"{index.to_c(lie.row)}, {index.to_c(lie.step)}, max_int({index.to_c(lie.stretch)}, 1)"
        return f", address_with<decltype({address}), {kind}>, &{address}, {distances}"
    lie = _lie_of_pairs(f, text.symbols)
    if lie is None:
        return ""
    stored, address = _position(text, c, _stored(f)), text.fresh("address")
    text.out.open(f"const auto {address} = [=](int64_t batch, int64_t first, int64_t from)")
    text.out(f"return (const {PAIR} *){stored}(batch, first, 2 * from);")
    text.out.close(after=";")
    distances = f"{index.to_c(lie.row // 2)}, 1, max_int({index.to_c(lie.stretch // 2)}, 1)"
    return f", address_with<decltype({address}), {kind}>, &{address}, {distances}"


def _position(text: KernelText, c: contraction.Contraction, f: contraction.Factor) -> str:
    """Writes the lambda that tells where a factor lies that is a tensor as it stands; its name."""
    load, address = f.body[0], text.fresh("address")
    assert isinstance(load, loop.Load)
    text.out.open(f"const auto {address} = [=](int64_t batch, int64_t first, int64_t from)")
    _split(text, "batch", c.batch)
    _split(text, "first", f.free)
    _split(text, "from", f.reduced)
    text.out(f"return {load.param} + ({index.to_c(load.index)});")
    text.out.close(after=";")
    return address


def _lies_in_panels(text: KernelText, f: contraction.Factor) -> bool:
    """Whether a factor is a tensor in panels (``panel``), the last of them whole."""
    load = f.body[0]
    if len(f.body) > 1 or not isinstance(load, loop.Load) or load.mask or not f.free or len(f.reduced) != 1:
        return False
    width = panel(load.dtype)
    size, steps = contraction.sizes(f.free).value, f.reduced[0].size.value
    if not width or not size or not steps:
        return False
    last = (size - 1) // width
    lane = index.variable("lane", width)
    values, position = {}, index.variable("panel", last + 1) * width + lane
    for r in reversed(f.free[1:]):
        values[r.var], position = position % r.size, position // r.size
    place = index.substitute(load.index, {**values, f.free[0].var: position})
    if index.stride(place, "lane") != 1 or index.stride(place, f.reduced[0].var) != width:
        return False
    end = index.substitute(place, {"panel": last, "lane": width - 1, f.reduced[0].var: steps - 1}).value
    (room,) = (param.size.value for param in text.kernel.params if param.name == load.param)
    return end is not None and room is not None and end < room


def _panels(text: KernelText, c: contraction.Contraction, f: contraction.Factor, kind: str) -> str:
    """The text of the ``Factor`` of one that lies in panels."""
    address, width = _position(text, c, f), panel(c.dtype)
    return f"{{nullptr, nullptr, false, address_with<decltype({address}), {kind}>, &{address}, 1, {width}, 1, {width}}}"


@dataclass(frozen=True)
class _Block:
    """Some ranges, and the parameters that say which of their row-major positions a lambda is asked for."""

    ranges: tuple[loop.Range, ...]
    first: str
    count: str


def _copies(window: interval.Interval, outer: _Block, inner: _Block) -> bool:
    """Whether a factor is what ``windows`` of ``products.h`` copies: lines at one distance in memory, with one interval."""
    load = window.copied
    if load is None or (not window.limits and len(inner.ranges) == 1):
        return False  # A long stretch, which a plain loop copies best.
    step = index.stride(load.index, inner.ranges[-1].var)
    if step is None or step.value not in (1, 2):
        return False
    if not outer.ranges:
        return True
    if (contraction.sizes(outer.ranges[1:]).value or STRETCH) >= STRETCH:
        return False  # All of these are walked for each block, of however few rows.
    line = outer.ranges[0].var
    return index.stride(load.index, line) is not None and not any(line in index.symbols(w.expression) for w in window.limits)


def _copies_lines(window: interval.Interval, outer: _Block, inner: _Block) -> bool:
    """Whether a factor is lines along memory, each of which is all there or not at all: pixels of an image."""
    load = window.copied
    if load is None or not window.limits or len(inner.ranges) != 1:
        return False
    lane = inner.ranges[0].var
    apart = [index.stride(load.index, outer.ranges[-1].var), *(index.stride(w.expression, lane) for w in window.limits)]
    return index.stride(load.index, lane) == 1 and None not in apart and all(step == 0 for step in apart[1:])


def _copy_lines(text: KernelText, window: interval.Interval, outer: _Block, inner: _Block) -> None:
    """Such lines: where the mask holds is found once for all along the last range of ``outer``."""
    load, line = window.copied, outer.ranges[-1].var
    assert load is not None
    step = index.stride(load.index, line)
    assert step is not None
    text.out(f"const int64_t {inner.ranges[0].var} = {inner.first};")
    _begin(text, outer.ranges, outer.first)

    def run(done: str, length: str) -> None:
        low, high = _ends(text, window, line, length)
        text.out(f"{high} = max_int(0, {high}), {low} = min_int({low}, {high});")
        first, apart = index.to_c(index.substitute(load.index, {line: index.symbol(f"{line}_from")})), index.to_c(step)
        for start, stop, kept in (("0", low, "0"), (low, high, inner.count), (high, length, "0")):
            source = f"{load.param} + ({first}) + {start} * ({apart}), {apart}"
            target = f"to + ({done} + {start}) * pitch, pitch, pitch"
            text.out(f"windows<1>({target}, {source}, {stop} - {start}, {inner.count}, 0, {kept});")

    _runs(text, outer.ranges, outer.first, outer.count, run)


def _copy(text: KernelText, window: interval.Interval, outer: _Block, inner: _Block) -> None:
    """Lines along the outermost range of ``outer``, innermost: what a stretch costs to find is shared by all of them."""
    load = window.copied
    assert load is not None
    rest = outer.ranges[1:]
    inner_count = text.fresh("lines")
    text.out(f"const int64_t {inner_count} = {index.to_c(contraction.sizes(rest))};")
    at, begin, end = text.fresh("at"), text.fresh("begin"), text.fresh("end")
    text.out.open(f"for (int64_t {at} = 0; {at} < {inner_count}; ++{at})")
    _split(text, at, rest)
    for name, limit in ((begin, outer.first), (end, f"{outer.first} + {outer.count}")):
        text.out(f"const int64_t {name} = {limit} <= {at} ? 0 : parts({limit} - {at}, {inner_count});")
    text.out(f"if ({begin} >= {end}) continue;")
    pitch = "0"
    if outer.ranges:
        text.out(f"const int64_t {outer.ranges[0].var} = {begin};")
        step = index.stride(load.index, outer.ranges[0].var)
        assert step is not None
        pitch = index.to_c(step)
    last = inner.ranges[-1].var

    def run(done: str, length: str) -> None:
        low, high = _ends(text, window, last, length)
        first = index.substitute(load.index, {last: index.symbol(f"{last}_from")})
        step = index.stride(load.index, last)
        assert step is not None
        target = f"to + ({begin} * {inner_count} + {at} - {outer.first}) * pitch + {done}"
        source = f"{load.param} + ({index.to_c(first)}), {pitch}, {end} - {begin}"
        text.out(f"windows<{step.value}>({target}, {inner_count} * pitch, pitch - {done}, {source}, {length}, {low}, {high});")

    _runs(text, inner.ranges, inner.first, inner.count, run)
    text.out.close()


def _ends(text: KernelText, window: interval.Interval, variable: str, length: str) -> tuple[str, str]:
    """Declares the ends of the interval in a stretch of ``length`` from ``VARIABLE_from``; they may lie outside of it."""
    low, high = text.fresh("low"), text.fresh("high")
    start = {variable: index.symbol(f"{variable}_from")}
    text.out(f"int64_t {low} = 0, {high} = {length};")
    for limit in window.limits:
        at_start = index.to_c(index.substitute(limit.expression, start))
        # With a step, the expression changes sign at the iteration -at_start / step, rounded up.
        if limit.step == 0:
            text.out(f"if ({at_start} {limit.relation} 0) {high} = 0;")
        elif limit.relation == "<":
            text.out(f"{low} = max_int({low}, -floor_div({at_start}, {limit.step}));")
        else:
            text.out(f"{high} = min_int({high}, -floor_div({at_start}, {limit.step}));")
    return low, high


def _results(text: KernelText, c: contraction.Contraction, ranges: Sequence[loop.Range]) -> Run:
    """What finishes a stretch of results."""

    def run(done: str, length: str) -> None:
        total = loop.Load(c.total, "sums", _place(ranges, done), c.dtype)
        _lanes(text, ranges, "0", length, (total, *c.epilogue))

    return run


def _open(text: KernelText, name: str, parameters: str) -> None:
    text.out.open(f"const auto {name} = [=, &status]({parameters}) __attribute__((noinline))")


def _close(text: KernelText) -> None:
    text.out.close(after=";")


def _split(text: KernelText, position: str, ranges: Sequence[loop.Range], suffix: str = "") -> None:
    """Declares the variables of ``ranges``, with a suffix, from their row-major position."""
    kind, rest = "int64_t" if suffix else "const int64_t", position
    for r in reversed(ranges[1:]):
        size = index.to_c(r.size)
        text.out(f"{kind} {r.var}{suffix} = {rest} % ({size});")
        before, rest = rest, text.fresh("rest")
        text.out(f"const int64_t {rest} = {before} / ({size});")
    if ranges:
        text.out(f"{kind} {ranges[0].var}{suffix} = {rest};")


def _carry(text: KernelText, ranges: Sequence[loop.Range], suffix: str) -> None:
    """Lets a variable that reached its size carry into the one before it."""
    for outer, r in zip(reversed(ranges[:-1]), reversed(ranges[1:]), strict=True):
        text.out(f"if ({r.var}{suffix} == {index.to_c(r.size)}) {{ {r.var}{suffix} = 0; ++{outer.var}{suffix}; }}")


class _Walk:
    """A loop over ``count`` row-major positions of ``ranges`` from ``first``; ``after`` runs at the end of each."""

    def __init__(self, text: KernelText, ranges: Sequence[loop.Range], first: str, count: str, after: str) -> None:
        self.text, self.ranges, self.first, self.count, self.after = text, ranges, first, count, after

    def open(self) -> None:
        text, ranges = self.text, self.ranges
        _split(text, self.first, ranges, "_at")
        step = text.fresh("step")
        text.out.open(f"for (int64_t {step} = 0; {step} < {self.count}; ++{step}, {self.after})")
        for r in ranges:
            text.out(f"const int64_t {r.var} = {r.var}_at;")

    def close(self) -> None:
        if self.ranges:
            self.text.out(f"++{self.ranges[-1].var}_at;")
            _carry(self.text, self.ranges, "_at")
        self.text.out.close()


def _begin(text: KernelText, ranges: Sequence[loop.Range], first: str) -> None:
    """Says where the stretches from ``first`` on begin, outside of the loops around ``_runs``: where sizes are symbols, that
    takes divisions, which compilers leave inside."""
    if len(ranges) >= 2:
        _split(text, first, ranges, "_begin")


def _runs(text: KernelText, ranges: Sequence[loop.Range], first: str, count: str, run: Run) -> None:
    """Stretches along the last of ``ranges`` over ``count`` row-major positions from ``first``, as told to ``_begin``. ``run``
    writes one, given its place within the count and its length; it declares the last range's variable from ``VAR_from``."""
    if len(ranges) < 2:
        if ranges:
            text.out(f"const int64_t {ranges[0].var}_from = {first};")
        run("0", count)
        return
    last = ranges[-1]
    done, length = text.fresh("done"), text.fresh("length")
    text.out(f"int64_t {', '.join(f'{r.var}_from = {r.var}_begin' for r in ranges)};")
    text.out.open(f"for (int64_t {done} = 0; {done} < {count};)")
    for r in ranges[:-1]:
        text.out(f"const int64_t {r.var} = {r.var}_from;")
    text.out(f"const int64_t {length} = min_int({index.to_c(last.size)} - {last.var}_from, {count} - {done});")
    run(done, length)
    text.out(f"{done} += {length}, {last.var}_from += {length};")
    _carry(text, ranges, "_from")
    text.out.close()


def _lanes(text: KernelText, ranges: Sequence[loop.Range], start: str, stop: str, body: Sequence[loop.Stmt]) -> None:
    """``body`` for the part of a stretch from ``start`` to ``stop``."""
    if not ranges:
        text.out.open("")
        text.body(body)
        text.out.close()
        return
    last = ranges[-1]
    first, end = text.fresh("first"), text.fresh("end")
    text.out(f"const int64_t {first} = {last.var}_from + {start}, {end} = {last.var}_from + {stop};")
    text.vector_loop(last, body, first, end, cut=False)


def _place(ranges: Sequence[loop.Range], done: str) -> index.Int:
    """Where the current iteration of a stretch is within the count."""
    at = index.symbol(done) if done != "0" else index.wrap(0)
    return at + index.symbol(ranges[-1].var) - index.symbol(f"{ranges[-1].var}_from") if ranges else at


def _stretch(text: KernelText, f: contraction.Factor, ranges: Sequence[loop.Range], window: interval.Interval | None) -> Run:
    """What fills a stretch of a factor. Where its loads are masked, the mask holds for an interval of the stretch: it is found
    first, and the loops inside and outside of it have no masks."""

    def masked(done: str, length: str) -> None:
        _lanes(text, ranges, "0", length, (*f.body, loop.Store("to", _place(ranges, done), f.value)))

    def split(done: str, length: str) -> None:
        assert window is not None
        low, high = _ends(text, window, ranges[-1].var, length)
        text.out(f"{high} = max_int(0, {high}), {low} = min_int({low}, {high});")
        text.body(window.outside)
        text.out(f"for (int64_t lane = 0; lane < {low}; ++lane) to[{done} + lane] = {window.blank};")
        _lanes(text, ranges, low, high, (*window.inside, loop.Store("to", _place(ranges, done), window.value)))
        text.out(f"for (int64_t lane = {high}; lane < {length}; ++lane) to[{done} + lane] = {window.blank};")

    return split if window is not None and window.limits else masked
