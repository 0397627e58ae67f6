"""Modules that are wrong on purpose, each as its docstring says; ``mutants.py`` names the checks that catch them."""

# ruff: noqa: D102

from __future__ import annotations

from typing import Any

import numpy as np

import multippo as mp
from multippo.trees import tree_map

from .user_modules import Holder

FEATURES = 5
"""Default number of inputs of a mutant."""


class IgnoresResets(mp.LSTM):
    """Unrolls with the ends of episodes where they are not."""

    def unroll(self, state: Any, xs: Any, done: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return super().unroll(state, xs, self._misread(done), rollout_extras)

    def _misread(self, done: Any) -> Any:
        return self.xp.zeros_like(done)

    def _earlier(self, done: Any) -> Any:
        """True where the step before ended an episode."""
        return self.xp.concat([self.xp.zeros_like(done[:1]), done[:-1]], axis=0)


class ResetsOneStepLate(IgnoresResets):
    """Resets after the step that follows an end."""

    def _misread(self, done: Any) -> Any:
        return self._earlier(done)


class MissesTheSecondOfTwoEnds(IgnoresResets):
    """Takes two ends in a row for one."""

    def _misread(self, done: Any) -> Any:
        return done & ~self._earlier(done)


class MissesTheFirstStep(IgnoresResets):
    """Overlooks an end at the first step."""

    def _misread(self, done: Any) -> Any:
        return self.xp.concat([self.xp.zeros_like(done[:1]), done[1:]], axis=0)


class MissesTheLastStep(IgnoresResets):
    """Overlooks an end at the last step, which shows in the carry alone."""

    def _misread(self, done: Any) -> Any:
        return self.xp.concat([done[:-1], self.xp.zeros_like(done[:1])], axis=0)


class ResetsInTheNextCall(mp.StatefulModule):
    """A leaky sum that notes a reset in its carry, and carries it out one call too late: replay repeats the mistake."""

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        total, late = 0.5 * state["total"] + x, state["late"][:, None]
        kept = self.xp.where(late > 0, self.xp.zeros_like(total), total)
        return mp.StatefulModuleOutput({"total": kept, "late": self.xp.zeros_like(state["late"])}, total)

    def initialize_state(self, batch_size: int) -> Any:
        return {"total": self.zeros((batch_size, FEATURES)), "late": self.zeros((batch_size,))}

    def reset_state(self, prev_state: Any) -> Any:
        return {**prev_state, "late": self.xp.ones_like(prev_state["late"])}


class NeverResets(mp.LSTM):
    """Keeps its carry from one episode to the next."""

    def reset_state(self, prev_state: Any) -> Any:
        return prev_state

    def initialize_state(self, batch_size: int) -> Any:
        return {name: self.zeros((batch_size, self.hidden_features)) for name in ("h", "c")}


class ResetsToAnotherShape(NeverResets):
    """Forgets the batch axis in a reset, where broadcasting hides it."""

    def reset_state(self, prev_state: Any) -> Any:
        return tree_map(lambda x: self.xp.zeros_like(x[:1]), prev_state)


class StartsAfresh(mp.LSTM):
    """Unrolls from the first carry, whatever carry it is given."""

    def unroll(self, state: Any, xs: Any, done: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return super().unroll(self.reset_state(state), xs, done, rollout_extras)


class LosesItsCarry(mp.LSTM):
    """Returns the first carry after every call: replay repeats a network that has no memory."""

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        out = super().__call__(state, x, rollout_extras)
        return out._replace(next_state=self.reset_state(state))


class LosesItsCarryInUnroll(mp.LSTM):
    """Returns the carry from before the unroll."""

    def unroll(self, state: Any, xs: Any, done: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return super().unroll(state, xs, done, rollout_extras)._replace(next_state=state)


class StopsTheGradient(mp.LSTM):
    """Unrolls the right values without their gradient."""

    def unroll(self, state: Any, xs: Any, done: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        out = super().unroll(state, xs, done, rollout_extras)
        still = self.engine.stop_gradient(out.output)
        return out._replace(output=still + 0.5 * (out.output - still))


class FlatAtZero(mp.Dense):
    """Computes a softplus by ``abs``, whose derivative at 0 is 1 on JAX: half the slope of ``maximum`` is lost."""

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        out, xp = super().__call__(state, x, rollout_extras), self.xp
        y = xp.maximum(out.output, xp.zeros_like(out.output)) + xp.log1p(xp.exp(-xp.abs(out.output)))
        return out._replace(output=y)


class CarryWithoutBatchAxis(mp.StatefulModule):
    """Keeps one running mean of its inputs for all environments."""

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        mean = 0.9 * state + 0.1 * self.xp.mean(x, axis=0)
        return mp.StatefulModuleOutput(mean, x - mean)

    def initialize_state(self, batch_size: int) -> Any:
        return self.zeros((FEATURES,))

    def reset_state(self, prev_state: Any) -> Any:
        return self.xp.zeros_like(prev_state)


class MixesEnvironments(mp.Dense):
    """Centres its output over the batch."""

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        out = super().__call__(state, x, rollout_extras)
        return out._replace(output=out.output - self.xp.mean(out.output, axis=0))


class WritesInTheCall(mp.Dense):
    """Counts its calls in a Variable."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.calls = mp.Variable(np.zeros(()))

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        self.calls[...] = self.calls[...] + 1.0
        return super().__call__(state, x, rollout_extras)


class CountsInPython(mp.Dense):
    """Counts its calls in a plain attribute, which a compiled call sees once."""

    calls = 0

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        self.calls = self.calls + 1
        return super().__call__(state, x, rollout_extras)


class RemembersInAList(mp.Dense):
    """Keeps its inputs in a list, whose address stays the same."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._seen: list[Any] = []

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        self._seen.append(x.shape)
        return super().__call__(state, x, rollout_extras)


class UpdatesStatisticsInTheCall(mp.Normalizer):
    """Merges its input into the statistics in the rollout already."""

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        if rollout_extras is None:
            self.update_statistics(x[None])
        return super().__call__(state, x, rollout_extras)


class UpdatesStatisticsInUnroll(mp.Normalizer):
    """Merges the rollout into the statistics as soon as it is replayed, before the gradients are computed."""

    def unroll(self, state: Any, xs: Any, done: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        if rollout_extras is not None:
            self.update_statistics(xs)
        return super().unroll(state, xs, done, rollout_extras)


class NormalisesByTheBatch(mp.Normalizer):
    """Normalises by statistics that count the inputs at hand, of which replay has others; writes nothing."""

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        out = super().__call__(state, x, rollout_extras)
        return out._replace(output=out.output - 0.1 * self.xp.mean(out.output, axis=0))


class CountsInvalidEntries(mp.Normalizer):
    """Takes the mask of valid entries, and ignores the mask."""

    def update_statistics(self, rollout_extras: Any, valid: Any = None) -> None:
        super().update_statistics(rollout_extras)


class ForgetsItsChildren(mp.Sequential):
    """Routes everything to its children but ``update_statistics``."""

    def update_statistics(self, rollout_extras: Any, valid: Any = None) -> None:
        del rollout_extras, valid


class DrawsAfreshInReplay(mp.NormalTanhSampler):
    """Ignores the stored sample; from the same key even the same noise is drawn."""

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return super().__call__(state, x)

    def unroll(self, state: Any, xs: Any, done: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return super().unroll(state, xs, done)


class StoresTheSquashedSample(mp.NormalTanhSampler):
    """Stores the action, and inverts tanh in replay."""

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return self._store(super().__call__(state, x, self._invert(rollout_extras)))

    def unroll(self, state: Any, xs: Any, done: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return self._store(super().unroll(state, xs, done, self._invert(rollout_extras)))

    def _store(self, out: mp.StatefulModuleOutput) -> mp.StatefulModuleOutput:
        return out._replace(rollout_extras=out.output["action"])

    def _invert(self, action: Any) -> Any:
        return None if action is None else self.xp.atanh(action)


class DrawsOnTheHost(mp.Dense):
    """Adds noise from NumPy's generator, and stores none."""

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        out = super().__call__(state, x, rollout_extras)
        noise = np.random.default_rng().normal(size=tuple(out.output.shape))
        return out._replace(output=out.output + self.xp.astype(self.engine.asarray(noise), out.output.dtype))


class HandsNoExtrasIn(Holder):
    """Forgets to hand ``rollout_extras`` in: with the same key, replay draws the same sample even so."""

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return self.inner(state, x)


class UnrollsWithoutExtras(Holder):
    """Hands ``rollout_extras`` in step by step, and not in its own ``unroll``, which replays."""

    def unroll(self, state: Any, xs: Any, done: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return self.inner.unroll(state, xs, done)


class UpdatesNothingInside(Holder):
    """Drops ``update_statistics``, so that statistics inside never move."""

    def update_statistics(self, rollout_extras: Any, valid: Any = None) -> None:
        del rollout_extras, valid


class ResetsInPlace(mp.LSTM):
    """Clears the carry in place, though it is still used where no episode ended; JAX's arrays can't be written to."""

    def reset_state(self, prev_state: Any) -> Any:
        fresh = super().reset_state(prev_state)
        for name, leaf in prev_state.items() if self.engine.name == "torch" else ():
            leaf.copy_(fresh[name])
        return prev_state
