"""Networks, results and settings are pickled and copied, and what is made of them is as good as the first.

Seen in DLR-RM/stable-baselines3#1460, google/flax#3825, numba/numba#7388.
"""

import contextlib
import copy
import functools
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest

import multippo as mp
from multippo.testing import Clock


class Around(mp.StatefulModule):
    """A class that a fresh process does not find by its name."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> Any:
        return self.inner(state, x, rollout_extras)

    def initialize_state(self, batch_size: int) -> Any:
        return self.inner.initialize_state(batch_size)


def config(iterations: int) -> Any:
    steps = {"rollout_length": 2, "num_epochs": 1, "num_minibatches": 1, "total_steps": 4 * iterations}
    return mp.TrainConfig(ppo=mp.PPOConfig(**steps))


def make() -> Any:
    env = Clock(2, num_envs=2)
    if mp.get_backend() == "jax":  # where a recurrent one compiles for longer
        return Around(mp.make_mlp_actor_critic(env.observation_space, env.action_space, [4], [4], rngs=mp.Rngs(0)))
    return Around(mp.make_recurrent_actor_critic(env.observation_space, env.action_space, 4, rngs=mp.Rngs(0)))


WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "cloudpickle": lambda x: cloudpickle.loads(cloudpickle.dumps(x)),
    "deepcopy": copy.deepcopy,
}


@pytest.fixture(scope="module", params=["jax", "torch"])
def finished(request: pytest.FixtureRequest) -> Any:
    with mp.use_backend(request.param) as engine:
        network = make()
        return engine, network, mp.train_ppo(Clock(2, num_envs=2), network, config(1))


@pytest.mark.parametrize("way", WAYS)
def test_in_one_process(finished: Any, way: str):
    engine, network, result = finished
    again, other = WAYS[way](network), WAYS[way](result)
    assert type(again) is type(network)
    before = mp.to_portable(network)
    assert before.keys() == mp.to_portable(again).keys()
    with mp.use_backend(engine.name):
        mp.Sequential([again])  # another engine's would be refused
        # From the copies as from the first: they and the state share nothing.
        mp.train_ppo(Clock(2, num_envs=2), again, config(2), initial_state=other.training_state)
        first = make()
        mp.train_ppo(Clock(2, num_envs=2), first, config(2), initial_state=result.training_state)
    expected = mp.to_portable(first)
    for name, value in mp.to_portable(again).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)
        np.testing.assert_array_equal(mp.to_portable(network)[name], before[name], err_msg=name)


@pytest.mark.parametrize("way", WAYS)
def test_what_has_no_engine(way: str):
    settings = config(3)
    assert WAYS[way](settings) == settings
    assert WAYS[way](mp.Rngs(3)).key().tolist() == mp.Rngs(3).key().tolist()
    with contextlib.closing(WAYS[way](functools.partial(mp.make_env, "CartPole-v1", 2))()) as env:
        assert env.num_envs == 2


_GOES_ON = """
import pickle, sys
network, result, config, weights = pickle.load(sys.stdin.buffer)
import multippo as mp, numpy as np
from multippo.testing import Clock
for name, value in mp.to_portable(network).items():
    np.testing.assert_array_equal(value, weights[name])
with mp.use_backend(network.engine.name):
    mp.Sequential([network])
    result = mp.train_ppo(Clock(2, num_envs=2), network, config, initial_state=result.training_state)
print(result.total_steps)
"""


@pytest.mark.nightly_if("jax")
def test_in_a_fresh_process(finished: Any):
    _, network, result = finished
    # What is in this file goes by value: by name it would not be found there.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        sent = cloudpickle.dumps((network, result, config(2), mp.to_portable(network)))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    done = subprocess.run([sys.executable, "-c", _GOES_ON], input=sent, capture_output=True, check=False)
    assert done.stdout == b"8\n", done.stderr.decode()
