"""Transfers: copies between host and device memory as nodes of the graph, so that every byte that crosses is visible."""

from __future__ import annotations

from typing import Any


def to_device(value: Any) -> Any:
    """Host tensor to device tensor. The value is unchanged; ``meta["val"]`` may be int32 where the host has int64."""
    return value


def to_host(value: Any) -> Any:
    """Device tensor to host tensor."""
    return value


TRANSFERS = frozenset({to_device, to_host})
