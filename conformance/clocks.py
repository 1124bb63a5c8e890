"""Clock rates at the time of a run, in MHz, where the system says: times depend on them, and no setting of a backend does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

SYSFS = Path("/sys/devices/system/cpu")


def processor() -> dict[str, int]:
    """Of the processors: the lowest and the highest rate at the moment, the least and the most that they are allowed. Empty
    where nobody says, as on most virtual machines."""
    policies = list(SYSFS.glob("cpu[0-9]*/cpufreq"))
    found = {
        "lowest": min(_rates(policies, "scaling_cur_freq"), default=0),
        "highest": max(_rates(policies, "scaling_cur_freq"), default=0),
        "least": min(_rates(policies, "scaling_min_freq"), default=0),
        "most": max(_rates(policies, "scaling_max_freq"), default=0),
    }
    return {name: rate for name, rate in found.items() if rate}


def device(type_: str) -> Mapping[str, int]:
    """Of the first device of a torch type: the rate at the moment. Empty where its module has no ``clock_rate``, or cannot
    say."""
    if type_ == "cpu":
        return {}
    try:
        return {"now": int(torch.get_device_module(type_).clock_rate())}
    except Exception:  # of whatever kind: the package that asks the driver may be missing, or may not be allowed to
        return {}


def _rates(policies: list[Path], name: str) -> list[int]:
    """In MHz; the files have kHz."""
    found = []
    for policy in policies:
        try:
            found.append(int((policy / name).read_text()) // 1000)
        except (OSError, ValueError):
            continue
    return found
