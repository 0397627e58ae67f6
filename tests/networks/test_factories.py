"""Ready-made networks: what they take, what they are made of, what they refuse."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from support import compiled, each_engine, to_numpy

import multippo as mp
from multippo.networks.factories import make_mlp, make_mlp_layers
from multippo.networks.types import PPONetworkOutput

BOX = gymnasium.spaces.Box(-1.0, 1.0, (3,))
MAKERS = pytest.mark.parametrize(
    "make", [mp.make_mlp_actor_critic, mp.make_recurrent_actor_critic], ids=["mlp", "recurrent"]
)


def shapes(net):
    return {name: value.shape for name, value in mp.to_portable(net).items()}


@MAKERS
@pytest.mark.parametrize(
    ("observation", "action", "shape"),
    [(3, 2, (5, 2)), (BOX, gymnasium.spaces.Box(-2.0, 2.0, (4,)), (5, 4)), (BOX, gymnasium.spaces.Discrete(6), (5,))],
)
def test_spaces_and_sizes(engine, make, observation, action, shape):
    net = make(observation, action, rngs=mp.Rngs(0))
    out = engine.shapes(lambda x: net(net.initialize_state(5), x), engine.zeros((5, 3)))
    assert isinstance(out.output, PPONetworkOutput)
    assert tuple(out.output.actions.shape) == shape
    assert tuple(out.output.loglikelihoods.shape) == tuple(out.output.value_estimates.shape) == (5,)


def test_the_shape_of_the_perceptrons(engine):
    net = mp.make_mlp_actor_critic(3, 2, [8, 7], [6], mp.Rngs(0))
    kernels = {name: shape for name, shape in shapes(net).items() if name.endswith("kernel")}
    assert kernels == {
        "layers.1.action.layers.0.kernel": (3, 8),
        "layers.1.action.layers.1.kernel": (8, 7),
        "layers.1.action.layers.2.kernel": (7, 4),
        "layers.1.value.layers.0.kernel": (3, 6),
        "layers.1.value.layers.1.kernel": (6, 1),
    }
    assert isinstance(net[0], mp.Normalizer)
    assert isinstance(mp.make_mlp_actor_critic(3, 2, normalize_obs=False), mp.PPOAdapter)


def test_no_hidden_layers_at_all(engine):
    net = mp.make_mlp_actor_critic(3, 2, (), (), mp.Rngs(0))
    assert sorted(shapes(net)["layers.1.value.layers.0.kernel"]) == [1, 3]
    assert shapes(net)["layers.1.action.layers.0.kernel"] == (3, 4)


def test_a_shared_trunk_is_one_recurrent_layer(engine):
    shared = mp.make_recurrent_actor_critic(3, 2, 4, mp.Rngs(0), shared=True)
    apart = mp.make_recurrent_actor_critic(3, 2, 4, mp.Rngs(0))
    count = lambda net: sum(name.endswith("recurrent_kernel") for name in shapes(net))  # noqa: E731
    assert (count(shared), count(apart)) == (1, 2)
    assert shared.initialize_state(5)[2]["h"].shape == (5, 4)


def test_options_reach_the_layers(engine):
    net = mp.make_recurrent_actor_critic(
        3,
        2,
        4,
        mp.Rngs(0),
        encoder_sizes=(),
        trainable_initial_state=True,
        entropy_weight=0.5,
        min_std=0.2,
        std_scale=3.0,
    )
    sampler = net[1].action[-1]
    assert (sampler.entropy_weight, sampler.min_std, sampler.std_scale) == (0.5, 0.2, 3.0)
    assert "layers.1.action.layers.0.initial_h" in shapes(net)
    with_activation = mp.make_mlp_actor_critic(3, 2, rngs=mp.Rngs(0), activation="relu")
    assert with_activation[1].action[0].activation is engine.activation("relu")
    assert with_activation[1].action[2].activation is None


def test_the_first_policy_is_nearly_the_same_everywhere(engine):
    net = mp.make_mlp_actor_critic(3, 2, rngs=mp.Rngs(0))
    net.eval()
    x = engine.asarray(np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32))
    out = compiled(net, lambda net, x: net(net.initialize_state(50), x).output)(x)
    # The last layer's gain is 0.01.
    assert np.abs(to_numpy(out.actions)).max() < 0.05
    assert to_numpy(out.value_estimates).std() > 0.1


def test_without_a_seed_the_network_is_that_of_seed_0():
    nets = each_engine(lambda: (mp.make_mlp_actor_critic(3, 2), mp.make_mlp_actor_critic(3, 2, rngs=mp.Rngs(0))))
    for one, other in nets.values():
        for name, value in mp.to_portable(one).items():
            np.testing.assert_array_equal(value, mp.to_portable(other)[name])


@MAKERS
@pytest.mark.parametrize(
    "space", [0, -1, True, 2.5, "3", gymnasium.spaces.Box(0, 1, (2, 2)), gymnasium.spaces.Dict(a=BOX), None]
)
def test_an_observation_it_cannot_take_is_refused(engine, make, space):
    with pytest.raises(ValueError, match="take a Box observation of one axis, or a number of features; got"):
        make(space, 2)


@MAKERS
@pytest.mark.parametrize(
    "space",
    [
        0,
        1.5,
        gymnasium.spaces.MultiDiscrete([2, 2]),
        gymnasium.spaces.Box(0, 1, (2, 2)),
        gymnasium.spaces.Box(0, 9, (2,), int),
    ],
)
def test_an_action_it_cannot_take_is_refused(engine, make, space):
    with pytest.raises(ValueError, match="floating-point Box action of one axis, a Discrete one, or a number"):
        make(3, space)


def test_an_unknown_cell_is_refused(engine):
    with pytest.raises(ValueError, match=r"Unknown recurrent cell 'lstmm'; expected one of .*lstm"):
        mp.make_recurrent_actor_critic(3, 2, cell="lstmm")


def test_a_perceptron_needs_two_sizes(engine):
    with pytest.raises(ValueError, match=r"sizes=\[3\] is not possible"):
        make_mlp([3], mp.Rngs(0))
    layers = make_mlp_layers([3, 4, 2], mp.Rngs(0), "relu", activation_last_layer=False)
    assert [(layer.in_features, layer.out_features, layer.activation is None) for layer in layers] == [
        (3, 4, False),
        (4, 2, True),
    ]
