"""A flag or a line in a file means what it says: false is false, 1e-4 is a number, and an unknown name is an error.

Seen in UoA-CARES/cares_reinforcement_learning#111, chandar-lab/RLHive#140, idiap/coqui-ai-TTS#38, huggingface/trl#1450,
determined-ai/determined#2688.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from multippo.cli import main

SHORT = ("--num-envs", "2", "--rollout-length", "4", "--num-epochs", "1", "--num-minibatches", "1")
QUIET = ("--final-eval-episodes", "0", "--progress", "off", "--actor-hidden-sizes", "4", "--critic-hidden-sizes", "4")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("MULTIPPO_BACKEND", "MULTIPPO_TRACEBACK"):
        monkeypatch.delenv(variable, raising=False)


def settings(*arguments: str, file: str | None = None, suffix: str = "yaml") -> dict[str, Any]:
    """The settings of a run, as its ``config.json`` has them; trained for one iteration."""
    if file is not None:
        Path(f"settings.{suffix}").write_text(file)
        arguments = ("--config", f"settings.{suffix}", *arguments)
    name = f"run{len(list(Path().glob('run*')))}"
    steps = () if "total_steps" in (file or "") or "--total-steps" in arguments else ("--total-steps", "8")
    command = ["train", "CartPole-v1", "--backend", "torch", "--run-dir", name, *SHORT, *QUIET, *steps, *arguments]
    assert main(command) == 0
    return json.loads(Path(name, "config.json").read_text())


def normalises(found: dict[str, Any]) -> bool:
    value = found["network"]["options"]["normalize_obs"]
    assert isinstance(value, bool)
    return value


@pytest.mark.parametrize(
    "how",
    [
        {"arguments": ("--normalize-obs", "false")},
        {"arguments": ("--normalize-obs", "no")},
        {"arguments": ("--no-normalize-obs",)},
        {"file": 'normalize_obs: "false"'},
        {"file": "network: {normalize_obs: 'no'}"},
        {"file": '{"normalize_obs": "false"}', "suffix": "json"},
    ],
    ids=str,
)
def test_off_is_off(how: dict[str, Any]):
    assert not normalises(settings(*how.pop("arguments", ()), **how))


@pytest.mark.parametrize("arguments", [(), ("--normalize-obs",)])
def test_on_is_on(arguments: tuple[str, ...]):
    assert normalises(settings(*arguments))


def test_what_is_neither_is_refused(capsys: pytest.CaptureFixture[str]):
    for arguments, word in ((("--normalize-obs", "flase"), "flase"), (("--normalize-obs=flase",), "normalize")):
        assert main(["train", "CartPole-v1", *arguments]) == 2
        assert word in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "suffix"),
    [
        ("learning_rate: 1e-4\ntotal_steps: 1e1\n", "yaml"),
        ("learning_rate: 1E-4\ntotal_steps: '1e1'\n", "yaml"),
        ("ppo:\n  learning_rate: .0001\n  total_steps: 10.0\n", "yaml"),
        ('{"ppo": {"learning_rate": "1e-4", "total_steps": 1e1}}', "json"),
    ],
)
def test_numbers_in_files(text: str, suffix: str):
    ppo = settings(file=text, suffix=suffix)["train"]["ppo"]
    assert ppo["learning_rate"] == 1e-4
    assert isinstance(ppo["learning_rate"], float)
    assert ppo["total_steps"] == 10
    assert isinstance(ppo["total_steps"], int)


def test_numbers_in_flags():
    ppo = settings("--total-steps", "1e1", "--learning-rate", "1e-4")["train"]["ppo"]
    assert (ppo["total_steps"], ppo["learning_rate"]) == (10, 1e-4)
    assert isinstance(ppo["total_steps"], int)


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("an environment was made")

    for name in ("make", "make_vec"):
        monkeypatch.setattr(gymnasium, name, refuse)


@pytest.mark.usefixtures("no_environment")
@pytest.mark.parametrize(
    ("arguments", "file", "message"),
    [
        (("--learning-rat", "1"), None, "--learning-rate"),
        (("--total_stepss", "1"), None, "--total-steps"),
        ((), "learning_rat: 1", "'learning_rate'"),
        ((), "ppo: {learning_rat: 1}", "'learning_rate'"),
        ((), "normalise_obs: true", "'normalize_obs'"),
        (("--total-steps", "1e-1"), None, "total"),
        (("--learning-rate", "fast"), None, "learning"),
        ((), "total_steps: many", "total_steps"),
        ((), "total_steps: 10.5", "total_steps"),
        ((), "learning_rate: true", "learning_rate"),
    ],
)
def test_a_mistake_is_one_line_with_the_nearest_name_before_anything_is_made(
    arguments: tuple[str, ...], file: str | None, message: str, capsys: pytest.CaptureFixture[str]
):
    if file is not None:
        Path("settings.yaml").write_text(file)
        arguments = (*arguments, "--config", "settings.yaml")
    assert main(["train", "CartPole-v1", "--backend", "torch", "--run-dir", "new", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not Path("new").exists()
