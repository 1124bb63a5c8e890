"""Device memory: residency, lifetimes, conversions, views and copies, on a tiny device that checks every access."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch

from vendor_sdk.contract.device import Device, DeviceProperties, DeviceTensor, MemoryStats
from vendor_sdk.errors import DeviceError, KernelError
from vendor_sdk.run.hostbytes import lend
from vendor_sdk.run.memory import DeviceMemory
from vendor_sdk.run.views import VIEWS

DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]
POISON = 0xA5


class ArenaDevice(Device):
    """An arena of bytes with integer handles. Freed bytes are poisoned; a bad handle or range is an ``IndexError``.

    Allocation is deliberately not reentrant: it fails when ``free`` is called in the middle of it.
    """

    def __init__(self, capacity: int = 1 << 20) -> None:
        self.blocks: dict[int, bytearray] = {}
        self.freed: list[bytearray] = []
        self.capacity = capacity
        self.next_handle = 1
        self.peak = 0
        self.copies = 0
        self.kept: list[memoryview] = []
        self.inside_allocate: int | None = None
        self.lock = threading.Lock()

    def block(self, handle: Any, offset: int, nbytes: int) -> bytearray:
        assert type(handle) is int
        block = self.blocks[handle]
        if not 0 <= offset <= offset + nbytes <= len(block):
            raise IndexError(f"bytes {offset} to {offset + nbytes} of a block of {len(block)}")
        return block

    @property
    def used(self) -> int:
        return sum(len(block) for block in list(self.blocks.values()))

    def allocate(self, nbytes: int) -> int:
        with self.lock:
            self.inside_allocate = threading.get_ident()
            if self.used + nbytes > self.capacity:
                self.inside_allocate = None
                raise DeviceError(f"arena is full: {nbytes} bytes wanted")
            handle, self.next_handle = self.next_handle, self.next_handle + 1
            self.blocks[handle] = bytearray([POISON]) * nbytes
            self.peak = max(self.peak, self.used)
            self.collect_inside_allocate()
            self.inside_allocate = None
            return handle

    def collect_inside_allocate(self) -> None:
        """A test replaces this with a garbage collection."""

    def free(self, buffer: int) -> None:
        assert self.inside_allocate != threading.get_ident(), "free was called in the middle of allocate"
        block = self.blocks.pop(buffer)  # KeyError: double free
        block[:] = bytes([POISON]) * len(block)

    def copy_in(self, source: memoryview, target: int, offset: int) -> None:
        assert source.readonly
        assert source.contiguous
        self.block(target, offset, len(source))[offset : offset + len(source)] = source

    def copy_out(self, source: int, offset: int, target: memoryview) -> None:
        target[:] = self.block(source, offset, len(target))[offset : offset + len(target)]

    def copy(self, source: int, source_offset: int, target: int, target_offset: int, nbytes: int) -> None:
        self.copies += 1
        content = self.block(source, source_offset, nbytes)[source_offset : source_offset + nbytes]
        self.block(target, target_offset, nbytes)[target_offset : target_offset + nbytes] = content

    def synchronize(self) -> None:
        pass

    def memory_stats(self) -> MemoryStats:
        return MemoryStats(self.used, self.peak, self.capacity)

    def properties(self) -> DeviceProperties:
        return DeviceProperties(name="arena", memory_bytes=self.capacity)


@pytest.fixture
def device() -> ArenaDevice:
    return ArenaDevice()


@pytest.fixture
def memory(device: ArenaDevice) -> Iterator[DeviceMemory]:
    """Every test ends with the leak check."""
    memory = DeviceMemory(device)
    yield memory
    memory.release()
    if device.used:  # the traceback of an expected error
        gc.collect()
        memory.release()
    assert device.used == 0


def values(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 100, shape, generator=generator).to(dtype)


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected.detach(), rtol=0, atol=0, equal_nan=True)


# Transfers


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "layout",
    [
        lambda t: t,
        lambda t: t.transpose(0, 1),
        lambda t: t[1:, ::2],
        lambda t: t[0, 0].expand(2, 3),
        lambda t: t[2, 3],
        lambda t: t[:0],
        lambda t: t[:, 2:3],
    ],
    ids=["dense", "transposed", "strided", "expanded", "0-d", "empty", "column"],
)
def test_upload_and_download_keep_bits(memory: DeviceMemory, dtype: torch.dtype, layout: Any) -> None:
    tensor = layout(values((4, 6), dtype))
    value = memory.upload(tensor)
    assert value.contiguous
    assert (value.shape, value.dtype) == (tuple(tensor.shape), dtype)
    same(memory.download(value), tensor)


def test_nan_payloads_signed_zero_and_requires_grad(memory: DeviceMemory) -> None:
    bits = torch.tensor([0x7FC00001, -0x80000000, 0x7F800000, 1], dtype=torch.int32)
    tensor = bits.view(torch.float32).requires_grad_()
    result = memory.download(memory.upload(tensor))
    assert torch.equal(result.view(torch.int32), bits)
    assert not result.requires_grad


def test_lazy_negation_is_applied(memory: DeviceMemory) -> None:
    tensor = torch.randn(3, dtype=torch.complex64).conj().imag
    assert tensor.is_neg()
    same(memory.download(memory.upload(tensor)), tensor.resolve_neg())


@pytest.mark.parametrize("strides", [(1, 4), (8, 2), (3, 1), (0, 1), (1, 1), (0, 0)], ids=str)
def test_download_with_strides(memory: DeviceMemory, strides: tuple[int, int]) -> None:
    content = torch.full((4, 3), 5.0) if strides == (1, 1) else values((4, 3), torch.float32)
    if strides[0] == 0:
        content = content[:1].expand(4, 3)
    if strides == (0, 0):
        content = content[:, :1].expand(4, 3)
    result = memory.download(memory.upload(content), strides=strides)
    assert result.stride() == strides
    same(result, content)


def test_tensors_that_are_not_dense_host_memory_are_refused(memory: DeviceMemory) -> None:
    with pytest.raises(DeviceError, match="meta"):
        memory.upload(torch.empty(2, device="meta"))
    with pytest.raises(DeviceError, match="sparse"):
        memory.upload(torch.eye(2).to_sparse())


def test_counts_and_bytes(memory: DeviceMemory) -> None:
    tensor = torch.zeros(10, dtype=torch.int64)
    memory.download(memory.upload(tensor))
    memory.upload(tensor)
    stats = memory.stats
    assert (stats.uploads, stats.uploaded_bytes, stats.upload_hits) == (1, 80, 1)
    assert (stats.downloads, stats.downloaded_bytes, stats.round_trips) == (1, 80, 0)
    assert stats.resident_bytes == 80


# Residency


def test_parameter_is_uploaded_once_and_follows_the_optimizer(memory: DeviceMemory) -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    first = memory.upload(weight, static=True)
    assert memory.upload(weight, static=True) is first
    weight.grad = torch.ones(4)
    optimizer.step()
    second = memory.upload(weight, static=True)
    assert second is not first
    same(memory.download(second), weight)
    assert memory.stats.uploads == 2


def test_write_through_a_view_or_detached_alias_is_seen(memory: DeviceMemory) -> None:
    tensor = torch.zeros(4)
    memory.upload(tensor)
    tensor[1:].fill_(3)
    same(memory.download(memory.upload(tensor)), tensor)
    tensor.detach().mul_(2)
    same(memory.download(memory.upload(tensor)), tensor)


def test_replaced_storage_is_seen(memory: DeviceMemory) -> None:
    weight = torch.nn.Parameter(torch.zeros(4))
    memory.upload(weight)
    weight.data = torch.ones(4)
    same(memory.download(memory.upload(weight)), torch.ones(4))


def test_invalidate_announces_what_the_version_cannot_show(memory: DeviceMemory) -> None:
    tensor = torch.zeros(4)
    memory.upload(tensor)
    tensor.numpy()[:] = 7
    same(memory.download(memory.upload(tensor)), torch.zeros(4))
    memory.invalidate(tensor)
    same(memory.download(memory.upload(tensor)), tensor)


def test_views_of_one_storage_are_separate(memory: DeviceMemory) -> None:
    base = values((4, 4), torch.float32)
    uploaded = [memory.upload(view) for view in (base, base.t(), base[1:], base[0], base.view(16), base.view(torch.int32))]
    assert len({id(value) for value in uploaded}) == len(uploaded)
    same(memory.download(uploaded[1]), base.t())
    assert memory.upload(base.detach()) is uploaded[0]


def test_inference_tensor_goes_up_each_time(memory: DeviceMemory) -> None:
    with torch.inference_mode():
        tensor = torch.zeros(4)
        memory.upload(tensor)
        tensor.add_(1)
        same(memory.download(memory.upload(tensor)), torch.ones(4))
    assert memory.stats.uploads == 2


def test_parameter_stays_resident_in_inference_mode(memory: DeviceMemory) -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    with torch.inference_mode():
        assert memory.upload(weight) is memory.upload(weight)


def test_downloaded_value_is_resident_until_written(memory: DeviceMemory) -> None:
    value = memory.empty((4, 2), torch.float32)
    activation = memory.download(value, strides=(1, 4))
    assert memory.upload(activation) is value
    activation.add_(1)
    assert memory.upload(activation) is not value


def test_piece_of_a_large_buffer_does_not_keep_it(memory: DeviceMemory, device: ArenaDevice) -> None:
    row = memory.view("select", memory.upload(torch.zeros(100, 4).clone()), (0, 3))
    assert isinstance(row, DeviceTensor)
    kept = memory.download(row)
    del row
    assert device.used == 0
    same(memory.download(memory.upload(kept)), kept)


# Lifetimes


def test_buffer_is_freed_with_its_last_view(memory: DeviceMemory, device: ArenaDevice) -> None:
    value = memory.empty((4, 4), torch.float32)
    view = memory.view("select", value, (0, 1))
    del value
    assert device.used == 64
    del view
    assert device.used == 0


def test_entry_dies_with_its_host_storage(memory: DeviceMemory, device: ArenaDevice) -> None:
    tensor = torch.zeros(8)
    memory.upload(tensor)
    view = tensor[2:]
    del tensor
    assert device.used == 32
    del view
    assert device.used == 0


def test_entry_dies_with_a_storage_that_autograd_held(memory: DeviceMemory, device: ArenaDevice) -> None:
    leaf = torch.ones(4, requires_grad=True)
    result = leaf.exp()
    memory.upload(result)
    total = result.sum()
    del result
    assert device.used == 16
    torch.autograd.backward(total)
    del total
    assert device.used == 0


def test_value_outlives_its_entry(memory: DeviceMemory, device: ArenaDevice) -> None:
    tensor = torch.arange(4)
    value = memory.upload(tensor)
    del tensor
    memory.release()
    same(memory.download(value), torch.arange(4))


def test_collection_inside_allocate_does_not_reenter_the_device(memory: DeviceMemory, device: ArenaDevice) -> None:
    cycle: list[Any] = [memory.empty((4,), torch.float32), torch.zeros(4)]
    memory.upload(cycle[1])
    cycle.append(cycle)
    del cycle
    device.collect_inside_allocate = gc.collect  # type: ignore[assignment, method-assign]
    other = memory.empty((1,), torch.uint8)
    device.collect_inside_allocate = lambda: None  # type: ignore[method-assign]
    assert memory.stats.resident_bytes == 0
    assert device.used == 1
    del other


def test_full_memory_gives_up_residency_oldest_first_and_parameters_last() -> None:
    device = ArenaDevice(capacity=100)
    memory = DeviceMemory(device)
    weight, old, new = torch.zeros(40, dtype=torch.uint8), *(torch.zeros(30, dtype=torch.uint8) for _ in range(2))
    memory.upload(weight, static=True)
    memory.upload(old)
    memory.upload(new)
    value = memory.empty((25,), torch.uint8)
    assert memory.stats.resident_bytes == 70
    uploads = memory.stats.uploads
    memory.upload(weight, static=True)
    memory.upload(new)
    assert memory.stats.uploads == uploads
    del value
    whole = memory.empty((100,), torch.uint8)
    assert memory.stats.resident_bytes == 0
    with pytest.raises(DeviceError, match=r"arena: cannot allocate 1 bytes with 100 of 100 bytes in use") as caught:
        memory.empty((1,), torch.uint8)
    assert isinstance(caught.value, MemoryError)
    del whole
    assert device.used == 0


def test_threads_share_one_upload_and_leave_nothing(memory: DeviceMemory, device: ArenaDevice) -> None:
    weight = torch.nn.Parameter(values((16, 16), torch.float32))
    errors: list[BaseException] = []
    barrier = threading.Barrier(4)

    def work(seed: int, weight: torch.Tensor) -> None:
        try:
            barrier.wait()
            for step in range(100):
                same(memory.download(memory.upload(weight, static=True)), weight)
                own = torch.full((8,), seed * 1000 + step)
                same(memory.download(memory.upload(own)), own)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed, weight)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    del threads, thread
    assert not errors
    stats = memory.stats
    assert stats.uploads == 1 + 400
    assert stats.upload_hits == 399
    assert stats.downloads == 800
    assert device.used == 1024
    del weight
    assert device.used == 0


# Conversions


def test_int64_is_int32_on_the_device_and_back(memory: DeviceMemory) -> None:
    tensor = torch.tensor([-(2**31), 0, 2**31 - 1])
    value = memory.upload(tensor, dtype=torch.int32)
    assert value.dtype == torch.int32
    assert memory.upload(tensor, dtype=torch.int32) is value
    result = memory.download(value, dtype=torch.int64)
    same(result, tensor)
    assert memory.upload(result, dtype=torch.int32) is value
    assert memory.upload(result) is not value


@pytest.mark.parametrize("bad", [2**31, -(2**31) - 1])
def test_integer_out_of_range_names_value_and_mend(memory: DeviceMemory, device: ArenaDevice, bad: int) -> None:
    with pytest.raises(DeviceError, match=rf"value {bad} of an int64\[3\] tensor does not fit int32") as caught:
        memory.upload(torch.tensor([1, bad, 2]), dtype=torch.int32)
    assert "no_int64" in caught.value.fix
    assert device.used == 0


def test_empty_tensor_converts(memory: DeviceMemory) -> None:
    assert memory.upload(torch.empty(0, 3, dtype=torch.int64), dtype=torch.int32).shape == (0, 3)


# Faults of the device


def test_copy_failure_names_device_and_action(memory: DeviceMemory, device: ArenaDevice) -> None:
    value = memory.empty((4,), torch.float32)
    stale = DeviceTensor(999, value.dtype, value.shape, value.strides)
    with pytest.raises(DeviceError, match=r"arena: copy_out of 16 bytes failed: 999"):
        memory.download(stale)


def test_kept_memoryview_is_reported(memory: DeviceMemory, device: ArenaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(device, "copy_out", lambda source, offset, target: kept.append(numpy.frombuffer(target, numpy.uint8)))
    value = memory.empty((4,), torch.float32)
    with pytest.raises(DeviceError, match="kept the memoryview"):
        memory.download(value)
    monkeypatch.setattr(device, "copy_in", lambda source, target, offset: kept.append(source[:1]))
    with pytest.raises(DeviceError, match="kept the memoryview"):
        memory.upload(torch.zeros(4).clone())


# Copies on the device


def test_long_stretches_are_copied_on_the_device(memory: DeviceMemory, device: ArenaDevice) -> None:
    tensor = values((3, 2, 2048), torch.float32)
    view = memory.view("permute", memory.upload(tensor), ([1, 0, 2],))
    assert isinstance(view, DeviceTensor)
    before = memory.stats
    result = memory.contiguous(view)
    assert result.contiguous
    assert device.copies == 6
    assert memory.stats == before
    same(memory.download(result), tensor.permute(1, 0, 2))


def test_short_stretches_go_to_the_kernel_or_round_trip(memory: DeviceMemory, device: ArenaDevice) -> None:
    tensor = values((5, 7), torch.float32)
    view = memory.view("permute", memory.upload(tensor), ([1, 0],))
    assert isinstance(view, DeviceTensor)
    calls = []

    def kernel(out: DeviceTensor, source: DeviceTensor) -> None:
        calls.append((out, source))
        content = memory.download(source)
        device.copy_in(content.view(torch.uint8).numpy().data.cast("B").toreadonly(), out.buffer, 0)

    same(memory.download(memory.contiguous(view, kernel)), tensor.t())
    assert len(calls) == 1
    assert memory.stats.round_trips == 0
    same(memory.download(memory.contiguous(view)), tensor.t())
    assert memory.stats.round_trips == 1
    assert memory.contiguous(calls[0][0]) is calls[0][0]


def test_download_of_sparse_view_moves_only_its_rows(memory: DeviceMemory) -> None:
    tensor = values((4, 8, 2048), torch.float32)
    view = memory.view("select", memory.upload(tensor), (1, -1))
    assert isinstance(view, DeviceTensor)
    before = memory.stats.downloaded_bytes
    same(memory.download(view), tensor[:, -1])
    assert memory.stats.downloaded_bytes - before == 4 * 2048 * 4


# Views

X = torch.arange(120).view(2, 3, 4, 5)
VIEW_CASES: list[tuple[str, Any, tuple[Any, ...]]] = [
    ("view", torch.ops.aten.view.default, ([6, -1],)),
    ("view", torch.ops.aten.view.default, ([2, 3, 2, 2, 5, 1],)),
    ("view", torch.ops.aten.view.default, ([120],)),
    ("view", torch.ops.aten.view.default, ([1, 2, 12, 5],)),
    ("view_dtype", torch.ops.aten.view.dtype, (torch.float64,)),
    ("permute", torch.ops.aten.permute.default, ([3, -3, 0, 2],)),
    ("transpose", torch.ops.aten.transpose.int, (1, -1)),
    ("expand", torch.ops.aten.expand.default, ([7, -1, 3, 4, 5],)),
    ("slice", torch.ops.aten.slice.Tensor, (1, 1, 9223372036854775807)),
    ("slice", torch.ops.aten.slice.Tensor, (-1, -3, -1, 2)),
    ("slice", torch.ops.aten.slice.Tensor, (2, 3, 1)),
    ("slice", torch.ops.aten.slice.Tensor, (3, 0, 5, 3)),
    ("slice", torch.ops.aten.slice.Tensor, ()),
    ("select", torch.ops.aten.select.int, (2, -1)),
    ("squeeze", torch.ops.aten.squeeze.dims, ([0, 1],)),
    ("squeeze", torch.ops.aten.squeeze.default, ()),
    ("unsqueeze", torch.ops.aten.unsqueeze.default, (-1,)),
    ("unsqueeze", torch.ops.aten.unsqueeze.default, (1,)),
    ("diagonal", torch.ops.aten.diagonal.default, (1, 2, 3)),
    ("diagonal", torch.ops.aten.diagonal.default, (-1, 0, -1)),
    ("diagonal", torch.ops.aten.diagonal.default, (9, 2, 3)),
    ("unfold", torch.ops.aten.unfold.default, (-1, 2, 2)),
    ("unfold", torch.ops.aten.unfold.default, (2, 4, 1)),
    ("alias", torch.ops.aten.alias.default, ()),
    ("detach", torch.ops.aten.detach.default, ()),
    ("split", torch.ops.aten.split.Tensor, (2, 2)),
    ("split", torch.ops.aten.split.Tensor, (3, -1)),
    ("split_with_sizes", torch.ops.aten.split_with_sizes.default, ([1, 3, 1], 3)),
    ("unbind", torch.ops.aten.unbind.int, (1,)),
    ("reshape", torch.ops.aten.view.default, ([3, 40],)),
]
BASES = {
    "dense": X,
    "permuted": X.permute(2, 0, 3, 1),
    "sliced": X[:, 1:, ::2, 2:],
    "expanded": X[:1, :, :, :1].expand(4, 3, 4, 6),
    "ones": X[:1, :, 2:3],
    "empty": X[:, 3:],
}


def test_every_view_rule_has_a_case() -> None:
    assert {prim for prim, _, _ in VIEW_CASES} | {"t", "as_strided"} == set(VIEWS)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("prim", "operator", "args"), VIEW_CASES, ids=lambda item: str(item).replace("aten.", ""))
def test_view_equals_torch(memory: DeviceMemory, base: str, prim: str, operator: Any, args: tuple[Any, ...]) -> None:
    """Shape, strides and offset are torch's own; where torch refuses, the rule refuses or says ``None``."""
    tensor = BASES[base]
    root = memory.upload(X)
    offset = int(tensor.storage_offset())
    value = DeviceTensor(root.buffer, root.dtype, tuple(tensor.shape), tensor.stride(), offset, root.owner)
    try:
        expected = operator(tensor, *args)
    except (RuntimeError, IndexError):
        with contextlib.suppress(KernelError):
            assert memory.view(prim, value, args) is None
        return
    actual = memory.view(prim, value, args)
    assert actual is not None
    pairs = zip(*((item,) if not isinstance(item, tuple | list) else item for item in (actual, expected)), strict=True)
    for mine, theirs in pairs:
        assert mine.shape == tuple(theirs.shape)
        if theirs.numel():
            meaningful = [dim for dim, size in enumerate(theirs.shape) if size != 1]
            assert [mine.strides[dim] for dim in meaningful] == [theirs.stride(dim) for dim in meaningful]
            assert mine.offset == theirs.storage_offset()
            same(memory.download(mine), theirs.contiguous())


