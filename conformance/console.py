"""What a person sees: progress while a run lasts, and its summary at the end. Rich on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from conformance.cases import EXHAUSTIVE
from conformance.levels import STEPS
from conformance.profiles import prim_of
from conformance.report import broken, survivors

PIPED_WIDTH = 200
"""Columns of tables that go to no terminal, where nobody can widen them."""

PLAIN_STEP = 0.05
"""Without a terminal: a line of progress each time this part of the cases is done."""

SHOWN_FAILURES = 40
"""Failing cases printed with their reproducers in the summary; the report has all."""

STYLES = {"pass": "green", "expected-failure": "yellow", "waived": "yellow", "empty": "dim", "no-samples": "dim"}
NOT_MET = {"not met": "red", "not shown": "yellow"}


class Live:
    """Progress of a run: ``with Live(console, total) as live: live.show(entry)`` for each finished case."""

    def __init__(self, console: Console, total: int) -> None:
        self.console = console
        self.total = total
        self.verdicts: Counter[str] = Counter()
        self.printed = 0.0
        self.progress: Progress | None = None
        if console.is_terminal:
            self.progress = Progress(
                TextColumn("{task.fields[case]}", justify="left"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[counts]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=console,
            )
            self.task = self.progress.add_task("", total=total, case="starting", counts="")

    def __enter__(self) -> Live:
        if self.progress:
            self.progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.progress:
            self.progress.stop()

    def show(self, entry: Mapping[str, Any]) -> None:
        """Counts a finished case, and prints it when it breaks a claim."""
        self.verdicts[entry["verdict"]] += 1
        done = self.verdicts.total()
        if broken(entry):
            message = entry["failures"][0]["message"].splitlines()[0] if entry["failures"] else entry["expectation"]["reason"]
            self.console.print(
                f"[red]{entry['verdict']}[/] {escape(entry['id'])}: {escape(message)}", highlight=False, soft_wrap=True
            )
        if self.progress:
            self.progress.update(self.task, completed=done, case=escape(entry["id"]), counts=self._counts())
        elif done == self.total or done / self.total >= self.printed + PLAIN_STEP:
            self.printed = done / self.total
            self.console.print(f"{done}/{self.total} {self._counts()}", highlight=False, soft_wrap=True)

    def _counts(self) -> str:
        return ", ".join(f"{count} {verdict}" for verdict, count in self.verdicts.most_common())


def summary(console: Console, report: Mapping[str, Any], folder: str | None) -> None:
    """Prints what a report adds up to: placements, verdicts, every broken claim with its reproducer."""
    run, totals, entries = report["run"], report["summary"], report["cases"]

    def line(text: str = "") -> None:
        console.print(text, highlight=False, soft_wrap=True)

    backend = run["backend"]
    line()
    line(
        f"[bold]{escape(backend['name'])} {escape(backend['version'])}[/] on {escape(str(backend['device']['name']))}: "
        f"opset {run['versions']['opset']}, torch {run['versions']['torch']}, effort {run['effort']}, seed {run['seed']}, "
        f"{run['seconds']:.0f} s"
    )
    if totals["cases"]:
        _table(console, "cases by verdict", {k: v for k, v in totals["verdicts"].items() if v}, totals["cases"])
        _table(console, "passed cases by placement", totals["passed_by_placement"], totals["cases"])
        _table(console, "prims by the weakest of their cases", totals["prims_by_standing"], totals["prims"])
    for kind, title in (("composites", "composites"), ("generated", "generated graphs"), ("behaviour", "programs")):
        counts = {k: v for k, v in totals[kind].items() if v}
        if counts:
            _table(console, f"{title} by verdict", counts, sum(counts.values()))
    _timed(console, line, report)
    reasons = Counter(entry["reason"] for entry in entries if entry["placement"] == "host" and entry["reason"])
    if reasons:
        line("on the host because")
        for reason, count in reasons.most_common(8):
            line(f"  {count:5} {escape(reason.splitlines()[0])}")
    _failures(line, [entry for entry in entries if broken(entry)])
    for entry in entries:
        if survivors(entry):
            line(f"[red]not told from a right result[/] {escape(entry['id'])}: {', '.join(survivors(entry))}")
    for entry in entries:
        if entry["verdict"] in ("expected-failure", "waived"):
            said = entry["expectation"]
            until = f" ({said['owner']}, {said['link']}, until {said['expires']})" if entry["verdict"] == "waived" else ""
            words = entry["verdict"].replace("-", " ")
            line(f"[yellow]{words}[/] {escape(entry['id'])}: {escape(said['reason'] + until)}")
    for each in report["numerics"]:
        if not each["agrees"]:
            said = f"declared {each['declared']!r}, found {each['value']!r} ({each['detail']})"
            line(f"[red]numerics[/] {escape(each['probe'])}: {escape(said)}")
    for pattern in totals["stale_expectations"]:
        line(f"[red]stale expectation[/] {escape(pattern)}: names no case of the opset; remove it")
    line()
    if totals["cases"]:
        line(
            f"native coverage {totals['coverage']:.1%}: {totals['native_passed']} of {totals['cases']} cases ran on the "
            "backend by its own means and passed"
        )
    planted = totals["mutants"]
    if planted["tried"]:
        line(f"mutation score {planted['killed'] / planted['tried']:.1%}: {planted['killed']} of {planted['tried']} wrong "
             f"results that were planted were rejected; {planted['blind_cases']} cases missed one")  # fmt: skip
    if folder:
        line(f"report: {escape(folder)}")
    if run["interrupted"]:
        line(f"[yellow]interrupted[/]: {len(entries)} cases have a result")
    elif totals["claims_hold"]:
        line("[green]all claims hold[/]")
    elif not totals["stale_expectations"] and not totals["numerics_disagree"] and not any(map(broken, entries)):
        line("[red]nothing was shown[/]: no case passed")
    else:
        line("[red]claims broken[/]")


def _timed(console: Console, line: Any, report: Mapping[str, Any]) -> None:
    """Patterns, models, and the level of each profile with what keeps it from the next one."""
    for title, columns, rows in tables(report["cases"]):
        if rows:
            table = Table(title=title, box=None, padding=(0, 2), title_justify="left")
            for number, column in enumerate(columns):
                table.add_column(column, justify="right" if number > 1 else "left")
            for row in rows:
                table.add_row(*map(escape, row))
            console.print(table)
    found = report["summary"]["levels"]
    chosen = report["run"]["selection"]["profile"]
    line("levels: " + ", ".join(f"{profile} [bold]{each['level']}[/]" for profile, each in found.items()))
    reproducers = {entry["id"]: entry["reproducer"] for entry in report["cases"]}
    name = report["run"]["backend"]["name"]
    for each in missing_for_next(found[chosen]):
        said = f" ({each['found']})" if each["found"] else ""
        line(f"  {chosen}, {each['level']}: [{NOT_MET[each['state']]}]{each['state']}[/] {escape(each['name'] + said)}")
        if step := next_step(each, name, reproducers):
            line(f"    {escape(step)}")


def next_step(criterion: Mapping[str, Any], backend: str, reproducers: Mapping[str, str]) -> str:
    """The command line that shows more of what keeps a criterion from being met; empty where none does. (Reports of before name
    none.)"""
    if step := criterion.get("step"):
        return f"vendor-sdk {STEPS[step].format(backend)}"
    return next((reproducers[case] for case in criterion.get("cases", ()) if case in reproducers), "")


def missing_for_next(reached: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Criteria that are not met, of the level above the one that is reached."""
    not_met = [each for each in reached["criteria"] if each["state"] != "met"]
    return [each for each in not_met if each["level"] == not_met[0]["level"]]


