"""Kernels to libraries: a kernel is compiled once, whatever it is called and in however many graphs it stands.

A kernel's key is the hash of its text, its name left out, and of the headers that it needs. What the cache lacks is cut into
translation units, about one a core, which are compiled side by side; each kernel's entry then says which library it is in. So a
graph that shares half its kernels with another compiles the other half, and loads both libraries. While all cores compile,
kernels wait, of whatever graph; those that wait share the next translation unit, and read the headers once.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from reference_backends.cpp_cpu import compiler, machine, products
from reference_backends.cpp_cpu import program as launching
from reference_backends.cpp_cpu.headers import library, needed
from reference_backends.cpp_cpu.table import CTYPES, GAMMAS, SPECIAL, WIDE
from vendor_sdk import CompilerError, LoopKernel, loop

UNIT_WEIGHT = 2000
"""What a compiler process of its own costs, in characters of kernel text that take as long: starting it, and reading what all
kernels need of the headers (0.05 s with g++ 12, which compiles 1000 characters in 0.02 to 0.04 s)."""
HEADER_WEIGHT = {
    "wide.h": 500,
    "gammas.h": 500,
    "special.h": 500,
    "products.h": 300,
    "tiles.h": 1000,
    "scans.h": 500,
    "float8.h": 200,
}
"""What a header adds to the first kernel of a unit that needs it: instantiating its templates. Each
stands behind those that it needs."""
WORTH = 0.8
"""Part of the time that another process must leave to be started: the other cores may be busy."""
_CALLED = {
    "wide.h": tuple(f"op_{name}(" for name in (*WIDE, *GAMMAS)),
    "gammas.h": tuple(f"op_{name}(" for name in GAMMAS),
    "products.h": ("Product<",),
    "tiles.h": ("transpose(",),
    "scans.h": ("prefix<",),
    "float8.h": ("e4m3", "e5m2"),
}
"""Headers by what needs them."""
_INDEX = ".kernel"
"""Entries of kernels: the key of the library that each is in, and on further lines the libraries which that calls."""
_PLACE = "KERNEL_NAME_HERE"
_FILES = ("base.h", "vector.h", "piecewise.h", "philox.h", "math.h")


@dataclass(frozen=True)
class Unit:
    """A kernel under the name by which all graphs know it.

    Attributes:
        key: of its entry, which says the library.
        text: its C++, and that of the function through which programs call it.
        more: headers that it needs beside those that all need.
        calls: libraries that it calls.
    """

    key: str
    kernel: LoopKernel
    text: str
    more: tuple[str, ...]
    calls: tuple[products.Need, ...] = ()


def compiled(kernels: Sequence[tuple[LoopKernel, str]]) -> list[launching.CompiledFunction]:
    """The kernels with their texts (``KernelText``). Those that are in no library yet are being compiled when this returns."""
    units = [_unit(kernel, text) for kernel, text in kernels]
    try:
        libraries = _libraries(units)
    except FileNotFoundError:  # Another process pruned the cache between look-up and loading.
        libraries = _libraries(units)
    return [launching.kernel_function(libraries[unit.key], unit.kernel) for unit in units]


def _unit(kernel: LoopKernel, text: str) -> Unit:
    """A kernel's functions are called by its name, or begin with it (``horizontal.py``)."""
    named = re.compile(rf"\b(flat_)?{re.escape(kernel.name)}(?=\b|_nest\d)")
    whole = named.sub(rf"\g<1>{_PLACE}", text + launching.flat(kernel, CTYPES))
    more = []
    if loop.stated_ops(kernel) & {*SPECIAL, "scan.logaddexp"}:
        more.append("special.h")
    more += [header for header, calls in _CALLED.items() if any(call in text for call in calls)]
    key = compiler.ARTIFACTS.key("kernel", _digest(tuple(more)), whole)
    name = f"kernel_{key}"
    return Unit(key, replace(kernel, name=name), whole.replace(_PLACE, name), tuple(more), products.needs(text))


@functools.cache
def largest_e4m3() -> int:
    """The bits of what is too large for float8_e4m3fn, and positive: the largest number in torch 2.13, NaN in 2.11."""
    return int(torch.tensor(torch.finfo(torch.float32).max).to(torch.float8_e4m3fn).view(torch.uint8))


def _values() -> str:
    """What the headers find defined."""
    values = {"CACHE_BYTES": f"{machine.cache_bytes(3)}LL", "PRODUCTS_KEY": products.key(), "E4M3_LAST": largest_e4m3()}
    return "\n".join(f"#define {name} {value}" for name, value in values.items())


@functools.cache
def _headers_text(more: tuple[str, ...]) -> str:
    return "\n".join(map(library, (*_FILES, *more)))


def _digest(more: tuple[str, ...]) -> str:
    return _digest_of("\n".join((_values(), _headers_text(more))))


@functools.lru_cache(maxsize=64)
def _digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


_loaded: dict[str, ctypes.CDLL] = {}
"""Libraries of this process, by key. They stay: a compiled graph holds addresses in them."""
_home: dict[str, Callable[[], ctypes.CDLL]] = {}
"""Kernels of this process: what gives the library that each is in."""


