"""The releases of torch that the SDK was checked on, and what a user of others is told."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib import metadata

from vendor_sdk.errors import TorchVersionError

TORCH_CHECKED = ("2.11", "2.14")
"""The oldest and the newest torch that ``torch_private`` was checked on."""


@contextlib.contextmanager
def private_names() -> Iterator[None]:
    """Round imports of names that are private to torch.

    Raises:
        TorchVersionError: the installed torch lacks one.
    """
    try:
        yield
    except ImportError as error:
        oldest, newest = TORCH_CHECKED
        raise TorchVersionError(
            f"vendor-sdk: torch {metadata.version('torch')} lacks a name that the SDK rests on",
            why=f"{type(error).__name__}: {error}",
            fix=f"take torch {newest} (the SDK was checked on {oldest} to {newest}), or a newer vendor-sdk if there is one",
        ) from error
