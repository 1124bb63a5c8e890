"""Inputs between guard zones: a kernel that writes beside its operands is found, one that reads there computes with NaN."""

from __future__ import annotations

from collections.abc import Sequence

import torch

ZONE = 256
"""Bytes before and after each storage."""
ALIGNMENT = {"cpu": 64}
"""Of the storages, in bytes, by type of device: what torch's own allocator gives."""
ALIGNMENT_ELSEWHERE = 512
FILL = 0xFF
"""In every byte of a zone: NaN in each floating dtype, -1 in each signed one."""


class Guarded:
    """Copies of tensors, equal in strides, offsets and in which of them share memory, each storage between two guard zones.

    On whatever device the tensors lie. Tensors that are empty stand as they are.

    Attributes:
        tensors: the copies, in the order given.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors: list[torch.Tensor] = []
        self._zones: list[tuple[int, torch.Tensor]] = []
        enclosed: dict[int, torch.UntypedStorage] = {}
        for position, tensor in enumerate(tensors):
            storage = tensor.untyped_storage()
            if not storage.nbytes() or tensor.is_conj() or tensor.is_neg():
                self.tensors.append(tensor)
                continue
            if storage.data_ptr() not in enclosed:
                enclosed[storage.data_ptr()] = self._enclose(storage_bytes(tensor), position)
            empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            place = enclosed[storage.data_ptr()], tensor.storage_offset(), tensor.size(), tensor.stride()
            self.tensors.append(empty.set_(*place))

    def breached(self) -> set[int]:
        """Positions of the tensors beside whose memory something was written since the last call."""
        found = {position for position, zone in self._zones if not bool((zone == FILL).all())}
        for position, zone in self._zones:
            if position in found:
                zone.fill_(FILL)
        return found

    def _enclose(self, content: torch.Tensor, position: int) -> torch.UntypedStorage:
        size = content.numel()
        alignment = ALIGNMENT.get(content.device.type, ALIGNMENT_ELSEWHERE)
        outer = torch.full((size + 2 * ZONE + alignment,), FILL, dtype=torch.uint8, device=content.device)
        start = ZONE + -(outer.data_ptr() + ZONE) % alignment
        outer[start : start + size].copy_(content)
        self._zones += [(position, outer[start - ZONE : start]), (position, outer[start + size : start + size + ZONE])]
        # A storage that begins in the midst of another, and keeps it alive: offsets into it (of as_strided) keep their meaning.
        inner: torch.UntypedStorage = outer.untyped_storage()[start : start + size]
        return inner


def storage_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of the tensor's storage, those between and beside its elements included, sharing its memory."""
    empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(tensor.untyped_storage())


def overwrite(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> bool:
    """Puts the values of ``sources`` into the memory of ``targets``, as a user's own in-place operation would: versions move.

    False, with nothing done, where the storages differ in size.
    """
    if any(
        one.untyped_storage().nbytes() != other.untyped_storage().nbytes() for one, other in zip(targets, sources, strict=True)
    ):
        return False
    for target, source in zip(targets, sources, strict=True):
        count = target.untyped_storage().nbytes() // target.dtype.itemsize
        target.as_strided((count,), (1,), 0).copy_(source.as_strided((count,), (1,), 0))
    return True


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors hold equal bits, NaN payloads and signs of zero included."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return torch.equal(_bytes(first), _bytes(second))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The elements' bytes in order, sharing memory where they lie so."""
    if tensor.numel() < 2 or not tensor.is_contiguous():
        # By a copy: contiguous() leaves the stride of a dimension of size one as it is.
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    return tensor.reshape(-1).view(torch.uint8)
