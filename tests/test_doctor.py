"""``vendor-sdk doctor``: what it sees, what it says to do, and its exit status."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from vendor_sdk import doctor
from vendor_sdk.cli import main
from vendor_sdk.contract import cache, discovery, probe

ROOT = Path(__file__).resolve().parents[1]


def findings(*arguments: str, exit_code: int = 0) -> dict[str, dict[str, str]]:
    done = CliRunner().invoke(main, ["doctor", "--json", *arguments])
    assert done.exit_code == exit_code, done.output
    return {each["subject"]: each for each in json.loads(done.stdout)["findings"]}


@pytest.fixture(autouse=True)
def tidy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_SDK_CACHE_DIR", str(tmp_path / "cache"))
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)


def test_a_machine_in_order(tmp_path: Path, install: Any) -> None:
    install("orderly", {"orderly": "json"})
    found = findings("--fast")
    for subject in ("python", "torch", "numpy", "C++ compiler", str(tmp_path / "cache")):
        assert found[subject]["state"] == "ok", found[subject]
        assert not found[subject]["mend"]
    assert {each["area"] for each in found.values()} >= {"versions", "compilers", "backends", "cache", "environment"}
    assert "devices" not in {each["area"] for each in found.values()}
    shown = CliRunner().invoke(main, ["doctor", "--fast"])
    assert shown.exit_code == 0
    assert "0 failed" in shown.stdout


def test_what_is_not_in_order_has_a_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install: Any) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VENDOR_SDK_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setenv("VENDOR_SDK_DEBG", "1")
    monkeypatch.setenv("VENDOR_SDK_FUEL", "3")
    monkeypatch.setenv("CXX", "/no/such/compiler")
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: ["torch>=99", "nosuchpackage>=1", "x; extra == 'y'"])
    install("gone", {"gone": "gone_package.plugin"})
    install("lonely", {"lonely": "json"}, {})
    install("twin-a", {"twin": "json"})
    install("twin-b", {"twin": "json"})
    found = findings("--fast", exit_code=1)
    expected = {
        "torch": ("failed", "pip install 'torch>=99'"),
        "nosuchpackage": ("failed", "pip install 'nosuchpackage>=1'"),
        "C++ compiler": ("failed", "correct or unset CXX"),
        "gone": ("failed", "list --check"),
        "lonely": ("warning", "add lonely = "),
        "twin": ("failed", "list --check"),
        str(tmp_path / "file"): ("failed", "VENDOR_SDK_CACHE_DIR"),
        "VENDOR_SDK_DEBG": ("warning", "did you mean VENDOR_SDK_DEBUG?"),
        "VENDOR_SDK_FUEL": ("warning", "unset it"),
    }
    for subject, (state, mend) in expected.items():
        assert found[subject]["state"] == state, found[subject]
        assert mend in found[subject]["mend"], found[subject]
    assert "x" not in found
    assert "gone_package" in found["gone"]["found"]


def test_a_size_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_SDK_CACHE_SIZE", "many")
    assert findings("--fast", exit_code=1)["VENDOR_SDK_CACHE_SIZE"]["state"] in ("failed", "ok")


def test_a_backend_that_this_machine_cannot_run(monkeypatch: pytest.MonkeyPatch, install: Any) -> None:
    install("needle", {"needle": "json"})
    lacking = probe.Status("needy", ("needy 1.0",), "unavailable", "needy: no such chip here\n  fix: Buy one.")
    monkeypatch.setattr(probe, "statuses", lambda installed, devices: [lacking])
    monkeypatch.setattr(doctor, "_devices", lambda: iter(()))
    assert findings()["needy"] == {
        "area": "backends", "subject": "needy", "state": "warning", "found": "needy: no such chip here", "mend": "Buy one.",
    }  # fmt: skip
    assert findings("--backend", "needy", exit_code=1)["needy"]["state"] == "failed"
    assert findings("--fast", "--backend", "needl", exit_code=1)["needl"]["mend"].endswith("did you mean 'needle'?")


def test_it_knows_every_variable_that_the_sdk_reads() -> None:
    files = [path for folder in ("vendor_sdk", "conformance", "reference_backends") for path in (ROOT / folder).rglob("*.py")]
    named = {name for path in files for name in re.findall(r'"(VENDOR_SDK_[A-Z_]*[A-Z])"', path.read_text())}
    assert named == doctor.VARIABLES
    assert os.environ.keys() & doctor.VARIABLES >= {"VENDOR_SDK_CACHE_DIR"}


def test_a_cache_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    root = cache.cache_dir("somechip").parent
    assert root.stat().st_mode & 0o077 == 0, "made for this user alone"
    assert findings("--fast")[str(root)]["state"] == "ok"
    root.chmod(0o777)
    found = findings("--fast", exit_code=1)[str(root)]
    assert (found["state"], found["mend"].startswith("chmod go-w")) == ("failed", True)


@pytest.mark.parametrize(
    ("variable", "command", "said"),
    [
        ("CXX", "/bin/false", "exit status 1"),
        ("CC", "/bin/true", "exit status 0, and no file"),
        ("CC", "cc --no-such-flag", "no-such-flag"),
    ],
)
def test_a_compiler_that_compiles_nothing(variable: str, command: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, command)
    found = findings("--fast", exit_code=1)["C++ compiler" if variable == "CXX" else "C compiler"]
    assert (found["state"], found["mend"]) == ("failed", f"correct or unset {variable}")
    assert said in found["found"]
    monkeypatch.setenv(variable, "g++ -O1")
    assert findings("--fast")["C++ compiler"]["state"] == "ok"


def test_a_name_that_torch_finds_and_the_sdk_does_not(install: Any) -> None:
    install("half", {}, {"halfchip": "vendor_sdk.dynamo:halfchip", "other": "other.package:backend"})
    found = findings("--fast", exit_code=1)
    assert found["halfchip"]["state"] == "failed"
    assert "vendor_sdk.backends" in found["halfchip"]["mend"]
    assert "other" not in found


DEVICE = """
import os, time, torch, vendor_sdk
from vendor_sdk import Device, DeviceError, DeviceProperties, MemoryStats, hookimpl

