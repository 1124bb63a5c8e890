"""``vendor-sdk next``: what to implement next."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import click

from vendor_sdk.terminal import BACKEND, completing, console, plain, print_json, table


@click.command("next")
@click.option("--backend", type=BACKEND, required=True, help="Whose next prims.")
@click.option(
    "--models", default="", metavar="NAME,...", help="Among the counted models (all, unless --script is given).",
    shell_complete=completing(lambda: _models(), several=True),
)  # fmt: skip
@click.option("--script", type=click.Path(path_type=Path), help="A program that compiles a model for the backend: count it.")
@click.option("--training", is_flag=True, help="Backward passes of the counted models too.")
@click.option("--all", "everything", is_flag=True, help="Every step, not only the first 20.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(backend: str, models: str, script: Path | None, training: bool, everything: bool, as_json: bool) -> None:
    """Rank what a backend should implement next. By the models that it unlocks, and by what it costs on the host."""
    from vendor_sdk.contract import discovery

    discovery.refuse_unknown(backend)
    from vendor_sdk import advice

    names = [name.strip() for name in models.split(",") if name.strip()]
    programs = advice.chosen_models(names, advice.PASSES[training]) if names or script is None else {}
    with contextlib.redirect_stdout(sys.stderr):  # plugins may print
        counted = advice.count(backend, script) if script is not None else None  # first: a program that fails is soon told
        missing, offered = advice.waiting(backend), advice.dtypes(backend)
        if script is not None and counted is not None:
            uses, reasons = counted
            # What ran on the host there is missing, whatever samples of it say; in dtypes of its own.
            missing = {**missing, **reasons}
            programs = {script.name: uses, **programs}
    found = advice.advise(programs, missing, offered)
    if as_json:
        print_json({"ready": found.ready, "models": found.models, "steps": [vars(step) for step in found.steps]})
        return
    shown = table("", "prim", "models", "unlocks", "host bytes", "host time", "why it is on the host")
    rows = found.steps if everything else found.steps[:20]
    for place, step in enumerate(rows, 1):
        cells = [
            step.prim,
            str(len(step.models)),
            ", ".join(step.unlocks),
            _bytes(step.bytes),
            f"{step.share:.1%}",
            step.reason,
        ]
        shown.add_row(str(place), *map(plain, cells))
    out = console()
    if rows:
        out.print(shown)
    if len(rows) < len(found.steps):
        out.print(f"and {len(found.steps) - len(rows)} more: --all")
    out.print(f"{len(found.ready)} of {len(found.models)} models run without the host: {', '.join(found.ready) or 'none'}")


def _bytes(count: int) -> str:
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if size >= 100 else f"{size:.3g} {unit}"


def _models() -> list[str]:
    from vendor_sdk import advice

    return list(advice.known_models())
