"""A run: the pools, the entries that come out of them, and where they are written."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from conformance import evidence, junit, page, probes, report
from conformance.cases import TIMED, Case
from conformance.expectations import Expectations, updated
from conformance.journal import Journal, differing
from conformance.pool import Pool, Result, StartError

TIMED_PATIENCE = 3
"""A timed case is several compilations and many calls: it has so many times as long."""


class Session:
    """Runs cases and keeps the report.

    Args:
        run: what to do.
        folder: where the report goes, ``None`` for nowhere. A report of an earlier run in it is removed once this one begins.
        expected: what the vendor's file declares; what its plugin declares is added.
        resumed: what an interrupted run left in ``folder``; its cases do not run again.

    Attributes:
        show: called with each finished entry, in the order of completion.
    """

    def __init__(
        self,
        run: report.Run,
        folder: Path | None,
        expected: Expectations | None = None,
        resumed: Journal | None = None,
    ) -> None:
        self.run, self.folder = run, folder
        self.show: Callable[[Mapping[str, Any]], None] = lambda entry: None
        self.expected = expected or Expectations()
        self.started, self.clock = datetime.now(UTC), time.monotonic()
        self.resumed = resumed
        self.numerics: list[dict[str, Any]] = []
        self.order: list[Case] = []
        self.scratch = tempfile.TemporaryDirectory(prefix="conformance-")
        self.pool = Pool(run.settings, run.workers, run.timeout, Path(self.scratch.name), run.only, self._finished)
        self.alone: Pool | None = None
        self.description: dict[str, Any] = {}

    def begin(self, cases: Sequence[Case]) -> None:
        """Loads the backend in a first worker and queues ``cases``.

        Raises:
            StartError: the backend does not load, or is not that of the run that is resumed.
        """
        self.pool.load(len(cases) if self.run.numerics else 1)
        self.description = self.pool.describe()
        self.expected = self.expected.with_plugin(
            self.description["expected_failures"], str(self.description["device"]["name"])
        )
        if self.run.numerics:
            found = self.pool.numerics()
            declared = self.description["numerics"]
            self.numerics = probes.compared([probes.Finding(**each) for each in found or ()], declared)
            if found is None:
                self.numerics.insert(0, probes.FAILED)
        identity = json.loads(json.dumps(report.identity_of(self._document((), interrupted=True))))
        if self.resumed is None:
            self.journal = Journal(self.folder or Path(self.scratch.name), identity)
        else:
            different = differing(identity, self.resumed.identity)
            if different:
                raise StartError(f"cannot resume another run: {different[0]}")
            self.journal = self.resumed
            self.clock -= self.journal.elapsed
        if self.folder is not None:
            logs = [] if self.resumed else (self.folder / "logs").glob("*.log")
            for stale in [*(self.folder / name for name in report.FILES), *logs]:
                stale.unlink(missing_ok=True)
        self.order = list(cases)
        self.pool.submit(case for case in self.order if case.id not in self.journal and case.kind not in TIMED)

    def work(self) -> None:
        """Runs all that is left. Raises ``StartError`` where no worker can be had any more."""
        while self.pool.step():
            if self.pool.all_begun:
                self._timed().load()  # while the last ones run
        while self._undisturbed().step():
            pass

    def entry(self, case: Case) -> dict[str, Any]:
        """Waits for the report's entry of a case. Raises as ``work``, and ``KeyError`` for a case that the run has not."""
        while case.id not in self.journal and self.pool.step():
            pass
        while case.id not in self.journal and self._undisturbed().step():
            pass
        return self.journal[case.id]

    @property
    def interrupted(self) -> bool:
        """Whether cases are left."""
        return len(self.journal) < len(self.order)

    def report(self) -> dict[str, Any]:
        """The report of all that has finished, in the order of the opset, with digests."""
        entries = self.journal.entries(case.id for case in self.order)
        return evidence.sealed(self._document(entries, interrupted=self.interrupted), self.folder)

    def write(self, made: Mapping[str, Any]) -> None:
        """Writes a report with its page and what else is made of it."""
        assert self.folder is not None
        report.write(self.folder, made)
        page.write(self.folder, made)
        junit.write(self.folder, made)

    def _document(self, entries: Any, *, interrupted: bool) -> dict[str, Any]:
        return report.document(
            self.run,
            self.description,
            self.expected,
            self.numerics,
            entries,
            started=self.started,
            seconds=time.monotonic() - self.clock,
            interrupted=interrupted,
        )

    def update_expectations(self) -> None:
        """Rewrites the expectations file so that it says what this run found."""
        assert self.expected.path is not None
        entries = self.journal.entries(case.id for case in self.order)
        self.expected.path.write_text(updated(self.expected, entries))

    def _undisturbed(self) -> Pool:
        """The pool of timed cases, which start when all others have finished."""
        self.pool.close()
        return self._timed()

    def _timed(self) -> Pool:
        if self.alone is None:
            logs = Path(self.scratch.name) / "timed"
            logs.mkdir()
            patience = TIMED_PATIENCE * self.run.timeout
            self.alone = Pool(self.run.settings, 1, patience, logs, None, self._finished, undisturbed=True)
            self.alone.submit(case for case in self.order if case.kind in TIMED and case.id not in self.journal)
        return self.alone

    def close(self) -> None:
        """Ends the workers; removes the journal of a run whose report is whole and on disk."""
        self.pool.close()
        if self.alone is not None:
            self.alone.close()
        if self.order and not self.interrupted and self.folder is not None and (self.folder / "report.json").exists():
            self.journal.remove()
        self.scratch.cleanup()

    def _finished(self, result: Result) -> None:
        entry = report.finished(result, self.expected, self.run)
        if self.folder is not None:
            report.write_log(self.folder, entry, result.log)
        self.journal.add(entry, time.monotonic() - self.clock)
        self.show(entry)
