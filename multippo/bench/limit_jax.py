"""PPO by hand in plain JAX: nothing is reported, checked or saved.

The rollouts and gradient steps are those of the contestants: normalised observations, actor and critic of the work's
sizes, advantages once an iteration, the clipped objective, Adam with clipped gradients.
"""

# Layers are lists of arrays, and brax has no types.
# pyright: basic

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from gymnasium import spaces

from multippo.bench.limit_environment import brax_env, host_env, seconds
from multippo.bench.recorder import Recorder
from multippo.bench.works import NUM_EPOCHS, NUM_MINIBATCHES, Work

GAMMA, LAMBDA, CLIP, VALUE_WEIGHT, RATE, NORM, MIN_STD = 0.99, 0.95, 0.2, 0.5, 3e-4, 0.5, 0.1


class Steps(NamedTuple):
    """A rollout, ``[T, B, ...]``; ``start`` is True where the carry was reset before the step."""

    obs: Any
    action: Any
    log_likelihood: Any
    value: Any
    reward: Any
    done: Any
    cut: Any
    start: Any


class _Learner(NamedTuple):
    """Parameters, Adam's moments, and count, mean and sum of squares of the observations."""

    params: Any
    moments: Any
    statistics: Any


class _Rolled(NamedTuple):
    """What the update takes: carries before and after the rollout, its last observation and starts, and its steps."""

    before: Any
    after: Any
    obs: Any
    start: Any
    steps: Steps


