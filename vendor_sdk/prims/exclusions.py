"""Operators of torch's database that opset 1 leaves out, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping

EXCLUSIONS: Mapping[str, str] = {}
