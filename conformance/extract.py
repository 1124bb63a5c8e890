"""A run in a few dozen lines, to be kept in a repository, and several of them side by side in one Markdown page."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance.levels import fractions
from conformance.report import broken

Extract = Mapping[str, Any]

DECLARED = ("expected-failure", "waived")


def extract(report: Mapping[str, Any]) -> dict[str, Any]:
    """What of a report is worth keeping: the run, counts, means of what was timed, and each case that failed."""
    run, summary, entries = report["run"], report["summary"], report["cases"]
    return {
        "backend": run["backend"]["name"],
        "version": run["backend"]["version"],
        "device": run["backend"]["device"]["name"],
        "processor": run["host"]["processor"],
        "torch": run["versions"]["torch"],
        "date": run["date"][:10],
        "suite": run["suite"][:12],
        "effort": run["effort"],
        "seed": run["seed"],
        "workers": run["workers"],
        **({"options": run["options"]} if run.get("options") else {}),
        "seconds": round(run["seconds"]),
        "interrupted": run["interrupted"],
        "prims": {
            **_some(summary["verdicts"]), "native": summary["native_passed"], "cases": summary["cases"],
            "placements": summary["passed_by_placement"],
        },
        "composites": _some(summary.get("composites", {})),
        "generated": _some(summary["generated"]),
        "behaviour": _some(summary.get("behaviour", {})),
        "patterns": _some(summary["performance"]["pattern"]),
        "models": _some(summary["performance"]["model"]),
        "roofline": _mean(fractions([e for e in entries if e["kind"] == "pattern"], "large")),
        "over_unfused": _mean(
            size["unfused"]["median"] for e in _measured(entries, "sizes") for size in e["sizes"] if size["unfused"]
        ),
        "over_eager": {
            label: _mean(
                part["speedup"]["median"]
                for e in _measured(entries, "parts") for part in e["parts"] if part["label"] == label and part["speedup"]
            )
            for label in ("inference", "training")
        },
        "levels": {profile: reached["level"] for profile, reached in summary["levels"].items()},
        "failed": _failed([e for e in entries if broken(e)], lambda e: e["failures"][0]["message"] if e["failures"] else ""),
        "declared": _failed([e for e in entries if e["verdict"] in DECLARED], lambda e: e["expectation"]["reason"]),
    }  # fmt: skip


def _some(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def _measured(entries: Sequence[Mapping[str, Any]], key: str) -> Iterable[Mapping[str, Any]]:
    return (e["performance"] for e in entries if e["performance"] and key in e["performance"])


def _mean(values: Iterable[float]) -> float | None:
    """Geometric."""
    logs = [math.log(value) for value in values]
    return round(math.exp(sum(logs) / len(logs)), 3) if logs else None


def _failed(entries: Sequence[Mapping[str, Any]], said: Any) -> list[dict[str, str]]:
    return [{"case": e["id"], "verdict": e["verdict"], "why": _line(said(e))} for e in entries]


def _line(text: str) -> str:
    first = (text.splitlines() or [""])[0]
    return first if len(first) <= 160 else first[:157] + "..."


def write(path: Path, found: Extract) -> None:
    """As JSON, equal for equal runs."""
    path.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")


TITLES = {
    "prims": "prims", "composites": "composites", "generated": "generated graphs", "behaviour": "programs",
    "patterns": "fused patterns", "models": "models",
}  # fmt: skip
COUNTED = ("native", "cases", "placements")


def side_by_side(extracts: Sequence[Extract]) -> str:
    """Tables with a column for each run, then what failed, by run."""
    lines = ["| | " + " | ".join(f"`{each['backend']}`" for each in extracts) + " |", "|---" * (len(extracts) + 1) + "|"]

    def row(title: str, cells: Iterable[str]) -> None:
        found = list(cells)
        if any(found):
            lines.append(f"| {title} | " + " | ".join(cell or "–" for cell in found) + " |")

    row("device", (each["device"] for each in extracts))
    row("torch", (each["torch"] for each in extracts))
    row("run", (f"{each['date']}, {each['effort']}, seed {each['seed']}" for each in extracts))
    row("options", (", ".join(f"`{option}`" for option in each.get("options", ())) for each in extracts))
    row("took", (_duration(each) for each in extracts))
    row("suite", (f"`{each['suite']}`" if each["suite"] else "" for each in extracts))
    row("native coverage", (_coverage(each) for each in extracts))
    for kind, title in TITLES.items():
        row(title, (_counts(each.get(kind, {})) for each in extracts))
    row("of the roofline, patterns", (_times(each["roofline"], "{:.0%}") for each in extracts))
    row("fused over unfused", (_times(each["over_unfused"]) for each in extracts))
    for label in ("inference", "training"):
        row(f"models over eager, {label}", (_times(each["over_eager"].get(label)) for each in extracts))
    row("level reached, `full`", (each["levels"].get("full", "") for each in extracts))
    for each in extracts:
        for key, title in (("failed", "fails"), ("declared", "is declared to fail")):
            if each[key]:
                lines += ["", f"`{each['backend']}` {title}:", "", *_listed(each[key])]
    return "\n".join(lines) + "\n"


def _duration(found: Extract) -> str:
    stopped = ", stopped before its end" if found["interrupted"] else ""
    return f"{found['seconds']} s, {found['workers']} worker{'s' if found['workers'] > 1 else ''}{stopped}"


def _coverage(found: Extract) -> str:
    prims = found["prims"]
    if prims["placements"].get("opaque"):
        return "unknown"
    return f"{prims['native'] / prims['cases']:.1%}" if prims["cases"] else ""


def _counts(counts: Mapping[str, Any]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if name not in COUNTED)


def _times(value: float | None, form: str = "{:.2f} times") -> str:
    return "" if value is None else form.format(value)


def _listed(failures: Sequence[Mapping[str, str]]) -> list[str]:
    """A line for each prim: its dtypes, and what came out first."""
    prims: dict[tuple[str, str], list[Mapping[str, str]]] = defaultdict(list)
    for each in failures:
        prims[each["case"].partition("[")[0], each["verdict"]].append(each)
    return [
        f"- `{prim}[{', '.join(each['case'].partition('[')[2].rstrip(']') for each in found)}]`"
        f"{f' ({verdict})' if verdict not in ('fail', *DECLARED) else ''}: {_escaped(found[0]['why'])}"
        for (prim, verdict), found in prims.items()
    ]


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*").replace("|", "\\|").replace("_", "\\_").replace("[", "\\[")
