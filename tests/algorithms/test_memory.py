"""Memory of a run: what is stored once, the formula of docs/reference/time_and_memory.md, and no growth."""

import contextlib
import gc
import resource
import tracemalloc
import weakref
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import multippo as mp
from multippo.algorithms.losses import ppo_loss
from multippo.algorithms.run import Run
from multippo.algorithms.types import Sequences
from multippo.testing import Clock, FunctionalClock, Goal
from multippo.trees import tree_leaves


def unique_bytes(tree: Any) -> int:
    return sum({id(leaf): leaf.nbytes for leaf in tree_leaves(tree)}.values())


# -- stored once


def test_what_a_normaliser_has_seen_is_the_observation_itself(torch_engine: Any):
    env = Goal(num_envs=4)
    network = mp.make_mlp_actor_critic(env.observation_space, env.action_space, (8,), (8,), mp.Rngs(0))
    _, _, transition = mp.unroll_env(env, env.reset(0), network, network.initialize_state(4), 6, 1)
    assert transition.rollout_extras[0] is transition.obs
    # Observation and action of one number each, the sample behind the action, likelihood, value, entropy, reward and
    # value of a final observation and the mark of a broken step, 4 bytes each; and 4 flags.
    assert unique_bytes(transition) == 6 * 4 * (9 * 4 + 4)


class Images(Goal):
    """Shows 16 x 16 bytes."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs=num_envs)
        self.observation_space = spaces.Box(0, 255, (16, 16, 1), np.uint8)

    def _observe(self) -> np.ndarray:
        return np.zeros((self.num_envs, 16, 16, 1), np.uint8)


def test_bytes_of_images_stay_bytes(engine: Any):
    env = Images(4)
    network = mp.make_cnn_actor_critic(
        env.observation_space, env.action_space, mp.Rngs(0), channels=(2,), kernel_sizes=(4,), strides=(4,)
    )
    _, _, transition = mp.unroll_env(env, env.reset(0), network, network.initialize_state(4), 3, 1)
    assert str(transition.obs.dtype).removeprefix("torch.") == "uint8"
    others = unique_bytes(transition) - transition.obs.nbytes
    assert transition.obs.nbytes == 3 * 4 * 256 > 3 * others


# -- the formula


def temporary_bytes(rollout_length: int) -> int:
    """Bytes that a compiled iteration of 64 environments needs beside its arguments and results."""
    import jax

    env = mp.make_env(FunctionalClock(3), num_envs=64)
    network = mp.make_mlp_actor_critic(env.observation_space, env.action_space, (64, 64), (64, 64), mp.Rngs(0))
    config = mp.TrainConfig(ppo=mp.PPOConfig(rollout_length=rollout_length, num_minibatches=4, total_steps=10_000))
    with contextlib.ExitStack() as made:
        run = Run(env, network, config, None, None, None, None, made)
        trainer, learner = run.trainer, run.iterations.state.learner
        rest = run.iterations.state._replace(learner=learner._replace(params=None, variables=None))
        keys, (coefficients,) = run.iterations._inputs(1)
        arguments = (rest, learner.params, learner.variables, trainer.env.draw_starts(keys[0]), keys[0])
        coefficients = type(coefficients)(*map(np.float32, coefficients))
        lowered = jax.jit(trainer._iteration).lower(*arguments, coefficients, False)
        return lowered.compile({"xla_backend_optimization_level": 0}).memory_analysis().temp_size_in_bytes


@pytest.mark.nightly
def test_a_compiled_iteration_needs_what_the_formula_says(jax_engine: Any):
    # One number each of observation, sample, action (integers), likelihood, value, entropy, reward, value of a final
    # observation and a broken step, 4 bytes, and 4 flags; 256 units; 4 minibatches.
    step, units = 9 * 4 + 4, 256
    expected = 64 * 64 * (2 * step + (step + 8 * units) / 4)
    grown = temporary_bytes(128) - temporary_bytes(64)
    assert 0.8 * expected < grown < 1.25 * expected


def gradient_bytes(network: Any, length: int, remat_steps: int | None) -> int:
    """Most bytes that the gradient of PPO's loss on 8 sequences takes at a time, beside its arguments."""
    engine, parts = network.engine, network.engine.split(network)
    numbers = engine.asarray(np.random.default_rng(0).normal(size=(length, 8)).astype(np.float32))
    state, xs, done = network.initialize_state(8), numbers[..., None], numbers > 1
    with engine.no_grad():
        out = engine.snapshot(network.unroll(state, xs, done))
    likelihoods, values = out.output.loglikelihoods, out.output.value_estimates
    sequences = Sequences(state, xs, done, done, out.rollout_extras, likelihoods, values, numbers, numbers)
    config = mp.PPOConfig(remat_steps=remat_steps)

    def loss(params: Any, variables: Any, sequences: Any) -> Any:
        return ppo_loss(engine.merge(parts.definition, params, variables), sequences, config)

    run, arguments = engine.value_and_grad(loss), (parts.params, parts.variables, sequences)
    if engine.name == "torch":
        return allocated_bytes(lambda: run(*arguments))
    compiled = engine.jit(run).lower(*arguments).compile({"xla_backend_optimization_level": 0})
    return compiled.memory_analysis().temp_size_in_bytes


