"""``vendor-sdk doctor``: is this machine in order?"""

from __future__ import annotations

import sys

import click

from vendor_sdk import doctor
from vendor_sdk.terminal import BACKEND, coloured, console, plain, print_json, table


@click.command("doctor", epilog="Exit status: 0 nothing failed; 1 something did. Warnings change nothing.")
@click.option("--fast", is_flag=True, help="Only what needs no import of torch or of plugins: under a second.")
@click.option("--backend", type=BACKEND, help="This backend must be ready; others may lack what they need.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(fast: bool, backend: str | None, as_json: bool) -> None:
    """Look whether this machine is in order. Versions, compilers, backends, caches, devices: each is, or its mend."""
    found = list(doctor.examine(fast=fast, backend=backend))
    failed = sum(each.state == "failed" for each in found)
    if as_json:
        print_json({"failed": failed, "findings": [vars(each) for each in found]})
    else:
        shown = table("area", "what", "state", "found, and what to do")
        for each in found:
            lines = "\n".join(filter(None, [each.found, each.mend and f"mend: {each.mend}"]))
            shown.add_row(each.area, plain(each.subject), coloured(each.state), plain(lines))
        console().print(shown)
        warned = sum(each.state == "warning" for each in found)
        click.echo(f"{failed} failed, {warned} warnings, {len(found) - failed - warned} in order")
    sys.exit(1 if failed else 0)
