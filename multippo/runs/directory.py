"""A run's directory: its files, and the settings in one of them."""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import json
import os
import platform
import shlex
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from multippo.algorithms.checkpointing.checkpoint import Checkpoint, load_checkpoint
from multippo.algorithms.checkpointing.manifest import (
    MANIFEST,
    best_checkpoint,
    latest_checkpoint,
    step_directory,
    step_entries,
)
from multippo.algorithms.metrics import json_ready
from multippo.errors import UsageError
from multippo.files import FormatVersion, checked, is_leftover, remove_leftovers, write_text
from multippo.runs.notation import Setting, read_object, settings_of
from multippo.runs.settings import RunSettings, network_defaults, run_settings
from multippo.version import __version__

FORMAT, FORMAT_VERSION = "multippo.run", 1

_PACKAGES = ("numpy", "gymnasium", "safetensors", "jax", "jaxlib", "flax", "optax", "torch", "brax", "mujoco")


class RunDirectory:
    """The directory of a run.

    Attributes:
        path: Path of the directory.
        config: The file of settings.
        metrics: The file of metrics, one JSON object a line.
        checkpoints: The directory of ``step_…`` directories.
        curve: The picture of the learning curve.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.metrics = path / "config.json", path / "metrics.jsonl"
        self.checkpoints, self.curve = path / "checkpoints", path / "learning_curve.png"

    @contextlib.contextmanager
    def begun(
        self, settings: RunSettings, backend: str, numerics: Mapping[str, str] | None = None, *, is_new: bool = False
    ) -> Generator[None]:
        """Makes the directory, holds it (see ``held``), and writes the settings; all or nothing.

        Args:
            settings: The run's settings.
            backend: Name of the run's engine.
            numerics: Facts from ``Engine.numerics``.
            is_new: True if the directory must not exist yet, not even an empty one.

        Raises:
            UsageError: If the directory can't be made, holds other files, or is in use already.
            FileExistsError: If the directory is there already, and ``is_new`` is True.
            OSError: If the disk is full.
        """
        missing = [directory for directory in (self.path, *self.path.parents) if not directory.exists()]
        with contextlib.ExitStack() as stack:
            try:
                self.path.mkdir(parents=True, exist_ok=not is_new)
                stack.enter_context(self.held())
                self.refuse_used()
                remove_leftovers(self.path)  # a run may have been killed before it began
                self.write_settings(settings, backend, numerics)
            except OSError as error:
                if is_new and isinstance(error, FileExistsError):
                    raise
                for directory in missing:
                    with contextlib.suppress(OSError):  # never made, or used by another process meanwhile
                        directory.rmdir()
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise UsageError(
                    f"the run directory {self.path} can't be made: {error.strerror}; name another --run-dir."
                ) from error
            yield

    def refuse_used(self) -> None:
        """Raises unless the directory, which is for a new run, is empty.

        Raises:
            UsageError: If the directory holds a run or other files.
        """
        if self.config.exists():
            raise UsageError(
                f"the run directory {self.path} holds a run already: add --resume to go on with it, or name another "
                "--run-dir."
            )
        if self.path.is_dir() and not all(map(is_leftover, self.path.iterdir())):
            raise UsageError(f"the run directory {self.path} holds other files: name another --run-dir.")

    @contextlib.contextmanager
    def held(self) -> Generator[None]:
        """Keeps other processes from training in the directory, inside a ``with`` block at most as long as the process.

        Raises:
            UsageError: If another process trains in the directory already, or the path is not one.
        """
        try:
            import fcntl
        except ImportError:  # Windows, where a directory can't be locked
            yield
            return
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            raise self._no_run() from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    f"another process is training in {self.path}: wait for it or stop it, or name another --run-dir."
                ) from None
            except OSError:  # a file system without locks
                pass
            yield
        finally:
            os.close(descriptor)

    def write_settings(self, settings: RunSettings, backend: str, numerics: Mapping[str, str] | None = None) -> None:
        """Writes ``config.json``: all settings needed to make environment and network again, on any engine."""
        content = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            **settings.as_json(),
            "backend": backend,
            "numerics": dict(numerics or {}),
            "versions": _versions(),
        }
        write_text(self.config, json.dumps(json_ready(content), indent=2, allow_nan=False) + "\n")

    def read_settings(self) -> dict[str, Any]:
        """Settings that the run was given, by option name; ``backend`` is the engine that made the run.

        Raises:
            UsageError: If this is not a run's directory, or its ``config.json`` can't be understood.
        """
        if not self.config.is_file():
            raise self._no_run()
        if self.checkpoints.is_symlink():
            raise UsageError(
                f"{self.checkpoints} is a symbolic link, and none is followed inside a run: put the directory itself "
                "there, or move the whole run; the run's own path may be a link."
            )
        found = read_object(self.config)
        if found.get("format") != FORMAT:
            raise UsageError(f"{self.config} was not written by multippo train.")
        try:
            version = checked(found.get("format_version"), FormatVersion, "format_version")
        except ValueError as error:
            raise UsageError(f"{self.config} is damaged: {error}.") from error
        if version > FORMAT_VERSION:
            raise UsageError(
                f"{self.config} is of run format {version}; this version of multippo reads formats up to "
                f"{FORMAT_VERSION}: upgrade multippo."
            )
        settings = settings_of(found, {**run_settings(), **_WRITTEN}, str(self.config))
        if "bytes_as_images" in network_defaults(settings.get("network", "mlp")):
            # Runs from before this option keep the network that they were trained with.
            settings.setdefault("bytes_as_images", True)
        return settings

    def settings(self) -> RunSettings:
        """Settings of the run, defaults filled in; errors are those of ``read_settings`` and ``RunSettings.of``."""
        return RunSettings.of(self.read_settings())

    def checkpoint(self, which: str = "latest") -> Checkpoint:
        """Opens a checkpoint of the run.

        Args:
            which: ``latest``; ``best``, that of the best evaluation during training; a path, relative to the working
                directory or to that of checkpoints; or a step.

        Raises:
            UsageError: If there is no such checkpoint.
        """
        if which in ("latest", "best"):
            found = (latest_checkpoint if which == "latest" else best_checkpoint)(self.checkpoints)
            if found is None:
                raise UsageError(f"{self.path} holds no checkpoint{self._why_none(which)}")
            return load_checkpoint(found)
        places = [Path(which), self.checkpoints / which]
        places += [step_directory(self.checkpoints, int(which))] if which.isdecimal() else []
        for place in places:
            if place.is_dir():
                return load_checkpoint(place)
        steps = sorted(entry.name for entry in self.checkpoints.glob("step_*"))
        raise UsageError(f"there is no checkpoint {which!r}: {self.path} holds {', '.join(steps) or 'none'}.")

    def _why_none(self, which: str) -> str:
        if which == "best":
            return " that was saved at an evaluation: train with --keep-best 1, or take the latest."
        if there := [path.name for path in reversed(step_entries(self.checkpoints))]:
            return f": {', '.join(there)}: expected directories, no links, with a checkpoint.json. Copy the run again."
        return ": the run was stopped before its first one was saved. `multippo train --resume` starts it again."

    def _no_run(self) -> UsageError:
        if (self.path / MANIFEST).is_file():
            return UsageError(
                f"{self.path} is a checkpoint, not a run's directory: give the run, the directory with the "
                f"config.json, and to `multippo eval` --checkpoint {shlex.quote(str(self.path))}."
            )
        why = "it has no config.json" if self.path.exists() else "nothing is there"
        return UsageError(f"{self.path} is not a run's directory: {why}. `multippo train ENV --run-dir DIR` makes one.")


def runs_in(path: Path) -> list[RunDirectory]:
    """The run in a directory; or those of several seeds, in directories below it, in the order of their seeds."""
    places = [path] if (path / "config.json").is_file() else path.glob("seed*")
    found = [RunDirectory(place) for place in places if (place / "config.json").is_file()]
    return sorted(found, key=lambda directory: (len(directory.path.name), directory.path.name))


def default_run_directory(settings: RunSettings, backend: str, root: Path = Path("runs")) -> RunDirectory:
    """Directory ``runs/ENV/TIME-BACKEND-seedN``, with a number added where the name is taken."""
    env = settings.env_id.removeprefix("gymnasium/")
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{backend}-seed{settings.train.seed}"
    path, number = root / env / stem, 2
    while path.exists():
        path, number = root / env / f"{stem}-{number}", number + 1
    return RunDirectory(path)


_WRITTEN = {name: Setting(name, str, None) for name in ("env", "backend")}
"""Entries of ``config.json`` beside those of ``run_settings``."""


def _versions() -> Mapping[str, str]:
    versions = {"python": platform.python_version(), "multippo": __version__}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions
