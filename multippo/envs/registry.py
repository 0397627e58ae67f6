"""Families of environments, their names, and the names nearest to a mistyped one."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium

from multippo.envs import hidden_velocities


class Family(NamedTuple):
    """Environments whose names begin with the family's: ``brax/ant``.

    ``make_NAME(name, num_envs, **kwargs)`` in ``envs/functional/NAME.py`` makes one; it raises a KeyError for an
    unknown name.

    Attributes:
        package: The package that has them. The extra of multippo that installs it goes by the family's name.
        options: Fields of ``runs.settings.EnvironmentOptions`` that it takes beside those of every family.
        names: Names of the environments; None to ask ``NAME_names()`` in that file.
    """

    package: str
    options: frozenset[str]
    names: tuple[str, ...] | None = None


FAMILIES = {
    "brax": Family(
        "brax",
        frozenset({"env_backend", "episode_length", "pool_size"}),
        # Importing brax takes seconds. Names that the user has registered with brax are found as well. "swimmer" is
        # left out, which brax can't compute with the JAX of today.
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
}
"""Families beside gymnasium, whose names need no prefix."""

_SPELLING = (
    "Environments are written 'CartPole-v1' or 'gymnasium/CartPole-v1' (registered with gymnasium), 'brax/ant', and "
    "'playground/CartpoleBalance'; `multippo envs` lists them. One of your own is known in a program that registers it "
    "(gymnasium.register) before it asks for it, or that calls multippo.cli.main() after that."
)


def maker(family: str) -> Callable[..., Any]:
    """The function that makes a family's environments."""
    return getattr(_module(family), f"make_{family}")


def list_envs() -> list[str]:
    """Ids that ``make_env`` knows: gymnasium's newest versions, then those of the families that are installed.

    An id of gymnasium's may need a further package, which is named when the environment is made.
    """
    names = _gymnasium_ids()
    for prefix, family in FAMILIES.items():
        if is_installed(family.package):
            known = family.names or getattr(_module(prefix), f"{prefix}_names")()
            names += [f"{prefix}/{name}" for name in known]
    return names


def unknown_env(env_id: str) -> ValueError:
    """The error for an id that nothing is known by, with the nearest names."""
    by_spelling: dict[str, str] = {}
    for name in list_envs():
        # An id can be found by its last part as well: "ant" is near "brax/ant".
        for spelling in (name, name.rpartition("/")[2], name.rpartition("/")[2].partition("-v")[0]):
            by_spelling.setdefault(spelling.lower(), name)
    wanted = env_id.removeprefix("gymnasium/").lower()
    near = difflib.get_close_matches(wanted, by_spelling, n=5, cutoff=0.6)
    near += difflib.get_close_matches(wanted.rpartition("/")[2], by_spelling, n=5, cutoff=0.75)
    nearest = list(dict.fromkeys(by_spelling[spelling] for spelling in near))[:3]
    hint = f" Did you mean {' or '.join(map(repr, nearest))}?" if nearest else ""
    return ValueError(f"The environment {env_id!r} is not known.{hint} {_SPELLING}")


def is_installed(package: str) -> bool:
    """True if a package can be imported; it is not imported."""
    return importlib.util.find_spec(package) is not None


def _module(family: str) -> Any:
    return importlib.import_module(f"{__package__}.functional.{family}")


def _gymnasium_ids() -> list[str]:
    hidden_velocities.register()
    newest: dict[tuple[str | None, str], Any] = {}
    for spec in gymnasium.registry.values():
        # These convert environments from before gymnasium.
        if spec.name.startswith("GymV2"):
            continue
        known = newest.get((spec.namespace, spec.name))
        if known is None or (spec.version or 0) > (known.version or 0):
            newest[spec.namespace, spec.name] = spec
    return sorted(spec.id for spec in newest.values())
