"""Whatever its bounds, an action space is reached from end to end and never left.

Seen in google/brax#472, thu-ml/tianshou#732, ray-project/ray#1862 and #2965, openai/baselines#759.
"""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import probing
import pytest
import support
from gymnasium import spaces

import multippo as mp
from multippo.testing.environments import State

NUM_ENVS, STEPS = 32, 16
BOXES = {
    "narrow": spaces.Box(-0.4, 0.4, (2,), np.float32),
    "not around 0": spaces.Box(0.0, 5.0, (2,), np.float32),
    "each its own": spaces.Box(np.array([-1.0, -10.0], np.float32), np.array([3.0, 0.5], np.float32)),
    "double": spaces.Box(-0.3, 0.7, (2,), np.float64),
}


class FunctionalReceiver:
    """The same for JAX."""

    def __init__(self, box: spaces.Box) -> None:
        self.action_space = box

    def reset(self, key: Any) -> State:
        del key
        zero = jnp.zeros(())
        return State(jnp.zeros(2), zero, zero, {"truncation": zero}, {})

    def step(self, state: State, action: Any) -> State:
        return state._replace(obs=jnp.asarray(action, state.obs.dtype))


class Constant(mp.StatefulModule):
    """The same distribution parameters whatever it sees."""

    def __init__(self, parameters: list[float]) -> None:
        self.row = mp.Param(np.asarray(parameters))

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        row = self.row[...]
        return mp.StatefulModuleOutput(state, row + self.xp.zeros((*x.shape[:-1], 1), dtype=row.dtype))


def policy(mean: float) -> Any:
    action = mp.Sequential([Constant([mean, mean, 1.0, 1.0]), mp.NormalTanhSampler(mp.Rngs(0))])
    return mp.PPOAdapter(action=action, value=Constant([0.0]))


@functools.cache
def received(name: str, kind: str, box_name: str, mean: float) -> tuple[np.ndarray, mp.Transition]:
    """The actions the environment received ``[N, 2]``, and the rollout."""
    box = BOXES[box_name]
    with mp.use_backend(name):
        if kind == "host":
            found, transition, _ = probing.received(lambda: policy(mean), box, NUM_ENVS, STEPS)
        else:
            # The last of them is not seen.
            env = mp.make_env(FunctionalReceiver(box), num_envs=NUM_ENVS)
            transition = support.roll(env, policy(mean), STEPS)
            found = transition.obs[1:]
    return np.asarray(found, np.float64).reshape(-1, 2), transition


@pytest.mark.parametrize("box_name", BOXES)
@pytest.mark.parametrize("kind", ["host", "functional"])
@pytest.mark.nightly_if("jax-functional-double", "jax-functional-narrow", "jax-functional-not around 0")
def test_inside_in_the_middle_on_average(engine: Any, kind: str, box_name: str):
    box = BOXES[box_name]
    low, high = box.low.astype(float), box.high.astype(float)
    found, transition = received(engine.name, kind, box_name, 0.0)
    rounding = 1e-6 * np.abs([low, high]).max() * (kind == "functional" and box.dtype == np.float64)
    assert (found >= low - rounding).all()
    assert (found <= high + rounding).all()
    # The middle within five standard errors; and not stuck there.
    error = found.std(0) / np.sqrt(len(found))
    assert (np.abs(found.mean(0) - (low + high) / 2) < 5 * error).all()
    assert (found.std(0) > 0.2 * (high - low)).all()
    # What is stored is the policy's own, in [-1, 1].
    actions = transition.network_output.actions.reshape(-1, 2)[: len(found)]
    assert np.abs(actions).max() <= 1
    np.testing.assert_allclose(found, (low + high) / 2 + actions * (high - low) / 2, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("box_name", BOXES)
@pytest.mark.nightly_if("jax")
def test_both_ends_are_reached(engine: Any, box_name: str):
    box = BOXES[box_name]
    for mean, end in ((30.0, box.high), (-30.0, box.low)):
        found, _ = received(engine.name, "host", box_name, mean)
        np.testing.assert_allclose(found, np.broadcast_to(end.astype(float), found.shape), rtol=1e-6)


@pytest.mark.parametrize("box_name", ["narrow", "not around 0"])
def test_the_log_likelihood_is_that_of_the_action_in_the_policys_coordinates(engine: Any, box_name: str):
    std = np.log1p(np.exp(1.0)) + 1e-3
    _, transition = received(engine.name, "host", box_name, 0.2)
    action = transition.network_output.actions.astype(np.float64)
    u = np.arctanh(action)
    normal = -0.5 * ((u - 0.2) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    expected = (normal - np.log1p(-(action**2))).sum(-1)
    # Where tanh has not rounded the sample away.
    clear = np.abs(action).max(-1) < 0.99
    assert clear.mean() > 0.3
    np.testing.assert_allclose(transition.network_output.loglikelihoods[clear], expected[clear], rtol=1e-3, atol=1e-3)


@pytest.mark.nightly
@pytest.mark.parametrize("box_name", BOXES)
def test_adapters_and_engines_agree(box_name: str):
    expected, _ = received("jax", "host", box_name, 0.0)
    for name, kind in (("torch", "host"), ("torch", "functional"), ("jax", "functional")):
        found, _ = received(name, kind, box_name, 0.0)
        np.testing.assert_allclose(found, expected[: len(found)], rtol=1e-5, atol=1e-5, err_msg=f"{name} {kind}")
