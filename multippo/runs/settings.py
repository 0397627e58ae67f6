"""Settings of a training run, and the run that their layers describe; ``notation`` reads their values.

The fields of four classes (``RunSettings``, ``TrainConfig``, ``PPOConfig``, ``EvalConfig``), the arguments of the
functions that make networks and the fields of ``EnvironmentOptions`` are settings. A field or an argument added
there, with its docstring, is a flag of ``multippo train``, a name in files and an entry of ``config.json``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

import docstring_parser

from multippo.algorithms.checkpointing.folder import OnSaveError
from multippo.algorithms.config import DEFAULT_NUM_ENVS, EvalConfig, PPOConfig, TrainConfig
from multippo.arguments import check_size
from multippo.backends.api import Engine
from multippo.backends.registry import use_backend
from multippo.envs.registry import FAMILIES
from multippo.errors import UsageError, one_line
from multippo.networks.factories.actor_critics import (
    make_cnn_actor_critic,
    make_mlp_actor_critic,
    make_recurrent_actor_critic,
)
from multippo.runs.notation import Setting, fields_of, plain, shown

if TYPE_CHECKING:
    from multippo.envs.api import Env


NETWORKS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "mlp": (make_mlp_actor_critic, {}),
    "lstm": (make_recurrent_actor_critic, {"cell": "lstm"}),
    "gru": (make_recurrent_actor_critic, {"cell": "gru"}),
    "cnn": (make_cnn_actor_critic, {}),
}
"""Functions that make networks, with their fixed arguments, by kind of network."""

_NOT_SETTINGS = {"observation", "action", "rngs", "cell", "entropy_weight"}
"""Arguments of functions in ``NETWORKS`` that runs fill in; ``entropy_weight`` is PPOConfig's, which can change it."""


@functools.cache
def run_settings() -> Mapping[str, Setting]:
    """All settings of a run, by name."""
    settings = [
        *fields_of(RunSettings, "run"),
        *fields_of(TrainConfig, "training"),
        *fields_of(PPOConfig, "ppo"),
        *fields_of(EvalConfig, "evaluation during training", prefix="eval_"),
        *_network_settings(),
        *fields_of(EnvironmentOptions, "environment"),
    ]
    return {setting.name: setting._replace(**_DIFFERING.get(setting.name, {})) for setting in settings}


_DIFFERING: dict[str, dict[str, Any]] = {
    "seed": {"help": "Seed of the initial weights, resets, action noise and minibatch permutations."},
    "num_envs": {"default": DEFAULT_NUM_ENVS, "help": "Environments stepped side by side."},
    "eval_enabled": {
        "help": "Whether to evaluate during training; every other --eval-… flag, but --eval-max-episode-steps, "
        "switches it on, and so does --keep-best."
    },
    **{name: {"group": "device and precision"} for name in ("precision", "matmul_precision", "device")},
    **{name: {"group": "trackers"} for name in ("wandb", "mlflow")},
    **{name: {"group": "checkpoints"} for name in ("keep_last", "keep_best", "video_every_steps", "on_save_error")},
}
"""Attributes in which a setting differs from its field."""


def network_defaults(kind: str) -> dict[str, Any]:
    """Options that a kind of network takes, with their defaults."""
    parameters = inspect.signature(NETWORKS[kind][0]).parameters
    return {name: parameter.default for name, parameter in parameters.items() if name not in _NOT_SETTINGS}


def _network_settings() -> list[Setting]:
    takers: dict[str, dict[str, Setting]] = {}
    for kind, (make, _) in NETWORKS.items():
        hints = get_type_hints(make)
        docs = {doc.arg_name: doc.description for doc in docstring_parser.parse(inspect.getdoc(make) or "").params}
        for name, default in network_defaults(kind).items():
            setting = Setting(name, hints[name], default, plain(docs[name]), "network options")
            takers.setdefault(name, {})[kind] = setting
    return [_combined(of_kind) for of_kind in takers.values()]


