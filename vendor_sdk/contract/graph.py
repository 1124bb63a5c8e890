"""Route 3, graph: a partition as a whole, to a vendor's own compiler."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

from vendor_sdk.ir.primgraph import PrimGraph


class GraphCompiler(abc.ABC):
    """Compiles partitions: connected sets of prims that the backend claims, with no dependency cycle through the outside."""

    prims: frozenset[str]
    """Prims (and claimed composites) this compiler takes; narrower limits belong to the ``supports`` hook."""

    @abc.abstractmethod
    def compile(self, graph: PrimGraph) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """Executable of a partition: takes the values of ``graph``'s placeholders in order (tensors of the device, ints for
        symbols), returns the values of its outputs in order. Calls may come from several threads at once.

        ``graph.static_inputs`` stay the same tensors from call to call: whatever is made of their values holds until their
        version counters (``Tensor._version``) move, which in training they do at every step. Where the executable can be
        pickled, compiled graphs that have it are stored and need no compilation in the next process.
        """
