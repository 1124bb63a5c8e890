"""ONNX's own node tests, run on a backend of the SDK: a check from outside, by tests that nobody here has written.

    python -m conformance.onnx_nodes --backend mychip            # all tests whose operators have a rule
    python -m conformance.onnx_nodes --tests 'reduce_*,softmax*' # without a backend: on the interpreter of prim graphs

``SdkBackend`` is a backend in the sense of the onnx package: it imports a model into a prim graph by ``onnx_rules``, where each
operator of it has a rule and each dtype is one of the prims'. Expected values and tolerances are the tests' own.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

import vendor_sdk
from conformance.onnx_rules import DTYPES, RULES, STATIC, NotImported

Array = np.ndarray[Any, Any]


class SdkBackend(Backend):
    """Runs ONNX models on a backend of the SDK; ``device`` of ``prepare`` is its name, "CPU" the interpreter."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> SdkModel:
        """Raises ``NotImported`` where a node has no rule."""
        return SdkModel(model, "" if device == "CPU" else device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return True


class SdkModel(BackendRep):
    """A model; its prim graph is made when the inputs are seen, since some of ONNX's inputs are sizes."""

    def __init__(self, model: onnx.ModelProto, backend: str) -> None:
        self.backend = backend
        self.graph = model.graph
        for node in self.graph.node:
            if node.domain not in ("", "ai.onnx") or node.op_type not in RULES:
                raise NotImported(f"no rule for {node.op_type}")
        for value in (*self.graph.input, *self.graph.output):
            if value.type.tensor_type.elem_type not in DTYPES:
                raise NotImported("a value that is no tensor of a prim's dtype")

    def run(self, inputs: Sequence[Array], **_: Any) -> tuple[Array, ...]:
        """The outputs, in order.

        Raises:
            NotImported: a case of an operator that its rule leaves out.
            VendorSDKError: what the backend raises.
        """
        given = [each.name for each in self.graph.input]
        values = {name: torch.from_numpy(np.array(value)) for name, value in zip(given, inputs, strict=False)}
        values |= {each.name: torch.from_numpy(np.array(numpy_helper.to_array(each))) for each in self.graph.initializer}
        known = {each.name for each in self.graph.initializer} | {""}
        known |= {node.input[at] for node in self.graph.node for at in STATIC.get(node.op_type, ()) if at < len(node.input)}
        known -= {name for node in self.graph.node for name in node.output}
        sizes: dict[str, Array] = {}
        traced = []
        for node in self.graph.node:
            for name in _static(node):
                if name not in known:
                    raise NotImported(f"{node.op_type} with a size that depends on data")
                sizes[name] = values[name].numpy()
            if node.op_type in ("Shape", "Size") or all(name in known for name in node.input):
                known |= set(node.output)
            else:
                traced.append(node)
            values |= _applied(node, values, sizes)  # of a traced node for the shapes of what follows
        outputs = [each.name for each in self.graph.output]
        made = {name for node in traced for name in node.output}
        operands = [name for name in values if name and name not in made]

        def function(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            symbols = dict(zip(operands, tensors, strict=True))
            for node in traced:
                symbols |= _applied(node, symbols, sizes)
            return tuple(symbols[name] for name in outputs)

        tensors = [values[name] for name in operands]
        graph = vendor_sdk.trace(function, tensors)
        run = vendor_sdk.compile_graph(graph, backend=self.backend) if self.backend else graph.interpret
        results = [np.asarray(each.numpy()) for each in run(*tensors)]
        named: Any = namedtupledict("Outputs", outputs)
        result: tuple[Array, ...] = named(*results)
        return result


def _static(node: onnx.NodeProto) -> list[str]:
    """The inputs that say sizes."""
    return [node.input[at] for at in STATIC.get(node.op_type, ()) if at < len(node.input) and node.input[at]]


def _applied(node: onnx.NodeProto, values: dict[str, torch.Tensor], sizes: dict[str, Array]) -> dict[str, torch.Tensor]:
    """The node's outputs by name."""
    attributes = {each.name: _attribute(each) for each in node.attribute}
    if node.op_type == "Split" and "num_outputs" not in attributes:
        attributes["num_outputs"] = len(node.output)
    static = _static(node)
    operands = [None if not name else sizes[name] if name in static else values[name] for name in node.input]
    try:
        result = RULES[node.op_type](*operands, **attributes)
    except TypeError as error:
        raise NotImported(f"{node.op_type}: {error}") from error
    results = result if isinstance(result, tuple) else (result,)
    if len(results) < len(node.output):
        raise NotImported(f"{node.op_type} with {len(node.output)} outputs")
    return {name: value for name, value in zip(node.output, results, strict=False) if name}


def _attribute(attribute: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    return torch.from_numpy(np.array(numpy_helper.to_array(value))) if isinstance(value, onnx.TensorProto) else value


# The tests


def cases(patterns: Sequence[str] = ("*",)) -> Iterator[Any]:
    """ONNX's node tests whose names, without ``test_``, match a pattern."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, where the tests make infinities
        found = load_model_tests(kind="node")
    for case in found:
        if any(fnmatch.fnmatch(case.name.removeprefix("test_"), pattern) for pattern in patterns):
            yield case


def outcome(case: Any, backend: str = "") -> tuple[str, str]:
    """``("pass", "")``, ``("skip", why)`` where it cannot be imported, or ``("fail", what)``."""
    try:
        model = SdkBackend.prepare(case.model, backend or "CPU")
        for inputs, expected in case.data_sets:
            if not all(
                isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "fiub" for value in (*inputs, *expected)
            ):
                return "skip", "a value that is no tensor of a prim's dtype"
            for found, wanted in zip(model.run(inputs), expected, strict=True):
                if found.dtype != wanted.dtype or found.shape != wanted.shape:
                    return "fail", f"{found.dtype}{found.shape} where {wanted.dtype}{wanted.shape} is expected"
                np.testing.assert_allclose(found, wanted, rtol=case.rtol, atol=case.atol)
    except NotImported as error:
        return "skip", str(error)
    except AssertionError as error:
        return "fail", " ".join(str(error).split())[:200]
    except Exception as error:  # whatever a backend raises is one failed test
        return "fail", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return "pass", ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 where every imported test passes, else 1."""
    parser = argparse.ArgumentParser(prog="python -m conformance.onnx_nodes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", default="", help="name of an installed backend; the interpreter of prim graphs by default")
    parser.add_argument("--tests", default="*", help="patterns of test names, separated by commas")
    parser.add_argument("--verbose", action="store_true", help="say of each test that is left out why")
    options = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    skips: Counter[str] = Counter()
    for case in cases(options.tests.split(",")):
        verdict, why = outcome(case, options.backend)
        counts[verdict] += 1
        if verdict == "fail":
            print(f"FAIL {case.name}: {why}")
        elif verdict == "skip":
            skips[why] += 1
    if options.verbose:
        for why, count in skips.most_common():
            print(f"{count:5} left out: {why}")
    print(f"{counts['pass']} pass, {counts['fail']} fail, {counts['skip']} left out")
    return int(counts["fail"] > 0)


if __name__ == "__main__":
    sys.exit(main())
