"""Attention: who computes it, forward and backward.

Generated Triton (``flash.py``, ``flash_backward.py``) takes everything: any strides, masks of bools or numbers, heads shared by
groups of queries, rows that see no key; it passes over blocks that a mask hides (``flash_lists.py``), and it alone computes
masks where they are needed (``flash_masks.py``). A library's kernel takes what it is faster at: cuDNN's on compute capability 9
and later (for shared heads too, and for gradients under masks that are small, or the same for all rows), torch's flash kernel
before, its memory-efficient one for the forward of float32, whose products generated code does not have on tensor cores. Masks
of a wider dtype than the queries are not for libraries, which would round them. All save the natural logarithm of each
row's sum of exponentials, in float32, so that each differentiates what another computed. Heads wider than a program has room
for have all scores in memory.

With dropout or a cap generated Triton computes it: which weights a library keeps is its own affair, and another's gradients
would keep others; and none caps scores.

A library that refuses a problem is not asked again about such a one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import torch

from reference_backends.triton_gpu import flash_launch, flash_masks
from reference_backends.triton_gpu.flash_launch import HALVES, WIDEST, Mask
from reference_backends.triton_gpu.machine import TARGETS
from reference_backends.triton_gpu.machine_code import binary, resources
from vendor_sdk import COMPOSITES, Computed, Decline, Kernel, LoopKernel, NodeContext, TensorInfo

Tensor = torch.Tensor
aten = torch.ops.aten
Way = Literal["triton", "cudnn", "flash", "efficient", "scores"]

FORWARD, BACKWARD = "scaled_dot_product_attention", "scaled_dot_product_attention_backward"
GENERAL_FORWARD, GENERAL_BACKWARD = "general_attention", "general_attention_backward"
COMPOSITE_NAMES = frozenset((FORWARD, BACKWARD, GENERAL_FORWARD, GENERAL_BACKWARD))
_DROPOUT_P = {FORWARD: 3, BACKWARD: 6}
"""Position of ``dropout_p`` in the arguments of those that have no seed."""


class Problem(NamedTuple):
    """What decides who computes it.

    Attributes:
        shape: batch, heads of the queries and of the keys, rows, keys, width and depth.
        mask: dtype of it.
        turned: whether scores are multiplied by a negative number.
        general: whether weights are dropped, or scores capped.
        listed: whether generated Triton would find out which blocks of scores the mask leaves.
        computed: whether the mask is in no memory.
    """

    shape: tuple[int, int, int, int, int, int, int]
    dtype: torch.dtype
    causal: bool
    mask: torch.dtype | None
    backward: bool
    turned: bool = False
    general: bool = False
    listed: bool = False
    computed: bool = False

    @property
    def regular(self) -> bool:
        """Whether the libraries' fastest kernels are for such heads."""
        *_, rows, keys, width, depth = self.shape
        square = rows == keys or not self.causal
        return width == depth and width % 8 == 0 and square and min(self.shape) > 0

    @property
    def adds(self) -> bool:
        """Whether the libraries, which add numbers of the queries' dtype, can add the mask as it is."""
        return self.mask is None or torch.promote_types(self.mask, self.dtype) == self.dtype

    @property
    def shares(self) -> bool:
        """Whether several heads of queries have one of keys."""
        return self.shape[1] != self.shape[2]


def problem(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, mask: Mask, scale: float | None, *, backward: bool
) -> Problem:
    """What is asked."""
    batch, heads, rows, width = query.shape
    shape = batch, heads, key.shape[1], rows, key.shape[2], width, value.shape[3]
    listed = mask is not None and flash_launch.is_listed(query, key, mask)
    turned = scale is not None and scale < 0
    p = Problem(shape, query.dtype, causal, None if mask is None else mask.dtype, backward, turned, listed=listed)
    return p._replace(computed=True) if isinstance(mask, Computed) else p


@functools.cache
def capability() -> int:
    """Major compute capability of the current GPU; 0: none."""
    return torch.cuda.get_device_capability()[0] if torch.cuda.is_available() else 0


