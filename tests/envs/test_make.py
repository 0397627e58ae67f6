import functools
import sys
from importlib import metadata

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from multippo.envs import FunctionalEnv, GymnasiumEnv, make_env
from multippo.testing import FunctionalGoal


def test_names_of_gymnasium():
    for env_id in ("CartPole-v1", "gymnasium/CartPole-v1"):
        env = make_env(env_id, num_envs=3)
        assert (env.id, env.num_envs, env.max_episode_steps, env.may_skip) == ("CartPole-v1", 3, 500, True)
        assert isinstance(env.vector_env.unwrapped, CartPoleVectorEnv)
    assert make_env("Pendulum-v1").num_envs == 1
    assert make_env("multippo/PendulumNoVel-v0").max_episode_steps == 200
    assert make_env("multippo/CartPoleNoVel-v0", num_envs=2).reset(0).obs.shape == (2, 2)
    assert make_env("CartPole-v1", max_episode_steps=9).max_episode_steps == 9


def test_a_name_without_a_limit():
    for name, steps in (("Pendulum-v1", 201), ("CartPole-v1", 0)):
        env = make_env(name, max_episode_steps=None)
        assert env.max_episode_steps is None
        assert env.similar(2).max_episode_steps is None
        state = env.reset(0)
        for _ in range(steps):  # one more than the registered limit
            state = env.step(state, np.zeros((1, 1), np.float32))
            assert not state.truncated.any()
        env.close()


def test_arguments_reach_their_places():
    env = make_env("Pendulum-v1", num_envs=2, g=3.0, reward_dtype=np.float64)
    assert [member.unwrapped.g for member in env.vector_env.envs] == [3.0, 3.0]
    assert env.reset(0).reward.dtype == np.float64
    other = env.similar(1)
    assert other.vector_env.envs[0].unwrapped.g == 3.0
    assert other.max_episode_steps == 200


def test_asynchronous(clock):
    # Its name and limit are those of what the function makes.
    make = functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=7)
    env = make_env(make, num_envs=2, vectorization="async", action_repeat=2)
    assert isinstance(env.vector_env, AsyncVectorEnv)
    assert (env.id, env.max_episode_steps) == ("CartPoleEnv", 4)
    env.close()


@pytest.mark.parametrize(
    ("env_id", "nearest"),
    [
        ("CartPole", "'CartPole-v1'"),
        ("ant", "'brax/ant'|'Ant-v5'"),
        ("brax/inverted_pendulun", "'brax/inverted_pendulum'"),
    ],
)
def test_an_unknown_name_gets_the_nearest(env_id, nearest):
    with pytest.raises(ValueError, match=f"{env_id!r} is not known. Did you mean .*({nearest}).*written 'CartPole-v1'"):
        make_env(env_id)


def test_a_name_does_not_import_a_module():
    with pytest.raises(ValueError, match=r"'xyzzy' is not known. Environments are written"):
        make_env("xyzzy")
    with pytest.raises(ValueError, match="asks to import the module 'antigravity'"):
        make_env("antigravity:CartPole-v1")
    assert "antigravity" not in sys.modules


def test_packages_that_are_missing_or_too_old(monkeypatch):
    versions = {"jax": "0.8.1", "flax": "0.13.0rc1", "optax": "1", "brax": "0.14.0", "mujoco": "3.1.6"}

    def version(name):
        if name not in versions:
            raise metadata.PackageNotFoundError
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    # None in sys.modules makes an import fail as it does where the package is not installed.
    monkeypatch.setitem(sys.modules, "brax", None)
    wrong = r"mujoco>=3.3 \(installed: 3.1.6\), mujoco-mjx>=3.3 \(not installed\)"
    with pytest.raises(ImportError, match=rf"^brax/ant needs {wrong}: pip install 'multippo\[brax\]'\.$"):
        make_env("brax/ant")


def test_a_gymnasium_environment_without_its_package():
    def broken(**kwargs):
        raise gymnasium.error.DependencyNotInstalled('run `pip install "gymnasium[box2d]"`')

    gymnasium.register("MultippoTestBroken-v0", entry_point=broken)
    try:
        with pytest.raises(ImportError, match=r"MultippoTestBroken-v0 needs a package.*gymnasium\[box2d\]"):
            make_env("MultippoTestBroken-v0")
    finally:
        del gymnasium.registry["MultippoTestBroken-v0"]


def test_objects(clock):
    vector_env = SyncVectorEnv([clock] * 2, autoreset_mode=AutoresetMode.DISABLED)
    env = make_env(vector_env)
    assert isinstance(env, GymnasiumEnv)
    assert env.vector_env is vector_env
    assert make_env(env) is env
    assert make_env(env, num_envs=2) is env
    assert make_env(clock, num_envs=3).num_envs == 3
    assert make_env([clock, lambda: clock(5)]).id == "Clock"
    assert make_env(clock()).num_envs == 1
    functional = make_env(FunctionalGoal(), num_envs=4)
    assert isinstance(functional, FunctionalEnv)
    assert functional.num_envs == 4


def test_a_list_repeats_in_another_batch_size(clock):
    env = make_env([lambda: clock(1), lambda: clock(2)]).similar(3)
    assert [member.unwrapped.length for member in env.vector_env.envs] == [1, 2, 1]


def one(clock):
    """A function that returns one environment again and again."""
    env = clock()
    return lambda: env


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda clock: make_env(clock(), num_envs=2), "One Clock can't become 2.*lambda: Clock"),
        (lambda clock: make_env(clock()).similar(2), "eval_env="),
        (lambda clock: make_env(3), "can't be made from 3 of type int"),
        (lambda clock: make_env(clock, vectorization="processes"), "'processes' is not known: expected one of auto,"),
        (lambda clock: make_env([clock, lambda: clock(size=9)]), "Environment 1, Clock, has the observation_space Box"),
        (lambda clock: make_env([one(clock)] * 3), r"Environments of .* are one .*lambda: Clock\(...\)"),
        (lambda clock: make_env(SyncVectorEnv([one(clock)] * 2)), "Environments of .* are one"),
    ],
)
def test_what_does_not_fit_is_refused(clock, make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make(clock)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda _: make_env("CartPole-v1", num_env=2), r"make_env\(\) got .*'num_env'.*'num_envs'"),
        (lambda _: make_env("Pendulum-v1", zzz=2), r"'zzz'. It takes .*render_mode, g.$"),
        (lambda clock: make_env(clock, max_steps=2), "'max_steps'. Did you mean 'max_episode_steps'"),
        (lambda _: make_env("brax/ant", episode_len=9), "Did you mean 'episode_length'"),
    ],
)
def test_an_argument_that_nobody_takes_is_answered_with_the_nearest(clock, make, message):
    with pytest.raises(TypeError, match=message):
        make(clock)


def test_errors_of_the_environments_own_pass(clock):
    with pytest.raises(TypeError, match=r"^Clock.__init__\(\) got an unexpected keyword argument 'red'$"):
        make_env(lambda: clock(red=1), action_repeat=2)
