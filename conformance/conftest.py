"""Adds the option ``--backend`` where multippo's pytest plugin is not installed, as in a bare checkout."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Registers multippo's plugin, which then adds its option itself."""
    del parser
    if not pluginmanager.has_plugin("multippo"):
        from multippo import pytest_plugin

        pluginmanager.register(pytest_plugin, "multippo")
