"""Reports after their runs: what was changed is found, shards become one run again, two runs are compared."""

from __future__ import annotations

import copy
import json
import tracemalloc
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from click.testing import CliRunner

from conformance import clocks, evidence, journal, junit, report, run, session
from conformance.cases import Case, SelectionError, select, shard_of
from conformance.compare import compare
from conformance.expectations import Expectations
from conformance.merge import MergeError, merge
from conformance.pool import Pool, Result
from conformance.report_cli import MARK, UNCHECKED, main
from conformance.worker import Settings

DESCRIPTION = {"name": "chip", "version": "1", "fingerprint": "", "device": {"name": "rev A"}, "expected_failures": {}}
PRIMS = ("add", "mul")


def made(
    folder: Path, shard: str | None = None, seed: int = 3, numerics: Sequence[dict[str, Any]] = (), **changes: Any
) -> dict[str, Any]:
    """A sealed report in ``folder``: all pass, but ``mul[bool]``; ``changes`` by case replace fields of its outcome."""
    asked = report.Run(Settings("chip", seed=seed), PRIMS, shard=shard)
    entries = []
    for case in shard_of(select(PRIMS), shard):
        outcome: dict[str, Any] = {"verdict": "pass", "placement": "native", "reason": "", "worst": 0.5, "samples": 8}
        outcome |= {"compared": 7, "fresh": 7, "seconds": 0.25, "failures": []}
        if case.id == "mul[bool]":
            outcome |= {"verdict": "fail", "failures": [{"sample": 1, "label": "odd", "kind": "value", "message": "1 for 0"}]}
        outcome |= changes.get(case.id, {})
        entry = report.finished(Result(case, outcome, ""), Expectations(), asked)
        folder.mkdir(exist_ok=True)
        report.write_log(folder, entry, f"the log of {case.id}")
        entries.append(entry)
    document = report.document(asked, DESCRIPTION, Expectations(), numerics, entries, started=datetime.now(UTC), seconds=2.5)
    sealed = evidence.sealed(document, folder)
    report.write(folder, sealed)
    jsonschema.validate(sealed, report.schema())
    return sealed


def verified(folder: Path, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["verify", str(folder), "--rerun", "0", *words])
    return done.exit_code, done.output


def test_a_report_is_as_the_suite_wrote_it(tmp_path: Path) -> None:
    made(tmp_path)
    assert verified(tmp_path) == (0, "16 cases: right are schema, digests, completeness, summary\n")


def test_what_verifying_finds_is_json(tmp_path: Path) -> None:
    made(tmp_path)
    status, output = verified(tmp_path, "--json")
    assert (status, json.loads(output)) == (
        0,
        {"verified": True, "cases": 16, "problems": [], "right": ["schema", "digests", "completeness", "summary"],
         "unchecked": [], "other_suite": False, "ran": [], "different": []},
    )  # fmt: skip
    path = tmp_path / "report.json"
    document = json.loads(path.read_text())
    _edit(document)
    path.write_text(json.dumps(document))
    status, output = verified(tmp_path, "--json")
    assert status == 1
    assert not json.loads(output)["verified"]
    assert json.loads(output)["problems"]


def _edit(document: dict[str, Any]) -> None:
    document["cases"][3]["worst_error"] = 0.1


def _whitewash(document: dict[str, Any]) -> None:
    document["cases"][-1].update(verdict="pass", failures=[])


def _delete(document: dict[str, Any]) -> None:
    del document["cases"][-1]


def _add(document: dict[str, Any]) -> None:
    document["cases"].append({**document["cases"][0], "id": "sub[float32]", "prim": "sub"})


def _repeat(document: dict[str, Any]) -> None:
    document["cases"].append(document["cases"][0])


def _date(document: dict[str, Any]) -> None:
    document["run"]["date"] = "2020-01-01T00:00:00+00:00"


def _praise(document: dict[str, Any]) -> None:
    document["summary"]["claims_hold"] = True


