"""Which checkpoints of a run stay, which is the best, and what a disk that can't be written does."""

import dataclasses
import errno
import functools
import math
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import training
from checkpoints import state_of, table_net

import multippo as mp
from multippo.algorithms.checkpointing import checkpoint as checkpoint_file
from multippo.algorithms.checkpointing import folder as folder_module
from multippo.algorithms.checkpointing.manifest import best_checkpoint, latest_checkpoint, step_directory
from multippo.testing import Clock

pytestmark = pytest.mark.usefixtures("torch_engine")  # files are files; what is in them has tests on both engines


@functools.cache
def small() -> tuple[Any, mp.TrainingState]:
    """A network and its state."""
    with mp.use_backend("torch"):
        network = table_net()
        return network, state_of(network)


def folder_at(path: Path, **options: Any) -> mp.CheckpointFolder:
    return mp.CheckpointFolder(path, small()[0], **options)


def save(folder: mp.CheckpointFolder, iteration: int, eval_return: float | None = None) -> None:
    """Of 16 steps each."""
    step = 16 * iteration
    folder.save(dataclasses.replace(small()[1], iteration=iteration, step=step, eval_return=eval_return), step)


def iterations(path: Path) -> list[int]:
    """The iterations of the checkpoints there, of which each must be whole, and nothing else there."""
    found: list[int] = []
    for entry in sorted(path.iterdir()):
        checkpoint = mp.load_checkpoint(entry)
        checkpoint.arrays()
        assert entry.name == step_directory(path, 16 * checkpoint.manifest.iteration).name
        found.append(checkpoint.manifest.iteration)
    return found


@pytest.mark.parametrize(
    ("keep_last", "keep_best", "returns", "kept", "best"),
    [
        (None, None, [None] * 4, [1, 2, 3, 4], None),
        (2, None, [5.0, None, None, None], [3, 4], None),
        # The best and the last; of equal ones the later.
        (None, 1, [7.0, 7.0, 6.0, None], [2, 4], 2),
        (None, 2, [1.0, 3.0, 2.0, None], [2, 3, 4], 2),
        (2, 1, [9.0, 1.0, 2.0, 3.0], [1, 3, 4], 1),
        # No evaluation, no best; one without a number is none.
        (None, 3, [None, math.nan, None, math.inf], [4], None),
    ],
)
def test_which_stay(tmp_path: Path, keep_last, keep_best, returns, kept, best):
    folder = folder_at(tmp_path / "c", keep_last=keep_last, keep_best=keep_best)
    for number, eval_return in enumerate(returns, start=1):
        save(folder, number, eval_return)
        assert latest_checkpoint(folder.path) == folder.latest() == step_directory(folder.path, 16 * number)
    assert iterations(folder.path) == kept
    assert folder.best() == best_checkpoint(folder.path)
    assert (folder.best() and mp.load_checkpoint(folder.best()).manifest.iteration) == best


def test_the_best_is_known_to_whoever_goes_on(tmp_path: Path):
    for numbers in ([(1, 2.0), (2, 5.0), (3, 1.0)], [(4, 4.0), (5, None)], [(6, 5.5), (7, 3.0)]):
        folder = folder_at(tmp_path / "c", keep_best=1)
        for iteration, eval_return in numbers:
            save(folder, iteration, eval_return)
        assert iterations(folder.path) == {3: [2, 3], 5: [2, 5], 7: [6, 7]}[numbers[-1][0]]
        (tmp_path / "c/.step_000000000016.0a1b2c3d.tmp").mkdir()  # as a killed deletion leaves it


def test_what_is_no_checkpoint_of_this_format_is_left_alone(tmp_path: Path):
    folder = folder_at(tmp_path, keep_last=1)
    for iteration in (1, 2):
        shutil.copytree(Path(__file__).parent, tmp_path / f"step_{iteration}")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "step_2/checkpoint.json").write_text("{")
    (tmp_path / "step_3").symlink_to("step_1")
    save(folder, 8)
    save(folder, 9)
    assert sorted(os.listdir(tmp_path)) == ["notes.txt", "step_000000000144", "step_1", "step_2", "step_3"]


def test_another_run_of_the_same_length_takes_the_place_of_the_first(tmp_path: Path):
    folder = folder_at(tmp_path)
    for eval_return in (1.0, 2.0):
        save(folder, 3, eval_return)
        assert folder.saved == tmp_path / "step_000000000048"
        assert mp.load_checkpoint(tmp_path).manifest.eval_return == eval_return
    assert iterations(tmp_path) == [3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep_last": 0}, r"keep_last=0\) is not possible.*at least 1, or None"),
        ({"on_save_error": "ignore"}, "on_save_error='ignore'.*'stop' or 'continue'"),
    ],
)
def test_what_can_not_be_asked_for(tmp_path: Path, options: Any, message: str):
    with pytest.raises(ValueError, match=message):
        folder_at(tmp_path, **options)


