"""multippo as a contestant."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import multippo as mp
from multippo.algorithms.rollout import Rollouts
from multippo.bench.limit_environment import unroll
from multippo.bench.limit_host import arithmetic, task_of
from multippo.bench.recorder import Recorder
from multippo.bench.works import NUM_EPOCHS, NUM_MINIBATCHES, Work

SOLVE: dict[str, Any] = {
    "num_envs": 8,
    "rollout_length": 32,
    "num_epochs": 20,
    "num_minibatches": 1,
    "learning_rate": 2e-3,
    "gae_lambda": 0.95,
    "discounting_factor": 0.98,
    "scale_rewards": False,
}
"""Settings for a return of 475 in CartPole-v1: of a dozen near rl-baselines3-zoo's, those quickest in ten seeds."""


def train(work: Work, engine: str, recorder: Recorder) -> None:
    """Trains as the peers do: observations normalised, rewards as they are, no entropy bonus."""
    with mp.use_backend(engine) as active:
        env = make_env(work, active.device_name())
        network = make_network(work, env)
        ppo = mp.PPOConfig(
            rollout_length=work.rollout_length,
            total_steps=10**9,
            num_epochs=NUM_EPOCHS,
            num_minibatches=NUM_MINIBATCHES,
            gae_lambda=0.95,
            lr_schedule="constant",
            learning_rate=3e-4,
            scale_rewards=False,
        )
        if env.functional and engine == "jax":
            recorder.alone = _alone(work, env, network)
            watched = contextlib.nullcontext()
        else:
            watched = _watched(work, env, active, recorder)
        config = mp.TrainConfig(ppo=ppo, log_every_steps=work.chunk * work.steps)
        with watched:
            mp.train_ppo(env, network, config, log_fn=lambda metrics: recorder.iteration(int(metrics["step"])))


def _alone(work: Work, env: Any, network: Any) -> dict[str, Callable[[], Any]]:
    """The environment, and a rollout, each as one compiled programme."""
    import jax

    start = env.reset(0)
    carry, environment = network.initialize_state(work.num_envs), unroll(env, env.action_space.shape[0], work)
    definition, *weights = network.engine.split(network)
    rollouts = Rollouts(network.engine, env, definition, work.rollout_length, "off")
    return {
        "environment": lambda: jax.block_until_ready(environment(start)),
        "rollout": lambda: jax.block_until_ready(rollouts.play(*weights, carry, start)),
    }


@contextlib.contextmanager
def _watched(work: Work, env: Any, engine: Any, recorder: Recorder) -> Generator[None]:
    """Times phases as they run: those that the engine would name in a profile, and the environment's own steps."""
    if not env.functional:
        env.vector_env.step = recorder.timed(env.vector_env.step)
        task = task_of(work, env.vector_env)
        if task.discrete and not work.lstm:
            recorder.alone = {"arithmetic": arithmetic(task)}
    engine.profiling = True
    phases = {name: recorder.phases[name] for name in ("rollout", "acting", "update")}
    others = contextlib.nullcontext()
    engine.annotate = lambda name: phases.get(name, others)
    try:
        yield
    finally:
        del engine.profiling, engine.annotate


def make_env(work: Work, device: str) -> Any:
    """The work's environment as multippo makes it."""
    if work.env != "pendulum":
        return mp.make_env(work.env, num_envs=work.num_envs)
    return mp.make_env(mp.testing.TensorPendulum(work.num_envs, device=device))


def make_network(work: Work, env: Any) -> Any:
    """Actor and critic of the work's sizes, with nothing between observation and recurrent layer but the normaliser."""
    spaces, rngs = (env.observation_space, env.action_space), mp.Rngs(0)
    if not work.lstm:
        return mp.make_mlp_actor_critic(*spaces, work.hidden, work.hidden, rngs)
    sizes: dict[str, Any] = {"actor_hidden_sizes": work.hidden, "critic_hidden_sizes": work.hidden}
    return mp.make_recurrent_actor_critic(*spaces, work.lstm, rngs, encoder_sizes=(), **sizes)


def solve(work: Work, engine: str, seed: int, recorder: Recorder) -> None:
    """Trains until 20 deterministic episodes, played after every 2,000 steps, have a mean return of 475."""
    with mp.use_backend(engine):
        env, test = (mp.make_env(work.env, num_envs=count) for count in (SOLVE["num_envs"], 20))
        network = mp.make_mlp_actor_critic(env.observation_space, env.action_space, (64, 64), (64, 64), mp.Rngs(seed))
        due = 2000

        def look(metrics: dict[str, float]) -> None:
            nonlocal due
            if metrics["step"] < due:
                return
            due += 2000
            with recorder.off_the_clock():
                found = mp.eval_rollout(test, network, num_episodes=20, key=seed)
            if found["eval/episode_reward/mean"] >= 475:
                recorder.reached(int(metrics["step"]))

        config = mp.TrainConfig(ppo=mp.PPOConfig(total_steps=100_000, **SOLVE), seed=seed)
        mp.train_ppo(env, network, config, log_fn=look)
