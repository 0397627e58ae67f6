"""What users of flax NNX do with a module."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import multippo as mp


@pytest.fixture
def net(jax_engine):
    # Names whose alphabetical order is not the order given.
    parts = {"zeta": mp.Dense(1, 1, mp.Rngs(0)), "alpha": mp.Dense(1, 2, mp.Rngs(1))}
    return mp.Sequential([mp.Concat(parts), mp.Dense(3, 2, mp.Rngs(2), "tanh"), mp.LSTM(2, 2, mp.Rngs(3))])


X = {"zeta": jnp.ones((4, 1)), "alpha": 2 * jnp.ones((4, 1))}


def test_nnx_jit_gives_what_eager_gives(net):
    state = net.initialize_state(4)
    eager = net(state, X)
    jitted = nnx.jit(lambda net, state, x: net(state, x).output)(net, state, X)
    np.testing.assert_allclose(jitted, eager.output, rtol=1e-6)


def test_concat_joins_in_the_order_given_eager_jitted_and_after_a_round_trip(net):
    concat = net[0]
    zeta, alpha = (concat.children_by_key[key]((), X[key]).output for key in ("zeta", "alpha"))
    expected = np.concatenate([zeta, alpha], axis=-1)
    state = concat.initialize_state(4)
    merged = nnx.merge(*nnx.split(concat))
    for call in (concat, merged, nnx.jit(lambda s, x: merged(s, x)), nnx.jit(lambda s, x: concat(s, x))):
        np.testing.assert_array_equal(call(state, X).output, expected)
    assert tuple(merged.components) == ("zeta", "alpha")


def test_split_by_kind_and_merge(jax_engine):
    net = mp.Sequential([mp.Normalizer(2), mp.Dense(2, 1, mp.Rngs(0))])
    definition, params, variables = nnx.split(net, nnx.Param, ...)
    assert len(jax.tree.leaves(params)) == 2 and len(jax.tree.leaves(variables)) == 3
    merged = nnx.merge(definition, params, variables)
    assert isinstance(merged, mp.Sequential) and merged.keys == (0, 1)
    x = jnp.ones((3, 2))
    np.testing.assert_array_equal(merged([(), ()], x).output, net([(), ()], x).output)
