"""ONNX's own node tests, run on a backend of the SDK: a check from outside, by tests that nobody here has written.

    python -m conformance.onnx_nodes --backend mychip            # all tests whose operators have a rule
    python -m conformance.onnx_nodes --tests 'reduce_*,softmax*' # without a backend: on the interpreter of prim graphs

``SdkBackend`` is a backend in the sense of the onnx package: it imports a model into a prim graph by ``onnx_import``, where
each operator of it has a rule and each dtype is one of the prims'. Expected values and tolerances are the tests' own.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, namedtupledict

import vendor_sdk
from conformance.onnx_import import check, imported
from conformance.onnx_types import DTYPES, Array, NotImported, array_of, refuse, tensor_of


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
        check(self.graph)
        for value in (*self.graph.input, *self.graph.output):
            refuse(value.type.tensor_type.elem_type not in DTYPES, "a value that is no tensor of a prim's dtype")

    def run(self, inputs: Sequence[Array], **_: Any) -> tuple[Array, ...]:
        """The outputs, in order.

        Raises:
            NotImported: what ``onnx_import.imported`` leaves out.
            VendorSDKError: what the backend raises.
        """
        given = [each.name for each in self.graph.input]
        values = {name: tensor_of(value) for name, value in zip(given, inputs, strict=False)}
        graph, tensors = imported(self.graph, values)
        run = vendor_sdk.compile_graph(graph, backend=self.backend) if self.backend else graph.interpret
        results = [array_of(each) for each in run(*tensors)]
        named: Any = namedtupledict("Outputs", [each.name for each in self.graph.output])
        result: tuple[Array, ...] = named(*results)
        return result


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


_UNSETTLED = {
    **dict.fromkeys(("test_dft_inverse", "test_dft_inverse_opset19"), "1.9e-7 is expected where the exact result is 0"),
    "test_attention_4d_causal_fp16_expanded": "the expected result was rounded at other steps than the graph has",
}
"""Tests that ask for more digits than their expected values have, and why."""


def outcome(case: Any, backend: str = "") -> tuple[str, str]:
    """``("pass", "")``, ``("skip", why)`` where it cannot be imported, or ``("fail", what)``."""
    if case.name in _UNSETTLED:
        return "skip", _UNSETTLED[case.name]
    try:
        model = SdkBackend.prepare(case.model, backend or "CPU")
        for inputs, expected in case.data_sets:
            if not all(map(_is_plain, (*inputs, *expected))):
                return "skip", "a value that is no tensor of a prim's dtype"
            for found, wanted in zip(model.run(inputs), expected, strict=True):
                if found.dtype != wanted.dtype or found.shape != wanted.shape:
                    return "fail", f"{found.dtype}{found.shape} where {wanted.dtype}{wanted.shape} is expected"
                _check_close(found, wanted, case)
    except NotImported as error:
        return "skip", str(error)
    except AssertionError as error:
        return "fail", " ".join(str(error).split())[:200]
    except Exception as error:  # whatever a backend raises is one failed test
        return "fail", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return "pass", ""


def _check_close(found: Array, wanted: Array, case: Any) -> None:
    """As the runner of the onnx package compares: with the test's tolerances, but no less than two units of bfloat16's own."""
    rtol = case.rtol
    if found.dtype == ml_dtypes.bfloat16:
        found, wanted, rtol = found.astype(np.float32), wanted.astype(np.float32), max(rtol, 2**-6)
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=case.atol)


def _is_plain(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic) and (value.dtype.kind in "fiub" or value.dtype == ml_dtypes.bfloat16)


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
