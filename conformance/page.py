"""The report as one HTML file that needs nothing else, as Markdown, and as a badge. All are made from ``report.json`` alone."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from conformance import charts, curves, measured
from conformance.cases import DTYPES, EXHAUSTIVE, MODEL, TIMED
from conformance.console import missing_for_next, next_step, tables
from conformance.levels import NONE, STEPS, best
from conformance.report import broken, standing, survivors

LOOKS = {
    "native": ("●", "good"),
    "view": ("–", "good"),
    "wrapper": ("–", "good"),
    "absent": ("·", "good"),
    "opaque": ("●", "fair"),
    "decomposed": ("◐", "fair"),
    "host": ("○", "host"),
    "expected failure": ("!", "known"),
    "failed": ("✕", "bad"),
    "nothing shown": (" ", "none"),
    "unknown": ("?", "none"),
}
"""Glyph and colour of each standing: neither says it alone."""

VERDICT_COLOURS = {
    "pass": "good",
    "expected-failure": "known",
    "waived": "known",
    "empty": "none",
    "no-samples": "none",
    "host-fail": "host",
    "slow": "bad",
    "inconclusive": "known",
}


NONE_PLANTED = {"tried": 0, "killed": 0, "blind_cases": 0}
"""Of reports from before mutants were counted."""


def write(folder: Path, report: Mapping[str, Any]) -> None:
    """Writes ``report.html``, ``summary.md`` and ``badge.svg``."""
    (folder / "report.html").write_text(html(report))
    (folder / "summary.md").write_text(markdown(report))
    (folder / "badge.svg").write_text(badge(report))


def claim(report: Mapping[str, Any]) -> str:
    """What the run says, in two or three words."""
    if report["run"]["interrupted"]:
        return "interrupted"
    if report["summary"]["claims_hold"]:
        return "all claims hold"
    wrong = (
        report["summary"]["stale_expectations"] or report["summary"]["numerics_disagree"] or any(map(broken, report["cases"]))
    )
    return "claims broken" if wrong else "nothing was shown"


def html(report: Mapping[str, Any]) -> str:
    """The page. Text of a vendor's is escaped wherever it stands."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template, timed = (
        environment.from_string(files("conformance").joinpath(name).read_text())
        for name in ("page.html.jinja", "performance.html.jinja")
    )
    run, summary = report["run"], report["summary"]
    # Parts of all inputs of a prim are many: they are counted, and shown one by one where they are wrong.
    shown = [entry for entry in report["cases"] if entry["kind"] != EXHAUSTIVE or broken(entry)]
    prims = [entry for entry in shown if entry["kind"] not in TIMED]
    others = [entry for entry in shown if entry["kind"] in TIMED]
    performance = timed.render(
        run=run,
        summary=summary,
        chart=charts.roofline(others),
        fractions=charts.bars(others),
        timed=tables(report["cases"]),
        wrong=[entry for entry in others if entry["failures"]],
        measured=[(entry, measured.parts(entry)) for entry in others],
        # As rows of the tables begin.
        named={
            (entry["prim"] if entry["kind"] == MODEL else entry["id"].removeprefix("pattern:")): entry["id"] for entry in others
        },
        colours=VERDICT_COLOURS,
        steps=STEPS,
    )
    profile = run["selection"]["profile"]
    bars = [
        (
            "Cases by verdict",
            [(name, count, VERDICT_COLOURS.get(name, "bad")) for name, count in summary["verdicts"].items() if count],
        ),
        (
            "Passed cases by placement",
            [(name, count, LOOKS[name][1]) for name, count in summary["passed_by_placement"].items()],
        ),
    ]
    return template.render(
        report=report,
        run=run,
        backend=run["backend"],
        summary=summary,
        claim=claim(report),
        broken=sum(map(broken, report["cases"])),
        bars=[(title, [dict(zip(("name", "count", "colour"), part, strict=True)) for part in parts]) for title, parts in bars],
        standings=[(name, *look) for name, look in LOOKS.items()],
        record=_record(run),
        data=_embedded(packed(prims)),
        performance=Markup(performance),
        timed_any=charts.roofline(others) is not None,
        planted=summary.get("mutants", NONE_PLANTED),
        level=summary["levels"][profile]["level"],
        level_profile=profile,
    )


