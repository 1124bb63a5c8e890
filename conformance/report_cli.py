"""``vendor-sdk report``: reports of finished runs, merged, compared, verified."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

REPORT = click.Path(exists=True, path_type=Path)
SHOWN = 30
"""Lines of each kind that are printed; the rest is counted."""
MARK = "<!-- runs side by side -->\n"
"""Where tables begin in a page."""
UNCHECKED = 3
"""Exit status of ``verify`` where nothing is wrong, and not all could be checked."""


@click.group("report", context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Merge, compare, verify and show conformance reports. A REPORT is a report.json or the folder that holds it."""


@main.command()
@click.argument("reports", nargs=-1, required=True, type=REPORT)
@click.option("--output", required=True, type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="For the whole.")
def merge(reports: Sequence[Path], output: Path) -> None:
    """Make one report of those of shards. Status 1: a shard is missing, or a claim is broken."""
    from conformance.merge import MergeError
    from conformance.merge import merge as merged

    parts = [(path if path.is_dir() else path.parent, _read(path)) for path in reports]
    try:
        made = merged(parts, output)
    except MergeError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{output}: {made['summary']['cases']} cases, native coverage {made['summary']['coverage']:.1%}")
    if made["run"]["interrupted"]:
        click.echo("incomplete: a shard is missing or was interrupted")
    click.echo("all claims hold" if made["summary"]["claims_hold"] else "claims broken, or not all shown")
    sys.exit(0 if made["summary"]["claims_hold"] else 1)


@main.command()
@click.argument("before", type=REPORT)
@click.argument("after", type=REPORT)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare(before: Path, after: Path, as_json: bool) -> None:
    """What changed from BEFORE to AFTER. Status 1: something got worse, or a case is missing.

    Times count where their intervals do not touch and the medians differ by more than 5 %.
    """
    from conformance.compare import Change
    from conformance.compare import compare as compared

    made = compared(_read(before), _read(after))
    status = 1 if made.worse else 0
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(made), indent=1))
        sys.exit(status)
    for line in made.unlike:
        click.echo(f"note: {line}")

    def listed(title: str, changes: Sequence[Change]) -> None:
        if changes:
            click.echo(f"{title}: {len(changes)}")
        for change in changes[:SHOWN]:
            click.echo(f"  {change.case}: {change.before} -> {change.after}" + (f": {change.why}" if change.why else ""))
        if len(changes) > SHOWN:
            click.echo(f"  and {len(changes) - SHOWN} more")

    listed("regressions", made.regressions)
    listed("improvements", made.improvements)
    listed("slower, the intervals do not touch", made.slower)
    listed("faster, the intervals do not touch", made.faster)
    listed("levels that are not reached any more", made.lower)
    listed("levels that are reached now", made.higher)
    listed("numerics", made.numerics)
    listed("right, with a larger error (1 is the bound)", made.less_accurate)
    listed("right, with a smaller error (1 is the bound)", made.more_accurate)
    for title, names in (("missing", made.missing), ("added", made.added)):
        if names:
            click.echo(f"{title}: {len(names)}: {', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''}")
    if made.same:
        click.echo("every case stands as before")
    sys.exit(status)


@main.command()
@click.argument("report", type=REPORT)
@click.argument("output", type=click.Path(dir_okay=False, path_type=Path))
def extract(report: Path, output: Path) -> None:
    """Write an extract for a repository. It holds the run, counts, means, and each case that failed."""
    from conformance import extract as extracts

    extracts.write(output, extracts.extract(_read(report)))
    click.echo(output)


@main.command("side-by-side")
@click.argument("extracts", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--into", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="PAGE", help="Default: print it.")
def side_by_side(extracts: Sequence[Path], into: Path | None) -> None:
    """Tables of several runs, from their extracts. In PAGE they replace what follows <!-- runs side by side -->."""
    from conformance import extract as made

    text = made.side_by_side([json.loads(path.read_text()) for path in extracts])
    if into is None:
        click.echo(text, nl=False)
        return
    head, mark, _ = into.read_text().partition(MARK)
    if not mark:
        raise click.ClickException(f"{into} has no line {MARK.strip()}: put it where the tables are to begin")
    into.write_text(head + mark + "\n" + text)
    click.echo(into)


@main.command()
@click.argument("report", type=REPORT)
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Default: beside the report.")
def page(report: Path, output: Path | None) -> None:
    """Write report.html, summary.md and badge.svg again."""
    from conformance import page as pages

    folder = output or (report if report.is_dir() else report.parent)
    folder.mkdir(parents=True, exist_ok=True)
    pages.write(folder, _read(report))
    click.echo(folder / "report.html")


@main.command()
@click.argument("report", type=REPORT)
@click.option(
    "--rerun", type=click.IntRange(min=0), default=8, show_default=True, help="Cases to draw at random and run again."
)
@click.option("--plugin", multiple=True, metavar="FILE", help="In place of the plugins that the report names.")
@click.option("-n", "--workers", type=click.IntRange(min=1), default=min(2, os.cpu_count() or 1), help="Processes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(report: Path, rerun: int, plugin: tuple[str, ...], workers: int, as_json: bool) -> None:
    """Check a report, and run some of its cases again. Schema, digests, completeness, summary; random cases, on this machine.

    Status 1: the report was changed, is incomplete, or a case comes out differently. Status 3: nothing is wrong, and not all
    could be checked, since the run was interrupted or another version of the suite made the report.
    """
    from conformance import evidence
    from conformance.again import again
    from conformance.pool import StartError
    from conformance.report import suite

    document = _read(report)
    found = evidence.checked(document, report if report.is_dir() else report.parent)
    said: dict[str, Any] = {
        "cases": len(document["cases"]),
        "problems": found.problems,
        "right": found.right,
        "unchecked": found.unchecked,
        "other_suite": document["run"]["suite"] != suite(),
        "ran": [],
        "different": [],
    }

    def tell(line: str) -> None:
        if not as_json:
            click.echo(line)

    def end(status: int) -> NoReturn:
        if as_json:
            click.echo(json.dumps({"verified": not status, **said}, indent=2))
        sys.exit(status)

    for line in found.problems:
        tell(line)
    if found.problems:
        tell(f"not as the suite wrote it: {len(found.problems)} problems")
        end(1)
    tell(f"{said['cases']} cases: right are {', '.join(found.right)}")
    for line in found.unchecked:
        tell(line)
    if said["other_suite"]:
        tell("cases not run again: they may be others in this version of the suite")
        end(UNCHECKED)
    if rerun:
        try:
            ran, different = again(document, rerun, plugin, workers)
        except StartError as error:
            raise click.ClickException(f"the backend does not load here: {error}") from error
        said.update(ran=list(ran), different=list(different))
        for line in different:
            tell(line)
        if different:
            tell("the report does not say what happens here")
            end(1)
        tell(f"{len(ran)} cases ran again as reported: {', '.join(ran)}")
    end(UNCHECKED if found.unchecked else 0)


def _read(path: Path) -> dict[str, Any]:
    from conformance.evidence import read

    try:
        return read(path)
    except ValueError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main(prog_name="vendor-sdk report")
