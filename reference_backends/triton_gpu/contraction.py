"""Contractions to Triton: a nest that ``vendor_sdk.contraction`` matches, as one function that multiplies tiles.

Each program computes one tile of the result: XBLOCK rows by YBLOCK columns of one matrix of the batch, in steps of KBLOCK terms
on the tensor cores, summed in float32. Both factors are whatever the nest computes (loads of halves, numbers dequantized on
the way), and so is what follows the sum. Programs that run at a time lie in a square of tiles: they share operands in the L2.

    left    axis x: rows        axis r: terms of the sum
    right   axis x: terms       axis r: columns
    result  axis x: rows        axis r: columns
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from reference_backends.triton_gpu.analysis import late
from reference_backends.triton_gpu.functions import function_text, given, most_elements, numbers_text
from reference_backends.triton_gpu.products import Factors
from reference_backends.triton_gpu.statements import R, Statements, Writer, X
from reference_backends.triton_gpu.table import HALVES
from reference_backends.triton_gpu.tiles import Tile
from vendor_sdk import LoopKernel, contraction, index, loop

CONSTANTS = ("INDEX", "XBLOCK", "YBLOCK", "KBLOCK", "GROUP", "XBLOCK_FULL", "YBLOCK_FULL", "KBLOCK_FULL", "HALVED", "PRECISION")
"""What a launch decides, in this order. GROUP: rows of tiles whose programs run one after the other; HALVED: whether what
follows the sum is done for one half of the columns after the other."""


def template(nest: loop.Nest) -> contraction.Contraction | None:
    """The contraction that ``ProductText`` can write, if ``nest`` is one."""
    found = contraction.match(nest)
    return found if found is not None and found.is_matrix_product and found.dtype == torch.float32 else None


def narrow(f: contraction.Factor) -> tuple[str, torch.dtype]:
    """The factor as the tensor cores take it: a half that was only converted to float32 for the product is one itself."""
    made = {s.to: s for s in f.body if not isinstance(s, loop.Store | loop.Reduce | loop.Scan | loop.Nest | loop.Local)}
    last = made[f.value]
    if isinstance(last, loop.Compute) and last.op == "convert":
        source = made[last.args[0]]
        if source.dtype in HALVES:
            return last.args[0], source.dtype
    return f.value, torch.float32


def factors(c: contraction.Contraction) -> Factors:
    """What kinds of numbers are multiplied. Halves of two kinds are, exactly, in TF32."""
    found = [(f.body, *narrow(f)) for f in (c.left, c.right)]
    kinds = {dtype for _, _, dtype in found}
    if torch.float32 in kinds:
        return "float32"
    if len(kinds) > 1:
        return "mixed"
    return "halves" if all(_from_memory(body, value) for body, value, _ in found) else "computed"


class ProductText(Statements):
    """The function of one contraction.

    Args:
        name: of the function.
    """

    def __init__(self, kernel: LoopKernel, name: str, c: contraction.Contraction) -> None:
        super().__init__(kernel)
        self.name, self.c = name, c
        self.batches, self.rows, self.columns, self.terms = (contraction.sizes(r) for r in (c.batch, c.m, c.n, c.k))
        self.x_block = "XBLOCK"
        self.written = {s.param for s in c.epilogue if isinstance(s, loop.Store)}
        self.late = late(c.epilogue)
        self.factors = factors(c)

    def shape(self, axes: frozenset[str]) -> str:
        assert self.tile is not None
        return f"[{self.x_block if 'x' in axes else '1'}, {self.tile.block if 'r' in axes else '1'}]" if axes else "[]"

    def axis(self, name: str, block: str, number: str, ranges: Sequence[loop.Range], size: index.Int) -> None:
        """Lays ``ranges`` along the axis x or r."""
        self.axes[number] = X if name == "x" else R
        if name == "x":
            self.x_block, self.x_mask = block, f"{number}_mask"
        else:
            self.tile = Tile(block, number, f"{number}_mask", size)
        self.place(ranges, index.variable(number, size))

    def number(self, number: str, start: str, block: str, size: index.Int, axis: str) -> None:
        """Numbers the iterations along one axis of a tile, and says which of them count."""
        self.out(f"{number} = ({start} + tl.arange(0, {block})){'[:, None]' if axis == 'x' else '[None, :]'}")
        self.out(f"{number}_mask = ({number} < {self.expression(size)[0]}) | {block}_FULL")

    def text(self) -> str:
        c = self.c
        for line in numbers_text(self.kernel):
            self.out(line)
        self.open()
        self.out("total = tl.zeros([XBLOCK, YBLOCK], tl.float32)")
        self.out(f"for start in range(0, {self.expression(self.terms)[0]}, KBLOCK):")
        self.out.depth += 1
        self.number("k_along", "tl.cast(start, INDEX)", "KBLOCK", self.terms, "r")
        self.number("k_down", "tl.cast(start, INDEX)", "KBLOCK", self.terms, "x")
        self.axis("x", "XBLOCK", "x_index", c.left.free, self.rows)
        self.axis("r", "KBLOCK", "k_along", c.left.reduced, self.terms)
        left = self.factor(c.left, "left", R)
        self.axis("x", "KBLOCK", "k_down", c.right.reduced, self.terms)
        self.axis("r", "YBLOCK", "y_index", c.right.free, self.columns)
        right = self.factor(c.right, "right", X)
        self.out(f"total = tl.dot({left}, {right}, total, input_precision=PRECISION)")
        self.out.depth -= 1
        finish = self.finish()
        passed = ", ".join(self.passed())
        constants = "INDEX, XBLOCK, {}, XBLOCK_FULL, YBLOCK_FULL"
        self.out("if HALVED:")
        self.out("    one, other = base.halved(total)")
        half = constants.format("YBLOCK // 2")
        self.out(f"    {self.name}_finish({passed}, y_start, one, {half})")
        self.out(f"    {self.name}_finish({passed}, y_start + YBLOCK // 2, other, {half})")
        self.out("else:")
        self.out(f"    {self.name}_finish({passed}, y_start, total, {constants.format('YBLOCK')})")
        statements = (*c.left.body, *c.right.body, *c.epilogue)
        text = function_text(self.kernel, self.name, statements, self.out.lines, CONSTANTS)
        return f'{finish}{text}launch_{self.name} = ProductLauncher({self.name}, "{self.factors}")\n'

    def finish(self) -> str:
        """The function that does what follows the sum, for a part of the columns: of a large tile, one part after the other has
        its values in registers."""
        lines, self.out, self.known = self.out, Writer(), {}
        self.number("y_index", "y_start", "YBLOCK", self.columns, "r")
        self.out(f"x_index_mask = (x_index < {self.expression(self.rows)[0]}) | XBLOCK_FULL")
        self.axis("x", "XBLOCK", "x_index", self.c.rows, self.rows)
        self.axis("r", "YBLOCK", "y_index", self.c.columns, self.columns)
        self.define(self.c.total, "total", torch.float32, X | R)
        self.body(self.c.epilogue)
        constants = [f"{name}: tl.constexpr" for name in ("INDEX", "XBLOCK", "YBLOCK", "XBLOCK_FULL", "YBLOCK_FULL")]
        head = ["@triton.jit", f"def {self.name}_finish({', '.join([*self.passed(), 'y_start', 'total', *constants])}):"]
        text = "\n".join([*head, *self.out.lines, "", "", ""])
        self.out = lines
        return text

    def passed(self) -> list[str]:
        """What that function needs to know of its program."""
        return [*given(self.kernel), *(["lead"] if self.c.batch else []), "x_index"]

    def open(self) -> None:
        """Which tile is this program's."""
        rows, columns = self.expression(self.rows)[0], self.expression(self.columns)[0]
        self.out("program = tl.program_id(0)")
        self.out(f"x_blocks, y_blocks = tl.cdiv({rows}, XBLOCK), tl.cdiv({columns}, YBLOCK)")
        if self.c.batch:
            self.out("lead = tl.cast(program // (x_blocks * y_blocks), INDEX)")
            self.out("program = program % (x_blocks * y_blocks)")
        self.out("first = program // (GROUP * y_blocks) * GROUP")
        self.out("height = base.smaller(x_blocks - first, GROUP)")
        self.out("within = program % (GROUP * y_blocks)")
        self.number("x_index", "tl.cast(first + within % height, INDEX) * XBLOCK", "XBLOCK", self.rows, "x")
        self.out("y_start = tl.cast(within // height, INDEX) * YBLOCK")
        self.number("y_index", "y_start", "YBLOCK", self.columns, "r")
        self.place(self.c.batch, index.variable("lead", self.batches))

    def factor(self, f: contraction.Factor, name: str, terms: frozenset[str]) -> str:
        """Computes a tile of a factor; the name of it. It is zero beyond the last term."""
        self.known = {}
        value, dtype = narrow(f)
        self.body([s for s in f.body if not (isinstance(s, loop.Compute) and s.to == f.value != value)])
        here = self.here(value)
        axes = self.axes[value]
        if self.factors in ("mixed", "float32") and dtype != torch.float32:
            here = f"{here}.to(tl.float32)"
        if not (_from_memory(f.body, value) and terms <= axes):
            mask = "k_along_mask" if terms == R else "k_down_mask"
            here = f"tl.where({mask}, {here}, 0.0).to({here}.dtype)"
        self.out(f"{name} = tl.broadcast_to({here}, {self.shape(X | R)})")
        return name

    # The launch

    def sizes_text(self) -> str:
        """Python text of what the launch passes beside buffers and numbers."""
        sizes = ", ".join(map(index.to_python, (self.batches, self.rows)))
        lengths = ", ".join(map(index.to_python, (self.columns, self.terms)))
        return f"{sizes}, ({lengths}), {most_elements(self.kernel)}"

    def sizes(self) -> tuple[index.Int, index.Int, list[index.Int]]:
        """What the launch passes: matrices of the batch, rows, and columns and terms."""
        return self.batches, self.rows, [self.columns, self.terms]


def _from_memory(body: Sequence[loop.Stmt], value: str) -> bool:
    """Whether a value is what a load without a condition gave, converted at most: zero where nothing is loaded."""
    made = {s.to: s for s in body if isinstance(s, loop.Load | loop.Compute)}
    while isinstance(s := made.get(value), loop.Compute) and s.op == "convert":
        (value,) = s.args
    return isinstance(s, loop.Load) and s.mask is None
