"""What was logged can be read again: as strict JSON, by TensorBoard, as a picture."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multippo.algorithms.metrics import (
    History,
    JsonlWriter,
    TensorBoardWriter,
    drop_after,
    plot_learning_curve,
    plot_metric,
    read_metrics,
)


def write(path: Path, *records: dict[str, Any]) -> None:
    writer = JsonlWriter(path)
    for record in records:
        writer.write(record)
    writer.close()


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_lines_are_strict_json_with_whole_counts(tmp_path: Path):
    write(tmp_path / "m", {"step": 8.0, "iteration": 1, "a": math.nan, "b": -math.inf, "c": np.float32(0.5)})
    (line,) = (tmp_path / "m").read_text().splitlines()
    assert read_metrics(tmp_path / "nowhere") == []
    assert strict(line) == {"step": 8, "iteration": 1, "a": None, "b": None, "c": 0.5}
    assert '"step": 8,' in line


@pytest.mark.parametrize("line", ['{"step": 2, "a": [1]}', "[1]", '{"step": NaN}', '{"step": 3, "los'])
def test_a_line_that_is_none_of_its_own_is_left_out(tmp_path: Path, line: str):
    (tmp_path / "m").write_text(f'{{"step": 1, "a": null}}\n{line}\n{{"step": 3}}\n')
    assert read_metrics(tmp_path / "m") == [{"step": 1, "a": None}, {"step": 3}]
    drop_after(tmp_path / "m", 2)
    assert read_metrics(tmp_path / "m") == [{"step": 1, "a": None}]


def test_what_comes_after_a_torn_line_begins_a_new_one(tmp_path: Path):
    for number, text in enumerate(("", '{"step": 1}\n', '{"step": 1}\n{"st')):
        path = tmp_path / str(number)
        path.write_text(text)
        write(path, {"step": 2})
        assert read_metrics(path) == [{"step": 1}] * bool(text) + [{"step": 2}]
        assert path.read_text() == text + "\n" * (number == 2) + '{"step": 2}\n'


def test_a_resumed_run_drops_what_it_will_log_again(tmp_path: Path):
    write(tmp_path / "m", {"step": 1, "x": math.nan}, {"step": 2}, {"step": 2, "eval/x": 1.0}, {"step": 3})
    with (tmp_path / "m").open("a") as file:
        file.write('{"st')
    drop_after(tmp_path / "m", 2)
    write(tmp_path / "m", {"step": 3, "again": 1.0})
    assert read_metrics(tmp_path / "m") == [
        {"step": 1, "x": None},
        {"step": 2},
        {"step": 2, "eval/x": 1.0},
        {"step": 3, "again": 1.0},
    ]
    drop_after(tmp_path / "nowhere", 2)
    assert not (tmp_path / "nowhere").exists()


def events(path: Path) -> list[Any]:
    """The events in a file, by TensorBoard's own reader, checksums and all."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    return list(LegacyEventFileLoader(str(path)).Load())


def test_tensorboard_reads_the_events(tmp_path: Path):
    for first_step in (0, 16):
        writer = TensorBoardWriter(tmp_path, first_step)
        writer.write({"step": 24, "losses/actor": 0.5, "losses/critic": math.nan})
        writer.close()
    fresh, resumed = (events(path) for path in sorted(tmp_path.iterdir()))
    assert fresh[0].file_version == "brain.Event:2"
    (event,) = fresh[1:]
    assert (event.step, [(v.tag, v.simple_value) for v in event.summary.value]) == (24, [("losses/actor", 0.5)])
    # The one that goes on tells TensorBoard to forget the steps from there on.
    assert (resumed[1].step, resumed[1].session_log.status) == (16, resumed[1].session_log.START)
    assert all(path.name.startswith("events.out.tfevents.") for path in tmp_path.iterdir())


def test_a_picture_of_the_learning_curve(tmp_path: Path):
    records = [
        {"step": 1, "rollout/episode_reward/mean": None},
        {"step": 2, "rollout/episode_reward/mean": 3.0},
        {"step": 2, "eval/episode_reward/mean": 4.0},
        {"other": 1},
    ]
    assert plot_learning_curve(records, tmp_path / "curve.png", "a title")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    for nothing in ([], records[:1]):
        assert not plot_learning_curve(nothing, tmp_path / "nothing.png", "a title")
    assert [path.name for path in tmp_path.iterdir()] == ["curve.png"]


def test_seeds_are_drawn_as_a_band_to_where_the_shortest_ends():
    seeds = [[{"step": s, "x": k * s} for s in steps] for k, steps in ((1.0, (0, 2, 4)), (3.0, (0, 1, 3)))]
    (axes,) = plot_metric({"a": seeds, "b": seeds[:1]}, "x").axes
    mean, alone = axes.lines
    # At steps 0 and 2 of the first, where the second has 0 and, between 3 and 9, 6.
    np.testing.assert_allclose(mean.get_xydata(), [[0, 0], [2, 4]])
    np.testing.assert_allclose(alone.get_xydata(), [[0, 0], [2, 2], [4, 4]])
    (band,) = axes.collections
    assert band.get_datalim(axes.transData).y1 == 6.0


def test_a_history_keeps_records_from_all_over_a_long_run_and_the_last_ones():
    history = History(most=8)
    for step in range(30):
        history.append({"step": step, "a": 0.5 * step} if step % 2 else {"step": step})
    steps = [record["step"] for record in history.records()]
    assert steps == sorted(set(steps))
    assert steps[0] == 0
    assert steps[-2:] == [28, 29]
    assert len(steps) <= 8
    assert history.records()[-1] == {"step": 29, "a": 14.5}
