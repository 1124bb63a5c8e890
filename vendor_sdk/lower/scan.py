"""Lowerings of the scan family."""

from __future__ import annotations

from collections.abc import Mapping

from vendor_sdk.lower.build import Lowering

LOWERINGS: Mapping[str, Lowering] = {}
