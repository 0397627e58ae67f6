"""What the tests of the samplers share."""

from typing import Any

import numpy as np
from support import compiled, to_numpy, total

import multippo as mp
from multippo.trees import tree_leaves, tree_map

NVEC = np.asarray([[2, 1], [3, 2]])
"""Of unequal choices, one of them none, on two axes."""

# Name -> how to make it, and the features of its input.
SAMPLERS: dict[str, Any] = {
    "normal_tanh": (lambda: mp.NormalTanhSampler(mp.Rngs(0)), 6),
    "normal_tanh_entropy": (lambda: mp.NormalTanhSampler(mp.Rngs(0), 0.01, action_shape=(3, 1)), 6),
    "normal": (lambda: mp.NormalSampler(mp.Rngs(0), 0.01), 6),
    "normal_independent": (
        lambda: mp.NormalSampler(mp.Rngs(0), 0.01, action_shape=(2, 2), state_dependent_std=False, initial_std=0.6),
        4,
    ),
    "categorical": (lambda: mp.CategoricalSampler(mp.Rngs(0), 0.01), 6),
    "multi_categorical": (lambda: mp.MultiCategoricalSampler(NVEC, mp.Rngs(0), 0.01), 8),
    "multi_categorical_equal": (lambda: mp.MultiCategoricalSampler([3, 3], mp.Rngs(0), 0.01), 6),
    "bernoulli": (lambda: mp.BernoulliSampler(mp.Rngs(0), 0.01, action_shape=(2, 2)), 4),
}


def evaluate(sampler: Any, x: Any, raw: Any = None) -> Any:
    """One call from a fresh carry: samples, or evaluates stored samples."""
    x, raw = (tree_map(lambda a: sampler.engine.asarray(np.asarray(a)), tree) for tree in (x, raw))
    batch = tree_leaves(x)[0].shape[0]
    return compiled(sampler, lambda sampler, x, raw: sampler(sampler.initialize_state(batch), x, raw))(x, raw)


def sample(sampler: Any, x: Any) -> Any:
    return evaluate(sampler, x)


def kl(sampler: Any, old: Any, new: Any) -> np.ndarray:
    """KL(old || new) of two inputs."""
    old, new = (tree_map(lambda a: sampler.engine.asarray(np.asarray(a)), tree) for tree in (old, new))
    of = lambda s, old, new: s.kl_divergence(s.distribution(old), s.distribution(new))  # noqa: E731
    return to_numpy(compiled(sampler, of)(old, new))


def slopes(
    sampler: Any, x: np.ndarray, raw: Any = None, mask: Any = None, *, reverse: bool = True
) -> dict[str, np.ndarray]:
    """Everything a call yields, of fresh samples and of stored ones, and the gradient of all its numbers by the input.

    KL divergences are included: with ``reverse`` to the other environments' distributions, from the last to the first.
    Where those exclude something they are infinite, as they should be; so with a mask they are to their own.

    Args:
        sampler: The sampler.
        x: Its input ``[B, ...]``, or the logits.
        raw: Stored samples, or a function that makes them of the fresh ones; the results are theirs. None: fresh ones.
        mask: Of the logits.
        reverse: See above.
    """
    engine = sampler.engine
    state = sampler.initialize_state(len(x))

    def loss(given: Any, raw: Any, mask: Any) -> tuple[Any, Any]:
        x = given["x"] if mask is None else {"logits": given["x"], "mask": mask}
        fresh = sampler(state, x)
        stored = change(fresh.rollout_extras) if change else raw
        out = fresh if stored is None else sampler(state, x, stored)
        old = sampler.distribution(x)
        other = tree_map(lambda leaf: sampler.xp.flip(leaf, axis=0), old)
        divergence = sampler.kl_divergence(old, other if reverse and mask is None else old)
        fresh = (fresh.output, fresh.regularization_loss)
        found = (fresh, out.output, out.regularization_loss, out.metrics, divergence)
        return total(sampler.xp, found), (fresh[0], out.output, out.metrics, divergence)

    change = raw if callable(raw) else None
    given = {"x": engine.asarray(x)}
    if engine.name == "torch":
        given["x"].requires_grad_(True)
    raw, mask = (None if a is None or callable(a) else engine.asarray(np.asarray(a)) for a in (raw, mask))
    (value, (fresh, output, metrics, divergence)), grads = engine.jit(engine.value_and_grad(loss))(given, raw, mask)
    fresh = {f"fresh {name}": array for name, array in fresh.items()}
    return to_numpy({"value": value, "gradient": grads["x"], "kl": divergence, **fresh, **output, **metrics})


def assert_finite(found: dict[str, np.ndarray]) -> None:
    for name, array in found.items():
        assert np.isfinite(array).all(), f"{name}: {array}"
