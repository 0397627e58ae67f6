"""One module at two places of a network: stored once, loaded into both places, trained by the sum of its gradients."""

from typing import Any

import numpy as np
import pytest
import support
import training

import multippo as mp
from multippo.testing import Goal

# Conformance and the cases have JAX by day.
pytestmark = pytest.mark.nightly_if("jax")


def head(rngs: mp.Rngs) -> Any:
    return mp.Sequential([mp.Dense(3, 2, rngs), mp.NormalTanhSampler(rngs, 0.01)])


def at_two_places(seed: int = 0) -> Any:
    """The same two layers at the root of the actor and of the critic, and the first of them twice in a row."""
    rngs = mp.Rngs(seed)
    first, second = mp.Dense(1, 3, rngs, activation="tanh"), mp.Dense(3, 3, rngs, activation="tanh")
    actor = mp.Sequential([first, second, second, head(rngs)])
    network = mp.PPOAdapter(action=actor, value=mp.Sequential([first, second, second, mp.Dense(3, 1, rngs)]))
    support.fill_randomly(network, seed)
    return network


class Twice(mp.StatefulModule):
    """One layer, called twice."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return self.layer((), self.layer((), x).output)


def at_one_place(seed: int = 0) -> Any:
    """The same function without sharing between actor and critic, or in a list."""
    rngs = mp.Rngs(seed)
    trunk = [mp.Dense(1, 3, rngs, activation="tanh"), Twice(mp.Dense(3, 3, rngs, activation="tanh"))]
    return mp.Sequential([*trunk, mp.PPOAdapter(action=head(rngs), value=mp.Dense(3, 1, rngs))])


# Where at_two_places has what at_one_place has under the name before it.
PLACES = {
    "layers.0.": "action.layers.0.",
    "layers.1.layer.": "action.layers.1.",
    "layers.2.action.layers.0.": "action.layers.3.layers.0.",
    "layers.2.action.layers.1.": "action.layers.3.layers.1.",
    "layers.2.value.": "value.layers.3.",
}


def renamed(arrays: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, array in arrays.items():
        (start,) = [start for start in PLACES if name.startswith(start)]
        found[PLACES[start] + name.removeprefix(start)] = array
    return found


def train(network: Any, env: Any = None, **options: Any) -> training.Run:
    return training.train(env or Goal(2), network, learning_rate=0.05, num_epochs=2, **options)


def test_it_is_trained_as_one_place_would_be(engine: Any):
    shared, single = at_two_places(), at_one_place()
    before = mp.to_portable(shared)
    inverse = {there: here for here, there in zip(mp.to_portable(single), renamed(mp.to_portable(single)), strict=True)}
    mp.load_portable(single, {inverse[name]: array for name, array in before.items()})
    runs = [train(network, iterations=2) for network in (shared, single)]
    for name in ("losses/actor", "losses/critic", "gradient/norm"):  # the norm counts what is shared once
        np.testing.assert_allclose(runs[0].column(name), runs[1].column(name), rtol=2e-5, err_msg=name)
    after = mp.to_portable(shared)
    support.assert_trees_close(after, renamed(mp.to_portable(single)), 2e-5)
    for name, array in after.items():
        if name.endswith(("kernel", "bias")):
            assert np.abs(array - before[name]).max() > 1e-3, name
