"""PPO by hand in plain torch, eager, without recurrent layers; see ``limit_jax``."""

# pyright: basic

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional

from multippo.bench.limit_environment import host_env, seconds
from multippo.bench.recorder import Recorder
from multippo.bench.works import NUM_EPOCHS, NUM_MINIBATCHES, Work

GAMMA, LAMBDA, CLIP, VALUE_WEIGHT, RATE, NORM, MIN_STD = 0.99, 0.95, 0.2, 0.5, 3e-4, 0.5, 0.1


class _Ppo:
    """Actor, critic, optimiser and statistics of observations."""

    def __init__(self, work: Work, features: int, num_actions: int, discrete: bool, device: Any) -> None:
        self.work, self.discrete, self.device = work, discrete, device
        self.actor = self._layers(features, num_actions if discrete else 2 * num_actions)
        self.critic = self._layers(features, 1)
        self.params = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimizer = torch.optim.Adam(self.params, RATE, eps=1e-5, fused=True)
        self.count, self.mean = 1.0, torch.zeros(features, device=device)
        self.squares, self.scale = torch.ones(features, device=device), torch.ones(features, device=device)

    def _layers(self, features: int, outputs: int) -> nn.Sequential:
        hidden = [
            layer
            for size, following in itertools.pairwise([features, *self.work.hidden])
            for layer in (nn.Linear(size, following), nn.Tanh())
        ]
        return nn.Sequential(*hidden, nn.Linear(self.work.hidden[-1], outputs)).to(self.device)

    def normalised(self, obs: Any) -> Any:
        return (obs - self.mean) * self.scale

    def act(self, obs: Any) -> tuple[Any, Any, Any]:
        """Actions (before tanh), their log-likelihoods and the values of one step."""
        x = self.normalised(obs)
        parameters = self.actor(x)
        if self.discrete:
            action = (parameters - torch.empty_like(parameters).exponential_().log()).argmax(-1)
        else:
            mean, raw = parameters.chunk(2, -1)
            action = mean + (functional.softplus(raw) + MIN_STD) * torch.randn_like(mean)
        return action, self._log_likelihood(parameters, action), self.critic(x)[:, 0]

    def _log_likelihood(self, parameters: Any, action: Any) -> Any:
        if self.discrete:
            return functional.log_softmax(parameters, -1).gather(-1, action[..., None])[..., 0]
        mean, raw = parameters.chunk(2, -1)
        std = functional.softplus(raw) + MIN_STD
        squash = 2.0 * (math.log(2.0) - action - functional.softplus(-2.0 * action))
        return (-0.5 * ((action - mean) / std) ** 2 - std.log() - 0.5 * math.log(2 * math.pi) - squash).sum(-1)

    def _loss(self, x: Any, action: Any, old: Any, advantage: Any, target: Any) -> Any:
        ratio = (self._log_likelihood(self.actor(x), action) - old).exp()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        objective = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
        return -objective.mean() + VALUE_WEIGHT * functional.mse_loss(self.critic(x)[:, 0], target)

    def _minibatches(self, rows: Any) -> Any:
        for _ in range(NUM_EPOCHS):
            for chosen in torch.randperm(self.work.steps, device=self.device).chunk(NUM_MINIBATCHES):
                yield [leaf[chosen] for leaf in rows]

    def update(self, rows: Any) -> None:
        """Takes all gradient steps."""
        for batch in self._minibatches(rows):
            self.optimizer.zero_grad()
            self._loss(*batch).backward()
            nn.utils.clip_grad_norm_(self.params, NORM, foreach=True)
            self.optimizer.step()

    @torch.no_grad()
    def replay(self, rows: Any) -> None:
        """The loss of every minibatch, without gradients."""
        for batch in self._minibatches(rows):
            self._loss(*batch)

    @torch.no_grad()
    def rows(self, steps: Any, last_obs: Any) -> Any:
        """Observations, actions, likelihoods, advantages and targets, ``[T * B, ...]``."""
        obs, action, likelihood, value, reward, done, cut = steps
        advantage = advantages(value, reward, done, cut, self.critic(self.normalised(last_obs))[:, 0])
        return [leaf.flatten(0, 1) for leaf in (self.normalised(obs), action, likelihood, advantage, advantage + value)]

    def count_in(self, obs: Any) -> None:
        """Adds a rollout's observations to the statistics."""
        rows = obs.flatten(0, 1)
        total, difference = self.count + len(rows), rows.mean(0) - self.mean
        self.squares += ((rows - rows.mean(0)) ** 2).sum(0) + difference**2 * self.count * len(rows) / total
        self.count, self.mean = total, self.mean + difference * len(rows) / total
        self.scale = (self.squares / total + 1e-6).rsqrt()


def advantages(value: Any, reward: Any, done: Any, cut: Any, last_value: Any) -> Any:
    """Generalised advantage estimates ``[T, B]``; none of a step that was cut, as its final observation is not kept."""
    found, later, following = torch.empty_like(value), 0.0, last_value
    for t in reversed(range(len(value))):
        delta = (reward[t] + GAMMA * following * (1 - done[t]) - value[t]) * (1 - cut[t])
        later = delta + GAMMA * LAMBDA * (1 - done[t]) * (1 - cut[t]) * later
        found[t], following = later, value[t]
    return found


def run(work: Work, recorder: Recorder) -> None:
    """Trains.

    Raises:
        ValueError: If the work has a recurrent layer.
    """
    if work.lstm:
        raise ValueError(f"limit-torch has no recurrent layer, and {work.name} asks for one.")
    env, native = host_env(work), work.env == "pendulum"
    discrete = isinstance(env.single_action_space, spaces.Discrete)
    num_actions = int(env.single_action_space.n) if discrete else env.single_action_space.shape[0]
    device = env.device if native else "cpu"
    ppo = _Ppo(work, env.single_observation_space.shape[0], num_actions, discrete, device)
    step, obs, steps = recorder.timed(env.step), torch.as_tensor(env.reset(seed=0)[0], dtype=torch.float32), 0
    buffers: Any = None
    while True:
        with torch.no_grad():
            for t in range(work.rollout_length):
                action, likelihood, value = ppo.act(obs)
                given = action if discrete else action.tanh()
                following, *end = step(given if native else given.numpy())
                taken = [
                    obs,
                    action,
                    likelihood,
                    value,
                    *(torch.as_tensor(leaf, dtype=torch.float32) for leaf in end[:3]),
                ]
                if buffers is None:
                    buffers = [leaf.new_zeros((work.rollout_length, *leaf.shape)) for leaf in taken]
                for buffer, leaf in zip(buffers, taken, strict=True):
                    buffer[t] = leaf
                obs = torch.as_tensor(following, dtype=torch.float32)
        rows = ppo.rows(buffers, obs)
        if not steps:
            replay, update = seconds(lambda rows=rows: ppo.replay(rows)), seconds(lambda rows=rows: ppo.update(rows))
            recorder.pieces = {"replay": replay, "update": max(update - replay, 0.0)}
        ppo.update(rows)
        ppo.count_in(buffers[0])
        steps += work.steps
        recorder.iteration(steps)
