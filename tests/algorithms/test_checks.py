"""What does not fit is refused before the first step, in one line that names it and the remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import training
from gymnasium import spaces
from spaces_env import Spaces

import multippo as mp
from multippo.testing import Clock, CountNet, FunctionalClock, Spy, TableNet, TinyActorCritic


def refusal(network: Any, kind: type[Exception] = ValueError, env: Any = None, **fields: Any) -> str:
    """The message of what training raises; nothing may have been stepped, and nobody called."""
    spy = Spy(env or Clock(3, num_envs=2))
    run = training.train(spy, network, catch=(kind,), **fields)
    assert isinstance(run.error, kind), run
    assert not spy.actions
    assert not run.logs
    assert not run.checkpoints
    assert "\n" not in str(run.error)
    return str(run.error)


def test_what_is_no_network(engine):
    message = refusal(object(), TypeError)
    assert "needs a StatefulModule as its network; got a object" in message
    with pytest.raises(TypeError, match="needs a TrainConfig; got a PPOConfig"):
        mp.train_ppo(Clock(3), CountNet(), mp.PPOConfig())


def test_an_output_of_the_wrong_type(engine):
    message = refusal(mp.Dense(4, 2, mp.Rngs(0)), TypeError)
    assert "needs a PPONetworkOutput" in message
    assert "PPOAdapter" in message


class Reticent(TableNet):
    """Does not tell its entropy."""

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        out = super().__call__(state, x, rollout_extras)
        return out._replace(output=out.output._replace(entropies=None))


def test_a_weight_of_the_entropy(engine):
    message = refusal(Reticent([0.0] * 4), entropy_weight=0.01)
    assert "entropy_weight=0.01 needs the entropy of the policy" in message
    # Two weights of one thing.
    network = adapter(4)
    network.action.layers[1].entropy_weight = 0.02
    message = refusal(network, entropy_weight=0.01)
    assert "PPOAdapter.action.layers[1] has an entropy_weight=0.02 of its own" in message
    assert "make it with 0, or leave PPOConfig.entropy_weight unset" in message


def test_an_entropy_of_another_shape(engine):
    class Wide(TableNet):
        def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
            out = super().__call__(state, x, rollout_extras)
            return out._replace(output=out.output._replace(entropies={"arm": out.output.entropies[:, None]}))

    assert "entropy 'arm' has shape (2, 1); expected one number" in refusal(Wide([0.0] * 4))


def test_a_module_that_returns_something_else(engine):
    class Bare(mp.StatefulModule):
        def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> Any:
            return x

    message = refusal(Bare())
    assert "StatefulModuleOutput" in message


def test_whatever_the_framework_says_stays_on_one_line(engine):
    class Talkative(CountNet):
        def heads(self, memory: Any, x: Any) -> Any:
            raise RuntimeError("first line\n  second line")

    assert "at Talkative: first line second line" in refusal(Talkative())


def adapter(features: int) -> Any:
    rngs = mp.Rngs(0)
    return mp.PPOAdapter(
        action=mp.Sequential([mp.Dense(features, 2, rngs), mp.CategoricalSampler(rngs)]),
        value=mp.Dense(features, 1, rngs),
    )


def test_what_can_act_but_not_be_differentiated(engine):
    rngs = mp.Rngs(0)
    hidden = mp.Dense(4, 4, rngs, lambda x: np.tanh(x))  # of a torch tensor without gradients NumPy makes one again
    message = refusal(mp.Sequential([hidden, adapter(4)]))
    assert "at Sequential.layers[0]: Dense(activation=<lambda>) failed on an array of shape (2, 4)" in message
    assert "Give a name, such as 'tanh', or a function of the engine's own arrays" in message


def test_an_observation_that_does_not_fit_names_the_layer(engine):
    rngs = mp.Rngs(0)
    network = mp.Sequential([mp.Normalizer(4), mp.Dense(4, 8, rngs), mp.Dense(9, 8, rngs), adapter(8)])
    message = refusal(network)
    # The clock of 3 shows 4 features; 8 meet a layer that takes 9.
    assert "Sequential.layers[2]" in message
    assert "first observation {'obs': (2, 4)}" in message
    assert "(2, 8)" in message
    assert "9 features" in message


def acting(features: int, layers: Any) -> Any:
    """A network of 3 features whose action port ends with ``layers``, behind a dense layer."""
    rngs = mp.Rngs(0)
    actor = mp.Sequential([mp.Dense(3, features, rngs), *layers(rngs)])
    return mp.Sequential([mp.PPOAdapter(action=actor, value=mp.Dense(3, 1, rngs))])


def acted(network: Any, space: Any) -> str:
    return refusal(network, env=mp.make_env(lambda: Spaces(spaces.Box(-1, 1, (3,)), space), num_envs=2))


SAMPLER = "of the sampler Sequential.layers[0].action.layers"
ARMS = spaces.Dict({"arm": spaces.Discrete(2), "leg": spaces.Box(-1, 1, (2,))})


def two_arms(**sizes: int) -> Any:
    return lambda r: [mp.Splitter(sizes), mp.Map(arm=mp.CategoricalSampler(r), leg=mp.NormalTanhSampler(r))]


@pytest.mark.parametrize("logits", [1, 3])
def test_another_number_of_choices_than_the_action_space_s(engine, logits):
    message = acted(acting(logits, lambda r: [mp.CategoricalSampler(r)]), spaces.Discrete(2, start=5))
    assert message == (
        f"The network's action, {SAMPLER}[1], is one of {logits} choices; expected 2 for the action space "
        "Discrete(2, start=5). Give it 2 logits, by the size of the layer in front of it."
    )


def test_another_number_of_choices_for_one_key(engine):
    message = acted(acting(7, two_arms(arm=3, leg=4)), ARMS)
    assert f"action['arm'], {SAMPLER}[2].components['arm'], is one of 3 choices; expected 2 for" in message
    message = acted(acting(5, two_arms(arm=3, leg=2)), ARMS)
    assert "expected 2 for the action space Discrete(2)" in message
    message = acted(acting(4, two_arms(arm=2, leg=2)), ARMS)
    expected = "is an array of shape (2, 1); expected shape (2, 2) for the action space Box("
    assert f"action['leg'], {SAMPLER}[2].components['leg'], {expected}" in message


@pytest.mark.parametrize(
    ("features", "layers", "space", "said"),
    [
        (5, lambda r: [mp.MultiCategoricalSampler([2, 3], r)], spaces.MultiDiscrete([3, 2]), "[2, 3] choices; expect"),
        (5, lambda r: [mp.MultiCategoricalSampler([2, 3], r)], spaces.Box(0, 1, (2,), np.int8), "expected [2, 2] for"),
        (2, lambda r: [mp.BernoulliSampler(r)], spaces.MultiDiscrete([2, 3]), "one of 2 choices; expected [2, 3] for"),
        (2, lambda r: [mp.BernoulliSampler(r)], spaces.MultiBinary(3), "shape (2, 2); expected shape (2, 3)"),
        (4, lambda r: [mp.NormalSampler(r)], spaces.Box(-1, 1, (3,)), "shape (2, 2); expected shape (2, 3)"),
        (4, lambda r: [mp.MultiCategoricalSampler([2, 2], r)], spaces.Box(-1, 1, (2,)), "is a choice that counts from"),
        (4, lambda r: [mp.NormalSampler(r)], spaces.MultiBinary(2), "of type float32; expected integers that count"),
        (2, lambda r: [mp.CategoricalSampler(r)], ARMS, "is an array of shape (2,); expected a dict with the entries"),
        (7, two_arms(arm=3, leg=4), spaces.Discrete(3), "['arm', 'leg']; expected shape (2,) for"),
    ],
)
def test_actions_that_the_space_does_not_have(torch_engine, features, layers, space, said):
    assert said in acted(acting(features, layers), space)


class Halved(mp.StatefulModule):
    """Makes of twice as many choices those of the space."""

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return mp.StatefulModuleOutput(state, {**x, "action": x["action"] // 2})


def test_choices_that_fit_and_those_nobody_knows(torch_engine):
    for space, network in (
        (ARMS, acting(6, two_arms(arm=2, leg=4))),
        (spaces.MultiBinary(2), acting(4, lambda r: [mp.MultiCategoricalSampler([2, 2], r)])),
        (spaces.MultiDiscrete([2, 2]), acting(2, lambda r: [mp.BernoulliSampler(r)])),
        # What a module of the user's makes of an action is its own affair.
        (spaces.Discrete(2), acting(4, lambda r: [mp.CategoricalSampler(r), Halved()])),
    ):
        env = mp.make_env(lambda space=space: Spaces(spaces.Box(-1, 1, (3,)), space), num_envs=2)
        assert training.train(env, network, iterations=1).result is not None


class Odd(TinyActorCritic):
    """Its heads are changed by a function."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.weight = mp.Param(np.ones((4, 2)))
        self.change = change

    def fresh_memory(self, batch_size: int) -> Any:
        return self.zeros((batch_size,))

    def heads(self, memory: Any, x: Any) -> Any:
        logits = x @ self.weight[...]
        return self.change(self, memory, logits, logits[:, 0])


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        # A trailing axis of 1 would broadcast to (B, B) against the returns.
        (lambda net, m, logits, v: (m, logits, v[:, None]), ["value estimate", "(2, 1)", "(2,)"]),
        (lambda net, m, logits, v: (m, logits, {"a": v, "b": v}), ["['']", "['a', 'b']", "must be the same"]),
        (lambda net, m, logits, v: ((m, m), logits, v), ["changed its structure"]),
        (lambda net, m, logits, v: (m[:, None], logits, v), ["memory", "(2,)", "(2, 1)"]),
        (lambda net, m, logits, v: (net.xp.astype(m, net.xp.int32), logits, v), ["memory", "float32", "int32"]),
    ],
)
def test_outputs_and_carries_of_the_wrong_shape(engine, change, parts):
    message = refusal(Odd(change))
    assert all(part in message for part in parts), message


