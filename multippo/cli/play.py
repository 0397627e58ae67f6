"""``multippo play``: a run's policy, in a window or as a video."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from multippo.arguments import check_size
from multippo.cli.flags import parse
from multippo.errors import UsageError
from multippo.policy.playing import show_run
from multippo.runs.directory import RunDirectory, runs_in
from multippo.runs.loading import read_checkpoint


@dataclasses.dataclass(frozen=True)
class _Flags:
    """Shows a trained policy at work: in a window, or as a video."""

    run_dir: str | None = None
    """Directory that multippo train wrote."""

    _: dataclasses.KW_ONLY

    video: str | None = None
    """File to write, of mp4, gif, or for brax html; none for a window, or without a screen video.mp4 in the run's
    directory."""

    episodes: int = 1
    """Episodes to play."""

    checkpoint: str = "latest"
    """Checkpoint to play: latest, best, a path, or a step."""

    backend: str | None = None
    """Engine that acts; none for NumPy code made from the network."""

    stochastic: bool = False
    """Sample actions instead of taking the mode of their distribution."""

    seed: int = 0
    """Seed of the episodes, and of the actions if they are sampled."""


def run(argv: Sequence[str]) -> int:
    """Runs the command.

    Raises:
        UsageError: If the run, the checkpoint or a flag can't be used, or the environment does not draw itself.
        ImportError: If a package is missing.
    """
    flags = parse("play", _Flags, argv)
    if not flags.run_dir:
        raise UsageError("a run is missing: multippo play runs/CartPole-v1/…, the directory multippo train printed.")
    check_size("", "episodes", flags.episodes)
    check_size("", "seed", flags.seed, 0)
    path = Path(flags.run_dir)
    directory = (runs_in(path) or [RunDirectory(path)])[0]  # of several seeds the first
    read_checkpoint(directory, flags.checkpoint)
    played, video = show_run(
        directory,
        Path(flags.video) if flags.video else None,
        episodes=flags.episodes,
        seed=flags.seed,
        checkpoint=flags.checkpoint,
        backend=flags.backend,
        deterministic=not flags.stochastic,
    )
    for number, episode in enumerate(played):
        print(f"Episode {number + 1}: return {episode.reward:.2f}, length {episode.length}")
    if video:
        print(f"Video: {video}")
    return 0
