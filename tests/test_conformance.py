"""The conformance suite, certified itself: planted bugs are caught by name, and only what was shown is counted."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree

import jsonschema
import pytest
import torch
from click.testing import CliRunner

import vendor_sdk
from conformance import cases, certify, evidence, guards, judge, placements, pool, program, report, resident, subject
from conformance.cases import Case
from conformance.expectations import Expectations
from conformance.pool import Pool, Result, StartError
from conformance.resident import Allowance
from conformance.worker import Settings
from tests.without import python_path
from vendor_sdk.cli import main

ROOT = Path(__file__).resolve().parent.parent
aten = torch.ops.aten

CHIP = '''
"""A chip with a bug of its own in each kernel but "add", "atan" and "tanh"."""
import ctypes, os, time
import numpy
import torch
import vendor_sdk

aten = torch.ops.aten


@vendor_sdk.hookimpl
def backend():
    return vendor_sdk.Backend(name="buggy", version="1.2", dtypes=frozenset({torch.float32, torch.float16, torch.bool}))


def raises(a, b, alpha=1):
    raise RuntimeError("no more registers")


def hangs(x):
    if os.path.exists("go"):
        return exactly(numpy.negative)(x)
    print("entering the endless loop", flush=True)
    while True:
        time.sleep(1)


def modifies(x):
    result = aten.abs.default(x)
    x.zero_()
    return result


cached, buffers = {}, {}


def stale(x):
    return cached.setdefault(tuple(x.shape), aten.sin.default(x)).clone()


def reuses(x):
    return buffers.setdefault(tuple(x.shape), torch.empty_like(x)).copy_(aten.cos.default(x))


def aborts_on_scalars(a, b):
    if a.dim() == 0:
        os.abort()
    return aten.maximum.default(a, b)


def exactly(function):
    def kernel(*operands):
        dtypes = [x.dtype for x in operands if isinstance(x, torch.Tensor)]
        with numpy.errstate(all="ignore"):
            values = function(*(x.double().numpy() if isinstance(x, torch.Tensor) else x for x in operands))
        return torch.from_numpy(numpy.array(values)).to(max(dtypes, key=lambda dtype: dtype.itemsize))
    return kernel


def writes_behind(x):
    result = torch.empty(x.shape, dtype=x.dtype).copy_(torch.from_numpy(numpy.floor(x.numpy())))
    ctypes.memset(result.data_ptr() + result.nbytes, 1, 4)
    return result


@vendor_sdk.hookimpl
def kernels():
    return {
        "add": exactly(numpy.add),
        "atan": exactly(numpy.arctan),
        "tanh": exactly(numpy.tanh),
        "floor": writes_behind,
        "ceil": lambda x: torch.empty(x.shape, dtype=x.dtype),
        "erf": aten.erf.default,
        "mul": lambda a, b: torch.zeros_like(aten.mul.Tensor(a, b)),
        "sub": raises,
        "maximum": aborts_on_scalars,
        "reciprocal": lambda x: os._exit(0),
        "neg": hangs,
        "abs": modifies,
        "sin": stale,
        "cos": reuses,
        "sqrt": lambda x: aten.sqrt.default(x).double(),
        "log": lambda x: exactly(numpy.log)(x).reshape(-1),
        "exp": lambda x: aten.exp.default(x).half().to(x.dtype),
        "minimum": lambda a, b: aten.minimum.default(a, b) + 1,
    }


@vendor_sdk.hookimpl
def supports(node):
    return vendor_sdk.Decline("the erf unit is fused off") if node.prim == "erf" else None


@vendor_sdk.hookimpl
def conformance():
    return {"minimum[float32]": "adds one, see ticket 7", "tanh[*]": "was thought to fail", "gather[float99]": "no such dtype"}
'''


DECLARES_LESS = '"tanh[*]": "was thought to fail", "gather[float99]": "no such dtype"', ""
DECLARES_NOTHING = 'return {"minimum[float32]": "adds one, see ticket 7", ' + DECLARES_LESS[0], "return {"


@dataclass(frozen=True)
class Finished:
    status: int
    text: str
    folder: Path

    @property
    def report(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.folder / "report.json").read_text())
        return loaded

    def entry(self, case: str) -> dict[str, Any]:
        return next(entry for entry in self.report["cases"] if entry["id"] == case)


def command(folder: Path, *words: str) -> Finished:
    """``vendor-sdk WORDS`` in ``folder``, in this process: another one would first spend three seconds on imports."""
    environment = {"PYTHONPATH": python_path(ROOT), "COLUMNS": "200"}
    with contextlib.chdir(folder), mock.patch.dict(os.environ, environment):
        done = CliRunner().invoke(main, words, prog_name="vendor-sdk")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Finished(done.exit_code, done.output, folder / "out")


@pytest.fixture(scope="module")
def buggy(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("buggy")
    (folder / "chip.py").write_text(CHIP)
    prims = "add,atan,tanh,erf,mul,sub,maximum,reciprocal,neg,abs,sin,cos,sqrt,log,exp,minimum,floor,ceil"
    return command(
        folder, "conformance", "--backend", "buggy", "--plugin", "chip.py", "--prims", prims, "--dtypes", "float32",
        "--seed", "3", "--timeout", "4", "-n", "2", "--output", "out",
    )  # fmt: skip


def test_a_run_with_broken_claims_exits_with_one(buggy: Finished) -> None:
    assert buggy.status == 1, buggy.text
    assert "claims broken" in buggy.text
    assert not buggy.report["summary"]["claims_hold"]


@pytest.mark.parametrize(
    ("prim", "verdict", "kind", "says"),
    [
        ("mul", "fail", "value", "0.0 at"),
        ("exp", "fail", "value", "times the allowed error"),
        ("sin", "fail", "second-call", "second call, other values"),
        ("cos", "fail", "overwritten", "overwrote the results of the first"),
        ("abs", "fail", "input-modified", "an input tensor was modified"),
        ("sub", "error", "exception", "no more registers"),
        ("sqrt", "error", "exception", "torch.float64"),
        ("log", "error", "exception", "log"),
        ("maximum", "crash", "crash", "SIGABRT"),
        ("reciprocal", "crash", "crash", "exited with status 0"),
        ("neg", "timeout", "timeout", "no result within 4 s"),
        ("floor", "crash", "crash", "the heap is corrupt"),
        ("ceil", "fail", "value", "-1.69"),
    ],
)
def test_a_planted_bug_is_caught_by_the_check_meant_for_it(
    buggy: Finished, prim: str, verdict: str, kind: str, says: str
) -> None:
    entry = buggy.entry(f"{prim}[float32]")
    assert entry["verdict"] == verdict, entry
    assert {failure["kind"] for failure in entry["failures"]} == {kind}, entry["failures"]
    assert says in entry["failures"][0]["message"]
    assert entry["failures"][0]["reproducer"] in buggy.text


def test_a_right_kernel_passes_as_native_beside_the_crashing_ones(buggy: Finished) -> None:
    for prim in ("add", "atan"):
        entry = buggy.entry(f"{prim}[float32]")
        assert (entry["verdict"], entry["placement"], entry["failures"]) == ("pass", "native", [])
        assert entry["samples"]["compared"] > 0
        assert entry["samples"]["second_call"] > 0
    assert buggy.entry("atan[float32]")["worst_error"] > 0


def test_the_host_is_not_coverage_and_gives_the_vendors_reason(buggy: Finished) -> None:
    entry = buggy.entry("erf[float32]")
    assert (entry["verdict"], entry["placement"], entry["reason"]) == ("pass", "host", "the erf unit is fused off")
    summary = buggy.report["summary"]
    assert summary["passed_by_placement"] == {"native": 2, "host": 1}
    assert summary["native_passed"] == 2
    assert summary["coverage"] == round(2 / 18, 6)
    assert "the erf unit is fused off" in buggy.text


def test_expected_failures_are_strict_both_ways(buggy: Finished) -> None:
    assert buggy.entry("minimum[float32]")["verdict"] == "expected-failure"
    assert buggy.entry("tanh[float32]")["verdict"] == "unexpected-pass"
    assert buggy.report["summary"]["stale_expectations"] == ["gather[float99]"]
    assert "gather[float99]: names no case" in buggy.text


def test_the_log_of_a_hang_shows_what_was_printed_and_where_it_hangs(buggy: Finished) -> None:
    path = buggy.entry("neg[float32]")["log"]
    assert path is not None
    log = (buggy.folder / path).read_text()
    assert "entering the endless loop" in log
    assert "in hangs" in log, "the stack at the time of the kill"


def test_a_worker_leaves_a_device_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []
    monkeypatch.setattr(os, "_exit", left.append)
    certify._leave_a_lost_device(torch.device("cpu"))
    assert not left
    certify._leave_a_lost_device(torch.device("meta"))  # on which nothing can be read
    assert left == [pool.LOST_DEVICE]
    assert pool._ending(pool.LOST_DEVICE) == "lost the device"


AHEAD = (
    CHIP.partition("@vendor_sdk.hookimpl\ndef kernels")[0]
    + """
