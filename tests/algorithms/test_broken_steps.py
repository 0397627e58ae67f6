"""An environment that blows up is restarted, and the step in which it did enters nothing but a count."""

from typing import Any

import gymnasium
import numpy as np
import probing
import pytest
import support
import training

import multippo as mp
from multippo.errors import NonFiniteError
from multippo.testing import Clock, CountNet, Spy, TableNet

# Conformance and the cases have JAX by day.
pytestmark = pytest.mark.nightly_if("jax")

STEPS, BAD = 12, probing.Faulty.BAD
MODES = list(gymnasium.vector.AutoresetMode)


def blowing(autoreset: Any = "same_step") -> Any:
    """In environment 2: NaN for an observation after the fifth step, an infinite reward for the ninth."""
    return probing.Faulty({"obs": 5, "reward": 9}, [3, 4, 7, 5], autoreset)


def roll(env: Any, network: Any) -> tuple[Any, Any, Any]:
    engine = network.engine
    before = network.initialize_state(env.num_envs)
    after, _, transition = mp.unroll_env(env, env.reset(0), network, before, STEPS, engine.random.key(1))
    return before, after, transition


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_the_broken_one_starts_anew_and_its_carry_with_it(engine, autoreset):
    spy, network = Spy(blowing(autoreset)), CountNet()
    before, after, transition = roll(spy, network)
    found = support.to_numpy(transition)
    assert not found.broken[:, [0, 1, 3]].any()
    # The fifth step's observation, then the ninth step's reward (leaf 1 is the reward, leaf 2 the observation).
    np.testing.assert_array_equal(found.broken[:, BAD], [0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0])
    np.testing.assert_array_equal(found.counted[:, BAD], found.broken[:, BAD] == 0)
    np.testing.assert_array_equal(found.truncated[:, BAD], found.broken[:, BAD] > 0)
    np.testing.assert_array_equal(found.obs[:, BAD].argmax(-1), [0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 1, 2])
    np.testing.assert_array_equal(found.rewards[:, BAD], np.where(found.broken[:, BAD] > 0, 0, 1))
    for _, leaf in support.named_leaves(found):
        assert np.isfinite(leaf).all()
    # Each episode is begun once by the environment itself, and the broken ones by a restart.
    assert len(spy.states) == 1 + STEPS + 2
    # The carry counts the steps since the reset, and shows in the value (10 + count) and the log-likelihood.
    values = found.network_output.value_estimates[:, BAD]
    np.testing.assert_array_equal(values, 10 + found.obs[:, BAD].argmax(-1))
    assert support.to_numpy(after)["memory"][BAD] == 3
    replayed = support.to_numpy(mp.replay(network, before, transition))
    for part in ("value_estimates", "loglikelihoods"):
        deviation = np.abs(getattr(replayed, part) - getattr(found.network_output, part))
        assert deviation[found.valid].max() <= 1e-6


def test_every_environment_at_once_is_no_accident(engine):
    class All(Clock):
        def step(self, env_state: Any, action: Any) -> Any:
            state = super().step(env_state, action)
            return state._replace(obs=np.full_like(state.obs, np.nan))

    network = TableNet([0.0] * 5)
    before = mp.to_portable(network)
    run = training.train(All(4, num_envs=3), network, num_minibatches=1, catch=(NonFiniteError,))
    assert isinstance(run.error, NonFiniteError)
    assert "The next observation is not finite at step 0 of the rollout in environment 0" in str(run.error)
    support.assert_trees_close(mp.to_portable(network), before, 0.0)


def test_an_environment_that_cannot_be_restarted_stops_the_run(torch_engine):
    class Whole(probing.Faulty):
        def restart(self, env_state: Any, which: Any) -> None:
            return None

    run = training.train(Whole({"obs": 5}, 7), TableNet([0.0] * 8), iterations=4, catch=(NonFiniteError,))
    assert isinstance(run.error, NonFiniteError)
    # The fifth step is the first of the second rollout; its observation is seen a step later.
    assert "The observation is not finite at step 1 of the rollout in environment 2, in iteration 2" in str(run.error)


def explosive_makers() -> list[Any]:
    """Two environments; local, so that they travel to a worker process by value."""

    class Explosive(probing.Small):
        """Ends after 6 steps; number 1 of the batch blows up in the third step of its first episode."""

        def __init__(self, explodes: bool) -> None:
            self.explodes = explodes

        def observe(self) -> Any:
            blown = self.explodes and self.time == 3
            self.explodes = self.explodes and not blown
            return np.full(1, np.nan if blown else self.time, np.float32)

        def outcome(self) -> Any:
            return 1.0, self.time == 6, False

    return [lambda explodes=explodes: Explosive(explodes) for explodes in (False, True)]


@pytest.mark.parametrize(("kind", "mode"), [*(("sync", mode) for mode in MODES), ("async", MODES[0])])
def test_gymnasium(torch_engine, mode, kind):
    if kind == "sync":
        vector_env: Any = gymnasium.vector.SyncVectorEnv(explosive_makers(), autoreset_mode=mode)
    else:
        vector_env = gymnasium.vector.AsyncVectorEnv(explosive_makers(), autoreset_mode=mode, context="forkserver")
    env = mp.make_env(vector_env)
    try:
        *_, transition = roll(env, TableNet([0.5]))
    finally:
        env.close()
    found = support.to_numpy(transition)
    assert np.argwhere(found.broken).tolist() == [[2, 1]]
    skips = mode is gymnasium.vector.AutoresetMode.NEXT_STEP
    period = [0, 1, 2, 3, 4, 5, 6] if skips else [0, 1, 2, 3, 4, 5]
    np.testing.assert_array_equal(found.obs[:, 0, 0], (period * 2)[:STEPS])
    np.testing.assert_array_equal(found.obs[:, 1, 0], ([0, 1, 2] + period * 2)[:STEPS])
    np.testing.assert_array_equal(found.valid[:, 1], found.obs[:, 1, 0] != 6)


def test_an_evaluation_counts_them(torch_engine):
    found = mp.eval_rollout(blowing(), TableNet([0.0] * 8), num_episodes=4)
    assert found["eval/nonfinite_episodes"] == 1
    assert found["eval/episodes"] == 4
    assert np.isfinite(found["eval/episode_reward/mean"])
