"""Base of the samplers, which draws and emits samples, and evaluates stored ones in replay."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, ClassVar

from multippo.arguments import check_number, check_size, describe, is_the_librarys
from multippo.networks.core import random_state
from multippo.networks.core.outputs import Draw, recorders
from multippo.networks.core.random_state import Drawing, RandomState
from multippo.networks.types import StatefulModuleOutput
from multippo.random import Rngs


class ActionSampler(Drawing):
    """Base of the samplers.

    The output is ``{"action", "log_likelihood", "entropy"}``: ``[B, *action shape]``, ``[B]`` and ``[B]``, sums over an
    action's dimensions, in nats. In a rollout the sample before squashing is emitted; in replay the stored one is
    evaluated under the current parameters. ``eval()`` makes a sampler return the mode of its distribution, ``train()``
    makes it sample again. The entropy bonus, ``-entropy_weight * entropy``, is the regularisation loss;
    ``PPOConfig.entropy_weight`` is a weight for all samplers of a network instead, which may change over a run.

    Args:
        rngs: Source of the sampler's key.
        entropy_weight: Weight of the entropy in the loss.

    Raises:
        ValueError: If ``entropy_weight`` is negative or not a number.
        TypeError: If ``rngs`` is not an ``Rngs``.
    """

    estimates_entropy = False
    """True if the entropy has no closed form, so that its gradient needs noise in replay too."""

    action_shape: tuple[int, ...] | None = None
    """Shape of an action of several numbers; None for one axis, whose size follows from the input."""

    parameter_axes: ClassVar[int | None] = None
    """Number of axes of the distribution's parameters behind time and batch; None if unknown."""

    def __init__(self, rngs: Rngs, entropy_weight: float = 0.0) -> None:
        self.entropy_weight = check_number(type(self).__name__, "entropy_weight", entropy_weight, least=0)
        super().__init__(rngs)

    @abc.abstractmethod
    def distribution(self, x: Any) -> Any:
        """The parameters of the distribution, a tuple of arrays, from the sampler's input.

        Raises:
            TypeError: If the input is not an array.
            ValueError: If the input is of the wrong shape; the message has the expected one.
        """

    def num_choices(self, parameters: Any) -> Any:
        """Number of choices behind each number of an action: an integer, or integers of an action's shape.

        The default is None, for an action that is not a choice, or not a known one; a number must be the space's.

        Args:
            parameters: Result of ``distribution``.
        """
        del parameters

    @abc.abstractmethod
    def kl_divergence(self, old: Any, new: Any) -> Any:
        """KL(old || new) in closed form, ``[B]`` (``[T, B]``), of two results of ``distribution``."""

    def _noise_shape(self, raw_action: Any, parameters: Any) -> tuple[int, ...]:
        """Shape of one environment's noise, from an emitted sample (or None) and the parameters (or None)."""
        return (parameters[0] if raw_action is None else raw_action).shape[-1:]

    @abc.abstractmethod
    def _sample(self, parameters: Any, noise: Any) -> Any:
        """The sample before squashing, or the distribution's mode if ``noise`` is None."""

    @abc.abstractmethod
    def _evaluate(self, parameters: Any, raw_action: Any, noise: Any) -> tuple[Any, Any, Any]:
        """Action, log-likelihood ``[...]`` and entropy ``[...]`` of stored or fresh samples."""

    def __call__(self, state: RandomState, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """Samples from ``[B, ...]`` parameters, or evaluates the stored sample."""
        out = self._run(state, x, None, rollout_extras)
        for draws in recorders:
            # With a mask some choices may never be there, and a user's class may read its input in another way.
            known = is_the_librarys(type(self)) and not isinstance(x, Mapping)
            draws.append(Draw(self, out.output["action"], self.num_choices(self.distribution(x)) if known else None))
        return out

    def unroll(self, state: RandomState, xs: Any, done: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """Runs all steps at once, since no step's noise depends on another's."""
        return self._run(state, xs, done, rollout_extras)

    def _checked(self, x: Any, lead: int) -> Any:
        """The distribution of an input with ``lead`` axes of time and batch."""
        parameters = self.distribution(x)
        axes = self.parameter_axes
        # A user's class may read its input in another way.
        if axes is not None and len(parameters[0].shape) != lead + axes and is_the_librarys(type(self)):
            received = x["logits"] if isinstance(x, Mapping) else x
            raise ValueError(
                f"{type(self).__name__} got an input of shape {tuple(received.shape)}; expected "
                f"{'[B, features]' if lead == 1 else '[T, B, features]'}."
            )
        return parameters

    def _needs_noise(self, state: RandomState, rollout_extras: Any) -> bool:
        sampling = rollout_extras is None and not self.deterministic
        # Noise is drawn ahead of a replay only if the loss weighs the entropy itself.
        return sampling or (self.estimates_entropy and (self.entropy_weight != 0.0 or state.tape is not None))

    def _run(self, state: RandomState, x: Any, done: Any, rollout_extras: Any) -> StatefulModuleOutput:
        parameters, noise = self._checked(x, 1 if done is None else 2), None
        self._check_run(state, parameters[0], done)
        if self._needs_noise(state, rollout_extras):
            noise = self._noise(state, self._noise_shape(rollout_extras, parameters), done)
        if rollout_extras is None:
            # A rollout's sample is data to the loss, also in a replay without a stored one.
            raw_action = self.engine.stop_gradient(self._sample(parameters, None if self.deterministic else noise))
        else:
            raw_action = rollout_extras
        action, log_likelihood, entropy = self._evaluate(parameters, raw_action, noise)
        return StatefulModuleOutput(
            next_state=self._advanced(state, done),
            output={"action": action, "log_likelihood": log_likelihood, "entropy": entropy},
            regularization_loss=-self.entropy_weight * entropy if self.entropy_weight else 0.0,
            rollout_extras=raw_action,
        )

    def _shaped(self, action: Any) -> Any:
        """Numbers ``[..., A]`` in the shape of an action."""
        shape = self.action_shape
        return action if shape is None or len(shape) == 1 else self.xp.reshape(action, (*action.shape[:-1], *shape))

    def draw_ahead(self, state: RandomState, rollout_extras: Any, num_steps: int, replay: bool = False) -> RandomState:
        """The carry with the noise of the next steps."""
        # In replay, and where it acts by modes, a sampler reads noise for an entropy alone that the loss weighs.
        if (replay or self.deterministic) and not (self.estimates_entropy and self.entropy_weight != 0.0):
            return state
        shape = self._noise_shape(rollout_extras, None)
        return random_state.draw_ahead(self, self._draw, state, num_steps, shape)


def check_action_shape(kind: str, shape: Any) -> tuple[int, ...] | None:
    """An action's shape as a tuple; None stays None.

    Raises:
        ValueError: If ``shape`` is neither an integer of at least 1 nor a tuple of such.
    """
    if shape is None:
        return None
    sizes = shape if isinstance(shape, tuple | list) else (shape,)
    return tuple(check_size(kind, "action_shape", size) for size in sizes)


def check_parameters(kind: str, x: Any, expected: str, size: int | None, multiple: int = 1) -> None:
    """Raises unless the input of a sampler is an array whose last axis fits.

    Args:
        kind: Name of the sampler.
        x: Input of the sampler.
        expected: Description of the right input, for the error.
        size: Size of the last axis; None for any but 0.
        multiple: Divisor of any size.

    Raises:
        TypeError: If ``x`` is not an array.
        ValueError: If the last axis is of another size.
    """
    if not hasattr(x, "shape"):
        raise TypeError(f"{kind} got {describe(x)}; expected {expected}.")
    last = x.shape[-1] if x.shape else 0
    if not last or last % multiple or last != (size or last):
        raise ValueError(f"{kind} got an input of shape {tuple(x.shape)}; expected {expected}.")