class _Ppo:
    """The arithmetic for one work."""

    def __init__(self, work: Work, features: int, num_actions: int, discrete: bool) -> None:
        self.work, self.features, self.discrete = work, features, discrete
        self.outputs = num_actions if discrete else 2 * num_actions
        self.optimizer = optax.chain(optax.clip_by_global_norm(NORM), optax.adam(RATE, eps=1e-5))

    def start(self, key: Any) -> tuple[_Learner, Any, Any]:
        """Learner, carry and starts before the first step."""
        actor, critic = jax.random.split(key)
        params = {"actor": self._head(actor, self.outputs), "critic": self._head(critic, 1)}
        statistics = (jnp.ones(()), jnp.zeros(self.features), jnp.ones(self.features))
        zeros = (jnp.zeros((self.work.num_envs, self.work.lstm)),) * 2 if self.work.lstm else ()
        learner = _Learner(params, self.optimizer.init(params), statistics)
        return learner, (zeros, zeros), jnp.ones(self.work.num_envs, bool)

    def _head(self, key: Any, outputs: int) -> Any:
        units, hidden = self.work.lstm, self.work.hidden
        shapes = [*itertools.pairwise([units or self.features, *hidden, outputs])]
        cell = [(self.features, 4 * units), (units, 4 * units)] if units else []
        keys = jax.random.split(key, len(shapes) + 2)
        made = [
            (jax.random.normal(k, shape) / math.sqrt(shape[0]), jnp.zeros(shape[1]))
            for k, shape in zip(keys, [*shapes, *cell], strict=False)
        ]
        return {"layers": made[: len(shapes)], "cell": made[len(shapes) :]}

    def _apply(self, head: Any, carry: Any, x: Any, start: Any) -> Any:
        """Carry and outputs of one step, or of a sequence ``[T, B, ...]`` where ``start`` has two dimensions."""
        if self.work.lstm:
            (weight, bias), (recurrent, _) = head["cell"]

            def step(carry: Any, now: Any) -> Any:
                projected, start = now
                hidden, memory = jax.tree.map(lambda leaf: jnp.where(start[:, None], 0.0, leaf), carry)
                i, f, g, o = jnp.split(projected + hidden @ recurrent, 4, -1)
                memory = jax.nn.sigmoid(f) * memory + jax.nn.sigmoid(i) * jnp.tanh(g)
                hidden = jax.nn.sigmoid(o) * jnp.tanh(memory)
                return (hidden, memory), hidden

            now = (x @ weight + bias, start)
            carry, x = step(carry, now) if start.ndim == 1 else jax.lax.scan(step, carry, now)
        for weight, bias in head["layers"][:-1]:
            x = jnp.tanh(x @ weight + bias)
        weight, bias = head["layers"][-1]
        return carry, x @ weight + bias

    def _log_likelihood(self, parameters: Any, action: Any) -> Any:
        if self.discrete:
            return jnp.take_along_axis(jax.nn.log_softmax(parameters), action[..., None], -1)[..., 0]
        mean, raw = jnp.split(parameters, 2, -1)
        std = jax.nn.softplus(raw) + MIN_STD
        squash = 2.0 * (math.log(2.0) - action - jax.nn.softplus(-2.0 * action))
        density = -0.5 * ((action - mean) / std) ** 2 - jnp.log(std) - 0.5 * math.log(2 * math.pi)
        return jnp.sum(density - squash, -1)

    def act(self, learner: _Learner, carry: Any, obs: Any, start: Any, key: Any) -> Any:
        """Carry, actions (before tanh), their log-likelihoods and the values of one step."""
        x = _normalised(learner.statistics, obs)
        actor, parameters = self._apply(learner.params["actor"], carry[0], x, start)
        critic, value = self._apply(learner.params["critic"], carry[1], x, start)
        if self.discrete:
            action = jax.random.categorical(key, parameters)
        else:
            mean, raw = jnp.split(parameters, 2, -1)
            action = mean + (jax.nn.softplus(raw) + MIN_STD) * jax.random.normal(key, mean.shape)
        return (actor, critic), action, self._log_likelihood(parameters, action), value[..., 0]

    def _loss(self, params: Any, carry: Any, batch: Any) -> Any:
        x, steps, advantage, target = batch
        _, parameters = self._apply(params["actor"], carry[0], x, steps.start)
        _, value = self._apply(params["critic"], carry[1], x, steps.start)
        ratio = jnp.exp(self._log_likelihood(parameters, steps.action) - steps.log_likelihood)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        objective = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage)
        return -objective.mean() + VALUE_WEIGHT * jnp.mean((value[..., 0] - target) ** 2)

    def _minibatches(self, learner: _Learner, rolled: _Rolled, key: Any) -> Any:
        """Indices of the rows (or sequences) of all minibatches, and a function from indices to a minibatch."""
        params, _, statistics = learner
        steps = rolled.steps
        last = self._apply(params["critic"], rolled.after[1], _normalised(statistics, rolled.obs), rolled.start)[1]
        advantage = advantages(steps, last[:, 0])
        data = (_normalised(statistics, steps.obs), steps, advantage, advantage + steps.value)
        recurrent = bool(self.work.lstm)
        rows = self.work.num_envs if recurrent else self.work.steps
        if not recurrent:
            data = jax.tree.map(lambda leaf: leaf.reshape(rows, *leaf.shape[2:]), data)
        orders = jax.vmap(lambda k: jax.random.permutation(k, rows))(jax.random.split(key, NUM_EPOCHS))

        def take(chosen: Any) -> Any:
            carry = jax.tree.map(lambda leaf: leaf[chosen], rolled.before)
            return carry, jax.tree.map(lambda leaf: jnp.take(leaf, chosen, int(recurrent)), data)

        return orders.reshape(NUM_EPOCHS * NUM_MINIBATCHES, -1), take

    def update(self, learner: _Learner, rolled: _Rolled, key: Any) -> _Learner:
        """The learner after all minibatches."""
        indices, take = self._minibatches(learner, rolled, key)

        def step(state: Any, chosen: Any) -> Any:
            params, moments = state
            changes, moments = self.optimizer.update(jax.grad(self._loss)(params, *take(chosen)), moments, params)
            return (optax.apply_updates(params, changes), moments), None

        (params, moments), _ = jax.lax.scan(step, (learner.params, learner.moments), indices)
        count, mean, squares = learner.statistics
        rows = rolled.steps.obs.reshape(-1, self.features)
        total, difference = count + len(rows), rows.mean(0) - mean
        squares = squares + ((rows - rows.mean(0)) ** 2).sum(0) + difference**2 * count * len(rows) / total
        return _Learner(params, moments, (total, mean + difference * len(rows) / total, squares))

    def replay(self, learner: _Learner, rolled: _Rolled, key: Any) -> Any:
        """The loss of every minibatch, without gradients."""
        indices, take = self._minibatches(learner, rolled, key)
        return jax.lax.map(lambda chosen: self._loss(learner.params, *take(chosen)), indices)


def advantages(steps: Steps, last_value: Any) -> Any:
    """Generalised advantage estimates ``[T, B]``; none of a step that was cut, as its final observation is not kept."""
    following = jnp.concatenate([steps.value[1:], last_value[None]])
    delta = (steps.reward + GAMMA * following * (1 - steps.done) - steps.value) * (1 - steps.cut)
    decay = GAMMA * LAMBDA * (1 - steps.done) * (1 - steps.cut)
    return jax.lax.scan(
        lambda later, now: (now[0] + now[1] * later,) * 2, jnp.zeros_like(delta[0]), (delta, decay), reverse=True
    )[1]


def _normalised(statistics: Any, obs: Any) -> Any:
    count, mean, squares = statistics
    return (obs - mean) * jax.lax.rsqrt(squares / count + 1e-6)


