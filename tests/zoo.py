"""Networks that between them hold every module, each on four input features."""

from typing import Any

import gymnasium
import numpy as np

import multippo as mp


def leaves() -> Any:
    """Every leaf module side by side, so that a difference is reported under the module's name."""
    rngs = mp.Rngs(0)
    return mp.Parallel(
        dense=mp.Dense(4, 3, rngs, "tanh"),
        normalizer=mp.Normalizer(4),
        splitter=mp.Splitter(z=1, a=2),
        lstm=mp.LSTM(4, 3, rngs),
        lstm_initial=mp.LSTM(4, 3, rngs, trainable_initial_state=True),
        normal_tanh=mp.NormalTanhSampler(rngs),
        normal_tanh_entropy=mp.NormalTanhSampler(rngs, 0.1, min_std=0.2, std_scale=0.5),
        categorical=mp.CategoricalSampler(rngs),
        categorical_entropy=mp.CategoricalSampler(rngs, 0.1),
        normal=mp.NormalSampler(rngs, action_shape=(2, 1)),
        normal_independent=mp.NormalSampler(rngs, 0.1, action_shape=4, state_dependent_std=False),
        multi_categorical=mp.MultiCategoricalSampler([[1], [3]], rngs, 0.1),
        bernoulli=mp.BernoulliSampler(rngs, 0.1),
        structure=mp.Sequential([mp.Splitter(a=2, b=1), mp.Map(a=mp.Scale(0.5), b=mp.Flattener()), mp.Filter("a")]),
    )


def nested() -> Any:
    """Containers in containers, keys that no framework likes, one layer at two places."""
    rngs = mp.Rngs(1)
    shared = mp.Dense(3, 3, rngs, "swish")
    inner = mp.Parallel({"keys": mp.LSTM(3, 2, rngs), "a.b": mp.Sequential([shared, mp.Dense(3, 2, rngs)])})
    front = mp.Concat(z=mp.Dense(1, 1, rngs), a=mp.Sequential([mp.LSTM(3, 2, rngs, trainable_initial_state=True)]))
    return mp.Sequential([mp.Splitter(z=1, a=3), front, shared, inner])


def shared_trunk() -> Any:
    """Normaliser, one recurrent trunk, a categorical actor and a critic."""
    return mp.make_recurrent_actor_critic(
        4,
        gymnasium.spaces.Discrete(3),
        5,
        mp.Rngs(2),
        encoder_sizes=(6,),
        shared=True,
        entropy_weight=0.05,
        trainable_initial_state=True,
    )


def separate_trunks() -> Any:
    """Normaliser, recurrent actor of continuous actions, recurrent critic."""
    return mp.make_recurrent_actor_critic(
        4, 2, 5, mp.Rngs(3), encoder_sizes=(6,), actor_hidden_sizes=(4,), critic_hidden_sizes=(4,), entropy_weight=0.05
    )


def feed_forward() -> Any:
    """Normaliser and two perceptrons."""
    return mp.make_mlp_actor_critic(4, 2, (5,), (5,), mp.Rngs(4))


NETWORKS = {function.__name__: function for function in (leaves, nested, shared_trunk, separate_trunks, feed_forward)}

TIME, BATCH = 7, 6


def inputs(seed: int = 0) -> np.ndarray:
    """``[T, B, 4]``."""
    return np.random.default_rng(seed).normal(size=(TIME, BATCH, 4))


def _episode_ends() -> dict[str, np.ndarray]:
    none = np.zeros((TIME, BATCH), bool)
    last = none.copy()
    last[-1] = True
    mixed = none.copy()
    mixed[0, 1] = True  # first step
    mixed[-1, 2] = True  # last step
    mixed[2:4, 3] = True  # two in a row
    mixed[:, 4] = True  # every step
    mixed[1::3, 5] = True  # episodes of two and three steps, the last one open
    short = none.copy()
    for env in range(BATCH):
        short[env % 3 :: 3, env] = True  # every episode shorter than T, at other steps in each environment
    return {"none": none, "last": last, "mixed": mixed, "short": short}


EPISODE_ENDS = _episode_ends()
