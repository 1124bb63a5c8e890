"""What the generated wrapper calls at run time: allocation, transfers, views and checks, for both kinds of device."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

from vendor_sdk import torch_private
from vendor_sdk.contract.device import DeviceTensor
from vendor_sdk.errors import KernelError
from vendor_sdk.ir.orders import dense_strides, laid
from vendor_sdk.run.blocks import shaped, warm_empty
from vendor_sdk.run.kept import kept
from vendor_sdk.run.memory import DeviceMemory

Shape = tuple[int, ...]
Tensors = tuple[torch.Tensor, ...]
Expected = tuple[Shape, torch.dtype, Shape | None]
"""What a kernel's result must be: shape, dtype, and the order of its dimensions in memory (``None``: row-major)."""


class Runtime(Protocol):
    """The functions that wrapper text refers to as ``RT``."""

    contiguous_operands: bool
    """whether kernels and partitions take row-major contiguous operands only"""
    allocate: Callable[[Shape, Shape, torch.dtype], Any] | None
    """what makes a tensor of sizes and strides that are known, where that is quicker than ``empty``"""
    seeds_in_memory: bool
    """whether seeds are tensors of the device (``Emitter.seeds_in_memory``)"""

    def empty(self, shape: Shape, dtype: torch.dtype) -> Any: ...
    def to_device(self, value: torch.Tensor, dtype: torch.dtype, static: bool) -> Any: ...
    def kept(self, make: Callable[..., torch.Tensor], *args: Any) -> Callable[[torch.Tensor], torch.Tensor]: ...
    def to_host(self, value: Any, dtype: torch.dtype) -> torch.Tensor: ...
    def contiguous(self, value: Any) -> Any: ...
    def view(self, prim: str, value: Any, *args: Any, **kwargs: Any) -> Any: ...
    def as_strided(self, value: torch.Tensor, size: Shape, stride: Shape, offset: int | None = None) -> torch.Tensor: ...
    def as_traced(self, value: torch.Tensor, strides: Shape) -> torch.Tensor: ...
    def checked(self, value: Any, expected: Expected) -> Any: ...
    def checked_several(self, values: Any, expected: Sequence[Expected | None]) -> Any: ...
    def output(self, value: Any, strides: Shape, fresh: bool, offset: int | None = None) -> torch.Tensor: ...
    def part(self, owner: torch.Tensor, offset: int, shape: Shape, dtype: torch.dtype) -> torch.Tensor: ...
    def lying(self, value: torch.Tensor, shape: Shape, strides: Shape) -> torch.Tensor: ...
    def own(self, value: Any, *operands: torch.Tensor) -> Any: ...
    def seeds(self, count: int) -> Sequence[Any]: ...
    def seed(self, value: int) -> Any: ...
    def for_writing(self, given: Tensors, strides: Sequence[Shape]) -> Tensors: ...
    def write(self, target: torch.Tensor, value: torch.Tensor) -> None: ...
    def wrote(self, given: Tensors, written: Tensors) -> None: ...


