"""The default ``unroll`` by hand; carries and inputs of another number of rows are refused by name."""

import re
from typing import Any

import numpy as np
import pytest
from support import actor_critic, gradients, to_numpy
from zoo import BATCH, TIME, inputs

import multippo as mp
from multippo import programmes
from multippo.networks.types import StatefulModule, StatefulModuleOutput
from multippo.testing import Clock
from multippo.trees import tree_map


class Leaky(StatefulModule):
    """A recurrent module that has only the default unroll, a loss and a metric of its own."""

    def __init__(self):
        self.leak = mp.Param(np.asarray([0.5, 0.25]))

    def __call__(self, state, x, rollout_extras=None):
        total = self.leak[...] * state + x
        return StatefulModuleOutput(total, total, self.xp.sum(total, axis=-1), {"size": self.xp.sum(x)}, x)

    def initialize_state(self, batch_size):
        return self.zeros((batch_size, 2))

    def reset_state(self, prev_state):
        return self.xp.zeros_like(prev_state)


def test_the_default_unroll_by_hand(engine):
    module = Leaky()
    xs = engine.asarray(np.ones((3, 1, 2), np.float32))
    done = engine.asarray(np.asarray([[False], [True], [False]]))
    out = module.unroll(module.initialize_state(1), xs, done)
    # 1 -> 1 * leak + 1 = 1.5 and 1.25; the episode ends, the carry is 0; 1 again.
    assert to_numpy(out.output)[:, 0].tolist() == [[1.0, 1.0], [1.5, 1.25], [1.0, 1.0]]
    assert to_numpy(out.next_state).tolist() == [[1.0, 1.0]]
    assert to_numpy(out.regularization_loss).tolist() == [[2.0], [2.75], [2.0]]
    assert to_numpy(out.metrics["size"]).tolist() == [2.0, 2.0, 2.0]
    assert out.rollout_extras.shape == (3, 1, 2)


def test_a_reset_after_the_last_step_shows_in_the_carry(engine):
    module = Leaky()
    done = engine.asarray(np.asarray([[False, True]]))
    out = module.unroll(module.initialize_state(2), engine.zeros((1, 2, 2)) + 1, done)
    assert to_numpy(out.next_state).tolist() == [[1.0, 1.0], [0.0, 0.0]]


def test_the_gradient_flows_through_time_and_stops_at_a_reset(engine):
    module, xs = Leaky(), engine.zeros((3, 1, 2)) + 1
    for ends, expected in (([0, 0, 0], 3.0), ([0, 1, 0], 1.0)):
        done = engine.asarray(np.asarray(ends, bool)[:, None])
        # Outputs 1, leak + 1, leak**2 + leak + 1: slopes 0, 1, 2 leak + 1, which is 2 at 0.5; with a reset 0, 1, 0.
        found = gradients(module, lambda m, d=done: m.xp.sum(m.unroll(m.initialize_state(1), xs, d).output[..., 0]))
        np.testing.assert_allclose(found["leak"], [expected, 0.0], rtol=1e-6)


def test_a_module_without_a_carry_is_folded_into_one_call(engine):
    class Seen(StatefulModule):
        def __call__(self, state, x, rollout_extras=None):
            shapes.append(tuple(x["a"].shape))
            loss = self.xp.sum(x["a"], axis=-1)
            return StatefulModuleOutput(state, x, loss, {"mean": self.xp.mean(loss)}, rollout_extras)

    shapes: list[tuple[int, ...]] = []
    done = engine.asarray(np.zeros((TIME, BATCH), bool))
    xs = {"a": engine.asarray(inputs().astype(np.float32))}
    out = Seen().unroll((), xs, done, {"kept": xs["a"][..., 0]})
    assert shapes == [(TIME * BATCH, 4)]
    np.testing.assert_array_equal(to_numpy(out.output["a"]), to_numpy(xs["a"]))
    np.testing.assert_allclose(to_numpy(out.regularization_loss), to_numpy(xs["a"]).sum(-1), atol=1e-6)
    assert out.rollout_extras["kept"].shape == (TIME, BATCH) and out.metrics["mean"].shape == ()


