"""NumPy's words equal JAX's own, and distributions have their moments; conformance holds the engines to NumPy's."""

import copy

import jax
import numpy as np
import pytest
from flax import nnx
from support import on, to_numpy

import multippo as mp
from multippo.random import Rngs, host
from multippo.testing import Clock

SEEDS = (0, 1, 42, 2**31, 2**32 - 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_words_are_jaxs(seed):
    with jax.enable_x64(True):  # without it JAX refuses seeds above 2**31 - 1
        np.testing.assert_array_equal(host.key(seed), jax.random.PRNGKey(seed))
    key = host.key(seed)
    np.testing.assert_array_equal(host.split(key, 5), jax.random.split(key, 5))
    np.testing.assert_array_equal(host.fold_in(key, seed), jax.random.fold_in(key, np.uint32(seed)))
    for shape in [(), (1,), (3,), (4, 5), (2, 3, 4)]:
        np.testing.assert_array_equal(host.bits(key, shape), jax.random.bits(key, shape, np.uint32))


def test_a_seed_above_32_bits_fills_both_words(engine):
    # 5 * 2**32 + 7: high word 5, low word 7.
    np.testing.assert_array_equal(to_numpy(mp.random.key(5 * 2**32 + 7)), [5, 7])


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_an_impossible_seed_is_refused(seed, torch_engine):
    with pytest.raises(ValueError, match=r"expected an integer in \[0, 2\*\*64\)"):
        mp.random.key(seed)


def test_batched_keys_give_row_by_row_what_each_gives_alone():
    keys = host.split(host.key(3), 6).reshape(2, 3, 2)
    for draw in (
        lambda key: host.bits(key, (4,)),
        lambda key: host.split(key, 2),
        lambda key: host.fold_in(key, 9),
        lambda key: host.normal(key, (4,)),
        lambda key: host.permutation(key, 5),
    ):
        together = draw(keys)
        for index in np.ndindex(2, 3):
            np.testing.assert_array_equal(together[index], draw(keys[index]))


def test_uniform_lies_in_its_interval_and_fills_it(torch_engine):
    x = to_numpy(mp.random.uniform(mp.random.key(5), (100_000,)))
    assert x.min() >= 0.0 and x.max() < 1.0
    # Mean 1/2, variance 1/12; standard errors 1/sqrt(12 n) = 9e-4 and sqrt(1/180 n) = 2.4e-4; four of each.
    assert abs(x.mean() - 1 / 2) < 4e-3
    assert abs(x.var() - 1 / 12) < 1e-3
    other = to_numpy(mp.random.uniform(mp.random.key(5), (100_000,), 1.0, 3.0))
    np.testing.assert_allclose(other, 1.0 + 2.0 * x, rtol=1e-6)


def test_normal_has_its_moments_and_tails(torch_engine):
    x = to_numpy(mp.random.normal(mp.random.key(5), (200_000,))).astype(np.float64)
    # Standard errors with n = 200,000: mean 1/sqrt(n) = 0.0022, variance sqrt(2/n) = 0.0032,
    # skewness sqrt(6/n) = 0.0055, kurtosis sqrt(24/n) = 0.011; four of each.
    assert abs(x.mean()) < 0.009
    assert abs(x.var() - 1) < 0.013
    assert abs((x**3).mean()) < 0.022 + 3 * 0.009
    assert abs((x**4).mean() - 3) < 0.1
    # P(|x| > 3) = 0.0027, standard error 1.2e-4.
    assert abs((np.abs(x) > 3).mean() - 0.0027) < 5e-4
    # Neighbours are independent: correlation 0 within 4 / sqrt(n).
    assert abs(np.mean(x[1:] * x[:-1])) < 0.009


def test_randint_covers_its_range_evenly(torch_engine):
    x = to_numpy(mp.random.randint(mp.random.key(5), (60_000,), 2, 8))
    counts = np.bincount(x.astype(np.int64), minlength=8)
    assert counts[:2].tolist() == [0, 0] and len(counts) == 8
    # 10,000 expected for each, standard deviation sqrt(60000 * 1/6 * 5/6) = 91.
    assert np.abs(counts[2:] - 10_000).max() < 400


@pytest.mark.parametrize("maxval", [3, 2, 3 + 2**32])
def test_an_impossible_range_is_refused(maxval, torch_engine):
    with pytest.raises(ValueError, match=r"expected 0 < maxval - minval < 2\*\*32"):
        mp.random.randint(mp.random.key(0), (), 3, maxval)


@pytest.mark.parametrize("n", [1, 2, 7, 100])
def test_a_permutation_holds_every_number_once(n):
    assert sorted(host.permutation(host.key(9), n)) == list(range(n))


def test_typed_keys_of_jax():
    with on("jax"):
        typed, plain = jax.random.key(5), mp.random.key(5)
        for draw in (
            lambda key: mp.random.split(key, 3),
            lambda key: mp.random.fold_in(key, 7),
            lambda key: mp.random.normal(key, (2,)),
            lambda key: mp.random.permutation(key, 4),
        ):
            np.testing.assert_array_equal(draw(typed), draw(plain))
            np.testing.assert_array_equal(jax.jit(draw)(typed), draw(plain))
        rows = jax.random.split(typed, 3)
        np.testing.assert_array_equal(mp.random.normal(rows, (2,)), mp.random.normal(mp.random.split(plain, 3), (2,)))
        with pytest.raises(ValueError, match="A random key of rbg is not possible here: expected one of threefry2x32"):
            mp.random.normal(jax.random.key(0, impl="rbg"))
        env, net = Clock(2, num_envs=1), mp.make_mlp_actor_critic(3, 1, (), (), mp.Rngs(0))
        for key in (typed, np.int64(5)):
            assert mp.eval_rollout(env, net, key=key) == mp.eval_rollout(env, net, key=5)


def test_keys_are_folded_from_the_seed_and_counted_from_one():
    rngs = Rngs(7)
    keys = [rngs.key() for _ in range(3)]
    for count, key in enumerate(keys, start=1):
        np.testing.assert_array_equal(key, host.fold_in(host.key(7), count))
    assert keys[0].shape == (2,) and keys[0].dtype == np.uint32


def test_streams_by_name():
    rngs, plain = Rngs(7, noise=3), Rngs(7)
    # A name without a seed of its own draws from the default stream.
    np.testing.assert_array_equal([rngs.params(), rngs(), rngs.key()], [plain.key() for _ in range(3)])
    np.testing.assert_array_equal([rngs.noise(), rngs.noise()], [(noise := Rngs(3)).key(), noise.key()])
    assert not hasattr(rngs, "_other") and repr(copy.deepcopy(rngs)) == repr(rngs)


@pytest.mark.parametrize("make", [lambda **rng: mp.NormalTanhSampler(**rng), lambda **rng: mp.Dense(2, 3, **rng)])
def test_a_layer_takes_its_keys_by_either_name_and_stream(torch_engine, make):
    with_rng, with_rngs = (mp.to_portable(make(**{name: Rngs(0)})) for name in ("rng", "rngs"))
    other = mp.to_portable(make(rngs=Rngs(0, params=1, noise=1)))
    for name, array in with_rng.items():
        np.testing.assert_array_equal(array, with_rngs[name])
        assert name == "bias" or (array != other[name]).any()


def test_keys_from_flax(jax_engine):
    made = [mp.to_portable(mp.make_mlp_actor_critic(3, 2, rngs=nnx.Rngs(seed))) for seed in (0, 0, 1)]
    for name, array in made[0].items():
        np.testing.assert_array_equal(array, made[1][name])
        assert name.endswith(("bias", "counter", "mean", "M2", "std")) or (array != made[2][name]).any(), name
    assert (made[0]["layers.1.action.layers.0.kernel"][:, :2] != made[0]["layers.1.value.layers.0.kernel"][:, :2]).any()
    stream = nnx.Rngs(params=0)
    assert (Rngs.from_key(stream.params()).key() != Rngs.from_key(stream.params()).key()).any()


@pytest.mark.parametrize("seed", [1.0, "1", None, True, -1, 2**64])
def test_what_is_no_integer_in_range_is_refused(seed):
    with pytest.raises((TypeError, ValueError), match="expected an integer"):
        Rngs(seed)