class TorchRuntime:
    """For backends whose memory is torch's own: values are ``torch.Tensor``, nothing is transferred."""

    def __init__(self, device: torch.device, contiguous_operands: bool = False, seeds_in_memory: bool = False) -> None:
        self.device = device
        self.contiguous_operands = contiguous_operands
        self.seeds_in_memory = seeds_in_memory
        self._thread = threading.local()
        # On the host large tensors are made in warm memory.
        self.allocate = None if device.type == "cpu" else torch_private.plain_allocator(device)

    def empty(self, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
        if self.device.type == "cpu":
            return warm_empty(shape, dtype)
        return torch.empty(shape, dtype=dtype, device=self.device)

    def part(self, owner: torch.Tensor, offset: int, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor inside the memory of ``owner``, from byte ``offset``: for values that live before ``owner``'s."""
        return shaped(owner, offset, shape, dtype)

    def lying(self, value: torch.Tensor, shape: Shape, strides: Shape) -> torch.Tensor:
        """The memory of a contiguous tensor as one that lies otherwise; no view in the sense of autograd."""
        return shaped(value, 0, shape, value.dtype, strides)

    def own(self, value: Any, *operands: torch.Tensor) -> Any:
        """``value``, copied where its memory is that of one of ``operands``, which others will write to."""
        taken = {operand.untyped_storage().data_ptr() for operand in operands}

        def owned(item: Any) -> Any:
            if isinstance(item, list | tuple):
                return tuple(map(owned, item))
            return item.clone() if isinstance(item, torch.Tensor) and item.untyped_storage().data_ptr() in taken else item

        return owned(value)

    def to_device(self, value: torch.Tensor, dtype: torch.dtype, static: bool) -> torch.Tensor:
        return value

    def to_host(self, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return value

    def kept(self, make: Callable[..., torch.Tensor], *args: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        """What gives ``make(parameter, *args)``, made anew where the parameter has changed."""
        return kept.getter(make, *args)

    def contiguous(self, value: Any) -> Any:
        """Row-major contiguous tensors, copied only where they are not; several results are treated one by one."""
        if isinstance(value, torch.Tensor):
            return value.contiguous()
        if isinstance(value, list | tuple):
            return tuple(self.contiguous(item) for item in value)
        return value

    def view(self, prim: str, value: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        raise AssertionError("views of torch tensors are torch's own")

    def as_strided(self, value: torch.Tensor, size: Shape, stride: Shape, offset: int | None = None) -> torch.Tensor:
        """``as_strided`` of the logical tensor: strides count in its row-major elements, whatever its real layout."""
        dense = value.contiguous()
        return dense.as_strided(size, stride, dense.storage_offset() + (offset or 0))

    def as_traced(self, value: torch.Tensor, strides: Shape) -> torch.Tensor:
        """An input with the strides the graph was traced with."""
        return value if value.stride() == strides else _with_strides(value, strides)

    def checked(self, value: Any, expected: Expected) -> torch.Tensor:
        """A kernel's result, verified; raises ``KernelError`` when it is not what the prim's meta rule says."""
        shape, dtype, order = expected
        if not isinstance(value, torch.Tensor):
            raise KernelError(f"returned {type(value).__name__}", fix="return a torch.Tensor")
        if value.shape != shape or value.dtype != dtype or value.device.type != self.device.type:
            raise KernelError(
                f"returned {value.dtype} {tuple(value.shape)} on {value.device}",
                why=f"the prim's result here is {dtype} {shape} on {self.device}",
                fix="return exactly that shape, dtype and device",
            )
        # Most lie so, and moved views of them are several times as expensive as this.
        return value if value.stride() == dense_strides(shape, order) else laid(value, order)

    def checked_several(self, values: Any, expected: Sequence[Expected | None]) -> tuple[Any, ...]:
        return _checked_several(self.checked, values, expected)

    def seeds(self, count: int) -> Sequence[Any]:
        """Fresh seeds: numbers, or tensors of the device (``Emitter.seeds_in_memory``)."""
        if not self.seeds_in_memory:
            return draw_seeds(count)
        place = getattr(self._thread, "place", None)
        if place is None:
            place = self.seed_place(count)
            self.fill_seeds(place)
        return place.unbind()

    def seed(self, value: int) -> Any:
        """A given seed as launches take it."""
        return torch.tensor(value, device=self.device) if self.seeds_in_memory else value

    def seed_place(self, count: int) -> torch.Tensor:
        """Memory of the device for so many seeds."""
        return torch.empty(count, dtype=torch.int64, device=self.device)

    def fill_seeds(self, place: torch.Tensor) -> None:
        """Draws fresh seeds into ``place``."""
        # Copies out of memory that is not pinned are staged before the call returns.
        place.copy_(_drawn(len(place)), non_blocking=True)

    @contextlib.contextmanager
    def seeds_at(self, place: torch.Tensor | None) -> Iterator[None]:
        """This thread's seeds are those in ``place`` meanwhile, as they will be when launches read them."""
        self._thread.place = place
        try:
            yield
        finally:
            self._thread.place = None

    def for_writing(self, given: Tensors, strides: Sequence[Shape]) -> Tensors:
        """Inputs that kernels will write to, with the strides the graph was traced with: ``given`` itself where it has them."""
        if all(value.stride() == expected for value, expected in zip(given, strides, strict=True)):
            return given
        return tuple(self.as_traced(value, expected) for value, expected in zip(given, strides, strict=True))

    def write(self, target: torch.Tensor, value: torch.Tensor) -> None:
        """Copies ``value`` into an input of the call."""
        target.detach().copy_(value)

    def wrote(self, given: Tensors, written: Tensors) -> None:
        """Brings what kernels wrote into the inputs; whoever kept something made of their old values can tell."""
        if written is not given:
            for target, value in zip(given, written, strict=True):
                if value is not target:
                    self.write(target, value)
        torch.autograd.graph.increment_version(given)

    def output(self, value: torch.Tensor, strides: Shape, fresh: bool, offset: int | None = None) -> torch.Tensor:
        """An output with the promised strides, in storage of its own when ``fresh``, from ``offset`` of its storage on."""
        if value.dim() != len(strides):
            return value  # of an operator that is no prim, and that torch announces wrongly (``unique_dim_consecutive``)
        if offset is not None and value.storage_offset() != offset:
            return _with_strides(value, strides, offset)
        if fresh:
            return _with_strides(value, strides, offset or 0)
        if value.stride() == strides:
            return value
        # Where a dimension of one element lies makes no difference.
        same = all(size == 1 or a == b for size, a, b in zip(value.shape, value.stride(), strides, strict=True))
        return self.lying(value, tuple(value.shape), strides) if same else _with_strides(value, strides)


def draw_seeds(count: int) -> list[int]:
    """Fresh seeds from torch's CPU generator: ``torch.manual_seed`` fixes them, and so does a restored generator state."""
    seeds: list[int] = _drawn(count).tolist()
    return seeds


def _drawn(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.int64).random_()


def _checked_several(
    check: Callable[[Any, Expected], Any], values: Any, expected: Sequence[Expected | None]
) -> tuple[Any, ...]:
    if not isinstance(values, list | tuple) or len(values) != len(expected):
        count = len(values) if isinstance(values, list | tuple) else type(values).__name__
        raise KernelError(f"returned {count} instead of {len(expected)} results", fix="return a tuple of all results")
    return tuple(None if one is None else check(value, one) for value, one in zip(values, expected, strict=True))


def _with_strides(value: torch.Tensor, strides: Shape, offset: int = 0) -> torch.Tensor:
    """A copy with these strides, from ``offset`` of its storage on."""
    if any(stride == 0 and size > 1 for stride, size in zip(strides, value.shape, strict=True)):
        one = value[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)]
        return _with_strides(one, strides, offset).expand(value.shape)
    if _overlaps(value.shape, strides) and value.stride() != strides:
        return value.contiguous()  # an overlapping window (unfold): the promise cannot be kept without the original storage
    if not offset:
        return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device).copy_(value)
    memory = torch.empty_strided((offset + 1, *value.shape), (1, *strides), dtype=value.dtype, device=value.device)
    return shaped(memory, offset * value.itemsize, tuple(value.shape), value.dtype, strides).copy_(value)


def _overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two indices of a tensor share an element."""
    if 0 in shape:
        return False
    extent = 0
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            if stride <= extent:
                return True
            extent += stride * (size - 1)
    return False


class OwnMemoryRuntime:
    """For chips with memory of their own: values on the device are ``DeviceTensor``."""

    def __init__(self, memory: DeviceMemory, copy_kernel: Callable[..., Any] | None, contiguous_operands: bool) -> None:
        self.memory = memory
        self.copy_kernel = copy_kernel
        self.contiguous_operands = contiguous_operands
        self.host = TorchRuntime(torch.device("cpu"))
        self.allocate: Callable[..., Any] | None = None
        self.seeds_in_memory = False

    def empty(self, shape: Shape, dtype: torch.dtype) -> DeviceTensor:
        return self.memory.empty(shape, dtype)

    def to_device(self, value: torch.Tensor, dtype: torch.dtype, static: bool) -> DeviceTensor:
        return self.memory.upload(value, dtype=dtype, static=static)

    def to_host(self, value: DeviceTensor, dtype: torch.dtype) -> torch.Tensor:
        return self.memory.download(value, dtype=dtype)

    def kept(self, make: Callable[..., torch.Tensor], *args: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        raise AssertionError("a chip with memory of its own keeps parameters as they lie")

    def contiguous(self, value: Any) -> Any:
        if isinstance(value, DeviceTensor):
            return value if value.contiguous else self.memory.contiguous(value, self.copy_kernel)
        return self.host.contiguous(value)

    def view(self, prim: str, value: DeviceTensor, *args: Any, **kwargs: Any) -> DeviceTensor:
        if prim == "as_strided":
            value = self.contiguous(value)
        result = self.memory.view(prim, value, args, kwargs)
        if result is None:
            result = self.memory.view(prim, self.contiguous(value), args, kwargs)
        assert isinstance(result, DeviceTensor), f"{prim} of {value} is no single view"
        return result

    def as_strided(self, value: torch.Tensor, size: Shape, stride: Shape, offset: int | None = None) -> torch.Tensor:
        return self.host.as_strided(value, size, stride, offset)

    def as_traced(self, value: torch.Tensor, strides: Shape) -> torch.Tensor:
        return value

    def checked(self, value: Any, expected: Expected) -> DeviceTensor:
        shape, dtype, _ = expected
        if not isinstance(value, DeviceTensor):
            raise KernelError(f"returned {type(value).__name__}", fix="return a DeviceTensor of the device's own buffer")
        if value.shape != shape or value.dtype != dtype:
            raise KernelError(
                f"returned {value.dtype} {value.shape}",
                why=f"the prim's result here is {dtype} {shape}",
                fix="return exactly that shape and dtype",
            )
        dense: DeviceTensor = self.contiguous(value)
        return dense

    def checked_several(self, values: Any, expected: Sequence[Expected | None]) -> tuple[Any, ...]:
        return _checked_several(self.checked, values, expected)

    def part(self, owner: torch.Tensor, offset: int, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
        raise AssertionError("device values have allocations of their own")

    def lying(self, value: torch.Tensor, shape: Shape, strides: Shape) -> torch.Tensor:
        return self.host.lying(value, shape, strides)

    def own(self, value: Any, *operands: torch.Tensor) -> Any:
        return self.host.own(value, *operands)

    def seeds(self, count: int) -> list[int]:
        return draw_seeds(count)

    def seed(self, value: int) -> int:
        return value

    def write(self, target: torch.Tensor, value: torch.Tensor) -> None:
        self.host.write(target, value)

    def for_writing(self, given: Tensors, strides: Sequence[Shape]) -> Tensors:
        raise AssertionError("kernels of a chip with memory of its own write to no input")

    def wrote(self, given: Tensors, written: Tensors) -> None:
        raise AssertionError("kernels of a chip with memory of its own write to no input")

    def output(self, value: torch.Tensor, strides: Shape, fresh: bool, offset: int | None = None) -> torch.Tensor:
        return self.host.output(value, strides, fresh, offset)
