"""Rules of ONNX's recurrent layers, step by step (https://onnx.ai/onnx/operators/onnx__LSTM.html and its neighbours)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from conformance.onnx_types import Tensor, refuse

Step = Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]
"""From the input of a step and the state to the new state, whose first part is the result."""


def _lstm_step(w: Tensor, r: Tensor, bias: Tensor, hidden: int, peepholes: Tensor | None, **_: Any) -> Step:
    own, again = bias.chunk(2)
    weights = torch.zeros(3 * hidden, dtype=w.dtype) if peepholes is None else peepholes
    at_input, at_output, at_forget = weights.chunk(3)

    def step(x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        h, c = state
        i, o, f, g = (x @ w.t() + h @ r.t() + own + again).chunk(4, -1)
        i, f = torch.sigmoid(i + at_input * c), torch.sigmoid(f + at_forget * c)
        c = f * c + i * torch.tanh(g)
        return torch.sigmoid(o + at_output * c) * torch.tanh(c), c

    return step


def _gru_step(w: Tensor, r: Tensor, bias: Tensor, hidden: int, *, linear_before_reset: int = 0, **_: Any) -> Step:
    own, again = bias.chunk(2)

    def step(x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (h,) = state
        given, known = x @ w.t() + own, h @ r[: 2 * hidden].t() + again[: 2 * hidden]
        update, reset = torch.sigmoid(given[..., : 2 * hidden] + known).chunk(2, -1)
        last, shift = r[2 * hidden :].t(), again[2 * hidden :]
        past = reset * (h @ last + shift) if linear_before_reset else (reset * h) @ last + shift
        return ((1 - update) * torch.tanh(given[..., 2 * hidden :] + past) + update * h,)

    return step


def _rnn_step(w: Tensor, r: Tensor, bias: Tensor, hidden: int, **_: Any) -> Step:
    own, again = bias.chunk(2)
    return lambda x, state: (torch.tanh(x @ w.t() + state[0] @ r.t() + own + again),)


def _layer(make: Callable[..., Step], gates: int, parts: int) -> Callable[..., tuple[Tensor, ...]]:
    """A layer of one or two directions, with ``gates`` times as many rows in its weights as it has units."""

    def rule(
        x: Tensor,
        w: Tensor,
        r: Tensor,
        bias: Tensor | None = None,
        lengths: Tensor | None = None,
        *rest: Tensor | None,
        hidden_size: int,
        direction: str = "forward",
        layout: int = 0,
        **a: Any,
    ) -> tuple[Tensor, ...]:
        refuse(a.keys() - {"linear_before_reset"}, f"recurrent layers with {', '.join(a)}")
        refuse(lengths is not None and direction != "forward", "sequences of several lengths in reverse")
        initial, peepholes = rest[:parts], rest[parts] if len(rest) > parts else None
        x = x.transpose(0, 1) if layout else x
        results, last = [], []
        for place in range(w.shape[0]):
            backward = direction == "reverse" or place == 1
            shift = torch.zeros(2 * gates * hidden_size, dtype=x.dtype) if bias is None else bias[place]
            own = None if peepholes is None else peepholes[place]
            step = make(w[place], r[place], shift, hidden_size, peepholes=own, **a)
            zero = torch.zeros(x.shape[1], hidden_size, dtype=x.dtype)
            given = [*initial, *[None] * (parts - len(initial))]
            state: tuple[Tensor, ...] = tuple(
                zero if each is None else each.transpose(0, 1)[place] if layout else each[place] for each in given
            )
            out: list[Tensor] = [zero] * x.shape[0]
            for time in reversed(range(x.shape[0])) if backward else range(x.shape[0]):
                new = step(x[time], state)
                if lengths is not None:
                    on = (time < lengths).unsqueeze(1)
                    out[time] = torch.where(on, new[0], zero)
                    state = tuple(torch.where(on, after, before) for after, before in zip(new, state, strict=True))
                else:
                    out[time], state = new[0], new
            results.append(torch.stack(out))
            last.append(state)
        whole = torch.stack(results, 1)
        ends = [torch.stack(each) for each in zip(*last, strict=True)]
        if layout:
            whole, ends = whole.permute(2, 0, 1, 3), [each.transpose(0, 1) for each in ends]
        return whole.contiguous(), *(each.contiguous() for each in ends)

    return rule


RULES: Mapping[str, Callable[..., Any]] = {
    "LSTM": _layer(_lstm_step, 4, 2),
    "GRU": _layer(_gru_step, 3, 1),
    "RNN": _layer(_rnn_step, 1, 1),
}
