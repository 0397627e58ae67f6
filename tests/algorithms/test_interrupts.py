"""Ctrl-C lets the iteration at hand finish, saves it, and stops."""

from __future__ import annotations

import os
import signal
import threading
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
