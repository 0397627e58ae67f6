"""The hand-written limits' part that is common to both frameworks: rollouts on host environments, in plain NumPy.

A limit is PPO with nothing around it, no report, no check, no checkpoint: normalised observations, actor and critic of
the work's sizes, advantages once an iteration, the clipped objective, Adam with clipped gradients.
"""

# pyright: basic

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium import spaces

from multippo.bench.limit_environment import host_env
from multippo.bench.recorder import Recorder
from multippo.bench.works import Work

GAMMA, LAMBDA, CLIP, VALUE_COEF, RATE, NORM, MIN_STD = 0.99, 0.95, 0.2, 0.5, 3e-4, 0.5, 0.1
BETAS, EPSILON = (0.9, 0.999), 1e-5


class Task(NamedTuple):
    """Sizes of a work's environment."""

    work: Work
    features: int
    actions: int
    discrete: bool


class Steps(NamedTuple):
    """A rollout, ``[T, B, ...]``.

    Actions are those before tanh, whose derivative is left out of the likelihoods, as it drops out of their ratio;
    ``value`` has one row more, for the observation after the last step, and ``start`` is 1 where the carry was reset
    before a step.
    """

    obs: Any
    action: Any
    likelihood: Any
    value: Any
    reward: Any
    done: Any
    cut: Any
    start: Any


class Learner(Protocol):
    """Weights of one framework, and their update."""

    def weights(self) -> tuple[Any, Any]:
        """Heads as of ``initial``, and the observations' mean and scale, as NumPy's arrays."""
        ...

    def update(self, carries: Any, steps: Steps) -> None:
        """Takes all gradient steps on a rollout that began with the given carries of actor and critic."""
        ...


def task_of(work: Work, env: Any) -> Task:
    """Sizes of a host environment."""
    space, discrete = env.single_action_space, isinstance(env.single_action_space, spaces.Discrete)
    return Task(work, env.single_observation_space.shape[0], int(space.n) if discrete else space.shape[0], discrete)


def initial(task: Task) -> dict[str, Any]:
    """Actor and critic: lists of kernels and biases, of the LSTM (input, recurrent, bias) and of dense layers."""
    rng, (units, hidden) = np.random.default_rng(0), (task.work.lstm, task.work.hidden)

    def kernel(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / math.sqrt(shape[0])).astype(np.float32)

    def head(outputs: int) -> dict[str, Any]:
        sizes = [units or task.features, *hidden, outputs]
        layers = [(kernel(*shape), np.zeros(shape[1], np.float32)) for shape in itertools.pairwise(sizes)]
        cell = [kernel(task.features, 4 * units), kernel(units, 4 * units), np.zeros(4 * units, np.float32)]
        return {"cell": cell if units else [], "layers": layers}

    return {"actor": head(task.actions if task.discrete else 2 * task.actions), "critic": head(1)}


class Acting:
    """Acting for a rollout, and its values and likelihoods."""

    def __init__(self, task: Task, weights: tuple[Any, Any], length: int) -> None:
        self.task, (self.heads, (self.mean, self.scale)) = task, weights
        batch = (length, task.work.num_envs)
        self.obs = np.empty((length + 1, *batch[1:], task.features), np.float32)
        self.outputs = np.empty((*batch, len(self.heads["actor"]["layers"][-1][1])), np.float32)
        noise = _RNG.gumbel if task.discrete else _RNG.standard_normal
        self.noise = noise(size=(*batch, task.actions)).astype(np.float32)
        self.action = np.empty(batch if task.discrete else (*batch, task.actions), int if task.discrete else np.float32)
        self.start = np.empty(batch, np.float32)

    def act(self, t: int, obs: Any, start: Any, carry: Any) -> tuple[Any, Any]:
        """Action and carry of one step; the action of a space without bounds, before tanh."""
        x = self.obs[t]
        np.subtract(obs, self.mean, out=x)
        x *= self.scale
        self.start[t] = start
        carry, out = _head(self.heads["actor"], x, start, carry)
        self.outputs[t] = out
        if self.task.discrete:
            action = (out + self.noise[t]).argmax(-1)
        else:
            mean, std = _gaussian(out)
            action = mean + std * self.noise[t]
        self.action[t] = action
        return action, carry

    def likelihoods(self) -> np.ndarray:
        """Log-likelihoods of the rollout's actions."""
        if not self.task.discrete:
            mean, std = _gaussian(self.outputs)
            return (-0.5 * ((self.action - mean) / std) ** 2 - np.log(std)).sum(-1)
        chosen = np.take_along_axis(self.outputs, self.action[..., None], -1)[..., 0]
        return chosen - np.log(np.exp(self.outputs).sum(-1))

    def values(self, obs: Any, start: Any, carry: Any) -> tuple[Any, np.ndarray]:
        """Carry after the rollout, and values of its observations and of the one after it."""
        self.obs[-1] = (obs - self.mean) * self.scale
        critic = self.heads["critic"]
        if not self.task.work.lstm:
            rows = self.obs.reshape(-1, self.task.features)
            return carry, _head(critic, rows, None, carry)[1].reshape(len(self.obs), -1)
        values = []
        for x, begins in zip(self.obs, [*self.start, start], strict=True):
            before = carry
            carry, value = _head(critic, x, begins, carry)
            values.append(value[:, 0])
        return before, np.stack(values)


