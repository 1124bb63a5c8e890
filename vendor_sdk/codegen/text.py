"""Python text of values: sizes over shape symbols, constants as names of the wrapper's namespace, arguments of calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from vendor_sdk import torch_private
from vendor_sdk.errors import GraphError
from vendor_sdk.ir.index import Int, from_size, symbols, to_python


class Text:
    """Writes values as Python.

    Attributes:
        namespace: what constants are called, to their values.
        bound: shape symbols that are variables by now.
    """

    def __init__(self, module: torch.nn.Module, name_of: Callable[[fx.Node], str]) -> None:
        self.namespace: dict[str, Any] = {"math": math}
        self.bound: set[str] = set()
        self._module, self._name_of = module, name_of
        self._constants: dict[Any, str] = {}

    def constant(self, value: Any, prefix: str = "C") -> str:
        """The name under which generated text refers to ``value``."""
        key = value if isinstance(value, torch.dtype | torch.device) else id(value)
        if key not in self._constants:
            self._constants[key] = name = f"{prefix}{len(self._constants)}"
            self.namespace[name] = value
        return self._constants[key]

    def size(self, value: Any) -> str:
        """A size, stride or offset: ``int`` or ``torch.SymInt``."""
        if isinstance(value, int):
            return repr(value)
        try:
            return self.index(from_size(value))
        except ValueError:  # outside the index algebra, as the padded statistics of some attention operators are
            return self._bound(value, *torch_private.size_text(value))

    def index(self, expression: Int) -> str:
        """An expression over shape symbols."""
        return self._bound(expression, symbols(expression), to_python(expression))

    def _bound(self, value: Any, names: Iterable[str], text: str) -> str:
        missing = sorted(set(names) - self.bound)
        if missing:
            raise GraphError(f"size {value} depends on {', '.join(missing)}, which no input of the graph determines")
        return text

    def tuple(self, values: Iterable[Any]) -> str:
        return _tuple([self.size(value) for value in values])

    def call(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        return f"{name}({self.arguments(args, kwargs)})"

    def arguments(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], operand: Callable[[fx.Node], str | None] = lambda node: None
    ) -> str:
        """Args:
        operand: text of a node where it differs from the name of its value.
        """
        parts = [self.value(value, operand) for value in args]
        parts += [f"{key}={self.value(value, operand)}" for key, value in kwargs.items()]
        return ", ".join(parts)

    def value(self, value: Any, operand: Callable[[fx.Node], str | None] = lambda node: None) -> str:
        """Any argument of a node."""
        if isinstance(value, fx.Node):
            if value.op == "get_attr":
                return self.constant(torch_private.attribute(self._module, str(value.target)))
            return operand(value) or self._name_of(value)
        if isinstance(value, list | tuple):
            items = [self.value(item, operand) for item in value]
            return f"[{', '.join(items)}]" if isinstance(value, list) else _tuple(items)
        if isinstance(value, float) and not math.isfinite(value):
            return "math.nan" if math.isnan(value) else ("math.inf" if value > 0 else "-math.inf")
        if value is None or isinstance(value, bool | int | float | str):
            return repr(value)
        if isinstance(value, torch.SymInt):
            return self.size(value)
        if isinstance(value, slice):
            return f"slice({self.value(value.start)}, {self.value(value.stop)}, {self.value(value.step)})"
        return self.constant(value)


def _tuple(items: Sequence[str]) -> str:
    return f"({', '.join(items)},)" if len(items) == 1 else f"({', '.join(items)})"
