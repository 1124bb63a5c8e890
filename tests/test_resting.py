"""The garbage collector rests, and catches up once."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from vendor_sdk import resting, without_collections


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def many() -> list[list[int]]:
    return [[] for _ in range(2 * gc.get_threshold()[0])]


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """The generations of collections that began."""
    found: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            found.append(info["generation"])

    gc.collect()
    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)


def test_what_was_made_meanwhile_is_gone_through_once(collections: list[int]) -> None:
    with without_collections():
        kept = many()
        gone = weakref.ref(Cycle())
        assert not collections
        assert gone() is not None
    assert collections == [1]
    assert gone() is None, "cycles are found"
    assert gc.get_count()[2] == 0, "a full collection is as far off as after one"
    assert kept


def test_nothing_is_collected_where_nothing_is_due(collections: list[int]) -> None:
    with without_collections():
        pass
    assert not collections


@pytest.mark.parametrize("off", ["disabled", "no threshold"])
def test_nothing_is_collected_where_the_program_wants_none(off: str, collections: list[int]) -> None:
    thresholds = gc.get_threshold()
    made = 2 * thresholds[0]
    if off == "disabled":
        gc.disable()
    else:
        gc.set_threshold(0)
    try:
        with without_collections():
            kept = [[] for _ in range(made)]  # type: ignore[var-annotated]
        assert not collections
        assert kept
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()


def test_only_the_last_to_leave_catches_up(collections: list[int]) -> None:
    with without_collections():
        with without_collections():
            kept = many()
        assert not collections
    assert collections == [1]
    assert kept


def test_what_the_program_froze_stays_frozen() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with without_collections():
            kept = many()
        assert gc.get_freeze_count() > frozen / 2
        assert kept
    finally:
        gc.unfreeze()


def test_a_process_of_its_own_collects_seldom(collections: list[int]) -> None:
    thresholds, usual = gc.get_threshold(), 700
    made = 10 * usual
    assert made < resting.SELDOM
    try:
        gc.set_threshold(usual, *thresholds[1:])  # another test may have run such a process's program
        resting.collect_seldom()
        kept = [[] for _ in range(made)]  # type: ignore[var-annotated]
        assert not collections
        kept += [[] for _ in range(resting.SELDOM)]
        assert collections == [0], "the young are looked at, and nothing else"
    finally:
        gc.set_threshold(*thresholds)
