"""The journal of a run: each finished case, on disk at once, so that a run that was stopped, or killed, can be resumed.

One JSON object a line: the run's identity, then ``{"elapsed": seconds, "entry": {...}}`` a case. A last line that is cut short
counts as not written. Memory holds where entries stand, and none of them: a hundred thousand cases take no more of it than one.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

NAME = "results.jsonl"


class ResumeError(ValueError):
    """The folder holds no run that can be resumed, or another one."""


class Entries(Collection[dict[str, Any]]):
    """Entries of a journal in some order, each read from its file when it is asked for."""

    def __init__(self, path: Path, places: Iterable[int]) -> None:
        self._path, self._places = path, array("q", places)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self._path.open("rb") as file:
            for place in self._places:
                yield _at(file, place)

    def __contains__(self, entry: object) -> bool:
        return any(each == entry for each in self)


class Journal:
    """The finished cases of a run.

    Attributes:
        path: of the file.
        identity: what must be equal for results to belong to one run.
        elapsed: seconds that the cases took.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.path, self.identity = folder / NAME, dict(identity)
        self.elapsed = 0.0
        self._places: dict[str, int] = {}
        self.path.write_text(json.dumps({"identity": self.identity}) + "\n")

    @classmethod
    def resumed(cls, folder: Path) -> Journal:
        """The journal in ``folder``, to be gone on with; a line that was cut short is removed.

        Raises:
            ResumeError: there is none.
        """
        journal = cls.__new__(cls)
        journal.path, journal.elapsed, journal._places = folder / NAME, 0.0, {}
        try:
            with journal.path.open("r+b") as file:
                journal.identity = json.loads(file.readline())["identity"]
                end = file.tell()
                for line in iter(file.readline, b""):
                    try:
                        record = json.loads(line)
                    except ValueError:
                        break
                    journal._places[record["entry"]["id"]] = end
                    journal.elapsed = record["elapsed"]
                    end = file.tell()
                file.truncate(end)
        except (OSError, ValueError, KeyError) as error:
            complete = "; its run is complete" if (folder / "report.json").exists() else ""
            raise ResumeError(f"{folder} holds no run that was interrupted{complete}") from error
        return journal

    def add(self, entry: Mapping[str, Any], elapsed: float) -> None:
        """Writes the entry of a case, ``elapsed`` seconds after the beginning of the run."""
        with self.path.open("ab") as file:
            place = file.tell()
            file.write(json.dumps({"elapsed": round(elapsed, 3), "entry": entry}).encode() + b"\n")
        self._places[entry["id"]] = place

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def __getitem__(self, name: str) -> dict[str, Any]:
        """The entry of a case, by its id."""
        with self.path.open("rb") as file:
            return _at(file, self._places[name])

    def __len__(self) -> int:
        return len(self._places)

    def entries(self, names: Iterable[str]) -> Entries:
        """Those of ``names``, ids of cases, that have finished, in that order."""
        return Entries(self.path, (self._places[name] for name in names if name in self._places))

    def remove(self) -> None:
        """The report holds it all now."""
        self.path.unlink(missing_ok=True)


def _at(file: Any, place: int) -> dict[str, Any]:
    file.seek(place)
    entry: dict[str, Any] = json.loads(file.readline())["entry"]
    return entry


def differing(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """What keeps two identities apart, in words."""
    keys = dict.fromkeys([*mine, *theirs])
    return [
        f"{key} is {theirs.get(key)!r} there and {mine.get(key)!r} here" for key in keys if mine.get(key) != theirs.get(key)
    ]
