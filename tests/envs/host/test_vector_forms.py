import contextlib

import gymnasium
import numpy as np
import pytest
from counter_env import make_class
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import FlattenObservation

from multippo.envs import make_env
from multippo.envs.host.vector_forms import vectorize_id
from multippo.testing import FunctionalGoal

CARTPOLE = gymnasium.spec("CartPole-v1")
PENDULUM = gymnasium.spec("Pendulum-v1")


@pytest.mark.parametrize(
    ("kwargs", "native"),
    [
        ({}, True),
        ({"vectorization": "sync"}, False),
        ({"max_episode_steps": -1}, False),
        ({"wrappers": [FlattenObservation]}, False),
    ],
)
def test_the_native_form_is_used_where_it_can_do_what_is_asked(kwargs, native):
    vector_env = vectorize_id(CARTPOLE, 2, **kwargs)
    assert isinstance(vector_env.unwrapped, CartPoleVectorEnv if native else SyncVectorEnv)
    assert vector_env.num_envs == 2


@pytest.mark.parametrize(
    ("spec", "kwargs", "reason"),
    [
        (CARTPOLE, {"wrappers": [FlattenObservation]}, "wrappers"),
        (CARTPOLE, {"max_episode_steps": -1}, "can't do without a limit"),
        (CARTPOLE, {"gravity": 9}, r"does not take \['gravity'\]"),
    ],
)
def test_a_native_form_that_does_not_fit_is_refused(spec, kwargs, reason):
    with pytest.raises(ValueError, match=f"{reason}.*'sync'"):
        vectorize_id(spec, 2, vectorization="native", **kwargs)


class FrameStack(CartPoleVectorEnv):
    """A vector form with other spaces, as that of Atari games."""

    def __init__(self, num_envs=1, max_episode_steps=500, render_mode=None, sutton_barto_reward=False):
        super().__init__(num_envs, max_episode_steps, render_mode, sutton_barto_reward)
        self.single_observation_space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)


class OtherReward(CartPoleVectorEnv):
    def __init__(self, num_envs=1, max_episode_steps=500, render_mode=None, sutton_barto_reward=True):
        super().__init__(num_envs, max_episode_steps, render_mode, sutton_barto_reward)


@pytest.mark.parametrize(
    ("form", "difference", "agreeing"),
    [
        (FrameStack, "the observation_space Box(0, 255, (4, 84, 84), uint8) instead of Box([", None),
        (OtherReward, "sutton_barto_reward=True instead of False", {"sutton_barto_reward": False}),
    ],
)
def test_a_native_form_of_another_task_is_left_and_that_is_said_once(form, difference, agreeing, caplog):
    spec = gymnasium.envs.registration.EnvSpec(
        f"{form.__name__}-v0", CARTPOLE.entry_point, vector_entry_point=form, max_episode_steps=500
    )
    for _ in range(2):
        vector_env = vectorize_id(spec, 2)
        assert isinstance(vector_env, SyncVectorEnv)
        assert vector_env.single_observation_space.shape == (4,)
    (record,) = caplog.records
    assert f"{form.__name__}-v0 has {difference}" in record.getMessage()
    assert isinstance(vectorize_id(spec, 2, "native"), form)
    if agreeing:
        assert isinstance(vectorize_id(spec, 2, **agreeing), form)


@pytest.mark.parametrize("vectorization", ["native", "sync"])
def test_the_time_limit_holds_in_either_form(vectorization):
    vector_env = vectorize_id(CARTPOLE, 2, vectorization=vectorization, max_episode_steps=3)
    vector_env.reset(seed=0)
    truncated = [vector_env.step(np.array([0, 1]))[3].tolist() for _ in range(3)]
    assert truncated == [[False] * 2, [False] * 2, [True] * 2]


@pytest.mark.parametrize("vectorization", ["sync", "threads", "async"])
def test_methods_and_attributes_of_the_environments_are_reached_in_every_form(vectorization):
    with contextlib.closing(make_env(make_class(), 2, vectorization=vectorization, reward_scale=2.0)) as env:
        env.set_attr("time", [1, 2])
        assert env.get_attr("time") == (1, 2)
        env.set_attr("time", 0)
        assert env.call("time") == (0, 0)
        assert env.call("has_wrapper_attr", "tim") == (False, False)


def test_a_batch_that_is_one_object_has_one_attribute():
    native, compiled = make_env("CartPole-v1", 2, reward_scale=2.0), make_env(FunctionalGoal(), 2)
    native.set_attr("gravity", 1.0)
    assert native.get_attr("gravity") == (1.0,)
    assert compiled.get_attr("length") == (2,)
    with pytest.raises(ValueError, match="'length' can't change within a run"):
        compiled.set_attr("length", 3)
