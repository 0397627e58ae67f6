"""The limit in plain JAX: one compiled update, and for brax's environments the rollout in the same programme."""

# Layers are lists of arrays, and brax has no types.
# pyright: basic

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from multippo.bench import limit_host
from multippo.bench.limit_environment import brax_env, unroll
from multippo.bench.limit_host import BETAS, CLIP, EPSILON, GAMMA, LAMBDA, MIN_STD, NORM, RATE, VALUE_COEF, Steps, Task
from multippo.bench.recorder import Recorder
from multippo.bench.works import NUM_EPOCHS, NUM_MINIBATCHES, Work


class _Learner:
    """Weights, Adam's moments and statistics of the observations; see ``limit_host.Learner``."""

    def __init__(self, task: Task) -> None:
        ppo = _Ppo(task)
        self._state, self._key = ppo.start(), jax.random.key(0)
        self._update = jax.jit(ppo.update, donate_argnums=0)
        self._weights = jax.jit(lambda state: (ppo.heads(state[0]), _scales(state[3])))

    def weights(self) -> tuple[Any, Any]:
        return jax.device_get(self._weights(self._state))

    def update(self, carries: Any, steps: Steps) -> None:
        self._state = jax.block_until_ready(self._update(self._state, carries, steps, self._key))


class _Ppo:
    """The arithmetic for one work; the learner's state is a flat vector, two moments of it, and statistics."""

    def __init__(self, task: Task) -> None:
        self.task, self.work = task, task.work
        self.flat, self.heads = ravel_pytree(limit_host.initial(task))

    def start(self) -> Any:
        zeros, features = jnp.zeros_like(self.flat), self.task.features
        statistics = (jnp.ones(()), jnp.zeros(features), jnp.ones(features))
        return jnp.array(self.flat), zeros, jnp.zeros_like(zeros), statistics, jnp.zeros(())

    def carries(self) -> Any:
        """Carries of actor and critic before the first step."""
        units = self.work.lstm
        return tuple((jnp.zeros((self.work.num_envs, units)),) * 2 if units else () for _ in range(2))

    def apply(self, head: Any, carry: Any, x: Any, start: Any) -> Any:
        """Carry and outputs of a step, or of a sequence ``[T, B, ...]`` where ``start`` has two dimensions."""
        if self.work.lstm:
            kernel, recurrent, bias = head["cell"]
            projected = _product(x, kernel) + bias
            if start.ndim == 1:
                carry = x, _ = _cell(recurrent, carry, (projected, start))[0]
            else:
                x, carry = _unroll(recurrent, projected, start, carry)
        for kernel, bias in head["layers"][:-1]:
            x = jnp.tanh(_product(x, kernel) + bias)
        kernel, bias = head["layers"][-1]
        return carry, _product(x, kernel) + bias

    def act(self, head: Any, carry: Any, x: Any, start: Any, noise: Any) -> Any:
        """Carry, actions (before tanh) and outputs of one step in a space without bounds."""
        carry, out = self.apply(head, carry, x, start)
        mean, std = _gaussian(out)
        return carry, mean + std * noise, out

    def likelihood(self, out: Any, action: Any) -> Any:
        if self.task.discrete:
            return jnp.take_along_axis(jax.nn.log_softmax(out), action[..., None].astype(int), -1)[..., 0]
        mean, std = _gaussian(out)
        return jnp.sum(-0.5 * ((action - mean) / std) ** 2 - jnp.log(std), -1)

    def _loss(self, heads: Any, carries: Any, rows: Any) -> Any:
        # Columns are observation, action, likelihood, advantage, target and start.
        x, *action, old, advantage, target, start = jnp.split(rows, self._columns(), -1)
        action, (old, advantage, target, start) = action[0], (leaf[..., 0] for leaf in (old, advantage, target, start))
        _, out = self.apply(heads["actor"], carries[0], x, start)
        _, value = self.apply(heads["critic"], carries[1], x, start)
        ratio = jnp.exp(self.likelihood(out, action[..., 0] if self.task.discrete else action) - old)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        objective = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage)
        return -objective.mean() + VALUE_COEF * jnp.mean((value[..., 0] - target) ** 2)

    def _columns(self) -> list[int]:
        first = self.task.features + (1 if self.task.discrete else self.task.actions)
        return [self.task.features, *range(first, first + 4)]

    def update(self, state: Any, carries: Any, steps: Steps, key: Any) -> Any:
        """The state after all minibatches of a rollout with normalised observations."""
        *learnt, statistics, taken = state
        mean, scale = _scales(statistics)
        advantage = advantages(*steps[3:7])
        action = steps.action[..., None] if self.task.discrete else steps.action
        scalars = steps.likelihood, advantage, advantage + steps.value[:-1], steps.start
        rows = jnp.concatenate([steps.obs, action, jnp.stack(scalars, -1)], -1, dtype=jnp.float32)
        if not self.work.lstm:
            rows = rows.reshape(self.work.steps, -1)
        axis = int(bool(self.work.lstm))
        orders = _orders(jax.random.fold_in(key, taken.astype(int)), rows.shape[axis])

        def step(state: Any, chosen: Any) -> Any:
            flat, first, second, taken = state
            begun = jax.tree.map(lambda leaf: leaf[chosen], carries)
            grad = jax.grad(self._loss)(self.heads(flat), begun, jnp.take(rows, chosen, axis))
            grad = ravel_pytree(grad)[0]
            grad = grad * jnp.minimum(1.0, NORM / jnp.sqrt(jnp.sum(grad**2)))
            (b1, b2), taken = BETAS, taken + 1
            first, second = b1 * first + (1 - b1) * grad, b2 * second + (1 - b2) * grad**2
            unbiased = first / (1 - b1**taken), second / (1 - b2**taken)
            return (flat - RATE * unbiased[0] / (jnp.sqrt(unbiased[1]) + EPSILON), first, second, taken), None

        (*learnt, taken), _ = jax.lax.scan(step, (*learnt, taken), orders)
        return *learnt, _counted(statistics, steps.obs.reshape(-1, self.task.features) / scale + mean), taken


