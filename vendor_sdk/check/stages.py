"""The first call of a graph, stage by stage: which stage, and which kernel, is the first whose numbers are wrong?"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from vendor_sdk.check.interpreters import Draws, Eager, Wide, may_choose, random_nodes, same_strides, sizes_of
from vendor_sdk.check.kernels import Compiled, Wrong, first_wrong, perturbed
from vendor_sdk.check.numbers import Difference, Truth, judge, truths
from vendor_sdk.errors import WrongResultError
from vendor_sdk.ir.fused import members
from vendor_sdk.ir.primgraph import PrimGraph, describe, prim_name, user_line
from vendor_sdk.prims.opset import BY_TARGET
from vendor_sdk.prims.reference import flat
from vendor_sdk.run.steps import draw_seeds

Run = Callable[[list[Any]], list[Any]]

_log = logging.getLogger("vendor_sdk")


@dataclass
class Checked:
    """What a check needs of one compilation.

    Attributes:
        backend: name.
        stages: a copy of the graph after each stage that changes graphs, by the stage's name, in order.
        compiled: the kernels of the last of them.
        stopped: what the check of the first call stopped at, before all was compared; "" where it did not.
    """

    backend: str
    stages: list[tuple[str, PrimGraph]] = field(default_factory=list)
    compiled: Compiled | None = None
    stopped: str = ""

    def first_call(self, run: Run, tell: Callable[[Exception], None]) -> Run:
        """``run``, whose first call checks every stage with the call's own inputs.

        Results, random numbers included, are those of ``run`` alone.

        Args:
            tell: is shown what the check raises before it does.
        """
        pending = [self]
        lock = threading.Lock()

        def call(inputs: list[Any]) -> list[Any]:
            with lock:
                check = _Check(pending.pop(), inputs) if pending else None
            if check is None:
                return run(inputs)
            try:
                checked = check.tried()
                given = list(inputs)
                outputs = run(inputs)
                if checked:
                    check.after([*outputs, *(given[index] for index in check.writes)])
            except WrongResultError as error:
                tell(error)
                raise
            return outputs

        return call


class _Check:
    def __init__(self, checked: Checked, inputs: Sequence[Any]) -> None:
        self.checked = checked
        self.inputs = [
            same_strides(value.detach(), torch.clone) if isinstance(value, torch.Tensor) else value for value in inputs
        ]
        self.truth: list[Truth] = []
        self.values: dict[str, Any] = {}
        """of the stage before, by name"""
        self.outputs: list[Any] = []

    @property
    def writes(self) -> tuple[int, ...]:
        """Inputs that the call writes to."""
        return self.checked.compiled.graph.writes if self.checked.compiled is not None else ()

    def tried(self) -> bool:
        """``before``, as far as it gets: what raises in an interpreter or a kernel mostly raises in the call too."""
        try:
            self.before()
        except WrongResultError:
            raise
        except Exception as error:
            self.checked.stopped = f"{type(error).__name__}: {error}"
            _log.warning("%s: the check of a graph stopped: %s", self.checked.backend, self.checked.stopped)
            return False
        return True

    @torch.no_grad()
    def before(self) -> None:
        """Every graph, then every kernel."""
        compiled = self.checked.compiled
        assert compiled is not None
        with torch.random.fork_rng(devices=[]):
            names = compiled.seeds()
            self.draws = Draws(
                dict(zip(names, draw_seeds(len(names)), strict=True)) if names else {}, sizes_of(compiled.graph, self.inputs)
            )
            known = False
            for stage, graph in self.checked.stages:
                # A stage that draws other numbers than the one before starts anew: nothing can be compared.
                known = known and self.draws.known(graph)
                if not known:
                    self.draws.values.clear()
                self._stage(stage, graph, known)
                known = not _draws_elsewhere(graph)
            wrong = first_wrong(compiled, self.values, self.draws)
        if wrong is not None:
            raise self._kernel_error(wrong)

    @torch.no_grad()
    def after(self, outputs: Sequence[Any]) -> None:
        """The whole call."""
        compiled = self.checked.compiled
        assert compiled is not None
        if any(name not in self.draws.seeds for name in random_nodes(compiled.graph)):
            return  # kernels that draw for themselves: nobody knows what
        if any(may_choose(node) for node in compiled.graph.calls()):
            return  # others may order ties another way
        for index, (found, truth, eager) in enumerate(zip(outputs, self.truth, self.outputs, strict=True)):
            difference = judge(found, truth, eager)
            if difference is not None:
                node = compiled.graph.outputs[index]
                raise self._error(
                    "wrapper",
                    node,
                    difference,
                    f"output {index} of the call ({node})",
                    "every kernel is right by itself: memory is shared wrongly, or a step got wrong operands",
                    "compare the memory plan and the wrapper in the dump; the vendor's `link`, if any, is part of it",
                )

    def _stage(self, stage: str, graph: PrimGraph, compare: bool) -> None:
        constants = list(graph.constants.values())
        logical = stage not in ("aten", "captured")
        eager = Eager(graph.module, self.draws, logical=logical)
        outputs = flat(list(eager.run(*self.inputs, *constants)))
        if compare:
            for index, (found, truth, before) in enumerate(zip(outputs, self.truth, self.outputs, strict=True)):
                difference = judge(found, truth, before)
                if difference is not None:
                    raise self._stage_error(stage, graph, index, difference, eager.values)
        else:

            def run(noise: torch.Generator | None) -> list[Any]:
                return flat(list(Wide(graph.module, self.draws, noise, logical=logical).run(*self.inputs, *constants)))

            self.truth = truths(run(None), perturbed(run))
        self.values, self.outputs = eager.values, outputs

    # Errors

    def _stage_error(
        self, stage: str, graph: PrimGraph, index: int, difference: Difference, values: dict[str, Any]
    ) -> WrongResultError:
        """Names the first value that both stages have and that differs, else the output."""
        output = flat(graph.outputs)[index]
        node, first = output, difference
        for candidate in graph.calls():
            old, new = (table.get(candidate.name) for table in (self.values, values))
            if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor) and old.shape == new.shape:
                rounding = judge(new, Truth(old.double() if old.is_floating_point() else old, None))
                if rounding is not None:
                    node, first = candidate, rounding
                    break
        return self._error(
            stage,
            node,
            first,
            f"output {index} of the graph; the first value that differs from the stage before is {node}",
            "the graph, interpreted by torch before and after the stage, gives different numbers",
            f"compare the dumps of {stage!r} and of the stage before; a vendor's graph pass may be part of the stage",
        )

    def _kernel_error(self, wrong: Wrong) -> WrongResultError:
        node = wrong.node
        partition = getattr(node.target, "graph", None) if wrong.stage == "partition" else None
        inside = members(node) if partition is None else partition.calls()
        prims = [prim_name(n) for n in inside]
        return self._error(
            wrong.stage,
            node,
            wrong.difference,
            f"kernel {wrong.kernel} (node {node.name}; prims {', '.join(dict.fromkeys(prims))})",
            wrong.why,
            f"look at {wrong.kernel} in the dump's folder of that stage"
            if wrong.stage in ("lowered", "in_place", "emitted")
            else f"run the prim alone: `vendor-sdk conformance --backend {self.checked.backend} --prims {prims[0]}`",
        )

    def _error(self, stage: str, node: Any, difference: Difference, what: str, why: str, fix: str) -> WrongResultError:
        operands, lines = "", ""
        if isinstance(node, fx.Node):
            shapes = ", ".join(describe(n.meta.get("val")) for n in node.all_input_nodes)
            operands = f" on ({shapes}) -> {describe(node.meta.get('val'))}"
            lines = "; ".join(dict.fromkeys(filter(None, map(user_line, [*members(node), node]))))
        culprit = f"{self.checked.backend}: stage {stage!r} is the first whose numbers are wrong"
        return WrongResultError(
            f"{culprit}: {what}{operands}: {difference.text}",
            stage=stage,
            node=node.name if isinstance(node, fx.Node) else str(node),
            error=difference.error,
            where=lines,
            why=why,
            fix=fix,
        )


def _draws_elsewhere(graph: PrimGraph) -> bool:
    """Whether a graph has random operators that are no prims, which later stages replace by other draws."""
    return any(node.target not in BY_TARGET for node in random_nodes(graph).values())