def test_a_carry_without_a_batch_axis(engine):
    class Shared(CountNet):
        def fresh_memory(self, batch_size: int) -> Any:
            return self.zeros(())

        def heads(self, memory: Any, x: Any) -> Any:
            _, logits, value = super().heads(memory + x[:, 0], x)
            return memory + 1, logits, value

    message = refusal(Shared())
    assert "memory" in message
    assert "batch axis (2)" in message


@pytest.mark.parametrize(
    ("reset", "parts"),
    [
        (lambda net, state: {**state, "memory": net.zeros((3,))}, ["reset_state", "memory", "(2,)", "(3,)"]),
        (lambda net, state: {**state, "memory": None}, ["reset_state", "changed its structure"]),
        (
            lambda net, state: {**state, "memory": state["nothing"]},
            ["reset_state failed", "Sequential.layers[0]", "nothing"],
        ),
    ],
)
def test_a_reset_of_another_shape(engine, reset, parts):
    class Bad(CountNet):
        def reset_state(self, prev_state: Any) -> Any:
            return reset(self, prev_state)

    message = refusal(mp.Sequential([Bad()]))
    assert all(part in message for part in parts), message


def test_what_is_no_state_to_go_on_from():
    with mp.use_backend("torch"):
        env, network = Clock(3, num_envs=2), TableNet([0.0] * 4)
        run = training.train(env, network, iterations=1)
        with pytest.raises(
            TypeError, match=r"is a TrainResult; expected a TrainingState, such as result.training_state"
        ):
            training.train(Clock(3, num_envs=2), network, initial_state=run.result)
    with mp.use_backend("jax"):
        other = TableNet([0.0] * 4)
    with pytest.raises(TypeError, match="which are none of the jax engine's"):
        training.train(Clock(3, num_envs=2), other, initial_state=run.state)


