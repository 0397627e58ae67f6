"""What a run is: environment, network and algorithm, from the settings a user gave."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from multippo.algorithms.checkpointing.folder import OnSaveError
from multippo.algorithms.config import EvalConfig, PPOConfig, TrainConfig
from multippo.backends.api import Engine
from multippo.backends.registry import use_backend
from multippo.cli.errors import UsageError, one_line
from multippo.cli.options import ENV_OPTIONS, FAMILIES, NETWORKS, network_defaults, train_options

if TYPE_CHECKING:
    from multippo.envs.api import Env

__all__ = ["RunSettings", "asks_for_evaluations", "settings_from"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings:
    """A run, whichever engine computes it.

    Attributes:
        env_id: As ``make_env`` knows it.
        env_kwargs: For ``make_env``.
        network: Kind of network, one of ``NETWORKS``.
        network_options: Its options, all of them.
        train: Everything else; ``train.ppo.num_envs`` is set.
        final_eval_episodes: Episodes of the evaluation after training.
        keep_last: See ``CheckpointFolder``, as the next two.
        keep_best: How many of the best checkpoints stay.
        on_save_error: What a full disk does.
        precision: See ``multippo.precision``.
        matmul_precision: See ``multippo.matmul_precision``.
        device: See ``use_backend``.
    """

    env_id: str
    env_kwargs: dict[str, Any]
    network: str
    network_options: dict[str, Any]
    train: TrainConfig
    final_eval_episodes: int
    keep_last: int | None = None
    keep_best: int | None = None
    on_save_error: OnSaveError = "stop"
    precision: str = "float32"
    matmul_precision: str = "highest"
    device: str | None = None

    @contextlib.contextmanager
    def engine(self, backend: str, device: str | None) -> Generator[Engine]:
        """Makes an engine the active one, in the run's precision.

        Raises:
            ValueError: If it has not got that, or not the device.
        """
        with contextlib.ExitStack() as stack:
            engine = stack.enter_context(use_backend(backend, device))
            if self.precision != "float32":
                try:
                    stack.enter_context(engine.precision(self.precision))
                except ValueError:
                    if "train" in engine.capabilities:
                        raise
                    # One that only evaluates does so in its own precision, as it does for float32.
            stack.enter_context(engine.matmul_precision(self.matmul_precision))
            yield engine

    def make_env(self, num_envs: int | None = None) -> Env:
        """The environments; those to train in unless ``num_envs`` says otherwise.

        Raises:
            UsageError: If the environment can't be made.
        """
        import gymnasium

        from multippo.envs import make_env

        count = num_envs or self.train.ppo.num_envs
        try:
            return make_env(self.env_id, num_envs=count, **self.env_kwargs)
        except gymnasium.error.Error as error:
            raise UsageError(f"The environment {self.env_id!r} can't be made: {one_line(error)}") from error

    def make_network(self, env: Env) -> Any:
        """A new network for the environment, on the active engine."""
        from multippo.rngs import Rngs

        make, fixed = NETWORKS[self.network]
        rngs = Rngs(self.train.seed)
        return make(env.observation_space, env.action_space, rngs=rngs, **fixed, **self.network_options)

    def as_json(self) -> dict[str, Any]:
        """In the form that ``files.settings_of`` reads."""
        return {
            "env": {"id": self.env_id, "kwargs": self.env_kwargs},
            "network": {"kind": self.network, "options": self.network_options},
            "train": dataclasses.asdict(self.train),
            "final_eval_episodes": self.final_eval_episodes,
            "keep_last": self.keep_last,
            "keep_best": self.keep_best,
            "on_save_error": self.on_save_error,
            "precision": self.precision,
            "matmul_precision": self.matmul_precision,
            "device": self.device,
        }


def settings_from(given: Mapping[str, Any]) -> RunSettings:
    """The run that settings describe, defaults filled in.

    Args:
        given: Values by option name.

    Raises:
        UsageError: If something is missing, or does not go together.
        ValueError: If a config refuses a value.
    """
    values = {option.name: option.default for option in train_options()} | dict(given)
    if not values.get("env"):
        raise UsageError("an environment is missing: multippo train CartPole-v1; `multippo envs` lists them.")
    if "eval_enabled" not in given:
        values["eval_enabled"] = asks_for_evaluations(given)
    for name in ("keep_last", "keep_best"):
        if values[name] is not None and values[name] < 1:
            raise UsageError(f"{name}={values[name]} is not possible: expected at least 1, or none.")
    if values["keep_best"] is not None:
        if not values["eval_enabled"]:
            raise UsageError(
                f"keep_best={values['keep_best']} needs evaluations during training, and eval_enabled is False: leave "
                "one of the two out."
            )
        if "checkpoint_at_evals" not in given:
            values["checkpoint_at_evals"] = True
    if values["num_envs"] is None:
        values["num_envs"] = next(option.default for option in train_options() if option.name == "num_envs")
    if values["final_eval_episodes"] < 0:
        raise UsageError(f"final_eval_episodes={values['final_eval_episodes']} is not possible: expected 0 or more.")
    ppo = PPOConfig(**{field.name: values[field.name] for field in dataclasses.fields(PPOConfig)})
    try:
        evaluation = EvalConfig(
            **{field.name: values[f"eval_{field.name}"] for field in dataclasses.fields(EvalConfig)}
        )
    except ValueError as error:
        raise UsageError(f"eval_{error}") from error  # which begins with the field's name
    rest = {field.name: values[field.name] for field in dataclasses.fields(TrainConfig) if field.name in values}
    return RunSettings(
        env_id=values["env"],
        env_kwargs=_env_kwargs(values["env"], given),
        network=values["network"],
        network_options=_network_options(values["network"], given),
        train=TrainConfig(ppo=ppo, eval=evaluation, **rest),
        final_eval_episodes=values["final_eval_episodes"],
        keep_last=values["keep_last"],
        keep_best=values["keep_best"],
        on_save_error=values["on_save_error"],
        precision=values["precision"],
        matmul_precision=values["matmul_precision"],
        device=values["device"],
    )


def asks_for_evaluations(given: Mapping[str, Any]) -> bool:
    """Whether settings say how to evaluate during training, which switches it on, as in ``EvalConfig``."""
    if given.get("keep_best") is not None:
        return True
    # The evaluation after training, which every run has, has this limit, too.
    return any(name.startswith("eval_") and name != "eval_max_episode_steps" for name in given)


def _env_kwargs(env_id: str, given: Mapping[str, Any]) -> dict[str, Any]:
    family = env_id.partition("/")[0]
    family = family if family in FAMILIES else "gymnasium"
    kwargs: dict[str, Any] = {}
    for option in ENV_OPTIONS:
        value = given.get(option.name)
        if value is None or value == option.default:
            continue
        if isinstance(value, int) and value < 1:
            raise UsageError(f"{option.name}={value} is not possible: expected an integer of at least 1.")
        if option.name not in FAMILIES[family]:
            fitting = [name for name in FAMILIES if option.name in FAMILIES[name]]
            raise UsageError(
                f"{option.flag} is for {' and '.join(fitting)} environments, and {env_id!r} is of {family}: leave it "
                "out."
            )
        kwargs[FAMILIES[family][option.name]] = value
    return kwargs


def _network_options(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    own = network_defaults(kind)
    for other in NETWORKS:
        for name in network_defaults(other):
            if name in given and name not in own:
                having = " or ".join(network for network in NETWORKS if name in network_defaults(network))
                raise UsageError(
                    f"--{name.replace('_', '-')} is an option of --network {having}, and the network is {kind!r}: "
                    f"leave it out, or choose --network {having}."
                )
    return {name: given.get(name, default) for name, default in own.items()}
