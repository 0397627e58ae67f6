"""Values of settings on a command line and in files."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from multippo.errors import UsageError
from multippo.runs.notation import Setting, convert, read_settings, shown
from multippo.runs.settings import run_settings

KNOWN = {"env": Setting("env", str | None, None), **run_settings()}


def read(tmp_path: Path, text: str, name: str = "c.yaml") -> dict[str, Any]:
    (tmp_path / name).write_text(text)
    return read_settings(tmp_path / name, KNOWN)


@pytest.mark.parametrize(
    "text",
    [
        "env: brax/ant\nenv_backend: mjx\nlearning_rate: 1.0e-4\neval_every_steps: 5\n"
        "network: lstm\nhidden_features: 8\n",
        "env: {id: brax/ant, backend: mjx}\nppo: {learning_rate: 1e-4}\neval: {every_steps: 5}\n"
        "network: {kind: lstm, hidden_features: 8}\n",
        "env.id: brax/ant\nenv.backend: mjx\nppo.learning-rate: 1e-4\neval.every-steps: 5\nnetwork.kind: lstm\n"
        "network.hidden_features: 8\n",
        "env: {id: brax/ant, kwargs: {backend: mjx}}\ntrain: {ppo: {learning_rate: 1e-4}, eval: {every_steps: 5}}\n"
        "network: {kind: lstm, options: {hidden_features: 8}}\n",
    ],
)
def test_the_same_settings_in_every_arrangement(text: str, tmp_path: Path):
    assert read(tmp_path, text) == {
        "env": "brax/ant",
        "env_backend": "mjx",
        "learning_rate": 1e-4,
        "eval_every_steps": 5,
        "network": "lstm",
        "hidden_features": 8,
    }


def test_what_environments_constructors_take_needs_no_setting_of_that_name(tmp_path: Path):
    text = "env: {id: Pendulum-v1, kwargs: {g: 1e1, seed: x, options: {a: 1}, max_episode_steps: 5}}\nseed: 2"
    expected = {"g": 10.0, "seed": "x", "options": {"a": 1}}
    assert read(tmp_path, text) == {"env": "Pendulum-v1", "env_kwargs": expected, "max_episode_steps": 5, "seed": 2}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.yaml", "learning_rat: 1", "unknown key 'learning_rat' in .*c.yaml. Did you mean 'learning_rate'"),
        ("c.yaml", "ppo: [1, 2]", "ppo is a section and has .1, 2.; expected names with values"),
        ("c.yaml", "learning_rate: fast", "c.yaml: learning_rate='fast' is not a finite number"),
        ("c.yaml", "a: [", "not YAML"),
        ("c.json", "{'a': 1}", "not JSON: .*line 1"),
        ("c.json", '{"total_steps": 1' + "0" * 30 + "}", "64 bits"),
        ("c.yaml", "ppo:\n  clip_range: 0.1\nclip-range: 0.2", "names 'clip_range' twice"),
    ],
)
def test_mistakes_in_one_line(name: str, text: str, message: str, tmp_path: Path):
    with pytest.raises(UsageError, match=message) as caught:
        read(tmp_path, text, name)
    assert "\n" not in str(caught.value)


def test_what_is_merged_into_a_mapping_may_be_overridden(tmp_path: Path):
    text = "ppo: &base\n  clip_range: 0.1\ntrain:\n  <<: {seed: 1}\n  seed: 2"
    assert read(tmp_path, text) == {"clip_range": 0.1, "seed": 2}


def test_files_that_can_not_be_read(tmp_path: Path):
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for name, message in (("nowhere.yaml", "No such file"), (".", "directory"), ("binary.yaml", "not text in UTF-8")):
        with pytest.raises(UsageError, match=message):
            read_settings(tmp_path / name, KNOWN)


Size = Literal["small", "large"]
Activation = str | Callable[[Any], Any] | None


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        *((text, bool, True) for text in ("true", "True", "yes", "on", "1", True, 1)),
        *((text, bool, False) for text in ("false", "FALSE", "no", "off", "0", False, 0)),
        *((text, int, 1_000_000) for text in ("1000000", "1e6", "1_000_000", " 1E6 ", 1e6, 10**6)),
        ("9007199254740993", int, 2**53 + 1),  # which no floating-point number holds
        ("-5", int, -5),
        *((text, float, 1e-4) for text in ("1e-4", "0.0001", 1e-4)),
        *((text, int | None, None) for text in ("none", "None", "null", "", None)),
        ("large", Size, "large"),
        *((text, Sequence[int], (64, 32)) for text in ("64,32", "64 32", "[64, 32]", "(64,32)", [64, 32], ["64", 32])),
        (64, Sequence[int], (64,)),
        *((text, tuple[int, ...], ()) for text in ("", "none", [])),
        (None, Activation, None),
        (False, Literal["auto", "on", "off"], "off"),  # what YAML makes of a bare off
    ],
)
def test_values(value: Any, hint: Any, expected: Any):
    found = convert(value, hint, "x")
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "hint", "message"),
    [
        ("1e400", int, "not a whole number"),
        (True, int, "not a whole number"),
        ("nan", float, "not a finite number"),
        ("larg", Size, "small, large. Did you mean 'large'"),
        (["x"], str, "not text"),
        ("1e19", int, "at most 64 bits"),
    ],
)
def test_what_is_no_such_value_is_refused_by_name(value: Any, hint: Any, message: str):
    with pytest.raises(UsageError, match=message) as caught:
        convert(value, hint, "some_option")
    assert "some_option=" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "hint"), [((64, 32), Sequence[int]), (True, bool), (None, int | None), (1e-5, float), ((), Sequence[int])]
)
def test_what_is_shown_can_be_written_back(value: Any, hint: Any):
    assert convert(shown(value), hint, "x") == value
