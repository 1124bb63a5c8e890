"""Expectations of the vendor: read with clear errors, strict both ways, kept up to date by the suite."""

from __future__ import annotations

import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from conformance import report
from conformance.cases import Case
from conformance.expectations import Expectations, ExpectationsError, read, updated
from conformance.pool import Result
from conformance.worker import Settings

FILE = """\
# what mychip 1.0 lacks

[[declined]]
cases = ["_fft*", "sort[float64]"]   # ticket 3
reason = "no complex arithmetic"

[[known-failure]]
cases = [
    "erfinv",
    "tan[float16]",
]
reason = "two units too many"

[[waiver]]
cases = ["cumsum[bfloat16]"]
reason = "sums in bfloat16"
owner = "jo"
link = "https://mychip.example/12"
devices = ["mychip rev A*"]
expires = 2027-06-30
"""


def expectations(
    tmp_path: Path, text: str = FILE, *, device: str = "mychip rev A1", today: date = date(2027, 1, 1)
) -> Expectations:
    path = tmp_path / "expectations.toml"
    path.write_text(text)
    found = read(path)
    return Expectations(found.declarations, device, today, path, found.text)


@pytest.mark.parametrize(
    ("case", "verdict", "placement", "judged"),
    [
        ("add[float32]", "pass", "native", "pass"),
        ("add[float32]", "fail", "native", "fail"),
        ("add[float32]", "pass", "host", "undeclared-host"),
        ("add[float32]", "pass", "decomposed", "pass"),
        ("_fft_r2c[float32]", "pass", "host", "pass"),
        ("_fft_r2c[float32]", "pass", "native", "unexpected-native"),
        ("_fft_r2c[float32]", "empty", "native", "empty"),
        ("_fft_r2c[float32]", "fail", "native", "fail"),
        ("sort[float64]", "host-fail", "host", "host-fail"),
        ("sort[float32]", "host-fail", "host", "undeclared-host"),
        ("erfinv[float16]", "fail", "native", "expected-failure"),
        ("erfinv[float32]", "host-fail", "host", "expected-failure"),
        ("erfinv[float32]", "crash", "unknown", "crash"),
        ("erfinv[float32]", "error", "unknown", "error"),
        ("erfinv[float32]", "timeout", "unknown", "timeout"),
        ("cumsum[bfloat16]", "crash", "unknown", "crash"),
        ("erfinv[float32]", "pass", "native", "unexpected-pass"),
        ("tan[float16]", "pass", "host", "unexpected-pass"),
        ("cumsum[bfloat16]", "fail", "native", "waived"),
        ("cumsum[bfloat16]", "pass", "native", "unexpected-pass"),
        ("cumsum[float16]", "fail", "native", "fail"),
    ],
)
def test_declarations_are_strict_both_ways(tmp_path: Path, case: str, verdict: str, placement: str, judged: str) -> None:
    prim, _, dtype = case.removesuffix("]").partition("[")
    assert expectations(tmp_path).verdict(Case(prim, dtype), verdict, placement)[0] == judged


def test_a_declaration_covers_its_verdict_alone(tmp_path: Path) -> None:
    text = '[[known-failure]]\ncases = ["exp", "sin[bool]"]\nreason = "no kernel"\nverdict = "crash"\n'
    declared = expectations(tmp_path, text)
    found = {verdict: declared.verdict(Case("exp", "float32"), verdict, "unknown") for verdict in ("crash", "fail", "pass")}
    assert [each[0] for each in found.values()] == ["expected-failure", "fail", "unexpected-pass"]
    assert found["fail"][2] == "declared with the verdict 'crash' (no kernel), and this is another"
    both = expectations(tmp_path, text + '[[known-failure]]\ncases = ["exp[float32]"]\nreason = "or wrong"\n')
    assert [both.verdict(Case("exp", "float32"), verdict, "")[0] for verdict in ("crash", "fail", "error")] == [
        *("expected-failure", "expected-failure", "error")
    ]
    with pytest.raises(ExpectationsError, match=r"toml:4: \[\[known-failure\]\]: 'verdict' must be one of fail, error, crash"):
        expectations(tmp_path, text.replace("crash", "slow"))
    with pytest.raises(ExpectationsError, match="'verdict' says nothing of what is declined"):
        expectations(tmp_path, text.replace("known-failure", "declined"))


def test_what_fails_in_another_way_is_written_back(tmp_path: Path) -> None:
    expected = expectations(tmp_path)
    found = [("erfinv[float16]", "crash", "unknown"), ("cumsum[bfloat16]", "error", "unknown")]
    text = updated(expected, [entry(*item, expected) for item in found])
    again = tomllib.loads(text)
    assert "waiver" not in again
    assert [each.get("verdict") for each in again["known-failure"]] == [None, "crash", "error"]
    assert "erfinv[float16]" not in again["known-failure"][0]["cases"]
    now = expectations(tmp_path, text)
    entries = [entry(*item, now) for item in found]
    assert [each["verdict"] for each in entries] == ["expected-failure"] * 2
    assert updated(now, entries) == text


def test_without_a_file_the_host_needs_no_declaration() -> None:
    assert Expectations().verdict(Case("add", "float32"), "pass", "host") == ("pass", None, "")


