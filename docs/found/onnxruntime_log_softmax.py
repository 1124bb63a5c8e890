"""ONNX Runtime's LogSoftmax of float64 gives numbers for a row with NaN in it, unless the NaN comes first.

All elements of such a row are NaN: the sum that they are divided by is. Found by the composite `log_softmax`.
"""

import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    of = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("LogSoftmax", ["x"], ["y"], axis=-1)],
        "log_softmax",
        [of("x", TensorProto.DOUBLE, [1, 4])],
        [of("y", TensorProto.DOUBLE, [1, 4])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": np.array([[0.0, 1.0, np.nan, 2.0]])})
    return "" if np.isnan(found).all() else f"{found.tolist()} where all elements are NaN"


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
