"""Reports: the record of a run as JSON, with a published schema, and what it adds up to.

``report.schema.json`` says what every field means. A reader may rely on it: the schema's version changes when a field's
meaning does.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import platform
import re
import shlex
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import vendor_sdk
from conformance import clocks, curves
from conformance.cases import BEHAVIOUR, COMPOSITE, EXHAUSTIVE, FUSED, PRIM, TIMED, Case, Selection, all_cases
from conformance.expectations import RIGHT, Expectations
from conformance.levels import levels
from conformance.pool import Result
from conformance.profiles import FULL
from conformance.worker import Settings

FORMAT = "vendor-sdk-conformance/1"
FILES = ("report.json", "report.html", "summary.md", "badge.svg", "junit.xml")
"""What a run leaves, beside ``logs``."""

PASSING = ("pass", "expected-failure", "waived")
WITHOUT_EVIDENCE = ("empty", "no-samples")
"""Verdicts that neither hold nor break a claim: nothing was shown, nothing is counted."""

NOT_CLAIMED = ("host-fail", "slow", "inconclusive")
"""What breaks no claim and adds nothing: wrong values that torch itself computed on the host, where the backend claims nothing;
results that are right and late, or of whose time nothing can be said, which decide the level that is reached."""

VERDICTS = (
    *("pass", "fail", *NOT_CLAIMED, "error", "crash", "timeout", "expected-failure", "waived"),
    *("unexpected-pass", "unexpected-native", "undeclared-host", *WITHOUT_EVIDENCE),
)
PLACEMENTS = ("native", "view", "decomposed", "host", "wrapper", "opaque", "absent", "unknown")


@dataclass(frozen=True)
class Run:
    """A run's identity: with the same backend and machine it can be repeated from this.

    Attributes:
        settings: backend, plugins, options, effort and seed.
        prims, dtypes: the selection, empty for all.
        only: index of the single sample of every case that ran, ``None`` for all.
        timeout: seconds for one case.
        workers: number of worker processes.
        expectations: the vendor's expectations file, ``None`` without one.
        shard: which part of the selection, ``"2/8"``; ``None`` for all of it.
        numerics: run the probes too.
        patterns, models: as ``prims``; where any of the three is given, kinds without a glob are not run.
        profile: run only what is part of this workload.
    """

    settings: Settings
    prims: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    only: int | None = None
    timeout: float = 120.0
    workers: int = 1
    expectations: Path | None = None
    shard: str | None = None
    numerics: bool = False
    patterns: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    profile: str = FULL

    @property
    def selection(self) -> Selection:
        return Selection(self.prims, self.patterns, self.models, self.dtypes, self.profile, self.settings.effort)


def finished(result: Result, expected: Expectations, run: Run) -> dict[str, Any]:
    """The report's entry of a case: its outcome, held against what the vendor declares, with reproducers."""
    case, outcome = result.case, result.outcome
    verdict, declaration, problem = expected.verdict(case, outcome["verdict"], outcome["placement"])
    failures = list(outcome["failures"])
    if problem:
        failures.append({"sample": -1, "label": "", "kind": "expectation", "message": problem})
    return {
        "id": case.id,
        "kind": case.kind,
        "prim": case.prim,
        "family": case.family,
        "dtype": case.dtype,
        "verdict": verdict,
        "placement": outcome["placement"],
        "reason": outcome["reason"],
        "expectation": declaration.record() if declaration else None,
        "worst_error": _number(outcome["worst"]),
        "statistic": None if outcome.get("statistic") is None else _number(outcome["statistic"]),
        "error_by_input": curves.record(outcome.get("curve")),
        "samples": {"total": outcome["samples"], "compared": outcome["compared"], "second_call": outcome["fresh"]},
        "seconds": outcome["seconds"],
        "failures": [{**failure, "reproducer": reproducer(run, case, failure["sample"])} for failure in failures],
        "reproducer": reproducer(run, case, -1),
        "log": None,
        "performance": outcome.get("performance"),
        "mutants": outcome.get("mutants"),
    }


def broken(entry: Mapping[str, Any]) -> bool:
    """Whether an entry breaks a claim, and so fails the run."""
    return entry["verdict"] not in (*PASSING, *WITHOUT_EVIDENCE, *NOT_CLAIMED)


def counted_native(entry: Mapping[str, Any]) -> bool:
    """Whether an entry counts as native coverage: it passed, with values compared, its own node ran on the backend, and wrong
    results would have been told from its own."""
    return bool(
        entry["verdict"] == "pass"
        and entry["placement"] == "native"
        and entry["samples"]["compared"] > 0
        and not survivors(entry)
    )