def test_a_waiver_ends_on_its_day_and_counts_on_its_device(tmp_path: Path) -> None:
    case = Case("cumsum", "bfloat16")
    assert expectations(tmp_path, today=date(2027, 6, 30)).verdict(case, "fail", "native")[0] == "waived"
    verdict, _, problem = expectations(tmp_path, today=date(2027, 7, 1)).verdict(case, "fail", "native")
    assert verdict == "fail"
    assert problem == "the waiver of jo expired on 2027-06-30: sums in bfloat16"
    assert expectations(tmp_path, today=date(2027, 7, 1)).verdict(case, "pass", "native")[0] == "pass"
    other = expectations(tmp_path, device="mychip rev B")
    assert [other.verdict(case, found, "native")[0] for found in ("fail", "pass")] == ["fail", "pass"]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (FILE + "cases = [\n", 21, "Invalid value"),
        (FILE.replace('"_fft*", ', '"_fft*" '), 4, "Unclosed array"),
        (FILE.replace("[[waiver]]", "[[waver]]"), 14, "'waver' is unknown here"),
        (FILE.replace("[[waiver]]", "[waiver]"), 14, "'waiver' is unknown here"),
        ("answer = 42\n" + FILE, 1, "'answer' is unknown here"),
        (FILE.replace("owner", "ower"), 17, "unknown key 'ower'"),
        (FILE.replace('link = "https://mychip.example/12"\n', ""), 14, "'link' is missing"),
        (FILE.replace("2027-06-30", '"2027-06-30"'), 20, "'expires' must be a date without quotes"),
        (FILE.replace("2027-06-30", "2027-06-31"), 20, "Invalid date"),
        (FILE.replace('"two units too many"', '" "'), 12, "'reason' must be a text that is not empty"),
        (FILE.replace('["cumsum[bfloat16]"]', '"cumsum[bfloat16]"'), 15, "'cases' must be a list of texts"),
        (FILE.replace('["cumsum[bfloat16]"]', "[]"), 15, "'cases' must be a list of texts"),
    ],
)
def test_a_bad_file_is_an_error_with_its_line(tmp_path: Path, text: str, line: int, says: str) -> None:
    with pytest.raises(ExpectationsError) as error:
        expectations(tmp_path, text)
    assert says in str(error.value)
    assert str(error.value).startswith(f"{tmp_path / 'expectations.toml'}:{line}: ")


def test_patterns_that_name_no_case_are_stale(tmp_path: Path) -> None:
    assert expectations(tmp_path).stale() == []
    assert expectations(tmp_path, FILE.replace("erfinv", "erfvin")).stale() == ["erfvin"]


def entry(case: str, verdict: str, placement: str, expected: Expectations, message: str = "wrong\nvery") -> dict[str, Any]:
    prim, _, dtype = case.removesuffix("]").partition("[")
    failures = [] if verdict == "pass" else [{"sample": 0, "label": "", "kind": "value", "message": message}]
    outcome = {"verdict": verdict, "placement": placement, "reason": "no kernel", "worst": 1.0, "samples": 1, "compared": 1}
    outcome |= {"fresh": 1, "seconds": 0.0, "failures": failures}
    return report.finished(Result(Case(prim, dtype), outcome, ""), expected, report.Run(Settings("chip")))


def test_what_a_run_found_is_written_back(tmp_path: Path) -> None:
    expected = expectations(tmp_path)
    found = [
        ("sort[float64]", "pass", "native"),
        ("erfinv[float64]", "pass", "native"),
        ("tan[float16]", "pass", "native"),
        ("cumsum[bfloat16]", "fail", "native"),
        ("_fft_r2c[float32]", "pass", "host"),
        ("hypot[float32]", "pass", "host"),
        ("exp[float32]", "fail", "native"),
        ("add[float32]", "pass", "native"),
    ]
    text = updated(expected, [entry(*item, expected) for item in found])
    again = tomllib.loads(text)
    assert again["declined"] == [
        {"cases": ["_fft*"], "reason": "no complex arithmetic"},
        {"cases": ["hypot[float32]"], "reason": "no kernel"},
    ]
    erfinv = [f"erfinv[{dtype}]" for dtype in ("float32", "bfloat16", "float16", "int64", "int32", "uint8", "bool")]
    assert [(sorted(each["cases"]), each["reason"]) for each in again["known-failure"]] == [
        (sorted(erfinv), "two units too many"),
        (["exp[float32]"], "wrong"),
    ]
    assert again["waiver"] == tomllib.loads(FILE)["waiver"]
    assert text.startswith("# what mychip 1.0 lacks\n")
    now = expectations(tmp_path, text)
    assert updated(now, [entry(*item, now) for item in found]) == text, "nothing is left to say"
    assert not any(report.broken(entry(*item, now)) for item in found)


def test_an_empty_file_is_filled_and_then_holds(tmp_path: Path) -> None:
    expected = read(tmp_path / "new.toml")
    entries = [entry("add[float32]", "crash", "unknown", expected, 'a "quote"'), entry("mul[bool]", "pass", "host", expected)]
    assert [each["verdict"] for each in entries] == ["crash", "undeclared-host"]
    text = updated(expected, entries)
    assert tomllib.loads(text) == {
        "known-failure": [{"cases": ["add[float32]"], "reason": 'a "quote"', "verdict": "crash"}],
        "declined": [{"cases": ["mul[bool]"], "reason": "no kernel"}],
    }


def test_declarations_are_counted_in_the_report(tmp_path: Path) -> None:
    expected = expectations(tmp_path)
    entries = [entry("cumsum[bfloat16]", "fail", "native", expected), entry("erfinv[float32]", "fail", "native", expected)]
    counts = report.summarize(entries, [])["verdicts"]
    assert (counts["waived"], counts["expected-failure"], counts["fail"]) == (1, 1, 0)
    assert entries[0]["expectation"]["owner"] == "jo"
