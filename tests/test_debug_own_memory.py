"""Debugging chips with memory of their own: new packages pass every check, and a wrong row of one is found by name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.toys import offer
from tests.without import python_path
from vendor_sdk import debug, repro
from vendor_sdk.cli import main
from vendor_sdk.ir.primgraph import prim_name
from vendor_sdk.scaffold import Route, Scaffold, write

ROOT = Path(__file__).resolve().parents[1]

MODEL = """
import torch

def model(x, y):
    doubled = x * 2
    shifted = doubled.t() - y  # what the chip made, in another order
    return torch.relu(shifted.exp() / shifted.exp().sum(-1, keepdim=True) + shifted.sum(-1, keepdim=True))

torch.manual_seed(0)
x, y = torch.randn(40, 5), torch.randn(40)
torch.compile(model, backend={name!r})(x, y)
"""

WRONG: dict[Route, tuple[str, str, str, str, str]] = {
    "emitter": ("table.py", '"sub": "{0} - {1}"', '"sub": "{1} - {0}"', "emitted", "sub"),
    "kernels": ("kernels.py", "np.multiply(array(x), array(y), out", "np.add(array(x), array(y), out", "kernel", "mul"),
    "graph": ("graph.py", '"mul": np.multiply', '"mul": np.add', "partition", "mul"),
}
"""By route: a file, a row of it, what is wrong there, at what stage and in which prim that shows."""


def ran(script: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, cwd=script.parent,
        env={**os.environ, **environment},
    )  # fmt: skip


@pytest.mark.parametrize("route", WRONG)
def test_a_wrong_row_of_a_new_package_is_found(route: Route, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, right, wrong, stage, prim = WRONG[route]
    name, package, dumps, script = f"own_{route}", tmp_path / "package", tmp_path / "dumps", tmp_path / "model.py"
    write(Scaffold(name, route, "own-memory"), package)
    offer(name, f"{name}.plugin", package)
    script.write_text(MODEL.format(name=name))
    monkeypatch.setenv("PYTHONPATH", python_path(ROOT, package))
    for variable in (debug.DIRECTORY, debug.CHECK, debug.FUEL):
        monkeypatch.delenv(variable, raising=False)

    done = ran(script, {debug.DIRECTORY: str(dumps), debug.CHECK: "1"})
    assert done.returncode == 0, done.stderr
    assert "stopped" not in done.stderr
    (program,) = dumps.glob("*/repro.py")
    done = ran(program, {})
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "all stages agree"), done.stdout + done.stderr

    source = (package / name / file).read_text()
    assert source.count(right) == 1
    (package / name / file).write_text(source.replace(right, wrong))
    done = ran(script, {debug.CHECK: "1"})
    assert re.search(rf"WrongResultError: {name}: stage '{stage}' is the first .*\b{prim}\b", done.stderr), done.stderr
    if route == "emitter":
        assert "wrong when compiled alone too: sub (node sub" in done.stderr
    done = ran(program, {})
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"stage '{stage}'" in done.stdout

    small = tmp_path / "minified.py"
    found = CliRunner().invoke(main, ["minify", "--script", str(script), "--output", str(small), "--json"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["failure"] == f"WrongResultError at stage '{stage}'"
    assert [prim_name(node) for node in repro.read(small).graph().calls()] == [prim]
