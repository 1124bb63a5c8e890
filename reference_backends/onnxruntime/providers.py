"""Execution providers: what users may ask for, checked before anything is compiled, as sessions want it.

A provider that is not there, or does not start, is an error: nothing runs on the CPU provider that was promised to another,
save the nodes that the provider itself leaves to it, which ``vendor_sdk.explain`` shows.
"""

from __future__ import annotations

import dataclasses
import difflib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime as ort
import torch

from reference_backends.onnxruntime.plugin import SESSIONS
from vendor_sdk import CompilerError, OptionError

CPU = "CPUExecutionProvider"


@dataclass(frozen=True)
class Provider:
    """What runs partitions, under the options of a user.

    Attributes:
        name: of the provider.
        options: its own.
        session: entries of ``SessionOptions``: names of its attributes, or keys of its configuration (they have a dot).
        library: a plugin's shared library, one of whose providers it is; "" for a provider that ONNX Runtime was built with.
        contrib: where it may be given operators of ONNX Runtime's own.
    """

    name: str = CPU
    options: tuple[tuple[str, str], ...] = ()
    session: tuple[tuple[str, Any], ...] = ()
    library: str = ""
    contrib: str = SESSIONS

    @staticmethod
    def of(options: Mapping[str, Any]) -> Provider:
        """The provider that compile options ask for. Raises ``OptionError`` where it is not there or an entry is wrong."""
        library = options["provider_library"]
        if library:
            _of_library(options["provider"], library)
        elif options["provider"] not in available():
            raise OptionError(
                f"onnxruntime: no provider {options['provider']!r}{_nearest(options['provider'], available())}",
                why=f"this build of ONNX Runtime ({ort.__version__}) offers {', '.join(available())}",
                fix="Install the build that has it, or name its plugin library in options={'provider_library': path}.",
            )
        if options["provider_options"] and options["provider"] == CPU:
            raise OptionError(
                f"onnxruntime: {CPU} has no options: {', '.join(map(repr, options['provider_options']))}",
                fix="Leave options={'provider_options': ...} out; what it does is said in options={'session_options': {...}}.",
            )
        own = tuple((str(key), str(value)) for key, value in options["provider_options"].items())
        provider = Provider(options["provider"], own, tuple(options["session_options"].items()), library, options["contrib"])
        provider.session_options()
        return provider

    def has(self, key: str) -> bool:
        """Whether the user set this entry of the session's options."""
        return any(name == key for name, _ in self.session)

    def session_options(self) -> ort.SessionOptions:
        """Fresh options of a session: as many threads as torch has, and what the user set."""
        options = ort.SessionOptions()
        options.log_severity_level = 4  # what is logged below is raised as well, or is advice to whoever wrote the model
        options.intra_op_num_threads = torch.get_num_threads()
        for key, value in _AWAKE.items():
            if not self.has(key):  # to set an entry twice brings a warning
                options.add_session_config_entry(key, value)
        if self.name != CPU:
            options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        for key, value in self.session:
            _set(options, key, value)
        if self.library:
            options.add_provider_for_devices(self._devices(), dict(self.options))
        return options

    def _devices(self) -> list[Any]:
        return [device for device in ort.get_ep_devices() if device.ep_name == self.name]

    def start(self, model: bytes, options: ort.SessionOptions) -> ort.InferenceSession:
        """A session of a serialized model.

        Raises:
            CompilerError: the provider does not take the model, or does not start.
        """
        listed = {} if self.library else {"providers": [(self.name, dict(self.options))]}
        try:
            session = ort.InferenceSession(model, options, enable_fallback=0, **listed)
        except Exception as error:  # ONNX Runtime has an exception class for each status code, with no base of their own
            raise CompilerError(f"onnxruntime: {self.name} refused a partition", why=str(error)) from error
        if session.get_providers()[0] != self.name:
            raise CompilerError(
                f"onnxruntime: {self.name} did not start; ONNX Runtime offers {', '.join(session.get_providers())} instead",
                fix=f"Install what {self.name} needs, or choose another with options={{'provider': ...}}.",
            )
        return session

    def asked(self, *, alone: bool = True) -> Provider:
        """This provider as it is asked what it takes: nothing is optimized away before, and what a user set of the session's
        attributes, paths of files among them, is left out.

        Args:
            alone: whether it is refused what the provider would leave to the CPU provider.
        """
        keys = {key: value for key, value in self.session if "." in key}
        if self.name != CPU:  # which cannot be without itself
            keys["session.disable_cpu_ep_fallback"] = str(int(alone))
        return dataclasses.replace(self, session=(*keys.items(), *_ASKED.items()))

    def left_to_cpu(self, session: ort.InferenceSession) -> list[str]:
        """Names of the nodes that the provider did not take."""
        if self.name == CPU:
            return []
        parts = session._sess.get_provider_graph_assignment_info()
        return [node.name for part in parts if part.ep_name == CPU for node in part.get_nodes()]


