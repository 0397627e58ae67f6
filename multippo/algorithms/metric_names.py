"""Every metric of a run by its name: unit and meaning.

A metric added to the training loop, the losses or an evaluation has its entry here, from which the reference page of
metrics is made; a test compares the names with those that runs log.
"""

from __future__ import annotations

from typing import NamedTuple

RETURN, EVAL_RETURN = "rollout/episode_reward/mean", "eval/episode_reward/mean"
RECENT_RETURN = "rollout/episode_reward_100/mean"


class Metric(NamedTuple):
    """Unit and meaning of a metric."""

    unit: str
    meaning: str


_PER_EPISODE = {"mean": "mean", "std": "(population) standard deviation", "min": "least", "max": "largest"}
_LENGTHS, _RETURNS = ("steps", "lengths"), ("reward", "returns, sums over several rewards,")

METRICS: dict[str, dict[str, Metric]] = {
    "Progress": {
        "step": Metric("steps", "Environment steps taken since the run began, in all environments together."),
        "iteration": Metric("", "Rollouts and updates since the run began."),
        "time/elapsed_s": Metric("s", "Time since this process began or resumed the run, evaluations included."),
        "time/compile_s": Metric("s", "The part of it in which programmes were compiled."),
        "throughput/train_sps": Metric("steps/s", "Environment steps per second of rollout and update."),
    },
    "Episodes of the rollout": {
        "rollout/episodes": Metric("", "Episodes that ended in this rollout."),
        RETURN: Metric("reward", "Mean return of these episodes; NaN if there are none."),
        "rollout/episode_length/mean": Metric("steps", "Mean length of these episodes."),
        **{
            f"rollout/episode_{kind}_100/{name}": Metric(
                unit,
                f"{_PER_EPISODE[name].capitalize()} of the {what} of the last 100 episodes, which a resumed run keeps.",
            )
            for kind, (unit, what) in (("reward", _RETURNS), ("length", _LENGTHS))
            for name in ("mean", "std")
        },
        "rollout/reward/KEY": Metric("reward", "Mean of one of several rewards over the steps of the rollout."),
        "rollout/nonfinite_steps": Metric("steps", "Steps in which the environment gave a value that is not finite."),
        "env/NAME": Metric("", "Mean of a metric of the environment over the steps of the rollout."),
    },
    "Losses, means over the update's minibatches": {
        "losses/actor": Metric("", "Clipped surrogate objective, negated."),
        "losses/critic": Metric(
            "squared return", "Squared error of the value estimates; clipped by `value_clip_range`."
        ),
        "losses/entropy": Metric("nat", "Entropy times `entropy_weight`, negated; only where that is set."),
        "losses/regularization": Metric("", "Sum of the modules' own losses, such as a sampler's entropy bonus."),
        "losses/total": Metric("", "What is minimised: their sum, the critic's loss times `critic_loss_weight`."),
        "losses/distillation": Metric(
            "nat", "Distillation: negative log-likelihood of the teacher's actions, or the divergence from the teacher."
        ),
    },
    "Policy": {
        "entropy/mean": Metric("nat", "Entropy of the policy, summed over the keys of an action."),
        "entropy/mean/KEY": Metric("nat", "Entropy of one of several keys."),
        "entropy/weight": Metric("", "Weight of the entropy in the loss, where `entropy_weight` is set."),
        "kl/approx": Metric(
            "nat", "Divergence of the policy from that of the rollout, estimated by `mean((rho - 1) - log rho)`."
        ),
        "kl/stop": Metric("nat", "Divergence that exceeded `target_kl` and ended the epochs; NaN for none."),
        "kl/teacher": Metric("nat", "Distillation: divergence of the student from the teacher."),
        "ratio/first_max_dev": Metric(
            "",
            "Largest distance of a likelihood ratio from 1 in the first minibatch, before "
            "any step: 0 but for rounding, where replay repeats the rollout.",
        ),
        "ratio/last_max_dev": Metric("", "The same in the last minibatch: how far the update went."),
        "ratio/clip_fraction": Metric("share", "Ratios outside the clip range."),
    },
    "Critic": {
        "value/explained_variance": Metric(
            "share",
            "Part of the variance of the value targets that the rollout's "
            "estimates explain, before the update: 1 at best, 0 for a constant; 0 too where all targets are equal.",
        ),
        "value/explained_variance/KEY": Metric("share", "The same of one of several rewards."),
        "value/clip_fraction": Metric("share", "Value estimates beyond `value_clip_range`, where that is set."),
    },
    "Rewards as they are learnt": {
        "reward/scale": Metric("reward", "Divisor of the rewards, where `scale_rewards` is on."),
        "reward/scale/KEY": Metric("reward", "The same for one of several rewards."),
        "reward/clip_fraction": Metric("share", "Rewards that were clipped, where `reward_clip` is set."),
    },
    "Update": {
        "learning_rate": Metric("", "Learning rate of this update."),
        "gradient/norm": Metric("", "Global norm of the gradient before clipping, mean over minibatches."),
        "update/minibatches": Metric("", "Minibatches that a step was taken on."),
        "network/PATH": Metric("", "A metric of a module of the network, under its path, mean over minibatches."),
    },
    "Evaluation": {
        **{
            f"eval/episode_{kind}/{name}": Metric(
                unit, f"{words.capitalize()} of the episodes' {what.partition(',')[0]}."
            )
            for kind, (unit, what) in (("reward", _RETURNS), ("length", _LENGTHS))
            for name, words in _PER_EPISODE.items()
        },
        "eval/lifespan/mean": Metric("steps", "Earlier name of `eval/episode_length/mean`, until the next version."),
        "eval/episodes": Metric("", "Episodes played."),
        "eval/nonfinite_episodes": Metric("", "Episodes cut since the environment gave a value that is not finite."),
    },
}
"""Metrics by the heading they belong to. A last part in capitals stands for a name of the user's."""


def metric_of(name: str) -> Metric | None:
    """Unit and meaning of a metric that a run logs; None if there is no such metric.

    >>> metric_of("reward/scale/speed").unit
    'reward'
    """
    known = {pattern: metric for group in METRICS.values() for pattern, metric in group.items()}
    stems = (pattern for pattern in known if pattern.rpartition("/")[2].isupper())
    near = next((pattern for pattern in stems if name.startswith(pattern.rpartition("/")[0] + "/")), "")
    return known.get(name, known.get(near))
