"""An episode that begins with a number that is not finite is reset again, and counted; a strict run names it."""

from typing import Any

import gymnasium
import numpy as np
import probing
import pytest
import support
import training

import multippo as mp
from multippo.errors import NonFiniteError
from multippo.testing import CountNet, FunctionalClock, TableNet

# Conformance and the cases have JAX by day.
pytestmark = pytest.mark.nightly_if("jax")

STEPS = 12


class FunctionalBadStarts(FunctionalClock):
    """A clock whose second feature is the episode's number; one start in three is NaN."""

    def reset(self, key: Any) -> Any:
        import jax
        import jax.numpy as jnp

        number = jax.random.uniform(key)
        state = super().reset(key)
        return self._with(state, number, jnp.where(number < 0.33, jnp.nan, number))

    def step(self, state: Any, action: Any) -> Any:
        number = state.info["number"]
        return self._with(super().step(state, action), number, number)

    def _with(self, state: Any, number: Any, shown: Any) -> Any:
        import jax.numpy as jnp

        obs = jnp.concatenate([state.obs, shown[None]])
        return state._replace(obs=obs, info={**state.info, "number": number})


def test_a_start_that_is_not_finite_is_passed_over(engine):
    env = mp.make_env(FunctionalBadStarts(2), num_envs=4)
    network = CountNet()
    first = env.reset(0)
    env_state = env.refresh(first, engine.random.key(1))
    pool = np.asarray(env_state.internal.pool.obs[:, -1])
    numbers, bad = np.asarray(env_state.internal.pool.info["number"]), np.isnan(pool)
    assert 0 < bad.sum() < len(bad)
    before = network.initialize_state(4)
    found = support.to_numpy(mp.unroll_env(env, first, network, before, 6, engine.random.key(1))[2])
    assert np.isfinite(found.obs).all()
    # Episodes of two steps: each environment takes three entries, the second of them after its fourth step.
    stride = np.asarray(env._stride)
    for i in range(4):
        for episode in (1, 2):
            entry = (i + stride * (episode - 1)) % len(pool)
            taken = np.flatnonzero(numbers == found.obs[2 * episode, i, -1]).item()
            assert taken == entry or bad[entry]
            assert not bad[taken]
            assert found.broken[2 * episode - 1, i] == (-2 if bad[entry] else 0)  # the reward is leaf 1
    # No two play one episode.
    for numbers_of in found.obs[::2, :, -1]:
        assert len(set(numbers_of)) == 4
    assert (found.broken[::2] == 0).all()
    assert found.counted.all()
    np.testing.assert_array_equal(found.terminated, [[False] * 4, [True] * 4] * 3)
    np.testing.assert_array_equal(found.rewards, 1)


@pytest.mark.parametrize("name", ["jax", "torch"])
def test_training_counts_unsound_starts_and_a_strict_run_names_the_first(name):
    env = mp.make_env(FunctionalBadStarts(2), num_envs=4)
    with mp.use_backend(name):
        network = mp.Sequential([mp.Normalizer(4), TableNet([0.5] * 4)])
    run = training.train(env, network, iterations=2, rollout_length=4)
    # Of 4 starts at first and 8 in each rollout; the draws are the same on either engine.
    assert run.column("rollout/nonfinite_steps") == [6, 1]
    for _, value in mp.to_portable(network).items():
        assert np.isfinite(value).all()
    strict = training.train(env, network, nonfinite="stop", catch=(NonFiniteError,))
    assert "The observation is not finite at the start of environment" in str(strict.error)
    assert strict.error.training_state.step == 0


