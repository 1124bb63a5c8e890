"""Saving: a whole model as an ONNX file, for ``vendor_sdk.export``.

    nodes       by the rules that partitions are translated with
    sizes       expressions of the dynamic sizes are computed from the shapes of the inputs
    guards      an input whose shape is outside of what was exported stops the run in a node whose name says so: ONNX has no
                assertion, so what fails is a Gather from one element
    parameters  in the file, or in ``<file>.data`` beside it where they are more than a protobuf message may hold

The files are written in a directory of their own and then renamed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import sympy  # type: ignore[import-untyped]
import torch

from reference_backends.onnxruntime.builder import (
    ELEMENT_TYPES,
    Builder,
    Operand,
    Operator,
    Untranslatable,
    Value,
    elsewhere,
    value_info,
)
from reference_backends.onnxruntime.translate import outline, run
from vendor_sdk import CompilerError, LoweringError, ModelFile, PrimGraph

MOST_INLINE = 1_800_000_000
"""Bytes of parameters up to which they are in the model itself; a protobuf message ends at 2 GiB."""
ALIGNMENT = 4096
"""Bytes at multiples of which tensors begin in a file of parameters, so that runtimes may map it."""


def save(graph: PrimGraph, file: ModelFile, has: Callable[[Operator], bool] | None = None) -> None:
    """Writes the model. See ``GraphCompiler.save``; raises ``CompilerError`` where the result is not valid ONNX.

    Args:
        has: as ``Builder``'s.
    """
    inputs = [node for index, node in enumerate(graph.placeholders) if index not in file.values]
    builder = Builder("v.", random=False, has=has)
    operands, parameters = _operands(builder, graph, file)
    try:
        symbols = _guarded(builder, inputs, operands, file.sizes)
        results = run(
            graph, builder, [operands[node] for node in graph.placeholders], symbols=lambda size: _size(builder, size, symbols)
        )
    except Untranslatable as error:
        raise LoweringError(f"onnxruntime: {builder.scope} has no translation: {error}") from error
    outlines = [outline(node.meta["val"]) for node in graph.outputs]
    model = builder.model(list(zip(results, outlines, strict=True)))
    _rename(model.graph, {each.name: name for each, name in zip(model.graph.output, file.outputs, strict=True)})
    _name_sizes(model.graph, {symbol: name for symbol, (name, _, _) in file.sizes.items()})
    for key, value in file.about.items():
        model.metadata_props.add(key=key, value=value)
    for name, least, most in file.sizes.values():
        model.metadata_props.add(key=f"size {name}", value=f"{least} to {'any' if most is None else most}")
    model.producer_version = file.about.get("producer", "")
    _write(model, parameters, file)


Parameters = Mapping[str, torch.Tensor]


def _operands(builder: Builder, graph: PrimGraph, file: ModelFile) -> tuple[dict[Any, Operand], Parameters]:
    """A value for each placeholder; parameters that are one tensor are one value."""
    operands: dict[Any, Operand] = {}
    parameters: dict[str, torch.Tensor] = {}
    known: dict[Any, Operand] = {}
    for index, (node, name) in enumerate(zip(graph.placeholders, file.names, strict=True)):
        fake = node.meta["val"]
        if index not in file.values:
            operands[node] = builder.operand(fake.dtype, fake.shape, name)
            continue
        value = file.values[index].detach()
        key = (value.data_ptr(), value.dtype, value.shape, value.stride()) if value.numel() else name
        if key not in known:
            known[key] = Operand(name, value.dtype, tuple(value.shape))
            if node.users:
                parameters[name] = value
        elif node.users:
            parameters.setdefault(known[key].name, value)
        operands[node] = known[key]
    return operands, parameters


# Sizes


def _guarded(
    builder: Builder, inputs: Sequence[Any], operands: dict[Any, Operand], sizes: Mapping[str, tuple[str, int, int | None]]
) -> dict[str, Value]:
    """The value of each symbol; inputs that show one are replaced by ones that pass its guards."""
    symbols: dict[str, Value] = {}
    shown: dict[str, str] = {}
    marks: dict[Any, list[Value]] = {}
    places = [(node, dim) for node in inputs for dim, size in enumerate(operands[node].shape) if not isinstance(size, int)]
    places.sort(key=lambda place: not operands[place[0]].shape[place[1]].node.expr.is_Symbol)  # these define their symbols
    for node, dim in places:
        operand = operands[node]
        expression = operand.shape[dim].node.expr
        here = f"dimension {dim} of {operand.name}"
        value = builder.size(operand, dim)
        found = marks.setdefault(node, [])
        unknown = [str(symbol) for symbol in expression.free_symbols if str(symbol) not in symbols]
        for symbol in unknown:
            name, least, most = sizes[symbol]
            symbols[symbol] = _solved(builder, expression, symbol, value)
            shown[symbol] = here if expression.is_Symbol else name
            if most is not None or least > 2:  # two is what torch takes for the least, as it distinguishes one and many
                builder.scope = f"{name} ({here}) must be {least} {'or more' if most is None else f'to {most}'}"
                inside = builder.compare("GreaterOrEqual", symbols[symbol], builder.constant(least))
                if most is not None:
                    below = builder.compare("LessOrEqual", symbols[symbol], builder.constant(most))
                    inside = builder.op("And", inside, below)
                found.append(_mark(builder, inside))
        if not (expression.is_Symbol and unknown):
            other = str(expression.subs({symbol: sympy.Symbol(shown[str(symbol)]) for symbol in expression.free_symbols}))
            builder.scope = f"{here} must equal {other}"
            found.append(_mark(builder, builder.compare("Equal", value, _expression(builder, expression, symbols))))
    for node, found in marks.items():
        if found:
            builder.scope = "guards"
            shape = builder.shape(operands[node])
            for mark in found:
                shape = builder.op("Add", shape, mark)
            passed = builder.op("Reshape", operands[node], shape, allowzero=1)
            operands[node] = Operand(passed.name, operands[node].dtype, operands[node].shape)
    return symbols


def _solved(builder: Builder, expression: Any, name: str, value: Value) -> Value:
    """The symbol for which a linear expression has this value."""
    (symbol,) = (each for each in expression.free_symbols if str(each) == name)
    factor = expression.coeff(symbol)
    rest = expression - factor * symbol
    if not (factor.is_Integer and rest.is_Integer and factor > 0):
        raise Untranslatable(f"no input shows the size {symbol} of {expression}")
    if rest != 0:
        value = builder.op("Sub", value, builder.constant(int(rest)))
    return value if factor == 1 else builder.op("Div", value, builder.constant(int(factor)))


def _mark(builder: Builder, holds: Value) -> Value:
    """Zero where the condition holds; an error elsewhere."""
    place = builder.cast(builder.invert(holds), torch.int64)
    return builder.op("Gather", builder.constant([0]), place, axis=0, dtype=torch.int64)


def _size(builder: Builder, size: Any, symbols: Mapping[str, Value]) -> Value:
    """A ``torch.SymInt`` as a 0-d int64 value."""
    return _expression(builder, size.node.expr, symbols)


def _expression(builder: Builder, expression: Any, symbols: Mapping[str, Value]) -> Value:
    if isinstance(expression, sympy.Integer):
        return builder.constant(int(expression))
    if isinstance(expression, sympy.Symbol):
        if str(expression) not in symbols:
            raise Untranslatable(f"the size {expression} follows from no input's shape")
        return symbols[str(expression)]
    parts = [_expression(builder, part, symbols) for part in expression.args]
    kind = type(expression).__name__
    if kind in _FOLDS:
        total = parts[0]
        for part in parts[1:]:
            total = builder.op(_FOLDS[kind], total, part)
        return total
    if kind == "Pow" and expression.exp.is_Integer and expression.exp > 0:
        total = parts[0]
        for _ in range(int(expression.exp) - 1):
            total = builder.op("Mul", total, parts[0])
        return total
    raise Untranslatable(f"the size {expression} has no translation")


_FOLDS = {
    **{kind: kind for kind in ("Add", "Mul", "Max", "Min", "Mod")},
    "FloorDiv": "Div",
    "CleanDiv": "Div",
    "PythonMod": "Mod",
}
"""Sizes are not negative, so rounding toward zero is rounding down."""


# Names


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Gives values new names, in the graphs inside nodes too."""
    for node in graph.node:
        for listed in (node.input, node.output):
            for index, name in enumerate(listed):
                if name in names:
                    listed[index] = names[name]
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _rename(attribute.g, names)
    for output in graph.output:
        output.name = names.get(output.name, output.name)


