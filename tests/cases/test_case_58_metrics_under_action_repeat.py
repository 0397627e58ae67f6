"""A repeated action reports all of its steps: rewards summed, metrics averaged, every entry of ``info`` kept.

Seen in google/brax#610.
"""

from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from multippo.envs import FunctionalEnv
from multippo.envs.wrappers import ActionRepeat
from multippo.testing import FunctionalClock


class Events(FunctionalClock):
    """A metric that is 1 in the second of every four steps; the reward is 1."""

    def _at(self, time: Any) -> Any:
        return super()._at(time)._replace(metrics={"event": (time % 4 == 2).astype(jnp.float32), "time": time})


def test_a_functional_environment():
    found = {}
    for repeat in (1, 4):
        env = FunctionalEnv(Events(6), 2, action_repeat=repeat)
        state = env.reset(0)
        found[repeat] = []
        for _ in range(8 // repeat):
            state = env.step(state, np.zeros(2, np.int32))
            found[repeat].append([float(value[1]) for value in (state.reward, *state.metrics.values())])
    # Times 1 to 6, then the next episode's 1 and 2.
    assert found[1] == [[1, t % 4 == 2, t] for t in (1, 2, 3, 4, 5, 6, 1, 2)]
    # The first action is steps 1 to 4, with one event; the second steps 5 and 6, with one, and the end.
    assert found[4] == [[4, 0.25, 2.5], [2, 0.5, 5.5]]


class Reporting(gymnasium.Env[Any, Any]):
    observation_space, action_space = spaces.Box(0, 9, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        info = {"time": self.time} | ({"event": 1.0} if self.time % 4 == 2 else {})
        return np.zeros(1, np.float32), 1.0, self.time == 6, False, info


@pytest.mark.parametrize(
    ("repeat", "expected"),
    [
        (1, [(1, {"time": 1}), (1, {"time": 2, "event": 1})]),
        (4, [(4, {"time": 4, "event": 1}), (2, {"time": 6, "event": 1})]),
    ],
)
def test_a_host_environment(repeat, expected):
    env = ActionRepeat(Reporting(), repeat)
    env.reset()
    steps = [env.step(0) for _ in range(2)]
    assert [(step[1], step[4]) for step in steps] == expected
