"""Python's garbage collector rests while graphs are compiled, and wherever else it would come at a bad time.

Tracing makes many objects and drops few in cycles, and a full collection takes 0.3 s in a process that has imported torch's
compiler.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

SELDOM = 50_000
"""Objects that a process of the SDK's own makes before the collector looks at them; Python's default is 700, or 2,000."""

_lock = threading.Lock()
_resting = 0
_enabled = False
"""Whether it ran before the first of those for whom it rests."""
_in_dynamo = False


def _rest() -> None:
    global _resting, _enabled
    with _lock:
        if not _resting:
            _enabled = gc.isenabled()
            gc.disable()
        _resting += 1


def _resume() -> None:
    global _resting
    if _resting == 1 and _enabled:
        _catch_up()  # Outside of the lock: finalizers are others' code.
    with _lock:
        _resting -= 1
        if not _resting and _enabled:
            gc.enable()


def _catch_up() -> None:
    """Does now, once, what would be due in several turns: what was made meanwhile and is alive lives as long as compiled code.

    Left to itself Python goes through it three times: it is young, then (Dynamo asks for that) of middle age, and then there is
    so much of it that everything is looked at.
    """
    due = gc.get_threshold()[0]
    if not due or gc.get_count()[0] <= due:
        return
    gc.collect(1)
    if not gc.get_freeze_count():  # Others may have frozen what they want to share with forks.
        gc.freeze()
        gc.unfreeze()  # All is of the oldest generation now, whose turn is as far off as after a full collection.


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Python's garbage collector rests inside, and as long as any other thread is inside too; cycles wait."""
    _rest()
    try:
        yield
    finally:
        _resume()


def rest_in_dynamo() -> None:
    """From the next compilation on, the collector rests while Dynamo traces too (until ``torch._dynamo.reset``)."""
    from vendor_sdk.torch_private import dynamo

    dynamo.around_compilations(_dynamo_starts, _dynamo_ends)


# Neither is sure to come with the other: a reset may fall between them, and this may be asked for between them.


def _dynamo_starts(_: object) -> None:
    global _in_dynamo
    if not _in_dynamo:
        _in_dynamo = True
        _rest()


def _dynamo_ends(_: object) -> None:
    global _in_dynamo
    if _in_dynamo:
        _in_dynamo = False
        _resume()


def collect_seldom() -> None:
    """For a process of the SDK's own, at its start: of the time in which torch and its compiler are imported, a fifth is
    collections."""
    gc.set_threshold(SELDOM, *gc.get_threshold()[1:])
