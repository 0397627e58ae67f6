"""Policies at work, recorded: the episodes are those of an evaluation, and the files hold every picture."""

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import short_runs

import multippo as mp
from multippo.envs import registry
from multippo.envs.viewing import make_view
from multippo.policy import playing
from multippo.random import host
from multippo.testing import FunctionalGoal


@pytest.fixture
def without_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in playing._WITHOUT_SCREEN.items():
        monkeypatch.setenv(name, value)


def test_the_episodes_are_those_of_an_evaluation(command: Any, run: Path, without_screen: None):
    pytest.importorskip("imageio")
    from PIL import Image, ImageSequence

    done = command("play", "run", "--video", "new/a.gif", "--episodes", 2)
    assert done.code == 0, done.err
    first, second, video = done.out.splitlines()
    assert video == "Video: new/a.gif"
    found = json.loads(command("eval", "run", "--num-envs", 1, "--episodes", 2, "--json").out)
    lengths = [int(line.rpartition(" ")[2]) for line in (first, second)]
    assert [found[f"episode_reward_{name}"] for name in ("min", "max")] == [min(lengths), max(lengths)]
    with Image.open("new/a.gif") as pictures:
        shown = [
            (frame.info["duration"], np.asarray(frame.convert("L")).std()) for frame in ImageSequence.Iterator(pictures)
        ]
    # 50 a second; equal ones in a row are one in the file.
    assert sum(ms for ms, _ in shown) == 20 * (sum(lengths) + 2)
    assert min(spread for _, spread in shown) > 1
    command("play", "run", "--video", "a.avi").assert_refused(".mp4, .gif")


def test_an_evaluation_with_a_video(command: Any, run: Path, without_screen: None):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    assert command("eval", "run", "--episodes", 1, "--num-envs", 1, "--video", "a.mp4", "--json").code == 0
    assert command("play", "run").out.splitlines()[-1] == "Video: run/video.mp4"
    assert Path("a.mp4").read_bytes() == Path("run/video.mp4").read_bytes()
    frames, seconds = ffmpeg.count_frames_and_secs("a.mp4")
    assert frames > 5 and seconds == pytest.approx(frames / 50, abs=0.05)


def test_a_recurrent_policy_keeps_its_memory(without_screen: None, torch_engine: Any):
    env = mp.make_env("multippo/PendulumNoVel-v0", num_envs=1, max_episode_steps=30, reward_scale=0.5)
    net = mp.make_recurrent_actor_critic(env.observation_space, env.action_space, 8, mp.Rngs(1))
    policy = mp.load_policy(net, observation_space=env.observation_space, action_space=env.action_space)
    view = make_view("multippo/PendulumNoVel-v0", max_episode_steps=30, reward_scale=0.5)
    episodes = playing.play(policy, view, seed=4, episodes=2)
    found = mp.eval_rollout(env, net, num_episodes=2, key=4)
    rewards = [episode.reward for episode in episodes]
    assert [min(rewards), max(rewards)] == pytest.approx(
        [found["eval/episode_reward/min"], found["eval/episode_reward/max"]], rel=1e-5
    )
    assert [episode.length for episode in episodes] == [30, 30] and view.fps == 30
    view.close()


def test_an_environment_that_can_not_be_seen_is_named():
    import gymnasium

    class Dark(gymnasium.Env[Any, Any]):
        pass

    gymnasium.register("Dark-v0", entry_point=Dark)
    with pytest.raises(mp.errors.UsageError, match=r"Dark-v0 can't be seen: it has no render mode 'rgb_array'"):
        make_view("Dark-v0")
    del gymnasium.registry["Dark-v0"]


def test_a_traced_environment_that_does_not_draw_itself_is_named(monkeypatch: pytest.MonkeyPatch):
    module: Any = types.ModuleType("mine")
    module.make_mine = lambda name, num_envs: mp.make_env(FunctionalGoal(), num_envs, truncation_key=None)
    monkeypatch.setitem(sys.modules, "multippo.envs.functional.mine", module)
    monkeypatch.setitem(registry.FAMILIES, "mine", registry.Family("numpy", frozenset()))
    with pytest.raises(mp.errors.UsageError, match=r"mine/goal can't be seen: of JAX's environments those of brax"):
        make_view("mine/goal")


def test_brax_is_seen_in_its_own_viewer():
    pytest.importorskip("brax")
    view = make_view("brax/inverted_pendulum", episode_length=3)
    obs = view.reset(host.key(0))
    overs = []
    for _ in range(3):
        obs, reward, over = view.step(np.zeros(1, np.float32))
        overs.append(over)
    assert overs == [False, False, True] and obs is None and reward > 0
    page = view.html()
    assert "Brax visualizer" in page and view.endings[0] == ".html" and view.fps == pytest.approx(25)
    view.close()


def test_videos_during_training(command: Any, without_screen: None):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    pendulum = ("--network", "lstm", "--max-episode-steps", 12, "--final-eval-episodes", 0)
    short_runs.train(command, *pendulum, "--run-dir", "plain", env="Pendulum-v1")
    done = short_runs.train(
        command, *pendulum, "--run-dir", "run", "--video-every-steps", 32, "--keep-last", 1, env="Pendulum-v1"
    )
    assert done.code == 0 and "no video" not in done.err, done.err
    videos = sorted(Path("run/videos").iterdir())
    assert [video.name for video in videos] == ["step_000000000032.mp4", "step_000000000064.mp4"]
    assert [ffmpeg.count_frames_and_secs(str(video))[0] for video in videos] == [13, 13]
    assert short_runs.numbers(Path("plain")) == short_runs.numbers(Path("run"))