def _awake(version: str) -> Mapping[str, str]:
    """How long threads of a session stay awake: they wait for the next operator, and for the next call no longer than a few
    times what waking them takes, since sessions share the cores with torch. Before ONNX Runtime 1.27 the one wait is as long as
    the other, some 20 ms, and they do not wait for calls."""
    release = tuple(int(part) for part in version.split(".")[:2])
    return {"session.intra_op.spin_duration_us": "200"} if release >= (1, 27) else {"session.force_spinning_stop": "1"}


_AWAKE = _awake(ort.__version__)


_ASKED = {"graph_optimization_level": "ORT_DISABLE_ALL", "intra_op_num_threads": 1}


def available() -> Sequence[str]:
    """Providers of this build, and those whose libraries are registered."""
    return list(dict.fromkeys([*ort.get_available_providers(), *(device.ep_name for device in ort.get_ep_devices())]))


def _nearest(name: str, names: Sequence[str]) -> str:
    near = {each.lower(): each for each in names}.get(name.lower()) or next(iter(difflib.get_close_matches(name, names, 1)), "")
    return f"; did you mean {near!r}?" if near else ""


_libraries: dict[str, frozenset[str]] = {}
_lock = threading.Lock()


def _of_library(name: str, library: str) -> None:
    """Checks that ``name`` is a provider of a plugin library, which is loaded once in a process."""
    path = str(Path(library).expanduser().resolve())
    with _lock:
        if path not in _libraries:
            _libraries[path] = _registered(path, library)
        names = sorted(_libraries[path])
    if not names:
        raise OptionError(
            f"onnxruntime: the providers of {library} find no device on this machine",
            why=f"providers that have one: {', '.join(sorted({device.ep_name for device in ort.get_ep_devices()}))}",
            fix="Install the driver that the library needs.",
        )
    if name not in names:
        raise OptionError(
            f"onnxruntime: no provider {name!r} in {library}{_nearest(name, names)}",
            why=f"the library offers {', '.join(names)}",
            fix=f"Give one of these: options={{'provider': {names[0]!r}}}.",
        )


def _registered(path: str, library: str) -> frozenset[str]:
    """Loads a library, unless the process already has it; the names of its providers that have a device here.

    ONNX Runtime takes a library under any name, and again under another, after which its devices are there twice and no session
    takes them: so the path is the name, and one that the process loaded by itself is known by what its devices say.
    """
    if not Path(path).is_file():
        raise OptionError(
            f"onnxruntime: there is no provider library {library}", fix="Correct options={'provider_library': ...}."
        )
    known = {device.ep_name: device.ep_metadata.get("library_path", "") for device in ort.get_ep_devices()}
    found = frozenset(name for name, own in known.items() if own and str(Path(own).resolve()) == path)
    if not found:
        try:
            ort.register_execution_provider_library(path, path)
        except Exception as error:
            raise OptionError(
                f"onnxruntime: {library} is no library of an execution provider",
                why=str(error).splitlines()[0],
                fix="Give the shared library that the provider's vendor ships (it exports CreateEpFactories).",
            ) from error
        found = frozenset(device.ep_name for device in ort.get_ep_devices()) - known.keys()
    return found


_PATHS = ("optimized_model_filepath", "profile_file_prefix")
"""Attributes of a session that name files which it writes."""


def _set(options: ort.SessionOptions, key: Any, value: Any) -> None:
    if isinstance(key, str) and "." in key:
        options.add_session_config_entry(key, str(value))
        return
    settable = [each for each in dir(type(options)) if isinstance(getattr(type(options), each), property)]
    if key not in settable:
        raise OptionError(
            f"onnxruntime: session_options has no {key!r}{_nearest(str(key), settable)}",
            why=f"its attributes are {', '.join(settable)}; configuration keys have a dot (session.intra_op.allow_spinning)",
            fix="Correct the name in options={'session_options': {...}}.",
        )
    kind = type(getattr(options, key))
    try:
        # Enumerations by the name of a member, as "ORT_ENABLE_BASIC".
        setattr(options, key, getattr(kind, value) if isinstance(value, str) and hasattr(kind, value) else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionError(
            f"onnxruntime: session_options[{key!r}] is {value!r}",
            why=f"it must be of type {kind.__name__}",
            fix=f"Give one of {', '.join(kind.__members__)}." if hasattr(kind, "__members__") else "Correct the value.",
        ) from error
    if key in _PATHS and not Path(value).parent.is_dir():
        raise OptionError(
            f"onnxruntime: session_options[{key!r}] is {value!r}",
            why=f"there is no directory {Path(value).parent}",
            fix="Give a path in a directory that exists.",
        )
