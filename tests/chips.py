"""Backends that tests name: installed ones as they are, the example chip from its folder when it is not installed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import vendor_sdk
from vendor_sdk.contract import loader

EXAMPLES = Path(__file__).parent.parent / "examples"


def use_chip(name: str) -> None:
    """Makes backend ``name`` known to this process."""
    if loader.known(name):
        return
    sys.path.insert(0, str(EXAMPLES / name))
    vendor_sdk.register(importlib.import_module(f"{name}.plugin"))
