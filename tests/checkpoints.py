"""What the tests of checkpoints share: a small run's state, saved and compared."""

from pathlib import Path
from typing import Any

import numpy as np
import support

import multippo as mp
from multippo.algorithms.types import EpisodeState
from multippo.testing import FunctionalClock, TableNet


def clock(num_envs: int = 4) -> Any:
    return mp.make_env(FunctionalClock(3, "truncated"), num_envs=num_envs)


def table_net(seed: int = 0) -> Any:
    return TableNet([0.5, 0.25, 0.0, -0.5], rngs=mp.Rngs(seed))


def noisy_network(seed: int, several_values: bool = False) -> Any:
    """Statistics, noise in the trunk, memory, a sampler whose entropy draws; values of one reward, or of two."""
    rngs = mp.Rngs(seed)
    trunk = [mp.Normalizer(1), mp.Dropout(0.5, rngs), mp.LSTM(1, 3, rngs)]
    action = mp.Sequential([mp.Dense(3, 2, rngs), mp.NormalTanhSampler(rngs)])
    values = (
        mp.Parallel(near=mp.Dense(3, 1, rngs), far=mp.Dense(3, 1, rngs)) if several_values else mp.Dense(3, 1, rngs)
    )
    network = mp.Sequential([*trunk, mp.PPOAdapter(action=action, value=values)])
    support.fill_randomly(network, seed)
    mp.load_portable(network[0], mp.to_portable(mp.Normalizer(1)))
    return network


def state_of(network: Any, env: Any = None) -> mp.TrainingState:
    """The state of a run of 4 environments that has not been trained, with numbers that tell arrays apart."""
    engine = network.engine
    split, leaves = engine.split(network), engine.leaves(network).values()
    moments = {
        leaf.native_path: leaf.from_portable(np.arange(leaf.read().size, dtype=np.float32).reshape(leaf.read().shape))
        for leaf in leaves
        if leaf.trained
    }
    return mp.TrainingState(
        definition=split.definition,
        params=engine.snapshot(split.params),
        variables=engine.snapshot(split.variables),
        optimizer_state=(moments, {name: 2 * value for name, value in moments.items()}, 8),
        network_state=network.initialize_state(4),
        env_state=(env or clock()).reset(1),
        episodes=EpisodeState(engine.zeros((4,)) + 1, engine.zeros((4,)) + 2),
        key=engine.random.key(2**40 + 1),
        iteration=2,
        step=32,
    )


def saved(path: Path, network: Any = None, **options: Any) -> mp.TrainingState:
    """Saves such a state."""
    network = network or table_net()
    state = state_of(network)
    mp.save_checkpoint(path, state, network, **options)
    return state


def files_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}
