"""The environments without a library around them, and the limit that only steps them."""

# brax has no types.
# pyright: basic

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import multippo as mp
from multippo.bench.recorder import Recorder
from multippo.bench.works import Work


def brax_env(work: Work) -> Any:
    """Brax's environment in its own wrappers, which keep the time limit and restart episodes."""
    from brax import envs

    return envs.training.wrap(envs.get_environment(work.env.removeprefix("brax/")), episode_length=1000)


def host_env(work: Work) -> Any:
    """The vector environment that multippo steps: in tensors, or of gymnasium in the quickest form."""
    if work.env != "pendulum":
        return mp.make_env(work.env, num_envs=work.num_envs).vector_env  # pyright: ignore[reportAttributeAccessIssue]
    import torch

    from multippo.testing.tensor_pendulum import TensorPendulum

    return TensorPendulum(work.num_envs, device="cuda" if torch.cuda.is_available() else "cpu")


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
    state = env.reset(jax.random.split(jax.random.PRNGKey(0), work.num_envs))
    several = unroll(env, env.action_size, work)

    def rollout() -> None:
        nonlocal state
        state = jax.block_until_ready(several(state))

    return rollout


def unroll(env: Any, action_size: int, work: Work) -> Callable[[Any], Any]:
    """A compiled function of a state that steps as many times as a rollout has steps."""
    import jax

    actions = jax.random.uniform(jax.random.key(0), (work.num_envs, action_size), minval=-1, maxval=1)
    return jax.jit(
        lambda state: jax.lax.scan(lambda now, _: (env.step(now, actions), None), state, length=work.rollout_length)[0]
    )


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
