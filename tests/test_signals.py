"""Ctrl-C lets the iteration at hand finish, saves it, and stops; a deaf process ends all the same."""

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
import support
import training

import multippo as mp
from multippo.algorithms import iterations
from multippo.algorithms.trainer import Trainer
from multippo.errors import Terminated
from multippo.signals import Deadline, DeferredInterrupt, save_what_is_finished
from multippo.testing import Clock, FunctionalClock, TableNet


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    ("number", "kind", "default"),
    [(signal.SIGINT, KeyboardInterrupt, signal.default_int_handler), (signal.SIGTERM, Terminated, signal.SIG_DFL)],
)
def test_the_first_is_noted_and_the_second_raises(number, kind, default):
    with DeferredInterrupt() as interrupt:
        interrupt.raise_if_requested()
        os.kill(os.getpid(), number)
        assert interrupt.requested
        with pytest.raises(kind) as caught:
            interrupt.raise_if_requested()
        with pytest.raises(kind):
            os.kill(os.getpid(), number)
    assert kind is KeyboardInterrupt or (isinstance(caught.value, SystemExit) and caught.value.code == 143)
    # The defaults are back.
    assert signal.getsignal(number) is default


def test_a_failure_of_what_can_be_given_up_does_not_count_after_the_signal():
    with DeferredInterrupt() as interrupt:
        with pytest.raises(RuntimeError), interrupt.abandonable():
            raise RuntimeError("a worker process died")
        with pytest.raises(Terminated), interrupt.abandonable():
            os.kill(os.getpid(), signal.SIGTERM)
            raise RuntimeError("a worker process died")


def test_a_handler_of_the_callers_is_left_alone():
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with DeferredInterrupt() as interrupt:
            press_ctrl_c()
            assert not interrupt.requested
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]


def test_other_threads_can_train_too():
    finished: list[bool] = []

    def work() -> None:
        with DeferredInterrupt() as interrupt:
            finished.append(not interrupt.requested)

    in_another_thread(work)
    assert finished == [True]


class Twins(TableNet):
    """Two parts of its carry start as one and the same array, which no call may consume twice."""

    def fresh_memory(self, batch_size: int) -> Any:
        zeros = self.zeros((batch_size,))
        return zeros, zeros


@pytest.mark.parametrize(("name", "kind"), [("jax", "functional"), ("torch", "host")])
@pytest.mark.nightly_if("jax")
def test_the_last_finished_iteration_is_saved(name, kind):
    with mp.use_backend(name) as engine:
        network = Twins([0.0] * 4)
    env: Any = Clock(3, num_envs=2) if kind == "host" else mp.make_env(FunctionalClock(3), num_envs=2)

    def on_log(metrics: dict[str, float]) -> None:
        if metrics["iteration"] == 2:
            press_ctrl_c()

    evaluation = mp.EvalConfig(enabled=True, every_steps=16)
    run = training.train(
        env, network, iterations=50, on_log=on_log, catch=(KeyboardInterrupt,), config={"eval": evaluation}
    )
    assert isinstance(run.error, KeyboardInterrupt)
    # The iteration in which it was pressed is finished; an evaluation that was due is left for later.
    [(state, step)] = run.checkpoints
    assert (state.iteration, step, state.eval_due) == (2, 16, True)
    assert [line["step"] for line in run.logs] == [8, 16]
    # The network holds what was saved.
    held, saved = (dict(engine.named_params(params)) for params in (engine.split(network).params, state.params))
    support.assert_trees_close(held, saved, 0.0)
    assert np.abs(mp.to_portable(network)["logits"]).max() > 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class Slow(Clock):
    """Its steps take their time from the third iteration on; one of them is interrupted as often as is asked for."""

    def __init__(self, presses: int) -> None:
        super().__init__(3, num_envs=2)
        self.count, self.presses = 0, presses

    def step(self, env_state: Any, action: Any) -> Any:
        self.count += 1
        if self.count > 8:
            for _ in range(self.presses):
                press_ctrl_c()
            self.presses = 0
            time.sleep(30)
        return super().step(env_state, action)


