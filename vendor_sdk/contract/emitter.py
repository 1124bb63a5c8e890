"""Route 2, emitter: the SDK lowers prims to loop kernels, the vendor turns each into target text and compiles it."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vendor_sdk.contract.backend import NodeContext, Support, Supported
from vendor_sdk.contract.program import Entry, Program
from vendor_sdk.ir.loop import LoopKernel

Launch = Callable[[Sequence[Any], Sequence[int]], None]
"""``launch(buffers, symbols)``: buffers in the order of ``LoopKernel.params`` (tensors of the device, results included),
symbols in the order of ``LoopKernel.symbols``. An index of the kernel counts elements in memory from the tensor's first one:
strides are in the index already (``flat`` gives that memory). A param of role "inout" is one buffer that is read and then
written, each element by the iteration that writes it; no other two params overlap."""


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a launch's buffer, as one dimension: element ``i`` is what the kernel calls ``param[i]``."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.detach().as_strided((extent if tensor.numel() else 0,), (1,))


@dataclass(frozen=True)
class Limits:
    """How large the kernels may get that the scheduler builds for an emitter.

    Attributes:
        buffers: params of one kernel.
        statements: loads, stores and computations of one kernel, a measure of its registers and of its compile time.
        local_bytes: bytes of ``Local`` buffers of one iteration; rows that need more are computed again instead of kept.
        local_dynamic: whether ``Local`` buffers may have a size that only the call knows.
        nests: nests of one kernel: independent loops that share a launch (a foreach optimizer step). 1: never.
        chunk: rows whose totals one iteration sums before they join the others'. Fewer rows are more iterations at once, and
            more bytes of partial results.
        narrow_chunk: the same where a total is one number, whose partial results are few bytes in any case.
        total_width: the most columns of which totals are summed where the rows are computed; 0: any number. Partial results of
            longer rows do not stay near, and are better summed by a kernel of their own.
        chunks: how many chunks there are at least, where there are rows for twice as many: fewer would leave parts of the
            device without work.
        chunks_at_once: how many chunks run at once, by the columns of a row: where rows lie apart, there are as many of at
            least eight rows, since more would wait until some of these end.
        launch_bytes: what the device moves in the time of one more launch. A result that follows from the graph's inputs
            alone has no kernel of its own then, though it is dear, where it is a number a row or a column of what its readers
            compute, and they compute no more bytes than that, fewer where it is dearer; 0: launches are free.
        part: iterations of each part from which on an innermost loop that computes different things in its parts (a ``cat``, a
            ``pad``) is cut into a loop for each, instead of one with conditions: where shorter ones begin or end, lines of
            memory are cut.
        copies: iterations of a loop that may be written out in its body, where neighbours read the same elements (the windows
            over a position, an image that is enlarged): four are two each way. 1: never.
        window: terms of a reduction over a window (of a pool, of a convolution of each channel) that may be written out in the
            body of the loop around it, where neighbours of that loop read neighbouring elements, or every second one. Those of
            many weights stay loops then, over a ``Local`` copy of what they slide over, and gradients of a window's weights are
            accumulators of one loop. 0: never.
        sharing: iterations of an outer loop that may be written out in its body, where they read the same elements of a large
            input (a table of angles that all heads share). 1: never.
        interleaves: whether loops that walk along memory are written out too, by two, and loops over two results of different
            kinds (the parts of complex numbers), and nests that fill a result in turns are one: stores of every second element
            stand in pairs then, which an emitter does as one.
        affine: iterations of a loop from which on it may be the inner one of two that stand for one loop whose indices hold
            quotients and remainders of its variable (the channel of an element of a group): vectors load along it then, where
            they would gather. Loops are also cut where an index turns or begins anew (a reflected edge, a row that is rolled
            on). 0: such loops stay one.
        chunk_apart: whether the rows of a chunk lie as far apart as there are chunks, a multiple of 16: then all begin at the
            same place within a vector, whatever their length, and iterations that run at once read neighbouring rows.
    """

    buffers: int = 64
    statements: int = 512
    local_bytes: int = 0
    local_dynamic: bool = False
    nests: int = 1
    chunk: int = 64
    narrow_chunk: int = 64
    total_width: int = 0
    chunks: int = 8
    chunks_at_once: Callable[[int], int] | None = None
    launch_bytes: int = 0
    part: int = 16
    copies: int = 1
    window: int = 0
    sharing: int = 1
    interleaves: bool = False
    affine: int = 0
    chunk_apart: bool = False


class Emitter(abc.ABC):
    """Turns loop kernels into launchable code.

    ``ops`` is the capability list: a prim whose lowering needs a loop-level op that is not a key is decomposed, or runs on the
    host. Nothing else says what an emitter can do, so no second list can drift.

    Four more keys name shapes of kernels, without which the scheduler builds none such: ``"nest"`` (a nest whose body holds
    inner nests next to reductions: a whole row in one iteration, as fused softmax needs), ``"local"`` (buffers of one
    iteration), ``"scratch"`` (buffers of the launch: ``kernel.scratch``, which are not among ``kernel.params``, and which the
    launch allocates) and ``"contraction"`` (matrix products and convolutions, as plain loops or by a template: see
    ``vendor_sdk.contraction``).

    An emitter needs nothing of ``Legalization``: broadcasts, promotions, numbers and strides are in the loops, where they cost
    no memory. With ``explicit_broadcast`` or ``contiguous_inputs`` operands are copied out beforehand instead.
    """

    ops: Mapping[str, Any]
    """Loop-level op (``"add"``, ``"exp"``, ``"reduce.sum"``) to whatever the emitter keeps for it, usually target text."""
    types: Collection[torch.dtype] | None = None
    """Types of the values that kernels may compute with; ``None``: any. Some loops need more than their prim's own type: a
    table of float32 alone has no ``arange`` in fractions, which is computed in float64."""
    limits: Limits = Limits()
    seeds_in_memory: bool = False
    """Whether a launch gets each seed (a symbol of role "seed", in its place among the symbols) as a tensor of one int64 on the
    device, instead of a number: then launches that are recorded (``TorchDevice.recorder``) draw other random numbers at each
    replay. A program (``link``) gets its address as a number. Devices with memory of their own leave it False."""

    @abc.abstractmethod
    def emit(self, kernel: LoopKernel) -> str:
        """Target text of one kernel. Deterministic: equal kernels give equal text."""

    @abc.abstractmethod
    def compile(self, kernels: Sequence[tuple[LoopKernel, str]]) -> list[Launch]:
        """Compiles the kernels of one graph together. Raises ``CompilerError`` with the compiler's own words.

        Each result is called as ``launch(buffers, symbols)``. Buffers come in the order of ``kernel.params``, results among
        them: tensors (``vendor_sdk.flat`` gives a tensor's memory as one dimension), or ``DeviceTensor`` where the chip has its
        own memory. ``param[index]`` is the element ``index`` places after the buffer's first (its ``offset``): strides are in
        the index already. Symbols are numbers, in the order of ``kernel.symbols``. It raises ``IndexError`` where
        ``wrap_index`` found a value out of range: the calling program gets that error, with prims and place in a note.

        Compilers may still be at work when it returns, while the SDK goes on with the backward graph: then the first launch
        waits for them, and raises what they say."""

    def foresee(self, prims: Mapping[str, frozenset[torch.dtype]]) -> None:  # noqa: B027
        """Told, before a graph is traced, of prims and composites that it will likely contain: what these need beside the
        graph's own kernels may begin to compile in the background. Products of matrices are all called ``mm``. Before Dynamo
        traces a first program, of which nothing is known, these are products in torch's default dtype, unless the backend's
        cache has something.

        Args:
            prims: names to the dtypes of their results. It may name too much, or too little.
        """

    def takes_over(self, node: NodeContext, saved_bytes: int, saved_launches: int) -> Support:
        """Whether a fused kernel runs ``node``, rather than the backend's kernel for it, which yields (``Kernel.yields``).

        Args:
            saved_bytes: what then is not stored and loaded, as shapes were while tracing; negative where more is.
            saved_launches: how many kernels fewer there are.
        """
        return Supported()

    def resources(self, launch: Launch) -> Mapping[str, int]:
        """What a compiled kernel takes of the device, by name, for ``vendor_sdk.explain`` (``{"registers": 40, "stack bytes":
        0, "shared bytes": 1024}``). Of several functions that it launches, the most. Empty where that is not known.

        Args:
            launch: what ``compile`` returned for it.
        """
        return {}

    def link(self, program: Program) -> Entry | None:
        """One native call for a run of launches (those of ``compile``), or ``None``: then Python launches them one by one."""
        return None

    def panel(self, dtype: torch.dtype, rows: int | None, columns: int, steps: int) -> int:
        """How many columns of a matrix product's right factor, (steps, columns), this emitter would have lie together.

        Asked in a graph that is not trained, where the factor is a parameter that may be kept between calls, or one factor of
        several products: it then lies in panels, ``(ceil(columns / width), steps, width)``, contiguous and filled up with
        zeros, and the kernel's loads say so. That takes as many bytes as the factor once more. With 0 the factor is read as
        it lies.

        Args:
            rows: of the left factor; ``None``: only the call knows.
        """
        return 0

    def reads_along(self, dtype: torch.dtype, rows: int | None, columns: int, steps: int) -> bool:
        """Whether a product takes about as long if each column of the right factor is contiguous, as in a linear layer's
        weight, as it does with panels.

        Panels that would be made in every call, since several products have one right factor, are not made then: the call
        holds so many bytes less.

        Args:
            rows: of the left factor; ``None``: only the call knows.
        """
        return False

    def release(self) -> int:
        """Frees memory that linked programs keep between calls (``vendor_sdk.release_memory``); the bytes given back."""
        return 0
