"""Heads of zeros and observations of zeros learn: at a kink, too, the gradient is that of the definition.

Seen in multippo: on JAX the standard deviations of Gaussians, and all of a BernoulliSampler, stayed what they were.
"""

from typing import Any

import gymnasium
import numpy as np
import pytest
import support
from multippo.conformance.specimens.scripted_environment import ScriptedEnv

import multippo as mp

SPACES = gymnasium.spaces
BOX, LINE = SPACES.Box(-1.0, 1.0, (1,), np.float32), SPACES.Box(-np.inf, np.inf, (1,), np.float32)
# Name -> features of the input, the module, and the action space of a sampler.
DRAWS: dict[str, Any] = {
    "tanh": (2, lambda: mp.NormalTanhSampler(mp.Rngs(0), 0.1), BOX),
    "plain": (2, lambda: mp.NormalSampler(mp.Rngs(0), 0.1), LINE),
    "alone": (1, lambda: mp.NormalSampler(mp.Rngs(0), 0.1, action_shape=1, state_dependent_std=False), LINE),
    "one_of": (3, lambda: mp.CategoricalSampler(mp.Rngs(0), 0.1), SPACES.Discrete(3)),
    "grid": (5, lambda: mp.MultiCategoricalSampler([2, 3], mp.Rngs(0), 0.1), SPACES.MultiDiscrete([2, 3])),
    "switches": (2, lambda: mp.BernoulliSampler(mp.Rngs(0), 0.1), SPACES.MultiBinary(2)),
    "code": (2, lambda: mp.VariationalBottleneck(1, mp.Rngs(0), 0.3), None),
    "ar1": (2, lambda: mp.AR1VariationalBottleneck(1, mp.Rngs(0), 0.3, prior_correlation=0.5), None),
}
SAMPLERS = [name for name, (*_, space) in DRAWS.items() if space is not None]


def zeroed(layer: Any) -> Any:
    mp.load_portable(layer, {name: 0.0 * value for name, value in mp.to_portable(layer).items()})
    return layer


def heads(names: list[str], *, zero: bool) -> dict[str, Any]:
    """A layer and what draws, by name: the layer's weights are 0, or what comes to it is."""
    return {
        f"{name}_{zero}": mp.Sequential(
            [
                *([] if zero else [mp.Scale(0.0)]),
                zeroed(mp.Dense(2, DRAWS[name][0], mp.Rngs(1))) if zero else mp.Dense(2, DRAWS[name][0], mp.Rngs(1)),
                DRAWS[name][1](),
            ]
        )
        for name in names
    }


def every_head() -> Any:
    # Where the input is 0, a head is at the same point as where its weights are: a few will do.
    return mp.Parallel({**heads(list(DRAWS), zero=True), **heads(["tanh", "switches", "code"], zero=False)})


XS = np.random.default_rng(0).normal(size=(2, 3, 2))
DONE = np.asarray([[False, True, False], [False, False, True]])


def loss(module: Any, extras: Any) -> Any:
    engine = module.engine
    state, xs = module.initialize_state(3), engine.asarray(XS)
    out = module.unroll(state, xs, engine.asarray(DONE), support.tree_map(engine.asarray, extras))
    return support.total(module.xp, (out.output, out.regularization_loss))


def by_differences(module: Any, extras: Any) -> dict[str, np.ndarray]:
    """Central differences of NumPy's loss, number by number."""
    arrays, found = mp.to_portable(module), {}
    for name, leaf in module.engine.leaves(module).items():
        for place in np.ndindex(arrays[name].shape) if leaf.trained else ():
            values = []
            for step in (-1e-5, 1e-5):
                moved = np.array(arrays[name])
                moved[place] += step
                mp.load_portable(module, {**arrays, name: moved})
                values.append(float(loss(module, extras)))
            found.setdefault(name, np.zeros(arrays[name].shape))[place] = (values[1] - values[0]) / 2e-5
        mp.load_portable(module, arrays)
    return found


@pytest.fixture(scope="module")
def expected() -> Any:
    """The gradient of every parameter by differences, and the samples it was taken with."""
    with mp.use_backend("numpy") as engine:
        module = every_head()
        state = module.initialize_state(3)
        extras = module.unroll(state, engine.asarray(XS), engine.asarray(DONE)).rollout_extras
        return by_differences(module, extras), extras


@pytest.mark.usefixtures("float64")
def test_gradients_are_those_of_the_definition(engine: Any, expected: Any):
    differences, extras = expected
    module = every_head()
    found = support.gradients(module, lambda module: loss(module, extras))
    support.assert_trees_close(found, differences, 1e-7)


@pytest.mark.nightly_if("jax")
def test_everything_learns(engine: Any):
    """Ten iterations of PPO: nothing that has a gradient stays where it was, by a single number."""
    actor = {**heads(SAMPLERS, zero=True), **heads(["tanh", "switches"], zero=False)}
    for name, part in heads(["code", "ar1"], zero=True).items():
        actor[name] = mp.Sequential([part, mp.Dense(1, 2, mp.Rngs(2)), mp.NormalSampler(mp.Rngs(3))])
    network = mp.PPOAdapter(action=mp.Parallel(actor), value=zeroed(mp.Dense(2, 1, mp.Rngs(4))))
    env = ScriptedEnv((2,), SPACES.Dict({name: DRAWS[name.rpartition("_")[0]][2] or LINE for name in actor}))
    before = mp.to_portable(network)
    sizes = {"num_envs": 6, "rollout_length": 4, "total_steps": 10 * 6 * 4, "num_epochs": 1, "num_minibatches": 1}
    mp.train_ppo(env, network, mp.TrainConfig(ppo=mp.PPOConfig(**sizes, learning_rate=1e-2)))
    after, leaves = mp.to_portable(network), engine.leaves(network)
    still = [name for name, leaf in leaves.items() if leaf.trained and np.any(after[name] == before[name])]
    # Kernels that multiply zeros have no gradient, by definition.
    assert sorted(still) == [f"action.components.{name}_False.layers.1.kernel" for name in ("switches", "tanh")]
