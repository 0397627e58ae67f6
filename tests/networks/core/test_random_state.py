"""Noise drawn ahead is the noise drawn step by step, wherever each environment stands."""

from __future__ import annotations

import numpy as np
import pytest
from support import assert_trees_close, compiled, to_numpy

import multippo as mp
from multippo.networks.core.random_state import RandomState, forget_drawn, reseed
from multippo.trees import select, tree_map

SAMPLERS = {
    "normal_tanh": lambda: mp.NormalTanhSampler(mp.Rngs(0)),
    "normal_tanh_entropy": lambda: mp.NormalTanhSampler(mp.Rngs(0), 0.1),
    "categorical": lambda: mp.CategoricalSampler(mp.Rngs(0)),
}
samplers = pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
B, T = 3, 5
PARAMETERS = np.random.default_rng(0).normal(size=(T, B, 4)).astype(np.float32)
HELD = np.asarray([[0, 1, 0], [0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0]], bool)


def rollout(engine, sampler, state, held):
    """Actions of T steps; a row that is held keeps its carry, as after a step that was none."""

    def step(sampler, state, x, held):
        out = sampler(state, x)
        return out.output["action"], select(engine.xp, held, state, out.next_state)

    actions, step = [], compiled(sampler, step)
    for t in range(T):
        action, state = step(state, engine.asarray(PARAMETERS[t]), engine.asarray(held[t]))
        actions.append(to_numpy(action))
    return np.stack(actions), state


@samplers
@pytest.mark.parametrize("held", [np.zeros_like(HELD), HELD], ids=["all", "some held"])
def test_the_same_samples_with_and_without_a_tape(engine, make, held):
    sampler = make()
    state = sampler.initialize_state(B)
    example = compiled(sampler, lambda s, *args: s(*args).rollout_extras)(state, engine.asarray(PARAMETERS[0]))
    _, state = rollout(engine, sampler, state, HELD)  # counts that differ
    taped = compiled(sampler, lambda s, *args: s.draw_ahead(*args, T))(state, example)
    assert taped.tape.shape[:2] == (B, T) and state.tape is None
    plain, after = rollout(engine, sampler, state, held)
    ahead, after_ahead = rollout(engine, sampler, taped, held)
    np.testing.assert_allclose(ahead, plain, rtol=1e-6)
    assert_trees_close(forget_drawn(after_ahead), after, 0.0)
    # Five steps each, less those held: one in environment 0, two in environment 1; the first rollout held as many.
    assert to_numpy(after.count).tolist() == ([8, 6, 10] if held.any() else [9, 8, 10])


@samplers
@pytest.mark.nightly_if("jax")
def test_unroll_reads_a_tape_wherever_the_rows_stand(engine, make):
    sampler, xs = make(), engine.asarray(PARAMETERS)
    state = sampler.initialize_state(B)
    example = compiled(sampler, lambda s, *args: s(*args).rollout_extras)(state, xs[0])
    taped = compiled(sampler, lambda s, *args: s.draw_ahead(*args, T + 2))(state, example)
    # Two, one and no steps into the tape.
    moved = taped._replace(count=taped.count + engine.random.words_to(B, state.key))
    done = engine.asarray(np.zeros((T, B), bool))
    unroll = compiled(sampler, lambda s, state: s.unroll(state, xs, done).output)
    got, expected = unroll(moved), unroll(forget_drawn(moved))
    assert_trees_close(got, expected, 1e-6)


def test_a_replay_draws_ahead_only_for_an_entropy_estimate(engine):
    x = engine.zeros((B, 4))
    for make, draws in ((SAMPLERS["normal_tanh"], False), (SAMPLERS["normal_tanh_entropy"], True)):
        sampler = make()
        state = sampler.initialize_state(B)
        drawn = engine.shapes(
            lambda state, x, s=sampler: s.draw_ahead(state, s(state, x).rollout_extras, T, replay=True), state, x
        )
        assert (drawn.tape is not None) == draws


@pytest.mark.nightly_if("jax")
def test_containers_pass_it_on(engine):
    net = mp.Sequential(
        [mp.Dense(2, 4, mp.Rngs(0)), mp.Parallel(a=SAMPLERS["normal_tanh"](), b=SAMPLERS["categorical"]())]
    )
    state = net.initialize_state(B)
    out = net(state, engine.zeros((B, 2)))
    taped = net.draw_ahead(state, out.rollout_extras, T)
    assert taped[0] == () and taped[1]["a"].tape.shape == (B, T, 2) and taped[1]["b"].tape.shape == (B, T)
    assert_trees_close(net(taped, engine.zeros((B, 2))).output, out.output, 1e-6)
    assert_trees_close(forget_drawn(taped), state, 0.0)


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
