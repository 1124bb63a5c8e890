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

VALUES = "values"
"""Key of ``meta`` of a placeholder that has values of its own: a tensor of its shape and strides."""

_HEADER = '''"""One graph that {backend} compiled, with {inputs}.

    python {name}                  run it, check every stage of the compiler; exit status 1 where numbers differ
    python {name} --backend NAME   the same with another backend
    python {name} --plugin FILE    of a backend that is not installed
    python {name} --seed 1         other random inputs

Random integers are 0 or 1, so that they are legal indices: say `high=` where the graph needs others.
"""

{imports}
'''


def program(graph: PrimGraph, backend: str, options: Mapping[str, Any], name: str = "repro.py") -> tuple[str, bytes | None]:
    """Text of the program, to be called ``name``, and what it needs beside it as ``CONSTANTS``: large constants and values, as
    ``torch.save`` writes them."""
    imports = {"import torch": None, "from vendor_sdk import repro": None}
    classes = _classes("Graph", graph.module, imports)
    passed = [node for node in graph.placeholders if node.name not in graph.constants]
    hints = torch_private.symbol_hints(_sizes(graph))
    outside = {n: v for n, v in graph.constants.items() if v.numel() > INLINE or v.is_complex() or v.device.type != "cpu"}
    own = {node.name: _memory(node.meta[VALUES]) for node in passed if VALUES in node.meta}
    outside |= {n: v for n, v in own.items() if v.numel() > INLINE or v.is_complex()}
    inputs = "".join(
        f"        {_value(node.meta['val'], _values(node.name, own, outside, imports))},  # {node.name}\n" for node in passed
    )
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
    described = "values of its own" if own else "random inputs of the same shapes, strides and dtypes"
    head = _HEADER.format(backend=backend, inputs=described, name=name, imports="\n".join(sorted(imports)))
    text = head + "\n\n" + "\n\n".join(classes) + "\n" + body
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


def _value(value: Any, values: str = "") -> str:
    if isinstance(value, torch.Tensor):
        device = "" if value.device.type == "cpu" else f", device={str(value.device)!r}"
        return f"repro.tensor({_tuple(value.shape)}, {_tuple(value.stride())}, {value.dtype}{device}{values})"
    return _size(value)


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """The elements from a tensor's first to its last, in the order of memory."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((extent if tensor.numel() else 0,), (1,)).clone()


def _values(name: str, own: Mapping[str, torch.Tensor], outside: Mapping[str, torch.Tensor], imports: dict[str, None]) -> str:
    """The argument for an input's values, if it has any."""
    if name not in own:
        return ""
    if name in outside:
        return f", values=repro.constant(__file__, {name!r})"
    text = repr(own[name].tolist())
    for each in ("inf", "nan"):
        if each in text:
            imports[f"from math import {each}"] = None
    return f", values={text}"


def _constant(value: torch.Tensor) -> str:
    return f"torch.tensor({value.tolist()!r}, dtype={value.dtype})"


def _strides(strides: Sequence[Any] | None) -> str:
    return "None" if strides is None else _tuple(strides)


def _tuple(values: Sequence[Any]) -> str:
    return f"({''.join(f'{_size(value)}, ' for value in values).removesuffix(' ' if len(values) == 1 else ', ')})"


def _size(value: Any) -> str:
    return torch_private.size_text(value)[1] if isinstance(value, torch.SymInt | torch.SymFloat) else repr(value)
