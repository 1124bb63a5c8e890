"""Of several nodes' placements the one that counts: the weakest."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.cases import COMPOSITE, Case
from conformance.outcome import ABSENT
from conformance.subject import Placed

STRENGTH = ("native", "view", "decomposed", "wrapper", "host")
"""Placements from the strongest claim to the weakest."""


def placement(case: Case, placed: Sequence[Placed]) -> tuple[str, str]:
    """The weakest placement among the own nodes of the prim that computed something, with the reason for it. A composite that
    the backend does not claim is ``decomposed``, or where the weakest of its prims are."""
    own = [entry for entry in placed if entry.prim == case.row.name]
    if not own and case.kind == COMPOSITE and placed:
        kind, reason = weakest(placed)
        return ("decomposed", "not claimed whole") if kind in ("native", ABSENT) else (kind, reason)
    if not own:
        return ABSENT, "no node of this prim with a non-empty result was compiled"
    kind, at_fault = _weakest(own)
    reason = next((entry.reason for entry in at_fault if entry.reason), "")
    return kind, f"{len(at_fault)} of {len(own)} nodes: {reason}" if {entry.kind for entry in own} != {kind} else reason


def weakest(placed: Sequence[Placed]) -> tuple[str, str]:
    """The weakest placement of all nodes that compute, with the reason for it."""
    computing = [entry for entry in placed if entry.kind not in ("view", "wrapper")]
    if not computing:
        return ABSENT, "nothing was compiled"
    kind, at_fault = _weakest(computing)
    reason = next((entry.reason for entry in at_fault if entry.reason), "")
    return kind, f"{', '.join(sorted({entry.prim for entry in at_fault}))}: {reason}" if kind != "native" else ""


def _weakest(placed: Sequence[Placed]) -> tuple[str, list[Placed]]:
    kinds = {entry.kind for entry in placed}
    kind = max(kinds, key=lambda kind: STRENGTH.index(kind) if kind in STRENGTH else len(STRENGTH))
    return kind, [entry for entry in placed if entry.kind == kind]
