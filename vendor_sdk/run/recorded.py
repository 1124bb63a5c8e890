"""Recorded graphs: the launches of a call, recorded once and replayed while operands lie where they lay.

The first call of a graph runs as it is. Later ones record: a call runs (which also leaves nothing to be done by a first
launch), and its launches are recorded for the calls that come; its results are brought to where the recording's will lie, since
they are operands of other recordings. A recording is replayed when

- every operand lies where it lay; one that has moved some times (large ones, ``MOVES``) is copied to a place of its own from
  then on,
- nobody holds its results any more, which lie where they lay too; small ones of a forward graph are copied out instead,
  since users gather losses,
- its arena is idle.

So results are never overwritten while somebody has them: where results of the last call live on (a forward call before
another's backward call), a second recording is made, with results of its own, up to ``RECORDINGS``. What fits none runs as
it is. There is one set of recordings for each stream, each tuple of numbers, and each tuple of sizes.
"""

from __future__ import annotations

import operator
import threading
from collections import OrderedDict
from collections.abc import Callable, Container, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from vendor_sdk import torch_private
from vendor_sdk.contract.recording import Recorder, Recording
from vendor_sdk.run import arena
from vendor_sdk.run.blocks import shaped

RECORDINGS = 4
"""For one set of sizes."""
MOVES = RECORDINGS + 1
"""Places, but the first, at which a large operand and a saved one are expected again: these are results of another graph's
calls, of the first as it is and then of its recordings, whose first may be given up when that graph's operands move."""
LARGE = 1 << 20
"""Bytes from which an operand is large. Others are copied when they have moved twice."""
SETS = 16
"""Of sizes; the one not used for longest goes."""
FUTILE = 24
"""Recordings of a graph that were given up, after which no more are made."""
SMALL = 1 << 16
"""Bytes of a result up to which it is copied out for users who may gather it."""

Run = Callable[[list[Any]], list[Any]]


class SeedPlace(Protocol):
    """What gives recorded launches their seeds (``vendor_sdk/run/steps.py``)."""

    def seed_place(self, count: int) -> torch.Tensor: ...
    def fill_seeds(self, place: torch.Tensor) -> None: ...
    def seeds_at(self, place: torch.Tensor | None) -> Any: ...


@dataclass(frozen=True)
class Traits:
    """What is known of a graph that is to be recorded.

    Attributes:
        static: operands that stay the same tensors, whose strides then do, too.
        sized: operands whose sizes vary.
        written: operands that the graph writes to.
        gathered: results that users may gather over many calls: those of forward graphs which are not only saved for backward
            graphs.
        seeds: how many a call draws.
        saved: operands of a backward graph that are results of its forward graph alone: hundreds, which move together.
    """

    static: frozenset[int] = frozenset()
    sized: tuple[int, ...] = ()
    written: tuple[int, ...] = ()
    gathered: frozenset[int] = frozenset()
    seeds: int = 0
    saved: frozenset[int] = frozenset()


@dataclass(frozen=True)
class _Aliased:
    """A result in the memory of an operand: which one, bytes from its first element, sizes, strides and dtype."""

    operand: int
    offset: int
    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype

    def all_of(self, owner: torch.Tensor) -> bool:
        """Whether that is the operand itself."""
        same = owner.shape == self.shape and owner.stride() == self.strides and owner.dtype == self.dtype
        return same and self.offset == 0

    def of(self, operands: Sequence[Any]) -> torch.Tensor:
        owner: torch.Tensor = operands[self.operand]
        if self.all_of(owner):
            return owner
        return shaped(owner, self.offset, tuple(self.shape), self.dtype, self.strides)


