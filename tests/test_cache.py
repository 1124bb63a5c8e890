"""The cache on disk: what is in it is right or not there, whatever other processes, crashes and full disks do."""

from __future__ import annotations

import errno
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from tests.toys import register_toys
from vendor_sdk import Artifacts, OptionError, aot, cli
from vendor_sdk.contract import artifacts, cache


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a process that has loaded nothing."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("VENDOR_SDK_CACHE_DIR", str(folder))
    monkeypatch.delenv("VENDOR_SDK_CACHE_SIZE", raising=False)
    monkeypatch.setattr(artifacts, "_complained", False)
    monkeypatch.setattr(artifacts, "_unpruned", None)
    monkeypatch.setattr(artifacts, "_temporary", None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return folder


CHIP = Artifacts("chip", lambda: "compiler 1")


def test_an_entry_is_found_by_all_that_shaped_it() -> None:
    key = CHIP.key("source", "options")
    assert CHIP.read(key) is None
    path = CHIP.keep(key, b"machine code", ".so")
    assert CHIP.find(key, ".so") == path
    assert CHIP.read(key, ".so") == b"machine code"
    assert path.read_bytes().startswith(b"machine code"), "a loader takes the file as it is"
    others = [
        CHIP.key("sourceoptions"),
        CHIP.key("source", "options", ""),
        Artifacts("chip", lambda: "compiler 2").key("source", "options"),
        Artifacts("chop", lambda: "compiler 1").key("source", "options"),
    ]
    assert len({key, *others}) == 5


def test_the_key_has_the_versions_of_sdk_and_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    key = CHIP.key("source")
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "9.9")
        assert CHIP.key("source") != key
    monkeypatch.setattr(artifacts, "__version__", "9.9")
    assert CHIP.key("source") != key


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "another key's", "longer"])
def test_a_damaged_entry_is_none(damage: str) -> None:
    key = CHIP.key("source")
    path = CHIP.keep(key, b"machine code" * 100)
    data = path.read_bytes()
    damaged = {
        "truncated": data[:-7],
        "empty": b"",
        "flipped": data[:50] + bytes([data[50] ^ 1]) + data[51:],
        "another key's": CHIP.keep(CHIP.key("other"), b"machine code" * 100).read_bytes(),
        "longer": data + b"\0",
    }[damage]
    path.write_bytes(damaged)
    assert CHIP.find(key) is None
    assert CHIP.read(key) is None
    CHIP.keep(key, b"machine code" * 100)
    assert CHIP.read(key) == b"machine code" * 100


def test_a_write_that_fails_leaves_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Any, target: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    key = CHIP.key("source")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        patch.setattr(artifacts, "_private", lambda backend, *, make: (root / backend,))
        with pytest.warns(UserWarning, match="No space left"), pytest.raises(OSError, match="No space left"):
            CHIP.keep(key, b"machine code")
    assert list((root / "chip").iterdir()) == []


def test_without_a_directory_the_process_keeps_its_own_and_says_so_once(root: Path) -> None:
    root.write_text("a file where the directory should be")
    key, other = CHIP.key("source"), CHIP.key("other")
    with pytest.warns(UserWarning, match="takes no files"):
        path = CHIP.keep(key, b"machine code")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CHIP.keep(other, b"more")
    assert CHIP.find(key) == path
    assert CHIP.read(other) == b"more"
    assert not path.is_relative_to(root)


def test_a_model_compiles_without_a_directory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.write_text("a file where the directory should be")
    monkeypatch.setattr(aot, "WORTH_STORING", 0)
    register_toys()
    torch.compiler.reset()
    x = torch.randn(7)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = torch.compile(lambda x: torch.sin(x) * 31, backend="toyloops")(x)
    torch.testing.assert_close(result, torch.sin(x) * 31)
    assert sum("takes no files" in str(each.message) for each in said) == 1


