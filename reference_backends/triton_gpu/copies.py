"""Copies of what all rows read, for rows that begin anywhere.

Rows whose length is no multiple of a vector begin at other places within a vector each, and a weight at one: one of them would
be read in bits. So the weight is copied, once for each place at which a row can begin, and every row reads the copy that begins
where it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from reference_backends.triton_gpu.analysis import Loop, body_of, inner_loops, length_of, ranges_of, step, walks_across
from reference_backends.triton_gpu.launch import LONGEST
from reference_backends.triton_gpu.tiles import Vectors, vectors
from vendor_sdk import LoopKernel, index, loop, split

ROWS = 64
"""Rows for each copy from which on copies are made."""


def copied(kernel: LoopKernel, position: int) -> LoopKernel:
    """``kernel`` with a nest before nest ``position`` that copies what its rows share, where that pays."""
    nest = kernel.body[position]
    loops = [s for s in nest.body if isinstance(s, Loop)]
    if not loops or {id(s) for s in loops} != {id(s) for s in inner_loops(nest)} or walks_across(nest):
        return kernel
    length, rows = length_of(loops[0]), index.product([r.size for r in nest.ranges]).value
    if any(length_of(s) != length for s in loops) or rows is None or (length.value or LONGEST + 1) > LONGEST:
        return kernel
    found = vectors(kernel, loops, {}, {r.var for r in nest.ranges})
    if found is None or found.offset == index.ZERO or rows < ROWS * found.lanes:
        return kernel
    shared = [s for each in loops for s in body_of(each) if _shared(kernel, s, ranges_of(each)[0].var)]
    return _Copies(kernel, position, found, length, shared).kernel if shared else kernel


def _shared(kernel: LoopKernel, s: loop.Stmt, along: str) -> bool:
    return (
        isinstance(s, loop.Load)
        and s.mask is None
        and kernel.param(s.param).role == "in"
        and step(s.index, along) == 1
        and set(index.symbols(s.index)) == {along}
    )


class _Copies:
    def __init__(
        self, kernel: LoopKernel, position: int, found: Vectors, length: index.Int, shared: Sequence[loop.Stmt]
    ) -> None:
        self.found = found
        self.taken = {p.name for p in (*kernel.params, *kernel.scratch)} | {s.name for s in kernel.symbols}
        self.taken |= {name for s in loop.walk(kernel.body) for name in (*loop.loop_variables(s), *loop.makes(s))}
        lanes = loop.Range(self.fresh("k"), index.wrap(found.lanes))
        element = loop.Range(self.fresh("j"), length)
        k, j = (index.variable(r.var, r.size) for r in (lanes, element))
        self.step = (length + (found.lanes + split.LINE - 1)) // split.LINE * split.LINE
        """Elements from one copy to the next."""
        self.params: dict[tuple[str, int], loop.Param] = {}
        """By param, and where in it the rows read."""
        filling: list[loop.Stmt] = []
        self.shared = {id(s) for s in shared}
        for s in shared:
            assert isinstance(s, loop.Load)
            key = s.param, s.index.constant
            if key not in self.params:
                param = loop.Param(self.fresh("copies"), s.dtype, self.step * found.lanes, "scratch")
                value = self.fresh("v")
                filling.append(loop.Load(value, s.param, j + s.index.constant, s.dtype))
                filling.append(loop.Store(param.name, k * (self.step + 1) + j, value))
                self.params[key] = param
        nest = kernel.body[position]
        body = list(kernel.body)
        body[position : position + 1] = [
            loop.Nest((lanes, element), tuple(filling)),
            replace(nest, body=tuple(self.moved(s) for s in nest.body)),
        ]
        self.kernel = replace(kernel, body=tuple(body), scratch=(*kernel.scratch, *self.params.values()))

    def fresh(self, prefix: str) -> str:
        number = 0
        while f"{prefix}{number}" in self.taken:
            number += 1
        self.taken.add(f"{prefix}{number}")
        return f"{prefix}{number}"

    def moved(self, s: loop.Stmt) -> loop.Stmt:
        if isinstance(s, Loop):
            body = tuple(map(self.moved, s.body))
            return (
                replace(s, body=body, then=tuple(map(self.moved, s.then)))
                if isinstance(s, loop.Scan)
                else replace(s, body=body)
            )
        if id(s) not in self.shared:
            return s
        assert isinstance(s, loop.Load)
        offset, lanes = self.found.offset, self.found.lanes
        which, before = offset % lanes, offset - offset // lanes * lanes
        return replace(
            s, param=self.params[s.param, s.index.constant].name, index=which * self.step + before + s.index - s.index.constant
        )
