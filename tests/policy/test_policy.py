"""A policy in a loop of one's own does what the network does in training's evaluation."""

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from short_runs import SHORT, SMALL

import multippo as mp
from multippo.cli.app import main
from multippo.envs.actions import make_action_map
from multippo.envs.observations import make_observation_map
from multippo.networks.core.modes import evaluation_mode
from multippo.networks.core.random_state import reseed
from multippo.networks.core.unrolling import reset_where
from multippo.policy.policy import EnginePolicy, NumpyPolicy
from multippo.random import host
from multippo.trees import tree_leaves, tree_map

LIMIT = 25


def command(*arguments: object) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([str(argument) for argument in arguments]) == 0
    return out.getvalue()


@pytest.fixture(scope="module", params=["torch", "jax"])
def engine_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def run_of(engine_name: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function that trains a run on an engine, and returns its directory."""

    def train(env: str, *arguments: object) -> Path:
        place = tmp_path_factory.mktemp("runs") / env
        shape = (*SHORT, *SMALL, "--vectorization", "sync", "--final-eval-episodes", 0)
        command("train", env, "--backend", engine_name, "--progress", "plain", *shape, *arguments, "--run-dir", place)
        return place

    return train


@pytest.fixture(scope="module")
def cartpole(run_of: Any) -> Path:
    return run_of("CartPole-v1")


@pytest.fixture(scope="module")
def pendulum(run_of: Any) -> Path:
    return run_of("Pendulum-v1", "--network", "lstm", "--hidden-features", 8, "--max-episode-steps", LIMIT)


def evaluated(run: Path, *arguments: object) -> dict[str, Any]:
    return json.loads(command("eval", run, "--json", "--seed", 7, *arguments))


def same(found: list[float], report: dict[str, Any]) -> None:
    returns = np.array(found)
    expected = [report[f"episode_reward_{name}"] for name in ("mean", "std", "min", "max")]
    assert [returns.mean(), returns.std(), returns.min(), returns.max()] == expected


def test_a_loop_over_episodes_has_the_returns_of_an_evaluation(cartpole: Path):
    policy = mp.load_policy(cartpole)
    env, seed, returns = gymnasium.make("CartPole-v1"), mp.evaluation_seed(7), []
    for _ in range(3):
        observation, _ = env.reset(seed=seed)
        carry, total, over, seed = None, 0.0, False, None
        while not over:
            action, carry = policy(observation, carry)
            assert env.action_space.contains(action)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    same(returns, evaluated(cartpole, "--num-envs", 1, "--episodes", 3))


@pytest.mark.parametrize("stochastic", [False, True])
def test_a_loop_over_a_batch_has_the_returns_of_an_evaluation(pendulum: Path, stochastic: bool):
    policy = mp.load_policy(pendulum, deterministic=not stochastic, seed=7)
    assert isinstance(policy, NumpyPolicy)
    make = lambda: gymnasium.make("Pendulum-v1", max_episode_steps=LIMIT)  # noqa: E731
    env = gymnasium.vector.SyncVectorEnv([make] * 3, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)
    observation, _ = env.reset(seed=mp.evaluation_seed(7, 3))
    carry, totals, returns = None, np.zeros(3), []
    for _ in range(2 * LIMIT):
        action, carry = policy(observation, carry)
        assert env.action_space.contains(action)
        observation, reward, terminated, truncated, _ = env.step(action)
        done = terminated | truncated
        totals += reward.astype(np.float32)
        returns += totals[done].tolist()
        totals[done] = 0.0
        carry = policy.reset(carry, done)
    flags = ["--stochastic"] if stochastic else []
    same(returns, evaluated(pendulum, "--num-envs", 3, "--episodes", 6, *flags))


def test_no_framework_is_imported(pendulum: Path):
    program = (
        "import sys, numpy as np, multippo as mp\n"
        f"policy = mp.load_policy({str(pendulum)!r})\n"
        "action, carry = policy(np.zeros(3, np.float32), None)\n"
        "assert policy.action_space.contains(action)\n"
        "print(*[name for name in ('jax', 'torch', 'flax') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"MULTIPPO_BACKEND": "torch"}
    )
    assert done.stdout.split() == []


def test_each_engine_steps_the_policy(pendulum: Path, engine_name: str):
    numpy, other = (mp.load_policy(pendulum, backend=backend) for backend in (None, engine_name))
    assert isinstance(other, EnginePolicy)
    rng, carries = np.random.default_rng(0), [None, None]
    for t in range(6):
        observation = rng.normal(size=(2, 3))
        actions: list[Any] = [None, None]
        for k, policy in enumerate((numpy, other)):
            actions[k], carries[k] = policy(observation, carries[k])
            carries[k] = policy.reset(carries[k], np.array([t == 2, False]))
        np.testing.assert_allclose(actions[0], actions[1], rtol=1e-5, atol=1e-5)
    assert numpy(observation[0])[0].shape == (1,)


def test_a_checkpoint_of_a_run(cartpole: Path):
    checkpoint = next((cartpole / "checkpoints").glob("step_*"))
    observations = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    one, other = mp.load_policy(checkpoint), mp.load_policy(cartpole)
    assert one(observations)[0].tolist() == other(observations)[0].tolist()
    with pytest.raises(mp.errors.UsageError, match="outside a run"):
        elsewhere = cartpole.parent / "elsewhere"
        elsewhere.mkdir(exist_ok=True)
        (elsewhere / "checkpoint.json").write_bytes((checkpoint / "checkpoint.json").read_bytes())
        mp.load_policy(elsewhere)


def test_the_command_exports_a_run(cartpole: Path, tmp_path: Path):
    out = command("export", cartpole, "--output", tmp_path / "files")
    assert str(tmp_path / "files" / "policy.py") in out and (tmp_path / "files" / "weights.npz").is_file()
    compile((tmp_path / "files" / "policy.py").read_text(), "policy.py", "exec")
    assert main(["export", str(cartpole), "--format", "onxx"]) == 2


OBSERVATIONS = {
    "discrete": spaces.Discrete(5, start=-1),
    "multi-discrete": spaces.MultiDiscrete([3, 2], start=[1, 0]),
    "binary": spaces.MultiBinary(4),
    "tuple": spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,))]),
    "masked": spaces.Dict({"where": spaces.Box(-1, 1, (3,), np.float64), "action_mask": spaces.MultiBinary(4)}),
    "image": spaces.Box(0, 255, (12, 12, 3), np.uint8),
}
ACTIONS = {
    "masked": spaces.Discrete(4, start=3),
    "discrete": spaces.Box(np.array([-1.0, 0.0, -np.inf], np.float32), np.array([4.0, 1.0, np.inf], np.float32)),
    "multi-discrete": spaces.Dict({"a": spaces.MultiBinary(3), "b": spaces.Box(-3, 5, (2,), np.int8)}),
    "image": spaces.MultiDiscrete([3, 4], dtype=np.int32),
    "binary": spaces.Box(-1, 1, (2, 2), np.float64),
    "tuple": spaces.Discrete(2),
}


@pytest.mark.parametrize("name", OBSERVATIONS)
@pytest.mark.parametrize("deterministic", [True, False])
def test_every_space(name: str, deterministic: bool, torch_engine: Any):
    """Actions are those that the environment would get from the network, and single ones are rows of a batch."""
    seen, acted = OBSERVATIONS[name], ACTIONS[name]
    if name == "image":
        sizes: Any = {"channels": [4, 4], "kernel_sizes": [3, 3], "strides": [2, 1], "hidden_features": 8}
        network = mp.make_cnn_actor_critic(seen, acted, mp.Rngs(1), **sizes)
    else:
        view = make_observation_map(seen).space
        network = mp.make_recurrent_actor_critic(view, acted, 8, mp.Rngs(1), cell="gru")
    policy = mp.load_policy(network, observation_space=seen, action_space=acted, deterministic=deterministic, seed=3)
    assert isinstance(policy, NumpyPolicy)
    seen.seed(0)
    batch = [[seen.sample() for _ in range(3)] for _ in range(3)]
    batch = [
        gymnasium.vector.utils.concatenate(seen, rows, gymnasium.vector.utils.create_empty_array(seen, 3))
        for rows in batch
    ]
    carry = None
    with evaluation_mode(network, deterministic), torch_engine.no_grad():
        key = torch_engine.random.wrap_key(host.split(host.key(3), 3)[0])
        state = reseed(torch_engine.random, network.initialize_state(3), key)
        for t, observation in enumerate(batch):
            action, carry = policy(observation, carry)
            own = tree_map(torch_engine.asarray, make_observation_map(seen)(observation, 3))
            out = network(state, own)
            expected = make_action_map(acted, 3)(tree_map(torch_engine.to_numpy, out.output.actions))
            for one, other in zip(tree_leaves(action), tree_leaves(expected), strict=True):
                assert one.dtype == other.dtype
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
            done = np.array([t == 0, True, False])
            state = reset_where(network, torch_engine.asarray(done), out.next_state)
            carry = policy.reset(carry, done)
    single, _ = policy(seen.sample())
    assert acted.contains(single)
