"""One run on two engines: the same numbers up to rounding, for as long as the run is short."""

from typing import Any

import numpy as np
import pytest
import support
import training

import multippo as mp

NUM_ENVS = 4
STEPS = 16


def networks(kind: str, env: Any) -> Any:
    spaces, rngs = (env.observation_space, env.action_space), mp.Rngs(3)
    if kind == "mlp":
        size = env.observation_space.shape[0]
        front = [mp.Normalizer(size), mp.Dense(size, 8, rngs, "tanh"), mp.LayerNorm(8)]
        network = mp.Sequential([*front, mp.make_mlp_actor_critic(8, spaces[1], (), (), rngs, entropy_weight=0.01)])
    else:
        network = mp.make_recurrent_actor_critic(
            *spaces, 6, encoder_sizes=(5,), actor_hidden_sizes=(), critic_hidden_sizes=(), rngs=rngs, shared=True
        )
    # Biases too are not zero.
    support.fill_randomly(network, scale=0.3)
    return network


def run(name: str, env_id: str, kind: str) -> tuple[Any, Any]:
    with support.on(name, "float64"):
        env = mp.make_env(env_id, num_envs=NUM_ENVS)
        network = networks(kind, env)
        # Without memory L = 1, with memory 16: one sequence of each environment in a minibatch.
        sizes = {"iterations": 20, "rollout_length": STEPS, "num_minibatches": 4, "learning_rate": 0.03}
        options = {"lr_schedule": "cosine", "gradient_clipping": 0.1, "value_clip_range": 0.2, "weight_decay": 0.01}
        done = training.train(env, network, **sizes, **options)
        env.close()
        return network, done


@pytest.mark.parametrize(
    ("env_id", "kind"),
    [
        ("CartPole-v1", "mlp"),
        # Actions of Pendulum are rounded to single precision, and so is what it shows.
        ("multippo/PendulumNoVel-v0", "lstm"),
        ("brax/inverted_pendulum", "mlp"),
        ("brax/inverted_pendulum", "lstm"),
    ],
)
@pytest.mark.nightly
def test_twenty_iterations_in_double_precision(env_id, kind):
    found = {name: run(name, env_id, kind) for name in support.ENGINES}
    (torch_network, of_torch), (jax_network, of_jax) = found["torch"], found["jax"]
    assert all(value.dtype == np.float64 for value in mp.to_portable(jax_network).values() if value.dtype.kind == "f")
    training.assert_same_end(of_torch, of_jax, (torch_network, jax_network), 1e-8, environment=False)
    assert len(of_jax.logs) == 20
    # Something was learnt, with the clips at work, and the rate moved.
    assert max(of_jax.column("gradient/norm")) > 0.1 and max(of_jax.column("ratio/clip_fraction")) > 0.0
    assert len(set(of_jax.column("learning_rate"))) == 20
    if env_id != "multippo/PendulumNoVel-v0":  # whose episodes take 200 steps
        assert np.isfinite(of_jax.column("rollout/episode_reward/mean")).any()
