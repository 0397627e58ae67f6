"""The command line's name and arguments, for hints at what to type next."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

__all__ = ["command", "program"]


def program() -> str:
    """``multippo``; or ``python SCRIPT`` where the user's own program calls ``main``, whose environments it knows."""
    script = Path(sys.argv[0])
    if script.suffix == ".py" and script.name != "__main__.py":
        return f"python {shlex.quote(str(script))}"
    return "multippo"


def command(*arguments: object) -> str:
    """A command line to copy into a shell, paths with spaces quoted."""
    return f"{program()} {shlex.join(map(str, arguments))}"
