"""What the protocol promises authors of modules: metrics of their own, a reset that may write to what it is given."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
from support import gradients

import multippo as mp
from multippo.testing import Clock


def test_metrics_are_nobody_elses():
    first, second = mp.StatefulModuleOutput((), 1), mp.StatefulModuleOutput((), 2)
    first.metrics["mine"] = 3
    assert second.metrics == {}
    assert mp.StatefulModuleOutput((), 3).metrics == {}
    assert mp.StatefulModuleOutput((), 3, metrics=None).metrics == {}  # pyright: ignore[reportArgumentType]


def test_an_output_is_a_tuple_with_defaults():
    out = mp.StatefulModuleOutput("state", "output", metrics={"a": 1})
    assert out == ("state", "output", 0.0, {"a": 1}, None)
    assert mp.StatefulModuleOutput(*out) == out
    assert out.replace(output=5) == ("state", 5, 0.0, {"a": 1}, None)
    assert pickle.loads(pickle.dumps(out)) == out
    assert mp.StatefulModuleOutput(next_state=1, output=2, rollout_extras=3)[4] == 3


class InPlace(mp.StatefulModule):
    """A sum over the episode, whose reset writes zeros where the engine's arrays can be written to."""

    def __init__(self) -> None:
        self.weight = mp.Param(np.ones(()))

    def initialize_state(self, batch_size: int) -> Any:
        return {"sum": self.zeros((batch_size,))}

    def reset_state(self, prev_state: Any) -> Any:
        if self.engine.name == "jax":
            return {"sum": self.xp.zeros_like(prev_state["sum"])}
        prev_state["sum"][...] = 0.0
        return prev_state

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        total = state["sum"] + x * self.weight[...]
        return mp.StatefulModuleOutput({"sum": total}, total)


DONE = np.array([[True, False], [True, False], [False, False], [False, True]])
# Inputs are 1, 2, 3, 4; the first environment's episodes end after steps 0 and 1, the other's after the last.
SUMS = np.array([[1.0, 1.0], [2.0, 3.0], [3.0, 6.0], [7.0, 10.0]])
LAST = np.array([7.0, 0.0])


def steps(engine: Any) -> tuple[Any, Any]:
    return engine.asarray(np.repeat([[1.0], [2.0], [3.0], [4.0]], 2, axis=1)), engine.asarray(DONE)


def test_a_reset_in_place_reaches_the_environments_that_ended_alone(engine):
    for network in (InPlace(), mp.Sequential([InPlace()])):
        state, (xs, done) = network.initialize_state(2), steps(engine)
        out = network.unroll(state, xs, done)
        np.testing.assert_array_equal(engine.to_numpy(out.output), SUMS)
        after = out.next_state["sum"] if isinstance(network, InPlace) else out.next_state[0]["sum"]
        np.testing.assert_array_equal(engine.to_numpy(after), LAST)


def test_the_copy_passes_gradients_on(engine):
    def loss(net: Any) -> Any:
        return net.xp.sum(net.unroll(net.initialize_state(2), *steps(engine)).output)

    # Every sum is the weight times its inputs; so the gradient is the sum of all of them.
    (grad,) = gradients(InPlace(), loss).values()
    np.testing.assert_allclose(grad, SUMS.sum(), rtol=1e-6)


class Policy(InPlace):
    """Its value is the sum of the clock's first feature, which is 1 in the first step of an episode: 1 throughout."""

    def __init__(self) -> None:
        super().__init__()
        self.adapter = mp.PPOAdapter(
            action=mp.Sequential([mp.Dense(3, 2, mp.Rngs(0)), mp.CategoricalSampler(mp.Rngs(0))]),
            value=mp.Lift(lambda x: x[..., :1]),
        )

    def initialize_state(self, batch_size: int) -> Any:
        return super().initialize_state(batch_size) | {"adapter": self.adapter.initialize_state(batch_size)}

    def reset_state(self, prev_state: Any) -> Any:
        return super().reset_state({"sum": prev_state["sum"]}) | {"adapter": prev_state["adapter"]}

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        out = self.adapter(state["adapter"], x, rollout_extras)
        total = state["sum"] + x[..., 0]
        output = out.output._replace(value_estimates=total)
        return out._replace(next_state={"sum": total, "adapter": out.next_state}, output=output)


def test_a_reset_in_place_in_a_rollout(engine):
    env, network = Clock((1, 2), num_envs=2), Policy()
    state, _, seen = mp.unroll_env(env, env.reset(0), network, network.initialize_state(2), 3, mp.random.key(0))
    np.testing.assert_array_equal(engine.to_numpy(seen.network_output.value_estimates), np.ones((3, 2)))
    # The second environment is amid its second episode; the first has just ended its third.
    np.testing.assert_array_equal(engine.to_numpy(state["sum"]), [0.0, 1.0])
