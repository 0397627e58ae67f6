"""PPO a second time, in NumPy alone: loops and derivatives written out from the papers' equations, in float64.

Nothing here knows the library. Axes: ``T`` steps, ``B`` environments, ``L`` steps of a sequence, ``S`` sequences.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray
Params = dict[str, Array]
Layers = list[tuple[str, bool]]
"""Names of dense layers, and whether tanh follows."""


# -- layers: each forward pass returns what its backward pass needs


def dense_forward(params: Params, layers: Layers, x: Array) -> tuple[Array, list[Array]]:
    """Dense layers on the last axis."""
    kept = [x]
    for name, squashed in layers:
        x = x @ params[f"{name}.kernel"] + params[f"{name}.bias"]
        x = np.tanh(x) if squashed else x
        kept.append(x)
    return x, kept


def dense_backward(params: Params, layers: Layers, kept: list[Array], grad: Array, grads: Params) -> Array:
    """Adds to ``grads``, and returns the gradient by the input."""
    for (name, squashed), x, y in reversed(list(zip(layers, kept[:-1], kept[1:], strict=True))):
        grad = grad * (1.0 - y**2) if squashed else grad
        rows, out = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
        grads[f"{name}.kernel"] += rows.T @ out
        grads[f"{name}.bias"] += out.sum(0)
        grad = grad @ params[f"{name}.kernel"].T
    return grad


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def lstm_step(params: Params, name: str, x: Array, h: Array, c: Array) -> tuple[Array, Array, tuple[Array, ...]]:
    """Hochreiter and Schmidhuber's cell with a forget gate (Gers et al., 2000); gates i, f, g, o."""
    z = x @ params[f"{name}.input_kernel"] + h @ params[f"{name}.recurrent_kernel"] + params[f"{name}.bias"]
    zi, zf, zg, zo = np.split(z, 4, axis=-1)
    i, f, g, o = sigmoid(zi), sigmoid(zf), np.tanh(zg), sigmoid(zo)
    c_new = f * c + i * g
    return o * np.tanh(c_new), c_new, (x, h, c, i, f, g, o, c_new)


def lstm_forward(
    params: Params, name: str, xs: Array, done: Array, h: Array, c: Array
) -> tuple[Array, Array, Array, list[Any]]:
    """Over time, with the carry set to 0 after a step that ended an episode."""
    hs, tape = [], []
    for x, ended in zip(xs, done, strict=True):
        h, c, kept = lstm_step(params, name, x, h, c)
        hs.append(h)
        tape.append((kept, ended))
        going = 1.0 - ended[:, None]
        h, c = h * going, c * going
    return np.stack(hs), h, c, tape


def lstm_backward(params: Params, name: str, tape: list[Any], grad_hs: Array, grads: Params) -> None:
    """Back-propagation through the steps of a sequence, and no further (Werbos, 1990)."""
    grad_h, grad_c = np.zeros_like(grad_hs[0]), np.zeros_like(grad_hs[0])
    for ((x, h, c, i, f, g, o, c_new), ended), from_above in zip(reversed(tape), grad_hs[::-1], strict=True):
        going = 1.0 - ended[:, None]
        dh = from_above + grad_h * going
        squashed = np.tanh(c_new)
        dc = grad_c * going + dh * o * (1.0 - squashed**2)
        dz = np.concatenate(
            [dc * g * i * (1 - i), dc * c * f * (1 - f), dc * i * (1 - g**2), dh * squashed * o * (1 - o)], axis=-1
        )
        grads[f"{name}.input_kernel"] += x.T @ dz
        grads[f"{name}.recurrent_kernel"] += h.T @ dz
        grads[f"{name}.bias"] += dz.sum(0)
        grad_h, grad_c = dz @ params[f"{name}.recurrent_kernel"].T, dc * f


# -- heads: log-likelihood and entropy, and their derivatives by the head's input


@dataclasses.dataclass
class Head:
    """What a policy says of its actions, ``[L, S]``, and how that changes with the head's input ``[L, S, F]``."""

    log_likelihood: Array
    entropy: Array
    by_log_likelihood: Array
    by_entropy: Array


