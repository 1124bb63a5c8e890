"""Route 3, graph: a partition as a whole, to a vendor's own compiler."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vendor_sdk.contract.backend import NodeContext, Support
from vendor_sdk.errors import OptionError
from vendor_sdk.ir.primgraph import PrimGraph


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """What ``vendor_sdk.export`` asks a graph compiler to write.

    Attributes:
        path: of the file. It must be there whole or not at all.
        names: of the graph's placeholders, in order.
        values: of the placeholders that are part of the file, by index; the others are its inputs.
        outputs: names, in order.
        sizes: symbol of a dynamic size to its name, and the least and largest value that the graph is for (``None``: any).
        about: what the file says of itself.
        wrote: called with the number of bytes of values taken over since the last call.
    """

    path: Path
    names: Sequence[str]
    values: Mapping[int, torch.Tensor]
    outputs: Sequence[str]
    sizes: Mapping[str, tuple[str, int, int | None]] = field(default_factory=dict)
    about: Mapping[str, str] = field(default_factory=dict)
    wrote: Callable[[int], None] = lambda _: None


class GraphCompiler(abc.ABC):
    """Compiles partitions: connected sets of prims that the backend claims, with no dependency cycle through the outside."""

    prims: frozenset[str]
    """Prims (and claimed composites) this compiler takes; narrower limits belong to the ``supports`` hook."""
    suffixes: frozenset[str] = frozenset()
    """Endings of the files that ``save`` writes (``".onnx"``)."""

    @abc.abstractmethod
    def compile(self, graph: PrimGraph) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """Executable of a partition: takes the values of ``graph``'s placeholders in order (tensors of the device, ints for
        symbols), returns the values of its outputs in order. Calls may come from several threads at once.

        Shape, dtype and device of what it returns are verified at every call, save where it vouches for them by a true
        attribute ``verified``: its results are then fresh row-major tensors on the device, with the shapes and dtypes of their
        fake values.

        ``graph.static_inputs`` stay the same tensors from call to call: whatever is made of their values holds until their
        version counters (``Tensor._version``) move, which in training they do at every step. Where the executable can be
        pickled, compiled graphs that have it are stored and need no compilation in the next process.
        """

    def save(self, graph: PrimGraph, file: ModelFile) -> None:
        """Writes a whole model, every node of which this compiler takes. Sizes that are nodes of the graph (arithmetic on
        ``torch.SymInt``) are no placeholders here: they follow from the shapes of the inputs.

        Raises:
            OSError: the file cannot be written.
        """
        raise OptionError(f"{type(self).__name__} writes no files")

    def saves(self, node: NodeContext) -> Support | None:
        """Whether ``save`` can write this node, for prims among ``prims``: asked while a model is exported, in place of the
        ``supports`` hook, since a file need not run where it is written. ``None`` leaves the answer to the hook."""
        return None

    def remarks(self, executable: Any) -> Mapping[str, str]:
        """What ``explain`` shows for nodes (by name) of a partition that has run, beside that they are native: that a part of
        it was left to another device, for instance. ``executable`` is what ``compile`` returned."""
        return {}
