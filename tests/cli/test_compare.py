"""``multippo compare``: two runs of one seed are the same, and a change shows where it was made."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from short_runs import FIVE, SHORT, SMALL, checkpoints

from multippo.algorithms.checkpointing.tensor_files import read_tensors, write_tensors
from multippo.cli import main
from multippo.cli.compare import apart, logged_by_iteration

FLAGS = (*SHORT, *SMALL, *FIVE)


@pytest.fixture(scope="module")
def trained(five: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two runs of one seed, five iterations each, all of them saved."""
    path = tmp_path_factory.mktemp("runs") / "b"
    assert main([str(flag) for flag in ("train", "CartPole-v1", "--backend=torch", *FLAGS, f"--run-dir={path}")]) == 0
    return five, path


def changed(run: Path, copy: Path, number: int, file: str, name: str, change: Callable[[Any], Any]) -> Path:
    """A copy of a run with one array of one checkpoint changed."""
    shutil.copytree(run, copy)
    path = checkpoints(copy)[number] / f"{file}.safetensors"
    arrays = read_tensors(path)
    arrays[name] = change(np.array(arrays[name]))
    path.unlink()
    manifest = path.with_name("checkpoint.json")
    about = json.loads(manifest.read_text())
    about["sha256"][path.name] = write_tensors(path, arrays)
    manifest.write_text(json.dumps(about))
    return copy


def test_one_seed_is_one_run(trained, command):
    done = command("compare", *trained)
    assert done.code == 0 and "Settings: the same." in done.out
    assert "Logged: the same in 5 iterations that both have." in done.out
    assert "Checkpoints: the same in 5 iterations that both have." in done.out


@pytest.mark.parametrize(
    ("file", "name", "change", "tolerance", "said"),
    [
        ("weights", "layers.1.action.layers.0.bias", lambda x: x + 0.5 * np.eye(len(x))[1], 0.6, "[1]: "),
        ("carry", "key", lambda x: x + np.asarray([0, 1], x.dtype), None, "[1]: "),
        ("carry", "episodes.length", lambda x: x[:1], None, ": of shape (4,) in A, of shape (1,) in B\n"),
    ],
)
def test_the_checkpoint_and_the_leaf_that_differ(trained, command, tmp_path, file, name, change, tolerance, said):
    a, b = trained
    other = changed(b, tmp_path / "other", 1, file, name, lambda x: change(x).astype(x.dtype))
    done = command("compare", a, other)
    assert done.code == 1
    assert "Checkpoints: part in iteration 2, after 1 iteration that are the same. 1 of " in done.out
    assert f"  {file}: {name}{said}" in done.out
    # No tolerance makes keys or shapes equal.
    assert command("compare", a, other, "--tolerance", tolerance or 1e9).code == (0 if tolerance else 1)
    found = json.loads(command("compare", a, other, "--json").out)
    (leaf,) = found["saved"]["leaves"]
    assert found["equal"] is False and (leaf["index"] == [1] or leaf["shapes"] == [[4], [1]])


def test_what_was_logged(trained, command, tmp_path):
    a, b = trained
    other = shutil.copytree(b, tmp_path / "other")
    shutil.rmtree(other / "checkpoints")
    lines = [json.loads(line) for line in (other / "metrics.jsonl").read_text().splitlines()]
    lines[1]["kl/approx"] += 0.25
    lines[1]["throughput/train_sps"] = 1.0
    config = json.loads((other / "config.json").read_text())
    config["train"]["seed"] = 7
    (other / "config.json").write_text(json.dumps(config))
    (other / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = command("compare", a, other)
    assert done.code == 1 and "Logged: part in iteration 2" in done.out and "  kl/approx: " in done.out
    assert "Settings: differ in seed (0, 7)." in done.out
    assert "1 of " in done.out and "--checkpoint-every-steps 1" in done.out


def test_what_cannot_be_compared(trained, command, tmp_path):
    a, b = trained
    empty = shutil.copytree(b, tmp_path / "empty")
    (empty / "metrics.jsonl").unlink()
    shutil.rmtree(empty / "checkpoints")
    for arguments, words in (
        ((a,), "two runs are compared"),
        ((a, tmp_path), "not a run's directory"),
        ((a, b, a), ""),
        ((a, b, "--tolerance=-1"), ""),
        ((a, b, "--most=0"), ""),
        ((a, empty), "no iteration in common"),
    ):
        command("compare", *arguments).assert_refused(words)


def differences(a, b, tolerance=0.0):
    found = apart("x", a, b, tolerance)
    return [] if found is None else [found]


def test_the_place_that_is_furthest_apart():
    a = np.array([[1.0, 2.0], [3.0, 400.0]])
    b = a + np.array([[0.0, 0.1], [0.0, 0.2]])
    (found,) = differences(a, b)
    # 0.1 of 2.1 is more than 0.2 of 400.2.
    assert found.index == (0, 1) and (found.a, found.b) == (2.0, 2.1)
    assert found.by == pytest.approx(0.1 / 2.1)
    assert not differences(a, b, 0.05) and differences(a, b, 0.04)


@pytest.mark.parametrize("same", [math.nan, math.inf, -math.inf, 0.0])
def test_what_is_no_number_equals_itself(same):
    assert not differences(np.array([1.0, same]), np.array([1.0, same]))
    if same:
        (found,) = differences(np.array([5.0, same]), np.array([5.0, 1.0]), tolerance=1e9)
        assert found.index == (1,) and found.by == math.inf
    (found,) = differences(1e-9, 2e-9)  # numbers near 0 are apart by their distance
    assert found.index == () and found.by == pytest.approx(1e-9)


def test_an_evaluation_is_of_the_iteration_before_it_and_speeds_are_left_out():
    records = [
        {"iteration": 1, "step": 8, "losses/actor": 1.0, "time/compile_s": 3.0, "throughput/train_sps": 9.0},
        {"step": 8, "eval/episode_reward/mean": None},
        {"iteration": 2, "step": 16, "losses/actor": None},
    ]
    found = logged_by_iteration(records)
    assert set(found) == {1, 2} and set(found[1]) == {"iteration", "step", "losses/actor", "eval/episode_reward/mean"}
    assert math.isnan(found[2]["losses/actor"]) and math.isnan(found[1]["eval/episode_reward/mean"])
