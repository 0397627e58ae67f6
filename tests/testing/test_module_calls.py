"""What ``check_module`` says of a call's arguments and output, of attributes, and of exceptions."""

from __future__ import annotations

import numpy as np
import pytest

import multippo as mp
from multippo.testing import check_module

X = np.zeros(3)
WRITES = "A call must not write to the module or to its arguments"


class Mean(mp.StatefulModule):
    """Right by itself; its subclasses break one rule each."""

    def __call__(self, state, x, rollout_extras=None):
        state = 0.5 * state + x
        return mp.StatefulModuleOutput(state, state)

    def initialize_state(self, batch_size):
        return self.zeros((batch_size, 3))

    def reset_state(self, prev_state):
        return self.xp.zeros_like(prev_state)


class Learns(Mean):
    """Right as well: it has statistics."""

    def __init__(self):
        self.mean = mp.Variable(np.zeros(3))

    def __call__(self, state, x, rollout_extras=None):
        return super().__call__(state, x - self.mean[...])._replace(rollout_extras=x)

    def update_statistics(self, rollout_extras):
        self.mean[...] = self.xp.mean(rollout_extras, axis=(0, 1))


class OutputIsNone(Mean):
    def __call__(self, state, x, rollout_extras=None):
        return mp.StatefulModuleOutput(state + x, None)


class MetricOfEveryFeature(Mean):
    def __call__(self, state, x, rollout_extras=None):
        return super().__call__(state, x)._replace(metrics={"m": x})


class CentresTheLoss(Mean):
    def __call__(self, state, x, rollout_extras=None):
        loss = self.xp.sum(x**2, axis=-1)
        return super().__call__(state, x)._replace(regularization_loss=loss - self.xp.mean(loss))


class MeanLoss(Mean):
    def __call__(self, state, x, rollout_extras=None):
        return super().__call__(state, x)._replace(regularization_loss=self.xp.mean(x**2))


class TakesTwo(Mean):
    def __call__(self, state, x):
        return super().__call__(state, x)


class Tally:
    def __init__(self):
        self.calls, self.by_name = 0, {"x": [0]}


class CountsOnAnObject(Mean):
    def __init__(self):
        self.tally = Tally()

    def __call__(self, state, x, rollout_extras=None):
        self.tally.by_name["x"][0] += 1
        return super().__call__(state, x)


class CountsInTheUpdate(Learns):
    def __init__(self):
        super().__init__()
        self.updates = 0

    def update_statistics(self, rollout_extras, valid=None):
        self.updates += 1
        self.mean[...] = 0.5 * self.mean[...] + 0.1


class KeepsAnArrayInTheUpdate(Learns):
    def __init__(self):
        super().__init__()
        self.last = np.zeros(3)

    def update_statistics(self, rollout_extras):
        super().update_statistics(rollout_extras)
        self.last = self.xp.mean(rollout_extras, axis=(0, 1))


class StartsAtRandom(Mean):
    def initialize_state(self, batch_size):
        return self.engine.asarray(np.random.default_rng().normal(size=(batch_size, 3)).astype(np.float32))


class FailsInTheUpdate(Learns):
    def update_statistics(self, rollout_extras):
        raise KeyError("count")


class FailsInUnroll(Mean):
    def unroll(self, state, xs, done, rollout_extras=None):
        raise KeyError("time")


class FailsInTheReset(Mean):
    def reset_state(self, prev_state):
        raise KeyError("h")


class FailsInReplay(Learns):
    def __call__(self, state, x, rollout_extras=None):
        return super().__call__(state, x if rollout_extras is None else rollout_extras["x"])


class FailsInTheGradient(Mean):
    def __init__(self):
        self.gain = mp.Param(np.ones(3))

    def __call__(self, state, x, rollout_extras=None):
        return super().__call__(state, x * self.gain[...])

    def unroll(self, state, xs, done, rollout_extras=None):
        out = super().unroll(state, xs, done)
        grown = self.xp.exp(out.output)
        nothing = grown * 0
        grown += 1  # torch needs what it was to go back through exp
        return out._replace(output=out.output + nothing)


class WeightIsAnArray(Mean):
    def __init__(self):
        self.gain = self.engine.asarray(np.full(3, 2.0, np.float32))

    def __call__(self, state, x, rollout_extras=None):
        return super().__call__(state, x * self.gain)


class WritesToItsInput(Mean):
    def __call__(self, state, x, rollout_extras=None):
        x *= 2
        return super().__call__(state, x * 1)


class ResetsInPlace(Mean):
    def reset_state(self, prev_state):
        return prev_state.zero_()


class WritesToItsExtras(Learns):
    def update_statistics(self, rollout_extras):
        rollout_extras += 1
        super().update_statistics(rollout_extras)


class Branches(Mean):
    def __call__(self, state, x, rollout_extras=None):
        return super().__call__(state, x * 2 if float(self.xp.sum(x[0])) > 0 else x)


class SelectsByIndex(Learns):
    def update_statistics(self, rollout_extras, valid=None):
        kept = rollout_extras if valid is None else rollout_extras[valid]
        self.mean[...] = self.xp.mean(self.xp.reshape(kept, (-1, 3)), axis=0)


class Spectral(mp.StatefulModule):
    """Holds a module of torch's that writes a buffer in every call; Lift refuses it."""

    def __init__(self):
        torch = pytest.importorskip("torch")
        self.net = torch.nn.utils.spectral_norm(torch.nn.Linear(3, 2))

    def __call__(self, state, x, rollout_extras=None):
        return mp.StatefulModuleOutput(state, self.net(x))


