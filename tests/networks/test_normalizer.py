"""Normalizer: its moments are NumPy's of the valid inputs, and its output is bounded."""

import numpy as np
import pytest
from support import to_numpy

import multippo as mp
from multippo.trees import tree_map

RNG = np.random.default_rng(0)
ROLLOUTS = [RNG.normal(3.0, 2.0, size=(5, 4, 3)) for _ in range(3)]
MASKS = [RNG.random((5, 4)) < 0.7 for _ in range(3)]


def update(normalizer, x, valid=None):
    engine = normalizer.engine
    parts = engine.split(normalizer)
    move = engine.jit(lambda p, v, *args: engine.update_statistics(parts.definition, p, v, *args))
    x, valid = (tree_map(engine.asarray, tree) for tree in (x, valid))
    variables = move(parts.params, parts.variables, x, valid, engine.asarray(np.asarray(False)))
    engine.update_module(normalizer, parts.params, variables)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("masked", [False, True])
def test_moments_are_numpys_over_several_updates(engine, masked):
    normalizer = mp.Normalizer(3)
    for x, valid in zip(ROLLOUTS, MASKS, strict=True):
        update(normalizer, x, valid if masked else None)
    seen = np.concatenate([x[valid] if masked else x.reshape(-1, 3) for x, valid in zip(ROLLOUTS, MASKS, strict=True)])
    assert normalizer.count == len(seen)
    np.testing.assert_allclose(to_numpy(normalizer.mean[...]), seen.mean(0), rtol=1e-12)
    np.testing.assert_allclose(to_numpy(normalizer.variance), seen.var(0), rtol=1e-12)
    out = normalizer((), engine.asarray(ROLLOUTS[0][0]))
    expected = (ROLLOUTS[0][0] - seen.mean(0)) / seen.std(0)
    np.testing.assert_allclose(to_numpy(out.output), expected, rtol=1e-10)


def test_before_the_first_update_it_is_the_identity_up_to_its_clip(torch_engine):
    x = torch_engine.asarray(np.asarray([[1.0, -3.0, 20.0]], np.float32))
    assert to_numpy(mp.Normalizer(3)((), x).output).tolist() == [[1.0, -3.0, 10.0]]
    assert to_numpy(mp.Normalizer(3, clip=None)((), x).output).tolist() == [[1.0, -3.0, 20.0]]
    assert mp.Normalizer(3).count == 0 and to_numpy(mp.Normalizer(3).variance).tolist() == [1.0, 1.0, 1.0]


def test_an_update_with_nothing_valid_changes_nothing(torch_engine):
    normalizer = mp.Normalizer(2)
    for start in range(2):
        before = mp.to_portable(normalizer)
        update(normalizer, np.full((2, 2, 2), np.nan, np.float32), np.zeros((2, 2), bool))
        for name, value in mp.to_portable(normalizer).items():
            np.testing.assert_array_equal(value, before[name], err_msg=f"{start} {name}")
        update(normalizer, ROLLOUTS[0][..., :2].astype(np.float32))


def test_tuples_and_leaves_left_alone(torch_engine):
    normalizer = mp.Normalizer({"mask": None, "parts": (2, {"image": None, "angle": ()}, (2, 1))})
    assert sorted(name for name in mp.to_portable(normalizer) if name != "counter") == sorted(
        f"{kind}.parts.{leaf}" for kind in ("mean", "M2") for leaf in ("0", "1.angle", "2")
    )
    mask, image = RNG.integers(0, 2, (3, 2, 4), np.int8), RNG.integers(0, 255, (3, 2, 5, 5), np.uint8)
    place, angle, speed = (RNG.normal(4.0, size=(3, 2, *rest)).astype(np.float32) for rest in ((2,), (), (2, 1)))

    def observed(mask, image):
        return {"mask": mask, "parts": (place, {"image": image, "angle": angle}, speed)}

    step = tree_map(lambda x: torch_engine.asarray(x[0]), observed(mask, image))
    extras = normalizer((), step).rollout_extras
    # What is left alone is not stored a second time.
    assert extras["mask"] is None and extras["parts"][1]["image"] is None
    update(normalizer, observed(None, None))
    out = to_numpy(normalizer((), step).output)
    of_place, rest, of_speed = out["parts"]
    for got, given in ((out["mask"], mask), (rest["image"], image)):
        np.testing.assert_array_equal(got, given[0])
        assert got.dtype == given.dtype
    for got, given in ((of_place, place), (rest["angle"], angle), (of_speed, speed)):
        expected = (given[0] - given.mean((0, 1))) / given.std((0, 1))
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-5)


def test_a_number_whose_square_is_none_leaves_its_features_moments_alone(torch_engine):
    normalizer = mp.Normalizer(2)
    first = np.asarray([[[1.0, 1.0], [3.0, 5.0]]], np.float32)
    huge = np.asarray([[[3e19, 1.0], [2.0, 5.0]]], np.float32)
    for history in (first, huge):
        normalizer.update_statistics(torch_engine.asarray(history))
    # The second feature of both: 1, 5, 1, 5. The first keeps mean 2 and variance 1.
    np.testing.assert_allclose(torch_engine.to_numpy(normalizer.mean[...]), [2.0, 3.0])
    np.testing.assert_allclose(torch_engine.to_numpy(normalizer.variance), [1.0, 4.0])
    assert normalizer.count == 4
    fresh = mp.Normalizer(2)
    fresh.update_statistics(torch_engine.asarray(huge))
    np.testing.assert_allclose(torch_engine.to_numpy(fresh.mean[...]), [0.0, 3.0])
    np.testing.assert_allclose(torch_engine.to_numpy(fresh.variance), [1.0, 4.0])


def test_a_gradient_through_it_changes_no_bit_of_what_it_puts_out(engine):
    # XLA computes x / sqrt(v) in two ways: with a gradient through x, and without. (That a product of matrices rounds
    # by the number of its rows is the processor's affair, and makes a first ratio of 1 + 1e-6 on some.)
    normalizer = mp.Normalizer(3)
    update(normalizer, ROLLOUTS[0].astype(np.float32))
    parts = engine.split(normalizer)

    def output(before, variables, x):
        module = engine.merge(parts.definition, parts.params, variables)
        return module((), engine.xp.tanh(x * before["scale"])).output

    def loss(before, variables, x):
        y = output(before, variables, x)
        return engine.xp.sum(y * y), y

    scale, x = (engine.asarray(part.astype(np.float32)) for part in (np.linspace(0.5, 2.0, 3), ROLLOUTS[1][0] * 0.3))
    with engine.no_grad():
        acting = to_numpy(engine.jit(output)({"scale": scale}, parts.variables, x))
    (_, learning), _ = engine.jit(engine.value_and_grad(loss))({"scale": scale}, parts.variables, x)
    np.testing.assert_array_equal(acting, to_numpy(learning))
