"""ONNX Runtime's Acos, Asin and Log of float32 are further off than OpenCL C 3.0 allows (section 7.4: 4, 4 and 3 units in the
last place). Found by the rows `acos`, `asin` and `log`, whose samples lie in every binade.
"""

import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

ALLOWED = {"Acos": 4.0, "Asin": 4.0, "Log": 3.0}
EXACT = {"Acos": np.arccos, "Asin": np.arcsin, "Log": np.log}


def units(op: str, x: np.ndarray) -> np.ndarray:
    """Errors in units in the last place of float32."""
    of = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"])],
        op,
        [of("x", TensorProto.FLOAT, [len(x)])],
        [of("y", TensorProto.FLOAT, [len(x)])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": x})
    exact = EXACT[op](x.astype(np.float64))
    unit = np.exp2(np.maximum(np.floor(np.log2(np.maximum(np.abs(exact), 2.0**-126))), -126) - 23)
    return np.abs(found.astype(np.float64) - exact) / unit


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    x = np.exp2(np.linspace(-12, 0, 4_000_001)).astype(np.float32)
    inputs = {"Acos": x, "Asin": x, "Log": np.concatenate([x, 2 - x])}
    worst = {op: float(units(op, inputs[op]).max()) for op in ALLOWED}
    return ", ".join(f"{op} is off by {worst[op]:.2f} units" for op in ALLOWED if worst[op] > ALLOWED[op])


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
