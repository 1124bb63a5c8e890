"""Identity and limits of a backend, and what it wants removed from graphs before it sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

CONTRACT_VERSION = (1, 0)
"""Version of the hooks and classes in ``vendor_sdk.contract``: the major number changes when a plugin must change."""


@dataclass(frozen=True, kw_only=True)
class Legalization:
    """What a backend does *not* want to handle; the SDK removes it before the backend sees the graph.

    Attributes:
        explicit_broadcast: operands of one pointwise prim have equal shapes (the SDK inserts ``expand``).
        explicit_promotion: operands of one pointwise prim have equal dtypes (the SDK inserts ``_to_copy``).
        no_scalars: no Python number stands where a tensor can (the SDK inserts ``full``).
        contiguous_inputs: kernels and partitions receive row-major contiguous tensors, no gaps (the SDK copies others first).
            ``clone`` alone receives any strides: a backend's ``clone`` kernel is what makes operands contiguous on the device;
            without one, short runs of elements go through the host.
        no_float64: no float64 tensor reaches the device. Float64 arithmetic runs on the host.
        no_int64: no int64 tensor reaches the device: int64 values are int32 there, range-checked on the way in. The conformance
            suite tries values beyond too: declare such cases (``{"add[int64]": "..."}``) by the hook ``conformance``.
        row_alignment: bytes of which the rows of a matrix product's factors and result should be multiples. Large products of
            known sizes are computed with columns or rows of zeros beside them (the SDK inserts ``constant_pad_nd`` and
            ``slice``). 1: rows lie as they come.
        channels_last: convolutions over images without groups get images whose channels lie last in memory, and what stands
            between them computes on such values (the SDK inserts ``permute``, and ``clone`` where images come in otherwise).
            For backends on a ``TorchDevice`` whose kernels of convolutions declare ``orders="channels_last"``.
        separate_bias: convolutions have no bias, and compute no gradient of one (the SDK inserts ``add`` and ``sum``, which
            fuse with their neighbours).
        complex_numbers: arithmetic of complex numbers reaches the backend as it is. Without, it is arithmetic of their parts,
            which loops compute (the SDK inserts ``view_as_real`` and ``view_as_complex`` where others want the numbers).
    """

    explicit_broadcast: bool = False
    explicit_promotion: bool = False
    no_scalars: bool = False
    contiguous_inputs: bool = False
    no_float64: bool = False
    no_int64: bool = False
    row_alignment: int = 1
    channels_last: bool = False
    separate_bias: bool = False
    complex_numbers: bool = False


@dataclass(frozen=True, kw_only=True)
class MemoryPolicy:
    """What the memory plan must keep to. It governs memory of torch's own devices; a ``Device`` allocates value by value.

    Attributes:
        arena: whether intermediate results may lie in one block of memory at planned offsets. With ``False`` each has an
            allocation of its own.
        alignment: bytes to which results in the arena are aligned; a power of two.
        in_place: whether an emitted kernel may write a result over an operand (a param of role "inout").
        borrow: whether intermediate results may lie in the memory of an output before the output is written.
        bank: bytes from which on the large outputs of a backward graph share one allocation, in which intermediate results find
            room too; it is free again when the last of these gradients is gone. Activations that a forward graph saves share
            one in the same way, and the gradients take their place. ``None``: never.
    """

    arena: bool = True
    alignment: int = 64
    in_place: bool = True
    borrow: bool = True
    bank: int | None = 1 << 20


@dataclass(frozen=True)
class Supported:
    """The backend takes this node."""


@dataclass(frozen=True)
class Decline:
    """The backend does not take this node; ``reason`` is shown wherever the placement is (``"k > 4096"``)."""

    reason: str


Support = Supported | Decline
"""What the ``supports`` hook answers."""


VERDICTS = ("fail", "error", "crash", "timeout")
"""What may be known to come out of a case: a wrong result, an exception, the end of the process, no answer in time."""


@dataclass(frozen=True)
class KnownFailure:
    """A failure of the conformance suite that the vendor knows of; ``reason`` is shown with it.

    Attributes:
        reason: in the vendor's words (``"the table has 10 bits"``).
        verdict: how it fails: ``"fail"`` (a wrong result), ``"error"`` (compiling or running raises), ``"crash"`` or
            ``"timeout"``. Where it fails in another way, that is a failure nobody declared.
    """

    reason: str
    verdict: str = "fail"


@dataclass(frozen=True, kw_only=True)
class NodeContext:
    """A node as the ``supports`` hook sees it: the prim with everything a backend may base its answer on.

    Attributes:
        prim: name of the prim or claimed composite (``"add"``, ``"softmax"``).
        args, kwargs: the node's arguments; tensors stand as ``TensorInfo``, subgraphs of control prims as ``PrimGraph``.
        outputs: the results, one ``TensorInfo`` each.
        backward: whether the node belongs to a backward graph.
        where: the user's source line, ``""`` when unknown.
    """

    prim: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[TensorInfo, ...]
    backward: bool
    where: str = ""


@dataclass(frozen=True)
class TensorInfo:
    """Shape, dtype and layout of a tensor at compile time. Sizes are ``int``, or ``torch.SymInt`` where dynamic."""

    shape: tuple[Any, ...]
    dtype: torch.dtype
    contiguous: bool = True

    @property
    def symbolic(self) -> bool:
        return any(not isinstance(size, int) for size in self.shape)

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, kw_only=True)
class Option:
    """One entry a user may pass in ``torch.compile(options={...})``.

    Attributes:
        default: value when absent; its type is the option's type.
        help: one line for ``vendor-sdk list`` and error messages.
        choices: the legal values, empty for any.
    """

    default: Any
    help: str
    choices: tuple[Any, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Target(Option):
    """The option under which a backend compiles for a device that this machine may lack (``options={"target": "rev B"}``).

    Where a user gives it, ``Backend.requires`` is not asked. Users pass tensors of the host; graphs go through all stages and
    are compiled as for the ``device`` hook's answer, which may say ``TorchDevice("cuda")`` where there is none, and then a
    call raises ``MachineError``. So nothing runs, and hooks must not touch the device under this option. What becomes of the
    machine code is the backend's affair (its compiler's cache); ``Emitter.resources`` and ``Kernel.ahead`` tell
    ``vendor_sdk.explain`` of it. At most one of ``Backend.options`` is a target.

    Attributes:
        default: None, for this machine's own device; nothing else.
        requires: what compiling needs in place of ``Backend.requires`` (a compiler, but no device): ``""`` when this machine
            has it, else what is missing.
    """

    default: Any = None
    requires: Callable[[], str] = lambda: ""


def _no_counters() -> Mapping[str, int]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Backend:
    """Identity and limits, answered once by the ``backend`` hook.

    Attributes:
        name: what users write in ``torch.compile(backend=...)``; must equal the entry point's name.
        version: of the plugin; part of every cache key.
        contract: contract version the plugin was written for, ``(major, minor)``.
        opset: opset version the plugin was written for.
        dtypes: dtypes the device computes in, and floats of eight bits that it stores and converts; nodes with others go to the
            host, with that reason.
        legalize: what the SDK removes from graphs first.
        requires: called at load; returns ``""`` when the machine has what the backend needs, else what is missing and how to
            install it (``"no C++ compiler on PATH: install g++"``). ``vendor-sdk list --check`` shows it. A backend with a
            ``Target`` among its options can then still be loaded for that.
        options: the backend's own compile options, beside the SDK's.
        composites: composites the backend wants whole; each still passes through ``supports``.
        deterministic: whether two runs on equal inputs give equal bits.
        memory: what the memory plan must keep to.
        numerics: declared numerics by probe of the conformance suite (``{"mm float32 accumulator": "float32"}``): what it
            measures must agree. ``{"float32 subnormals": "flushed"}`` lets subnormals of that dtype be zero (``kept`` where it
            is not declared); ``mm``, ``convolution``, ``sum`` and ``cumsum`` before it let those of such prims.
        notes: declared numerics in free text by topic (``{"float32 matmul": "accumulates in float32"}``).
        counters: reads the device's own counters by name, which only grow (``{"bytes read": 10, "bytes written": 5}``); the
            conformance suite reports by how much timed calls moved them, and a call of something native that moves none is a
            failure: at least one must count all work, kernels that read nothing included. Empty where the device has none.
    """

    name: str
    version: str
    contract: tuple[int, int] = CONTRACT_VERSION
    opset: int = 1
    dtypes: frozenset[torch.dtype]
    legalize: Legalization = Legalization()
    requires: Callable[[], str] = lambda: ""
    options: Mapping[str, Option] = field(default_factory=dict)
    composites: frozenset[str] = frozenset()
    deterministic: bool = True
    memory: MemoryPolicy = MemoryPolicy()
    numerics: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    counters: Callable[[], Mapping[str, int]] = _no_counters
