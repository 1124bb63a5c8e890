"""ONNX Runtime drops float16 to bfloat16 and back before an operator without kernel of float16, and with it the rounding.

The CPU provider computes the operator in float32, between conversions that it adds; of the chain float16, bfloat16, float16,
float32 only the ends are left. Found by the generated graphs of kind `float16`.
"""

import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    nodes = [
        helper.make_node("Cast", ["x"], ["other"], to=TensorProto.BFLOAT16),
        helper.make_node("Cast", ["other"], ["half"], to=TensorProto.FLOAT16),
        helper.make_node("Mul", ["half", "three"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "rounds",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, [1])],
        [helper.make_tensor("three", TensorProto.FLOAT16, [], [3.0])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.array([1 + 2.0**-10], dtype=np.float16)  # bfloat16 has 1, and 1 + 2**-7
    (found,) = session.run(None, {"x": x})[0]
    return "" if found == 3 else f"{found} where 3.0 is right"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
