"""Randomness as carry: a key and a step count for each environment.

The noise of a step depends on (key, count) alone, never on where episodes end; so the noise of T steps can be drawn in
one call, ahead of a rollout or in replay.

A first carry has the key that its module was made with, so one sampler in two places, or two made with equal ``Rngs``,
begin with the same noise. Training, evaluation, recording and teachers therefore first give every random state of the
carry a stream of its own, by its place in the tree: see ``reseed``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from multippo.arguments import describe
from multippo.networks.core.binding import Variable
from multippo.networks.core.unrolling import check_rows, check_steps
from multippo.networks.types import StatefulModule
from multippo.random import Rngs, check_rngs

Draw = Callable[[Any, tuple[int, ...]], Any]
"""A function such as ``random.normal``, from keys ``[..., 2]`` and a shape to noise ``[..., *shape]``."""


class RandomState(NamedTuple):
    """Carry of a module that draws.

    Attributes:
        key: Words of the key, ``[B, 2]``.
        count: Number of steps taken, ``[B]``, in the engine's word type.
        tape: Noise drawn ahead for K steps, ``[B, K, ...]``, or None.
        tape_start: Count of the tape's first step, ``[B]``, or None.
    """

    key: Any
    count: Any
    tape: Any = None
    tape_start: Any = None


def base_key(rngs: Rngs) -> Any:
    """The persistent key from which a module derives its carries."""
    return Variable(check_rngs("base_key", rngs).noise())


def new_random_state(module: Any, key: Any, batch_size: int) -> RandomState:
    """A state with one key for each environment, at count 0."""
    keys = module.random.split(key, batch_size)
    return RandomState(keys, module.xp.zeros_like(keys[:, 0]))


def advance(state: RandomState, steps: int = 1) -> RandomState:
    """The state ``steps`` later."""
    return state._replace(count=state.count + steps)


def noise(module: Any, draw: Draw, state: RandomState, shape: tuple[int, ...], steps: int | None = None) -> Any:
    """The noise ``[B, *shape]`` of the present step, or ``[T, B, *shape]`` of ``steps`` steps from there."""
    if state.tape is not None:
        taped = _taped(module, state, steps or 1, shape)
        return taped[0] if steps is None else taped
    counts = state.count
    if steps is not None:
        counts = counts + module.random.words_to(steps, state.key)[:, None]
    return draw(module.random.fold_in(state.key, counts), shape)


def _taped(module: Any, state: RandomState, steps: int, shape: tuple[int, ...]) -> Any:
    """The next noise on the tape, ``[steps, B, *shape]``."""
    xp = module.xp
    if state.tape.shape[1] == 1:
        return xp.moveaxis(state.tape, 1, 0)
    # Environments may stand at different places of the tape, since an invalid step does not advance the count.
    place = (state.count - state.tape_start)[:, None] + module.random.words_to(steps, state.key)
    if place.dtype != xp.int64:
        place = xp.astype(place, xp.int32)
    place = xp.broadcast_to(xp.reshape(place, (*place.shape, *(1,) * len(shape))), (*place.shape, *shape))
    return xp.moveaxis(xp.take_along_axis(state.tape, place, axis=1), 0, 1)


def draw_ahead(module: Any, draw: Draw, state: RandomState, steps: int, shape: tuple[int, ...]) -> RandomState:
    """The state with a tape of the next ``steps`` steps."""
    fresh = state._replace(tape=None, tape_start=None)
    tape = module.xp.moveaxis(noise(module, draw, fresh, shape, steps), 0, 1)
    # A new array, since torch compiles once more for arguments that are one and the same tensor.
    return fresh._replace(tape=tape, tape_start=state.count + 0)


class Drawing(StatefulModule):
    """Base of modules that draw, with a key and a step count for each environment as the carry.

    Args:
        rngs: Source of the key.

    Raises:
        TypeError: If ``rngs`` is not an ``Rngs``.
    """

    def __init__(self, rngs: Rngs) -> None:
        self.base_key = base_key(check_rngs(type(self).__name__, rngs))
        self.deterministic = False

    def _draw(self, key: Any, shape: tuple[int, ...]) -> Any:
        """Noise of the module's distribution, ``[..., *shape]`` from keys ``[..., 2]``."""
        return self.random.uniform(key, shape)

    def _noise(self, state: RandomState, shape: tuple[int, ...], done: Any) -> Any:
        """The noise of one step, or of all steps of ``done``."""
        return noise(self, self._draw, state, shape, None if done is None else done.shape[0])

    def _advanced(self, state: RandomState, done: Any) -> RandomState:
        return advance(state, 1 if done is None else done.shape[0])

    def _check_run(self, state: Any, x: Any, done: Any) -> None:
        """Raises unless an input ``[B, ...]``, or with ``done`` ``[T, B, ...]``, and the carry are of as many rows."""
        kind, batch = type(self).__name__, x.shape[0]
        if done is not None:
            check_steps(kind, x, done)
            batch = done.shape[1]
        if not isinstance(state, RandomState):
            raise ValueError(f"{kind} got {describe(state)} as its state; expected that of initialize_state({batch}).")
        check_rows(kind, state.count, batch)

    def initialize_state(self, batch_size: int) -> Any:
        """A key for each environment, which resets keep."""
        return new_random_state(self, self.base_key[...], batch_size)


def reseed(random: Any, tree: Any, key: Any) -> Any:
    """A carry tree whose random states start from ``key``, each with a stream of its own, at count 0.

    One seed of a run then decides its noise, whichever keys the network was built with; and one module in two places
    of a network draws other noise in each.
    """
    number = iter(range(2**31))

    def fresh(state: RandomState) -> RandomState:
        keys = random.split(random.fold_in(key, next(number)), state.count.shape[0])
        return RandomState(keys, state.count * 0)

    return map_random_states(fresh, tree)


def forget_drawn(tree: Any) -> Any:
    """A carry tree with every tape left out."""
    return map_random_states(lambda state: RandomState(state.key, state.count), tree)


def map_random_states(function: Callable[[RandomState], Any], tree: Any) -> Any:
    """Applies ``function`` to every ``RandomState`` in a carry tree, in the tree's order; all else stays."""
    import optree

    is_random = lambda node: isinstance(node, RandomState)  # noqa: E731
    return optree.tree_map(lambda node: function(node) if is_random(node) else node, tree, is_leaf=is_random)
