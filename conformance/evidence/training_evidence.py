"""Training of one network on one engine: iterations at learning rate 0, then one that learns."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np

import multippo as mp
from multippo.algorithms.schedules import coefficients_at
from multippo.algorithms.trainer import RunState, Trainer
from multippo.random import host

from .gradients import moments_by_name
from .network_evidence import NetworkEvidence

_RESTING = 3


class Trained(NamedTuple):
    """Records of iterations at learning rate 0, then of one that learns.

    Attributes:
        resting_reports: Metrics of the iterations at learning rate 0.
        resting_arrays: Parameters and statistics before and after each iteration at learning rate 0.
        moments: Adam's first moments after the first: a weighted sum of its minibatches' clipped gradients.
        report: Metrics of the iteration that learns.
        arrays: Parameters and statistics after the iteration that learns.
    """

    resting_reports: list[dict[str, Any]]
    resting_arrays: list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]
    moments: dict[str, np.ndarray]
    report: dict[str, Any]
    arrays: dict[str, np.ndarray]


class TrainingEvidence(NetworkEvidence):
    """Evidence of training one specimen on one engine at one precision, once.

    Three iterations at learning rate 0 come first, so every ratio must stay 1 while statistics move; then one iteration
    that learns. All four run the same compiled update, which takes the learning rate as an argument.

    Args:
        specimen: A network with a ``ppo`` configuration.
        backend: The engine.
        precision: "float32" or "float64".
    """

    @functools.cached_property
    def logged(self) -> list[dict[str, float]]:
        """Rows that ``train_ppo`` logs of the same number of iterations at learning rate 0."""
        assert self.specimen.ppo is not None
        steps = _RESTING * self.specimen.ppo.steps_per_iteration
        ppo = dataclasses.replace(self.specimen.ppo, learning_rate=0.0, total_steps=steps)
        rows: list[dict[str, float]] = []
        with self.at():
            fresh = NetworkEvidence(self.specimen, self.backend, self.precision)
            mp.train_ppo(fresh.env, fresh.module, mp.TrainConfig(ppo=ppo), log_fn=rows.append)
        return rows

    @functools.cached_property
    def run(self) -> Trained:
        """Records of one trainer."""
        config = self.specimen.ppo
        assert config is not None
        with self.at() as engine:
            env, network = self.env, self.module
            trainer = Trainer(network, env, config, self.specimen.sequence_length, "off")
            env_state = env.reset(host.key(50))
            carry = network.initialize_state(env.num_envs)
            episodes = trainer.initial_episodes(env_state.reward)
            state = RunState(trainer.initial_learner(), carry, env_state, episodes)
            keys = host.split(host.key(51), _RESTING + 1)
            before, reports, arrays, moments = mp.to_portable(network), [], [], {}
            for number in range(_RESTING + 1):
                coefficients = coefficients_at(config, number)
                if number < _RESTING:
                    coefficients = coefficients._replace(learning_rate=0.0)
                state, (report,), _ = trainer.run(state, keys[number : number + 1], [coefficients])
                learner = state.learner
                if learner.learning_rate is not None:
                    report["learning_rate/change"] = engine.to_numpy(learner.learning_rate) - report["learning_rate"]
                engine.update_module(network, learner.params, learner.variables)
                after = mp.to_portable(network)
                if number == 0:
                    moments = moments_by_name(network, trainer.learner.optimizer, learner.optimizer_state)
                # Episodes are checked step by step, as rewards and ends of rollouts.
                reports.append({name: float(x) for name, x in report.items() if not name.startswith("episodes/")})
                arrays.append((before, after))
                before = after
        return Trained(reports[:-1], arrays[:-1], moments, reports[-1], before)
