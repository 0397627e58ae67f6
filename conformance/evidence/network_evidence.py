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
from .engines import engine_at, to_engine, to_host

DISCOUNT, GAE_LAMBDA = 0.97, 0.9


class Rollout(NamedTuple):
    """One rollout of ``NUM_STEPS`` steps, as NumPy arrays.

    Attributes:
        transition: ``[T, B, ...]``.
        starts: The carry before every L-th step, ``[T / L, B, ...]``.
        v_last: ``[B]``, the value of the observation after the last step; a tree, like the values.
    """

    transition: Transition
    starts: Any
    v_last: Any


class Minibatches(NamedTuple):
    """Log-likelihoods of every minibatch of every epoch, ``[epochs * minibatches, L, S]``, and whose they are.

    Attributes:
        new: Replayed.
        old: Stored.
        valid: True for those that count.
        t: Step of the rollout.
        env: Environment.
    """

    new: Any
    old: Any
    valid: np.ndarray
    t: np.ndarray
    env: np.ndarray


class NetworkEvidence:
    """Runs one specimen on one engine at one precision; every property is computed at its first use.

    Args:
        specimen: The network, and its environment.
        backend: The engine.
        precision: "float32" or "float64".
    """

    def __init__(self, specimen: NetworkSpecimen, backend: str, precision: str) -> None:
        self.specimen, self.backend, self.precision = specimen, backend, precision
        self.env = specimen.env()
        with engine_at(backend, precision) as engine:
            self.engine = engine
            self.network: Any = specimen.build()
            randomise(self.network, specimen.obs_statistics)
            self.arrays = mp.to_portable(self.network)
            self._definition = engine.split(self.network).definition
        self.arrays_after: dict[str, dict[str, np.ndarray]] = {}

    def at(self) -> Any:
        """The context everything is run in."""
        return engine_at(self.backend, self.precision)

    @functools.cached_property
    def rollout(self) -> Rollout:
        """The second of three rollouts in a row: it starts in the middle of episodes, with carries that have lived."""
        with self.at() as engine:
            state = self.network.initialize_state(NUM_ENVS)
            env_state = self.env.reset(host.key(40))
            chunks: list[Any] = []
            length = self.specimen.sequence_length
            for number in range(3 * NUM_STEPS // length):
                key = engine.random.wrap_key(host.fold_in(host.key(41), number))
                before = to_host(engine, state)
                state, env_state, transition = mp.unroll_env(self.env, env_state, self.network, state, length, key)
                chunks.append((before, to_host(engine, transition)))
            self.arrays_after["rollout"] = self._arrays_then_restored()
        per_rollout = NUM_STEPS // length
        main = chunks[per_rollout : 2 * per_rollout]
        transition = tree_map(lambda *leaves: np.concatenate(leaves), *(chunk for _, chunk in main))
        starts = tree_map(lambda *leaves: np.stack(leaves), *(before for before, _ in main))
        following = chunks[2 * per_rollout][1]
        v_last = tree_map(lambda v: v[0], following.network_output.value_estimates)
        return Rollout(transition, starts, v_last)

    @functools.cached_property
    def replayed(self) -> Any:
        """The rollout, replayed under the weights that acted: a ``PPONetworkOutput``."""
        out, self.arrays_after["replay"] = self._replay()
        return out

    @functools.cached_property
    def replayed_under_other_weights(self) -> Any:
        """The rollout, replayed after all weights have changed a little, as in the middle of an update."""
        assert self.rollout  # before the weights change
        with self.at():
            self._change_weights()
            return self._replay()[0]

    @functools.cached_property
    def losses(self) -> dict[str, np.ndarray]:
        """Terms of the loss of the whole rollout under those weights, and the metrics logged with them."""
        assert self.specimen.ppo is not None
        engine, config, length, rollout = self.engine, self.specimen.ppo, self.specimen.sequence_length, self.rollout
        xp = engine.xp

        def run(params: Any, variables: Any, transition: Transition, starts: Any, v_last: Any) -> Any:
            values = transition.network_output.value_estimates
            advantages, returns = estimate_targets(xp, config, transition, values, v_last)
            sequences = make_sequences(xp, transition, starts, advantages, returns, length, self.env.may_skip)
            return mp.ppo_loss(engine.merge(self._definition, params, variables), sequences, config)[1].metrics

        with self.at():
            self._change_weights()
            try:
                split = engine.split(self.network)
                arguments = [self._put(tree) for tree in (rollout.transition, rollout.starts, rollout.v_last)]
                return to_host(engine, engine.jit(run)(split.params, split.variables, *arguments))
            finally:
                self._arrays_then_restored()

    @functools.cached_property
    def _compiled_replay(self) -> Any:
        engine = self.engine

        def run(params: Any, variables: Any, state: Any, transition: Transition) -> Any:
            return mp.replay(engine.merge(self._definition, params, variables), state, transition)

        return engine.jit(run)

    def _replay(self) -> tuple[Any, dict[str, np.ndarray]]:
        rollout = self.rollout
        with self.at() as engine:
            split = engine.split(self.network)
            state = self._put(tree_map(lambda x: x[0], rollout.starts))
            out = self._compiled_replay(split.params, split.variables, state, self._put(rollout.transition))
            after = self._arrays_then_restored()
            return to_host(engine, out), after

    @functools.cached_property
    def minibatches(self) -> Minibatches:
        """Every minibatch of two epochs, replayed from the stored carries before any update."""
        assert self.specimen.ppo is not None
        engine, config, length = self.engine, self.specimen.ppo, self.specimen.sequence_length
        xp, rollout = engine.xp, self.rollout

        def run(params: Any, variables: Any, transition: Transition, starts: Any, places: Any, key: Any) -> Any:
            network = engine.merge(self._definition, params, variables)
            sequences = make_sequences(xp, transition, starts, places, places, length, self.env.may_skip)
            rows = minibatch_indices(engine.random, xp, key, sequences.valid.shape[1], config)

            def body(carry: Any, index: Any) -> tuple[Any, Any]:
                taken = take_sequences(xp, sequences, index)
                out = network.unroll(taken.network_state, taken.obs, taken.done, taken.rollout_extras)
                return carry, (out.output.loglikelihoods, taken.loglikelihoods, taken.valid, taken.returns)

            return engine.scan(body, engine.zeros(()), rows, rows.shape[0])[1]

        t, env = np.meshgrid(np.arange(NUM_STEPS), np.arange(NUM_ENVS), indexing="ij")
        with self.at():
            split = engine.split(self.network)
            arguments = [self._put(tree) for tree in (rollout.transition, rollout.starts, {"t": t, "env": env})]
            key = engine.random.wrap_key(host.key(42))
            found = to_host(engine, engine.jit(run)(split.params, split.variables, *arguments, key))
        new, old, valid, places = found
        return Minibatches(new, old, valid, places["t"], places["env"])

    @functools.cached_property
    def advantages(self) -> tuple[Any, Any]:
        """Advantages and returns, keyed like the values."""
        rollout = self.rollout
        config = mp.PPOConfig(discounting_factor=DISCOUNT, gae_lambda=GAE_LAMBDA, normalize_advantages=False)

        def run(transition: Transition, v_last: Any) -> Any:
            values = transition.network_output.value_estimates
            return estimate_targets(self.engine.xp, config, transition, values, v_last)

        with self.at() as engine:
            return to_host(engine, engine.jit(run)(self._put(rollout.transition), self._put(rollout.v_last)))

    def _change_weights(self) -> None:
        leaves = self.engine.leaves(self.network)
        changed = {name: value * 1.1 if leaves[name].trained else value for name, value in self.arrays.items()}
        mp.load_portable(self.network, changed)

    def _arrays_then_restored(self) -> dict[str, np.ndarray]:
        after = mp.to_portable(self.network)
        mp.load_portable(self.network, self.arrays)
        return after

    def _put(self, tree: Any) -> Any:
        return to_engine(self.engine, tree, self.precision)
