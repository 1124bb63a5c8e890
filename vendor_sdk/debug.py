"""What the environment asks of the compiler, and the search for the fusion that breaks a result.

    VENDOR_SDK_DEBUG=dir        every compiled graph leaves a numbered folder in dir     vendor_sdk/dump.py
    VENDOR_SDK_DEBUG_CHECK=1    the first call of each graph checks every stage          vendor_sdk/check/
    VENDOR_SDK_DEBUG_GUARD=1    each launch gets copies of its tensors, between guard zones  vendor_sdk/guards.py
    VENDOR_SDK_FUEL=n           the scheduler makes at most n joins in each graph

``docs/debugging.md`` shows them at work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from vendor_sdk.errors import OptionError

DIRECTORY = "VENDOR_SDK_DEBUG"
CHECK = "VENDOR_SDK_DEBUG_CHECK"
GUARD = "VENDOR_SDK_DEBUG_GUARD"
FUEL = "VENDOR_SDK_FUEL"

MOST = 1 << 20
"""Joins beyond which ``bisect`` looks no further: no graph has as many."""


def directory() -> Path | None:
    """Where dumps go (``VENDOR_SDK_DEBUG``); None: nowhere."""
    text = os.environ.get(DIRECTORY)
    return Path(text).expanduser().absolute() if text else None


def checking() -> bool:
    """Whether first calls check every stage (``VENDOR_SDK_DEBUG_CHECK``).

    Raises:
        OptionError: the variable is neither 0 nor 1.
    """
    return _said(CHECK, "the first call of each compiled graph checks every stage of the compiler")


def guarding() -> bool:
    """Whether launches run between guard zones (``VENDOR_SDK_DEBUG_GUARD``).

    Raises:
        OptionError: the variable is neither 0 nor 1.
    """
    return _said(GUARD, "each launch gets copies of its tensors, between zones that no kernel may write to")


def _said(name: str, what: str) -> bool:
    text = os.environ.get(name, "")
    if text not in ("", "0", "1"):
        raise OptionError(f"{name} is {text!r}", why=f"it says whether {what}: 0 or 1", fix="Set it to 1, or unset it.")
    return text == "1"


def fuel() -> int | None:
    """How many joins the scheduler may make in each graph (``VENDOR_SDK_FUEL``), to bisect a wrong result; None: all.

    Raises:
        OptionError: the variable is no whole number from 0.
    """
    text = os.environ.get(FUEL)
    if not text:
        return None
    if not text.isdecimal():
        raise OptionError(
            f"{FUEL} is {text!r}",
            why="it says how many prims may join a kernel of others, in each graph: a whole number from 0",
            fix="Set it to a number such as 12, or unset it.",
        )
    return int(text)


def bisect(check: Callable[[], object]) -> int | None:
    """The smallest ``VENDOR_SDK_FUEL`` with which ``check`` fails: the join of that number is the one that breaks it.

    What Dynamo has compiled is dropped before each try, so ``check`` compiles anew. With fuel, no independent groups share a
    launch, and every graph that ``check`` compiles gets the same number of joins.

    Args:
        check: compiles, runs and compares. It fails when it raises an ``Exception``, or returns False.

    Returns:
        0 when it fails with no fusion at all; None when it fails only without a limit, which leaves the sharing of launches.

    Raises:
        ValueError: it does not fail at all.
    """
    if not _fails(check, None):
        raise ValueError("the check does not fail: there is nothing to bisect")
    if _fails(check, 0):
        return 0
    good, bad = 0, 1
    while not _fails(check, bad):
        good, bad = bad, bad * 2
        if bad > MOST:
            return None
    while bad - good > 1:
        middle = (good + bad) // 2
        if _fails(check, middle):
            bad = middle
        else:
            good = middle
    return bad


def _fails(check: Callable[[], object], joins: int | None) -> bool:
    torch.compiler.reset()
    try:
        with variable(FUEL, None if joins is None else str(joins)):
            return check() is False
    except Exception:
        return True
    finally:
        torch.compiler.reset()


@contextmanager
def variable(name: str, value: str | None) -> Iterator[None]:
    before = os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before
