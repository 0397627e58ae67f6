"""A network that holds or carries random keys, and an environment that does, can be saved and go on drawing.

Seen in google/orbax#2540, #1105, #620, google/flax#4231, talmolab/track-mjx#44.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import support
import training

import multippo as mp
from multippo.testing import Clock, FunctionalGoal, NoisyNet, TableNet


class Keyed(TableNet):
    """Holds a key of its own as a tracked variable; draws from it to shift its values."""

    def __init__(self, key: Any) -> None:
        super().__init__([0.0] * 4)
        self.key = mp.Variable(key)

    def heads(self, memory: Any, x: Any) -> tuple[Any, Any, Any]:
        memory, logits, value = super().heads(memory, x)
        return memory, logits, value + self.draw()

    def draw(self) -> Any:
        key = self.key[...]
        if self.engine.name == "jax" and jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
            return jax.random.normal(key)
        return self.random.normal(key, ())


@pytest.fixture(autouse=True)
def without_orbax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever imports it fails."""
    for name in ("orbax", "orbax.checkpoint"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.nightly_if("jax")
def test_keys_in_the_carry(engine: Any, tmp_path: Path):
    network, other = (NoisyNet(4, 2, mp.Rngs(seed)) for seed in (0, 1))
    run = training.train(Clock(3, "truncated", 2), network, iterations=1)
    mp.save_checkpoint(tmp_path / "a", run.state, network)
    state = mp.load_checkpoint(tmp_path / "a", other)
    support.assert_trees_close(support.words(state.network_state), support.words(run.state.network_state), 0.0)
    # The next draws.
    found = []
    for net, carry in ((network, run.state.network_state), (other, state.network_state)):
        env = Clock(3, "truncated", 2)
        transition = mp.unroll_env(env, env.reset(0), net, carry, 4, mp.random.key(0))[2]
        found.append(support.to_numpy(transition)._replace(metrics=()))
    support.assert_trees_close(found[1], found[0], 0.0)
    assert np.ptp(found[0].network_output.value_estimates) > 0.1


@pytest.mark.parametrize(("engine", "typed"), [("torch", False), ("jax", True)], indirect=["engine"])
@pytest.mark.nightly_if("jax")
def test_a_key_in_the_network(engine: Any, typed: bool, tmp_path: Path):
    network, other = (Keyed(jax.random.key(seed) if typed else mp.Rngs(seed).key()) for seed in (5, 6))
    before = float(support.to_numpy(network.draw()))
    assert before != float(support.to_numpy(other.draw()))
    run = training.train(Clock(3, num_envs=2), network, iterations=1)
    mp.save_checkpoint(tmp_path / "a", run.state, network)
    mp.load_checkpoint(tmp_path / "a", other)
    assert float(support.to_numpy(other.draw())) == before


class WithKey(FunctionalGoal):
    """Carries a key of its own, typed or raw, and pays by it."""

    def __init__(self, typed: bool) -> None:
        super().__init__(3)
        self.typed = typed

    def reset(self, key: Any) -> Any:
        state = super().reset(key)
        own = jax.random.wrap_key_data(key) if self.typed else key
        return state._replace(info={**state.info, "key": own})

    def step(self, state: Any, action: Any) -> Any:
        after = super().step(state, action)
        key, drawn = jax.random.split(state.info["key"])
        return after._replace(reward=jax.random.uniform(drawn), info={**after.info, "key": key})


@pytest.mark.parametrize("typed", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_keys_in_an_environments_state(torch_engine: Any, typed: bool, tmp_path: Path):
    network = support.actor_critic(1, "NormalTanhSampler")

    def go(initial_state: Any = None) -> Any:
        options = {"config": {"checkpoint_every_steps": 8}, "initial_state": initial_state}
        return training.train(mp.make_env(WithKey(typed), num_envs=2), network, iterations=2, **options)

    run = go()
    mp.save_checkpoint(tmp_path / "a", run.checkpoints[0][0], network)
    rest = go(mp.load_checkpoint(tmp_path / "a", network))
    for name in ("rollout/episode_reward/mean", "losses/critic"):
        assert rest.column(name) == run.column(name)[1:]