@functools.lru_cache(4096)
def ways(p: Problem, major: int) -> tuple[Way, ...]:
    """Who may compute a problem on a GPU of this capability, the best first."""
    found: list[Way] = []
    halves, width = p.dtype in HALVES, max(p.shape[5:])
    if p.computed:
        return ("triton",)
    if p.general:
        return ("triton", "scores") if width <= WIDEST else ("scores",)
    if major and halves and p.regular:
        if major >= 9 and width <= 128 and (p.mask is None or _masked_by_cudnn(p)):
            found.append("cudnn")
        if width <= WIDEST and not p.shares and p.mask is None:
            found.append("flash")
    if major and not halves and not p.backward and p.adds:
        found.append("efficient")
    if width <= WIDEST:
        found.append("triton")
    if major and halves and not p.backward and p.adds and min(p.shape) > 0:
        found.append("efficient")
    return (*found, "scores")


def _masked_by_cudnn(p: Problem) -> bool:
    """Whether cuDNN, which computes all blocks, is faster under a mask: at gradients of wide heads, or where numbers are added;
    if no list says which blocks are hidden. (With minus infinity in a mask and scores that change their signs, they are not
    numbers.)"""
    if p.listed or p.causal or p.turned or not p.adds:
        return False
    return p.backward and (p.mask is not torch.bool or max(p.shape[5:]) > 64)


_refused: set[tuple[Way, Problem]] = set()


def _first(p: Problem, calls: Mapping[Way, Callable[[], Any]]) -> Any:
    """What the best way that takes the problem answers."""
    for way in ways(p, capability()):
        if _refused and (way, p) in _refused:
            continue
        try:
            return calls[way]()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            if way not in ("cudnn", "flash", "efficient"):
                raise
            _refused.add((way, p))
    raise AssertionError("scores in memory are always possible")


def _ahead(p: Problem, target: str, calls: Callable[[], list[flash_launch.Call]]) -> Mapping[str, int]:
    """Has generated functions compiled for a GPU that is elsewhere, where they are the best way there; what they take."""
    gpu = TARGETS[target]
    if ways(p, gpu.capability[0])[0] != "triton":
        return {}
    begun = [call.ahead(gpu) for call in calls()]
    return resources([binary(each.result()) for each in begun if each is not None])


# Forward


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Mask = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    p = problem(query, key, value, is_causal, attn_mask, scale, backward=False)
    calls: dict[Way, Callable[[], Any]] = {
        "triton": lambda: flash_launch.forward(query, key, value, is_causal, attn_mask, scale),
        "cudnn": lambda: _cudnn(query, key, value, is_causal, attn_mask, scale),
        "flash": lambda: aten._scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal, scale=scale)[:2],
        "efficient": lambda: _efficient(query, key, value, is_causal, attn_mask, scale),
        "scores": lambda: _decomposed(FORWARD)(query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale),
    }
    out, logsumexp = _first(p, calls)
    return out, logsumexp


def _forward_ahead(
    target: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Mask = None,
    scale: float | None = None,
) -> Mapping[str, int]:
    p = problem(query, key, value, is_causal, attn_mask, scale, backward=False)
    return _ahead(p, target, lambda: flash_launch.forward_calls(query, key, value, is_causal, attn_mask, scale)[1])


def _cudnn(query: Tensor, key: Tensor, value: Tensor, causal: bool, mask: Mask, scale: float | None) -> tuple[Tensor, Tensor]:
    bias = _bias(mask, query, key.shape[2])
    out, saved, *_ = aten._scaled_dot_product_cudnn_attention(query, key, value, bias, True, 0.0, causal, scale=scale)
    saved = saved.reshape(query.shape[:3])
    return out, saved if mask is None else saved.masked_fill(saved == -math.inf, 0)  # rows that see no key


def _efficient(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, mask: Mask, scale: float | None
) -> tuple[Tensor, Tensor]:
    key, value = (_for_each(x, query.shape[1]) for x in (key, value))
    bias = _bias(mask, query, key.shape[2])
    out, saved, *_ = aten._scaled_dot_product_efficient_attention(query, key, value, bias, True, 0.0, causal, scale=scale)
    saved = saved[..., : query.shape[2]]
    if mask is not None:  # Rows that see no key.
        none = ~torch.isfinite(saved)
        out, saved = out.masked_fill(none.unsqueeze(3), 0), saved.masked_fill(none, 0)
    return out, saved