def _splendid(document: dict[str, Any]) -> None:
    document["cases"][0]["verdict"] = "splendid"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_edit, "add[float64]: was edited"),
        (_whitewash, "mul[bool]: was edited"),
        (_delete, "mul[bool]: was deleted"),
        (_add, "sub[float32]: was added"),
        (_repeat, "add[float32]: is there 2 times"),
        (_date, "the record of the run, its summary or its declarations were edited"),
        (_praise, "the record of the run, its summary or its declarations were edited"),
        (_splendid, "schema: cases.0.verdict: 'splendid' is not one of"),
    ],
)
def test_what_was_changed_is_found(tmp_path: Path, change: Callable[[dict[str, Any]], None], says: str) -> None:
    document = made(tmp_path)
    change(document)
    report.write(tmp_path, document)
    status, text = verified(tmp_path)
    assert status == 1
    assert says in text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_delete, "mul[bool]: belongs to the selection and is missing"),
        (_add, "sub[float32]: does not belong to the selection"),
        (_praise, "summary: claims_hold is True, but the cases say False"),
        (lambda document: document["cases"][-1].update(verdict="pass"), "mul[bool]: passes, with failures"),
    ],
)
def test_with_digests_renewed_it_is_found_too(tmp_path: Path, change: Callable[[dict[str, Any]], None], says: str) -> None:
    document = made(tmp_path)
    change(document)
    report.write(tmp_path, evidence.sealed(document, tmp_path))
    status, text = verified(tmp_path)
    assert status == 1
    assert says in text


def _of_another_suite(document: dict[str, Any]) -> None:
    document["run"]["suite"] = "0" * 64


def _interrupt(document: dict[str, Any]) -> None:
    document["run"]["interrupted"] = True
    document["summary"] = report.summarize(document["cases"], [], complete=False)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_of_another_suite, "completeness not checked: the report was made by another version of the suite"),
        (_interrupt, "completeness not checked: the run was interrupted, 1 of 16 cases are missing"),
    ],
)
def test_what_cannot_be_checked_is_said(tmp_path: Path, change: Callable[[dict[str, Any]], None], says: str) -> None:
    document = made(tmp_path)
    _delete(document)
    change(document)
    report.write(tmp_path, evidence.sealed(document, tmp_path))
    status, text = verified(tmp_path)
    assert status == UNCHECKED
    assert says in text
    assert "completeness" not in text.splitlines()[0]


def test_a_case_too_many_is_found_in_an_interrupted_run(tmp_path: Path) -> None:
    document = made(tmp_path)
    _add(document)
    _interrupt(document)
    report.write(tmp_path, evidence.sealed(document, tmp_path))
    assert verified(tmp_path)[0] == 1


def test_a_selection_that_no_run_has_is_found(tmp_path: Path) -> None:
    document = made(tmp_path)
    document["run"]["selection"]["shard"] = "3/2"
    report.write(tmp_path, evidence.sealed(document, tmp_path))
    status, text = verified(tmp_path)
    assert (status, text.splitlines()[0]) == (
        1,
        "selection: no run has it: no shard '3/2': write I/N with I from 1 to N, as 2/8",
    )


def _numerics(document: dict[str, Any]) -> str:
    criteria = document["summary"]["levels"]["full"]["criteria"]
    return str(next(each["state"] for each in criteria if each["name"].startswith("declared numerics")))


def test_numerics_are_shown_by_the_shard_that_probed(tmp_path: Path) -> None:
    found = {"probe": "mm float32 operands", "value": "TF32", "detail": "", "declared": "TF32", "agrees": True}
    parts = [(tmp_path / f"{i}", made(tmp_path / f"{i}", f"{i}/2", numerics=[found] if i == 2 else [])) for i in (1, 2)]
    assert [_numerics(part) for _, part in parts] == ["not shown", "met"]
    whole = merge(parts, tmp_path / "whole")
    assert (whole["numerics"], _numerics(whole)) == ([found], "met")
    other = {**found, "value": "float32", "agrees": False}
    parts[0] = (parts[0][0], made(parts[0][0], "1/2", numerics=[other]))
    whole = merge(parts, tmp_path / "whole")
    assert (whole["numerics"], _numerics(whole)) == ([other, found], "not met")


