"""The names of environments, and how near a mistyped one is to them."""

from __future__ import annotations

import difflib
import importlib.util
from typing import Any

import gymnasium

from multippo.envs import hidden_velocities

__all__ = ["BRAX_NAMES", "is_installed", "list_envs", "unknown_env"]

# Listed here because importing brax takes seconds. What the user has registered with brax is found as well. Without
# "swimmer", which brax can't compute with the JAX of today.
BRAX_NAMES = (
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
)

_SPELLING = (
    "Environments are written 'CartPole-v1' or 'gymnasium/CartPole-v1' (registered with gymnasium), 'brax/ant', and "
    "'playground/CartpoleBalance'; `multippo envs` lists them. One of your own is known in a program that registers it "
    "(gymnasium.register) before it asks for it, or that calls multippo.cli.main() after that."
)


def list_envs() -> list[str]:
    """The ids that ``make_env`` knows: gymnasium's newest versions, then brax and playground where they are installed.

    An id of gymnasium's may need a further package, which is named when the environment is made.
    """
    names = _gymnasium_ids()
    if is_installed("brax"):
        names += [f"brax/{name}" for name in BRAX_NAMES]
    if is_installed("mujoco_playground"):
        from multippo.envs.functional.playground import playground_names

        names += [f"playground/{name}" for name in playground_names()]
    return names


def unknown_env(env_id: str, names: list[str] | None = None) -> ValueError:
    """The error for an id that nothing is known by, with the nearest names.

    Args:
        env_id: What was asked for.
        names: The names to search; by default all.
    """
    names = list_envs() if names is None else names
    by_spelling: dict[str, str] = {}
    for name in names:
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


def _gymnasium_ids() -> list[str]:
    hidden_velocities.register()
    newest: dict[tuple[str | None, str], Any] = {}
    for spec in gymnasium.registry.values():
        # Converters of environments from before gymnasium, no environments themselves.
        if spec.name.startswith("GymV2"):
            continue
        known = newest.get((spec.namespace, spec.name))
        if known is None or (spec.version or 0) > (known.version or 0):
            newest[spec.namespace, spec.name] = spec
    return sorted(spec.id for spec in newest.values())
