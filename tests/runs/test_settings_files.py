"""Files of settings: JSON and YAML, flat and in sections, with mistakes named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from multippo.errors import UsageError
from multippo.runs.fields import Setting
from multippo.runs.settings import run_settings
from multippo.runs.settings_files import read_settings

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


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.yaml", "learning_rat: 1", "unknown key 'learning_rat' in .*c.yaml. Did you mean 'learning_rate'"),
        ("c.yaml", "lr: 1", "Did you mean 'learning_rate'"),
        ("c.yaml", "ppo: {every_steps: 1}", "unknown key 'every_steps'"),
        ("c.yaml", "eval: {learning_rate: 1}", "unknown key 'eval_learning_rate'"),
        ("c.yaml", "resume: true", "unknown key 'resume'"),
        ("c.yaml", "xyz: 1", "unknown key 'xyz' .* `multippo train --help` lists"),
        ("c.yaml", "ppo: [1, 2]", "ppo is a section and has .1, 2.; expected names with values"),
        ("c.yaml", "learning_rate: fast", "c.yaml: learning_rate='fast' is not a finite number"),
        ("c.yaml", "total_steps: .nan", "not a whole number"),
        ("c.yaml", "a: [", "not YAML"),
        ("c.yaml", "- a\n- b", "no names with values"),
        ("c.yaml", "", "no names with values"),
        ("c.yaml", "a: !!python/object/apply:os.system [touch marker]", "not YAML"),
        ("c.json", "{'a': 1}", "not JSON: .*line 1"),
        ("c.json", "[" * 100_000, "not JSON"),
        ("c.json", '{"total_steps": 1' + "0" * 30 + "}", "64 bits"),
        ("c.yaml", "ppo:\n  clip_range: 0.1\nclip-range: 0.2", "names 'clip_range' twice"),
        ("c.json", '{"eval": {"num_envs": 3}, "eval_num_envs": 3}', "names 'eval_num_envs' twice"),
    ],
)
def test_mistakes_in_one_line(name: str, text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message) as caught:
        read(tmp_path, text, name)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "marker").exists()


def test_what_is_merged_into_a_mapping_may_be_overridden(tmp_path: Path):
    text = "ppo: &base\n  clip_range: 0.1\ntrain:\n  <<: {seed: 1}\n  seed: 2"
    assert read(tmp_path, text) == {"clip_range": 0.1, "seed": 2}


def test_files_that_can_not_be_read(tmp_path: Path):
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for name, message in (("nowhere.yaml", "No such file"), (".", "directory"), ("binary.yaml", "not text in UTF-8")):
        with pytest.raises(UsageError, match=message):
            read_settings(tmp_path / name, KNOWN)
