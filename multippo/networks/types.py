"""The protocol of modules of a stateful network. Read this file to write a module.

Legend of axes: ``T`` time, ``B`` environments (batch), ``...`` features.

Two kinds of state, which never mix:

* *Persistent* state lives on the module, in a ``Param`` (trained) or a ``Variable`` (tracked, not trained). It survives
  the end of an episode. A call reads it and never writes it; only ``update_statistics`` and the optimiser write.
* *Carry* state is the explicit ``state`` argument: a tree of arrays that all lead with the batch axis, one row for each
  environment. It is reset where an episode ends. Random keys are carry state too, so a call is a pure function.

Three phases, distinguished by ``rollout_extras`` alone:

* **rollout**: ``None``; a module returns a snapshot in ``rollout_extras``, if replay needs one, and the rollout stacks
  the snapshots over time;
* **loss replay**: the stored snapshot is handed back, so that the stored sample is evaluated under the current weights;
* **inference**: ``None`` again, and the module's snapshot is dropped.
"""

from __future__ import annotations

import abc
import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from multippo.networks.core.binding import StatefulMeta
from multippo.networks.core.unrolling import with_batch_size
from multippo.trees import tree_map

if TYPE_CHECKING:
    from multippo.backends.api import Engine


class StatefulModuleOutput(NamedTuple):
    """Result of a call of a module.

    Attributes:
        next_state: Carry after the call, with the structure, shapes and dtypes of the carry passed in.
        output: Tree of ``[B, ...]`` arrays.
        regularization_loss: ``[B]`` array added to the loss (an entropy bonus is negative), or a number, such as 0.0.
        metrics: Dict of values to log: arrays, scalar or ``[B]``, or numbers; nested by child in containers.
        rollout_extras: Snapshot that replay needs, mirroring ``state`` in containers; None for nothing.
    """

    next_state: Any
    output: Any
    regularization_loss: Any = 0.0
    metrics: dict[str, Any] = {}  # noqa: RUF012 - for type checkers; see _new_output
    rollout_extras: Any = None

    def replace(self, **fields: Any) -> StatefulModuleOutput:
        """A copy with other values in some fields."""
        return self._replace(**fields)


def _new_output(
    cls: type[tuple[Any, ...]],
    next_state: Any,
    output: Any,
    regularization_loss: Any = 0.0,
    metrics: dict[str, Any] | None = None,
    rollout_extras: Any = None,
) -> Any:
    # A new dict: an entry that one module writes into its metrics must not be in another's.
    fields = (next_state, output, regularization_loss, {} if metrics is None else metrics, rollout_extras)
    return tuple.__new__(cls, fields)


# A NamedTuple has one default for all, and none of its classes may define ``__new__`` itself.
StatefulModuleOutput.__new__ = _new_output  # pyright: ignore[reportAttributeAccessIssue]


class PPONetworkOutput(NamedTuple):
    """Output of a network that PPO can train: the ``output`` of its outermost module.

    Attributes:
        actions: Tree of ``[B, ...]`` arrays, in the network's coordinates, which the ``step`` of ``make_env``'s
            environments takes: [-1, 1] in a bounded dimension, choices from 0; load_policy gives the environment's.
        loglikelihoods: log pi(action | obs), ``[B]``, or a tree of ``[B]`` with the actions' keys.
        value_estimates: V(obs), ``[B]``, or a tree of ``[B]`` with the rewards' keys.
        entropies: Entropy of pi(. | obs) in nats, or an estimate, ``[B]``, or a tree of ``[B]`` with the actions' keys;
            None where it is not known, so that ``PPOConfig.entropy_weight`` can't be set.
    """

    actions: Any
    loglikelihoods: Any
    value_estimates: Any
    entropies: Any = None

    @property
    def log_likelihoods(self) -> Any:
        """Another name of ``loglikelihoods``."""
        return self.loglikelihoods


