"""What a prim is: one declarative row. Everything said about a prim elsewhere is derived from here.

A row names the operation (ATen spelling), the torch operator that stands for it in graphs, its dtype and shape rule, the
samples that exercise its domain, the bound its results must meet, the reference that defines it, and, where one exists, a
decomposition into other prims. It holds no target's text: how a chip runs it is the backend's business.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from vendor_sdk.prims.bounds import Bound
from vendor_sdk.prims.samples import Sample, SampleContext

Sampler = Callable[[SampleContext], Iterator[Sample]]

BOOL = (torch.bool,)
"""The dtype set of truth values."""
INTS = (torch.int64, torch.int32, torch.uint8)
"""The integer dtypes of the opset."""
HALVES = (torch.bfloat16, torch.float16)
"""The floating dtypes of 16 bits."""
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
"""The floating dtypes of eight bits: stored, moved and converted, never computed with. Rows that do so have them among their
dtypes; a node of any other row goes to the host. The first has no infinity."""
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""The floating dtypes of the opset."""
NUMBERS = FLOATS + INTS
"""The dtypes of the opset but bool."""
ALL = NUMBERS + BOOL
"""The eight dtypes that opset 1 certifies computations in; torch has more, which run on the host."""
STORED = ALL + FLOAT8
"""The dtypes of what only moves or converts."""


class Family(enum.StrEnum):
    """The families of opset 1; lowering, samples and docs are organised by them."""

    POINTWISE = "pointwise"
    COMPARISON = "comparison"
    CONVERSION = "conversion"
    REDUCTION = "reduction"
    SCAN = "scan"
    VIEW = "view"
    INDEXING = "indexing"
    CONTRACTION = "contraction"
    CONVOLUTION = "convolution"
    POOLING = "pooling"
    SORTING = "sorting"
    CREATION = "creation"
    RANDOM = "random"
    LINALG = "linalg"
    FFT = "fft"
    COLLECTIVE = "collective"
    CONTROL = "control"
    SYMBOLIC = "symbolic"


class Result(enum.StrEnum):
    """Dtype rule: how the result dtype follows from the operands (torch's type promotion throughout)."""

    SAME = "same"
    """dtype of the first tensor operand"""
    PROMOTE = "promote"
    """torch.result_type over the operands"""
    FLOAT = "float"
    """as PROMOTE, but integers and bool become the default floating dtype"""
    BOOL = "bool"
    INT64 = "int64"
    SUM = "sum"
    """as SAME, but bool and integers become int64 (sum, prod, cumsum, cumprod)"""
    ARGUMENT = "argument"
    """given by the ``dtype`` argument"""
    SCALAR = "scalar"
    """a Python number, not a tensor (symbolic prims)"""
    OPERATOR = "operator"
    """several results, or a rule of its own: torch's meta kernel decides"""


class Shape(enum.StrEnum):
    """Shape rule: how the result shape follows from the operands."""

    BROADCAST = "broadcast"
    SAME = "same"
    """shape of the first tensor operand"""
    REDUCE = "reduce"
    """``dim`` removed, or kept at size 1 with ``keepdim``"""
    ARGUMENT = "argument"
    """given by a size argument"""
    SCALAR = "scalar"
    """not a tensor (symbolic prims)"""
    OPERATOR = "operator"
    """a rule of its own: torch's meta kernel decides"""


@dataclass(frozen=True, kw_only=True)
class Prim:
    """One primitive operation of the opset.

    Attributes:
        name: ATen spelling, with the overload only where the opset has several (``"add"``, ``"max.dim"``).
        target: what stands in a graph node's ``target``: an ATen overload, a higher-order operator, or, for symbolic
            prims, the Python callable that torch records (``operator.mul``).
        family: see ``Family``.
        summary: the meaning in one line, as a formula where there is one.
        dtypes: dtypes of the data operand for which the prim is defined; index operands are always int64.
        result: dtype rule.
        shape: shape rule.
        bound: what an implementation's result must meet, by dtype.
        samples: yields argument lists covering the prim's domain; never empty for a certifiable prim.
        reference: float64 (or exact) definition, called with the sample's arguments already upcast;
            ``None`` means the torch operator itself on float64 CPU tensors.
        decomposition: the same function in other prims, called with the node's arguments; ``None`` where the prim is
            irreducible.
        decomposition_cost: what the decomposition costs in accuracy, ``""`` when it meets ``bound``.
        source: where bound or formula come from (a spec's table, a paper, a derivation).
    """

    name: str
    target: Any
    family: Family
    summary: str
    dtypes: tuple[torch.dtype, ...]
    result: Result
    shape: Shape
    bound: Bound
    samples: Sampler
    reference: Callable[..., Any] | None = None
    decomposition: Callable[..., Any] | None = None
    decomposition_cost: str = ""
    source: str = ""

    @property
    def is_view(self) -> bool:
        """Whether the result is the operand's own memory under another shape: the SDK runs such prims as metadata."""
        returns = list(getattr(getattr(self.target, "_schema", None), "returns", ()))
        return self.family is Family.VIEW and len(returns) == 1 and returns[0].alias_info is not None

    @property
    def schema(self) -> str:
        """Signature in ATen's schema language; symbolic prims have the Python operator's."""
        schema = getattr(self.target, "_schema", None)
        return str(schema) if schema is not None else f"{self.name}(...)"


@dataclass(frozen=True, kw_only=True)
class Composite:
    """An operation above the prims, kept whole only for a backend that claims it.

    Attributes:
        name: the field's name (``"softmax"``, ``"layer_norm"``).
        targets: the ATen overloads that stand for it in a captured graph, each with its decomposition into prims; the first is
            what a backend that claims it receives.
        recognize: finds it in a prim graph where torch has no single operator for it (``linear``, ``cross_entropy``);
            a pass over the graph, ``None`` where ``targets`` suffice.
        made_of: names of the composites that ``recognize`` looks for; they reach it whole.
        reference: float64 definition, as for ``Prim``; ``None`` means torch's operator itself.
    """

    name: str
    summary: str
    targets: Mapping[Any, Callable[..., Any]]
    bound: Bound
    samples: Sampler
    dtypes: tuple[torch.dtype, ...] = FLOATS
    recognize: Callable[[torch.fx.GraphModule], int] | None = None
    made_of: frozenset[str] = frozenset()
    reference: Callable[..., Any] | None = None
    source: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def target(self) -> Any:
        """The first of ``targets``."""
        return next(iter(self.targets))


Row = Prim | Composite
"""What has samples and a bound."""
