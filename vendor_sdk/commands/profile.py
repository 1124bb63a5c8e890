"""``vendor-sdk profile``: what takes the time of a program's compiled graphs."""

from __future__ import annotations

import contextlib
import runpy
import sys
from pathlib import Path

import click

from vendor_sdk.terminal import console


@click.command("profile", context_settings={"ignore_unknown_options": True})
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--trace", type=click.Path(dir_okay=False, path_type=Path), help="Write a trace for chrome://tracing or Perfetto."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(script: Path, arguments: tuple[str, ...], trace: Path | None, as_json: bool) -> None:
    """Run SCRIPT (ARGUMENTS are its own) and show every kernel of what it compiles: time, bytes, share of the peak.

    Kernels run one at a time, each awaited: their times add up to more than the program takes without this.
    """
    from vendor_sdk.profiling import profile

    before = sys.argv, sys.path[0]
    sys.argv, sys.path[0] = [str(script), *arguments], str(script.resolve().parent)
    try:
        with contextlib.redirect_stdout(sys.stderr), profile() as seen, contextlib.suppress(SystemExit):
            runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv, sys.path[0] = before
    if trace is not None:
        seen.chrome_trace(trace)
    if as_json:
        click.echo(seen.to_json())
    else:
        seen.print(console())
