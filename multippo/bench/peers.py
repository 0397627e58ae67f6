"""Other libraries as contestants, through their public interfaces.

Each trains with the sizes of the work, tanh, observations normalised by running statistics, rewards as they are and no
entropy bonus; everything else is the library's default. What is patched is what current versions of jax took away.
"""

# Peers are not installed where the types are checked.
# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false

from __future__ import annotations

import importlib
import importlib.metadata
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

from multippo.bench.recorder import Recorder
from multippo.bench.works import NUM_EPOCHS, NUM_MINIBATCHES, Work


def _brax_env(work: Work) -> Any:
    from brax import envs

    return envs.get_environment(work.env.removeprefix("brax/"))


def _brax(work: Work, recorder: Recorder) -> None:
    import jax
    from brax.training.agents.ppo import networks, train
    from flax import linen

    # brax 0.14 calls a function that JAX has removed.
    stacked = lambda tree, devices: jax.tree.map(lambda leaf: jax.numpy.stack([leaf] * len(devices)), tree)  # noqa: E731
    jax.device_put_replicated = stacked

    def factory(*args: Any, **kwargs: Any) -> Any:
        sizes = {"policy_hidden_layer_sizes": work.hidden, "value_hidden_layer_sizes": work.hidden}
        return networks.make_ppo_networks(*args, **kwargs, **sizes, activation=linen.tanh)

    dispatches = 100_000
    chunk = 1 if work.measure == "start" else work.chunk
    settings: dict[str, Any] = {"environment": _brax_env(work), "episode_length": 1000, "normalize_observations": True}
    settings |= {"num_envs": work.num_envs, "unroll_length": work.rollout_length, "num_updates_per_batch": NUM_EPOCHS}
    settings |= {"batch_size": work.num_envs // NUM_MINIBATCHES, "num_minibatches": NUM_MINIBATCHES}
    settings |= {"num_timesteps": dispatches * chunk * work.steps, "num_evals": dispatches + 1, "run_evals": False}
    settings |= {"entropy_cost": 0.0, "discounting": 0.99, "learning_rate": 3e-4, "max_grad_norm": 0.5}
    train.train(**settings, network_factory=factory, progress_fn=lambda steps, _: recorder.iteration(steps))


def _nnx_ppo(work: Work, recorder: Recorder) -> None:
    from flax import nnx
    from nnx_ppo.algorithms import config, ppo
    from nnx_ppo.networks import adapter, containers, factories, normalizer, recurrent, sampling_layers
    from nnx_ppo.wrappers.episode_wrapper import EpisodeWrapper

    env, rngs = EpisodeWrapper(_brax_env(work), 1000), nnx.Rngs(0)
    inputs, actions = env.observation_size, env.action_size

    def trunk(outputs: int) -> list[Any]:
        cell = [recurrent.LSTM(inputs, work.lstm, rngs)] if work.lstm else []
        sizes = [work.lstm or inputs, *work.hidden, outputs]
        return [*cell, *factories.make_mlp_layers(sizes, rngs, nnx.tanh, activation_last_layer=False)]

    sampler = sampling_layers.NormalTanhSampler(rngs, entropy_weight=0.0)
    action, value = containers.Sequential([*trunk(2 * actions), sampler]), containers.Sequential(trunk(1))
    heads = adapter.PPOAdapter(action=action, value=value)
    network = containers.Sequential([normalizer.Normalizer(inputs), heads])
    sizes = {"n_envs": work.num_envs, "rollout_length": work.rollout_length, "total_steps": 10**9}
    passes = {"n_epochs": NUM_EPOCHS, "n_minibatches": NUM_MINIBATCHES}
    settings = config.PPOConfig(**sizes, **passes, learning_rate=3e-4, gradient_clipping=0.5)
    train = config.TrainConfig(ppo=settings, eval=config.EvalConfig(enabled=False))
    ppo.train_ppo(env, network, train, log_fn=lambda _, steps: recorder.iteration(steps))


def _rejax(work: Work, recorder: Recorder) -> None:
    import jax
    from rejax.algos.ppo import PPO

    network = {
        "agent_kwargs": {"hidden_layer_sizes": work.hidden, "activation": "tanh"},
        "normalize_observations": True,
    }
    sizes = {"num_envs": work.num_envs, "num_steps": work.rollout_length}
    passes = {"num_epochs": NUM_EPOCHS, "num_minibatches": NUM_MINIBATCHES}
    loss = {"learning_rate": 3e-4, "max_grad_norm": 0.5, "ent_coef": 0.0}
    algorithm = PPO.create(env=work.env, **(network | sizes | passes | loss))

    @jax.jit
    def several(state: Any) -> Any:
        return jax.lax.scan(lambda state, _: (algorithm.train_iteration(state), None), state, length=work.chunk)[0]

    state, steps = jax.jit(algorithm.init_state)(jax.random.PRNGKey(0)), 0
    while True:
        state = jax.block_until_ready(several(state))
        steps += work.chunk * work.steps
        recorder.iteration(steps)


def _stable_baselines(module: str, name: str, policy: str, more: Callable[[Work], dict[str, Any]]) -> Any:
    """A trainer of a class with Stable-Baselines3's interface; ``more`` gives its network's sizes."""

    def train(work: Work, recorder: Recorder) -> None:
        from stable_baselines3.common.callbacks import BaseCallback
        from stable_baselines3.common.env_util import make_vec_env
        from stable_baselines3.common.vec_env import VecNormalize

        class Report(BaseCallback):
            def _on_rollout_start(self) -> None:
                if self.num_timesteps:
                    recorder.iteration(self.num_timesteps)

            def _on_step(self) -> bool:
                return True

        env = make_vec_env(work.env, work.num_envs, seed=0)
        env.step_wait = recorder.timed(env.step_wait)
        getattr(importlib.import_module(module), name)(
            policy,
            VecNormalize(env, norm_reward=False),
            n_steps=work.rollout_length,
            batch_size=work.steps // NUM_MINIBATCHES,
            n_epochs=NUM_EPOCHS,
            policy_kwargs=more(work),
            seed=0,
        ).learn(10**9, Report())

    return train


def _separate(work: Work) -> dict[str, Any]:
    return {"net_arch": {"pi": list(work.hidden), "vf": list(work.hidden)}}


def _with_lstm(work: Work) -> dict[str, Any]:
    return {"lstm_hidden_size": work.lstm, "net_arch": list(work.hidden)}


def _solve_sb3(work: Work, seed: int, recorder: Recorder) -> None:
    """The settings of rl-baselines3-zoo for CartPole-v1."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    test = make_vec_env(work.env, 20, seed=seed + 1000)

    class Look(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps % 2000 == 0:
                with recorder.off_the_clock():
                    found: Any = evaluate_policy(self.model, test, 20, deterministic=True)
                if found[0] >= 475:
                    recorder.reached(self.num_timesteps)
            return True

    sizes = {"n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20, "ent_coef": 0.0}
    rates: dict[str, Any] = {"learning_rate": lambda left: 0.001 * left, "clip_range": lambda left: 0.2 * left}
    env = make_vec_env(work.env, 8, seed=seed)
    PPO("MlpPolicy", env, **sizes, **rates, seed=seed, device="cpu").learn(100_000, Look())


def _skrl(work: Work, recorder: Recorder) -> None:
    import gymnasium
    import torch
    from skrl.agents.torch.ppo import PPO
    from skrl.envs.wrappers.torch import wrap_env
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
    from skrl.resources.preprocessors.torch import RunningStandardScaler
    from skrl.trainers.torch import SequentialTrainer

    vector = gymnasium.make_vec(work.env, work.num_envs, vectorization_mode="sync")
    vector.step = recorder.timed(vector.step, ends=True)
    env: Any = wrap_env(vector)
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space, "device": env.device}

    def layers(outputs: int) -> Any:
        sizes = [env.observation_space.shape[0], *work.hidden]
        pairs = [(torch.nn.Linear(*both), torch.nn.Tanh()) for both in itertools.pairwise(sizes)]
        return torch.nn.Sequential(*itertools.chain(*pairs), torch.nn.Linear(sizes[-1], outputs))

    def model(mixin: Any, outputs: int) -> Any:
        class Net(mixin, Model):
            def __init__(self) -> None:
                Model.__init__(self, **spaces)
                mixin.__init__(self)
                self.net = layers(outputs)

            def compute(self, inputs: Any, role: str = "") -> Any:
                return self.net(inputs["observations"]), {}

        return Net()

    settings = {
        "rollouts": work.rollout_length,
        "learning_epochs": NUM_EPOCHS,
        "mini_batches": NUM_MINIBATCHES,
        "learning_rate": 3e-4,
        "observation_preprocessor": RunningStandardScaler,
        "observation_preprocessor_kwargs": {"size": env.observation_space, "device": env.device},
        "experiment": {"write_interval": 0, "checkpoint_interval": 0},
    }
    models = {"policy": model(CategoricalMixin, env.action_space.n), "value": model(DeterministicMixin, 1)}
    memory = RandomMemory(memory_size=work.rollout_length, num_envs=env.num_envs, device=env.device)
    agent = PPO(models=models, memory=memory, **spaces, cfg=settings)
    quiet = {"timesteps": 10**8, "headless": True, "disable_progressbar": True}
    SequentialTrainer(env=env, agents=agent, cfg=quiet).train()


def _rsl_rl(work: Work, recorder: Recorder) -> None:
    import torch
    from rsl_rl.runners import OnPolicyRunner
    from tensordict import TensorDict

    from multippo.testing.tensor_pendulum import TensorPendulum

    device = "cuda" if torch.cuda.is_available() else "cpu"

    class Env:
        """rsl_rl's interface around the environment."""

        def __init__(self) -> None:
            self.inner = TensorPendulum(work.num_envs, device=device)
            self.num_envs, self.num_actions, self.max_episode_length = work.num_envs, 1, self.inner.max_episode_steps
            self.device, self.cfg = device, {}
            self.step = recorder.timed(self.step, ends=True)
            self.obs = self.inner.reset(seed=0)[0]
            self.episode_length_buf = torch.zeros(work.num_envs, dtype=torch.int64, device=device)

        def get_observations(self) -> Any:
            return TensorDict({"policy": self.obs}, batch_size=[self.num_envs], device=device)

        def step(self, actions: Any) -> Any:
            self.obs, reward, _, truncated, _ = self.inner.step(actions)
            return self.get_observations(), reward, truncated, {"time_outs": truncated}

    model = {"class_name": "MLPModel", "activation": "tanh", "obs_normalization": True, "hidden_dims": [*work.hidden]}
    if work.lstm:
        model |= {"class_name": "RNNModel", "rnn_type": "lstm", "rnn_hidden_dim": work.lstm, "rnn_num_layers": 1}
    settings = {
        "num_steps_per_env": work.rollout_length,
        "save_interval": 10**9,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": {**model, "distribution_cfg": {"class_name": "GaussianDistribution"}},
        "critic": model,
        "algorithm": {
            "class_name": "PPO",
            "num_learning_epochs": NUM_EPOCHS,
            "num_mini_batches": NUM_MINIBATCHES,
            "entropy_coef": 0.0,
            "learning_rate": 3e-4,
            "schedule": "fixed",
        },
    }
    env: Any = Env()
    OnPolicyRunner(env, settings, log_dir=None, device=device).learn(10**8)


def _no_settings(work: Work, seed: int, recorder: Recorder) -> None:
    del seed, recorder
    raise ValueError(f"there are no published settings for {work.name} here")


class Peer(NamedTuple):
    """Another library.

    Attributes:
        package: Name of its distribution.
        train: Function of the work and the recorder that trains until the recorder ends it.
        solve: Likewise for works of measure "return", and of a seed.
    """

    package: str
    train: Callable[[Work, Recorder], None]
    solve: Callable[[Work, int, Recorder], None] = _no_settings

    @property
    def version(self) -> str | None:
        """Version that is installed, or None."""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None


PEERS: dict[str, Peer] = {
    "brax": Peer("brax", _brax),
    "nnx-ppo": Peer("nnx-ppo", _nnx_ppo),
    "rejax": Peer("rejax", _rejax),
    "sb3": Peer("stable-baselines3", _stable_baselines("stable_baselines3", "PPO", "MlpPolicy", _separate), _solve_sb3),
    "sbx": Peer("sbx-rl", _stable_baselines("sbx", "PPO", "MlpPolicy", _separate)),
    "recurrent-ppo": Peer("sb3-contrib", _stable_baselines("sb3_contrib", "RecurrentPPO", "MlpLstmPolicy", _with_lstm)),
    "skrl": Peer("skrl", _skrl),
    "rsl-rl": Peer("rsl-rl-lib", _rsl_rl),
}