@pytest.mark.parametrize(("shard", "probes"), [(None, True), ("1/8", True), ("2/8", False), ("11/12", False)])
def test_one_shard_probes(shard: str | None, probes: bool) -> None:
    assert run._run(run.Request("chip", shard=shard, seed=3), 3).numerics is probes


def test_logs_are_evidence_too(tmp_path: Path) -> None:
    document = made(tmp_path)
    (log,) = [entry["log"] for entry in document["cases"] if entry["log"]]
    (tmp_path / log).write_text("all went well")
    assert f"{log}: the log was edited" in verified(tmp_path)[1]
    (tmp_path / log).unlink()
    assert f"{log}: the log is missing" in verified(tmp_path)[1]


def test_what_is_no_report_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("[]")
    status, text = verified(tmp_path)
    assert status == 1
    assert "no report of format" in text


def test_shards_are_disjoint_and_whole() -> None:
    cases = select()
    parts = [shard_of(cases, f"{i}/7") for i in range(1, 8)]
    assert sorted(case for part in parts for case in part) == sorted(cases)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for wrong in ("0/7", "8/7", "7", "a/b", "1/0"):
        with pytest.raises(SelectionError, match="no shard"):
            shard_of(cases, wrong)
    with pytest.raises(SelectionError, match="is empty"):
        shard_of(cases[:2], "3/3")


def test_shards_merge_to_the_run_that_they_are_parts_of(tmp_path: Path) -> None:
    whole = made(tmp_path / "whole")
    for i in (1, 2, 3):
        made(tmp_path / f"part{i}", f"{i}/3")
    folders = [str(tmp_path / f"part{i}") for i in (3, 1, 2)]
    done = CliRunner().invoke(main, ["merge", *folders, "--output", str(tmp_path / "merged")])
    assert done.exit_code == 1, "a claim is broken"
    merged = evidence.read(tmp_path / "merged")
    assert merged["cases"] == whole["cases"]
    assert merged["summary"] == whole["summary"]
    assert merged["run"]["seconds"] == 7.5
    assert verified(tmp_path / "merged")[0] == 0
    jsonschema.validate(merged, report.schema())


def test_what_is_no_part_of_the_run_is_not_merged(tmp_path: Path) -> None:
    one = tmp_path / "one", made(tmp_path / "one", "1/2")
    with pytest.raises(MergeError, match="seed is 3 there and 4 here"):
        merge([one, (tmp_path / "two", made(tmp_path / "two", "2/2", seed=4))], tmp_path / "merged")
    with pytest.raises(MergeError, match=r"add\[float32\] is in two of the reports"):
        merge([one, (tmp_path / "again", made(tmp_path / "again", "1/2"))], tmp_path / "merged")
    alone = merge([one], tmp_path / "merged")
    assert alone["run"]["interrupted"], "a shard is missing"
    assert not alone["summary"]["claims_hold"]


