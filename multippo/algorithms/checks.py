"""Checks of ``train_ppo``'s arguments and of its network, before the first environment step."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from multippo.action_spaces import num_choices
from multippo.algorithms.config import PPOConfig, TrainConfig
from multippo.algorithms.losses import check_entropies
from multippo.algorithms.types import TrainingState
from multippo.arguments import describe, is_the_librarys
from multippo.backends.registry import array_kind
from multippo.envs.api import Env, EnvState
from multippo.networks.core.captured_weights import captured_weights
from multippo.networks.core.error_paths import all_modules, message_of, path_of, refuse_other_module, where_it_failed
from multippo.networks.core.outputs import Draw, check_scalars, drawing
from multippo.networks.types import PPONetworkOutput, StatefulModuleOutput
from multippo.trees import named_leaves, tree_leaves, tree_structure

_LOG = logging.getLogger("multippo")


def check_call(network: Any, config: Any) -> None:
    """Checks the arguments of ``train_ppo`` that need no environment.

    Raises:
        TypeError: If ``network`` or ``config`` is of the wrong type.
        ValueError: If the network's engine has no gradients.
    """
    refuse_other_module("train_ppo", network, "network")
    if not isinstance(config, TrainConfig):
        raise TypeError(f"train_ppo needs a TrainConfig; got a {type(config).__name__}.")
    check_trains(network.engine)


def check_trains(engine: Any) -> None:
    """Raises unless an engine has gradients.

    Raises:
        ValueError: If the engine has none.
    """
    if "train" not in engine.capabilities:
        raise ValueError(
            f"The {engine.name} backend can't train: it has no gradients; it evaluates, and others are compared with "
            "it. Train on jax or torch (pip install 'multippo[jax]' or 'multippo[torch]')."
        )


def check_network(network: Any, network_state: Any, env: Env, env_state: EnvState, obs: Any, config: PPOConfig) -> None:
    """Runs the network once on the first observation, and checks its output; warns of weights out of reach.

    Args:
        network: The user's network.
        network_state: Fresh carry of the network.
        env: The environments.
        env_state: State of the environments after ``reset``.
        obs: ``env_state.obs`` in the network's arrays.
        config: Settings: ``combine_advantages`` and ``entropy_weight``.

    Raises:
        ValueError: If the network fails on the observation, or its output does not fit the environment.
        TypeError: If the network or its output is of the wrong type.
    """
    out, draws = run_once(network, network_state, obs)
    check_acts(out.output, "training")
    if _takes_known_actions(env):
        check_actions(network, out.output.actions, iter(draws), env.action_space, env.num_envs)
    _check_keys(out.output, env_state.reward, config)
    _check_numbers(out.output, env.num_envs)
    if config.entropy_weight is not None:
        _check_entropy_weight(network, out.output, config.entropy_weight)
    _check_carry("next_state", network_state, out.next_state, env.num_envs)
    _check_reset(network, network_state, env.num_envs)
    for text in captured_weights(network):
        _LOG.warning(text)


def _takes_known_actions(env: Env) -> bool:
    """True if an environment takes actions of its action space; a user's own may take others."""
    while is_the_librarys(type(env)):
        inner = getattr(env, "env", None)
        if not isinstance(inner, Env):
            return True
        env = inner
    return False


def check_acts(output: Any, purpose: str) -> None:
    """Raises unless a network's output is a PPONetworkOutput.

    Args:
        output: The output, of arrays or of their shapes.
        purpose: Subject of the error.

    Raises:
        TypeError: If ``output`` is anything else.
    """
    if not isinstance(output, PPONetworkOutput):
        raise TypeError(
            f"The network's output is {describe(output)}; {purpose} needs a PPONetworkOutput. "
            "Put a PPOAdapter(action=..., value=...) at its end."
        )


def run_once(
    network: Any, network_state: Any, obs: Any, role: str = "network"
) -> tuple[StatefulModuleOutput, list[Draw | None]]:
    """Runs a network on the first observation.

    Args:
        network: A bound module.
        network_state: Carry of the network.
        obs: Observation ``[B, ...]`` in the network's arrays.
        role: Name of the network in an error.

    Returns:
        The network's output as shapes, or anything that has them; and for each leaf of the actions the ``Draw`` it
        comes from, or None.

    Raises:
        ValueError: If the network fails, does not return a StatefulModuleOutput, or its loss or a metric is not one
            number for each environment; the error names the place.
    """
    draws: list[Draw | None] = []

    def call(s: Any, x: Any) -> Any:
        with drawing() as made:
            out = network(s, x)
        if not isinstance(out, StatefulModuleOutput):
            raise TypeError(
                f"{type(network).__name__} returned {describe(out)}; expected a StatefulModuleOutput: "
                "return multippo.StatefulModuleOutput(next_state, output)."
            )
        check_scalars(network, x, out)
        # Inside the call the actions are the very arrays that were drawn.
        by_action = {id(draw.action): draw._replace(action=None) for draw in made}
        draws[:] = [by_action.get(id(leaf)) for leaf in tree_leaves(getattr(out.output, "actions", ()))]
        return tuple(out)

    try:
        return StatefulModuleOutput(*network.engine.shapes(call, network_state, obs)), draws
    except Exception as error:
        shapes = {name or "obs": tuple(leaf.shape) for name, leaf in named_leaves(obs)}
        raise ValueError(
            f"The {role} failed on the environment's first observation {shapes} at "
            f"{where_it_failed(network, error)}: {message_of(error)}"
        ) from error


