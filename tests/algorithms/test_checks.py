"""What does not fit is refused before the first step, in one line that names it and the remedy."""

from typing import Any

import numpy as np
import pytest
import support
import training
from gymnasium import spaces
from spaces_env import Spaces

import multippo as mp
from multippo.testing import Clock, CountNet, FunctionalClock, Spy, TableNet


def refusal(network: Any, kind: type[Exception] = ValueError, env: Any = None, **fields: Any) -> str:
    """The message of what training raises; nothing may have been stepped, and nobody called."""
    spy = Spy(env or Clock(3, num_envs=2))
    run = training.train(spy, network, catch=(kind,), **fields)
    assert isinstance(run.error, kind), run
    assert not spy.actions and not run.logs and not run.checkpoints
    assert "\n" not in str(run.error)
    return str(run.error)


class Odd(CountNet):
    """Its memory and values, its output, or its reset are changed by a function."""

    def __init__(self, heads: Any = None, output: Any = None, reset: Any = None) -> None:
        super().__init__()
        self.change_heads, self.change_output, self.change_reset = heads, output, reset

    def heads(self, memory: Any, x: Any) -> Any:
        memory, logits, value = super().heads(memory, x)
        if self.change_heads is not None:
            memory, value = self.change_heads(self, memory, value)
        return memory, logits, value

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        out = super().__call__(state, x, rollout_extras)
        return out if self.change_output is None else out._replace(output=self.change_output(out.output))

    def reset_state(self, prev_state: Any) -> Any:
        return super().reset_state(prev_state) if self.change_reset is None else self.change_reset(self, prev_state)


REFUSED: dict[str, tuple[Any, list[str], dict[str, Any]]] = {
    "no actor-critic": (lambda: mp.Dense(4, 2, mp.Rngs(0)), ["needs a PPONetworkOutput"], {"kind": TypeError}),
    "no entropy": (
        lambda: Odd(output=lambda out: out._replace(entropies=None)),
        ["entropy_weight=0.01 needs the entropy of the policy"],
        {"entropy_weight": 0.01},
    ),
    "an entropy of another shape": (
        lambda: Odd(output=lambda out: out._replace(entropies={"arm": out.entropies[:, None]})),
        ["entropy 'arm' has shape (2, 1); expected one number"],
        {},
    ),
    # Of a torch tensor without gradients NumPy makes one again.
    "NumPy in the network": (
        lambda: mp.Sequential([mp.Dense(4, 4, mp.Rngs(0), lambda x: np.tanh(x)), support.actor_critic(4)]),
        ["at Sequential.layers[0]: "],
        {},
    ),
    "other keys of values": (
        lambda: Odd(lambda net, memory, value: (memory, {"a": value, "b": value})),
        ["['']", "['a', 'b']", "must be the same"],
        {},
    ),
    "another shape of the carry": (
        lambda: Odd(lambda net, memory, value: (memory[:, None], value)),
        ["memory", "(2,)", "(2, 1)"],
        {},
    ),
    "another type of the carry": (
        lambda: Odd(lambda net, memory, value: (net.xp.astype(memory, net.xp.int32), value)),
        ["memory", "float32", "int32"],
        {},
    ),
    "a reset of another shape": (
        lambda: Odd(reset=lambda net, state: {**state, "memory": net.zeros((3,))}),
        ["reset_state", "memory", "(2,)", "(3,)"],
        {},
    ),
    "a reset that fails": (
        lambda: mp.Sequential([Odd(reset=lambda net, state: {**state, "memory": state["nothing"]})]),
        ["reset_state failed", "Sequential.layers[0]", "nothing"],
        {},
    ),
    "another number of environments": (CountNet, ["num_envs=3", "has 2"], {"num_envs": 3}),
}


ON_JAX = ("NumPy in the network", "another type of the carry", "a reset that fails")


@pytest.mark.parametrize(
    ("backend", "what"), [*(("torch", what) for what in REFUSED), *(("jax", what) for what in ON_JAX)]
)
def test_a_network_that_does_not_fit(backend, what):
    make, words, fields = REFUSED[what]
    with mp.use_backend(backend):
        message = refusal(make(), **fields)
    assert [word for word in words if word not in message] == [], message


