"""Delay: what comes out of each step, by hand; trees and types; ends of episodes anywhere; what it refuses."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from support import assert_trees_close, compiled, gradients, to_numpy

import multippo as mp


class Pair(NamedTuple):
    a: Any
    b: Any


def delayed(xs, done, k, initial, history=()):
    """The definition, for one environment: ``history`` is what came in before, of the same episode."""
    ys, episode = [], list(history)
    for x, ends in zip(xs, done, strict=True):
        episode.append(x)
        ys.append(episode[-1 - k] if len(episode) > k else initial)
        episode = [] if ends else episode
    return ys, ([initial] * k + episode)[len(episode) :] if k else []


def unrolled(module, state, xs, done):
    run = compiled(module, lambda m, s, xs, done: tuple(m.unroll(s, xs, done))[:2])
    return run(state, xs, done)


def test_two_steps_late_and_afresh_in_each_episode(torch_engine):
    # Episodes of 4, 1 and 2 steps, the last one going on: 0 0 1 2 | 0 | 0 0.
    delay = mp.Delay(np.zeros(()), 2, -1.0)
    xs = np.asarray([1, 2, 3, 4, 5, 6, 7], np.float32)[:, None]
    done = np.asarray([0, 0, 0, 1, 1, 0, 0], bool)[:, None]
    expected = [[-1.0], [-1.0], [1.0], [2.0], [-1.0], [-1.0], [-1.0]]
    state, ys = unrolled(delay, delay.initialize_state(1), torch_engine.asarray(xs), torch_engine.asarray(done))
    assert to_numpy(ys).tolist() == expected
    assert to_numpy(state).tolist() == [[6.0, 7.0]]


ENDS = {
    "none": (),
    "first": (0,),
    "last": (-1,),
    "first and last": (0, -1),
    "two in a row": (1, 2),
    "every": (0, 1, 2, 3, 4),
}


@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
@pytest.mark.nightly_if("jax")
def test_every_length_against_the_definition(engine, ends):
    rng = np.random.default_rng(0)
    for time, k in ((5, 1), (5, 3), (5, 5), (5, 8), (1, 1), (1, 2)):
        xs, before = rng.normal(size=(time, 2, 3)).astype(np.float32), rng.normal(size=(2, k, 3)).astype(np.float32)
        done = np.zeros((time, 2), bool)
        done[[end for end in ends if end < time], 0] = True
        done[time // 2, 1] = True
        delay = mp.Delay(np.zeros(3), k, [1.0, 2.0, 3.0])
        initial, expected = np.asarray([1.0, 2.0, 3.0]), np.zeros((time, 2, 3))
        last = np.zeros((2, k, 3))
        for i in range(2):
            expected[:, i], last[i] = delayed(xs[:, i], done[:, i], k, initial, before[i])
        state, ys = unrolled(delay, *map(engine.asarray, (before, xs, done)))
        np.testing.assert_allclose(to_numpy(ys), expected, rtol=1e-6, err_msg=f"{time} {k}")
        np.testing.assert_allclose(to_numpy(state), last, rtol=1e-6, err_msg=f"{time} {k}")


def tree(engine, lead, offset=0):
    rng = np.random.default_rng(offset)
    camera = engine.asarray(rng.integers(0, 255, (*lead, 2, 2), np.uint8))
    return {"camera": camera, "rest": Pair((engine.asarray(rng.random(lead) < 0.5),), engine.zeros((*lead, 3)) + 5)}


EXAMPLE = {"camera": np.zeros((2, 2), np.uint8), "rest": Pair((np.zeros((), bool),), np.zeros(3))}


def test_trees_and_types_are_kept(engine, precision):
    # 255 fits into a byte; a bool starts as True.
    delay = mp.Delay(EXAMPLE, 1, {"camera": 255, "rest": Pair((True,), np.asarray([1.0, 2.0, 3.0]))})
    state, x = delay.initialize_state(4), tree(engine, (4,))
    first = delay(state, x)
    assert to_numpy(first.output["camera"]).tolist() == [[[255, 255]] * 2] * 4
    assert to_numpy(first.output["rest"].a[0]).tolist() == [True] * 4
    assert to_numpy(first.output["rest"].b).tolist() == [[1.0, 2.0, 3.0]] * 4
    second = delay(first.next_state, tree(engine, (4,), 1))
    assert_trees_close(second.output, x, 0.0)
    for out in (first, second):
        types = to_numpy(out.output)
        assert (types["camera"].dtype, types["rest"].a[0].dtype, types["rest"].b.dtype) == (np.uint8, bool, precision)
        assert isinstance(out.output["rest"], Pair)
        assert to_numpy(out.next_state["camera"]).dtype == np.uint8
    assert_trees_close(delay.reset_state(second.next_state), state, 0.0)


def test_no_delay_is_the_identity(torch_engine):
    delay = mp.Delay(EXAMPLE, 0)
    assert delay.initialize_state(3) == () == delay.reset_state(())
    x, xs = tree(torch_engine, (3,)), tree(torch_engine, (2, 3))
    assert_trees_close(delay((), x).output, x, 0.0)
    done = torch_engine.asarray(np.ones((2, 3), bool))
    assert_trees_close(delay.unroll((), xs, done).output, xs, 0.0)


def test_the_gradient_arrives_k_steps_before_and_in_no_other_episode(engine):
    # sum_t w_t y_t with y_t = kernel x_{t-2}: x_0 is seen in step 2, x_1 would be in step 3, in which no input counts.
    net = mp.Sequential([mp.Dense(1, 1, mp.Rngs(0), use_bias=False), mp.Delay(np.zeros(1), 2)])
    xs = engine.asarray(np.asarray([3.0, 5.0, 7.0, 11.0], np.float32)[:, None, None])
    weights = engine.asarray(np.asarray([1.0, 10.0, 100.0, 1000.0], np.float32)[:, None, None])
    for ends, expected in ((None, 100 * 3 + 1000 * 5), (1, 0), (2, 100 * 3)):
        done = np.zeros((4, 1), bool)
        if ends is not None:
            done[ends] = True
        done = engine.asarray(done)
        loss = lambda n, done=done: n.xp.sum(weights * n.unroll(n.initialize_state(1), xs, done).output)  # noqa: E731
        (grad,) = gradients(net, loss).values()
        np.testing.assert_allclose(grad, [[expected]])
