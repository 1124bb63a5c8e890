"""ONNX Runtime's ScatterND with reduction="add" loses sums where indices are equal, with more than one thread.

Threads take parts of the indices and add to the same rows, and nothing keeps them apart. The specification allows equal indices
there. How often it happens differs from run to run: many are made. Found by the pattern "embedding backward".
"""

import os
import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

ROWS, WIDTH, COUNT = 5, 512, 20000
RUNS = 1000


def here() -> bool:
    """Whether it shows on this machine: one processor runs one thread at a time."""
    return (os.cpu_count() or 1) > 1


def wrong() -> str:
    """What is wrong, "" where nothing is."""
    of = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("ScatterND", ["x", "index", "added"], ["y"], reduction="add")],
        "scatter",
        [
            of("x", TensorProto.FLOAT, [ROWS, WIDTH]),
            of("index", TensorProto.INT64, [COUNT, 1]),
            of("added", TensorProto.FLOAT, [COUNT, WIDTH]),
        ],
        [of("y", TensorProto.FLOAT, [ROWS, WIDTH])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    index = np.random.default_rng(0).integers(0, ROWS, (COUNT, 1))
    given = {
        "x": np.zeros((ROWS, WIDTH), np.float32),
        "index": index,
        "added": np.ones((COUNT, WIDTH), np.float32),
    }
    expected = np.bincount(index[:, 0], minlength=ROWS)[:, None]  # whole numbers below 2**24: sums are exact in any order
    for _ in range(RUNS):
        (found,) = session.run(None, given)
        if (found != expected).any():
            return f"{int((found != expected).sum())} of {found.size} sums are wrong, one is {found[found != expected][0]}"
    return ""


if __name__ == "__main__":
    print(wrong() or "right")
    sys.exit(bool(wrong()))
