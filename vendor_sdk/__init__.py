"""Plug a chip into PyTorch: everything public, importable from here.

Names resolve on first use, so ``import vendor_sdk`` imports neither torch nor any backend.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vendor_sdk import debug, errors
    from vendor_sdk.contract import program
    from vendor_sdk.contract.artifacts import Artifacts
    from vendor_sdk.contract.backend import (
        CONTRACT_VERSION,
        Backend,
        Decline,
        KnownFailure,
        Legalization,
        MemoryPolicy,
        NodeContext,
        Option,
        Support,
        Supported,
        Target,
        TensorInfo,
    )
    from vendor_sdk.contract.cache import cache_dir
    from vendor_sdk.contract.device import Device, DeviceProperties, DeviceTensor, MemoryStats, TorchDevice, contiguous_strides
    from vendor_sdk.contract.emitter import Emitter, Launch, Limits, flat
    from vendor_sdk.contract.graph import GraphCompiler, ModelFile
    from vendor_sdk.contract.hookspecs import HOOKS, hookimpl
    from vendor_sdk.contract.kernel import Computed, Kernel, NativeCall, Operand, destination
    from vendor_sdk.contract.loader import LoadedBackend, Session, extend, load, register, unregister
    from vendor_sdk.contract.placement import Kind, NodePlacement, Placement, Route
    from vendor_sdk.contract.program import Entry, Program, Step, StepError, float_bits
    from vendor_sdk.contract.recording import Recorder, Recording
    from vendor_sdk.contract.table import TableEmitter
    from vendor_sdk.errors import (
        BackendNameCollisionError,
        BackendNotFoundError,
        CaptureError,
        CompilerError,
        ContractError,
        DeviceError,
        DeviceMemoryError,
        GraphError,
        KernelError,
        LoweringError,
        MachineError,
        OptionError,
        PluginLoadError,
        TorchVersionError,
        UnsupportedPrimError,
        VendorSDKError,
        VersionMismatchError,
        WrongResultError,
    )
    from vendor_sdk.explanation import Explanation, Observed, explain, observe
    from vendor_sdk.ir import contraction, index, loop
    from vendor_sdk.ir.loop import LoopKernel
    from vendor_sdk.ir.primgraph import PrimGraph
    from vendor_sdk.lower import hoist, interior, online, split
    from vendor_sdk.model_file import export
    from vendor_sdk.native.linker import Linker
    from vendor_sdk.pipeline import compile_graph, trace
    from vendor_sdk.prims.bounds import (
        Accumulated,
        Bound,
        Distribution,
        Elements,
        Exact,
        Property,
        Ulp,
        Verdict,
        allowances,
        elements,
        rounded_once,
        violations,
    )
    from vendor_sdk.prims.dropout import kept_factor, words_kept
    from vendor_sdk.prims.opset import COMPOSITES, OPSET, OPSET_VERSION
    from vendor_sdk.prims.reference import Expected, outlined, reference, target_of
    from vendor_sdk.prims.row import (
        ALL,
        BOOL,
        FLOAT8,
        FLOATS,
        HALVES,
        INTS,
        NUMBERS,
        STORED,
        Composite,
        Family,
        Prim,
        Result,
        Row,
        Shape,
    )
    from vendor_sdk.prims.samples import EVERYWHERE, Effort, Sample, SampleContext
    from vendor_sdk.profiling import Profile, profile
    from vendor_sdk.resting import without_collections
    from vendor_sdk.run.arena import release_memory
    from vendor_sdk.run.blocks import warm_allocator, warm_empty
    from vendor_sdk.run.exhausted import out_of_memory
    from vendor_sdk.run.kept import sealed
    from vendor_sdk.run.memory import of_transfer
    from vendor_sdk.run.zones import Breach

__version__ = "0.1.0"
"""Of this distribution; contract and opset have versions of their own."""

_HOMES = {
    "vendor_sdk.contract.backend": (
        "CONTRACT_VERSION Backend Decline KnownFailure Legalization MemoryPolicy NodeContext Option Support Supported Target "
        "TensorInfo"
    ),
    "vendor_sdk.contract.artifacts": "Artifacts",
    "vendor_sdk.contract.cache": "cache_dir",
    "vendor_sdk.contract.device": "Device DeviceProperties DeviceTensor MemoryStats TorchDevice contiguous_strides",
    "vendor_sdk.contract.emitter": "Emitter Launch Limits flat",
    "vendor_sdk.contract.graph": "GraphCompiler ModelFile",
    "vendor_sdk.contract.hookspecs": "HOOKS hookimpl",
    "vendor_sdk.contract.kernel": "Computed Kernel NativeCall Operand destination",
    "vendor_sdk.contract.loader": "LoadedBackend Session extend load register unregister",
    "vendor_sdk.contract.placement": "Kind NodePlacement Placement Route",
    "vendor_sdk.contract.program": "Entry Program Step StepError float_bits",
    "vendor_sdk.contract.recording": "Recorder Recording",
    "vendor_sdk.contract.table": "TableEmitter",
    "vendor_sdk.model_file": "export",
    "vendor_sdk.native.linker": "Linker",
    "vendor_sdk.errors": (
        "BackendNameCollisionError BackendNotFoundError CaptureError CompilerError ContractError DeviceError "
        "DeviceMemoryError GraphError KernelError LoweringError MachineError OptionError PluginLoadError TorchVersionError "
        "UnsupportedPrimError VendorSDKError VersionMismatchError WrongResultError"
    ),
    "vendor_sdk.explanation": "Explanation Observed explain observe",
    "vendor_sdk.ir.loop": "LoopKernel",
    "vendor_sdk.ir.primgraph": "PrimGraph",
    "vendor_sdk.pipeline": "compile_graph trace",
    "vendor_sdk.prims.bounds": (
        "Accumulated Bound Distribution Elements Exact Property Ulp Verdict allowances elements rounded_once violations"
    ),
    "vendor_sdk.prims.dropout": "kept_factor words_kept",
    "vendor_sdk.prims.reference": "Expected outlined reference target_of",
    "vendor_sdk.prims.opset": "COMPOSITES OPSET OPSET_VERSION",
    "vendor_sdk.prims.row": "ALL BOOL FLOAT8 FLOATS HALVES INTS NUMBERS STORED Composite Family Prim Result Row Shape",
    "vendor_sdk.prims.samples": "EVERYWHERE Effort Sample SampleContext",
    "vendor_sdk.profiling": "Profile profile",
    "vendor_sdk.resting": "without_collections",
    "vendor_sdk.run.arena": "release_memory",
    "vendor_sdk.run.blocks": "warm_allocator warm_empty",
    "vendor_sdk.run.exhausted": "out_of_memory",
    "vendor_sdk.run.kept": "sealed",
    "vendor_sdk.run.memory": "of_transfer",
    "vendor_sdk.run.zones": "Breach",
}
"""Where each public name is defined."""

_MODULES = {
    "contraction": "vendor_sdk.ir.contraction",
    "debug": "vendor_sdk.debug",
    "errors": "vendor_sdk.errors",
    "index": "vendor_sdk.ir.index",
    "loop": "vendor_sdk.ir.loop",
    "program": "vendor_sdk.contract.program",
    "hoist": "vendor_sdk.lower.hoist",
    "interior": "vendor_sdk.lower.interior",
    "online": "vendor_sdk.lower.online",
    "split": "vendor_sdk.lower.split",
}
"""Public modules: vocabularies too large to repeat here."""

_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "ALL",
    "BOOL",
    "COMPOSITES",
    "CONTRACT_VERSION",
    "EVERYWHERE",
    "FLOAT8",
    "FLOATS",
    "HALVES",
    "HOOKS",
    "INTS",
    "NUMBERS",
    "OPSET",
    "OPSET_VERSION",
    "STORED",
    "Accumulated",
    "Artifacts",
    "Backend",
    "BackendNameCollisionError",
    "BackendNotFoundError",
    "Bound",
    "Breach",
    "CaptureError",
    "CompilerError",
    "Composite",
    "Computed",
    "ContractError",
    "Decline",
    "Device",
    "DeviceError",
    "DeviceMemoryError",
    "DeviceProperties",
    "DeviceTensor",
    "Distribution",
    "Effort",
    "Elements",
    "Emitter",
    "Entry",
    "Exact",
    "Expected",
    "Explanation",
    "Family",
    "GraphCompiler",
    "GraphError",
    "Kernel",
    "KernelError",
    "Kind",
    "KnownFailure",
    "Launch",
    "Legalization",
    "Limits",
    "Linker",
    "LoadedBackend",
    "LoopKernel",
    "LoweringError",
    "MachineError",
    "MemoryPolicy",
    "MemoryStats",
    "ModelFile",
    "NativeCall",
    "NodeContext",
    "NodePlacement",
    "Observed",
    "Operand",
    "Option",
    "OptionError",
    "Placement",
    "PluginLoadError",
    "Prim",
    "PrimGraph",
    "Profile",
    "Program",
    "Property",
    "Recorder",
    "Recording",
    "Result",
    "Route",
    "Row",
    "Sample",
    "SampleContext",
    "Session",
    "Shape",
    "Step",
    "StepError",
    "Support",
    "Supported",
    "TableEmitter",
    "Target",
    "TensorInfo",
    "TorchDevice",
    "TorchVersionError",
    "Ulp",
    "UnsupportedPrimError",
    "VendorSDKError",
    "Verdict",
    "VersionMismatchError",
    "WrongResultError",
    "__version__",
    "allowances",
    "cache_dir",
    "compile_graph",
    "contiguous_strides",
    "contraction",
    "debug",
    "destination",
    "elements",
    "errors",
    "explain",
    "export",
    "extend",
    "flat",
    "float_bits",
    "hoist",
    "hookimpl",
    "index",
    "interior",
    "kept_factor",
    "load",
    "loop",
    "observe",
    "of_transfer",
    "online",
    "out_of_memory",
    "outlined",
    "profile",
    "program",
    "reference",
    "register",
    "release_memory",
    "rounded_once",
    "sealed",
    "split",
    "target_of",
    "trace",
    "unregister",
    "violations",
    "warm_allocator",
    "warm_empty",
    "without_collections",
    "words_kept",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        globals()[name] = importlib.import_module(_MODULES[name])
    elif name in _HOME_OF:
        # All names of the module at once: importing a submodule binds its name here, which may be that of a function.
        home = importlib.import_module(_HOME_OF[name])
        globals().update({each: getattr(home, each) for each in _HOMES[_HOME_OF[name]].split()})
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)