def test_separate_advantages_need_the_same_keys(engine):
    message = refusal(TableNet([0.0] * 4), combine_advantages="separate", env=TwoRewards(3, num_envs=2))
    assert "['']" in message
    assert "['a', 'b']" in message


class Fold(mp.CategoricalSampler):
    """Six logits, of which three at a time stand for one action."""

    def _evaluate(self, parameters: Any, raw_action: Any, noise: Any) -> Any:
        action, log_likelihood, entropy = super()._evaluate(parameters, raw_action, noise)
        return action % 2, log_likelihood, entropy


class Agents(mp.CategoricalSampler):
    """Two choices of two, of which the environment is told the first."""

    def distribution(self, x: Any) -> Any:
        return super().distribution(self.xp.reshape(x, (*x.shape[:-1], 2, 2)))

    def _evaluate(self, parameters: Any, raw_action: Any, noise: Any) -> Any:
        action, log_likelihood, entropy = super()._evaluate(parameters, raw_action, noise)
        return action[..., 0], self.xp.sum(log_likelihood, axis=-1), self.xp.sum(entropy, axis=-1)


class NoSpace(Clock):
    """Says nothing of its actions."""

    def __init__(self) -> None:
        super().__init__(3, num_envs=2)
        del self.action_space


def masked(logits: Any) -> dict[str, Any]:
    import torch

    return {"logits": logits, "mask": torch.arange(6).expand(logits.shape) < 2}


