"""Errors that end a command."""

from __future__ import annotations

import errno

from multippo.errors import RunError, UsageError, one_line
from multippo.networks.core.error_paths import thrower

__all__ = ["RunError", "UsageError", "is_users_mistake", "one_line"]


def is_users_mistake(error: BaseException) -> bool:
    """Whether the library refused something on purpose, as opposed to having tripped over it.

    On purpose means: a ValueError, TypeError, ImportError or FileNotFoundError that a ``raise`` statement of the
    library's own threw, or a name that no file system takes. The same kinds of error from anywhere else are faults, and
    keep their traceback.
    """
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return True
    if not isinstance(error, ValueError | TypeError | ImportError | FileNotFoundError):
        return False
    return (thrower(error) or "").partition(".")[0] == "multippo"
