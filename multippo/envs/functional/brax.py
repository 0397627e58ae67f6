"""brax environments, made by name, or passed by the user with brax's wrappers around them."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import sys
import types
import warnings
from collections.abc import Callable, Generator
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp

from multippo.envs.functional.functional_env import FunctionalEnv, precision_of_engine
from multippo.envs.functional.randomized import RandomizedEnv
from multippo.envs.structure import Content

BRAX_BACKENDS = ("generalized", "spring", "positional", "mjx")

_BATCHING = ("VmapWrapper", "AutoResetWrapper", "BraxAutoResetWrapper")


def make_brax(
    name: str,
    num_envs: int,
    *,
    backend: str | None = None,
    episode_length: int = 1000,
    action_repeat: int = 1,
    pool_size: int | None = None,
    randomization_fn: Callable[..., Any] | None = None,
    **kwargs: Any,
) -> FunctionalEnv:
    """An environment from brax's registry, with the time limit kept by the adapter.

    Args:
        name: Name in brax's registry, such as ``"ant"``.
        num_envs: Number of copies.
        backend: Physics engine, one of ``BRAX_BACKENDS``; by default the environment's own choice.
        episode_length: Number of simulation steps after which an episode is cut.
        action_repeat: Number of simulation steps per action.
        pool_size: Number of fresh starts; see ``FunctionalEnv``.
        randomization_fn: Function that draws systems, for domain randomisation; see ``RandomizedEnv``.
        **kwargs: Arguments of the environment's constructor.

    Raises:
        ValueError: If the backend is not known, or an argument is out of range.
        KeyError: If the name is not known.
        TypeError: If the constructor does not take an argument.
        ImportError: If brax can't compute the environment with the JAX that is installed.
    """
    if backend is not None:
        if backend not in BRAX_BACKENDS:
            raise ValueError(f"brax has no backend {backend!r}: expected one of {', '.join(BRAX_BACKENDS)}.")
        kwargs["backend"] = backend
    # MJX prints to standard output when its optional engine, warp, is missing, and would spoil a command's output that
    # other programs read.
    with contextlib.redirect_stdout(io.StringIO()), deferred("trimesh"):
        from brax import envs
    with warnings.catch_warnings():
        # Loading any system warns of something that a user of brax's environments can't change.
        warnings.filterwarnings("ignore", "Brax System, piplines and environments are not actively", UserWarning)
        # The system's constants are of the precision in which it will be simulated.
        with precision_of_engine():
            env = envs.get_environment(name, **kwargs)
    if (
        getattr(getattr(env, "sys", None), "enable_fluid", False)
        and "a_min" not in inspect.signature(jnp.clip).parameters
    ):
        raise ImportError(
            f"brax/{name} moves in a fluid, and brax {metadata.version('brax')} computes its force with an argument "
            f"(jax.numpy.clip's a_min) that jax {jax.__version__} no longer has: it needs an older jax or a newer brax."
        )
    return FunctionalEnv(
        env if randomization_fn is None else RandomizedEnv(env, randomization_fn),
        num_envs,
        id=f"brax/{name}",
        episode_length=episode_length,
        action_repeat=action_repeat,
        pool_size=pool_size,
        # All ends that brax's tasks declare without a wrapper are terminations.
        truncation_key=None,
        content=Content(env, "brax", name, kwargs, randomization_fn),
    )


class _Deferred(types.ModuleType):
    """Stand-in for a package of which some functions, or none, are called later."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by the import system, and where modules are searched
            raise AttributeError(name)
        return lambda *args, **kwargs: getattr(importlib.import_module(self.__name__), name)(*args, **kwargs)


@contextlib.contextmanager
def deferred(package: str) -> Generator[None]:
    """Lets imports within leave a package out until they call it: MJX needs trimesh for meshes that collide alone."""
    stand_in = _Deferred(package)
    if sys.modules.setdefault(package, stand_in) is not stand_in:
        yield
        return
    try:
        yield
    finally:
        del sys.modules[package]


def without_batching(env: Any) -> Any:
    """The user's environment without brax's or playground's outer wrappers for batching and automatic resets.

    ``FunctionalEnv`` does both itself. An episode wrapper below those wrappers stays and is understood.

    Raises:
        ValueError: If such a wrapper lies below another one, from where it can't be taken away.
    """
    while type(env).__name__ in _BATCHING:
        env = env.env
    layer = env
    while layer is not None:
        name = type(layer).__name__
        if name in _BATCHING or "DomainRandomization" in name:
            raise ValueError(
                f"{type(env).__name__} wraps a {name}, which batches environments or hides the observation in which an "
                "episode ends: hand over the environment without it; batching and resets are done here."
            )
        layer = getattr(layer, "__dict__", {}).get("env")
    return env
