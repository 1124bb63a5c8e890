"""What generated host functions call: block sizes and the launch itself."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Literal, cast

import torch

from reference_backends.triton_gpu import ptx
from reference_backends.triton_gpu.machine import Machine, machine
from reference_backends.triton_gpu.machine_code import FAILED, Argument, compiled, pointer, refused, target_of, with_layouts
from reference_backends.triton_gpu.table import FLOAT8
from vendor_sdk import split

Kind = Literal[
    "row", "team", "fixed", "columns", "short", "whole", "whole columns",
    "along", "scan", "lean", "again", "costly", "heavy", "across", "deep", "spread",
]  # fmt: skip
"""How a nest's inner loops become tiles: all iterations at once, as the text says (with one iteration of the nest in a program,
for which others may wait, or several, or as many as lie in a line that the loops walk across, and more where they only store)
or as the launch does (along memory or across it); some at a time, with the lanes along memory in the loop (once, to scan or
not; or several times over, one row or more; or with costly functions, of one row or more) or across it, in the nest (or in many
whole tiles); or divided among programs."""

WARPS = 4
"""Of a program where no inner loop is a tile."""
POINTS = 16
"""Elements in one thread where no inner loop is a tile: two vectors of halves."""
PLAIN = 8
"""The same where all indices are those of the iterations, elements are bytes, or several iterations of a loop stand in the
body."""
LEAST = 4
"""The same at least: a vector of float32."""
ACROSS_VECTORS = 2
"""The same where neighbours read or write what does not lie side by side: of the elements of one thread, those of a whole warp
would lie as far apart again."""
FEWEST = 256
"""Iterations of a program where no inner loop is a tile, at least, where there are few programs: two for each thread."""
ELEMENTS = 4096
"""Elements of a tile of short rows, or of one row too long for a tile as a whole."""
ONE_ROW = ELEMENTS // 4
"""Iterations of a whole row above which a program has one row alone."""
THREAD = 32
"""Elements of a tile in one thread: the more, the less a row's reductions cost, which threads do together."""
PIECES = 3
"""Blocks of different sizes that one tile may have."""
SMALLEST = 16
"""Iterations that are not taken in pieces."""
VECTOR = 8
"""Halves that a thread reads at once."""
EVEN = 32 * VECTOR
"""Iterations of the smallest of even blocks."""
LONGEST = 16384
"""Most iterations of a row that is a tile as a whole: 32 values a thread of 512. Twice as many where the rows of several
operands would be read again: one program then has a multiprocessor for itself, and as many registers as fit."""
PLANS = 256
"""Sizes of a function whose blocks are known without computing them again."""
REGISTERS = 65536
"""Of a multiprocessor."""
PROGRAMS = 264
"""Programs that a large GPU wants at least: two for each of its multiprocessors."""
OCCUPIED = 8 * PROGRAMS
"""Warps with which it is a quarter full: with fewer, what one of them waits for is seen."""
FULL = 32 * PROGRAMS
"""As many as it holds."""
ALONE = 4
"""Programs up to which each may have a multiprocessor's threads for itself."""
MANY = 8
"""Times as many share one long loop: those that end sooner leave room for others."""
LONG: dict[str, tuple[int, int]] = {
    "along": (8192, 16),
    "scan": (8192, 8),
    "lean": (16384, 32),
    "again": (16384, 32),
    "costly": (16384, 32),
    "heavy": (4096, 8),
}
"""Elements of a tile of a row that is taken a tile at a time, and its warps. What is read again is read from the cache, if few
rows are under way at once; what is computed for long wants many programs."""
ACROSS = 64
"""Iterations of a nest in a tile whose inner loop walks across memory: a line of halves."""
TURN, SHORT_TURN = 128, 32
"""Iterations of such a loop in a tile of the kind ``deep``, or where there are few programs: large tiles move more bytes at
once; and of other tiles."""
DEEP = 8 * TURN
"""Iterations of the shortest loop of that kind, in which no element needs a mask."""
LONG_PART = 2048
"""Iterations of such a loop in one program, at most, where iterations that begin alike in their vectors lie apart: longer ones
were seen to take twice as long (H200)."""
AT_ONCE = 2 * PROGRAMS
"""Programs of that kind that run at once on a large GPU. Of others it is twice as many."""
NARROW: dict[Kind, int] = {"across": 8, "deep": 8, "columns": 8, "whole columns": 8, "short": 16, "spread": 16}
"""The same where there are few programs (a sector of 32 bytes: partial sums are float32); and of a tile that divides inner
loops too, or only stores."""
LINE = 128
"""Bytes to which buffers that share memory are aligned."""
MAP = ELEMENTS // ACROSS
"""Iterations of a loop that only stores and walks across memory in one program: a tile."""
COLUMN = 1024
"""Most iterations of loops that walk across memory, of which several read the same columns, in a tile as a whole."""
SQUARE = 64
"""Edge of a tile that reads lines along one axis and writes them along the other."""
LARGE_SQUARE = 128
"""The same where elements are few and narrow (a thread has more than ``THREAD``), and such tiles make many programs."""


