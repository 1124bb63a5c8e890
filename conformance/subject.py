"""What is certified: a vendor_sdk backend, or any torch.compile backend (``torch:inductor``), behind one face.

Only worker processes make a subject: the process that runs the suite never imports a vendor's code.
"""

from __future__ import annotations

import abc
import contextlib
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

import vendor_sdk
from conformance import clocks, resident, subnormals, witness
from conformance.program import Program
from conformance.streams import Streams, streams_of
from conformance.values import tensors

TORCH_PREFIX = "torch:"
FALLBACK = "fallback"
OPAQUE = "opaque"
"""Placement of everything a plain torch.compile backend runs: it does not say."""


@dataclass(frozen=True)
class Description:
    """What a run's record says about its subject.

    Attributes:
        name, version, fingerprint: identity; the fingerprint is what distinguishes compiled artefacts beside the version.
        device: properties of the device by name.
        device_type: where the tensors of a program live (``"cpu"``, ``"cuda"``).
        expected_failures: case id or glob to how it fails and the vendor's reason.
        numerics: what the vendor declares, by the name of the probe that measures it.
        clocks: of the device, in MHz (``clocks.device``); no part of what a device is.
    """

    name: str
    version: str
    fingerprint: str
    device: Mapping[str, Any]
    device_type: str = "cpu"
    expected_failures: Mapping[str, vendor_sdk.KnownFailure] = field(default_factory=dict)
    numerics: Mapping[str, str] = field(default_factory=dict)
    clocks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Placed:
    """Where one node of a program ran: ``kind`` is native, view, decomposed, host, wrapper or opaque."""

    node: str
    prim: str
    kind: str
    reason: str


@dataclass(frozen=True)
class Compiled:
    """A program that a subject made ready: call it with the program's inputs."""

    call: Callable[..., Sequence[torch.Tensor]]
    placements: Sequence[Placed]
    empty: frozenset[str] = frozenset()
    """Names of nodes whose results hold no element: where they ran says nothing."""
    launches: int | None = None
    """Kernel launches of one call; ``None`` where the subject does not say."""
    guarded: Callable[..., tuple[Sequence[torch.Tensor], Sequence[object]]] | None = None
    """Calls it with each launch's operands and results between guard zones: what comes back, and what was written to zones;
    ``None`` where nobody knows its launches."""


