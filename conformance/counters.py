"""What the device's own counters say of a call: where none of them moved, the device did not execute it."""

from __future__ import annotations

from collections.abc import Mapping

from conformance.subject import Subject

NOT_EXECUTED = "not-executed"
"""Kind of failure."""


def stood_still(subject: Subject, before: Mapping[str, int]) -> bool:
    """Whether the subject has counters, and none is greater than ``before`` once the device has been waited for."""
    if not subject.counters():
        return False
    subject.synchronize()
    now = subject.counters()
    return all(value <= before.get(name, 0) for name, value in now.items())


def said(subject: Subject) -> str:
    """What is wrong then, in words."""
    return f"placed native, but none of the device's counters moved: {', '.join(sorted(subject.counters()))}"
