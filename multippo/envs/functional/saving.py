"""The state of functional environments as named NumPy arrays, for checkpoints.

Names are paths in the state's tree. The structure is not stored, but taken from the environment when it is restored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from multippo.envs.api import Env, EnvState


def read_env_state(env_state: EnvState) -> dict[str, np.ndarray]:
    """A functional environment's state as arrays by path, random keys as their words."""
    import jax

    arrays: dict[str, np.ndarray] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(env_state):
        arrays[jax.tree_util.keystr(path)] = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
    return arrays


@dataclasses.dataclass(frozen=True)
class SavedEnvState:
    """A functional environment's state that is still in its file.

    Attributes:
        read: Function that reads all arrays, given an example of shape and type for each name (None: all as they are);
            raises ValueError for an array that does not fit.
    """

    read: Callable[[Mapping[str, Any] | None], Mapping[str, np.ndarray]]

    def restore(self, env: Env) -> EnvState:
        """The state, in the structure that ``env.reset`` returns.

        Raises:
            ValueError: If the environment is not functional, or its state has other arrays than the saved ones.
        """
        if not env.functional:
            raise ValueError(
                f"The saved state is that of a functional environment, but {env.id} is a host environment: go on "
                "with the environment the run was started with."
            )
        import jax

        key_kinds: dict[str, Any] = {}

        def reset(key: Any) -> EnvState:
            state = env.reset(key)
            for path, leaf in jax.tree_util.tree_leaves_with_path(state):
                if _is_key(leaf):
                    key_kinds[jax.tree_util.keystr(path)] = jax.random.key_impl(leaf)
            return state

        example = jax.eval_shape(reset, jax.ShapeDtypeStruct((2,), np.dtype(np.uint32)))
        leaves, structure = jax.tree_util.tree_flatten_with_path(example)
        plan = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
        arrays = self.read(plan | {name: jax.eval_shape(jax.random.key_data, plan[name]) for name in key_kinds})
        restored: list[Any] = []
        for name in plan:
            array = jax.numpy.array(arrays[name])  # of its own, never NumPy's memory
            kind = key_kinds.get(name)
            restored.append(array if kind is None else jax.random.wrap_key_data(array, impl=kind))
        return jax.tree_util.tree_unflatten(structure, restored)


def _is_key(leaf: Any) -> bool:
    import jax

    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
