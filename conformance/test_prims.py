"""One test a case: passes when every result is what it must be, wherever it ran. What is timed comes last, alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conformance.cases import Case
from conformance.pool import StartError
from conformance.report import NOT_CLAIMED, WITHOUT_EVIDENCE, broken
from conformance.session import Session


def test_prim(case: Case, certification: Session, record_property: Callable[[str, object], None]) -> None:
    try:
        entry = certification.entry(case)
    except StartError as error:
        pytest.exit(f"conformance: the backend does not load any more: {error}", returncode=pytest.ExitCode.USAGE_ERROR)
    for name in ("verdict", "placement", "worst_error", "reason"):
        record_property(name, entry[name])
    if entry["verdict"] in WITHOUT_EVIDENCE:
        pytest.skip(f"{entry['verdict']}: nothing was shown")
    if entry["verdict"] in ("slow", "inconclusive"):
        pytest.skip(f"{entry['verdict']}: the results are right; see the report")
    if entry["verdict"] in NOT_CLAIMED:
        pytest.skip(f"{entry['verdict']}: torch on the host misses the bound, the backend claims nothing")
    if entry["verdict"] in ("expected-failure", "waived"):
        pytest.xfail(entry["expectation"]["reason"])
    if broken(entry):
        lines = [f"{case.id}: {entry['verdict']}"]
        if entry["verdict"] == "unexpected-pass":
            lines += [f"declared to fail ({entry['expectation']['reason']}), but it passes", entry["reproducer"]]
        for failure in entry["failures"]:
            lines += [f"sample {failure['sample']} ({failure['label']}): {failure['message']}", f"  {failure['reproducer']}"]
            if failure.get("script"):
                lines += ["", failure["script"]]
        pytest.fail("\n".join(lines), pytrace=False)
