"""Noise drawn ahead is the noise drawn step by step, wherever each environment stands."""

import numpy as np
import pytest
from support import assert_trees_close, compiled, to_numpy

import multippo as mp
from multippo.networks.core.random_state import RandomState, forget_drawn, map_random_states, reseed
from multippo.trees import select, tree_map

SAMPLERS = {
    "normal_tanh": lambda: mp.NormalTanhSampler(mp.Rngs(0)),
    "normal_tanh_entropy": lambda: mp.NormalTanhSampler(mp.Rngs(0), 0.1),
    "categorical": lambda: mp.CategoricalSampler(mp.Rngs(0)),
}
NOISY = {
    **SAMPLERS,
    "dropout": lambda: mp.Dropout(0.5, mp.Rngs(0)),
    "bottleneck": lambda: mp.VariationalBottleneck(2, mp.Rngs(0), 0.5),
    "ar1": lambda: mp.AR1VariationalBottleneck(2, mp.Rngs(0), 0.5, 0.1, 3.0),
}
B, T = 3, 5
INPUTS = np.random.default_rng(0).normal(size=(T, B, 4)).astype(np.float32)
HELD = np.asarray([[0, 1, 0], [0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0]], bool)


def rollout(module, state):
    """Outputs of T steps; a row that is held keeps its carry, as after a step that was none."""

    def step(module, state, x, held):
        out = module(state, x)
        return out.output, select(module.xp, held, state, out.next_state)

    outputs, step = [], compiled(module, step)
    for t in range(T):
        output, state = step(state, module.engine.asarray(INPUTS[t]), module.engine.asarray(HELD[t]))
        outputs.append(to_numpy(output))
    return outputs, state


def tapes(state):
    """One for each random state; None where nothing is drawn ahead."""
    found = []
    map_random_states(lambda random_state: found.append(random_state.tape) or random_state, state)
    return found


@pytest.mark.parametrize("name", NOISY)
def test_the_same_noise_with_and_without_a_tape(engine, name):
    module, xs = NOISY[name](), engine.asarray(INPUTS)
    _, state = rollout(module, module.initialize_state(B))  # counts that differ
    ahead = compiled(module, lambda m, s, x: m.draw_ahead(s, m(s, x).rollout_extras, 2 * T))
    taped = ahead(state, xs[0])
    assert all(tape.shape[:2] == (B, 2 * T) for tape in tapes(taped)) and tapes(state) == [None] * len(tapes(taped))
    (plain, after), (got, after_taped) = rollout(module, state), rollout(module, taped)
    assert_trees_close(got, plain, 1e-6)
    assert_trees_close(forget_drawn(after_taped), after, 1e-6)
    # And at once, the rows at other places of their tapes.
    done = engine.asarray(np.arange(T * B).reshape(T, B) % 4 == 0)
    unroll = compiled(module, lambda m, s: tuple(m.unroll(s, xs, done))[:2])
    (after_taped, got), (after, plain) = unroll(after_taped), unroll(after)
    assert_trees_close(got, plain, 1e-6)
    assert_trees_close(forget_drawn(after_taped), after, 1e-6)


@pytest.mark.parametrize("name", SAMPLERS)
def test_counts_are_of_the_steps_that_were_none_held(engine, name):
    sampler = SAMPLERS[name]()
    _, state = rollout(sampler, sampler.initialize_state(B))
    assert to_numpy(state.count).tolist() == [4, 3, 5]


# A code has its noise in replay too; a mask and a sample are stored, and an entropy's estimate is not.
@pytest.mark.parametrize(
    ("name", "draws"),
    [("normal_tanh", False), ("normal_tanh_entropy", True), ("dropout", False), ("bottleneck", True), ("ar1", True)],
)
def test_a_replay_draws_ahead_what_it_does_not_have(engine, name, draws):
    module = NOISY[name]()
    ahead = lambda state, x: module.draw_ahead(state, module(state, x).rollout_extras, T, replay=True)  # noqa: E731
    drawn = engine.shapes(ahead, module.initialize_state(B), engine.zeros((B, 4)))
    assert [tape is not None for tape in tapes(drawn)] == [draws]


def test_every_environment_has_its_own_key_and_every_sampler_its_own_stream(engine):
    rngs = mp.Rngs(0)
    states = [mp.NormalTanhSampler(rngs).initialize_state(50) for _ in range(2)]
    keys = np.concatenate([to_numpy(state.key) for state in states])
    assert len({tuple(key) for key in keys.tolist()}) == 100
    assert not to_numpy(states[0].count).any()


def test_a_reset_keeps_the_stream(engine):
    sampler = SAMPLERS["normal_tanh"]()
    state = sampler(sampler.initialize_state(B), engine.zeros((B, 4))).next_state
    assert_trees_close(sampler.reset_state(state), state, 0.0)


def test_reseeding_gives_each_random_state_a_stream_of_its_own(engine):
    tree = {"x": engine.zeros((B, 2)), "s": [sampler().initialize_state(B) for sampler in SAMPLERS.values()]}
    tree = tree_map(lambda leaf: leaf + 1, tree)
    one, two, other = (reseed(engine.random, tree, mp.random.key(seed)) for seed in (1, 1, 2))
    assert_trees_close(one, two, 0.0)
    assert to_numpy(one["x"]).tolist() == to_numpy(tree["x"]).tolist()
    keys = [to_numpy(state.key) for state in (*one["s"], *other["s"])]
    assert len({tuple(key) for key in np.concatenate(keys).tolist()}) == 6 * B
    assert not any(to_numpy(state.count).any() for state in one["s"])
    assert isinstance(one["s"][0], RandomState)


@pytest.mark.parametrize("shared", [True, False], ids=["one sampler", "equal Rngs"])
def test_reseeding_draws_apart_what_has_one_key(engine, shared):
    first = mp.NormalSampler(mp.Rngs(3))
    net = mp.Map(a=first, b=first if shared else mp.NormalSampler(mp.Rngs(3)))
    drops = mp.Dropout(0.5, mp.Rngs(3))
    drop = mp.Parallel(a=drops, b=drops)
    x = engine.asarray(np.zeros((2000, 2), np.float32))
    carries = [reseed(engine.random, m.initialize_state(2000), mp.random.key(0)) for m in (net, drop)]
    a, b = (to_numpy(net(carries[0], {"a": x, "b": x}).output[key]["action"])[:, 0] for key in "ab")
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.1  # of 2000 pairs: within 4.5 standard deviations of 0
    a, b = (to_numpy(drop(carries[1], x + 1).output[key])[:, 0] for key in "ab")
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.1
