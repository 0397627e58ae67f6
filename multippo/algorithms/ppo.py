"""``train_ppo``, and its iterations for loops of one's own."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator
from typing import Any

from multippo.algorithms.config import EvalConfig, PPOConfig, TrainConfig
from multippo.algorithms.evaluation import found_env, made_env
from multippo.algorithms.losses import ppo_loss as ppo_loss
from multippo.algorithms.progress import progress_where_seen
from multippo.algorithms.reports import LogFn
from multippo.algorithms.run import CheckpointFn, Run
from multippo.algorithms.types import TrainingState, TrainResult
from multippo.arguments import known_keywords, renamed


@known_keywords
def train_ppo(
    env: Any,
    network: Any,
    config: TrainConfig | None = None,
    *,
    log_fn: LogFn | None = None,
    checkpoint_fn: CheckpointFn | None = None,
    eval_env: Any = None,
    initial_state: TrainingState | None = None,
    progress: bool = True,
) -> TrainResult:
    """Trains a network by PPO, on the engine the network was made on.

    Args:
        env: An environment from ``make_env``, or anything ``make_env`` takes.
        network: A StatefulModule whose output is a ``PPONetworkOutput``. It holds the trained weights afterwards.
            If ``network.eval()`` was called, it is trained on samples all the same, and in evaluation mode again after.
        config: All settings; ``TrainConfig()`` by default.
        log_fn: Receiver ``log_fn(metrics, step, env)`` of a dict of metrics (floats by name, ``step`` among them) after
            iterations, and after an evaluation of ``step`` and ``eval/…`` alone; of the environment, for a curriculum
            (``env.call``, ``get_attr``, ``set_attr``). It may take the first one or two alone, as ``wandb.log`` and
            ``mlflow.log_metrics`` do. ``network`` then holds the weights after the iteration: read it as you like,
            evaluate it, don't write to it. An exception ends the run after that iteration and is raised
            again, once its state has been given to ``checkpoint_fn`` and to ``network``; but ``mp.StopTraining``, or
            returning False, ends the run as its last iteration does, with a result.
        checkpoint_fn: Receiver of the training state and the step count every ``checkpoint_every_steps``, and after the
            last iteration, an interrupt, or a value that is not finite.
        eval_env: Environment to evaluate in; by default another of the training environment's kind.
        initial_state: State to continue from: the ``training_state`` of an earlier run of the same network and config.
            With more ``total_steps`` than that run had, schedules go on as if planned so from the start. A host
            environment, whose state can't be saved, starts new episodes.
        progress: True for a bar on a terminal or in a notebook; elsewhere nothing is shown.

    Returns:
        The last state and metrics.

    Raises:
        ValueError: If network, environment, settings or ``initial_state`` do not fit together; before the first
            environment step.
        TypeError: If an argument, or the network's output, is of the wrong type; likewise.
        NonFiniteError: If an observation, reward, loss or gradient is NaN or infinite, and ``PPOConfig.nonfinite`` does
            not restart the episode instead.
        KeyboardInterrupt: After Ctrl-C, once the iteration at hand is finished and saved. A rollout in an environment
            stepped from Python, or an evaluation, is given up at a second Ctrl-C or after 5 s; the iteration before is
            saved then.
        Terminated: Likewise after SIGTERM, unless the caller handles that signal; a SystemExit with the code 143.
    """
    with contextlib.ExitStack() as made:
        run = Run(env, network, config or TrainConfig(), log_fn, checkpoint_fn, eval_env, initial_state, made)
        run.progress = made.enter_context(progress_where_seen(progress, run.ppo.total_steps, run.ppo.num_iterations))
        return run.go()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LiveState(TrainingState):
    """A ``TrainingState`` from which ``ppo_step`` goes on without making its run again, while it is the newest.

    Attributes:
        run: The run.
        env: Its environment, as the user passed it.
    """

    run: Run = dataclasses.field(repr=False, compare=False)
    env: Any = dataclasses.field(repr=False, compare=False)

    @property
    def networks(self) -> Any:
        """The network in training, which holds the weights of the newest state."""
        return self.run.network

    @property
    def steps_taken(self) -> int:
        """Environment steps taken, by nnx-ppo's name."""
        return self.step

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, ({key: value for key, value in self.__getstate__().items() if key not in ("run", "env")},)


class _Metrics(dict[str, float]):
    """Metrics, found by nnx-ppo's names of means too: ``losses/actor/mean`` is ``losses/actor``."""

    def __missing__(self, name: str) -> float:
        if not name.endswith("/mean"):
            raise KeyError(name)
        return self[name.removesuffix("/mean")]


def _restored(fields: dict[str, Any]) -> TrainingState:
    state = object.__new__(TrainingState)
    state.__setstate__(fields)
    return state


