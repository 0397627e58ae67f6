"""``check_env`` finds each fault by name, and nothing in what is right."""

import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import multippo as mp
from multippo.testing import Clock, FunctionalClock, FunctionalGoal, Goal, check_env


class Walk(gymnasium.Env[Any, Any]):
    """A random walk of at most ten steps from a random start; subclasses have one fault each."""

    observation_space: Any = spaces.Box(-100, 100, (2,), np.float32)
    action_space: Any = spaces.Discrete(3)

    def __init__(self) -> None:
        self.place, self.time = np.zeros(2), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place, self.time = self.start(), 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        self.place = self.place + self.np_random.normal(size=2) + int(np.sum(action)) - 1
        return self.observe(), self.reward(), *self.ends(), {}

    def start(self) -> Any:
        return self.np_random.normal(size=2)

    def observe(self) -> Any:
        return self.place.astype(np.float32)

    def reward(self) -> Any:
        return float(self.place[0])

    def ends(self) -> tuple[bool, bool]:
        return False, self.time == 10


@pytest.mark.parametrize(
    "env",
    [
        "CartPole-v1",
        "Pendulum-v1",
        Walk,
        lambda: Clock(3, num_envs=1),
        Goal(3, length=4),
        Goal(3, length=4, autoreset="next_step"),
        FunctionalGoal(4),
    ],
)
def test_nothing_is_wrong_with_what_is_right(env):
    if callable(env) and not isinstance(env, type) and not hasattr(env, "step"):
        env = env()
    report = check_env(env)
    starts_alike = isinstance(env, Clock)
    assert report.errors == ()
    assert len(report.warnings) == starts_alike
    assert report
    assert report.steps == 500
    assert report.episodes > 0


def walk(**changed: Any) -> Any:
    """A class of walks with other methods or spaces."""
    return type("Changed", (Walk,), changed)


def crash(env: Any) -> Any:
    if env.time == 7:
        raise RuntimeError("the robot fell apart")
    return 1.0


UNSEEDED = np.random.default_rng()
ZEROS = np.zeros(2, np.float32)


def stepping(*after: Any) -> Any:
    """A walk whose steps return that."""
    return walk(step=lambda env, action: after)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (walk(observe=lambda _: np.zeros(3, np.float32)), r"shape \(3,\), expected shape \(2,\)"),
        (
            walk(observe=lambda env: np.full(2, np.nan if env.time == 7 else 0.5 + env.place, np.float32)),
            "The observation is not finite in step 7",
        ),
        (
            walk(start=lambda _: UNSEEDED.normal(size=2)),
            "The same seed and actions gave another run: obs of environment 0 differs first after reset",
        ),
        (walk(observation_space=spaces.Text(5)), "can't be made.*of type Text is not supported"),
        (walk(reward=crash), "the robot fell apart"),
        (walk(reset=lambda env, **_: ZEROS), r"^reset returned an array of shape .*; expected \(observation, info\)\."),
        (stepping(ZEROS, 1.0, True, {}), "^step returned a tuple of 4 entries; expected .*terminated, truncated, info"),
        (stepping(ZEROS, [1.0], True, False, {}), "^step returned a list .* as reward; expected a number"),
        (stepping(ZEROS, {"a": 1.0}, True, False, {}), r"^step returned a dict .*\['a'\].*multippo.envs.Env"),
    ],
)
def test_errors(env, message):
    report = check_env(env)
    assert not report
    assert any(re.search(message, error) for error in report.errors), report.errors
    assert str(report).startswith("error: ")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            walk(observation_space=spaces.Box(-1, 1, (2,), np.float32)),
            r"The observation leaves its declared bounds: it reached -\d+.* to \d",
        ),
        (walk(reward=lambda _: 0.0), "Every reward was 0"),
        (walk(ends=lambda _: (False, False)), "No episode ended within 500 steps"),
        (walk(start=lambda _: np.ones(2)), "Every episode of an environment began with the same observation"),
    ],
)
def test_warnings(env, message):
    report = check_env(env)
    assert report
    assert [bool(re.search(message, text)) for text in report.warnings] == [True], report.warnings


def test_a_batch_seeded_alike():
    class Alike(SyncVectorEnv):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return super().reset(seed=None if seed is None else [int(seed)] * self.num_envs, options=options)

    report = check_env(Alike([Walk, Walk], autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP))
    assert ["all began with the same observation" in warning for warning in report.warnings] == [True]


def test_a_functional_environment_that_blows_up():
    class Blown(FunctionalClock):
        def step(self, state: Any, action: Any) -> Any:
            import jax.numpy as jnp

            after = super().step(state, action)
            return after._replace(reward=jnp.where(after.info["time"] == 3, jnp.inf, after.reward))

    report = check_env(Blown(5), 2, num_steps=20)
    assert any("The reward is not finite in step 3" in error for error in report.errors), report.errors


def test_what_was_passed_in_is_left_open_and_what_was_made_is_closed():
    vector_env = SyncVectorEnv([Walk, Walk])
    assert check_env(vector_env, num_steps=5)
    assert not vector_env.closed
    made = mp.make_env("CartPole-v1", num_envs=2)
    assert check_env(made, num_steps=50)
    made.reset(0)
    made.close()
    vector_env.close()


def test_types_that_are_cast():
    report = check_env(stepping(np.zeros(2), 1.0, 1, False, {}), num_steps=5)
    assert report
    for message in (
        "expecting numpy array dtype to be float32, actual type: float64",
        "Expects `terminated` signal to be a boolean, actual type: .*int",
    ):
        assert re.search(f"warning: .*{message}", str(report)), str(report)


class Overwriting(gymnasium.vector.VectorEnv):
    """Two environments of three steps, with one array for all that it returns."""

    num_envs = 2
    single_observation_space = spaces.Box(-100, 100, (2,), np.float32)
    single_action_space = spaces.Discrete(2)

    def __init__(self, mode: gymnasium.vector.AutoresetMode, copies: bool, constant: bool = False) -> None:
        self.metadata = {"autoreset_mode": mode}
        self.array, self.copies, self.constant = np.zeros((2, 2), np.float32), copies, constant

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.array[:], self.time = 0.0, 0
        return self.array, {}

    def step(self, actions: Any) -> Any:
        self.time += 1
        self.array[:] = 0.0 if self.constant else self.time % 4
        over, infos = np.full(2, self.time == 3), {}
        if self.time == 3 and self.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.SAME_STEP:
            infos = {"final_obs": self.array.copy() if self.copies else self.array}
            self.reset()
        elif self.time == 4:
            self.reset()
        return self.array, np.ones(2), over, ~over & over, infos


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (("SAME_STEP", False), True),
        (("SAME_STEP", True), False),
        (("SAME_STEP", False, True), False),
        (("NEXT_STEP", False), False),
    ],
)
def test_a_last_observation_that_is_overwritten(arguments, found):
    mode, *rest = arguments
    report = check_env(Overwriting(gymnasium.vector.AutoresetMode[mode], *rest), num_steps=9)
    assert report and report.episodes > 0, report.errors
    assert ("last observation of every episode was the first one of the next" in str(report)) is found, str(report)
