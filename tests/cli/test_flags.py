"""Command lines: every spelling of a flag, and a mistake named."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import pytest

from multippo.algorithms.config import EvalConfig, PPOConfig, TrainConfig
from multippo.cli.flags import given_flags, parse
from multippo.errors import UsageError
from multippo.runs.notation import Setting, fields_of
from multippo.runs.settings import NETWORKS, EnvironmentOptions, RunSettings, network_defaults, run_settings

ENV = Setting("env", str | None, None, positional=True)


def flags(*arguments: str) -> dict[str, Any]:
    return given_flags("train", "Trains.", [ENV, *run_settings().values()], arguments)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("CartPole-v1", {"env": "CartPole-v1"}),
        ("--total-steps 1e6", {"total_steps": 1_000_000}),
        ("--learning-rate -.5", {"learning_rate": -0.5}),
        ("--eval.every-steps 10", {"eval_every_steps": 10}),
        ("--eval-num-envs 2 --num-envs 4", {"eval_num_envs": 2, "num_envs": 4}),
        ("--normalize-obs", {"normalize_obs": True}),
        ("--no-normalize-obs", {"normalize_obs": False}),
        ("--normalize-obs CartPole-v1", {"normalize_obs": True, "env": "CartPole-v1"}),
        ("--actor-hidden-sizes 32 16 --seed 1", {"actor_hidden_sizes": (32, 16), "seed": 1}),
        ("--actor-hidden-sizes 32,16", {"actor_hidden_sizes": (32, 16)}),
        ("--actor-hidden-sizes", {"actor_hidden_sizes": ()}),
        ("--actor-hidden-sizes 32 --actor-hidden-sizes 16", {"actor_hidden_sizes": (32, 16)}),
        ("--target-kl none", {"target_kl": None}),
        ("--env-kwargs g=3.0 m=2 --env-kwargs=g=-1", {"env_kwargs": {"g": -1, "m": 2}}),
        (
            "--env-kwargs a=(1,(2,3)) b=true c=None d=x=y",
            {"env_kwargs": {"a": [1, [2, 3]], "b": True, "c": None, "d": "x=y"}},
        ),
        ("--actor-hidden-sizes 32 -- CartPole-v1", {"actor_hidden_sizes": (32,), "env": "CartPole-v1"}),
    ],
)
def test_spellings(line: str, expected: dict[str, Any]):
    assert flags(*line.split()) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--totl-steps 5", "unknown flag --totl-steps. Did you mean '--total-steps'"),
        ("--n_envs 4", "unknown flag --n_envs. Did you mean '--num-envs'"),
        ("--batch-size 64", "Did you mean '--num-minibatches', which is num_envs x rollout_length / batch_size"),
        ("--env-kwargs g", "env_kwargs: 'g' is not NAME=VALUE"),
        ("CartPole-v1 -- --seed 3", "unexpected '--seed'"),
        ("--seed --total-steps 5", "--seed lacks its value"),
    ],
)
def test_mistakes(line: str, message: str):
    with pytest.raises(UsageError) as caught:
        flags(*line.split())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_help_lists_every_field_and_every_option_of_the_networks(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        flags("--help")
    assert not stop.value.code
    out = capsys.readouterr().out
    expected = [field.name for cls in (PPOConfig, TrainConfig) for field in dataclasses.fields(cls)]
    expected += [f"eval_{field.name}" for field in dataclasses.fields(EvalConfig)]
    expected += [name for kind in NETWORKS for name in network_defaults(kind)]
    for name in {*expected} - {"ppo", "eval"}:
        assert f"--{name.replace('_', '-')} " in out, name
    assert "actor_hidden_sizes" not in out
    assert "(default: 50000)" in out


def test_every_option_explains_itself():
    classes = (RunSettings, TrainConfig, PPOConfig, EnvironmentOptions)
    names = [option.name for cls in classes for option in fields_of(cls, "")]
    names += [f"eval_{field.name}" for field in dataclasses.fields(EvalConfig)]
    names += {name for kind in NETWORKS for name in network_defaults(kind)}
    assert sorted(names) == sorted(run_settings())  # none twice
    for option in run_settings().values():
        assert option.help.endswith("."), option
        assert "``" not in option.help, option


@dataclasses.dataclass(frozen=True)
class Flags:
    """Draws squares."""

    place: str | None = None
    """Where to."""

    _: dataclasses.KW_ONLY

    filled: bool = True
    """Whether to fill them."""

    sizes: Sequence[int] = (3, 4)
    """How large they are."""

    colour: Literal["red", "blue"] | None = None
    """Their colour."""


def test_a_command_is_a_dataclass():
    assert parse("draw", Flags, []) == Flags()
    assert parse("draw", Flags, ["--colour=blue", "--no-filled", "x", "--sizes", "1,2"]) == Flags(
        "x", filled=False, sizes=(1, 2), colour="blue"
    )
