"""``vendor-sdk conformance``: the suite under pytest, with its own progress and summary."""

from __future__ import annotations

import os
from pathlib import Path

import click

EXIT_STATUS = """\b
Exit status:
  0  all claims hold
  1  a claim is broken: a case failed, crashed, hung or passed against its declaration
  2  interrupted; what has finished is in the report
  3  defect of the suite
  4  wrong usage, or the backend does not load
  5  no case was run, or none showed anything
"""


@click.command("conformance", epilog=EXIT_STATUS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--backend", required=True, metavar="NAME", help="A vendor_sdk backend, or torch:NAME for one of torch.compile.")
@click.option("--effort", type=click.Choice(["quick", "standard", "full"]), default="standard", show_default=True)
@click.option("--prims", default="", metavar="GLOB,...", help="Only prims that match; * and ? are wildcards.")
@click.option("--patterns", default="", metavar="GLOB,...", help="Fused patterns that match; then nothing else, unless named.")
@click.option("--models", default="", metavar="GLOB,...", help="Models of the zoo that match.")
@click.option(
    "--profile",
    type=click.Choice(["inference", "training", "llm", "vision", "full"]),
    default="full",
    show_default=True,
    help="Only the prims, patterns and models of this workload.",
)
@click.option("--level", type=click.Choice(["runs", "accurate", "fast"]), help="Exit with 1 unless the profile reaches it.")
@click.option("--dtypes", default="", metavar="DTYPE,...", help="Only these dtypes.")
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
def main(
    context: click.Context,
    backend: str,
    effort: str,
    prims: str,
    patterns: str,
    models: str,
    profile: str,
    level: str | None,
    dtypes: str,
    workers: int,
    output: Path | None,
    no_output: bool,
    seed: int | None,
    shard: str | None,
    numerics: bool,
    resume: bool,
    sample: int | None,
    timeout: float,
    plugin: tuple[str, ...],
    option: tuple[str, ...],
    expectations: Path | None,
    update_expectations: bool,
) -> None:
    """Certifies a backend: every prim with every dtype, against a float64 reference under the prim's own error bound."""
    import pytest

    if output is not None and no_output:
        raise click.UsageError("--output says where the report goes, --no-output that there is none: give one of them")
    if output is None and sample is None and not no_output:
        name = backend.replace(":", "-") + (f"-{shard.replace('/', '-of-')}" if shard else "")
        output = Path("conformance-results") / name
    here = Path(__file__).resolve().parent
    arguments = [
        str(here / "test_prims.py"),
        # Nothing of the folder it is called in, and no other plugin, may change what a certificate says.
        f"-c{os.devnull}",
        f"--rootdir={here.parent}",
        "--disable-plugin-autoload",
        "-pconformance.plugin",
        "-pno:cacheprovider",
        "--capture=no",  # cases run elsewhere: what is printed here is the progress
        "--conformance-console",
        f"--backend={backend}",
        f"--effort={effort}",
        f"--prims={prims}",
        f"--patterns={patterns}",
        f"--models={models}",
        f"--profile={profile}",
        f"--dtypes={dtypes}",
        f"--workers={workers}",
        f"--case-timeout={timeout}",
        *(f"--plugin={name}" for name in plugin),
        *(f"--backend-option={each}" for each in option),
    ]
    if level is not None:
        arguments.append(f"--level={level}")
    if seed is not None:
        arguments.append(f"--seed={seed}")
    if shard is not None:
        arguments.append(f"--shard={shard}")
    if numerics:
        arguments.append("--numerics")
    if resume:
        arguments.append("--resume")
    if sample is not None:
        arguments.append(f"--sample={sample}")
    if expectations is not None:
        arguments.append(f"--expectations={expectations}")
    if update_expectations:
        arguments.append("--update-expectations")
    if output is not None:
        arguments += [f"--output={output}", f"--junitxml={output / 'junit.xml'}"]
    addopts = os.environ.pop("PYTEST_ADDOPTS", None)
    try:
        status = pytest.main(arguments)
    finally:
        if addopts is not None:
            os.environ["PYTEST_ADDOPTS"] = addopts
    context.exit(int(status))


if __name__ == "__main__":
    main(prog_name="vendor-sdk conformance")