@pytest.mark.parametrize(
    ("logits", "layers", "env"),
    [
        (6, lambda rngs: [Fold(rngs)], lambda: Clock(3, num_envs=2)),
        (4, lambda rngs: [Agents(rngs)], lambda: Clock(3, num_envs=2)),
        (6, lambda rngs: [mp.Lift(masked), mp.CategoricalSampler(rngs)], lambda: Clock(3, num_envs=2)),
        (2, lambda rngs: [mp.CategoricalSampler(rngs)], NoSpace),
    ],
    ids=["a class of the user's", "that sees its input otherwise", "a mask", "an environment without a space"],
)
def test_what_only_its_author_knows_is_left_alone(torch_engine, logits, layers, env):
    rngs = mp.Rngs(0)
    action = mp.Sequential([mp.Dense(4, logits, rngs), *layers(rngs)])
    run = training.train(env(), mp.PPOAdapter(action=action, value=mp.Dense(4, 1, rngs)), iterations=2)
    assert max(run.column("ratio/first_max_dev")) <= 1e-6


class TwoRewards(Clock):
    """Pays twice."""

    def reset(self, key: Any) -> Any:
        state = super().reset(key)
        return state._replace(reward={"a": state.reward, "b": state.reward})

    def step(self, env_state: Any, action: Any) -> Any:
        state = super().step(env_state, action)
        return state._replace(reward={"a": state.reward, "b": 2 * state.reward})


class TwoValues(TableNet):
    def heads(self, memory: Any, x: Any) -> Any:
        memory, logits, value = super().heads(memory, x)
        return memory, logits, {"a": value, "b": 2 * value}


@pytest.mark.parametrize("combine", ["sum", "mean"])
def test_trees_of_rewards_train(torch_engine, combine):
    run = training.train(TwoRewards(3, num_envs=2), TwoValues([0.0] * 4), combine_advantages=combine)
    assert run.column("rollout/episode_reward/mean")[-1] == 9.0
    assert max(run.column("ratio/first_max_dev")) <= 1e-6


def test_numbers_of_environments_that_differ(engine):
    message = refusal(CountNet(), num_envs=3)
    assert "num_envs=3" in message
    assert "has 2" in message


def test_a_state_of_another_network_is_refused(torch_engine):
    state = training.train(Clock(3, num_envs=2), TableNet([0.0] * 4), iterations=1).state
    message = refusal(TableNet([0.0] * 4, num_actions=3), initial_state=state)
    assert "parameter logits has shape (4, 2), this network's (4, 3)" in message
    message = refusal(CountNet(), initial_state=state)
    assert "its parameter gain has shape none" in message


def test_a_state_of_another_number_of_environments(torch_engine):
    def env(kind: Any, num_envs: int) -> Any:
        return Clock(3, num_envs=num_envs) if kind is Clock else mp.make_env(FunctionalClock(3), num_envs=num_envs)

    for kind in (Clock, FunctionalClock):
        state = training.train(env(kind, 2), TableNet([0.0] * 4), iterations=1).state
        run = training.train(
            env(kind, 4), TableNet([0.0] * 4), total_steps=32, initial_state=state, catch=(ValueError,)
        )
        if kind is Clock:  # starts new episodes anyway
            assert run.result.total_steps > state.step
        else:
            assert "is of 2 environments, but there are 4" in str(run.error)
