"""The limit in plain torch: gradients of dense layers by hand, into one vector that a fused optimiser steps."""

# pyright: basic

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from multippo.bench import limit_host
from multippo.bench.limit_environment import host_env
from multippo.bench.limit_host import BETAS, CLIP, EPSILON, GAMMA, LAMBDA, MIN_STD, NORM, RATE, VALUE_COEF, Steps, Task
from multippo.bench.recorder import Recorder
from multippo.bench.works import NUM_EPOCHS, NUM_MINIBATCHES, Work
from multippo.trees import tree_leaves


class _Head:
    """An actor or critic, whose arrays and gradients are views of two flat vectors."""

    def __init__(self, arrays: dict[str, Any], take: Any) -> None:
        # torch's kernel has weights [4 H, in], and a second bias, which stays 0.
        self.cell = [take(array.T, is_leaf=True)[0] for array in arrays["cell"]]
        self.cell += [torch.zeros_like(bias) for bias in self.cell[2:]]
        self.layers = [[take(array) for array in layer] for layer in arrays["layers"]]
        self.kept: list[Any] = []

    def forward(self, x: Any, start: Any, carry: Any) -> Any:
        """Carry and outputs of a step ``[B, ...]``, or of a sequence ``[T, B, ...]`` where there is an LSTM."""
        self.kept = kept = []
        if self.cell and x.ndim == 2:
            carry = x, _ = torch.lstm_cell(x, [leaf * (1 - start)[:, None] for leaf in carry], *self.cell)
        elif self.cell:
            x, carry = self._unroll(x, start, carry)
            kept.append(x)
            x = x.detach().flatten(0, 1)
        kept.append(x)
        for (kernel, _), (bias, _) in self.layers[:-1]:
            x = torch.addmm(bias, x, kernel).tanh_()
            kept.append(x)
        (kernel, _), (bias, _) = self.layers[-1]
        return carry, torch.addmm(bias, x, kernel)

    def _unroll(self, x: Any, start: Any, carry: Any) -> Any:
        # The kernel knows no resets: it is called for each stretch between those of any environment.
        resets = start.any(1).nonzero()[:, 0].tolist()
        bounds, outputs = sorted({0, *resets, len(x)}), []
        for begin, end in itertools.pairwise(bounds):
            carry = [(leaf * (1 - start[begin])[:, None])[None] for leaf in carry]
            found, *carry = torch.lstm(x[begin:end], carry, self.cell, True, 1, 0.0, True, False, False)
            carry = [leaf[0] for leaf in carry]
            outputs.append(found)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs), carry

    def backward(self, grad: Any) -> None:
        """Writes all gradients, from that of the outputs of the last call."""
        inputs = self.kept[1:] if self.cell else self.kept
        for place in reversed(range(len(inputs))):
            ((kernel, d_kernel), (_, d_bias)), x = self.layers[place], inputs[place]
            torch.mm(x.T, grad, out=d_kernel)
            torch.sum(grad, 0, out=d_bias)
            if place or self.cell:
                grad = grad @ kernel.T
            if place:
                grad = torch.ops.aten.tanh_backward(grad, x)
        if self.cell:
            self.kept[0].backward(grad.view_as(self.kept[0]))


