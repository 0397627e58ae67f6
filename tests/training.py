"""Short training runs, with everything that came out of them kept."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import support
from spaces_env import Spaces

import multippo as mp

DEFAULTS = {"rollout_length": 4, "num_epochs": 2, "num_minibatches": 2, "learning_rate": 1e-2}


@dataclasses.dataclass
class Run:
    """A finished or interrupted run.

    Attributes:
        logs: Every dict of metrics, in order.
        checkpoints: Every (state, step) that was to be saved.
        result: What ``train_ppo`` returned, or None.
        error: What it raised, or None.
    """

    logs: list[dict[str, float]] = dataclasses.field(default_factory=list)
    checkpoints: list[tuple[Any, int]] = dataclasses.field(default_factory=list)
    result: Any = None
    error: BaseException | None = None

    def column(self, name: str) -> list[float]:
        """A metric over the iterations (lines of evaluations have none of training's)."""
        return [line[name] for line in self.logs if name in line]

    @property
    def state(self) -> Any:
        """The last state."""
        return self.result.training_state


def train(
    env: Any,
    network: Any,
    *,
    iterations: int = 3,
    on_log: Callable[[dict[str, float]], None] | None = None,
    catch: tuple[type[BaseException], ...] = (),
    config: dict[str, Any] | None = None,
    eval_env: Any = None,
    initial_state: Any = None,
    **ppo: Any,
) -> Run:
    """Trains for ``iterations``; ``ppo`` are fields of ``PPOConfig``, ``config`` those of ``TrainConfig``."""
    run = Run()
    fields = {**DEFAULTS, **ppo}
    fields.setdefault("total_steps", iterations * fields["rollout_length"] * env.num_envs)

    def log(metrics: dict[str, float]) -> None:
        run.logs.append(metrics)
        if on_log is not None:
            on_log(metrics)

    try:
        run.result = mp.train_ppo(
            env,
            network,
            mp.TrainConfig(ppo=mp.PPOConfig(**fields), **(config or {})),
            log_fn=log,
            checkpoint_fn=lambda state, step: run.checkpoints.append((state, step)),
            eval_env=eval_env,
            initial_state=initial_state,
        )
    except catch as error:
        run.error = error
    return run


def assert_everything_learns(network: Any, observation: Any, action: Any, **ppo: Any) -> list[Any]:
    """Trains for two iterations on environments of some spaces, which are returned: replays repeat, all arrays move."""
    made = [Spaces(observation, action) for _ in range(2)]
    rows = iter(made)
    env = mp.make_env(lambda: next(rows), num_envs=2, vectorization="sync")
    before = mp.to_portable(network)
    run = train(env, network, iterations=2, rollout_length=8, num_epochs=1, **ppo)
    assert max(run.column("ratio/first_max_dev")) < 1e-5
    after = mp.to_portable(network)
    assert all(np.isfinite(value).all() for value in after.values())
    still = [name for name, value in after.items() if np.array_equal(value, before[name])]
    assert [name for name in still if not name.endswith("base_key")] == []
    return made


def assert_same_end(
    a: Run,
    b: Run,
    networks: tuple[Any, Any],
    tolerance: float = 0.0,
    *,
    iterations: int | None = None,
    environment: bool = True,
) -> None:
    """The same weights, statistics, moments, carries, sums, key and environment, and the same logs.

    Args:
        a: A run, whose evaluations are left out.
        b: Another one.
        networks: Those that were trained.
        tolerance: 0 means bit for bit.
        iterations: Number of the last iterations whose logs are compared. None: all.
        environment: Compares the environment's state, which must be a tree.
    """
    support.assert_trees_close(*(mp.to_portable(network) for network in networks), tolerance)
    moments = [portable_moments(network, run.state) for network, run in zip(networks, (a, b), strict=True)]
    support.assert_trees_close(*moments, tolerance)
    for field in ("network_state", "episodes", "key", *(("env_state",) if environment else ())):
        support.assert_trees_close(*(support.words(getattr(run.state, field)) for run in (a, b)), tolerance, field)
    assert (a.state.iteration, a.state.step) == (b.state.iteration, b.state.step)
    logs = [[measured(line) for line in run.logs if "losses/total" in line][-(iterations or 0) :] for run in (a, b)]
    assert logs[0]
    support.assert_trees_close(*logs, tolerance)


def measured(line: dict[str, float]) -> dict[str, np.ndarray]:
    """The metrics that do not depend on the clock."""
    return {name: np.asarray(value) for name, value in line.items() if not name.startswith(("throughput/", "time/"))}


def portable_moments(network: Any, state: Any) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Adam's two moments by portable name and in portable layout, and its step count."""
    first, second, count = state.optimizer_state
    leaves = {name: leaf for name, leaf in network.engine.leaves(network).items() if leaf.trained}
    return (
        {name: leaf.to_portable(first[leaf.native_path]) for name, leaf in leaves.items()},
        {name: leaf.to_portable(second[leaf.native_path]) for name, leaf in leaves.items()},
        count,
    )
