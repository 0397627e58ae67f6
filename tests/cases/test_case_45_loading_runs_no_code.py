"""A checkpoint, and a run's directory, are data: nothing in them is run, imported, or followed elsewhere.

Seen in DLR-RM/stable-baselines3#2281, microsoft/physical-ai-toolchain#1097.
"""

import functools
import json
import pickle
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import multippo as mp
from multippo.cli import main

CHECKPOINT = ("checkpoint.json", "weights.safetensors", "optimizer.safetensors", "carry.safetensors")
FUNCTIONAL = "environment.safetensors"


class Marker:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (str(self.path), "w"))


def bomb(path: Path, kind: str) -> bytes:
    """A file that makes ``path`` when it is unpickled: plain, or inside an archive as ``torch.save`` writes it."""
    content = pickle.dumps(Marker(path))
    if kind == "plain":
        return content
    archive = path.with_suffix(".zip")
    with zipfile.ZipFile(archive, "w") as file:
        for name in ("archive/data.pkl", "data.pkl", "../escaped"):
            file.writestr(name, content)
    return archive.read_bytes()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one iteration in a functional environment, so that a checkpoint has all its files."""
    path = tmp_path_factory.mktemp("runs") / "run"
    sizes = "--num-envs 2 --rollout-length 4 --num-epochs 1 --num-minibatches 1 --total-steps 8 --final-eval-episodes 0"
    arguments = ["train", "brax/fast", "--backend", "torch", "--run-dir", str(path), *sizes.split()]
    assert main([*arguments, "--actor-hidden-sizes", "4", "--critic-hidden-sizes", "4"]) == 0
    return path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def checkpoint_of(run: Path) -> Path:
    (path,) = (run / "checkpoints").iterdir()
    return path


def network_of(run: Path) -> Any:
    from multippo.runs.directory import RunDirectory

    settings = RunDirectory(run).settings()
    return settings.make_network(settings.make_env(2))


def commands(run: Path) -> list[list[Any]]:
    resume = ["train", "--run-dir", run, "--resume", "--total-steps", 16, "--progress", "off"]
    return [["eval", run, "--episodes", 1], resume]


def assert_refused(command: Any, run: Path, marker: Path, read: tuple[bool, bool] = (True, True)) -> None:
    """Each command that reads the file ends with one line and code 2; nothing was run."""
    for arguments, reads in zip(commands(run), read, strict=True):
        if reads:
            command(*arguments, "--backend", "torch").assert_refused("multippo: ")
    assert not marker.exists()
    assert not list(run.parent.rglob("escaped"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "plain") for name in (*CHECKPOINT, FUNCTIONAL, "config.json")),
        *((name, "archive") for name in ("weights.safetensors", "checkpoint.json", "config.json")),
    ],
)
def test_a_pickle_in_place_of_a_file(torch_engine: Any, command: Any, run: Path, name: str, kind: str, tmp_path: Path):
    marker, path = tmp_path / "marker", checkpoint_of(run)
    network = network_of(run)
    assert sorted(file.name for file in path.iterdir()) == sorted([*CHECKPOINT, FUNCTIONAL])
    ((run if name == "config.json" else path) / name).write_bytes(bomb(marker, kind))
    if name != "config.json":
        with pytest.raises(ValueError, match=name):
            mp.load_checkpoint(path, network, env=mp.make_env("brax/fast", num_envs=2))
    # Evaluation reads the weights alone.
    assert_refused(command, run, marker, (name in (*CHECKPOINT[:2], "config.json"), True))


def test_a_pickle_in_place_of_what_was_logged(command: Any, run: Path, tmp_path: Path):
    content = bomb(tmp_path / "marker", "plain")
    (run / "metrics.jsonl").write_bytes(content)
    for arguments in commands(run):
        assert command(*arguments, "--backend", "torch").code in (0, 2)
    assert not (tmp_path / "marker").exists()
    pickle.loads(content).close()
    assert (tmp_path / "marker").exists()  # it would have been seen


MODULE = "a_module_of_the_attacker"


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("env.id", f"{MODULE}:Env-v0"),
        ("network.kind", f"{MODULE}.Network"),
        ("train.ppo.lr_schedule", f"{MODULE}.run"),
        ("backend", MODULE),
        ("train.ppo.learning_rate", f"!!python/object/apply:{MODULE}.run []"),
    ],
)
def test_a_name_of_something_importable_is_not_imported(
    command: Any, run: Path, place: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    marker = tmp_path / "marker"
    (tmp_path / f"{MODULE}.py").write_text(f"open({str(marker)!r}, 'w')\nrun = Env = Network = print\n")
    monkeypatch.syspath_prepend(tmp_path)
    settings = json.loads((run / "config.json").read_text())
    *sections, last = place.split(".")
    functools.reduce(dict.__getitem__, sections, settings)[last] = value
    (run / "config.json").write_text(json.dumps(settings))
    if place == "backend":  # may be passed over for the one that was asked for
        assert command(*commands(run)[0], "--backend", "torch").code in (0, 2)
        assert not marker.exists()
    else:
        assert_refused(command, run, marker)
    assert MODULE not in sys.modules


def test_a_yaml_file_makes_no_objects(command: Any, tmp_path: Path):
    text = f"learning_rate: !!python/object/apply:builtins.open ['{tmp_path / 'marker'}', 'w']\n"
    (tmp_path / "settings.yaml").write_text(text)
    command("train", "CartPole-v1", "--config", tmp_path / "settings.yaml", "--run-dir", "new").assert_refused()
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "a/../../x"])
def test_names_that_point_elsewhere_write_nothing(torch_engine: Any, run: Path, name: str):
    path = checkpoint_of(run)
    network = network_of(run)
    before = sorted(run.parent.rglob("*"))
    manifest = {**json.loads((path / "checkpoint.json").read_text()), "sha256": None}
    (path / "checkpoint.json").write_text(json.dumps(manifest))
    for file in ("weights", "optimizer", "carry"):
        tensors = load_file(path / f"{file}.safetensors")
        save_file({**tensors, name: np.zeros(1, np.float32)}, path / f"{file}.safetensors")
        with pytest.raises(ValueError, match="left over"):
            mp.load_checkpoint(path, network)
        save_file(tensors, path / f"{file}.safetensors")
    for field in ("backend", "multippo_version"):
        changed = {**manifest, field: name, "files": [name], "extra": {"path": name}}
        (path / "checkpoint.json").write_text(json.dumps(changed))
        mp.load_checkpoint(path, network)  # a name in the description is a name and no more
    assert sorted(run.parent.rglob("*")) == before


@pytest.mark.parametrize("name", [*CHECKPOINT, FUNCTIONAL])
def test_a_link_out_of_the_directory_is_not_followed(torch_engine: Any, run: Path, name: str, tmp_path: Path):
    path, network = checkpoint_of(run), network_of(run)
    (path / name).rename(tmp_path / "outside")
    (path / name).symlink_to(tmp_path / "outside")
    with pytest.raises(ValueError, match="link"):
        mp.load_checkpoint(path, network, env=mp.make_env("brax/fast", num_envs=2))
