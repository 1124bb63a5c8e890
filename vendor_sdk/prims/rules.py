"""The declared dtype and shape rules of rows, evaluated: what ``Result`` and ``Shape`` say about one call."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch

from vendor_sdk.prims.row import Prim, Result, Shape


def result_dtype(row: Prim, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.dtype | None:
    """The dtype of the row's one result by its ``Result`` rule; ``None`` where the operator itself decides."""
    tensors = _tensors(args)
    match row.result:
        case Result.SAME:
            return tensors[0].dtype
        case Result.PROMOTE:
            return _promoted(args)
        case Result.FLOAT:
            dtype = _promoted(args)
            return dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()
        case Result.BOOL:
            return torch.bool
        case Result.INT64:
            return torch.int64
        case Result.SUM:
            dtype = kwargs.get("dtype") or tensors[0].dtype
            return dtype if kwargs.get("dtype") or dtype.is_floating_point or dtype.is_complex else torch.int64
        case Result.ARGUMENT:
            return _argument(row, "dtype", args, kwargs)  # type: ignore[no-any-return]
    return None


def result_shape(row: Prim, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The shape of the row's results by its ``Shape`` rule; ``None`` where the operator itself decides."""
    match row.shape:
        case Shape.SAME:
            return tuple(_tensors(args)[0].shape)
        case Shape.BROADCAST:
            return _broadcast([tuple(tensor.shape) for tensor in _tensors(args)])
        case Shape.REDUCE:
            return _reduced(row, args, kwargs)
        case Shape.ARGUMENT:
            size = tuple(_argument(row, "size", args, kwargs))
            return None if -1 in size else size  # -1 stands for what the operand says
    return None


def _tensors(args: tuple[Any, ...]) -> list[torch.Tensor]:
    return [
        item
        for value in args
        for item in (value if isinstance(value, list | tuple) else [value])
        if isinstance(item, torch.Tensor)
    ]


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    sizes = []
    for column in itertools.zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1):
        sizes.append(next((size for size in column if size != 1), 1))
    return tuple(reversed(sizes))


def _promoted(args: tuple[Any, ...]) -> torch.dtype:
    """``torch.result_type`` over tensors and Python numbers. Of three operands the first is a condition, which is bool and
    never decides."""
    operands: list[Any] = [value for value in args if isinstance(value, torch.Tensor | int | float | complex)]
    first, *rest = operands[1:] if len(operands) > 2 else operands
    return torch.result_type(first, rest[0]) if rest else first.dtype


def _argument(row: Prim, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The value of a named argument of the row's schema, wherever it was passed; its default where it was not."""
    if name in kwargs:
        return kwargs[name]
    for position, argument in enumerate(row.target._schema.arguments):
        if argument.name == name:
            return args[position] if position < len(args) and not argument.kwarg_only else argument.default_value
    raise AssertionError(f"{row.name} has no argument {name!r}, which its rule needs")


def _reduced(row: Prim, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    shape = tuple(_tensors(args)[0].shape)
    dim = _argument(row, "dim", args, kwargs)
    keepdim = _argument(row, "keepdim", args, kwargs)
    dims = range(len(shape)) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = {d % len(shape) for d in dims} if shape else set()
    if keepdim:
        return tuple(1 if position in gone else size for position, size in enumerate(shape))
    return tuple(size for position, size in enumerate(shape) if position not in gone)