def packed(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The cases as the page's script reads them: names once, a short list a case, details of those that have any."""
    prims, families, reasons = ({name: number for number, name in enumerate(dict.fromkeys(names))} for names in (
        (entry["prim"] for entry in entries), (entry["family"] for entry in entries), (entry["reason"] for entry in entries)
    ))  # fmt: skip
    verdicts, placements = (
        {n: i for i, n in enumerate(dict.fromkeys(e[key] for e in entries))} for key in ("verdict", "placement")
    )
    present = {entry["dtype"] for entry in entries}
    dtypes = {name: number for number, name in enumerate(name for name in DTYPES if name in present)}
    standings = {name: number for number, name in enumerate(LOOKS)}
    rows, more, against = [], {}, {}
    for number, entry in enumerate(entries):
        samples = entry["samples"]
        rows.append(
            [
                prims[entry["prim"]], dtypes[entry["dtype"]], families[entry["family"]], verdicts[entry["verdict"]],
                placements[entry["placement"]], _short(entry["worst_error"]), reasons[entry["reason"]],
                round(entry["seconds"], 2), [samples["total"], samples["compared"], samples["second_call"]],
                standings[standing(entry)], _score(entry), _short(entry.get("statistic")),
            ]
        )  # fmt: skip
        if entry.get("error_by_input"):
            against[number] = entry["error_by_input"]
        if entry["failures"] or entry["expectation"] or entry["log"] or survivors(entry):
            more[number] = {key: entry[key] for key in ("failures", "expectation", "log")} | {"survived": survivors(entry)}
    return {
        "cases": rows, "more": more, "prims": list(prims), "dtypes": list(dtypes), "families": list(families),
        "verdicts": list(verdicts), "placements": list(placements), "reasons": list(reasons),
        "against": against, "edges": _edges({entries[number]["dtype"] for number in against}),
        "floating": [dtype for dtype in dtypes if DTYPES[dtype].is_floating_point],
        "standings": [{"name": name, "glyph": glyph, "colour": colour} for name, (glyph, colour) in LOOKS.items()],
    }  # fmt: skip


def _edges(dtypes: Collection[str]) -> dict[str, list[float | None]]:
    """Where the parts of errors against input begin, by dtype; ``None`` for infinity."""
    return {dtype: [_short(edge) if math.isfinite(edge) else None for edge in curves.edges(dtype)] for dtype in sorted(dtypes)}  # type: ignore[misc]


def _score(entry: Mapping[str, Any]) -> list[int] | None:
    """Mutants that were killed, and all."""
    planted = entry.get("mutants")
    return [planted["killed"], planted["tried"]] if planted else None


def markdown(report: Mapping[str, Any]) -> str:
    """A summary for a pull request or a release's notes."""
    run, summary = report["run"], report["summary"]
    backend = run["backend"]
    lines = [
        f"## {backend['name']} {backend['version']}: {claim(report)}",
        "",
        f"{backend['device']['name']}, opset {run['versions']['opset']}, torch {run['versions']['torch']}, "
        f"effort {run['effort']}, seed {run['seed']}, {run['date'][:10]}",
        "",
        f"Native coverage **{summary['coverage']:.1%}**: {summary['native_passed']} of {summary['cases']} cases ran on the "
        "backend by its own means and passed.",
        "",
        "| verdict | cases | | placement of passed cases | cases |",
        "|---|---:|---|---|---:|",
    ]
    left = [(name, count) for name, count in summary["verdicts"].items() if count]
    right = list(summary["passed_by_placement"].items())
    for row in range(max(len(left), len(right))):
        cells = [side[row] if row < len(side) else ("", "") for side in (left, right)]
        lines.append(f"| {cells[0][0]} | {cells[0][1]} | | {cells[1][0]} | {cells[1][1]} |")
    reached = summary["levels"]
    lines += ["", "| profile | level | missing for the next |", "|---|---|---|"]
    for profile, each in reached.items():
        missing = [f"{c['name']} ({c['found'] or c['state']})" for c in missing_for_next(each)]
        lines.append(f"| {profile} | **{each['level']}** | {_cell('; '.join(missing[:3]))} |")
    chosen = run["selection"]["profile"]
    reproducers = {entry["id"]: entry["reproducer"] for entry in report["cases"]}
    steps = [next_step(each, backend["name"], reproducers) for each in missing_for_next(reached[chosen])]
    if any(steps):
        lines += ["", f"What shows more of profile {chosen}:", "", "```", *dict.fromkeys(filter(None, steps)), "```"]
    for _, columns, rows in tables(report["cases"]):
        if rows:
            lines += ["", f"| {' | '.join(columns)} |", "|---|---|" + "---:|" * (len(columns) - 2)]
            lines += [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    planted = summary.get("mutants", NONE_PLANTED)
    if planted["tried"]:
        lines += ["", f"Mutation score **{planted['killed'] / planted['tried']:.1%}**: {planted['killed']} of "
                  f"{planted['tried']} wrong results that were planted in right ones were rejected."]  # fmt: skip
    blind = [entry for entry in report["cases"] if survivors(entry)]
    if blind:
        lines += ["", "| case that certifies nothing | wrong results that passed |", "|---|---|"]
        lines += [f"| `{entry['id']}` | {_cell(', '.join(survivors(entry)))} |" for entry in blind[:50]]
        if len(blind) > 50:
            lines += ["", f"and {len(blind) - 50} more"]
    wrong = [entry for entry in report["cases"] if broken(entry)]
    if wrong:
        lines += ["", "| broken claim | verdict | first failure | of the call | again |", "|---|---|---|---|---|"]
        for entry in wrong[:50]:
            first = next(iter(entry["failures"]), None)
            message = first["message"].splitlines()[0] if first else "passes, though declared to fail"
            again = (first or entry)["reproducer"]
            shown = message[:160], _call(first) if first else "", f"`{again}`"
            lines.append(f"| `{entry['id']}` | {entry['verdict']} | {' | '.join(map(_cell, shown))} |")
        if len(wrong) > 50:
            lines += ["", f"and {len(wrong) - 50} more"]
    return "\n".join(lines) + "\n"


def _call(failure: Mapping[str, Any]) -> str:
    """The operands of a failing call, and what went into its worst element. (Reports of before have neither.)"""
    shown = [
        f"{each['name']} {each['dtype']}{each['shape']}" if "dtype" in each else f"{each['name']}={each['value']}"
        for each in failure.get("operands") or ()
    ]
    worst = next(iter(failure.get("elements") or ()), None)
    if worst and worst["inputs"]:
        given = ", ".join(f"{name} {value}" for name, value in worst["inputs"].items())
        shown.append(f"at {tuple(worst['index'])}: of {given} came {worst['got']}, not {worst['expected']}")
    return "; ".join(shown)


def badge(report: Mapping[str, Any]) -> str:
    """An image for a README: name, coverage and the level that a profile reaches, green where all claims hold."""
    summary = report["summary"]
    holds = summary["claims_hold"]
    profile, level = best(summary["levels"])
    reached = "" if level == NONE else f", {profile}: {level}"
    left, right = (
        "conformance",
        f"{math.floor(1000 * summary['coverage']) / 10:g}% native" + (reached if holds else f", {claim(report)}"),
    )
    widths = [round(6.6 * len(text)) + 14 for text in (left, right)]
    total, colour = sum(widths), "#2e7d4f" if holds else "#c22f2f"
    texts = "".join(
        f'<text x="{x:g}" y="14">{text}</text>' for x, text in ((widths[0] / 2, left), (widths[0] + widths[1] / 2, right))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="20" role="img" aria-label="{left}: {right}">'
        f'<rect width="{total}" height="20" rx="4" fill="{colour}"/>'
        f'<path d="M4 0h{widths[0] - 4}v20H4a4 4 0 0 1-4-4V4a4 4 0 0 1 4-4" fill="#444b55"/>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">{texts}</g></svg>\n'
    )


def _record(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    versions = run["versions"]
    selection = run["selection"]
    return [
        ("command", run["command"]),
        ("seed", str(run["seed"])),
        ("selection", ", ".join(each for key in ("prims", "patterns", "models", "dtypes") for each in selection[key]) or "all"),
        ("profile", selection["profile"]),
        ("started", f"{run['date']}, {run['seconds']:.0f} s with {run['workers']} workers"),
        ("device", ", ".join(f"{key}: {value}" for key, value in run["backend"]["device"].items())),
        ("fingerprint", run["backend"]["fingerprint"] or "none"),
        ("host", f"{run['host']['processor']}, {run['host']['cpus']} processors, {run['host']['platform']}"),
        ("versions", f"Python {versions['python']}, torch {versions['torch']}, vendor-sdk {versions['vendor_sdk']}, contract "
                     f"{'.'.join(map(str, versions['contract']))}, opset {versions['opset']}"),
        ("suite", run["suite"]),
        ("expectations", run["expectations"] or "none"),
    ]  # fmt: skip


def _embedded(value: Any) -> Markup:
    """JSON inside a script element: nothing in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def _short(error: float | str | None) -> float | str | None:
    return float(f"{error:.3g}") if isinstance(error, float) else error


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "\\`")