def tables(entries: Iterable[Mapping[str, Any]]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, columns and rows of all inputs of prims, of patterns and of models, as texts."""
    patterns, models = [], []
    verdicts: dict[str, Counter[str]] = {}
    errors: dict[str, float] = {}
    for entry in entries:
        if entry["kind"] == EXHAUSTIVE:
            prim, error = prim_of(entry["prim"]), entry["worst_error"]
            verdicts.setdefault(prim, Counter())[entry["verdict"]] += 1
            errors[prim] = max(errors.get(prim, 0.0), error if isinstance(error, float | int) else math.inf)
        measured = entry["performance"] or {}
        for size in measured.get("sizes", ()):
            patterns.append([
                entry["id"].removeprefix("pattern:") + ("" if size["label"] == "large" else f", {size['label']}"),
                entry["verdict"], milliseconds(size["seconds"]), percent(size["fraction"]), times(size["unfused"]),
                _some(size["kernels"]), _some(size["peak_bytes"], 1 << 20), _percent(size["spread"]),
            ])  # fmt: skip
        for part in measured.get("parts", ()):
            models.append([
                f"{entry['prim']}, {part['label']}", entry["verdict"], milliseconds(part["seconds"]), times(part["speedup"]),
                _some(part["kernels"]), _some(part["graphs"]), str(part["graph_breaks"]), str(part["recompiles"]),
                str(part["host_nodes"]), _some(part["peak_bytes"], 1 << 20),
            ])  # fmt: skip
    swept = [
        [prim, _only(found, ("pass", "empty")), str(found["pass"] + found["empty"]), str(found.total()), f"{errors[prim]:.3g}"]
        for prim, found in verdicts.items()
    ]
    return [
        ("all float32 inputs", ["prim", "verdict", "parts right", "of", "error / bound"], swept),
        ("patterns", ["pattern", "verdict", "ms", "of roofline", "over unfused", "kernels", "peak MiB", "spread"], patterns),
        ("models", ["model", "verdict", "ms", "over eager", "kernels", "graphs", "breaks", "recompiles", "on host", "peak MiB"],
         models),
    ]  # fmt: skip


def _only(verdicts: Counter[str], right: tuple[str, ...]) -> str:
    """The verdict on all parts: the most frequent of those that are not right, where there is any."""
    wrong = Counter({name: count for name, count in verdicts.items() if name not in right})
    return wrong.most_common(1)[0][0] if wrong else right[0]


def milliseconds(found: Mapping[str, float] | None) -> str:
    return "" if found is None else f"{1e3 * found['median']:.3g}"


def percent(found: Mapping[str, float] | None) -> str:
    """``"62 % (55 to 70)"``."""
    return "" if found is None else f"{found['median']:.0%} ({100 * found['low']:.0f} to {100 * found['high']:.0f})"


def times(found: Mapping[str, float] | None) -> str:
    """``"2.1 (1.9 to 2.4)"``."""
    return "" if found is None else f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _some(value: int | None, unit: int = 1) -> str:
    return "" if value is None else f"{value / unit:.4g}"


def _failures(line: Any, entries: Sequence[Mapping[str, Any]]) -> None:
    for entry in entries[:SHOWN_FAILURES]:
        line()
        line(f"[red]{entry['verdict']}[/] [bold]{escape(entry['id'])}[/] ({entry['placement']})")
        if entry["verdict"] == "unexpected-pass":
            line(f"  declared to fail ({escape(entry['expectation']['reason'])}), but it passes: remove the declaration")
            line(f"    {escape(entry['reproducer'])}")
        first_of_kind = {failure["kind"]: failure for failure in reversed(entry["failures"])}
        for failure in first_of_kind.values():
            where = f"sample {failure['sample']}" if failure["sample"] >= 0 else "all samples"
            label = f" ({failure['label']})" if failure["label"] else ""
            line(f"  {where}{escape(label)}: {escape(failure['message'])}")
            line(f"    {escape(failure['reproducer'])}")
        if len(entry["failures"]) > len(first_of_kind):
            line(f"  and {len(entry['failures']) - len(first_of_kind)} more failures of the same kind")
        if entry["log"]:
            line(f"  log: {escape(entry['log'])}")
    if len(entries) > SHOWN_FAILURES:
        line(f"and {len(entries) - SHOWN_FAILURES} more failing cases: see the report")


def _table(console: Console, title: str, counts: Mapping[str, int], total: int) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(justify="right", style="dim")
    for name, count in counts.items():
        table.add_row(name, str(count), f"{count / total:.1%}" if total else "")
    console.print(title, highlight=False)
    console.print(table)
