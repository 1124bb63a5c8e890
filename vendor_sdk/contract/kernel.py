"""Route 1, kernels: a callable per prim. Ten lines run a model, with everything else on the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from vendor_sdk.contract.backend import NodeContext
from vendor_sdk.contract.emitter import Launch
from vendor_sdk.ir.index import Int
from vendor_sdk.ir.loop import LoopKernel
from vendor_sdk.ir.orders import CHANNELS_LAST, channels_lie_last

if TYPE_CHECKING:
    import torch

Size = int | Int
"""A number known while compiling, or an expression over shape symbols."""


@dataclass(frozen=True, eq=False)
class Operand:
    """Where a native kernel finds a tensor: element ``index`` lies ``offset + sum(index * strides)`` elements behind the first
    of its buffer. Two operands may lie in one buffer."""

    dtype: torch.dtype
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    offset: Size


@dataclass(frozen=True)
class NativeCall:
    """One call of a native kernel, made like a launch of the emitter's, and in one native call with those around it.

    Attributes:
        launch: ``launch(buffers, numbers)``, of the kind that ``Emitter.compile`` returns.
        operands: those whose buffers it gets, in order (one may be there twice); buffers of the results follow.
        numbers: what else it gets. Floats are passed as float64, all others as int64.
    """

    launch: Launch
    operands: tuple[Operand, ...]
    numbers: tuple[Size | float, ...]


@dataclass(frozen=True, eq=False)
class Computed:
    """A tensor that is in no memory: each element is what loops say, from tensors that are small beside it.

    ``loops`` would fill it. Their body is one nest, with a range for each dimension in order (those of one element too), loads,
    computations, no inner loops, and last one store, of the element at the ranges' variables: its value is the element.

    Attributes:
        loops: params are ``buffers``, then the tensor itself; nothing is stored but that.
        shape, dtype: of the tensor.
        buffers: what the loops read (``Launch`` says how they index it), in order.
        numbers: values of ``loops.symbols``, in order.
    """

    loops: LoopKernel
    shape: tuple[int, ...]
    dtype: torch.dtype
    buffers: tuple[torch.Tensor, ...]
    numbers: tuple[int | float, ...]


SMALLER = 4
"""How many times the bytes of what it is made from an operand has at least, before a kernel is asked whether it computes it."""
Wanted = Callable[[NodeContext, LoopKernel], bool]
"""Whether a kernel computes an operand of a node as these loops do (``Computed.loops``)."""


@dataclass(frozen=True)
class Kernel:
    """How one prim runs on the device.

    Operands are the kernel's for the length of the call: their memory serves other values afterwards, so it must not keep a
    reference to one. (Returning an operand, or a view of one, is allowed: the SDK looks, and copies it then.)

    Attributes:
        call: the kernel. It receives the prim's arguments in schema order, keyword-only ones by name, with tensors as
            ``torch.Tensor`` (``TorchDevice``) or ``DeviceTensor`` (own memory) and everything else as plain Python values.
            ``IndexError`` is for indices that are out of range: it reaches the program that made the call as it is, with a note
            on prim and place, and so does what says that memory ran out. All else that it raises becomes a ``KernelError``.
        destination: when True the SDK allocates the results, contiguous, and passes them first, one argument each; the kernel
            fills them and returns None. When False the kernel returns its results (a tuple for several).
        dtypes: what it is for: a node with a tensor of another dtype takes the backend's other routes. None: any.
        native: for backends with an emitter on a ``TorchDevice``: the same kernel as a launch of compiled code. Called once for
            each node, with what ``call`` gets but an ``Operand`` for each tensor (results, which are contiguous, first); views
            above the operands are in their strides. None, or the answer None: ``call`` runs.
        orders: for kernels that return their results, on a ``TorchDevice``: the order of memory in which each lies, as its
            dimensions from the outermost to the innermost (``None``: row-major), so that nobody rearranges what is where
            others want it: ``((0, 2, 1, 3),)`` for heads that lie beside each other; ``"channels_last"``:
            images and weights of two-dimensional convolutions, that way where torch's own operator has them so, by its
            operands' strides (``Legalization.channels_last``). A result that lies otherwise is copied.
        fresh: whether what a kernel returns is never an operand or a view of one, nor anything that the kernel keeps: the SDK
            need not look at every call, and fused kernels may write their results over it when it dies.
        ahead: for backends with a ``Target``: ``ahead(target, *args, **kwargs)`` compiles for ``target`` (the option's value)
            what ``call`` would launch for such arguments, and answers what that takes, like ``Emitter.resources``. Tensors are
            of torch's ``meta`` device, with the shapes and strides of a call (sizes that only the call knows are those of the
            trace). None: there is nothing to compile, as in a library's kernels.
        computes: for backends with an emitter on a ``TorchDevice``: operands that the kernel can compute where it needs them, a
            mask of positions for instance, by their names in the schema. Where one is computed element by element from tensors
            that are small beside it, and nobody else reads it, the kernel is asked, with the loops: if it answers yes, ``call``
            and ``ahead`` get a ``Computed`` in its place, and ``native`` is not asked.
        yields: for backends with an emitter that lowers the prim too: whether a fused kernel may run it instead, where
            ``Emitter.takes_over`` says so. (A library's matrix product, against a template that has the epilogue.)
    """

    call: Callable[..., Any]
    destination: bool = False
    dtypes: frozenset[torch.dtype] | None = None
    native: Callable[..., NativeCall | None] | None = None
    fresh: bool = False
    ahead: Callable[..., Mapping[str, int]] | None = None
    computes: Mapping[str, Wanted] = field(default_factory=dict)
    yields: bool = False
    orders: tuple[tuple[int, ...] | None, ...] | Literal["channels_last"] = ()

    def order(self, index: int, traced: torch.Tensor) -> tuple[int, ...] | None:
        """In which result ``index`` lies; ``traced``: what torch's operator gives."""
        if self.orders == "channels_last":
            return CHANNELS_LAST if channels_lie_last(traced) else None
        return self.orders[index] if index < len(self.orders) else None


def destination(call: Callable[..., None]) -> Kernel:
    """Decorator: ``call(out, *args)`` writes into results that the SDK allocated."""
    return Kernel(call, destination=True)