def check_initial_state(network: Any, initial: TrainingState, env: Env, ppo: PPOConfig) -> None:
    """Raises unless a state fits the network, the environments (functional ones) and the scaling of rewards.

    Raises:
        TypeError: If ``initial`` is not a TrainingState, or holds another engine's arrays.
        ValueError: If ``initial`` does not fit.
    """
    engine = network.engine
    if not isinstance(initial, TrainingState):
        raise TypeError(
            f"initial_state is a {type(initial).__name__}; expected a TrainingState, such as result.training_state or "
            "what load_checkpoint returns."
        )
    received = array_kind(initial.key)
    if received != array_kind(engine.zeros((1,))):
        raise TypeError(
            f"initial_state holds arrays of {received}, not the {engine.name} engine's. To go on with another engine, "
            "save it with save_checkpoint and load it with load_checkpoint and a network of that engine."
        )
    # Variables are compared too: a parameter that is frozen now may have been trained before.
    split = engine.split(network)
    expected, received = (
        {name: tuple(leaf.shape) for tree in trees for name, leaf in engine.named_params(tree)}
        for trees in ((split.params, split.variables), (initial.params, initial.variables))
    )
    different = sorted(n for n in {*expected, *received} if expected.get(n) != received.get(n))
    if different:
        name = different[0]
        raise ValueError(
            f"initial_state is of another network: its parameter {name} has shape {received.get(name, 'none')}, this "
            f"network's {expected.get(name, 'none')}. Go on with a network built the same way."
        )
    before = tree_leaves(initial.episodes)[0].shape[0]
    if env.functional and before != env.num_envs:
        raise ValueError(
            f"initial_state is of {before} environments, but there are {env.num_envs}; go on with as many as it has."
        )
    scaled = initial.episodes.scale is not None
    if scaled != ppo.scale_rewards:
        raise ValueError(
            f"initial_state is of a run with scale_rewards={scaled}, but PPOConfig.scale_rewards={ppo.scale_rewards}; "
            f"its values are in other units. Go on with PPOConfig(scale_rewards={scaled})."
        )


def without_effect(config: TrainConfig, checkpoint_fn: Any, eval_env: Any, traced: bool) -> list[str]:
    """Warnings of settings that have no effect in a run: a sentence for each.

    Args:
        config: Settings of the run.
        checkpoint_fn: Argument of ``train_ppo``.
        eval_env: Argument of ``train_ppo``.
        traced: True if the environment is compiled with the network.
    """
    saves, evaluates = checkpoint_fn is not None, config.eval.enabled
    evaluations = "evaluations, TrainConfig(eval=EvalConfig(every_steps=...))"
    every, at_evals, log_every = config.checkpoint_every_steps, config.checkpoint_at_evals, config.log_every_steps
    settings = (
        (f"checkpoint_every_steps={every}", every is not None, saves, "a checkpoint_fn"),
        ("checkpoint_at_evals=True", at_evals, saves and evaluates, f"both a checkpoint_fn and {evaluations}"),
        ("eval_env", eval_env is not None, evaluates, evaluations),
        (f"log_every_steps={log_every}", log_every > 0, traced, "a functional environment on JAX"),
    )
    return [
        f"{name} has no effect without {needed}: pass that, or leave it out."
        for name, given, fits, needed in settings
        if given and not fits
    ]


def finished(step: int, iteration: int, ppo: PPOConfig) -> str:
    """Text of the warning of a continued run that has nothing left to do."""
    return (
        f"Nothing is left to train: {step:,} steps in {iteration:,} iterations are done, and "
        f"total_steps={ppo.total_steps:,} asks for {ppo.num_iterations:,} iterations. Steps are counted from the very "
        "beginning; to train on, ask for more (total_steps, on the command line --total-steps)."
    )


def _check_keys(output: PPONetworkOutput, reward: Any, config: PPOConfig) -> None:
    rewards, values, likelihoods = (
        [name for name, _ in named_leaves(tree)] for tree in (reward, output.value_estimates, output.loglikelihoods)
    )
    if tree_structure(reward) != tree_structure(output.value_estimates):
        raise ValueError(
            f"The environment's rewards have keys {rewards}, the network's value estimates {values}; they must be the "
            "same. Give PPOAdapter a value port that yields one value for each reward key."
        )
    if config.combine_advantages == "separate" and likelihoods != values:
        raise ValueError(
            f"combine_advantages='separate' pairs each action key with the reward of the same key, but the actions "
            f"have keys {likelihoods} and the rewards {values}. Make them the same, or use 'sum'."
        )