def tile(count: int, lengths: Sequence[int], kind: Kind, thread: int = THREAD, leads: int = 1) -> tuple[int, list[int], int]:
    """``(XBLOCK, blocks of the tiles, warps)`` for a nest of ``count`` iterations with inner loops of these lengths, of which a
    thread has ``thread`` elements (of the nest itself, where there are none), ``leads`` times over.
    Tiles that the text fixes have their lengths here, and no blocks.

    All are powers of two.
    """
    if not lengths:
        points = thread * 32 * WARPS
        while count < points * (FULL // WARPS if points > LEAST * 32 * WARPS else PROGRAMS) and points > FEWEST:
            points //= 2
        return min(points, _power(count)), [], WARPS
    longest = max(lengths)
    if kind == "spread":
        # Where one edge is short (the pixels of a filter), the other has as much more: programs of few bytes take as long.
        large = thread > THREAD and leads * count * longest >= 8 * PROGRAMS * LARGE_SQUARE**2
        square, warps = (LARGE_SQUARE, 8) if large else (SQUARE, 16)
        edge = min(square, _power(longest))
        x = min(square * square // edge, _power(count))
        return x, [min(square * square // x, _power(longest))], warps
    if kind in ("across", "deep"):
        x = min(ACROSS, _power(count))
        large = kind == "deep" or longest <= ACROSS or leads * -(-count // x) < AT_ONCE
        x = narrowed(x, kind, leads, count)
        block = (TURN if large else SHORT_TURN) * ACROSS // x
        return x, [min(block, _power(n)) for n in lengths], 8 if large else 4
    if kind == "short":
        wide = min(max(ACROSS, _below(ELEMENTS // longest)), _power(count))
        x = narrowed(wide, kind, leads, count)
        # A thread has two elements at least: Triton loads again for each layout what has one or none for each.
        return x, [], min(_below(wide * longest // thread // 32), _below(x * longest // 64), 4)
    if kind in LONG:
        block, warps = LONG[kind]
        blocks = [min(block, _power(n)) for n in lengths]
        if max(blocks) == block:
            return 1, blocks, warps
    else:
        blocks = [_power(n) for n in lengths] if kind in ("whole", "whole columns") else []
    row = max(blocks or [longest])
    if kind in ("columns", "whole columns"):
        x = narrowed(min(max(_below(ELEMENTS // row), 2 * NARROW[kind]), _power(count)), kind, leads, count)
        warps = min(_below(x * row // thread // 32), 16)
        return x, blocks, _occupying(warps, x * row, leads * -(-count // x), 16)
    x = 1 if kind in ("row", "team") else min(_below(ELEMENTS // 2 // row), _power(count))
    while x > 1 and count < x * PROGRAMS:
        x //= 2
    programs = -(-count // x)
    alone = kind == "fixed" and programs <= ALONE
    most = 32 if row > LONGEST or alone else 16
    warps = min(_below(x * row // thread // 32), most)
    if kind == "team" or (thread % THREAD and not alone):
        # A team's programs wait for each other, and those that go through rows keep totals in registers (of even pieces, or of
        # half as many elements): how many run at once was reckoned with these warps.
        return x, blocks, warps
    return x, blocks, _occupying(warps, x * row, programs, most)


def _occupying(warps: int, elements: int, programs: int, most: int) -> int:
    """Warps of a program with a tile of so many elements, more where there are few programs: with fewer elements in each
    thread, nothing waits as long."""
    while 2 * warps <= most and programs * warps < OCCUPIED and elements >= 2 * warps * 32 * 2 * LEAST:
        warps *= 2
    return warps


def narrowed(x: int, kind: Kind, leads: int, count: int) -> int:
    """Iterations of the nest in a tile where ``x`` make too few programs of ``leads`` times ``count``."""
    while x > NARROW[kind] and leads * -(-count // x) < PROGRAMS // 2:
        x //= 2
    return x


def blocks_for(length: int, most: int) -> list[int]:
    """Powers of two that hold ``length`` iterations: one of at most a quarter more, else several, ``most`` at most."""
    whole = _power(length)
    if most == 1 or 4 * whole <= 5 * length or length <= SMALLEST:
        return [whole]
    return [whole // 2, *blocks_for(length - whole // 2, most - 1)]


def even_blocks(length: int) -> list[int]:
    """Three or five blocks of one size where ``length`` iterations take several; none where these would hold a quarter more. A
    thread has a vector of halves of each, so that a row's reductions begin in it."""
    if len(blocks_for(length, PIECES)) == 1:
        return []
    blocks = [[EVEN << k] * n for k in range(4) for n in (3, 5) if length <= n * (EVEN << k) <= length * 5 // 4]
    return min(blocks, key=sum, default=[])


def rows_at_once(width: int) -> int:
    """How many rows of ``width`` columns a large GPU has under way whose totals are in registers."""
    even = even_blocks(width)
    thread = len(even) * VECTOR or THREAD // 2
    x, _, warps = tile(width * PROGRAMS * PROGRAMS, [sum(even or blocks_for(width, PIECES))], "fixed", thread)
    registers: int = options(thread, warps).get("maxnreg", 255)
    return x * PROGRAMS // 2 * max(REGISTERS // (32 * warps * registers), 1)


def parts(count: int, lengths: Sequence[int], kind: Kind, *, vectors: bool = False, small: bool = False) -> int:
    """Into how many parts inner loops are divided, so that there are programs for the whole GPU; 1 where there are or where
    the loops are short.

    Args:
        vectors: whether every iteration of loops that walk across memory begins with a vector, if the first one does.
        small: whether these have small tiles in any case, since they have several results.
    """
    longest = max(lengths)
    if kind in ("across", "deep"):
        return parts_across(count, longest, 1 if vectors else split.LINE, whole=not small)
    x, blocks, _ = tile(count, lengths, kind)
    programs = -(-count // x)
    if kind == "whole" or 2 * programs >= PROGRAMS:
        return 1
    wanted = (MANY if count == 1 else 2) * PROGRAMS
    most = min(-(-wanted // programs), longest // max(blocks))
    return next((n for n in range(most, most // 2, -1) if longest % (n * split.LINE) == 0), max(most, 1))


def parts_across(count: int, length: int, step: int, *, whole: bool) -> int:
    """The same where loops walk across memory: as many as run at once, of ``whole`` large tiles if they can be. (These need no
    masks, which take as many instructions as sums do.)

    Args:
        step: how many parts apart all iterations begin alike in their vectors. Where these cross the ends of lines, programs
            begin before them.
    """
    programs = -(-(count + step - 1) // ACROSS)
    most = length // DEEP if whole else 0
    deep = [n for n in range(step, most + 1, step) if length % (n * TURN) == 0 and n * programs <= AT_ONCE]
    if deep and 4 * deep[-1] * programs >= 3 * AT_ONCE:
        return deep[-1]
    some = step if length >= 2 * SHORT_TURN * step else 1
    most = min(4 * AT_ONCE // programs, max(length // (8 * SHORT_TURN), some))
    if most < max(step, 2):
        return 1

    def worth(n: int) -> float:
        """How much of the GPU, and of the programs' turns, does work: a few programs too many find room."""
        waves = max(math.ceil(n * programs / (2 * AT_ONCE) - 0.05), 1)
        return min(n * programs / (waves * 2 * AT_ONCE), 1) * length / (-(-length // (n * SHORT_TURN)) * n * SHORT_TURN)

    best = max(range(step, most + 1, step), key=lambda n: (worth(n), -n))
    while step > 1 and length > LONG_PART * best:
        best *= 2
    return best


def maps(lengths: Sequence[int]) -> int:
    """The same for loops that only store and walk across memory: what a program writes is one tile, then it ends, so that no
    program's reads wait for its own writes."""
    return -(-max(lengths) // MAP)


def _below(n: int) -> int:
    """The largest power of two that is not above ``n``; 1 for none."""
    return 1 << max(n.bit_length() - 1, 0)


def _power(n: int) -> int:
    """The least power of two that is not below ``n``."""
    return 1 << max(n - 1, 0).bit_length()


@dataclass(frozen=True)
class Plan:
    """How a function is launched for some sizes.

    Attributes:
        programs: how many; 0: there is nothing to do.
        values: of the function's constants.
        settings: what Triton's compiler is told.
    """

    programs: int
    values: tuple[Any, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


class Launcher:
    """Launches one function on the current stream; nothing for no iterations.

    Triton's own way to a launch binds and inspects every argument, which takes longer than a small kernel. What it found for
    equal constants and equally aligned arguments is kept.

    Args:
        kernel: the function, as ``triton.jit`` made it.
        kind: how its inner loops become tiles.
        thread: elements of a tile in one thread.
        told: positions of the buffers by which programs of the kind ``team`` tell each other what they found.
        waits: how often they wait for that.
        sizes: positions of the numbers whose divisors are constants of the function, ``VECTOR`` or 1; None: it has none, and
            Triton finds out about its numbers.
    """

    def __init__(
        self,
        kernel: Any,
        kind: Kind,
        thread: int,
        told: Sequence[int] = (),
        waits: int = 0,
        *,
        sizes: Sequence[int] | None = None,
    ) -> None:
        import triton

        ptx.install()
        self.kernel, self.kind, self.thread, self.told, self.waits = kernel, kind, thread, told, waits
        self.sizes = sizes
        self.driver, self.settings = triton.runtime.driver, triton.knobs.runtime
        self.planned = functools.lru_cache(PLANS)(self._planned)
        self.compiled: dict[Any, dict[tuple[Any, ...], _Compiled]] = {}
        """By constants and settings, which sizes with equal blocks share; then by device and what Triton specializes for."""
        self.compiling: list[Begun] = []
        self.kept: list[Any] = []

    def __call__(
        self, buffers: tuple[Any, ...], numbers: tuple[int, ...], leads: int, count: int, lengths: tuple[int, ...], largest: int
    ) -> None:
        """Launches for ``leads`` times ``count`` iterations; ``largest`` is the number of elements of the largest buffer."""
        plan, known = self.planned(leads, count, lengths, largest)
        if not plan.programs:
            return
        divisors = [1 if numbers[position] % VECTOR else VECTOR for position in self.sizes or ()]
        arguments = (*numbers, *divisors, *plan.values)
        if self.settings.interpret:
            for _ in range(self.waits):
                self.tell(plan, buffers, arguments)
            self.first(plan, (*buffers, *arguments))
            return
        driver = self.driver.active
        device = driver.get_current_device()
        pointers = [buffer.data_ptr() for buffer in buffers]
        key = (device, *[p & 15 == 0 for p in pointers])
        if self.sizes is not None:
            key += (*divisors, *[-(2**31) <= n < 2**31 for n in numbers])
        elif numbers:
            key += tuple([(n == 1, n & 15 == 0, -(2**31) <= n < 2**31) for n in numbers])
        compiled = known.get(key)
        if compiled is None:
            known[key] = _Compiled(self.first(plan, (*buffers, *arguments)))
            return
        compiled.launch(plan.programs, driver.get_current_stream(device), self.settings, (*pointers, *arguments))

    def tell(self, plan: Plan, buffers: tuple[Any, ...], arguments: tuple[Any, ...]) -> None:
        """Lets the interpreter, which runs one program after the other, find what each of them tells the others before they
        wait once more, and nothing else."""
        copies = [buffer.clone() for buffer in buffers]
        self.first(plan, (*copies, *arguments))
        for position in self.told:
            buffers[position].copy_(copies[position])

    def fixed(self, leads: int, count: int, lengths: tuple[int, ...], largest: int) -> Fixed:
        """What launches for sizes that no call changes."""
        return Fixed(self, leads, count, lengths, largest)

    def _planned(
        self, leads: int, count: int, lengths: tuple[int, ...], largest: int
    ) -> tuple[Plan, dict[tuple[Any, ...], _Compiled]]:
        """A plan, and what is compiled for plans like it."""
        plan = self.plan(leads, count, lengths, largest, machine())
        return plan, self.compiled.setdefault((plan.values, tuple(plan.settings.items())), {})

    def plan(self, leads: int, count: int, lengths: Sequence[int], largest: int, gpu: Machine) -> Plan:
        """How the function is launched for these sizes."""
        x, blocks, warps = tile(count, lengths, self.kind, self.thread, leads)
        leads *= -(-lengths[0] // blocks[0]) if self.kind == "spread" else 1
        if self.kind == "spread":
            x = narrowed(x, self.kind, leads, count)
        programs = leads * -(-count // x)
        settings = {"num_warps": warps, **(options(self.thread, warps) if lengths else OPTIONS)}
        return Plan(programs, constants(count, lengths, x, blocks, largest), settings)

    def ahead(self, arguments: Sequence[Argument], sizes: Sizes, gpu: Machine | None = None) -> Begun | None:
        """Begins to compile what a launch for ``sizes`` with such arguments needs, if that is not known.

        Args:
            gpu: one that is elsewhere; None: the current one, whose first launch then waits for it.
        """
        if gpu is not None:
            plan = self.plan(*sizes, gpu)
            return self._begun(plan, arguments, target_of(gpu.capability)) if plan.programs else None
        if self.settings.interpret or not torch.cuda.is_available():
            return None
        plan, known = self.planned(*sizes)
        if not plan.programs or known:
            return None
        begun = self._begun(plan, arguments, self.driver.active.get_current_target())
        self.compiling.append(begun)
        return begun

    def _begun(self, plan: Plan, arguments: Sequence[Argument], target: Any) -> Begun:
        values = (*(1 for _ in self.sizes or ()), *plan.values)
        return Begun(functools.partial(compiled, self.kernel, arguments, values, plan.settings, target))

    def loaded(self, plan: Plan, arguments: Sequence[Argument], begun: Begun | None) -> Sequence[int] | None:
        """What C needs to launch a function on the current device: its handle, programs, threads of a program and bytes of
        shared memory; None where it takes more than that.

        Args:
            begun: compiles it; None: it is compiled here.
        """
        target = self.driver.active.get_current_target()
        kernel = begun.result() if begun is not None else self._begun(plan, arguments, target).result()
        try:
            _ = kernel.run  # which loads the machine code, and refuses what the GPU has no room for
        except Exception as error:
            if not type(error).__module__.startswith("triton.") and str(error) != FAILED:
                raise
            raise refused(self.kernel, error) from error
        told = kernel.metadata
        more = ("global_scratch_size", "profile_scratch_size", "launch_cooperative_grid", "launch_pdl")
        if told.num_ctas != 1 or any(getattr(told, each, 0) for each in more):
            return None
        self.kept.append(kernel)  # which would unload it
        return kernel.function, plan.programs, told.num_warps * target.warp_size, told.shared

    def first(self, plan: Plan, arguments: tuple[Any, ...]) -> Any:
        """Launches as Triton does, which finds in its cache what ``ahead`` left there. What failed there fails again, and is
        reported."""
        for begun in self.compiling:
            begun.wait()
        self.compiling = []
        arguments = tuple(each.view(torch.uint8) if getattr(each, "dtype", None) in FLOAT8 else each for each in arguments)
        try:
            return with_layouts(lambda chosen: self.kernel[(plan.programs, 1, 1)](*arguments, **chosen), plan.settings)
        except Exception as error:
            if not type(error).__module__.startswith("triton.") and str(error) != FAILED:
                raise
            raise refused(self.kernel, error) from error


class Begun:
    """A function that a thread compiles."""

    def __init__(self, compile_: Callable[[], Any]) -> None:
        self.compile = compile_
        self.future = _threads().submit(self._try)

    def _try(self) -> Any:
        if threading.main_thread().is_alive():
            with contextlib.suppress(Exception):
                return self.compile()
        return None

    def wait(self) -> Any:
        """What the thread made; None where it failed."""
        return self.future.result()

    def result(self) -> Any:
        """The ``CompiledKernel``. What failed in the thread is tried again here, for its reason."""
        return self.wait() or self.compile()


class _Compiled:
    """A compiled function, ready to be launched with addresses instead of tensors.

    Triton's launcher wraps a function of C, which is called here as Triton 3.6 does; other versions' launchers are called.
    """

    def __init__(self, compiled: Any) -> None:
        self.function, self.metadata = compiled.function, compiled.packed_metadata
        runner = self.run = compiled.run
        known = version("triton").startswith("3.6.") and not runner.global_scratch_size and not runner.profile_scratch_size
        self.direct = runner.launch if known else None
        self.flags = (runner.launch_cooperative_grid, runner.launch_pdl, None, None) if known else ()

    def launch(self, programs: int, stream: int, hooks: Any, arguments: tuple[Any, ...]) -> None:
        ends = self.metadata, None, *_listening(hooks)
        if self.direct is not None:
            self.direct(programs, 1, 1, stream, self.function, *self.flags, *ends, *arguments)
        else:
            self.run(programs, 1, 1, stream, self.function, *ends, *arguments)


def _listening(settings: Any) -> tuple[Any, Any]:
    """What is called around a launch; None for chains of functions that have none, which are called all the same."""
    begin, end = settings.launch_enter_hook, settings.launch_exit_hook
    return begin if getattr(begin, "calls", True) else None, end if getattr(end, "calls", True) else None


def current_device(driver: Any) -> Callable[[], int]:
    """What tells Triton's driver the index of the current device, in one call of Python; torch's for CUDA are three."""
    asked: Callable[[], int] = driver.get_current_device
    return torch.accelerator.current_device_index if asked is torch.cuda.current_device else asked


class Fixed:
    """A launch of sizes that are known before: what was found the first time is kept, for buffers that begin with a vector.

    It calls few functions of Python, and none inside another that could do without. Besides the time of a call, one that needs
    another chunk of the interpreter's stack (16 KiB in CPython 3.11 to 3.13) takes it from the system, and gives it back.
    """

    __slots__ = (
        *("begun", "constants", "current", "device", "direct", "driver", "dtypes"),
        *("function", "grid", "launcher", "seeds", "sizes", "words"),
    )

    def __init__(self, launcher: Launcher, *sizes: Any) -> None:
        self.launcher, self.sizes = launcher, cast("Sizes", sizes)
        self.device = -1
        """of which the rest is; -1: nothing is known yet"""
        self.dtypes: Sequence[torch.dtype] = ()
        self.seeds = 0
        self.begun: Begun | None = None
        self.words: dict[int, Any] = {}

    def ahead(self, dtypes: Sequence[torch.dtype], seeds: int, gpu: Machine | None = None) -> list[Begun]:
        """Begins to compile for buffers of ``dtypes`` that begin with a vector, and so many seeds."""
        self.dtypes, self.seeds = dtypes, seeds
        begun = self.launcher.ahead(arguments_of(dtypes, seeds), self.sizes, gpu)
        if begun is None:
            return []
        self.begun = begun if gpu is None else None
        return [begun]

    def __call__(self, buffers: Sequence[Any], seeds: Sequence[Any]) -> None:
        bits, pointers = 0, []
        for buffer in buffers:
            pointer = buffer.data_ptr()
            bits |= pointer
            pointers.append(pointer)
        for seed in seeds:
            pointers.append(seed.data_ptr())
        if not self.at(pointers, bits):
            self.first((*buffers, *seeds), bits)

    def at(self, pointers: Sequence[int], bits: int) -> bool:
        """Launches for buffers and seeds at these addresses, those of the buffers joined bit by bit being ``bits``, if it knows
        how."""
        if self.device < 0 or bits & 15:
            return False
        device = self.current()
        if device != self.device:
            return False
        stream, hooks = self.driver.get_current_stream(device), self.launcher.settings
        begin, end = hooks.launch_enter_hook, hooks.launch_exit_hook
        begin, end = begin if getattr(begin, "calls", True) else None, end if getattr(end, "calls", True) else None
        self.direct(*self.grid, stream, *self.function, begin, end, *pointers, *self.constants)
        return True

    def first(self, buffers: Sequence[Any], bits: int) -> None:
        """Launches, and keeps how."""
        self.launcher(tuple(buffers), (), *self.sizes)
        if not bits & 15:
            self._keep([buffer.data_ptr() & 15 == 0 for buffer in buffers])

    def _keep(self, even: Sequence[bool]) -> None:
        plan, known = self.launcher.planned(*self.sizes)
        if not known:  # there was nothing to do, or the interpreter did it
            return
        driver = self.launcher.driver.active
        device = driver.get_current_device()
        compiled = known.get((device, *even))
        if compiled is not None and compiled.direct is not None:
            self.direct, self.driver, self.constants = compiled.direct, driver, plan.values
            self.current = current_device(driver)
            self.grid, self.function = (plan.programs, 1, 1), (compiled.function, *compiled.flags, compiled.metadata, None)
            self.device = device

    def word(self, device: int) -> int | None:
        """The address of the table by which C launches this on ``device``, which is current (entry.c); None: it cannot."""
        return table(self.words, device, lambda: tabled([self], 0, ()))

    def loaded(self) -> Sequence[int] | None:
        """The function on the current device: its handle, programs, threads of a program and bytes of shared memory."""
        plan, _ = self.launcher.planned(*self.sizes)
        if not plan.programs:
            return 0, 0, 0, 0
        begun, self.begun = self.begun, None  # What is compiled is loaded on one device.
        return self.launcher.loaded(plan, arguments_of(self.dtypes, self.seeds), begun)


class Several:
    """Launches that follow each other, of sizes that are known before, with memory for what one leaves to the next.

    Args:
        launches: of one kernel's functions, in order; each gets all buffers.
        scratch: numbers of elements and dtypes of buffers behind those that are given.
    """

    __slots__ = ("dtypes", "launches", "nbytes", "places", "words")

    def __init__(self, launches: Sequence[Fixed], scratch: Sequence[tuple[int, Any]]) -> None:
        self.launches = launches
        self.places: list[tuple[int, int, Any]] = []
        self.nbytes = 0
        for count, dtype in scratch:
            self.places.append((self.nbytes, count, dtype))
            self.nbytes += -(-count * dtype.itemsize // LINE) * LINE
        self.dtypes: Sequence[torch.dtype] = ()
        self.words: dict[int, Any] = {}

    def ahead(self, dtypes: Sequence[torch.dtype], seeds: int, gpu: Machine | None = None) -> list[Begun]:
        """As that of ``Fixed``."""
        self.dtypes = dtypes
        all_ = *dtypes, *(dtype for _, _, dtype in self.places)
        return [begun for launch in self.launches for begun in launch.ahead(all_, seeds, gpu)]

    def __call__(self, buffers: Sequence[Any], seeds: Sequence[Any]) -> None:
        memory = torch.empty(self.nbytes, dtype=torch.uint8, device=buffers[-1].device)
        start = memory.data_ptr()
        bits, pointers = start, []
        for buffer in buffers:
            pointer = buffer.data_ptr()
            bits |= pointer
            pointers.append(pointer)
        pointers += [start + place for place, _, _ in self.places]
        for seed in seeds:
            pointers.append(seed.data_ptr())
        for launch in self.launches:
            if not launch.at(pointers, bits):
                parts = [memory[at : at + n * dtype.itemsize].view(dtype) for at, n, dtype in self.places]
                launch.first((*buffers, *parts, *seeds), bits)

    def word(self, device: int) -> int | None:
        """As that of ``Fixed``."""
        return table(self.words, device, lambda: tabled(self.launches, self.nbytes, [at for at, _, _ in self.places]))


def arguments_of(dtypes: Sequence[torch.dtype], seeds: int) -> list[Argument]:
    """What a function is compiled for: buffers that begin with a vector, and so many seeds in memory."""
    return [*map(pointer, dtypes), *(pointer(torch.int64, aligned=False) for _ in range(seeds))]


def table(known: dict[int, Any], device: int, make: Callable[[], Sequence[int] | None]) -> int | None:
    """The address of the words of ``make`` for ``device``, which ``known`` keeps; None where there are none."""
    if device not in known:
        words = make()
        # Of two threads that made them, both get the first's: the others are gone with this call.
        known.setdefault(device, None if words is None else (ctypes.c_int64 * len(words))(*words))
    found = known[device]
    return None if found is None else ctypes.addressof(found)


def tabled(launches: Sequence[Fixed], nbytes: int, places: Sequence[int]) -> list[int] | None:
    """What entry.c reads: bytes of scratch memory and the places in it, then the functions."""
    functions = [launch.loaded() for launch in launches]
    words = [nbytes, len(places), *places, len(functions)]
    for function in functions:
        if function is None:
            return None
        words += function
    return words


Sizes = tuple[int, int, tuple[int, ...], int]
"""Iterations that programs have one of, those along the axis x, lengths of inner loops; elements of the largest buffer."""
THREADS = 16
"""That compile, at most: Triton's frontend runs in one at a time, the rest of its compiler in all."""


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1), thread_name_prefix="triton_gpu")


def constants(count: int, lengths: Sequence[int], x: int, blocks: Sequence[int], largest: int) -> tuple[Any, ...]:
    """Values of a function's constants, in the order of ``NestText.constants``."""
    import triton.language as tl

    # Numbers of iterations go up to a block beyond the last.
    narrow = max(largest, count + x, *(n + b for n, b in zip(lengths, blocks, strict=False)), 0) < 2**31
    # A tile of a loop that is never run is not full: in one tile as a whole it is there all the same.
    full = (count % x == 0, *(n > 0 and n % b == 0 for n, b in zip(lengths, blocks, strict=False)))
    return (tl.int32 if narrow else tl.int64, x, *blocks, *full)


OPTIONS: dict[str, Any] = {
    # Contraction would make the result depend on how an expression was split.
    "enable_fp_fusion": False,
    # Integers wrap.
    "sanitize_overflow": False,
    # NVIDIA's functions of float32 keep subnormal numbers.
    "enable_reflect_ftz": False,
}


def options(thread: int, warps: int) -> dict[str, Any]:
    """How a function is compiled: where totals take registers too, two programs of eight warps still fit on a multiprocessor,
    or three of four. Threads of 32 warps have 64 registers at most in any case."""
    return OPTIONS if thread >= THREAD or warps > 16 else {**OPTIONS, "maxnreg": 128 if thread <= THREAD // 2 else 168}
