"""Rewards in units of the spread of returns, so that one learning rate suits every task.

A value network that has to reach -1,000 drowns the policy's gradient under a joint norm clip; the advice is old
(Engstrom et al., 2020, arXiv:2005.12729, section 3; Andrychowicz et al., 2021, arXiv:2006.05990).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from multippo.algorithms.advantages import linear_recurrence, mean_over
from multippo.algorithms.types import Transition
from multippo.trees import named_leaves, tree_leaves, tree_map, tree_sum


class RewardScale(NamedTuple):
    """Moments of the discounted return, for each leaf of the rewards.

    Attributes:
        discounted: ``[B]`` discounted sum of the rewards of the episode so far.
        count: Scalar, samples seen; stops growing at 2**23, from where on old samples fade.
        mean: Scalar.
        m2: Scalar, sum of squared deviations.
    """

    discounted: Any
    count: Any
    mean: Any
    m2: Any


_MOST = 2.0**23
_LEAST_SPREAD = 0.1
_TINY = 1e-12


def initial_scale(xp: Any, zeros: Any, rewards: Any) -> Any:
    """Scales before the first reward.

    Args:
        xp: Array namespace.
        zeros: ``[B]`` zeros.
        rewards: Tree of rewards, for its structure.
    """
    zero = xp.sum(zeros)
    return tree_map(lambda _: RewardScale(zeros + 0, zero + 0, zero + 0, zero + 0), rewards)


def scale_rewards(xp: Any, scales: Any, transition: Transition, discount: float) -> tuple[Any, Any]:
    """Folds a rollout into the moments, and divides its rewards by the standard deviation of the discounted return.

    ``G_t = r_t + discount G_{t-1}``, from 0 in each episode. The divisor is ``max(std(G), |mean(G)| / 10)``:
    where all returns are nearly the same, their size counts, and the mean scaled return is at most 10. The scaled
    rewards do not depend on the unit of the rewards.

    Args:
        xp: Array namespace.
        scales: Tree of ``RewardScale``, like the rewards.
        transition: Rollout with rewards in the network's floating-point type.
        discount: gamma.

    Returns:
        The new scales, and the scaled rewards.
    """
    rewards = transition.rewards
    news = tree_map(lambda reward, old: _folded(xp, old, reward, transition, discount), rewards, scales)
    return news, tree_map(lambda reward, new: reward / _divisor(xp, new), rewards, news)


def _folded(xp: Any, old: RewardScale, reward: Any, transition: Transition, discount: float) -> RewardScale:
    valid, counted = transition.valid, transition.counted
    # A reward that is not finite stops the run; spread to other steps, it would be reported at a wrong one.
    reward_t = xp.where(counted & xp.isfinite(reward), reward, xp.zeros_like(reward))
    going = xp.where(transition.done, xp.zeros_like(reward), xp.ones_like(reward))
    # The sum stands still over a step that is not valid: the step before has reset it.
    decay = xp.where(valid[1:], discount * going[:-1], going[:-1])
    first = discount * old.discounted + reward_t[0]
    decay = xp.concat([xp.ones_like(going[:1]), decay], axis=0)
    g_t = linear_recurrence(xp, decay, xp.concat([first[None], reward_t[1:]], axis=0))
    weight = xp.astype(counted, reward.dtype)
    size = xp.sum(weight)
    some = xp.maximum(size, xp.ones_like(size))
    mean = xp.sum(weight * g_t) / some
    m2 = xp.sum(weight * (g_t - mean) ** 2)
    total = xp.maximum(old.count + size, xp.ones_like(size))
    delta = mean - old.mean
    m2 = old.m2 + m2 + delta**2 * (old.count * size / total)
    kept = xp.minimum(total, xp.full_like(total, _MOST))
    moments = kept, old.mean + delta * (size / total), m2 * (kept / total)
    # A return whose square is not finite would make every later reward 0: such a rollout leaves the moments alone.
    fits = xp.isfinite(moments[1]) & xp.isfinite(moments[2])
    moments = [xp.where(fits, a, b) for a, b in zip(moments, (old.count, old.mean, old.m2), strict=True)]
    return RewardScale(g_t[-1] * going[-1], *moments)


def _divisor(xp: Any, scale: RewardScale) -> Any:
    spread = xp.sqrt(scale.m2 / xp.maximum(scale.count, xp.ones_like(scale.count)))
    return xp.maximum(spread, xp.maximum(_LEAST_SPREAD * xp.abs(scale.mean), xp.full_like(spread, _TINY)))


def divisors(xp: Any, scales: Any, rewards: Any) -> dict[str, Any]:
    """Divisors of rewards, for the log: ``reward/scale``, or of several rewards ``reward/scale/KEY``.

    Args:
        xp: Array namespace.
        scales: Scales from ``scale_rewards``.
        rewards: A tree of rewards, for its names.
    """
    found = tree_map(lambda _, scale: _divisor(xp, scale), rewards, scales)
    return {f"reward/scale{f'/{name}' if name else ''}": divisor for name, divisor in named_leaves(found)}


def clip_rewards(xp: Any, transition: Transition, reach: float) -> tuple[Any, Any]:
    """Clips rewards to ``[-reach, reach]``, as OpenAI Baselines' VecNormalize does after scaling.

    A reward that is not finite stays, since it stops the run.

    Args:
        xp: Array namespace.
        transition: Rollout with rewards in the network's floating-point type.
        reach: Bound, above 0.

    Returns:
        The clipped rewards, and the share that was clipped of those that count.
    """

    def clip(reward: Any) -> Any:
        return xp.where(xp.isfinite(reward), xp.clip(reward, -reach, reach), reward)

    def share(reward: Any) -> Any:
        return mean_over(xp, transition.counted, reward.dtype)(xp.astype(xp.abs(reward) > reach, reward.dtype))

    shares = [share(reward) for reward in tree_leaves(transition.rewards)]
    return tree_map(clip, transition.rewards), tree_sum(shares) / len(shares)
