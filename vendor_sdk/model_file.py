"""``vendor_sdk.export``: a model as a file, by the lowering that ``torch.compile`` uses."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from vendor_sdk import __version__, pipeline, torch_private
from vendor_sdk.capture.exported import capture_exported
from vendor_sdk.contract import discovery
from vendor_sdk.contract.graph import ModelFile
from vendor_sdk.contract.loader import Session, load
from vendor_sdk.contract.placement import Kind, Route
from vendor_sdk.errors import OptionError, UnsupportedPrimError, VendorSDKError
from vendor_sdk.ir.primgraph import PrimGraph, describe, prim_name, user_line
from vendor_sdk.normalize.decompose import capture_table
from vendor_sdk.routes import table_of, targets

LARGE = 1 << 28
"""Bytes of parameters from which progress is shown on a terminal."""


def export(
    model: Callable[..., Any],
    inputs: Sequence[Any] | Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    dynamic: Any = None,
    backend: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Path:
    """Writes ``model`` to a file that needs neither Python nor this SDK.

    Args:
        model: a module, or a function of tensors. Export what is for inference in evaluation mode.
        inputs: what it is called with: positional arguments, or keyword arguments as a mapping. They are the file's inputs in
            this order, under the names that ``forward`` gives them.
        path: of the file; its ending says the format. It is written whole or not at all. Parameters of more than a file of the
            format may hold go into a second one beside it.
        dynamic: sizes that callers may choose, as ``dynamic_shapes`` of ``torch.export.export``, where a string names a size:
            ``{"input_ids": {0: "batch", 1: "length"}}``, or with a range ``torch.export.Dim("batch", max=64)``.
        backend: whose lowering and format; by default the installed backend that writes files of this ending.
        options: its compile options.

    Returns:
        the path.

    Raises:
        OptionError: no installed backend writes such files, ``path`` cannot be written, or ``inputs`` is a tensor.
        CaptureError: torch.export cannot capture the model, or its sizes are not as ``dynamic`` says.
        UnsupportedPrimError: the backend has no translation for a part of the model.
    """
    target = Path(path)
    if isinstance(inputs, torch.Tensor):
        raise OptionError("inputs is a tensor, whose rows would be the arguments", fix="Give a tuple of arguments: (tensor,).")
    _check_writable(target)
    session = _session(target.suffix, backend, options)
    assert session.graph_compiler is not None
    args, kwargs = ((), inputs) if isinstance(inputs, Mapping) else (inputs, {})
    table = capture_table(targets(session.loaded.backend.composites), exported=True)
    found = capture_exported(model, args, kwargs, dynamic, table, table_of(session.loaded))
    watch = pipeline.watch_of(session, backward=False)
    with torch_private.real_tensors(), watch.failures():
        graph, _ = pipeline.placed(found.graph, session, watch, exported=True)
        _check_placed(graph, session.loaded.backend.name)
        total = _size(graph, found.values)
        with _progress(total) as progress:
            task = progress.add_task(str(target.name), total=total)
            file = ModelFile(
                path=target,
                names=found.names,
                values=found.values,
                outputs=found.outputs,
                sizes=found.sizes,
                about=_about(model, session),
                wrote=lambda count: progress.advance(task, count),
            )
            try:
                session.graph_compiler.save(graph, file)
            except OSError as error:
                raise _unwritable(target, error.strerror or str(error)) from error
    return target


def _session(suffix: str, backend: str | None, options: Mapping[str, Any] | None) -> Session:
    """The backend asked for, else the first installed one that writes files with this ending."""
    problems: list[str] = []
    endings: set[str] = set()
    for name in [backend] if backend is not None else discovery.installed().names:
        try:
            chosen = options if backend is not None else None
            session = load(name, chosen).session(chosen)
        except VendorSDKError as error:
            if backend is not None:
                raise
            problems.append(f"{name}: {error.what}")
            continue
        if session.graph_compiler is not None and suffix in session.graph_compiler.suffixes:
            return session if options is None else load(name, options).session(options)
        endings |= set() if session.graph_compiler is None else session.graph_compiler.suffixes
        problems.append(f"{name} writes none")
    raise OptionError(
        f"no backend writes files that end in {suffix!r}",
        why="; ".join(problems) or "no backend is installed",
        fix=f"Choose an ending that a backend writes: {', '.join(sorted(endings)) or 'none that is installed writes any'}.",
    )


def _check_writable(path: Path) -> None:
    """Before minutes are spent on what nobody could write."""
    folder = path.parent
    try:
        if path.is_dir():
            raise _unwritable(path, "it is a directory")
        if not folder.is_dir():
            raise _unwritable(path, f"there is no directory {folder}")
    except OSError as error:  # a name that is too long, say
        raise _unwritable(path, error.strerror or str(error)) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _unwritable(path, f"the directory {folder} takes no files")


def _unwritable(path: Path, why: str) -> OptionError:
    return OptionError(f"{path} cannot be written", why=why, fix="Give a path in a directory that exists and has room.")


def _check_placed(graph: PrimGraph, backend: str) -> None:
    left: dict[str, str] = {}
    where = ""
    for node in graph.calls():
        placement = node.meta["placement"]
        if placement.kind is not Kind.WRAPPER and placement.route is not Route.GRAPH:
            operands = ", ".join(describe(each.meta.get("val")) for each in node.all_input_nodes)
            left.setdefault(f"{prim_name(node)}({operands})", placement.reason)
            where = where or user_line(node)
    if left:
        raise UnsupportedPrimError(
            f"{backend}: the model cannot be one file: {len(left)} of its operations have no translation",
            where=where,
            why="; ".join(f"{call}: {reason}" for call, reason in left.items()),
            fix="Compute those outside of what is exported, or write them with other operators.",
        )


def _about(model: Any, session: Session) -> dict[str, str]:
    backend = session.loaded.backend
    return {
        "model": type(model).__name__ if isinstance(model, torch.nn.Module) else getattr(model, "__name__", "function"),
        "producer": f"vendor-sdk {__version__}, {backend.name} {backend.version}",
        "torch": str(torch.__version__),
    }


def _size(graph: PrimGraph, values: Mapping[int, torch.Tensor]) -> int:
    """Bytes of the values that the graph reads, those under two names once."""
    read = (value for index, value in values.items() if graph.placeholders[index].users)
    return sum({(value.data_ptr(), value.shape, value.stride()): value.nbytes for value in read}.values())


def _progress(total: int) -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("writing {task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=total < LARGE or not console.is_terminal)
