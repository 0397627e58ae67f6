"""Progress: a few lines in a log, a bar on a terminal."""

from __future__ import annotations

import io
import math

from multippo.runs.progress import BarProgress, NoProgress, PlainProgress, make_progress


def metrics(iteration: int, score: float = math.nan) -> dict[str, float]:
    return {
        "step": 100.0 * iteration,
        "iteration": iteration,
        "rollout/episode_reward/mean": score,
        "throughput/train_sps": 50.0,
    }


class Clock:
    """Advances by what the test says."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_lines_come_first_last_and_every_few_seconds():
    stream, clock = io.StringIO(), Clock()
    progress = PlainProgress(1000, 10, stream=stream, clock=clock)
    for iteration in range(1, 11):
        progress.update(metrics(iteration))
        clock.now += 2.0
    steps = [line.split()[1] for line in stream.getvalue().splitlines()]
    # At 0 s, then at the first update 5 s or more after the last line (6 s, 12 s), and at the end (18 s).
    assert steps == ["100/1,000", "400/1,000", "700/1,000", "1,000/1,000"]


def test_a_line_tells_step_return_speed_and_time_left():
    stream = io.StringIO()
    progress = PlainProgress(1000, 10, stream=stream)
    progress.update(metrics(1, 7.25))
    # 100 steps an iteration at 50 steps a second: 2 s for each of the 9 that are left.
    assert stream.getvalue() == "step 100/1,000 (10%)  return 7.2  50 steps/s  0:00:18 left\n"


def test_the_return_shown_is_the_last_one_known():
    stream, clock = io.StringIO(), Clock()
    progress = PlainProgress(1000, 10, stream=stream, clock=clock)
    for iteration, score in ((1, math.nan), (2, 7.0), (3, math.nan)):
        progress.update(metrics(iteration, score))
        clock.now += 100.0
    assert [line.split("return ")[1].split()[0] for line in stream.getvalue().splitlines()] == ["–", "7.0", "7.0"]


def test_evaluations_are_told():
    stream = io.StringIO()
    PlainProgress(1000, 10, stream=stream).update({"step": 300.0, "eval/episode_reward/mean": 12.0})
    assert stream.getvalue() == "step 300  evaluation: return 12.0\n"


def test_a_bar_shows_the_same_and_leaves_the_terminal_in_order():
    stream = io.StringIO()
    progress = make_progress("bar", 1000, 10, stream)
    assert isinstance(progress, BarProgress)
    with progress:
        progress.note("Training [b]env[/b]")
        progress.update(metrics(10, 3.0))
        progress.update({"step": 1000.0, "eval/episode_reward/mean": 12.0})
    shown = stream.getvalue()
    assert "Training [b]env[/b]" in shown
    assert "1,000/1,000" in shown
    assert "evaluation: return 12.0" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")  # the cursor is shown again


def test_the_kind_follows_the_stream():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert isinstance(make_progress("auto", 10, 1, io.StringIO()), PlainProgress)
    assert isinstance(make_progress("plain", 10, 1, Terminal()), PlainProgress)
    assert isinstance(make_progress("off", 10, 1, Terminal()), NoProgress)


def test_a_terminal_that_can_not_move_its_cursor_gets_lines(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(make_progress("auto", 10, 1, Terminal()), BarProgress)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_progress("auto", 10, 1, Terminal()), PlainProgress)
