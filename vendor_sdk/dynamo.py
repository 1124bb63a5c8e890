"""What a vendor's ``torch_dynamo_backends`` line points to: ``mychip = "vendor_sdk.dynamo:mychip"``, with no function to write.

Every attribute of this module that is the name of an installed or registered backend is a torch.compile backend.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vendor_sdk import resting
from vendor_sdk.contract import cache, loader


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not loader.known(name):
        raise AttributeError(str(loader.not_found(name)))
    resting.rest_in_dynamo()
    _foresee_in_dynamo(name)
    # One object per name: torch recompiles when the backend it is given is a different object.
    backend: Callable[..., Any] = globals().setdefault(name, _compile_with(name))
    return backend


_looked_up: list[str] = []
"""Backends that have compiled nothing yet."""


def _foresee_in_dynamo(name: str) -> None:
    """The emitter of a backend is told at the next compilation what its first graph will likely need, while Dynamo traces."""
    from vendor_sdk.torch_private import dynamo

    _looked_up.append(name)
    dynamo.around_compilations(_dynamo_starts, _dynamo_ends)


def _dynamo_starts(_: object) -> None:
    from vendor_sdk.capture.foresee import nearly_always

    while _looked_up:
        name = _looked_up.pop()
        # What is wrong with a backend or its cache, the compilation itself will say.
        with contextlib.suppress(Exception):
            if any(cache.cache_dir(name).iterdir()):
                continue  # What earlier programs needed is there, or was brought; more than that is not compiled on a guess.
            emitter = loader.load(name).session().emitter
            if emitter is not None:
                emitter.foresee(nearly_always())


def _dynamo_ends(_: object) -> None:
    pass


def _compile_with(name: str) -> Callable[..., Any]:
    def compile_with(
        gm: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
    ) -> Callable[..., Any]:
        from vendor_sdk import aot

        merged = loader.load(name, options).with_mode(options, mode)
        compiled: Callable[..., Any] = aot.compile_dynamo(gm, example_inputs, backend=name, options=merged)
        return compiled

    compile_with.__name__ = compile_with.__qualname__ = name
    compile_with.__doc__ = f"torch.compile(backend={name!r})"
    return compile_with
