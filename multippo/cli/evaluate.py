"""``multippo eval``: plays whole episodes with a run's network, on any engine."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from multippo.algorithms.evaluation import eval_rollout
from multippo.algorithms.metrics import json_ready
from multippo.arguments import check_size
from multippo.backends.registry import VARIABLE, available_backends, get_backend
from multippo.cli.flags import parse
from multippo.errors import UsageError
from multippo.policy.playing import show_run
from multippo.runs.directory import RunDirectory, runs_in
from multippo.runs.loading import load_run, read_checkpoint
from multippo.runs.settings import RunSettings
from multippo.signals import Deadline

_MOST_ENVS = 100


@dataclasses.dataclass(frozen=True)
class _Flags:
    """Plays whole episodes with a trained network."""

    run_dir: str | None = None
    """Directory that multippo train wrote."""

    _: dataclasses.KW_ONLY

    backend: str | None = None
    """Engine; none for MULTIPPO_BACKEND, else the one that made the run."""

    device: str | None = None
    """Device to compute on, as in multippo train."""

    episodes: int = 100
    """Whole episodes to play."""

    json: bool = False
    """Print one JSON object and nothing else."""

    stochastic: bool = False
    """Sample actions instead of taking the mode of their distribution."""

    checkpoint: str = "latest"
    """Checkpoint to play: latest, best, a path, or a step."""

    seed: int = 0
    """Seed of the episodes, and of the actions if they are sampled."""

    video: str | None = None
    """File for a video of one more episode, the first that --num-envs 1 would play: mp4, gif, or for brax html."""

    num_envs: int | None = None
    """Environments side by side; none for at most 100, or as many as in training where each is a process."""


def run(argv: Sequence[str]) -> int:
    """Runs the command.

    Raises:
        UsageError: If the run, the checkpoint or a flag can't be used.
        ValueError: If a number is out of range, or the engine or device unknown.
    """
    flags = parse("eval", _Flags, argv)
    if not flags.run_dir:
        raise UsageError("a run is missing: multippo eval runs/CartPole-v1/…, the directory multippo train printed.")
    for name, least in (("episodes", 1), ("num_envs", 1), ("seed", 0)):
        if getattr(flags, name) is not None:
            check_size("", name, getattr(flags, name), least)
    path = Path(flags.run_dir)
    with Deadline():
        directories = runs_in(path) or [RunDirectory(path)]
        if flags.video and len(directories) > 1:
            raise UsageError(f"--video is of one run, and {path} holds {len(directories)}: name one of them.")
        for directory in directories:
            found, about = _play(flags, directory)
            if flags.json:
                report = {name: found[metric] for name, metric in _REPORTED.items()}
                report = {**report, "episodes": int(found["eval/episodes"]), **about}
                print(json.dumps(json_ready(report), allow_nan=False))
            else:
                print(f"Evaluation: {summary(found)}")
                print(
                    f"{about['env']} on {about['backend']}, checkpoint of step {about['step']:,}: {about['checkpoint']}"
                )
    return 0


def _play(flags: _Flags, directory: RunDirectory) -> tuple[dict[str, float], dict[str, Any]]:
    """Plays the episodes; returns their metrics, and facts of the run."""
    stored = directory.read_settings()
    settings = RunSettings.of(stored)
    read_checkpoint(directory, flags.checkpoint)  # a mistake is reported at once, before an engine is loaded
    if flags.video:
        options: dict[str, Any] = {"checkpoint": flags.checkpoint, "deterministic": not flags.stochastic}
        show_run(directory, Path(flags.video), seed=flags.seed, **options)
    with settings.engine(choose_backend(flags.backend, stored.get("backend")), flags.device) as engine:
        count = flags.num_envs or evaluation_envs(settings, flags.episodes)
        loaded = load_run(directory.path, flags.checkpoint, count)
        with contextlib.closing(loaded.env) as env:
            found = evaluate(settings, env, loaded.network, flags.episodes, flags.seed, not flags.stochastic)
        return found, {
            "env": settings.env_id,
            "step": loaded.checkpoint.manifest.step,
            "backend": engine.name,
            "deterministic": not flags.stochastic,
            "seed": flags.seed,
            "checkpoint": str(loaded.checkpoint.path),
        }


def evaluate(
    settings: RunSettings,
    env: Any,
    network: Any,
    episodes: int,
    seed: int = 0,
    deterministic: bool = True,
    progress: Callable[[float], Any] | None = None,
) -> dict[str, float]:
    """Plays episodes; see ``eval_rollout`` for the metrics."""
    return eval_rollout(
        env,
        network,
        num_episodes=episodes,
        key=network.engine.random.key(seed),
        deterministic=deterministic,
        max_episode_steps=settings.train.eval.max_episode_steps,
        progress=progress,
    )


_REPORTED = {
    "episode_reward_mean": "eval/episode_reward/mean",
    "episode_reward_std": "eval/episode_reward/std",
    "episode_reward_min": "eval/episode_reward/min",
    "episode_reward_max": "eval/episode_reward/max",
    "episode_length_mean": "eval/episode_length/mean",
}
"""Names of the metrics in the output of ``--json``."""


def evaluation_envs(settings: RunSettings, episodes: int) -> int:
    """Number of environments for some episodes, so that training's last evaluation equals ``multippo eval``."""
    if settings.env_kwargs.get("vectorization") == "async":  # a process each, no more than in training
        return min(episodes, settings.train.ppo.num_envs or 1)
    return min(episodes, _MOST_ENVS)


def summary(found: Mapping[str, float]) -> str:
    """Metrics of an evaluation in one line, for people."""
    mean, std, least, most, length = (found[metric] for metric in _REPORTED.values())
    return (
        f"return {mean:.2f} ± {std:.2f} (from {least:.2f} to {most:.2f}), length {length:.1f}, over "
        f"{found['eval/episodes']:.0f} episodes"
    )


def choose_backend(wanted: str | None, of_run: str | None = None) -> str:
    """Name of the engine: that of the flag, of ``MULTIPPO_BACKEND``, of the run, or the first installed."""
    there = of_run if of_run in available_backends() else None
    return wanted or os.environ.get(VARIABLE) or there or get_backend()
