"""The ``vendor-sdk`` command.

Exit status: 0 all is well; 1 an error, a difference or a failed claim, as printed; 2 wrong usage; 3 a defect of the SDK.
"""

from __future__ import annotations

import contextlib
import fnmatch
import importlib
import json
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vendor_sdk import __version__
from vendor_sdk.errors import VendorSDKError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from vendor_sdk.contract.placement import Placement
    from vendor_sdk.prims.row import Prim

PIPED_WIDTH = 200
"""Columns of a table that goes to no terminal."""

STYLES = {
    "ready": "green", "broken": "red", "collision": "red",
    "native": "green", "view": "green", "decomposed": "cyan", "wrapper": "cyan", "host": "yellow", "declined": "red",
}  # fmt: skip


class _Commands(click.Group):
    """Prints errors without a traceback, unless ``--debug`` asks for it."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, SystemExit, BrokenPipeError):
            raise
        except Exception as error:
            known = isinstance(error, VendorSDKError)
            if ctx.params.get("debug"):
                traceback.print_exc()
            elif known:
                click.echo(f"error: {error}", err=True)
            else:
                click.echo(
                    f"internal error: {type(error).__name__}: {error}\nrun `vendor-sdk --debug ...` for it all", err=True
                )
            sys.exit(1 if known else 3)


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=(__doc__ or "").partition("\n\n")[2]
)
@click.option("--debug", is_flag=True, help="Print tracebacks.")
@click.version_option(__version__, prog_name="vendor-sdk")
def main(debug: bool) -> None:
    """Plug a chip into PyTorch, and certify it."""


@main.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_backends(as_json: bool) -> None:
    """Show every installed backend: ready, or broken and why."""
    from vendor_sdk.contract import discovery, probe

    installed = discovery.installed()
    statuses = probe.statuses(installed)
    if as_json:
        _print_json(
            {
                "backends": [vars(status) for status in statuses],
                "unreadable": [vars(distribution) for distribution in installed.unreadable],
            }
        )
        return
    console = _console()
    table = _table("backend", "distribution", "state", "computes in, or why not")
    for status in statuses:
        what = "\n".join(filter(None, [status.reason or ", ".join(status.dtypes), status.hint and f"hint: {status.hint}"]))
        table.add_row(status.name, "\n".join(status.distributions), _coloured(status.state), _plain(what))
    if statuses:
        console.print(table)
    else:
        console.print("no backends are installed")
    for distribution in installed.unreadable:
        click.echo(f"warning: metadata of {distribution.distribution} cannot be read: {distribution.reason}", err=True)


@main.command()
@click.argument("patterns", nargs=-1)
@click.option("--family", "families", multiple=True, help="Only prims of this family (repeatable).")
@click.option("--backend", help="Add what this backend does with each prim.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ops(patterns: Sequence[str], families: Sequence[str], backend: str | None, as_json: bool) -> None:
    """Show the prims whose names match PATTERNS (globs; all by default)."""
    from vendor_sdk.prims.opset import OPSET
    from vendor_sdk.prims.row import Family

    known = [str(family) for family in Family]
    for family in families:
        if family not in known:
            raise click.BadParameter(f"{family!r} is no family; they are {', '.join(known)}", param_hint="--family")
    prims = [prim for prim in OPSET.values() if (not families or prim.family in families) and _matches(prim.name, patterns)]
    if patterns and not prims:
        raise click.BadParameter(f"no prim matches {' '.join(patterns)}", param_hint="PATTERNS")
    placements = _placements(backend) if backend else None
    if as_json:
        _print_json([_record(prim, placements) for prim in prims])
        return
    from vendor_sdk.pages import bound_text, dtypes_text

    table = _table("prim", "family", "schema", "dtypes", "bound", *([backend] if backend else []))
    for prim in prims:
        cells = [prim.name, str(prim.family), prim.schema, dtypes_text(prim.dtypes), bound_text(prim.bound)]
        placed = [_placed(placements.get(prim.name))] if placements is not None else []
        table.add_row(*map(_plain, cells), *placed)
    console = _console()
    console.print(table)
    console.print(_totals(prims, placements))


@main.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def conformance(arguments: Sequence[str]) -> None:
    """Certify a backend (`vendor-sdk conformance --help`)."""
    command = importlib.import_module("conformance.cli").main
    status = command.main(args=list(arguments), prog_name="vendor-sdk conformance", standalone_mode=False)
    sys.exit(status if isinstance(status, int) else 0)


@main.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def report(arguments: Sequence[str]) -> None:
    """Merge, compare, verify conformance reports (`vendor-sdk report --help`)."""
    importlib.import_module("conformance.report_cli").main(args=list(arguments), prog_name="vendor-sdk report")


@main.group()
def cache() -> None:
    """Show, prune or empty the on-disk cache of compiled kernels."""


@cache.command("info")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def cache_info(as_json: bool) -> None:
    """Show where the cache is and what each backend keeps there."""
    from vendor_sdk.contract.cache import cache_root, size_limit, usage

    used = usage()
    if as_json:
        _print_json({"directory": str(cache_root()), "limit": size_limit(), "backends": [vars(each) for each in used]})
        return
    table = _table("backend", "files", "bytes")
    for each in used:
        table.add_row(each.backend, f"{each.files:,}", f"{each.bytes:,}")
    console = _console()
    console.print(_plain(f"cache directory: {cache_root()}"))
    console.print(table if used else "empty")
    console.print(f"limit: {size_limit():,} bytes (VENDOR_SDK_CACHE_SIZE)")


@cache.command("prune")
@click.option("--size", help="Bytes to leave (500M, 2G); by default the limit, VENDOR_SDK_CACHE_SIZE.")
def cache_prune(size: str | None) -> None:
    """Delete what was not used for longest until the rest is within the limit."""
    from vendor_sdk.contract.cache import prune, size_limit

    gone = prune(size_limit(size))
    click.echo(f"removed {gone.files:,} files, {gone.bytes:,} bytes")


@cache.command("clear")
@click.option("--backend", help="Only this backend's part.")
def cache_clear(backend: str | None) -> None:
    """Empty the cache."""
    from vendor_sdk.contract.cache import clear

    for each in clear(backend):
        click.echo(f"removed {each.backend}: {each.files:,} files, {each.bytes:,} bytes")


@main.command()
@click.option("--check", is_flag=True, help="Write nothing; fail when a page is out of date.")
@click.option(
    "--dir", "folder", type=click.Path(file_okay=False, path_type=Path), default=Path("docs"), show_default=True,
    help="Where the pages are.",
)  # fmt: skip
def docs(check: bool, folder: Path) -> None:
    """Regenerate the hook page and the prim page."""
    from vendor_sdk.pages import PAGES

    stale = []
    for name, make in PAGES.items():
        path, text = folder / name, make()
        if path.is_file() and path.read_text() == text:
            continue
        stale.append(str(path))
        if not check:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if check and stale:
        click.echo(f"error: out of date: {', '.join(stale)}\n  fix: Run vendor-sdk docs.", err=True)
        sys.exit(1)
    click.echo(f"written: {', '.join(stale)}" if stale else "up to date")


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _placements(backend: str) -> Mapping[str, Placement]:
    from vendor_sdk.contract.loader import load
    from vendor_sdk.pipeline import static_support

    with contextlib.redirect_stdout(sys.stderr):  # plugins may print; the answer on stdout stays clean
        return static_support(load(backend))


def _record(prim: Prim, placements: Mapping[str, Placement] | None) -> dict[str, Any]:
    from vendor_sdk.pages import bound_text, dtype_name

    record: dict[str, Any] = {
        "name": prim.name,
        "family": str(prim.family),
        "summary": prim.summary,
        "schema": prim.schema,
        "dtypes": [dtype_name(dtype) for dtype in prim.dtypes],
        "result": str(prim.result),
        "shape": str(prim.shape),
        "bound": bound_text(prim.bound),
        "decomposes": prim.decomposition is not None,
    }
    if placements is not None:
        placement = placements[prim.name]
        record["placement"] = {"kind": str(placement.kind), "route": str(placement.route), "reason": placement.reason}
    return record


def _totals(prims: Sequence[Prim], placements: Mapping[str, Placement] | None) -> str:
    if placements is None:
        return f"{len(prims)} prims"
    counts: dict[str, int] = {}
    for prim in prims:
        kind = str(placements[prim.name].kind)
        counts[kind] = counts.get(kind, 0) + 1
    return f"{len(prims)} prims: " + ", ".join(f"{count} {kind}" for kind, count in counts.items())


def _console() -> Console:
    from rich.console import Console

    terminal = sys.stdout.isatty()
    return Console(highlight=False, width=None if terminal else PIPED_WIDTH)


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=index == 0)
    return table


def _coloured(state: str, text: str | None = None) -> Any:
    from rich.text import Text

    return Text(text or state, style=STYLES.get(state, ""))


def _plain(text: str) -> Any:
    """Text in which square brackets are just that."""
    from rich.text import Text

    return Text(text)


def _placed(placement: Placement | None) -> Any:
    return _plain("") if placement is None else _coloured(str(placement.kind), str(placement))


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


if __name__ == "__main__":
    main()