def categorical(x: Array, action: Array) -> Head:
    """A choice among N by logits ``[..., N]``."""
    p = np.exp(x - x.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    log_p = np.log(p)
    chosen = np.eye(x.shape[-1])[action]
    entropy = -(p * log_p).sum(-1)
    return Head((chosen * log_p).sum(-1), entropy, chosen - p, -p * (log_p + entropy[..., None]))


def gaussian(x: Array, action: Array, least_std: float) -> Head:
    """A Gaussian of mean ``x[..., :A]`` and standard deviation ``log(1 + exp(x[..., A:])) + least_std``."""
    mean, raw = np.split(x, 2, axis=-1)
    std = np.log1p(np.exp(raw)) + least_std
    by_raw = sigmoid(raw)
    z = (action - mean) / std
    return Head(
        (-0.5 * z**2 - np.log(std) - 0.5 * np.log(2 * np.pi)).sum(-1),
        (np.log(std) + 0.5 * np.log(2 * np.pi * np.e)).sum(-1),
        np.concatenate([z / std, (z**2 - 1) / std * by_raw], axis=-1),
        np.concatenate([np.zeros_like(mean), by_raw / std], axis=-1),
    )


# -- networks


@dataclasses.dataclass
class Network:
    """Actor and critic, either side by side on the observation, or on one LSTM.

    Attributes:
        actor: Its dense layers.
        critic: Its dense layers.
        head: ``categorical``, or ``gaussian`` with its least standard deviation.
        lstm: Name of the LSTM in front of both, or None.
        hidden: Its units.
    """

    actor: Layers
    critic: Layers
    head: Callable[[Array, Array], Head]
    lstm: str | None = None
    hidden: int = 0

    def act(self, params: Params, obs: Array, carry: tuple[Array, Array]) -> tuple[Array, Array, tuple[Array, Array]]:
        """The head's input and the value of one step ``[B, ...]``, and the carry after it."""
        features = obs
        if self.lstm is not None:
            h, c, _ = lstm_step(params, self.lstm, obs, *carry)
            features, carry = h, (h, c)
        x, value = dense_forward(params, self.actor, features)[0], dense_forward(params, self.critic, features)[0]
        return x, value[..., 0], carry

    def loss_and_gradient(self, params: Params, batch: Params, config: Any) -> tuple[dict[str, float], Params]:
        """Loss terms of one minibatch ``[L, S]``, and the gradient of their sum."""
        grads = {name: np.zeros_like(value) for name, value in params.items()}
        features, tape = batch["obs"], []
        if self.lstm is not None:
            features, _, _, tape = lstm_forward(params, self.lstm, batch["obs"], batch["done"], batch["h"], batch["c"])
        x, kept_actor = dense_forward(params, self.actor, features)
        value, kept_critic = dense_forward(params, self.critic, features)
        head = self.head(x, batch["action"])
        terms, by_log_likelihood, by_value, by_entropy = ppo_terms(
            head.log_likelihood, value[..., 0], head.entropy, batch, config
        )
        by_x = by_log_likelihood[..., None] * head.by_log_likelihood + by_entropy * head.by_entropy
        by_features = dense_backward(params, self.actor, kept_actor, by_x, grads)
        by_features = by_features + dense_backward(params, self.critic, kept_critic, by_value[..., None], grads)
        if self.lstm is not None:
            lstm_backward(params, self.lstm, tape, by_features, grads)
        return terms, grads


# -- the objective


def ppo_terms(
    log_likelihood: Array, value: Array, entropy: Array, batch: dict[str, Array], config: Any
) -> tuple[dict[str, float], Array, Array, float]:
    """Equations 7 and 9 of Schulman et al., 2017, with PPO2's clipped value loss; and derivatives.

    The derivatives are those of the total by log-likelihood, by value, and by the entropy at each step (one number).
    """
    size, eps, reach = value.size, config.clip_range, config.value_clip_range
    advantage = batch["advantage"]
    if config.advantage_normalization == "minibatch":
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = np.exp(log_likelihood - batch["log_likelihood"])
    surrogate = np.minimum(ratio * advantage, np.clip(ratio, 1 - eps, 1 + eps) * advantage)
    held = ((ratio > 1 + eps) & (advantage > 0)) | ((ratio < 1 - eps) & (advantage < 0))
    error, near = value - batch["return"], np.clip(value, batch["value"] - reach, batch["value"] + reach)
    error_near = near - batch["return"]
    follows = (error**2 >= error_near**2) | (near == value)
    terms = {
        "losses/actor": -surrogate.mean(),
        "losses/critic": np.maximum(error**2, error_near**2).mean(),
        "entropy/mean": entropy.mean(),
        "ratio/clip_fraction": (np.abs(ratio - 1) > eps).mean(),
        "value/clip_fraction": (near != value).mean(),
        "kl/approx": (ratio - 1 - np.log(ratio)).mean(),
    }
    weight = config.critic_loss_weight
    terms["losses/total"] = (
        terms["losses/actor"] + weight * terms["losses/critic"] - config.entropy_weight * terms["entropy/mean"]
    )
    by_log_likelihood = np.where(held, 0.0, -advantage * ratio) / size
    by_value = weight * np.where(follows, 2 * error, 0.0) / size
    return terms, by_log_likelihood, by_value, -config.entropy_weight / size


def advantages(rollout: dict[str, Array], config: Any, v_t: Array, v_last: Array) -> tuple[Array, Array]:
    """Schulman et al., 2016, equations 11 to 16, one environment and one step at a time from the end."""
    gamma, lam = config.discounting_factor, config.gae_lambda
    time, batch = rollout["reward"].shape
    found = np.zeros((time, batch))
    for b in range(batch):
        trace = 0.0
        for t in reversed(range(time)):
            if rollout["terminated"][t, b]:
                following, trace = 0.0, 0.0
            elif rollout["truncated"][t, b]:
                following, trace = rollout["bootstrap"][t, b], 0.0
            else:
                following = v_last[b] if t == time - 1 else v_t[t + 1, b]
            delta = rollout["reward"][t, b] + gamma * following - v_t[t, b]
            trace = delta + gamma * lam * trace
            found[t, b] = trace
    returns = found + v_t
    if config.advantage_normalization == "batch":
        found = (found - found.mean()) / (found.std() + 1e-8)
    return found, returns


class Adam:
    """Kingma and Ba, 2015, algorithm 1, on a clipped gradient, with Loshchilov and Hutter's decoupled decay."""

    def __init__(self, params: Params, config: Any) -> None:
        self.first = {name: np.zeros_like(value) for name, value in params.items()}
        self.second = {name: np.zeros_like(value) for name, value in params.items()}
        self.count, self.config = 0, config

    def step(self, params: Params, grads: Params, rate: float) -> tuple[Params, float]:
        """The new parameters, and the norm before clipping."""
        config, (beta1, beta2) = self.config, self.config.adam_betas
        norm = float(np.sqrt(sum((grad**2).sum() for grad in grads.values())))
        shrink = min(1.0, config.gradient_clipping / norm)
        self.count += 1
        new: Params = {}
        for name, value in params.items():
            grad = grads[name] * shrink
            self.first[name] = beta1 * self.first[name] + (1 - beta1) * grad
            self.second[name] = beta2 * self.second[name] + (1 - beta2) * grad**2
            first = self.first[name] / (1 - beta1**self.count)
            second = self.second[name] / (1 - beta2**self.count)
            step = first / (np.sqrt(second) + config.adam_epsilon)
            new[name] = value - rate * step - rate * config.weight_decay * value
        return new, norm


def update(
    network: Network, params: Params, rollout: dict[str, Array], order: Array, config: Any, rate: float
) -> tuple[Params, dict[str, float], Adam]:
    """Epochs of minibatches over a rollout.

    Args:
        network: What is trained.
        params: Its parameters.
        rollout: ``[T, B, ...]``, with the carry ``h`` and ``c`` ``[T, B, H]`` before each step, and ``v_last`` ``[B]``.
        order: ``[minibatches of all epochs, sequences of each]``. Sequence s is chunk ``s // B`` of environment
            ``s % B``.
        config: Coefficients and sizes.
        rate: Learning rate.

    Returns:
        The parameters, the mean of each loss term over the minibatches, and the optimiser.
    """
    found, returns = advantages(rollout, config, rollout["value"], rollout["v_last"])
    optimizer, length = Adam(params, config), config.sequence_length
    num_envs = returns.shape[1]
    logs: list[dict[str, float]] = []
    for number, sequences in enumerate(order):
        if config.recompute_advantages and number % config.num_minibatches == 0:
            found, returns = advantages(rollout, config, *values_now(network, params, rollout))
        places = [(s // num_envs * length, s % num_envs) for s in sequences]

        def cut(x: Array, places: list[tuple[int, int]] = places) -> Array:
            return np.stack([x[t : t + length, b] for t, b in places], axis=1)

        batch = {
            **{name: cut(rollout[name]) for name in ("obs", "action", "log_likelihood", "value")},
            "done": cut(1.0 * (rollout["terminated"] | rollout["truncated"])),
            "advantage": cut(found),
            "return": cut(returns),
            "h": np.stack([rollout["h"][t, b] for t, b in places]),
            "c": np.stack([rollout["c"][t, b] for t, b in places]),
        }
        terms, grads = network.loss_and_gradient(params, batch, config)
        if config.target_kl is not None and terms["kl/approx"] > config.target_kl:
            break
        params, norm = optimizer.step(params, grads, rate)
        logs.append({**terms, "gradient/norm": norm})
    return params, {name: float(np.mean([log[name] for log in logs])) for name in logs[0]}, optimizer


def values_now(network: Network, params: Params, rollout: dict[str, Array]) -> tuple[Array, Array]:
    """Values of the observations under ``params``, a step at a time from the carry at the start of the rollout."""
    carry, values = (rollout["h"][0], rollout["c"][0]), []
    for t in range(len(rollout["reward"])):
        _, value, carry = network.act(params, rollout["obs"][t], carry)
        values.append(value)
        going = 1.0 - (rollout["terminated"][t] | rollout["truncated"][t])[:, None]
        carry = (carry[0] * going, carry[1] * going)
    last = network.act(params, rollout["obs_last"], (rollout["h_last"], rollout["c_last"]))[1]
    return np.stack(values), last


# -- data


def record(
    network: Network,
    params: Params,
    features: int,
    sample: Callable[[np.random.Generator, Array], Array],
    time: int,
    batch: int,
    seed: int,
) -> dict[str, Array]:
    """A rollout in a world of random numbers, acted in under ``params``, with both kinds of ends inside.

    Environment 0 never ends, 1 ends at the first step and at the last, 2 at two steps in a row.
    """
    rng = np.random.default_rng(seed)
    terminated, truncated = np.zeros((2, time, batch), bool)
    terminated[0, 1] = truncated[-1, 1] = truncated[2, 2] = terminated[3, 2] = True
    others = rng.uniform(size=(time, batch - 3)) < 0.3
    kind = rng.uniform(size=others.shape) < 0.5
    terminated[:, 3:], truncated[:, 3:] = others & kind, others & ~kind
    obs = rng.normal(size=(time + 1, batch, features))
    carry = (0.3 * rng.normal(size=(batch, network.hidden)), 0.3 * rng.normal(size=(batch, network.hidden)))
    rows: dict[str, list[Array]] = {name: [] for name in ("action", "log_likelihood", "value", "bootstrap", "h", "c")}
    for t in range(time):
        before = carry
        x, value, carry = network.act(params, obs[t], before)
        action = sample(rng, x)
        bootstrap = network.act(params, rng.normal(size=(batch, features)), carry)[1]
        row = (action, network.head(x, action).log_likelihood, value, np.where(truncated[t], bootstrap, 0.0), *before)
        for name, entry in zip(rows, row, strict=True):
            rows[name].append(entry)
        going = 1.0 - (terminated[t] | truncated[t])[:, None]
        carry = (carry[0] * going, carry[1] * going)
    return {
        **{name: np.stack(entries) for name, entries in rows.items()},
        "obs": obs[:-1],
        "obs_last": obs[-1],
        "reward": rng.normal(1.0, 2.0, size=(time, batch)),
        "terminated": terminated,
        "truncated": truncated,
        "h_last": carry[0],
        "c_last": carry[1],
        "v_last": network.act(params, obs[-1], carry)[1],
    }
