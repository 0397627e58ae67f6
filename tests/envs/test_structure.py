"""Environments of which a compiled programme would be the same have one key, all others have others."""

import dataclasses
from typing import Any

import gymnasium
import numpy as np

import multippo as mp
from multippo.envs.structure import contents, stepped_structure, structure
from multippo.programmes import identity
from multippo.testing import Clock, FunctionalClock, FunctionalGoal


def made(length: int = 3, end: Any = "terminated", num_envs: int = 2, **options: Any) -> Any:
    return structure(mp.make_env(FunctionalClock(length, end), num_envs=num_envs, **options))


def test_functional_environments_of_equal_content():
    assert made() == made()
    assert hash(made()) == hash(made())
    others = [
        made(4),
        made(end="truncated"),
        made(num_envs=3),
        made(episode_length=2),
        made(reward_scale=2.0),
        made(reward_scale=3.0),
        structure(mp.make_env(FunctionalGoal(3), num_envs=2)),
    ]
    assert len({made(), *others}) == 8
    env = mp.make_env(FunctionalClock(3), num_envs=2)
    env.env.length = 2  # a change by the owner
    assert structure(env) == made(2)


def test_what_an_environment_counts_while_it_is_traced_does_not():
    class Counting(FunctionalClock):
        count = 0

        def step(self, state: Any, action: Any) -> Any:
            self.count += 1
            return super().step(state, action)

    env = mp.make_env(Counting(3), num_envs=2)
    before, state = (structure(env), structure(env.similar(3))), env.reset(0)
    env.step(state, np.zeros(2, np.int32))
    assert env.env.count > 0
    assert (structure(env), structure(env.similar(3))) == before


def test_host_environments_by_their_spaces():
    one, equal, larger = (stepped_structure(Clock(3, num_envs=n)) for n in (2, 2, 4))
    assert one == equal != larger


class Holder:
    shared = 1.0

    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


@dataclasses.dataclass
class Model:
    mass: np.ndarray


def test_contents():
    def key(**held: Any) -> Any:
        return contents(Holder(**held), identity)

    def function() -> None: ...

    low, high = np.zeros(2, np.float32), np.ones(2, np.float32)
    pairs: list[tuple[Any, Any]] = [
        (np.array([1.0, 2.0]), np.array([1.0, 3.0])),
        (Model(np.ones(2)), Model(np.zeros(2))),
        (gymnasium.spaces.Box(low, high), gymnasium.spaces.Box(low, 2 * high)),
        (function, lambda: None),
    ]
    for value, another in pairs:
        assert key(x=value) == key(x=value) != key(x=another)
    assert key(env=Holder(x=1)) == key(env=Holder(x=1)) != key(env=Holder(x=2))
    before = key()
    Holder.shared = 2.0  # of the class, which a sweep may set
    assert key() != before
