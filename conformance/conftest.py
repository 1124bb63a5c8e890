"""Lets ``pytest --pyargs conformance`` find the suite's options."""

pytest_plugins = ("conformance.plugin",)
