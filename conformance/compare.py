"""Two reports side by side: what got worse, what got better, what is there on one side only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from conformance.report import standing

LEVELS = {
    "failed": 0,
    "unknown": 0,
    "nothing shown": 1,
    "expected failure": 2,
    "host": 3,
    "decomposed": 4,
}
"""How much a standing says for a backend; all others are as good as ``native``: nothing is left to be done on the host."""
BEST = 5
FACTOR = 2.0
"""Errors of a right case that differ by less are the same: values differ with the seed."""


@dataclass(frozen=True)
class Change:
    """A case that differs: ``before`` and ``after`` are its standings, or errors in units of the bound."""

    case: str
    before: str
    after: str
    why: str = ""


@dataclass
class Comparison:
    """Attributes:
    regressions, improvements: cases whose standing differs.
    less_accurate, more_accurate: right cases whose error differs by more than ``FACTOR``.
    missing, added: cases of the first, of the second report alone.
    unlike: what else differs between the runs and may be the cause.
    """

    regressions: list[Change] = field(default_factory=list)
    improvements: list[Change] = field(default_factory=list)
    less_accurate: list[Change] = field(default_factory=list)
    more_accurate: list[Change] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> Comparison:
    """What changed from ``first`` to ``second``. Opaque placements count as native: such a backend does not say."""
    before = {entry["id"]: entry for entry in first["cases"]}
    after = {entry["id"]: entry for entry in second["cases"]}
    made = Comparison(
        missing=[name for name in before if name not in after],
        added=[name for name in after if name not in before],
        unlike=_unlike(first["run"], second["run"]),
    )
    for name in before:
        if name not in after:
            continue
        old, new = before[name], after[name]
        change = LEVELS.get(standing(new), BEST) - LEVELS.get(standing(old), BEST)
        if change:
            why = next((f["message"].splitlines()[0] for f in new["failures"]), new["reason"]) if change < 0 else ""
            (made.improvements if change > 0 else made.regressions).append(Change(name, standing(old), standing(new), why))
        elif {old["verdict"], new["verdict"]} == {"pass", "slow"}:
            slower = new["verdict"] == "slow"
            (made.regressions if slower else made.improvements).append(Change(name, old["verdict"], new["verdict"], ""))
        elif old["verdict"] == new["verdict"] == "pass":
            errors = old["worst_error"], new["worst_error"]
            if not all(isinstance(error, int | float) and error > 0 for error in errors):
                continue
            found = Change(name, f"{errors[0]:.3g}", f"{errors[1]:.3g}")
            if errors[1] > FACTOR * errors[0]:
                made.less_accurate.append(found)
            elif errors[0] > FACTOR * errors[1]:
                made.more_accurate.append(found)
    return made


def _unlike(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    found = [
        f"{what}: {one} and {two}"
        for what, one, two in (
            ("backend", first["backend"]["name"], second["backend"]["name"]),
            ("version", first["backend"]["version"], second["backend"]["version"]),
            ("device", first["backend"]["device"]["name"], second["backend"]["device"]["name"]),
            ("effort", first["effort"], second["effort"]),
            ("suite", first["suite"][:12], second["suite"][:12]),
            ("torch", first["versions"]["torch"], second["versions"]["torch"]),
        )
        if one != two
    ]
    return found + [
        f"the {which} run was interrupted" for which, run in (("first", first), ("second", second)) if run["interrupted"]
    ]