class _Results:
    """What calls return: a model's gradients are hundreds, so each kind is brought in one sweep.

    Args:
        found: in order: tensors of the recording, ``_Aliased``, or anything else as it is.
        copied: which of them are copied out.
        operands: of the recording.
        steady: operands that have these strides at all calls.
    """

    def __init__(self, found: Sequence[Any], copied: frozenset[int], operands: Sequence[Any], steady: Container[int]) -> None:
        tensors = [(i, result) for i, result in enumerate(found) if isinstance(result, torch.Tensor)]
        aliased = [(i, result) for i, result in enumerate(found) if isinstance(result, _Aliased)]
        self.others = [None if isinstance(result, torch.Tensor | _Aliased) else result for result in found]
        self.copied = [(i, result) for i, result in tensors if i in copied]
        self.lent = [(i, result) for i, result in tensors if i not in copied]
        self.same = [(i, a.operand) for i, a in aliased if a.operand in steady and a.all_of(operands[a.operand])]
        known = {i for i, _ in self.same}
        self.inside = [(i, a) for i, a in aliased if i not in known]
        storages = {result.untyped_storage().data_ptr(): result.untyped_storage() for _, result in self.lent}
        self.storages = [*storages.values()]
        self.handles = torch_private.storage_handles(self.storages)
        self.alone = torch_private.storage_uses(self.handles)
        """How often each is referred to when nobody outside has it."""

    def free(self) -> bool:
        """Whether nobody has any that lies in the recording's memory."""
        uses = torch_private.storage_uses(self.handles)
        return uses == self.alone or all(map(operator.le, uses, self.alone))

    def like(self, results: list[Any]) -> list[Any]:
        """``results`` of a call that was not replayed, in the recording's memory, but for those that repeat elements."""
        moved = [(i, result) for i, result in self.lent if 0 not in result.stride()]
        with torch.no_grad():
            _copy([result for _, result in moved], [results[i] for i, _ in moved])
        for i, result in moved:
            results[i] = result.data
        return results

    def of(self, operands: Sequence[Any]) -> list[Any]:
        """Those of a call."""
        results = self.others.copy()
        for i, result in self.lent:
            results[i] = result.data
        for i, result in self.copied:
            results[i] = result.clone()
        for i, operand in self.same:
            results[i] = operands[operand]
        for i, aliased in self.inside:
            results[i] = aliased.of(operands)
        return results


@dataclass(eq=False)
class _Recorded:
    """One recording.

    Attributes:
        addresses: where operands lie; None: in a place of their own, or no tensor.
        strided: operands whose strides may be others at another call, and those that they have here.
        places: these.
        results: what a call returns.
        lent: the arena, and the pools that it comes from.
        seeds: where launches read them.
    """

    recording: Recording
    addresses: list[int | None]
    strided: tuple[list[int], list[tuple[int, ...]]]
    places: dict[int, torch.Tensor]
    results: _Results
    lent: list[tuple[arena.Pool, torch.Tensor]]
    seeds: torch.Tensor | None

    def fits(self, operands: Sequence[Any], addresses: Sequence[int | None]) -> bool:
        """Whether operands lie where they lay."""
        given = list(addresses)
        for i in self.places:
            given[i] = None
        which, strides = self.strided
        return given == self.addresses and [operands[i].stride() for i in which] == strides


@dataclass(eq=False)
class _Set:
    """Recordings for one set of sizes, with where operands lay in the calls so far."""

    seen: list[set[int | None]]
    places: dict[int, torch.Tensor] = field(default_factory=dict)
    recordings: list[_Recorded] = field(default_factory=list)


