"""Known environments: families and their names, own variants of classic tasks, other libraries' interfaces."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.spaces import Box
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import TransformObservation
from gymnasium.wrappers.vector import TransformObservation as TransformVectorObservation

from multippo.errors import needing


class Family(NamedTuple):
    """Environments whose names begin with the family's: ``brax/ant``.

    ``make_NAME(name, num_envs, **kwargs)`` in ``module`` makes one; it raises a KeyError for an unknown name.

    Attributes:
        package: Package of the environments. The extra of multippo that installs it has the family's name.
        options: Fields of ``runs.settings.EnvironmentOptions`` that the family takes beside those of every family.
        names: Names of the environments; None to ask ``NAME_names()`` in the module.
        module: Module below ``envs``; ``functional.NAME`` by default.
    """

    package: str
    options: frozenset[str]
    names: tuple[str, ...] | None = None
    module: str = ""


FAMILIES = {
    "brax": Family(
        "brax",
        frozenset({"env_backend", "episode_length", "pool_size"}),
        # A list, since importing brax takes seconds; names that the user has registered with brax are found as well.
        # "swimmer" is left out, since brax can't compute it with the JAX of today.
        (
            "ant",
            "fast",
            "halfcheetah",
            "hopper",
            "humanoid",
            "humanoidstandup",
            "inverted_double_pendulum",
            "inverted_pendulum",
            "pusher",
            "reacher",
            "walker2d",
        ),
    ),
    "playground": Family("mujoco_playground", frozenset({"episode_length", "pool_size"})),
    **{
        name: Family(name, frozenset({"episode_length", "pool_size"}), module="functional.suites")
        for name in ("gymnax", "craftax", "jumanji", "navix")
    },
    "envpool": Family("envpool", frozenset({"max_episode_steps"}), module="host.pools"),
}
"""Families beside gymnasium, whose names need no prefix."""


class Registering(NamedTuple):
    """A package that registers environments with gymnasium when it is imported.

    Attributes:
        package: Name of the package.
        start: Start of the registered ids; a name may have the family's prefix in its place.
        extra: Extra of multippo that installs it.
        keys: Keys of a Dict observation that are shown by default.
    """

    package: str
    start: str
    extra: str
    keys: tuple[str, ...] | None = None


REGISTERING = {
    "ALE": Registering("ale_py", "ALE/", "atari"),
    # The mission is a text, the same in every episode of most tasks.
    "minigrid": Registering("minigrid", "MiniGrid-", "minigrid", ("direction", "image")),
    "popgym": Registering("popgym", "popgym-", "popgym"),
}
"""Packages that names may import, by the prefix of the names."""


def registered(env_id: str) -> tuple[str, Registering | None]:
    """The id under which gymnasium knows an environment, whose package is imported, and that package.

    Raises:
        ImportError: If the package is missing.
    """
    register_hidden_velocities()
    name = env_id.removeprefix("gymnasium/")
    for prefix, known in REGISTERING.items():
        if name.startswith((f"{prefix}/", known.start)):
            with needing(known.extra, env_id):
                importlib.import_module(known.package)
            return known.start + name.removeprefix(f"{prefix}/").removeprefix(known.start), known
    return name, None


_SPELLING = (
    "Environments are written 'CartPole-v1' or 'gymnasium/CartPole-v1' (registered with gymnasium), or with their "
    "suite, as 'brax/ant' and 'minigrid/MemoryS7-v0'; `multippo envs` lists them. One of your own is known in a "
    "program that registers it (gymnasium.register) before asking for it, or that calls multippo.cli.main() after that."
)


def is_functional_name(env_id: str) -> bool:
    """True for a name of a family whose environments are traced by JAX."""
    family = FAMILIES.get(env_id.partition("/")[0])
    return family is not None and not family.module.startswith("host.")


def maker(family: str) -> Callable[..., Any]:
    """The function ``make_NAME`` of a family."""
    return getattr(_module(family), f"make_{family}")


def list_envs() -> list[str]:
    """Ids that ``make_env`` knows: gymnasium's newest versions, then those of the families that are installed.

    An id of gymnasium's may need a further package, which is named when the environment is made. Suites that can't be
    imported beside the other packages installed are left out.
    """
    for known in REGISTERING.values():
        if is_installed(known.package):
            with contextlib.suppress(Exception):
                importlib.import_module(known.package)
    names = _gymnasium_ids()
    for prefix, family in FAMILIES.items():
        if is_installed(family.package):
            with contextlib.suppress(Exception):
                known = family.names or getattr(_module(prefix), f"{prefix}_names")()
                names += [f"{prefix}/{name}" for name in known]
    return names


def unknown_env(env_id: str) -> ValueError:
    """The error for an unknown id, with the nearest names."""
    by_spelling: dict[str, str] = {}
    for name in list_envs():
        # By its last part as well, since "ant" is near "brax/ant".
        for spelling in (name, name.rpartition("/")[2], name.rpartition("/")[2].partition("-v")[0]):
            by_spelling.setdefault(spelling.lower(), name)
    wanted = env_id.removeprefix("gymnasium/").lower()
    near = difflib.get_close_matches(wanted, by_spelling, n=5, cutoff=0.6)
    near += difflib.get_close_matches(wanted.rpartition("/")[2], by_spelling, n=5, cutoff=0.75)
    nearest = list(dict.fromkeys(by_spelling[spelling] for spelling in near))[:3]
    hint = f" Did you mean {' or '.join(map(repr, nearest))}?" if nearest else ""
    return ValueError(f"The environment {env_id!r} is not known.{hint} {_SPELLING}")


def is_installed(package: str) -> bool:
    """True if a package can be imported, found without importing it."""
    return importlib.util.find_spec(package) is not None


def _module(family: str) -> Any:
    return importlib.import_module(f"{__package__}.{FAMILIES[family].module or f'functional.{family}'}")


def _gymnasium_ids() -> list[str]:
    register_hidden_velocities()
    newest: dict[tuple[str | None, str], Any] = {}
    for spec in gymnasium.registry.values():
        # The ids GymV2... convert environments from before gymnasium.
        if spec.name.startswith("GymV2"):
            continue
        known = newest.get((spec.namespace, spec.name))
        if known is None or (spec.version or 0) > (known.version or 0):
            newest[spec.namespace, spec.name] = spec
    return sorted(spec.id for spec in newest.values())


_WAYS = {
    "pettingzoo": "Several agents are not supported: write a gymnasium.Env of one of them, in which the others act.",
    "stable_baselines3": "Pass the functions that make its single environments: make_env([make, make, ...]).",
    "pufferlib": "Pass a function that makes the gymnasium.Env inside, or write a VectorEnv with a row for each agent.",
    "dm_env": "Pass lambda: shimmy.DmControlCompatibilityV0(...) with a new environment in it (pip install shimmy).",
    "gym": "Derive it from gymnasium.Env, with five values from step; or pass lambda: "
    "shimmy.GymV26CompatibilityV0(env=...) with a new environment in it (GymV21CompatibilityV0 before gym 0.26).",
}
"""Advice on training on an environment, by the package in which its base class is defined."""


def refuse_other_interface(env: Any) -> None:
    """Raises for an object with ``reset`` and ``step`` that is not a functional environment, importing nothing.

    Raises:
        TypeError: If ``env`` is of another library's interface; the message names it and the way to train on it.
    """
    packages = {base.__module__.partition(".")[0] for base in type(env).__mro__}
    package = next((package for package in _WAYS if package in packages), None)
    if package is not None:
        what, way = f"an environment of {package}", _WAYS[package]
    elif _takes_one(env.step):
        what = "an object whose step takes the action alone"
        way = "Derive it from gymnasium.Env and pass a function that makes one."
    else:
        return
    raise TypeError(
        f"{type(env).__name__} is {what}; expected a gymnasium.Env, made by a function, or a functional JAX "
        f"environment. {way}"
    )


def _takes_one(step: Any) -> bool:
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.default is each.empty and each.kind in positional for each in parameters) == 1


CARTPOLE_ID = "multippo/CartPoleNoVel-v0"
PENDULUM_ID = "multippo/PendulumNoVel-v0"
"""Classic tasks that hide velocities, so that only a policy with memory can solve them.

