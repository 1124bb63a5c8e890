"""``vendor-sdk conformance``: the options of a run, and its exit status."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem


def _completing(names: Callable[[], Iterable[str]]) -> Callable[..., list[CompletionItem]]:
    """What a shell completes the last of some names with commas between them from."""

    def complete(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(f"{before}{comma}{name}") for name in names() if name.startswith(last)]

    return complete


def _selecting(name: str, form: str, about: str, names: Callable[[], list[str]]) -> Callable[[Any], Any]:
    """An option of names separated by commas; given twice, it means both."""
    return click.option(
        name,
        multiple=True,
        callback=lambda context, option, values: ",".join(values),
        metavar=form,
        help=about,
        shell_complete=_completing(names),
    )


def _prims() -> list[str]:
    from conformance.cases import all_cases

    return list(dict.fromkeys(case.prim for case in all_cases()))


def _patterns() -> list[str]:
    from conformance.patterns import PATTERNS

    return list(PATTERNS)


def _models() -> list[str]:
    from conformance.zoo import ZOO

    return list(ZOO)


def _dtypes() -> list[str]:
    from conformance.cases import DTYPES

    return list(DTYPES)


USAGE = 4
EXIT_STATUS = """\b
Exit status:
  0  all claims hold
  1  a claim is broken: a case failed, crashed, hung or passed against its declaration
  2  interrupted; what has finished is in the report
  3  defect of the suite
  4  wrong usage, or the backend does not load
  5  no case was run, or none showed anything
"""


class _Certify(click.Command):
    """Wrong usage has the status that the suite says, since 2, which click gives it, means interrupted here."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _usage():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _usage():
            return super().invoke(ctx)


@contextmanager
def _usage() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        error.show()
        raise click.exceptions.Exit(USAGE) from error


@click.command("conformance", cls=_Certify, epilog=EXIT_STATUS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--backend", required=True, metavar="NAME", help="A vendor_sdk backend, or torch:NAME for one of torch.compile.")
@click.option("--effort", type=click.Choice(["quick", "standard", "full", "exhaustive"]), default="standard", show_default=True)
@_selecting("--prims", "GLOB,...", "Only prims that match; * and ? are wildcards.", _prims)
@_selecting("--patterns", "GLOB,...", "Fused patterns that match; then nothing else, unless named.", _patterns)
@_selecting("--models", "GLOB,...", "Models of the zoo that match.", _models)
@click.option(
    "--profile",
    type=click.Choice(["inference", "training", "llm", "vision", "full"]),
    default="full",
    show_default=True,
    help="Only the prims, patterns and models of this workload.",
)
@click.option("--level", type=click.Choice(["runs", "accurate", "fast"]), help="Exit with 1 unless the profile reaches it.")
@_selecting("--dtypes", "DTYPE,...", "Only these dtypes.", _dtypes)
@click.option("-n", "--workers", type=click.IntRange(min=1), default=os.cpu_count() or 1, help="Processes (default: CPUs).")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="For report.json, junit.xml and logs. Default: conformance-results/NAME; with --sample nothing is written.",
)
@click.option("--no-output", is_flag=True, help="Write nothing.")
@click.option("--seed", type=click.IntRange(min=0), help="All values follow from it (default: a new one, in the report).")
@click.option(
    "--shard", metavar="I/N", help="Only this part of the selection, as 2/8; needs --seed. `vendor-sdk report merge`."
)
@click.option("--numerics", is_flag=True, help="Probe numerics too; the default where nothing is selected.")
@click.option("--resume", is_flag=True, help="Go on with the interrupted run in --output.")
@click.option("--sample", type=click.IntRange(min=0), help="Only this sample of each case, as reproducers say.")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), default=120.0, help="Seconds a case.", show_default=True
)
@click.option("--plugin", multiple=True, metavar="FILE", help="Module or .py file of a plugin that is not installed.")
@click.option(
    "--option",
    multiple=True,
    metavar="KEY=VALUE",
    help="Of the backend, as in torch.compile's options: provider=..., mode=...; VALUE is JSON, or text as it stands.",
)
@click.option(
    "--expectations",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="TOML: declined prims, known failures, waivers. Strict: what runs on the host must be declared.",
)
@click.option("--update-expectations", is_flag=True, help="Rewrite that file to say what this run finds.")
@click.pass_context
def main(context: click.Context, /, no_output: bool, **given: Any) -> None:
    """Certifies a backend: every prim with every dtype, against a float64 reference under the prim's own error bound."""
    from conformance.run import Request, UsageError, certify

    request = Request(**given)
    if request.output is not None and no_output:
        raise click.UsageError("--output says where the report goes, --no-output that there is none: give one of them")
    if request.output is None and request.sample is None and not no_output:
        name = request.backend.replace(":", "-") + (f"-{request.shard.replace('/', '-of-')}" if request.shard else "")
        request = Request(**{**given, "output": Path("conformance-results") / name})
    try:
        status = certify(request)
    except UsageError as error:
        click.echo(f"error: {error}", err=True)
        context.exit(USAGE)
    context.exit(int(status))


if __name__ == "__main__":
    main(prog_name="vendor-sdk conformance")
