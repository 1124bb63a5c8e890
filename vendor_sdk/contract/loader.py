"""From a backend's name to a checked backend.

Each has a plugin manager of its own, with the SDK's defaults, the backend and user extensions. What a plugin can get wrong is
checked here, once, and each mistake is one error that names the culprit and the mend.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import inspect
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy
import torch

from vendor_sdk.contract import defaults, discovery, hookspecs, options
from vendor_sdk.contract.backend import (
    CONTRACT_VERSION,
    VERDICTS,
    Backend,
    Decline,
    KnownFailure,
    NodeContext,
    Option,
    Support,
    Supported,
    Target,
)
from vendor_sdk.contract.device import Device, TorchDevice
from vendor_sdk.contract.discovery import suggestion
from vendor_sdk.contract.hookspecs import HOOKS, PROJECT
from vendor_sdk.contract.kernel import Kernel
from vendor_sdk.errors import (
    BackendNameCollisionError,
    BackendNotFoundError,
    ContractError,
    MachineError,
    OptionError,
    PluginLoadError,
    VersionMismatchError,
)
from vendor_sdk.prims.opset import COMPOSITES, OPSET, OPSET_VERSION

if TYPE_CHECKING:
    from vendor_sdk.contract.emitter import Emitter
    from vendor_sdk.contract.graph import GraphCompiler
    from vendor_sdk.ir.primgraph import PrimGraph

    Pass = Callable[[PrimGraph], PrimGraph]

T = TypeVar("T")

STAGES = ("normalize", "legalize", "place")
"""Stages after which ``graph_passes`` may add passes."""

SOURCES = frozenset((".py", ".h", ".hpp", ".c", ".cc", ".cpp", ".cu", ".cuh"))
"""Files of a plugin's folder that say what it does; what it loads beside them is what its fingerprint is for."""

IN_PROCESS = "registered in process"
"""``LoadedBackend.distribution`` of a plugin that ``register`` brought."""


@dataclass(frozen=True)
class Session:
    """A backend under one set of compile options: the objects its hooks made for them.

    Attributes:
        loaded: the backend.
        device: where tensors live.
        emitter: route 2, ``None`` when the backend has none.
        graph_compiler: route 3, ``None`` when the backend has none.
        options: every option of the backend with its value.
    """

    loaded: LoadedBackend
    device: Device | TorchDevice
    emitter: Emitter | None
    graph_compiler: GraphCompiler | None
    options: Mapping[str, Any]

    @property
    def target(self) -> Any:
        """The device for which graphs are compiled though this machine may lack it (``Target``); None: its own."""
        return next((self.options[name] for name in _targets(self.loaded.backend)), None)

    @property
    def tensors_on(self) -> str:
        """The type of torch's device on which tensors are; ``""``: in memory that the host cannot address."""
        if not isinstance(self.device, TorchDevice):
            return ""
        return self.device.type if self.target is None else "cpu"


