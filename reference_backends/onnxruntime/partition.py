"""Partition: an ONNX model as the SDK calls it, values in and tensors out, on torch's own memory.

Inputs that stay the same from call to call (``PrimGraph.static_inputs``: parameters in inference, constants) are no inputs of
the session but initializers that share their memory, so ONNX Runtime folds, packs and fuses them as it does weights in a file.
A broken seal (``vendor_sdk.sealed``) says that one was written to: the session then is of no use any more, and another one,
with those values as inputs, takes over. Once it has run for as long as a new session takes to make, and the values were
left alone, they become initializers again: whoever writes to them now and then pays at most twice what knowing the future would
cost. In training, where an optimizer writes to them after every call, the session with inputs comes first; with
``options={"keep": False}`` there is no other.
"""

from __future__ import annotations

import operator
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnxruntime as ort
import torch

from reference_backends.onnxruntime.values import CPU_DEVICE, torch_tensor
from vendor_sdk import KernelError, out_of_memory, sealed, warm_allocator

OUT_OF_MEMORY = re.compile(r"Failed to allocate memory(?: for requested buffer of size (?P<bytes>\d+))?|bad.alloc")
"""What ONNX Runtime and the C++ library say of memory that ran out."""
OUT_OF_RANGE = re.compile(
    r"indices element out of data bounds, idx=.*|invalid (index|indice) found, .*|Out of range value in index tensor"
    r"|Cannot split using values in 'split' attribute.*|Invalid value in 'split' input.*"
)
"""What operators of ONNX Runtime say of an index that names no element."""


@dataclass(frozen=True)
class Slot:
    """An input or output of a session.

    Attributes:
        name: in the model.
        element: ONNX's number of its dtype.
        dtype: torch's.
        shape: sizes; ``None`` where one is symbolic.
        sizes: those of the tensor, where its elements pass in another shape.
    """

    name: str
    element: int
    dtype: torch.dtype
    shape: tuple[int, ...] | None
    sizes: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Signature:
    """What goes in and out, in order.

    Attributes:
        seeds: how many numbers the last input has, which are drawn for each call; 0 where there is no such input.
        static: places of inputs that stay the same tensors from call to call.
        training: whether their values are likely to change between calls.
        keep: whether their values may be taken in.
        exact: whether all outputs have the sizes and dtypes of the graph's, which are known.
    """

    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    seeds: int = 0
    static: tuple[int, ...] = ()
    training: bool = False
    keep: bool = True
    exact: bool = False


MakeSession = Callable[[Mapping[int, torch.Tensor]], ort.InferenceSession]
"""Makes a session in which the inputs at the given places are initializers that share the memory of the tensors."""

Seal = Callable[[Sequence[torch.Tensor]], bool]
"""Whether tensors hold what they held."""


