"""Compiled artefacts by content, kept between processes and carried by ``torch.compiler.save_cache_artifacts``.

An entry is one file, ``<root>/<backend>/<key><suffix>``:

    content     as it was given; loaders of shared libraries ignore what follows, so they take the file as it is
    8 bytes     MAGIC, the version of this format
    32 bytes    SHA-256 of the key, a line feed and the content

The key is the SHA-256 (32 hexadecimal digits) of everything that shaped the content: this format, the backend's name, the
versions of the SDK and of torch, the backend's identity (compiler, flags, processor) and what the caller adds (the source).
So no backend, compiler or version meets what another one made. An entry appears by a rename and never changes: many processes
may write one entry at once, and they write the same bytes. A file whose end does not match the rest (a crash, a full disk, a
bad block) is no entry and is written anew. Access times say what was used last; beyond ``VENDOR_SDK_CACHE_SIZE`` the entries
that were not used for longest go (``cache.prune``).

Where the directory takes no files, entries live in a temporary directory of this process, and a warning says so once.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import re
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from vendor_sdk import __version__, torch_private
from vendor_sdk.contract import cache

MAGIC = b"vsdkart1"
_DIGEST = hashlib.sha256().digest_size
_TAIL = len(MAGIC) + _DIGEST
_NAME = re.compile(r"(?P<backend>[A-Za-z0-9_][A-Za-z0-9_.-]*)/(?P<key>[0-9a-f]{32})(?P<suffix>(\.[a-z]+)?)")
"""What other processes may call an entry: nothing that leaves the root."""


class Artifacts:
    """What one backend keeps.

    Args:
        backend: name; a directory of the cache.
        identity: what beside versions shapes every artefact (the backend's fingerprint); asked once, at the first key.
    """

    def __init__(self, backend: str, identity: Callable[[], str] = str) -> None:
        self.backend = backend
        self._identity = functools.cache(identity)

    def key(self, *shaped_by: str) -> str:
        """The key of what ``shaped_by`` (sources, options) and nothing else of the caller's determines."""
        parts = (MAGIC.decode(), self.backend, __version__, torch.__version__, self._identity(), *shaped_by)
        # Lengths, so that no two lists of parts read the same.
        return hashlib.sha256("".join(f"{len(part)}:{part}" for part in parts).encode()).hexdigest()[:32]

    def find(self, key: str, suffix: str = "") -> Path | None:
        """The intact entry, now the last used one; ``None`` when there is none."""
        found = self._lookup(key, suffix)
        return None if found is None else found[0]

    def read(self, key: str, suffix: str = "") -> bytes | None:
        """The content of the entry, now the last used one; ``None`` when there is none."""
        found = self._lookup(key, suffix)
        return None if found is None else found[1]

    def keep(self, key: str, content: bytes, suffix: str = "") -> Path:
        """Makes ``content`` the entry. Never fails for want of a place: see the top of this file."""
        path = self._write(key, content, suffix)
        torch_private.record_artifact(f"{self.backend}/{key}{suffix}", content)
        return path

    def _lookup(self, key: str, suffix: str) -> tuple[Path, bytes] | None:
        for folder in (cache.cache_root() / self.backend, *_private(self.backend, make=False)):
            path = folder / f"{key}{suffix}"
            try:
                data = path.read_bytes()
            except OSError:
                continue
            content = memoryview(data)[:-_TAIL]
            if len(data) >= _TAIL and data[-_TAIL:] == _tail(key, content):
                with contextlib.suppress(OSError):
                    os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
                known = bytes(content)
                torch_private.record_artifact(f"{self.backend}/{key}{suffix}", known)
                return path, known
        return None

    def _write(self, key: str, content: bytes, suffix: str) -> Path:
        data = content + _tail(key, content)
        limit = cache.size_limit()
        if limit:
            try:
                path = _replace(cache.cache_dir(self.backend), f"{key}{suffix}", data)
            except OSError as error:
                _complain(error)
            else:
                _written(len(data), limit)
                return path
        (folder,) = _private(self.backend, make=True)
        return _replace(folder, f"{key}{suffix}", data)


def _tail(key: str, content: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(f"{key}\n".encode())
    digest.update(content)
    return MAGIC + digest.digest()


def _replace(folder: Path, name: str, data: bytes) -> Path:
    """Writes a file that is there whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=cache.UNFINISHED)
    try:
        with open(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, folder / name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return folder / name


_lock = threading.Lock()
_complained = False
_unpruned: int | None = None
"""Bytes written since this process last looked at the size of the cache; None: it never did."""
_temporary: Path | None = None


def _complain(error: OSError) -> None:
    global _complained
    with _lock:
        if _complained:
            return
        _complained = True
    warnings.warn(
        f"vendor-sdk: {cache.cache_root()} takes no files ({error.strerror or error}): what is compiled now is compiled again "
        "in the next process. Point VENDOR_SDK_CACHE_DIR at a directory that can be written, or make room.",
        stacklevel=2,
    )


def _written(size: int, limit: int) -> None:
    """Looks at the size of the cache at the first entry of a process and after every 32nd part of the limit."""
    global _unpruned
    with _lock:
        due = _unpruned is None or _unpruned + size > limit // 32
        _unpruned = 0 if due else (_unpruned or 0) + size
    if due:
        cache.prune(limit)


def _private(backend: str, *, make: bool) -> tuple[Path, ...]:
    """The backend's part of this process's own directory, if there is one."""
    global _temporary
    with _lock:
        if _temporary is None:
            if not make:
                return ()
            _temporary = Path(tempfile.mkdtemp(prefix="vendor-sdk-"))
            atexit.register(_remove, _temporary, os.getpid())
    folder = _temporary / backend
    if make:
        folder.mkdir(exist_ok=True)
    return (folder,)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # A forked child inherits the directory, not the right to remove it.
        shutil.rmtree(folder, ignore_errors=True)


def _populate(name: str, content: bytes) -> None:
    """Takes in what another process recorded."""
    match = _NAME.fullmatch(name)
    if match is not None:
        Artifacts(match["backend"])._write(match["key"], content, match["suffix"])


torch_private.carry_artifacts(_populate)
