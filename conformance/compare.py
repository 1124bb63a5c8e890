"""Two reports side by side: what got worse, what got better, what is there on one side only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from conformance import levels
from conformance.performance import NO_SLOWER
from conformance.report import standing

STRENGTH = {
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


MEASURES = {"seconds": False, "fraction": True, "unfused": True, "speedup": True}
"""Intervals that a report has of what was timed, and whether more is better."""
WORDS = {"seconds": "time", "fraction": "of the roofline", "unfused": "over unfused", "speedup": "over eager"}
LEVEL_ORDER = (levels.NONE, *levels.LEVELS)


@dataclass(frozen=True)
class Change:
    """A case that differs, a profile or a probe: ``before`` and ``after`` are its standings, errors in units of the bound,
    medians with their intervals, levels, or findings."""

    case: str
    before: str
    after: str
    why: str = ""


@dataclass
class Comparison:
    """Attributes:
    regressions, improvements: cases whose standing differs.
    less_accurate, more_accurate: right cases whose error differs by more than ``FACTOR``.
    slower, faster: what was timed whose intervals do not touch, and whose medians differ by more than ``NO_SLOWER`` allows.
    lower, higher: levels that profiles reach.
    numerics: probes that found something else; those that no longer find what is declared are regressions too.
    missing, added: cases of the first, of the second report alone.
    unlike: what else differs between the runs and may be the cause.
    """

    regressions: list[Change] = field(default_factory=list)
    improvements: list[Change] = field(default_factory=list)
    less_accurate: list[Change] = field(default_factory=list)
    more_accurate: list[Change] = field(default_factory=list)
    slower: list[Change] = field(default_factory=list)
    faster: list[Change] = field(default_factory=list)
    lower: list[Change] = field(default_factory=list)
    higher: list[Change] = field(default_factory=list)
    numerics: list[Change] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)

    @property
    def worse(self) -> bool:
        """Whether something got worse, and that is more than chance."""
        return bool(self.regressions or self.missing or self.slower or self.lower)

    @property
    def same(self) -> bool:
        """Whether nothing is to be told of."""
        changed = self.improvements, self.added, self.faster, self.higher, self.numerics, self.less_accurate, self.more_accurate
        return not self.worse and not any(changed)


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> Comparison:
    """What changed from ``first`` to ``second``. Opaque placements count as native: such a backend does not say."""
    before = {entry["id"]: entry for entry in first["cases"]}
    after = {entry["id"]: entry for entry in second["cases"]}
    made = Comparison(
        missing=[name for name in before if name not in after],
        added=[name for name in after if name not in before],
        unlike=_unlike(first["run"], second["run"]),
    )
    same_machine = _machine(first["run"]) == _machine(second["run"])
    for name in before:
        if name not in after:
            continue
        old, new = before[name], after[name]
        change = STRENGTH.get(standing(new), BEST) - STRENGTH.get(standing(old), BEST)
        if change:
            why = next((f["message"].splitlines()[0] for f in new["failures"]), new["reason"]) if change < 0 else ""
            (made.improvements if change > 0 else made.regressions).append(Change(name, standing(old), standing(new), why))
        if old["performance"] and new["performance"]:
            _timed(made, name, old["performance"], new["performance"], same_machine)
        if change:
            continue
        if {old["verdict"], new["verdict"]} == {"pass", "slow"}:
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
    _levels(made, first["summary"]["levels"], second["summary"]["levels"])
    _numerics(made, first["numerics"], second["numerics"])
    return made


def _machine(run: Mapping[str, Any]) -> tuple[str, ...]:
    return run["backend"]["device"]["name"], run["host"]["processor"]


def _timed(made: Comparison, name: str, old: Mapping[str, Any], new: Mapping[str, Any], same_machine: bool) -> None:
    """Adds what is faster or slower: sizes of a pattern, parts of a model. Seconds of two machines are not compared."""
    parts = {part["label"]: part for part in (*old.get("sizes", ()), *old.get("parts", ()))}
    for part in (*new.get("sizes", ()), *new.get("parts", ())):
        other = parts.get(part["label"], {})
        for measure, more_is_better in MEASURES.items():
            one, two = other.get(measure), part.get(measure)
            if not one or not two or (measure == "seconds" and not same_machine):
                continue
            low, high = sorted((one, two), key=lambda each: float(each["median"]))
            if low["high"] >= high["low"] or low["median"] > NO_SLOWER * high["median"]:
                continue
            better = (two["median"] > one["median"]) == more_is_better
            change = Change(f"{name}, {part['label']}, {WORDS[measure]}", _interval(one), _interval(two))
            (made.faster if better else made.slower).append(change)


def _interval(found: Mapping[str, float]) -> str:
    return f"{found['median']:.3g} ({found['low']:.3g} to {found['high']:.3g})"


def _levels(made: Comparison, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for profile in [each for each in old if each in new]:
        one, two = old[profile]["level"], new[profile]["level"]
        up = LEVEL_ORDER.index(two) - LEVEL_ORDER.index(one)
        if up:
            unmet = (f"{each['state']}: {each['name']}" for each in new[profile]["criteria"] if each["state"] != "met")
            (made.higher if up > 0 else made.lower).append(Change(profile, one, two, next(unmet, "") if up < 0 else ""))


def _numerics(made: Comparison, old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> None:
    before = {each["probe"]: each for each in old}
    for each in new:
        known = before.get(each["probe"])
        if known is None or (known["value"], known["agrees"]) == (each["value"], each["agrees"]):
            continue
        why = "" if each["agrees"] else f"declared is {each['declared']}"
        change = Change(each["probe"], known["value"], each["value"], why)
        made.numerics.append(change)
        if known["agrees"] and not each["agrees"]:
            made.regressions.append(change)


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
            ("processor", first["host"]["processor"], second["host"]["processor"]),
            ("driver", first["backend"]["device"].get("driver"), second["backend"]["device"].get("driver")),
        )
        if one != two
    ]
    return found + [
        f"the {which} run was interrupted" for which, run in (("first", first), ("second", second)) if run["interrupted"]
    ]
