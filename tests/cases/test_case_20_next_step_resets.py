"""The step in which gymnasium only resets is no step: it is not learnt from, not counted, and seen by no memory.

Seen in vwxyzjn/cleanrl#499, pytorch/rl#2473, Farama-Foundation/Gymnasium#1451.
"""

from typing import Any

import gymnasium
import numpy as np
import probing
import pytest
import support
import training
from gymnasium.vector import SyncVectorEnv

import multippo as mp
from multippo.testing import CountNet, TableNet

SIZE = 32
# Different everywhere, so that a wrong observation shows.
VALUES = 10 * np.sin(np.arange(SIZE))
STEPS = {"next_step": 12, "same_step": 9, "disabled": 9}
REAL = 9


def env_for(mode: str, end: str = "truncated") -> Any:
    return probing.gymnasium_env(lambda _: probing.Numbered(3, end, SIZE), mode)


def real_steps(network: Any, mode: str, end: str) -> dict[str, np.ndarray]:
    env = env_for(mode, end)
    transition = support.roll(env, network, STEPS[mode])
    valid = transition.valid[:, 0]
    assert valid.sum() == REAL
    output = transition.network_output
    columns = {
        "obs": transition.obs,
        "action": output.actions,
        "log likelihood": output.loglikelihoods,
        "value": output.value_estimates,
        "reward": transition.rewards,
        "terminated": transition.terminated,
        "truncated": transition.truncated,
        "bootstrap": transition.bootstrap_values,
    }
    return {name: column[valid, 0] for name, column in columns.items()}


@pytest.mark.parametrize("end", ["truncated", "terminated"])
def test_every_mode_gives_the_same_experience(engine: Any, end: str):
    found = {mode: real_steps(TableNet(VALUES), mode, end) for mode in STEPS}
    for mode in ("next_step", "disabled"):
        for name, expected in found["same_step"].items():
            np.testing.assert_array_equal(found[mode][name], expected, f"{mode}: {name}")
    # Observations 0 1 2, the final 3, and so on: the policy acts on all but the final ones.
    np.testing.assert_array_equal(found["next_step"]["obs"].argmax(-1), [0, 1, 2, 4, 5, 6, 8, 9, 10])
    if end == "truncated":
        np.testing.assert_allclose(found["next_step"]["bootstrap"][2::3], VALUES[[3, 7, 11]], rtol=1e-6)
    assert 0 < found["same_step"]["action"].mean() < 1  # it samples


@pytest.mark.parametrize("mode", STEPS)
@pytest.mark.nightly_if("jax")
def test_memory_starts_afresh_at_the_first_real_step(engine: Any, mode: str):
    found = real_steps(CountNet(), mode, "truncated")
    np.testing.assert_array_equal(found["value"], 10 + np.arange(REAL) % 3)
    np.testing.assert_array_equal(found["bootstrap"][2::3], 13.0)


@pytest.mark.parametrize(
    ("engine", "mode"),
    [("jax", "next_step"), ("torch", "next_step"), ("torch", "same_step"), ("torch", "disabled")],
    indirect=["engine"],
)
@pytest.mark.nightly_if("jax")
def test_training_rests_on_the_real_steps(engine: Any, mode: str):
    network = mp.Sequential([mp.Normalizer(SIZE), TableNet(VALUES)])
    run = training.train(
        env_for(mode), network, rollout_length=STEPS[mode], **probing.ONE_STEP, total_steps=1, gae_lambda=0.8
    )
    line = run.logs[0]
    assert (line["step"], run.result.total_steps, network[0].count) == (REAL, REAL, REAL)
    assert (line["rollout/episodes"], line["rollout/episode_length/mean"]) == (3, 3.0)
    assert line["rollout/episode_reward/mean"] == 3.0
    rows, finals = [0, 1, 2, 4, 5, 6, 8, 9, 10], [3, 7, 11]
    bootstrap = np.zeros(REAL)
    bootstrap[2::3] = VALUES[finals]
    expected = probing.reference_advantages(np.ones(REAL), VALUES[rows], bootstrap, [0, 0, 2] * 3, np.nan, 0.99, 0.8)
    found = probing.advantages_of(network, run, REAL)
    np.testing.assert_allclose(found[rows], expected, rtol=1e-4)
    assert not np.delete(found, rows).any()
    assert line["losses/critic"] == pytest.approx(np.mean(expected**2), rel=1e-4)


class OtherMaker(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A vector environment that says ``mode`` of how it resets."""

    def __init__(self, mode: Any) -> None:
        env = SyncVectorEnv([lambda: probing.Numbered(3)])
        self.num_envs, self.metadata = 1, {} if mode is None else {"autoreset_mode": mode}
        self.single_observation_space, self.single_action_space = env.single_observation_space, env.single_action_space
        self.observation_space, self.action_space = env.observation_space, env.action_space


def test_the_mode_is_read_from_the_environment_and_an_unknown_one_refused():
    for mode in probing.modes.values():
        assert mp.make_env(OtherMaker(mode)).may_skip == (mode is probing.modes["next_step"])
    for mode in (None, "whenever", 3):
        with pytest.raises(ValueError, match=r"autoreset_mode.*AutoresetMode\.NEXT_STEP"):
            mp.make_env(OtherMaker(mode))