class StatefulModule(metaclass=StatefulMeta):
    """A layer or network with explicit carry state, defined once for every engine.

    A subclass is neutral: calling it makes an instance of the active engine's native module (``flax.nnx.Module`` or
    ``torch.nn.Module``) that is also an instance of the subclass. ``super().__init__()`` is not needed. Assign
    ``Param``, ``Variable``, modules, and lists or dicts of them as attributes; all are tracked.

    Class attributes, set on the bound class:
        engine: Engine of the instance.
        xp: Array namespace of the engine (the array API standard's functions).
        random: Random functions of the engine, as in ``multippo.random``.
        scans_in_replay: True if a class overrides ``unroll`` and goes step by step all the same; only ``summary`` reads
            this.

    Example, running on every engine::

        class Integrator(StatefulModule):
            def __init__(self, size, rngs):
                self.size = size
                self.leak = Param(np.full(size, 0.9))

            def __call__(self, state, x, rollout_extras=None):
                total = self.leak[...] * state + x
                return StatefulModuleOutput(total, total)

            def initialize_state(self, batch_size):
                return self.zeros((batch_size, self.size))

            def reset_state(self, prev_state):
                return self.xp.zeros_like(prev_state)
    """

    engine: ClassVar[Engine]
    xp: ClassVar[Any]
    random: ClassVar[Any]
    scans_in_replay: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Gives a class that overrides ``__call__`` alone the default ``unroll``, never an inherited one.

        An inherited parallel ``unroll`` would run the parent's arithmetic in replay. The class's ``initialize_state``
        gets a check of its argument, its ``update_statistics`` the argument ``valid``.

        Raises:
            TypeError: If the class defines ``engine``, ``xp`` or ``random``, names that multippo sets.
        """
        super().__init_subclass__(**kwargs)
        own = cls.__dict__
        taken = [name for name in ("engine", "xp", "random") if name in own]
        if len(taken) in (1, 2):  # with all three it is a bound class
            raise TypeError(f"{cls.__qualname__}.{taken[0]} is not possible: multippo sets that name on every module.")
        if "__call__" in own and "unroll" not in own and getattr(cls, "engine", None) is None:
            cls.unroll = StatefulModule.unroll
        if inspect.isfunction(own.get("initialize_state")):
            cls.initialize_state = with_batch_size(own["initialize_state"])
        if "update_statistics" in own and not _takes_valid(own["update_statistics"]):
            cls.update_statistics = _with_mask(own["update_statistics"])

    @abc.abstractmethod
    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """Takes one step, in the network's own coordinates.

        A network is given observations as ``make_env`` shows them, a Discrete one as a one-hot vector, and puts out
        actions in [-1, 1] and choices from 0. From an environment's own observations to its own actions leads
        ``load_policy``.

        Args:
            state: Carry from ``initialize_state`` or the last call.
            x: Tree of ``[B, ...]`` arrays.
            rollout_extras: None, or in loss replay this module's slice of the stored snapshots.
        """

    @with_batch_size
    def initialize_state(self, batch_size: int) -> Any:
        """The carry of ``batch_size`` environments at the start of their first episode; ``()`` for none."""
        del batch_size
        return ()

    def reset_state(self, prev_state: Any) -> Any:
        """The carry at the start of an episode, given the one at the end of the last; same structure and shapes.

        The default keeps ``prev_state``, which is right only for a carry that should survive episodes (random keys).
        The method is called for all environments at once, on a copy of their carries; the result is used where an
        episode ended.
        """
        return prev_state

    def update_statistics(self, rollout_extras: Any, valid: Any = None) -> None:
        """Folds a rollout's stacked snapshots into the module's ``Variable``s.

        The method is called once for each rollout, after the gradient phase.

        Args:
            rollout_extras: The module's snapshots, stacked to ``[T, B, ...]``.
            valid: ``[T, B]`` bool, False for entries to leave out; None where all count. A subclass may leave this
                argument out of its signature; it is then given the valid entries only, as ``[N, 1, ...]``, and not
                called where there are none. Callers hand ``valid`` on to any child all the same. A method that takes
                ``valid`` is compiled on JAX, where no shape may depend on it; entries to leave out may hold NaN, so
                take ``xp.where`` and not a product.
        """
        del rollout_extras, valid

    def draw_ahead(self, state: Any, rollout_extras: Any, num_steps: int, replay: bool = False) -> Any:
        """The carry with the noise of the next ``num_steps`` steps drawn in one call; outcomes stay the same.

        Only modules with random carry change anything; a container passes the call on.

        Args:
            state: Carry.
            rollout_extras: Snapshot of the module at any step, which has the shape of a sampler's noise.
            num_steps: Number of steps to draw for.
            replay: True for the steps of a replay, in which a sampler needs no noise to sample. A replay whose loss
                weighs the entropy (``PPOConfig.entropy_weight``) passes False, as a rollout does; a sampler that
                estimates its entropy then does so from the noise drawn.
        """
        del rollout_extras, num_steps, replay
        return state

    def unroll(self, state: Any, xs: Any, done: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """Takes ``T`` steps; an override may be parallel in time.

        The default calls a module without a carry once, with the rows of all steps, ``[T * B, ...]``, and any other one
        step by step, with a reset after each step that ended an episode.

        Args:
            state: Carry before the first step.
            xs: Tree of ``[T, B, ...]`` arrays.
            done: ``[T, B]`` bool, True where the carry is reset *after* the step.
            rollout_extras: Stacked snapshots, or None.

        Returns:
            Output with the carry after the last step, and everything else stacked to ``[T, B, ...]``.
        """
        from multippo.networks.core.unrolling import scan_unroll

        return scan_unroll(self, state, xs, done, rollout_extras)

    def zeros(self, shape: tuple[int, ...]) -> Any:
        """Zeros in the engine's floating-point type and on its device."""
        return self.engine.zeros(shape)


def _takes_valid(update: Callable[..., None]) -> bool:
    """True if an author's ``update_statistics`` takes ``valid``."""
    parameters = inspect.signature(update).parameters.values()
    return any(p.name == "valid" or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def _with_mask(update: Callable[..., None]) -> Callable[..., None]:
    """An ``update_statistics(self, rollout_extras)`` as one that takes ``valid``, so that parents can hand it to all.

    Only valid entries are passed on; without any the method is not called, since the mean of none is NaN.
    """

    @functools.wraps(update)
    def masked(self: Any, rollout_extras: Any, valid: Any = None) -> None:
        if valid is None:
            update(self, rollout_extras)
        elif bool(self.xp.any(valid)):
            # The shape of boolean indexing depends on the data, so this path runs outside compiled code.
            update(self, tree_map(lambda x: x[valid][:, None], rollout_extras))

    return masked


def needs_only_valid(module: Any) -> bool:
    """True if a module in the tree takes no mask, so that statistics can't be updated inside compiled code."""
    if not hasattr(type(module), "update_statistics"):
        return False
    own = not _takes_valid(type(module).update_statistics)
    return own or any(needs_only_valid(child) for _, child in module.engine.children(module))
