"""Rollouts of one network through episode ends on one engine, and their replay."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

import multippo as mp
from multippo.algorithms.advantages import estimate_targets
from multippo.algorithms.minibatches import make_sequences, minibatch_indices, take_sequences
from multippo.algorithms.types import Transition
from multippo.random import host
from multippo.trees import tree_map

from ..specimens.scripted_environment import NUM_ENVS, NUM_STEPS
from ..specimens.specimen import NetworkSpecimen, randomise
from .built_module import BuiltModule
from .engines import to_host

DISCOUNT, GAE_LAMBDA = 0.97, 0.9


class Rollout(NamedTuple):
    """Rollout of ``NUM_STEPS`` steps, as NumPy arrays.

    Attributes:
        transition: The transition, ``[T, B, ...]``.
        starts: Carries ``[T / L, B, ...]`` before every L-th step.
        v_last: Value ``[B]`` of the observation after the last step; a tree, like the values.
    """

    transition: Transition
    starts: Any
    v_last: Any


class Minibatches(NamedTuple):
    """Log-likelihoods of every minibatch of every epoch, ``[epochs * minibatches, L, S]``, and their origins.

    Attributes:
        new: Replayed log-likelihoods.
        old: Stored log-likelihoods.
        valid: True for entries that count.
        t: Step of the rollout.
        env: Environment.
    """

    new: Any
    old: Any
    valid: np.ndarray
    t: np.ndarray
    env: np.ndarray


class NetworkEvidence(BuiltModule):
    """Evidence of one network on one engine at one precision; every property is computed at its first use.

    Args:
        specimen: The network, and its environment.
        backend: The engine.
        precision: "float32" or "float64".
    """

    specimen: NetworkSpecimen

    def __init__(self, specimen: NetworkSpecimen, backend: str, precision: str) -> None:
        super().__init__(specimen, backend, precision, lambda network: randomise(network, specimen.obs_statistics))
        self.env = specimen.env()

    @functools.cached_property
    def rollout(self) -> Rollout:
        """Second of three rollouts in a row, which starts in the middle of episodes, with carries of earlier steps."""
        with self.at() as engine:
            state = self.module.initialize_state(NUM_ENVS)
            env_state = self.env.reset(host.key(40))
            chunks: list[Any] = []
            length = self.specimen.sequence_length
            for number in range(3 * NUM_STEPS // length):
                key = engine.random.wrap_key(host.fold_in(host.key(41), number))
                before = to_host(engine, state)
                state, env_state, transition = mp.unroll_env(self.env, env_state, self.module, state, length, key)
                chunks.append((before, to_host(engine, transition)))
            self.arrays_after["rollout"] = self.arrays_then_restored()
        per_rollout = NUM_STEPS // length
        main = chunks[per_rollout : 2 * per_rollout]
        transition = tree_map(lambda *leaves: np.concatenate(leaves), *(chunk for _, chunk in main))
        starts = tree_map(lambda *leaves: np.stack(leaves), *(before for before, _ in main))
        following = chunks[2 * per_rollout][1]
        v_last = tree_map(lambda v: v[0], following.network_output.value_estimates)
        return Rollout(transition, starts, v_last)

    @functools.cached_property
    def replayed(self) -> Any:
        """Output of the rollout, replayed under the weights that acted: a ``PPONetworkOutput``."""
        return self._replay(None)

    @functools.cached_property
    def replayed_under_other_weights(self) -> Any:
        """Output of the rollout, replayed after all weights have changed a little, as in the middle of an update."""
        return self._replay(self.other_arrays)

    def _replay(self, arrays: dict[str, np.ndarray] | None) -> Any:
        start = tree_map(lambda x: x[0], self.rollout.starts)
        return self.evaluate(self._compiled_replay, start, self.rollout.transition, arrays=arrays)

    @functools.cached_property
    def _compiled_replay(self) -> Any:
        return self.programme(mp.replay)

    @functools.cached_property
    def losses(self) -> dict[str, np.ndarray]:
        """Terms of the loss of the whole rollout, and its metrics, under weights that have changed a little."""
        config, xp = self.specimen.ppo, self.engine.xp
        assert config is not None

        def run(network: Any, transition: Transition, starts: Any, v_last: Any) -> Any:
            values = transition.network_output.value_estimates
            targets = estimate_targets(xp, config, transition, values, v_last)
            return mp.ppo_loss(network, self._sequences(transition, starts, *targets), config)[1].metrics

        return self.evaluate(self.programme(run), *self.rollout, arrays=self.other_arrays)

    def _sequences(self, transition: Transition, starts: Any, advantages: Any, returns: Any) -> Any:
        length, may_skip = self.specimen.sequence_length, self.env.may_skip
        return make_sequences(self.engine.xp, transition, starts, advantages, returns, length, may_skip)

    @functools.cached_property
    def minibatches(self) -> Minibatches:
        """Log-likelihoods of two epochs' minibatches, replayed from the stored carries before any update."""
        config, engine, xp = self.specimen.ppo, self.engine, self.engine.xp
        assert config is not None

        def run(network: Any, transition: Transition, starts: Any, places: Any) -> Any:
            sequences = self._sequences(transition, starts, places, places)
            key = engine.random.wrap_key(host.key(42))
            rows = minibatch_indices(engine.random, xp, key, sequences.valid.shape[1], config)

            def body(carry: Any, index: Any) -> tuple[Any, Any]:
                taken = take_sequences(xp, sequences, index)
                out = network.unroll(taken.network_state, taken.obs, taken.done, taken.rollout_extras)
                return carry, (out.output.loglikelihoods, taken.loglikelihoods, taken.valid, taken.returns)

            return engine.scan(body, engine.zeros(()), rows, rows.shape[0])[1]

        t, env = np.meshgrid(np.arange(NUM_STEPS), np.arange(NUM_ENVS), indexing="ij")
        places = {"t": t, "env": env}
        arguments = (self.rollout.transition, self.rollout.starts, places)
        new, old, valid, places = self.evaluate(self.programme(run), *arguments)
        return Minibatches(new, old, valid, places["t"], places["env"])

    @functools.cached_property
    def advantages(self) -> tuple[Any, Any]:
        """Advantages and returns, keyed like the values."""
        config = mp.PPOConfig(discounting_factor=DISCOUNT, gae_lambda=GAE_LAMBDA, normalize_advantages=False)

        def run(_: Any, transition: Transition, v_last: Any) -> Any:
            values = transition.network_output.value_estimates
            return estimate_targets(self.engine.xp, config, transition, values, v_last)

        return self.evaluate(self.programme(run), self.rollout.transition, self.rollout.v_last)
