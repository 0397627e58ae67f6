"""Progress: a few lines in a log, a bar on a terminal."""

import io
import math
import sys
import time
import types

import pytest

from multippo.algorithms.progress import BarProgress, PlainProgress, make_progress, progress_where_seen


def metrics(iteration: int, score: float = math.nan) -> dict[str, float]:
    return {
        "step": 100.0 * iteration,
        "iteration": iteration,
        "rollout/episode_reward_100/mean": score,
        "throughput/train_sps": 50.0,
    }


def test_lines_come_first_last_and_every_few_seconds(monkeypatch):
    stream, now = io.StringIO(), [1000.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    progress = PlainProgress(1000, 10, stream)
    for iteration in range(1, 11):
        progress.update(metrics(iteration, 7.25 if iteration >= 2 else math.nan))
        now[0] += 2.0
    words = [line.split() for line in stream.getvalue().splitlines()]
    # At 0 s, then at the first update 5 s or more after the last line (6 s, 12 s), and at the end (18 s).
    assert [line[1] for line in words] == ["100/1,000", "400/1,000", "700/1,000", "1,000/1,000"]
    assert [line[4] for line in words] == ["–", "7.2", "7.2", "7.2"]


def test_a_line_tells_step_return_speed_and_time_left():
    stream = io.StringIO()
    progress = PlainProgress(1000, 10, stream)
    progress.update(metrics(1, 7.25))
    progress.update({"step": 300.0, "eval/episode_reward/mean": 12.0})
    # 100 steps an iteration at 50 steps a second: 2 s for each of the 9 that are left.
    assert stream.getvalue().splitlines() == [
        "step 100/1,000 (10%)  return 7.2  50 steps/s  0:00:00 elapsed  0:00:18 left",
        "step 300  evaluation: return 12.0",
    ]


def test_a_bar_shows_the_same_and_leaves_the_terminal_in_order():
    stream = io.StringIO()
    progress = make_progress("bar", 1000, 10, stream)
    with progress:
        progress.note("Training [b]env[/b]")
        progress.update(metrics(10, 3.0))
        progress.update({"step": 1000.0, "eval/episode_reward/mean": 12.0})
        progress.part(0.25)
    shown = stream.getvalue()
    for words in ("Training [b]env[/b]", "1,000/1,000", "evaluation: return 12.0", "25%"):
        assert words in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")  # the cursor is shown again


@pytest.mark.parametrize(
    ("kind", "terminal", "made"),
    [
        ("auto", None, PlainProgress),
        ("auto", "xterm", BarProgress),
        ("auto", "dumb", PlainProgress),  # which can't move its cursor
        ("plain", "xterm", PlainProgress),
    ],
)
def test_the_kind_follows_the_stream(monkeypatch, kind, terminal, made):
    stream = io.StringIO()
    stream.isatty = lambda: terminal is not None
    monkeypatch.setenv("TERM", terminal or "xterm")
    assert type(make_progress(kind, 10, 1, stream)) is made


def test_a_notebook_has_one_output_that_is_kept_up_to_date(monkeypatch):
    outputs: list[types.SimpleNamespace] = []

    def display(first: str, display_id: bool) -> types.SimpleNamespace:
        outputs.append(types.SimpleNamespace(shown=first))
        outputs[-1].update = lambda html: setattr(outputs[-1], "shown", html)
        return outputs[-1]

    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    stand_in = types.SimpleNamespace(display=display, HTML=str)
    monkeypatch.setitem(sys.modules, "IPython.display", stand_in)
    with progress_where_seen(True, 1000, 10) as progress:
        for iteration in range(1, 11):
            progress.update(metrics(iteration, 3.0))
        progress.update({"step": 1000.0, "eval/episode_reward/mean": 12.0})
    (output,) = outputs
    assert "<td>return</td>" in output.shown and "<td>3.0</td>" in output.shown
    assert output.shown.endswith("<pre>step 1,000  evaluation: return 12.0</pre>")
