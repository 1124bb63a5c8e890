"""How generated attention (``flash.py``, ``flash_lists.py``, ``flash_backward.py``) is launched: sizes of blocks, buffers.

A mask is in memory, or computed (``flash_masks.py``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import torch

from reference_backends.triton_gpu import flash_masks
from reference_backends.triton_gpu.launch import Begun, Launcher, Plan
from reference_backends.triton_gpu.machine import Machine, machine
from reference_backends.triton_gpu.machine_code import number, pointer
from vendor_sdk import Computed, float_bits, kept_factor, words_kept

Tensor = torch.Tensor
Mask = Tensor | Computed | None
HALVES = (torch.bfloat16, torch.float16)
DENSE = torch.contiguous_format
WIDEST = 256
"""Width of a head up to which a program has room for a block of rows."""
ROOM = 200 * 1024
"""Shared memory from which the tensor cores read their operands there (compute capability 9.0): registers are left for more."""
TWICE = 128
"""Registers of a thread with which 16 warps fit on a multiprocessor. Rounds of the generator wait for each other: that other
programs fill."""
WORTH = 1 << 19
"""Rows times keys from which it is worth a launch to find out which blocks of scores a mask leaves."""
LARGEST = 64
"""Keys of a block, at most."""
STEP = 1 << 16
"""Elements of a mask that a program of that launch looks at in one step."""
COMPUTED = 1 << 9
"""As many of them are computed at a time by a warp: what they follow from is in registers."""
AT_ONCE = 256
"""Blocks that bounds decide at a time."""
LOOKED = 1 << 13
"""Keys that they look at, where they have to."""
FEW = 4
"""Blocks that bounds leave open of which elements are looked at together."""


class Form(NamedTuple):
    """What a function is compiled for.

    Attributes:
        mask: its dtype; None: there is none.
        alike: whether the mask is the same for all rows.
        listed: 1 where lists say which blocks it leaves, 2 where these are whole besides (see ``flash.forward``).
        cap: of the scores; 0 without one.
        last: the largest of the words of 16 bits whose weights dropout keeps, -1 without dropout.
        kept: what it multiplies them by.
        computed: the functions where they compute the mask.
        far: whether 32 bits do not count the elements from the first key of a head to the last, or to the last value.
    """

    dtype: torch.dtype
    width: int
    depth: int
    causal: bool
    mask: torch.dtype | None
    alike: bool
    scale: float
    cap: float = 0.0
    last: int = -1
    kept: float = 1.0
    listed: int = 0
    computed: ModuleType | None = None
    far: bool = False

    @property
    def kind(self) -> int:
        """Of mask: 0 none, 1 of bools, 2 of numbers; 3 and 4 the same where they are computed."""
        kind = 0 if self.mask is None else 1 if self.mask == torch.bool else 2
        return kind if self.computed is None else kind + 2

    @property
    def adds(self) -> bool:
        """Whether numbers are added."""
        return self.kind in (2, 4)

    @property
    def picks(self) -> bool:
        """Whether lists say which blocks there are of a mask that is computed: few, and small ones hide more."""
        return self.listed > 0 and self.computed is not None

    @property
    def element(self) -> tuple[None, ...]:
        """The function of an element, among the constants: those that compute the mask have their own."""
        return (None,) if self.computed is None else ()

    @property
    def drops(self) -> bool:
        """Whether there is dropout. Words of its generator take registers: more warps share a block then, or a smaller one.

        Multiples of 16 in all blocks are whole squares (``vendor_sdk/prims/dropout.py``).
        """
        return self.last >= 0

    @property
    def powers(self) -> tuple[int, int]:
        """Width and depth of the blocks that hold a head."""
        wide, deep = (max(16, 1 << (n - 1).bit_length()) for n in (self.width, self.depth))
        return wide, deep


class Dropout(NamedTuple):
    """A seed in memory, and the probability with which a weight is dropped."""

    seed: Tensor
    probability: float


Blocks = tuple[int, int, int, int]
"""Rows and keys of a program's blocks, its warps, and the stages in which operands arrive."""