@pytest.mark.parametrize("presses", [1, 2])
def test_a_slow_rollout_is_given_up(torch_engine, presses, monkeypatch):
    monkeypatch.setattr("multippo.signals._PATIENCE_S", 0.2)
    network, start = TableNet([0.0] * 4), time.monotonic()
    run = training.train(Slow(presses), network, iterations=5, lr_schedule="constant", catch=(KeyboardInterrupt,))
    assert isinstance(run.error, KeyboardInterrupt)
    assert time.monotonic() - start < 20
    (state, step) = run.checkpoints[-1]
    assert (len(run.checkpoints), state.iteration, step) == (1, 2, 16)
    expected = TableNet([0.0] * 4)
    training.train(Clock(3, num_envs=2), expected, iterations=2, lr_schedule="constant")
    support.assert_trees_close(mp.to_portable(network), mp.to_portable(expected), 0.0)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


@pytest.mark.parametrize("iterations", [2, 4])
def test_an_evaluation_that_a_signal_prevented_is_made_up(torch_engine, tmp_path, iterations):
    network = TableNet([0.0] * 4)

    def train(**more: Any) -> training.Run:
        config = {"eval": mp.EvalConfig(enabled=True, every_steps=16, num_episodes=2)}
        env = mp.make_env(FunctionalClock(3), num_envs=2)
        return training.train(env, network, iterations=iterations, config=config, **more)

    def press_at_second(metrics: dict[str, float]) -> None:
        if metrics.get("iteration") == 2 and "losses/total" in metrics:
            press_ctrl_c()

    def lines(*runs: training.Run) -> list[dict[str, float]]:
        records = [line for run in runs for line in run.logs]
        return [{k: v for k, v in line.items() if not k.startswith(("time/", "throughput/"))} for line in records]

    whole, network = train(), TableNet([0.0] * 4)
    first = train(on_log=press_at_second, catch=(KeyboardInterrupt,))
    assert isinstance(first.error, KeyboardInterrupt)
    mp.save_checkpoint(tmp_path, first.checkpoints[0][0], network)
    second = train(initial_state=mp.load_checkpoint(tmp_path, network))
    assert lines(first, second) == lines(whole)
    # With the evaluation that was made up, and at the end.
    ends = [(16, False), (32, False)][: iterations // 2]
    assert [(state.step, state.eval_due) for state, _ in second.checkpoints] == ends
    made_up = second.logs[0]
    assert (made_up["step"], made_up["eval/episode_reward/mean"]) == (16, second.checkpoints[0][0].eval_return)


def test_an_interrupt_while_the_last_state_is_saved(torch_engine):
    # The save is finished first.
    saved: list[int] = []

    def save(state: Any, step: int) -> None:
        press_ctrl_c()
        saved.append(state.iteration)

    config = mp.TrainConfig(ppo=mp.PPOConfig(rollout_length=4, total_steps=16, num_minibatches=2))
    with pytest.raises(KeyboardInterrupt):
        mp.train_ppo(Clock(3, num_envs=2), TableNet([0.0] * 4), config, checkpoint_fn=save)
    assert saved == [2]


def in_another_thread(function: Any) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def saved_by(env: Any, iterations: int = 3, **fields: Any) -> list[tuple[int, int, dict[str, np.ndarray]]]:
    """Iteration, step and parameters of every save, read while it lasts: nobody else's copy is needed then."""
    network, saved = TableNet([0.0] * 4), []
    eval_env = fields.pop("eval_env", None)

    def save(state: Any, step: int) -> None:
        leaves = network.engine.named_params(state.params)
        saved.append((state.iteration, step, {name: support.to_numpy(leaf).copy() for name, leaf in leaves}))

    options = mp.PPOConfig(rollout_length=4, total_steps=8 * iterations, num_epochs=2, num_minibatches=2)
    config = mp.TrainConfig(ppo=options, **fields)
    mp.train_ppo(env, network, config, checkpoint_fn=save, eval_env=eval_env)
    return saved


def assert_same_saves(got: Any, expected: Any) -> None:
    for (*numbers, parameters), (*expected_numbers, expected_parameters) in zip(got, expected, strict=True):
        assert numbers == expected_numbers
        for name, value in expected_parameters.items():
            np.testing.assert_array_equal(parameters[name], value)


class Rescued(Clock):
    """In one of its steps, another thread saves what is finished."""

    def __init__(self, at: int) -> None:
        super().__init__(3, num_envs=2)
        self.count, self.at = 0, at

    def step(self, env_state: Any, action: Any) -> Any:
        self.count += 1
        if self.count == self.at:
            in_another_thread(save_what_is_finished)
        return super().step(env_state, action)


@pytest.mark.parametrize("where", ["rollout", "evaluation"])
def test_another_thread_saves_the_last_finished_iteration(torch_engine, where):
    evaluation = mp.EvalConfig(enabled=True, every_steps=16, num_episodes=2)

    def plain() -> Clock:
        return Clock(3, num_envs=2)

    # Rollouts of 4 steps; the tenth is in the third iteration. The first evaluation comes after the second.
    env, eval_env = (Rescued(10), plain()) if where == "rollout" else (plain(), Rescued(1))
    got = saved_by(env, eval_env=eval_env, eval=evaluation)
    assert [saved[0] for saved in got] == [2, 3]
    assert_same_saves(got, saved_by(plain(), checkpoint_every_steps=16))
    save_what_is_finished()  # of no training: nothing
    assert len(got) == 2


@pytest.mark.parametrize("kind", ["host", "functional"])
@pytest.mark.nightly_if("jax")
def test_a_long_call_is_saved_from_before_it(engine, kind, monkeypatch):
    def env() -> Any:
        return Clock(3, num_envs=2) if kind == "host" else mp.make_env(FunctionalClock(3), num_envs=2)

    expected = saved_by(env(), checkpoint_every_steps=8)
    original = Trainer.run

    def run_and_rescue(self: Any, *args: Any) -> Any:
        result = original(self, *args)  # what was passed in is consumed now
        in_another_thread(save_what_is_finished)
        return result

    monkeypatch.setattr(Trainer, "run", run_and_rescue)
    monkeypatch.setattr(iterations, "_LONG_CALL_S", -1.0)
    monkeypatch.setattr(iterations, "_DISPATCH_S", 0.0)  # one iteration a call, however quick
    # Before the first iteration there is nothing to save; the third is saved as the last.
    got = saved_by(env())
    assert [saved[0] for saved in got] == [1, 2, 3]
    assert_same_saves(got, expected)


# -- a main thread that hears nothing

# With the signal blocked in the main thread, another thread gets it, and nothing wakes the sleep: so it is with a main
# thread inside a compiler.
DEAF = """
import signal, sys, time
from multippo import signals

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: None)

def last_words():
    open(sys.argv[1], "w").write("saved")
    return "Saved: it."

signals._TO_THE_END_S = 0.3
with signals.Deadline() as deadline:
    deadline.last_words = last_words
    signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGINT, signal.SIGTERM}})
    print("ready", flush=True)
    time.sleep({sleep})
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {{signal.SIGINT, signal.SIGTERM}})
print("by itself", flush=True)
time.sleep(1.0)
"""


def ended(program: str, path: Any, number: int) -> tuple[int, str, str]:
    """How a program ended to which a signal was sent when it was ready."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=50)
    return process.returncode, out, err.strip()


def nightly(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.nightly)


@pytest.mark.parametrize(
    ("number", "sleep", "expected"),
    [
        (signal.SIGINT, 60.0, (130, "", "multippo: interrupted. Saved: it.")),
        nightly(signal.SIGTERM, 60.0, (143, "", "multippo: terminated. Saved: it.")),
        # Whoever ends by himself is left alone.
        nightly(signal.SIGTERM, 0.05, (0, "by itself\n", "")),
    ],
)
def test_a_main_thread_that_hears_nothing(tmp_path, number, sleep, expected):
    assert ended(DEAF.format(sleep=sleep), tmp_path / "saved", number) == expected
    assert (tmp_path / "saved").exists() == (sleep == 60.0)


def test_no_thread_is_left_to_be_ended_with_the_process():
    with Deadline():
        assert any(thread.name == "deadline" for thread in threading.enumerate())
    assert not any(thread.name == "deadline" for thread in threading.enumerate())
