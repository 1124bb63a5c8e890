"""``vendor-sdk minify``: the smallest graph that still fails."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path

import click

from vendor_sdk.terminal import BACKEND, print_json


@click.command("minify", epilog="Exit status: 0 a program that fails was written; 1 nothing fails, or another error.")
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
@click.option("--backend", type=BACKEND, help="Whose case; of a script or a program: run its graphs with this backend.")
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
    of their own with every stage checked: crashes and hangs are failures too. Inputs are random, those of a case its own.
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
        failing, programs = None, []
        if case is not None and backend is not None:
            failing = minify.first(minify.samples(case, backend, Path(folder) / "samples"), pool, (0,))
            if failing is None:  # the suite does more with a sample than to call it once
                programs = minify.dumped(minify.case_command(case, backend, plugins, timeout), dumps, 10 * timeout)
        else:
            programs = [program] if program is not None else []
            if script is not None:
                # Several graphs may be compiled, and each may take its time.
                programs = minify.dumped(minify.script_command(script, arguments), dumps, 10 * timeout)
            if backend is not None:
                programs = minify.for_backend(programs, backend, Path(folder) / "other")
        failing = failing or minify.find(programs, pool)
        path, seed, failure = failing
        found = minify.minify(path, seed, failure, pool, candidates, lambda text: click.echo(text, err=True), output.name)
        found.write(output)
    if as_json:
        print_json(
            {"failure": str(found.failure), "before": found.before, "after": found.after, "shorter": found.shorter,
             "tries": found.tries,
             "seed": seed, "program": str(output.absolute())}
        )  # fmt: skip
        return
    if found.shorter:
        click.echo(f"{found.before} operators became {found.after} in {found.tries} tries: {found.failure}")
    else:
        click.echo(f"nothing became shorter in {found.tries} tries: {found.after} operators, {found.failure}")
    needed = [*(("--seed", str(seed)) if seed else ()), *(word for name in plugins for word in ("--plugin", name))]
    click.echo(f"written: {output}\nrun it:  {shlex.join(['python', str(output), *needed])}")
