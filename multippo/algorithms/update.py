"""One update: advantages, epochs of minibatches, then statistics."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import optree

from multippo.algorithms.advantages import generalized_advantages, linear_recurrence
from multippo.algorithms.config import PPOConfig
from multippo.algorithms.losses import ppo_loss
from multippo.algorithms.minibatches import make_sequences, minibatch_indices, take_sequences
from multippo.algorithms.types import EpisodeState, Sequences, Transition
from multippo.backends.api import OptimizerConfig
from multippo.networks.utils import named_leaves, tree_leaves

__all__ = ["Learner", "LearnerState", "fold_episodes", "optimizer_config"]


class LearnerState(NamedTuple):
    """What an update changes."""

    params: Any
    variables: Any
    optimizer_state: Any


def optimizer_config(config: PPOConfig) -> OptimizerConfig:
    """The part of the configuration that the optimiser needs."""
    return OptimizerConfig(
        adam_epsilon=config.adam_epsilon,
        weight_decay=config.weight_decay,
        gradient_clipping=config.gradient_clipping,
    )


class Learner:
    """Updates one network on rollouts of one shape.

    Args:
        engine: The network's engine.
        definition: From ``engine.split``.
        config: Coefficients and sizes.
        sequence_length: L.
        may_skip: Whether entries may be invalid.
        mode: ``TrainConfig.compile``.
        statistics_apart: Leave the statistics to the caller.
    """

    def __init__(
        self,
        engine: Any,
        definition: Any,
        config: PPOConfig,
        sequence_length: int,
        *,
        may_skip: bool,
        mode: str = "off",
        statistics_apart: bool = False,
    ) -> None:
        self.engine, self.definition, self.config = engine, definition, config
        self.sequence_length, self.may_skip = sequence_length, may_skip
        self._statistics_apart = statistics_apart
        self.optimizer = engine.optimizer(optimizer_config(config))
        self._loss: Callable[..., Any] = engine.value_and_grad(engine.kernel(self._evaluate, mode))

    def _evaluate(self, params: Any, variables: Any, sequences: Sequences) -> tuple[Any, Any]:
        loss, out = ppo_loss(self.engine.merge(self.definition, params, variables), sequences, self.config)
        # Inside what is compiled: else a compiled backward pass runs through the metrics too, with gradients of zero,
        # and zero times the derivative of a maximum that was computed again a little differently is NaN.
        return loss, self.engine.stop_gradient(out)

    def update(
        self, state: LearnerState, transition: Transition, starts: Any, v_last: Any, key: Any, learning_rate: Any
    ) -> tuple[LearnerState, dict[str, Any]]:
        """One update from one rollout.

        Args:
            state: What is updated.
            transition: The rollout, ``[T, B, ...]``, with rewards in the network's floating-point type.
            starts: Carries before every L-th step.
            v_last: Value ``[B]`` of the observation after the last step (a tree, like the rewards).
            key: For the minibatches' order.
            learning_rate: Scalar array.

        Returns:
            The new state, unchanged if anything was not finite in the rollout, a loss or a gradient; and metrics.
        """
        xp = self.engine.xp
        advantages, returns = self._advantages(transition, v_last)
        sequences = make_sequences(xp, transition, starts, advantages, returns, self.sequence_length, self.may_skip)
        if self.engine.draws_ahead:
            network = self.engine.merge(self.definition, state.params, state.variables)
            drawn = network.draw_ahead(
                sequences.network_state, transition.rollout_extras, self.sequence_length, replay=True
            )
            sequences = sequences._replace(network_state=drawn)
        bad = self._not_finite(transition, v_last)
        poisoned = functools.reduce(operator.or_, [index >= 0 for index in bad.values()])
        index = minibatch_indices(self.engine.random, xp, key, sequences.valid.shape[1], self.config)
        kept = self.optimizer.keep(state.params, state.optimizer_state)
        params, optimizer_state, metrics = self._descend(state, sequences, index, learning_rate, poisoned)
        failed = poisoned | (metrics["nonfinite/loss"] >= 0) | (metrics["nonfinite/gradient"] >= 0)
        params, optimizer_state = self.optimizer.restore(kept, params, optimizer_state, failed)
        variables = state.variables
        if not self._statistics_apart:
            valid = transition.valid if self.may_skip else None
            variables = self.engine.update_statistics(
                self.definition, params, variables, transition.rollout_extras, valid, failed
            )
        return LearnerState(params, variables, optimizer_state), {**metrics, **bad, "nonfinite/any": failed}

    def _advantages(self, transition: Transition, v_last: Any) -> tuple[Any, Any]:
        values, treedef = optree.tree_flatten(transition.network_output.value_estimates)
        pairs = [
            generalized_advantages(
                self.engine.xp,
                r_t=reward,
                v_t=value,
                v_last=last,
                v_bootstrap_t=bootstrap,
                terminated_t=transition.terminated,
                truncated_t=transition.truncated,
                valid_t=transition.valid,
                discount=self.config.discounting_factor,
                gae_lambda=self.config.gae_lambda,
            )
            for reward, value, last, bootstrap in zip(
                tree_leaves(transition.rewards),
                values,
                tree_leaves(v_last),
                tree_leaves(transition.bootstrap_values),
                strict=True,
            )
        ]
        advantages, returns = zip(*pairs, strict=True)
        return optree.tree_unflatten(treedef, advantages), optree.tree_unflatten(treedef, returns)

    def _descend(
        self, state: LearnerState, sequences: Sequences, index: Any, learning_rate: Any, poisoned: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        engine, xp, config = self.engine, self.engine.xp, self.config

        def minibatch(carry: tuple[Any, Any, Any], rows: Any) -> tuple[tuple[Any, Any, Any], Any]:
            params, optimizer_state, stop = carry
            taken = take_sequences(xp, sequences, rows)
            (loss, out), grads = self._loss(params, state.variables, taken)
            wrong_loss = ~xp.isfinite(loss)
            stop = stop | wrong_loss
            if config.target_kl is not None:
                stop = stop | (out.approximate_kl > config.target_kl)
            params, optimizer_state, norm = self.optimizer.step(params, grads, optimizer_state, learning_rate, stop)
            report = {
                "metrics": {**out.metrics, "gradient/norm": norm},
                "used": ~stop,
                "deviation": out.max_ratio_deviation,
                "wrong_loss": wrong_loss,
                "wrong_leaf": self._wrong_leaf(grads, norm),
            }
            return (params, optimizer_state, stop | ~xp.isfinite(norm)), report

        (params, optimizer_state, _), report = engine.scan(
            minibatch, (state.params, state.optimizer_state, poisoned), index, index.shape[0]
        )
        used = xp.astype(report["used"], learning_rate.dtype)
        count = xp.maximum(xp.sum(used), xp.ones_like(xp.sum(used)))
        metrics = {
            name: xp.sum(xp.where(report["used"], value, xp.zeros_like(value))) / count
            for name, value in report["metrics"].items()
        }
        metrics["ratio/first_max_dev"] = report["deviation"][0]
        metrics["ratio/last_max_dev"] = report["deviation"][-1]
        metrics["update/minibatches"] = xp.sum(used)
        metrics["nonfinite/loss"] = first_true(xp, report["wrong_loss"])
        metrics["nonfinite/gradient"] = xp.max(report["wrong_leaf"])
        return params, optimizer_state, metrics

    def _wrong_leaf(self, grads: Any, norm: Any) -> Any:
        """Position, in the engine's order of parameters, of the first gradient that is not finite; or -1."""
        xp = self.engine.xp
        none = -xp.ones_like(xp.argmax(xp.stack([norm, norm]), axis=0))

        def search() -> Any:
            leaves = [leaf for _, leaf in self.engine.named_params(grads)]
            return first_true(xp, xp.stack([~xp.all(xp.isfinite(leaf)) for leaf in leaves]))

        # The norm has told already in nearly every case; only a bad one is searched for its leaf.
        return self.engine.cond(~xp.isfinite(norm), search, lambda: none)

    def _not_finite(self, transition: Transition, v_last: Any) -> dict[str, Any]:
        """For each leaf of what the environment gave, the first row of ``[T * B]`` that is not finite, or -1.

        Final observations, and the one after the last step, are not stored; their values tell of them.
        """
        xp, found = self.engine.xp, {}
        for kind, tree in (("observation", transition.obs), ("reward", transition.rewards)):
            for name, leaf in named_leaves(tree):
                if not xp.isdtype(leaf.dtype, "real floating"):
                    continue
                wrong = ~xp.isfinite(xp.reshape(leaf, (leaf.shape[0] * leaf.shape[1], -1)))
                wrong = xp.any(wrong, axis=1) & xp.reshape(transition.valid, (-1,))
                found[f"nonfinite/{kind}{f' {name!r}' if name else ''}"] = first_true(xp, wrong)
        goes_on = transition.valid[-1] & ~transition.done[-1]
        wrong_last = goes_on & functools.reduce(operator.or_, [~xp.isfinite(v) for v in tree_leaves(v_last)])
        wrong = functools.reduce(operator.or_, [~xp.isfinite(v) for v in tree_leaves(transition.bootstrap_values)])
        wrong = xp.concat([wrong[:-1], (wrong[-1] | wrong_last)[None]], axis=0)
        found["nonfinite/value of the next observation"] = first_true(xp, xp.reshape(wrong, (-1,)))
        return found


