"""Partition: an ONNX model as the SDK calls it, values in and tensors out, on torch's own memory.

Inputs that stay the same from call to call (``PrimGraph.static_inputs``: parameters in inference, constants) are no inputs of
the session but initializers that share their memory, so ONNX Runtime folds, packs and fuses them as it does weights in a file.
A version counter that moved says that one was written to: the session then is of no use any more, and another one, with those
values as ordinary inputs, takes over. Once it has run for as long as a new session takes to make, and the values were left
alone, they become initializers again: whoever writes to them now and then pays at most twice what knowing the future would
cost. What moves no counter (a write through ``.data`` or an array of numpy) is not seen: weights that ONNX Runtime folded or
packed stay as they were. In training, where an optimizer writes to them after every call, the session with inputs comes first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnxruntime as ort
import torch

from reference_backends.onnxruntime.values import CPU_DEVICE, torch_tensor
from vendor_sdk import KernelError, warm_empty


@dataclass(frozen=True)
class Slot:
    """An input or output of a session.

    Attributes:
        name: in the model.
        element: ONNX's number of its dtype.
        dtype: torch's.
        shape: sizes; ``None`` where one is symbolic.
    """

    name: str
    element: int
    dtype: torch.dtype
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class Signature:
    """What goes in and out, in order.

    Attributes:
        static: places of inputs that stay the same tensors from call to call.
        training: whether their values are likely to change between calls.
    """

    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    static: tuple[int, ...] = ()
    training: bool = False


MakeSession = Callable[[Mapping[int, torch.Tensor]], ort.InferenceSession]
"""Makes a session in which the inputs at the given places are initializers that share the memory of the tensors."""

Stamp = tuple[int, int]
"""Address and version of a tensor: while both stay, so do its values."""


class Partition:
    """A compiled partition. Calls may come from several threads at once.

    Args:
        signature: the boundary.
        make: see ``MakeSession``; called for each number of threads that calls come with.
    """

    def __init__(self, signature: Signature, make: MakeSession) -> None:
        self.signature = signature
        self._make = make
        self._sides: dict[int, _Sessions] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Partition, (self.signature, self._make)

    def sessions(self) -> _Sessions:
        """The sessions for the number of threads that torch is set to."""
        threads = torch.get_num_threads()
        found = self._sides.get(threads)
        if found is None:
            with self._lock:
                found = self._sides.setdefault(threads, _Sessions(self.signature, self._make))
        return found

    def __call__(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        return self.sessions().run(inputs)

    def made(self) -> list[ort.InferenceSession]:
        """The sessions that calls have needed so far."""
        return [calls.session for sessions in self._sides.values() for calls in sessions.made()]


class _Sessions:
    """The sessions of a partition for one number of threads: one with the static inputs inside, one with them outside."""

    def __init__(self, signature: Signature, make: MakeSession) -> None:
        self.signature, self._make = signature, make
        self._inside: tuple[tuple[Stamp, ...], _Calls] | None = None
        self._outside: _Calls | None = None
        self._cost = 0.0  # seconds that the last session took to make
        self._seen: tuple[Stamp, ...] | None = None
        self._spent = 0.0  # seconds in the session with static inputs outside while their stamps were ``_seen``
        self._lock = threading.Lock()

    def run(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        static = self.signature.static
        if not static:
            return self.outside().run(inputs)
        try:
            stamps = tuple((inputs[index].data_ptr(), inputs[index]._version) for index in static)
        except RuntimeError:  # inference tensors do not count their versions
            return self.outside().run(inputs)
        inside = self._inside
        if inside is not None and inside[0] == stamps:
            return inside[1].run(inputs)
        settled = not self.signature.training if self._cost == 0 else self._seen == stamps and self._spent > self._cost
        if settled:
            return self._taken_in(inputs, stamps).run(inputs)
        self._inside = None
        if self._seen != stamps:
            self._seen, self._spent = stamps, 0.0
        calls = self.outside()
        start = time.perf_counter()
        results = calls.run(inputs)
        self._spent += time.perf_counter() - start
        return results

    def outside(self) -> _Calls:
        """Calls of the session that takes every value as an input."""
        with self._lock:
            if self._outside is None:
                start = time.perf_counter()
                self._outside = _Calls(self._make({}), self.signature, tuple(range(len(self.signature.inputs))))
                self._cost = time.perf_counter() - start
            return self._outside

    def made(self) -> list[_Calls]:
        inside = [] if self._inside is None else [self._inside[1]]
        return inside if self._outside is None else [*inside, self._outside]

    def _taken_in(self, inputs: Sequence[Any], stamps: tuple[Stamp, ...]) -> _Calls:
        with self._lock:
            if self._inside is None or self._inside[0] != stamps:
                start = time.perf_counter()
                session = self._make({index: inputs[index].detach() for index in self.signature.static})
                places = [index for index in range(len(self.signature.inputs)) if index not in self.signature.static]
                self._inside = stamps, _Calls(session, self.signature, tuple(places))
                self._outside, self._seen = None, None
                self._cost = time.perf_counter() - start
            return self._inside[1]


class _Calls:
    """Calls of one session, each with a binding that no other call uses meanwhile."""

    def __init__(self, session: ort.InferenceSession, signature: Signature, places: tuple[int, ...]) -> None:
        self.session = session
        self._places = [(index, signature.inputs[index]) for index in places]
        self._outputs = signature.outputs
        self._dynamic = any(slot.shape is None for slot in signature.outputs)
        self._idle: list[_Binding] = []

    def run(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        try:
            binding = self._idle.pop()
        except IndexError:
            binding = _Binding(self.session)
        try:
            results = self._run(binding, inputs)
        except Exception as error:  # ONNX Runtime has an exception class for each status code, with no base of their own
            raise KernelError("failed in ONNX Runtime", why=str(error)) from error
        self._idle.append(binding)
        return results

    def _run(self, binding: _Binding, inputs: Sequence[Any]) -> list[torch.Tensor]:
        kept = [binding.bind(slot, inputs[index]) for index, slot in self._places]
        results: list[torch.Tensor] = []
        for slot in self._outputs:
            if slot.shape is None:
                binding.raw.bind_output(slot.name, CPU_DEVICE)
            else:
                result = warm_empty(slot.shape, slot.dtype)
                binding.raw.bind_output(slot.name, CPU_DEVICE, slot.element, slot.shape, _address(result))
                results.append(result)
        binding.run()
        del kept  # tensors made for this call alone had to live until here
        if not self._dynamic:
            return results
        given = iter(results)
        values = binding.raw.get_outputs()
        return [
            torch_tensor(value, slot.dtype) if slot.shape is None else next(given)
            for value, slot in zip(values, self._outputs, strict=True)
        ]


def _address(tensor: torch.Tensor) -> int:
    """Where its memory is. Tensors without elements have none, which ONNX Runtime refuses."""
    return tensor.data_ptr() or _SOMEWHERE.data_ptr()


_SOMEWHERE = torch.empty(1)


class _Binding:
    """An IOBinding with what its inputs are bound to."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self._session = session._sess
        self._keeps = session
        self.raw = session.io_binding()._iobinding
        self._bound: dict[str, tuple[int, torch.Size]] = {}

    def bind(self, slot: Slot, value: Any) -> torch.Tensor | None:
        """Binds an input; returns what must live as long as the call, where that is not ``value`` itself."""
        made = None
        if not isinstance(value, torch.Tensor):
            value = made = torch.tensor(value, dtype=slot.dtype)
        elif not value.is_contiguous() or value.is_neg():
            value = made = value.contiguous().resolve_neg()
        where = _address(value), value.shape
        if self._bound.get(slot.name) != where:
            self.raw.bind_input(slot.name, CPU_DEVICE, slot.element, where[1], where[0])
            self._bound[slot.name] = where
        return made

    def run(self) -> None:
        self._session.run_with_iobinding(self.raw, None)
