"""Things judged one after the other in a process that may not survive one."""

from __future__ import annotations

import os
import time

from benchmarks.apart import Outcome, outcomes


def judge(name: str) -> Outcome:
    if name == "raises":
        raise RuntimeError("the device is lost")
    if name == "dies":
        os._exit(1)
    if name == "hangs":
        time.sleep(600)
    return Outcome(name, "ok", str(os.getpid()))


def test_the_others_are_judged_too() -> None:
    found = list(outcomes(["one", "raises", "two", "dies", "three", "hangs", "four"], judge, 10))
    assert [(each.name, each.state) for each in found] == [
        ("one", "ok"),
        ("raises", "failed"),
        ("two", "ok"),
        ("dies", "failed"),
        ("three", "ok"),
        ("hangs", "failed"),
        ("four", "ok"),
    ]
    assert [each.why for each in found[1::2]] == ["RuntimeError: the device is lost", "the process died", "longer than 10 s"]
    assert len({each.why for each in found[::2]}) == 4  # each in a process of its own
