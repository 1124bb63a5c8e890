"""``repro.py``: a program that rebuilds one graph, without the model it came from (``vendor_sdk/repro.py`` runs it)."""

from __future__ import annotations

import io
import re
import types
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.ir.primgraph import PrimGraph, tensors_of

INLINE = 256
"""Elements of a constant up to which it stands in the text."""
CONSTANTS = "repro_constants.pt"

_HEADER = '''"""One graph that {backend} compiled, with random inputs of the same shapes, strides and dtypes.

    python repro.py                  run it, check every stage of the compiler; exit status 1 where numbers differ
    python repro.py --backend NAME   the same with another backend
    python repro.py --seed 1         other inputs

Integer inputs are 0 or 1, so that they are legal indices: say `high=` where the graph needs others.
"""

{imports}
'''


def program(graph: PrimGraph, backend: str, options: Mapping[str, Any]) -> tuple[str, bytes | None]:
    """Text of the program, and what it needs beside it as ``CONSTANTS``: large constants, as ``torch.save`` writes them."""
    imports = {"import torch": None, "from vendor_sdk import repro": None}
    classes = _classes("Graph", graph.module, imports)
    passed = [node for node in graph.placeholders if node.name not in graph.constants]
    hints = torch_private.symbol_hints(_sizes(graph))
    outside = {n: v for n, v in graph.constants.items() if v.numel() > INLINE or v.is_complex() or v.device.type != "cpu"}
    inputs = "".join(f"        {_value(node.meta['val'])},  # {node.name}\n" for node in passed)
    constants = "".join(
        f"        {f'repro.constant(__file__, {name!r})' if name in outside else _constant(value)},\n"
        for name, value in graph.constants.items()
    )
    layouts = "".join(f"        ({_strides(each.strides)}, {sorted(each.alias_of)!r}),\n" for each in graph.output_layouts)
    parameters = ", ".join(hints)
    body = f"""
def inputs({parameters}):
    return [
{inputs}    ]


def outputs({parameters}):
    # Strides that were promised, and the inputs and outputs whose storage each shares.
    return [
{layouts}    ]


if __name__ == "__main__":
    repro.main(
        Graph(),
        inputs,
        outputs,
        sizes={hints!r},
        constants=[
{constants}        ],
        backend={backend!r},
        options={dict(options)!r},
        backward={graph.backward!r},
        static_inputs={sorted(graph.static_inputs)!r},
        donated_inputs={sorted(graph.donated_inputs)!r},
        writes={list(graph.writes)!r},
        training={graph.training!r},
    )
"""
    text = _HEADER.format(backend=backend, imports="\n".join(sorted(imports))) + "\n\n" + "\n\n".join(classes) + "\n" + body
    if not outside:
        return text, None
    saved = io.BytesIO()
    torch.save({name: value.cpu() for name, value in outside.items()}, saved)
    return text, saved.getvalue()


def _classes(name: str, module: fx.GraphModule, imports: dict[str, None]) -> list[str]:
    """The module and the subgraphs of its control flow, inner ones first."""
    found: list[str] = []
    children = [
        (str(node.target), child)
        for node in module.graph.nodes
        if node.op == "get_attr" and isinstance(child := torch_private.attribute(module, str(node.target)), fx.GraphModule)
    ]
    for attribute, child in dict(children).items():
        found += _classes(f"{name}_{attribute}", child, imports)
    code = module.graph.python_code("self")
    for alias, value in code.globals.items():
        if not re.search(rf"\b{re.escape(alias)}\b", code.src):
            continue
        if isinstance(value, types.ModuleType):
            imports[f"import {value.__name__}" + (f" as {alias}" if alias != value.__name__ else "")] = None
        elif getattr(value, "__module__", None) and getattr(value, "__qualname__", None):
            name_there = value.__qualname__ if value.__qualname__ == alias else f"{value.__qualname__} as {alias}"
            imports[f"from {value.__module__} import {name_there}"] = None
        elif alias in ("inf", "nan"):
            imports[f"from math import {alias}"] = None
    if children:
        made = "".join(f"        self.{attribute} = {name}_{attribute}()\n" for attribute in dict(children))
        start = f"    def __init__(self):\n        super().__init__()\n{made}\n"
    else:
        start = ""
    source = "".join(f"    {line}\n" if line else "\n" for line in code.src.strip().splitlines())
    return [*found, f"class {name}(torch.nn.Module):\n{start}{source}"]


def _sizes(graph: PrimGraph) -> list[Any]:
    """Everything symbolic at the boundary of a graph."""
    values = [node.meta["val"] for node in graph.placeholders]
    sizes = [size for tensor in tensors_of(values) for size in (*tensor.shape, *tensor.stride())]
    sizes += [stride for layout in graph.output_layouts for stride in layout.strides or ()]
    return [*values, *sizes]


def _value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        device = "" if value.device.type == "cpu" else f", device={str(value.device)!r}"
        return f"repro.tensor({_tuple(value.shape)}, {_tuple(value.stride())}, {value.dtype}{device})"
    return _size(value)


def _constant(value: torch.Tensor) -> str:
    return f"torch.tensor({value.tolist()!r}, dtype={value.dtype})"


def _strides(strides: Sequence[Any] | None) -> str:
    return "None" if strides is None else _tuple(strides)


def _tuple(values: Sequence[Any]) -> str:
    return f"({''.join(f'{_size(value)}, ' for value in values).removesuffix(' ' if len(values) == 1 else ', ')})"


def _size(value: Any) -> str:
    return torch_private.size_text(value)[1] if isinstance(value, torch.SymInt | torch.SymFloat) else repr(value)
