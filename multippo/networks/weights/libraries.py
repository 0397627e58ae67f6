"""Policies of Stable-Baselines3 and rsl_rl as networks, from their files, of which arrays of numbers alone are read."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from multippo.action_spaces import is_bounded
from multippo.networks.activations import Activation
from multippo.networks.adapter import PPOAdapter
from multippo.networks.containers import Sequential
from multippo.networks.factories.actions import SamplerOptions, action_layers
from multippo.networks.factories.observations import observation_layers
from multippo.networks.feedforward import Dense
from multippo.networks.normalizer import Normalizer
from multippo.networks.recurrent import GRU, LSTM, RNN
from multippo.networks.samplers.gaussian import NormalSampler, NormalTanhSampler
from multippo.networks.tree_layers import Filter
from multippo.networks.types import StatefulModule
from multippo.networks.weights.imported import load_torch_state
from multippo.networks.weights.portable import numbers
from multippo.random import Rngs
from multippo.torch_files import read_torch_file

_RSL_RL_EPSILON = 0.01
"""Number that rsl_rl's normaliser adds to the standard deviation."""

_OLDER_RSL_RL = {
    "actor.": ("actor", "mlp."),
    "critic.": ("critic", "mlp."),
    "memory_a.": ("actor", "rnn."),
    "memory_c.": ("critic", "rnn."),
    "actor_obs_normalizer.": ("actor", "obs_normalizer."),
    "critic_obs_normalizer.": ("critic", "obs_normalizer."),
    "std": ("actor", "distribution.std_param"),
    "log_std": ("actor", "distribution.log_std_param"),
}
"""Beginnings of names in checkpoints of rsl_rl before version 4, with part and name since."""

_OLDEST_STATISTICS = {
    "actor": ["obs_norm_state_dict"],
    "critic": ["privileged_obs_norm_state_dict", "critic_obs_norm_state_dict"],
}
"""Entries of the normalisers in checkpoints of rsl_rl before version 3."""


def load_sb3(
    path: str | os.PathLike[str],
    observation_space: Any,
    action_space: Any,
    *,
    activation: Activation = "tanh",
    statistics: Mapping[str, Any] | None = None,
    rngs: Rngs | None = None,
) -> StatefulModule:
    """Makes a network of the policy in an archive of Stable-Baselines3, which acts as the policy does.

    Takes ``PPO`` and ``A2C`` with an ``MlpPolicy``, and sb3-contrib's ``RecurrentPPO`` with an ``MlpLstmPolicy``. The
    rest of an archive is pickled code and is not read, so spaces, an activation other than tanh and the statistics of a
    ``VecNormalize`` have to be said. Actions of a bounded Box are scaled to [-1, 1], as networks act here.

    Args:
        path: The archive, ``model.zip``. Reading it needs torch, on any engine.
        observation_space: Space of one observation.
        action_space: Space of one action.
        activation: Activation of the hidden layers.
        statistics: ``mean``, ``var`` and ``count`` of a ``VecNormalize``, whose ``obs_rms`` has them; None for none.
        rngs: Source of the sampler's key; ``Rngs(0)`` by default.

    Raises:
        ValueError: If the archive holds another kind of policy, does not fit the spaces, or needs code to be read.
        ImportError: If torch is not installed.
    """
    rngs = rngs or Rngs(0)
    with zipfile.ZipFile(path) as archive, archive.open("policy.pth") as file:
        policy = _Parts(read_torch_file(io.BytesIO(file.read())), path)
    first, features = observation_layers(observation_space, normalize=False)
    if statistics is not None:
        normalizer = Normalizer(features)
        load_torch_state(normalizer, {name: statistics[name] for name in ("mean", "var", "count")})
        first.append(normalizer)
    actor, critic = policy.recurrent("lstm_actor", rngs), policy.recurrent("lstm_critic", rngs)
    shared: list[StatefulModule] = []
    if "critic.weight" in policy.arrays:
        critic.append(policy.dense("critic", None, rngs))
    elif actor and not critic:  # one LSTM for both
        actor, shared = [], actor
    actor += policy.hidden("mlp_extractor.policy_net", activation, rngs)
    critic += policy.hidden("mlp_extractor.value_net", activation, rngs)
    log_std = policy.arrays.pop("log_std", None)
    ports = PPOAdapter(
        action=Sequential([*actor, *policy.acting("action_net", log_std, action_space, rngs)]),
        value=Sequential([*critic, policy.dense("value_net", None, rngs)]),
    )
    policy.check_empty()
    return Sequential([*first, *shared, ports])