def _name_sizes(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for info in (*graph.input, *graph.output):
        for dim in info.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                replaced = {sympy.Symbol(old): sympy.Symbol(new) for old, new in names.items()}
                try:
                    dim.dim_param = str(sympy.sympify(dim.dim_param).subs(replaced))
                except (sympy.SympifyError, TypeError, AttributeError):  # functions of torch's own stay as they are
                    continue


# Files


def _write(model: onnx.ModelProto, parameters: Parameters, file: ModelFile) -> None:
    _check(model, parameters)
    folder = Path(tempfile.mkdtemp(dir=file.path.parent, prefix=f".{file.path.name}."))
    try:
        names = [file.path.name]
        whole = folder / file.path.name
        if sum(value.nbytes for value in parameters.values()) > MOST_INLINE:
            names.insert(0, f"{file.path.name}.data")
            model.graph.initializer.extend(_beside(folder / names[0], parameters, file))
            whole.write_bytes(model.SerializeToString())
        else:
            _inline(whole, model, parameters, file)
        for name in names:  # the model last: who finds it finds its parameters
            os.replace(folder / name, file.path.parent / name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check(model: onnx.ModelProto, parameters: Parameters) -> None:
    """Of the model with inputs in the place of parameters, whose values no rule is about."""
    outlined = onnx.ModelProto()
    outlined.CopyFrom(model)
    outlined.graph.input.extend(value_info(name, value.dtype, value.shape) for name, value in parameters.items())
    try:
        onnx.checker.check_model(outlined)
    except onnx.checker.ValidationError as error:
        raise CompilerError("onnxruntime: the exported model is not valid ONNX", why=str(error)) from error


def _raw(value: torch.Tensor) -> Any:
    """The bytes of ``value`` in row-major order, where it lies so without a copy."""
    return value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def _inline(path: Path, model: onnx.ModelProto, parameters: Parameters, file: ModelFile) -> None:
    """The model with the values of its parameters, which are written from where they are: a message that held them would be
    a copy, and its encoding another.

    A message is a sequence of fields in any order; one that holds bytes is a tag, their number and the bytes
    (https://protobuf.dev/programming-guides/encoding).
    """
    heads = []
    for name, value in parameters.items():
        tensor = onnx.TensorProto(name=name, data_type=ELEMENT_TYPES[value.dtype], dims=value.shape).SerializeToString()
        tensor += _field(onnx.TensorProto, "raw_data", value.nbytes)
        heads.append(_field(onnx.GraphProto, "initializer", len(tensor) + value.nbytes) + tensor)
    nodes = model.graph.SerializeToString()
    size = len(nodes) + sum(map(len, heads)) + sum(value.nbytes for value in parameters.values())
    model.ClearField("graph")
    with open(path, "wb") as stream:
        stream.write(model.SerializeToString() + _field(onnx.ModelProto, "graph", size) + nodes)
        for head, value in zip(heads, parameters.values(), strict=True):
            stream.write(head)
            stream.write(_raw(value))
            file.wrote(value.nbytes)


def _field(message: Any, name: str, size: int) -> bytes:
    """What precedes the ``size`` bytes of a field."""
    tag = message.DESCRIPTOR.fields_by_name[name].number << 3 | 2
    return _variable(tag) + _variable(size)


def _variable(number: int) -> bytes:
    """Seven bits a byte, the lowest first; all bytes but the last have the highest bit set."""
    count = max(1, -(-number.bit_length() // 7))
    return bytes(number >> 7 * place & 0x7F | (place < count - 1) << 7 for place in range(count))


def _beside(path: Path, parameters: Parameters, file: ModelFile) -> Iterator[onnx.TensorProto]:
    with open(path, "wb") as stream:
        for name, value in parameters.items():
            stream.write(bytes(-stream.tell() % ALIGNMENT))
            place: dict[str, str | int] = {"location": path.name, "offset": stream.tell(), "length": value.nbytes}
            stream.write(_raw(value))
            yield elsewhere(name, value.dtype, value.shape, **place)
            file.wrote(value.nbytes)
