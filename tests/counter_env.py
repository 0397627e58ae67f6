"""An environment for worker processes, which counts its steps and has a fault if it is told to."""

import gymnasium
import numpy as np
from gymnasium import spaces


def make_class(fault=None):
    class Counter(gymnasium.Env):
        observation_space = spaces.Box(0, 100, (1,), np.float32)
        action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.time = 0
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.time += 1
            if action == 1 and fault is not None:
                fault()
            return np.array([self.time], np.float32), 1.0, False, self.time == 3, {}

    return Counter
