"""The default ``unroll`` by hand: outputs, carries and gradients, and one call where there is no carry."""

import numpy as np
from support import gradients, to_numpy
from zoo import BATCH, TIME, inputs

import multippo as mp
from multippo.networks.types import StatefulModule, StatefulModuleOutput


class Leaky(StatefulModule):
    """A recurrent module that has only the default unroll, a loss and a metric of its own."""

    def __init__(self):
        self.leak = mp.Param(np.asarray([0.5, 0.25]))

    def __call__(self, state, x, rollout_extras=None):
        total = self.leak[...] * state + x
        return StatefulModuleOutput(total, total, self.xp.sum(total, axis=-1), {"size": self.xp.sum(x)}, x)

    def initialize_state(self, batch_size):
        return self.zeros((batch_size, 2))

    def reset_state(self, prev_state):
        return self.xp.zeros_like(prev_state)


def test_the_default_unroll_by_hand(engine):
    module = Leaky()
    xs = engine.asarray(np.ones((3, 1, 2), np.float32))
    done = engine.asarray(np.asarray([[False], [True], [False]]))
    out = module.unroll(module.initialize_state(1), xs, done)
    # 1 -> 1 * leak + 1 = 1.5 and 1.25; the episode ends, the carry is 0; 1 again.
    assert to_numpy(out.output)[:, 0].tolist() == [[1.0, 1.0], [1.5, 1.25], [1.0, 1.0]]
    assert to_numpy(out.next_state).tolist() == [[1.0, 1.0]]
    assert to_numpy(out.regularization_loss).tolist() == [[2.0], [2.75], [2.0]]
    assert to_numpy(out.metrics["size"]).tolist() == [2.0, 2.0, 2.0]
    assert out.rollout_extras.shape == (3, 1, 2)


def test_a_reset_after_the_last_step_shows_in_the_carry(engine):
    module = Leaky()
    done = engine.asarray(np.asarray([[False, True]]))
    out = module.unroll(module.initialize_state(2), engine.zeros((1, 2, 2)) + 1, done)
    assert to_numpy(out.next_state).tolist() == [[1.0, 1.0], [0.0, 0.0]]


def test_the_gradient_flows_through_time_and_stops_at_a_reset(engine):
    module, xs = Leaky(), engine.zeros((3, 1, 2)) + 1
    for ends, expected in (([0, 0, 0], 3.0), ([0, 1, 0], 1.0)):
        done = engine.asarray(np.asarray(ends, bool)[:, None])
        # Outputs 1, leak + 1, leak**2 + leak + 1: slopes 0, 1, 2 leak + 1, which is 2 at 0.5; with a reset 0, 1, 0.
        found = gradients(
            module, lambda m, done=done: m.xp.sum(m.unroll(m.initialize_state(1), xs, done).output[..., 0])
        )
        np.testing.assert_allclose(found["leak"], [expected, 0.0], rtol=1e-6)


def test_a_module_without_a_carry_is_folded_into_one_call(engine):
    class Seen(StatefulModule):
        def __call__(self, state, x, rollout_extras=None):
            shapes.append(tuple(x["a"].shape))
            loss = self.xp.sum(x["a"], axis=-1)
            return StatefulModuleOutput(state, x, loss, {"mean": self.xp.mean(loss)}, rollout_extras)

    shapes: list[tuple[int, ...]] = []
    done = engine.asarray(np.zeros((TIME, BATCH), bool))
    xs = {"a": engine.asarray(inputs().astype(np.float32))}
    out = Seen().unroll((), xs, done, {"kept": xs["a"][..., 0]})
    assert shapes == [(TIME * BATCH, 4)]
    np.testing.assert_array_equal(to_numpy(out.output["a"]), to_numpy(xs["a"]))
    np.testing.assert_allclose(to_numpy(out.regularization_loss), to_numpy(xs["a"]).sum(-1), atol=1e-6)
    assert out.rollout_extras["kept"].shape == (TIME, BATCH) and out.metrics["mean"].shape == ()
