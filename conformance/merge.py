"""The reports of shards as one."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance import evidence, page
from conformance import report as reports
from conformance.cases import every_case


class MergeError(ValueError):
    """The reports are not parts of one run."""


def merge(parts: Sequence[tuple[Path, Mapping[str, Any]]], folder: Path) -> dict[str, Any]:
    """Writes ``report.json``, with the logs that it names, to ``folder``; returns the report.

    The run counts as interrupted where a shard is missing, or was.

    Args:
        parts: folder and content of each report.

    Raises:
        MergeError: the runs differ in more than the shard, or a case is there twice.
    """
    documents = [document for _, document in parts]
    different = evidence.agree(documents)
    if different:
        raise MergeError(f"these are no shards of one run: {different[0]}")
    home: dict[str, Path] = {}
    for place, document in parts:
        for entry in document["cases"]:
            if entry["id"] in home:
                raise MergeError(f"{entry['id']} is in two of the reports, {home[entry['id']]} and {place}")
            home[entry["id"]] = place
    order = {case.id: number for number, case in enumerate(every_case())}
    entries = sorted(
        (entry for document in documents for entry in document["cases"]), key=lambda entry: order.get(entry["id"], len(order))
    )
    shards = [document["run"]["selection"]["shard"] for document in documents]
    count = int(shards[0].partition("/")[2]) if shards[0] else 1
    whole = {int(shard.partition("/")[0]) for shard in shards if shard} == set(range(1, count + 1))
    first = documents[0]["run"]
    run = {
        **first,
        "date": min(document["run"]["date"] for document in documents),
        "seconds": round(sum(document["run"]["seconds"] for document in documents), 3),
        "command": " && ".join(document["run"]["command"] for document in documents),
        "selection": {**first["selection"], "shard": None},
        "interrupted": not whole or any(document["run"]["interrupted"] for document in documents),
    }
    stale = documents[0]["summary"]["stale_expectations"]
    # Of shards that probed: where one finds what another does not, both findings stand.
    found = (each for document in documents for each in document["numerics"])
    numerics = list({(each["probe"], each["value"]): each for each in found}.values())
    merged = {
        **documents[0],
        "run": run,
        "numerics": numerics,
        "summary": reports.summarize(entries, stale, numerics, complete=not run["interrupted"]),
        "cases": entries,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for entry in entries:
        if entry["log"]:
            (folder / entry["log"]).parent.mkdir(parents=True, exist_ok=True)
            source = home[entry["id"]] / entry["log"]
            if source.is_file() and source.resolve() != (folder / entry["log"]).resolve():
                shutil.copyfile(source, folder / entry["log"])
    merged = evidence.sealed(merged, folder)
    reports.write(folder, merged)
    page.write(folder, merged)
    return merged