import threading


def note(what):
    with open("notes", "a") as file:
        file.write(what + " ")


def noted(name, function):
    def kernel(x):
        note("run:" + name)
        time.sleep(0.05)
        return exactly(function)(x)
    return kernel


def breaks():
    time.sleep(0.3)
    os.abort()


@vendor_sdk.hookimpl
def kernels():
    return {"sin": noted("sin", numpy.sin), "cos": noted("cos", numpy.cos), "tan": lambda x: time.sleep(2) or aten.tan(x)}


@vendor_sdk.hookimpl
def supports(node):
    note("compile:" + node.prim)
    if node.prim == "tan":
        threading.Thread(target=breaks, daemon=True).start()
"""
)
"""A chip that notes when it compiles and when it runs, and whose compiler of "tan" ends the process from the background."""


def test_an_option_that_is_given_twice_selects_both(tmp_path: Path) -> None:
    words = ["--prims", "sin", "--prims", "cos,tan", "--dtypes", "float32", "--dtypes", "float64", "--effort", "quick"]
    done = command(tmp_path, "conformance", "--backend", "cpp_cpu", *words, "-n", "1", "--output", "out")
    assert done.status == 0, done.text
    cases = json.loads((tmp_path / "out" / "report.json").read_text())["cases"]
    assert {(case["prim"], case["dtype"]) for case in cases} == set(product(("sin", "cos", "tan"), ("float32", "float64")))
    suite = [sys.executable, "-m", "pytest", "-q", "--pyargs", "conformance", "--backend", "cpp_cpu", "--collect-only"]
    listed = subprocess.run([*suite, *words], capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False)
    assert all(f"{prim}-{dtype}" in listed.stdout for prim in ("sin", "cos", "tan") for dtype in ("float32", "float64")), listed


def test_cases_are_compiled_while_earlier_ones_have_not_run_yet(tmp_path: Path) -> None:
    (tmp_path / "chip.py").write_text(AHEAD)
    words = ["--prims", "sin,cos", "--dtypes", "float32", "--effort", "quick", "-n", "1", "--output", "out"]
    done = command(tmp_path, "conformance", "--backend", "buggy", "--plugin", "chip.py", *words)
    assert done.status == 0, done.text
    order = list(dict.fromkeys((tmp_path / "notes").read_text().split()))
    assert order == ["compile:cos", "compile:sin", "run:cos", "run:sin"]


def test_a_crash_in_the_background_is_that_of_the_case_that_caused_it(tmp_path: Path) -> None:
    (tmp_path / "chip.py").write_text(AHEAD)
    words = ["--prims", "sin,cos,tan", "--dtypes", "float32", "--effort", "quick", "-n", "1", "--output", "out"]
    done = command(tmp_path, "conformance", "--backend", "buggy", "--plugin", "chip.py", *words)
    assert done.status == 1, done.text
    verdicts = {entry["prim"]: entry["verdict"] for entry in done.report["cases"]}
    assert verdicts == {"sin": "pass", "cos": "pass", "tan": "crash"}


GREEDY = (
    CHIP.partition("@vendor_sdk.hookimpl\ndef kernels")[0]
    + """
