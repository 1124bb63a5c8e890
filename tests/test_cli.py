"""The command line: what it prints, and its exit status."""

from __future__ import annotations

import functools
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from conformance.run import UsageError, make_folder
from vendor_sdk import __version__
from vendor_sdk.advice import known_models
from vendor_sdk.cli import main
from vendor_sdk.contract import discovery, probe
from vendor_sdk.contract.cache import cache_dir
from vendor_sdk.prims.opset import OPSET
from vendor_sdk.prims.row import Family

GOOD = """
import torch, vendor_sdk

@vendor_sdk.hookimpl
def backend():
    print("plugins may print")
    return vendor_sdk.Backend(name="good", version="2.5", dtypes=frozenset({torch.float32}))

@vendor_sdk.hookimpl
def kernels():
    return {"add": lambda x, y, *, alpha=1: torch.add(x, y, alpha=alpha)}

@vendor_sdk.hookimpl
def supports(node):
    return vendor_sdk.Decline("not this one") if node.prim == "mul" else None
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def zoo(install: Any) -> None:
    """One backend for every state."""
    modules = {
        "good": GOOD,
        "raises": "raise RuntimeError('driver gone')",
        "dies": "import os; os.write(2, b'last words\\n'); os._exit(7)",
        "crashes": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        "misspelt": GOOD.replace("def kernels", "def kernel").replace('"good"', '"misspelt"'),
        "lonely": GOOD.replace('"good"', '"lonely"'),
    }
    install("zoo", {name: name for name in modules}, {"good": "vendor_sdk.dynamo:good"}, modules)
    install("twin-a", {"twin": "twin_a"})
    install("twin-b", {"twin": "twin_b"})


def test_list_shows_every_backend_in_its_state_and_none_hides_another(zoo: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "statuses", functools.cache(probe.statuses))  # plugins are asked once
    result = run("list", "--check", "--json")
    assert result.exit_code == 0, result.output
    listed = {each["name"]: each for each in json.loads(result.stdout)["backends"]}
    states = {name: listed[name]["state"] for name in ("good", "raises", "dies", "crashes", "misspelt", "lonely", "twin")}
    broken = dict.fromkeys(("raises", "dies", "crashes", "misspelt"), "broken")
    assert states == {"good": "ready", "lonely": "ready", "twin": "collision", **broken}
    assert (listed["good"]["version"], listed["good"]["dtypes"], listed["good"]["hint"]) == ("2.5", ["float32"], "")
    assert listed["good"]["distributions"] == ["zoo 1.0"]
    for name, part in {
        "raises": "driver gone",
        "dies": "ended the interpreter (exit status 7)\n  stderr: last words",
        "crashes": "ended the interpreter (signal SIGSEGV)",
        "misspelt": "'kernel' (did you mean 'kernels'?)",
        "twin": "offered by twin-a 1.0 (twin_a) and twin-b 1.0 (twin_b)",
    }.items():
        assert part in listed[name]["reason"]
    assert 'lonely = "vendor_sdk.dynamo:lonely"' in listed["lonely"]["hint"]

    table = run("list", "--check")
    assert table.exit_code == 0
    for name, state in states.items():
        assert any(name in line and state in line for line in table.stdout.splitlines())
    assert "\x1b" not in table.stdout, "no colours unless on a terminal"


def test_plugin_that_hangs_is_reported_as_that(install: Any) -> None:
    install("slow", {"aslow": "aslow", "good": "good"}, modules={"aslow": "import time; time.sleep(600)", "good": GOOD})
    installed = discovery.installed()
    mine = discovery.Installed(installed.named("aslow"), ())
    (status,) = probe.statuses(mine, seconds=8)
    assert (status.state, status.reason) == ("broken", "aslow: its plugin did not load within 8 seconds")


def test_list_warns_of_metadata_it_cannot_read(install: Any) -> None:
    root = install("broken-chip", {})
    (root / "broken_chip-1.0.dist-info" / "entry_points.txt").write_text(f"[{discovery.GROUP}]\nno equals sign\n")
    assert "warning: metadata of broken-chip 1.0 cannot be read" in run("list").stderr


def test_ops_lists_every_prim() -> None:
    records = json.loads(run("ops", "--json").stdout)
    assert [record["name"] for record in records] == list(OPSET)
    for record in records:
        assert all(record[key] for key in ("name", "family", "summary", "schema", "bound", "result", "shape"))
    assert f"{len(OPSET)} prims" in run("ops").stdout


def test_ops_filters_by_family_and_name() -> None:
    records = json.loads(run("ops", "--json", "--family", "view").stdout)
    assert {record["family"] for record in records} == {Family.VIEW}
    names = [record["name"] for record in json.loads(run("ops", "--json", "add*", "mul").stdout)]
    assert {"add", "mul"} <= set(names) <= {name for name in OPSET if name.startswith("add") or name == "mul"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["ops", "--family", "nonsense"], "is no family; they are pointwise"),
        (["ops", "nonsense*"], "no prim matches nonsense*"),
        (["nonsense"], "No such command"),
    ],
)
def test_wrong_usage_is_status_2(arguments: list[str], complaint: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr


def test_ops_says_what_a_backend_does_with_each_prim(install: Any) -> None:
    install("zoo", {"good": "good"}, modules={"good": GOOD.replace('{"add":', '{"mul": torch.mul, "add":')})
    result = run("ops", "--backend", "good", "--json")
    assert result.exit_code == 0, result.output
    placements = {record["name"]: record["placement"] for record in json.loads(result.stdout)}
    assert set(placements) == set(OPSET)
    assert placements["add"] == {"kind": "native", "route": "kernel", "reason": ""}
    assert placements["permute"]["kind"] == "view"
    assert placements["mul"]["kind"] != "native"
    assert "not this one" in placements["mul"]["reason"]
    assert placements["mm"]["kind"] == "host"
    assert all(placement["reason"] for placement in placements.values() if placement["kind"] == "host")
    table = run("ops", "add", "mm", "--backend", "good").stdout
    assert "native (kernel)" in table
    assert "2 prims: 1 native, 1 host" in table


@pytest.mark.parametrize(("command", "status"), [("ops", 1), ("next", 1), ("conformance", 4)])
def test_a_backend_that_nobody_offers_is_refused_before_torch_is_imported(command: str, status: int) -> None:
    program = (
        "import sys\nfrom vendor_sdk.cli import main\n"
        f"try:\n    main(['{command}', '--backend', 'nonsense'])\n"
        "except SystemExit as end:\n    print(end.code, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == [str(status), "False"], done.stdout + done.stderr
    assert done.stderr.startswith("error: no backend named 'nonsense'")


def test_errors_have_no_traceback_and_status_1() -> None:
    result = run("ops", "--backend", "nonsense")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: no backend named 'nonsense'")
    assert "Traceback" not in result.output
    debug = run("--debug", "ops", "--backend", "nonsense")
    assert debug.exit_code == 1
    assert "Traceback" in debug.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("docs", "--dir", "{file}/pages"), "error: {file}/pages: Not a directory"),
        (("minify", "--repro", "{file}.py"), "File '{file}.py' does not exist"),
        (("minify", "--script", "{file}.py"), "File '{file}.py' does not exist"),
        (("report", "verify", "{file}"), "{file}: no report of `vendor-sdk conformance`, which is JSON"),
    ],
)
def test_files_that_cannot_be_used_are_said_without_a_traceback(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    result = run(*(each.format(file=file) for each in arguments))
    assert result.exit_code not in (0, 3)
    assert said.format(file=file) in result.output
    assert "Traceback" not in result.output


def test_wrong_usage_of_minify_is_told_before_torch_is_imported() -> None:
    program = """if True:
        import sys
        from vendor_sdk.cli import main
        try:
            main(sys.argv[1:])
        except SystemExit as done:
            assert done.code == 2
        assert "torch" not in sys.modules
    """
    for line in ("minify", "minify --case exp[float32]", "profile {file} --trace no/folder/trace.json"):
        words = line.format(file=__file__).split()
        subprocess.run([sys.executable, "-c", program, *words], check=True, timeout=60, capture_output=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "import torch\ndef mine():\n    raise ValueError('no file')\nmine()",
            "ended with ValueError\n  where: {file}:3 in mine\n",
        ),
        ("def (", "ended with SyntaxError\n  where: {file}:1\n"),
        ("print('no model')", "ran no compiled graph\n  fix: Let it call"),
    ],
)
def test_what_a_program_raises_is_no_defect_of_the_sdk(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(text)
    result = run("profile", str(file))
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ") or text.startswith("print")
    assert said.format(file=file) in result.stderr
    assert "Traceback" not in result.output
    if "raise" in text:
        assert "why: no file" in result.stderr
        assert "Traceback" in run("--debug", "profile", str(file)).stderr
    before = list(sys.argv)
    assert run("profile", str(file), "--", "--its-own").exit_code == 1
    assert sys.argv == before


def test_a_report_goes_to_a_folder_that_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"--output .*/file/out: Not a directory"):
        make_folder(tmp_path / "file" / "out")
    make_folder(tmp_path / "new" / "out")
    assert (tmp_path / "new" / "out").is_dir()


def test_defects_are_status_3(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(discovery, "installed", broken)
    result = run("list")
    assert result.exit_code == 3
    assert "internal error: ZeroDivisionError: oops" in result.stderr


def test_docs_writes_the_pages_and_checks_them(tmp_path: Path) -> None:
    folder = str(tmp_path / "docs")
    assert run("docs", "--check", "--dir", folder).exit_code == 1
    assert run("docs", "--dir", folder).exit_code == 0
    assert run("docs", "--check", "--dir", folder).stdout == "up to date\n"
    (tmp_path / "docs" / "hooks.md").write_text("old")
    stale = run("docs", "--check", "--dir", folder)
    assert stale.exit_code == 1
    assert "hooks.md" in stale.stderr
    assert "prims.md" not in stale.stderr


def test_cache_shows_and_empties_what_backends_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_SDK_CACHE_DIR", str(tmp_path / "cache"))
    assert "empty" in run("cache", "info").stdout
    (cache_dir("one") / "kernel.so").write_bytes(b"12345")
    (cache_dir("two") / "kernel.so").write_bytes(b"123")
    information = json.loads(run("cache", "info", "--json").stdout)
    assert information["backends"] == [{"backend": "one", "files": 1, "bytes": 5}, {"backend": "two", "files": 1, "bytes": 3}]
    assert run("cache", "clear", "--backend", "one").stdout == "removed one: 1 files, 5 bytes\n"
    assert [each["backend"] for each in json.loads(run("cache", "info", "--json").stdout)["backends"]] == ["two"]
    run("cache", "clear")
    assert json.loads(run("cache", "info", "--json").stdout)["backends"] == []


def test_cache_clear_deletes_nothing_from_a_directory_that_is_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "thesis").mkdir()
    monkeypatch.setenv("VENDOR_SDK_CACHE_DIR", str(tmp_path))
    result = run("cache", "clear")
    assert result.exit_code == 1
    assert "is not a cache of vendor-sdk" in result.stderr
    assert (tmp_path / "thesis").is_dir()


def test_conformance_is_handed_on_with_its_arguments() -> None:
    result = run("conformance", "--help")
    assert result.exit_code == 0
    assert "--effort" in result.stdout
    wrong = run("conformance", "--nonsense")
    assert wrong.exit_code == 4
    assert "--nonsense" in wrong.stderr


def test_help_and_version_import_no_torch() -> None:
    program = (
        "import sys; from vendor_sdk.cli import main; main(['--help'], standalone_mode=False); sys.exit('torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert "Exit status: 0 all is well" in shown.stdout
    assert run("--version").stdout == f"vendor-sdk, version {__version__}\n"


def test_the_first_commands_of_a_vendor_import_no_torch(tmp_path: Path) -> None:
    """They answer in a fraction of a second, where importing torch takes several."""
    program = """if True:
        import contextlib, io, sys
        from vendor_sdk.cli import LATER, main
        for line in sys.argv[1:]:
            with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
                main(line.split(), standalone_mode=False)
            assert out.getvalue(), line
            heavy = {"torch", "numpy", "scipy", "pytest", "transformers"} & set(sys.modules)
            assert not heavy, f"{line}: imports {heavy}"
    """
    lines = ["--help", "list", "list --json", "doctor --fast", f"new freshchip --dir {tmp_path / 'freshchip'}"]
    lines += ["completion bash", "cache info", "next --help", "minify --help", "profile --help", "doctor --help"]
    subprocess.run([sys.executable, "-c", program, *lines], check=True, timeout=60)
    assert (tmp_path / "freshchip" / "pyproject.toml").is_file()


@pytest.mark.parametrize("group", [(), ("cache",), ("report",)])
def test_every_command_is_listed_with_a_whole_sentence(group: tuple[str, ...]) -> None:
    commands = run(*group, "--help").stdout.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert len(commands) >= 3
    assert not [line for line in commands if not line.endswith((".", ")")) or line.endswith("...")]
    assert run(*group, "-h").stdout == run(*group, "--help").stdout


def test_help_of_the_suite_is_short_too() -> None:
    assert "--effort" in run("conformance", "-h").stdout


def completions(*words: str) -> list[str]:
    """What bash is offered for the last word."""
    line = shlex.join(["vendor-sdk", *words[:-1]]) + f" {words[-1]}"
    variables = {"_VENDOR_SDK_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
    shown = CliRunner().invoke(main, [], prog_name="vendor-sdk", env=variables).stdout
    return [line.partition(",")[2] for line in shown.splitlines()]


def test_backends_complete(install: Any) -> None:
    install("zebra", {"zebra_chip": "json"})
    for shell in ("bash", "zsh", "fish"):
        assert "_VENDOR_SDK_COMPLETE" in run("completion", shell).stdout
    assert completions("ops", "--backend", "zeb") == ["zebra_chip"]
    assert completions("conformance", "--backend", "zeb") == ["zebra_chip"]


def test_prims_families_and_models_complete(install: Any) -> None:
    assert completions("ops", "--family", "conv") == ["conversion", "convolution"]
    assert completions("ops", "erfi") == ["erfinv"]
    assert completions("next", "--models", "gpt2,resnet") == [
        f"gpt2,{name}" for name in known_models() if name.startswith("resnet")
    ]
    assert completions("conformance", "--prims", "add,erfi") == ["add,erfinv"]
    assert completions("conformance", "--patterns", "sof")
    assert completions("conformance", "--models", "resnet")
    assert completions("conformance", "--dtypes", "bf") == ["bfloat16"]


def test_commands_of_the_suite_complete() -> None:
    assert completions("conf") == ["conformance"]
    assert completions("conformance", "--ef") == ["--effort"]
    assert completions("conformance", "--backend", "x", "--effort", "") == ["quick", "standard", "full", "exhaustive"]
    assert completions("report", "com") == ["compare"]
    assert completions("report", "compare", "--j") == ["--json"]


def test_list_reads_metadata_alone(install: Any) -> None:
    install("raising", {"raises": "raises"}, modules={"raises": "raise RuntimeError('imported')"})
    install("gone", {"gone": "no_such_package.plugin"})
    install("greedy", {"inductor": "json"})
    listed = {each["name"]: each for each in json.loads(run("list", "--json").stdout)["backends"]}
    assert {name: listed[name]["state"] for name in ("raises", "gone", "inductor")} == {
        "raises": "installed", "gone": "broken", "inductor": "broken",
    }  # fmt: skip
    assert "no_such_package" in listed["gone"]["reason"]
    assert listed["raises"]["plugin"] == "raises"


def test_output_can_be_piped_to_a_reader_that_stops() -> None:
    command = f"{sys.executable} -m vendor_sdk.cli ops | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120, env={**os.environ, "LC_ALL": "C"})
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [("--nonsense",), ("--backend", "torch:eager", "--effort", "foo"), (), ("--backend", "torch:eager", "-n", "0")]
)
def test_wrong_usage_of_the_suite_is_not_an_interruption(arguments: tuple[str, ...]) -> None:
    from conformance.cli import main as suite

    for done in (CliRunner().invoke(main, ["conformance", *arguments]), CliRunner().invoke(suite, arguments)):
        assert done.exit_code == 4, done.output
        assert "Usage:" in done.output
