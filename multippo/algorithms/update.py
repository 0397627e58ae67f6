"""Updates on rollouts: advantages, epochs of minibatches, then statistics."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from multippo.algorithms.advantages import estimate_targets, linear_recurrence, mean_over
from multippo.algorithms.config import PPOConfig
from multippo.algorithms.distillation.teacher import Teacher, distillation_loss
from multippo.algorithms.losses import ppo_loss
from multippo.algorithms.minibatches import cut_rollout, make_sequences, minibatch_indices, replay, take_sequences
from multippo.algorithms.reports import LIKELIHOOD, NEXT_VALUE, VALUE
from multippo.algorithms.schedules import Coefficients, adapt_learning_rate, compiled_in
from multippo.algorithms.types import EpisodeState, Sequences, Transition
from multippo.backends.api import OptimizerConfig
from multippo.envs.nonfinite import guarded_leaves
from multippo.programmes import Programmes
from multippo.trees import named_leaves, tree_leaves, tree_map, tree_sum


class LearnerState(NamedTuple):
    """Arrays that an update changes.

    Attributes:
        params: The trained arrays.
        variables: The tracked arrays.
        optimizer_state: State of the engine's optimiser.
        learning_rate: Learning rate of the next iteration, a scalar array, under ``lr_schedule="adaptive_kl"``; else
            None.
    """

    params: Any
    variables: Any
    optimizer_state: Any
    learning_rate: Any = None


class Learner:
    """Updates one network on rollouts of one shape.

    Args:
        engine: The network's engine.
        definition: The network's structure, from ``engine.split``.
        config: Coefficients and sizes.
        sequence_length: L.
        may_skip: True if entries may be invalid.
        mode: ``TrainConfig.compile``.
        statistics_apart: True to leave the statistics to the caller.
        teacher: The teacher of a distillation, whose loss takes the place of PPO's; None for PPO.
        programmes: Programmes shared with learners that are alike in all the above.
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
        teacher: Teacher | None = None,
        programmes: Programmes | None = None,
    ) -> None:
        self.engine, self.definition, self.config = engine, definition, compiled_in(config)
        self.sequence_length, self.may_skip = sequence_length, may_skip
        self._statistics_apart, self._teacher = statistics_apart, teacher
        self._replayed = definition if teacher is None else teacher.replayed
        beta1, beta2 = config.adam_betas
        self.optimizer = engine.optimizer(
            OptimizerConfig(config.adam_epsilon, config.weight_decay, config.gradient_clipping, beta1, beta2)
        )
        kernel = functools.partial(engine.kernel, mode=mode)
        compiled = (programmes or Programmes()).compiled
        self._loss: Callable[..., Any] = engine.value_and_grad(compiled(self, Learner._evaluate, kernel=kernel))
        self._values = compiled(self, Learner._value, kernel=kernel)
        self._prepared, self._summed_up = (engine.recorded(part, mode) for part in (self._prepare, self._sum_up))
        # A recording leaves out what is computed a second time.
        self._step = engine.recorded(self._take_step, "off" if config.remat_steps else mode)

    def _value(
        self, params: Any, variables: Any, transition: Transition, starts: Any, network_state: Any, obs: Any
    ) -> tuple[Any, Any]:
        """Values ``[T, B]`` of a rollout's observations under the current weights, and ``[B]`` after its last step.

        The carry is replayed from before the rollout; the last observation is valued under the stored carry, as every
        training sequence starts from a stored one.
        """
        network = self.engine.merge(self.definition, params, variables)
        values = replay(network, tree_map(lambda x: x[0], starts), transition).value_estimates
        v_last = network(network_state, obs).output.value_estimates
        return self.engine.stop_gradient((values, v_last))

    def _evaluate(self, params: Any, variables: Any, sequences: Sequences, entropy_weight: Any) -> tuple[Any, Any]:
        network = self.engine.merge(self._replayed, params, variables)
        if self._teacher is None:
            loss, out = ppo_loss(network, sequences, self.config, entropy_weight)
        else:
            loss, out = distillation_loss(network, sequences, self._teacher.loss, self.config.remat_steps)
        # Inside what is compiled: else a compiled backward pass runs through the metrics too, with gradients of zero,
        # and zero times the derivative of a maximum that was computed again a little differently is NaN.
        return loss, self.engine.stop_gradient(out)

    def update(
        self,
        state: LearnerState,
        transition: Transition,
        starts: Any,
        v_last: Any,
        key: Any,
        coefficients: Coefficients,
        last: tuple[Any, Any] | None = None,
        halted: Any = None,
    ) -> tuple[LearnerState, dict[str, Any]]:
        """Updates parameters and statistics on one rollout.

        Args:
            state: State before the update.
            transition: The rollout, ``[T, B, ...]``, with rewards in the network's floating-point type.
            starts: Carries ``[T / L, B, ...]`` before every L-th step.
            v_last: Value ``[B]`` of the observation after the last step (a tree, like the rewards).
            key: Key of the minibatches' order.
            coefficients: Values of the schedules, scalar arrays.
            last: Carry and observation after the last step, for ``PPOConfig.recompute_advantages``.
            halted: True, as an array, if the run has stopped already; None for False.

        Returns:
            The new state and metrics; the state is the old one if the run has stopped, or must stop for a value that is
            not finite, in the rollout, a loss or a gradient.
        """
        xp, config = self.engine.xp, self.config
        rate = coefficients.learning_rate
        if state.learning_rate is not None:
            rate = state.learning_rate * coefficients.learning_rate
        sequences, index, poisoned, nowhere, critic = self._prepared(
            state.params, state.variables, transition, starts, v_last, key
        )
        # Looked for only where there are any, since that takes longer.
        bad = self.engine.cond(poisoned, lambda: self._places(transition, v_last), lambda: nowhere)

        def of_epoch(params: Any) -> Sequences:
            if not config.recompute_advantages:
                return sequences
            assert last is not None
            values, after = self._values(params, state.variables, transition, starts, *last)
            targets = estimate_targets(xp, config, transition, values, after)
            advantages, returns = cut_rollout(xp, targets, transition.valid, self.sequence_length, self.may_skip)
            return sequences._replace(advantages=advantages, returns=returns)

        if halted is not None:
            poisoned = poisoned | halted
        kept = self.optimizer.keep(state.params, state.optimizer_state)
        coefficients = coefficients._replace(learning_rate=rate)
        params, optimizer_state, metrics, kl = self._descend(state, of_epoch, index, coefficients, poisoned)
        failed = poisoned | (metrics["nonfinite/loss"] >= 0) | (metrics["nonfinite/gradient"] >= 0)
        params, optimizer_state = self.optimizer.restore(kept, params, optimizer_state, failed)
        next_rate = state.learning_rate
        if next_rate is not None:
            # A warm-up holds the rate down, so the policy's small moves are no reason to raise it.
            stays = failed | (rate < next_rate)
            next_rate = xp.where(stays, next_rate, adapt_learning_rate(xp, config, next_rate, kl))
        metrics = {**metrics, **bad, **critic, "nonfinite/any": failed, "learning_rate": rate}
        if config.entropy_weight is not None:
            metrics["entropy/weight"] = coefficients.entropy_weight
        new = LearnerState(params, state.variables, optimizer_state, next_rate)
        return new if self._statistics_apart else self.with_statistics(new, transition, failed), metrics

    def with_statistics(self, state: LearnerState, transition: Transition, failed: Any) -> LearnerState:
        """State with statistics moved by a rollout, or left as they are where ``failed`` holds."""
        valid, extras = transition.valid if self.may_skip else None, transition.rollout_extras
        variables = self.engine.update_statistics(self.definition, state.params, state.variables, extras, valid, failed)
        return state._replace(variables=variables)

    def _prepare(
        self, params: Any, variables: Any, transition: Transition, starts: Any, v_last: Any, key: Any
    ) -> tuple[Sequences, Any, Any, dict[str, Any], dict[str, Any]]:
        """Training sequences, those of each minibatch, and metrics of the critic.

        Between them come a flag of a value that is not finite, and the result of ``_places`` if there is none.
        """
        xp, config = self.engine.xp, self.config
        advantages, returns, critic = None, None, {}
        if self._teacher is None:
            values = transition.network_output.value_estimates
            advantages, returns = estimate_targets(xp, config, transition, values, v_last)
            for (name, target), value in zip(named_leaves(returns), tree_leaves(values), strict=True):
                share = explained_variance(xp, value, target, mean_over(xp, transition.counted, value.dtype))
                critic[f"value/explained_variance{f'/{name}' if name else ''}"] = share
        sequences = make_sequences(xp, transition, starts, advantages, returns, self.sequence_length, self.may_skip)
        if self.engine.draws_ahead or config.entropy_weight:
            network = self.engine.merge(self.definition, params, variables)
            drawn = network.draw_ahead(
                sequences.network_state,
                transition.rollout_extras,
                self.sequence_length,
                replay=not config.entropy_weight,
            )
            sequences = sequences._replace(network_state=drawn)
        flags = [*self._not_finite(transition, v_last), *self._broken(transition)]
        wrong = functools.reduce(operator.or_, [wrong for _, wrong in flags])
        nowhere = dict.fromkeys((name for name, _ in flags), first_true(xp, xp.zeros_like(wrong[:1])))
        index = minibatch_indices(self.engine.random, xp, key, sequences.valid.shape[1], config)
        return sequences, index, xp.any(wrong), nowhere, critic

    def _descend(
        self,
        state: LearnerState,
        of_epoch: Callable[[Any], Sequences],
        index: Any,
        coefficients: Coefficients,
        poisoned: Any,
    ) -> tuple[Any, Any, dict[str, Any], Any]:
        """Runs all epochs; returns parameters, optimiser, metrics and the mean KL divergence."""
        engine, xp, config = self.engine, self.engine.xp, self.config

        def epoch(carry: tuple[Any, Any, Any], rows: Any) -> tuple[tuple[Any, Any, Any], Any]:
            sequences = of_epoch(carry[0])

            def minibatch(carry: tuple[Any, Any, Any], rows: Any) -> tuple[tuple[Any, Any, Any], Any]:
                carry, report, grads = self._step(*carry, state.variables, sequences, rows, coefficients)
                none, is_wrong = report["wrong_leaf"], report.pop("wrong_norm")
                # Searched only where the norm is not finite, since looking at every leaf takes time.
                found = engine.cond(is_wrong, lambda: self._wrong_leaf(grads, none), lambda: none)
                return carry, {**report, "wrong_leaf": found}

            return engine.scan(minibatch, carry, rows, config.num_minibatches)

        rows = xp.reshape(index, (config.num_epochs, config.num_minibatches, index.shape[1]))
        (params, optimizer_state, _), report = engine.scan(
            epoch, (state.params, state.optimizer_state, poisoned), rows, config.num_epochs
        )
        return params, optimizer_state, *self._summed_up(report)

    def _sum_up(self, report: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """Metrics of an update, and its mean KL divergence, from the reports of its minibatches."""
        xp, config = self.engine.xp, self.config
        report = tree_map(lambda x: xp.reshape(x, (config.num_epochs * config.num_minibatches,)), report)
        used, exceeds, kls = report["used"], report["exceeds"], report["kl"]
        mean = mean_over(xp, used, report["metrics"]["losses/total"].dtype)
        metrics = {name: mean(value) for name, value in report["metrics"].items()}
        if report["deviation"] is not None:
            metrics["ratio/first_max_dev"] = report["deviation"][0]
            metrics["ratio/last_max_dev"] = report["deviation"][-1]
        metrics["update/minibatches"] = xp.sum(xp.astype(used, metrics["gradient/norm"].dtype))
        if config.target_kl is not None:
            # 0 for none, since one is above target_kl: a NaN in here would be taken for a fault by jax_debug_nans.
            metrics["kl/stop"] = xp.sum(xp.where(exceeds, kls, xp.zeros_like(kls)))
        metrics["nonfinite/loss"] = first_true(xp, report["wrong_loss"])
        metrics["nonfinite/gradient"] = xp.max(report["wrong_leaf"])
        return metrics, None if kls is None else mean_over(xp, used | exceeds, kls.dtype)(kls)

    def _take_step(
        self,
        params: Any,
        optimizer_state: Any,
        stop: Any,
        variables: Any,
        sequences: Sequences,
        rows: Any,
        coefficients: Coefficients,
    ) -> tuple[tuple[Any, Any, Any], dict[str, Any], Any]:
        """One step on a minibatch, or none after a stop; returns what it changes, a report and the gradient."""
        xp, config = self.engine.xp, self.config
        taken = take_sequences(xp, sequences, rows)
        (loss, out), grads = self._loss(params, variables, taken, coefficients.entropy_weight)
        still, empty = stop, ~xp.any(taken.valid)
        # Values after a stop change nothing.
        wrong_loss = ~xp.isfinite(loss) & ~stop
        stop, exceeds = stop | wrong_loss, xp.zeros_like(wrong_loss)
        if config.target_kl is not None:
            exceeds = ~stop & (out.approximate_kl > config.target_kl)
            stop, still = stop | exceeds, still | exceeds
        # Without a sample there is no gradient, but there would be momentum and weight decay.
        idle, rate = stop | empty, coefficients.learning_rate
        params, optimizer_state, norm = self.optimizer.step(params, grads, optimizer_state, rate, idle)
        report = {
            "metrics": {**out.metrics, "gradient/norm": norm},
            "used": ~idle,
            "exceeds": exceeds,
            "deviation": out.max_ratio_deviation,
            "kl": out.approximate_kl,
            "wrong_loss": wrong_loss,
            "wrong_norm": ~xp.isfinite(norm) & ~still,
            "wrong_leaf": first_true(xp, xp.stack([xp.zeros_like(stop)])),
        }
        return (params, optimizer_state, stop | ~xp.isfinite(norm)), report, grads

    def _wrong_leaf(self, grads: Any, none: Any) -> Any:
        """Position, in the engine's order of parameters, of the first gradient that is not finite; or ``none``."""
        xp = self.engine.xp
        wrong = [~xp.all(xp.isfinite(leaf)) for _, leaf in self.engine.named_params(grads)]
        return first_true(xp, xp.stack(wrong)) if wrong else none  # a network frozen as a whole has no gradient

    def _places(self, transition: Transition, v_last: Any) -> dict[str, Any]:
        """First row of ``[T * B]`` that stops the run, or -1, by name of each leaf of a rollout."""
        places: dict[str, Any] = {}
        for name, wrong in [*self._not_finite(transition, v_last), *self._broken(transition)]:
            place = first_true(self.engine.xp, wrong)
            places[name] = self.engine.xp.maximum(places[name], place) if name in places else place
        return places

    def _not_finite(self, transition: Transition, v_last: Any) -> list[tuple[str, Any]]:
        """Flags ``[T * B]`` of values that are not finite, by name of each leaf of a rollout.

        Final observations, and the one after the last step, are not stored; their values stand for them.
        """
        xp, output, found = self.engine.xp, transition.network_output, list[tuple[str, Any]]()
        trees = {"observation": transition.obs, "reward": transition.rewards}
        if self._teacher is None:  # a student's values and likelihoods are in no loss
            trees |= {VALUE: output.value_estimates, LIKELIHOOD: output.loglikelihoods}
        for kind, tree in trees.items():
            for name, leaf in named_leaves(tree):
                if not xp.isdtype(leaf.dtype, "real floating"):
                    continue
                wrong = ~xp.isfinite(xp.reshape(leaf, (leaf.shape[0] * leaf.shape[1], -1)))
                wrong = xp.any(wrong, axis=1) & xp.reshape(transition.valid, (-1,))
                found.append((f"nonfinite/{kind}{f' {name!r}' if name else ''}", wrong))
        goes_on = transition.valid[-1] & ~transition.done[-1]
        wrong_last = goes_on & functools.reduce(operator.or_, [~xp.isfinite(v) for v in tree_leaves(v_last)])
        wrong = functools.reduce(operator.or_, [~xp.isfinite(v) for v in tree_leaves(transition.bootstrap_values)])
        wrong = xp.concat([wrong[:-1], (wrong[-1] | wrong_last)[None]], axis=0)
        return [*found, (f"nonfinite/{NEXT_VALUE}", xp.reshape(wrong, (-1,)))]

    def _broken(self, transition: Transition) -> list[tuple[str, Any]]:
        """Flags ``[T * B]`` of broken steps that the run must stop at, by name of each leaf.

        Broken steps of a few environments are accidents; if every environment has one, the fault is the task's.
        """
        xp, codes = self.engine.xp, transition.broken
        if codes is None:
            return []
        # Starts that were replaced have cost nothing.
        codes = xp.abs(codes) if self.config.nonfinite == "stop" else codes
        wrong = codes > 0
        stop = xp.any(wrong) if self.config.nonfinite == "stop" else xp.all(xp.any(wrong, axis=0))
        names = guarded_leaves(transition.obs, transition.rewards)
        return [
            (f"nonfinite/{name}", xp.reshape(stop & (codes == position + 1), (-1,)))
            for position, name in enumerate(names)
        ]


def explained_variance(xp: Any, values: Any, targets: Any, mean: Callable[[Any], Any]) -> Any:
    """``1 - Var[G - V] / Var[G]`` of value estimates V and their targets G; 0 where all targets are equal."""

    def variance(x: Any) -> Any:
        return mean((x - mean(x)) ** 2)

    spread = variance(targets)
    # A NaN in here would be taken for a fault by jax_debug_nans.
    divisor = xp.where(spread > 0, spread, xp.ones_like(spread))
    return xp.where(spread > 0, 1.0 - variance(targets - values) / divisor, xp.zeros_like(spread))


def fold_episodes(xp: Any, episodes: EpisodeState, transition: Transition) -> tuple[EpisodeState, dict[str, Any]]:
    """Sums of the episodes under way after a rollout, and at their last steps returns and lengths, 0 elsewhere."""
    dtype = episodes.reward.dtype
    valid = transition.counted
    leaves = [
        xp.where(valid, xp.astype(r, dtype), xp.zeros_like(episodes.reward)) for r in tree_leaves(transition.rewards)
    ]
    # Return and length side by side, ``[T, 2, B]``: each is a sum over an episode.
    sums = xp.stack([tree_sum(leaves), xp.astype(valid, dtype)], axis=1)
    sums = xp.concat([(sums[0] + xp.stack([episodes.reward, episodes.length]))[None], sums[1:]], axis=0)
    # A step adds to the sum of the step before, unless that one ended its episode.
    going = xp.astype(~transition.done, dtype)
    decay = xp.concat([xp.ones_like(going[:1]), going[:-1]], axis=0)
    sums = linear_recurrence(xp, decay[:, None], sums)
    reward, length = sums[:, 0], sums[:, 1]
    ended = xp.astype(transition.done & valid, dtype)
    return EpisodeState(reward[-1] * going[-1], length[-1] * going[-1]), {
        "reward": ended * reward,
        "length": ended * length,
    }


def first_true(xp: Any, flags: Any) -> Any:
    """Position of the first True of ``[N]``, or -1."""
    place = xp.argmax(xp.astype(flags, xp.int32), axis=0)
    return xp.where(xp.any(flags), place, -xp.ones_like(place))
