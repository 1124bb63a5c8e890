"""The tutorial, done as it says: files are written, commands run and their outputs compared, in the order of the page.

Only `pip install -e .` is another command here, which leaves the environment of the tests as it is: metadata go to a folder of
their own, and the package is imported from where it is written.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.without import python_path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r'^```(\w+)(?: title="([^",]+)(, more)?")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
ELLIPSIS = re.compile(r"\.\.\.")


def blocks(page: str) -> list[tuple[str, str, str, str]]:
    """(language, file, ", more" where it is appended, text) of each block of code."""
    return BLOCK.findall((ROOT / "docs" / page).read_text())


def commands(text: str) -> list[tuple[str, str]]:
    """(command, output as documented) of a console block."""
    parts = re.split(r"^\$ (.*)\n", text, flags=re.MULTILINE)
    assert not parts[0], f"a console block starts with a command: {parts[0]}"
    return list(zip(parts[1::2], parts[2::2], strict=True))


def follow(page: str, folder: Path) -> int:
    """Does what a page says, in ``folder``; the number of commands."""
    site = folder / ".site"
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": python_path(folder, site, ROOT),
        "VENDOR_SDK_CACHE_DIR": str(folder / ".cache"),
        "COLUMNS": "200",
    }
    install = f"pip install --quiet --no-deps --no-build-isolation --no-index --target {site} ."
    count = 0
    for language, file, more, text in blocks(page):
        if file:
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a" if more else "w") as stream:
                stream.write(text)
        elif language == "console":
            for command, expected in commands(text):
                line = install if command == "pip install -e ." else command
                done = subprocess.run(line, shell=True, cwd=folder, env=environment, capture_output=True, text=True)
                output = done.stdout + done.stderr
                pattern = ".*?".join(map(re.escape, ELLIPSIS.split(expected.strip())))
                assert re.search(pattern, output, re.DOTALL), f"$ {command}\n{output}\n--- expected:\n{expected}"
                count += 1
    return count


def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    assert follow("tutorial.md", tmp_path) == 7
