"""Heads of zeros and observations of zeros learn: at a kink, too, the gradient is that of the definition.

Seen in multippo: on JAX the standard deviations of Gaussians, and all of a BernoulliSampler, stayed what they were.
"""

from typing import Any

import numpy as np
import pytest
import support

import multippo as mp

# Name -> features of the input, and the module.
DRAWS: dict[str, Any] = {
    "tanh": (2, lambda: mp.NormalTanhSampler(mp.Rngs(0), 0.1)),
    "plain": (2, lambda: mp.NormalSampler(mp.Rngs(0), 0.1)),
    "alone": (1, lambda: mp.NormalSampler(mp.Rngs(0), 0.1, action_shape=1, state_dependent_std=False)),
    "one_of": (3, lambda: mp.CategoricalSampler(mp.Rngs(0), 0.1)),
    "grid": (5, lambda: mp.MultiCategoricalSampler([2, 3], mp.Rngs(0), 0.1)),
    "switches": (2, lambda: mp.BernoulliSampler(mp.Rngs(0), 0.1)),
    "code": (2, lambda: mp.VariationalBottleneck(1, mp.Rngs(0), 0.3)),
    "ar1": (2, lambda: mp.AR1VariationalBottleneck(1, mp.Rngs(0), 0.3, prior_correlation=0.5)),
}


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