def allocated_bytes(function: Any) -> int:
    """Most bytes of torch's tensors made in a call that exist at a time."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    known = weakref.WeakSet[Any]()
    now = most = 0

    def free(size: int) -> None:
        nonlocal now
        now -= size

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal now, most
            result = func(*args, **(kwargs or {}))
            for storage in (x.untyped_storage() for x in tree_leaves(result) if isinstance(x, torch.Tensor)):
                if storage not in known:
                    known.add(storage)
                    weakref.finalize(storage, free, storage.nbytes())
                    now += storage.nbytes()
            most = max(most, now)
            return result

    gc.disable()  # what only it frees counts
    try:
        with Watch():
            function()
    finally:
        gc.enable()
    return most


@pytest.mark.nightly_if("jax")
def test_activations_of_a_few_steps_are_kept_at_a_time(engine: Any):
    network = mp.make_recurrent_actor_critic(1, 1, 32, mp.Rngs(0), cell="gru", encoder_sizes=())
    whole, pieces = (gradient_bytes(network, 128, remat_steps) for remat_steps in (None, 8))
    # A sixteenth, and besides the gradients of the weights and the carries before each piece.
    assert pieces < whole / 8


# -- no growth


def growth(env: Any, network: Any, first: int, last: int, measure: Any) -> float:
    """How much more ``measure`` gives after the last iteration than after the first."""
    seen: list[float] = []

    def log(metrics: dict[str, float]) -> None:
        if metrics["iteration"] in (first, last):
            gc.collect()
            seen.append(measure())

    steps = env.num_envs * 4
    ppo = mp.PPOConfig(rollout_length=4, num_minibatches=1, num_epochs=1, total_steps=last * steps)
    # One iteration a call, so that as many wait to be logged at both times.
    mp.train_ppo(env, network, mp.TrainConfig(ppo=ppo, log_every_steps=steps * env.functional), log_fn=log)
    return seen[-1] - seen[0]


def make(name: str) -> tuple[Any, Any]:
    env: Any = mp.make_env(FunctionalClock(3), num_envs=4) if name == "jax" else Clock(3, num_envs=4)
    return env, mp.make_recurrent_actor_critic(env.observation_space, env.action_space, 4, mp.Rngs(0), encoder_sizes=())


@pytest.mark.nightly_if("jax")
def test_forty_iterations_keep_nothing(engine: Any):
    tracemalloc.start()
    try:
        # A kept rollout or state would be some 30 objects of 100 bytes and more in each iteration. The last 100
        # episodes are whole by then, and a record of the metrics is half a kilobyte.
        assert growth(*make(engine.name), 25, 65, lambda: tracemalloc.get_traced_memory()[0]) < 40 * 1000
    finally:
        tracemalloc.stop()


@pytest.mark.nightly
def test_three_hundred_iterations_take_no_more_memory(engine: Any):
    # A rollout of 4 environments by 4,096 bytes each is 64 kB with its observations alone: 19 MB if each were kept.
    env, network = make(engine.name)
    assert growth(env, network, 20, 320, lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024) < 4e6
