"""Both engines against PPO in NumPy: advantages, loss terms and the parameters after an epoch, to 1e-10 in float64."""

import dataclasses
import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import support
import training

import multippo as mp
from multippo.algorithms.advantages import estimate_targets
from multippo.algorithms.schedules import Coefficients
from multippo.algorithms.update import Learner, LearnerState
from multippo.random import host
from multippo.trees import tree_map

_spec = importlib.util.spec_from_file_location("numpy_ppo", Path(__file__).with_name("numpy_ppo.py"))
assert _spec is not None and _spec.loader is not None
numpy_ppo = sys.modules["numpy_ppo"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(numpy_ppo)

TIME, BATCH, FEATURES, ACTIONS = 8, 6, 3, 2
RATE, TOLERANCE = 0.01, 1e-10

CONFIG = mp.PPOConfig(
    num_envs=BATCH,
    rollout_length=TIME,
    num_epochs=1,
    num_minibatches=4,
    sequence_length=1,
    clip_range=0.1,
    value_clip_range=0.05,
    gradient_clipping=0.05,
    weight_decay=0.1,
    adam_betas=(0.8, 0.95),
    entropy_weight=0.02,
    critic_loss_weight=0.7,
    discounting_factor=0.9,
    gae_lambda=0.8,
)


@dataclasses.dataclass
class Case:
    """A network made by the library, the same in NumPy, and how it is trained."""

    make: Any
    network: Any
    sample: Any
    config: mp.PPOConfig


def side_by_side(sampler: Any) -> Any:
    rngs = mp.Rngs(0)
    parameters = ACTIONS if sampler is mp.CategoricalSampler else 2 * ACTIONS
    action = mp.Sequential([mp.Dense(FEATURES, 5, rngs, "tanh"), mp.Dense(5, parameters, rngs), sampler(rngs)])
    return mp.PPOAdapter(
        action=action, value=mp.Sequential([mp.Dense(FEATURES, 4, rngs, "tanh"), mp.Dense(4, 1, rngs)])
    )


def recurrent() -> Any:
    rngs = mp.Rngs(0)
    heads = mp.PPOAdapter(
        action=mp.Sequential([mp.Dense(4, ACTIONS, rngs), mp.CategoricalSampler(rngs)]), value=mp.Dense(4, 1, rngs)
    )
    return mp.Sequential([mp.LSTM(FEATURES, 4, rngs), heads])


def choose(rng: np.random.Generator, logits: np.ndarray) -> np.ndarray:
    # The largest of logits with Gumbel noise (Gumbel, 1954) is a sample.
    return np.argmax(logits + rng.gumbel(size=logits.shape), axis=-1)


def draw(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    mean, raw = np.split(x, 2, axis=-1)
    return mean + np.log1p(np.exp(raw)) * rng.normal(size=mean.shape)


DENSE: dict[str, Any] = {
    "actor": [("action.layers.0", True), ("action.layers.1", False)],
    "critic": [("value.layers.0", True), ("value.layers.1", False)],
}
RECURRENT = numpy_ppo.Network(
    actor=[("layers.1.action.layers.0", False)],
    critic=[("layers.1.value", False)],
    head=numpy_ppo.categorical,
    lstm="layers.0",
    hidden=4,
)

GAUSSIAN = Case(
    functools.partial(side_by_side, mp.NormalSampler),
    numpy_ppo.Network(**DENSE, head=functools.partial(numpy_ppo.gaussian, least_std=1e-3)),
    draw,
    CONFIG,
)
CASES = {
    "discrete": Case(
        functools.partial(side_by_side, mp.CategoricalSampler),
        numpy_ppo.Network(**DENSE, head=numpy_ppo.categorical),
        choose,
        dataclasses.replace(CONFIG, num_epochs=2, recompute_advantages=True),
    ),
    "gaussian": GAUSSIAN,
    # Divergences of 0.69 and 0.26, then 0.93: two of four steps are taken.
    "gaussian, stopped": dataclasses.replace(GAUSSIAN, config=dataclasses.replace(CONFIG, target_kl=0.9)),
    # 6 environments x 2 chunks of 4 steps, 3 sequences in a minibatch.
    "recurrent": Case(
        recurrent, RECURRENT, choose, dataclasses.replace(CONFIG, sequence_length=4, advantage_normalization="batch")
    ),
    "recurrent, targets anew": Case(
        recurrent,
        RECURRENT,
        choose,
        dataclasses.replace(CONFIG, sequence_length=8, num_minibatches=3, num_epochs=2, recompute_advantages=True),
    ),
}


def recorded(case: Case, params: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A rollout of a policy a little away from the one that learns, so that every clip has something to do at once."""
    rng = np.random.default_rng(7)
    behaviour = {name: value + 0.1 * rng.normal(size=value.shape) for name, value in params.items()}
    return numpy_ppo.record(case.network, behaviour, FEATURES, case.sample, TIME, BATCH, seed=3)


def carry_of(network: Any, engine: Any, h: np.ndarray, c: np.ndarray) -> Any:
    state = network.initialize_state(BATCH)
    return [{"h": engine.asarray(h), "c": engine.asarray(c)}, *state[1:]] if isinstance(state, list) else state


def as_transition(network: Any, engine: Any, rollout: dict[str, np.ndarray]) -> mp.Transition:
    put = {name: engine.asarray(value) for name, value in rollout.items()}
    zeros = carry_of(network, engine, rollout["h"][0], rollout["c"][0])
    extras = network(zeros, put["obs"][0]).rollout_extras
    return mp.Transition(
        obs=put["obs"],
        network_output=mp.PPONetworkOutput(put["action"], put["log_likelihood"], put["value"]),
        rewards=put["reward"],
        terminated=put["terminated"],
        truncated=put["truncated"],
        done=put["terminated"] | put["truncated"],
        valid=engine.asarray(np.ones((TIME, BATCH), bool)),
        metrics={},
        # The sampler is the only module that emits something.
        rollout_extras=tree_map(lambda _: put["action"], extras),
        bootstrap_values=put["bootstrap"],
    )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.nightly_if("jax")
def test_an_update_is_that_of_numpy(engine, float64, name):
    case = CASES[name]
    config, length = case.config, case.config.sequence_length
    assert length is not None
    network = case.make()
    support.fill_randomly(network, scale=0.5)
    before = {key: value for key, value in mp.to_portable(network).items() if not key.endswith("base_key")}
    assert all(np.abs(value).min() > 0 for value in before.values())
    rollout = recorded(case, before)
    transition = as_transition(network, engine, rollout)
    put = engine.asarray

    # What the network says of the recorded actions, with the carry from before the rollout.
    start = carry_of(network, engine, rollout["h"][0], rollout["c"][0])
    replayed = mp.replay(network, start, transition)
    values, _ = numpy_ppo.values_now(case.network, before, rollout)
    np.testing.assert_allclose(support.to_numpy(replayed.value_estimates), values, atol=TOLERANCE)

    found, returns = estimate_targets(
        engine.xp, config, transition, transition.network_output.value_estimates, put(rollout["v_last"])
    )
    expected, targets = numpy_ppo.advantages(rollout, config, rollout["value"], rollout["v_last"])
    np.testing.assert_allclose(support.to_numpy(found), expected, atol=TOLERANCE)
    np.testing.assert_allclose(support.to_numpy(returns), targets, atol=TOLERANCE)

    parts = engine.split(network)
    learner = Learner(engine, parts.definition, config, length, may_skip=False)
    key = engine.random.wrap_key(host.key(5))
    order = mp.algorithms.minibatches.minibatch_indices(engine.random, engine.xp, key, BATCH * TIME // length, config)
    starts = [carry_of(network, engine, rollout["h"][t], rollout["c"][t]) for t in range(0, TIME, length)]
    coefficients = Coefficients(put(np.asarray(RATE)), put(np.asarray(config.entropy_weight)))
    state, metrics = engine.jit(learner.update)(
        LearnerState(parts.params, parts.variables, learner.optimizer.init(parts.params)),
        transition,
        tree_map(lambda *leaves: engine.xp.stack(leaves), *starts),
        put(rollout["v_last"]),
        key,
        coefficients,
        (carry_of(network, engine, rollout["h_last"], rollout["c_last"]), put(rollout["obs_last"])),
    )
    engine.update_module(network, state.params, state.variables)
    after = mp.to_portable(network)

    wanted, logs, optimizer = numpy_ppo.update(case.network, before, rollout, support.to_numpy(order), config, RATE)
    for metric, value in logs.items():
        assert float(metrics[metric]) == pytest.approx(value, rel=TOLERANCE, abs=TOLERANCE), metric
    support.assert_trees_close({key: after[key] for key in wanted}, wanted, TOLERANCE, "parameters")
    state = state._replace(optimizer_state=learner.optimizer.export_state(state.optimizer_state))
    first, second, count = training.portable_moments(network, state)
    support.assert_trees_close(first, optimizer.first, TOLERANCE, "first moments")
    support.assert_trees_close(second, optimizer.second, TOLERANCE, "second moments")
    assert count == optimizer.count == int(metrics["update/minibatches"])
    assert (count < config.num_epochs * config.num_minibatches) == (config.target_kl is not None)
    # Every clip was at work, and weights moved.
    assert 0 < logs["ratio/clip_fraction"] < 1
    assert 0 < logs["value/clip_fraction"] < 1
    assert logs["gradient/norm"] > config.gradient_clipping
    assert min(np.abs(wanted[key] - before[key]).max() for key in wanted) > 1e-3