def acting(features: int, layers: Any) -> Any:
    """A network of 3 features whose action port ends with ``layers``, behind a dense layer."""
    rngs = mp.Rngs(0)
    actor = mp.Sequential([mp.Dense(3, features, rngs), *layers(rngs)])
    return mp.Sequential([mp.PPOAdapter(action=actor, value=mp.Dense(3, 1, rngs))])


ARMS = spaces.Dict({"arm": spaces.Discrete(2), "leg": spaces.Box(-1, 1, (2,))})


def two_arms(**sizes: int) -> Any:
    return lambda r: [mp.Splitter(sizes), mp.Map(arm=mp.CategoricalSampler(r), leg=mp.NormalTanhSampler(r))]


def categorical(r: Any) -> Any:
    return [mp.CategoricalSampler(r)]


def two_and_three(r: Any) -> Any:
    return [mp.MultiCategoricalSampler([2, 3], r)]


@pytest.mark.parametrize(
    ("features", "layers", "space", "said"),
    [
        (
            3,
            categorical,
            spaces.Discrete(2, start=5),
            "layers[1], is one of 3 choices; expected one of 2 for the action space Discrete(2, start=5)",
        ),
        (4, two_arms(arm=2, leg=2), ARMS, "['leg'], is an array of shape (2, 1); expected shape (2, 2) for the action"),
        (5, two_and_three, spaces.MultiDiscrete([3, 2]), "[2, 3] choices; expect"),
        (5, two_and_three, spaces.Box(0, 1, (2,), np.int8), "expected one of [2, 2] for"),
        (2, lambda r: [mp.BernoulliSampler(r)], spaces.MultiBinary(3), "shape (2, 2); expected shape (2, 3)"),
        (
            4,
            lambda r: [mp.NormalSampler(r)],
            spaces.MultiBinary(2),
            "is numbers of type float32; expected one of [2, 2] choices for",
        ),
        (2, categorical, ARMS, "is an array of shape (2,); expected a dict with the entries"),
    ],
)
def test_actions_that_the_space_does_not_have(torch_engine, features, layers, space, said):
    env = mp.make_env(lambda: Spaces(spaces.Box(-1, 1, (3,)), space), num_envs=2)
    message = refusal(acting(features, layers), env=env)
    assert said in message, message


class Halved(mp.StatefulModule):
    """Makes of twice as many choices those of the space."""

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return mp.StatefulModuleOutput(state, {**x, "action": x["action"] // 2})


def test_choices_that_fit_and_those_nobody_knows(torch_engine):
    for space, network in (
        (ARMS, acting(6, two_arms(arm=2, leg=4))),
        (spaces.MultiDiscrete([2, 2]), acting(2, lambda r: [mp.BernoulliSampler(r)])),
        # What a module of the user's makes of an action is its own affair.
        (spaces.Discrete(2), acting(4, lambda r: [mp.CategoricalSampler(r), Halved()])),
    ):
        env = mp.make_env(lambda space=space: Spaces(spaces.Box(-1, 1, (3,)), space), num_envs=2)
        run = training.train(env, network, iterations=1)
        assert max(run.column("ratio/first_max_dev")) <= 1e-6


def test_states_to_go_on_from(torch_engine):
    env, network = Clock(3, num_envs=2), TableNet([0.0] * 4)
    run = training.train(env, network, iterations=1)
    with mp.use_backend("jax"):
        other = TableNet([0.0] * 4)
    with pytest.raises(TypeError, match="not the jax engine's"):
        training.train(env, other, initial_state=run.state)
    message = refusal(TableNet([0.0] * 4, num_actions=3), initial_state=run.state)
    assert "parameter logits has shape (4, 2), this network's (4, 3)" in message
    # A host environment starts new episodes anyway; a functional one does not.
    more = training.train(Clock(3, num_envs=4), network, total_steps=32, initial_state=run.state)
    assert more.result.total_steps > run.state.step
    two, four = (mp.make_env(FunctionalClock(3), num_envs=num_envs) for num_envs in (2, 4))
    state = training.train(two, TableNet([0.0] * 4), iterations=1).state
    with pytest.raises(ValueError, match="is of 2 environments, but there are 4"):
        training.train(four, TableNet([0.0] * 4), total_steps=32, initial_state=state)