def survivors(entry: Mapping[str, Any]) -> list[str]:
    """Names of the mutants of a case's results that no sample rejected."""
    planted = entry.get("mutants")  # reports of before have none
    return list(planted["survived"]) if planted else []


def reproducer(run: Run, case: Case, sample: int) -> str:
    """A command that runs ``case`` again with the same values, only the sample to blame where it is known (not negative)."""
    settings = run.settings
    words = ["vendor-sdk", "conformance", "--backend", settings.backend]
    for plugin in settings.plugins:
        words += ["--plugin", plugin]
    for option in settings.options:
        words += ["--option", option]
    words += [
        f"--{case.kind if case.kind in TIMED else PRIM}s",
        case.prim,
        "--dtypes",
        case.dtype,
        "--effort",
        # Which draws the same, without all inputs of the prim.
        "full" if settings.effort == "exhaustive" and case.kind != EXHAUSTIVE else settings.effort,
        "--seed",
        str(settings.seed),
    ]
    if sample >= 0:
        words += ["--sample", str(sample)]
    if run.expectations is not None:
        words += ["--expectations", str(run.expectations)]
    if run.timeout != Run.timeout:
        words += ["--timeout", f"{run.timeout:g}"]
    return shlex.join(words)


def summarize(
    entries: Collection[Mapping[str, Any]],
    stale: Sequence[str],
    numerics: Sequence[Mapping[str, Any]] = (),
    *,
    complete: bool = True,
) -> dict[str, Any]:
    """Counts: of prims, then of what was timed, and the level that each profile reaches. ``coverage`` is the part of all prims'
    cases that ran native and passed; view, decomposed, host and the rest add nothing to it."""
    disagree = [each["probe"] for each in numerics if not each["agrees"]]
    verdicts: dict[str, Counter[str]] = defaultdict(Counter)
    passed: Counter[str] = Counter()
    prims: dict[str, set[str]] = defaultdict(set)
    native, any_broken = 0, False
    for entry in entries:
        verdicts[entry["kind"]][entry["verdict"]] += 1
        any_broken |= broken(entry)
        if entry["kind"] == PRIM:
            prims[entry["prim"]].add(standing(entry))
            passed[entry["placement"]] += entry["verdict"] == "pass"
            native += counted_native(entry)
    cases = verdicts[PRIM].total()
    shown = any(count[verdict] for count in verdicts.values() for verdict in RIGHT)
    return {
        "cases": cases,
        "verdicts": _every(verdicts[PRIM]),
        "passed_by_placement": _counts(PLACEMENTS, passed),
        "prims": len(prims),
        "prims_by_standing": _counts(STANDINGS, Counter(_weakest(standings) for standings in prims.values())),
        "native_passed": native,
        "coverage": round(native / cases, 6) if cases else 0.0,
        "stale_expectations": list(stale),
        "numerics_disagree": disagree,
        "composites": _every(verdicts[COMPOSITE]),
        "generated": _every(verdicts[FUSED]),
        "behaviour": _every(verdicts[BEHAVIOUR]),
        "exhaustive": _every(verdicts[EXHAUSTIVE]),
        "performance": {kind: _every(verdicts[kind]) for kind in TIMED},
        "levels": levels(entries, not disagree if numerics else None),
        "mutants": _planted(entries),
        "claims_hold": complete and not stale and not disagree and not any_broken and shown,
    }


def _planted(entries: Collection[Mapping[str, Any]]) -> dict[str, int]:
    """Mutants of all cases: how many there were, how many were killed, and of how many cases some survived."""
    scores = [entry["mutants"] for entry in entries if entry.get("mutants")]
    return {
        "tried": sum(score["tried"] for score in scores),
        "killed": sum(score["killed"] for score in scores),
        "blind_cases": sum(bool(score["survived"]) for score in scores),
    }


def _every(counter: Counter[str]) -> dict[str, int]:
    return {name: counter[name] for name in VERDICTS}


STANDINGS = (
    "failed",
    "nothing shown",
    "expected failure",
    "unknown",
    "absent",
    "opaque",
    "host",
    "wrapper",
    "decomposed",
    "view",
    "native",
)
"""What can be said of a prim over all its dtypes, the weakest first: it has the weakest of its cases."""


def standing(entry: Mapping[str, Any]) -> str:
    """What can be said of one case: one of ``STANDINGS``."""
    if broken(entry):
        return "failed"
    if entry["verdict"] in WITHOUT_EVIDENCE or survivors(entry):
        return "nothing shown"
    return "expected failure" if entry["verdict"] in ("expected-failure", "waived") else str(entry["placement"])