T, B, F = 3, 4, 4


class Count(mp.StatefulModule):
    """A carry of one's own, and the default ``unroll``."""

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return mp.StatefulModuleOutput({"n": state["n"] + 1}, x + state["n"][:, None])

    def initialize_state(self, batch_size: int) -> Any:
        return {"n": self.zeros((batch_size,))}


def looped() -> Any:
    graph = mp.PopulationGraph(mp.Rngs(0))
    graph.add_population("a", input_size=F, output_size=F, input_from="obs")
    graph.connect("a", "a", delay=1)
    graph.add_output("y", source="a")
    graph.finalize()
    return graph


MODULES = {
    "lstm": (lambda: mp.LSTM(F, 5, mp.Rngs(0)), "LSTM"),
    "gru": (lambda: mp.GRU(F, 5, mp.Rngs(0)), "GRU"),
    "delay": (lambda: mp.Delay(np.zeros(F, np.float32), 2), "Delay"),
    "sampler": (lambda: mp.NormalTanhSampler(mp.Rngs(0)), "NormalTanhSampler"),
    "dropout": (lambda: mp.Dropout(0.5, mp.Rngs(0)), "Dropout"),
    "ar1": (lambda: mp.AR1VariationalBottleneck(2, mp.Rngs(0)), "AR1VariationalBottleneck"),
    "graph": (looped, "Population 'a'|PopulationGraph"),
}


def arrays(engine: Any, *shape: int) -> Any:
    return engine.asarray(np.ones(shape, np.float32))


def ends(engine: Any, time: int, batch: int) -> Any:
    return engine.asarray(np.zeros((time, batch), np.bool_))


each_module = pytest.mark.parametrize("name", MODULES)


@each_module
def test_a_carry_of_fewer_rows(torch_engine, name):
    make, who = MODULES[name]
    module = make()
    for rows in (1, 2):
        state = module.initialize_state(rows)
        with pytest.raises(ValueError, match=rf"^({who}).* got a carry.* of shape \({rows},.*expected"):
            module.unroll(state, arrays(torch_engine, T, B, F), ends(torch_engine, T, B))
        with pytest.raises(ValueError, match=rf"({who}).* got a carry.* of shape \({rows},.*expected"):
            module(state, arrays(torch_engine, B, F))


@each_module
def test_inputs_of_other_steps_or_rows_than_done(torch_engine, name):
    module = MODULES[name][0]()
    state = module.initialize_state(B)
    for time, batch in ((T + 1, B), (T - 1, B), (T, B - 1)):
        with pytest.raises(ValueError):
            module.unroll(state, arrays(torch_engine, time, batch, F), ends(torch_engine, T, B))
    with pytest.raises(ValueError, match=r"got done of shape \(0, 4\), of zero steps; expected \[T, B\]"):
        module.unroll(state, arrays(torch_engine, 0, B, F), ends(torch_engine, 0, B))
    for done in (torch_engine.zeros((T, B)), torch_engine.asarray(np.zeros((T, B), np.int32))):
        with pytest.raises(TypeError, match=r"got done of type .*(float|int)32; expected truth values \[T, B\]"):
            module.unroll(state, arrays(torch_engine, T, B, F), done)


@pytest.mark.parametrize(
    ("make", "state", "said"),
    [
        (MODULES["lstm"][0], lambda: (), r"LSTM got an empty tuple as its state; expected a dict of h, c"),
        (MODULES["lstm"][0], lambda: mp.LSTM(F, 2, mp.Rngs(0)).initialize_state(B), r"LSTM got a carry 'h'.*\(4, 2\)"),
        (
            MODULES["ar1"][0],
            lambda: None,
            r"AR1VariationalBottleneck got a NoneType as its state; expected that of initialize_state",
        ),
        (Count, lambda: Count().initialize_state(1), r"Count got a carry 'n', .* shape \(1,\); expected 4 rows"),
    ],
)
def test_a_carry_of_another_kind(torch_engine, make, state, said):
    with pytest.raises(ValueError, match=f"^{said}"):
        make().unroll(state(), arrays(torch_engine, T, B, F), ends(torch_engine, T, B))


