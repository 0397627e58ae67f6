"""PPOAdapter: what it packs and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from support import compiled, to_numpy

import multippo as mp
from multippo.networks.types import PPONetworkOutput, StatefulModule, StatefulModuleOutput


class Yields(StatefulModule):
    """Returns what a function makes of the input."""

    def __init__(self, function):
        self.function = function

    def __call__(self, state, x, rollout_extras=None):
        return StatefulModuleOutput(state, self.function(x))


def sample(x):
    return {"action": x, "log_likelihood": x[..., 0]}


def run(engine, action, value, batch=3):
    net = mp.PPOAdapter(action=Yields(action), value=Yields(value))
    return net(net.initialize_state(batch), engine.zeros((batch, 2)) + 1)


def test_it_packs_both_ports(engine):
    out = run(engine, sample, lambda x: 5 * x[..., 0]).output
    assert isinstance(out, PPONetworkOutput)
    assert out.actions.shape == (3, 2) and to_numpy(out.loglikelihoods).tolist() == [1.0] * 3
    assert to_numpy(out.value_estimates).tolist() == [5.0] * 3
    assert out.log_likelihoods is out.loglikelihoods


def test_a_trailing_axis_of_one_is_squeezed_from_values(engine):
    assert run(engine, sample, lambda x: x[..., :1]).output.value_estimates.shape == (3,)
    tree = run(engine, sample, lambda x: {"near": x[..., :1], "far": x[..., 0]}).output.value_estimates
    assert {key: tuple(value.shape) for key, value in tree.items()} == {"near": (3,), "far": (3,)}


def test_one_environment_is_not_squeezed_away(engine):
    assert run(engine, sample, lambda x: x[..., :1], batch=1).output.value_estimates.shape == (1,)
    assert run(engine, sample, lambda x: x[..., 0], batch=1).output.value_estimates.shape == (1,)


def test_a_tree_of_samples_becomes_two_trees(engine):
    out = run(engine, lambda x: {"leg": sample(x), "arm": [sample(2 * x)]}, lambda x: x[..., 0]).output
    assert to_numpy(out.actions["arm"][0])[0].tolist() == [2.0, 2.0]
    assert to_numpy(out.loglikelihoods["leg"])[0] == 1.0


def test_state_and_snapshots_are_keyed_by_port(engine):
    net = mp.PPOAdapter(
        action=mp.Sequential([mp.Dense(2, 2, mp.Rngs(0)), mp.NormalTanhSampler(mp.Rngs(1))]),
        value=mp.Dense(2, 1, mp.Rngs(2)),
    )
    state = net.initialize_state(3)
    assert list(state) == ["action", "value"]
    out = compiled(net, lambda net, *args: net(*args))(state, engine.zeros((3, 2)))
    assert out.rollout_extras["action"][1].shape == (3, 1) and out.rollout_extras["value"] is None
    assert to_numpy(out.next_state["action"][1].count).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("action", "received"),
    [
        (lambda x: x, r"an array of shape \(3, 2\)"),
        (lambda x: {"action": x}, r"a dict with \['action'\]"),
        (lambda x: {"a": sample(x), "b": x}, r"a dict with \['a', 'b'\]"),
        (lambda x: {}, r"a dict with \[\]"),
    ],
)
def test_an_action_port_without_a_sampler_is_refused(engine, action, received):
    with pytest.raises(
        ValueError, match=f"PPOAdapter's action port yielded {received}; expected .*End it with a sampler"
    ):
        run(engine, action, lambda x: x[..., 0])


@pytest.mark.parametrize("value", [lambda x: x, lambda x: x[..., None], lambda x: x[0, 0]])
def test_a_value_port_of_another_shape_is_refused(engine, value):
    with pytest.raises(ValueError, match=r"PPOAdapter's value port yielded shape .*expected one number for each"):
        run(engine, sample, value)


@pytest.mark.parametrize("port", ["action", "value"])
def test_a_port_that_is_no_module_is_refused(engine, port):
    ports = {"action": Yields(sample), "value": Yields(sample), port: np.ones(2)}
    with pytest.raises(TypeError, match=rf"PPOAdapter\({port}=...\) is a ndarray; expected a StatefulModule"):
        mp.PPOAdapter(**ports)
