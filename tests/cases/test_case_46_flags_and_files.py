"""A flag or a line in a file means what it says: false is false, 1e-4 is a number, and an unknown name is an error.

Seen in UoA-CARES/cares_reinforcement_learning#111, chandar-lab/RLHive#140, idiap/coqui-ai-TTS#38, huggingface/trl#1450,
determined-ai/determined#2688.
"""

import json
import signal
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from multippo.algorithms.run import Run


@pytest.fixture
def settings(command: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The settings of a run, as its ``config.json`` has them, by flags and a file; it is not trained."""

    def made(*arguments: str, file: str | None = None, suffix: str = "yaml") -> dict[str, Any]:
        if file is not None:
            Path(f"settings.{suffix}").write_text(file)
            arguments = ("--config", f"settings.{suffix}", *arguments)
        monkeypatch.setattr(Run, "go", lambda _: signal.raise_signal(signal.SIGINT))
        assert command("train", "CartPole-v1", "--backend", "torch", "--run-dir", "run", *arguments).code == 130
        return json.loads(Path("run/config.json").read_text())

    return made


@pytest.mark.parametrize(
    "how",
    [
        {"arguments": ("--normalize-obs", "false")},
        {"arguments": ("--no-normalize-obs",)},
        {"file": 'normalize_obs: "false"'},
        {"file": '{"normalize_obs": "false"}', "suffix": "json"},
    ],
    ids=str,
)
def test_off_is_off(settings: Any, how: dict[str, Any]):
    found = settings(*how.get("arguments", ()), **{key: how[key] for key in ("file", "suffix") if key in how})
    assert found["network"]["options"]["normalize_obs"] is False


@pytest.mark.parametrize(
    ("arguments", "text", "suffix"),
    [
        (("--total-steps", "1e6", "--learning-rate", "1e-4"), None, "yaml"),
        ((), "learning_rate: 1e-4\ntotal_steps: 1e6\n", "yaml"),
        ((), "ppo: {learning_rate: 1E-4, total_steps: '1e6'}", "yaml"),
        ((), '{"ppo": {"learning_rate": "1e-4", "total_steps": 1e6}}', "json"),
    ],
)
def test_numbers(settings: Any, arguments: tuple[str, ...], text: str | None, suffix: str):
    found = settings(*arguments, file=text, suffix=suffix)
    ppo = found["train"]["ppo"]
    assert (ppo["learning_rate"], ppo["total_steps"]) == (1e-4, 10**6)
    assert isinstance(ppo["learning_rate"], float) and isinstance(ppo["total_steps"], int)
    assert found["network"]["options"]["normalize_obs"] is True  # on where nothing is said


@pytest.mark.parametrize(
    ("arguments", "file", "message"),
    [
        (("--learning-rat", "1"), None, "--learning-rate"),
        (("--normalize-obs", "flase"), None, "flase"),
        ((), "ppo: {learning_rat: 1}", "'learning_rate'"),
        ((), "normalise_obs: true", "'normalize_obs'"),
        ((), "total_steps: 10.5", "total_steps"),
        ((), "learning_rate: true", "learning_rate"),
    ],
)
def test_a_mistake_is_one_line_with_the_nearest_name_before_anything_is_made(
    command: Any, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], file: str | None, message: str
):
    for name in ("make", "make_vec"):
        monkeypatch.setattr(gymnasium, name, None)  # calling it would be a fault
    if file is not None:
        Path("settings.yaml").write_text(file)
        arguments = (*arguments, "--config", "settings.yaml")
    command("train", "CartPole-v1", "--backend", "torch", "--run-dir", "new", *arguments).assert_refused(message)
    assert not Path("new").exists()
