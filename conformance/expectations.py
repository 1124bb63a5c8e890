"""What a vendor declares about its own backend: declined prims, known failures, waivers. From a TOML file and from the plugin.

    [[declined]]                                  # runs on the host
    cases = ["_fft*", "linalg_*[float64]"]
    reason = "no complex arithmetic"

    [[known-failure]]                             # fails
    cases = ["erfinv[float16]"]
    reason = "two units in the last place too many near 1"

    [[known-failure]]                             # fails in another way than by a wrong result
    cases = ["sort[bool]"]
    reason = "no kernel for bool is linked in"
    verdict = "crash"                             # or "error", "timeout"; "fail" by default

    [[waiver]]                                    # fails, and somebody has allowed it for a time
    cases = ["cumsum[bfloat16]"]
    reason = "sums in bfloat16"
    owner = "jo@mychip.example"
    link = "https://mychip.example/issues/12"
    devices = ["mychip rev A*"]                   # all by default
    expires = 2027-06-30

Declarations are strict both ways: what is declared must be so, and with a file, whatever runs on the host must be declared.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any

from conformance.cases import PRIM, Case, all_cases, every_case, matches

DECLINED, KNOWN_FAILURE, WAIVER = "declined", "known-failure", "waiver"
KINDS = (DECLINED, KNOWN_FAILURE, WAIVER)
RIGHT = ("pass", "slow", "inconclusive")
"""Verdicts of timed cases whose results were right."""
FAIL = "fail"
FAILING = (FAIL, "error", "crash", "timeout")
"""Verdicts that may be declared. A wrong result on the host is a wrong result too."""
KEYS = ("cases", "reason", "verdict", "owner", "link", "devices", "expires")
REQUIRED = {
    DECLINED: ("cases", "reason"),
    KNOWN_FAILURE: ("cases", "reason"),
    WAIVER: ("cases", "reason", "owner", "link", "expires"),
}
HEADER = re.compile(r"^\s*\[\[\s*[\"']?([A-Za-z0-9_-]+)[\"']?\s*\]\]")


class ExpectationsError(ValueError):
    """An expectations file that cannot be used; the message begins with file and line."""


@dataclass(frozen=True)
class Declaration:
    """One table of the file, or one entry of the plugin's hook.

    Attributes:
        kind: one of ``KINDS``.
        cases: case ids or globs; a pattern without brackets means all dtypes.
        verdict: one of ``FAILING``, which it covers and no other; counts but for ``DECLINED``.
        reason, owner, link: as the vendor says; the last two may be empty but for waivers.
        devices: globs of device names, empty for all.
        expires: last day on which it holds, ``None`` for no end.
        number: of the table in its file, from 0; -1 for the plugin's.
    """

    kind: str
    cases: tuple[str, ...]
    reason: str
    owner: str = ""
    link: str = ""
    devices: tuple[str, ...] = ()
    expires: date | None = None
    number: int = -1
    verdict: str = FAIL

    def names(self, case: Case) -> bool:
        return any(_names(pattern, case.id) for pattern in self.cases)

    def record(self) -> dict[str, Any]:
        """As it stands in a report."""
        return {
            "kind": self.kind,
            "cases": list(self.cases),
            "reason": self.reason,
            "verdict": None if self.kind == DECLINED else self.verdict,
            "owner": self.owner,
            "link": self.link,
            "devices": list(self.devices),
            "expires": self.expires.isoformat() if self.expires else None,
        }


@dataclass(frozen=True)
class Expectations:
    """All declarations that count on one device on one day.

    Attributes:
        declarations: of the file, then of the plugin.
        device: name of the device.
        today: the day of the run.
        path: of the file, ``None`` without one.
        text: of the file.
    """

    declarations: Sequence[Declaration] = ()
    device: str = ""
    today: date = field(default_factory=date.today)
    path: Path | None = None
    text: str = ""

    def with_plugin(self, failures: Mapping[str, Mapping[str, str]], device: str) -> Expectations:
        """These, with what a plugin's ``conformance`` hook declares (fields of ``KnownFailure``), on ``device``."""
        more = [
            Declaration(KNOWN_FAILURE, (pattern,), known["reason"], verdict=known["verdict"])
            for pattern, known in failures.items()
        ]
        return Expectations([*self.declarations, *more], device, self.today, self.path, self.text)

    def verdict(self, case: Case, verdict: str, placement: str) -> tuple[str, Declaration | None, str]:
        """What an outcome means under the declarations: the verdict, the declaration that counted, and what is wrong with
        either (``""``)."""
        if verdict in ("empty", "no-samples"):
            return verdict, None, ""
        how = FAIL if verdict == "host-fail" else verdict
        failing = self._find(case, (KNOWN_FAILURE, WAIVER), how)
        if failing is not None and not self.expired(failing):
            if verdict in ("pass", "slow"):
                return "unexpected-pass", failing, ""
            if verdict == "inconclusive":
                return verdict, failing, ""
            if how != failing.verdict:
                return (
                    verdict,
                    failing,
                    f"declared with the verdict {failing.verdict!r} ({failing.reason}), and this is another",
                )
            return ("waived" if failing.kind == WAIVER else "expected-failure"), failing, ""
        if case.kind != PRIM and verdict in RIGHT:
            return verdict, None, ""  # where its prims may run is declared for them
        if verdict not in ("pass", "host-fail"):
            return verdict, failing, self._ended(failing) if failing else ""
        declined = self._find(case, (DECLINED,))
        active = declined if declined and not self.expired(declined) else None
        if active and placement == "native":
            return "unexpected-native", active, f"declared to be declined ({active.reason}), but it runs native"
        if placement == "host" and not active and self.path is not None:
            ended = f"; {self._ended(declined)}" if declined else ""
            return "undeclared-host", declined, f"runs on the host, and {self.path.name} does not declare that{ended}"
        return verdict, active if placement == "host" else None, ""

    def stale(self) -> list[str]:
        """Patterns that name no case of the opset at all."""
        if not self.declarations:
            return []
        ids = [case.id for case in every_case()]
        return [p for each in self.declarations for p in each.cases if not any(_names(p, name) for name in ids)]

    def _find(self, case: Case, kinds: Iterable[str], verdict: str = "") -> Declaration | None:
        """The declaration that counts: what still holds wins over what has expired, one of this verdict over those of others,
        an exact id over a glob."""
        found = [
            each
            for each in self.declarations
            if each.kind in kinds
            and each.names(case)
            and (not each.devices or any(matches(self.device, d) for d in each.devices))
        ]
        return min(
            found, key=lambda each: (self.expired(each), each.verdict != verdict, case.id not in each.cases), default=None
        )

    def expired(self, declaration: Declaration) -> bool:
        """Whether its last day is past."""
        return declaration.expires is not None and self.today > declaration.expires

    def _ended(self, declaration: Declaration) -> str:
        owner = f" of {declaration.owner}" if declaration.owner else ""
        return f"the {declaration.kind}{owner} expired on {declaration.expires}: {declaration.reason}"


