"""What docs/found.md lists is so: each program still shows its defect on the version that is listed."""

from __future__ import annotations

import importlib.metadata
import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
ROW = re.compile(r"^\| \[(\w+)\.py\]\(found/\1\.py\) \| (\w+)[^|]*\| ([^ |]+) \|", re.MULTILINE)
LISTED = {name: (package, version) for name, package, version in ROW.findall((DOCS / "found.md").read_text())}


def test_every_program_is_listed() -> None:
    assert set(LISTED) == {path.stem for path in (DOCS / "found").glob("*.py")}


@pytest.mark.parametrize("name", sorted(LISTED))
def test_the_defect_is_there_in_the_version_that_is_listed(name: str) -> None:
    package, version = LISTED[name]
    if package != "gcc":
        pytest.importorskip(package)
    scope = runpy.run_path(str(DOCS / "found" / f"{name}.py"))
    if not scope.get("here", lambda: True)():
        pytest.skip("shows on other machines")
    installed = scope.get("installed", lambda: importlib.metadata.version(package).partition("+")[0])()
    wrong = scope["wrong"]()
    if installed != version:
        pytest.skip(f"{package} {installed}: {wrong or 'mended'}; listed for {version}")
    assert wrong, f"{package} {installed} is right: take it off docs/found.md"
