"""The function of a graph some of whose results are sparse tensors: it returns their parts, and they are made here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from vendor_sdk.ir.sparse import Parts

Run = Callable[[list[Any]], Any]


class WithSparse:
    """Calls a graph and makes its sparse results.

    Args:
        run: the graph's function.
        parts: of each sparse result; their values are its last results.
    """

    def __init__(self, run: Run, parts: Sequence[Parts]) -> None:
        # Attributes of the object, for torch wraps it in a function that copies those.
        self._boxed_call = True
        self.compiled_graph = run.compiled_graph  # type: ignore[attr-defined]
        if getattr(run, "undefined_gradients", False):
            self.undefined_gradients = True
        self.run, self.parts = run, tuple(parts)

    def __call__(self, args: list[Any]) -> list[Any]:
        results = list(self.run(args))
        for each in self.parts:
            parts = results[each.indices], results[each.values]
            results[each.indices] = torch.sparse_coo_tensor(*parts, each.size, check_invariants=False)
        return results[: len(results) - len(self.parts)]
