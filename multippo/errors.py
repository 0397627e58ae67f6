"""Errors that callers catch. Mistakes in arguments are plain ``ValueError`` and ``TypeError``.

- ``MultippoError``

  - ``NonFiniteError``: a NaN or infinity in observations, rewards, losses or gradients
"""

from __future__ import annotations

from typing import Any

__all__ = ["MultippoError", "NonFiniteError"]


class MultippoError(Exception):
    """Base of the errors of this library."""


class NonFiniteError(MultippoError):
    """A NaN or an infinity stopped training.

    Attributes:
        leaf: What was not finite, such as ``observation 'camera'``, ``loss``, ``gradient of layers.0.kernel``.
        training_state: The last good state, from before the iteration it appeared in.
    """

    def __init__(self, message: str, *, leaf: str, training_state: Any) -> None:
        super().__init__(message)
        self.leaf = leaf
        self.training_state = training_state