def _weakest(standings: set[str]) -> str:
    return min(standings, key=STANDINGS.index)


def _counts(names: Sequence[str], counter: Counter[str]) -> dict[str, int]:
    return {name: counter[name] for name in names if counter[name]}


def document(
    run: Run,
    description: Mapping[str, Any],
    expected: Expectations,
    numerics: Sequence[Mapping[str, Any]],
    entries: Collection[Mapping[str, Any]],
    *,
    started: datetime,
    seconds: float,
    interrupted: bool = False,
) -> dict[str, Any]:
    """The whole report, as the schema describes it."""
    stale = expected.stale()
    return {
        "format": FORMAT,
        "run": {
            "backend": {key: description[key] for key in ("name", "version", "fingerprint", "device")},
            "versions": {
                "python": platform.python_version(),
                "torch": _torch_version(),
                "vendor_sdk": vendor_sdk.__version__,
                "contract": list(vendor_sdk.CONTRACT_VERSION),
                "opset": vendor_sdk.OPSET_VERSION,
            },
            "host": {"platform": platform.platform(), "processor": _processor(), "cpus": os.cpu_count() or 0},
            "clocks": {"processor": clocks.processor(), "device": dict(description.get("clocks", {}))},
            "date": started.astimezone(UTC).isoformat(timespec="seconds"),
            "seconds": round(seconds, 3),
            "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            "suite": suite(),
            "effort": run.settings.effort,
            "seed": run.settings.seed,
            "plugins": list(run.settings.plugins),
            "options": list(run.settings.options),
            "selection": {
                "prims": list(run.prims),
                "dtypes": list(run.dtypes),
                "sample": run.only,
                "shard": run.shard,
                "patterns": list(run.patterns),
                "models": list(run.models),
                "profile": run.profile,
            },
            "cases_in_opset": len(all_cases()),
            "workers": run.workers,
            "timeout": run.timeout,
            "expectations": str(run.expectations) if run.expectations else None,
            "interrupted": interrupted,
        },
        "expectations": [declaration.record() for declaration in expected.declarations],
        "numerics": list(numerics),
        "summary": summarize(entries, stale, numerics, complete=not interrupted),
        "cases": entries,
    }


@functools.cache
def suite() -> str:
    """SHA-256 of what decides verdicts: the sources of the suite and of the op table."""
    total = hashlib.sha256()
    for package in ("conformance", "vendor_sdk.prims"):
        for path in sorted(files(package).iterdir(), key=lambda path: path.name):
            if path.name.endswith(".py"):
                total.update(f"{package}/{path.name}\0".encode() + path.read_bytes() + b"\0")
    return total.hexdigest()


def identity_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """What is equal in all reports of one run: all of its record but when, where from and which shard."""
    run = report["run"]
    own = {key: run[key] for key in ("versions", "suite", "effort", "seed", "timeout")}
    selection = {key: value for key, value in run["selection"].items() if key != "shard"}
    own["options"] = run.get("options", [])  # reports of before have none
    return {**run["backend"], **own, **selection, "expectations": report["expectations"]}


def schema() -> dict[str, Any]:
    """The published JSON Schema of a report."""
    loaded: dict[str, Any] = json.loads(files("conformance").joinpath("report.schema.json").read_text())
    return loaded


def write(folder: Path, report: Mapping[str, Any]) -> Path:
    """Writes ``report.json``, complete or not at all."""
    path = folder / "report.json"
    draft = path.with_suffix(".json.part")
    with draft.open("w") as file:
        for number, (key, value) in enumerate(report.items()):
            file.write(f"{',' if number else '{'}\n {json.dumps(key)}: ")
            if key != "cases":
                file.write(json.dumps(value, indent=1, allow_nan=False))
                continue
            for index, entry in enumerate(value):  # one by one: they need not be in memory together
                file.write(f"{',' if index else '['}\n  {json.dumps(entry, allow_nan=False)}")
            file.write("\n ]" if value else "[]")
        file.write("\n}\n")
    draft.replace(path)
    return path


def write_log(folder: Path, entry: dict[str, Any], log: str) -> None:
    """Keeps a failed case's output, if there is any, beside the report and names the file in its entry."""
    if not log or (not broken(entry) and entry["verdict"] not in ("expected-failure", "waived")):
        return
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", entry["id"]).strip("-") + ".log"
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    (folder / "logs" / name).write_text(log)
    entry["log"] = f"logs/{name}"


def _number(value: float) -> float | str | None:
    """JSON has no infinity."""
    if math.isnan(value):
        return None
    return "infinite" if math.isinf(value) else round(value, 6)


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
