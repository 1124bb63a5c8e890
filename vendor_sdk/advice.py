"""What a backend should implement next: prims by the models that wait for them, and by what they cost on the host.

How often models use which prims is in ``prims/usage.json``, which ``python -m benchmarks.usage`` counts; a user's own program
is counted while it runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from vendor_sdk import pipeline, torch_private
from vendor_sdk import script as programs
from vendor_sdk.contract import defaults
from vendor_sdk.contract.discovery import suggestion
from vendor_sdk.contract.hookspecs import hookimpl
from vendor_sdk.contract.loader import extend, load
from vendor_sdk.contract.placement import Kind
from vendor_sdk.errors import OptionError, VendorSDKError

PASSES = ("forward", "training")


@dataclass
class Use:
    """What one program does with one prim.

    Attributes:
        calls: how often it calls it.
        bytes: of tensors it reads and makes in all calls.
        seconds: that torch takes for them on the host where it was counted.
        dtypes: of these tensors.
    """

    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0
    dtypes: set[str] = field(default_factory=set)

    def to_json(self) -> list[Any]:
        return [self.calls, self.bytes, round(self.seconds, 6), sorted(self.dtypes)]

    @classmethod
    def from_json(cls, values: Sequence[Any]) -> Use:
        return cls(values[0], values[1], values[2], set(values[3]))


Uses = Mapping[str, Use]


class Counter:
    """A plugin that counts what runs on the host: ``vendor_sdk.extend(name, counter)``.

    Attributes:
        uses: prim to what was counted.
    """

    def __init__(self) -> None:
        self.uses: dict[str, Use] = {}

    @hookimpl
    def host_fallback(self, prim: str) -> Callable[..., Any]:
        function = defaults.host_fallback(prim)

        def counted(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            result = function(*args, **kwargs)
            seconds = time.perf_counter() - started
            tensors = torch_private.tensor_leaves((args, kwargs, result))
            use = self.uses.setdefault(prim, Use())
            use.calls += 1
            use.seconds += seconds
            use.bytes += sum(tensor.nbytes for tensor in tensors)
            use.dtypes |= {str(tensor.dtype).removeprefix("torch.") for tensor in tensors}
            return result

        return counted


@dataclass(frozen=True)
class Step:
    """One prim to implement, in the order in which that helps most.

    Attributes:
        prim: name.
        reason: why it runs on the host today.
        models: that use it.
        unlocks: models that run without the host once this prim and those before it are there.
        calls, bytes: in one pass through all of the models that use it.
        share: of the time that all models' host prims take, from 0 to 1.
    """

    prim: str
    reason: str
    models: tuple[str, ...]
    unlocks: tuple[str, ...]
    calls: int
    bytes: int
    share: float


@dataclass(frozen=True)
class Advice:
    """The steps, the models that need none, and those that were looked at."""

    steps: tuple[Step, ...]
    ready: tuple[str, ...]
    models: tuple[str, ...]


def known_models(which: str = "forward") -> dict[str, Uses]:
    """The counted models; ``which``: one of ``PASSES``."""
    counted = json.loads((resources.files("vendor_sdk.prims") / "usage.json").read_text())["models"]
    return {name: {prim: Use.from_json(use) for prim, use in passes[which].items()} for name, passes in counted.items()}


def chosen_models(names: Sequence[str], which: str = "forward") -> dict[str, Uses]:
    """The models of these names, in their order. Raises ``OptionError`` for one that was not counted."""
    known = known_models(which)
    for name in names:
        if name not in known:
            raise OptionError(
                f"no model {name!r} was counted{suggestion(name, known)}",
                why=f"those that were: {', '.join(known)}",
                fix="Choose among them, or count your own with --script FILE.",
            )
    return {name: known[name] for name in names} if names else known


def waiting(backend: str) -> dict[str, str]:
    """Prims that the backend leaves to the host, with the reason of each."""
    placed = pipeline.static_support(load(backend))
    return {prim: place.reason for prim, place in placed.items() if place.kind in (Kind.HOST, Kind.DECLINED)}


def dtypes(backend: str) -> frozenset[str]:
    """Names of the dtypes that the backend computes in."""
    return frozenset(str(dtype).removeprefix("torch.") for dtype in load(backend).backend.dtypes)


def advise(models: Mapping[str, Uses], missing: Mapping[str, str], offered: Iterable[str]) -> Advice:
    """What to implement, each step chosen given those before it.

    First comes what unlocks most models; then what most models are nearest to (a model that waits for n prims counts 1/n for
    each); then what takes most time on the host.

    Args:
        models: by name, what each uses.
        missing: prims that run on the host, with the reason.
        offered: dtypes that the backend computes in; a prim that models use in others waits for these.
    """
    offered = set(offered)
    reasons: dict[str, str] = {}
    users: dict[str, dict[str, Use]] = {}
    for model, uses in models.items():
        for prim, use in uses.items():
            strange = sorted(use.dtypes - offered)
            if prim in missing:
                reasons[prim] = missing[prim]
            elif strange:
                reasons.setdefault(prim, f"used in {', '.join(strange)}, not among the backend's dtypes")
            else:
                continue
            users.setdefault(prim, {})[model] = use
    left = {model: {prim for prim in users if model in users[prim]} for model in models}
    ready = tuple(model for model, prims in left.items() if not prims)
    total = sum(use.seconds for uses in users.values() for use in uses.values()) or 1.0
    steps = []
    waiting_for = {model: prims for model, prims in left.items() if prims}
    while waiting_for:
        candidates = sorted({prim for prims in waiting_for.values() for prim in prims})

        def worth(prim: str) -> tuple[int, float, float]:
            ways = [len(prims) for prims in waiting_for.values() if prim in prims]
            return ways.count(1), sum(1 / n for n in ways), sum(use.seconds for use in users[prim].values())

        prim = max(candidates, key=worth)
        for prims in waiting_for.values():
            prims.discard(prim)
        unlocked = tuple(model for model, prims in waiting_for.items() if not prims)
        waiting_for = {model: prims for model, prims in waiting_for.items() if prims}
        of = users[prim].values()
        steps.append(
            Step(
                prim,
                reasons[prim],
                tuple(users[prim]),
                unlocked,
                sum(use.calls for use in of),
                sum(use.bytes for use in of),
                sum(use.seconds for use in of) / total,
            )
        )
    return Advice(tuple(steps), ready, tuple(models))


def count(backend: str, script: Path, arguments: Sequence[str] = ()) -> tuple[Uses, dict[str, str]]:
    """What ``script`` runs on the host when it compiles for ``backend``, and why; it is run in a process of its own.

    Raises:
        OptionError: it failed, or compiled nothing for the backend.
    """
    if not script.is_file():
        raise OptionError(f"{script} is no file", fix="Name a Python program that compiles a model.")
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "counted.json"
        child = [sys.executable, "-m", "vendor_sdk.advice", str(answer), backend, str(script), *arguments]
        # What the script prints must not be taken for the answer of the command.
        search = os.pathsep.join(path for path in (os.environ.get("PYTHONPATH"), *_own_paths()) if path)
        status = subprocess.run(child, stdout=2, env={**os.environ, "PYTHONPATH": search}, check=False).returncode
        if not answer.is_file():
            raise OptionError(f"{script} ended with exit status {status}", fix=f"Mend it until `python {script}` works.")
        counted = json.loads(answer.read_text())
    if "failed" in counted:
        raise OptionError(**counted["failed"])
    if not counted["graphs"]:
        raise OptionError(
            f"{script} compiled no graph for {backend!r}",
            fix=f'Let it call torch.compile(model, backend="{backend}"), and then the model.',
        )
    return {prim: Use.from_json(use) for prim, use in counted["uses"].items()}, counted["reasons"]


def _own_paths() -> list[str]:
    return [str(Path(__file__).parents[1])]


def _child(answer: str, backend: str, script: str, *arguments: str) -> None:
    """Runs the script with everything counted."""
    counter, graphs = Counter(), 0
    reasons: dict[str, str] = {}

    def compiled(graph: Any) -> None:
        nonlocal graphs
        if graph.backend == backend:
            graphs += 1
            reasons.update({each.prim: each.placement.reason for each in graph.placements if each.placement.kind is Kind.HOST})

    try:
        extend(backend, counter)
    except VendorSDKError as error:
        sys.exit(f"error: {error}")
    try:
        with pipeline.recording(compiled):
            programs.run(Path(script), arguments)
    except OptionError as error:
        failed = {"what": error.what, "where": error.where, "why": error.why, "fix": error.fix}
        Path(answer).write_text(json.dumps({"failed": failed}))
        return
    uses = {prim: use.to_json() for prim, use in counter.uses.items()}
    Path(answer).write_text(json.dumps({"graphs": graphs, "uses": uses, "reasons": reasons}))


if __name__ == "__main__":
    _child(*sys.argv[1:])