def _for_each(x: Tensor, heads: int) -> Tensor:
    """Keys or values with a head for each of the queries'."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


_LEAST = -(2.0**100)
"""What stands for finite numbers below it where a library adds them: it counts in units of log 2, which the least ones lack.
Beside either any score vanishes. Halves of bfloat16 have it, too."""


def _bias(mask: Mask, query: Tensor, keys: int) -> Tensor | None:
    """A mask as numbers of the query's dtype to be added, its rows aligned as the libraries want them."""
    if mask is None:
        return None
    assert not isinstance(mask, Computed), "libraries compute no masks"
    if mask.dtype in (torch.float32, torch.bfloat16):
        mask = torch.where(mask == -math.inf, mask, mask.clamp(min=_LEAST))
    if mask.dtype == query.dtype and keys % 16 == 0 and mask.is_contiguous():
        return mask.expand(*query.shape[:3], keys)
    wide = torch.zeros((*mask.shape[:-1], -(-keys // 16) * 16), dtype=query.dtype, device=query.device)
    own = wide[..., :keys]
    own.copy_(
        torch.zeros((), dtype=query.dtype, device=query.device).where(mask, -math.inf) if mask.dtype == torch.bool else mask
    )
    return own.expand(*query.shape[:3], keys)


@functools.cache
def _decomposed(name: str) -> Callable[..., Any]:
    (rule,) = COMPOSITES[name].targets.values()
    return rule


# Backward


def _backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Mask = None,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    p = problem(query, key, value, is_causal, attn_mask, scale, backward=True)
    rows, keys = query.shape[2], key.shape[2]

    def flash() -> Any:
        state = torch.empty(2, dtype=torch.uint64, device=query.device)  # nobody reads it: there is no dropout
        saved = out, logsumexp.contiguous(), None, None, rows, keys, 0.0, is_causal, state, state[0]
        return aten._scaled_dot_product_flash_attention_backward(grad, query, key, value, *saved, scale=scale)

    def cudnn() -> Any:
        seed, bias = torch.empty((), dtype=torch.int64, device=query.device), _bias(attn_mask, query, keys)  # nobody reads it
        # Of rows that such numbers hide from all keys no digit is left: their weights are to be finite, and are nothing.
        lines = logsumexp if attn_mask is None else logsumexp.masked_fill(logsumexp < _LEAST / 2, 0)
        lines = lines.contiguous()
        saved = out, lines.unsqueeze(3), seed, seed, bias, None, None, rows, keys, 0.0, is_causal
        return aten._scaled_dot_product_cudnn_attention_backward(grad, query, key, value, *saved, scale=scale)

    calls: dict[Way, Callable[[], Any]] = {
        "flash": flash,
        "cudnn": cudnn,
        "triton": lambda: flash_launch.backward(grad, query, key, value, out, logsumexp, is_causal, attn_mask, scale),
        "scores": lambda: _decomposed(BACKWARD)(
            grad, query, key, value, out, logsumexp, 0.0, is_causal, attn_mask=attn_mask, scale=scale
        ),
    }
    by_query, by_key, by_value, *_ = _first(p, calls)
    return by_query, by_key, by_value


def _backward_ahead(
    target: str,
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Mask = None,
    scale: float | None = None,
) -> Mapping[str, int]:
    p = problem(query, key, value, is_causal, attn_mask, scale, backward=True)
    given = grad, query, key, value, out, logsumexp, is_causal, attn_mask, scale
    return _ahead(p, target, lambda: flash_launch.backward_calls(*given)[1])


# With dropout or a cap


def _dropout(seed: Tensor | None, probability: float) -> flash_launch.Dropout | None:
    return None if seed is None else flash_launch.Dropout(seed, probability)


def _general_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seed: Tensor | None,
    dropout_p: float,
    is_causal: bool = False,
    attn_mask: Mask = None,
    *,
    scale: float | None = None,
    cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    p = problem(query, key, value, is_causal, attn_mask, scale, backward=False)._replace(general=True)
    given = query, key, value, is_causal, attn_mask, scale, _dropout(seed, dropout_p), cap
    calls: dict[Way, Callable[[], Any]] = {
        "triton": lambda: flash_launch.forward(*given),
        "scores": lambda: _decomposed(GENERAL_FORWARD)(
            query, key, value, seed, dropout_p, is_causal, attn_mask, scale=scale, cap=cap
        ),
    }
    out, logsumexp = _first(p, calls)
    return out, logsumexp


def _general_forward_ahead(
    target: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seed: Tensor | None,
    dropout_p: float,
    is_causal: bool = False,
    attn_mask: Mask = None,
    *,
    scale: float | None = None,
    cap: float | None = None,
) -> Mapping[str, int]:
    p = problem(query, key, value, is_causal, attn_mask, scale, backward=False)._replace(general=True)
    given = query, key, value, is_causal, attn_mask, scale, _dropout(seed, dropout_p), cap
    return _ahead(p, target, lambda: flash_launch.forward_calls(*given)[1])


def _general_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    seed: Tensor | None,
    dropout_p: float,
    is_causal: bool = False,
    attn_mask: Mask = None,
    *,
    scale: float | None = None,
    cap: float | None = None,
) -> tuple[Tensor, ...]:
    p = problem(query, key, value, is_causal, attn_mask, scale, backward=True)._replace(general=True)
    given = grad, query, key, value, out, logsumexp, is_causal, attn_mask, scale, _dropout(seed, dropout_p), cap
    calls: dict[Way, Callable[[], Any]] = {
        "triton": lambda: flash_launch.backward(*given),
        "scores": lambda: _decomposed(GENERAL_BACKWARD)(
            grad, query, key, value, out, logsumexp, seed, dropout_p, is_causal, attn_mask, scale=scale, cap=cap
        ),
    }
    by_query, by_key, by_value = _first(p, calls)
    return by_query, by_key, by_value


def _general_backward_ahead(
    target: str,
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    seed: Tensor | None,
    dropout_p: float,
    is_causal: bool = False,
    attn_mask: Mask = None,
    *,
    scale: float | None = None,
    cap: float | None = None,
) -> Mapping[str, int]:
    p = problem(query, key, value, is_causal, attn_mask, scale, backward=True)._replace(general=True)
    given = grad, query, key, value, out, logsumexp, is_causal, attn_mask, scale, _dropout(seed, dropout_p), cap
    return _ahead(p, target, lambda: flash_launch.backward_calls(*given)[1])


def declined(node: NodeContext) -> Decline | None:
    """Why these kernels don't take ``node``, or None."""
    if node.prim not in COMPOSITE_NAMES:
        return None
    if node.prim in _DROPOUT_P and any(node.args[_DROPOUT_P[node.prim] :][:1]):
        return Decline("dropout inside attention: the operator has no seed from which its backward could draw the same numbers")
    tensors = [v for v in node.args[:5] if isinstance(v, TensorInfo) and v.dtype.is_floating_point]
    if len({t.dtype for t in tensors}) > 1:
        return Decline("query, key and value of different dtypes")
    if tensors[0].dtype == torch.float64:
        return Decline("attention of float64 has no kernel that keeps its scores to itself")
    return None


def computes(node: NodeContext, loops: LoopKernel) -> bool:
    """Whether a mask is computed where it is needed: of heads that a program has room for, unless a library comes first, whose
    products of float32 are those of tensor cores (``ways``)."""
    first = 1 if node.prim in (BACKWARD, GENERAL_BACKWARD) else 0
    query, _, value = node.args[first : first + 3]
    widths = query.shape[3], value.shape[3]
    small = all(isinstance(width, int) and width <= WIDEST for width in widths)
    generated = query.dtype in HALVES or (query.dtype == torch.float32 and node.prim != FORWARD)
    return small and generated and flash_masks.takes(loops)


def _without_gradients(call: Callable[..., Any]) -> Callable[..., Any]:
    def without_gradients(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            with torch.no_grad():
                return call(*args, **kwargs)
        return call(*args, **kwargs)

    return without_gradients


BESIDE = (0, 2, 1, 3)
"""How results lie: (batch, rows, heads, width), as the layers around attention have them and as the libraries return them."""
MASK = {"attn_mask": computes}
KERNELS: Mapping[str, Kernel] = {
    FORWARD: Kernel(_without_gradients(_forward), fresh=True, ahead=_forward_ahead, orders=(BESIDE,), computes=MASK),
    BACKWARD: Kernel(
        _without_gradients(_backward), fresh=True, ahead=_backward_ahead, orders=(BESIDE, BESIDE, BESIDE), computes=MASK
    ),
    GENERAL_FORWARD: Kernel(
        _without_gradients(_general_forward), fresh=True, ahead=_general_forward_ahead, orders=(BESIDE,), computes=MASK
    ),
    GENERAL_BACKWARD: Kernel(
        _without_gradients(_general_backward),
        fresh=True,
        ahead=_general_backward_ahead,
        orders=(BESIDE, BESIDE, BESIDE),
        computes=MASK,
    ),
}
"""Composite to kernel."""
