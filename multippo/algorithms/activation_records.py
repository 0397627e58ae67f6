"""Recording a network's activations while it acts."""

from __future__ import annotations

from typing import Any, NamedTuple

from multippo.algorithms.evaluation import as_key, check_player, evaluation_mode, made_env
from multippo.algorithms.replay import gather_time, valid_first
from multippo.algorithms.rollout import unroll_env
from multippo.arguments import check_flag, check_size
from multippo.envs.api import Env
from multippo.networks.core.random_state import reseed
from multippo.networks.recording import extract_activations, with_recording


class ActivationRollout(NamedTuple):
    """Activations of a network over time, in its engine's arrays.

    Attributes:
        activations: Nested dict of ``[T, B, ...]``, as ``extract_activations`` returns it.
        done: ``[T, B]`` bool; an episode ended with this step, and the next one starts afresh.
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

    Of a ``PopulationGraph`` it records every population, and no layers inside them.

    All of ``num_steps * num_envs * units`` numbers are held at once; record few environments, or in parts.

    Args:
        env: Where to act, or what ``make_env`` takes; it is reset.
        network: The acting network. Neither its weights, its statistics nor its mode are changed.
        num_steps: T.
        key: Seeds the episodes and, if not deterministic, the actions: a random key or an integer.
        num_envs: B, where ``env`` is not made yet.
        deterministic: Act with the mode of the action distribution.

    Raises:
        TypeError: If ``network`` is not a StatefulModule, its output not a PPONetworkOutput, or ``deterministic``
            neither True nor False.
        ValueError: If ``num_steps`` is not an integer of at least 1, ``num_envs`` not that of ``env``, or ``key`` not
            a random key.
    """
    check_player("record_activations_rollout", env, network)
    deterministic = check_flag("record_activations_rollout", "deterministic", deterministic)
    key = as_key("record_activations_rollout", network.engine, key)
    num_steps = check_size("", "num_steps", num_steps)
    if not isinstance(env, Env):
        with made_env(env, num_envs) as made:
            return record_activations_rollout(made, network, num_steps, key, deterministic=deterministic)
    if num_envs not in (None, env.num_envs):
        raise ValueError(f"num_envs={num_envs!r} is not possible: the environment passed in has {env.num_envs}.")
    engine, xp = network.engine, network.xp
    keys = engine.random.split(key, 3)
    with evaluation_mode(network, deterministic), engine.no_grad():
        start = reseed(engine.random, network.initialize_state(env.num_envs), keys[0])
        env_state = env.reset(engine.to_numpy(keys[1]))
        _, _, transition = unroll_env(env, env_state, network, start, num_steps, keys[2])
        recordable = engine.split(with_recording(network))

        def run(params: Any, variables: Any, start: Any, seen: Any, valid: Any) -> Any:
            # A replay repeats the rollout, activations included.
            order = valid_first(xp, valid)
            obs, done, extras = gather_time(xp, seen, order)
            out = engine.merge(recordable.definition, params, variables).unroll(start, obs, done, extras)
            return gather_time(xp, extract_activations(out.metrics), xp.argsort(order, axis=0, stable=True))

        seen = (transition.obs, transition.done, transition.rollout_extras)
        activations = engine.jit(run)(recordable.params, recordable.variables, start, seen, transition.valid)
    return ActivationRollout(activations, transition.done, transition.valid)
