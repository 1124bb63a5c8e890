"""The ``vendor-sdk`` command.

Exit status: 0 all is well; 1 an error, a difference or a failed claim, as printed; 2 wrong usage; 3 a defect of the SDK.
"""

from __future__ import annotations

import contextlib
import fnmatch
import importlib
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vendor_sdk import __version__, resting
from vendor_sdk.errors import VendorSDKError
from vendor_sdk.terminal import BACKEND, coloured, completing, console, plain, print_json, table

if TYPE_CHECKING:
    from vendor_sdk.contract.placement import Placement
    from vendor_sdk.prims.row import Prim

LATER = ("new", "doctor", "next", "minify", "profile", "completion")
"""Commands of modules of their own, ``vendor_sdk/commands/``, which are imported when they are asked for."""
SUITE = {"conformance": "conformance.cli", "report": "conformance.report_cli"}
"""Commands of the suite, and where they are."""


class _Commands(click.Group):
    """Prints errors without a traceback, unless ``--debug`` asks for it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted((*super().list_commands(ctx), *LATER))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in LATER:
            return super().get_command(ctx, cmd_name)
        command: click.Command = importlib.import_module(f"vendor_sdk.commands.{cmd_name}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, SystemExit, BrokenPipeError):
            raise
        except Exception as error:
            file = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else ""
            known = bool(file) or isinstance(error, VendorSDKError)
            if ctx.params.get("debug"):
                traceback.print_exc()
            elif known:
                click.echo(f"error: {file or error}", err=True)
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
    resting.collect_seldom()


@main.command("list")
@click.option("--check", is_flag=True, help="Load each plugin, in a process of its own: ready, or broken and why.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_backends(check: bool, as_json: bool) -> None:
    """Show every installed backend. From metadata alone; --check loads them."""
    from vendor_sdk.contract import discovery, probe

    installed = discovery.installed()
    statuses = probe.statuses(installed) if check else probe.unloaded(installed)
    if as_json:
        print_json(
            {
                "backends": [vars(status) for status in statuses],
                "unreadable": [vars(distribution) for distribution in installed.unreadable],
            }
        )
        return
    shown = table("backend", "distribution", "state", "computes in, or why not" if check else "plugin, or why not")
    for status in statuses:
        known = ", ".join(status.dtypes) if check else status.plugin
        what = "\n".join(filter(None, [status.reason or known, status.hint and f"hint: {status.hint}"]))
        shown.add_row(status.name, "\n".join(status.distributions), coloured(status.state), plain(what))
    if statuses:
        console().print(shown)
    else:
        console().print("no backends are installed")
    for distribution in installed.unreadable:
        click.echo(f"warning: metadata of {distribution.distribution} cannot be read: {distribution.reason}", err=True)


@main.command()
@click.argument("patterns", nargs=-1, shell_complete=completing(lambda: _prims()))
@click.option(
    "--family", "families", multiple=True, help="Only prims of this family (repeatable).",
    shell_complete=completing(lambda: _families()),
)  # fmt: skip
@click.option("--backend", type=BACKEND, help="Add what this backend does with each prim.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ops(patterns: Sequence[str], families: Sequence[str], backend: str | None, as_json: bool) -> None:
    """Show the prims whose names match PATTERNS. These are globs; all by default."""
    if backend:
        from vendor_sdk.contract import discovery

        discovery.refuse_unknown(backend)
    from vendor_sdk.prims.opset import OPSET

    known = _families()
    for family in families:
        if family not in known:
            raise click.BadParameter(f"{family!r} is no family; they are {', '.join(known)}", param_hint="--family")
    prims = [prim for prim in OPSET.values() if (not families or prim.family in families) and _matches(prim.name, patterns)]
    if patterns and not prims:
        raise click.BadParameter(f"no prim matches {' '.join(patterns)}", param_hint="PATTERNS")
    placements = _placements(backend) if backend else None
    if as_json:
        print_json([_record(prim, placements) for prim in prims])
        return
    from vendor_sdk.pages import bound_text, dtypes_text

    shown = table("prim", "family", "schema", "dtypes", "bound", *([backend] if backend else []))
    for prim in prims:
        cells = [prim.name, str(prim.family), prim.schema, dtypes_text(prim.dtypes), bound_text(prim.bound)]
        placed = [_placed(placements[prim.name])] if placements is not None else []
        shown.add_row(*map(plain, cells), *placed)
    out = console()
    out.print(shown)
    out.print(_totals(prims, placements))


def _of_suite(name: str | None) -> click.Command:
    command: click.Command = importlib.import_module(SUITE[name or ""]).main
    return command


class _Elsewhere(click.Command):
    """A command of the suite, which is imported when it runs, or completes."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import ShellComplete

        given = list(ctx.params["arguments"] or ())
        if given[-1:] == ["--backend"]:
            return BACKEND.shell_complete(ctx, self.params[0], incomplete)
        return ShellComplete(_of_suite(self.name), {}, "", "").get_completions(given, incomplete)


