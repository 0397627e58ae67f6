"""States of functional environments keep their types, and what can't be compiled is said in words."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import training

import multippo as mp
from multippo.envs.functional.functional_env import FunctionalEnv
from multippo.envs.functional.state_trees import conform, select, shared_leaves, strip_weak_types, take
from multippo.testing import FunctionalClock, TableNet, check_env


def test_weak_types_are_stripped_and_keys_left_alone():
    tree = strip_weak_types({"number": 0.5, "weak": jnp.asarray(2), "key": jax.random.key(0)})
    assert not tree["number"].weak_type
    assert not tree["weak"].weak_type
    assert tree["weak"].dtype == jnp.int32
    assert tree["key"].dtype == jax.random.key(0).dtype


@pytest.mark.parametrize(
    ("given", "expected"),
    [(jnp.float16, jnp.float32), (jnp.int32, jnp.float32), (jnp.bool_, jnp.int32), (jnp.int8, jnp.int32)],
)
def test_types_that_fit_are_cast(given, expected):
    assert conform([jnp.ones(2, given)], [jnp.zeros(2, expected)], "step")[0].dtype == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (jnp.ones(2), jnp.zeros(2, jnp.int32)),
        (jnp.ones(2, jnp.int32), jnp.zeros(2, jnp.bool_)),
        (jnp.ones(2), jnp.zeros(3)),
        (jax.random.split(jax.random.key(0)), jnp.zeros(2)),
    ],
)
def test_types_that_do_not_fit_are_refused(given, expected):
    with pytest.raises(TypeError, match=r"^step returned .* for state\['leaf'\], where reset returned"):
        conform({"leaf": given}, {"leaf": expected}, "step")


def test_other_containers_are_refused():
    with pytest.raises(TypeError, match="the same leaves, but other containers"):
        conform((jnp.ones(1),), [jnp.ones(1)], "step")


def test_rows():
    tree = {"x": jnp.arange(6).reshape(3, 2), "key": jax.random.split(jax.random.key(0), 3)}
    other = {"x": -tree["x"], "key": tree["key"][::-1]}
    chosen = select(jnp.array([True, False, True]), tree, other)
    np.testing.assert_array_equal(chosen["x"], [[0, 1], [-2, -3], [4, 5]])
    np.testing.assert_array_equal(take(tree, jnp.array([2, 0]))["x"], [[4, 5], [0, 1]])


def test_leaves_without_rows():
    # "b" has as many numbers as there are environments, but the same in each of them.
    batched = {"a": jnp.zeros((3, 2)), "b": jnp.zeros(3), "c": jnp.zeros(()), "d": jnp.zeros(3)}
    shared = shared_leaves(batched, [(2,), (3,), (), ()], 3)
    assert shared == {1, 2}
    one = {"a": jnp.ones((2, 2)), "b": jnp.full(3, 5.0), "c": jnp.asarray(7.0), "d": jnp.ones(2)}
    other = jax.tree.map(lambda leaf: -leaf, one)
    chosen = select(jnp.array([True, False]), one, other, shared)
    np.testing.assert_array_equal(chosen["a"], [[1, 1], [-1, -1]])
    np.testing.assert_array_equal(chosen["b"], [-5, -5, -5])
    assert chosen["c"] == -7
    np.testing.assert_array_equal(chosen["d"], [1, -1])
    taken = take(one, jnp.array([1]), shared)
    assert {name: leaf.shape for name, leaf in taken.items()} == {"a": (1, 2), "b": (3,), "c": (), "d": (1,)}


class Changed(FunctionalClock):
    def __init__(self, in_step=None, in_reset=None):
        super().__init__(3)
        self.in_step, self.in_reset = in_step, in_reset

    def reset(self, key):
        if self.in_reset is not None:
            self.in_reset(key)
        return super().reset(key)

    def step(self, state, action):
        if self.in_step is not None:
            self.in_step(state.obs)
        return super().step(state, action)


def branches(x):
    if x[0] > 0:
        return 1
    return 2


WRONG = {
    "a branch": (branches, jax.errors.TracerBoolConversionError),
    "NumPy": (lambda x: np.clip(np.asarray(x), 0, 1), jax.errors.TracerArrayConversionError),
    "an index": (lambda x: [1, 2][jnp.argmax(x)], jax.errors.TracerIntegerConversionError),
    "a mask": (lambda x: x[x > 0], jax.errors.NonConcreteBooleanIndexError),
    "a float": (lambda x: float(x[0]), jax.errors.ConcretizationTypeError),
}
MESSAGE = r"of Changed needs the value of an array \(test_state_trees.py, line \d+: .*\), but .* for all values"


@pytest.mark.parametrize("which", WRONG)
def test_what_went_wrong_and_where(which):
    change, cause = WRONG[which]
    env = FunctionalEnv(Changed(change), 2, truncation_key="truncation")
    with pytest.raises(TypeError, match=f"^step {MESSAGE}") as raised:
        env.step(env.reset(0), jnp.zeros(2, jnp.int32))
    assert isinstance(raised.value.__cause__, cause)
    with pytest.raises(TypeError, match=f"^reset {MESSAGE}") as raised:
        FunctionalEnv(Changed(in_reset=change), 2)
    assert isinstance(raised.value.__cause__, cause)


def test_training_and_the_check_say_so(torch_engine):
    report = check_env(Changed(branches), num_envs=2)
    assert "TypeError: step of Changed needs the value of an array (test_state_trees.py" in str(report)
    env = mp.make_env(Changed(branches), num_envs=2)
    run = training.train(env, TableNet([0.0] * 4), catch=(TypeError,))
    assert str(run.error).startswith("step of Changed needs the value of an array (test_state_trees.py")
    assert isinstance(run.error.__cause__, jax.errors.TracerBoolConversionError)


def test_errors_of_its_own_stay():
    def fails(x):
        raise KeyError("mine")

    env = FunctionalEnv(Changed(fails), 2)
    with pytest.raises(KeyError, match="mine"):
        env.step(env.reset(0), jnp.zeros(2, jnp.int32))
