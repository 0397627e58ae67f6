"""The final observation under SAME_STEP is found, for the right environment, in every form it comes in.

Seen in vwxyzjn/cleanrl#567 and #545, Farama-Foundation/Gymnasium#1227.
"""

from typing import Any

import numpy as np
import probing
import pytest
import support
import training
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorWrapper

import multippo as mp
from multippo.testing import TableNet

SIZE = 30
VALUES = 10 * np.cos(np.arange(SIZE))
LENGTHS = (9, 2, 9)
STEPS = 4
# Environment 1 shows 10, 11, the final 12; 13, 14, the final 15.
FINAL = {1: 12, 3: 15}


def where_in(x: Any) -> Any:
    """The one-hot part of an observation."""
    return x["where"] if isinstance(x, dict) else x[0] if isinstance(x, tuple) else x


class WhereNet(TableNet):
    """Reads the one-hot part alone."""

    def heads(self, memory: Any, x: Any) -> tuple[Any, Any, Any]:
        return super().heads(memory, where_in(x))


def reporting(change: Any) -> Any:
    """A wrapper of vector environments that reports final observations in another way."""

    def step(self: Any, actions: Any) -> Any:
        obs, *rest, infos = VectorWrapper.step(self, actions)
        if "final_obs" in infos:
            change(infos, obs)
        return obs, *rest, infos

    return type("Reporting", (VectorWrapper,), {"step": step})


def batched(infos: Any, obs: Any) -> None:
    rows = [obs[i] * 0 + 7 if row is None else row for i, row in enumerate(infos["final_obs"])]
    infos["final_obs"] = np.stack(rows)


# Under the name of earlier releases.
OLDER = reporting(lambda infos, obs: infos.update(final_observation=infos.pop("final_obs")))
# As environments vectorised by themselves do, with rubbish where no episode ended.
BATCHED = reporting(batched)
SILENT = reporting(lambda infos, obs: infos.pop("final_obs"))


def make_env(kind: str = "box", wrapper: Any = None) -> Any:
    members = [
        lambda index=index: probing.Numbered(LENGTHS[index], "truncated", SIZE, kind, 10 * index) for index in range(3)
    ]
    env: Any = SyncVectorEnv(members, autoreset_mode=probing.modes["same_step"])
    return mp.make_env(env if wrapper is None else wrapper(env))


FORMS = {
    "box": ("box", None),
    "dict": ("dict", None),
    "tuple": ("tuple", None),
    "older name": ("box", OLDER),
    "one batched array": ("box", BATCHED),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.nightly_if("jax")
def test_the_bootstrap_of_the_one_that_was_cut(engine: Any, form: str):
    transition = support.roll(make_env(*FORMS[form]), WhereNet(VALUES), STEPS)
    expected = np.zeros((STEPS, 3))
    for time, number in FINAL.items():
        expected[time, 1] = VALUES[number]
    np.testing.assert_allclose(transition.bootstrap_values, expected, rtol=1e-6)
    np.testing.assert_array_equal(transition.truncated, expected != 0)
    where = where_in(transition.obs)
    np.testing.assert_array_equal(where[:, 1].argmax(-1), [10, 11, 13, 14])
    np.testing.assert_array_equal(where[:, 2].argmax(-1), [20, 21, 22, 23])


@pytest.mark.nightly_if("jax")
def test_training_on_dicts(engine: Any):
    env, network = make_env("dict"), WhereNet(VALUES)
    run = training.train(env, network, rollout_length=STEPS, **probing.ONE_STEP)
    # Two episodes of return 2, each reported once; the others have not ended.
    assert run.column("rollout/episodes") == [2.0]
    assert run.column("rollout/episode_reward/mean") == [2.0]
    found = probing.advantages_of(network, run, STEPS * 3)
    for index, rows in enumerate(([0, 1, 2, 3], [10, 11, 13, 14], [20, 21, 22, 23])):
        bootstrap = [VALUES[FINAL.get(time, 0)] for time in range(STEPS)]
        ends = [2 if index == 1 and time in FINAL else 0 for time in range(STEPS)]
        last = VALUES[rows[-1] + 1]
        expected = probing.reference_advantages([1.0] * STEPS, VALUES[rows], bootstrap, ends, last, 0.99, 0.98)
        np.testing.assert_allclose(found[rows], expected, rtol=1e-4, err_msg=f"environment {index}")


def test_one_that_is_not_reported_is_an_error_and_no_guess():
    env = make_env(wrapper=SILENT)
    state = env.reset(0)
    state = env.step(state, np.zeros(3, int))
    with pytest.raises(ValueError, match=r"environments \[1\] ended.*final_obs"):
        env.step(state, np.zeros(3, int))


class OneBuffer(probing.Small):
    """Counts its steps in one array, which it returns again and again."""

    def observe(self) -> Any:
        self.buffer = getattr(self, "buffer", np.zeros(1, np.float32))
        self.buffer[0] = self.time
        return self.buffer

    def outcome(self) -> Any:
        return 1.0, False, self.time == 2


def final_observations(env: Any) -> list[float]:
    state = env.reset(0)
    finals = []
    for _ in range(4):
        state = env.step(state, np.zeros(env.num_envs, int))
        finals += state.final_obs[np.asarray(state.truncated), 0].tolist()
    env.close()
    return finals


def test_one_buffer_in_turn_and_in_workers(caplog: Any):
    for mode in probing.modes.values():
        assert final_observations(mp.make_env(SyncVectorEnv([OneBuffer], autoreset_mode=mode)))[0] == 2
    # Ours copy. gymnasium's send the observation after the reset has overwritten it, where nobody can restore it.
    assert final_observations(mp.make_env([OneBuffer], vectorization="async")) == [2, 2]
    assert not caplog.records
    env = AsyncVectorEnv([OneBuffer], context="forkserver", autoreset_mode=probing.modes["same_step"])
    assert final_observations(mp.make_env(env)) == [0, 0]
    assert ["its reset has overwritten the observation" in record.getMessage() for record in caplog.records] == [True]
