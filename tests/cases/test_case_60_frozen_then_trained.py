"""A part that is frozen does not move by a bit, and is trained again from moments of zero.

Seen in hill-a/stable-baselines#459, DLR-RM/stable-baselines3#70, #1414.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import training

import multippo as mp
from multippo.networks.core.error_paths import all_modules
from multippo.testing import Clock


def make() -> Any:
    env = Clock(2, num_envs=2)
    return mp.make_recurrent_actor_critic(env.observation_space, env.action_space, 4, rngs=mp.Rngs(0))


def go_on(network: Any, iterations: int, state: Any = None) -> Any:
    steps = {"total_steps": 8 * iterations, "num_epochs": 1, "num_minibatches": 1}
    return training.train(Clock(2, num_envs=2), network, initial_state=state, **steps).state


def moved(before: dict[str, np.ndarray], network: Any) -> set[str]:
    return {name for name, value in mp.to_portable(network).items() if (value != before[name]).any()}


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.nightly_if("jax")
def test_freeze_train_save_load_unfreeze_go_on_and_freeze_again(engine: Any, saved: bool, tmp_path: Path):
    network = make()
    trained = {name for name, leaf in engine.leaves(network).items() if leaf.trained}
    frozen = {name for name in trained if name.startswith("layers.1.action.layers.1.")}
    part = next(module for module in all_modules(network) if isinstance(module, mp.LSTM))
    before = mp.to_portable(network)
    mp.freeze(part)
    state = go_on(network, 1)
    assert moved(before, network) & trained == trained - frozen

    middle = mp.to_portable(network)
    if saved:
        mp.save_checkpoint(tmp_path / "saved", state, network)
        network = make()  # of which nothing is frozen
        state = mp.load_checkpoint(tmp_path / "saved", network)
        part = next(module for module in all_modules(network) if isinstance(module, mp.LSTM))
        assert not moved(middle, network)
    else:
        mp.unfreeze(part)
    state = go_on(network, 2, state)
    assert moved(middle, network) & trained == trained
    first, second, count = training.portable_moments(network, state)
    assert count == 2
    for name in trained:
        # One step from zero leaves (1 - 0.9) g and (1 - 0.999) g^2; of two no moments are so.
        of_one_step = np.allclose(second[name], 1e-3 * (first[name] / 0.1) ** 2, rtol=1e-3, atol=0)
        assert of_one_step == (name in frozen), name

    last = mp.to_portable(network)
    mp.freeze(part)
    go_on(network, 3, state)
    assert moved(last, network) & trained == trained - frozen


def test_nothing_moves_in_a_network_that_is_frozen_as_a_whole(engine: Any, caplog: pytest.LogCaptureFixture):
    network = make()
    trained = {name for name, leaf in engine.leaves(network).items() if leaf.trained}
    before = mp.to_portable(network)
    mp.freeze(network)
    go_on(network, 1)
    assert not moved(before, network) & trained
    assert "every parameter is frozen" in caplog.text
