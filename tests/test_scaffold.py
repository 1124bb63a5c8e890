"""What ``vendor-sdk new`` writes: clean code that computes the same as torch, whatever the route; and what it refuses."""

from __future__ import annotations

import importlib
import json
import math
import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import vendor_sdk
from vendor_sdk.cli import main
from vendor_sdk.errors import BackendNameCollisionError, OptionError
from vendor_sdk.ir.loop import LoopKernel, dtypes
from vendor_sdk.pipeline import static_support
from vendor_sdk.scaffold import MEMORIES, ROUTES, Scaffold, check_name, write

ROOT = Path(__file__).resolve().parents[1]
ALL = [Scaffold(f"t_{route}_{memory.partition('-')[0]}", route, memory) for route in ROUTES for memory in MEMORIES]


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every sort of package in it."""
    folder = tmp_path_factory.mktemp("packages")
    for scaffold in ALL:
        write(scaffold, folder / scaffold.name)
    return folder


@pytest.fixture
def registered(packages: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """``registered(scaffold)`` registers its plugin until the test ends, and returns the plugin's module."""
    names: list[str] = []

    def register(scaffold: Scaffold) -> Any:
        monkeypatch.syspath_prepend(str(packages / scaffold.name))
        plugin = importlib.import_module(f"{scaffold.name}.plugin")
        vendor_sdk.register(plugin)
        names.append(scaffold.name)
        return plugin

    yield register
    for name in names:
        vendor_sdk.unregister(name)


def test_new_packages_are_formatted_linted_and_typed(packages: Path) -> None:
    for arguments in (["check"], ["format", "--check"]):
        done = subprocess.run([sys.executable, "-m", "ruff", *arguments, "."], cwd=packages, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    # One run for all, with the cache of the repository's own run, which has torch and numpy in it.
    search = ":".join(str(path) for path in (*(packages / scaffold.name for scaffold in ALL), ROOT))
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", f"--cache-dir={ROOT / '.mypy_cache'}", f"--config-file={ROOT / 'pyproject.toml'}",
         *(argument for scaffold in ALL for argument in ("-p", scaffold.name))],
        cwd=packages, capture_output=True, text=True, env={"MYPYPATH": search, "PATH": ""},
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_new_packages_offer_both_entry_points_and_import_the_suite(packages: Path) -> None:
    for scaffold in ALL:
        folder, name = packages / scaffold.name, scaffold.name
        points = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"]
        assert points == {
            "vendor_sdk.backends": {name: f"{name}.plugin"},
            "torch_dynamo_backends": {name: f"vendor_sdk.dynamo:{name}"},
        }
        assert f"--backend {name}" in (folder / ".github" / "workflows" / "conformance.yml").read_text()