def test_two_runs_are_compared(tmp_path: Path) -> None:
    crash = {
        "verdict": "crash",
        "placement": "unknown",
        "failures": [{"sample": 0, "label": "", "kind": "crash", "message": "boom"}],
    }
    right = {"verdict": "pass", "failures": []}
    before = made(tmp_path / "before")
    after = made(
        tmp_path / "after",
        **{
            "add[float32]": crash,
            "add[int64]": {"placement": "host", "reason": "not yet"},
            "add[bool]": {"placement": "view"},
            "mul[bool]": right,
            "mul[float32]": {"worst": 1.2},
            "mul[float64]": {"worst": 0.9},
        },
    )
    found = compare(before, after)
    assert [(c.case, c.before, c.after, c.why) for c in found.regressions] == [
        ("add[float32]", "native", "failed", "boom"),
        ("add[int64]", "native", "host", "not yet"),
    ]
    assert [(c.case, c.before, c.after) for c in found.improvements] == [("mul[bool]", "failed", "native")]
    assert [(c.case, c.before, c.after) for c in found.less_accurate] == [("mul[float32]", "0.5", "1.2")]
    assert (found.more_accurate, found.missing, found.added, found.unlike) == ([], [], [], [])
    words = str(tmp_path / "before"), str(tmp_path / "after")
    done = CliRunner().invoke(main, ["compare", *words])
    assert done.exit_code == 1
    assert "add[float32]: native -> failed: boom" in done.output
    back = CliRunner().invoke(main, ["compare", *words[::-1], "--json"])
    assert back.exit_code == 1, "what had passed fails again"
    assert [change["case"] for change in json.loads(back.output)["regressions"]] == ["mul[bool]"]
    same = CliRunner().invoke(main, ["compare", words[0], words[0]])
    assert (same.exit_code, same.output) == (0, "every case stands as before\n")


def test_a_case_that_is_gone_is_no_success(tmp_path: Path) -> None:
    before, after = made(tmp_path / "before"), made(tmp_path / "after")
    after = copy.deepcopy(after)
    gone = after["cases"].pop(2)["id"]
    report.write(tmp_path / "after", after)
    done = CliRunner().invoke(main, ["compare", str(tmp_path / "before"), str(tmp_path / "after")])
    assert done.exit_code == 1
    assert f"missing: 1: {gone}" in done.output
    assert compare(after, before).added == [gone]


def test_a_journal_survives_a_line_that_was_cut_short(tmp_path: Path) -> None:
    entries = made(tmp_path / "any")["cases"]
    ids = [entry["id"] for entry in entries]
    writer = journal.Journal(tmp_path, {"seed": 3})
    for number, entry in enumerate(entries[:3]):
        writer.add(entry, number)
    text = (tmp_path / journal.NAME).read_text()
    (tmp_path / journal.NAME).write_text(text[:-40])
    found = journal.Journal.resumed(tmp_path)
    assert (found.identity, list(found.entries(ids)), found.elapsed) == ({"seed": 3}, entries[:2], 1)
    assert ids[2] not in found
    found.add(entries[2], 5)
    again = journal.Journal.resumed(tmp_path)
    assert (list(again.entries(ids[::-1])), again.elapsed) == (entries[2::-1], 5)
    assert (again[ids[1]], len(again), entries[0] in again.entries(ids)) == (entries[1], 3, True)
    assert journal.differing({"seed": 3, "effort": "quick"}, {"seed": 4, "effort": "quick"}) == ["seed is 4 there and 3 here"]
    again.remove()
    with pytest.raises(journal.ResumeError, match="holds no run that was interrupted"):
        journal.Journal.resumed(tmp_path)


def test_runs_stand_side_by_side_from_their_extracts(tmp_path: Path) -> None:
    made(tmp_path / "one")
    made(tmp_path / "two", **{"mul[bool]": {"verdict": "pass", "failures": []}})
    for name in ("one", "two"):
        done = CliRunner().invoke(main, ["extract", str(tmp_path / name), str(tmp_path / f"{name}.json")])
        assert done.exit_code == 0, done.output
    assert len((tmp_path / "one.json").read_text()) < 3000
    page = tmp_path / "page.md"
    page.write_text("# Runs\n")
    words = ["side-by-side", str(tmp_path / "one.json"), str(tmp_path / "two.json")]
    assert "has no line" in CliRunner().invoke(main, [*words, "--into", str(page)]).output
    page.write_text(f"# Runs\n\n{MARK}\nold tables")
    for _ in range(2):  # again gives the same
        assert CliRunner().invoke(main, [*words, "--into", str(page)]).exit_code == 0
        assert page.read_text() == f"# Runs\n\n{MARK}\n" + CliRunner().invoke(main, words).output
    text = page.read_text()
    assert "| prims | 15 pass, 1 fail | 16 pass |" in text
    assert "- `mul[bool]`: 1 for 0" in text
    assert "old" not in text


