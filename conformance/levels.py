"""Levels: what a run shows of a profile. *Runs*, *accurate*, *fast*; each asks for all of the one before.

A criterion that a run did not look at (``not shown``) is not met. Criteria are in words in ``docs/certification.md``; the
numbers stand here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from conformance.cases import BEHAVIOUR, COMPOSITE, DTYPES, EXHAUSTIVE, FUSED, MODEL, PATTERN, PRIM, all_cases
from conformance.expectations import RIGHT
from conformance.profiles import FULL, PROFILES, dtypes, part_of, weights
from vendor_sdk import FLOAT8

LEVELS = ("runs", "accurate", "fast")
NONE = "none"

ON_CHIP = ("native", "view", "decomposed", "wrapper", "absent")
"""Placements by which the host computes nothing."""
OPTIONAL = frozenset(name for name, dtype in DTYPES.items() if dtype in FLOAT8)
"""Dtypes that the device need not have: what is stored in them may be moved and converted by the host, and must be right."""
WITHOUT_EVIDENCE = ("no-samples", "empty")
UNOBJECTIONABLE = ("pass", *WITHOUT_EVIDENCE)
BROKEN = ("crash", "timeout", "error")
DECLARED = ("expected-failure", "waived")
LEAST_ON_CHIP = 0.9
"""Part of the profile's calls of prims, by weight, that must run on the device: for *runs*."""
MOST_HOST_NODES = 0
"""In the graphs of its models, for *fast*."""
MOST_INCONCLUSIVE = 0.1
"""Part of patterns and models whose timing may be inconclusive, for *fast*."""
LEAST_FRACTION = {"large": 0.6, "odd": 0.45, "dynamic": 0.45}
"""Of the roofline, in the geometric mean over the profile's patterns, for *fast*."""
LEAST_EACH = 0.25
"""And for each pattern at its large size."""
STEPS = {"run": "conformance --backend {} --effort standard", "implement": "next --backend {}"}
"""What shows more: command lines of ``vendor-sdk``, for a backend. The first is a whole run, which looks at everything."""


def levels(entries: Collection[Mapping[str, Any]], numerics_agree: bool | None) -> dict[str, dict[str, Any]]:
    """Of each profile: the level reached, and every criterion with whether it is met and what was found.

    Args:
        entries: of all cases that ran.
        numerics_agree: whether the probes measured what the backend declares; ``None`` where none ran.
    """
    # Parts of all inputs are many, and count only where they are wrong.
    counted = [e for e in entries if e["kind"] != EXHAUSTIVE or e["verdict"] not in UNOBJECTIONABLE]
    return {profile: _level(profile, [e for e in counted if part_of(e["kind"], e["prim"], profile)], numerics_agree)
            for profile in PROFILES}  # fmt: skip


def _level(profile: str, entries: Sequence[Mapping[str, Any]], numerics_agree: bool | None) -> dict[str, Any]:
    prims = [e for e in entries if e["kind"] == PRIM and e["dtype"] in dtypes(profile).get(e["prim"], ())]
    patterns = [e for e in entries if e["kind"] == PATTERN]
    models = [e for e in entries if e["kind"] == MODEL and e["verdict"] != "no-samples"]
    generated = [e for e in entries if e["kind"] == FUSED]
    swept = [e for e in entries if e["kind"] == EXHAUSTIVE]
    composites = [e for e in entries if e["kind"] == COMPOSITE]
    behaviour = [e for e in entries if e["kind"] == BEHAVIOUR and e["verdict"] != "no-samples"]
    criteria = [
        *_runs(profile, prims, models),
        *_accurate(profile, prims, composites, swept, generated, behaviour, patterns, models, numerics_agree),
        *_fast(patterns, models),
    ]
    reached = NONE
    for level in LEVELS:
        if not all(each["state"] == "met" for each in criteria if each["level"] == level):
            break
        reached = level
    return {"level": reached, "criteria": criteria}


def _criterion(
    level: str, name: str, met: bool | None, found: str, cases: Sequence[str] = (), step: str = ""
) -> dict[str, Any]:
    """A criterion with what was found: ``cases`` are those that keep it from being met, ``step`` one of ``STEPS``."""
    state = "not shown" if met is None else "met" if met else "not met"
    return {"level": level, "name": name, "state": state, "found": found, "cases": list(cases), "step": step}


def _none_of(level: str, name: str, wrong: Sequence[str], looked_at: Sequence[Any], what: str) -> dict[str, Any]:
    """A criterion that holds where nothing is in ``wrong``, and something was looked at."""
    found = f"{len(looked_at)} {what}"
    if wrong:
        found = f"{len(wrong)} of {found}: {_some(wrong)}"
    return _criterion(level, name, not wrong if looked_at else None, found, wrong, "" if looked_at else "run")


