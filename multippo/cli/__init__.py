"""The command line, which begins in ``app.py``."""

from multippo.cli.app import main

__all__ = ["main"]