# -- with the training


@pytest.mark.nightly_if("jax")
def test_a_training_saves_at_its_evaluations(engine: Any, tmp_path: Path):
    # 4 environments, 4 steps: an iteration is 16 steps. Evaluations are due at 32 and 64, and after the last at 80.
    network = table_net()
    folder = mp.CheckpointFolder(tmp_path, network)

    def go(initial_state: Any = None, **options: Any) -> tuple[dict[int, float], dict[int, float | None]]:
        """The returns that were logged, and those of the states that were saved, by step."""
        logs: list[dict[str, float]] = []
        saved: dict[int, float | None] = {}

        def keep(state: mp.TrainingState, step: int) -> None:
            saved[step] = state.eval_return
            folder.save(state, step)

        config = mp.TrainConfig(ppo=mp.PPOConfig(**training.DEFAULTS, total_steps=80), **options)
        env = Clock(3, "truncated", num_envs=4)
        mp.train_ppo(env, network, config, log_fn=logs.append, checkpoint_fn=keep, initial_state=initial_state)
        name = "eval/episode_reward/mean"
        return {int(line["step"]): line[name] for line in logs if name in line}, saved

    evaluation = mp.EvalConfig(every_steps=32, num_episodes=2)
    found, saved = go(checkpoint_at_evals=True, eval=evaluation)
    assert saved == found and sorted(found) == [32, 64, 80]
    stored = [mp.load_checkpoint(path).manifest for path in tmp_path.iterdir()]
    assert {manifest.step: manifest.eval_return for manifest in stored} == found
    # Loaded, and saved again by whoever finds nothing left to do, it stays what it was.
    again = mp.load_checkpoint(tmp_path / "step_000000000080", table_net(1))
    assert go(again)[1] == {80: again.eval_return} == {80: found[80]}
    # Between evaluations there is no return.
    _, saved = go(checkpoint_every_steps=16, eval=evaluation)
    assert [step for step, value in saved.items() if value is None] == [16, 48]


# -- disks


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writing arrays fails while ``full``."""
    found, write = SimpleNamespace(full=False), checkpoint_file.write_tensors

    def write_tensors(path: Path, arrays: Any) -> str:
        if found.full and path.name.startswith("optimizer"):  # after the weights went well
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write(path, arrays)

    monkeypatch.setattr(checkpoint_file, "write_tensors", write_tensors)
    return found


def test_a_full_disk_stops_the_run_and_leaves_the_last_good_checkpoint(tmp_path: Path, disk: Any):
    folder = folder_at(tmp_path, keep_last=1)
    save(folder, 1)
    disk.full = True
    for _ in range(2):
        with pytest.raises(OSError, match="No space left on device"):
            save(folder, 2)
        assert iterations(tmp_path) == [1]
    assert folder.saved == tmp_path / "step_000000000016"
    disk.full = False
    save(folder, 2)
    assert iterations(tmp_path) == [2]


def test_a_run_that_goes_on_over_a_full_disk_says_so_and_saves_when_it_can(
    tmp_path: Path, disk: Any, caplog: pytest.LogCaptureFixture
):
    folder = folder_at(tmp_path / "c", keep_last=1, on_save_error="continue")
    disk.full = True
    save(folder, 1)
    assert (folder.saved, list((tmp_path / "c").iterdir())) == (None, [])
    disk.full = False
    save(folder, 2)
    assert folder.error is None
    disk.full = True
    save(folder, 3)
    assert isinstance(folder.error, OSError)
    assert iterations(folder.path) == [2]
    first, second = (record.getMessage() for record in caplog.records)
    assert "step 16 was not saved: [Errno 28] No space left on device" in first and "Nothing is saved yet" in first
    assert "step 48 was not saved" in second and "The last checkpoint is step_000000000032" in second
    disk.full = False
    save(folder, 3)  # asked for again, after an interrupt say
    assert (folder.error, iterations(folder.path)) == (None, [3])


def test_something_else_in_a_checkpoints_place_is_no_failure_of_the_disk(tmp_path: Path):
    (tmp_path / "step_000000000016").mkdir()
    (tmp_path / "step_000000000016/thesis.tex").touch()
    with pytest.raises(FileExistsError, match="other files"):
        save(folder_at(tmp_path, on_save_error="continue"), 1)


def test_a_checkpoint_that_can_not_be_removed_is_a_nuisance_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(path))

    folder = folder_at(tmp_path, keep_last=1)
    save(folder, 1)
    with monkeypatch.context() as patched:
        patched.setattr(folder_module, "remove_directory", refuse)
        save(folder, 2)
    assert iterations(tmp_path) == [1, 2]
    (said,) = caplog.records
    assert "step_000000000016 could not be removed: [Errno 1]" in said.getMessage()
    save(folder, 3)
    assert iterations(tmp_path) == [3]
