"""Runs a random sample of a report's cases again, on this machine, and says where the outcome is another one.

But for what is timed: times would be others each time.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from conformance import report as reports
from conformance.cases import TIMED, Case
from conformance.expectations import Declaration, Expectations
from conformance.pool import Pool, Result
from conformance.worker import Settings


def again(report: Mapping[str, Any], count: int, plugins: Sequence[str] = (), workers: int = 1) -> tuple[list[str], list[str]]:
    """Ids of the cases that ran, and what is different now.

    Args:
        report: a verified report.
        count: how many cases to draw at random.
        plugins: in place of those that the report names, whose files may lie elsewhere here.
        workers: processes.

    Raises:
        StartError: the backend does not load.
    """
    run = report["run"]
    settings = Settings(
        run["backend"]["name"], tuple(plugins or run["plugins"]), run["effort"], run["seed"], tuple(run.get("options", ()))
    )
    entries = [entry for entry in report["cases"] if entry["verdict"] != "no-samples" and entry["kind"] not in TIMED]
    drawn = random.SystemRandom().sample(entries, min(count, len(entries)))
    with tempfile.TemporaryDirectory(prefix="conformance-") as scratch:
        results: dict[str, Result] = {}
        pool = Pool(
            settings,
            workers,
            run["timeout"],
            Path(scratch),
            run["selection"]["sample"],
            lambda result: results.update({result.case.id: result}),
        )
        try:
            found = pool.describe()
            different = [
                f"{key} is {run['backend'][key]!r} in the report and {found[key]!r} here"
                for key in ("version", "fingerprint")
                if run["backend"][key] != found[key]
            ]
            here, there = found["device"]["name"], run["backend"]["device"]["name"]
            if here != there:
                different.append(f"the device is {there!r} in the report and {here!r} here")
            if different:
                return [], different
            pool.submit(Case(entry["prim"], entry["dtype"], entry["kind"]) for entry in drawn)
            while pool.step():
                pass
            expected = _expectations(report)
            for entry in drawn:
                now = reports.finished(results[entry["id"]], expected, reports.Run(settings))
                different += [
                    f"{entry['id']}: {key} is {entry[key]!r} in the report and {now[key]!r} here\n  {entry['reproducer']}"
                    for key in ("verdict", "placement")
                    if now[key] != entry[key]
                ]
        finally:
            pool.close()
    return [entry["id"] for entry in drawn], different


def _expectations(report: Mapping[str, Any]) -> Expectations:
    """What the vendor declared, on the day of the run."""
    run = report["run"]
    declared = [
        Declaration(
            each["kind"], tuple(each["cases"]), each["reason"], each["owner"], each["link"], tuple(each["devices"]),
            date.fromisoformat(each["expires"]) if each["expires"] else None, verdict=each.get("verdict") or "fail",
        )
        for each in report["expectations"]
    ]  # fmt: skip
    path = Path(run["expectations"]) if run["expectations"] else None
    return Expectations(declared, str(run["backend"]["device"]["name"]), date.fromisoformat(run["date"][:10]), path)