@known_keywords
def new_training_state(
    env: Any,
    network: Any,
    config: TrainConfig | int | None = None,
    seed: int | None = None,
    *,
    initial_state: TrainingState | None = None,
    **settings: Any,
) -> LiveState:
    """Makes the state before the first iteration, for loops that call ``ppo_step``.

    Args:
        env: An environment from ``make_env``, or anything ``make_env`` takes.
        network: A StatefulModule whose output is a ``PPONetworkOutput``; after each step it has the newest weights.
        config: All settings, of which those of evaluations, checkpoints and logging have no effect; or a number of
            environments. Without a ``TrainConfig`` the learning rate is constant, since the last step is not known.
        seed: ``TrainConfig.seed``, if it differs from that of ``config``.
        initial_state: State to continue from, as in ``train_ppo``.
        **settings: Fields of ``PPOConfig`` that differ from those of ``config``.

    Raises:
        ValueError: As ``train_ppo``.
        TypeError: As ``train_ppo``.

    Example:
        >>> import multippo as mp
        >>> env = mp.make_env("CartPole-v1", num_envs=2)
        >>> network = mp.make_mlp_actor_critic(env.observation_space, env.action_space)
        >>> state = mp.new_training_state(env, network, rollout_length=8, num_minibatches=1, num_epochs=1)
        >>> state, metrics = mp.ppo_step(env, state)
        >>> state.step
        16
    """
    if isinstance(config, int):
        settings, config = {**settings, "num_envs": config}, None
    config = config or TrainConfig(ppo=PPOConfig(lr_schedule="constant"))
    config = dataclasses.replace(config, eval=EvalConfig(), seed=config.seed if seed is None else seed)
    return _begun(env, network, _changed(config, settings), initial_state)


@known_keywords
def ppo_step(env: Any, training_state: LiveState, **settings: Any) -> tuple[LiveState, dict[str, float]]:
    """Runs one iteration: a rollout, the update on it, and the networks' statistics.

    The iterations of a seed are those of ``train_ppo``, number for number. Where compiling is possible, it is done
    inside.

    Args:
        env: The environment of ``training_state``; another one begins with new episodes.
        training_state: State from ``new_training_state`` or the last step. An earlier one, or one that was copied, is
            continued as ``train_ppo`` continues its ``initial_state``: host environments start new episodes.
        **settings: Fields of ``PPOConfig`` that change from this step on, after the first one likewise.

    Returns:
        The state after the iteration, whose arrays are copies, and its metrics.

    Raises:
        ValueError: If the schedules have come to their end, or a setting is impossible.
        NonFiniteError: As ``train_ppo``; ``training_state`` stays as it is.
        KeyboardInterrupt: After Ctrl-C, once the iteration is finished.
    """
    run, config = training_state.run, _changed(training_state.run.config, settings)
    is_newest = training_state is run.newest and training_state.iteration == run.place.iteration
    if not is_newest or env is not training_state.env or config != run.config:
        training_state = _begun(env, run.network, config, training_state)
        run = training_state.run
    if not run.iterations.left and config.ppo.lr_schedule in ("linear", "cosine"):
        raise ValueError(
            f"The {config.ppo.lr_schedule} schedule of the learning rate has come to its end after total_steps="
            f"{config.ppo.total_steps}; set more, or lr_schedule='constant'."
        )
    metrics = _Metrics(run.advance())
    return _live(run, env), metrics


def iterate_ppo(
    env: Any, network: Any, config: TrainConfig | None = None, *, initial_state: TrainingState | None = None
) -> Generator[tuple[TrainingState, dict[str, float]]]:
    """Trains a network as ``train_ppo`` does, and yields the state and the metrics after each iteration.

    Between two iterations ``network`` has the newest weights, and ``mp.eval_rollout`` or ``mp.save_checkpoint`` are
    yours to call; evaluations, checkpoints and logging of the configuration have no effect.

    Args:
        env: An environment from ``make_env``, or anything ``make_env`` takes.
        network: A StatefulModule whose output is a ``PPONetworkOutput``.
        config: All settings; ``TrainConfig()`` by default.
        initial_state: State to continue from, as in ``train_ppo``.

    Raises:
        ValueError: As ``train_ppo``, at the first iteration; all other errors likewise.
    """
    config = config or TrainConfig()
    with made_env(env, config.ppo.num_envs) as env:
        state = new_training_state(env, network, config, initial_state=initial_state)
        while state.run.iterations.left:
            state, metrics = ppo_step(env, state)
            yield state, metrics


def _changed(config: TrainConfig, settings: dict[str, Any]) -> TrainConfig:
    settings = renamed(settings, [field.name for field in dataclasses.fields(PPOConfig)])
    return dataclasses.replace(config, ppo=dataclasses.replace(config.ppo, **settings))


def _begun(env: Any, network: Any, config: TrainConfig, initial: TrainingState | None) -> LiveState:
    with contextlib.ExitStack() as made:  # which closes nothing but what is made by name
        return _live(Run(found_env(env, config.ppo.num_envs), network, config, None, None, None, initial, made), env)


def _live(run: Run, env: Any) -> LiveState:
    run.newest = LiveState(**vars(run.snapshot()), run=run, env=env)
    return run.newest