def _check_numbers(output: PPONetworkOutput, num_envs: int) -> None:
    """Raises a ValueError unless every leaf of an output but the actions holds one number for each environment."""
    summed = ": the sum over an action's dimensions"
    for what, tree, remedy in (
        ("value estimate", output.value_estimates, ""),
        ("log-likelihood", output.loglikelihoods, summed),
        ("entropy", output.entropies, summed),
    ):
        for name, leaf in named_leaves(tree):
            if tuple(leaf.shape) != (num_envs,):
                raise ValueError(
                    f"The network's {what}{f' {name!r}' if name else ''} has shape {tuple(leaf.shape)}; expected one "
                    f"number for each environment, ({num_envs},){remedy}."
                )


def _check_entropy_weight(network: Any, output: PPONetworkOutput, weight: float) -> None:
    check_entropies(output.entropies, weight)
    own = [module for module in all_modules(network) if getattr(module, "entropy_weight", 0.0)]
    if own:
        raise ValueError(
            f"PPOConfig.entropy_weight={weight!r} is the weight for every sampler, but "
            f"{path_of(network, own[0])} has an entropy_weight={own[0].entropy_weight!r} of its own; make it with 0, "
            "or leave PPOConfig.entropy_weight unset."
        )


def _check_carry(what: str, before: Any, after: Any, num_envs: int) -> None:
    if tree_structure(before) != tree_structure(after):
        raise ValueError(
            f"The network's carry changed its structure: {what} must be like the state from initialize_state "
            f"({tree_structure(before)}), but is {tree_structure(after)}."
        )
    for (name, old), (_, new) in zip(named_leaves(before), named_leaves(after), strict=True):
        if not old.shape or old.shape[0] != num_envs:
            raise ValueError(
                f"The network's carry {name!r} has shape {tuple(old.shape)}; every carry must lead with the batch "
                f"axis ({num_envs})."
            )
        expected = f"{old.dtype}{tuple(old.shape)}"
        received = f"{new.dtype}{tuple(new.shape)}" if hasattr(new, "dtype") else repr(new)
        if received != expected:
            raise ValueError(
                f"The network's carry changed in {what}: its leaf {name!r} is {received}, expected {expected}, as "
                f"initialize_state({num_envs}) returned it."
            )


def _check_reset(network: Any, network_state: Any, num_envs: int) -> None:
    """Raises a ValueError unless ``reset_state`` returns a carry like the one it got."""
    engine = network.engine
    try:
        after = engine.shapes(network.reset_state, engine.writable(network_state))
    except Exception as error:
        raise ValueError(
            f"reset_state failed on the network's carry at {where_it_failed(network, error)}: {message_of(error)}"
        ) from error
    _check_carry("reset_state", network_state, after, num_envs)


def check_actions(
    network: Any, actions: Any, draws: Iterator[Draw | None], space: Any, num_envs: int, path: str = "action"
) -> None:
    """Raises unless the actions are of the space: of its shape, its kind and its number of choices.

    Other spaces than the library's adapters take are not checked, nor are choices of a user's sampler or under a mask.

    Args:
        network: Network whose modules an error names.
        actions: Tree of ``[B, ...]`` arrays, or of anything that has their shapes.
        draws: The ``Draw`` of each leaf's sampler, or None; see ``run_once``.
        space: Action space of one environment.
        num_envs: B.
        path: Name of the actions in an error.

    Raises:
        ValueError: If the actions are of another space; the error names the sampler and the remedy.
    """
    if not isinstance(space, spaces.Dict):
        _check_action(network, actions, next(draws, None), space, num_envs, path)
        return
    if not isinstance(actions, Mapping) or set(actions) != set(space.spaces):
        raise ValueError(
            f"The network's {path} is {describe(actions)}; expected a dict with the entries "
            f"{sorted(space.spaces)}, as the action space has them: give the network one sampler for each key."
        )
    for key in sorted(space.spaces):  # the order of leaves
        check_actions(network, actions[key], draws, space.spaces[key], num_envs, f"{path}[{key!r}]")


def _check_action(network: Any, action: Any, draw: Draw | None, space: Any, num_envs: int, path: str) -> None:
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return
    received, choices = None if draw is None else draw.num_choices, num_choices(space, path)
    shape = (num_envs, *(space.shape or ()))
    if tuple(getattr(action, "shape", (None,))) != shape:
        got, expected = describe(action), f"shape {shape}"
    elif received is None:
        if choices is None or network.xp.isdtype(action.dtype, ("integral", "bool")):
            return
        got = f"numbers of type {str(action.dtype).removeprefix('torch.')}"
        expected = f"one of {choices.tolist()} choices"
    else:
        if choices is not None and np.array_equal(np.broadcast_to(received, choices.shape), choices):
            return
        got = f"one of {np.asarray(received).tolist()} choices"
        expected = "numbers" if choices is None else f"one of {choices.tolist()}"
    sampler = "" if draw is None else f", of the sampler {path_of(network, draw.sampler)},"
    raise ValueError(
        f"The network's {path}{sampler} is {got}; expected {expected} for the action space {space}. Give the network a "
        "sampler for that space, and the layer in front of it the size that it needs."
    )