class _Learner:
    """Weights, optimiser and statistics of the observations; see ``limit_host.Learner``."""

    def __init__(self, task: Task, device: Any = "cpu") -> None:
        self.task, self.device, arrays = task, device, limit_host.initial(task)
        size, self._place = sum(leaf.size for leaf in tree_leaves(arrays)), 0
        self.flat, self.grad = (torch.zeros(size, device=device) for _ in range(2))
        self.actor, self.critic = (_Head(arrays[name], self._take) for name in ("actor", "critic"))
        self.flat.grad = self.grad
        self.optimizer = torch.optim.Adam([self.flat], RATE, betas=BETAS, eps=EPSILON, fused=True)
        features = task.features
        self.count, self.mean = 1.0, torch.zeros(features, device=device)
        self.squares, self.scale = torch.ones(features, device=device), torch.ones(features, device=device)

    def _take(self, array: Any, is_leaf: bool = False) -> tuple[Any, Any]:
        """Views of the flat vectors for an array, and for its gradient."""
        part = slice(self._place, self._place + array.size)
        self._place = part.stop
        weight, grad = (flat[part].view(array.shape) for flat in (self.flat, self.grad))
        weight.copy_(torch.as_tensor(np.ascontiguousarray(array)))
        if is_leaf:
            weight = weight.detach().requires_grad_()
            weight.grad = grad
        return weight, grad

    def weights(self) -> tuple[Any, Any]:
        heads = {
            name: {"cell": [], "layers": [[x.numpy() for x, _ in layer] for layer in head.layers]}
            for name, head in (("actor", self.actor), ("critic", self.critic))
        }
        return heads, (self.mean.numpy(), self.scale.numpy())

    def gaussian(self, out: Any) -> tuple[Any, Any, Any]:
        mean, raw = out.chunk(2, -1)
        return mean, raw, functional.softplus(raw) + MIN_STD

    @torch.no_grad()
    def update(self, carries: Any, steps: Any) -> None:
        steps, lstm = Steps(*map(torch.as_tensor, steps)), self.task.work.lstm
        carries = [[torch.as_tensor(leaf) for leaf in carry] for carry in carries]
        advantage = advantages(*steps[3:7])
        rows = [steps.obs, steps.action, steps.likelihood, advantage, advantage + steps.value[:-1], steps.start]
        if not lstm:
            rows = [leaf.flatten(0, 1) for leaf in rows]
        axis, size = (1, self.task.work.num_envs) if lstm else (0, self.task.work.steps)
        for _ in range(NUM_EPOCHS):
            for chosen in torch.randperm(size, device=self.device).chunk(NUM_MINIBATCHES):
                begun = [[leaf[chosen] for leaf in carry] for carry in carries]
                x, *taken, start = (leaf.index_select(axis, chosen) for leaf in rows)
                self._step(x, start, begun, *(leaf.flatten(0, 1) if lstm else leaf for leaf in taken))
        obs = (steps.obs / self.scale + self.mean).flatten(0, 1)
        total, difference = self.count + len(obs), obs.mean(0) - self.mean
        self.squares += ((obs - obs.mean(0)) ** 2).sum(0) + difference**2 * self.count * len(obs) / total
        self.count, self.mean = total, self.mean + difference * len(obs) / total
        self.scale = (self.squares / total + 1e-6).rsqrt()

    def _step(self, x: Any, start: Any, carries: Any, action: Any, old: Any, advantage: Any, target: Any) -> None:
        """One gradient step: rows ``[N, ...]``, but for ``x`` and ``start`` where there is an LSTM."""
        with torch.set_grad_enabled(bool(self.task.work.lstm)):
            _, out = self.actor.forward(x, start, carries[0])
            _, value = self.critic.forward(x, start, carries[1])
        advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
        if self.task.discrete:
            log = functional.log_softmax(out, -1)
            likelihood = log.gather(1, action[:, None])[:, 0]
        else:
            mean, raw, std = self.gaussian(out)
            z = (action - mean) / std
            likelihood = (-0.5 * z.square() - std.log()).sum(-1)
        surrogate = (likelihood - old).exp_().mul_(advantage)
        # The clipped one is a constant where it is the lesser.
        clipped = torch.where(advantage > 0, surrogate > (1 + CLIP) * advantage, surrogate > (1 - CLIP) * advantage)
        slope = surrogate.masked_fill_(clipped, 0.0).mul_(-1 / len(old))[:, None]
        if self.task.discrete:
            grad = log.exp_().mul_(-slope).scatter_add_(1, action[:, None], slope)
        else:
            d_std = slope * (z.square() - 1) / std
            grad = torch.cat([slope * z / std, d_std * raw.sigmoid()], -1)
        if self.task.work.lstm:
            self.grad.zero_()
        self.actor.backward(grad)
        self.critic.backward((value - target[:, None]).mul_(2 * VALUE_COEF / len(old)))
        self.grad.mul_((NORM / torch.linalg.vector_norm(self.grad)).clamp(max=1.0))
        self.optimizer.step()


def advantages(value: Any, reward: Any, done: Any, cut: Any) -> Any:
    """Generalised advantage estimates ``[T, B]`` from values ``[T + 1, B]``.

    None of a step that was cut, as its final observation is not kept.
    """
    found = (reward + GAMMA * value[1:] * (1 - done) - value[:-1]) * (1 - cut)
    decay = GAMMA * LAMBDA * (1 - done) * (1 - cut)
    steps, decays = found.unbind(), decay.unbind()
    for t in range(len(steps) - 2, -1, -1):
        steps[t].addcmul_(decays[t], steps[t + 1])
    return found


def run(work: Work, recorder: Recorder) -> None:
    """Trains; on an environment in tensors without NumPy."""
    if work.env != "pendulum":
        limit_host.run(work, recorder, _Learner)
    env, phases, length = host_env(work), recorder.phases, work.rollout_length
    task = limit_host.task_of(work, env)
    learner, obs = _Learner(task, env.device), env.reset(seed=0)[0]
    zeros = [torch.zeros(work.num_envs, work.lstm, device=env.device)] * 2
    carries, start, steps = [zeros, zeros], torch.ones(work.num_envs, device=env.device), 0
    batch = {"device": env.device, "size": (length, work.num_envs)}
    reward, done, cut, starts = torch.empty(4, *batch["size"], device=env.device)
    while True:
        with phases["acting"], torch.no_grad():
            before, carry = carries, carries[0]
            rows = torch.empty(length + 1, work.num_envs, task.features, device=env.device)
            noise = torch.randn(length, work.num_envs, task.actions, device=env.device)
            action, outputs = torch.empty_like(noise), torch.empty(*batch["size"], 2 * task.actions, device=env.device)
        for t in range(length):
            with phases["acting"], torch.no_grad():
                torch.sub(obs, learner.mean, out=rows[t]).mul_(learner.scale)
                starts[t] = start
                carry, outputs[t] = learner.actor.forward(rows[t], start, carry)
                mean, _, std = learner.gaussian(outputs[t])
                taken = torch.addcmul(mean, std, noise[t], out=action[t]).tanh()
            with phases["environment"]:
                obs, reward[t], done[t], cut[t], _ = env.step(taken)
            start = torch.maximum(done[t], cut[t])
        with phases["acting"], torch.no_grad():
            rows[-1] = (obs - learner.mean) * learner.scale
            mean, _, std = learner.gaussian(outputs)
            likelihood = (-0.5 * ((action - mean) / std).square() - std.log()).sum(-1)
            inputs, critic = (rows[:-1], carries[1]) if work.lstm else (rows.flatten(0, 1), carries[1])
            critic, value = learner.critic.forward(inputs, starts, critic)
            if work.lstm:
                value = torch.cat([value, learner.critic.forward(rows[-1], start, critic)[1]])
            carries = [carry, critic]
        with phases["update"]:
            ends = reward, done, cut, starts
            learner.update(before, Steps(rows[:-1], action, likelihood, value.view(length + 1, -1), *ends))
        steps += work.steps
        recorder.iteration(steps)
