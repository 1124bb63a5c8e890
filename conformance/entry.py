"""What the distribution registers with pytest (entry-point group ``pytest11``).

Loads the suite's plugin when the suite is named on the command line, and only then: no other pytest run meets its options.
"""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    if "--pyargs" in args and any(argument.partition("::")[0].partition(".")[0] == "conformance" for argument in args):
        early_config.pluginmanager.import_plugin("conformance.plugin")