Observations are the cart's position and the pole's angle, and the cosine and sine of the pendulum's angle. Dynamics,
rewards and time limits are those of CartPole-v1 and Pendulum-v1.
"""

_CARTPOLE_ENTRIES = [0, 2]
_PENDULUM_ENTRIES = [0, 1]


def make_cartpole(**kwargs: Any) -> gymnasium.Env[np.ndarray, Any]:
    """A CartPole without its velocities."""
    return _hidden(CartPoleEnv(**kwargs), _CARTPOLE_ENTRIES)


def make_cartpole_vector(num_envs: int, max_episode_steps: int = 500, **kwargs: Any) -> VectorEnv[Any, Any, Any]:
    """Many CartPoles without their velocities, stepped as one."""
    env = CartPoleVectorEnv(num_envs=num_envs, max_episode_steps=max_episode_steps, **kwargs)
    space = _kept(env.single_observation_space, _CARTPOLE_ENTRIES)

    def positions(obs: Any) -> Any:
        return obs[:, _CARTPOLE_ENTRIES]

    return TransformVectorObservation(env, positions, batch_space(space, num_envs), single_observation_space=space)


def make_pendulum(**kwargs: Any) -> gymnasium.Env[np.ndarray, Any]:
    """A Pendulum without its velocity."""
    return _hidden(PendulumEnv(**kwargs), _PENDULUM_ENTRIES)


def register_hidden_velocities() -> None:
    """Registers the tasks that hide velocities with gymnasium; a second call changes nothing."""
    if CARTPOLE_ID not in gymnasium.registry:
        gymnasium.register(
            CARTPOLE_ID,
            entry_point="multippo.envs.registry:make_cartpole",
            vector_entry_point="multippo.envs.registry:make_cartpole_vector",
            max_episode_steps=500,
        )
        gymnasium.register(PENDULUM_ID, entry_point="multippo.envs.registry:make_pendulum", max_episode_steps=200)


def _hidden(env: gymnasium.Env[Any, Any], entries: list[int]) -> gymnasium.Env[np.ndarray, Any]:
    return TransformObservation(env, lambda obs: obs[entries], _kept(env.observation_space, entries))


def _kept(space: Any, entries: list[int]) -> Box:
    return Box(space.low[entries], space.high[entries], dtype=space.dtype)
