"""What JAX compiles for one run is kept on the disk for the next ones."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MAX_BYTES = 2**30
"""Size above which the files that were not used for longest are deleted, when a command starts."""

_DIRECTORY = "JAX_COMPILATION_CACHE_DIR"


def keep_compiled_programmes() -> None:
    """Sets JAX's variables for its cache, before JAX is imported; see docs/reference/time_and_memory.md.

    JAX's own limit on the size would look at all files for each new one, and need locks that some file systems lack.
    """
    if _DIRECTORY in os.environ:  # the user's own choice, and limits
        return
    import platformdirs

    # Without a directory to write into, as in many containers, JAX would warn of each programme.
    with contextlib.suppress(OSError):
        folder = platformdirs.user_cache_path("multippo", appauthor=False) / "xla"
        folder.mkdir(parents=True, exist_ok=True)
        os.environ[_DIRECTORY] = str(folder)
        # A programme takes longer to compile than to read, however small.
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        prune(folder, MAX_BYTES)


def prune(folder: Path, max_bytes: int) -> None:
    """Deletes the files of a folder that were not used for longest, until the others have ``max_bytes`` or less."""
    found = [(entry, entry.stat()) for entry in os.scandir(folder) if entry.is_file()]
    left = sum(stat.st_size for _, stat in found)
    for entry, stat in sorted(found, key=lambda pair: max(pair[1].st_atime, pair[1].st_mtime)):
        if left <= max_bytes:
            break
        Path(entry).unlink(missing_ok=True)
        left -= stat.st_size
