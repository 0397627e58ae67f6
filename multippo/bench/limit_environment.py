"""The environments without a library around them, and the limit that only steps them."""

# brax has no types.
# pyright: basic

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium

from multippo.bench.recorder import Recorder
from multippo.bench.works import Work


def brax_env(work: Work) -> Any:
    """Brax's environment in its own wrappers, which keep the time limit and restart episodes."""
    from brax import envs

    return envs.training.wrap(envs.get_environment(work.env.removeprefix("brax/")), episode_length=1000)


def host_env(work: Work) -> Any:
    """A vector environment: in tensors, or of gymnasium in its own vector form or else one after another."""
    if work.env == "pendulum":
        import torch

        from multippo.testing.tensor_pendulum import TensorPendulum

        return TensorPendulum(work.num_envs, device="cuda" if torch.cuda.is_available() else "cpu")
    if gymnasium.spec(work.env).vector_entry_point:
        return gymnasium.make_vec(work.env, work.num_envs, vectorization_mode="vector_entry_point")
    options: Any = {"vector_kwargs": {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}}
    return gymnasium.make_vec(work.env, work.num_envs, vectorization_mode="sync", **options)


def run(work: Work, recorder: Recorder) -> None:
    """Steps the environment with actions drawn once."""
    rollout = _brax_rollout(work) if work.env.startswith("brax/") else _host_rollout(work)
    steps = 0
    while True:
        rollout()
        steps += work.steps
        recorder.iteration(steps)


def _brax_rollout(work: Work) -> Callable[[], None]:
    import jax

    env = brax_env(work)
    actions = jax.random.uniform(jax.random.key(0), (work.num_envs, env.action_size), minval=-1, maxval=1)
    state = env.reset(jax.random.split(jax.random.PRNGKey(0), work.num_envs))

    @jax.jit
    def unroll(state: Any) -> Any:
        return jax.lax.scan(lambda state, _: (env.step(state, actions), None), state, length=work.rollout_length)[0]

    def rollout() -> None:
        nonlocal state
        state = jax.block_until_ready(unroll(state))

    return rollout


def _host_rollout(work: Work) -> Callable[[], None]:
    env = host_env(work)
    env.reset(seed=0)
    if work.env == "pendulum":
        import torch

        actions = torch.rand(work.num_envs, 1, device=env.device)
    else:
        env.action_space.seed(0)
        actions = env.action_space.sample()

    def rollout() -> None:
        for _ in range(work.rollout_length):
            env.step(actions)

    return rollout


def seconds(function: Callable[[], Any], repeats: int = 5) -> float:
    """Shortest time of several calls, after a first one that compiles."""
    function()
    times: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)
