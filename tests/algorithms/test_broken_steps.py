"""An environment that blows up is restarted, and the step in which it did enters nothing but a count."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import support
import training

import multippo as mp
from multippo.errors import NonFiniteError
from multippo.testing import Clock, CountNet, FunctionalClock, Goal, Spy, TableNet

# Conformance and the cases have JAX by day.
pytestmark = pytest.mark.nightly_if("jax")

NUM_ENVS, STEPS, BAD = 4, 12, 2
MODES = list(gymnasium.vector.AutoresetMode)


class Blowing(Clock):
    """In environment 2: NaN for an observation after the fifth step, an infinite reward for the ninth."""

    def __init__(self, autoreset: Any = "same_step") -> None:
        super().__init__([3, 4, 7, 5], "truncated", NUM_ENVS, autoreset)
        self.count = 0

    def step(self, env_state: Any, action: Any) -> Any:
        state = super().step(env_state, action)
        self.count += 1
        if self.count == 5:
            obs = state.obs.copy()
            obs[BAD, 1] = np.nan
            state = state._replace(obs=obs)
        if self.count == 9:
            reward = state.reward.copy()
            reward[BAD] = np.inf
            state = state._replace(reward=reward)
        return state


class FunctionalBlowing(FunctionalClock):
    """Two in five episodes blow up in their third step."""

    def reset(self, key: Any) -> Any:
        import jax

        state = super().reset(key)
        return state._replace(info={**state.info, "luck": jax.random.uniform(key)})

    def step(self, state: Any, action: Any) -> Any:
        import jax.numpy as jnp

        after = super().step(state, action)
        unlucky = (state.info["luck"] < 0.4) & (state.info["time"] == 2)
        return after._replace(
            obs=jnp.where(unlucky, jnp.nan, after.obs), info={**after.info, "luck": state.info["luck"]}
        )


def roll(env: Any, network: Any) -> tuple[Any, Any, Any]:
    engine = network.engine
    before = network.initialize_state(env.num_envs)
    after, _, transition = mp.unroll_env(env, env.reset(0), network, before, STEPS, engine.random.key(1))
    return before, after, transition


def counting() -> CountNet:
    return CountNet()


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_the_broken_one_starts_anew(engine, autoreset):
    spy, network = Spy(Blowing(autoreset)), counting()
    *_, found = roll(spy, network)
    found = support.to_numpy(found)
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


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_the_carry_starts_anew_too_and_replay_agrees(engine, autoreset):
    network = counting()
    before, after, transition = roll(Blowing(autoreset), network)
    # The carry counts the steps since the reset, and shows in the value and the log-likelihood.
    replayed = support.to_numpy(mp.replay(network, before, transition))
    stored = support.to_numpy(transition)
    for part in ("value_estimates", "loglikelihoods"):
        deviation = np.abs(getattr(replayed, part) - getattr(stored.network_output, part))
        assert deviation[stored.valid].max() <= 1e-6
    values = stored.network_output.value_estimates[:, BAD]
    np.testing.assert_array_equal(values[5:8], values[:3])
    np.testing.assert_array_equal(values[9:12], values[:3])
    assert len(set(values[:5])) == 5
    assert support.to_numpy(after)["memory"][BAD] == 3


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_training_goes_on_and_counts(torch_engine, autoreset):
    network = mp.Sequential([mp.Normalizer(8), TableNet([0.5] * 8)])
    run = training.train(Blowing(autoreset), network, iterations=4, scale_rewards=True)
    assert run.error is None
    assert run.column("rollout/nonfinite_steps") == [0, 1, 1, 0]
    for _, value in mp.to_portable(network).items():
        assert np.isfinite(value).all()
    # What the normaliser counts is what the network saw, broken steps included: their observation was finite.
    skipped = 0 if autoreset == "same_step" else 3 + 3 + 2 + 2
    assert network[0].count <= 16 * 4
    assert network[0].count >= 16 * 4 - skipped
    # An episode cut short by an accident is none: 3, 4 and 5 long ones only.
    lengths = [x for x in run.column("rollout/episode_length/mean") if not np.isnan(x)]
    assert all(3 <= x <= 5 for x in lengths)


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
    class Whole(Blowing):
        def restart(self, env_state: Any, which: Any) -> None:
            return None

    run = training.train(Whole(), TableNet([0.0] * 8), iterations=4, catch=(NonFiniteError,))
    assert isinstance(run.error, NonFiniteError)
    # The fifth step is the first of the second rollout; its observation is seen a step later.
    assert "The observation is not finite at step 1 of the rollout in environment 2, in iteration 2" in str(run.error)


def test_functional_environments(engine):
    env = mp.make_env(FunctionalBlowing(5), num_envs=8)
    network = counting()
    before, _, transition = roll(env, network)
    found = support.to_numpy(transition)
    broken = found.broken > 0
    assert 0 < broken.sum() < broken.size / 2
    times = found.obs.argmax(-1)
    np.testing.assert_array_equal(times[broken], 2)
    np.testing.assert_array_equal(times[1:][broken[:-1]], 0)
    np.testing.assert_array_equal(found.truncated, broken)
    np.testing.assert_array_equal(found.terminated, times == 4)
    np.testing.assert_array_equal(found.rewards, np.where(broken, 0, 1))
    assert np.isfinite(found.obs).all()
    replayed = support.to_numpy(mp.replay(network, before, transition))
    np.testing.assert_allclose(replayed.loglikelihoods, found.network_output.loglikelihoods, atol=1e-6)


def explosive_makers() -> list[Any]:
    """Two environments; local, so that they travel to a worker process by value."""

    class Explosive(gymnasium.Env[Any, Any]):
        """Ends after 6 steps; number 1 of the batch blows up in the third step of its first episode."""

        observation_space = gymnasium.spaces.Box(-10, 10, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self, explodes: bool) -> None:
            self.fuse, self.time = 3 if explodes else -1, 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.time = 0
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> Any:
            self.time, self.fuse = self.time + 1, self.fuse - 1
            value = np.nan if self.fuse == 0 else self.time
            return np.full(1, value, np.float32), 1.0, self.time == 6, False, {}

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
    found = mp.eval_rollout(Blowing(), TableNet([0.0] * 8), num_episodes=4)
    assert found["eval/nonfinite_episodes"] == 1
    assert found["eval/episodes"] == 4
    assert np.isfinite(found["eval/episode_reward/mean"])


def test_a_simulator_that_refuses_what_comes_of_a_nan_is_told_with_its_cause(torch_engine):
    class Touchy(Goal):
        """Can't be restarted; shows NaN once, and takes no action that is NaN."""

        count = 0

        def restart(self, env_state: Any, which: Any) -> None:
            return None

        def step(self, env_state: Any, action: Any) -> Any:
            if not np.isfinite(action).all():
                raise RuntimeError("the control is not finite")
            state, self.count = super().step(env_state, action), self.count + 1
            return state._replace(obs=np.full_like(state.obs, np.nan)) if self.count == 5 else state

    network = mp.make_mlp_actor_critic(1, 1, (4,), (4,), mp.Rngs(0))
    run = training.train(Touchy(2), network, rollout_length=16, num_minibatches=1, catch=(RuntimeError,))
    assert str(run.error) == "the control is not finite"
    (note,) = run.error.__notes__
    assert note.startswith("Actions of step 5 of the rollout are not finite. An observation before it was not")