class FlashLauncher(Launcher):
    """Launches one of the functions, for ``leads`` matrices of ``count`` rows (``along`` 0) or keys (1) each."""

    def __init__(self, kernel: Any, form: Form, blocks: Callable[[Form, int, int], Blocks], along: int) -> None:
        super().__init__(kernel, "fixed", 0)
        self.form, self.blocks, self.along = form, blocks, along

    def divided(self, count: int, gpu: Machine) -> tuple[int, int]:
        """Sizes of blocks: of those that programs have one of each, and of those that each walks over."""
        rows, keys, *_ = self.blocks(self.form, count, gpu.shared)
        return (keys, rows) if self.along else (rows, keys)

    def plan(self, leads: int, count: int, lengths: Any, largest: int, gpu: Machine) -> Plan:
        f = self.form
        *sizes, warps, stages = self.blocks(f, count, gpu.shared)
        # Products of float32 on the tensor cores, as exact as without: three of TF32.
        precision = "ieee" if f.dtype in HALVES or self.kernel.__name__ == "forward" else "tf32x3"
        values = (
            f.scale * math.log2(math.e),
            f.cap,
            f.kind,
            f.alike,
            f.listed,
            f.causal,
            f.last,
            f.kept,
            *sizes,
            *f.powers,
            f.powers == (f.width, f.depth),
            precision,
            *((f.far,) if self.kernel.__name__ == "forward" else ()),
            *f.element,
        )
        settings = {"num_warps": warps, "num_stages": stages}
        narrow = f.dtype in HALVES and max(f.powers) <= 64 and math.prod(sizes) <= 1024 * warps
        if f.drops and narrow and gpu.shared >= ROOM and self.kernel.__name__ == "forward":
            settings["maxnreg"] = TWICE
        return Plan(leads * -(-count // sizes[self.along]), values, settings)


class ListsLauncher(FlashLauncher):
    """Launches ``flash_lists.listed`` or ``flash_lists.bounded``, for the blocks of another function."""

    def plan(self, leads: int, count: int, lengths: Any, largest: int, gpu: Machine) -> Plan:
        own, other = self.divided(count, gpu)
        values, mask, programs = (self.form.causal, self.along == 1, own, other), self.form.computed, leads * -(-count // own)
        if mask is not None and mask.BOUNDED:
            wide, warps = LOOKED // other if mask.LOOKS else AT_ONCE, 8
            return Plan(programs, (*values, wide, FEW, min(own, warps * COMPUTED // (FEW * other))), {"num_warps": warps})
        wide, warps = STEP // (own * other), 16
        part = own if mask is None else min(own, warps * COMPUTED // (wide * other))
        return Plan(programs, (*values, wide, part, *self.form.element), {"num_warps": warps})


def forward_blocks(f: Form, rows: int, shared: int) -> Blocks:
    """Of ``flash.forward``."""
    width = max(f.powers)
    block = _block(rows)
    if f.dtype not in HALVES:
        return min(block, 32), 32, 4, 1
    if width > 128:
        return min(block, 64), 32, 8, 2
    if block < 128:
        return block, 64, 8 if f.drops and block == 64 else 4, 2
    if shared >= ROOM:
        # Two programs of a warp group each hide what the other waits for; a mask of numbers leaves room for one of these.
        large = f.kind == 2 if width > 64 else not f.causal and f.kind == 0
        return (128, 64, 8, 3) if large else (64, 64, 4, 2 if f.picks else 3)
    if f.drops:
        return (128 if width <= 64 else 64), 64, 8, 2
    if width > 64:
        return (64, 64, 8 if f.listed else 4, 2) if f.mask else (128, 64, 8, 2)
    return 128, 64, 8 if f.mask else 4, 3


def query_blocks(f: Form, rows: int, shared: int) -> Blocks:
    """Of ``flash_backward.by_query``."""
    width, block = max(f.powers), _block(rows)
    if f.dtype not in HALVES:
        return min(block, 32), 32, 4, 1
    if width > 128:
        return min(block, 64), 32, 8, 1
    if shared < ROOM:
        return min(block, 64), 64, 8 if block >= 64 else 4, 2
    if f.picks and not f.drops:
        return min(block, 64), 64, 4, 2
    if width > 64 and not f.drops:
        return block, 64, 8 if block >= 64 else 4, 3 if f.kind == 4 else 1
    if width > 64 and not f.causal:
        return min(block, 64), 64, 4, 2
    return min(block, 64), 64 if width <= 64 else 32, 4, 3


def key_blocks(f: Form, keys: int, shared: int) -> Blocks:
    """Of ``flash_backward.by_key``."""
    width, block = max(f.powers), _block(keys)
    if f.dtype not in HALVES:
        return 32, min(block, 32), 4, 1
    if width > 128:
        return 32, min(block, 64), 8, 1
    if shared >= ROOM:
        # Rows and stages as registers hold them: of a causal mask fewer, of dropout's words fewest. Wide heads without a causal
        # mask, and lists, are faster with as many as spill a few bytes.
        if width > 64:
            return (16 if f.drops and f.causal else 32), min(block, 64), 4, 1 if f.causal else 3
        return (64, min(block, 64), 4, 1) if (f.causal or f.picks) and not f.drops else (32, min(block, 64), 4, 3)
    return 32, min(block, 64), 8 if block >= 64 else 4, 1 if width > 64 and (f.drops or f.mask) else 2


def _block(count: int) -> int:
    """A program's share of so many rows."""
    return 128 if count > 64 else 64 if count > 32 else 32 if count > 16 else 16


@functools.lru_cache(256)
def forward_launcher(form: Form) -> FlashLauncher:
    from reference_backends.triton_gpu import flash

    return FlashLauncher((form.computed or flash).forward, form, forward_blocks, 0)


@functools.lru_cache(256)
def lists_launcher(launcher: FlashLauncher) -> ListsLauncher:
    """Of the lists that a function reads."""
    from reference_backends.triton_gpu import flash_lists

    mask = launcher.form.computed
    function = flash_lists.listed if mask is None else mask.bounded if mask.BOUNDED else mask.listed
    return ListsLauncher(function, launcher.form, launcher.blocks, launcher.along)


@functools.lru_cache(256)
def backward_launchers(form: Form) -> tuple[FlashLauncher, FlashLauncher]:
    """Of ``by_query`` and ``by_key``, in the order in which they run."""
    from reference_backends.triton_gpu import flash_backward

    home = form.computed or flash_backward
    return FlashLauncher(home.by_query, form, query_blocks, 0), FlashLauncher(home.by_key, form, key_blocks, 1)


def is_alike(mask: Tensor | Computed) -> bool:
    """Whether a mask in memory is the same for all rows."""
    return not isinstance(mask, Computed) and (mask.shape[-2] == 1 or mask.stride(-2) == 0)


def is_listed(query: Tensor, key: Tensor, mask: Tensor | Computed) -> bool:
    """Whether lists are made of the blocks that a mask leaves: of bools, and where it says why a number that it computes is
    minus infinity. Numbers in memory are added as they are."""
    if query.shape[2] * key.shape[2] < WORTH:
        return False
    if isinstance(mask, Computed):
        return flash_masks.module(mask).DIFFERS is not None
    return mask.dtype == torch.bool and not is_alike(mask)


def form_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool,
    mask: Mask,
    scale: float | None,
    dropout: Dropout | None = None,
    cap: float | None = None,
) -> Form:
    """What the functions for these operands are compiled for."""
    width = query.shape[3]
    factor = scale if scale is not None else 1 / math.sqrt(width) if width else 0.0
    alike = mask is not None and is_alike(mask)
    listed = 0 if mask is None or not is_listed(query, key, mask) else 1 if causal or key.shape[2] % LARGEST else 2
    far = key.shape[2] * max(key.stride(2), value.stride(2)) >= 1 << 31
    of = None if mask is None else mask.dtype
    form = Form(query.dtype, width, value.shape[3], causal, of, alike, factor, cap or 0.0, listed=listed, far=far)
    if isinstance(mask, Computed):
        form = form._replace(computed=flash_masks.module(mask))
    if dropout is None:
        return form
    # Where nothing is kept, what is multiplied by 0 may be any.
    return form._replace(last=max(words_kept(dropout.probability) - 1, 0), kept=kept_factor(dropout.probability))


def _of_heads(mask: Mask) -> Mask:
    """A mask in memory with dimensions for batch and heads, which it may come without."""
    return mask[(None,) * (4 - mask.dim())] if isinstance(mask, Tensor) and mask.dim() < 4 else mask


def _sizes(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, ...]:
    heads, shared = query.shape[1], key.shape[1]
    if heads % max(shared, 1):
        raise RuntimeError(f"attention: {heads} heads of queries do not divide among {shared} heads of keys")
    return heads, shared, query.shape[2], key.shape[2], query.shape[3], value.shape[3]


def _steps(mask: Mask, query: Tensor, key: Tensor) -> tuple[int, ...]:
    """Steps through a mask in memory; of one that is computed, along what its lists differ."""
    if mask is None:
        return 0, 0, 0, 0
    if isinstance(mask, Computed):
        batch, head = flash_masks.module(mask).DIFFERS or (False, False)
        return int(batch), int(head), 0, 0
    wanted = *query.shape[:3], key.shape[2]
    return tuple(0 if own != size else step for own, size, step in zip(mask.shape, wanted, mask.stride(), strict=True))


def _beside(query: Tensor, mask: Mask, dropout: Dropout | None) -> tuple[Tensor, ...]:
    """The mask, or what it is made of, and the seed; where there is none, a buffer that is not read."""
    return *_buffers(query if mask is None else mask), query if dropout is None else dropout.seed


def _buffers(mask: Tensor | Computed) -> tuple[Tensor, ...]:
    """What is in memory of a mask."""
    return mask.buffers if isinstance(mask, Computed) else (mask,)


def _numbers(mask: Mask) -> tuple[int, ...]:
    """What else a mask is made of."""
    if not isinstance(mask, Computed):
        return ()
    return tuple(
        float_bits(number) if symbol.dtype == torch.float64 else int(number)
        for number, symbol in zip(mask.numbers, mask.loops.symbols, strict=True)
    )


@dataclass(frozen=True)
class Call:
    """A launch that is to be: of ``count`` rows or keys for each of ``leads`` matrices."""

    launcher: FlashLauncher
    buffers: tuple[Tensor, ...]
    numbers: tuple[int, ...]
    leads: int
    count: int

    def launch(self) -> None:
        self.launcher(self.buffers, self.numbers, self.leads, self.count, (), 0)

    def ahead(self, gpu: Machine) -> Begun | None:
        """Begins to compile for a GPU that is elsewhere; the buffers may be of the ``meta`` device."""
        given = [pointer(b.dtype, aligned=b.storage_offset() * b.itemsize % 16 == 0) for b in self.buffers]
        return self.launcher.ahead([*given, *map(number, self.numbers)], (self.leads, self.count, (), 0), gpu)


class Lists(NamedTuple):
    """Blocks that a mask leaves: where they will be, the steps through them, and the launch that finds them."""

    buffer: Tensor
    steps: tuple[int, int]
    calls: tuple[Call, ...]


def lists_of(launcher: FlashLauncher, mask: Mask, query: Tensor, key: Tensor) -> Lists:
    """Those that ``launcher`` reads; where it reads none, a buffer that is not read."""
    if mask is None or not launcher.form.listed:
        return Lists(query, (0, 0), ())
    *steps, row, column = _steps(mask, query, key)
    batch, heads = (size if step else 1 for size, step in zip(query.shape[:2], steps, strict=True))
    count, others = query.shape[2], key.shape[2]
    if launcher.along:
        count, others, row, column = others, count, column, row
    own, other = launcher.divided(count, machine())
    sizes = batch, heads, -(-count // own), 2 + -(-others // other)
    buffer = torch.empty(sizes, dtype=torch.int32, device=query.device)
    numbers = heads, count, others, *steps, row, column, *_numbers(mask)
    call = Call(lists_launcher(launcher), (*_buffers(mask), buffer), numbers, batch * heads, count)
    return Lists(buffer, (heads if steps[0] else 0, int(steps[1] > 0)), (call,))


def forward_calls(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool,
    mask: Mask,
    scale: float | None,
    dropout: Dropout | None = None,
    cap: float | None = None,
) -> tuple[tuple[Tensor, Tensor], list[Call]]:
    """Attention, with the heads beside each other in memory, and the logarithms that its gradients need, contiguous; and the
    launches that fill them."""
    sizes, mask = _sizes(query, key, value), _of_heads(mask)
    batch, heads, rows, _ = query.shape
    depth = value.shape[3]
    out = torch.empty((batch, rows, heads, depth), dtype=query.dtype, device=query.device).transpose(1, 2)
    saved = torch.empty((batch, heads, rows), dtype=torch.float32, device=query.device)
    if not out.numel() and not saved.numel():
        return (out, saved), []
    launcher = forward_launcher(form_of(query, key, value, causal, mask, scale, dropout, cap))
    lists = lists_of(launcher, mask, query, key)
    numbers = *sizes, *query.stride(), *key.stride(), *value.stride(), *_steps(mask, query, key), *lists.steps, *_numbers(mask)
    buffers = query, key, value, *_beside(query, mask, dropout), lists.buffer, out, saved
    return (out, saved), [*lists.calls, Call(launcher, buffers, numbers, batch * heads, rows)]


def backward_calls(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    causal: bool,
    mask: Mask,
    scale: float | None,
    dropout: Dropout | None = None,
    cap: float | None = None,
) -> tuple[tuple[Tensor, Tensor, Tensor], list[Call]]:
    """Gradients by query, key and value, with the heads beside each other in memory; and the launches that fill them, in
    order."""
    sizes, mask = _sizes(query, key, value), _of_heads(mask)
    batch, heads, rows, _ = query.shape
    shared, keys = key.shape[1], key.shape[2]
    by_query, by_key, by_value = (torch.empty_like(x.transpose(1, 2), memory_format=DENSE) for x in (query, key, value))
    inner = torch.empty((batch, heads, rows), dtype=torch.float32, device=query.device)
    operands, ends = (*query.stride(), *key.stride(), *value.stride(), *grad.stride()), _steps(mask, query, key)
    over_queries, over_keys = backward_launchers(form_of(query, key, value, causal, mask, scale, dropout, cap))
    given, saved = (query, key, value, *_beside(query, mask, dropout)), (logsumexp.contiguous(), inner)
    first, second = (lists_of(launcher, mask, query, key) for launcher in (over_queries, over_keys))
    numbers = *sizes, *operands, *out.stride(), *ends, *first.steps, *_numbers(mask)
    calls = [
        *first.calls,
        Call(over_queries, (*given, first.buffer, grad, out, *saved, by_query), numbers, batch * heads, rows),
        *second.calls,
        Call(
            over_keys,
            (*given, second.buffer, grad, *saved, by_key, by_value),
            (*sizes, *operands, *ends, *second.steps, *_numbers(mask)),
            batch * shared,
            keys,
        ),
    ]
    return (by_query.transpose(1, 2), by_key.transpose(1, 2), by_value.transpose(1, 2)), calls


def forward(*given: Any) -> tuple[Tensor, Tensor]:
    """What ``forward_calls`` promises for the same arguments, computed."""
    results, calls = forward_calls(*given)
    for call in calls:
        call.launch()
    return results


def backward(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """What ``backward_calls`` promises for the same arguments, computed."""
    results, calls = backward_calls(*given)
    for call in calls:
        call.launch()
    return results
