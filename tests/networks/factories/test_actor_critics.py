"""Ready-made networks: what they take, what they are made of, what they refuse."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from support import compiled, each_engine, to_numpy
from training import assert_everything_learns

import multippo as mp
from multippo.networks.types import PPONetworkOutput
from multippo.trees import tree_leaves, tree_map

BOX = gymnasium.spaces.Box(-1.0, 1.0, (3,))
INF = np.inf
IMAGE = spaces.Box(0, 255, (16, 16, 1), np.uint8)
MAKERS = (mp.make_mlp_actor_critic, mp.make_recurrent_actor_critic)


def shapes(net):
    return {name: value.shape for name, value in mp.to_portable(net).items()}


def test_the_shape_of_the_perceptrons(torch_engine):
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


def test_a_shared_trunk_is_one_recurrent_layer(torch_engine):
    shared = mp.make_recurrent_actor_critic(3, 2, 4, mp.Rngs(0), shared=True)
    apart = mp.make_recurrent_actor_critic(3, 2, 4, mp.Rngs(0))
    count = lambda net: sum(name.endswith("recurrent_kernel") for name in shapes(net))  # noqa: E731
    assert (count(shared), count(apart)) == (1, 2)
    assert shared.initialize_state(5)[2]["h"].shape == (5, 4)


def test_options_reach_the_layers(torch_engine):
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
    assert with_activation[1].action[0].activation is torch_engine.activation("relu")
    assert with_activation[1].action[2].activation is None


def test_without_a_seed_the_network_is_that_of_seed_0():
    nets = each_engine(lambda: (mp.make_mlp_actor_critic(3, 2), mp.make_mlp_actor_critic(3, 2, rngs=mp.Rngs(0))))
    for one, other in nets.values():
        for name, value in mp.to_portable(one).items():
            np.testing.assert_array_equal(value, mp.to_portable(other)[name])


def leaf_shapes(space):
    """Of what the policy sees: categorical entries one-hot."""
    if isinstance(space, spaces.Dict):
        return {key: leaf_shapes(sub) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(leaf_shapes(sub) for sub in space.spaces)
    sizes = {spaces.Discrete: lambda s: (s.n,), spaces.MultiDiscrete: lambda s: (s.nvec.sum(),)}
    return np.zeros((5, *map(int, sizes.get(type(space), lambda s: s.shape)(space))), getattr(space, "dtype", None))


def run_once(engine, make, observation, action, **options):
    """The shapes of what a network for the spaces returns."""
    net = make(observation, action, rngs=mp.Rngs(0), **options)
    x = tree_map(engine.asarray, leaf_shapes(observation))
    out = engine.shapes(lambda x: net(net.initialize_state(5), x).output, x)
    assert isinstance(out, PPONetworkOutput)
    assert tuple(out.value_estimates.shape) == (5,)
    return net, tree_map(lambda leaf: tuple(leaf.shape)[1:], out.actions)


def call(net, x):
    """The output of one call on NumPy arrays."""
    x = tree_map(net.engine.asarray, x)
    batch = tree_leaves(x)[0].shape[0]
    return to_numpy(compiled(net, lambda net, x: net(net.initialize_state(batch), x).output)(x))


OBSERVATIONS = {
    "scalar": spaces.Box(-1, 1, ()),
    "matrix": spaces.Box(-1, 1, (2, 3)),
    "unbounded": spaces.Box(np.float32([-INF, 0, -INF]), np.float32([INF, INF, 1])),
    "image": IMAGE,
    "codes": spaces.Box(0, 255, (7, 7, 3), np.uint8),
    "discrete": spaces.Discrete(4, start=2),
    "multi-discrete": spaces.MultiDiscrete([[2], [3]], start=[[1], [-1]]),
    "multi-binary": spaces.MultiBinary((2, 2)),
    "tuple": spaces.Tuple([BOX, spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, ())])]),
    "dict": spaces.Dict(z=BOX, a=spaces.Dict(image=IMAGE, flag=spaces.MultiBinary(2)), empty=spaces.Box(-1, 1, (0,))),
}
FEATURES = {
    "scalar": 1, "matrix": 6, "unbounded": 3, "image": 256, "codes": 147, "discrete": 4, "multi-discrete": 5,
    "multi-binary": 4, "tuple": 6, "dict": 261,
}  # fmt: skip
"""By hand."""


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("name", OBSERVATIONS)
def test_observations_of_every_kind(torch_engine, name, normalize):
    space = OBSERVATIONS[name]
    net, _ = run_once(torch_engine, mp.make_mlp_actor_critic, space, 2, normalize_obs=normalize)
    first = [shape for key, shape in shapes(net).items() if key.endswith("action.layers.0.kernel")]
    assert first == [(FEATURES[name], 64)]
    # An image is scaled and nothing else; all else is normalised.
    statistics = {key: shape for key, shape in shapes(net).items() if ".mean" in key}
    assert bool(statistics) == (normalize and "image" not in name)
    assert not any("image" in key for key in statistics)


@pytest.mark.parametrize("make", MAKERS)
def test_bytes_that_are_not_an_image_are_normalised(torch_engine, make):
    space = spaces.Dict(image=IMAGE, codes=spaces.Box(0, 255, (2,), np.uint8))
    net, before = make(space, 2), make(space, 2, bytes_as_images=True)
    assert {name: shape for name, shape in shapes(net).items() if ".mean" in name} == {"layers.0.mean.codes": (2,)}
    codes = np.asarray([[0, 4], [2, 4]], np.uint8)
    net[0].update_statistics({"codes": net.engine.asarray(codes[None]), "image": None})
    x = {"image": np.full((2, 16, 16, 1), 51, np.uint8), "codes": codes}
    features = net[1](None, net[0](None, tree_map(net.engine.asarray, x)).output).output
    # The first code has mean 1 and deviation 1, the second one value alone; 51 / 255 = 0.2.
    np.testing.assert_allclose(to_numpy(features["codes"]), [[-1, 0], [1, 0]], atol=1e-6)
    np.testing.assert_allclose(to_numpy(features["image"]), 0.2, rtol=1e-6)
    old = before[0](None, tree_map(net.engine.asarray, x)).output
    np.testing.assert_allclose(to_numpy(old["codes"]), codes / 255, rtol=1e-6)


def test_the_order_of_keys_does_not_matter(torch_engine):
    parts = {"b": BOX, "a": spaces.Discrete(2), "c": spaces.Dict(y=BOX, x=BOX)}
    x = {"b": np.ones((2, 3), np.float32), "a": np.eye(2, dtype=np.float32), "c": {"y": -np.ones((2, 3), np.float32)}}
    x["c"]["x"] = np.full((2, 3), 0.5, np.float32)
    values = []
    for names in (("a", "b", "c"), ("c", "b", "a")):
        space = spaces.Dict([(name, parts[name]) for name in names])
        net = mp.make_mlp_actor_critic(space, 2, (4,), (4,), mp.Rngs(0))
        values.append(call(net, {name: x[name] for name in names}).value_estimates)
    np.testing.assert_array_equal(*values)


ACTIONS = {
    "scalar": (spaces.Box(-1, 1, ()), ()),
    "matrix": (spaces.Box(-1, 2, (2, 3)), (2, 3)),
    "zero width": (spaces.Box(np.float32([1, -1]), np.float32([1, 1])), (2,)),
    "discrete": (spaces.Discrete(3, start=-1), ()),
    "multi-discrete": (spaces.MultiDiscrete([[2], [5]], start=[[1], [-3]]), (2, 1)),
    "multi-binary": (spaces.MultiBinary((2, 2)), (2, 2)),
    "integers": (spaces.Box(np.array([[-3, 0]]), np.array([[5, 0]]), dtype=np.int16), (1, 2)),
    "bytes": (spaces.Box(0, 255, (2,), np.uint8), (2,)),
    "dict": (
        spaces.Dict(
            {"a.b": spaces.Box(3, 4, (), int), "self": spaces.Dict(x=spaces.MultiBinary(3), y=spaces.Box(0, 1, (1, 2)))}
        ),
        {"a.b": (), "self": {"x": (3,), "y": (1, 2)}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIONS)
def test_actions_of_every_kind(torch_engine, name):
    space, expected = ACTIONS[name]
    for make in MAKERS:
        _, found = run_once(torch_engine, make, BOX, space)
        assert found == expected


def sampler_of(net):
    return net[-1].action[-1]


def test_the_distribution_of_a_box(torch_engine):
    free, half = spaces.Box(-INF, INF, (2,)), spaces.Box(np.float32([-1, 0]), np.float32([1, INF]))
    largest = spaces.Box(-np.finfo(np.float32).max, np.finfo(np.float32).max, (2,))
    bounded = spaces.Box(np.float32([-1, 5]), np.float32([1, 5]))
    make = lambda space, **options: sampler_of(mp.make_mlp_actor_critic(3, space, **options))  # noqa: E731
    for space in (2, bounded):
        assert isinstance(make(space), mp.NormalTanhSampler)
    for space in (free, half, largest):
        assert isinstance(make(space), mp.NormalSampler)
    plain, squashed = make(bounded, distribution="normal", min_std=0.05), make(half, distribution="tanh_normal")
    assert isinstance(plain, mp.NormalSampler) and not plain.state_dependent_std and plain.min_std == 0.05
    assert isinstance(squashed, mp.NormalTanhSampler)
    assert isinstance(mp.make_recurrent_actor_critic(3, 2, distribution="normal")[-1].action[-1], mp.NormalSampler)
    with pytest.raises(ValueError, match=r"distribution='beta' is unknown; expected 'tanh_normal', 'normal', or None"):
        make(2, distribution="beta")


def masked(mask, **others):
    return spaces.Dict({"action_mask": mask, "position": BOX, **others})


MASKED = {
    "discrete": (masked(spaces.Box(0, 1, (3,), np.int8)), spaces.Discrete(3, start=-1)),
    "multi-discrete": (masked(spaces.MultiBinary(5)), spaces.MultiDiscrete([[2], [3]])),
    "multi-discrete, square": (masked(spaces.Box(0, 1, (2, 3), np.int8)), spaces.MultiDiscrete([3, 3])),
    "multi-discrete, tuple": (
        masked(spaces.Tuple([spaces.MultiBinary(2), spaces.MultiBinary(3)])), spaces.MultiDiscrete([2, 3])
    ),
    "integers": (masked(spaces.MultiBinary(5)), spaces.Box(np.array([[-1], [4]]), np.array([[0], [6]]), dtype=int)),
    "dict": (
        masked(spaces.Dict(pick=spaces.MultiBinary(3), deep=spaces.Dict(x=spaces.MultiBinary(2)))),
        spaces.Dict(arm=BOX, pick=spaces.Discrete(3), deep=spaces.Dict(x=spaces.Discrete(2), y=spaces.MultiBinary(2))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MASKED)
def test_masks_of_every_kind(torch_engine, name):
    observation, action = MASKED[name]
    for make in MAKERS:
        net, _ = run_once(torch_engine, make, observation, action)
        first = [shape for key, shape in shapes(net).items() if key.endswith("value.layers.1.kernel")]
        assert not any("action_mask" in key for key in shapes(net))
        assert make is mp.make_recurrent_actor_critic or first == [(3, 64)]


def test_the_mask_can_be_an_observation_like_any_other_or_have_another_name(torch_engine):
    observation, action = MASKED["discrete"]
    net, _ = run_once(torch_engine, mp.make_mlp_actor_critic, observation, action, mask_key=None)
    assert shapes(net)["layers.2.action.layers.0.kernel"] == (6, 64)
    renamed = spaces.Dict(legal=observation["action_mask"], position=BOX)
    x = {"legal": np.int8([[0, 1, 0]] * 5), "position": np.zeros((5, 3), np.float32)}
    net = mp.make_mlp_actor_critic(renamed, action, mask_key="legal")
    out = call(net, x)
    assert out.actions.tolist() == [1] * 5
    np.testing.assert_allclose(out.loglikelihoods, 0.0, atol=1e-6)


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (MASKED["discrete"][0], BOX, r"mask for the action Box.*only Discrete and MultiDiscrete actions and"),
        (MASKED["discrete"][0], spaces.Discrete(4), r"mask for the action Discrete\(4\).*; expected.* of 4 numbers"),
        (masked(spaces.Discrete(3)), spaces.Discrete(3), r"Discrete\(3\); expected a Box or MultiBinary of 3"),
        (
            masked(spaces.Dict(b=spaces.MultiBinary(2))),
            spaces.Dict(a=spaces.Discrete(2)),
            r"expected a Dict with some of the keys \['a'\]. Pass mask_key=None",
        ),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(torch_engine, observation, action, message):
    for make in MAKERS:
        with pytest.raises(ValueError, match=message):
            make(observation, action)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (0, "observation 0 of type int"),
        (spaces.Dict(a=BOX, b=spaces.Tuple([BOX, spaces.Text(3)])), r"observation\['b'\]\[1\] Text"),
        (spaces.Dict(a=spaces.Tuple([]), b=BOX), r"observation\['a'\] space Tuple\(\) is empty"),
        (spaces.Dict(a=spaces.Dict({1: BOX, "x": BOX})), r"observation\['a'\] space has the keys \[1, 'x'\]"),
        (spaces.Box(0, 1, (2, 0)), "holds no number; expected at least one feature"),
    ],
)
def test_an_observation_it_cannot_take_is_refused(torch_engine, space, message):
    for make in MAKERS:
        with pytest.raises(ValueError, match=message):
            make(space, 2)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(0, 1024, (2,), int), r"action = Box.*1025 integers.*at most 1024.*Declare it as a Box of floats"),
        (spaces.Dict(a=spaces.Box(-INF, INF, (2,), int)), r"action\['a'\] = Box.* not bounded.*a Box of floats"),
        (spaces.Box(0, 1, (0,)), "of type Box; supported are Box .*, none of them empty"),
        (spaces.Tuple([BOX]), r"action Tuple.* of type Tuple; supported are Box .of floats.*Discrete, MultiDiscrete"),
        (spaces.Dict(a=BOX, b=spaces.Dict(c=spaces.Text(3))), r"action\['b'\]\['c'\] Text"),
    ],
)
def test_an_action_it_cannot_take_is_refused(torch_engine, space, message):
    for make in MAKERS:
        with pytest.raises(ValueError, match=message):
            make(3, space)


EVERYTHING = (
    spaces.Dict(
        image=IMAGE,
        parts=spaces.Tuple([spaces.Discrete(3, start=1), spaces.Box(-INF, INF, (2, 2), np.float64)]),
        action_mask=spaces.Dict(pick=spaces.Box(0, 1, (3,), np.int8), grid=spaces.MultiBinary(5)),
    ),
    spaces.Dict(
        pick=spaces.Discrete(3, start=-1),
        grid=spaces.MultiDiscrete([[2], [3]], start=[[4], [-1]]),
        arm=spaces.Dict(bounded=spaces.Box(0, 5, (1, 2)), free=spaces.Box(-INF, 3.0, ())),
        switches=spaces.MultiBinary((2, 2)),
    ),
)


@pytest.mark.nightly_if("jax")
def test_a_network_of_everything_trains(engine):
    network = mp.make_mlp_actor_critic(*EVERYTHING, (8,), (8,), mp.Rngs(0), entropy_weight=0.01)
    # The environment refuses every action that is not in its space, or masked; it has received some.
    assert sum(len(env.received) for env in assert_everything_learns(network, *EVERYTHING)) >= 16


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
def test_a_network_of_images_trains(engine):
    observation, action = image(6, 7, 3), spaces.Discrete(3)
    network = mp.make_cnn_actor_critic(observation, action, mp.Rngs(0), entropy_weight=0.01, **SMALL)
    assert_everything_learns(network, observation, action)


@pytest.mark.parametrize(
    ("observation", "options", "message"),
    [
        (spaces.Box(-1, 1, (3,)), {}, "expected a Box of shape"),
        (image(3, 84, 84), {"channel_axis": "last"}, "not smaller than its kernel"),
        (image(84, 84, 3), {"channels": (8, 8)}, "expected one entry for each convolution"),
    ],
)
def test_images_that_do_not_fit_are_refused(torch_engine, observation, options, message):
    with pytest.raises(ValueError, match=message):
        mp.make_cnn_actor_critic(observation, 2, **options)


@pytest.mark.parametrize(("name", "value"), [("min_std", -1.0), ("std_scale", 3.0), ("distribution", "normal")])
def test_what_is_said_of_a_gaussian_needs_one(torch_engine, name, value):
    choices = spaces.Dict(a=spaces.Discrete(2), b=spaces.Dict(c=spaces.MultiBinary(3), d=spaces.Box(0, 3, (2,), int)))
    for action in (choices, choices["a"], spaces.MultiDiscrete([2, 2]), choices["b"]["d"]):
        with pytest.raises(ValueError, match=rf"have no effect on .*{name}={value!r}"):
            mp.make_mlp_actor_critic(4, action, (), (), **{name: value})