def _combined(of_kind: Mapping[str, Setting]) -> Setting:
    """Setting for an argument of several networks; its help names the networks that take it, and differences."""
    first = next(iter(of_kind.values()))
    text = first.help if len(of_kind) == len(NETWORKS) else f"{', '.join(of_kind)}: {first.help}"
    for kind, own in of_kind.items():
        text += f" {kind}: {own.help}" if own.help != first.help and not own.help.startswith("See ") else ""
    differing = [f"{kind}: {shown(own.default)}" for kind, own in of_kind.items() if own.default != first.default]
    return first._replace(help=text + (f" Default for {'; '.join(differing)}." if differing else ""))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvironmentOptions:
    """Options of environments made by name. Each family takes some of them."""

    env_backend: Literal["generalized", "spring", "positional", "mjx"] | None = None
    """brax: physics engine; none for the environment's own choice."""

    episode_length: int | None = None
    """brax and playground: steps after which an episode is cut."""

    action_repeat: int | None = None
    """Steps of the environment per action."""

    reward_scale: float | None = None
    """Multiply all rewards, reported ones too, by this."""

    observation_keys: Sequence[str] = ()
    """Show only these keys of a Dict observation."""

    pool_size: int | None = None
    """brax and playground: fresh starts drawn for each rollout."""

    max_episode_steps: int | None = None
    """gymnasium: steps after which an episode is cut; none for the environment's own limit."""

    vectorization: Literal["auto", "native", "sync", "threads", "async"] | None = None
    """gymnasium: how environments run side by side; sync for one after another, async for one process each."""

    env_kwargs: Mapping[str, Any] | None = None
    """Arguments of the environment's constructor, such as g=3.0; literals of Python or JSON, anything else is text."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings of a run, for any engine; made by ``of``.

    Attributes:
        env_id: Name of the environment for ``make_env``.
        env_kwargs: Arguments of ``make_env``.
        network_options: All arguments of the function that makes the network.
        train: Settings of the training, with ``train.ppo.num_envs`` set.
    """

    env_id: str
    env_kwargs: dict[str, Any]
    network_options: dict[str, Any]
    train: TrainConfig

    network: Literal["mlp", "lstm", "gru", "cnn"] = "mlp"
    """Kind of network; cnn for images."""

    final_eval_episodes: int = 100
    """Episodes of the evaluation after training, with the mode of the action distribution; 0 for none."""

    precision: Literal["float32", "float64", "bfloat16"] = "float32"
    """Numbers to compute in; bfloat16 for the operands of matrix products alone, all else in float32."""

    matmul_precision: Literal["highest", "high"] = "highest"
    """Products of float32 on a GPU: in full, or of operands rounded to TF32, which is faster."""

    device: str | None = None
    """Device to compute on: cpu, cuda, gpu, tpu, cuda:1, …, or auto, an accelerator if there is one; none for
    MULTIPPO_DEVICE, else auto."""

    keep_last: int | None = None
    """Checkpoints that stay, of the highest steps; none for all, or with --keep-best for the last alone."""

    keep_best: int | None = None
    """Checkpoints that stay besides, of the best evaluations during training, which this switches on; each is saved.
    multippo eval RUN --checkpoint best."""

    video_every_steps: int | None = None
    """Environment steps between two videos, each of an episode of a checkpoint, which this saves; none for none."""

    wandb: str | None = None
    """Project of Weights & Biases that follows the run, after `wandb login` or with WANDB_MODE=offline."""

    mlflow: str | None = None
    """Experiment of MLflow that follows the run, at MLFLOW_TRACKING_URI."""

    on_save_error: OnSaveError = "stop"
    """Reaction to a full or read-only disk. A run that goes on warns, and fails in the end if its last state
    could not be saved."""

    @classmethod
    def of(cls, *layers: Mapping[str, Any]) -> RunSettings:
        """Makes the settings of a run from layers, see ``overlaid``, above the defaults.

        Raises:
            UsageError: If the environment is missing, or settings do not go together.
            ValueError: If a value is not possible.
        """
        given = overlaid(*layers)
        values = {name: setting.default for name, setting in run_settings().items()} | given
        if not values.get("env"):
            raise UsageError("an environment is missing: multippo train CartPole-v1; `multippo envs` lists them.")
        if values["num_envs"] is None:
            values["num_envs"] = DEFAULT_NUM_ENVS
        leasts = {"keep_last": 1, "keep_best": 1, "video_every_steps": 1, "final_eval_episodes": 0}
        for name, least in leasts.items():
            if values[name] is not None:
                check_size("", name, values[name], least)
        if values["keep_best"] is not None and not values["eval_enabled"]:
            raise UsageError(
                f"keep_best={values['keep_best']} needs evaluations during training, and eval_enabled is False: leave "
                "one of the two out."
            )

        values["env_kwargs"] = _env_kwargs(values["env"], values)

        def fields(of: type, prefix: str = "") -> dict[str, Any]:
            names = (field.name for field in dataclasses.fields(of))
            return {name: values[prefix + name] for name in names if prefix + name in values}

        try:
            evaluation = EvalConfig(**fields(EvalConfig, "eval_"))
        except ValueError as error:
            raise UsageError(f"eval_{error}") from error  # the error begins with the field's name
        return cls(
            env_id=values["env"],
            network_options=_network_options(values["network"], given),
            train=TrainConfig(ppo=PPOConfig(**fields(PPOConfig)), eval=evaluation, **fields(TrainConfig)),
            **fields(cls),
        )

    @contextlib.contextmanager
    def engine(self, backend: str, device: str | None) -> Generator[Engine]:
        """Makes an engine the active one, in the run's precision.

        Raises:
            ValueError: If the engine is unknown, or lacks that precision or that device.
            ImportError: If a package of the engine is missing.
        """
        with contextlib.ExitStack() as stack:
            engine = stack.enter_context(use_backend(backend, device))
            if self.precision != "float32":
                try:
                    stack.enter_context(engine.precision(self.precision))
                except ValueError:
                    if "train" in engine.capabilities:
                        raise
                    # An engine that only evaluates does so in its own precision, as for float32.
            stack.enter_context(engine.matmul_precision(self.matmul_precision))
            yield engine

    def make_env(self, num_envs: int | None = None) -> Env:
        """Makes ``num_envs`` environments, by default as many as in training.

        Raises:
            UsageError: If gymnasium can't make the environment; other errors are those of ``multippo.make_env``.
        """
        import gymnasium

        from multippo.envs.make import make_env

        count = num_envs or self.train.ppo.num_envs
        try:
            return make_env(self.env_id, num_envs=count, **self.env_kwargs)
        except gymnasium.error.Error as error:
            raise UsageError(f"The environment {self.env_id!r} can't be made: {one_line(error)}") from error

    def with_choices(self, env: Env) -> RunSettings:
        """These settings with what was chosen when the environments were made, for a run to go on with."""
        if env.vectorization is None:
            return self
        return dataclasses.replace(self, env_kwargs={**self.env_kwargs, "vectorization": env.vectorization})

    def make_network(self, env: Env) -> Any:
        """Makes a new network for the environment, on the active engine."""
        from multippo.random import Rngs

        make, fixed = NETWORKS[self.network]
        rngs = Rngs(self.train.seed)
        return make(env.observation_space, env.action_space, rngs=rngs, **fixed, **self.network_options)

    def as_json(self) -> dict[str, Any]:
        """Settings in the form of ``config.json``, which ``settings_of`` reads."""
        found = dataclasses.asdict(self)
        env = {"id": found.pop("env_id"), "kwargs": found.pop("env_kwargs")}
        network = {"kind": found.pop("network"), "options": found.pop("network_options")}
        return {"env": env, "network": network, **found}