class Recorded:
    """Runs a graph, by replaying it where that is possible. Thread-safe: of calls at one time, one replays.

    Args:
        run: the graph; it takes one list, which it empties.
        device: where its arena is.

    Attributes:
        declined: why nothing is recorded any more; ``""``: it is.
        replays: calls that were replayed.
    """

    def __init__(self, run: Run, recorder: Recorder, traits: Traits, seeds: SeedPlace, device: torch.device) -> None:
        self.run, self.recorder, self.traits, self.seeds, self.device = run, recorder, traits, seeds, device
        self.declined = ""
        self.replays = self.made = 0
        self._sets: OrderedDict[Hashable, _Set] = OrderedDict()
        self._numbers: list[int] | None = None
        """Which operands are no tensors, the same ones in all calls."""
        self._lock = threading.Lock()
        arena.notify(self)

    def __call__(self, operands: list[Any]) -> list[Any]:
        if self.declined or not self._lock.acquire(blocking=False):
            return self.run(operands)
        try:
            return self._call(operands)
        finally:
            self._lock.release()

    def forget(self) -> None:
        """Drops the recordings. Results that somebody has stay as they are."""
        self._sets = OrderedDict()

    def _call(self, operands: list[Any]) -> list[Any]:
        if self._numbers is None:
            self._numbers = [i for i, o in enumerate(operands) if not isinstance(o, torch.Tensor)]
        numbers = [operands[i] for i in self._numbers]
        key = (self.recorder.stream(), *numbers, *[operands[i].shape for i in self.traits.sized])
        addresses = _addresses(operands)
        known = self._sets.get(key)
        if known is None:
            self._sets[key] = _Set([{address} for address in addresses])
            while len(self._sets) > SETS:
                self.made += len(self._sets.popitem(last=False)[1].recordings)
            self._futile()
            return self.run(operands)
        self._sets.move_to_end(key)
        for recorded in known.recordings:
            if recorded.fits(operands, addresses) and recorded.results.free():
                return self._replay(recorded, operands)
        return self._record(known, operands, addresses)

    def _replay(self, recorded: _Recorded, operands: list[Any]) -> list[Any]:
        claimed = [(pool, memory) for pool, memory in recorded.lent if pool.claim(memory)]
        try:
            if len(claimed) < len(recorded.lent):  # another thread's call is in the arena
                return self.run(operands)
            with torch.no_grad():
                _fill(recorded.places, operands)
                if recorded.seeds is not None:
                    self.seeds.fill_seeds(recorded.seeds)
                recorded.recording.replay()
                self._wrote(operands, recorded.places)
                results = recorded.results.of(operands)
        finally:
            for pool, memory in claimed:
                pool.give(memory)
        operands.clear()
        self.replays += 1
        return results

    def _wrote(self, operands: Sequence[Any], places: dict[int, torch.Tensor]) -> None:
        """Brings what the graph wrote to operands into them; whoever kept something made of their old values can tell."""
        direct = []
        for i in self.traits.written:
            if i in places:
                operands[i].detach().copy_(places[i])
            else:
                direct.append(operands[i])
        if direct:
            torch.autograd.graph.increment_version(direct)

    # Recording

    def _record(self, known: _Set, operands: list[Any], addresses: list[int | None]) -> list[Any]:
        """Runs the graph, and records it for the calls that come."""
        for seen, address in zip(known.seen, addresses, strict=True):
            if len(seen) <= MOVES + 1:
                seen.add(address)
        tensors = [(i, o) for i, o in enumerate(operands) if isinstance(o, torch.Tensor)]
        moving = {i for i, o in tensors if len(known.seen[i]) > self._expected(i, o)}
        if len(known.recordings) == RECORDINGS or any(r.places.keys() != moving for r in known.recordings):
            gone = [r for r in known.recordings if r.places.keys() != moving] or [
                r for r in known.recordings if r.results.free()
            ][:1]
            if not gone and len(known.recordings) == RECORDINGS:
                return self.run(operands)
            known.recordings = [r for r in known.recordings if r not in gone]
            self.made += len(gone)
            if self._futile():
                return self.run(operands)
        for i in moving - known.places.keys():
            known.places[i] = torch.empty_like(operands[i].detach())
        places = {i: known.places[i] for i in moving}
        held = list(operands)
        operands.clear()
        _fill(places, held)
        given = [places.get(i, o) for i, o in enumerate(held)]
        with arena.lending(self.device) as lent:
            results = self.run(list(given))
            if places:
                with torch.no_grad():
                    self._wrote(held, places)
                results = [self._outside(result, held, places) for result in results]
            lent.clear()
            recorded = self._recording(held, places, addresses, lent)
        if recorded is None:
            return results
        known.recordings.append(recorded)
        return recorded.results.like(results)

    def _recording(
        self,
        held: Sequence[Any],
        places: dict[int, torch.Tensor],
        addresses: Sequence[int | None],
        lent: list[tuple[arena.Pool, torch.Tensor]],
    ) -> _Recorded | None:
        """The launches of a call with these operands, none of which happens."""
        # Tensors of their own on the same memory: what is written to those counts for nobody.
        given = [places.get(i, o) for i, o in enumerate(held)]
        operands = [o.data if isinstance(o, torch.Tensor) else o for o in given]
        found: list[Any] = []
        seeds = self.seeds.seed_place(self.traits.seeds) if self.traits.seeds else None

        def run() -> None:
            found.extend(self.run(list(operands)))

        try:
            with self.seeds.seeds_at(seeds), torch.inference_mode(False), torch.no_grad():
                recording = self.recorder.record(run)
        except Exception as error:
            self.decline(f"recording failed: {error}")
            return None
        owners = {o.untyped_storage().data_ptr(): i for i, o in reversed([*enumerate(operands)]) if isinstance(o, torch.Tensor)}
        results = [self._result(result, operands, owners) for result in found]
        aliased = {result.operand for result in results if isinstance(result, _Aliased)}
        if any(places[i].stride() != held[i].stride() for i in aliased & places.keys()):
            self.decline("a result lies in the memory of an operand that has gaps and is another at each call")
            return None
        found.clear()
        copied = frozenset(
            i
            for i, result in enumerate(results)
            if isinstance(result, torch.Tensor) and i in self.traits.gathered and result.nbytes <= SMALL
        )
        strides = {
            i: o.stride()
            for i, o in enumerate(operands)
            if isinstance(o, torch.Tensor) and i not in self.traits.static and (i not in places or i in aliased)
        }
        return _Recorded(
            recording,
            [None if i in places else address for i, address in enumerate(addresses)],
            ([*strides], [*strides.values()]),
            places,
            _Results(results, copied, held, self.traits.static | strides.keys()),
            list(lent),
            seeds,
        )

    def _result(self, result: Any, operands: Sequence[Any], owners: dict[int, int]) -> Any:
        if not isinstance(result, torch.Tensor):
            return result
        owner = owners.get(result.untyped_storage().data_ptr()) if result.numel() else None
        if owner is None:
            return result
        offset = result.data_ptr() - operands[owner].data_ptr()
        return _Aliased(owner, offset, result.shape, result.stride(), result.dtype)

    def _outside(self, result: Any, held: Sequence[Any], places: dict[int, torch.Tensor]) -> Any:
        """A result that is, or lies in, the place of an operand, as memory of its own: others will write there."""
        if not isinstance(result, torch.Tensor):
            return result
        for i, place in places.items():
            if result is place:
                return held[i]
            if result.numel() and result.untyped_storage().data_ptr() == place.untyped_storage().data_ptr():
                return result.clone()
        return result

    def _expected(self, index: int, operand: torch.Tensor) -> int:
        """Places of an operand that recordings are made for."""
        return 1 + (MOVES if index in self.traits.saved or operand.nbytes >= LARGE else 1)

    def decline(self, why: str) -> None:
        """Records nothing from now on."""
        self.declined = why
        self.forget()

    def _futile(self) -> bool:
        if self.made < FUTILE:
            return False
        self.decline(f"{self.made} recordings fitted few calls: numbers, sizes or places of operands are others each time")
        return True


def _addresses(operands: Sequence[Any]) -> list[int | None]:
    """Of tensors, without a step of Python for each: a model has hundreds of parameters."""
    try:
        return list(map(torch.Tensor.data_ptr, operands))
    except TypeError:  # of an operand that is a number
        return [o.data_ptr() if isinstance(o, torch.Tensor) else None for o in operands]


def _fill(places: dict[int, torch.Tensor], operands: Sequence[Any]) -> None:
    """Copies operands to their places."""
    if places:
        with torch.no_grad():
            _copy(list(places.values()), [operands[i] for i in places])


def _copy(to: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    """Copies those of a dtype at once: torch copies tensors of several dtypes one by one."""
    alike: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for place, tensor in zip(to, tensors, strict=True):
        places, given = alike.setdefault(place.dtype, ([], []))
        places.append(place)
        given.append(tensor)
    for places, given in alike.values():
        torch._foreach_copy_(places, given)