def test_a_directory_that_can_only_be_read_serves(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = CHIP.key("source")
    path = CHIP.keep(key, b"machine code")

    def refuse(*args: Any, **keywords: Any) -> None:
        raise PermissionError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", refuse)
    with monkeypatch.context() as patch:
        patch.setattr(cache, "cache_dir", refuse)
        assert CHIP.find(key) == path
        with pytest.warns(UserWarning, match="Read-only"):
            CHIP.keep(CHIP.key("other"), b"more")
        assert CHIP.read(CHIP.key("other")) == b"more"


def test_size_zero_keeps_nothing_on_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_SDK_CACHE_SIZE", "0")
    CHIP.keep(CHIP.key("source"), b"machine code")
    assert CHIP.read(CHIP.key("source")) == b"machine code"
    assert not root.exists()


@pytest.mark.parametrize(("text", "size"), [("", 1 << 30), ("123", 123), ("5k", 5 << 10), ("2G", 2 << 30), ("7MiB", 7 << 20)])
def test_the_limit_is_read_from_the_environment(text: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_SDK_CACHE_SIZE", text)
    assert cache.size_limit() == size


def test_a_limit_that_is_no_size_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_SDK_CACHE_SIZE", "much")
    with pytest.raises(OptionError, match="'much'"):
        cache.size_limit()


def test_what_was_not_used_for_longest_goes_first(root: Path) -> None:
    keys = [CHIP.key(str(n)) for n in range(5)]
    paths = [CHIP.keep(key, bytes(1000)) for key in keys]
    for age, path in enumerate(reversed(paths)):
        os.utime(path, (time.time() - 1000 * age - 1000, path.stat().st_mtime))
    assert CHIP.find(keys[0]) is not None, "reading an entry is using it"
    size = paths[0].stat().st_size
    gone = cache.prune(3 * size)
    assert [path.exists() for path in paths] == [True, False, False, False, True]
    assert gone == cache.Usage("", 3, 3 * size)


def test_backends_share_one_limit_and_writing_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_SDK_CACHE_SIZE", "20000")
    other = Artifacts("chop")
    for n in range(100):
        (CHIP, other)[n % 2].keep(CHIP.key(str(n)), bytes(1000))
        assert sum(used.bytes for used in cache.usage()) <= 20000 * (1 + 1 / 32) + 1100
    assert CHIP.read(CHIP.key("98")) == bytes(1000), "the newest stays"


def test_what_a_dead_process_left_goes(root: Path) -> None:
    CHIP.keep(CHIP.key("source"), b"machine code")
    left, fresh = (root / "chip" / f"{cache.UNFINISHED}{name}" for name in ("left", "fresh"))
    left.write_bytes(b"half")
    fresh.write_bytes(b"half")
    os.utime(left, (0, time.time() - 2 * cache.ABANDONED_SECONDS))
    cache.prune()
    assert not left.exists()
    assert fresh.exists()


def test_one_backend_never_gets_what_another_made() -> None:
    """Two backends, the same graph and sources, one cache."""
    ours, theirs = Artifacts("chip", lambda: "compiler 1"), Artifacts("chop", lambda: "compiler 1")
    ours.keep(ours.key("graph"), b"for chip")
    assert theirs.read(theirs.key("graph")) is None
    assert theirs.read(ours.key("graph")) is None
    theirs.keep(theirs.key("graph"), b"for chop")
    assert ours.read(ours.key("graph")) == b"for chip"
    upgraded = Artifacts("chip", lambda: "compiler 2")
    assert upgraded.read(upgraded.key("graph")) is None


@pytest.mark.parametrize(
    "name", ["../x/" + "0" * 32, "chip/../" + "0" * 32, "chip/short", "/" + "0" * 32, "chip/" + "0" * 32 + "/x"]
)
def test_a_bundle_writes_nowhere_else(name: str, root: Path) -> None:
    artifacts._populate(name, b"content")
    assert not root.exists()


def test_prune_on_the_command_line(root: Path) -> None:
    for n in range(4):
        CHIP.keep(CHIP.key(str(n)), bytes(1000))
    size = cache.usage()[0].bytes // 4
    result = CliRunner().invoke(cli.main, ["cache", "prune", "--size", str(2 * size + 500)])
    assert result.exit_code == 0, result.output
    assert result.stdout == f"removed 2 files, {2 * size:,} bytes\n"
    assert cache.usage() == [cache.Usage("chip", 2, 2 * size)]
    shown = CliRunner().invoke(cli.main, ["cache", "info"]).stdout
    assert "limit: 1,073,741,824 bytes" in shown
