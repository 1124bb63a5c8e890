"""The distributions as users install them: built from a source distribution, and used where no checkout is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CHIP = ROOT / "examples" / "mychip"
SHIPPED = ("vendor_sdk", "conformance", "reference_backends", "pyproject.toml", "README.md", "LICENSE")
PACKAGES = ("mychip", "pyproject.toml", "README.md")

pytestmark = pytest.mark.needs("mychip", "cpp_cpu")


def ran(*command: str, cwd: Path, path: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {} if path is None else {"PYTHONPATH": str(path)}
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wheel_of(root: Path, names: tuple[str, ...], folder: Path) -> Path:
    """A wheel made of the source distribution of a project, from copies: building leaves files beside the sources."""
    source = folder / "source"
    source.mkdir(parents=True)
    for name in names:
        if (root / name).is_dir():
            shutil.copytree(root / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(root / name, source)
    build = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
    ran("-c", build, "build_sdist", str(folder), cwd=source)
    (packed,) = folder.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    ran("-c", build, "build_wheel", str(folder), cwd=unpacked)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the SDK and the example chip, installed from wheels."""
    folder = tmp_path_factory.mktemp("distributions")
    wheels = [str(wheel_of(ROOT, SHIPPED, folder / "sdk")), str(wheel_of(CHIP, PACKAGES, folder / "chip"))]
    options = ["--quiet", "--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check"]
    ran("-m", "pip", "install", *options, "--target", str(folder / "installed"), *wheels, cwd=folder)
    return folder / "installed"


def test_the_sdk_runs_from_its_wheel(installed: Path, tmp_path: Path) -> None:
    where = ran(
        "-c", "import vendor_sdk, conformance; print(vendor_sdk.__file__, conformance.__file__)", cwd=tmp_path, path=installed
    )
    assert all(Path(file).is_relative_to(installed) for file in where.split())
    listed = json.loads(ran("-m", "vendor_sdk.cli", "list", "--json", cwd=tmp_path, path=installed))
    assert {each["name"]: each["state"] for each in listed["backends"]} == dict.fromkeys(
        ("cpp_cpu", "mychip", "onnxruntime", "triton_gpu"), "installed"
    )
    made = json.loads(ran("-m", "vendor_sdk.cli", "new", "freshchip", "--json", cwd=tmp_path, path=installed))
    assert (tmp_path / "freshchip" / "pyproject.toml").is_file()
    assert "freshchip/plugin.py" in made["files"]


def test_an_example_chip_is_certified_beside_the_wheel(installed: Path, tmp_path: Path) -> None:
    suite = ["-m", "vendor_sdk.cli", "conformance", "--backend", "mychip", "--effort", "quick", "-n", "1"]
    out = tmp_path / "report"
    ran(*suite, "--prims", "add,mm,relu,exp", "--output", str(out), cwd=tmp_path, path=installed)
    report = json.loads((out / "report.json").read_text())
    assert report["summary"]["claims_hold"]
    assert report["summary"]["coverage"] > 0
    assert (out / "report.html").is_file()
    verified = ran("-m", "vendor_sdk.cli", "report", "verify", str(out), "--rerun", "0", cwd=tmp_path, path=installed)
    assert "right are schema, digests, completeness, summary" in verified
