"""Parts of a network that are not trained for a while."""

from __future__ import annotations

from typing import Any

from multippo.networks.core.error_paths import refuse_other_module


def freeze(module: Any) -> None:
    """Keeps a module's parameters as they are in training, until ``unfreeze``.

    Statistics are updated as before. A frozen network is saved and loaded as any other; one that is rebuilt to load it
    into has to be frozen again. On torch it is ``module.requires_grad_(False)``.

    Args:
        module: A StatefulModule, a whole network or a part of one.

    Raises:
        TypeError: If it is something else.

    Example:
        >>> import multippo as mp
        >>> layer = mp.Dense(2, 2, mp.Rngs(0))
        >>> mp.freeze(layer)
        >>> len(layer.engine.named_params(layer.engine.split(layer).params))
        0
    """
    refuse_other_module("freeze", module)
    module.engine.freeze(module, True)


def unfreeze(module: Any) -> None:
    """Trains a module's parameters again. In a run that goes on the optimiser's moments of them are zero at first.

    Args:
        module: A StatefulModule.

    Raises:
        TypeError: If it is something else.
    """
    refuse_other_module("unfreeze", module)
    module.engine.freeze(module, False)