def takes(x):
    kept = []
    while True:
        kept.append(numpy.ones(1 << 24))


@vendor_sdk.hookimpl
def kernels():
    return {"sin": exactly(numpy.sin), "cos": takes, "tan": exactly(numpy.tan)}
"""
)
"""A chip whose "cos" takes memory without end."""
FEW = resident.Allowance(1 << 30, "as the test says")


@pytest.mark.skipif(not resident.resident(os.getpid()), reason="the system does not say what a process holds")
def test_a_case_that_takes_all_memory_is_a_crash_and_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "chip.py").write_text(GREEDY)
    results: dict[str, Result] = {}
    settings = Settings("buggy", (str(tmp_path / "chip.py"),), "quick", 3)
    workers = Pool(settings, 1, 60, tmp_path, None, lambda result: results.update({result.case.prim: result}), memory=FEW)
    try:
        workers.submit(Case(prim, "float32") for prim in ("sin", "cos", "tan"))
        while workers.step():
            pass
    finally:
        workers.close()
    assert {prim: result.outcome["verdict"] for prim, result in results.items()} == {
        "sin": "pass",
        "cos": "crash",
        "tan": "pass",
    }
    (failure,) = results["cos"].outcome["failures"]
    assert (failure["kind"], failure["sample"]) == ("crash", 0)
    assert re.fullmatch(
        r"the worker process took \d+\.\d GiB beside 0\.\d GiB that it held before and was ended "
        r"\(a case may take 1\.0 GiB, as the test says\)",
        failure["message"],
    )


@pytest.mark.skipif(not resident.resident(os.getpid()), reason="the system does not say what a process holds")
def test_no_case_answers_for_the_memory_that_others_left(tmp_path: Path) -> None:
    """Of eight parts of what a case may take, "sin" keeps three; then "cos" takes seven, which is no fault."""
    keeps = "kept = {}\n\n\ndef keeps(function):\n    def kernel(x):\n        if function not in kept:\n"
    keeps += "            kept[function] = numpy.ones((7 if function is numpy.cos else 3) << 24)\n"
    keeps += "            if function is numpy.cos:\n                kept[function] = None\n"
    keeps += "        return exactly(function)(x)\n    return kernel\n"
    kernels = ", ".join(f'"{name}": keeps(numpy.{name})' for name in ("sin", "cos", "tan", "exp"))
    hook = f"\n\n@vendor_sdk.hookimpl\ndef kernels():\n    return {{{kernels}}}\n"
    (tmp_path / "chip.py").write_text(CHIP.partition("@vendor_sdk.hookimpl\ndef kernels")[0] + keeps + hook)
    verdicts: dict[str, str] = {}
    settings = Settings("buggy", (str(tmp_path / "chip.py"),), "quick", 3)
    workers = Pool(
        settings, 1, 60, tmp_path, None, lambda done: verdicts.update({done.case.prim: done.outcome["verdict"]}), memory=FEW
    )
    try:
        workers.submit(Case(prim, "float32") for prim in ("sin", "cos", "tan", "exp"))
        while workers.step():
            pass
    finally:
        workers.close()
    assert verdicts == dict.fromkeys(("sin", "cos", "tan", "exp"), "pass")


def test_workers_share_half_of_the_memory_that_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "CGROUP", tmp_path)
    monkeypatch.setattr(resident, "_bytes", lambda file, name: 64 << 30)

    def allowed(workers: int) -> int:
        found = resident.allowance(workers)
        assert found is not None
        return found.bytes

    assert allowed(2) == 16 << 30
    assert allowed(100) == resident.LEAST
    assert resident.allowance(2) == resident.Allowance(
        16 << 30, "1/4 of the 64.0 GiB that were available when the suite's workers started"
    )
    (tmp_path / "memory.current").write_text(str(8 << 30))
    (tmp_path / "memory.max").write_text(str(40 << 30))
    assert allowed(2) == 8 << 30, "of a container"
    (tmp_path / "memory.max").write_text("max")
    assert allowed(2) == 16 << 30


TOGETHER = (
    CHIP.partition("@vendor_sdk.hookimpl\ndef kernels")[0]
    + """
