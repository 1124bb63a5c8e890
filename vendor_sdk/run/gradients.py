"""The function of a backward graph that was compiled without the gradients which nobody is expected to ask for.

Autograd passes None for those (``torch_private.undefined_gradients``). Where one comes after all, the whole graph is compiled,
once, and gets zeros for what is None then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vendor_sdk.ir import index as ix
from vendor_sdk.ir.index import Int, from_size
from vendor_sdk.ir.primgraph import PrimGraph

Run = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Zeros:
    """Zeros like the gradient that an input may be: sizes, and where a call finds the numbers in them.

    Attributes:
        bound: symbol to an input and its dimension; None: the input is the number.
    """

    shape: tuple[Int, ...]
    dtype: torch.dtype
    device: torch.device
    bound: Mapping[str, tuple[int, int | None]]

    def make(self, args: Sequence[Any]) -> torch.Tensor:
        values = {name: args[i] if dim is None else args[i].shape[dim] for name, (i, dim) in self.bound.items()}
        return torch.zeros([ix.evaluate(size, values) for size in self.shape], dtype=self.dtype, device=self.device)


def zeros_of(graph: PrimGraph, tangents: Sequence[int]) -> dict[int, Zeros] | None:
    """How to make zeros for each of the inputs ``tangents``; None where its sizes are not among the other inputs."""
    values = [node.meta["val"] for node in graph.placeholders]
    bound: dict[str, tuple[int, int | None]] = {}
    for index, value in enumerate(values):
        sizes = [(None, value)] if isinstance(value, torch.SymInt) else []
        if isinstance(value, torch.Tensor) and index not in tangents:
            sizes = list(enumerate(value.shape))  # type: ignore[arg-type]
        for dim, size in sizes:
            name = str(from_size(size)) if isinstance(size, torch.SymInt) else ""
            if name:
                bound.setdefault(name, (index, dim))
    found = {}
    for index in tangents:
        tensor = values[index]
        if not isinstance(tensor, torch.Tensor):
            continue
        shape = tuple(map(from_size, tensor.shape))
        names = {name for size in shape for name in ix.symbols(size)}
        if not names <= bound.keys():
            return None
        found[index] = Zeros(shape, tensor.dtype, tensor.device, {name: bound[name] for name in names})
    return found


class Backward:
    """Calls the graph that was compiled, or the whole one.

    Args:
        without: inputs that the compiled graph lacks.
        run: its function.
        whole: compiles the graph with all inputs.
        zeros: by input that may be None.
    """

    def __init__(self, without: Sequence[int], run: Run, whole: Callable[[], Run], zeros: Mapping[int, Zeros]) -> None:
        # Attributes of the object, for torch wraps it in a function that copies those.
        self._boxed_call = self.undefined_gradients = True
        self.compiled_graph = run.compiled_graph  # type: ignore[attr-defined]
        self.without, self.run, self.zeros = tuple(without), run, zeros
        self._compile = whole
        self._whole: Run | None = None
        self._lock = threading.Lock()

    def __call__(self, args: list[Any]) -> Any:
        lacking = all(args[index] is None for index in self.without)
        for index, zeros in self.zeros.items():
            if args[index] is None and not (lacking and index in self.without):
                args[index] = zeros.make(args)
        if not lacking:
            return self.whole(args)
        for index in reversed(self.without):
            del args[index]
        return self.run(args)

    @property
    def whole(self) -> Run:
        """The function of the graph with all inputs."""
        with self._lock:
            if self._whole is None:
                self._whole = self._compile()
            return self._whole
