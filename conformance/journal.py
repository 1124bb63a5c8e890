"""The journal of a run: each finished case, on disk at once, so that a run that was stopped, or killed, can be resumed.

One JSON object a line: the run's identity, then ``{"elapsed": seconds, "entry": {...}}`` a case. A last line that is cut short
counts as not written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAME = "results.jsonl"


class ResumeError(ValueError):
    """The folder holds no run that can be resumed, or another one."""


@dataclass
class Journal:
    """What a folder holds of a run.

    Attributes:
        identity: what must be equal for results to belong to one run.
        entries: of finished cases, by id.
        elapsed: seconds that they took.
    """

    identity: dict[str, Any]
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    elapsed: float = 0.0


def read(folder: Path) -> Journal:
    """The journal in ``folder``.

    Raises:
        ResumeError: there is none.
    """
    try:
        lines = (folder / NAME).read_text().splitlines()
        journal = Journal(json.loads(lines[0])["identity"])
    except (OSError, ValueError, KeyError, IndexError) as error:
        complete = "; its run is complete" if (folder / "report.json").exists() else ""
        raise ResumeError(f"{folder} holds no run that was interrupted{complete}") from error
    for line in lines[1:]:
        try:
            record = json.loads(line)
        except ValueError:
            break
        journal.entries[record["entry"]["id"]] = record["entry"]
        journal.elapsed = record["elapsed"]
    return journal


def differing(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """What keeps two identities apart, in words."""
    keys = dict.fromkeys([*mine, *theirs])
    return [
        f"{key} is {theirs.get(key)!r} there and {mine.get(key)!r} here" for key in keys if mine.get(key) != theirs.get(key)
    ]


class Writer:
    """Appends to the journal of ``folder``; with ``journal``, after what it holds."""

    def __init__(self, folder: Path, identity: Mapping[str, Any], journal: Journal | None) -> None:
        self.path = folder / NAME
        if journal is None:
            self.path.write_text(json.dumps({"identity": identity}) + "\n")
            return
        # Again, without a line that was cut short.
        lines = [{"identity": identity}, *({"elapsed": journal.elapsed, "entry": entry} for entry in journal.entries.values())]
        self.path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def add(self, entry: Mapping[str, Any], elapsed: float) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"elapsed": round(elapsed, 3), "entry": entry}) + "\n")

    def finish(self) -> None:
        """The report holds it all now."""
        self.path.unlink(missing_ok=True)
