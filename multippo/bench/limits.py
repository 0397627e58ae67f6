"""Limits: the environment alone, and PPO written by hand with nothing around it, in plain JAX and in plain torch.

They take the same rollouts and gradient steps as the contestants: normalised observations, actor and critic of the
work's sizes, advantages once an iteration, clipped objective, Adam with clipped gradients. They report nothing, check
nothing and save nothing, and so show what a library could reach. Each also measures its pieces: seconds that one
iteration spends in the environment, in acting, in replaying the rollout for the loss, and in the rest of the update.
"""

# Layers are lists of arrays, and brax has no types.
# pyright: basic

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from multippo.bench.recorder import Recorder
from multippo.bench.works import NUM_EPOCHS, NUM_MINIBATCHES, Work

GAMMA, LAMBDA, CLIP, VALUE_WEIGHT, RATE, NORM, MIN_STD = 0.99, 0.95, 0.2, 0.5, 3e-4, 0.5, 0.1


def _seconds(function: Callable[[], Any], repeats: int = 5) -> float:
    """Shortest time of several calls, after a first one that compiles."""
    function()
    times: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def _host_env(work: Work) -> Any:
    """The environment as gymnasium steps it fastest: its own vector form, or one after another."""
    spec = gymnasium.spec(work.env)
    mode = "vector_entry_point" if spec.vector_entry_point else "sync"
    same_step: Any = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
    kwargs: Any = {} if spec.vector_entry_point else {"vector_kwargs": same_step}
    return gymnasium.make_vec(work.env, work.num_envs, vectorization_mode=mode, **kwargs)


def environment(work: Work, recorder: Recorder) -> None:
    """Steps of the environment alone, with actions drawn once."""
    steps = 0
    if work.env.startswith("brax/"):
        import jax

        env, action_size, _ = _brax(work)
        actions = jax.random.uniform(jax.random.key(0), (work.num_envs, action_size), minval=-1, maxval=1)
        several = jax.jit(
            lambda state: jax.lax.scan(
                lambda state, _: (env.step(state, actions), None), state, length=work.rollout_length
            )[0]
        )
        state = env.reset(jax.random.split(jax.random.PRNGKey(0), work.num_envs))
        while True:
            state = jax.block_until_ready(several(state))
            steps += work.steps
            recorder.iteration(steps)
    if work.env == "pendulum":
        import torch

        from multippo.testing import TensorPendulum

        env, actions = TensorPendulum(work.num_envs), torch.rand(work.num_envs, 1)
    else:
        env = _host_env(work)
        env.action_space.seed(0)
        actions = env.action_space.sample()
    env.reset(seed=0)
    while True:
        for _ in range(work.rollout_length):
            env.step(actions)
        steps += work.steps
        recorder.iteration(steps)


# -- plain JAX


def _brax(work: Work) -> Any:
    """Brax's environment in its own wrappers, its number of actions, and the number of features."""
    from brax import envs

    env = envs.get_environment(work.env.removeprefix("brax/"))
    return envs.training.wrap(env, episode_length=1000), env.action_size, env.observation_size


class _Steps(NamedTuple):
    """A rollout ``[T, B, ...]``: ``start`` is True where the network's state was reset before the step."""

    obs: Any
    action: Any
    log_likelihood: Any
    value: Any
    reward: Any
    done: Any
    cut: Any
    start: Any