class BadStart(probing.Small):
    """Pays 10, 20, 30 and ends; the first observation of episode ``bad``, counted from 1, is NaN."""

    observation_space = gymnasium.spaces.Box(-10, 10, (1,), np.float32)

    def __init__(self, bad: int, end: str = "terminated") -> None:
        self.bad, self.end, self.resets = bad, end, 0

    def observe(self) -> Any:
        self.resets += self.time == 0
        return np.full(1, np.nan if self.time == 0 and self.resets == self.bad else self.time, np.float32)

    def outcome(self) -> Any:
        over, cut = self.time == 3, self.end == "truncated"
        return 10.0 * self.time, over and not cut, over and cut


@pytest.mark.parametrize("mode", probing.modes)
@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_an_episode_that_begins_with_nan_is_begun_once_more(torch_engine, mode, end):
    env = probing.gymnasium_env(lambda index: BadStart((2, 0)[index], end), mode, 2)
    found, skips = support.roll(env, TableNet([2.0]), STEPS), mode == "next_step"
    # Told at the step for the reset; without one, at the step that ended the episode before. Leaf 2 is the observation.
    assert np.argwhere(found.broken).tolist() == [[3 if skips else 2, 0]]
    assert found.broken.min() == -2
    period = [0, 1, 2, 3] if skips else [0, 1, 2]
    for i in range(2):
        np.testing.assert_array_equal(found.obs[:, i, 0], (period * STEPS)[:STEPS])
        np.testing.assert_array_equal(found.valid[:, i], found.obs[:, i, 0] != 3)
    # The third step of each episode ends it, and pays like any other; its last observation, 3, is worth 2 * 3.
    last = found.obs[..., 0] == 2
    np.testing.assert_array_equal(found.terminated, last & (end == "terminated"))
    np.testing.assert_array_equal(found.truncated, last & (end == "truncated"))
    np.testing.assert_array_equal(found.bootstrap_values, np.where(found.truncated, 6, 0))
    np.testing.assert_array_equal(found.rewards, np.where(found.valid, 10 * (found.obs[..., 0] + 1), 0))
    np.testing.assert_array_equal(found.counted, found.valid)
    assert np.isfinite(found.obs).all()


# The start of a run, and that of the second episode, which is seen at the step that ends the first or at its reset.
@pytest.mark.parametrize("bad", [1, 2])
@pytest.mark.parametrize("mode", probing.modes)
def test_one_bad_start_stops_no_run_but_a_strict_one(torch_engine, mode, bad):
    make = lambda: probing.gymnasium_env(lambda index: BadStart((0, bad)[index]), mode, 2)  # noqa: E731
    options = {"rollout_length": 4, "num_minibatches": 1}
    run = training.train(make(), TableNet([0.5]), iterations=3, **options)
    assert run.column("rollout/nonfinite_steps") == [1, 0, 0]
    assert run.column("rollout/episode_reward/mean")[0] == 60  # 10 + 20 + 30
    strict = training.train(make(), TableNet([0.5]), nonfinite="stop", **options, catch=(NonFiniteError,))
    step = 3 if mode == "next_step" else 2
    place = "at the start of environment 1" if bad == 1 else f"at step {step} of the rollout in environment 1"
    assert f"observation is not finite {place}" in str(strict.error)
    found = mp.eval_rollout(make(), TableNet([0.5]), num_episodes=4)
    assert found["eval/nonfinite_episodes"] == 0
    assert found["eval/episode_reward/min"] == found["eval/episode_reward/max"] == 60


def test_a_broken_step_that_ends_its_episode_before_a_bad_start(torch_engine):
    class Both(BadStart):
        def outcome(self) -> Any:
            reward, over, cut = super().outcome()
            return np.inf if over and self.resets == 1 else reward, over, cut

    found = support.roll(probing.gymnasium_env(lambda _: Both(2)), TableNet([0.5]), STEPS)
    np.testing.assert_array_equal(found.broken[:, 0], [0, 0, 1] + [0] * (STEPS - 3))
    np.testing.assert_array_equal(found.truncated[:, 0], found.broken[:, 0] > 0)
    np.testing.assert_array_equal(found.rewards[:6, 0], [10, 20, 0, 10, 20, 30])