def read(path: Path) -> Expectations:
    """The declarations of a file. A file that does not exist declares nothing, strictly.

    Raises:
        ExpectationsError: with ``FILE:LINE:``, for what is no TOML, unknown or missing keys, values of the wrong type.
    """
    try:
        text = path.read_text()
    except FileNotFoundError:
        return Expectations(path=path)
    except (OSError, UnicodeDecodeError) as error:
        raise ExpectationsError(f"{path}: {error}") from error
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"line (\d+)", str(error))
        line = int(found[1]) if found else len(text.splitlines()) or 1
        raise ExpectationsError(f"{path}:{line}: {error}") from error
    lines = text.splitlines()
    starts = [(number, found[1]) for number, line in enumerate(lines) if (found := HEADER.match(line))]

    def fail(line: int, message: str) -> ExpectationsError:
        return ExpectationsError(f"{path}:{line + 1}: {message}")

    for key, tables in content.items():
        if key not in KINDS or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            at = next((n for n, line in enumerate(lines) if re.match(rf"\s*\[*\s*[\"']?{re.escape(key)}\b", line)), 0)
            raise fail(at, f"{key!r} is unknown here; write one of {', '.join(f'[[{kind}]]' for kind in KINDS)}")
    seen = dict.fromkeys(KINDS, 0)
    declarations = []
    for number, (start, kind) in enumerate(starts):
        end = starts[number + 1][0] if number + 1 < len(starts) else len(lines)
        table = content[kind][seen[kind]]
        seen[kind] += 1

        def wrong(key: str, message: str) -> ExpectationsError:
            at = next((n for n in range(start, end) if re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", lines[n])), start)
            return fail(at, f"[[{kind}]]: {message}")

        declarations.append(_declaration(kind, table, number, wrong))
    return Expectations(declarations, path=path, text=text)


def _declaration(
    kind: str, table: Mapping[str, Any], number: int, wrong: Callable[[str, str], ExpectationsError]
) -> Declaration:
    for key in table:
        if key not in KEYS:
            raise wrong(key, f"unknown key {key!r}; the keys are {', '.join(KEYS)}")
    for key in REQUIRED[kind]:
        if key not in table:
            raise wrong("", f"{key!r} is missing")
    for key in ("reason", "owner", "link"):
        if key in table and not (isinstance(table[key], str) and table[key].strip()):
            raise wrong(key, f"{key!r} must be a text that is not empty")
    if "verdict" in table and (kind == DECLINED or table["verdict"] not in FAILING):
        may = "says nothing of what is declined" if kind == DECLINED else f"must be one of {', '.join(FAILING)}"
        raise wrong("verdict", f"'verdict' {may}")
    for key in ("cases", "devices"):
        value = table.get(key, [])
        if (
            not isinstance(value, list)
            or not all(isinstance(item, str) and item for item in value)
            or (key in table and not value)
        ):
            raise wrong(key, f"{key!r} must be a list of texts that is not empty")
    expires = table.get("expires")
    if expires is not None and (not isinstance(expires, date) or isinstance(expires, datetime)):
        raise wrong("expires", "'expires' must be a date without quotes, as 2027-06-30")
    return Declaration(
        kind, tuple(table["cases"]), table["reason"], table.get("owner", ""), table.get("link", ""),
        tuple(table.get("devices", [])), expires, number, table.get("verdict", FAIL),
    )  # fmt: skip


def updated(expectations: Expectations, entries: Iterable[Mapping[str, Any]]) -> str:
    """The text of the file after a run: what did not come true is taken out, what failed or ran on the host is put in.

    What fails in another way than declared is taken out, and put in as it is. Comments and order stay. Declarations of other
    devices, expired ones, and cases that did not run are left alone; a pattern that came true for some cases only is replaced
    by their ids.
    """
    lines = expectations.text.splitlines(keepends=True)
    entries = [entry for entry in entries if entry["verdict"] not in RIGHT]
    ids = [case.id for case in every_case()]
    untrue = {e["id"]: e["verdict"] for e in entries if e["verdict"] in ("unexpected-pass", "unexpected-native")}
    otherwise = [(e["id"], e["expectation"]) for e in entries if e["verdict"] in FAILING and e["expectation"]]
    starts = [number for number, line in enumerate(lines) if HEADER.match(line)]
    blocks = ["".join(lines[a:b]) for a, b in zip(starts, [*starts[1:], len(lines)], strict=False)]
    text = "".join(lines[: starts[0]] if starts else lines)
    for each in expectations.declarations:
        if each.number < 0:
            continue
        verdict = "unexpected-native" if each.kind == DECLINED else "unexpected-pass"
        gone = {name for name, found in untrue.items() if found == verdict}
        if not expectations.expired(each):
            gone |= {name for name, said in otherwise if said == each.record()}
        kept: list[str] = []
        for pattern in each.cases:
            named = [name for name in ids if _names(pattern, name)]
            kept += [pattern] if named and not gone.intersection(named) else [name for name in named if name not in gone]
        if tuple(kept) == each.cases:
            text += blocks[each.number]
        elif kept:
            listed = "cases = [\n" + "".join(f"    {_quoted(item)},\n" for item in dict.fromkeys(kept)) + "]"
            text += re.sub(r"cases\s*=\s*\[(?:[^\]\"']|\"[^\"]*\"|'[^']*')*\]", lambda _: listed, blocks[each.number], count=1)
    groups: dict[tuple[str, str, str], list[str]] = {}
    for entry in entries:
        if entry["verdict"] == "undeclared-host":
            groups.setdefault((DECLINED, _line(entry["reason"]) or "no reason given", FAIL), []).append(entry["id"])
        elif entry["verdict"] in FAILING:
            first = next((f["message"] for f in entry["failures"]), entry["verdict"])
            groups.setdefault((KNOWN_FAILURE, _line(first), entry["verdict"]), []).append(entry["id"])
    for (kind, reason, verdict), ids in groups.items():
        listed = "".join(f"    {_quoted(name)},\n" for name in _by_prim(ids))
        text = text.rstrip("\n") + ("\n\n" if text.strip() else "")
        text += f"[[{kind}]]\ncases = [\n{listed}]\nreason = {_quoted(reason)}\n"
        text += f"verdict = {_quoted(verdict)}\n" if verdict != FAIL else ""
    return text


def _names(pattern: str, case: str) -> bool:
    return matches(case, pattern if "[" in pattern or pattern.endswith("*") else pattern + "[*]")


def _by_prim(ids: Sequence[str]) -> list[str]:
    """Ids, with the prim's name alone where all its dtypes are among them."""
    every: dict[str, list[str]] = {}
    for case in all_cases():
        every.setdefault(case.prim, []).append(case.id)
    short: list[str] = []
    for name in ids:
        prim = name.partition("[")[0]
        short.append(prim if set(every.get(prim, [name])) <= set(ids) else name)
    return list(dict.fromkeys(short))


def _line(text: str) -> str:
    return text.splitlines()[0][:200] if text else ""


def _quoted(text: str) -> str:
    """A basic string of TOML, whose escapes are those of JSON but for what cannot stand in one line of text."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
