"""Straight code computes what the network computes, step by step and environment by environment."""

from typing import Any

import numpy as np
import pytest
from multippo.conformance.specimens.module_specimens import MODULES
from multippo.conformance.specimens.network_specimens import NETWORKS
from multippo.conformance.specimens.scripted_environment import NUM_ENVS as B
from multippo.conformance.specimens.scripted_environment import NUM_STEPS as T
from multippo.conformance.specimens.scripted_environment import script_ends
from multippo.conformance.specimens.specimen import ModuleSpecimen, randomise

import multippo as mp
from multippo.networks.core.unrolling import reset_where
from multippo.random import host
from multippo.straight.acting import Straight
from multippo.trees import select, tree_leaves, tree_map

SPECIMENS = [one for one in (*MODULES, *NETWORKS) if not one.only_on and not one.requires]
VALID = host.uniform(host.key(3), (T, B)) < 0.8


class Around(mp.StatefulModule):
    """A network of any module: its output are the actions, means over it the value and the likelihood."""

    def __init__(self, inner: mp.StatefulModule) -> None:
        self.inner = inner

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        out = self.inner(state, x, rollout_extras)
        floats = [leaf for leaf in tree_leaves(out.output) if self.xp.isdtype(leaf.dtype, "real floating")]
        rows: Any = sum(self.xp.sum(self.xp.reshape(leaf, (leaf.shape[0], -1)), axis=-1) for leaf in floats)
        rows = rows + self.zeros((tree_leaves(x)[0].shape[0],))
        return out._replace(output=mp.PPONetworkOutput(out.output, rows, 2.0 * rows))

    def initialize_state(self, batch_size: int) -> Any:
        return self.inner.initialize_state(batch_size)

    def reset_state(self, prev_state: Any) -> Any:
        return self.inner.reset_state(prev_state)

    def draw_ahead(self, state: Any, rollout_extras: Any, num_steps: int, replay: bool = False) -> Any:
        return self.inner.draw_ahead(state, rollout_extras, num_steps, replay)


def network_and_obs(specimen: Any, dtype: Any) -> tuple[Any, list[Any]]:
    """The network on the active engine, and T + 1 observations in NumPy; in the place of the last: final ones."""
    if isinstance(specimen, ModuleSpecimen):
        network, xs = Around(specimen.build()), specimen.sample(host.key(1))
        obs = [tree_map(lambda x, t=t: x[t], xs) for t in range(T)]
    else:
        network, env = specimen.build(), specimen.env()
        obs = [env.reset(host.key(0)).obs]
        obs += [env._observe(env._obs_key) for env._step in range(1, T)]
    randomise(network)
    return network, [tree_map(lambda x: x.astype(dtype) if x.dtype.kind == "f" else x, one) for one in obs]


def compare(found: Any, expected: Any, rtol: float) -> None:
    assert len(tree_leaves(found)) == len(tree_leaves(expected))
    for one, other in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one.astype(np.float64), other.astype(np.float64), rtol=rtol, atol=rtol)


def check(engine: Any, specimen: Any, may_skip: bool, dtype: Any, rtol: float) -> None:
    network, obs = network_and_obs(specimen, dtype)
    ended, valid = script_ends(), VALID if may_skip else np.ones((T, B), bool)
    to_numpy = lambda tree: tree_map(lambda x: np.array(engine.to_numpy(x)), tree)  # noqa: E731
    own = lambda tree: tree_map(engine.asarray, tree)  # noqa: E731
    start = engine.snapshot(network.initialize_state(B))
    call = engine.draft(
        lambda state, x: (lambda out: (out.next_state, out.output, out.rollout_extras))(network(state, x))
    )
    settle = engine.draft(
        lambda before, after, done, valid: select(engine.xp, valid, reset_where(network, done, after), before)
    )
    with engine.no_grad():
        state, steps, states, values = start, [], [], []
        for t in range(T):
            after, output, extras = call(state, own(obs[t]))
            steps.append(to_numpy((output, extras)))
            values.append(to_numpy(call(after, own(obs[t - 1]))[1].value_estimates))
            states.append(to_numpy(state))
            state = settle(state, after, engine.asarray(ended[t]), engine.asarray(valid[t]))
    straight = Straight(network, start, own(obs[0]), T, call(start, own(obs[0])))
    split = engine.split(network)
    straight.load(split.params, split.variables)
    straight.check(start, tree_leaves(obs[0]), call(start, own(obs[0])))
    for _ in range(2):  # a second rollout has nothing of the first
        straight.load(split.params, split.variables)
        straight.begin(start, 3)
        for t in range(T):
            actions = straight.act(t, tree_leaves(obs[t]))
            compare(actions, steps[t][0].actions, rtol)
            compare(list(straight.value(tree_leaves(obs[t - 1]))), tree_leaves(values[t]), rtol)
            straight.settle(ended[t] if ended[t].any() else None, None if valid[t].all() else valid[t])
        output, extras, last, starts = straight.finish(tree_leaves(tree_map(lambda *x: np.stack(x), *obs)))
        compare((output, extras), tree_map(lambda *x: np.stack(x), *steps), rtol)
        compare(last, to_numpy(state), rtol)
        compare(starts, tree_map(lambda *x: np.stack(x), *states[::3]), rtol)


@pytest.mark.parametrize("specimen", SPECIMENS, ids=lambda one: one.name)
def test_in_double_precision_as_torch_does(specimen: Any, torch_engine: Any):
    with torch_engine.precision("float64"):
        check(torch_engine, specimen, True, np.float64, 1e-10)


PICKED = ("LSTM, shared trunk, trainable initial state", "MLP, discrete, large observations, skipped steps, options")


@pytest.mark.parametrize("specimen", [s for s in SPECIMENS if s.name in PICKED], ids=lambda one: one.name)
def test_in_single_precision(specimen: Any, engine: Any):
    check(engine, specimen, False, np.float32, 1e-5)
