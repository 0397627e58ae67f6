"""Observations keep the type their space declares, whatever the environment returns; a type that can't be is named.

Seen in Farama-Foundation/Gymnasium#825, RobertTLange/gymnax#111 and #24, google/brax#228, leggedrobotics/rsl_rl#212,
DLR-RM/stable-baselines3#40, hill-a/stable-baselines#681.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import probing
import pytest
import support
import training
from gymnasium import spaces

import multippo as mp
from multippo.testing import TableNet
from multippo.testing.environments import State

SIZE = 6


class Careless(probing.Small):
    """Declares float32; returns float64 observations, integer rewards and NumPy's booleans."""

    observation_space = spaces.Box(0, 1, (SIZE,), np.float32)

    def observe(self) -> Any:
        return np.eye(SIZE)[self.time]

    def outcome(self) -> Any:
        return 2, np.bool_(False), np.bool_(self.time == 3)


class Camera(probing.Small):
    """Two images of 64 x 64 bytes, black at first and white after two steps."""

    observation_space = spaces.Box(0, 255, (2, 64, 64), np.uint8)

    def observe(self) -> Any:
        return np.full((2, 64, 64), 255 * self.time // 2, np.uint8)

    def outcome(self) -> Any:
        return np.float64(0.5), False, self.time == 2


class ImageNet(TableNet):
    """Sees the mean brightness in [0, 1]; its value is 1 + brightness."""

    def __init__(self) -> None:
        super().__init__([1.0, 2.0])

    def heads(self, memory: Any, x: Any) -> tuple[Any, Any, Any]:
        assert "uint8" in str(x.dtype)
        xp = self.xp
        light = xp.mean(xp.astype(x, self.values[...].dtype), axis=(1, 2, 3)) / 255
        return super().heads(memory, xp.stack((1 - light, light), axis=-1))


@pytest.fixture(params=["torch", "jax", "jax_64"])
def bits(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each engine in 32-bit arithmetic, JAX also where the user has enabled 64 bits."""
    with mp.use_backend(request.param.partition("_")[0]), jax.enable_x64(request.param == "jax_64"):
        yield


def assert_float32(transition: Any) -> None:
    output = transition.network_output
    numbers = (transition.rewards, transition.bootstrap_values, output.value_estimates, output.loglikelihoods)
    assert [leaf.dtype for leaf in numbers] == [np.float32] * 4
    for flag in (transition.terminated, transition.truncated, transition.done, transition.valid):
        assert flag.dtype == np.bool_


@pytest.mark.nightly_if("jax", "jax_64")
def test_a_careless_environment(bits: None):
    env = mp.make_env([Careless, Careless])
    transition = support.roll(env, TableNet(np.arange(float(SIZE))), 4)
    assert transition.obs.dtype == np.float32
    assert_float32(transition)
    np.testing.assert_array_equal(transition.rewards, 2.0)
    np.testing.assert_array_equal(transition.truncated[:, 0], [False, False, True, False])


@pytest.mark.nightly_if("jax", "jax_64")
def test_training_in_it(bits: None):
    env, network = mp.make_env([Careless, Careless]), TableNet(np.linspace(0.5, 1.0, SIZE))
    run = training.train(env, network, **{**probing.ONE_STEP, "learning_rate": 0.01}, rollout_length=4)
    assert all(np.isfinite(value) for name, value in run.logs[0].items())
    weights = mp.to_portable(network)
    assert weights["values"].dtype == weights["logits"].dtype == np.float32
    first, second, _ = training.portable_moments(network, run.state)
    assert {leaf.dtype for moment in (first, second) for leaf in moment.values()} == {np.dtype(np.float32)}
    assert support.to_numpy(run.state.episodes.reward).dtype == np.float32


@pytest.mark.nightly_if("jax", "jax_64")
def test_images_stay_bytes_and_are_scaled_once(bits: None):
    env = mp.make_env([Camera])
    transition = support.roll(env, ImageNet(), 3)
    assert transition.obs.dtype == np.uint8
    assert transition.obs.shape == (3, 1, 2, 64, 64)
    np.testing.assert_array_equal(transition.obs[:, 0, 0, 0, 0], [0, 127, 0])
    np.testing.assert_allclose(transition.network_output.value_estimates[:, 0], [1.0, 1 + 127 / 255, 1.0], rtol=1e-6)
    np.testing.assert_allclose(transition.bootstrap_values[:, 0], [0.0, 2.0, 0.0], rtol=1e-6)
    assert_float32(transition)


class Loose:
    """Reset returns an integer reward and flag; step floats, one of them weakly typed."""

    action_space = spaces.Discrete(2)

    def __init__(self, first_obs: Any = None) -> None:
        self.first_obs = jnp.eye(SIZE)[0] if first_obs is None else first_obs

    def reset(self, key: Any) -> State:
        del key
        info = {"truncation": 0, "time": jnp.zeros((), jnp.int32)}
        return State(self.first_obs, 0, False, info, {"metric": 0})

    def step(self, state: State, action: Any) -> State:
        del action
        time = state.info["time"] + 1
        over = time == 3
        info = {"truncation": over.astype(jnp.int32), "time": time}
        return State(jnp.eye(SIZE)[time], 2.0, over, info, {"metric": time * 1.5})


@pytest.mark.nightly
def test_a_functional_environment_whose_reset_and_step_disagree(bits: None):
    env = mp.make_env(Loose(), num_envs=2)
    transition = support.roll(env, TableNet(np.arange(float(SIZE))), 4)
    assert transition.obs.dtype == np.float32
    assert_float32(transition)
    np.testing.assert_array_equal(transition.rewards, 2.0)
    np.testing.assert_array_equal(transition.truncated[:, 0], [False, False, True, False])
    np.testing.assert_array_equal(transition.metrics["metric"][:, 0], [1.5, 3.0, 4.5, 1.5])


def test_what_can_not_be_reconciled_is_named():
    env = mp.make_env(Loose(jnp.zeros(SIZE, jnp.int32)), num_envs=1)
    with pytest.raises(TypeError, match=r"float32\[1, 6\] for state.obs, where reset returned int32\[1, 6\]"):
        env.step(env.reset(0), jnp.zeros(1, jnp.int32))