def _gaussian(out: Any) -> Any:
    mean, raw = jnp.split(out, 2, -1)
    return mean, jax.nn.softplus(raw) + MIN_STD


def _orders(key: Any, rows: int) -> Any:
    """Indices of all minibatches: random words whose last bits are positions, sorted."""
    mask = (1 << (rows - 1).bit_length()) - 1
    words = jax.random.bits(key, (NUM_EPOCHS, rows)) & ~jnp.uint32(mask) | jnp.arange(rows, dtype=jnp.uint32)
    return (jnp.sort(words) & mask).astype(int).reshape(NUM_EPOCHS * NUM_MINIBATCHES, -1)


def _product(x: Any, kernel: Any) -> Any:
    return _product_of_rows(x.reshape(-1, x.shape[-1]), kernel).reshape(*x.shape[:-1], -1)


@jax.custom_vjp
def _product_of_rows(x: Any, kernel: Any) -> Any:
    return x @ kernel


def _product_backward(kept: Any, grad: Any) -> Any:
    x, kernel = kept
    return grad @ kernel.T, _by_rows(x, grad)


def _by_rows(x: Any, grad: Any) -> Any:
    """``x.T @ grad``, in forms that XLA computes quickly on a processor."""
    if grad.shape[1] <= 4:
        return jnp.stack([column @ x for column in grad.T], -1)
    return x.T @ grad if x.shape[1] <= 4 else jax.lax.optimization_barrier(x.T) @ grad


_product_of_rows.defvjp(lambda x, kernel: (x @ kernel, (x, kernel)), _product_backward)


def _cell(recurrent: Any, carry: Any, now: Any) -> Any:
    """Carry and all that the gradient needs after one step of an LSTM."""
    projected, start = now
    hidden, memory = (jnp.where(start[:, None] > 0, 0.0, leaf) for leaf in carry)
    i, f, g, o = jnp.split(projected + hidden @ recurrent, 4, -1)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    new = f * memory + i * g
    squashed = jnp.tanh(new)
    return (o * squashed, new), (hidden, memory, i, f, g, o, squashed)


@jax.custom_vjp
def _unroll(recurrent: Any, projected: Any, start: Any, carry: Any) -> Any:
    """Outputs ``[T, B, H]`` of an LSTM, and its carry, which has no gradient."""
    return _unroll_forward(recurrent, projected, start, carry)[0]


def _unroll_forward(recurrent: Any, projected: Any, start: Any, carry: Any) -> Any:
    def step(carry: Any, now: Any) -> Any:
        carry, kept = _cell(recurrent, carry, now)
        return carry, (carry[0], kept)

    carry, (outputs, kept) = jax.lax.scan(step, carry, (projected, start))
    return (outputs, carry), (recurrent, start, kept)