waiting = set()


def alone(function):
    def kernel(x):
        if len(waiting) > 1:
            os.abort()
        waiting.clear()
        return exactly(function)(x)
    return kernel


@vendor_sdk.hookimpl
def kernels():
    return {"sin": alone(numpy.sin), "cos": alone(numpy.cos)}


@vendor_sdk.hookimpl
def supports(node):
    waiting.add(node.prim)
"""
)
"""A chip on which a program runs only while no other waits to be run."""


def test_a_crash_that_no_case_causes_alone_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "chip.py").write_text(TOGETHER)
    words = ["--prims", "sin,cos", "--dtypes", "float32", "--effort", "quick", "-n", "1", "--output", "out"]
    done = command(tmp_path, "conformance", "--backend", "buggy", "--plugin", "chip.py", *words)
    assert done.status == 1, done.text
    assert sorted(entry["verdict"] for entry in done.report["cases"]) == ["crash", "pass"]
    (crash,) = (failure for entry in done.report["cases"] for failure in entry["failures"])
    assert "with 1 other cases begun; none does alone" in crash["message"]


def test_a_crash_names_the_sample_and_its_reproducer_crashes(buggy: Finished) -> None:
    (failure,) = buggy.entry("maximum[float32]")["failures"]
    sample = cases.draw(Case("maximum", "float32"), vendor_sdk.Effort.STANDARD, 3)[failure["sample"]]
    assert sample.args[0].dim() == 0
    again = command(buggy.folder.parent, *shlex.split(failure["reproducer"])[1:])
    assert again.status == 1
    assert "SIGABRT" in again.text


def test_a_reproducer_shows_the_same_wrong_value(buggy: Finished) -> None:
    failure = buggy.entry("exp[float32]")["failures"][0]
    before = (buggy.folder / "report.json").read_bytes()
    again = command(buggy.folder.parent, *shlex.split(failure["reproducer"])[1:])
    assert again.status == 1
    assert failure["message"] in again.text
    assert (buggy.folder / "report.json").read_bytes() == before, "a reproducer leaves the report alone"


def test_the_report_meets_its_schema(buggy: Finished) -> None:
    validator = jsonschema.Draft202012Validator(report.schema())
    validator.check_schema(report.schema())
    validator.validate(buggy.report)
    run = buggy.report["run"]
    assert run["backend"]["name"] == "buggy"
    assert run["versions"]["torch"] == torch.__version__
    assert (run["seed"], run["effort"], run["workers"]) == (3, "standard", 2)
    changed = buggy.report
    changed["cases"][0]["verdict"] = "splendid"
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(changed)


def test_junit_counts_as_the_report_does(buggy: Finished) -> None:
    (suite,) = ElementTree.parse(buggy.folder / "junit.xml").getroot().iter("testsuite")
    broken = sum(report.broken(entry) for entry in buggy.report["cases"])
    assert int(suite.get("tests", 0)) == len(buggy.report["cases"]) == 18
    assert int(suite.get("failures", 0)) == broken == 14
    assert int(suite.get("skipped", 0)) == 1, "the expected failure"


def test_claims_that_hold_exit_with_zero_in_pytest_too(tmp_path: Path) -> None:
    (tmp_path / "chip.py").write_text(CHIP.replace(*DECLARES_LESS))
    words = ["--backend", "buggy", "--plugin", "chip.py", "--prims", "add,minimum", "--dtypes", "float32", "--effort", "quick"]
    pytest_words = ["-p", "no:cacheprovider", "--workers", "1", "--output", "out"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--pyargs", "conformance", *pytest_words, *words],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": python_path(ROOT)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 1 xfailed" in done.stdout
    assert "native coverage 50.0%" in done.stdout
    jsonschema.validate(json.loads((tmp_path / "out" / "report.json").read_text()), report.schema())


OPTIONAL = """
import numpy
import torch
import vendor_sdk


@vendor_sdk.hookimpl
def backend():
    units = vendor_sdk.Option(default="all", choices=("all", "few"), help="which units compute")
    return vendor_sdk.Backend(name="optional", version="1", dtypes=frozenset({torch.float32}), options={"units": units})


@vendor_sdk.hookimpl
def supports(node, options):
    return vendor_sdk.Decline("few units have no sine") if options["units"] == "few" and node.prim == "sin" else None


@vendor_sdk.hookimpl
def kernels():
    return {"sin": by(numpy.sin), "cos": by(numpy.cos)}


def by(function):
    return lambda x: torch.from_numpy(numpy.array(function(x.double().numpy()))).to(x.dtype)
