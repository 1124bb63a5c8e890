"""Calls on two streams at a time: on a device made of queues, of which each does one thing in turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from conformance.endure import TOGETHER, Outputs, Problem, endure
from conformance.guards import Guarded
from conformance.streams import Streams
from conformance.subject import NO_STREAMS, TorchSubject, make

Tensor = torch.Tensor


class Device:
    """Does the work of its streams when one waits for another, a step of each in turn."""

    def __init__(self) -> None:
        self.own = Stream(self)
        self.others = Stream(self), Stream(self)
        self.entered = [self.own]

    def streams(self) -> Streams:
        return Streams(self.others, lambda: self.own)

    def drain(self) -> None:
        while any(stream.queue for stream in self.others):
            for stream in self.others:
                if stream.queue:
                    stream.queue.pop(0)()


class Stream:
    def __init__(self, device: Device) -> None:
        self.device, self.queue, self.waited = device, list[Callable[[], Any]](), list[Any]()

    def __enter__(self) -> None:
        self.device.entered.append(self)

    def __exit__(self, *_: object) -> None:
        self.device.entered.pop()

    def wait_stream(self, other: Any) -> None:
        self.waited.append(other)
        self.device.drain()


def twice_and_one(device: Device, scratch: Callable[[Tensor], Tensor]) -> Callable[[Sequence[Tensor]], Outputs]:
    """A program of two launches, with memory between them."""

    def call(given: Sequence[Tensor]) -> Outputs:
        (x,) = given
        between, result = scratch(x), torch.zeros_like(x)
        steps = [lambda: between.copy_(x * 2), lambda: result.copy_(between + 1)]
        stream = device.entered[-1]
        if stream is device.own or threading.current_thread() is not threading.main_thread():
            for step in steps:
                step()
        else:
            stream.queue += steps
        return [[result]]

    return call


def endured(device: Device | None, call: Callable[[Sequence[Tensor]], Outputs]) -> list[Problem]:
    given = torch.arange(6.0), torch.arange(6.0) + 10
    right = [[[x * 2 + 1]] for x in given]

    def judged(position: int, which: int, outputs: Sequence[Tensor]) -> str:
        return "" if torch.equal(outputs[position], right[which][0][0]) else "wrong"

    return endure(
        call,
        (Guarded([given[0]]), Guarded([given[1]])),
        (right[0], right[1]),
        [[True]],
        judged,
        seeds=(1, 2),
        memories=[],
        streams=device.streams() if device else None,
        deterministic=False,
        random=False,
    )


def test_calls_that_share_nothing_are_right_on_two_streams() -> None:
    device = Device()
    assert endured(device, twice_and_one(device, torch.empty_like)) == []
    assert all(stream.waited == [device.own] for stream in device.others)
    assert device.own.waited == list(device.others)


def test_memory_that_calls_on_two_streams_share_is_found() -> None:
    device, kept = Device(), threading.local()

    def shared(x: Tensor) -> Tensor:
        if not hasattr(kept, "memory"):
            kept.memory = torch.empty_like(x)
        memory: Tensor = kept.memory
        return memory

    (problem,) = endured(device, twice_and_one(device, shared))
    assert (problem.position, problem.kind, problem.message) == (0, "streams", "on two streams at a time: wrong")


def test_what_raises_on_another_stream_is_found() -> None:
    device = Device()
    right = twice_and_one(device, torch.empty_like)

    def call(given: Sequence[Tensor]) -> Outputs:
        if device.entered[-1] is not device.own:
            raise RuntimeError("another stream")
        return right(given)

    (problem,) = endured(device, call)
    assert (problem.kind, problem.message) == ("streams", "on two streams at a time: RuntimeError: another stream")


def test_calls_take_turns() -> None:
    device, made = Device(), list[str]()
    returned = device.streams().interleaved([lambda: made.append("a"), lambda: made.append("b")], TOGETHER)
    assert made == ["a", "b"] * TOGETHER
    assert [len(each) for each in returned] == [TOGETHER, TOGETHER]


def test_without_streams_nothing_is_called() -> None:
    device = Device()
    assert endured(None, twice_and_one(device, torch.empty_like)) == []
    assert not device.own.waited


@pytest.mark.parametrize("name", ["cpp_cpu", "torch:eager"])
def test_the_host_has_no_streams_and_the_record_says_so(name: str) -> None:
    subject = make(name, ())
    assert subject.streams() is None
    assert subject.describe().device["streams"] == NO_STREAMS
    assert TorchSubject("eager").streams() is None
