"""The command line. ``app.py`` is where it begins."""

from multippo.cli.app import main

__all__ = ["main"]