"""


def test_a_backend_is_certified_with_options(tmp_path: Path) -> None:
    (tmp_path / "chip.py").write_text(OPTIONAL)
    chip = ["--backend", "optional", "--plugin", "chip.py"]
    words = ["conformance", *chip, "--prims", "sin,cos", "--dtypes", "float32", "--effort", "quick", "--output", "out"]
    done = command(tmp_path, *words, "--option", "units=few")
    assert done.status == 0, done.text
    assert {each: done.entry(f"{each}[float32]")["placement"] for each in ("sin", "cos")} == {"sin": "host", "cos": "native"}
    jsonschema.validate(done.report, report.schema())
    assert done.report["run"]["options"] == ["units=few"]
    assert "--option units=few" in done.entry("sin[float32]")["reproducer"]
    verified = command(tmp_path, "report", "verify", "out", "--rerun", "2")
    assert verified.status == 0, verified.text
    kept = command(tmp_path, "report", "extract", "out", "kept.json")
    assert kept.status == 0, kept.text
    page = command(tmp_path, "report", "side-by-side", "kept.json")
    assert "| options | `units=few` |" in page.text


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("units", "no KEY=VALUE"),
        ("units=most", "most"),
        ("engines=2", "engines"),
        ("fallback=error", "runs on the host"),
    ],
)
def test_options_that_a_backend_does_not_have_are_refused(tmp_path: Path, option: str, said: str) -> None:
    (tmp_path / "chip.py").write_text(OPTIONAL)
    done = command(tmp_path, "conformance", "--backend", "optional", "--plugin", "chip.py", "--option", option)
    assert done.status == 4, done.text
    assert said in done.text
    assert "Traceback" not in done.text
    assert not done.folder.exists()


def test_a_run_writes_its_expectations_and_holds_numerics_against_declarations(tmp_path: Path) -> None:
    declared_numerics = (
        'version="1.2", numerics={"mul float32 subnormals": "kept", "add float32 rounding": "nearest, ties to even"}'
    )
    (tmp_path / "chip.py").write_text(CHIP.replace('version="1.2"', declared_numerics))
    words = ["--backend", "buggy", "--plugin", "chip.py", "--prims", "add,sub,erf", "--dtypes", "float32", "--effort", "quick"]
    words += ["-n", "1", "--output", "out", "--expectations", "chip.toml"]
    first = command(tmp_path, "conformance", *words, "--update-expectations", "--numerics")
    assert first.status == 1, first.text
    assert first.report["summary"]["numerics_disagree"] == ["mul float32 subnormals"]
    assert "numerics mul float32 subnormals: declared 'kept', found 'flushed'" in first.text
    jsonschema.validate(first.report, report.schema())
    assert first.entry("erf[float32]")["verdict"] == "undeclared-host"
    declared = tomllib.loads((tmp_path / "chip.toml").read_text())
    assert declared["declined"] == [{"cases": ["erf[float32]"], "reason": "the erf unit is fused off"}]
    assert [table["cases"] for table in declared["known-failure"]] == [["sub[float32]"]]
    (tmp_path / "chip.toml").write_text("[[declined]]\ncases = 'erf'\n")
    bad = command(tmp_path, "conformance", *words)
    assert bad.status == 4, bad.text
    assert "chip.toml:1: [[declined]]: 'reason' is missing" in bad.text


def test_torchs_own_errors_on_the_host_break_no_claim(tmp_path: Path) -> None:
    plugin = tmp_path / "nothing.py"
    plugin.write_text(CHIP.split("def raises")[0].replace('"buggy"', '"nothing"').replace("torch.float16", "torch.bfloat16"))
    words = ["--backend", "nothing", "--plugin", str(plugin), "--effort", "quick", "--seed", "3", "-n", "1", "--output", "out"]
    done = command(tmp_path, "conformance", *words, "--prims", "prod,_embedding_bag,neg", "--dtypes", "bfloat16")
    assert done.status == 0, done.text
    entries = done.report["cases"]
    assert {entry["prim"]: entry["verdict"] for entry in entries} == {
        "prod": "host-fail",
        "_embedding_bag": "host-fail",
        "neg": "pass",
    }
    assert {failure["kind"] for entry in entries for failure in entry["failures"]} == {"torch"}


def test_a_long_log_keeps_its_ends(tmp_path: Path) -> None:
    """A failing program is printed before its inputs, which may be millions of numbers."""
    long = "program\n" + "7, " * pool.LOG_ENDS + "\nverdict\n"
    (tmp_path / "log").write_text("before\n" + long + "after\n")
    found = pool._read(tmp_path / "log", [(0, 7), (7, 7 + len(long)), (5, 5)])
    assert found.startswith("before\nprogram\n7, 7, ")
    assert found.endswith("7, \nverdict\n")
    assert f"\n[{len(long) - 2 * pool.LOG_ENDS:,} bytes left out]\n" in found
    assert len(found) < 2 * pool.LOG_ENDS + 50


def test_an_empty_result_is_no_pass(tmp_path: Path) -> None:
    drawn = cases.draw(Case("add", "float32"), vendor_sdk.Effort.STANDARD, 0)
    empty = next(i for i, sample in enumerate(drawn) if any(t.numel() == 0 for t in program.tensors(sample)))
    words = ["--prims", "add", "--dtypes", "float32", "--seed", "0", "--sample", str(empty), "-n", "1", "--output", "out"]
    done = command(tmp_path, "conformance", "--backend", "torch:eager", *words)
    assert done.status == 5, done.text
    assert done.entry("add[float32]")["verdict"] == "empty"
    assert done.report["summary"]["verdicts"]["pass"] == 0
    assert "nothing was shown" in done.text


def test_a_torch_compile_backend_is_judged_with_unknown_placement(tmp_path: Path) -> None:
    (tmp_path / "zeros.py").write_text(
        "import torch\n"
        "def zeros(module, inputs):\n"
        "    return lambda *args: [torch.zeros_like(result) for result in module(*args)]\n"
        "torch._dynamo.register_backend(zeros, 'zeros')\n"
    )
    words = ["--prims", "add,mm,view", "--dtypes", "float32,int64", "--effort", "quick", "-n", "1", "--output", "out"]
    good = command(tmp_path, "conformance", "--backend", "torch:eager", *words)
    assert good.status == 0, good.text
    assert good.report["summary"]["passed_by_placement"] == {"opaque": good.report["summary"]["cases"]}
    assert good.report["summary"]["coverage"] == 0
    bad = command(tmp_path, "conformance", "--backend", "torch:zeros", "--plugin", "zeros.py", *words)
    assert bad.status == 1, bad.text
    assert {entry["verdict"] for entry in bad.report["cases"]} == {"fail"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--backend", "nosuchchip"], "nosuchchip"),
        (["--backend", "torch:nosuchcompiler"], "torch.compile knows no backend 'nosuchcompiler'"),
        (["--backend", "torch:eager", "--prims", "nosuchprim"], "no prim of the opset matches 'nosuchprim'"),
        # Globs are looked at before anything of the vendor's is loaded.
        (
            ["--backend", "torch:eager", "--plugin", "dies.py", "--prims", "softmax"],
            "softmax is made of amax, sub, exp, sum, div;",
        ),
        (["--backend", "torch:eager", "--prims", "hardswish"], "hardswish is an operator of torch that becomes prims"),
        (["--backend", "torch:eager", "--dtypes", "float31"], "unknown dtype 'float31'"),
        (["--backend", "torch:eager", "--plugin", "dies.py"], "was killed by SIGABRT while it loaded the backend"),
    ],
)
def test_wrong_usage_exits_with_four_and_says_why(tmp_path: Path, words: list[str], says: str) -> None:
    (tmp_path / "dies.py").write_text("import os\nos.abort()\n")
    done = command(tmp_path, "conformance", *words, "-n", "1", "--output", "out")
    assert done.status == 4, done.text
    assert says in done.text


def test_an_interrupted_run_keeps_what_has_finished_and_is_resumed(tmp_path: Path) -> None:
    (tmp_path / "chip.py").write_text(CHIP.replace(*DECLARES_NOTHING))
    words = ["--backend", "buggy", "--plugin", "chip.py", "--prims", "add,neg", "--dtypes", "float32", "-n", "1"]
    # A shell has its background jobs ignore interrupts, and so would this process.
    heeding = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    run = heeding + "runpy.run_module('conformance.cli', run_name='__main__')"
    with subprocess.Popen(
        [sys.executable, "-c", run, *words, "--timeout", "60", "--output", "out"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": python_path(ROOT)}, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("1/2"):  # "add" is done; "neg" hangs
                process.send_signal(signal.SIGINT)
                break
        process.communicate(timeout=60)
    assert process.returncode == 2
    made = json.loads((tmp_path / "out" / "report.json").read_text())
    assert made["run"]["interrupted"]
    assert [entry["id"] for entry in made["cases"]] == ["add[float32]"]
    jsonschema.validate(made, report.schema())
    (tmp_path / "go").touch()
    done = command(tmp_path, "conformance", *words, "--timeout", "60", "--output", "out", "--resume")
    assert done.status == 0, done.text
    assert "resumed: 1 cases are done" in done.text
    assert done.report["cases"][0] == made["cases"][0]
    assert (done.report["run"]["seed"], done.report["run"]["interrupted"]) == (made["run"]["seed"], False)
    assert {entry["verdict"] for entry in done.report["cases"]} == {"pass"}
    forged = done.report
    forged["cases"][1]["placement"] = "view"
    forged["summary"] = report.summarize(forged["cases"], [])
    report.write(done.folder, evidence.sealed(forged, done.folder))
    verified = command(tmp_path, "report", "verify", "out", "--rerun", "2", "-n", "1")
    assert verified.status == 1, verified.text
    assert "right are schema, digests, completeness" in verified.text
    assert "neg[float32]: placement is 'view' in the report and 'native' here" in verified.text
    assert "add[float32]:" not in verified.text


def test_a_backend_that_loads_no_more_ends_the_run(tmp_path: Path) -> None:
    once = "flag = __file__ + '.loaded'\nassert not os.path.exists(flag), 'licence gone'\nopen(flag, 'w').close()\n"
    (tmp_path / "chip.py").write_text(CHIP + once)
    words = ["--prims", "add,reciprocal,sub", "--dtypes", "float32", "-n", "1", "--output", "out"]
    done = command(tmp_path, "conformance", "--backend", "buggy", "--plugin", "chip.py", *words)
    assert done.status == 4, done.text
    assert "the backend does not load any more: AssertionError: licence gone" in done.text
    assert re.search(r"\d of \d cases have a result, kept in out: the same command with --resume runs the rest", done.text)
    assert done.report["run"]["interrupted"]
    assert not done.report["summary"]["claims_hold"]


def test_a_backend_that_refuses_to_load_is_a_start_error(tmp_path: Path) -> None:
    pool = Pool(Settings("nosuchchip"), 1, 10, tmp_path)
    with pytest.raises(StartError, match="nosuchchip"):
        pool.describe()
    pool.close()


KILLED = """
starts = __file__ + '.starts'
with open(starts, 'a') as file:
    file.write('.')
