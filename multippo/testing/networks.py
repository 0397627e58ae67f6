"""Actor-critics whose log-likelihoods and values are simple functions of observation and carry."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from multippo.networks.core import random_state
from multippo.networks.core.binding import Param
from multippo.networks.samplers.discrete import CategoricalSampler
from multippo.networks.types import PPONetworkOutput, StatefulModule, StatefulModuleOutput
from multippo.random import Rngs


class TinyActorCritic(StatefulModule):
    """A categorical policy and a value; the carry is ``{"memory", "sampler"}``.

    A subclass implements ``heads``, and the carry's methods where it has a memory.

    Args:
        rngs: Source of the sampler's key.
    """

    def __init__(self, rngs: Rngs | None = None) -> None:
        self.sampler = CategoricalSampler(rngs or Rngs(0))

    @abc.abstractmethod
    def heads(self, memory: Any, x: Any) -> tuple[Any, Any, Any]:
        """The new memory, logits ``[B, A]`` and values ``[B]``."""

    def fresh_memory(self, batch_size: int) -> Any:
        """The memory at the start of an episode; ``()`` for none."""
        del batch_size
        return ()

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """Samples an action, or evaluates the stored one."""
        memory, logits, value = self.heads(state["memory"], x)
        sample = self.sampler(state["sampler"], logits, rollout_extras)
        return StatefulModuleOutput(
            next_state={"memory": memory, "sampler": sample.next_state},
            output=PPONetworkOutput(
                sample.output["action"], sample.output["log_likelihood"], value, sample.output["entropy"]
            ),
            regularization_loss=sample.regularization_loss,
            rollout_extras=sample.rollout_extras,
        )

    def initialize_state(self, batch_size: int) -> Any:
        """Fresh memory, and the sampler's keys."""
        return {"memory": self.fresh_memory(batch_size), "sampler": self.sampler.initialize_state(batch_size)}

    def draw_ahead(self, state: Any, rollout_extras: Any, num_steps: int, replay: bool = False) -> Any:
        """The carry with the sampler's noise drawn ahead."""
        sampler = self.sampler.draw_ahead(state["sampler"], rollout_extras, num_steps, replay)
        return {**state, "sampler": sampler}

    def reset_state(self, prev_state: Any) -> Any:
        """Fresh memory; the sampler's keys stay."""
        batch_size = prev_state["sampler"].count.shape[0]
        return {**prev_state, "memory": self.fresh_memory(batch_size)}


class TableNet(TinyActorCritic):
    """A network without memory that reads value and logits of a one-hot observation from tables.

    Args:
        values: Value of each observation, ``[N]``.
        num_actions: Number of actions, A; all logits start at 0.
        rngs: Source of the sampler's key.
    """

    def __init__(self, values: Sequence[float], num_actions: int = 2, rngs: Rngs | None = None) -> None:
        super().__init__(rngs)
        self.values = Param(np.asarray(values, np.float64))
        self.logits = Param(np.zeros((len(values), num_actions)))

    def heads(self, memory: Any, x: Any) -> tuple[Any, Any, Any]:
        """The row of each table that the observation selects."""
        values = self.values[...]
        row = self.xp.astype(x, values.dtype)
        return memory, row @ self.logits[...], row @ values


class CountNet(TinyActorCritic):
    """A network whose outputs depend on its memory alone, which counts the steps since the last reset.

    The value is ``10 + count``, the logits are ``(g count, 0)``.

    Args:
        gain: Initial value of g, the only parameter.
        rngs: Source of the sampler's key.
    """

    def __init__(self, gain: float = 0.3, rngs: Rngs | None = None) -> None:
        super().__init__(rngs)
        self.gain = Param(np.full((1,), gain))

    def fresh_memory(self, batch_size: int) -> Any:
        """A count of 0."""
        return self.zeros((batch_size,))

    def heads(self, memory: Any, x: Any) -> tuple[Any, Any, Any]:
        """The count plus 1, and logits and value from the count; the observation is ignored."""
        logit = self.gain[...] * memory
        return memory + 1, self.xp.stack((logit, self.xp.zeros_like(logit)), axis=-1), memory + 10


class NoisyNet(TinyActorCritic):
    """A linear network whose features have noise added: an autoregressive process that restarts with each episode.

    The noise comes from keys in the carry, so replay repeats it without a snapshot.

    Args:
        in_features: Features of the observation.
        num_actions: Number of actions, A.
        rngs: Source of the initial weights and the keys.
        decay: Factor of the noise from one step to the next.
    """

    def __init__(self, in_features: int, num_actions: int, rngs: Rngs, decay: float = 0.8) -> None:
        super().__init__(rngs)
        self.decay = decay
        self.key = random_state.base_key(rngs)
        drawn = np.random.default_rng(rngs.key()).normal(size=(in_features, num_actions + 1))
        self.kernel = Param(0.5 * drawn)

    def fresh_memory(self, batch_size: int) -> Any:
        """No noise yet, and the first key."""
        return {
            "noise": self.zeros((batch_size, *self.kernel[...].shape[1:])),
            "random": random_state.new_random_state(self, self.key[...], batch_size),
        }

    def reset_state(self, prev_state: Any) -> Any:
        """The noise restarts at 0; its keys go on."""
        memory = prev_state["memory"]
        return {**prev_state, "memory": {**memory, "noise": self.xp.zeros_like(memory["noise"])}}

    def draw_ahead(self, state: Any, rollout_extras: Any, num_steps: int, replay: bool = False) -> Any:
        """The carry with the noise of the sampler and the network drawn ahead; replay needs the network's too."""
        state, shape = super().draw_ahead(state, rollout_extras, num_steps, replay), self.kernel[...].shape[1:]
        memory = state["memory"]
        random = random_state.draw_ahead(self, self.random.normal, memory["random"], num_steps, shape)
        return {**state, "memory": {**memory, "random": random}}

    def heads(self, memory: Any, x: Any) -> tuple[Any, Any, Any]:
        """Linear outputs with noise."""
        kernel = self.kernel[...]
        drawn = random_state.noise(self, self.random.normal, memory["random"], kernel.shape[1:])
        added = self.decay * memory["noise"] + drawn
        y = self.xp.astype(x, kernel.dtype) @ kernel + added
        return {"noise": added, "random": random_state.advance(memory["random"])}, y[..., :-1], y[..., -1]
