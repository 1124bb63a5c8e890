"""Files of a user, run inside of a command: programs, and plugins that are not installed."""

from __future__ import annotations

import contextlib
import importlib
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from vendor_sdk.errors import OptionError


def run(script: Path, arguments: Sequence[str] = ()) -> None:
    """Runs ``script`` as ``python script arguments...`` does; that it exits, with whatever status, is no error.

    Raises:
        OptionError: it raised, or is no program; ``where`` is its own line.
    """
    before = sys.argv, sys.path[0]
    sys.argv, sys.path[0] = [str(script), *arguments], str(script.resolve().parent)
    try:
        with contextlib.suppress(SystemExit):
            runpy.run_path(str(script), run_name="__main__")
    except Exception as error:
        line = " ".join([str(script), *arguments])
        raise OptionError(
            f"{script} ended with {type(error).__name__}",
            where=_where(error, str(script)),
            why=str(error).strip(),
            fix=f"Mend it until `python {line}` works.",
        ) from error
    finally:
        sys.argv, sys.path[0] = before


def load_plugin(plugin: str) -> None:
    """Registers a plugin that is not installed: a module, or a ``.py`` file, that registers itself or has the hooks."""
    from vendor_sdk.contract import loader

    before = set(loader._registered)
    if plugin.endswith(".py"):
        sys.path.insert(0, str(Path(plugin).resolve().parent))
        scope = runpy.run_path(plugin, run_name=Path(plugin).stem)
        if set(loader._registered) == before and "backend" in scope:
            loader.register(SimpleNamespace(**{name: value for name, value in scope.items() if not name.startswith("__")}))
        return
    module = importlib.import_module(plugin)
    if set(loader._registered) == before:
        loader.register(module)


def _where(error: Exception, script: str) -> str:
    """The innermost line of the script itself; runpy compiles it under the path it was given."""
    if isinstance(error, SyntaxError) and error.filename == script:
        return f"{script}:{error.lineno}"
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == script]
    return f"{script}:{own[-1].lineno} in {own[-1].name}" if own else ""