def _some(names: Sequence[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def _ids(entries: Iterable[Mapping[str, Any]], wrong: Callable[[Mapping[str, Any]], bool]) -> list[str]:
    return [entry["id"] for entry in entries if wrong(entry)]


def _runs(profile: str, prims: Sequence[Mapping[str, Any]], models: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    both = [*prims, *models]
    crashed = _ids(both, lambda e: _outcome(e) in BROKEN)
    yield _none_of("runs", "nothing crashes, hangs or refuses to compile", crashed, both, "cases")
    weight, seen = weights(profile), {e["prim"] for e in prims}
    missing = sorted(set(weight) - seen)
    tried = {e["prim"] for e in prims if e["verdict"] not in WITHOUT_EVIDENCE}
    placed = [e for e in prims if e["prim"] in tried and e["dtype"] not in OPTIONAL]
    off_chip = {e["prim"] for e in placed if e["placement"] not in ON_CHIP}
    total = sum(weight[prim] for prim in tried)
    share = sum(weight[prim] for prim in tried - off_chip) / total if total else 0.0
    met: bool | None = share >= LEAST_ON_CHIP
    found, step = f"{share:.1%}", "" if met else "implement"
    heaviest = sorted(off_chip, key=lambda prim: (-weight[prim], prim))
    if heaviest and not met:
        found += f"; on the host: {_some([f'{prim} {weight[prim] / total:.1%}' for prim in heaviest])}"
    if missing or not prims:
        met, found, step = None, f"{found}; {len(missing)} prims did not run: {_some(missing)}", "run"
    if any(e["placement"] == "opaque" for e in prims):
        met, found, step = None, "the backend does not say where it runs what", ""
    yield _criterion(
        "runs",
        f"{LEAST_ON_CHIP:.0%} of the calls of prims, as its models make them, run on the device",
        met,
        found,
        [] if met else _ids(placed, lambda e: e["prim"] in off_chip and e["placement"] not in ON_CHIP),
        step,
    )
    wrong = _ids(models, lambda e: e["verdict"] not in (*RIGHT, "waived"))
    yield _none_of("runs", "its models run, with right results", wrong, models, "models")


def _outcome(entry: Mapping[str, Any]) -> str:
    """What came out of a case, declared or not."""
    declared = entry["expectation"] if entry["verdict"] in DECLARED else None
    return str((declared or {}).get("verdict") or entry["verdict"])


def prim_cases(profile: str) -> set[tuple[str, str]]:
    """The prims of a profile with their dtypes in it."""
    of = dtypes(profile)
    return {(case.prim, case.dtype) for case in all_cases() if case.kind == PRIM and case.dtype in of.get(case.prim, ())}


def _accurate(
    profile: str,
    prims: Sequence[Mapping[str, Any]],
    composites: Sequence[Mapping[str, Any]],
    swept: Sequence[Mapping[str, Any]],
    generated: Sequence[Mapping[str, Any]],
    behaviour: Sequence[Mapping[str, Any]],
    patterns: Sequence[Mapping[str, Any]],
    models: Sequence[Mapping[str, Any]],
    numerics_agree: bool | None,
) -> Iterable[dict[str, Any]]:
    wrong = _ids([*prims, *swept], lambda e: e["verdict"] not in UNOBJECTIONABLE)
    name = "every prim passes in every dtype, none waived"
    ran, cases = {(e["prim"], e["dtype"]) for e in prims}, prim_cases(profile)
    alone = sum(e["verdict"] == "no-samples" for e in prims)
    said = f"cases, {alone} cannot be called alone" if alone else "cases"
    empty = _ids(prims, lambda e: e["verdict"] == "empty")
    if wrong or (ran >= cases and not empty):
        yield _none_of("accurate", name, wrong, prims, said)
    elif ran >= cases:
        yield _criterion("accurate", name, None, f"{len(empty)} of {len(prims)} {said}, gave no element: {_some(empty)}", empty)
    else:
        lacking = [f"{prim}[{dtype}]" for prim, dtype in sorted(cases - ran)]
        yield _criterion("accurate", name, None, f"{len(ran)} of {len(cases)} cases ran, not {_some(lacking)}", step="run")
    if any("mutants" in e for e in prims):  # reports of before have none
        scored = [e for e in (*prims, *composites) if e.get("mutants")]
        blind = _ids(scored, lambda e: bool(e["mutants"]["survived"]))
        yield _none_of("accurate", "a wrong result of any prim or composite would have been found", blind, scored, "cases")
    wrong = _ids(composites, lambda e: e["verdict"] not in UNOBJECTIONABLE)
    yield _none_of("accurate", "composites are right, whole or made of prims", wrong, composites, "cases")
    wrong = _ids(generated, lambda e: e["verdict"] != "pass")
    yield _none_of("accurate", "generated graphs are as accurate as their prims", wrong, generated, "cases")
    wrong = _ids(behaviour, lambda e: e["verdict"] != "pass")
    name = "programs (gradients, views, what is done in place, quantized, at the limits of size) are right"
    yield _none_of("accurate", name, wrong, behaviour, "cases")
    wrong = _ids(patterns, lambda e: e["verdict"] not in RIGHT)
    yield _none_of("accurate", "every fused pattern is right while it is timed", wrong, patterns, "patterns")
    wrong = _ids(models, lambda e: e["verdict"] not in RIGHT)
    yield _none_of("accurate", "models train as eager does, none waived", wrong, models, "models")
    said, step = ("no probe ran", "run") if numerics_agree is None else ("", "")
    yield _criterion("accurate", "declared numerics are what was measured", numerics_agree, said, step=step)


def _fast(patterns: Sequence[Mapping[str, Any]], models: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    slow = _ids(patterns, lambda e: e["verdict"] == "slow")
    yield _none_of("fast", "every fused pattern is at least as fast as its prims one by one", slow, patterns, "patterns")
    for label, least in LEAST_FRACTION.items():
        found = fractions(patterns, label)
        mean = math.exp(sum(map(math.log, found)) / len(found)) if found else 0.0
        said = f"{mean:.1%} of {len(found)} patterns"
        met = mean >= least if found else None
        # Those below are the ones to look at.
        below = [] if met else _ids(patterns, lambda e: 0 < _fraction(e, label) < least)
        said += f"; below: {_some(below)}" if below else ""
        name = f"{least:.0%} of the roofline in the mean, {label} size"
        yield _criterion("fast", name, met, said, below, "" if found else "run")
    measured = fractions(patterns, "large")
    below = _ids(patterns, lambda e: 0 < _fraction(e, "large") < LEAST_EACH)
    said = f"the least has {min(measured):.1%}" if measured else ""
    said += f"; below: {_some(below)}" if below else ""
    name = f"{LEAST_EACH:.0%} of the roofline by each pattern"
    yield _criterion("fast", name, not below if measured else None, said, below, "" if measured else "run")
    parts = [part for e in models if e["performance"] for part in e["performance"]["parts"]]
    slower = _ids(models, lambda e: e["verdict"] == "slow")
    yield _none_of("fast", "models are at least as fast as eager, and are compiled once", slower, models, "models")
    hosted = sorted({prim for part in parts for prim in part["host_prims"]})
    known = [part for part in parts if part["graphs"] is not None]
    met = len(hosted) <= MOST_HOST_NODES if known else None
    step = "implement" if met is False else ""
    yield _criterion("fast", "no node of its models runs on the host", met, ", ".join(hosted), step=step)
    right = [e for e in (*patterns, *models) if e["verdict"] in RIGHT]
    open_ones = sum(e["verdict"] == "inconclusive" for e in right)
    met = open_ones <= MOST_INCONCLUSIVE * len(right) if right else None
    said = f"{open_ones} of {len(right)}"
    unsure = _ids(right, lambda e: e["verdict"] == "inconclusive") if met is False else []
    yield _criterion("fast", f"{MOST_INCONCLUSIVE:.0%} of the timings at most are inconclusive", met, said, unsure)


def fractions(patterns: Sequence[Mapping[str, Any]], label: str) -> list[float]:
    """Medians of the parts of the roofline that patterns reach at the size called ``label``."""
    return [found for found in (_fraction(entry, label) for entry in patterns) if found]


def _fraction(entry: Mapping[str, Any], label: str) -> float:
    """That of one pattern; 0 where it was not measured."""
    sizes = (entry["performance"] or {}).get("sizes", ())
    found = [size["fraction"]["median"] for size in sizes if size["label"] == label and size["fraction"]]
    return max(found[0], 1e-6) if found else 0.0


def best(reached: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """The profile to boast of and its level: the highest level, of those the widest profile."""
    order = sorted(PROFILES, key=lambda profile: profile != FULL)
    return max(((p, reached[p]["level"]) for p in order), key=lambda each: (NONE, *LEVELS).index(each[1]))