def _completed(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    return ctx.command.shell_complete(ctx, incomplete)


def _elsewhere(function: Any) -> click.Command:
    """Passes all that follows on."""
    arguments = click.argument("arguments", nargs=-1, type=click.UNPROCESSED, shell_complete=_completed)
    settings = {"ignore_unknown_options": True}
    return main.command(cls=_Elsewhere, context_settings=settings, add_help_option=False)(arguments(function))


@_elsewhere
def conformance(arguments: Sequence[str]) -> None:
    """Certify a backend (`vendor-sdk conformance --help`)."""
    suite = _of_suite("conformance")
    with suite.make_context("vendor-sdk conformance", list(arguments)) as context:
        name = context.params["backend"]
        if not name.startswith("torch:") and not context.params["plugin"]:
            from vendor_sdk.contract import discovery

            try:
                discovery.refuse_unknown(name)
            except VendorSDKError as error:
                click.echo(f"error: {error}", err=True)
                sys.exit(4)
        suite.invoke(context)


@_elsewhere
def report(arguments: Sequence[str]) -> None:
    """Merge, compare, verify and show conformance reports."""
    _of_suite("report").main(args=list(arguments), prog_name="vendor-sdk report")


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
        print_json({"directory": str(cache_root()), "limit": size_limit(), "backends": [vars(each) for each in used]})
        return
    shown = table("backend", "files", "bytes")
    for each in used:
        shown.add_row(each.backend, f"{each.files:,}", f"{each.bytes:,}")
    out = console()
    out.print(plain(f"cache directory: {cache_root()}"))
    out.print(shown if used else "empty")
    out.print(f"limit: {size_limit():,} bytes (VENDOR_SDK_CACHE_SIZE)")


@cache.command("prune")
@click.option("--size", help="Bytes to leave (500M, 2G); by default the limit, VENDOR_SDK_CACHE_SIZE.")
def cache_prune(size: str | None) -> None:
    """Delete what was not used for longest. The rest is within the limit then."""
    from vendor_sdk.contract.cache import prune, size_limit

    gone = prune(size_limit(size))
    click.echo(f"removed {gone.files:,} files, {gone.bytes:,} bytes")


@cache.command("clear")
@click.option("--backend", type=BACKEND, help="Only this backend's part.")
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
    """Regenerate the pages of hooks, loops, prims and public names."""
    from vendor_sdk.pages import PAGES

    stale = []
    for name, make in PAGES.items():
        path, text = folder / name, make()
        if path.is_file() and path.read_text() == text:
            continue
        stale.append(str(path))
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if check and stale:
        click.echo(f"error: out of date: {', '.join(stale)}\n  fix: Run vendor-sdk docs.", err=True)
        sys.exit(1)
    click.echo(f"written: {', '.join(stale)}" if stale else "up to date")


def _prims() -> list[str]:
    from vendor_sdk.prims.opset import OPSET

    return list(OPSET)


def _families() -> list[str]:
    from vendor_sdk.prims.row import Family

    return [str(family) for family in Family]


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


def _placed(placement: Placement) -> Any:
    return coloured(str(placement.kind), str(placement))


def _totals(prims: Sequence[Prim], placements: Mapping[str, Placement] | None) -> str:
    if placements is None:
        return f"{len(prims)} prims"
    counts: dict[str, int] = {}
    for prim in prims:
        kind = str(placements[prim.name].kind)
        counts[kind] = counts.get(kind, 0) + 1
    return f"{len(prims)} prims: " + ", ".join(f"{count} {kind}" for kind, count in counts.items())


if __name__ == "__main__":
    main()