def limit_jax(work: Work, recorder: Recorder) -> None:
    """PPO in plain JAX: compiled as one programme where the environment is a JAX programme, else a call a step."""
    import jax
    import jax.numpy as jnp
    import optax

    traced = work.env.startswith("brax/")
    if traced:
        env, num_actions, features = _brax(work)
        discrete = False
    else:
        env = _host_env(work)
        discrete = isinstance(env.single_action_space, gymnasium.spaces.Discrete)
        num_actions = int(env.single_action_space.n) if discrete else env.single_action_space.shape[0]
        features = env.single_observation_space.shape[0]
    tree, B, T = jax.tree.map, work.num_envs, work.rollout_length

    def make_head(key: Any, outputs: int) -> dict[str, Any]:
        keys, sizes = jax.random.split(key, 8), [work.lstm or features, *work.hidden, outputs]

        def kernel(key: Any, rows: int, columns: int) -> Any:
            return jax.random.normal(key, (rows, columns)) / math.sqrt(rows)

        layers = [(kernel(k, a, b), jnp.zeros(b)) for k, a, b in zip(keys, sizes[:-1], sizes[1:], strict=False)]
        units = work.lstm
        cell = (kernel(keys[6], features, 4 * units), kernel(keys[7], units, 4 * units), jnp.zeros(4 * units))
        return {"layers": layers, "cell": cell} if units else {"layers": layers}

    def dense(head: Any, x: Any) -> Any:
        for weight, bias in head["layers"][:-1]:
            x = jnp.tanh(x @ weight + bias)
        weight, bias = head["layers"][-1]
        return x @ weight + bias

    def cell_step(recurrent: Any, carry: Any, projected: Any, start: Any) -> Any:
        hidden, memory = tree(lambda leaf: jnp.where(start[:, None], 0.0, leaf), carry)
        gates = projected + hidden @ recurrent
        i, f, g, o = jnp.split(gates, 4, -1)
        memory = jax.nn.sigmoid(f) * memory + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(memory)
        return (hidden, memory), hidden

    def apply(head: Any, carry: Any, x: Any, start: Any) -> Any:
        """Carry and outputs of one step, or of a sequence ``[T, B, ...]`` where ``start`` is of two dimensions."""
        if not work.lstm:
            return carry, dense(head, x)
        weight, recurrent, bias = head["cell"]
        projected = x @ weight + bias
        if start.ndim == 1:
            carry, x = cell_step(recurrent, carry, projected, start)
        else:
            carry, x = jax.lax.scan(lambda c, now: cell_step(recurrent, c, *now), carry, (projected, start))
        return carry, dense(head, x)

    def log_likelihood(parameters: Any, action: Any) -> Any:
        if discrete:
            return jnp.take_along_axis(jax.nn.log_softmax(parameters), action[..., None], -1)[..., 0]
        mean, raw = jnp.split(parameters, 2, -1)
        std = jax.nn.softplus(raw) + MIN_STD
        squash = 2.0 * (math.log(2.0) - action - jax.nn.softplus(-2.0 * action))
        density = -0.5 * ((action - mean) / std) ** 2 - jnp.log(std) - 0.5 * math.log(2 * math.pi)
        return jnp.sum(density - squash, -1)

    def sample(parameters: Any, key: Any) -> Any:
        if discrete:
            return jax.random.categorical(key, parameters)
        mean, raw = jnp.split(parameters, 2, -1)
        return mean + (jax.nn.softplus(raw) + MIN_STD) * jax.random.normal(key, mean.shape)

    def normalise(statistics: Any, obs: Any) -> Any:
        count, mean, squares = statistics
        return (obs - mean) * jax.lax.rsqrt(squares / count + 1e-6)

    def act(params: Any, statistics: Any, carry: Any, obs: Any, start: Any, key: Any) -> Any:
        x = normalise(statistics, obs)
        actor, parameters = apply(params["actor"], carry[0], x, start)
        critic, value = apply(params["critic"], carry[1], x, start)
        action = sample(parameters, key)
        return (actor, critic), action, log_likelihood(parameters, action), value[..., 0]

    def loss(params: Any, statistics: Any, carry: Any, batch: Any) -> Any:
        steps, advantage, target = batch
        x = normalise(statistics, steps.obs)
        _, parameters = apply(params["actor"], carry[0], x, steps.start)
        _, value = apply(params["critic"], carry[1], x, steps.start)
        ratio = jnp.exp(log_likelihood(parameters, steps.action) - steps.log_likelihood)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        objective = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage)
        return -objective.mean() + VALUE_WEIGHT * jnp.mean((value[..., 0] - target) ** 2)

    optimizer = optax.chain(optax.clip_by_global_norm(NORM), optax.adam(RATE, eps=1e-5))
    axis = 1 if work.lstm else 0

    def minibatches(key: Any, carry: Any, data: Any) -> Any:
        """Indices of the rows (or sequences) of every minibatch of every epoch, and the data with its rows in front."""
        rows = B if work.lstm else B * T
        data = data if work.lstm else tree(lambda leaf: leaf.reshape(rows, *leaf.shape[2:]), data)
        orders = jax.vmap(lambda k: jax.random.permutation(k, rows))(jax.random.split(key, NUM_EPOCHS))
        indices = orders.reshape(NUM_EPOCHS * NUM_MINIBATCHES, -1)
        return indices, lambda chosen: (
            tree(lambda leaf: leaf[chosen], carry) if work.lstm else carry,
            tree(lambda leaf: jnp.take(leaf, chosen, axis), data),
        )

    def prepare(params: Any, statistics: Any, carry: Any, obs: Any, start: Any, steps: Any) -> Any:
        last = apply(params["critic"], carry[1], normalise(statistics, obs), start)[1][..., 0]
        following = jnp.concatenate([steps.value[1:], last[None]])
        delta = (steps.reward + GAMMA * following * (1 - steps.done) - steps.value) * (1 - steps.cut)
        decay = GAMMA * LAMBDA * (1 - steps.done) * (1 - steps.cut)
        _, advantage = jax.lax.scan(
            lambda later, now: (now[0] + now[1] * later,) * 2, jnp.zeros(B), (delta, decay), reverse=True
        )
        return steps, advantage, advantage + steps.value

    def update(learner: Any, before: Any, after: Any, obs: Any, start: Any, steps: Any, key: Any) -> Any:
        params, moments, statistics = learner
        indices, take = minibatches(key, before, prepare(params, statistics, after, obs, start, steps))

        def step(state: Any, chosen: Any) -> Any:
            params, moments = state
            gradient = jax.grad(loss)(params, statistics, *take(chosen))
            changes, moments = optimizer.update(gradient, moments, params)
            return (optax.apply_updates(params, changes), moments), None

        (params, moments), _ = jax.lax.scan(step, (params, moments), indices)
        count, mean, squares = statistics
        rows = steps.obs.reshape(-1, features)
        total, difference = count + len(rows), rows.mean(0) - mean
        squares = squares + ((rows - rows.mean(0)) ** 2).sum(0) + difference**2 * count * len(rows) / total
        return params, moments, (total, mean + difference * len(rows) / total, squares)

    def forward(learner: Any, before: Any, after: Any, obs: Any, start: Any, steps: Any, key: Any) -> Any:
        params, _, statistics = learner
        indices, take = minibatches(key, before, prepare(params, statistics, after, obs, start, steps))
        return jax.lax.map(lambda chosen: loss(params, statistics, *take(chosen)), indices)

    keys = jax.random.split(jax.random.key(0), 3)
    params = {"actor": make_head(keys[0], num_actions * (1 if discrete else 2)), "critic": make_head(keys[1], 1)}
    learner = (params, optimizer.init(params), (jnp.ones(()), jnp.zeros(features), jnp.ones(features)))
    zeros = tuple(jnp.zeros((B, work.lstm)) for _ in range(2)) if work.lstm else ()
    carry, start = (zeros, zeros), jnp.ones(B, bool)

    if traced:

        def rollout(learner: Any, carry: Any, state: Any, start: Any, key: Any) -> Any:
            params, _, statistics = learner

            def step(now: Any, key: Any) -> Any:
                carry, state, start = now
                carry, action, likelihood, value = act(params, statistics, carry, state.obs, start, key)
                following = env.step(state, jnp.tanh(action))
                cut = following.info["truncation"]
                done = following.done * (1 - cut)
                taken = _Steps(state.obs, action, likelihood, value, following.reward, done, cut, start)
                return (carry, following, following.done > 0), taken

            return jax.lax.scan(step, (carry, state, start), jax.random.split(key, T))

        def iteration(whole: Any, key: Any) -> Any:
            learner, carry, state, start = whole
            (after, state, start), steps = rollout(learner, carry, state, start, key)
            learner = update(learner, carry, after, state.obs, start, steps, jax.random.fold_in(key, 1))
            return (learner, after, state, start), None

        state = jax.jit(env.reset)(jax.random.split(jax.random.PRNGKey(0), B))
        several = jax.jit(lambda whole, key: jax.lax.scan(iteration, whole, jax.random.split(key, work.chunk))[0])
        alone = jax.jit(
            lambda state: jax.lax.scan(
                lambda state, _: (env.step(state, jnp.zeros((B, num_actions))), None), state, length=T
            )[0]
        )
        roll, change, look = jax.jit(rollout), jax.jit(update), jax.jit(forward)
        (after, last, ended), steps = roll(learner, carry, state, start, keys[2])
        rolled = (learner, carry, after, last.obs, ended, steps, keys[2])
        env_s, acting_s = (
            _seconds(lambda: jax.block_until_ready(alone(state))),
            _seconds(lambda: jax.block_until_ready(roll(learner, carry, state, start, keys[2]))),
        )
        _pieces(
            recorder,
            env_s,
            acting_s - env_s,
            lambda: jax.block_until_ready(look(*rolled)),
            lambda: jax.block_until_ready(change(*rolled)),
        )
        whole, count, key = (learner, carry, state, start), 0, keys[2]
        while True:
            key, now = jax.random.split(key)
            whole = jax.block_until_ready(several(whole, now))
            count += work.chunk * work.steps
            recorder.iteration(count)

    # One call a step; a key for every step is drawn at once.
    take_step = jax.jit(
        lambda params, statistics, carry, obs, start, keys, t: act(params, statistics, carry, obs, start, keys[t])
    )
    change, look, draw = jax.jit(update), jax.jit(forward), jax.jit(lambda key: jax.random.split(key, T))
    step_env = recorder.timed(env.step)
    obs, count, key, begun = np.asarray(env.reset(seed=0)[0], np.float32), 0, keys[2], np.ones(B, bool)
    buffers: Any = None
    while True:
        key, now = jax.random.split(key)
        keys, before = draw(now), carry
        params, _, statistics = learner
        for t in range(T):
            carry, *found = take_step(params, statistics, carry, obs, begun, keys, t)
            action, likelihood, value = map(np.asarray, found)
            following, reward, done, cut, _ = step_env(action if discrete else np.tanh(action))
            taken = _Steps(obs, action, likelihood, value, reward, done, cut, begun)
            if buffers is None:
                buffers = [
                    np.zeros((T, *leaf.shape), np.float32 if leaf.dtype == np.float64 else leaf.dtype) for leaf in taken
                ]
            for buffer, leaf in zip(buffers, taken, strict=True):
                buffer[t] = leaf
            obs, begun = np.asarray(following, np.float32), done | cut
        rolled = (learner, before, carry, obs, begun, _Steps(*(buffer.copy() for buffer in buffers)), now)
        if not count:
            _pieces(
                recorder,
                0.0,
                0.0,
                lambda rolled=rolled: jax.block_until_ready(look(*rolled)),
                lambda rolled=rolled: jax.block_until_ready(change(*rolled)),
            )
        learner = jax.block_until_ready(change(*rolled))
        count += work.steps
        recorder.iteration(count)


