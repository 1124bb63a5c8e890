"""The two decomposition tables: what AOTAutograd gets, and what takes its graphs down to prims.

Two stages, because min-cut's rules for recomputation know ATen operators, not prims. The first table stops at core ATen and
composites; the second ends in prims, applied inside the forward and backward compilers.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any

import torch

from vendor_sdk import torch_private
from vendor_sdk.normalize.algebra import ALGEBRA
from vendor_sdk.normalize.attention import ATTENTION
from vendor_sdk.normalize.elementwise import ELEMENTWISE
from vendor_sdk.normalize.experts import EXPERTS
from vendor_sdk.normalize.experts import LATE as LATE_EXPERTS
from vendor_sdk.normalize.foreach import FOREACH
from vendor_sdk.normalize.images import IMAGES
from vendor_sdk.normalize.padding import PADDING
from vendor_sdk.normalize.positions import POSITIONS
from vendor_sdk.normalize.quantized import LATE as LATE_QUANTIZED
from vendor_sdk.normalize.recurrent import RECURRENT
from vendor_sdk.normalize.rules import Rule, aten, named
from vendor_sdk.normalize.sampling import SAMPLING
from vendor_sdk.normalize.torch_prims import LATE, TORCH_PRIMS
from vendor_sdk.normalize.variants import VARIANTS
from vendor_sdk.prims.opset import BY_TARGET, COMPOSITE_BY_TARGET, COMPOSITES, FAMILY_MODULES
from vendor_sdk.torch_private import OpOverload

UNDECOMPOSED_AT_CAPTURE = (
    # the stock core table decomposes the forward but not the backward, which then receives a wrong logsumexp
    "aten::_scaled_dot_product_flash_attention_for_cpu",
)

DECOMPOSED_AT_CAPTURE = (
    aten._linalg_det.default,
    aten._linalg_slogdet.default,
    aten._linalg_solve_ex.default,
)
"""Whether torch factors A or its transpose depends on A's strides, forward and backward alike: only here are they torch's."""

SLICED_AT_CAPTURE = (aten.split_with_sizes.default,)
"""Views of several results, which the partitioner would save one by one instead of what they show."""

ALIASES_AT_CAPTURE = (aten.detach_.default,)
"""In decompositions of torch's that make tensors of numbers; a graph with it would not count as functional."""

STATISTICS_SAVED = ("log_softmax", "log_softmax_backward", "nll_loss", "nll_loss_backward")
"""Composites whose parts min-cut should see: then it saves two numbers a row, where the whole's result is a tensor that the
backward graph gets for the price of a subtraction."""

CONTIGUOUS = ("log_softmax",)
"""Those of one result that torch makes contiguous, however the operand lies: views of it depend on that."""

TORCHS_OWN_IS_WRONG = (
    # puts one row where an index of no dimensions says that none is
    aten.index_add.default,
    # reads an index of no dimensions on the host
    aten.take.default,
    # one off for integer results with fractional ends
    aten.linspace.default,
    aten.linspace.Tensor_Tensor,
    aten.linspace.Tensor_Scalar,
    aten.linspace.Scalar_Tensor,
    # of one element, says torch 2.11, whatever the data
    aten._unique.default,
)


def capture_table(keep: frozenset[OpOverload] = frozenset(), exported: bool = False) -> dict[OpOverload, Rule]:
    """Decompositions for AOTAutograd: core ATen, with prims and nearly all composites left whole (a fresh dict).

    Args:
        keep: overloads of composites that the backend claims; they stay whole in any case.
        exported: for graphs of ``torch.export``, in which more operators are whole.
    """
    table = torch_private.exported_table() if exported else torch_private.core_aten_table()
    for name in UNDECOMPOSED_AT_CAPTURE:
        overload = named(name)
        if overload is not None:
            table.pop(overload, None)
    for target in (*BY_TARGET, *COMPOSITE_BY_TARGET):
        table.pop(target, None)
    ours = {**_derived(), **VARIANTS, **POSITIONS}
    own = (*DECOMPOSED_AT_CAPTURE, *SLICED_AT_CAPTURE, *ALIASES_AT_CAPTURE, *TORCHS_OWN_IS_WRONG)
    table.update({target: ours[target] for target in own})
    table.update(PADDING)  # torch's are gathers of whole tensors, one for each corner and side
    table.update(ATTENTION)  # forward and backward at once: the one saves what the other reads
    for name in STATISTICS_SAVED:
        rules = {target: rule for target, rule in COMPOSITES[name].targets.items() if target not in keep}
        table.update({target: _contiguous(rule) for target, rule in rules.items()} if name in CONTIGUOUS else rules)
    return table


def _contiguous(rule: Rule) -> Rule:
    """A rule for an operator of ``CONTIGUOUS``."""

    @functools.wraps(rule)
    def decomposed(*args: Any, **kwargs: Any) -> torch.Tensor:
        return rule(*args, **kwargs).contiguous()  # type: ignore[no-any-return]

    return decomposed


def prim_table(keep: frozenset[OpOverload], *, channels_last: bool = False) -> Mapping[OpOverload, Rule]:
    """Decompositions from core ATen and composites to prims, shared by all who ask for the same.

    Args:
        keep: overloads of composites that the backend claims; they stay whole.
        channels_last: whether images lie so (``Legalization.channels_last``).
    """
    # Libraries register operators when they are imported, which may be after the first graph was compiled.
    late: Mapping[str, Rule] = {**LATE, **LATE_EXPERTS, **LATE_QUANTIZED}
    registered = {overload: rule for name, rule in late.items() if (overload := named(name)) is not None}
    return _table(keep, frozenset({**registered, **(IMAGES if channels_last else {})}.items()))


@functools.lru_cache(64)
def _table(keep: frozenset[OpOverload], registered: frozenset[tuple[OpOverload, Rule]]) -> Mapping[OpOverload, Rule]:
    return {key: rule for key, rule in (_rules() | dict(registered)).items() if key not in keep}


@functools.cache
def _rules() -> dict[OpOverload, Rule]:
    """The most specific rule of every operator that is not a prim, and the rules that bring prims to canonical arguments."""
    torch_rules = {**torch_private.registered_table(), **torch_private.core_aten_table(), **TORCH_PRIMS}
    table = {key: rule for key, rule in torch_rules.items() if key not in BY_TARGET}
    for target, composite in COMPOSITE_BY_TARGET.items():
        table[target] = composite.targets[target]
    for rules in (
        _derived(),
        VARIANTS,
        FOREACH,
        ELEMENTWISE,
        POSITIONS,
        PADDING,
        ALGEBRA,
        SAMPLING,
        ATTENTION,
        EXPERTS,
        RECURRENT,
    ):
        table.update(rules)
    return table


@functools.cache
def _derived() -> Mapping[OpOverload, Rule]:
    """Decompositions of the operators that the families describe beside their prims."""
    return {
        row.target: row.decomposition
        for family in FAMILY_MODULES
        for row in getattr(importlib.import_module(f"vendor_sdk.prims.{family}"), "DERIVED", ())
        if row.decomposition is not None and row.target not in BY_TARGET
    }