_RNG = np.random.default_rng(0)


def _head(head: Any, x: Any, start: Any, carry: Any) -> tuple[Any, Any]:
    """Carry and outputs of one step."""
    if head["cell"]:
        kernel, recurrent, bias = head["cell"]
        hidden, memory = (leaf * (1 - start)[:, None] for leaf in carry)
        gates = x @ kernel
        gates += hidden @ recurrent
        gates += bias
        units = memory.shape[1]
        i, f, g, o = (gates[:, k * units : (k + 1) * units] for k in range(4))
        for gate in (gates[:, : 2 * units], o):  # the sigmoid
            gate *= 0.5
        np.tanh(gates, out=gates)
        for gate in (gates[:, : 2 * units], o):
            gate += 1
            gate *= 0.5
        memory = f * memory + i * g
        x = o * np.tanh(memory)
        carry = (x, memory)
    for kernel, bias in head["layers"][:-1]:
        x = x @ kernel
        x += bias
        np.tanh(x, out=x)
    kernel, bias = head["layers"][-1]
    return carry, x @ kernel + bias


def _gaussian(out: Any) -> tuple[Any, Any]:
    mean, raw = np.split(out, 2, -1)
    return mean, np.log1p(np.exp(raw)) + MIN_STD


def arithmetic(task: Task) -> Any:
    """A function of the arithmetic of one rollout alone: acting, values and likelihoods."""
    length, zeros = task.work.rollout_length, np.zeros((task.work.num_envs, task.features), np.float32)
    weights = initial(task), (zeros[0], zeros[0] + 1)

    def compute() -> None:
        acting, start = Acting(task, weights, length), np.zeros(task.work.num_envs, np.float32)
        for t in range(length):
            acting.act(t, zeros, start, ())
        acting.likelihoods()
        acting.values(zeros, start, ())

    return compute


def run(work: Work, recorder: Recorder, make: Any) -> None:
    """Trains on a host environment.

    Args:
        work: The work.
        recorder: Clock.
        make: Function of the task that makes a ``Learner``.
    """
    env = host_env(work)
    task = task_of(work, env)
    learner, length, phases = make(task), work.rollout_length, recorder.phases
    zeros = (np.zeros((work.num_envs, work.lstm), np.float32),) * 2 if work.lstm else ()
    carries, obs, steps = (zeros, zeros), env.reset(seed=0)[0], 0
    start = np.ones(work.num_envs, np.float32)
    reward, done, cut = np.empty((3, length, work.num_envs), np.float32)
    while True:
        before = carries
        with phases["acting"]:
            acting, carry = Acting(task, learner.weights(), length), carries[0]
        for t in range(length):
            with phases["acting"]:
                action, carry = acting.act(t, obs, start, carry)
            with phases["environment"]:
                obs, reward[t], done[t], cut[t], _ = env.step(action if task.discrete else np.tanh(action))
            start = np.maximum(done[t], cut[t])
        with phases["acting"]:
            carry_of_critic, value = acting.values(obs, start, carries[1])
            ends = reward, done, cut, acting.start
            found = Steps(acting.obs[:-1], acting.action, acting.likelihoods(), value, *ends)
        carries = (carry, carry_of_critic)
        with phases["update"]:
            learner.update(before, found)
        steps += work.steps
        recorder.iteration(steps)
