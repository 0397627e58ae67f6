"""The names of flax.nnx that networks are written with, and nnx-ppo's names of arguments, on both engines."""

import numpy as np
import pytest

import multippo as mp
from multippo import nnx
from multippo.networks.types import StatefulModuleOutput

ACTIVATIONS = ("elu", "gelu", "leaky_relu", "relu", "sigmoid", "silu", "softplus", "swish", "tanh")


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_a_name_and_a_function(engine, name):
    x = engine.asarray(np.linspace(-2, 2, 5, dtype=np.float32))
    activation = getattr(nnx, name)
    expected = engine.to_numpy(engine.activation(name)(x))
    assert (expected != np.linspace(-2, 2, 5)).any()
    np.testing.assert_array_equal(engine.to_numpy(activation(x)), expected)
    # A layer takes that of the engine it is on, whichever is active when it is called.
    layer = mp.Dense(5, 5, nnx.Rngs(0), activation=activation, bias_init=lambda rngs, shape: np.ones(shape))
    twin = mp.Dense(5, 5, mp.Rngs(0), activation=name, bias_init=lambda rngs, shape: np.ones(shape))
    np.testing.assert_array_equal(*(engine.to_numpy(one((), x[None]).output) for one in (layer, twin)))


def test_lists_dicts_and_initializers(engine):
    class Stack(mp.StatefulModule):
        def __init__(self, rngs):
            self.scale = nnx.Param(np.full(2, 3.0))
            self.count = nnx.Variable(np.zeros(()))
            self.layers = nnx.List([mp.Dense(2, 2, rngs, kernel_init=nnx.initializers.orthogonal(2.0))])
            self.named = nnx.Dict({"zero": mp.Dense(2, 2, rngs, kernel_init=nnx.initializers.zeros)})

        def __call__(self, state, x, rollout_extras=None):
            y = self.layers[0]((), x * self.scale[...]).output
            return StatefulModuleOutput(state, y).replace(output=y + self.named["zero"]((), x).output)

    module = Stack(nnx.Rngs(0))
    kernel = mp.to_portable(module)["layers.0.kernel"]
    np.testing.assert_allclose(kernel.T @ kernel, 4 * np.eye(2), atol=1e-6)
    out = module((), engine.asarray(np.ones((1, 2), np.float32)))
    np.testing.assert_allclose(engine.to_numpy(out.output), 3 * kernel.sum(0, keepdims=True), rtol=1e-6)


def test_arguments_by_their_other_names(engine):
    config = mp.PPOConfig(n_envs=2, n_epochs=3, n_minibatches=1)
    assert (config.num_envs, config.num_epochs, config.num_minibatches) == (2, 3, 1)
    evaluation = mp.EvalConfig(n_envs=3, max_episode_length=7)
    assert (evaluation.num_envs, evaluation.max_episode_steps) == (3, 7)
    x = engine.asarray(np.ones((1, 4), np.float32))
    theirs = mp.make_mlp_actor_critic(obs_size=4, action_size=2, rngs=nnx.Rngs(1))
    ours = mp.make_mlp_actor_critic(4, 2, rngs=mp.Rngs(1))
    outputs = [net(net.initialize_state(1), x).output for net in (theirs, ours)]
    np.testing.assert_array_equal(*(engine.to_numpy(out.actions) for out in outputs))