def fold_episodes(xp: Any, episodes: EpisodeState, transition: Transition) -> tuple[EpisodeState, dict[str, Any]]:
    """Returns and lengths of the episodes that ended in a rollout, and the sums of those under way."""
    dtype = episodes.reward.dtype
    valid = transition.valid
    leaves = [
        xp.where(valid, xp.astype(r, dtype), xp.zeros_like(episodes.reward)) for r in tree_leaves(transition.rewards)
    ]
    reward, length = sum(leaves[1:], leaves[0]), xp.astype(valid, dtype)
    # A step adds to the sum of the step before, unless that one ended its episode.
    going = xp.astype(~transition.done, dtype)
    decay = xp.concat([xp.ones_like(going[:1]), going[:-1]], axis=0)
    reward = linear_recurrence(xp, decay, _plus_first(xp, reward, episodes.reward))
    length = linear_recurrence(xp, decay, _plus_first(xp, length, episodes.length))
    ended = xp.astype(transition.done & valid, dtype)
    sums = {
        "count": xp.sum(ended),
        "reward": xp.sum(ended * reward),
        "length": xp.sum(ended * length),
    }
    return EpisodeState(reward[-1] * going[-1], length[-1] * going[-1]), sums


def _plus_first(xp: Any, x: Any, first: Any) -> Any:
    return xp.concat([(x[0] + first)[None], x[1:]], axis=0)


def first_true(xp: Any, flags: Any) -> Any:
    """Position of the first True of ``[N]``, or -1."""
    place = xp.argmax(xp.astype(flags, xp.int32), axis=0)
    return xp.where(xp.any(flags), place, -xp.ones_like(place))
