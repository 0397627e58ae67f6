"""Environments and episodes of one run differ; runs of one seed do not.

Seen in hill-a/stable-baselines#79, openai/gym#2680, mani-skill/ManiSkill#1215.
"""

from typing import Any

import numpy as np
import probing
import pytest
import support
import training
from gymnasium import spaces

import multippo as mp
from multippo.testing import FunctionalGoal, Goal, Spy

NUM_ENVS, LENGTH = 4, 2


class GymGoal(probing.Small):
    """``Goal`` as a gymnasium environment."""

    observation_space = action_space = spaces.Box(-1, 1, (1,), np.float32)

    def observe(self) -> Any:
        if self.time == 0:
            self.goal = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.goal

    def outcome(self) -> Any:
        return 0.0, False, self.time == LENGTH


KINDS = {
    "host": lambda: Goal(NUM_ENVS, LENGTH),
    "functional": lambda: mp.make_env(FunctionalGoal(LENGTH), num_envs=NUM_ENVS),
    **{
        f"gymnasium, {mode}": lambda mode=mode: probing.gymnasium_env(lambda _: GymGoal(), mode, NUM_ENVS)
        for mode in probing.modes
    },
    "gymnasium, by constructor": lambda: mp.make_env(GymGoal, num_envs=NUM_ENVS),
}


def goals(env: Any, seed: int, episodes: int = 4) -> np.ndarray:
    """``[episodes, B]``, what each environment shows at the start of each episode."""
    state = env.reset(seed)
    action = np.zeros((NUM_ENVS, 1), np.float32)
    shown = [np.array(state.obs)]
    while len(shown) < episodes:
        for _ in range(LENGTH + env.may_skip):
            state = env.step(state, action)
        shown.append(np.array(state.obs))
    return np.stack(shown)[..., 0]


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@pytest.mark.nightly
def test_environments_and_episodes_differ_and_a_seed_repeats(make: Any):
    found = goals(make(), 0)
    assert len(np.unique(found)) == found.size, found
    np.testing.assert_array_equal(goals(make(), 0), found)
    # Neighbouring seeds share nothing: not even environments shifted by one.
    assert not np.isin(goals(make(), 1), found).any()


def starts(spy: Spy) -> np.ndarray:
    """Every goal that was shown."""
    return np.unique(np.stack([state.obs for state in spy.states]))


def run(seed: int) -> tuple[Spy, Spy, dict[str, np.ndarray], training.Run]:
    env, eval_env = Spy(Goal(NUM_ENVS, LENGTH)), Spy(Goal(NUM_ENVS, LENGTH))
    network = support.actor_critic(1, "NormalTanhSampler")
    config = {"seed": seed, "eval": mp.EvalConfig(enabled=True, every_steps=16, num_episodes=8)}
    done = training.train(env, network, eval_env=eval_env, config=config, iterations=2)
    return env, eval_env, mp.to_portable(network), done


def test_a_whole_run(torch_engine: Any):
    env, eval_env, weights, done = run(0)
    again, eval_again, same_weights, same = run(0)
    np.testing.assert_array_equal(np.stack(again.actions), np.stack(env.actions))
    np.testing.assert_array_equal(starts(eval_again), starts(eval_env))
    support.assert_trees_close(same_weights, weights, 0.0)
    assert same.result.eval_history == done.result.eval_history
    # Evaluations play episodes of their own, another set each time.
    assert not np.isin(starts(eval_env), starts(env)).any()
    assert len(eval_env.resets) == 2
    assert not np.array_equal(*eval_env.resets)
    other = run(1)[0]
    assert not np.isin(starts(other), starts(env)).any()
