"""Services that follow runs: Weights & Biases, MLflow."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from multippo.errors import RunError, one_line
from multippo.files import read_text, write_text
from multippo.runs.settings import RunSettings
from multippo.trees import named_leaves

Follower = Callable[..., Any]
"""``follower(metrics, step=step)``."""


@contextlib.contextmanager
def _wandb(settings: RunSettings, directory: Path, known: str | None) -> Generator[tuple[str, Follower]]:
    """Identifier and log function of a run in the project ``settings.wandb``; seeds of one parent are a group."""
    about: dict[str, Any] = {"config": settings.as_json()} if known is None else {"id": known, "resume": "allow"}
    place: dict[str, Any] = {"dir": str(directory), "name": str(directory), "group": str(directory.parent)}
    wandb = importlib.import_module("wandb")
    with wandb.init(project=settings.wandb, reinit="create_new", **place, **about) as run:
        yield run.id, run.log


@contextlib.contextmanager
def _mlflow(settings: RunSettings, directory: Path, known: str | None) -> Generator[tuple[str, Follower]]:
    """Identifier and log function of a run in the experiment ``settings.mlflow``."""
    mlflow = importlib.import_module("mlflow")
    client, experiment = mlflow.MlflowClient(), mlflow.set_experiment(settings.mlflow).experiment_id
    run = known or client.create_run(experiment, run_name=str(directory)).info.run_id
    if known is None:
        mlflow.log_params(dict(named_leaves(settings.as_json())), run_id=run)
    try:
        yield run, functools.partial(mlflow.log_metrics, run_id=run)
    finally:
        client.set_terminated(run)


_SERVICES = {"wandb": _wandb, "mlflow": _mlflow}


def services(settings: RunSettings) -> list[str]:
    """Names of the services that a run asks for.

    Raises:
        ImportError: If the package of one is missing; the message names the extra.
    """
    found = [name for name in _SERVICES if getattr(settings, name)]
    for name in found:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ImportError(f"--{name} needs the package {name}: pip install 'multippo[{name}]'.") from error
    return found


@contextlib.contextmanager
def followed(settings: RunSettings, directory: Path) -> Generator[list[Follower]]:
    """Followers of a run while it lasts; a resumed run goes on under the identifiers in its directory.

    Raises:
        RunError: If a service does not answer, or not to this user.
    """
    with contextlib.ExitStack() as stack:
        followers: list[Follower] = []
        for name in services(settings):
            note = directory / f"{name}.id"
            known = read_text(note) if note.is_file() else None
            try:
                identifier, follower = stack.enter_context(_SERVICES[name](settings, directory, known))
            except Exception as error:
                raise RunError(f"{name} can't follow the run: {one_line(error)}") from error
            write_text(note, identifier)
            followers.append(follower)
        yield followers