@pytest.mark.parametrize("scaffold", ALL, ids=lambda scaffold: scaffold.name)
def test_new_packages_train_like_torch(registered: Callable[..., Any], scaffold: Scaffold) -> None:
    registered(scaffold)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    x = torch.randn(4, 7)

    def gradients(call: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        loss = (call(x).softmax(-1) * 3 + x[:, :3]).square().mean()
        return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]

    torch.testing.assert_close(gradients(torch.compile(model, backend=scaffold.name)), gradients(model))
    found = vendor_sdk.explain(model, x, backend=scaffold.name, show=False)
    assert found.counts.get("native", 0) > 0
    for shape in ((0, 3), (3, 1), (2, 3, 4)):
        values = torch.randn(shape)
        compiled = torch.compile(lambda v: (v + v.transpose(0, 1).transpose(0, 1) * 2).relu(), backend=scaffold.name)
        torch.testing.assert_close(compiled(values), (values * 3).relu())

    def turned(v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        doubled, more = v * 2, w + 1
        return (doubled.t() * more + w) @ v  # what the chip made, in another order, and spread out

    v, w = torch.randn(5, 3), torch.randn(5)
    torch.testing.assert_close(torch.compile(turned, backend=scaffold.name)(v, w), turned(v, w))


@pytest.fixture
def conformance(packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """``conformance(scaffold, *words)`` runs the suite on its package, and returns what it prints."""

    def run(scaffold: Scaffold, *words: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(packages / scaffold.name))  # workers import what this process imports
        given = ["--backend", scaffold.name, "--plugin", f"{scaffold.name}.plugin", "-n", "1"]
        done = CliRunner().invoke(main, ["conformance", *given, *words])
        assert done.exit_code == 0, done.output
        return done.output

    return run


@pytest.mark.parametrize("scaffold", ALL, ids=lambda scaffold: scaffold.name)
def test_the_suite_certifies_new_packages(conformance: Callable[..., str], scaffold: Scaffold, tmp_path: Path) -> None:
    conformance(scaffold, "--prims", "add,mm,relu,exp", "--effort", "quick", "--output", "report")
    cases = json.loads((tmp_path / "report" / "report.json").read_text())["cases"]
    assert {case["prim"] for case in cases} == {"add", "mm", "relu", "exp"}
    assert "native" in {case["placement"] for case in cases}


@pytest.mark.parametrize("scaffold", [each for each in ALL if each.memory == "own-memory"], ids=lambda each: each.name)
def test_programs_on_memory_of_its_own_look_like_eager(conformance: Callable[..., str], scaffold: Scaffold) -> None:
    conformance(scaffold, "--prims", "semantics/*", "--effort", "standard", "--no-output")


def test_padding_needs_no_more_than_the_table_has(registered: Callable[..., Any]) -> None:
    """Alone, padding is made of copies; inside another kernel it would compare positions, for which the table has no rows."""
    scaffold = next(each for each in ALL if each.route == "emitter")
    registered(scaffold)
    x = torch.randn(3, 5)
    compiled = torch.compile(lambda v: torch.nn.functional.pad(v * 2, (1, 2)) + 1, backend=scaffold.name)
    torch.testing.assert_close(compiled(x), torch.nn.functional.pad(x * 2, (1, 2)) + 1)
    # Nor does it store what it cannot compute, for an output that lies in another order.
    halves = torch.compile(lambda v: v.t().exp(), backend=scaffold.name)
    y = torch.randn(3, 5).bfloat16()
    torch.testing.assert_close(halves(y), y.t().exp())


def test_the_filled_table_makes_150_prims_native(registered: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "first_day.md").read_text()
    (source,) = re.findall(r"```python\n(PRELUDE.*?)```", text, re.DOTALL)
    rows = source[source.index("\nCALLS = ") :].strip().splitlines()
    table: dict[str, Any] = {}
    exec(source, table)
    scaffold = next(each for each in ALL if each.route == "emitter")
    plugin = registered(scaffold)
    monkeypatch.setattr(plugin.ChipEmitter, "ops", table["OPS"])
    monkeypatch.setattr(importlib.import_module(f"{scaffold.name}.emitter"), "PRELUDE", table["PRELUDE"])
    kinds = Counter(str(placement.kind) for placement in static_support(vendor_sdk.load(scaffold.name)).values())
    (told,) = re.findall(r"makes (\d+) prims native", text)
    assert kinds["native"] == int(told) >= 150
    assert len(rows) < 72, "about 60 rows"

    def model(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = x.softmax(-1).cumsum(1)
        pooled = torch.nn.functional.avg_pool3d(x[None, None, None], (1, 3, 2), 2, (0, 1, 1), ceil_mode=True)
        return (
            pooled,
            rows,
            x.argmax(-1),
            torch.special.i1(x),
            i // 3,
            i % -3,
            x[i.abs() % 4],
            x @ x.t(),
            torch.special.bessel_j1(x),
            x.cummax(0).indices,
        )

    seen: list[LoopKernel] = []
    emit = plugin.ChipEmitter.emit
    monkeypatch.setattr(plugin.ChipEmitter, "emit", lambda self, kernel: [emit(self, kernel), seen.append(kernel)][0])
    x, i = torch.randn(4, 6).clamp(-0.9, 0.9), torch.randint(-50, 50, (9,))
    torch.testing.assert_close(torch.compile(model, backend=scaffold.name)(x, i), model(x, i))
    for function in (torch.special.bessel_j0, torch.special.bessel_y0, torch.special.bessel_y1):
        # Variables of the loops have the names of C's functions.
        fused: Callable[..., Any] = torch.compile(lambda x, f=function: f(x.softmax(-1)), backend=scaffold.name)
        torch.testing.assert_close(fused(x), function(x.softmax(-1)))
    names = {name for kernel in seen for name in (*dtypes(kernel), *(p.name for p in (*kernel.params, *kernel.scratch)))}
    assert "y0" in names, "else the functions above prove nothing"
    assert all(re.fullmatch(r"[a-z]+\d\w*", name) for name in names), "as docs/loops.md says"
    special = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, 1.0, -1.0, 7.5, -7.5])
    down = torch.compile(lambda a, b: torch.div(a, b, rounding_mode="floor"), backend=scaffold.name)
    found, wanted = down(special[:, None], special), torch.div(special[:, None], special, rounding_mode="floor")
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found.signbit() & ~found.isnan(), wanted.signbit() & ~wanted.isnan())
    with pytest.raises(IndexError, match="out of range"):
        torch.compile(lambda x, i: x[i], backend=scaffold.name)(x, torch.tensor([7]))


def test_a_new_emitter_gets_operands_as_they_are(registered: Callable[..., Any]) -> None:
    """Broadcasts are in the loops: made beforehand they would be copied, and on a chip with its own memory at every call."""
    scaffold = next(each for each in ALL if each.route == "emitter" and each.memory == "own-memory")
    registered(scaffold)
    x, w = torch.randn(64, 32).t(), torch.randn(64)
    found = vendor_sdk.explain(lambda x, w: (x * w + 1).exp(), x, w, backend=scaffold.name, show=False)
    assert {p.prim for p in found.placements()} == {"mul", "add", "exp"}
    assert found.measured is not None
    assert found.measured.to_device == x.nbytes + w.nbytes


@pytest.mark.parametrize("scaffold", ALL[::3], ids=lambda scaffold: scaffold.name)
def test_what_new_readmes_certify_exists(packages: Path, conformance: Callable[..., str], scaffold: Scaffold) -> None:
    text = (packages / scaffold.name / "README.md").read_text()
    (line,) = re.findall(r"^\$ vendor-sdk conformance (.*--prims.*)$", text, re.MULTILINE)
    assert "all claims hold" in conformance(scaffold, *shlex.split(line), "--no-output")


# Names and folders


@pytest.mark.parametrize("name", ["my-chip", "1chip", "class", "Chip", "_chip", "", "chip\n", "ćip", "a/b"])
def test_names_that_are_no_package(name: str) -> None:
    with pytest.raises(OptionError, match="no name for a backend"):
        check_name(name)


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("inductor", "torch itself"),
        ("cpp_cpu", "installed backend"),
        ("json", "Python itself"),
        ("numpy", "package numpy"),
        *((name, "vendor-sdk itself") for name in ("vendor_sdk", "conformance", "reference_backends")),
    ],
)
def test_names_that_are_taken(name: str, owner: str) -> None:
    with pytest.raises(BackendNameCollisionError, match=owner):
        check_name(name)


def test_a_folder_that_exists_is_left_alone(tmp_path: Path) -> None:
    for existing in (tmp_path / "empty", tmp_path / "file"):
        existing.mkdir() if existing.name == "empty" else existing.write_text("mine")
        with pytest.raises(OptionError, match="exists, and is left as it is"):
            write(Scaffold("freshchip"), existing)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OptionError, match="exists"):
        write(Scaffold("freshchip"), tmp_path / "dangling")
    with pytest.raises(OptionError, match="is no folder"):
        write(Scaffold("freshchip"), tmp_path / "no" / "such")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "empty", "file"]
    assert not list((tmp_path / "empty").iterdir())


def test_nothing_partial_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> int:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="disk full"):
        write(Scaffold("freshchip"), tmp_path / "freshchip")
    assert not list(tmp_path.iterdir())


def test_new_on_the_command_line(tmp_path: Path) -> None:
    folder = tmp_path / "freshchip"
    done = CliRunner().invoke(main, ["new", "freshchip", "--route", "emitter", "--dir", str(folder), "--json"])
    assert done.exit_code == 0, done.output
    written = json.loads(done.stdout)
    assert sorted(written["files"]) == sorted(Scaffold("freshchip", "emitter").files())
    assert all((folder / path).is_file() for path in written["files"])
    again = CliRunner().invoke(main, ["new", "freshchip", "--dir", str(folder)])
    assert again.exit_code == 1
    assert "left as it is" in again.stderr
    assert "Traceback" not in again.output