def load_rsl_rl(
    path: str | os.PathLike[str],
    action_space: Any = None,
    *,
    activation: Activation = "elu",
    rngs: Rngs | None = None,
) -> StatefulModule:
    """Makes a network of the policy in a checkpoint of rsl_rl, which acts as the policy does.

    Takes MLPs, LSTMs and GRUs with Gaussian actions, with normalised observations or without, as versions 2 to 5 save
    them.

    Args:
        path: The checkpoint, ``model_1000.pt``. Reading it needs torch, on any engine.
        action_space: Space of one action, of which bounded dimensions are scaled to [-1, 1], as networks act here; None
            for an unbounded one, in which actions are what the policy gives.
        activation: Activation of the hidden layers.
        rngs: Source of the sampler's key; ``Rngs(0)`` by default.

    Returns:
        The network. If actor and critic take observations of different size, these are a dict with the entries
        "policy" and "critic".

    Raises:
        ValueError: If the checkpoint holds another kind of policy, or needs code to be read.
        ImportError: If torch is not installed.
    """
    rngs, held = rngs or Rngs(0), _rsl_rl_states(read_torch_file(path), path)
    actor, critic = (_Parts(held[name], path) for name in ("actor", "critic"))
    stems: list[list[StatefulModule]] = []
    for part in (actor, critic):
        statistics = part.below("obs_normalizer")
        normalizers = [_rsl_rl_normalizer(statistics)] if statistics else []
        stems.append([*normalizers, *part.recurrent("rnn.rnn", rngs), *part.hidden("mlp", activation, rngs, rest=1)])
    log_std = actor.arrays.pop("distribution.log_std_param", None)
    if log_std is None:
        if "distribution.std_param" not in actor.arrays:
            raise ValueError(f"{path} has no standard deviation of its own; only Gaussians with one are taken.")
        log_std = np.log(actor.arrays.pop("distribution.std_param"))
    space = spaces.Box(-np.inf, np.inf, log_std.shape, np.float32) if action_space is None else action_space
    stems[0] += actor.acting(actor.next_of("mlp"), log_std, space, rngs)
    stems[1].append(critic.dense(critic.next_of("mlp"), None, rngs))
    for part in (actor, critic):
        part.check_empty()
    if actor.features != critic.features:
        stems = [[Filter(key), *stem] for key, stem in zip(("policy", "critic"), stems, strict=True)]
    return PPOAdapter(action=Sequential(stems[0]), value=Sequential(stems[1]))


