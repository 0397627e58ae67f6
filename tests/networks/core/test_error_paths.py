"""An error from within a network says where in it: once, in a note, whoever called the network."""

from typing import Any

import numpy as np
import pytest
import support

import multippo as mp
from multippo.errors import PLACE, one_line, place_of
from multippo.testing import Clock, FunctionalClock

SAID = "Dense got an input of shape (2, 4); expected 3 features on the last axis."


class Own(mp.StatefulModule):
    """A container of one's own, which calls its parts itself."""

    def __init__(self, features: int) -> None:
        rngs = mp.Rngs(0)
        self.body = mp.Sequential([mp.Dense(4, 4, rngs), mp.Dense(features, 2, rngs)])
        self.twice = (self.body,)

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return self.body(state, x, rollout_extras)

    def initialize_state(self, batch_size: int) -> Any:
        return self.body.initialize_state(batch_size)


def nested(features: int) -> Any:
    return mp.Sequential([mp.Parallel({"left arm": mp.Sequential([Own(features)])})])


PATH = "Sequential.layers[0].components['left arm'].layers[0].body.layers[1]"


def inputs(engine: Any, *shape: int) -> Any:
    return engine.asarray(np.ones(shape, np.float32))


def refusal(run: Any) -> str:
    with pytest.raises(ValueError, match="Dense got an input") as caught:
        run()
    assert sum(note.startswith(PLACE) for note in getattr(caught.value, "__notes__", ())) <= 1
    return one_line(caught.value)


def test_a_direct_call(torch_engine):
    x = inputs(torch_engine, 2, 4)
    network = nested(3)
    assert refusal(lambda: network(network.initialize_state(2), x)) == f"{PATH}: {SAID}"
    # A root of one's own, and a layer by itself, whose message says all there is.
    assert refusal(lambda: Own(3)([(), ()], x)) == f"Own.body.layers[1]: {SAID}"
    assert refusal(lambda: mp.Dense(3, 2, mp.Rngs(0))((), x)) == SAID


def test_under_a_transformation(engine):
    network = nested(3)
    state, x = network.initialize_state(2), inputs(engine, 2, 4)
    assert refusal(lambda: engine.jit(lambda s, x: network(s, x).output)(state, x)).startswith(f"{PATH}: {SAID}")
    assert refusal(lambda: engine.shapes(lambda s, x: network(s, x).output, state, x)).startswith(f"{PATH}: {SAID}")


def test_a_module_in_two_places_is_named_by_the_one_that_failed(torch_engine):
    rngs, x = mp.Rngs(0), inputs(torch_engine, 2, 4)
    shared, narrow = mp.Dense(4, 4, rngs), mp.Dense(4, 3, rngs)
    said = "Dense got an input of shape (2, 3); expected 4 features on the last axis."
    network, done = mp.Sequential([shared, narrow, shared]), torch_engine.asarray(np.zeros((1, 2), np.bool_))
    assert refusal(lambda: network([(), (), ()], x)) == f"Sequential.layers[2]: {said}"
    assert refusal(lambda: network.unroll([(), (), ()], x[None], done)) == f"Sequential.layers[2]: {said}"
    inner = mp.Sequential([shared])
    both = mp.Parallel({"a": mp.Sequential([shared, inner]), "b. and c": mp.Sequential([narrow, inner])})
    path = "Parallel.components['b. and c'].layers[1].layers[0]"
    assert refusal(lambda: both(both.initialize_state(2), x)) == f"{path}: {said}"


def actor_critic(features: int) -> Any:
    network, rngs = support.actor_critic(4), mp.Rngs(0)
    network.value = mp.Sequential([mp.Dense(4, 4, rngs), mp.Dense(features, 1, rngs)])
    return network


def test_functions_that_run_a_network(torch_engine):
    network, env = actor_critic(3), Clock(3, num_envs=2)  # shows 4 features
    said = f"PPOAdapter.value.layers[1]: {SAID}"
    state, key = network.initialize_state(2), mp.random.key(0)
    assert refusal(lambda: mp.unroll_env(env, env.reset(0), network, state, 2, key)).startswith(said)
    traced = mp.make_env(FunctionalClock(3), num_envs=2)
    assert refusal(lambda: mp.unroll_env(traced, traced.reset(0), network, state, 2, key)).startswith(said)
    assert refusal(lambda: mp.eval_rollout(env, network)).startswith(said)
    assert refusal(lambda: mp.record_activations_rollout(env, network, 2)).startswith(said)
    alone = said.replace("(2, 4)", "(1, 4)")
    assert refusal(lambda: mp.summary(network, np.zeros(4))).startswith(alone)
    good = actor_critic(4)
    _, _, transition = mp.unroll_env(env, env.reset(0), good, state, 2, key)
    folded = said.replace("(2, 4)", "(4, 4)")
    assert refusal(lambda: mp.replay(network, state, transition)).startswith(folded)


def test_training_says_it_once(torch_engine):
    network = actor_critic(3)
    config = mp.TrainConfig(ppo=mp.PPOConfig(num_envs=2, rollout_length=2, total_steps=4, num_minibatches=1))
    message = refusal(lambda: mp.train_ppo(Clock(3, num_envs=2), network, config))
    said = "The network failed on the environment's first observation {'obs': (2, 4)} at PPOAdapter.value.layers[1]: "
    assert message == said + SAID


class Raises(mp.StatefulModule):
    """Fails in a way of its own."""

    def __init__(self, error: Any) -> None:
        self.error = lambda: error

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        raise self.error()


def test_the_error_stays_what_it_was(torch_engine):
    class ToldError(Exception):
        """One of more than a message."""

        def __init__(self, what: str, number: int) -> None:
            super().__init__(what, number)
            self.number = number

    original = ToldError("why", 3)
    network = mp.Sequential([mp.Sequential([Raises(original)])])
    with pytest.raises(ToldError) as caught:
        network([[()]], inputs(torch_engine, 2, 4))
    assert caught.value is original
    assert caught.value.args == ("why", 3)
    assert caught.value.__notes__ == ["In the network at Sequential.layers[0].layers[0]."]


def test_a_state_that_is_none(torch_engine):
    x, rngs = inputs(torch_engine, 2, 4), mp.Rngs(0)
    network = mp.Sequential([mp.Parallel(a=mp.LSTM(4, 2, rngs), b=mp.Dense(4, 2, rngs))])
    for state, what in (((), "an empty tuple"), (None, "a NoneType")):
        with pytest.raises(ValueError, match=f"^Sequential got {what} as its state; expected a list of 1"):
            network(state, x)
        with pytest.raises(ValueError, match=f"^Parallel got {what} as its state; .*'a': ..., 'b': ...") as caught:
            network([state], x)
        assert place_of(caught.value) == "Sequential.layers[0]"
    with pytest.raises(ValueError, match=r"Parallel got a dict with the entries \['a'\] as its rollout_extras"):
        network(network.initialize_state(2), x, [{"a": None}])