def _libraries(units: Sequence[Unit]) -> dict[str, Callable[[], ctypes.CDLL]]:
    """What gives the library of each unit's key."""
    homes, missing = {}, {}
    for need in {need: None for unit in units for need in unit.calls}:
        products.start(need)
    for unit in units:
        home = _home.get(unit.key) or _recorded(unit.key)
        if home is None:
            missing[unit.key] = unit
        else:
            homes[unit.key] = home
    made = {key: _Pending(unit) for key, unit in missing.items()}
    _WAITING.add(list(made.values()))
    homes.update(made)
    _home.update(homes)
    return homes


@dataclass(frozen=True)
class _Compiled:
    """A translation unit that went through the compiler."""

    source: str
    path: Path
    units: tuple[Unit, ...]

    def load(self) -> ctypes.CDLL:
        """Its library; the first call records the kernels."""
        home = compiler.key_of(self.source)
        if home not in _loaded:
            calls = dict.fromkeys(need for unit in self.units for need in unit.calls)
            for need in calls:
                products.load(need)
            _loaded[home] = compiler.load(self.source, self.path)
            entry = "\n".join((home, *map(" ".join, calls)))
            for unit in self.units:
                compiler.ARTIFACTS.keep(unit.key, entry.encode(), _INDEX)
        return _loaded[home]


def _compile(units: Sequence[Unit]) -> _Compiled:
    source = _source(units)
    return _Compiled(source, compiler.made(source), tuple(units))


class _Pending:
    """Gives the library of a kernel that waits for a compiler, or is with it: the first call waits too."""

    def __init__(self, unit: Unit) -> None:
        self.unit, self.process = unit, os.getpid()
        self.future: Future[_Compiled] = Future()

    def __call__(self) -> ctypes.CDLL:
        if self.future.done() or self.process == os.getpid():
            try:
                return self.future.result().load()
            except CompilerError:
                pass  # another kernel of its unit may be to blame
        # Or the process was forked meanwhile, and the compiler's answer went to its parent.
        compiled = _compile([self.unit])
        self.future = Future()
        self.future.set_result(compiled)
        return compiled.load()


class _Waiting:
    """Kernels that wait for a core."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._lock = threading.Lock()
        self._kernels: list[_Pending] = []
        self._turns = 0
        """How many units are to be made of them at most."""

    def add(self, kernels: Sequence[_Pending]) -> None:
        turns = len(_split([each.unit for each in kernels]))
        with self._lock:
            self._kernels += kernels
            self._turns += turns
        for _ in range(turns):
            compiler.submit(self._turn)

    def _turn(self) -> None:
        """Compiles a part of what waits; the last turn all that is left."""
        with self._lock:
            groups = _split([each.unit for each in self._kernels], self._turns)
            self._turns -= 1
            taken = {unit.key for unit in groups[0]} if groups else set()
            group = [each for each in self._kernels if each.unit.key in taken]
            self._kernels = [each for each in self._kernels if each.unit.key not in taken]
        if not group:
            return
        try:
            compiled = _compile(list({each.unit.key: each.unit for each in group}.values()))
        except BaseException as error:
            for each in group:
                each.future.set_exception(error)
        else:
            for each in group:
                each.future.set_result(compiled)


_WAITING = _Waiting()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_WAITING.forget)


def _recorded(key: str) -> Callable[[], ctypes.CDLL] | None:
    """The library in which an earlier graph or process put a kernel, loaded; None when either is gone."""
    entry = compiler.ARTIFACTS.read(key, _INDEX)
    if entry is None:
        return None
    home, *calls = entry.decode().splitlines()
    if home not in _loaded:
        path = compiler.found(home)
        if path is None:
            return None
        for call in calls:
            which, kind = call.split()
            products.load((which, kind))
        _loaded[home] = compiler.loaded(path)
    return functools.partial(_loaded.__getitem__, home)


def _weight(group: Sequence[Unit]) -> int:
    """Estimated time to compile kernels as one translation unit, in characters."""
    return UNIT_WEIGHT + sum(len(unit.text) for unit in group) + _headers({name for unit in group for name in unit.more})


def _headers(names: set[str]) -> int:
    return sum(HEADER_WEIGHT[name] for name in names)


def _split(units: Sequence[Unit], most: int | None = None) -> list[list[Unit]]:
    """Groups that take about equally long, no more of them than pay, or than ``most``; kernels that need the same headers stand
    together."""
    ordered = sorted(units, key=lambda unit: (unit.more, unit.key))
    best: list[list[Unit]] = [ordered] if ordered else []
    for count in range(2, min(most or compiler.cores(), compiler.cores(), len(units)) + 1):
        groups: list[list[Unit]] = [[]]
        share, characters = _weight(ordered) / count, UNIT_WEIGHT
        for unit in ordered:
            if groups[-1] and len(groups) < count and characters + len(unit.text) / 2 > share:
                groups.append([])
                characters = UNIT_WEIGHT
            characters += len(unit.text) + (0 if groups[-1] and groups[-1][-1].more == unit.more else _headers({*unit.more}))
            groups[-1].append(unit)
        if max(map(_weight, groups)) <= WORTH * max(map(_weight, best)):
            best = groups
    return best


def _source(group: Sequence[Unit]) -> str:
    more = tuple(name for name in HEADER_WEIGHT if any(name in unit.more for unit in group))
    texts = "\n".join(unit.text for unit in sorted(group, key=lambda unit: unit.key))
    return "\n".join((_values(), needed((*_FILES, *more), f"{_values()}\n{texts}"), texts))
