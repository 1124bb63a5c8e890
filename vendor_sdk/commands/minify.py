"""``vendor-sdk minify``: the smallest graph that still fails."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path

import click

from vendor_sdk.terminal import BACKEND, print_json


@click.command("minify", epilog="Exit status: 0 a smaller program was written; 1 nothing fails, or another error.")
@click.option(
    "--script", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A program whose compiled model fails."
)
@click.option("--case", metavar="PRIM[DTYPE]", help="A case of the conformance suite that fails; wants --backend.")
@click.option(
    "--repro",
    "program",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The repro.py of a dump that fails.",
)
@click.option("--backend", type=BACKEND, help="Whose case.")
@click.option(
    "--plugin", "plugins", multiple=True, metavar="FILE", help="Module or .py file of a plugin that is not installed."
)
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), default=Path("minified.py"), show_default=True,
    help="Where to write the program.",
)  # fmt: skip
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True, help="Seconds a graph."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    script: Path | None,
    case: str | None,
    program: Path | None,
    backend: str | None,
    plugins: tuple[str, ...],
    output: Path,
    timeout: float,
    as_json: bool,
    arguments: tuple[str, ...],
) -> None:
    """Shorten what fails to the smallest graph that still does.

    What fails is a model's program (ARGUMENTS are its own), a conformance case, or one dumped graph. Graphs run in a process
    of their own, on random inputs, with every stage checked: crashes and hangs are failures too.
    """
    if sum(given is not None for given in (script, case, program)) != 1:
        raise click.UsageError("give one of --script, --case and --repro")
    if case is not None and backend is None:
        raise click.UsageError("--case needs --backend: whose case it is")
    from vendor_sdk import minify
    from vendor_sdk.minify.worker import Pool

    with tempfile.TemporaryDirectory() as folder, Pool(plugins, timeout) as pool:
        dumps, candidates = Path(folder) / "dumps", Path(folder) / "candidates"
        dumps.mkdir()
        candidates.mkdir()
        if program is not None:
            programs = [program]
        else:
            line = (
                minify.script_command(script, arguments)
                if script is not None
                else minify.case_command(case or "", backend or "", plugins, timeout)
            )
            # Several graphs may be compiled, and each may take its time.
            programs = minify.dumped(line, dumps, 10 * timeout)
        path, seed, failure = minify.find(programs, pool)
        found = minify.minify(path, seed, failure, pool, candidates, lambda text: click.echo(text, err=True))
        found.write(output)
    if as_json:
        print_json(
            {"failure": str(found.failure), "before": found.before, "after": found.after, "tries": found.tries,
             "seed": seed, "program": str(output.absolute())}
        )  # fmt: skip
        return
    click.echo(f"{found.before} operators became {found.after} in {found.tries} tries: {found.failure}")
    needed = [*(("--seed", str(seed)) if seed else ()), *(word for name in plugins for word in ("--plugin", name))]
    click.echo(f"written: {output}\nrun it:  {shlex.join(['python', str(output), *needed])}")
