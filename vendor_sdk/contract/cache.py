"""Where compiled kernels are kept between processes: one directory a backend, under one root that may always be deleted."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vendor_sdk.errors import VendorSDKError

TAG = "CACHEDIR.TAG"
TAG_TEXT = "Signature: 8a477f597d28d172789f06886806bc55\n# Cache of vendor-sdk; it may be deleted at any time.\n"
"""Marks a directory as a cache for backup tools, and for ``clear``. Source: https://bford.info/cachedir/"""


@dataclass(frozen=True)
class Usage:
    """What one backend keeps in the cache."""

    backend: str
    files: int
    bytes: int


def cache_root() -> Path:
    """``$VENDOR_SDK_CACHE_DIR``, else ``vendor-sdk`` in ``$XDG_CACHE_HOME`` or ``~/.cache``; it need not exist."""
    if chosen := os.environ.get("VENDOR_SDK_CACHE_DIR"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vendor-sdk"


def cache_dir(backend: str) -> Path:
    """The directory in which ``backend`` may keep compiled artefacts; made when it is not there.

    Many processes share it, and any of them may die: write under a temporary name in the same directory, then ``os.replace``.
    """
    root = cache_root()
    path = root / backend
    path.mkdir(parents=True, exist_ok=True)
    tag = root / TAG
    if not tag.exists():
        tag.write_text(TAG_TEXT)
    return path


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
    sizes = [each.stat().st_size for each in path.rglob("*") if each.is_file()]
    return Usage(path.name, len(sizes), sum(sizes))
