"""The actor-critic for images: its layers and sizes, that it trains, what it refuses."""

import numpy as np
import pytest
from gymnasium import spaces
from support import to_numpy
from training import assert_everything_learns

import multippo as mp
from multippo.networks.types import PPONetworkOutput

SMALL = {"channels": (4, 3), "kernel_sizes": (3, 2), "strides": (2, 1), "hidden_features": 8}


def image(*shape, dtype=np.uint8):
    return spaces.Box(0, 255 if dtype == np.uint8 else 1.0, shape, dtype)


def test_the_layers_of_mnih_et_al(torch_engine):
    net = mp.make_cnn_actor_critic(image(84, 84, 4), spaces.Discrete(6), mp.Rngs(0))
    kernels = {name: v.shape for name, v in mp.to_portable(net).items() if name.endswith("kernel")}
    assert kernels == {
        "layers.1.kernel": (8, 8, 4, 32),
        "layers.2.kernel": (4, 4, 32, 64),
        "layers.3.kernel": (3, 3, 64, 64),
        "layers.5.kernel": (7 * 7 * 64, 512),
        "layers.6.action.layers.0.kernel": (512, 6),
        "layers.6.value.layers.0.kernel": (512, 1),
    }


def test_the_smallest_image_of_the_default(torch_engine):
    # 36 -> (36 - 8) / 4 + 1 = 8 -> (8 - 4) / 2 + 1 = 3 -> 1.
    net = mp.make_cnn_actor_critic(image(36, 36, 1), 2)
    assert mp.to_portable(net)["layers.5.kernel"].shape == (64, 512)
    with pytest.raises(ValueError, match=r"image of shape \(2, 3, 64\), smaller than its kernel \(3, 3\)"):
        mp.make_cnn_actor_critic(image(35 - 4, 36, 1), 2)


@pytest.mark.nightly_if("jax")
def test_bytes_are_divided_by_255_and_floats_are_not(engine):
    bytes_net = mp.make_cnn_actor_critic(image(6, 7, 3), 2, mp.Rngs(0), **SMALL)
    floats_net = mp.make_cnn_actor_critic(image(6, 7, 3, dtype=np.float32), 2, mp.Rngs(0), **SMALL)
    assert isinstance(bytes_net[0], mp.Scale) and isinstance(floats_net[0], mp.Conv)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 6, 7, 3)).astype(np.uint8)
    one = bytes_net(bytes_net.initialize_state(2), engine.asarray(pixels)).output
    other = floats_net(floats_net.initialize_state(2), engine.asarray(pixels.astype(np.float32) / 255)).output
    assert isinstance(one, PPONetworkOutput) and one.actions.shape == (2, 2) and one.value_estimates.shape == (2,)
    np.testing.assert_allclose(to_numpy(one.value_estimates), to_numpy(other.value_estimates), atol=1e-5)


@pytest.mark.nightly_if("jax")
def test_it_trains(engine):
    observation, action = image(6, 7, 3), spaces.Discrete(3)
    network = mp.make_cnn_actor_critic(observation, action, mp.Rngs(0), entropy_weight=0.01, **SMALL)
    assert_everything_learns(network, observation, action)


@pytest.mark.parametrize(
    ("observation", "options", "message"),
    [
        (spaces.Box(-1, 1, (3,)), {}, "expected a Box of shape"),
        (spaces.Dict(camera=image(36, 36, 3)), {}, "expected a Box of shape"),
        (image(3, 84, 84), {}, "channels come first"),
        (image(84, 84, 3), {"channels": (8, 8)}, "expected one entry for each convolution"),
        (image(84, 84, 3), {"channels": (), "kernel_sizes": (), "strides": ()}, "at least one convolution"),
        (image(84, 84, 3), {"hidden_features": 0}, r"Dense\(out_features=0\)"),
    ],
)
def test_what_is_wrong_is_refused(torch_engine, observation, options, message):
    with pytest.raises(ValueError, match=message):
        mp.make_cnn_actor_critic(observation, 2, **options)
