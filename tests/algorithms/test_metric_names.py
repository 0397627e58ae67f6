"""The table of metrics has every name that runs log on either engine, and no other."""

import functools
from typing import Any

import multippo as mp
from multippo.algorithms.metric_names import METRICS, metric_of

OPTIONS: dict[str, Any] = {"entropy_weight": 0.1, "target_kl": 1.0, "value_clip_range": 0.5, "reward_clip": 10.0}
SIZES: dict[str, Any] = {"rollout_length": 8, "num_epochs": 1, "num_minibatches": 1, "total_steps": 32}


@functools.cache
def logged(backend: str, kind: str) -> frozenset[str]:
    """Names that a run of two iterations in CartPole and its evaluations log."""
    found: set[str] = set()
    with mp.use_backend(backend):
        env = mp.make_env("CartPole-v1", num_envs=2)
        spaces = env.observation_space, env.action_space
        student, teacher = (
            mp.make_recurrent_actor_critic(*spaces, hidden_features=4, rngs=mp.Rngs(seed))
            if kind == "lstm"
            else mp.make_mlp_actor_critic(*spaces, actor_hidden_sizes=[4], critic_hidden_sizes=[4], rngs=mp.Rngs(seed))
            for seed in (0, 1)
        )
        if kind == "distillation":
            config = mp.DistillationTrainConfig(distillation=mp.DistillationConfig(**SIZES))
            mp.train_distillation(env, teacher, student, config, log_fn=found.update)
        else:
            evaluation = mp.EvalConfig(num_episodes=1)
            options = OPTIONS if kind == "mlp" else {}
            config = mp.TrainConfig(ppo=mp.PPOConfig(**SIZES, **options), eval=evaluation)
            mp.train_ppo(env, student, config, log_fn=found.update)
        env.close()
    return frozenset(found)


def test_no_logged_name_is_missing_and_none_is_there_for_nothing():
    names = frozenset[str]().union(*(logged("torch", kind) for kind in ("mlp", "lstm", "distillation")))
    assert [name for name in names if metric_of(name) is None] == []
    described = {name for group in METRICS.values() for name in group if not name.rpartition("/")[2].isupper()}
    assert described - names == set()


def test_both_engines_log_the_same_names():
    assert logged("jax", "mlp") == logged("torch", "mlp")