def test_a_rollout_and_its_replay(engine):
    env, key = Clock(3, num_envs=2), mp.random.key(0)
    network = actor_critic(4)
    state = network.initialize_state(2)
    with pytest.raises(ValueError, match=r"^unroll_env got a carry 'action.1.*of shape \(1, 2\); expected 2 rows"):
        mp.unroll_env(env, env.reset(0), network, network.initialize_state(1), 2, key)
    _, _, transition = mp.unroll_env(env, env.reset(0), network, state, 2, key)
    with pytest.raises(ValueError, match=r"^replay got a carry .*of shape \(3, 2\); expected 2 rows"):
        mp.replay(network, network.initialize_state(3), transition)
    with pytest.raises(TypeError, match=r"^replay got a int as its network"):
        mp.replay(3, state, transition)
    # NumPy's arrays serve every engine, another engine's none.
    plain = tree_map(lambda x: np.array(engine.to_numpy(x)), transition)
    given, again = (mp.replay(network, state, stored).loglikelihoods for stored in (transition, plain))
    np.testing.assert_array_equal(engine.to_numpy(given), engine.to_numpy(again))
    other = "torch" if engine.name == "jax" else "jax"
    with mp.use_backend(other) as foreign, pytest.raises(TypeError, match=f"arrays of {other}; the network is a"):
        mp.replay(network, state, tree_map(foreign.asarray, plain))


def test_what_is_no_rollout(torch_engine):
    env, key = Clock(3, num_envs=2), mp.random.key(0)
    network = mp.Sequential([mp.Lift(lambda x: x)])
    state = network.initialize_state(2)
    with pytest.raises(TypeError, match=r"unroll_env got a str as its env; expected environments from make_env"):
        mp.unroll_env("CartPole-v1", None, network, state, 2, key)  # pyright: ignore[reportArgumentType]
    for length in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match=f"unroll_env.unroll_length={length}. is not possible"):
            mp.unroll_env(env, env.reset(0), network, state, length, key)  # pyright: ignore[reportArgumentType]


def test_structures_without_a_hash(engine):
    class Listed(mp.StatefulModule):
        def __init__(self, factors: Any) -> None:
            self.factors = factors

        def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
            return mp.StatefulModuleOutput(state, x * float(sum(self.factors)))

    def network(factors: Any) -> Any:
        ports = actor_critic(4)
        ports.value = mp.Lift(first)
        return mp.Sequential([Listed(factors), ports])

    def first(x: Any) -> Any:
        return x[..., :1]

    programmes.clear_programmes()
    env = Clock(3, num_envs=2)
    # The clock's first feature is 1 in the first step of an episode; the value is it times the factors' sum.
    for factors, value in (([1, 2], 3.0), ([1, 4], 5.0), ({1: None, 6: None}, 7.0), ({2, 7}, 9.0), ([1, 2], 3.0)):
        net = network(factors)
        _, _, seen = mp.unroll_env(env, env.reset(0), net, net.initialize_state(2), 1, mp.random.key(0))
        np.testing.assert_array_equal(engine.to_numpy(seen.network_output.value_estimates), [[value, value]])
    # Four structures in five calls; each is compiled once.
    assert len(programmes._kept) == 4


@pytest.mark.parametrize("number", [-1, 2.5, "3", None, True], ids=repr)
def test_what_is_no_number_of_environments(torch_engine, number):
    modules = [make() for make, _ in MODULES.values()]
    for module in (*modules, Count(), mp.Scale(2.0), mp.Sequential([modules[0]])):
        kind = type(module).__name__
        said = re.escape(f"{kind}.initialize_state({number!r}) is not possible: expected a number of environments, an")
        with pytest.raises(ValueError, match=f"^{said}"):
            module.initialize_state(number)
