"""ONNX Runtime drops a conversion to float16 before an operator without kernel of float16, and with it the rounding.

The CPU provider computes the operator in float32, between conversions that it adds; the first of them makes a pair with the
model's, which is taken out. Found by the generated graphs of kind `float16`.
"""

import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    nodes = [
        helper.make_node("Cast", ["x"], ["half"], to=TensorProto.FLOAT16),
        helper.make_node("Mul", ["half", "three"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "rounds",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, [1])],
        [helper.make_tensor("three", TensorProto.FLOAT16, [], [3.0])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.array([-2.635931968688965], dtype=np.float32)
    (found,) = session.run(None, {"x": x})[0]
    right = x.astype(np.float16)[0] * np.float16(3)
    return "" if found == right else f"{found} where {right} is right"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
