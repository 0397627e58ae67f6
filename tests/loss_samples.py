"""The loss of samples given as lists."""

from typing import Any

import numpy as np
import support

import multippo as mp
from multippo.algorithms.config import PPOConfig
from multippo.algorithms.losses import ppo_loss
from multippo.algorithms.types import Sequences
from multippo.trees import tree_leaves, tree_map

PLAIN = PPOConfig(normalize_advantages=False, critic_loss_weight=1.0, clip_range=0.2)


class Fixed(mp.StatefulModule):
    """Yields given log-likelihoods and values, [L, S] each, as parameters."""

    def __init__(self, log_likelihoods: Any, values: Any, regularization: Any = 0.0, entropies: Any = None) -> None:
        make = lambda tree: {k: mp.Param(v) for k, v in tree.items()} if isinstance(tree, dict) else mp.Param(tree)  # noqa: E731
        self.log_likelihoods, self.values = make(log_likelihoods), make(values)
        self.entropies = None if entropies is None else make(entropies)
        trees = (log_likelihoods, values, entropies)
        self.names = [sorted(tree) if isinstance(tree, dict) else None for tree in trees]
        self.regularization = regularization

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return self.unroll(state, x, None, rollout_extras)

    def unroll(self, state: Any, xs: Any, done: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        read = lambda held, names: held[...] if names is None else {n: held[n][...] for n in names}  # noqa: E731
        ll, values = read(self.log_likelihoods, self.names[0]), read(self.values, self.names[1])
        loss = self.engine.asarray(np.asarray(self.regularization, np.float32))
        entropies = None if self.entropies is None else read(self.entropies, self.names[2])
        output = mp.PPONetworkOutput(None, ll, values, entropies)
        return mp.StatefulModuleOutput((), output, loss, {"inner": {"entropy": loss}})


def row(values: Any) -> Any:
    """A list as [1, S]; trees leaf by leaf."""
    if isinstance(values, dict):
        return {name: row(value) for name, value in values.items()}
    return np.atleast_2d(np.asarray(values, np.float32))


def evaluate(engine: Any, new: Any, advantages: Any = None, *, config: PPOConfig | None = None, **more: Any) -> Any:
    """Loss, metrics, gradients by portable name, and the rest of the output, of samples given as lists; zeros where
    nothing is given."""
    zeros = tree_map(np.zeros_like, row(new))
    old = row(more.get("old", zeros))
    values, returns = row(more.get("values", zeros)), row(more.get("returns", zeros))
    entropies = row(more["entropies"]) if "entropies" in more else None
    network = Fixed(row(new), values, more.get("regularization", 0.0), entropies)
    shape = tree_leaves(old)[0].shape
    put = lambda tree: tree_map(engine.asarray, tree)  # noqa: E731
    sequences = Sequences(
        network_state=(),
        obs=put(np.zeros((*shape, 1), np.float32)),
        done=put(np.zeros(shape, bool)),
        valid=put(np.atleast_2d(more.get("valid", np.ones(shape, bool)))),
        rollout_extras=None,
        loglikelihoods=put(old),
        value_estimates=put(row(more.get("old_values", values))),
        advantages=put(zeros if advantages is None else row(advantages)),
        returns=put(returns),
    )
    parts = engine.split(network)
    merge = lambda p, v: engine.merge(parts.definition, p, v)  # noqa: E731
    of_params = lambda p, v: ppo_loss(merge(p, v), sequences, config or PLAIN, more.get("weight"))  # noqa: E731
    (loss, out), found = engine.value_and_grad(of_params)(parts.params, parts.variables)
    grads = {name.removesuffix(".value"): engine.to_numpy(grad) for name, grad in engine.named_params(found)}
    number = lambda x: float(support.to_numpy(x))  # noqa: E731
    metrics = {name: number(value) for name, value in out.metrics.items()}
    return number(loss), metrics, grads, tree_map(number, tuple(out[1:]))
