"""A loss and metrics are one number for each environment; what is not is refused, with the module's path."""

import re
from typing import Any

import numpy as np
import pytest
import training
from support import actor_critic

import multippo as mp
from multippo.testing import Clock, Spy


class Returns(mp.StatefulModule):
    """Hands its input on, and returns what ``make(self, state, x)`` makes."""

    def __init__(self, make: Any, carries: bool = False) -> None:
        self.make, self.carries = make, carries

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> Any:
        return self.make(self, state, x)

    def initialize_state(self, batch_size: int) -> Any:
        return self.zeros((batch_size,)) if self.carries else ()


def loss(make: Any) -> Any:
    return lambda net, state, x: mp.StatefulModuleOutput(state, x, make(net, x))


def metric(make: Any) -> Any:
    return lambda net, state, x: mp.StatefulModuleOutput(state, x, 0.0, make(net, x))


def network(layer: Any) -> Any:
    return mp.Sequential([mp.Parallel(a=layer), mp.Filter("a"), actor_critic(4)])


MEND = r" Sum or average over its other axes, such as xp.sum(..., axis=-1)."
OTHER = "expected a StatefulModuleOutput: return multippo.StatefulModuleOutput(next_state, output)."
WRONG = {
    "loss [B, 1]": (
        loss(lambda net, x: x[:, :1]),
        "regularization_loss is an array of shape (2, 1); expected a number, or an array [B], here (2,)." + MEND,
    ),
    "metric [B, 1]": (
        metric(lambda net, x: {"in": {"m": x[:, :1]}}),
        "The metric 'in/m' is an array of shape (2, 1); expected a number, or an array [B], here (2,)." + MEND,
    ),
    "metric of text": (metric(lambda net, x: {"m": "x"}), "The metric 'm' is a str ('x'); expected a number"),
    "metrics a number": (metric(lambda net, x: 0.3), "metrics is a float (0.3); expected a dict of arrays."),
    "a tuple": (lambda net, state, x: (state, x), f"Returns returned a tuple of 2 entries; {OTHER}"),
}
WHERE = "failed on the environment's first observation {'obs': (2, 4)} at Sequential.layers[0].components['a']: "


@pytest.mark.parametrize("which", WRONG)
def test_it_is_refused_before_the_first_step(torch_engine, which):
    make, expected = WRONG[which]
    spy = Spy(Clock(3, num_envs=2))
    run = training.train(spy, network(Returns(make)), catch=(ValueError,))
    assert f"The network {WHERE}{expected}" in str(run.error)
    assert not spy.actions and not run.logs
    with pytest.raises(ValueError, match=re.escape(f"The network {WHERE}{expected}")):
        mp.train_distillation(spy, network(mp.Scale(1.0)), network(Returns(make)))
    assert not spy.actions


def test_the_outermost_module_is_looked_at_too(torch_engine):
    run = training.train(Clock(3, num_envs=2), Returns(WRONG["loss [B, 1]"][0]), catch=(ValueError,))
    assert "at Returns: regularization_loss is an array of shape (2, 1)" in str(run.error)


@pytest.mark.parametrize("carries", [False, True], ids=["folded", "scanned"])
@pytest.mark.nightly_if("jax")
def test_numbers_are_every_environments(engine, carries):
    made = metric(lambda net, x: {"a": 0.5, "in": {"b": 3, "c": np.float32(0.25)}, "d": net.xp.mean(x * 0 + 2.0)})
    net = network(Returns(lambda *args: made(*args).replace(regularization_loss=0.75), carries))
    run = training.train(Clock(3, num_envs=2), net, iterations=1)
    found = {name: run.column(f"network/0/a/{name}") for name in ("a", "in/b", "in/c", "d")}
    assert found == {"a": [0.5], "in/b": [3.0], "in/c": [0.25], "d": [2.0]}
    assert run.column("losses/regularization") == [0.75]
    assert run.column("ratio/first_max_dev")[0] <= 1e-6
