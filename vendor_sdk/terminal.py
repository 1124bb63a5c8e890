"""What commands print: tables, colours where somebody looks, JSON; and how names complete."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPED_WIDTH = 200
"""Columns of a table that goes to no terminal."""

STYLES = {
    "ready": "green", "installed": "green", "broken": "red", "collision": "red", "unavailable": "yellow",
    "ok": "green", "warning": "yellow", "failed": "red",
    "native": "green", "view": "green", "decomposed": "cyan", "wrapper": "cyan", "host": "yellow", "declined": "red",
}  # fmt: skip


class _BackendName(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.2
    """The name of a backend, which a shell completes from what is installed."""

    name = "name"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        from vendor_sdk.contract import discovery

        return [CompletionItem(name) for name in discovery.installed().names if name.startswith(incomplete)]


BACKEND = _BackendName()


def completing(names: Callable[[], Iterable[str]], *, several: bool = False) -> Callable[..., list[Any]]:
    """What a shell completes an argument from; ``several``: names with commas between them, of which it completes the last.

    Args:
        names: asked only then, for it may import torch.
    """

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        before, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
        return [CompletionItem(f"{before}{comma}{name}") for name in names() if name.startswith(last)]

    return complete


def as_text(show: Callable[[Console], None]) -> str:
    """What ``show`` prints, as plain text."""
    import io

    from rich.console import Console

    out = io.StringIO()
    show(Console(file=out, width=PIPED_WIDTH))
    return out.getvalue().rstrip("\n")


def console() -> Console:
    """Where tables go: in colours and as wide as the terminal, if it is one."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    return Console(highlight=False, width=None if terminal else PIPED_WIDTH)


def table(*columns: str) -> Table:
    """An empty table; text in its cells is folded, but in the first column."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        made.add_column(column, overflow="fold", no_wrap=index == 0)
    return made


def coloured(state: str, text: str | None = None) -> Any:
    """``text`` in the colour of ``state``."""
    from rich.text import Text

    return Text(text or state, style=STYLES.get(state, ""))


def plain(text: str) -> Any:
    """Text in which square brackets are just that."""
    from rich.text import Text

    return Text(text)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))
