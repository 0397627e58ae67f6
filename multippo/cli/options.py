"""What can be set, from a flag or from a file: one table, made from the classes and functions that take the values."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_type_hints

from multippo.algorithms.config import EvalConfig, PPOConfig, TrainConfig
from multippo.cli.values import shown
from multippo.networks.factories import make_mlp_actor_critic, make_recurrent_actor_critic
from multippo.networks.image_factories import make_cnn_actor_critic

__all__ = ["ENV_OPTIONS", "FAMILIES", "NETWORKS", "Option", "network_defaults", "train_options"]

NETWORKS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "mlp": (make_mlp_actor_critic, {}),
    "lstm": (make_recurrent_actor_critic, {"cell": "lstm"}),
    "gru": (make_recurrent_actor_critic, {"cell": "gru"}),
    "cnn": (make_cnn_actor_critic, {}),
}
"""Kinds of networks: the function that makes one, and what is fixed about it."""

# The weight of the entropy is PPOConfig's, which can change it over a run.
_NOT_OPTIONS = {"observation", "action", "rngs", "cell", "entropy_weight"}


@dataclasses.dataclass(frozen=True)
class Option:
    """Something that can be set.

    Attributes:
        name: As a file has it; the flag has dashes.
        hint: Its type.
        default: What it is otherwise.
        help: What it means.
        group: Under which heading ``--help`` lists it.
    """

    name: str
    hint: Any
    default: Any
    help: str
    group: str

    @property
    def flag(self) -> str:
        """As a command line has it."""
        return "--" + self.name.replace("_", "-")


_FUNCTIONAL = "brax and playground"
ENV_OPTIONS = (
    Option(
        "env_backend",
        Literal["generalized", "spring", "positional", "mjx"] | None,
        None,
        "brax: physics engine; none for the environment's own choice.",
        "environment",
    ),
    Option("episode_length", int | None, None, f"{_FUNCTIONAL}: steps after which an episode is cut.", "environment"),
    Option("action_repeat", int | None, None, "Steps of the environment per action.", "environment"),
    Option("reward_scale", float | None, None, "Multiply all rewards, reported ones too, by this.", "environment"),
    Option("observation_keys", Sequence[str], (), "Show only these keys of a Dict observation.", "environment"),
    Option("pool_size", int | None, None, f"{_FUNCTIONAL}: fresh starts drawn for each rollout.", "environment"),
    Option(
        "max_episode_steps",
        int | None,
        None,
        "gymnasium: steps after which an episode is cut; none for the environment's own limit.",
        "environment",
    ),
    Option(
        "vectorization",
        Literal["auto", "native", "sync", "async"] | None,
        None,
        "gymnasium: how environments run side by side; async for one process each.",
        "environment",
    ),
)

_ANY_FAMILY = {name: name for name in ("action_repeat", "reward_scale", "observation_keys")}

FAMILIES: dict[str, dict[str, str]] = {
    "brax": {
        "env_backend": "backend",
        "episode_length": "episode_length",
        "pool_size": "pool_size",
        **_ANY_FAMILY,
    },
    "playground": {
        "episode_length": "episode_length",
        "pool_size": "pool_size",
        **_ANY_FAMILY,
    },
    "gymnasium": {"max_episode_steps": "max_episode_steps", "vectorization": "vectorization", **_ANY_FAMILY},
}
"""For each family of environments, its options, and what ``make_env`` calls them."""


def train_options() -> list[Option]:
    """Everything that makes up a training run."""
    return [
        Option("network", Literal["mlp", "lstm", "gru", "cnn"], "mlp", "Kind of network; cnn for images.", "run"),
        Option(
            "final_eval_episodes",
            int,
            100,
            "Episodes of the evaluation after training, with the mode of the action distribution; 0 for none.",
            "run",
        ),
        Option(
            "precision",
            Literal["float32", "float64", "bfloat16"],
            "float32",
            "Numbers to compute in; bfloat16 for the operands of matrix products alone, all else in float32.",
            "device and precision",
        ),
        Option(
            "matmul_precision",
            Literal["highest", "high"],
            "highest",
            "Products of float32 on a GPU: in full, or of operands rounded to TF32, which is faster.",
            "device and precision",
        ),
        Option(
            "device",
            str | None,
            None,
            "Where the engine computes: cpu, cuda, gpu, tpu, cuda:1, …, or auto, an accelerator if there is one; none "
            "for MULTIPPO_DEVICE, else auto.",
            "device and precision",
        ),
        Option(
            "keep_last",
            int | None,
            None,
            "Checkpoints that stay, of the highest steps; none for all, or with --keep-best for the last alone.",
            "checkpoints",
        ),
        Option(
            "keep_best",
            int | None,
            None,
            "Checkpoints that stay besides, of the best evaluations during training, which this switches on; each is "
            "saved. multippo eval RUN --checkpoint best.",
            "checkpoints",
        ),
        Option(
            "on_save_error",
            Literal["stop", "continue"],
            "stop",
            "What a full or read-only disk does to the run. One that goes on warns, and fails in the end if its last "
            "state could not be saved.",
            "checkpoints",
        ),
        *_of_class(TrainConfig, "training", skip={"ppo", "eval"}, replace={"seed": _SEED_HELP}),
        *_of_class(PPOConfig, "ppo", defaults={"num_envs": 8}, replace={"num_envs": _NUM_ENVS_HELP}),
        *_of_class(EvalConfig, "evaluation during training", prefix="eval_", replace={"eval_enabled": _EVAL_HELP}),
        *_network_options(),
        *ENV_OPTIONS,
    ]


_SEED_HELP = "Seed of the initial weights, resets, action noise and minibatch permutations."
_NUM_ENVS_HELP = "Environments stepped side by side."
_EVAL_HELP = (
    "Whether to evaluate during training; every other --eval-… flag, but --eval-max-episode-steps, switches it on, and "
    "so does --keep-best."
)


def network_defaults(kind: str) -> dict[str, Any]:
    """The options a kind of network takes, and what each is by default."""
    parameters = inspect.signature(NETWORKS[kind][0]).parameters
    return {name: parameter.default for name, parameter in parameters.items() if name not in _NOT_OPTIONS}


def _of_class(
    cls: type,
    group: str,
    *,
    prefix: str = "",
    skip: set[str] | None = None,
    defaults: dict[str, Any] | None = None,
    replace: dict[str, str] | None = None,
) -> list[Option]:
    """The fields of a dataclass; their help is the docstring below each."""
    hints, docs = get_type_hints(cls), _field_docs(cls)
    options: list[Option] = []
    for field in dataclasses.fields(cls):
        if field.name in (skip or ()):
            continue
        name = prefix + field.name
        text = (replace or {}).get(name, docs[field.name])
        options.append(Option(name, hints[field.name], (defaults or {}).get(name, field.default), text, group))
    return options


def _network_options() -> list[Option]:
    """The arguments of the functions that make networks."""
    found: dict[str, Option] = {}
    for kind, (make, _) in NETWORKS.items():
        hints, docs = get_type_hints(make), _argument_docs(make)
        for name, default in network_defaults(kind).items():
            if name in found:
                continue
            others = {other: network_defaults(other) for other in NETWORKS if name in network_defaults(other)}
            scope = "" if len(others) == len(NETWORKS) else f"{', '.join(others)}: "
            differing = [f"{other}: {shown(own[name])}" for other, own in others.items() if own[name] != default]
            told = {other: _argument_docs(NETWORKS[other][0])[name] for other in others}
            text = docs[name] + "".join(
                f" {other}: {own}" for other, own in told.items() if own != docs[name] and not own.startswith("See ")
            )
            text += f" Default for {'; '.join(differing)}." if differing else ""
            found[name] = Option(name, hints[name], default, scope + text, "network options")
    return list(found.values())


def _field_docs(cls: type) -> dict[str, str]:
    """The string below each field of a class."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            assert isinstance(text.value, ast.Constant)
            docs[field.target.id] = _plain(str(text.value.value))
    return docs


def _argument_docs(function: Callable[..., Any]) -> dict[str, str]:
    """What the ``Args:`` section of a docstring says of each argument."""
    section = re.search(r"^Args:\n(.*?)(?:\n\n|\Z)", inspect.getdoc(function) or "", re.DOTALL | re.MULTILINE)
    entries = re.findall(r"^ {4}(\w+): (.*?)(?=^ {4}\w|\Z)", section[1] if section else "", re.DOTALL | re.MULTILINE)
    return {name: _plain(text) for name, text in entries}


def _plain(text: str) -> str:
    return " ".join(text.replace("``", "").split())