def overlaid(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name, each from the last layer that has it. Layers are a preset, a file, the flags.

    Arguments of the environment's constructor are overlaid one by one.
    """
    given: dict[str, Any] = {}
    for layer in layers:
        kwargs = {**(given.get("env_kwargs") or {}), **(layer.get("env_kwargs") or {})}
        given |= _implied(layer) | dict(layer)
        if kwargs:
            given["env_kwargs"] = kwargs
    return given


def _implied(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that a layer switches on: evaluations by saying how to evaluate, as in ``EvalConfig``."""
    if (every := layer.get("video_every_steps")) is not None:
        rest = {name: value for name, value in layer.items() if name != "video_every_steps"}
        return {"checkpoint_every_steps": every, **_implied(rest)}
    if layer.get("keep_best") is not None:
        return {"eval_enabled": True, "checkpoint_at_evals": True}
    # The evaluation after training, which every run has, has this limit, too.
    asks = any(name.startswith("eval_") and name != "eval_max_episode_steps" for name in layer)
    return {"eval_enabled": True} if asks else {}


def _env_kwargs(env_id: str, values: Mapping[str, Any]) -> dict[str, Any]:
    takes = {name: family.options for name, family in FAMILIES.items()}
    takes["gymnasium"] = frozenset({"max_episode_steps", "vectorization"})
    everywhere = {"action_repeat", "reward_scale", "observation_keys"}
    prefix = env_id.partition("/")[0]
    family = prefix if prefix in takes else "gymnasium"
    kwargs: dict[str, Any] = {}
    for setting in fields_of(EnvironmentOptions, "environment"):
        name, value = setting.name, values[setting.name]
        if (
            name == "env_kwargs"
            or value is None
            or value == setting.default
            or (name, value) == ("vectorization", "auto")
        ):
            continue
        if isinstance(value, int):
            check_size("", name, value)
        if name not in takes[family] | everywhere:
            fitting = " and ".join(other for other, names in takes.items() if name in names)
            raise UsageError(
                f"{setting.flag} is for {fitting} environments, and {env_id!r} is of {family}: leave it out."
            )
        kwargs["backend" if name == "env_backend" else name] = value
    own = values["env_kwargs"] or {}
    for name in ("env", "num_envs"):
        if name in own:
            raise UsageError(f"{name} is a setting of its own: give it outside of env_kwargs, as --num-envs 8.")
    return {**kwargs, **own}


def _network_options(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    own = network_defaults(kind)
    having = {name: [other for other in NETWORKS if name in network_defaults(other)] for name in given}
    for name, kinds in having.items():
        if kinds and kind not in kinds:
            kinds = " or ".join(kinds)
            raise UsageError(
                f"--{name.replace('_', '-')} is an option of --network {kinds}, and the network is {kind!r}: leave it "
                f"out, or choose --network {kinds}."
            )
    return {name: given.get(name, default) for name, default in own.items()}
