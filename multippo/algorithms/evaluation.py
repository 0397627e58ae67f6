"""Networks that act outside of training: evaluation by whole episodes, and records of activations."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from multippo.algorithms.config import DEFAULT_NUM_ENVS, EvalConfig, TrainConfig
from multippo.algorithms.minibatches import repeat_rollout
from multippo.algorithms.rollout import Rollouts, unroll_env
from multippo.algorithms.types import Transition
from multippo.arguments import check_flag, check_size
from multippo.envs.api import Env
from multippo.envs.keys import host_seed, key_words
from multippo.envs.nonfinite import restart_unsound
from multippo.networks.core.error_paths import refuse_other_module
from multippo.networks.core.modes import evaluation_mode
from multippo.networks.core.random_state import reseed
from multippo.networks.recording import extract_activations, with_recording
from multippo.networks.types import StatefulModule
from multippo.random import host
from multippo.trees import tree_leaves, tree_map

_CHUNK = 64
_DEFAULT_LIMIT = 10_000
# Number of limits that the rest of an episode may take, where the environment's own limit is not known.
_PATIENCE = 10


def eval_rollout(
    env: Any,
    network: Any,
    *,
    num_episodes: int | None = None,
    key: Any = None,
    deterministic: bool = True,
    max_episode_steps: int | None = None,
    progress: Callable[[float], Any] | None = None,
) -> dict[str, float]:
    """Plays whole episodes and summarises them.

    Every environment plays the same number of episodes (give or take one), so that short ones are not favoured.

    Args:
        env: An environment from ``make_env``, or anything ``make_env`` takes; reset before the first episode.
        network: The acting network. Neither its weights, its statistics nor its mode are changed.
        num_episodes: Number of episodes; by default one in each environment.
        key: Seed of the episodes and, if not deterministic, the actions: a random key or an integer; 0 by default.
        deterministic: True to act with the mode of the action distribution.
        max_episode_steps: Steps after which an episode is counted as it stands; by default the environment's limit, or
            10,000. Its rest is played and left out; an environment in which that takes too long plays no more, and
            fewer episodes are counted.
        progress: Function of the share that is done, from 0 to 1, called now and then.

    Returns:
        ``eval/episode_reward/mean``, ``/std``, ``/min``, ``/max``, the same of ``eval/episode_length``,
        ``eval/episodes``, and ``eval/nonfinite_episodes`` (those cut because the environment gave a value that is not
        finite; their returns until then count).

    Raises:
        TypeError: If ``network`` is not a StatefulModule, or its output not a PPONetworkOutput.
        ValueError: If ``num_episodes`` or ``max_episode_steps`` is not an integer of at least 1, ``deterministic``
            neither True nor False, or ``key`` not a random key.
    """
    check_player("eval_rollout", env, network)
    key = as_key(network.engine, key)
    config = EvalConfig(
        num_episodes=1 if num_episodes is None else num_episodes,
        deterministic=deterministic,
        max_episode_steps=max_episode_steps,
    )
    own = min(config.num_episodes, DEFAULT_NUM_ENVS) if isinstance(env, str) else None
    with made_env(env, own) as env:
        if num_episodes is None:
            config = dataclasses.replace(config, num_episodes=env.num_envs)
        split = network.engine.split(network)
        with network.engine.training(env.num_envs, widest_layer(network.engine, split.params)):
            return Player(network, env, config, "off").play(split.params, split.variables, key, progress)


def evaluation_seed(seed: int = 0, num_envs: int = 1) -> int:
    """The seed that ``multippo eval --seed`` resets gymnasium environments with, for loops of one's own.

    Args:
        seed: Seed of the evaluation.
        num_envs: Number of its environments, of which each has a seed one higher than the one before.
    """
    return host_seed(host.split(host.key(seed), 3)[1], num_envs)


@contextlib.contextmanager
def made_env(env: Any, num_envs: int | None) -> Generator[Env]:
    """Gives an ``Env`` to a ``with`` block: ``env`` itself, or one made by ``make_env`` and, if by name, closed after.

    Args:
        env: An ``Env``, or anything ``make_env`` takes.
        num_envs: Argument of ``make_env``; None is ``DEFAULT_NUM_ENVS`` for a name.
    """
    made = found_env(env, num_envs)
    with contextlib.closing(made) if isinstance(env, str) else contextlib.nullcontext():
        yield made


def found_env(env: Any, num_envs: int | None) -> Env:
    """The ``Env`` of ``made_env``, for a caller that closes it."""
    from multippo.envs.make import make_env

    return make_env(env, DEFAULT_NUM_ENVS if isinstance(env, str) and num_envs is None else num_envs)


def widest_layer(engine: Any, params: Any) -> int:
    """Size of the largest axis of any parameter."""
    return max((size for _, leaf in engine.named_params(params) for size in leaf.shape), default=1)


def check_player(function: str, env: Any, network: Any) -> None:
    """Raises unless the network is a StatefulModule; the error says if environment and network were swapped.

    Args:
        function: Name of the caller.
        env: The caller's environment.
        network: The caller's network.

    Raises:
        TypeError: If ``network`` is not a StatefulModule.
    """
    swapped = isinstance(env, StatefulModule)
    hint = f" The environment comes first: {function}(env, network)." if swapped else ""
    refuse_other_module(function, network, "network", hint)


def as_key(engine: Any, key: Any) -> Any:
    """Makes a random key of the engine of an integer (None is 0) or of any engine's key.

    Raises:
        ValueError: If ``key`` is neither.
    """
    words = key_words(0 if key is None else key)
    return engine.random.key(words) if isinstance(words, int) else engine.random.wrap_key(words)


def evaluator(network: Any, env: Env, eval_env: Any, config: TrainConfig, made: contextlib.ExitStack) -> Player:
    """Player that evaluates during training.

    Args:
        network: The network in training.
        env: The training environment; never stepped here.
        eval_env: Environment to play in, or anything ``make_env`` takes; None for one like ``env``.
        config: Settings: ``eval`` and ``compile``.
        made: Stack that closes an environment made here.

    Raises:
        ValueError: If ``eval_env`` steps the same simulator as ``env``.
    """
    num_envs = min(config.eval.num_envs, config.eval.num_episodes)
    if eval_env is None:
        own = made.enter_context(contextlib.closing(env.similar(num_envs)))
    else:
        # A finished environment has a number of its own, which ``make_env`` would refuse to change.
        finished = getattr(eval_env, "num_envs", 1 if isinstance(eval_env, gymnasium.Env) else None)
        own = made.enter_context(made_env(eval_env, finished or num_envs))
    if not env.functional and _simulators(own) & _simulators(env):
        raise ValueError(
            "eval_env is the training environment itself, or holds what that steps; evaluating would disturb it. "
            "Make another."
        )
    return Player(network, own, config.eval, config.compile)


def _simulators(env: Any) -> set[int]:
    """Identities of everything that a host environment steps, however wrapped."""
    found: set[int] = set()
    left = [env]
    while left:
        one = left.pop()
        if id(one) in found:
            continue
        found.add(id(one))
        left += [
            inner for name in ("env", "vector_env", "unwrapped") if (inner := getattr(one, name, None)) is not None
        ]
        left += [member for member in getattr(one, "envs", ()) or () if not isinstance(member, str | int)]
    return found


class Player:
    """A network that plays whole episodes in an environment.

    Args:
        network: The network.
        env: The environment.
        config: Number and length of the episodes.
        mode: ``TrainConfig.compile``.
    """

    def __init__(self, network: Any, env: Env, config: EvalConfig, mode: str) -> None:
        self._network, self._env, self._config = network, env, config
        self._limit = config.max_episode_steps or env.max_episode_steps or _DEFAULT_LIMIT
        engine = network.engine
        with evaluation_mode(network, config.deterministic):
            definition = engine.split(network).definition
            self._rollouts = Rollouts(engine, env, definition, min(_CHUNK, self._limit), mode)

    def play(
        self, params: Any, variables: Any, key: Any, progress: Callable[[float], Any] | None = None
    ) -> dict[str, float]:
        """Plays the episodes with the given parameters, variables and key; see ``eval_rollout``."""
        engine, env = self._network.engine, self._env
        quota = np.full(env.num_envs, self._config.num_episodes // env.num_envs)
        quota[: self._config.num_episodes % env.num_envs] += 1
        tally = _Tally(quota, self._limit, env.max_episode_steps or _PATIENCE * self._limit)
        keys = host.split(key_words(key), 3)
        with evaluation_mode(self._network, self._config.deterministic):
            state = self._rollouts.begin(params, variables, engine.random.wrap_key(keys[0]))
            env_state = restart_unsound(env, env.reset(keys[1]))
            round_number = 0
            while not tally.complete:
                env_state = env.refresh(env_state, host.fold_in(keys[2], round_number))
                state, env_state, seen = self._rollouts.score(params, variables, state, env_state)
                tally.add(*(tree_map(engine.to_numpy, part) for part in seen))
                round_number += 1
                if progress is not None:
                    progress(tally.done)
        return tally.summary()


class _Tally:
    """Sums rewards to returns until every environment has played its share."""

    def __init__(self, quota: np.ndarray, limit: int, patience: int) -> None:
        self._left, self._limit, self._patience = quota.copy(), limit, patience
        self._total = int(quota.sum())
        # True in the rest of an episode that was given up.
        self._beyond = np.zeros(len(quota), bool)
        self._reward, self._length = np.zeros(len(quota)), np.zeros(len(quota), int)
        self._returns: list[float] = []
        self._lengths: list[int] = []
        self._nonfinite = 0

    @property
    def complete(self) -> bool:
        return not (self._left > 0).any()

    @property
    def done(self) -> float:
        """Share of all episodes; one under way counts by its length."""
        under_way = self._length[(self._left > 0) & ~self._beyond] / self._limit
        return float(len(self._returns) + under_way.sum()) / self._total

    def add(self, rewards: Any, done: np.ndarray, valid: np.ndarray, broken: np.ndarray) -> None:
        total = np.sum([np.asarray(leaf, np.float64) for leaf in tree_leaves(rewards)], axis=0)
        for t in range(len(done)):
            self._reward += np.where(valid[t], total[t], 0.0)
            self._length += valid[t]
            counts = ~self._beyond & (self._left > 0)
            over = done[t] | (~self._beyond & (self._length >= self._limit))
            self._nonfinite += int(((broken[t] > 0) & counts).sum())
            for i in np.flatnonzero(over & counts & valid[t]):
                self._returns.append(float(self._reward[i]))
                self._lengths.append(int(self._length[i]))
                self._left[i] -= 1
            # An episode given up at the limit goes on in the environment; its rest must not count as another.
            self._beyond = (self._beyond | over) & ~done[t]
            self._left[self._beyond & (self._length >= self._patience)] = 0
            self._reward[over], self._length[over] = 0.0, 0

    def summary(self) -> dict[str, float]:
        kinds = {"reward": np.asarray(self._returns), "length": np.asarray(self._lengths)}
        return {
            **{
                f"eval/episode_{kind}/{name}": float(getattr(numbers, name)())
                for kind, numbers in kinds.items()
                for name in ("mean", "std", "min", "max")
            },
            "eval/lifespan/mean": float(kinds["length"].mean()),
            "eval/episodes": float(len(self._returns)),
            "eval/nonfinite_episodes": float(self._nonfinite),
        }


class ActivationRollout(NamedTuple):
    """Activations of a network over time, in its engine's arrays.

    Attributes:
        activations: Nested dict of ``[T, B, ...]``, as ``extract_activations`` returns it.
        done: ``[T, B]`` bool; True where an episode ended with this step.
        valid: ``[T, B]`` bool; False where an environment only reset itself (gymnasium's NEXT_STEP).
    """

    activations: Any
    done: Any
    valid: Any


def record_activations_rollout(
    env: Any,
    network: Any,
    num_steps: int,
    key: Any = 0,
    *,
    num_envs: int | None = None,
    deterministic: bool = True,
) -> ActivationRollout:
    """Lets a network act for some steps from the start of an episode, and records every layer at every step.

    Of a ``PopulationGraph`` every population is recorded, and no layers inside them.

    All of ``num_steps * num_envs * units`` numbers are held at once; record few environments, or in parts.

    Args:
        env: An environment from ``make_env``, or anything ``make_env`` takes; reset before the first step.
        network: The acting network. Neither its weights, its statistics nor its mode are changed.
        num_steps: T.
        key: Seed of the episodes and, if not deterministic, the actions: a random key or an integer.
        num_envs: B, where ``env`` is not made yet.
        deterministic: True to act with the mode of the action distribution.

    Raises:
        TypeError: If ``network`` is not a StatefulModule, its output not a PPONetworkOutput, or ``deterministic``
            neither True nor False.
        ValueError: If ``num_steps`` is not an integer of at least 1, ``num_envs`` not that of ``env``, or ``key`` not
            a random key.
    """
    check_player("record_activations_rollout", env, network)
    deterministic = check_flag("record_activations_rollout", "deterministic", deterministic)
    key = as_key(network.engine, key)
    num_steps = check_size("", "num_steps", num_steps)
    engine = network.engine
    keys = engine.random.split(key, 3)
    with made_env(env, num_envs) as env, evaluation_mode(network, deterministic), engine.no_grad():
        start = reseed(engine.random, network.initialize_state(env.num_envs), keys[0])
        env_state = env.reset(engine.to_numpy(keys[1]))
        _, _, transition = unroll_env(env, env_state, network, start, num_steps, keys[2])
        recordable = engine.split(with_recording(network))

        def run(params: Any, variables: Any, start: Any, transition: Transition) -> Any:
            # A replay repeats the rollout, activations included.
            recording = engine.merge(recordable.definition, params, variables)
            return repeat_rollout(recording, start, transition, lambda out: extract_activations(out.metrics))

        activations = engine.jit(run)(recordable.params, recordable.variables, start, transition)
    return ActivationRollout(activations, transition.done, transition.valid)
