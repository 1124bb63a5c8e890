"""What the README promises a newcomer: its commands, its example, the pins, clear errors on a machine that lacks something."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from vendor_sdk import __version__

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def make(target: str, path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a copy of the Makefile where only the programs in ``path`` exist."""
    for program in ("sh", "make"):
        found = shutil.which(program)
        assert found
        if not (path / program).exists():
            (path / program).symlink_to(found)
    environment = {"PATH": str(path), **variables}
    return subprocess.run(["make", "-f", ROOT / "Makefile", target], cwd=path, env=environment, capture_output=True, text=True)


def test_readme_commands_are_targets_of_the_makefile() -> None:
    commands = re.findall(r"^make (\w+)", README, re.MULTILINE)
    assert commands == ["conformance", "test"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{command}: compiler \$\(INSTALLED\)$", makefile, re.MULTILINE) for command in commands)


def test_ci_runs_the_test_command_of_the_readme() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make test </dev/null" in script.read_text()


@pytest.mark.needs("cpp_cpu")
def test_readme_example_runs() -> None:
    (source,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    scope: dict[str, object] = {}
    exec(source, scope)
    parameters = scope["model"].parameters()  # type: ignore[attr-defined]
    assert all(parameter.grad is not None for parameter in parameters)


def test_everything_installed_is_pinned() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    pins = {canonicalize_name(Requirement(line).name): Requirement(line) for line in lines}
    assert all(re.fullmatch(r"==[^*]+", str(pin.specifier)) for pin in pins.values())
    assert str(pins[canonicalize_name("torch")].specifier) == "==2.13.0"
    extras = PROJECT["optional-dependencies"]
    for text in [*PROJECT["dependencies"], *extras["test"], "setuptools"]:
        requirement = Requirement(text)
        pin = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(str(pin.specifier).removeprefix("=="))


def test_version_is_told_twice_alike() -> None:
    assert PROJECT["version"] == __version__


def test_missing_compiler_is_said_with_what_to_install(tmp_path: Path) -> None:
    result = make("compiler", tmp_path)
    assert result.returncode != 0
    assert "error: no C++ compiler on PATH" in result.stderr
    assert "apt-get install g++" in result.stderr


@pytest.mark.parametrize("compiler", ["g++", "clang++", "c++"])
def test_compiler_on_the_path_is_found(tmp_path: Path, compiler: str) -> None:
    (tmp_path / compiler).write_text("#!/bin/sh\n")
    (tmp_path / compiler).chmod(0o755)
    assert make("compiler", tmp_path).returncode == 0


def test_missing_python_is_said_with_what_to_do(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "constraints.txt", "Makefile"):
        (tmp_path / name).write_text("")
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    result = make(".venv/installed", tmp_path)
    assert result.returncode != 0
    assert "error: no Python 3.11 or newer on PATH" in result.stderr
