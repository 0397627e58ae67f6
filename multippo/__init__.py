"""PPO for stateful networks, on JAX and PyTorch.

The engine is chosen by the environment variable ``MULTIPPO_BACKEND`` or by ``use_backend``; importing this package
loads neither.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from multippo import random
from multippo.backends import (
    available_backends,
    get_backend,
    matmul_precision,
    precision,
    register_backend,
    use_backend,
)
from multippo.errors import NonFiniteError
from multippo.networks.adapter import PPOAdapter
from multippo.networks.containers import (
    Concat,
    Filter,
    Flattener,
    Map,
    Merge,
    Parallel,
    Residual,
    Scale,
    Sequential,
    Splitter,
)
from multippo.networks.convolution import Conv
from multippo.networks.core.binding import Param, Variable
from multippo.networks.delay import Delay
from multippo.networks.dropout import Dropout
from multippo.networks.feedforward import Dense, LayerNorm, Lift
from multippo.networks.graph import PopulationGraph
from multippo.networks.normalizer import Normalizer
from multippo.networks.recording import extract_activations, with_recording
from multippo.networks.recurrent import GRU, LSTM, RNN
from multippo.networks.samplers.discrete import BernoulliSampler, CategoricalSampler, MultiCategoricalSampler
from multippo.networks.samplers.gaussian import NormalSampler, NormalTanhSampler
from multippo.networks.summary import summary
from multippo.networks.types import PPONetworkOutput, StatefulModule, StatefulModuleOutput
from multippo.networks.variational import AR1VariationalBottleneck, VariationalBottleneck
from multippo.networks.weights import freeze, load_flax_state, load_portable, load_torch_state, to_portable, unfreeze
from multippo.random import Rngs
from multippo.version import __version__ as __version__

if TYPE_CHECKING:
    from multippo.algorithms.checkpointing.checkpoint import load_checkpoint, save_checkpoint
    from multippo.algorithms.checkpointing.folder import CheckpointFolder
    from multippo.algorithms.config import EvalConfig, PPOConfig, TrainConfig
    from multippo.algorithms.distillation.training import (
        DistillationConfig,
        DistillationTrainConfig,
        train_distillation,
    )
    from multippo.algorithms.evaluation import eval_rollout, record_activations_rollout
    from multippo.algorithms.losses import ppo_loss
    from multippo.algorithms.minibatches import replay
    from multippo.algorithms.ppo import train_ppo
    from multippo.algorithms.rollout import unroll_env
    from multippo.algorithms.types import TrainingState, TrainResult, Transition
    from multippo.envs import list_envs, make_env
    from multippo.networks.factories.actor_critics import (
        make_cnn_actor_critic,
        make_mlp,
        make_mlp_actor_critic,
        make_mlp_layers,
        make_recurrent_actor_critic,
    )
    from multippo.runs.loading import Run, load_run

_LAZY = {
    name: f"multippo.{module}"
    for module, names in {
        "algorithms.checkpointing.checkpoint": ("load_checkpoint", "save_checkpoint"),
        "algorithms.checkpointing.folder": ("CheckpointFolder",),
        "algorithms.config": ("EvalConfig", "PPOConfig", "TrainConfig"),
        "algorithms.distillation.training": ("DistillationConfig", "DistillationTrainConfig", "train_distillation"),
        "algorithms.evaluation": ("eval_rollout", "record_activations_rollout"),
        "algorithms.losses": ("ppo_loss",),
        "algorithms.minibatches": ("replay",),
        "algorithms.ppo": ("train_ppo",),
        "algorithms.rollout": ("unroll_env",),
        "algorithms.types": ("TrainResult", "TrainingState", "Transition"),
        "envs": ("list_envs", "make_env"),
        "networks.factories.actor_critics": (
            "make_cnn_actor_critic",
            "make_mlp",
            "make_mlp_actor_critic",
            "make_mlp_layers",
            "make_recurrent_actor_critic",
        ),
        "runs.loading": ("Run", "load_run"),
    }.items()
    for name in names
}
"""Names imported at first use: gymnasium and the training loop take longer than the rest together."""


_PARTS = ("algorithms", "conformance", "envs", "nnx", "testing")


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return importlib.import_module(f"multippo.{name}")
    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'multippo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "AR1VariationalBottleneck",
    "BernoulliSampler",
    "CategoricalSampler",
    "CheckpointFolder",
    "Concat",
    "Conv",
    "Delay",
    "Dense",
    "DistillationConfig",
    "DistillationTrainConfig",
    "Dropout",
    "EvalConfig",
    "Filter",
    "Flattener",
    "LayerNorm",
    "Lift",
    "Map",
    "Merge",
    "MultiCategoricalSampler",
    "NonFiniteError",
    "NormalSampler",
    "NormalTanhSampler",
    "Normalizer",
    "PPOAdapter",
    "PPOConfig",
    "PPONetworkOutput",
    "Parallel",
    "Param",
    "PopulationGraph",
    "Residual",
    "Rngs",
    "Run",
    "Scale",
    "Sequential",
    "Splitter",
    "StatefulModule",
    "StatefulModuleOutput",
    "TrainConfig",
    "TrainResult",
    "TrainingState",
    "Transition",
    "Variable",
    "VariationalBottleneck",
    "available_backends",
    "eval_rollout",
    "extract_activations",
    "freeze",
    "get_backend",
    "list_envs",
    "load_checkpoint",
    "load_flax_state",
    "load_portable",
    "load_run",
    "load_torch_state",
    "make_cnn_actor_critic",
    "make_env",
    "make_mlp",
    "make_mlp_actor_critic",
    "make_mlp_layers",
    "make_recurrent_actor_critic",
    "matmul_precision",
    "ppo_loss",
    "precision",
    "random",
    "record_activations_rollout",
    "register_backend",
    "replay",
    "save_checkpoint",
    "summary",
    "to_portable",
    "train_distillation",
    "train_ppo",
    "unfreeze",
    "unroll_env",
    "use_backend",
    "with_recording",
]
