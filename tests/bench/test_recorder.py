"""The clock of a contestant, on a clock of the test's own."""

import pytest

from multippo.bench import recorder as module
from multippo.bench.recorder import Enough, Recorder, Tick, dispatches
from multippo.bench.works import WORKS


class Clock:
    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    time = perf_counter


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def run(recorder, clock, seconds, steps):
    """Iterations that take the given seconds until enough is measured; returns their number."""
    for number, took in enumerate(seconds, start=1):
        clock.now += took
        try:
            recorder.iteration(number * steps)
        except Enough:
            return number
    raise AssertionError("never enough")


def test_the_rate_leaves_out_the_dispatches_that_compile(clock):
    recorder = Recorder(began=0.0, seconds=4.0)
    # 30, 20 and 10 s of compiling, then 100 steps in each half second: the measurement begins at the end of the fourth.
    assert run(recorder, clock, [30, 20, 10, *[0.5] * 100], steps=100) == 12
    found = recorder.result()
    assert found["steps_per_s"] == pytest.approx(200) and found["measured_s"] == pytest.approx(4.0)
    assert found["first_iteration_s"] == 30


def test_iterations_of_one_dispatch_are_not_counted_by_their_number(clock):
    recorder = Recorder(began=0.0, seconds=6.0)
    # Ten iterations at once, every two seconds, logged 1 ms after one another: 500 steps a second.
    run(recorder, clock, [2.0 if number % 10 == 0 else 1e-3 for number in range(1000)], steps=100)
    assert recorder.result()["steps_per_s"] == pytest.approx(1000 / 2.009)


def test_first_tick_of_each_dispatch():
    ticks = [Tick(time, step, 0.0, 0.0) for step, time in enumerate([1, 1.01, 1.02, 4, 4.01, 4.02])]
    assert [tick.steps for tick in dispatches(ticks)] == [0, 3]


def test_shares_of_environment_and_acting(clock):
    recorder = Recorder(began=0.0, seconds=5.0)

    def step():
        clock.now += 1.0

    step = recorder.timed(step)
    with pytest.raises(Enough):
        for number in range(1, 99):
            step()
            clock.now += 2.0  # acting
            step()
            clock.now += 6.0  # update
            recorder.iteration(number)
    found = recorder.result()
    assert found["environment_share"] == pytest.approx(0.2) and found["acting_share"] == pytest.approx(0.2)


def test_an_environment_that_ends_the_iterations(clock):
    work, recorder = WORKS["cartpole-8"], Recorder(began=0.0, seconds=0.0, only_start=True)

    def step():
        clock.now += 1.0

    step = recorder.timed(step, work)
    with pytest.raises(Enough):
        while True:
            step()
    # The first step of the second rollout ends the first iteration, before it is taken.
    assert recorder.result()["first_iteration_s"] == work.rollout_length


def test_evaluations_take_no_time(clock):
    recorder = Recorder(began=-1.0, seconds=1.0)
    clock.now = 10.0
    with recorder.evaluation():
        clock.now += 5.0
    clock.now += 1.0
    with pytest.raises(Enough):
        recorder.reached(4000)
    found = recorder.result()
    assert found["seconds_to_return"] == 12.0 and found["steps_to_return"] == 4000
