"""nnx-ppo's first tutorial: an MLP trained on CartPole, evaluated as it goes."""

from multippo.algorithms import ppo
from multippo.algorithms.config import EvalConfig, PPOConfig, TrainConfig
from multippo.envs import make_env
from multippo.networks.factories import make_mlp_actor_critic
from multippo.rngs import Rngs

SEED = 0


def run(env_id="CartPole-v1", num_envs=4, total_steps=256):
    env = make_env(env_id, num_envs=num_envs)
    nets = make_mlp_actor_critic(
        env.observation_space,
        env.action_space,
        actor_hidden_sizes=[16, 16],
        critic_hidden_sizes=[16, 16],
        rngs=Rngs(SEED),
        activation="swish",
        normalize_obs=True,
    )
    config = TrainConfig(
        ppo=PPOConfig(
            num_envs=num_envs,
            rollout_length=20,
            total_steps=total_steps,
            num_epochs=4,
            num_minibatches=4,
            learning_rate=3e-4,
        ),
        eval=EvalConfig(enabled=True, every_steps=100, num_envs=2, num_episodes=2, max_episode_steps=50),
        seed=SEED,
    )
    history = []

    def log_fn(metrics, steps):
        if "eval/episode_reward/mean" in metrics:
            history.append((steps, metrics["eval/episode_reward/mean"]))

    result = ppo.train_ppo(env=env, network=nets, config=config, log_fn=log_fn)
    for entry in result.eval_history:
        print(entry["step"], entry["eval/episode_reward/mean"])
    return nets, result, history
