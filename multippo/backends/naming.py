"""Names that every engine agrees on: how a child's key becomes an attribute, and an attribute a portable name."""

from __future__ import annotations

from typing import Any

__all__ = ["NATIVE_CORE", "contains_tracked", "escape", "unescape"]

NATIVE_CORE = "core"
"""Attribute under which a neutral layer holds the framework's own layer; left out of portable names."""

_MARK = "·"  # a letter that no attribute of nnx.Dict or nn.Module has, so a marked key collides with none


def escape(key: Any) -> str:
    """A dict key as an attribute name that neither framework refuses or already uses (``keys``, ``a.b``, ``0``)."""
    return _MARK + str(key).replace(".", _MARK)


def unescape(name: str) -> str:
    """The key that ``escape`` was given."""
    return name[1:].replace(_MARK, ".") if name.startswith(_MARK) else name


def contains_tracked(value: Any, tracked: tuple[type, ...]) -> bool:
    """Whether a (nested) list, tuple or dict holds an instance of one of the types."""
    if isinstance(value, dict):
        return any(contains_tracked(item, tracked) for item in value.values())
    if isinstance(value, list | tuple):
        return any(contains_tracked(item, tracked) for item in value)
    return isinstance(value, tracked)