ERRORS = {
    "output is None": (OutputIsNone, r"^The output is None; expected an array \[B, \.\.\.\], or a tree of them\.$"),
    "metric of every feature": (MetricOfEveryFeature, r"^The metric 'm' is an array of shape \(6, 3\); expected a sca"),
    "centres the loss": (CentresTheLoss, "^The rows of one environment influence another's"),
    "mean loss": (MeanLoss, "^The rows of one environment influence another's"),
    "takes two": (
        TakesTwo,
        r"^TakesTwo\.__call__ can't be given three arguments; it must take \(self, state, x, rollo",
    ),
    "counts on an object": (CountsOnAnObject, f"^{WRITES}: it changed the attribute tally"),
    "counts in the update": (
        CountsInTheUpdate,
        "^Only update_statistics may .*changed the attribute updates, no Variable",
    ),
    "keeps an array": (
        KeepsAnArrayInTheUpdate,
        "^Only update_statistics may .*changed the attribute last, no Variable",
    ),
    "starts at random": (StartsAtRandom, "^initialize_state gives another carry each time: off by .* at env="),
    "fails in the update": (FailsInTheUpdate, "^update_statistics failed: KeyError: 'count'$"),
    "fails in unroll": (FailsInUnroll, "^unroll failed: KeyError: 'time'$"),
    "fails in the reset": (FailsInTheReset, "^reset_state failed: KeyError: 'h'$"),
    "fails in replay": (FailsInReplay, "^A call with rollout_extras failed: |^A replay by unroll failed"),
}
ON_TORCH = {
    "writes to its input": (WritesToItsInput, f"^{WRITES}: a call in rollout changed its arguments in place"),
    "resets in place": (ResetsInPlace, "^reset_state must not write .*: reset_state changed its argument in place"),
    "writes to its extras": (WritesToItsExtras, "^Only update_statistics may .*changed rollout_extras in place"),
    "spectral norm": (Spectral, f"^{WRITES}"),
}
ON_JAX = {
    "branches": (Branches, "^A call can't be compiled: ConcretizationTypeError. No float"),
    "selects by index": (
        SelectsByIndex,
        "^update_statistics failed: TypeError: An update_statistics in SelectsByIndex selects entries by a boolean "
        r"index, such as rollout_extras\[valid\].* Select with self\.xp\.where",
    ),
    "mean loss": ERRORS["mean loss"],
    "counts in the update": ERRORS["counts in the update"],
    "fails in the update": ERRORS["fails in the update"],
}


def expect_one(make, expected):
    (error,) = check_module(make(), X).errors
    with pytest.raises(AssertionError, match=expected):
        raise AssertionError(error)


@pytest.mark.parametrize("engine", ["torch"], indirect=True)
@pytest.mark.parametrize("which", [*ERRORS, *ON_TORCH])
def test_a_broken_rule_is_an_error(engine, which):
    expect_one(*{**ERRORS, **ON_TORCH}[which])


@pytest.mark.parametrize("engine", ["jax"], indirect=True)
@pytest.mark.parametrize("which", ON_JAX)
def test_a_broken_rule_is_an_error_on_jax(engine, which):
    expect_one(*ON_JAX[which])


@pytest.mark.parametrize("engine", ["torch"], indirect=True)
def test_a_gradient_that_cannot_be_taken_is_said_to_be_one(engine):
    (error,) = check_module(FailsInTheGradient(), X).errors
    assert error.startswith("Taking the gradient of a replay by unroll failed: RuntimeError: one of the variables")


def test_an_array_that_is_no_param_is_a_warning(engine):
    report = check_module(WeightIsAnArray(), X)
    (warning,) = report.warnings
    assert report
    assert warning.startswith("The attribute gain holds an array of shape (3,) that is no Param and no Variable: it is")


class ScalarMetric(mp.StatefulModule):
    def __call__(self, state, x, rollout_extras=None):
        decay = 0.01 * self.xp.sum(x[0] * 0 + 2.0)
        return mp.StatefulModuleOutput(state, x, decay, {"m": self.xp.mean(x**2), "rows": x[:, 0]})


class Ring(mp.StatefulModule):
    def __init__(self, period):
        self.period = period

    def __call__(self, state, x, rollout_extras=None):
        place = state["place"]
        out = state["held"] * self.xp.astype(place + 1, x.dtype)[:, None]
        return mp.StatefulModuleOutput({"place": (place + 1) % self.period, "held": x}, out)

    def initialize_state(self, batch_size):
        return {"place": self.engine.asarray(np.zeros(batch_size, np.int32)), "held": self.zeros((batch_size, 3))}

    def reset_state(self, prev_state):
        return {name: self.xp.zeros_like(leaf) for name, leaf in prev_state.items()}


RIGHT = {
    "learns": (Learns, X),
    "scalar metric": (ScalarMetric, X),
    "a ring of 2": (lambda: Ring(2), X),
    "a ring of 4": (lambda: Ring(4), X),
    "delay of zero integers": (lambda: mp.Delay(np.zeros(3, np.int32), 2), np.zeros(3, np.int32)),
}


@pytest.mark.parametrize("engine", ["torch"], indirect=True)
@pytest.mark.parametrize("which", RIGHT)
def test_nothing_is_wrong_with_what_is_right(engine, which):
    make, sample = RIGHT[which]
    assert str(check_module(make(), sample)) == "Nothing is wrong with it."


@pytest.mark.parametrize(
    ("sample", "received"), [("abc", "'abc'"), (None, "None"), ({"a": X, "b": "x"}, "'x' at 'b'"), ({}, "{}")]
)
def test_a_sample_that_is_no_tree_of_numbers_is_refused(engine, sample, received):
    with pytest.raises(TypeError, match=f"check_module got the sample_input {received}; expected an array of numbers"):
        check_module(mp.Scale(2.0), sample)
