"""A failing graph as a program of its own: the prims, the inputs, the element that is wrong and between what it may lie."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from conformance.graphs import Drawn
from conformance.outcome import Wrong
from conformance.subject import TORCH_PREFIX

_TEXT = '''"""{message}

Graph and inputs as small as the conformance suite could make them. Exit status 1 where the result is still wrong.
"""

import sys
from math import inf, nan

import torch
{imports}

{source}

def tensor(values, dtype, shape, strides, offset):
    return torch.tensor(values, dtype=dtype).as_strided(shape, strides, offset)


first = [
{first}]
second = [
{second}]

compiled = {compiled}
results = [compiled(*first), compiled(*second)]
{check}'''


def text(backend: str, options: Mapping[str, Any], drawn: Drawn, wrong: Wrong, dynamic: bool) -> str:
    """The program.

    Args:
        backend: as on the command line.
        options: that it is compiled with.
        drawn: the graph.
        wrong: what is wrong with it.
        dynamic: whether it was compiled for sizes that change.
    """
    graph = drawn.module.graph
    source = _function(drawn.module)
    name = backend.removeprefix(TORCH_PREFIX)
    if backend.startswith(TORCH_PREFIX):
        given = f", options={dict(options)!r}" if options else ""
        compiled = f"torch.compile(program, backend={name!r}, dynamic={dynamic}{given})"
    elif dynamic:
        compiled = f"torch.compile(program, backend={name!r}, dynamic=True, options={dict(options)!r})"
    else:
        compiled = f"vendor_sdk.compile_graph(vendor_sdk.trace(program, first), backend={name!r}, options={dict(options)!r})"
    imports = "\nimport vendor_sdk\n" if "vendor_sdk." in compiled else ""
    assert len(graph.find_nodes(op="placeholder")) == len(drawn.inputs)
    return _TEXT.format(
        message=wrong.message.splitlines()[0].replace('"""', "'''").replace("\\", "/"),
        imports=imports,
        source=source,
        first=_tensors(drawn.values(0)),
        second=_tensors(drawn.values(1, other=True)),
        compiled=compiled,
        check=_check(wrong),
    )


def _check(wrong: Wrong) -> str:
    if wrong.output < 0:
        return 'print("nothing was raised")\n'
    if wrong.kind != "value":
        return f"print([(tuple(each.shape), each.dtype) for each in results[{wrong.call}]])\nsys.exit(1)\n"
    low, high = wrong.low, wrong.high
    if isinstance(low, float) and math.isnan(low):
        right = "found != found"
    else:
        right = f"{low!r} <= found <= {high!r}"
    return (
        f"found = list(results[{wrong.call}])[{wrong.output}][{wrong.index!r}].item()\n"
        f'print(f"{{found!r}} where {"NaN" if right == "found != found" else f"{low!r} to {high!r}"} is right")\n'
        f"sys.exit(0 if {right} else 1)\n"
    )


def _function(module: fx.GraphModule) -> str:
    source = module.graph.python_code("self").src.strip()
    lines = [re.sub(r";  (\w+ = )+None$", "", line) for line in source.splitlines()]
    lines = [line for line in lines if line.strip()]
    head = lines[0].replace("def forward(self, ", "def program(").replace("def forward(self", "def program(")
    return "\n".join([re.sub(r"\) -> .*:$", "):", head), *lines[1:]]).replace("device(type=", "torch.device(type=") + "\n"


def _tensors(values: Sequence[torch.Tensor]) -> str:
    return "".join(f"    {_tensor(value)},\n" for value in values)


def _tensor(value: torch.Tensor) -> str:
    memory: list[Any] = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage()).tolist()
    place = tuple(value.shape), value.stride(), value.storage_offset()
    return f"tensor({memory!r}, {value.dtype}, {place[0]!r}, {place[1]!r}, {place[2]})"
