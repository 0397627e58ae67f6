"""Rollouts by a network's twin against those in which the network takes every step."""

import numpy as np
import pytest

pytest.importorskip("jax")
torch = pytest.importorskip("torch")

import multippo as mp  # noqa: E402
from multippo.algorithms.rollout import Actor  # noqa: E402
from multippo.testing import FunctionalClock, FunctionalGoal  # noqa: E402
from multippo.trees import named_leaves, tree_map, tree_structure  # noqa: E402

NUM_ENVS = 3


@pytest.fixture(autouse=True)
def on_torch():
    with mp.use_backend("torch", device="cpu"):
        yield


@pytest.fixture
def taken(monkeypatch):
    """Results of ``Actor.twin_rollouts``; with ``taken.stepped`` there is no twin."""

    class Taken(list):
        stepped = False

    found, original = Taken(), Actor.twin_rollouts

    def twin_rollouts(self, *start):
        if found.stepped:
            return None
        found.append(original(self, *start))
        return found[-1]

    monkeypatch.setattr(Actor, "twin_rollouts", twin_rollouts)
    return found


def network(env, recurrent):
    rngs = mp.Rngs(3)
    if recurrent:
        return mp.make_recurrent_actor_critic(env.observation_space, env.action_space, rngs=rngs, cell="gru")
    return mp.make_mlp_actor_critic(env.observation_space, env.action_space, (8,), (8,), rngs)


def play(env, net, length=7):
    env_state, carry = env.reset(5), net.initialize_state(env.num_envs)
    carry, env_state, first = mp.unroll_env(env, env_state, net, carry, length, 0)
    carry, env_state, second = mp.unroll_env(env, env_state, net, carry, length, 1)
    return first, second, carry


def assert_same(ours, expected):
    assert tree_structure(ours) == tree_structure(expected)
    for (name, one), (_, other) in zip(named_leaves(ours), named_leaves(expected), strict=True):
        assert one.dtype == other.dtype, name
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.fixture(scope="module")
def goal():
    """One environment for all tests, which share what is compiled for it."""
    return mp.make_env(FunctionalGoal(4), num_envs=NUM_ENVS)


@pytest.mark.parametrize("recurrent", [False, True], ids=["terminated", "truncated, recurrent"])
def test_every_step_of_every_environment_is_the_networks_own(recurrent, goal, taken):
    env = goal if recurrent else mp.make_env(FunctionalClock(3, "terminated"), num_envs=NUM_ENVS)
    net = network(env, recurrent)
    ours = play(env, net)
    assert all(found is not None for found in taken)
    taken.stepped = True
    expected = play(env, net)
    assert_same(ours, expected)
    assert expected[1].done.any()


def train(goal, initial=None, evaluated=False, **options):
    ppo = {"total_steps": 42, "rollout_length": 7, "num_epochs": 2, "num_minibatches": 3, "learning_rate": 1e-2}
    config = mp.TrainConfig(
        ppo=mp.PPOConfig(**{**ppo, "lr_schedule": "constant", **options}),
        eval=mp.EvalConfig(enabled=evaluated, every_steps=21, num_episodes=NUM_ENVS, max_episode_steps=7),
        seed=1,
    )
    logged = []
    result = mp.train_ppo(goal, network(goal, True), config, log_fn=logged.append, initial_state=initial)
    return result, logged


UNEQUAL = {"throughput/train_sps", "time/compile_s", "time/elapsed_s", "ratio/first_max_dev", "ratio/last_max_dev"}


def test_a_run_is_the_same_to_rounding(goal, taken):
    _, ours = train(goal, evaluated=True)
    assert len(taken) == 4 and None not in taken
    taken.stepped = True
    _, expected = train(goal, evaluated=True)
    assert len(expected) == 4  # two iterations and two evaluations
    for one, other in zip(ours, expected, strict=True):
        assert one.get("ratio/first_max_dev", 0.0) < 1e-5
        for name in other.keys() - UNEQUAL:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_a_run_goes_on_where_it_stopped(goal):
    _, whole = train(goal, total_steps=84)
    result, _ = train(goal)
    _, rest = train(goal, result.training_state, total_steps=84)
    for one, other in zip(rest, whole[2:], strict=True):
        for name in other.keys() - UNEQUAL:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-6, err_msg=name)


def test_compilation_of_the_tracing_engine_is_counted(goal):
    _, logged = train(goal, rollout_length=2, total_steps=6)
    assert logged[0]["time/compile_s"] > 0.05


class Blowing(FunctionalGoal):
    """Gives a reward that is not finite at the second step."""

    def step(self, state, action):
        state = super().step(state, action)
        return state._replace(reward=state.reward / (state.info["time"] != 2))


def test_broken_steps_are_those_of_the_steps_themselves(taken):
    env = mp.make_env(Blowing(4), num_envs=NUM_ENVS)
    net = network(env, False)
    ours = play(env, net, 4)
    taken.stepped = True
    expected = play(env, net, 4)
    assert (expected[0].broken > 0).any()
    assert_same(ours, expected)


def lifted(net):
    return mp.Sequential([mp.Lift(torch.nn.Linear(2, 2)), net])


def of_torch(net):
    return mp.Sequential([mp.Lift(torch.erf), net])


@pytest.mark.parametrize("change", [lifted, of_torch])
def test_networks_with_parts_of_the_framework_take_every_step_themselves(change, taken):
    env = mp.make_env(FunctionalClock(1), num_envs=NUM_ENVS)
    net = change(network(env, False))
    first, *_ = play(env, net)
    assert taken == [None, None]
    assert first.done.all()


def test_double_precision_is_computed_by_the_network_itself(taken):
    env = mp.make_env(FunctionalClock(3), num_envs=NUM_ENVS)
    with mp.precision("float64"):
        first, *_ = play(env, network(env, False))
    assert taken == [None, None]
    assert tree_map(lambda x: x.dtype, first.network_output.value_estimates) == torch.float64
