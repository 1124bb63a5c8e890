"""The page of a report: one file, safe whatever a vendor's text holds, quick with 20,000 cases, usable from the keyboard."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from conformance import page, report
from tests.test_conformance_reports import made

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
HOSTILE = "</script><script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\"> 'quoted' & \u2028"


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    """Sixteen cases: one fails, with text that tries to leave its place; one is waived."""
    built = made(tmp_path / "report")
    built["cases"][-1]["failures"][0]["message"] = HOSTILE
    built["cases"][-1]["reason"] = HOSTILE
    waiver = {
        "kind": "waiver",
        "cases": ["add[bool]"],
        "reason": HOSTILE,
        "owner": "jo",
        "link": "",
        "devices": [],
        "expires": None,
    }
    next(entry for entry in built["cases"] if entry["id"] == "add[bool]").update(verdict="waived", expectation=waiver)
    built["expectations"] = [waiver]
    built["summary"] = report.summarize(built["cases"], [])
    return built


def test_the_page_needs_nothing_else(document: dict[str, Any]) -> None:
    text = page.html(document)
    for forbidden in ("<link", "src=", "@import", "url(", "fetch(", "XMLHttpRequest", "import("):
        outside = re.sub(r'(?s)<script type="application/json".*?</script>', "", text).replace("img src=x", "")
        assert forbidden not in outside, forbidden
    assert text.count("<script") == 2, "the data and the code"
    data = re.search(r'(?s)<script type="application/json" id="data">(.*?)</script>', text)
    assert data is not None
    unpacked = json.loads(data[1])
    assert len(unpacked["cases"]) == 16
    assert unpacked["more"]["15"]["failures"][0]["message"] == HOSTILE


def test_the_summary_says_what_is_broken(document: dict[str, Any]) -> None:
    text = page.markdown(document)
    assert "## chip 1: claims broken" in text
    assert "| pass | 14 | | native | 14 |" in text
    assert "| `mul[bool]` | fail | &lt;/script>" in text
    right = copy.deepcopy(document)
    right["cases"].pop()
    right["summary"] = report.summarize(right["cases"], [])
    assert "all claims hold" in page.markdown(right)
    for each, colour, words in ((document, "#c22f2f", "87.5% native, claims broken"), (right, "#2e7d4f", "93.3% native")):
        image = ElementTree.fromstring(page.badge(each))
        assert image.get("aria-label") == f"conformance: {words}"
        assert colour in page.badge(each)


DRIVER = """
<script>
const press = key => document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
const said = {};
const told = () => document.getElementById("count").textContent;
said.title = document.title;
said.all = told();
press("/"); said.focus = document.activeElement.id;
const search = document.getElementById("search"); search.value = "mul bool"; search.dispatchEvent(new Event("input"));
said.found = told(); said.link = location.hash;
search.blur(); press("j"); press("Enter");
const detail = document.getElementById("detail"); said.open = detail.textContent; detail.close();
document.getElementById("clear").click(); said.cleared = [told(), location.hash];
const verdict = document.getElementById("verdict"); verdict.value = "waived"; verdict.dispatchEvent(new Event("change"));
said.waived = told();
press("f"); said.failure = document.querySelector("details.at").textContent;
const back = () => getComputedStyle(document.body).backgroundColor, before = back();
press("t"); said.theme = before !== back();
location.hash = "#?q=add&case=add%5Bint64%5D"; restore();
said.deep = [told(), document.querySelector("#detail h3").textContent, detail.open];
document.documentElement.dataset.said = JSON.stringify(said);
</script></body>"""


def browsed(path: Path) -> str:
    assert CHROMIUM is not None
    words = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={path.parent / 'profile'}",
        "--dump-dom",
        f"file://{path}",
    ]
    return subprocess.run([CHROMIUM, *words], capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_the_page_in_a_browser(document: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(page.html(document).replace("</body>", DRIVER))
    shown = browsed(tmp_path / "page.html")
    attribute = re.search(r'data-said="([^"]*)"', shown)
    assert attribute is not None, shown[-3000:]
    said = json.loads(attribute[1].replace("&quot;", '"').replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert said["title"] == "chip 1: conformance", "no text of a vendor's became code"
    assert said["all"] == "16 of 16"
    assert said["focus"] == "search"
    assert (said["found"], said["link"]) == ("1 of 16", "#?q=mul+bool")
    assert said["open"].startswith("mul[bool]verdictfailplacementnative")
    assert HOSTILE[:40] in said["open"]
    assert said["cleared"] == ["16 of 16", ""]
    assert said["waived"] == "1 of 16"
    assert said["failure"].startswith("fail mul[bool]")
    assert said["theme"] is True
    assert said["deep"] == ["8 of 16", "add[int64]", True]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_twenty_thousand_cases_open_quickly(document: dict[str, Any], tmp_path: Path) -> None:
    document["cases"] = [
        {**entry, "prim": f"{entry['prim']}_{number}", "id": f"{entry['prim']}_{number}[{entry['dtype']}]"}
        for number in range(1250)
        for entry in document["cases"]
    ]
    document["summary"] = report.summarize(document["cases"], [])
    (tmp_path / "page.html").write_text(page.html(document))
    assert (tmp_path / "page.html").stat().st_size < 3_000_000
    shown = browsed(tmp_path / "page.html")
    ready = re.search(r'data-ready="(\d+)"', shown)
    assert ready is not None
    assert int(ready[1]) < 5000, "half a second on an idle machine; this one may be busy"
    assert "20000 of 20000" in shown
