"""A NaN or an infinity stops the run, named, with the last good state saved and the network holding it."""

from typing import Any

import numpy as np
import probing
import pytest
import support
import training

import multippo as mp
from multippo.errors import NonFiniteError
from multippo.testing import Clock, FunctionalClock, Goal, TableNet

# Conformance and the cases have JAX by day.
pytestmark = pytest.mark.nightly_if("jax")

LENGTH = 4
ROLLOUT = 4


def run(env: Any, network: Any, **fields: Any) -> training.Run:
    options = {"iterations": 5, "rollout_length": ROLLOUT, "lr_schedule": "constant", "nonfinite": "stop", **fields}
    found = training.train(env, network, catch=(NonFiniteError,), **options)
    assert isinstance(found.error, NonFiniteError), found.result
    return found


def assert_last_good_state(
    found: training.Run, network: Any, iterations: int, expected: Any, tolerance: float = 0.0
) -> None:
    """The state saved, the one in the error and the network's own are those after ``iterations`` good ones."""
    state, step = found.checkpoints[-1]
    assert (len(found.checkpoints), state.iteration, state.step) == (1, iterations, step)
    assert found.error.training_state.iteration == iterations
    assert step == iterations * ROLLOUT * 4
    assert len(found.logs) == iterations
    weights = mp.to_portable(network)
    assert all(np.isfinite(value).all() for value in weights.values())
    support.assert_trees_close(weights, expected, tolerance)
    moments = training.portable_moments(network, state)
    assert moments[2] == iterations * 4  # 2 epochs of 2 minibatches
    for name, leaf in support.named_leaves(support.to_numpy([moments[:2], state.network_state, state.episodes])):
        assert np.isfinite(leaf).all(), name


def table() -> Any:
    return mp.Sequential([mp.Normalizer(LENGTH + 1), TableNet([0.0] * (LENGTH + 1))])


@pytest.mark.parametrize(
    ("kind", "at", "message"),
    [
        # Step 7 is step 2 (counted from 0) of the second rollout.
        ("obs", 7, "The next observation is not finite at step 2 of the rollout in environment 2, in iteration 2"),
        ("reward", 7, "The reward is not finite at step 2 of the rollout in environment 2, in iteration 2"),
        # The clock ends at every fourth step; and the observation after a rollout is not stored in it.
        ("final_obs", 8, "The next observation is not finite at step 3 of the rollout in environment 2"),
    ],
)
def test_what_the_environment_gives(torch_engine, kind, at, message):
    network = table()
    found = run(probing.Faulty({kind: at}, LENGTH), network)
    assert message in str(found.error)
    assert "after 16 steps" in str(found.error)
    good = table()  # the same run, stopped before the bad iteration
    sound = Clock(LENGTH, "truncated", num_envs=4)
    training.train(sound, good, iterations=1, rollout_length=ROLLOUT, lr_schedule="constant")
    assert_last_good_state(found, network, 1, mp.to_portable(good))


def test_the_first_of_several_is_named(torch_engine):
    found = run(probing.Faulty({"reward": 2, "obs": 4}, LENGTH), table())
    assert found.error.leaf == "reward"
    assert found.checkpoints[0][0].iteration == 0


@pytest.mark.parametrize(
    ("backend", "cls", "name"),
    [
        pytest.param("jax", probing.ExplodingGradient, "gradient of values", marks=pytest.mark.nightly),
        ("torch", probing.ExplodingGradient, "gradient of values"),
        ("torch", probing.ExplodingLoss, "loss"),
    ],
)
def test_what_the_network_makes_of_it(backend, cls, name):
    # The first minibatch steps; the second fails. Nothing of the iteration remains.
    with mp.use_backend(backend):
        network = cls([0.0] * (LENGTH + 1))
    before = mp.to_portable(network)
    found = run(Clock(LENGTH, num_envs=4), network)
    assert found.error.leaf == name
    assert f"The {name} is not finite" in str(found.error)
    if name == "loss":
        assert "in minibatch 1" in str(found.error)
    assert_last_good_state(found, network, 0, before)