class Memory(Device):
    def allocate(self, nbytes):
        {allocate}
    def free(self, buffer):
        {free}
    def copy_in(self, source, target, offset):
        target[offset : offset + len(source)] = source
        {copy_in}
    def copy_out(self, source, offset, target):
        target[:] = source[offset : offset + len(target)]
    def copy(self, *arguments):
        pass
    def synchronize(self):
        pass
    def memory_stats(self):
        return MemoryStats(0, 0)
    def properties(self):
        return {properties}

@hookimpl
def backend():
    return vendor_sdk.Backend(name="chip", version="1", dtypes=frozenset({{torch.float32}}))

@hookimpl
def device():
    return Memory()

@hookimpl
def kernels():
    return {{}}
"""
WHOLE = {
    "allocate": "return bytearray(nbytes)",
    "free": "pass",
    "copy_in": "pass",
    "properties": "DeviceProperties(name='a chip', memory_bytes=1 << 30)",
}


@pytest.mark.parametrize(
    ("broken", "failed", "said"),
    [
        ({}, "", ""),
        ({"allocate": "raise DeviceError('no such address')"}, "allocate", "no such address"),
        ({"copy_in": "target[9] = 0"}, "copy", "1 of 4096 bytes came back changed, the first at 9"),
        ({"properties": "None"}, "properties", "NoneType"),
        ({"free": "raise ValueError('not mine')"}, "free", "not mine"),
        ({"allocate": "os._exit(3)"}, "device", "its device ended the interpreter (exit status 3)"),
    ],
)
def test_the_device_of_a_backend_is_tried(
    broken: dict[str, str], failed: str, said: str, install: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("chip", {"chip": "chip_plugin"}, modules={"chip_plugin": DEVICE.format(**{**WHOLE, **broken})})
    mine = discovery.Installed(discovery.installed().named("chip"), ())
    monkeypatch.setattr(discovery, "installed", lambda: mine)
    monkeypatch.setattr(doctor, "_devices", lambda: iter(()))
    found = findings(exit_code=bool(failed))
    assert found["chip"]["state"] == "ok"
    steps = {name: each for name, each in found.items() if name.startswith("chip: ")}
    assert [name for name, each in steps.items() if each["state"] == "failed"] == ([f"chip: {failed}"] if failed else [])
    if failed:
        assert said in steps[f"chip: {failed}"]["found"]
        assert steps[f"chip: {failed}"]["mend"] == probe.MENDS[failed]
    else:
        assert list(steps) == [f"chip: {name}" for name in probe.MENDS]
        assert "a chip, 1,024 MiB" in steps["chip: properties"]["found"]
