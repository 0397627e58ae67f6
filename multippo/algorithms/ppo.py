"""``train_ppo``: what a user calls to train."""

from __future__ import annotations

import contextlib
from typing import Any

from multippo.algorithms.config import TrainConfig
from multippo.algorithms.reports import LogFn
from multippo.algorithms.run import CheckpointFn, Run
from multippo.algorithms.types import TrainingState, TrainResult
from multippo.arguments import known_keywords


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
) -> TrainResult:
    """Trains a network by PPO, on the engine the network was made on.

    Args:
        env: An environment from ``make_env``, or anything ``make_env`` takes.
        network: A StatefulModule whose output is a ``PPONetworkOutput``. It holds the trained weights afterwards.
            If ``network.eval()`` was called, it is trained on samples all the same, and in evaluation mode again after.
        config: Everything else.
        log_fn: Called with a dict of metrics (floats by name, ``step`` among them) after iterations, and after an
            evaluation with ``step`` and its metrics (``eval/…``) alone. ``network`` holds
            the weights after the iteration then, or where one compiled call makes several (``log_every_steps``), after
            the last of them: read it as you like, evaluate it, don't write to it. An exception ends the run and is
            raised again, after the last finished iteration has been given to ``checkpoint_fn`` and to ``network``.
        checkpoint_fn: Called with the training state and the step count every ``checkpoint_every_steps``, and after the
            last iteration, an interrupt, or a value that is not finite.
        eval_env: Environment to evaluate in; by default another of the training environment's kind.
        initial_state: Where to go on from: the ``training_state`` of an earlier run of the same network and config.
            With more ``total_steps`` than that run had, schedules go on as if planned so from the start. A host
            environment, whose state can't be saved, starts new episodes.

    Returns:
        The last state and metrics.

    Raises:
        ValueError: If something does not fit, before the first environment step.
        TypeError: Likewise.
        NonFiniteError: If an observation, reward, loss or gradient is NaN or infinite.
        KeyboardInterrupt: After Ctrl-C, once the iteration at hand is finished and saved. A rollout in an environment
            stepped from Python, or an evaluation, is given up at a second Ctrl-C or after 5 s; what is saved is then
            the iteration before.
        Terminated: Likewise after SIGTERM, unless the caller handles that signal; a SystemExit with the code 143.
    """
    with contextlib.ExitStack() as made:
        run = Run(env, network, config or TrainConfig(), log_fn, checkpoint_fn, eval_env, initial_state, made)
        return run.go()
