"""The results of a run: what was measured, as JSON (``results.schema.json``), and everything that follows from it.

Only samples are stored. Medians, quartiles, ratios, fractions of the copy bandwidth and geometric means are computed here, by
the table, the plots and the documentation alike.
"""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import numpy

from benchmarks.program import BenchmarkError

VERSION = 1
SCHEMA = Path(__file__).resolve().parent / "results.schema.json"
SECONDS, BYTES = "s", "byte"


class State(enum.StrEnum):
    """What became of one contestant in one row."""

    OK = "ok"
    """It was right; it has samples."""
    WRONG = "wrong"
    """Its outputs are not the reference's; no time counts."""
    FAILED = "failed"
    """It raised, crashed or hung."""
    UNSUPPORTED = "unsupported"
    """It does not do such programs."""
    MISSING = "missing"
    """It is not installed."""


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of samples."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(samples: Sequence[float]) -> Spread:
        """Of at least one sample."""
        low, median, high = (float(each) for each in numpy.percentile(samples, (25, 50, 75)))
        return Spread(median, low, high)


@dataclass
class Figures:
    """One contestant in one row.

    Attributes:
        state, reason: what became of it, and why when it is not ``OK``.
        samples: one per round, in the row's unit.
        error, limit: of its outputs, see ``accuracy``; None where outputs are not compared.
    """

    state: State
    reason: str = ""
    samples: list[float] = field(default_factory=list)
    error: float | None = None
    limit: float | None = None

    @property
    def spread(self) -> Spread:
        """Of the samples, which there must be."""
        return Spread.of(self.samples)


@dataclass
class RowResult:
    """One row.

    Attributes:
        section, name: where it belongs; unique together with ``dtype`` and ``mebibytes``.
        dtype: of floating point tensors.
        mebibytes: of the main tensor (kernels only).
        unit: of samples: ``"s"`` per call or ``"byte"``.
        ideal_bytes: bytes one call must move.
        contestants: by name, the backend first.
        copies: samples of each kind of copy, seconds.
        copied_bytes: what one copy reads and writes.
        facts: further numbers that belong to the row (the lower bound of memory, ...), in its unit.
    """

    section: str
    name: str
    dtype: str = "float32"
    mebibytes: int | None = None
    unit: str = SECONDS
    ideal_bytes: int | None = None
    contestants: dict[str, Figures] = field(default_factory=dict)
    copies: dict[str, list[float]] = field(default_factory=dict)
    copied_bytes: int | None = None
    facts: dict[str, float] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name with dtype and size where they vary."""
        size = f", {self.mebibytes} MiB" if self.mebibytes is not None else ""
        return f"{self.name}{size}{'' if self.dtype == 'float32' else f', {self.dtype}'}"

    def measured(self, name: str) -> bool:
        """Whether this contestant has samples."""
        figures = self.contestants.get(name)
        return figures is not None and figures.state is State.OK and bool(figures.samples)

    def ratio(self, over: str, under: str) -> Spread | None:
        """Of ``over``'s samples to ``under``'s, round by round: above one, ``under`` is faster (or smaller)."""
        if not (self.measured(over) and self.measured(under)):
            return None
        pairs = zip(self.contestants[over].samples, self.contestants[under].samples, strict=True)
        return Spread.of([a / b for a, b in pairs])

    def of_copy(self, name: str, kind: str) -> float | None:
        """The bandwidth that ``name`` reaches, of ideal bytes, as a fraction of this copy's, median over rounds."""
        if not (self.measured(name) and self.ideal_bytes and self.copied_bytes and kind in self.copies):
            return None
        pairs = zip(self.contestants[name].samples, self.copies[kind], strict=True)
        return Spread.of([self.ideal_bytes / t / (self.copied_bytes / copy) for t, copy in pairs]).median

    def strongest(self, rivals: Iterable[str], against: str) -> tuple[str, Spread] | None:
        """The rival with the smallest ratio to ``against``, and that ratio; None when there is none with samples.

        Chosen by ratios within rounds, as everything else: on a machine that drifts, medians of times may say otherwise.
        """
        ratios = {name: ratio for name in rivals if (ratio := self.ratio(name, against)) is not None}
        return min(ratios.items(), key=lambda item: item[1].median, default=None)


@dataclass
class Results:
    """A run.

    Attributes:
        backend: what is compared with the peers.
        peers: in the order asked for.
        machine: see ``machine.describe``.
        settings: rounds, threads, seconds a sample, and the command line.
        rows: in order of measurement.
    """

    backend: str
    peers: list[str]
    machine: dict[str, Any]
    settings: dict[str, Any]
    rows: list[RowResult] = field(default_factory=list)

    def section(self, name: str) -> list[RowResult]:
        """Rows of one section."""
        return [row for row in self.rows if row.section == name]

    def to_json(self) -> str:
        """JSON text that follows the schema."""
        document = {"version": VERSION, **asdict(self)}
        validate(document)
        return json.dumps(document, indent=1) + "\n"

    @staticmethod
    def from_json(text: str, where: str = "") -> Results:
        """Reads what ``to_json`` wrote.

        Raises:
            BenchmarkError: it is something else.
        """
        try:
            document = json.loads(text)
            validate(document)
        except (json.JSONDecodeError, jsonschema.ValidationError) as error:
            at = "" if isinstance(error, json.JSONDecodeError) else f" at {error.json_path}"
            raise BenchmarkError(
                f"these are no results of this benchmark{at}",
                where=where,
                why=str(getattr(error, "message", error)),
                fix="give a file that `python -m benchmarks --json FILE` wrote",
            ) from error
        rows = [row_from_json(row) for row in document.pop("rows")]
        del document["version"]
        return Results(**document, rows=rows)


def row_from_json(document: dict[str, Any]) -> RowResult:
    """One row of the document."""
    figures = {name: Figures(**{**each, "state": State(each["state"])}) for name, each in document["contestants"].items()}
    return RowResult(**{**document, "contestants": figures})


@functools.cache
def schema() -> dict[str, Any]:
    """The published schema."""
    document: dict[str, Any] = json.loads(SCHEMA.read_text())
    return document


def validate(document: Any) -> None:
    """Raises ``jsonschema.ValidationError``."""
    jsonschema.validate(document, schema())


def geometric_mean(values: Sequence[float]) -> float | None:
    """None of no values."""
    return float(numpy.exp(numpy.log(values).mean())) if values else None
