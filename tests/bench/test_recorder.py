"""The clock of a contestant, on a clock of the test's own."""

import dataclasses

import pytest

from multippo.bench import recorder as module
from multippo.bench.recorder import Enough, Recorder, Tick, dispatches
from multippo.bench.works import WORKS

WORK = WORKS["cartpole-8"]


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
    recorder = Recorder(WORK, began=0.0, seconds=4.0)
    # 30, 20 and 10 s of compiling, then 100 steps in each half second: the measurement begins at the end of the fourth.
    assert run(recorder, clock, [30, 20, 10, *[0.5] * 100], steps=100) == 12
    found = recorder.result()
    assert found["steps_per_s"] == pytest.approx(200) and found["measured_s"] == pytest.approx(4.0)
    assert found["first_iteration_s"] == 30


def test_iterations_of_one_dispatch_are_not_counted_by_their_number(clock):
    recorder = Recorder(WORK, began=0.0, seconds=6.0)
    # Ten iterations at once, every two seconds, logged 1 ms after one another: 500 steps a second.
    run(recorder, clock, [2.0 if number % 10 == 0 else 1e-3 for number in range(1000)], steps=100)
    assert recorder.result()["steps_per_s"] == pytest.approx(1000 / 2.009)


def test_first_tick_of_each_dispatch():
    ticks = [Tick(time, step, {}) for step, time in enumerate([1, 1.01, 1.02, 4, 4.01, 4.02])]
    assert [tick.steps for tick in dispatches(ticks)] == [0, 3]


def test_phases_of_the_measured_iterations(clock):
    recorder = Recorder(WORK, began=0.0, seconds=5.0)

    def step():
        clock.now += 1.0

    step = recorder.timed(step)
    with pytest.raises(Enough):
        for number in range(1, 99):
            step()
            with recorder.phases["acting"]:
                clock.now += 2.0
            step()
            clock.now += 6.0
            recorder.iteration(number)
    found = recorder.result()
    assert (found["environment_s"], found["acting_s"], found["iteration_s"]) == pytest.approx((2.0, 2.0, 10.0))


def test_a_part_alone_runs_off_the_clock_and_its_first_call_does_not_count(clock):
    recorder, calls = Recorder(WORK, began=0.0, seconds=3.0), iter([50.0, *[0.5] * 99])

    def part():
        clock.now += next(calls)

    recorder.alone["environment"] = part
    run(recorder, clock, [1.0] * 99, WORK.steps)
    found = recorder.result()
    assert found["environment_s"] == 0.5 and found["measured_s"] == 3.0 and found["iteration_s"] == 1.0


def test_an_environment_that_ends_the_iterations(clock):
    recorder = Recorder(dataclasses.replace(WORK, measure="start"), began=0.0, seconds=0.0)

    def step():
        clock.now += 1.0

    step = recorder.timed(step, ends=True)
    with pytest.raises(Enough):
        while True:
            step()
    # The first step of the second rollout ends the first iteration, before it is taken.
    assert recorder.result()["first_iteration_s"] == WORK.rollout_length


def test_evaluations_take_no_time(clock):
    recorder = Recorder(WORK, began=-1.0, seconds=1.0)
    clock.now = 10.0
    with recorder.off_the_clock():
        clock.now += 5.0
    clock.now += 1.0
    with pytest.raises(Enough):
        recorder.reached(4000)
    found = recorder.result()
    assert found["seconds_to_return"] == 12.0 and found["steps_to_return"] == 4000
