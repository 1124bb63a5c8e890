"""The report as JUnit XML, which continuous integration reads: a test case for each case, one after the other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import XMLGenerator
from xml.sax.xmlreader import AttributesImpl

from conformance.report import broken

NAME = "junit.xml"
_FORBIDDEN = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 has no way to write (section 2.2)."""


def write(folder: Path, report: Mapping[str, Any]) -> None:
    """Writes ``junit.xml``: a broken claim is a failure; what shows nothing, or fails as it was declared to, is skipped."""
    run, entries = report["run"], report["cases"]
    with (folder / NAME).open("w", encoding="utf-8") as file:
        xml = XMLGenerator(file, "utf-8", short_empty_elements=True)
        xml.startDocument()
        counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
        for entry in entries:
            counts["tests"] += 1
            counts["failures"] += broken(entry)
            counts["skipped"] += _skipped(entry)
        totals = {"name": f"conformance of {run['backend']['name']}", **counts, "time": run["seconds"]}
        _start(xml, "testsuites", totals)
        _start(xml, "testsuite", {**totals, "timestamp": run["date"], "hostname": run["host"]["processor"]})
        for entry in entries:
            _start(xml, "testcase", {"classname": entry["family"], "name": entry["id"], "time": entry["seconds"]})
            if broken(entry):
                _start(xml, "failure", {"message": _first(entry), "type": entry["verdict"]})
                xml.characters(_text(_said(entry)))
                xml.endElement("failure")
            elif _skipped(entry):
                _start(xml, "skipped", {"message": _first(entry), "type": entry["verdict"]})
                xml.endElement("skipped")
            xml.endElement("testcase")
        xml.endElement("testsuite")
        xml.endElement("testsuites")
        xml.endDocument()


def _skipped(entry: Mapping[str, Any]) -> bool:
    return not broken(entry) and entry["verdict"] != "pass"


def _start(xml: XMLGenerator, name: str, attributes: Mapping[str, Any]) -> None:
    xml.startElement(name, AttributesImpl({key: _text(str(value)) for key, value in attributes.items()}))


def _first(entry: Mapping[str, Any]) -> str:
    if entry["expectation"]:
        return f"{entry['verdict']}: {entry['expectation']['reason']}"
    lines = [line for failure in entry["failures"][:1] for line in failure["message"].splitlines()[:1]]
    return ": ".join([entry["verdict"], *(lines or [entry["reason"]] * bool(entry["reason"]))])


def _said(entry: Mapping[str, Any]) -> str:
    """All that went wrong, with the commands that show it again."""
    lines = [entry["reproducer"]]
    for failure in entry["failures"]:
        lines += [f"sample {failure['sample']} ({failure['label']}): {failure['message']}", f"  {failure['reproducer']}"]
    return "\n".join(lines)


def _text(text: str) -> str:
    return _FORBIDDEN.sub("?", text)
