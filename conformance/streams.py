"""Two streams of a device at a time: each call of a compiled graph belongs to the stream that is current when it is made."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch


class Stream(contextlib.AbstractContextManager[Any], Protocol):
    """What is asked of a ``torch.Stream``: it is current within its context."""

    def wait_stream(self, stream: Any, /) -> None: ...


@dataclass(frozen=True)
class Streams:
    """Attributes:
    pair: two streams, neither of which is the current one.
    current: the stream of the caller.
    """

    pair: tuple[Stream, Stream]
    current: Callable[[], Stream]

    def interleaved(self, calls: Sequence[Callable[[], Any]], times: int) -> list[list[Any]]:
        """What each of two calls returns ``times`` times, made in turns on a stream of its own; whoever reads it on the current
        stream reads it when it is there."""
        current = self.current()
        for stream in self.pair:
            stream.wait_stream(current)
        returned: list[list[Any]] = [[], []]
        for _ in range(times):
            for stream, call, results in zip(self.pair, calls, returned, strict=True):
                with stream:
                    results.append(call())
        for stream in self.pair:
            current.wait_stream(stream)
        return returned


@functools.cache
def streams_of(type_: str) -> Streams | None:
    """Those of the current device of this type; None where torch knows of none, as for the host."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != type_:
        return None
    return Streams((torch.Stream(accelerator), torch.Stream(accelerator)), torch.accelerator.current_stream)