def _pieces(recorder: Recorder, environment: float, acting: float, replay: Any, update: Any) -> None:
    """Measures the update's pieces; environment and acting of 0 are measured by the recorder."""
    replay_s, update_s = _seconds(replay), _seconds(update)
    rest = max(update_s - replay_s, 0.0)
    recorder.pieces = {"environment": environment, "acting": acting, "replay": replay_s, "update": rest}


# -- plain torch


def limit_torch(work: Work, recorder: Recorder) -> None:
    """PPO in plain torch, eager, without recurrent layers."""
    import torch
    from torch import nn
    from torch.nn import functional

    if work.lstm:
        raise ValueError(f"limit-torch has no recurrent layer, and {work.name} asks for one.")
    native = work.env == "pendulum"
    device = "cuda" if native and torch.cuda.is_available() else "cpu"
    if native:
        from multippo.testing import TensorPendulum

        env: Any = TensorPendulum(work.num_envs, device=device)
    else:
        env = _host_env(work)
    discrete = isinstance(env.single_action_space, gymnasium.spaces.Discrete)
    num_actions = int(env.single_action_space.n) if discrete else env.single_action_space.shape[0]
    features, B, T = env.single_observation_space.shape[0], work.num_envs, work.rollout_length

    def make(outputs: int) -> nn.Sequential:
        sizes, layers = [features, *work.hidden], []
        for size, following in itertools.pairwise(sizes):
            layers += [nn.Linear(size, following), nn.Tanh()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs)).to(device)

    actor, critic = make(num_actions * (1 if discrete else 2)), make(1)
    params = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(params, RATE, eps=1e-5, fused=True)

    def log_likelihood(parameters: Any, action: Any) -> Any:
        if discrete:
            return functional.log_softmax(parameters, -1).gather(-1, action[..., None])[..., 0]
        mean, raw = parameters.chunk(2, -1)
        std = functional.softplus(raw) + MIN_STD
        squash = 2.0 * (math.log(2.0) - action - functional.softplus(-2.0 * action))
        return (-0.5 * ((action - mean) / std) ** 2 - std.log() - 0.5 * math.log(2 * math.pi) - squash).sum(-1)

    def sample(parameters: Any) -> Any:
        if discrete:
            return (parameters - torch.empty_like(parameters).exponential_().log()).argmax(-1)
        mean, raw = parameters.chunk(2, -1)
        return mean + (functional.softplus(raw) + MIN_STD) * torch.randn_like(mean)

    def loss(obs: Any, action: Any, old: Any, advantage: Any, target: Any) -> Any:
        ratio = (log_likelihood(actor(obs), action) - old).exp()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        objective = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
        return -objective.mean() + VALUE_WEIGHT * functional.mse_loss(critic(obs)[:, 0], target)

    def batches(rows: Any) -> Any:
        for _ in range(NUM_EPOCHS):
            for chosen in torch.randperm(B * T, device=device).chunk(NUM_MINIBATCHES):
                yield [leaf[chosen] for leaf in rows]

    def update(rows: Any) -> None:
        for batch in batches(rows):
            optimizer.zero_grad()
            loss(*batch).backward()
            nn.utils.clip_grad_norm_(params, NORM, foreach=True)
            optimizer.step()

    def forward(rows: Any) -> None:
        with torch.no_grad():
            for batch in batches(rows):
                loss(*batch)

    count, mean, squares = 1.0, torch.zeros(features, device=device), torch.ones(features, device=device)
    step_env = recorder.timed(env.step)
    obs, steps = torch.as_tensor(env.reset(seed=0)[0], dtype=torch.float32), 0
    buffers: Any = None
    while True:
        scale = (squares / count + 1e-6).rsqrt()
        with torch.no_grad():
            for t in range(T):
                x = (obs - mean) * scale
                parameters, value = actor(x), critic(x)[:, 0]
                action = sample(parameters)
                given = action if discrete else action.tanh()
                following, reward, done, cut, _ = step_env(given if native else given.numpy())
                taken = [obs, action, log_likelihood(parameters, action), value]
                taken += [torch.as_tensor(leaf, dtype=torch.float32) for leaf in (reward, done, cut)]
                if buffers is None:
                    buffers = [leaf.new_zeros((T, *leaf.shape)) for leaf in taken]
                for buffer, leaf in zip(buffers, taken, strict=True):
                    buffer[t] = leaf
                obs = torch.as_tensor(following, dtype=torch.float32)
            seen, actions, likelihoods, values, rewards, done, cut = buffers
            advantages, later, next_value = torch.empty_like(values), 0.0, critic((obs - mean) * scale)[:, 0]
            for t in reversed(range(T)):
                delta = (rewards[t] + GAMMA * next_value * (1 - done[t]) - values[t]) * (1 - cut[t])
                later = delta + GAMMA * LAMBDA * (1 - done[t]) * (1 - cut[t]) * later
                advantages[t], next_value = later, values[t]
        data = ((seen - mean) * scale, actions, likelihoods, advantages, advantages + values)
        rows = [leaf.flatten(0, 1) for leaf in data]
        if not steps:
            _pieces(recorder, 0.0, 0.0, lambda rows=rows: forward(rows), lambda rows=rows: update(rows))
        update(rows)
        flat = seen.flatten(0, 1)
        total, difference = count + len(flat), flat.mean(0) - mean
        squares = squares + ((flat - flat.mean(0)) ** 2).sum(0) + difference**2 * count * len(flat) / total
        count, mean = total, mean + difference * len(flat) / total
        steps += work.steps
        recorder.iteration(steps)


LIMITS: dict[str, Callable[[Work, Recorder], None]] = {
    "environment": environment,
    "limit-jax": limit_jax,
    "limit-torch": limit_torch,
}