def run(work: Work, recorder: Recorder) -> None:
    """Trains: as one programme where the environment is a JAX programme, else with a call a step."""
    (_run_traced if work.env.startswith("brax/") else _run_host)(work, recorder)


def _run_traced(work: Work, recorder: Recorder) -> None:
    env = brax_env(work)
    ppo = _Ppo(work, env.observation_size, env.action_size, discrete=False)

    def rollout(learner: _Learner, carry: Any, state: Any, start: Any, key: Any) -> Any:
        def step(now: Any, key: Any) -> Any:
            carry, state, start = now
            carry, action, likelihood, value = ppo.act(learner, carry, state.obs, start, key)
            following = env.step(state, jnp.tanh(action))
            cut = following.info["truncation"]
            end = (following.reward, following.done * (1 - cut), cut)
            return (carry, following, following.done > 0), Steps(state.obs, action, likelihood, value, *end, start)

        (after, state, ended), steps = jax.lax.scan(
            step, (carry, state, start), jax.random.split(key, work.rollout_length)
        )
        return state, _Rolled(carry, after, state.obs, ended, steps)

    def iteration(whole: Any, key: Any) -> Any:
        learner, carry, state, start = whole
        state, rolled = rollout(learner, carry, state, start, key)
        return (ppo.update(learner, rolled, jax.random.fold_in(key, 1)), rolled.after, state, rolled.start), None

    key = jax.random.key(0)
    learner, carry, start = ppo.start(key)
    state = jax.jit(env.reset)(jax.random.split(jax.random.PRNGKey(0), work.num_envs))
    still = jnp.zeros((work.num_envs, env.action_size))
    alone = jax.jit(
        lambda state: jax.lax.scan(lambda state, _: (env.step(state, still), None), state, length=work.rollout_length)[
            0
        ]
    )
    roll = jax.jit(rollout)
    rolled = roll(learner, carry, state, start, key)[1]
    environment = seconds(lambda: jax.block_until_ready(alone(state)))
    acting = seconds(lambda: jax.block_until_ready(roll(learner, carry, state, start, key))) - environment
    recorder.pieces = {"environment": environment, "acting": acting, **_pieces(ppo, learner, rolled, key)}
    several = jax.jit(lambda whole, key: jax.lax.scan(iteration, whole, jax.random.split(key, work.chunk))[0])
    whole, steps = (learner, carry, state, start), 0
    while True:
        key, now = jax.random.split(key)
        whole = jax.block_until_ready(several(whole, now))
        steps += work.chunk * work.steps
        recorder.iteration(steps)


def _run_host(work: Work, recorder: Recorder) -> None:
    env = host_env(work)
    discrete = isinstance(env.single_action_space, spaces.Discrete)
    num_actions = int(env.single_action_space.n) if discrete else env.single_action_space.shape[0]
    ppo = _Ppo(work, env.single_observation_space.shape[0], num_actions, discrete)
    # The keys of all steps are drawn at once.
    act = jax.jit(lambda learner, carry, obs, start, keys, t: ppo.act(learner, carry, obs, start, keys[t]))
    update, draw = jax.jit(ppo.update), jax.jit(lambda key: jax.random.split(key, work.rollout_length))
    step = recorder.timed(env.step)
    key = jax.random.key(0)
    learner, carry, start = ppo.start(key)
    obs, start, steps = np.asarray(env.reset(seed=0)[0], np.float32), np.asarray(start), 0
    while True:
        key, now = jax.random.split(key)
        keys, before, rows = draw(now), carry, []
        for t in range(work.rollout_length):
            carry, *found = act(learner, carry, obs, start, keys, t)
            action, likelihood, value = map(np.asarray, found)
            following, reward, done, cut, _ = step(action if discrete else np.tanh(action))
            rows.append(Steps(obs, action, likelihood, value, np.asarray(reward, np.float32), done, cut, start))
            obs, start = np.asarray(following, np.float32), done | cut
        rolled = _Rolled(before, carry, obs, start, Steps(*map(np.stack, zip(*rows, strict=True))))
        if not steps:
            recorder.pieces = _pieces(ppo, learner, rolled, now)
        learner = jax.block_until_ready(update(learner, rolled, now))
        steps += work.steps
        recorder.iteration(steps)


def _pieces(ppo: _Ppo, learner: _Learner, rolled: _Rolled, key: Any) -> dict[str, float]:
    update, replay = jax.jit(ppo.update), jax.jit(ppo.replay)
    replay_s = seconds(lambda: jax.block_until_ready(replay(learner, rolled, key)))
    update_s = seconds(lambda: jax.block_until_ready(update(learner, rolled, key)))
    return {"replay": replay_s, "update": max(update_s - replay_s, 0.0)}
