"""What the documentation site has beside the pages of this folder: plots of the committed benchmark, files of the repository.

A hook of mkdocs (`mkdocs.yml`). Pages name files of the repository as they lie (`../conformance/report.schema.json`); in the
site these are copies, and folders are their README.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent

EXAMPLES = ("mychip", "vecchip")
PAGES = {f"examples/{name}/README.md" for name in EXAMPLES}
LINK = re.compile(r"\]\(((?:\.\./)+)([\w./-]+?)/?(#[\w-]+)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages of the examples, the files that pages link to, and the plots."""
    for path in PAGES:
        files.append(File.generated(config, path, content=(ROOT / path).read_text()))
    files.append(File.generated(config, "security.md", content=(ROOT / "SECURITY.md").read_text()))
    for page in list(files.documentation_pages()):
        for _, target, _ in LINK.findall(page.content_string):
            path = inside(target)
            if path and path not in PAGES and files.get_file_from_path(path) is None:
                files.append(File.generated(config, path, content=(ROOT / path).read_bytes()))
    for drawn in plots().values():
        for name, content in drawn.items():
            files.append(File.generated(config, f"plots/{name}", content=content))
    return files


def inside(target: str) -> str:
    """The file of the repository that a link out of the pages' folder means; "" if there is none."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    if target == "README.md":
        return "index.md"
    path = f"{target}/README.md" if (ROOT / target).is_dir() else target
    return path if (ROOT / path).is_file() else ""


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to files of the repository become links to their copies; the performance page ends with its plots."""
    depth = page.file.src_uri.count("/")
    to_root = depth if page.file.src_uri in PAGES else depth + 1

    def there(match: re.Match[str]) -> str:
        path = inside(match[2])
        return f"]({'../' * depth}{path}{match[3] or ''})" if path and match[1].count("..") == to_root else match[0]

    markdown = LINK.sub(there, markdown)
    shown = [source for source in plots() if page.file.src_uri == plotted_on(source)]
    if shown:
        markdown += "\n\n## Plots\n"
    for source in shown:
        figures = [f"![{name.removesuffix('.svg')}](plots/{name})" for name in plots()[source]]
        drawings = "\n\n".join(f'<div class="drawing" markdown>{figure}</div>' for figure in figures)
        markdown += f"\n### {source}\n\n{drawings}\n"
    return markdown


SHIM = "https://unpkg.com/iframe-worker/shim"
"""What the theme loads from the network to search in pages that are opened from a folder; `worker.js` takes its place."""


def on_post_page(output: str, page: Any, **_: Any) -> str:
    return output.replace(SHIM, "../" * page.url.count("/") + "worker.js")


def on_post_template(output_content: str, template_name: str, **_: Any) -> str:
    return output_content.replace(SHIM, "worker.js")


RESULTS = ROOT / "benchmarks" / "results"


def plotted_on(source: str) -> str:
    """The page that ends with the plots of a file of results."""
    return "performance_gpu.md" if source.startswith("gpu/") else "performance.md"


@functools.cache
def plots() -> dict[str, dict[str, bytes]]:
    """The committed files of results, each with its plots: file name to SVG."""
    import matplotlib as mpl

    sys.path.insert(0, str(ROOT))  # mkdocs restores the path after it has loaded this file
    from benchmarks.plots import draw, draw_gpu
    from benchmarks.results import Results

    drawn: dict[str, dict[str, bytes]] = {}
    for path in sorted(RESULTS.rglob("*.json")):
        with tempfile.TemporaryDirectory() as folder, mpl.rc_context({"svg.hashsalt": "vendor-sdk"}):
            if path.parent == RESULTS:
                made = draw(Results.from_json(path.read_text()), Path(folder))
            else:
                made = draw_gpu(path.stem, json.loads(path.read_text()), Path(folder))
            stem = "" if path.parent != RESULTS else f"{path.stem}-"
            drawn[path.relative_to(RESULTS).as_posix()] = {f"{stem}{each.name}": each.read_bytes() for each in made}
    return drawn