def _unroll_backward(residuals: Any, grads: Any) -> Any:
    recurrent, start, kept = residuals

    def step(carry: Any, now: Any) -> Any:
        (d_hidden, d_memory), (grad, start, (_, memory, i, f, g, o, squashed)) = carry, now
        d_hidden = d_hidden + grad
        d_memory = d_memory + d_hidden * o * (1 - squashed**2)
        d_gates = [d_memory * g * i * (1 - i), d_memory * memory * f * (1 - f), d_memory * i * (1 - g**2)]
        d_gates = jnp.concatenate([*d_gates, d_hidden * squashed * o * (1 - o)], -1)
        goes_on = 1 - start[:, None]
        return (d_gates @ recurrent.T * goes_on, d_memory * f * goes_on), d_gates

    zeros = jnp.zeros_like(kept[0][0])
    _, d_gates = jax.lax.scan(step, (zeros, zeros), (grads[0], start, kept), reverse=True)
    return _by_rows(*(x.reshape(-1, x.shape[-1]) for x in (kept[0], d_gates))), d_gates, None, None


_unroll.defvjp(_unroll_forward, _unroll_backward)


def advantages(value: Any, reward: Any, done: Any, cut: Any) -> Any:
    """Generalised advantage estimates ``[T, B]`` from values ``[T + 1, B]``.

    None of a step that was cut, as its final observation is not kept.
    """
    delta = (reward + GAMMA * value[1:] * (1 - done) - value[:-1]) * (1 - cut)
    decay = GAMMA * LAMBDA * (1 - done) * (1 - cut)
    return jax.lax.scan(
        lambda later, now: (now[0] + now[1] * later,) * 2, jnp.zeros_like(delta[0]), (delta, decay), reverse=True
    )[1]


def _counted(statistics: Any, rows: Any) -> Any:
    """Count, mean and sum of squares with more rows."""
    count, mean, squares = statistics
    total, difference = count + len(rows), rows.mean(0) - mean
    squares = squares + ((rows - rows.mean(0)) ** 2).sum(0) + difference**2 * count * len(rows) / total
    return total, mean + difference * len(rows) / total, squares


def _scales(statistics: Any) -> tuple[Any, Any]:
    count, mean, squares = statistics
    return mean, jax.lax.rsqrt(squares / count + 1e-6)


def run(work: Work, recorder: Recorder) -> None:
    """Trains: as one programme where the environment is a JAX programme, else with a call an update."""
    if not work.env.startswith("brax/"):
        limit_host.run(work, recorder, _Learner)
    env = brax_env(work)
    ppo = _Ppo(Task(work, env.observation_size, env.action_size, discrete=False))

    def rollout(learner: Any, whole: Any, key: Any) -> Any:
        heads, (mean, scale) = ppo.heads(learner[0]), _scales(learner[3])
        noise = jax.random.normal(key, (work.rollout_length, work.num_envs, env.action_size))

        def step(now: Any, noise: Any) -> Any:
            carry, state, start = now
            x = (state.obs - mean) * scale
            carry, action, out = ppo.act(heads["actor"], carry, x, start, noise)
            following = env.step(state, jnp.tanh(action))
            cut = following.info["truncation"]
            row = (x, action, out, following.reward, following.done * (1 - cut), cut, start)
            return (carry, following, following.done), row

        (carry, critic), state, start = whole
        (carry, state, start), (x, action, out, *ends) = jax.lax.scan(step, (carry, state, start), noise)
        last = (state.obs - mean) * scale
        critic, value = ppo.apply(heads["critic"], critic, x, ends[-1])
        value = jnp.concatenate([value, ppo.apply(heads["critic"], critic, last, start)[1][None]])[..., 0]
        steps = Steps(x, action, ppo.likelihood(out, action), value, *ends)
        return ((carry, critic), state, start), steps

    def iteration(now: Any, key: Any) -> Any:
        learner, whole = now
        after, steps = rollout(learner, whole, key)
        return (ppo.update(learner, whole[0], steps, key), after), None

    state = jax.jit(env.reset)(jax.random.split(jax.random.PRNGKey(0), work.num_envs))
    now = (ppo.start(), (ppo.carries(), state, jnp.ones(work.num_envs)))
    alone, roll, key = unroll(env, env.action_size, work), jax.jit(rollout), jax.random.key(0)
    recorder.alone = {
        "environment": lambda: jax.block_until_ready(alone(state)),
        "rollout": lambda: jax.block_until_ready(roll(*now, key)),
    }
    several = jax.jit(lambda now, key: jax.lax.scan(iteration, now, jax.random.split(key, work.chunk))[0])
    steps = 0
    while True:
        key, one = jax.random.split(key)
        now = jax.block_until_ready(several(now, one))
        steps += work.chunk * work.steps
        recorder.iteration(steps)
