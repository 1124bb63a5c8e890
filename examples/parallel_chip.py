"""A chip that runs all iterations of a nest at once: one launch a nest, over its ranges.

The chip here is numpy: a loop variable is an array with a number for each iteration, an operation is done for all of them. On
yours the launch starts as many threads, and a thread finds its own numbers. `python parallel_chip.py`
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

import vendor_sdk
from vendor_sdk import Launch, LoopKernel, TableEmitter, flat, index, split

TYPES = {torch.float32: "np.float32", torch.int64: "np.int64", torch.bool: "np.bool_"}
OPS = {
    "const": "{to} = {R}({value})",
    "move": "{to} = np.asarray({0}, {R})",
    "load": "{to} = {param}[{index}]",
    "load.masked": "{to} = np.where({mask}, {param}[np.where({mask}, {index}, 0)], {other})",
    "store": "{param}[{index}] = {0}",
    "store.masked": "at, value = np.broadcast_arrays({index}, {0}); {param}[at[{mask}]] = value[{mask}]",
    "store.add": "np.add.at({param}, {index}, {0})",  # other iterations may add to the same place now
    "loop": "for {var} in range({size}):",  # of what is inside an iteration
    "end": "pass",
    "accumulator": "{to} = {R}({value})",
    "scratch": "",  # the launch allocates it
    "contraction": "",
    "compute": "{to} = {expression}",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "max": "np.maximum({0}, {1})",
    "min": "np.minimum({0}, {1})",
    "exp": "np.exp({0})",
    "log": "np.log({0})",
    "tanh": "np.tanh({0})",
    "rsqrt": "1 / np.sqrt({0})",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "ge": "{0} >= {1}",
    "gt": "{0} > {1}",
    "eq": "{0} == {1}",
    "bitand": "{0} & {1}",
    "where": "np.where({0}, {1}, {2})",
    "convert": "np.asarray({0}).astype({R})",
    "reduce.sum": "{to} = {to} + {0}",
    "reduce.max": "{to} = np.maximum({to}, {0})",
}
LANES, LONG = 256, 1024
LAUNCHED: list[tuple[str, int]] = []


def divided(kernel: LoopKernel) -> LoopKernel:
    """``kernel`` with the long inner loops of nests of few iterations divided among more of them."""
    for at in reversed(range(len(kernel.body))):  # from the last: a divided nest becomes several
        rows = index.product(r.size for r in kernel.body[at].ranges).value
        longest = max(
            (index.product(r.size for r in s.ranges).value or 0 for s in split.long_loops(kernel.body[at])), default=0
        )
        if rows and rows < LANES and longest >= LONG:
            kernel = split.split(kernel, at, LANES // rows)
    return kernel


class ParallelEmitter(TableEmitter):
    ops = OPS
    types = TYPES

    def head(self, kernel: LoopKernel) -> str:
        names = [*(p.name for p in (*kernel.params, *kernel.scratch)), *map(self.number, kernel.symbols), "ids"]
        return f"def {kernel.name}({', '.join(names)}):\n    {self.ids}"

    def tail(self, kernel: LoopKernel) -> str:
        return "    return"

    def literal(self, value: float, dtype: torch.dtype) -> str:
        return f"'{value}'" if dtype.is_floating_point else repr(value)

    def index(self, expression: index.Int) -> str:
        return index.to_python(expression)

    def emit(self, kernel: LoopKernel) -> str:
        kernel = divided(kernel)
        texts = []
        for at, nest in enumerate(kernel.body):
            # What the launch runs over is no loop of the text: each iteration is told its numbers.
            self.ids = "".join(f"{r.var} = ids[{n}]; " for n, r in enumerate(nest.ranges)) or "pass"
            texts.append(super().emit(replace(kernel, name=f"{kernel.name}_{at}", body=(replace(nest, ranges=()),))))
        return "\n".join(texts)

    def compile(self, kernels: Sequence[tuple[LoopKernel, str]]) -> list[Launch]:
        scope: dict[str, Any] = {"np": np, "min": np.minimum, "max": np.maximum}
        exec("\n".join(text for _, text in kernels), scope)
        return [launch_of(scope, divided(kernel)) for kernel, _ in kernels]


def launch_of(functions: Mapping[str, Any], kernel: LoopKernel) -> Launch:
    def launch(buffers: Sequence[torch.Tensor], symbols: Sequence[int]) -> None:
        sizes = {s.name: number for s, number in zip(kernel.symbols, symbols, strict=True)}
        memory = [flat(buffer).numpy() for buffer in buffers]
        # Scratch is no param: nobody else reads it, so it may go when the last nest has run.
        memory += [np.empty(index.evaluate(p.size, sizes), str(p.dtype).removeprefix("torch.")) for p in kernel.scratch]
        for at, nest in enumerate(kernel.body):  # in order: a nest may read what the ones before it wrote
            grid = [index.evaluate(r.size, sizes) for r in nest.ranges]
            LAUNCHED.append((f"{kernel.name}_{at}", int(np.prod(grid))))
            with np.errstate(all="ignore"):
                functions[f"{kernel.name}_{at}"](*memory, *symbols, np.indices(grid).reshape(len(grid), -1))

    return launch


class ParallelChip:
    @vendor_sdk.hookimpl
    def backend(self) -> vendor_sdk.Backend:
        return vendor_sdk.Backend(name="parallelchip", version="1.0", dtypes=frozenset(TYPES))

    @vendor_sdk.hookimpl
    def emitter(self, options: Mapping[str, Any]) -> vendor_sdk.Emitter:
        return ParallelEmitter()


vendor_sdk.register(ParallelChip())  # a package offers itself by an entry point instead
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.LayerNorm(64), nn.Linear(64, 8))
compiled = torch.compile(model, backend="parallelchip", dynamic=True, options={"fallback": "error"})
for batch in (16, 48):
    x = torch.randn(batch, 32)
    loss, expected = (call(x).softmax(-1).square().mean() for call in (compiled, model))
    found, wanted = (torch.autograd.grad(each, list(model.parameters())) for each in (loss, expected))
    torch.testing.assert_close((loss, *found), (expected, *wanted))
print("a training step of", len(LAUNCHED) // 2, "launches")

LAUNCHED.clear()
values = torch.randn(2, 100_000)
torch.testing.assert_close(torch.compile(lambda v: v.sum(1), backend="parallelchip")(values), values.sum(1))
print("two long sums:", LAUNCHED)
assert [count for _, count in LAUNCHED] == [2 * (LANES // 2), 2]
