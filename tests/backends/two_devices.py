"""A program of its own, for JAX counts devices once in a process: the same training on each of two.

``test_devices.py`` runs it with two devices. Told to train on a functional environment with ``functional``. Prints
nothing and fails if a number or a place differs.
"""

import sys
from typing import Any

import jax
import numpy as np
from flax import nnx

import multippo as mp
from multippo.envs.functional.functional_env import FunctionalEnv
from multippo.testing import Clock
from multippo.testing.environments import FunctionalClock


def make_env() -> Any:
    if "functional" in sys.argv:
        return FunctionalEnv(FunctionalClock(3), 2, truncation_key=None)
    return Clock([2, 3], "truncated", 2)


def places(tree: Any) -> set[str]:
    return {str(d) for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array) for d in leaf.devices()}


def train(device: str) -> tuple[dict[str, np.ndarray], list[dict[str, float]]]:
    with mp.use_backend("jax", device=device) as engine:
        network = mp.make_mlp_actor_critic(
            make_env().observation_space, make_env().action_space, (4,), (4,), mp.Rngs(0)
        )
    logs: list[dict[str, float]] = []

    def log(metrics: dict[str, float]) -> None:
        logs.append(metrics)
        if device != "cpu:0":
            assert places(jax.live_arrays()) == {device}, places(jax.live_arrays())

    # Outside of the block: a network keeps its device.
    ppo = mp.PPOConfig(rollout_length=6, total_steps=24, num_epochs=1, num_minibatches=1, lr_schedule="adaptive_kl")
    result = mp.train_ppo(make_env(), network, mp.TrainConfig(ppo=ppo), log_fn=log)
    assert engine.device_name() == device
    assert places((result.training_state, nnx.state(network))) == {device}
    assert engine.numerics()["device"] == device
    # What a user computes with it comes from there as well.
    out = network(network.initialize_state(2), np.ones((2, 4), np.float32))
    assert places((out.output.value_estimates, out.next_state)) == {device}
    return mp.to_portable(network), logs


def main() -> None:
    other, default = train("cpu:1"), train("cpu:0")
    for name, value in default[0].items():
        np.testing.assert_array_equal(other[0][name], value, err_msg=name)
    for one, two in zip(other[1], default[1], strict=True):
        for name in one:
            if not name.startswith(("time/", "throughput/")):
                np.testing.assert_array_equal(one[name], two[name], err_msg=name)
    with mp.use_backend("jax") as engine:
        assert engine.devices() == ("cpu:0", "cpu:1")
        # The default engine binds nothing, so that a user's own placement decides.
        assert not engine.zeros((2,)).committed
        assert mp.backends.load_engine("jax", "cpu") is engine
        assert mp.backends.load_engine("jax", "cpu:1") is mp.backends.load_engine("jax", "cpu:1") is not engine
        with mp.use_backend("jax", device="cpu:1"):
            assert mp.backends.load_engine("jax", "auto") is engine


if __name__ == "__main__":
    main()