@dataclass(frozen=True, eq=False)
class LoadedBackend:
    """A backend whose plugin passed every check, with the answers of the hooks that are asked at load.

    Attributes:
        backend: identity and limits.
        kernels: prim (or claimed composite) to kernel; plain callables are wrapped.
        decompositions: by ``decomposition_key``; the SDK's and the backend's, merged.
        fingerprint: what beside name and version changes compiled artefacts; user extensions included.
        expected_failures: of the conformance suite, by case id or glob.
        distribution: name and version (``"mychip 1.2.0"``), or ``IN_PROCESS``.
        plugins: the backend's, then those of user extensions.
    """

    backend: Backend
    kernels: Mapping[str, Kernel]
    decompositions: Mapping[str, Callable[..., Any]]
    fingerprint: str
    expected_failures: Mapping[str, KnownFailure]
    distribution: str
    plugins: tuple[object, ...]
    _hooks: _Hooks = field(repr=False)
    _passes: Mapping[str, tuple[Pass, ...]] = field(repr=False)
    _sessions: dict[str, Session] = field(default_factory=dict, repr=False)
    _fallbacks: dict[str, Callable[..., Any] | None] = field(default_factory=dict, repr=False)
    _met: set[Callable[[], str]] = field(default_factory=set, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    @property
    def declared_options(self) -> Mapping[str, Option]:
        """The SDK's and the backend's options by name."""
        return {**options.SDK_OPTIONS, **self.backend.options}

    @functools.cached_property
    def identity(self) -> str | None:
        """Digest of the source of the SDK and of all plugins; None where a plugin's source is unknown.

        What was compiled by other code is never used, also while a plugin (or the SDK) is being written.
        """
        folders = {Path(__file__).parent.parent}
        for plugin in self.plugins:
            file = getattr(plugin, "__file__", None)
            if not isinstance(plugin, ModuleType) or file is None:
                return None
            folders.add(Path(file).parent if plugin.__package__ else Path(file))
        digest = hashlib.sha256()
        for path in sorted(file for each in folders for file in ([each] if each.is_file() else each.rglob("*"))):
            if path.suffix in SOURCES and path.is_file():
                content = path.read_bytes()
                digest.update(f"{path.name}:{len(content)}:".encode())
                digest.update(content)
        return digest.hexdigest()

    def passes(self, stage: str) -> tuple[Pass, ...]:
        """Passes to run after ``stage`` (one of ``STAGES``): the backend's, then those of user extensions."""
        return self._passes[stage]

    def supports(self, node: NodeContext, given: Mapping[str, Any] | None = None) -> Support:
        """Whether the backend takes ``node`` under options ``given``.

        Raises ``ContractError`` for an answer that is neither, or gives no reason."""
        answer = self._hooks.first("supports", (Supported, Decline), node=node, options=given or {})
        if isinstance(answer, Decline) and not answer.reason.strip():
            raise self._hooks.error("supports", f"declined {node.prim!r} without a reason", 'Return Decline("k > 4096").')
        return answer  # type: ignore[no-any-return]

    def decomposition(self, target: Any) -> Callable[..., Any] | None:
        """How ``target``, the operator of a prim or composite, decomposes; ``None`` when it does not."""
        return self.decompositions.get(defaults.decomposition_key(target))

    def host_fallback(self, prim: str) -> Callable[..., Any] | None:
        """What runs ``prim`` on the host, on torch tensors."""
        if prim not in self._fallbacks:
            self._fallbacks[prim] = self._hooks.first("host_fallback", (Callable, type(None)), prim=prim)
        return self._fallbacks[prim]

    def with_mode(self, given: Mapping[str, Any] | None, mode: str | None) -> Mapping[str, Any] | None:
        """``given`` options with torch.compile's ``mode``. Raises ``OptionError`` for a mode the backend does not declare."""
        return options.with_mode(self.backend.name, self.declared_options, given, mode)

    def require(self, given: Mapping[str, Any] | None = None) -> None:
        """Raises ``MachineError`` when this machine lacks what the backend needs under options ``given``.

        That is its device, or what compiles for a target."""
        asked = self.backend.requires
        for name, target in _targets(self.backend).items():
            if given and given.get(name) is not None:
                options.validate(self.backend.name, {name: target}, {name: given[name]})
                asked = target.requires
        if asked not in self._met:
            missing = _missing(self.backend, asked)
            if missing:
                raise _lacking(self.backend, missing)
            self._met.add(asked)

    def session(self, given: Mapping[str, Any] | None = None) -> Session:
        """The backend under compile options ``given``; made once for each distinct set. Raises ``OptionError``, and
        ``MachineError`` as ``require`` does."""
        values = MappingProxyType(options.validate(self.backend.name, self.declared_options, given))
        self.require(values)
        key = repr(sorted(values.items()))
        with self._lock:
            if key not in self._sessions:
                self._sessions[key] = self._make_session(values)
            return self._sessions[key]

    def _make_session(self, values: Mapping[str, Any]) -> Session:
        from vendor_sdk.contract.emitter import Emitter
        from vendor_sdk.contract.graph import GraphCompiler

        return Session(
            loaded=self,
            device=self._hooks.first("device", (Device, TorchDevice), options=values),
            emitter=self._hooks.first("emitter", (Emitter, type(None)), options=values),
            graph_compiler=self._hooks.first("graph_compiler", (GraphCompiler, type(None)), options=values),
            options=values,
        )


def load(name: str, options: Mapping[str, Any] | None = None) -> LoadedBackend:
    """The backend called ``name``, loaded and checked; the same object at every call in a process.

    Args:
        options: as in ``torch.compile``. Where they name a target (``Target``), this machine may lack the backend's device.

    Raises:
        BackendNotFoundError, BackendNameCollisionError: nothing, or more than one distribution, offers the name.
        PluginLoadError: the plugin raised at import, or this machine lacks what it needs.
        VersionMismatchError: it was written for another contract or opset.
        ContractError: anything else a plugin can get wrong.
        OptionError: a target that the backend does not know.
    """
    loaded = _load(name)
    loaded.require(options)
    return loaded


def _load(name: str) -> LoadedBackend:
    """The backend, for whatever this machine can do: compile for its own device, or for a target."""
    with _lock:
        if name not in _loaded:
            extensions = _extensions.get(name, [])
            if name in _registered:
                _loaded[name] = _check(name, _registered[name], extensions, IN_PROCESS)
            else:
                offer = discovery.find(name, in_process=_registered)
                _loaded[name] = _check(name, _import(offer), extensions, offer.distribution)
        return _loaded[name]


def register(plugin: object, *, name: str | None = None) -> None:
    """Offers a plugin that belongs to no installed distribution, to this process; torch.compile finds it by its name too.

    Args:
        plugin: any object with functions marked ``hookimpl``, usually a module or an instance.
        name: what users write; default and only legal value: the name its ``backend`` hook answers.

    Raises:
        BackendNameCollisionError: the name is taken by another plugin, a distribution or torch itself.
        ContractError and the other errors of ``load``: the plugin is checked at once.
    """
    import torch._dynamo

    with _lock:
        checked = _check(name, plugin, _extensions.get(name or "", []), IN_PROCESS)
        name = checked.backend.name
        owner = _owner(name)
        if owner:
            raise BackendNameCollisionError(
                f"the backend name {name!r} is taken by {owner}",
                fix="Choose another Backend(name=...)"
                + (f", or call unregister({name!r}) first." if name in _registered else "."),
            )
        _registered[name] = plugin
        if name not in _extensions:
            _loaded[name] = checked
        if name not in _known_to_torch:
            # What the vendor's entry point would say; by reference, since the module stands above this one.
            reference = importlib.metadata.EntryPoint(name, f"vendor_sdk.dynamo:{name}", discovery.DYNAMO_GROUP)
            torch._dynamo.register_backend(compiler_fn=reference.load(), name=name)
            _known_to_torch.add(name)


def unregister(name: str) -> None:
    """Withdraws what ``register`` offered and, so that nothing goes on using it, whatever torch has compiled (for any backend).

    Raises:
        BackendNotFoundError: no plugin was registered under ``name``.
    """
    import torch._dynamo

    with _lock:
        if name not in _registered:
            raise BackendNotFoundError(
                f"no plugin was registered as {name!r}{suggestion(name, _registered)}",
                why=f"registered in this process: {', '.join(sorted(_registered)) or 'none'}",
                fix="Pass the name of a plugin that vendor_sdk.register brought.",
            )
        del _registered[name]
        _loaded.pop(name, None)
        _extensions.pop(name, None)
        torch._dynamo.reset()


def extend(name: str, plugin: object) -> None:
    """Adds a user's hooks to backend ``name``; they come before the backend's own. Counts for graphs compiled afterwards.

    Raises:
        the errors of ``load``: the backend is loaded and checked with the extension, which is dropped when that fails.
    """
    with _lock:
        previous = _loaded.pop(name, None)
        _extensions.setdefault(name, []).append(plugin)
        try:
            _load(name)
        except Exception:
            _extensions[name].remove(plugin)
            if not _extensions[name]:
                del _extensions[name]
            if previous is not None:
                _loaded[name] = previous
            raise


def known(name: str) -> bool:
    """Whether a backend of this name is registered or installed (it may still be broken); imports no plugin."""
    return name in _registered or bool(discovery.installed().named(name))


def not_found(name: str) -> BackendNotFoundError:
    """The error that ``load`` raises for a name that nothing offers."""
    try:
        discovery.find(name, in_process=_registered)
    except BackendNotFoundError as error:
        return error
    raise AssertionError(f"{name!r} is installed")


_lock = threading.RLock()
_loaded: dict[str, LoadedBackend] = {}
_registered: dict[str, object] = {}
_extensions: dict[str, list[object]] = {}
_known_to_torch: set[str] = set()


def _owner(name: str) -> str:
    """Who has ``name`` already, ``""`` when it is free."""
    if name in _registered:
        return "a plugin registered in this process"
    offers = discovery.installed().named(name)
    if offers:
        return " and ".join(offer.distribution for offer in offers)
    if name in discovery.TORCH_BACKENDS or (
        name not in _known_to_torch and name in torch._dynamo.list_backends(exclude_tags=())
    ):
        return "torch"
    return ""


def _import(offer: discovery.Offer) -> object:
    reference = importlib.metadata.EntryPoint(offer.name, offer.plugin, discovery.GROUP)
    module = offer.plugin.partition(":")[0]
    try:
        return reference.load()
    except (Exception, SystemExit) as error:
        raise PluginLoadError(
            f"{offer.name}: importing {offer.plugin} of {offer.distribution} raised {type(error).__name__}: {error}",
            fix=f"Run python -c 'import {module}' for the traceback; reinstall or upgrade the distribution.",
        ) from error


class _Hooks:
    """The hooks of one backend: a plugin manager, with calls that say whose answer is wrong."""

    def __init__(self, label: str, plugin: object, extensions: Iterable[object]) -> None:
        self.label = label
        self.manager = pluggy.PluginManager(PROJECT)
        self.manager.add_hookspecs(hookspecs)
        self.manager.register(defaults, name="vendor_sdk defaults")
        for member in (plugin, *extensions):
            title = _title(member)
            _check_functions(label, title, member, self.manager)
            try:
                self.manager.register(member, name=title)
            except (pluggy.PluginValidationError, ValueError) as error:
                raise ContractError(
                    f"{label}: {title} cannot be registered: {str(error).splitlines()[-1].strip()}",
                    fix="A hook takes any subset of the arguments that docs/hooks.md lists; a plugin is registered once.",
                ) from error

    def first(self, hook: str, legal: Any, **arguments: Any) -> Any:
        """The answer that wins. Raises ``ContractError`` when it is no instance of ``legal``."""
        answer = self._call(hook, arguments)
        if not isinstance(answer, legal):
            raise self.error(hook, f"returned {_describe(answer)}", f"Return {_one_of(legal)}.")
        return answer

    def each(self, hook: str, legal: type, **arguments: Any) -> list[Any]:
        """All answers, in the order of registration, so that later ones override."""
        answers: list[Any] = list(reversed(self._call(hook, arguments)))
        for answer in answers:
            if not isinstance(answer, legal) or isinstance(answer, str):
                raise self.error(hook, f"returned {_describe(answer)}", f"Return {_one_of((legal,))}.")
        return answers

    def merged(self, hook: str) -> dict[Any, Any]:
        """The tables of all plugins in one; where two have one key, the plugin registered last wins."""
        return {key: value for table in self.each(hook, Mapping) for key, value in table.items()}

    def error(self, hook: str, what: str, fix: str, why: str = "") -> ContractError:
        return ContractError(f"{self.label}: hook {hook!r} ({self._authors(hook)}) {what}", why=why, fix=fix)

    def implemented(self, hook: str) -> bool:
        return bool(getattr(self.manager.hook, hook).get_hookimpls())

    def _call(self, hook: str, arguments: Mapping[str, Any]) -> Any:
        caller = getattr(self.manager.hook, hook)
        try:
            return caller(**arguments)
        except OptionError:  # a value that only the backend can judge: the user's mistake, not the plugin's
            raise
        except Exception as error:
            codes = {getattr(impl.function, "__code__", None): impl.plugin_name for impl in caller.get_hookimpls()}
            frame, culprit = error.__traceback__, ""
            while frame is not None and not culprit:
                culprit, frame = codes.get(frame.tb_frame.f_code, ""), frame.tb_next
            raise ContractError(
                f"{self.label}: hook {hook!r} ({culprit or self._authors(hook)}) raised {type(error).__name__}: {error}",
                fix="Mend the hook; the original exception stands above this one.",
            ) from error

    def _authors(self, hook: str) -> str:
        """Who implements ``hook`` beside the SDK, the winner first."""
        impls = getattr(self.manager.hook, hook).get_hookimpls()
        names = [impl.plugin_name for impl in reversed(impls) if impl.plugin is not defaults]
        return ", ".join(names) or "SDK default"


def _check(name: str | None, plugin: object, extensions: Sequence[object], distribution: str) -> LoadedBackend:
    label = name or _title(plugin)
    hooks = _Hooks(label, plugin, extensions)
    if not hooks.implemented("backend"):
        raise ContractError(
            f"{label}: {_title(plugin)} does not implement the required hook 'backend'",
            fix="Add: @vendor_sdk.hookimpl\ndef backend(): return vendor_sdk.Backend(name=..., version=..., dtypes=...)",
        )
    backend = hooks.first("backend", (Backend,))
    _check_backend(hooks, backend, name, distribution)
    hooks.label = backend.name
    met = _check_machine(backend)
    kernels = hooks.merged("kernels")
    _check_names(hooks, "kernels", kernels, [*OPSET, *backend.composites])
    unclaimed = sorted(set(kernels) & (set(COMPOSITES) - backend.composites - set(OPSET)))
    if unclaimed:
        raise hooks.error(
            "kernels", f"has kernels for composites that the backend does not claim: {', '.join(unclaimed)}",
            "Name them in Backend(composites=...), or drop the kernels.",
        )  # fmt: skip
    _check_values(
        hooks, "kernels", kernels, lambda value: isinstance(value, Kernel) or callable(value), "a Kernel or a callable"
    )
    _check_orders(hooks, kernels)
    decompositions = hooks.merged("decompositions")
    _check_names(hooks, "decompositions", decompositions, [*defaults.decomposition_keys()])
    _check_values(hooks, "decompositions", decompositions, callable, "a callable")
    declared = hooks.merged("conformance")
    _check_values(
        hooks, "conformance", declared, lambda value: isinstance(value, KnownFailure | str), "a reason, or a KnownFailure"
    )
    expected = {key: value if isinstance(value, KnownFailure) else KnownFailure(value) for key, value in declared.items()}
    _check_values(hooks, "conformance", expected, lambda value: bool(value.reason.strip()), "a reason")
    _check_values(hooks, "conformance", expected, lambda value: value.verdict in VERDICTS, f"one of {', '.join(VERDICTS)}")
    return LoadedBackend(
        backend=backend,
        kernels=MappingProxyType(
            {key: value if isinstance(value, Kernel) else Kernel(value) for key, value in kernels.items()}
        ),
        decompositions=MappingProxyType(decompositions),
        fingerprint=_fingerprint(hooks.first("fingerprint", (str,)), plugin, extensions, distribution),
        expected_failures=MappingProxyType(expected),
        distribution=distribution,
        plugins=(plugin, *extensions),
        _hooks=hooks,
        _passes={stage: _passes(hooks, stage) for stage in STAGES},
        _met={met},
    )


def _check_backend(hooks: _Hooks, backend: Backend, name: str | None, distribution: str) -> None:
    wrong = [
        f"{attribute}={value!r} is not {legal}"
        for attribute, value, legal, right in (
            ("name", backend.name, "a Python identifier with no leading underscore", _is_name(backend.name)),
            ("version", backend.version, "a non-empty str", isinstance(backend.version, str) and bool(backend.version)),
            ("contract", backend.contract, "a pair of ints", _is_pair(backend.contract)),
            ("opset", backend.opset, "an int", isinstance(backend.opset, int)),
            ("dtypes", backend.dtypes, "a set of torch dtypes", _all_of(backend.dtypes, torch.dtype) and bool(backend.dtypes)),
            ("options", backend.options, "a mapping of Option", _is_mapping_of(backend.options, Option)),
            ("composites", backend.composites, "a set of names", _all_of(backend.composites, str)),
            ("requires", backend.requires, "a callable", callable(backend.requires)),
        )
        if not right
    ]
    if wrong:
        raise hooks.error("backend", f"returned a Backend with {'; '.join(wrong)}", "Correct the fields of Backend(...).")
    if name is not None and backend.name != name:
        raise hooks.error(
            "backend",
            f"says its name is {backend.name!r}, but it is offered as {name!r} ({distribution})",
            f"Write Backend(name={name!r}), or rename the entry points (the name= of register).",
        )
    theirs, ours = backend.contract, CONTRACT_VERSION
    who = f"{backend.name} {backend.version} was written for"
    if theirs[0] != ours[0] or theirs[1] > ours[1]:
        older = theirs[0] < ours[0]
        raise VersionMismatchError(
            f"{who} contract {theirs[0]}.{theirs[1]}; this SDK speaks {ours[0]}.{ours[1]}",
            why="The major number must be equal, and the plugin's minor number no greater than the SDK's.",
            fix="Upgrade the plugin." if older else "Upgrade vendor-sdk, or install an older release of the plugin.",
        )
    if backend.opset != OPSET_VERSION:
        raise VersionMismatchError(
            f"{who} opset {backend.opset}; this SDK speaks opset {OPSET_VERSION}",
            fix="Upgrade the plugin." if backend.opset < OPSET_VERSION else "Upgrade vendor-sdk.",
        )
    taken = sorted(set(backend.options) & set(options.SDK_OPTIONS))
    if taken:
        raise hooks.error("backend", f"declares options that the SDK has already: {', '.join(taken)}", "Rename them.")
    targets = _targets(backend)
    if len(targets) > 1:
        raise hooks.error("backend", f"declares several targets: {', '.join(targets)}", "Make them one option.")
    if any(target.default is not None for target in targets.values()):
        raise hooks.error("backend", f"has a target of its own accord: {', '.join(targets)}", "Leave Target(default=...) out.")
    _check_names(hooks, "backend", backend.composites, COMPOSITES, "composites")


def _is_order(order: tuple[int, ...] | None) -> bool:
    return order is None or sorted(order) == [*range(len(order))]


def _check_orders(hooks: _Hooks, kernels: Mapping[str, Any]) -> None:
    for name, kernel in kernels.items():
        if not isinstance(kernel, Kernel) or not kernel.orders:
            continue
        if kernel.destination:
            problem = "has orders, and results that the SDK allocates are row-major"
        elif kernel.orders != "channels_last" and not all(map(_is_order, kernel.orders)):
            problem = "has an order that is no permutation of its result's dimensions"
        else:
            continue
        raise hooks.error("kernels", f"the kernel of {name} {problem}: {kernel.orders}", "Mend Kernel(orders=...), or drop it.")


def _targets(backend: Backend) -> dict[str, Target]:
    return {name: option for name, option in backend.options.items() if isinstance(option, Target)}


def _check_machine(backend: Backend) -> Callable[[], str]:
    """Which of its needs this machine meets: the backend's own, or else a target's. Raises ``MachineError`` for neither."""
    missing = _missing(backend, backend.requires)
    if not missing:
        return backend.requires
    for target in _targets(backend).values():
        if not _missing(backend, target.requires):
            return target.requires
    raise _lacking(backend, missing)


def _missing(backend: Backend, requires: Callable[[], str]) -> str:
    try:
        return requires()
    except Exception as error:
        whose = "Backend" if requires is backend.requires else "Target"
        raise ContractError(
            f"{backend.name}: {whose}.requires raised {type(error).__name__}: {error}",
            fix='It must return "" or say, as text, what is missing.',
        ) from error


def _lacking(backend: Backend, missing: str) -> MachineError:
    fix = "Install it, then try again."
    for name, target in _targets(backend).items():
        example = next((choice for choice in target.choices if choice is not None), "...")
        fix = f"Install it, then try again; to compile for a device that is elsewhere, pass options={{{name!r}: {example!r}}}."
    return MachineError(f"{backend.name}: this machine lacks what the backend needs: {missing}", fix=fix)


def _check_functions(label: str, title: str, plugin: object, manager: pluggy.PluginManager) -> None:
    """Refuses what pluggy would accept in silence: hooks that do not exist, and hooks that lack the mark."""
    unknown, unmarked = [], []
    for attribute, function in _functions(plugin):
        opts = manager.parse_hookimpl_opts(plugin, attribute)
        if opts is not None:
            hook = opts.get("specname") or attribute
            if hook not in HOOKS:
                unknown.append(f"{hook!r}{suggestion(hook, HOOKS, ' ({})')}")
        elif attribute in HOOKS and _defined_in(function, plugin):
            unmarked.append(attribute)
    if unknown:
        raise ContractError(
            f"{label}: {title} implements hooks that do not exist: {', '.join(unknown)}",
            why=f"The hooks are {', '.join(HOOKS)}.",
            fix="Correct the spelling, or remove the @hookimpl mark.",
        )
    if unmarked:
        raise ContractError(
            f"{label}: {title} has functions named like hooks that are not marked as such: {', '.join(unmarked)}",
            why="Without the mark they would never be called.",
            fix="Put @vendor_sdk.hookimpl above each, or rename them.",
        )


def _check_names(hooks: _Hooks, hook: str, names: Iterable[Any], legal: Iterable[str], noun: str = "prims") -> None:
    legal = set(legal)
    unknown = [name for name in names if name not in legal and not (hook == "kernels" and name in COMPOSITES)]
    if unknown:
        listing = ", ".join(f"{name!r}{suggestion(str(name), legal, ' ({})')}" for name in unknown)
        raise hooks.error(
            hook, f"names {noun} that opset {OPSET_VERSION} does not have: {listing}",
            "Correct the names; `vendor-sdk ops` lists them all.",
        )  # fmt: skip


def _check_values(hooks: _Hooks, hook: str, table: Mapping[Any, Any], legal: Callable[[Any], bool], noun: str) -> None:
    wrong = [f"{key!r}: {_describe(value)}" for key, value in table.items() if not legal(value)]
    if wrong:
        raise hooks.error(hook, f"has entries that are not {noun}: {'; '.join(wrong)}", f"Make each value {noun}.")


def _passes(hooks: _Hooks, stage: str) -> tuple[Pass, ...]:
    passes = tuple(each for answer in hooks.each("graph_passes", Sequence, stage=stage) for each in answer)
    _check_values(hooks, "graph_passes", dict(enumerate(passes)), callable, "a callable")
    return passes


def _fingerprint(answer: str, plugin: object, extensions: Iterable[object], distribution: str) -> str:
    """The hook's answer with what identifies code that no distribution's version vouches for."""
    unversioned = [*([plugin] if distribution == IN_PROCESS else []), *extensions]
    return " ".join([answer, *map(_identity, unversioned)]).strip()


def _identity(plugin: object) -> str:
    """Equal for equal code: a digest of a module's source; of anything else nothing is known, so it is unique."""
    if isinstance(plugin, ModuleType):
        try:
            return f"{plugin.__name__}:{hashlib.sha256(inspect.getsource(plugin).encode()).hexdigest()[:16]}"
        except (OSError, TypeError):
            pass
    return f"{_title(plugin)}:{os.urandom(8).hex()}"


def _functions(plugin: object) -> Iterator[tuple[str, Any]]:
    for attribute in dir(plugin):
        if attribute.startswith("__"):
            continue
        value = getattr(plugin, attribute, None)
        if inspect.isroutine(value):
            yield attribute, value


def _defined_in(function: Any, plugin: object) -> bool:
    """Whether ``function`` is the plugin's own, not one that it merely imported."""
    return not isinstance(plugin, ModuleType) or getattr(function, "__module__", None) == plugin.__name__


def _title(plugin: object) -> str:
    if isinstance(plugin, ModuleType | type):
        return plugin.__name__
    return f"{type(plugin).__module__}.{type(plugin).__qualname__}"


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value.isidentifier() and not value.startswith("_")


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and _all_of(value, int)


def _is_mapping_of(value: object, legal: type) -> bool:
    return isinstance(value, Mapping) and _all_of(value.values(), legal)


def _all_of(values: object, legal: type) -> bool:
    return isinstance(values, Iterable) and not isinstance(values, str) and all(isinstance(value, legal) for value in values)


def _one_of(legal: tuple[Any, ...]) -> str:
    names = ["None" if each is type(None) else each.__name__ for each in legal]
    return " or ".join(f"a {each}" if each != "None" else each for each in names)


def _describe(value: object) -> str:
    return "nothing" if value is None else f"{value!r}"[:80] + f", of type {type(value).__name__}"
