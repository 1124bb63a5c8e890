"""A run: the pool, the entries that come out of it, and where they are written."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from conformance import evidence, journal, probes, report
from conformance.cases import TIMED, Case
from conformance.expectations import Expectations, updated
from conformance.pool import Pool, Result, StartError

TIMED_PATIENCE = 3
"""A timed case is several compilations and many calls: it has so many times as long."""


class Session:
    """Runs cases and keeps the report.

    Args:
        run: what to do.
        folder: where the report goes, ``None`` for nowhere. A report of an earlier run in it is removed first.
        show: called with each finished entry, in the order of completion.
        expected: what the vendor's file declares; what its plugin declares is added.
        resumed: what an interrupted run left in ``folder``; its cases do not run again.
    """

    def __init__(
        self,
        run: report.Run,
        folder: Path | None,
        show: Callable[[Mapping[str, Any]], None],
        expected: Expectations | None = None,
        resumed: journal.Journal | None = None,
    ) -> None:
        self.run, self.folder, self.show = run, folder, show
        self.expected = expected or Expectations()
        self.started, self.clock = datetime.now(UTC), time.monotonic()
        self.resumed = resumed
        self.journal: journal.Writer | None = None
        self.numerics: list[dict[str, Any]] = []
        self.entries: dict[str, dict[str, Any]] = {}
        self.order: list[Case] = []
        self.scratch = tempfile.TemporaryDirectory(prefix="conformance-")
        self.pool = Pool(run.settings, run.workers, run.timeout, Path(self.scratch.name), run.only, self._finished)
        self.alone: Pool | None = None
        self.description: dict[str, Any] = {}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            logs = [] if resumed else (folder / "logs").glob("*.log")
            for stale in [folder / "report.json", folder / "junit.xml", folder / "report.html", *logs]:
                stale.unlink(missing_ok=True)

    def begin(self, cases: Sequence[Case]) -> None:
        """Loads the backend in a first worker and queues ``cases``.

        Raises:
            StartError: the backend does not load, or is not that of the run that is resumed.
        """
        self.description = self.pool.describe()
        self.expected = self.expected.with_plugin(
            self.description["expected_failures"], str(self.description["device"]["name"])
        )
        self.order = list(cases)
        if self.run.numerics:
            found = self.pool.numerics()
            declared = self.description["numerics"]
            self.numerics = probes.compared([probes.Finding(**each) for each in found or ()], declared)
            if found is None:
                self.numerics.insert(0, probes.FAILED)
        identity = json.loads(json.dumps(report.identity_of(self._document())))
        if self.resumed is not None:
            different = journal.differing(identity, self.resumed.identity)
            if different:
                raise StartError(f"cannot resume another run: {different[0]}")
            self.entries.update(self.resumed.entries)
            self.clock -= self.resumed.elapsed
        if self.folder is not None:
            self.journal = journal.Writer(self.folder, identity, self.resumed)
        self.pool.submit(case for case in cases if case.id not in self.entries and case.kind not in TIMED)

    def entry(self, case: Case) -> dict[str, Any]:
        """Waits for the report's entry of a case."""
        if case.id not in self.entries:
            (self._undisturbed() if case.kind in TIMED else self.pool).result(case)
        return self.entries[case.id]

    def report(self) -> dict[str, Any]:
        """The report of all that has finished, in the order of the opset, with digests. Where it is whole, nothing is left to
        resume once it is written."""
        return evidence.sealed(self._document(), self.folder)

    def written(self) -> None:
        """The report is on disk."""
        if self.journal is not None and len(self.entries) == len(self.order):
            self.journal.finish()

    def _document(self) -> dict[str, Any]:
        return report.document(
            self.run,
            self.description,
            self.expected,
            self.numerics,
            [self.entries[case.id] for case in self.order if case.id in self.entries],
            started=self.started,
            seconds=time.monotonic() - self.clock,
            interrupted=len(self.entries) < len(self.order),
        )

    def update_expectations(self) -> None:
        """Rewrites the expectations file so that it says what this run found."""
        assert self.expected.path is not None
        self.expected.path.write_text(updated(self.expected, list(self.entries.values())))

    def _undisturbed(self) -> Pool:
        """The pool of timed cases, which start when all others have finished."""
        if self.alone is None:
            for case in self.order:
                if case.kind not in TIMED:
                    self.entry(case)
            self.pool.close()
            logs = Path(self.scratch.name) / "timed"
            logs.mkdir()
            patience = TIMED_PATIENCE * self.run.timeout
            self.alone = Pool(self.run.settings, 1, patience, logs, None, self._finished, undisturbed=True)
            self.alone.submit(case for case in self.order if case.kind in TIMED and case.id not in self.entries)
        return self.alone

    def close(self) -> None:
        """Ends the workers."""
        self.pool.close()
        if self.alone is not None:
            self.alone.close()
        self.scratch.cleanup()

    def _finished(self, result: Result) -> None:
        entry = report.finished(result, self.expected, self.run)
        if self.folder is not None:
            report.write_log(self.folder, entry, result.log)
        result.log = ""  # of no use any more, and there are thousands
        self.entries[entry["id"]] = entry
        if self.journal is not None:
            self.journal.add(entry, time.monotonic() - self.clock)
        self.show(entry)
