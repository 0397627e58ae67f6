"""Ctrl-C lets the iteration at hand finish, saves it, and stops."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
import support
import training

import multippo as mp
from multippo.algorithms.interrupts import DeferredInterrupt
from multippo.testing import Clock, FunctionalClock, TableNet


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_is_noted_and_the_second_raises():
    with DeferredInterrupt() as interrupt:
        interrupt.raise_if_requested()
        press_ctrl_c()
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt):
            interrupt.raise_if_requested()
        with pytest.raises(KeyboardInterrupt):
            press_ctrl_c()
    # Python's own handler is back.
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


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
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with DeferredInterrupt() as interrupt:
                interrupt.raise_if_requested()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failures == []


class Twins(TableNet):
    """Two parts of its carry start as one and the same array, which no call may consume twice."""

    def fresh_memory(self, batch_size: int) -> Any:
        zeros = self.zeros((batch_size,))
        return zeros, zeros


@pytest.mark.parametrize(("name", "kind"), [("jax", "functional"), ("torch", "host")])
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
    # The iteration in which it was pressed is finished; an evaluation that was due is left out.
    [(state, step)] = run.checkpoints
    assert (state.iteration, step) == (2, 16)
    assert [line["step"] for line in run.logs] == [8, 16]
    # The network holds what was saved.
    held = engine.split(network)
    for (_, got), (_, expected) in zip(
        engine.named_params(held.params), engine.named_params(state.params), strict=True
    ):
        np.testing.assert_array_equal(support.to_numpy(got), support.to_numpy(expected))
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
    monkeypatch.setattr(DeferredInterrupt.__init__, "__defaults__", (0.2,))
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


def test_a_slow_evaluation_is_given_up(torch_engine, monkeypatch):
    monkeypatch.setattr(DeferredInterrupt.__init__, "__defaults__", (0.2,))
    network, slow = TableNet([0.0] * 4), Slow(1)
    slow.count = 8
    config = {"eval": mp.EvalConfig(enabled=True, every_steps=8, num_episodes=2)}
    run = training.train(
        Clock(3, num_envs=2), network, iterations=5, config=config, eval_env=slow, catch=(KeyboardInterrupt,)
    )
    assert isinstance(run.error, KeyboardInterrupt)
    assert [state.iteration for state, _ in run.checkpoints] == [1]
    assert not network.sampler.deterministic


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
