"""What a section offers: rows to choose from, and how one of them is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.results import RowResult
from benchmarks.spawn import Setting

During = Callable[[str], None]
"""Told which contestant is at work, so that a crash can be laid at its door."""


@dataclass(frozen=True)
class Row:
    """One row to measure; it travels to its process as JSON.

    Attributes:
        section: that it belongs to.
        name: of the kernel, network or function.
        dtype: of floating point tensors.
        mebibytes: of the main tensor (kernels only).
        variant: what the section tells apart further.
    """

    section: str
    name: str
    dtype: str = "float32"
    mebibytes: int | None = None
    variant: str = ""

    @property
    def title(self) -> str:
        """The name in results."""
        return f"{self.name}: {self.variant}" if self.variant else self.name

    @property
    def label(self) -> str:
        """The title with size and dtype."""
        return self.result().label

    def result(self) -> RowResult:
        """A result without figures."""
        return RowResult(self.section, self.title, self.dtype, self.mebibytes)


@dataclass(frozen=True)
class Selection:
    """Which rows are wanted.

    Attributes:
        quick: the subset of the quick mode.
        sizes: of kernels, MiB.
        dtypes: of kernels.
    """

    quick: bool
    sizes: Sequence[int]
    dtypes: Sequence[str]


class Section(Protocol):
    """A module of this package."""

    TITLE: str
    """Heading of its table."""
    OWN_PROCESS: bool
    """``measure`` runs in a process of its own; otherwise it starts processes itself."""

    @staticmethod
    def rows(selection: Selection) -> list[Row]:
        """All rows wanted."""

    @staticmethod
    def measure(row: Row, setting: Setting, during: During) -> list[RowResult]:
        """What was found, in one result or several."""
