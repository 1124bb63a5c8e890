"""The pool: cases in worker processes, so that a crash or a hang in a vendor's kernel is one failed case and the run goes on.

No threads: whoever waits for a result drives the pool (``Pool.result``), which hands out cases, collects answers, and
replaces workers that died or ran out of time.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe, connection
from pathlib import Path
from typing import Any, NoReturn

from conformance.cases import TIMED, Case
from conformance.resident import Allowance, allowance, available, first_to_go, gibibytes, resident
from conformance.worker import Settings

START_SECONDS = 300.0
"""Time for a worker to import torch and the backend."""

WATCH_SECONDS = 0.1
"""Between two looks at how much memory workers hold, but for those whose calls are timed."""

CASES_PER_WORKER = 300
"""A worker is replaced after so many cases, so that what compilers leave in memory does not add up."""

AHEAD = 16
"""Cases that a worker has at a time at most: it begins them, so that compilers are busy in the background, while it runs the
first. What a compiler is asked for meanwhile it can compile together."""

STARTS = 3
"""Workers in succession that may end while they load the backend before the run is given up: what the machine does besides (its
memory runs out, for instance) may have ended one."""

LOG_ENDS = 20_000
"""Bytes of a worker's output that are kept with a failed case, of its beginning and of its end."""


def _checked_heap() -> dict[str, str]:
    """Environment in which the GNU C library fills fresh memory with a pattern (large negative numbers, NaN in float16) and
    ends the process where something was written behind a piece of memory. Other allocators do as they do."""
    library = "libc_malloc_debug.so.0"
    try:
        ctypes.CDLL(library)
    except OSError:
        return {}
    if os.environ.get("LD_PRELOAD"):
        return {}
    return {"LD_PRELOAD": library, "MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "1"}


CHECKED_HEAP = _checked_heap()
WARM_HEAP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""Environment in which the GNU C library gives no memory back."""


def _processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_CORRUPTION = re.compile(r"^(free|realloc|malloc)\w*\(\): |double free or corruption|corrupted ", re.MULTILINE)
"""What the C library prints before it aborts."""
LOST_DEVICE = 70
"""Exit status of a worker whose device works no more."""


class StartError(RuntimeError):
    """The subject could not be loaded, at the start or in a replaced worker: it refused, or ``STARTS`` workers in succession
    ended meanwhile. The run cannot go on."""


@dataclass
class Result:
    """A case's outcome with what only the pool knows.

    Attributes:
        outcome: fields of ``certify.Outcome``; ``verdict`` may also be ``crash`` or ``timeout`` here.
        log: what the worker printed while it ran the case.
    """

    case: Case
    outcome: dict[str, Any]
    log: str


@dataclass(eq=False)
class _Job:
    case: Case
    verdict: str = ""
    """Once it has one."""
    apart: bool = False
    crash: str = ""
    """How an earlier attempt ended, with all samples together or others begun."""
    after: list[_Job] = field(default_factory=list)
    """Others that were begun in a worker that crashed; their results come first, to say whose doing it was."""
    solo: bool = False
    """A worker that has this case has no other: what happens to it is this case's doing."""
    before: float = 0.0
    """Seconds spent in workers that ended."""
    spent: float = 0.0
    """In the one that has it."""
    printed: list[tuple[int, int]] = field(default_factory=list)
    """From where to where in its worker's log."""


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    connection: connection.Connection
    log: Path
    deadline: float
    ready: bool = False
    jobs: list[_Job] = field(default_factory=list)
    """Handed out, without a result yet."""
    job: _Job | None = None
    """At which it is."""
    began: float = 0.0
    log_start: int = 0
    sample: int | None = None
    served: int = 0
    held: int = 0
    """Bytes of memory when it was ready."""
    before: int = 0
    """And when it turned to the case that it is at."""


@dataclass
class Pool:
    """Runs cases in ``workers`` processes.

    Attributes:
        settings: what the workers are told.
        workers: number of processes.
        timeout: seconds for one case.
        logs: folder for the workers' output.
        only: index of the single sample of every case to run, ``None`` for all.
        progress: called with each result as it arrives, in the order of completion. The pool keeps none.
        memory: what a case may take beyond what its worker held before; ``None`` for ``resident.allowance``, where that is
            known.
        undisturbed: for timing. One worker has all processors, without the checked heap, and memory that is freed is kept, so
            that page faults are not what is timed.
    """

    settings: Settings
    workers: int
    timeout: float
    logs: Path
    only: int | None = None
    progress: Callable[[Result], None] = lambda result: None
    undisturbed: bool = False
    memory: Allowance | None = None
    _cases: deque[Case] = field(default_factory=deque)
    """Not begun yet."""
    _queue: deque[_Job] = field(default_factory=deque)
    """To be done again, before those."""
    _alive: list[_Worker] = field(default_factory=list)
    _started: int = 0
    _description: dict[str, Any] | None = None
    _refusal: StartError | None = None
    _unloaded: int = 0
    """Workers that ended while they loaded the backend, since one was last ready."""

    def __post_init__(self) -> None:
        if self.memory is None:
            self.memory = allowance(self.workers)

    def describe(self) -> dict[str, Any]:
        """What the subject says of itself (``subject.Description``).

        Raises:
            StartError: the subject refuses to load, or takes its process down with it.
        """
        while self._description is None:
            if not self._alive:
                self._start()
            self._step()
        return self._description

    def numerics(self) -> list[dict[str, str]] | None:
        """What the probes find (fields of ``probes.Finding``), before any case is submitted; ``None`` when they took the worker
        down or longer than a case may.

        Raises:
            StartError: as ``describe``.
        """
        self.describe()
        worker = next(worker for worker in self._alive if worker.ready)
        found: list[dict[str, str]] | None = None
        try:
            worker.connection.send_bytes(json.dumps({"do": "numerics"}).encode())
            if worker.connection.poll(self.timeout):
                found = json.loads(worker.connection.recv_bytes())["found"]
        except (EOFError, OSError):
            pass
        if found is None:
            self._end(worker)
        return found

    def submit(self, cases: Iterable[Case]) -> None:
        """Queues cases; they run in ``step``."""
        self._cases.extend(cases)

    @property
    def all_begun(self) -> bool:
        """Whether workers have all cases that are left."""
        return not self._waiting()

    def load(self, cases: int | None = None) -> None:
        """Has the workers that so many cases want (by default those it has) load the subject, and does not wait for them."""
        while len(self._alive) < min(self.workers, self._waiting() if cases is None else cases):
            self._start()

    def step(self) -> bool:
        """Runs cases for a second at most, or until something comes of one; false where none is left.

        Raises:
            StartError: no worker can be had any more.
        """
        if self._refusal is not None:
            raise self._refusal
        if not self._waiting() and not any(worker.jobs for worker in self._alive):
            return False
        self._step()
        return True

    def close(self) -> None:
        """Ends all workers, at once."""
        for worker in list(self._alive):
            self._end(worker)

    def _step(self) -> None:
        """One round: hand out, wait, collect, check deadlines."""
        self._hand_out()
        starting = sum(not worker.ready for worker in self._alive)
        while len(self._alive) < self.workers and starting < self._waiting():
            self._start()
            starting += 1
        now = time.monotonic()
        wait = min(
            [
                1.0 if self.undisturbed else WATCH_SECONDS,
                *(max(0.0, w.deadline - now) for w in self._alive if w.job or not w.ready),
            ]
        )
        ready = connection.wait([worker.connection for worker in self._alive], wait)
        for worker in list(self._alive):
            if worker.connection in ready:
                try:
                    message = json.loads(worker.connection.recv_bytes())
                except (EOFError, OSError, ValueError):
                    self._died(worker)
                else:
                    self._received(worker, message)
            elif worker.process.poll() is not None and not worker.connection.poll():
                self._died(worker)  # something it forked still holds its end of the connection
            elif (held := self._too_much(worker)) is not None:
                self._died(worker, held)
            elif (worker.job or not worker.ready) and time.monotonic() > worker.deadline:
                self._timed_out(worker)

    def _start(self) -> None:
        self._started += 1
        ours, theirs = Pipe()
        log = self.logs / f"worker-{self._started}.log"
        environment = dict(os.environ)
        # The worker imports what this process imports, installed or not.
        environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        if "OMP_NUM_THREADS" not in environment:
            # At least two: the parallel paths of kernels are to be certified too, on a machine of any size.
            environment["OMP_NUM_THREADS"] = str(max(2, _processors() // self.workers))
        environment.setdefault("OMP_WAIT_POLICY", "passive")
        environment.update(WARM_HEAP if self.undisturbed else CHECKED_HEAP)
        settings = json.dumps(
            dataclasses.asdict(
                dataclasses.replace(self.settings, memory=self.memory.bytes if self.memory else None, timeout=self.timeout)
            )
        )
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "conformance.worker", str(theirs.fileno()), settings],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,  # so that compilers it started end with it
            )
        theirs.close()
        first_to_go(process.pid)
        self._alive.append(_Worker(process, ours, log, time.monotonic() + START_SECONDS))

    def _hand_out(self) -> None:
        """Gives workers cases, those that have fewest first, while they may have more."""
        while (job := self._next()) is not None:
            # Towards the end less, so that all of them end at about the same time.
            most = 1 if self.only is not None or self.undisturbed else min(AHEAD, 1 + self._waiting() // self.workers)
            free = [
                worker
                for worker in self._alive
                if worker.ready
                and len(worker.jobs) < (1 if job.solo else most)
                and not any(each.solo for each in worker.jobs)
                and worker.served + len(worker.jobs) < CASES_PER_WORKER
            ]
            if not free:
                return
            self._queue.remove(job)
            self._assign(min(free, key=lambda worker: len(worker.jobs)), job)

    def _waiting(self) -> int:
        """Cases that no worker has."""
        return len(self._queue) + len(self._cases)

    def _next(self) -> _Job | None:
        """The first in the queue that waits for no other."""
        found = next((job for job in self._queue if all(each.verdict for each in job.after)), None)
        if found is None and self._cases:
            found = _Job(self._cases.popleft())
            self._queue.append(found)
        return found

    def _assign(self, worker: _Worker, job: _Job) -> None:
        worker.jobs.append(job)
        if worker.job is None:
            self._turn_to(worker, job, worker.log.stat().st_size)
        request = {"do": "case", **dataclasses.asdict(job.case), "only": self.only, "apart": job.apart}
        try:
            worker.connection.send_bytes(json.dumps(request).encode())
        except OSError:
            if worker.job is job:  # it died between two cases: this one is not to blame
                worker.job = None
            self._died(worker)

    def _turn_to(self, worker: _Worker, job: _Job, printed: int) -> None:
        """The worker is at ``job`` now, and had printed so much before."""
        self._leave(worker, printed)
        worker.job, worker.sample = job, None
        worker.began = time.monotonic()
        worker.deadline = worker.began + self.timeout - job.spent
        worker.log_start = printed

    def _leave(self, worker: _Worker, printed: int) -> None:
        if worker.job is not None:
            worker.job.spent += time.monotonic() - worker.began
            worker.job.printed.append((worker.log_start, printed))
            worker.job = None

    def _received(self, worker: _Worker, message: dict[str, Any]) -> None:
        match message["event"]:
            case "ready":
                worker.ready, worker.held, self._unloaded = True, resident(worker.process.pid), 0
                worker.before = worker.held
                self._description = message["description"]
            case "refused":
                self._refuse(message["error"])
            case "at":
                self._turn_to(worker, next(job for job in worker.jobs if job.case.id == message["case"]), message["log"])
                worker.before = message["held"]
            case "sample":
                worker.sample = message["index"]
            case "done":
                job = worker.job
                assert job is not None
                outcome = message["outcome"]
                if job.crash and not any(each.verdict == "crash" for each in job.after):
                    outcome["verdict"] = "crash"
                    outcome["failures"].insert(0, _failure(-1, "crash", f"{job.crash}; none does alone"))
                self._finish(worker, outcome, message["log"])
                worker.served += 1
                if worker.served >= CASES_PER_WORKER or self._full(worker):
                    self._again(worker.jobs, solo=False)
                    self._end(worker)

    def _full(self, worker: _Worker) -> bool:
        """Whether it keeps so much memory after its cases that what they left might be taken for what the next one takes."""
        return self.memory is not None and 2 * (resident(worker.process.pid) - worker.held) > self.memory.bytes

    def _refuse(self, why: str) -> NoReturn:
        self.close()
        self._refusal = StartError(why)
        raise self._refusal

    def _not_loaded(self, how: str, log: str) -> None:
        """A worker ended before it was ready: another one tries, while not too many have done so in succession."""
        self._unloaded += 1
        if self._unloaded >= STARTS:
            printed = f". It printed:\n{log}" if log.strip() else ", and printed nothing"
            self._refuse(f"{how}{printed}\nSo did {STARTS - 1} others before it")

    def _killed_by_others(self) -> str:
        """What is known of a SIGKILL that this suite did not send."""
        free = available()
        said = f": {gibibytes(free)} are free now" if free is not None else ""
        limits = f"{START_SECONDS:g} s" + (f" and {gibibytes(self.memory.bytes)}" if self.memory is not None else "")
        return (
            f" (by somebody else, for instance the system where memory runs out{said}; "
            f"the suite's own limits, {limits}, were not reached)"
        )

    def _finish(self, worker: _Worker, outcome: dict[str, Any], printed: int) -> None:
        job = worker.job
        assert job is not None
        worker.jobs.remove(job)
        self._leave(worker, printed)
        if worker.jobs:
            self._turn_to(worker, worker.jobs[0], printed)
        outcome["seconds"] = round(job.before + job.spent, 3)
        job.verdict = outcome["verdict"]
        self.progress(Result(job.case, outcome, _read(worker.log, job.printed)))

    def _too_much(self, worker: _Worker) -> str | None:
        """How a worker ends whose case takes more memory than it may."""
        taken = resident(worker.process.pid) - worker.before if self.memory is not None else 0
        if self.memory is None or taken <= self.memory.bytes:
            return None
        before = f" beside {gibibytes(worker.before)} that it held before" if worker.before else ""
        allowed = f"a case may take {gibibytes(self.memory.bytes)}, {self.memory.why}"
        return f"took {gibibytes(taken)}{before} and was ended ({allowed})"

    def _died(self, worker: _Worker, why: str = "") -> None:
        """It has ended, or is ended now, for the reason given."""
        job = worker.job
        company = [each for each in worker.jobs if each is not job]
        self._end(worker)
        printed = worker.log.stat().st_size
        log = _read(worker.log, [(worker.log_start, printed)])
        how = why or _ending(worker.process.returncode)
        if _CORRUPTION.search(log):
            how += ": the heap is corrupt, something was written outside of its memory"
        if not worker.ready:
            whose = "" if why or worker.process.returncode != -signal.SIGKILL else self._killed_by_others()
            self._not_loaded(f"the worker process {how} while it loaded the backend{whose}", log)
            return
        if job is not None and company:
            # Perhaps one of the others did it, in the background: where none of them does it alone, this one answers for it.
            self._leave(worker, printed)
            job.after, job.crash = company, f"the worker process {how} with {len(company)} other cases begun"
            self._again([*company, job], solo=True)
            return
        self._again(company, solo=True)
        if job is None:
            return
        if not job.apart and self.only is None and job.case.kind not in TIMED:
            # Again, sample by sample, to say which one it is.
            self._leave(worker, printed)
            job.apart, job.crash, job.after = True, f"the worker process {how} with all samples together", []
            self._again([job], solo=True)
            return
        index = self.only if worker.sample is None else worker.sample
        failure = _failure(-1 if index is None else index, "crash", f"the worker process {how}")
        self._finish(worker, _failed("crash", failure), printed)

    def _again(self, jobs: Sequence[_Job], *, solo: bool) -> None:
        """Queues what a worker had that ended, first of all."""
        for job in reversed(jobs):
            job.printed.clear()
            job.before, job.spent = job.before + job.spent, 0.0
            job.solo |= solo
            self._queue.appendleft(job)

    def _timed_out(self, worker: _Worker) -> None:
        if hasattr(signal, "SIGUSR1"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.process.pid, signal.SIGUSR1)
            time.sleep(0.2)  # for the stacks to reach the log
        self._end(worker)
        printed = worker.log.stat().st_size
        if not worker.ready:
            log = _read(worker.log, [(0, printed)])
            self._not_loaded(f"the worker process did not load the backend within {START_SECONDS:g} s and was ended", log)
            return
        assert worker.job is not None
        self._again([job for job in worker.jobs if job is not worker.job], solo=False)
        worker.jobs = [worker.job]
        index = self.only if worker.sample is None else worker.sample
        failure = _failure(-1 if index is None else index, "timeout", f"no result within {self.timeout:g} s")
        self._finish(worker, _failed("timeout", failure), printed)

    def _end(self, worker: _Worker) -> None:
        """Ends a worker with everything it started."""
        self._alive.remove(worker)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
        worker.connection.close()


def _read(log: Path, parts: Iterable[tuple[int, int]]) -> str:
    """What stands in parts of a worker's log; of a long part its ends: a program, for one, stands before its inputs."""
    text = b""
    with log.open("rb") as file:
        for start, end in parts:
            file.seek(start)
            if (left_out := end - start - 2 * LOG_ENDS) > 0:
                text += file.read(LOG_ENDS) + f"\n[{left_out:,} bytes left out]\n".encode()
                file.seek(end - LOG_ENDS)
            text += file.read(max(0, end - file.tell()))
    return text.decode(errors="replace")


def _failed(verdict: str, failure: dict[str, Any]) -> dict[str, Any]:
    return {
        "verdict": verdict,
        "placement": "unknown",
        "reason": failure["message"],
        "worst": 0.0,
        "samples": 0,
        "compared": 0,
        "fresh": 0,
        "failures": [failure],
    }


def _failure(sample: int, kind: str, message: str) -> dict[str, Any]:
    return {"sample": sample, "label": "", "kind": kind, "message": message}


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return "lost the device" if code == LOST_DEVICE else f"exited with status {code}"