def test_the_page_of_runs_is_what_its_command_makes() -> None:
    docs = Path(__file__).parent.parent / "docs"
    page = (docs / "comparison.md").read_text()
    (command,) = [line for line in page.splitlines() if line.startswith("vendor-sdk report side-by-side ")]
    extracts = [docs.parent / word for word in command.split() if word.endswith(".json")]
    assert {path.name for path in extracts} == {path.name for path in (docs / "runs").glob("*.json")}
    assert page.partition(MARK)[2] == CliRunner().invoke(main, ["side-by-side", *map(str, extracts)]).output.join(["\n", ""])


class Instantly(Pool):
    """Runs nothing: each case passes."""

    def describe(self) -> dict[str, Any]:
        return DESCRIPTION

    def step(self) -> bool:
        if not self._cases:
            return False
        outcome = {"verdict": "pass", "placement": "native", "reason": "", "worst": 0.5, "samples": 1}
        outcome |= {"compared": 1, "fresh": 1, "seconds": 0.25, "failures": []}
        self.progress(Result(self._cases.popleft(), outcome, ""))
        return True


def test_memory_does_not_grow_with_the_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "Pool", Instantly)
    parts = [Case(f"exhaustive/exp-{n}", "float32", "exhaustive") for n in range(5_000)]
    running = session.Session(report.Run(Settings("chip")), tmp_path)
    running.begin(parts)
    tracemalloc.start()
    try:
        running.work()
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        made_of_all = running.report()
        running.write(made_of_all)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    size = (tmp_path / journal.NAME).stat().st_size
    running.close()
    assert size > 500 * len(parts), "what memory would hold, at the least"
    assert kept < 250 * len(parts), "where each entry stands"
    assert peak < 1000 * len(parts), "digests"
    assert made_of_all["summary"]["exhaustive"]["pass"] == len(parts)
    assert not (tmp_path / journal.NAME).exists()
    written = evidence.read(tmp_path)
    jsonschema.validate(written, report.schema())
    assert [entry["id"] for entry in written["cases"]] == [case.id for case in parts]
    (suite,) = ElementTree.parse(tmp_path / "junit.xml").getroot().iter("testsuite")
    assert (len(suite), suite.get("tests")) == (len(parts), str(len(parts)))


def test_junit_holds_whatever_a_vendor_prints(tmp_path: Path) -> None:
    failure = {"sample": 1, "label": "odd", "kind": "value", "message": "\x00 <&> \x1b[31m ]]> \ufffe"}
    document = made(tmp_path, **{"add[bool]": {"verdict": "fail", "failures": [failure]}})
    junit.write(tmp_path, document)
    (found,) = (
        case for case in ElementTree.parse(tmp_path / "junit.xml").getroot().iter("testcase") if case.get("name") == "add[bool]"
    )
    assert found[0].get("message") == "fail: ? <&> ?[31m ]]> ?"
    assert found[0].get("type") == "fail"


def test_clocks_are_recorded_where_the_system_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "SYSFS", tmp_path / "cpu")
    assert made(tmp_path)["run"]["clocks"] == {"processor": {}, "device": {}}
    for cpu, rate in ((0, 1_200_000), (1, 3_400_000)):
        folder = tmp_path / "cpu" / f"cpu{cpu}" / "cpufreq"
        folder.mkdir(parents=True)
        for name, value in (("cur", rate), ("min", 800_000), ("max", 3_600_000)):
            (folder / f"scaling_{name}_freq").write_text(f"{value}\n")
    found = made(tmp_path)["run"]["clocks"]["processor"]
    assert found == {"lowest": 1200, "highest": 3400, "least": 800, "most": 3600}
    assert clocks.device("cpu") == {}
