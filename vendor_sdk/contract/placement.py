"""Placement: who runs a node, decided once, with its reason."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch


class Kind(enum.StrEnum):
    """Who does the work."""

    NATIVE = "native"
    """the backend: a kernel, emitted code, or a compiled partition"""
    VIEW = "view"
    """nobody: shape and strides change, data does not move"""
    DECOMPOSED = "decomposed"
    """other prims, each placed on its own"""
    HOST = "host"
    """torch on the host (for backends on torch's own device: torch's operator on that device)"""
    WRAPPER = "wrapper"
    """symbolic shape arithmetic, evaluated by the generated wrapper"""
    DECLINED = "declined"
    """nobody: neither the backend nor a decomposition takes it, and host fallback is off"""


class Route(enum.StrEnum):
    """By which of the contract's routes a native node runs."""

    KERNEL = "kernel"
    EMITTER = "emitter"
    GRAPH = "graph"
    NONE = ""


@dataclass(frozen=True)
class Placement:
    """Where one node runs and why there.

    Attributes:
        kind: who runs it.
        route: for native nodes, the contract's route.
        reason: why it is not native, in the vendor's words where the vendor declined; ``""`` for native nodes.
    """

    kind: Kind
    route: Route = Route.NONE
    reason: str = ""

    def __str__(self) -> str:
        text = f"{self.kind} ({self.route})" if self.route else str(self.kind)
        return f"{text}: {self.reason}" if self.reason else text


@dataclass(frozen=True)
class NodePlacement:
    """The placement of one node of a captured graph, for reports.

    Attributes:
        name: the node's name in the graph dump.
        prim: prim, composite or foreign operator.
        dtypes: of the tensor operands and results, in order, without repeats.
        operands: dtype and shape of each result, as text (``float32[2, s0]``).
        where: the user's source line.
    """

    name: str
    prim: str
    placement: Placement
    dtypes: tuple[torch.dtype, ...]
    operands: str
    where: str = ""
