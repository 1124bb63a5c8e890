"""Whether a report can be believed: digests over what it says, completeness against the opset, agreement with itself.

Digests find what was edited or lost. Who edits a report on purpose can renew them: what stands against that is completeness
(which cases must be there follows from the selection), and running a sample again (``again.py``).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema

from conformance import report as reports
from conformance.cases import TIMED, Selection, SelectionError, shard_of
from conformance.journal import differing


def digest(value: Any) -> str:
    """SHA-256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()


def sealed(report: dict[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """``report`` with digests: of each case, of each log in ``folder``, and of all the rest."""
    bare = {key: value for key, value in report.items() if key != "integrity"}
    logs, cases = {}, {}
    for entry in report["cases"]:
        cases[entry["id"]] = digest(entry)
        if folder and entry["log"]:
            logs[entry["log"]] = _file_digest(folder / entry["log"])
    rest = digest({**bare, "cases": list(cases.items()), "logs": logs})
    return {**bare, "integrity": {"cases": cases, "logs": logs, "report": rest}}


@dataclass
class Checked:
    """What looking at a report came to.

    Attributes:
        problems: what is wrong with it, in words.
        right: names of what was checked, where nothing is wrong.
        unchecked: what could not be checked, each with the reason.
    """

    problems: list[str] = field(default_factory=list)
    right: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)


def checked(report: Mapping[str, Any], folder: Path) -> Checked:
    """Whether a report is as the suite wrote it, as far as that can be told here.

    Args:
        report: the whole document.
        folder: where it lies, with the logs that it names.
    """
    found = [
        f"schema: {'.'.join(map(str, error.absolute_path)) or 'document'}: {error.message[:200]}"
        for error in jsonschema.Draft202012Validator(reports.schema()).iter_errors(report)
    ]
    if found:
        return Checked(found[:20])
    entries, integrity = report["cases"], report["integrity"]
    ids = [entry["id"] for entry in entries]
    found += [f"{name}: is there {times} times" for name, times in Counter(ids).items() if times > 1]
    for entry in entries:
        recorded = integrity["cases"].get(entry["id"])
        if recorded != digest(entry):
            found.append(f"{entry['id']}: was {'added' if recorded is None else 'edited'}")
    found += [f"{name}: was deleted" for name in integrity["cases"] if name not in set(ids)]
    for name, recorded in integrity["logs"].items():
        path = folder / name
        if not path.is_file():
            found.append(f"{name}: the log is missing")
        elif _file_digest(path) != recorded:
            found.append(f"{name}: the log was edited")
    rest = {key: value for key, value in report.items() if key not in ("integrity", "cases")}
    if not found and integrity["report"] != digest(
        {**rest, "cases": list(integrity["cases"].items()), "logs": integrity["logs"]}
    ):
        found.append("the record of the run, its summary or its declarations were edited")
    return Checked(found) if found else _consistency(report)


def _consistency(report: Mapping[str, Any]) -> Checked:
    """What cannot be so, though every digest fits. Another version of the suite may have had other cases and other rules."""
    run, entries = report["run"], report["cases"]
    made = Checked(right=["schema", "digests"])
    for entry in entries:
        if entry["verdict"] == "pass" and (entry["failures"] or not entry["samples"]["compared"]):
            made.problems.append(f"{entry['id']}: passes, with failures or with nothing compared")
        planted = entry.get("mutants")
        if planted and planted["killed"] + len(planted["survived"]) != planted["tried"]:
            made.problems.append(f"{entry['id']}: mutants that were neither killed nor survived")
    if run["suite"] != reports.suite():
        reason = "the report was made by another version of the suite"
        made.unchecked += [f"{what} not checked: {reason}" for what in ("completeness", "summary")]
        return made
    _complete(report, made)
    summary = reports.summarize(
        entries, report["summary"]["stale_expectations"], report["numerics"], complete=not run["interrupted"]
    )
    made.problems += [
        f"summary: {key} is {report['summary'][key]!r}, but the cases say {summary[key]!r}"
        for key in summary
        if summary[key] != report["summary"].get(key)
    ]
    made.right.append("summary")
    return made


def _complete(report: Mapping[str, Any], made: Checked) -> None:
    """Whether the cases are those that follow from the selection."""
    run, selection = report["run"], report["run"]["selection"]
    asked = {key: selection[key] for key in ("prims", "patterns", "models", "dtypes", "profile")}
    try:
        chosen = Selection(**asked, effort=run["effort"]).cases()
        if selection["sample"] is not None:
            chosen = [case for case in chosen if case.kind not in TIMED]
        wanted = [case.id for case in shard_of(chosen, selection["shard"])]
    except SelectionError as error:
        made.problems.append(f"selection: no run has it: {error}")
        return
    there = {entry["id"] for entry in report["cases"]}
    made.problems += [f"{name}: does not belong to the selection" for name in sorted(there.difference(wanted))]
    missing = [name for name in wanted if name not in there]
    if not run["interrupted"]:
        made.problems += [f"{name}: belongs to the selection and is missing" for name in missing]
        made.right.append("completeness")
    else:
        made.unchecked.append(
            f"completeness not checked: the run was interrupted, {len(missing)} of {len(wanted)} cases are missing"
        )


def read(path: Path) -> dict[str, Any]:
    """A report, from its file or its folder.

    Raises:
        ValueError: no JSON document of this format.
    """
    file = path / "report.json" if path.is_dir() else path
    try:
        loaded = json.loads(file.read_text())
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{file}: no report of `vendor-sdk conformance`, which is JSON ({error})") from error
    if not isinstance(loaded, dict) or loaded.get("format") != reports.FORMAT:
        found = loaded.get("format") if isinstance(loaded, dict) else type(loaded).__name__
        raise ValueError(f"{file}: no report of format {reports.FORMAT} (it is {found!r})")
    return loaded


def agree(all_reports: Sequence[Mapping[str, Any]]) -> list[str]:
    """What keeps reports from being parts of one run, in words."""
    first = reports.identity_of(all_reports[0])
    return [line for other in all_reports[1:] for line in differing(reports.identity_of(other), first)]


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