def test_view_t_and_0d(memory: DeviceMemory) -> None:
    value = memory.upload(values((2, 3), torch.float32))
    turned = memory.view("t", value)
    assert isinstance(turned, DeviceTensor)
    assert (turned.shape, turned.strides) == ((3, 2), (1, 3))
    scalar = memory.upload(torch.tensor(3.0))
    for prim, args, shape in [("view", ([1, 1],), (1, 1)), ("expand", ([2, 2],), (2, 2)), ("unsqueeze", (0,), (1,)),
                              ("squeeze", ([0],), ()), ("permute", ([],), ()), ("unfold", (0, 1, 1), (1,))]:  # fmt: skip
        result = memory.view(prim, scalar, args)
        assert isinstance(result, DeviceTensor)
        assert result.shape == shape
        same(memory.download(result), torch.full(shape, 3.0))


def test_as_strided_counts_in_elements_of_the_logical_tensor(memory: DeviceMemory) -> None:
    row = memory.view("select", memory.upload(X), (0, 1))
    assert isinstance(row, DeviceTensor)
    result = memory.view("as_strided", row, ([2, 3], [5, 2], 7))
    assert isinstance(result, DeviceTensor)
    same(memory.download(result), X[1].clone().as_strided((2, 3), (5, 2), 7))
    turned = memory.view("permute", row, ([2, 1, 0],))
    assert isinstance(turned, DeviceTensor)
    assert memory.view("as_strided", turned, ([2], [1])) is None


def test_as_strided_past_the_end_is_refused(memory: DeviceMemory) -> None:
    value = memory.upload(torch.zeros(6).clone())
    with pytest.raises(KernelError, match="reach past 6 elements"):
        memory.view("as_strided", value, ([4], [2], 0))


def test_unknown_prim_is_no_view(memory: DeviceMemory) -> None:
    assert memory.view("flip", memory.upload(torch.zeros(3).clone()), ([0],)) is None


@pytest.mark.parametrize("stride", [0, 5])
def test_one_element_with_any_stride_reaches_the_device(stride: int) -> None:
    x = torch.arange(6.0).as_strided((1,), (stride,), 3)
    taken: list[bytes] = []
    lend(x, lambda view: taken.append(bytes(view)))
    assert taken == [x.clone().numpy().tobytes()]
