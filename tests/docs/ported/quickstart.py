"""nnx-ppo's first tutorial: an MLP trained on CartPole, evaluated as it goes."""

from multippo import nnx
from multippo.algorithms import ppo
from multippo.algorithms.config import EvalConfig, PPOConfig, TrainConfig
from multippo.envs import make_env
from multippo.networks.factories import make_mlp_actor_critic

SEED = 0


def run(env_id="CartPole-v1", num_envs=4, total_steps=256):
    env = make_env(env_id, num_envs=num_envs)
    nets = make_mlp_actor_critic(
        obs_size=env.observation_space,
        action_size=env.action_space,
        actor_hidden_sizes=[16, 16],
        critic_hidden_sizes=[16, 16],
        rngs=nnx.Rngs(SEED),
        activation=nnx.swish,
        normalize_obs=True,
    )
    config = TrainConfig(
        ppo=PPOConfig(
            n_envs=num_envs,
            rollout_length=20,
            total_steps=total_steps,
            n_epochs=4,
            n_minibatches=4,
            learning_rate=3e-4,
        ),
        eval=EvalConfig(enabled=True, every_steps=100, n_envs=2, max_episode_length=50),
        seed=SEED,
    )
    history = []

    def log_fn(metrics, steps):
        if "eval/episode_reward/mean" in metrics:
            history.append((steps, metrics["eval/episode_reward/mean"]))

    result = ppo.train_ppo(env=env, networks=nets, config=config, log_fn=log_fn)
    for entry in result.eval_history:
        print(entry["step"], entry["eval/episode_reward/mean"])
    return nets, result, history
