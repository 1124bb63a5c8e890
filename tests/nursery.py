"""Processes that tests start, forked from one that has imported torch: a new interpreter would take two seconds for that.

`Popen` takes the place of `subprocess.Popen` for what tests and the SDK start (conftest.py), and passes on what is neither
one of `MODULES` nor a program's file: commands that a user types begin with a new interpreter here too. Of the SDK, and of
torch's extensions, nothing is imported before the fork. The new process is this one's child, as any other is: its pid, its
session, its files, its environment and how it ends are what `subprocess` makes of them.

    here -> nursery    {"argv", "cwd", "environment", "session", "files"} and the files, one message
    nursery -> here    the pid, once it has its session
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import fcntl
import importlib
import inspect
import json
import os
import re
import runpy
import socket
import subprocess
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MODULES = {
    "benchmarks.worker",
    "conformance.worker",
    "vendor_sdk.advice",
    "vendor_sdk.contract.probe",
    "vendor_sdk.minify.worker",
}
"""What `python [-P] -m` runs in a forked process; `python FILE.py` is forked too."""
BEFORE = ("torch", "torch._dynamo", "torch.export", "torch.testing", "hypothesis")
"""What a nursery imports."""
READ_EARLY = re.compile(r"LD_|MALLOC_|OMP_|MKL_|KMP_|GOMP_|PYTHON(?!PATH)|LC_|LANG|TORCH|CUDA_|HOME$|VIRTUAL_ENV$")
"""Variables that are read while a process starts, or while torch is imported: each of their values has a nursery."""
PR_SET_CHILD_SUBREAPER = 36
LARGEST = 1 << 20
"""Bytes of a message."""
FIRST = 200
"""Files have descriptors from here on, until each takes its own."""

_Popen = subprocess.Popen


def forked(argv: Any) -> bool:
    """Whether a nursery runs this command."""
    if not isinstance(argv, list | tuple) or len(argv) < 2 or str(argv[0]) != sys.executable:
        return False
    words = _words(argv)
    return (words[0] == "-m" and words[1] in MODULES) or (words[0].endswith(".py") and Path(words[0]).is_file())


def _words(argv: Sequence[Any]) -> list[str]:
    """A command's words after the interpreter and its option."""
    return [str(word) for word in argv[2 if argv[1] == "-P" else 1 :]]


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """`subprocess.Popen`, of which a nursery forks the process where it can."""

    def _execute_child(self, *given: Any) -> None:
        original = _Popen._execute_child  # type: ignore[attr-defined]
        call = inspect.signature(original).bind(self, *given).arguments
        if call["preexec_fn"] is not None or call["executable"] is not None or not forked(call["args"]):
            original(self, *given)
            return
        environment = dict(os.environ if call["env"] is None else call["env"])
        inner = [call["p2cread"], call["c2pwrite"], call["errwrite"]]
        files = {number: number if file == -1 else file for number, file in enumerate(inner)}
        files |= {number: number for number in call["pass_fds"]}
        self.pid = _nursery(environment).fork(
            {
                "argv": [os.fspath(word) for word in call["args"]],
                "cwd": os.fspath(call["cwd"] or os.getcwd()),
                "environment": {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()},
                "session": call["start_new_session"],
            },
            files,
        )
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(call[name] for name in pipes))  # type: ignore[attr-defined]


class Nursery:
    """One process that others are forked from; it ends with this one."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        # What it forks becomes this process's child.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = _Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                env={name: value for name, value in environment.items() if name != "PYTHONPATH"},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(self.close)

    def fork(self, request: Mapping[str, Any], files: Mapping[int, int]) -> int:
        """The pid of a process for which `files` are at the descriptors that are their keys."""
        message = json.dumps({**request, "files": list(files)}).encode()
        socket.send_fds(self.socket, [message], list(files.values()))
        pid = self.socket.recv(64)
        if not pid:
            raise RuntimeError(f"the nursery ended with exit status {self.process.wait()}; above stands why, on stderr")
        return int(pid)

    def close(self) -> None:
        self.socket.close()
        self.process.wait()


_nurseries: dict[tuple[tuple[str, str], ...], Nursery] = {}


def _nursery(environment: Mapping[str, str]) -> Nursery:
    early = tuple(sorted((name, value) for name, value in environment.items() if READ_EARLY.match(name)))
    if early not in _nurseries:
        _nurseries[early] = Nursery(environment)
    return _nurseries[early]


# The nursery's side


def _serve(connection: socket.socket) -> Mapping[str, Any]:
    """Returns in each new process, with what it was asked to run."""
    for name in BEFORE:
        importlib.import_module(name)
    while True:
        message, files, _, _ = socket.recv_fds(connection, LARGEST, 64)
        if not message:
            sys.exit()
        ready, told = os.pipe()
        between = os.fork()
        if not between:
            if os.fork():
                os._exit(0)  # and the new one is an orphan, whose parent is who asked for it
            request: Mapping[str, Any] = json.loads(message)
            _arrange(request, files, told)
            return request
        for file in (told, *files):
            os.close(file)
        os.waitpid(between, 0)
        with open(ready, "rb") as pid:
            connection.send(pid.read())


def _arrange(request: Mapping[str, Any], files: Sequence[int], told: int) -> None:
    """The process as its command finds it."""
    if request["session"]:
        os.setsid()
    told, *files = (fcntl.fcntl(file, fcntl.F_DUPFD, FIRST) for file in (told, *files))
    os.closerange(3, FIRST)
    for file, number in zip(files, request["files"], strict=True):
        os.dup2(file, number)
        os.close(file)
    os.write(told, str(os.getpid()).encode())
    os.close(told)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    first, *rest = words = _words(request["argv"])
    sys.argv = rest if first == "-m" else words
    folder = request["cwd"] if first == "-m" else os.path.dirname(os.path.realpath(first))
    folders = [folder, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.path[:0] = folders[len(request["argv"]) - 1 - len(words) :]  # -P: not the first
    importlib.invalidate_caches()
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")


def _run(request: Mapping[str, Any]) -> None:
    file, *_ = _words(request["argv"])
    if file == "-m":
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    program = sys.modules["__main__"] = types.ModuleType("__main__")
    program.__dict__.update(__file__=file, __builtins__=builtins)
    exec(compile(Path(file).read_bytes(), file, "exec"), program.__dict__)


if __name__ == "__main__":
    _run(_serve(socket.socket(fileno=int(sys.argv[1]))))