class Subject(abc.ABC):
    """What the suite needs of the thing it certifies."""

    opaque = False
    """It does not say where anything ran."""
    deterministic = False
    """It promises that two calls with equal inputs give equal bits."""
    options: Mapping[str, Any] = MappingProxyType({})
    """With which it compiles."""
    flushing: subnormals.Flushing = subnormals.NOWHERE
    """Subnormals that it may take for zero, as it declares."""

    def memories(self) -> Sequence[Callable[[], int]]:
        """Functions that say how many bytes are allocated: in host memory, on the device."""
        measure = witness.heap()
        return [measure] if measure else []

    def streams(self) -> Streams | None:
        """Two streams of the device; None where programs run in host memory or the device has none that torch knows."""
        return None

    def free(self) -> int | None:
        """Bytes that may yet be allocated where tensors of programs live; ``None`` where nobody says."""
        return resident.available()

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Returns when the device has done all that was asked of it."""

    def counters(self) -> Mapping[str, int]:
        """The device's own counters, which only grow; empty where it has none."""
        return {}

    @abc.abstractmethod
    def describe(self) -> Description: ...

    def target(self, row: vendor_sdk.Row) -> Any:
        """What a program calls that is made of calls of ``row``."""
        return row.target

    @abc.abstractmethod
    def compile(self, program: Program) -> Compiled:
        """Makes ``program`` ready. Raises whatever the compiler raises."""

    @abc.abstractmethod
    def prepare(self, function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Compiled:
        """Makes a function of tensors ready, as a model's user would have it: composites that the subject claims stay whole,
        and what was made ready before stays so. Raises whatever the compiler raises."""

    @abc.abstractmethod
    def through_torch(self, function: Callable[..., Any], *, dynamic: bool | None = None) -> Callable[..., Any]:
        """``torch.compile`` of a function or module, which compiles in the first call; ``dynamic`` as there."""


def make(name: str, plugins: Sequence[str], options: Sequence[str] = ()) -> Subject:
    """The subject called ``name`` on the command line, after loading ``plugins`` (module names or paths to Python files), with
    its ``options`` (``KEY=VALUE``)."""
    for plugin in plugins:
        _load_plugin(plugin)
    given = parsed(options)
    if name.startswith(TORCH_PREFIX):
        return TorchSubject(name.removeprefix(TORCH_PREFIX), given)
    return BackendSubject(name, given)


def parsed(options: Sequence[str]) -> dict[str, Any]:
    """Options by name: values are JSON, or text as it stands.

    Raises:
        OptionError: one is not ``KEY=VALUE``, comes twice, or is the suite's to say.
    """
    found: dict[str, Any] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key:
            raise vendor_sdk.OptionError(f"--option {option}: no KEY=VALUE", fix="write it as --option mode=reduce-overhead")
        if key == FALLBACK:
            raise vendor_sdk.OptionError(
                f"--option {option}: what a backend lacks runs on the host, and is reported so", fix="leave the option out"
            )
        if key in found:
            raise vendor_sdk.OptionError(f"--option {key} is given twice", fix="give it once")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


RECOGNIZED = frozenset(("rms_norm",))
"""Composites that no program can call: torch takes them apart, with writes in place. Their definition is recognized."""


class BackendSubject(Subject):
    """A backend that implements the contract. What it lacks runs on the host, so that every case has a result to compare."""

    def __init__(self, name: str, options: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.loaded = vendor_sdk.load(name)
        self.name = name
        self.options = {FALLBACK: "host", **options}
        self.deterministic = self.loaded.backend.deterministic
        self.flushing = subnormals.declared(self.loaded.backend.numerics)

    def memories(self) -> Sequence[Callable[[], int]]:
        device = self.loaded.session(self.options).device
        if isinstance(device, vendor_sdk.TorchDevice):
            return super().memories() if device.type == "cpu" else [torch.get_device_module(device.type).memory_allocated]
        return [*super().memories(), lambda: device.memory_stats().used]

    def streams(self) -> Streams | None:
        device = self.loaded.session(self.options).device
        return streams_of(device.type) if isinstance(device, vendor_sdk.TorchDevice) else None

    def free(self) -> int | None:
        device = self.loaded.session(self.options).device
        if isinstance(device, vendor_sdk.TorchDevice):
            return super().free() if device.type == "cpu" else torch.get_device_module(device.type).mem_get_info()[0]
        stats = device.memory_stats()
        known = [super().free(), stats.total - stats.used if stats.total else None]
        return min((each for each in known if each is not None), default=None)

    def describe(self) -> Description:
        device = self.loaded.session(self.options).device
        type_ = device.type if isinstance(device, vendor_sdk.TorchDevice) else "cpu"
        if isinstance(device, vendor_sdk.TorchDevice):
            properties: dict[str, Any] = _torch_device_properties(device.type)
        else:
            found = device.properties()
            properties = {
                "name": found.name,
                "memory_bytes": found.memory_bytes,
                "alignment": found.alignment,
                "peaks": dict(found.peaks),
                "streams": NO_STREAMS,
            }
        return Description(
            name=self.name,
            version=self.loaded.backend.version,
            fingerprint=self.loaded.fingerprint,
            device=properties,
            device_type=type_,
            expected_failures=dict(self.loaded.expected_failures),
            numerics=dict(self.loaded.backend.numerics),
            clocks=clocks.device(type_),
        )

    def synchronize(self) -> None:
        device = self.loaded.session(self.options).device
        if not isinstance(device, vendor_sdk.TorchDevice):
            device.synchronize()
        elif device.type != "cpu":
            torch.get_device_module(device.type).synchronize()

    def counters(self) -> Mapping[str, int]:
        return self.loaded.backend.counters()

    def target(self, row: vendor_sdk.Row) -> Any:
        """Of a composite that the backend does not claim, the definition in prims: torch has definitions of its own for some,
        in which halves are rounded more than once."""
        if isinstance(row, vendor_sdk.Prim) or row.name in self.loaded.backend.composites - RECOGNIZED:
            return row.target
        return row.targets[row.target]

    def compile(self, program: Program) -> Compiled:
        return self.prepare(program.module, program.inputs)

    def prepare(self, function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Compiled:
        return self._compiled(vendor_sdk.trace(function, inputs, composites=self.loaded.backend.composites))

    def through_torch(self, function: Callable[..., Any], *, dynamic: bool | None = None) -> Callable[..., Any]:
        compiled: Callable[..., Any] = torch.compile(function, backend=self.name, dynamic=dynamic, options=dict(self.options))
        return compiled

    def _compiled(self, graph: vendor_sdk.PrimGraph) -> Compiled:
        compiled = vendor_sdk.compile_graph(graph, backend=self.name, options=self.options)
        placed = [
            Placed(entry.name, entry.prim, str(entry.placement.kind), entry.placement.reason) for entry in compiled.placements
        ]
        return Compiled(compiled, placed, empty_nodes(graph.graph), compiled.launches, compiled.guarded)


class TorchSubject(Subject):
    """Any backend of ``torch.compile``, for comparison with peers: results are judged, placements are not known."""

    opaque = True

    def __init__(self, name: str, options: Mapping[str, Any] = MappingProxyType({})) -> None:
        if name not in torch.compiler.list_backends(exclude_tags=()):
            known = ", ".join(torch.compiler.list_backends(exclude_tags=()))
            raise vendor_sdk.errors.BackendNotFoundError(
                f"torch.compile knows no backend {name!r}", fix=f"choose one of {known}, or name a plugin file with --plugin"
            )
        self.name, self.options = name, options

    def _given(self) -> dict[str, Any] | None:
        return dict(self.options) or None

    def synchronize(self) -> None:
        """Programs run on the CPU."""

    def describe(self) -> Description:
        return Description(
            name=TORCH_PREFIX + self.name,
            version=torch.__version__,
            fingerprint=str(torch.version.git_version),
            device=_torch_device_properties("cpu"),
        )

    def compile(self, program: Program) -> Compiled:
        torch.compiler.reset()
        return Compiled(torch.compile(program.module, backend=self.name, dynamic=False, options=self._given()), ())

    def prepare(self, function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Compiled:
        def call(*given: torch.Tensor) -> Any:
            return function(*given)

        # Dynamo keeps what it compiled with the code object, so each function has one of its own.
        call.__code__ = call.__code__.replace()
        compiled = torch.compile(call, backend=self.name, dynamic=False, options=self._given())

        def without_gradients(*given: torch.Tensor) -> Any:
            with torch.no_grad():
                return compiled(*given)

        return Compiled(without_gradients, ())

    def through_torch(self, function: Callable[..., Any], *, dynamic: bool | None = None) -> Callable[..., Any]:
        compiled: Callable[..., Any] = torch.compile(function, backend=self.name, dynamic=dynamic, options=self._given())
        return compiled


def _torch_device_properties(type_: str) -> dict[str, Any]:
    if type_ == "cpu":
        # Calls on two streams are no part of what can be said of the host.
        return {"name": torch.backends.cpu.get_cpu_capability(), "threads": torch.get_num_threads(), "streams": NO_STREAMS}
    module = torch.get_device_module(type_)
    properties = module.get_device_properties(0)
    return {"name": properties.name, "memory_bytes": properties.total_memory, **_streams(type_), **_software(type_)}


NO_STREAMS = "not applicable"
"""In the record, of a device without streams."""
DRIVERS = {"cuda": Path("/proc/driver/nvidia/version")}
"""Where the kernel says which driver it has, by torch device type."""


def _streams(type_: str) -> dict[str, str]:
    return {} if streams_of(type_) is not None else {"streams": NO_STREAMS}


def _software(type_: str) -> dict[str, str]:
    """Versions of what runs between torch and a device of this type: driver, toolkit that torch was built with, Triton."""
    found: dict[str, str | None] = {"toolkit": getattr(torch.version, type_, None)}
    with contextlib.suppress(KeyError, OSError, IndexError):
        found["driver"] = DRIVERS[type_].read_text().splitlines()[0].partition(":")[2].strip()
    with contextlib.suppress(PackageNotFoundError):
        found["triton"] = version("triton")
    return {name: text for name, text in found.items() if text}


def empty_nodes(graph: torch.fx.Graph) -> frozenset[str]:
    return frozenset(
        node.name
        for node in graph.nodes
        if (found := tensors(node.meta.get("val"))) and all(0 in _known_sizes(tensor) for tensor in found)
    )


def _known_sizes(tensor: torch.Tensor) -> list[int]:
    """Sizes without those that depend on data (of ``nonzero``), which nobody knows before the run."""
    return [size for size in tensor.shape if isinstance(size, int)]


def _load_plugin(plugin: str) -> None:
    """Imports a module that registers itself, or is itself a plugin (has hook functions), under its own name."""
    if plugin.endswith(".py"):
        path = Path(plugin).resolve()
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.exists():
            raise vendor_sdk.errors.PluginLoadError(f"--plugin {plugin}: no such file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(plugin)
    if callable(getattr(module, "backend", None)):
        vendor_sdk.register(module)
