"""``vendor-sdk profile``: what takes the time of a program's compiled graphs."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import click

from vendor_sdk import script as program
from vendor_sdk.errors import OptionError
from vendor_sdk.terminal import console


@click.command("profile", context_settings={"ignore_unknown_options": True})
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--trace", type=click.Path(dir_okay=False, path_type=Path), help="Write a trace for chrome://tracing or Perfetto."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(script: Path, arguments: tuple[str, ...], trace: Path | None, as_json: bool) -> None:
    """Run SCRIPT and show every kernel of what it compiles. ARGUMENTS are its own; shown are time, bytes, share of the peak.

    Kernels run one at a time, each awaited: their times add up to more than the program takes without this.
    """
    if trace is not None and not trace.parent.is_dir():
        raise click.BadParameter(f"{str(trace.parent)!r} is no folder", param_hint="--trace")
    from vendor_sdk.profiling import profile

    with contextlib.redirect_stdout(sys.stderr), profile() as seen:
        program.run(script, arguments)
    if not seen.events:
        raise OptionError(
            f"{script} ran no compiled graph",
            fix="Let it call torch.compile(model, backend=...) with a backend of `vendor-sdk list`, and then the model.",
        )
    if trace is not None:
        seen.chrome_trace(trace)
    if as_json:
        click.echo(seen.to_json())
    else:
        seen.print(console())
