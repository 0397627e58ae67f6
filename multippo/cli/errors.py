"""What ends a command: a user's mistake, a failed run, a fault of the library's own.

UsageError     a mistake in what was asked for: one line, exit code 2
RunError      something outside the program failed: one line, exit code 1
"""

from __future__ import annotations

from multippo.errors import MultippoError
from multippo.networks.locating import thrower

__all__ = ["RunError", "UsageError", "is_users_mistake", "one_line"]


class UsageError(MultippoError):
    """A mistake in what was asked for. The message says what was received, what was expected, and the remedy."""


class RunError(MultippoError):
    """Something outside the program failed, such as a disk that is full."""


def one_line(error: BaseException) -> str:
    """An error's message without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__


def is_users_mistake(error: BaseException) -> bool:
    """Whether the library refused something on purpose, as opposed to having tripped over it.

    On purpose means: a ValueError, TypeError, ImportError or FileNotFoundError that a ``raise`` statement of the
    library's own threw. The same kinds of error from anywhere else are faults, and keep their traceback.
    """
    if not isinstance(error, ValueError | TypeError | ImportError | FileNotFoundError):
        return False
    return (thrower(error) or "").partition(".")[0] == "multippo"
