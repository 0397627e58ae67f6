"""Names of devices: what users write, and which of those that are there it means."""

from __future__ import annotations

import re
from collections.abc import Sequence

_ALSO_CALLED = {"gpu": ("cuda", "rocm"), "cuda": ("cuda",), "cpu": ("cpu",), "tpu": ("tpu",)}

MATMUL_PRECISIONS = ("highest", "high")
"""Names that ``multippo.matmul_precision`` takes."""


def choose_device(engine: str, wanted: str, there: Sequence[str], hint: str = "", asked: str = "device") -> str:
    """The device that a name means.

    Args:
        engine: The engine's name, for errors.
        wanted: "auto" for the first that is there; a kind ("cpu", "cuda", "gpu", "tpu") for the first of that kind; or
            one of several ("cuda:1").
        there: Names of the form "cuda:0" of those that are there, the preferred one first.
        hint: What to do if it is not there.
        asked: Where the name comes from, for errors: the argument ``device``, or a variable of the environment.

    Returns:
        One of ``there``.

    Raises:
        ValueError: If it is not there; the error lists those that are.
    """
    if wanted == "auto":
        return there[0]
    match = re.fullmatch(r"([a-z]+)(?::(\d+))?", wanted) if isinstance(wanted, str) else None
    kind, number = (match[1], match[2]) if match else ("", None)
    for name in there:
        of_kind, _, of_number = name.partition(":")
        if of_kind in _ALSO_CALLED.get(kind, (kind,)) and number in (None, of_number):
            return name
    raise ValueError(
        f"{asked}={wanted!r} is not there: the {engine} engine sees {', '.join(there)}; expected one of these, its "
        f"kind alone, or 'auto'.{hint and ' ' + hint}"
    )


def check_matmul_precision(name: str) -> str:
    """``name``, if it is one of ``MATMUL_PRECISIONS``; ValueError otherwise."""
    if name not in MATMUL_PRECISIONS:
        choices = ", ".join(map(repr, MATMUL_PRECISIONS))
        raise ValueError(f"matmul_precision({name!r}) is not known; expected one of {choices}.")
    return name