class _Parts:
    """Arrays of a state dict, taken away as layers are made of them.

    Args:
        state: Arrays by name.
        path: Name of the file in errors.

    Attributes:
        arrays: Arrays that are left.
        features: Number of features that the first layer takes.
    """

    def __init__(self, state: Any, path: Any) -> None:
        self.arrays, self._path = {name: numbers(name, value) for name, value in state.items()}, path
        self.features = 0

    def below(self, path: str) -> dict[str, np.ndarray]:
        """Takes away the arrays of one module."""
        names = [name for name in self.arrays if name.startswith(f"{path}.")]
        return {name.removeprefix(f"{path}."): self.arrays.pop(name) for name in names}

    def next_of(self, path: str) -> str:
        """Path of the first module that is left of a ``torch.nn.Sequential``."""
        return f"{path}.{min(self._places(path))}"

    def dense(self, path: str, activation: Activation, rngs: Rngs) -> Dense:
        """Layer of a ``torch.nn.Linear``."""
        return self._dense(self.below(path), path, activation, rngs)

    def hidden(self, path: str, activation: Activation, rngs: Rngs, rest: int = 0) -> list[StatefulModule]:
        """Layers of a ``torch.nn.Sequential``, of which the last ``rest`` are left."""
        places = sorted(self._places(path))
        return [self.dense(f"{path}.{place}", activation, rngs) for place in places[: len(places) - rest]]

    def recurrent(self, path: str, rngs: Rngs) -> list[StatefulModule]:
        """Layers of a ``torch.nn.LSTM``, ``GRU`` or ``RNN``, if there is one."""
        held, layers = self.below(path), list[StatefulModule]()
        while (first := f"weight_ih_l{len(layers)}") in held:
            suffix, (rows, features) = first.removeprefix("weight_ih"), held[first].shape
            hidden = held[f"weight_hh{suffix}"].shape[1]
            layer = {1: RNN, 3: GRU, 4: LSTM}[rows // hidden](features, hidden, rngs)
            names = [name for name in held if name.endswith(suffix)]
            load_torch_state(layer, {name.removesuffix(suffix): held.pop(name) for name in names})
            self.features = self.features or features
            layers.append(layer)
        return layers

    def acting(self, path: str, log_std: Any, space: Any, rngs: Rngs) -> list[StatefulModule]:
        """The last layer of an actor and its sampler; ``log_std`` is None for choices."""
        held = self.below(path)
        gaussian = SamplerOptions(distribution="normal", min_std=0.0)
        head = action_layers(space, rngs, SamplerOptions() if log_std is None else gaussian)
        sampler, outputs = head.layers[-1], held["weight"].shape[0]
        known = outputs == head.num_parameters and (log_std is None or log_std.shape == (outputs,))
        if not known or (log_std is None) is isinstance(sampler, NormalSampler | NormalTanhSampler):
            raise ValueError(f"{self._path} has {outputs} outputs for actions, which are not those of {space}.")
        if isinstance(sampler, NormalSampler):
            bounded = is_bounded(space).ravel()
            low, high = (np.where(bounded, end.ravel(), own) for end, own in ((space.low, -1.0), (space.high, 1.0)))
            half = (high - low) / 2
            held = {"weight": held["weight"] / half[:, None], "bias": (held["bias"] - (high + low) / 2) / half}
            sampler.log_std[...] = sampler.engine.asarray((log_std - np.log(half)).astype(np.float32))
        return [self._dense(held, path, None, rngs), *head.layers]

    def check_empty(self) -> None:
        """Raises a ValueError if arrays are left."""
        if self.arrays:
            raise ValueError(
                f"{self._path} holds layers that are not known here: {', '.join(self.arrays)}. Build a network for "
                "them, and name its layers in load_torch_state."
            )

    def _places(self, path: str) -> set[int]:
        return {int(name[len(path) + 1 :].partition(".")[0]) for name in self.arrays if name.startswith(f"{path}.")}

    def _dense(self, held: dict[str, np.ndarray], path: str, activation: Activation, rngs: Rngs) -> Dense:
        if "weight" not in held:
            raise ValueError(f"{self._path} has no {path}.weight: it holds another kind of policy.")
        outputs, features = held["weight"].shape
        layer = Dense(features, outputs, rngs, activation)
        load_torch_state(layer, held)
        self.features = self.features or features
        return layer


def _rsl_rl_states(checkpoint: Any, path: Any) -> dict[str, dict[str, Any]]:
    """Arrays of actor and critic by the names of version 5."""
    if "actor_state_dict" in checkpoint:
        of_version_4 = {name: _OLDER_RSL_RL[name][1] for name in ("std", "log_std")}
        actor = {
            of_version_4.get(str(name), str(name)): value for name, value in checkpoint["actor_state_dict"].items()
        }
        return {"actor": actor, "critic": checkpoint["critic_state_dict"]}
    if "model_state_dict" not in checkpoint:
        raise ValueError(f"{path} holds {', '.join(map(str, checkpoint))}; expected a checkpoint of rsl_rl's PPO.")
    states: dict[str, dict[str, Any]] = {"actor": {}, "critic": {}}
    for name, value in checkpoint["model_state_dict"].items():
        beginning = next((known for known in _OLDER_RSL_RL if name.startswith(known)), "")
        part, new = _OLDER_RSL_RL.get(beginning, ("actor", ""))
        states[part][new + name.removeprefix(beginning)] = value
    for part, names in _OLDEST_STATISTICS.items():
        for held in (checkpoint[name] for name in names if checkpoint.get(name)):
            states[part] |= {f"obs_normalizer.{name}": value for name, value in held.items()}
    return states


def _rsl_rl_normalizer(held: dict[str, np.ndarray]) -> Normalizer:
    """Normaliser that divides by the deviation plus a number, which rsl_rl's does, where ours takes a root."""
    mean, variance = (held[name].ravel() for name in ("_mean", "_var"))
    normalizer = Normalizer(mean.size, clip=None)
    deviation = np.sqrt(variance.astype(np.float64)) + _RSL_RL_EPSILON
    load_torch_state(normalizer, {"mean": mean, "var": deviation**2, "count": np.maximum(held["count"], 1)})
    return normalizer
