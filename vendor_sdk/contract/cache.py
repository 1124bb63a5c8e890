"""Where compiled kernels are kept between processes: one directory a backend, under one root that may always be deleted.

``artifacts.py`` says what is in the files; a backend may keep files of its own making beside them, and they count too.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vendor_sdk.errors import OptionError, VendorSDKError

TAG = "CACHEDIR.TAG"
TAG_TEXT = "Signature: 8a477f597d28d172789f06886806bc55\n# Cache of vendor-sdk; it may be deleted at any time.\n"
"""Marks a directory as a cache for backup tools, and for ``clear``. Source: https://bford.info/cachedir/"""

SIZE = "VENDOR_SDK_CACHE_SIZE"
DEFAULT_SIZE = 1 << 30
UNFINISHED = "tmp-"
"""How the names of files begin that are still being written."""
ABANDONED_SECONDS = 3600
"""A file that has been unfinished for longer is what a dead process left."""
ROOM = 0.9
"""Share of the limit that is left after something had to go, so that not every new entry has to look again."""


@dataclass(frozen=True)
class Usage:
    """What one backend (``""``: all) keeps in the cache."""

    backend: str
    files: int
    bytes: int


def cache_root() -> Path:
    """``$VENDOR_SDK_CACHE_DIR``, else ``vendor-sdk`` in ``$XDG_CACHE_HOME`` or ``~/.cache``; it need not exist."""
    if chosen := os.environ.get("VENDOR_SDK_CACHE_DIR"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vendor-sdk"


def cache_dir(backend: str) -> Path:
    """The directory in which ``backend`` may keep compiled artefacts; made when it is not there, for this user alone: what
    lies in it is loaded as code.

    Many processes share it, and any of them may die: write under a temporary name in the same directory, then ``os.replace``.
    """
    root = cache_root()
    path = root / backend
    root.mkdir(0o700, parents=True, exist_ok=True)
    path.mkdir(0o700, exist_ok=True)
    tag = root / TAG
    if not tag.exists():
        tag.write_text(TAG_TEXT)
    return path


def size_limit(given: str | None = None) -> int:
    """Bytes that all backends together may keep: ``given``, else ``$VENDOR_SDK_CACHE_SIZE``, else 1 GiB; 0: nothing.

    Args:
        given: a number of bytes, or one with a unit of 1024s (``500M``, ``2G``), like the variable.

    Raises:
        OptionError: it is no size.
    """
    text = (os.environ.get(SIZE, "") if given is None else given).strip()
    if not text:
        return DEFAULT_SIZE
    found = re.fullmatch(r"(\d+)([kmgt]?)(i?b)?", text.lower())
    if found is None:
        raise OptionError(
            f"{SIZE if given is None else 'the size'} is {text!r}",
            why="it says how many bytes of compiled kernels may stay on disk",
            fix="Give a number such as 500M or 2G, to 0 for none, or nothing for 1 GiB.",
        )
    return int(found[1]) << 10 * " kmgt".index(found[2] or " ")


def prune(limit: int | None = None) -> Usage:
    """Deletes what was not used for longest until all backends together keep no more than ``limit`` bytes (``size_limit()``).

    Files that dead processes left unfinished go too. What another process loaded stays loaded. Returns what is gone.
    """
    limit = size_limit() if limit is None else limit
    files: list[tuple[int, int, Path]] = []
    gone = gone_bytes = 0
    for part in _parts():
        for path in part.rglob("*"):
            with contextlib.suppress(OSError):  # Another process deleted it.
                if path.is_file():
                    status = path.stat()
                    if path.name.startswith(UNFINISHED) and time.time() - status.st_mtime > ABANDONED_SECONDS:
                        path.unlink()
                        gone, gone_bytes = gone + 1, gone_bytes + status.st_size
                    else:
                        files.append((status.st_atime_ns, status.st_size, path))
    total = sum(size for _, size, _ in files)
    if total > limit:
        for _, size, path in sorted(files):
            if total <= limit * ROOM:
                break
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                total, gone, gone_bytes = total - size, gone + 1, gone_bytes + size
    return Usage("", gone, gone_bytes)


def usage() -> list[Usage]:
    """What each backend keeps, in order of name."""
    return [_measure(path) for path in _parts()]


def clear(backend: str | None = None) -> list[Usage]:
    """Deletes what ``backend``, or every backend, keeps; returns what is gone.

    Raises:
        VendorSDKError: the root is no cache of this SDK (it lacks the tag), so nothing is deleted.
    """
    gone = []
    for path in _parts():
        if backend is None or path.name == backend:
            gone.append(_measure(path))
            shutil.rmtree(path, ignore_errors=True)
    return gone


def _parts() -> Iterator[Path]:
    root = cache_root()
    if not root.is_dir() or not any(root.iterdir()):
        return
    if not (root / TAG).is_file():
        raise VendorSDKError(
            f"{root} is not a cache of vendor-sdk: it has no {TAG}",
            fix="Point VENDOR_SDK_CACHE_DIR at an empty directory, or unset it.",
        )
    yield from sorted(path for path in root.iterdir() if path.is_dir() and not path.is_symlink())


def _measure(path: Path) -> Usage:
    sizes = []
    for each in path.rglob("*"):
        with contextlib.suppress(OSError):  # Another process deleted it.
            if each.is_file():
                sizes.append(each.stat().st_size)
    return Usage(path.name, len(sizes), sum(sizes))