if os.path.getsize(starts) in %s:
    os.kill(os.getpid(), 9)
"""
"""Somebody ends the process while it loads the chip, at these of its starts."""


def test_a_worker_that_is_killed_while_it_loads_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "chip.py").write_text(CHIP + KILLED % "(1, 3)")
    words = ["--prims", "add,atan,sub", "--dtypes", "float32", "--effort", "quick", "-n", "1", "--output", "out"]
    done = command(tmp_path, "conformance", "--backend", "buggy", "--plugin", "chip.py", *words)
    assert "error: " not in done.text, done.text
    assert len(done.report["cases"]) == 3
    assert not done.report["run"]["interrupted"]


def test_workers_that_are_always_killed_while_they_load_say_what_is_known(tmp_path: Path) -> None:
    (tmp_path / "chip.py").write_text(CHIP + KILLED % "range(99)")
    pool = Pool(Settings("buggy", (str(tmp_path / "chip.py"),)), 1, 10, tmp_path, memory=Allowance(8 << 30, "given"))
    with pytest.raises(StartError) as caught:
        pool.describe()
    text = str(caught.value)
    assert text.startswith(
        "the worker process was killed by SIGKILL while it loaded the backend (by somebody else, for instance"
    )
    assert (
        "the suite's own limits, 300 s and 8.0 GiB, were not reached), and printed nothing\nSo did 2 others before it" in text
    )
    assert (tmp_path / "chip.py.starts").read_text() == "..."


def test_ids_match_literally_and_by_star() -> None:
    def reason(declared: dict[str, str]) -> str | None:
        expected = {pattern: {"reason": why, "verdict": "fail"} for pattern, why in declared.items()}
        found = Expectations().with_plugin(expected, "chip").verdict(Case("erfinv", "float16"), "fail", "native")[1]
        return found.reason if found else None

    assert reason({"erfinv[float16]": "why"}) == "why"
    assert reason({"erf*[float16]": "why"}) == "why"
    assert reason({"erfinv[float1?]": "why"}) == "why"
    assert reason({"erfinvf": "a bracket expression would match", "erf[float16]": "other prim"}) is None
    assert reason({"*": "any", "erfinv[float16]": "exact wins"}) == "exact wins"


def test_every_prim_and_dtype_of_the_opset_is_a_case() -> None:
    wanted = {(row.name, dtype) for row in vendor_sdk.OPSET.values() for dtype in row.dtypes if dtype in vendor_sdk.STORED}
    found = [(case.prim, cases.DTYPES[case.dtype]) for case in cases.select() if case.kind == "prim"]
    assert len(found) == len(set(found))
    assert set(found) == wanted


def test_all_float32_inputs_are_in_the_parts(tmp_path: Path) -> None:
    chosen = cases.Selection(["exp"], dtypes=["float32"], effort="exhaustive").cases()
    assert [case.id for case in chosen[:2]] == ["exp[float32]", "exhaustive/exp-1[float32]"]
    assert len(chosen) == 1 + cases.PARTS
    assert not any(case.kind == "exhaustive" for case in cases.Selection(["exp"], effort="full").cases())
    bits = []
    for case in (chosen[1], chosen[2], chosen[-1]):
        (sample,) = cases.draw(case, vendor_sdk.Effort.FULL, 5)
        found = sample.args[0].view(torch.int32).sort().values
        assert found.unique().numel() == found.numel() == 2**32 // cases.PARTS
        bits.append((int(found[0]), int(found[-1])))
    assert bits[0][0] == -(2**31)
    assert bits[0][1] + 1 == bits[1][0]
    assert bits[2][1] == 2**31 - 1
    assert {"abs", "exp", "tanh", "erfinv", "sqrt"} <= set(cases.swept())


def test_a_wrong_part_of_all_inputs_is_found(tmp_path: Path) -> None:
    wrong = "torch.where(x == 3.0000002384185791, 2 * x, torch.neg(x))"
    (tmp_path / "onewrong.py").write_text(
        "import torch\nfrom torch._dynamo import register_backend\n"
        "@register_backend\ndef onewrong(module, inputs):\n"
        "    def run(*tensors):\n"
        f"        return tuple({wrong} for x in tensors)\n"
        "    return run\n"
    )
    part = (int(torch.tensor(3.0).view(torch.int32)) + 2**31) // (2**32 // cases.PARTS) + 1
    words = [
        "--prims",
        f"exhaustive/neg-{part},exhaustive/neg-{part + 1}",
        "--effort",
        "exhaustive",
        "-n",
        "1",
        "--output",
        "out",
    ]
    done = command(tmp_path, "conformance", "--backend", "torch:onewrong", "--plugin", "onewrong.py", *words)
    assert done.status == 1, done.text
    assert done.entry(f"exhaustive/neg-{part}[float32]")["verdict"] == "fail"
    assert done.entry(f"exhaustive/neg-{part + 1}[float32]")["verdict"] == "pass"
    assert f"--prims exhaustive/neg-{part} " in done.entry(f"exhaustive/neg-{part}[float32]")["reproducer"]
    jsonschema.validate(done.report, report.schema())
    assert "all float32 inputs" in (tmp_path / "out" / "report.html").read_text()


def test_samples_follow_from_the_seed_alone() -> None:
    case, effort = Case("add", "float32"), vendor_sdk.Effort.QUICK

    def bits(seed: int, purpose: str) -> list[torch.Tensor]:
        return [tensor for sample in cases.draw(case, effort, seed, purpose) for tensor in program.tensors(sample)]

    first, again, other, second = bits(1, "first"), bits(1, "first"), bits(2, "first"), bits(1, "second call")
    assert all(guards.same_bits(one, two) for one, two in zip(first, again, strict=True))
    assert not all(guards.same_bits(one, two) for one, two in zip(first, other, strict=True))
    assert not all(guards.same_bits(one, two) for one, two in zip(first, second, strict=True))


def test_a_second_draw_is_used_only_where_the_program_fits_it() -> None:
    x, y = torch.rand(3, 4), torch.rand(3, 4)
    sample = vendor_sdk.Sample((x, [y, 2], None), {"alpha": float("nan")})
    assert program.interchangeable(sample, vendor_sdk.Sample((y, [x, 2], None), {"alpha": float("nan")}))
    for other in (
        vendor_sdk.Sample((x, [y, 3], None), {"alpha": float("nan")}),
        vendor_sdk.Sample((x, [y, 2], None), {"alpha": 1.0}),
        vendor_sdk.Sample((x.T, [y, 2], None), {"alpha": float("nan")}),
        vendor_sdk.Sample((x, [x, 2], None), {"alpha": float("nan")}),
        vendor_sdk.Sample((x.double(), [y, 2], None), {"alpha": float("nan")}),
    ):
        assert not program.interchangeable(sample, other)


def test_a_program_runs_its_samples_and_splits_their_results() -> None:
    x = torch.rand(5, 6)
    samples = [vendor_sdk.Sample((x, 1)), vendor_sdk.Sample((x.T, 0, True))]
    made = program.build(aten.max.dim, samples, [(x, x), (x, x)], torch.device("cpu"))
    assert [tuple(tensor.shape) for tensor in made.inputs] == [(5, 6), (6, 5)]
    assert made.owners == [0, 1]
    first, second = made.split(made.module(*made.inputs))
    assert torch.equal(first[0], x.amax(1))
    assert torch.equal(second[1], x.T.argmax(0, keepdim=True))
    with pytest.raises(ValueError, match="3 results came back, 4 were asked for"):
        made.split([x, x, x])


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (torch.full((2, 3), 2.0), ""),
        (torch.full((2, 3), 2.0 + 2e-3), "value"),
        (torch.full((2, 3), 2.0, dtype=torch.float64), "dtype"),
        (torch.full((3, 2), 2.0), "shape"),
        (torch.full((2, 3), float("nan")), "value"),
    ],
)
def test_a_result_is_judged_by_dtype_shape_and_value(result: torch.Tensor, kind: str) -> None:
    row, sample = vendor_sdk.OPSET["add"], vendor_sdk.Sample((torch.ones(2, 3), torch.ones(2, 3)))
    judgement = judge.judge(row, sample, judge.expected_result(row, sample), [result])
    assert judgement.kind == kind
    assert bool(judgement.problem) == bool(kind)
    assert judgement.elements == (6 if kind in ("", "value") else 0)


@pytest.mark.parametrize("kinds", [["native", "host"], ["host", "native"], ["native", "decomposed"], ["view", "native"]])
def test_a_case_has_the_weakest_placement_of_its_nodes(kinds: list[str]) -> None:
    placed = [subject.Placed(f"n{i}", "add", kind, "") for i, kind in enumerate(kinds)]
    kind, _ = placements.placement(Case("add", "float32"), [*placed, subject.Placed("other", "mul", "host", "")])
    assert kind == max(kinds, key=placements.STRENGTH.index) != "native"


def test_nodes_without_elements_have_no_placement() -> None:
    x, empty = torch.rand(2, 3), torch.rand(0, 3)
    graph = vendor_sdk.trace(lambda a, b: (aten.neg.default(a), aten.neg.default(b), aten.nonzero.default(a)), [x, empty])
    named = {node.name: tuple(node.meta["val"].shape) for node in graph.graph.nodes if node.op == "call_function"}
    empties = subject.empty_nodes(graph.graph)
    assert [shape for name, shape in named.items() if name in empties] == [(0, 3)]


def test_a_prim_that_was_compiled_away_is_absent() -> None:
    kind, reason = placements.placement(Case("add", "float32"), [subject.Placed("n", "mul", "native", "")])
    assert kind == "absent"
    assert reason


@pytest.mark.parametrize(
    ("verdict", "placement", "compared"),
    [
        ("pass", "host", 5),
        ("pass", "native", 0),
        ("empty", "native", 0),
        ("fail", "native", 5),
        ("expected-failure", "native", 5),
        ("pass", "opaque", 5),
        ("pass", "decomposed", 5),
    ],
)
def test_only_compared_native_passes_count(verdict: str, placement: str, compared: int) -> None:
    outcome = {"placement": placement, "reason": "", "worst": 0.0, "samples": 5, "fresh": 0, "seconds": 0.1, "failures": []}
    run = report.Run(Settings("chip"))
    given = "pass" if verdict == "expected-failure" else verdict
    entry = report.finished(
        Result(Case("add", "float32"), {**outcome, "verdict": given, "compared": compared}, ""), Expectations(), run
    )
    entry["verdict"] = verdict
    assert report.summarize([entry], [])["native_passed"] == 0
    entry.update(verdict="pass", placement="native", samples={"total": 5, "compared": 5, "second_call": 0})
    assert report.summarize([entry], [])["native_passed"] == 1


def test_the_suite_is_a_client_of_the_public_contract() -> None:
    """It imports nothing of a backend, and of the SDK what is exported or describes prims."""
    for path in (ROOT / "conformance").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert not name.startswith("reference_backends"), f"{path.name} imports {name}"
                allowed = name in ("vendor_sdk", "vendor_sdk.prims.bounds", "vendor_sdk.prims.reference")
                assert allowed or not name.startswith("vendor_sdk"), f"{path.name} imports {name}"
