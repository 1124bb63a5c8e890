"""Compile options: what users pass in ``torch.compile(model, backend=..., options={...})``, checked and completed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vendor_sdk.contract.backend import Option
from vendor_sdk.contract.discovery import suggestion
from vendor_sdk.errors import OptionError

SDK_OPTIONS: Mapping[str, Option] = {
    "fallback": Option(
        default="host",
        choices=("host", "error"),
        help="what happens to a prim that the backend does not run: it runs on the host, or compilation fails",
    ),
    "fuse": Option(default=True, help="whether prims on the emitter route join into fused kernels, or each is one of its own"),
    "keep": Option(
        default=None,
        choices=(None, True, False),
        help="whether what is made of the parameters of a graph that is not trained is kept while nothing tells that they "
        "changed (None: graph compilers keep it, kernels and emitters do not); a write to a few elements through .data or "
        "numpy then needs vendor_sdk.release_memory()",
    ),
}
"""Options every backend has."""


def validate(backend: str, declared: Mapping[str, Option], given: Mapping[str, Any] | None) -> dict[str, Any]:
    """All options of ``backend`` with their values: ``given`` where given, else the default.

    Args:
        backend: name, for messages.
        declared: the SDK's and the backend's own options.
        given: what the user passed.

    Raises:
        OptionError: an unknown option (naming the nearest), a value of the wrong type, or one that is no legal choice.
    """
    for name in given or {}:
        if name not in declared:
            raise OptionError(
                f"{backend}: unknown option {name!r}{suggestion(str(name), declared)}",
                why="options of this backend: "
                + "; ".join(f"{known} ({option.help}; default {option.default!r})" for known, option in declared.items()),
                fix="Correct the name in torch.compile(options={...}), or leave the option out.",
            )
    return {name: _value(backend, name, option, given) for name, option in declared.items()}


def with_mode(
    backend: str, declared: Mapping[str, Option], options: Mapping[str, Any] | None, mode: str | None
) -> Mapping[str, Any] | None:
    """``options`` with torch.compile's ``mode`` merged in, for a backend that declares an option of that name.

    Raises:
        OptionError: a mode other than None and "default" for a backend that declares none.
    """
    if mode is None or mode == "default":
        return options
    if "mode" in declared:
        return {**(options or {}), "mode": mode}
    raise OptionError(
        f"{backend}: torch.compile(mode={mode!r}) is not understood",
        why="modes of this backend: 'default'",
        fix=f"Leave mode out; options={{...}} takes: {', '.join(declared)}.",
    )


def _value(backend: str, name: str, option: Option, given: Mapping[str, Any] | None) -> Any:
    if given is None or name not in given:
        return option.default
    value = given[name]
    if option.choices:
        if value not in option.choices:
            near = suggestion(value, map(str, option.choices)) if isinstance(value, str) else ""
            raise OptionError(
                f"{backend}: option {name!r} is {value!r}{near}",
                why=f"{option.help}; legal values: {', '.join(map(repr, option.choices))}",
                fix=f"Pass one of the legal values, or leave {name!r} out for {option.default!r}.",
            )
        return value
    expected = type(option.default)
    if option.default is None or type(value) is expected:
        return value
    if expected is float and type(value) is int:
        return float(value)
    raise OptionError(
        f"{backend}: option {name!r} is {value!r}, of type {type(value).__name__}",
        why=f"{option.help}; it must be of type {expected.__name__}",
        fix=f"Pass a {expected.__name__}, or leave {name!r} out for {option.default!r}.",
    )