class Partition:
    """A compiled partition. Calls may come from several threads at once.

    Args:
        signature: the boundary.
        make: see ``MakeSession``; called for each number of threads that calls come with.
    """

    def __init__(self, signature: Signature, make: MakeSession) -> None:
        self.signature = signature
        self.verified = signature.exact  # ONNX Runtime fills what was allocated for it, or raises
        self._make, self._seeds = make, signature.seeds
        self._sides: dict[int, _Sessions] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Partition, (self.signature, self._make)

    def sessions(self) -> _Sessions:
        """The sessions for the number of threads that torch is set to."""
        threads = _threads()
        found = self._sides.get(threads)
        if found is None:
            with self._lock:
                found = self._sides.setdefault(threads, _Sessions(self.signature, self._make))
        return found

    def __call__(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        if self._seeds:
            inputs = [*inputs, torch.empty(self._seeds, dtype=torch.int64).random_()]
        return (self._sides.get(_threads()) or self.sessions()).run(inputs)

    def made(self) -> list[ort.InferenceSession]:
        """The sessions that calls have needed so far."""
        return [calls.session for sessions in self._sides.values() for calls in sessions.made()]


class _Sessions:
    """The sessions of a partition for one number of threads: one with the static inputs inside, one with them outside."""

    def __init__(self, signature: Signature, make: MakeSession) -> None:
        self.signature, self._make = signature, make
        self._static = signature.static if signature.keep else ()
        self._values = _getter(self._static)
        self._inside: tuple[Seal, _Calls] | None = None
        self._outside: _Calls | None = None
        self._cost = 0.0  # seconds that the last session took to make
        self._seen: Seal = _broken
        self._spent = 0.0  # seconds in the session with static inputs outside while ``_seen`` held
        self._lock = threading.Lock()

    def run(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        if not self._static:
            return self.outside().run(inputs)
        values = self._values(inputs)
        inside = self._inside
        if inside is not None and inside[0](values):
            return inside[1].run(inputs)
        self._inside = None
        if not self._seen(values):
            first, self._seen, self._spent = self._seen is _broken, sealed(values), 0.0
            settled = first and not self.signature.training and self._seen(values)
        else:
            settled = self._spent > self._cost
        if settled:
            return self._taken_in(inputs, values).run(inputs)
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

    def _taken_in(self, inputs: Sequence[Any], values: Sequence[torch.Tensor]) -> _Calls:
        with self._lock:
            if self._inside is None or not self._inside[0](values):
                start = time.perf_counter()
                seal = sealed(values)
                session = self._make({index: inputs[index].detach() for index in self._static})
                places = [index for index in range(len(self.signature.inputs)) if index not in self._static]
                self._inside = seal, _Calls(session, self.signature, tuple(places))
                self._outside = None
                self._cost = time.perf_counter() - start
            return self._inside[1]


_threads = torch.get_num_threads


def _getter(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """What takes the items at some places."""
    return operator.itemgetter(*places) if len(places) > 1 else lambda items: [items[index] for index in places]


def _broken(_values: Sequence[torch.Tensor]) -> bool:
    """The seal of nothing."""
    return False


class _Calls:
    """Calls of one session, each with a binding that no other call uses meanwhile."""

    def __init__(self, session: ort.InferenceSession, signature: Signature, places: tuple[int, ...]) -> None:
        self.session = session
        self._places = [(index, slot.name, slot.element, slot.dtype) for index in places for slot in (signature.inputs[index],)]
        self._outputs = [
            (slot.name, slot.element, slot.shape, None if sizes is None else warm_allocator(sizes, slot.dtype), slot.dtype)
            for slot in signature.outputs
            for sizes in (slot.shape if slot.sizes is None else slot.sizes,)
        ]
        self._dynamic = any(slot.shape is None for slot in signature.outputs)
        self._idle: list[_Binding] = []

    def run(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        try:
            binding = self._idle.pop()
        except IndexError:
            binding = _Binding(self.session)
        raw, bound = binding.raw, binding.bound
        made: list[torch.Tensor] = []  # for this call alone: they have to live until it ends
        results = []
        try:
            for index, name, element, dtype in self._places:
                value = inputs[index]
                if not isinstance(value, torch.Tensor) or not value.is_contiguous() or value.is_neg():
                    value = _plain(value, dtype)
                    made.append(value)
                where = value.data_ptr() or _NOWHERE, value.shape
                if bound.get(name) != where:
                    raw.bind_input(name, CPU_DEVICE, element, where[1], where[0])
                    bound[name] = where
            for name, element, shape, allocate, _ in self._outputs:
                if allocate is None:
                    raw.bind_output(name, CPU_DEVICE)
                    continue
                result = allocate()
                results.append(result)
                address = result.data_ptr() or _NOWHERE
                if bound.get(name) != address:  # who drops a result gives its memory to the next one, often
                    raw.bind_output(name, CPU_DEVICE, element, shape, address)
                    bound[name] = address
            binding.run(raw, None)
        except Exception as error:  # ONNX Runtime has an exception class for each status code, with no base of their own
            if out_of_memory(error):
                raise
            if (found := OUT_OF_MEMORY.search(str(error))) is not None:
                wanted = f" of {found['bytes']} bytes" if found["bytes"] else ""
                raise MemoryError(f"ONNX Runtime: an allocation{wanted} failed: {error}") from error
            if (out := OUT_OF_RANGE.search(str(error))) is not None:
                raise IndexError(f"index out of range: {out[0]}") from error
            raise KernelError("failed in ONNX Runtime", why=str(error)) from error
        if self._dynamic:
            given = iter(results)
            results = [
                torch_tensor(value, dtype) if allocate is None else next(given)
                for value, (_, _, _, allocate, dtype) in zip(raw.get_outputs(), self._outputs, strict=True)
            ]
        self._idle.append(binding)
        return results


def _plain(value: Any, dtype: torch.dtype) -> torch.Tensor:
    """A number, or a tensor of any layout, as a contiguous tensor."""
    return value.contiguous().resolve_neg() if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=dtype)


_SOMEWHERE = torch.empty(1)
_NOWHERE = _SOMEWHERE.data_ptr()
"""The address of tensors without elements: they have none, which ONNX Runtime refuses."""


class _Binding:
    """An IOBinding, and what each name is bound to: address and shape of inputs, address of outputs of known sizes."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self.run = session._sess.run_with_iobinding
        self.raw = session.io_binding()._iobinding
        self.bound: dict[str, int | tuple[int, torch.Size]] = {}
