"""ONNX Runtime's ReduceSum and ReduceProd of int64 are computed in float64: what is beyond 2**53 is rounded.

What overflows saturates, which its developers intend (their pull request 28743), where NumPy and torch wrap around. MatMul and
CumSum of int64 are exact. Found by the generated graphs of kind `int64`.
"""

import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper


def reduced(kind: str, values: list[int]) -> int:
    """The sum or product of integers."""
    graph = helper.make_graph(
        [helper.make_node(kind, ["x", "axes"], ["y"], keepdims=0)],
        "reduces",
        [helper.make_tensor_value_info("x", TensorProto.INT64, [len(values)])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [])],
        [helper.make_tensor("axes", TensorProto.INT64, [1], [0])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return int(session.run(None, {"x": np.array(values, dtype=np.int64)})[0])


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    total, product = reduced("ReduceSum", [2**53, 1, 2]), reduced("ReduceProd", [2**27 + 1, 2**27 + 1])
    return "; ".join(
        f"{name} is {found} where {right} is right"
        for name, found, right in [("the sum", total, 2**53 + 3), ("the product", product, (2**27 + 1) ** 2)]
        if found != right
    )


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