@pytest.mark.nightly
def test_inside_a_compiled_call_of_several_iterations(jax_engine):
    class Rotten(FunctionalClock):
        """Its observations rot away after 18 steps of the run, in the fifth iteration of 4."""

        def reset(self, key: Any) -> Any:
            state = super().reset(key)
            return state._replace(info={**state.info, "age": state.info["time"]})

        def step(self, state: Any, action: Any) -> Any:
            after, age = super().step(state, action), state.info["age"] + 1
            obs = jax_engine.xp.where(age > 18, np.nan, after.obs)
            return after._replace(obs=obs, info={**after.info, "age": age})

    def go(env: Any, **fields: Any) -> tuple[Any, training.Run]:
        network = mp.Sequential([mp.Normalizer(51), TableNet([0.0] * 51)])
        run_ = training.train(
            mp.make_env(env, num_envs=4),
            network,
            lr_schedule="constant",
            nonfinite="stop",
            catch=(NonFiniteError,),
            **fields,
        )
        return network, run_

    # Four iterations a call; of the second call's the first fails, the next must not run, and two are none.
    network, found = go(Rotten(50), iterations=6, config={"log_every_steps": 64})
    assert isinstance(found.error, NonFiniteError)
    assert found.error.leaf == "next observation"
    assert "at step 2 of the rollout in environment 0, in iteration 5, after 64 steps" in str(found.error)
    with mp.use_backend("torch"):  # compiles nothing, and gives the same numbers
        other, _ = go(FunctionalClock(50), iterations=4)
    assert_last_good_state(found, network, 4, mp.to_portable(other), tolerance=1e-5)
    env_state = found.checkpoints[0][0].env_state
    assert np.isfinite(env_state.obs).all()
    np.testing.assert_array_equal(env_state.internal.steps, 16)


def test_a_step_that_is_none_may_show_anything(torch_engine):
    # The final observation of a terminated episode is NaN; with next_step the network sees it once, and must not mind.
    class Ruin(Goal):
        def _observe(self) -> np.ndarray:
            return np.where((self.time == self.max_episode_steps)[:, None], np.nan, super()._observe()).astype("f4")

        def _advance(self, action: Any, which: np.ndarray) -> Any:
            reward, _, ended = super()._advance(action, which)
            return reward, ended, np.zeros_like(ended)

    rngs = mp.Rngs(0)
    action = mp.Sequential([mp.Dense(1, 2, rngs), mp.NormalTanhSampler(rngs, entropy_weight=0.01)])
    network = mp.Sequential([mp.Normalizer(1), mp.PPOAdapter(action=action, value=mp.Dense(1, 1, rngs))])
    found = training.train(Ruin(2, length=2, autoreset="next_step"), network, iterations=2, rollout_length=6)
    assert found.result is not None
    assert all(np.isfinite(value).all() for value in mp.to_portable(network).values())
    # 12 steps a rollout, every third none: 4 of 6 count.
    assert network[0].count == 2 * 2 * 4


def test_a_parameter_that_never_was_finite_is_named_itself(torch_engine):
    # All it leads to, an observation's value, the loss, a gradient, is bad as well.
    found = training.train(Clock(LENGTH, num_envs=4), TableNet([0.0, np.nan, 0.0, 0.0, 0.0]), catch=(NonFiniteError,))
    assert isinstance(found.error, NonFiniteError)
    assert found.error.leaf == "parameter values"
    assert "The parameter values is not finite, in iteration 1, after 0 steps." in str(found.error)
    assert "an initial value, or weights that were loaded" in str(found.error)
    assert "environment" not in str(found.error)


class Dividing(TableNet):
    """Its value, or the logits of its actions, are 0 / 0 from the second step of an episode on."""

    def heads(self, memory: Any, x: Any) -> Any:
        memory, logits, value = super().heads(memory, x)
        late = 1.0 - x[..., 0]  # the clock is one-hot: 1 in an episode's first step
        bad = late * 0.0 / (1.0 - late)
        return (memory, logits, value + bad) if self.part == "value" else (memory, logits + bad[..., None], value)


@pytest.mark.parametrize(("part", "leaf"), [("value", "value estimate"), ("logits", "log-likelihood")])
def test_what_the_network_makes_of_a_finite_observation(torch_engine, part, leaf):
    network = Dividing([0.0] * (LENGTH + 1))
    network.part = part
    found = training.train(Clock(LENGTH, num_envs=4), network, catch=(NonFiniteError,))
    assert isinstance(found.error, NonFiniteError)
    assert found.error.leaf == leaf
    assert f"The {leaf} is not finite at step 1 of the rollout in environment 0, in iteration 1" in str(found.error)
    assert "look for its cause in the network, such as a division by zero" in str(found.error)
