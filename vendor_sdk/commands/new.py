"""``vendor-sdk new``: a vendor's first package."""

from __future__ import annotations

from pathlib import Path

import click

from vendor_sdk import scaffold
from vendor_sdk.terminal import print_json


@click.command("new")
@click.argument("name")
@click.option(
    "--route", type=click.Choice(scaffold.ROUTES), default="kernels", show_default=True,
    help="A function a prim; loops as text of your language; or whole partitions for your graph compiler.",
)  # fmt: skip
@click.option(
    "--device", "memory", type=click.Choice(scaffold.MEMORIES), default="host", show_default=True,
    help="Whether the chip shares the host's memory, or has its own (simulated until your driver's calls stand there).",
)  # fmt: skip
@click.option("--dir", "folder", type=click.Path(path_type=Path), help="What to make; ./NAME by default.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(name: str, route: scaffold.Route, memory: scaffold.Memory, folder: Path | None, as_json: bool) -> None:
    """Write a package that makes NAME a backend. It installs, serves torch.compile and passes the suite as it is."""
    folder = folder or Path(name)
    written = scaffold.write(scaffold.Scaffold(name, route, memory), folder)
    if as_json:
        print_json({"folder": str(folder.absolute()), "files": written})
        return
    click.echo("\n".join(f"{folder / path}" for path in written))
    click.echo(f"\nnext:\n  pip install -e {folder}\n  vendor-sdk conformance --backend {name} --effort quick")
