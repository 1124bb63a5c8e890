"""Layers of recurrent networks that torch keeps whole for a library's sake, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vendor_sdk.normalize.rules import Rules, aten

RECURRENT = Rules()

Tensor = torch.Tensor

_LSTM = 2
"""oneDNN's number of the kind of cell."""


@RECURRENT.rule(aten.mkldnn_rnn_layer.default)
def mkldnn_rnn_layer(
    input: Tensor,
    weight0: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    weight3: Tensor,
    hx_: Tensor,
    cx_: Tensor,
    reverse: bool,
    batch_sizes: Sequence[int],
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    train: bool,
) -> Any:
    """A layer of an LSTM (Hochreiter and Schmidhuber, 1997, with a forget gate) over a sequence (length, batch, features).

    torch takes an LSTM on the CPU apart to these, each of one layer and direction; ``num_layers``, ``bidirectional`` and
    ``batch_first`` tell of the whole. The products with the inputs need no state, so those of all steps are one. A layer whose
    length is known at run time only stays whole.
    """
    length, batch, features = input.shape
    if mode != _LSTM or batch_sizes or not isinstance(length, int) or length == 0:
        return NotImplemented
    by_input, by_state = aten.t.default(weight0), aten.t.default(weight1)
    rows = aten.reshape.default(input, [length * batch, features])
    if has_biases:
        products = aten.addmm.default(aten.add.Tensor(weight2, weight3), rows, by_input)
    else:
        products = aten.mm.default(rows, by_input)
    steps = aten.unbind.int(aten.reshape.default(products, [length, batch, 4 * hidden_size]))
    hidden, cell = (aten.reshape.default(state, [batch, hidden_size]) for state in (hx_, cx_))
    states = []
    for step in reversed(steps) if reverse else steps:
        gates = aten.addmm.default(step, hidden, by_state)
        write, forget, value, read = aten.split.Tensor(gates, hidden_size, 1)
        kept = aten.mul.Tensor(aten.sigmoid.default(forget), cell)
        cell = aten.add.Tensor(kept, aten.mul.Tensor(aten.sigmoid.default(write), aten.tanh.default(value)))
        hidden = aten.mul.Tensor(aten.sigmoid.default(read), aten.tanh.default(cell))
        states.append(hidden)
    output = aten.stack.default(states[::-1] if reverse else states)
    workspace = aten.empty.memory_format([0], dtype=torch.uint8, device=input.device)
    return output, aten.reshape.default(hidden, hx_.shape), aten.reshape.default(cell, cx_.shape), workspace
