"""``multippo compare``: two runs of one seed are the same, and a change shows where it was made."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from multippo.algorithms.checkpointing.tensor_files import read_tensors, write_tensors
from multippo.cli import main

FLAGS = ("--num-envs=2", "--rollout-length=8", "--actor-hidden-sizes=4", "--critic-hidden-sizes=4")
SAVED = ("--total-steps=48", "--num-minibatches=2", "--final-eval-episodes=0", "--checkpoint-every-steps=1")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """Two runs of one seed, three iterations each, all of them saved."""
    root = tmp_path_factory.mktemp("runs")
    for name in ("a", "b"):
        assert main(["train", "CartPole-v1", "--backend=torch", *FLAGS, *SAVED, f"--run-dir={root / name}"]) == 0
    yield root / "a", root / "b"


def changed(run: Path, copy: Path, step: int, file: str, name: str, by: float) -> Path:
    """A copy of a run with one number of one checkpoint changed."""
    shutil.copytree(run, copy)
    path = copy / "checkpoints" / f"step_{step:012d}" / f"{file}.safetensors"
    arrays = read_tensors(path)
    arrays[name] = np.array(arrays[name])
    arrays[name].flat[1] += by
    manifest = path.with_name("checkpoint.json")
    about = json.loads(manifest.read_text())
    about["sha256"][path.name] = write_tensors(path, arrays)
    manifest.write_text(json.dumps(about))
    return copy


def steps(run: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step_")) for path in (run / "checkpoints").iterdir())


def test_one_seed_is_one_run(trained, command):
    done = command("compare", *trained)
    assert done.code == 0 and "Settings: the same." in done.out
    assert "Logged: the same in 3 iterations that both have." in done.out
    assert "Checkpoints: the same in 3 iterations that both have." in done.out


def test_one_seed_is_one_run_on_two_engines(trained, command, tmp_path):
    assert command("train", "CartPole-v1", "--backend=jax", *FLAGS, *SAVED, f"--run-dir={tmp_path / 'jax'}").code == 0
    done = command("compare", trained[0], tmp_path / "jax", "--tolerance", "1e-4")
    assert done.code == 0, done.out
    assert "Checkpoints: the same, to within 0.0001 in 3 iterations that both have." in done.out
    # To the last bit they are not, and the first place where they part is told.
    done = command("compare", trained[0], tmp_path / "jax", "--tolerance", "0")
    assert done.code == 1 and "Checkpoints: part in iteration 1" in done.out


def test_the_first_checkpoint_and_the_leaf_that_differ(trained, command, tmp_path):
    a, b = trained
    second = steps(b)[1]
    other = changed(b, tmp_path / "other", second, "weights", "layers.1.action.layers.0.bias", 0.5)
    done = command("compare", a, other)
    assert done.code == 1
    assert "Checkpoints: part in iteration 2, after 1 iteration that are the same. 1 of " in done.out
    assert "weights: layers.1.action.layers.0.bias[1]: " in done.out
    assert command("compare", a, other, "--tolerance", "0.6").code == 0
    found = json.loads(command("compare", a, other, "--json").out)
    assert found["equal"] is False and found["saved"]["leaves"][0]["index"] == [1]


def test_a_key_is_equal_or_not(trained, command, tmp_path):
    a, b = trained
    other = changed(b, tmp_path / "other", steps(b)[0], "carry", "key", 1)
    done = command("compare", a, other, "--tolerance", "1")
    assert done.code == 1 and "carry: key[1]: " in done.out


def test_what_was_logged(trained, command, tmp_path):
    a, b = trained
    other = shutil.copytree(b, tmp_path / "other")
    shutil.rmtree(other / "checkpoints")
    lines = [json.loads(line) for line in (other / "metrics.jsonl").read_text().splitlines()]
    lines[1]["kl/approx"] += 0.25
    lines[1]["throughput/train_sps"] = 1.0
    (other / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = command("compare", a, other)
    assert done.code == 1 and "Logged: part in iteration 2" in done.out and "  kl/approx: " in done.out
    assert "1 of " in done.out and "--checkpoint-every-steps 1" in done.out


def test_settings_that_differ_are_named(trained, command, tmp_path):
    a, b = trained
    other = shutil.copytree(b, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    config["train"]["seed"] = 7
    (other / "config.json").write_text(json.dumps(config))
    assert "Settings: differ in seed (0, 7)." in command("compare", a, other).out


def test_runs_of_other_sizes_differ_in_shape(trained, command, tmp_path):
    more = ("--total-steps=16", "--num-minibatches=2", "--final-eval-episodes=0", "--checkpoint-every-steps=1")
    flags = [flag.replace("num-envs=2", "num-envs=1") for flag in FLAGS]
    assert main(["train", "CartPole-v1", *flags, *more, f"--run-dir={tmp_path / 'one'}"]) == 0
    done = command("compare", trained[0], tmp_path / "one", "--most=100")
    assert done.code == 1
    assert "  carry: episodes.length: of shape (2,) in A, of shape (1,) in B\n" in done.out
    found = json.loads(command("compare", trained[0], tmp_path / "one", "--most=100", "--json").out)
    shapes = {leaf["leaf"]: leaf["shapes"] for leaf in found["saved"]["leaves"]}
    assert shapes["carry: episodes.length"] == [[2], [1]]


def test_what_cannot_be_compared(trained, command, tmp_path):
    a, b = trained
    done = command("compare", a)
    assert done.code == 2 and "two runs are compared" in done.err
    done = command("compare", a, tmp_path)
    assert done.code == 2 and "not a run's directory" in done.err
    assert command("compare", a, b, a).code == 2
    assert command("compare", a, b, "--tolerance=-1").code == 2
    assert command("compare", a, b, "--most=0").code == 2
    empty = shutil.copytree(b, tmp_path / "empty")
    (empty / "metrics.jsonl").unlink()
    shutil.rmtree(empty / "checkpoints")
    done = command("compare", a, empty)
    assert done.code == 2 and "no iteration in common" in done.err
