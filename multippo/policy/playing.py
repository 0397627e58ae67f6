"""Episodes of a policy, seen in a window or recorded as a video."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import sys
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple

from multippo.envs.viewing import View, make_view
from multippo.errors import UsageError, needing
from multippo.files import write_text
from multippo.policy.loading import load_policy
from multippo.policy.policy import Policy
from multippo.random import host
from multippo.runs.directory import RunDirectory
from multippo.runs.settings import RunSettings

_MOST_FPS_OF_GIF = 50
_WITHOUT_SCREEN = {"MUJOCO_GL": "egl", "SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}


class Episode(NamedTuple):
    """Return and length of an episode."""

    reward: float
    length: int


def has_screen() -> bool:
    """True if a window can be opened."""
    return not sys.platform.startswith("linux") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def show_run(
    directory: RunDirectory, path: Path | None, *, seed: int = 0, episodes: int = 1, **options: Any
) -> tuple[list[Episode], Path | None]:
    """Plays whole episodes with a run's policy, those of ``multippo eval --num-envs 1`` with the same seed.

    Args:
        directory: The run.
        path: File of a video: mp4, gif, or of brax its own viewer as a page; without an ending, in the best of them.
            None for a window, or without one a file in the run's directory.
        seed: Seed of the environment and of the noise.
        episodes: Number of episodes.
        **options: Those of ``load_policy``.

    Returns:
        The episodes, and the file that was written.

    Raises:
        UsageError: If the environment does not draw itself, or not into such a file.
        ImportError: If a package is missing.
    """
    settings = directory.settings()
    with contextlib.closing(view_of(settings, path is None and has_screen())) as view:
        target = None if view.in_window else path or directory.path / "video"
        if target is not None and not target.suffix:
            target = target.with_suffix(view.endings[0])
        with _camera(target, view) as seen:
            policy = load_policy(directory.path, seed=seed, **options)
            limit = settings.train.eval.max_episode_steps
            return play(policy, view, seed=seed, episodes=episodes, limit=limit, seen=seen), target


def view_of(settings: RunSettings, in_window: bool = False) -> View:
    """A view of a run's environment; to be made before anything imports MuJoCo.

    Raises:
        UsageError: If the environment does not draw itself.
        ImportError: If a package is missing.
    """
    if not has_screen():
        for name, value in _WITHOUT_SCREEN.items():
            os.environ.setdefault(name, value)
    return make_view(settings.env_id, in_window, **settings.env_kwargs)


def play(
    policy: Policy,
    view: View,
    *,
    seed: int = 0,
    episodes: int = 1,
    limit: int | None = None,
    seen: Callable[[], None] = lambda: None,
) -> list[Episode]:
    """Plays whole episodes, those of ``multippo eval --num-envs 1`` with the same seed.

    Args:
        policy: The policy.
        view: The environment.
        seed: Seed of the environment.
        episodes: Number of episodes.
        limit: Steps after which an episode is given up; None for the environment's own limit.
        seen: Called after every reset and step.
    """
    played: list[Episode] = []
    carry: Any = None
    for number in range(episodes):
        # The key that an evaluation makes of its seed.
        obs = view.reset(None if number else host.split(host.key(seed), 3)[1])
        seen()
        total, length, over = 0.0, 0, False
        while not over and length != limit:
            action, carry = policy(obs, carry)
            obs, reward, over = view.step(action)
            total, length = total + reward, length + 1
            seen()
        carry = policy.reset(carry, [True])
        played.append(Episode(total, length))
    return played


def check_seen(settings: RunSettings) -> None:
    """Raises unless videos can be made of a run's environment; to be called before anything imports MuJoCo.

    Raises:
        UsageError: If the environment does not draw itself.
        ImportError: If a package is missing.
    """
    with contextlib.closing(view_of(settings)) as view:
        if view.endings[0] != ".html":
            _imageio(view.endings[0])


def _imageio(ending: str) -> Any:
    with needing("render", f"a video in {ending}"):
        if ending == ".mp4":
            importlib.import_module("imageio_ffmpeg")  # a plugin of imageio's
        return importlib.import_module("imageio.v2")


@contextlib.contextmanager
def _camera(path: Path | None, view: View) -> Generator[Callable[[], None]]:
    """Gives a ``with`` block a function that records what a view shows; the file is whole after the block.

    Raises:
        UsageError: If the file's ending is not one of the view's.
        ImportError: If a package is missing.
    """
    if path is None:
        yield lambda: None
        return
    if path.suffix not in view.endings:
        raise UsageError(f"{path} can't be written: a video of this environment ends in {', '.join(view.endings)}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".html":
        yield lambda: None
        write_text(path, view.html())
        return
    imageio, every = _imageio(path.suffix), 1
    if path.suffix == ".mp4":
        options = {"fps": view.fps, "macro_block_size": 2}
    else:
        every = math.ceil(view.fps / _MOST_FPS_OF_GIF)
        options = {"duration": 1000 * every / view.fps, "loop": 0}
    count = 0
    with imageio.get_writer(path, **options) as writer, warnings.catch_warnings():
        # JAX warns of every process that is started; ffmpeg's touches no Python.
        warnings.filterwarnings("ignore", r"os\.fork", RuntimeWarning)

        def seen() -> None:
            nonlocal count
            for frame in view.frames():
                if count % every == 0:
                    writer.append_data(frame)
                count += 1

        yield seen
