"""``check_module``: every rule, broken once, is named; nothing is said of modules that keep them."""

from __future__ import annotations

import numpy as np
import pytest
from multippo.conformance import mutant_modules as wrong
from multippo.conformance.custom import CentredTrace, MovingAverage, NoisyGain
from support import assert_trees_close

import multippo as mp
from multippo.testing import check_module

F = wrong.FEATURES
X = np.zeros(F)


class Mean(mp.StatefulModule):
    """Right by itself; its subclasses break one rule each."""

    def __call__(self, state, x, rollout_extras=None):
        state = 0.5 * state + x
        return mp.StatefulModuleOutput(state, state)

    def initialize_state(self, batch_size):
        return self.zeros((batch_size, F))

    def reset_state(self, prev_state):
        return self.xp.zeros_like(prev_state)


class Captures(Mean):
    """Holds a layer in a closure alone."""

    def __init__(self):
        hidden = mp.Dense(F, F, mp.Rngs(0))
        self.hidden = lambda x: hidden((), x).output

    def __call__(self, state, x, rollout_extras=None):
        return super().__call__(state, self.hidden(x))


class ReturnsAnArray(Mean):
    def __call__(self, state, x, rollout_extras=None):
        return x


class SumsTheOutput(Mean):
    def __call__(self, state, x, rollout_extras=None):
        return mp.StatefulModuleOutput(state, self.xp.sum(x))


class OutputsANumber(Mean):
    def __call__(self, state, x, rollout_extras=None):
        return mp.StatefulModuleOutput(state, {"y": x, "n": 3})


class OutputsNaN(Mean):
    def __call__(self, state, x, rollout_extras=None):
        return mp.StatefulModuleOutput(state, self.xp.sqrt(-1 - x**2))


class LossOfEveryFeature(Mean):
    def __call__(self, state, x, rollout_extras=None):
        return mp.StatefulModuleOutput(state, x, x**2)


class MetricIsAText(Mean):
    def __call__(self, state, x, rollout_extras=None):
        return mp.StatefulModuleOutput(state, x, 0.0, {"size": "3"})


class MetricIsANumber(Mean):
    def __call__(self, state, x, rollout_extras=None):
        return super().__call__(state, x)._replace(metrics={"size": 3, "part": np.float32(0.5)})


class EmitsOneRow(Mean):
    def __call__(self, state, x, rollout_extras=None):
        return mp.StatefulModuleOutput(state, x, rollout_extras=x[0])


class Fails(Mean):
    def __call__(self, state, x, rollout_extras=None):
        raise ValueError("no input is good enough")


class CarryIsANumber(Mean):
    def initialize_state(self, batch_size):
        return {"sum": 0.0}


class CarryChangesType(Mean):
    def __call__(self, state, x, rollout_extras=None):
        return mp.StatefulModuleOutput(self.xp.astype(state, self.xp.int32), x)


class CarryGrows(Mean):
    def __call__(self, state, x, rollout_extras=None):
        return mp.StatefulModuleOutput((state, x), x)


class KeepsItsCarry(Mean):
    def reset_state(self, prev_state):
        return prev_state


class CountsUpInUpdate(mp.Normalizer):
    """A replay in which the module writes is as bad as a call."""

    def unroll(self, state, xs, done, rollout_extras=None):
        self.update_statistics(xs)
        return super().unroll(state, xs, done, rollout_extras)


class CountsOn(mp.StatefulModule):
    """Adds a code of the step, whose count no reset stops; it is the same after all episodes of one length."""

    def initialize_state(self, batch_size):
        return self.zeros((batch_size,))

    def __call__(self, state, x, rollout_extras=None):
        return mp.StatefulModuleOutput(state + 1, x + self.xp.sin(state)[:, None])


class OwnKeys(mp.StatefulModule):
    """Draws from keys of its own, which go on after a reset: as often as steps were taken."""

    def __init__(self, rngs):
        self.key = mp.Variable(rngs.key())

    def initialize_state(self, batch_size):
        keys = self.random.split(self.key[...], batch_size)
        return {"key": keys, "count": self.xp.zeros_like(keys[:, 0])}

    def __call__(self, state, x, rollout_extras=None):
        noise = self.random.normal(self.random.fold_in(state["key"], state["count"]), x.shape[1:])
        noise = noise if rollout_extras is None else rollout_extras
        moved = {"key": self.random.fold_in(state["key"], state["count"]), "count": state["count"] + 1}
        return mp.StatefulModuleOutput(moved, x + noise, rollout_extras=noise)


class WritesAParam(SumsTheOutput):
    """Decays a Param where statistics are updated."""

    def __init__(self):
        self.weight = mp.Param(np.ones(F))

    def __call__(self, state, x, rollout_extras=None):
        return mp.StatefulModuleOutput(state, self.weight[...] * x, rollout_extras=x)

    def update_statistics(self, rollout_extras, valid=None):
        self.weight[...] = self.weight[...] * 0.9


ERRORS = {
    "writes a Param": (
        WritesAParam,
        X,
        "update_statistics failed: TypeError: An update_statistics in WritesAParam wrote the Param 'weight'; it may",
    ),
    "returns an array": (ReturnsAnArray, X, "must return a StatefulModuleOutput"),
    "sums the output": (SumsTheOutput, X, r"The output is an array of shape \(\); expected an array \[B, ...\]"),
    "outputs a number": (OutputsANumber, X, r"The output 'n' is a int \(3\); expected an array"),
    "outputs NaN": (OutputsNaN, X, "The output holds NaN"),
    "loss of every feature": (LossOfEveryFeature, X, r"regularization_loss is an array of shape \(6, 5\)"),
    "metric is a text": (MetricIsAText, X, r"The metric 'size' is a str \('3'\)"),
    "emits one row": (EmitsOneRow, X, r"The rollout_extras is an array of shape \(5,\)"),
    "fails": (Fails, X, "A call failed: ValueError: no input is good enough"),
    "carry is a number": (CarryIsANumber, X, "initialize_state returned a leaf 'sum' that is no array"),
    "carry without batch axis": (wrong.CarryWithoutBatchAxis, X, "no leading batch axis"),
    "carry changes type": (CarryChangesType, X, "The call changed the kind of the carry: .*int32"),
    "carry grows": (CarryGrows, X, "The call changed the kind of the carry"),
    "resets to another shape": (
        lambda: wrong.ResetsToAnotherShape(F, 4, mp.Rngs(0)),
        X,
        "reset_state changed the kind",
    ),
    "writes in the call": (lambda: wrong.WritesInTheCall(F, 4, mp.Rngs(0)), X, "A call must not write to the module"),
    "counts in Python": (lambda: wrong.CountsInPython(F, 4, mp.Rngs(0)), X, "A call must not write to the module"),
    "statistics in the call": (lambda: wrong.UpdatesStatisticsInTheCall(F), X, "A call must not write|equal arguments"),
    "statistics in unroll": (
        lambda: CountsUpInUpdate(F),
        X,
        "Only update_statistics may change|unroll gives something",
    ),
    "mixes environments": (
        lambda: wrong.MixesEnvironments(F, 4, mp.Rngs(0)),
        X,
        "The rows of one environment influence",
    ),
    "draws on the host": (lambda: wrong.DrawsOnTheHost(F, 4, mp.Rngs(0)), X, "Two calls with equal arguments differ"),
    "unroll ignores resets": (lambda: wrong.IgnoresResets(F, 4, mp.Rngs(0)), X, "unroll gives something else"),
    "misses an end at the last step": (
        lambda: wrong.MissesTheLastStep(F, 4, mp.Rngs(0)),
        X,
        "unroll gives something else",
    ),
    "unroll loses its carry": (lambda: wrong.LosesItsCarryInUnroll(F, 4, mp.Rngs(0)), X, "unroll gives something else"),
    "unroll stops the gradient": (lambda: wrong.StopsTheGradient(F, 4, mp.Rngs(0)), X, "unroll has another gradient"),
    "stores the squashed sample": (
        lambda: wrong.StoresTheSquashedSample(mp.Rngs(0)),
        np.full(6, 3.0),
        "Given the rollout_extras that it emitted, the module gives another output",
    ),
    "forgets its children": (
        lambda: wrong.ForgetsItsChildren([mp.Normalizer(F)]),
        X,
        r"update_statistics never moves the statistics of layers\.0, such as layers\.0\.M2",
    ),
    "counts invalid entries": (lambda: wrong.CountsInvalidEntries(F), X, "lets entries count where valid is False"),
}
WARNINGS = {
    "loses its carry": (lambda: wrong.LosesItsCarry(F, 4, mp.Rngs(0)), "The carry stays what it was at first"),
    "never resets": (
        KeepsItsCarry,
        "After reset_state the output depends on the episode",
    ),
    "counts on": (CountsOn, "After reset_state the output depends on the episode"),
    "resets in the next call": (wrong.ResetsInTheNextCall, "After reset_state the output depends on the episode"),
}
on_torch = pytest.mark.parametrize("engine", ["torch"], indirect=True)


def expect_one_error(which):
    make, sample, expected = ERRORS[which]
    report = check_module(make(), sample)
    assert not report and len(report.errors) == 1, str(report)
    with pytest.raises(AssertionError, match=expected):
        raise AssertionError(str(report))


@on_torch
@pytest.mark.parametrize("which", ERRORS)
def test_a_broken_rule_is_an_error(engine, which):
    expect_one_error(which)


@pytest.mark.parametrize("engine", ["jax"], indirect=True)
@pytest.mark.parametrize(
    "which",
    [
        "sums the output",
        "writes a Param",
        "counts in Python",
        "statistics in the call",
        "misses an end at the last step",
    ],
)
def test_a_broken_rule_is_an_error_on_jax(engine, which):
    expect_one_error(which)


@on_torch
@pytest.mark.parametrize("which", WARNINGS)
def test_what_is_seldom_meant_is_a_warning(engine, which):
    make, expected = WARNINGS[which]
    report = check_module(make(), X)
    assert report and any(expected in text for text in report.warnings), str(report)
    assert len(report.warnings) == (2 if which == "resets in the next call" else 1)  # it holds a flag that stays 0


RIGHT = {
    "own keys": (lambda: OwnKeys(mp.Rngs(0)), X),
    "mean": (Mean, X),
    "metric is a number": (MetricIsANumber, X),
    "custom": (lambda: mp.Sequential([NoisyGain(F, mp.Rngs(1)), MovingAverage(F, 3), CentredTrace(F)]), X),
    "sampler": (lambda: mp.NormalTanhSampler(mp.Rngs(0), 0.1), np.zeros(6)),
    "delay of bytes": (lambda: mp.Delay(np.zeros((2, 2), np.uint8), 2), np.asarray([[0, 255], [3, 9]], np.uint8)),
    "code": (lambda: mp.AR1VariationalBottleneck(2, mp.Rngs(0), 0.1), np.zeros(4)),
    "network": (lambda: mp.make_recurrent_actor_critic(3, 2, rngs=mp.Rngs(0)), np.zeros(3)),
}


@pytest.mark.parametrize("engine", ["torch"], indirect=True)
@pytest.mark.parametrize("which", RIGHT)
def test_nothing_is_wrong_with_what_is_right(engine, precision, which):
    make, sample = RIGHT[which]
    module = make()
    before = mp.to_portable(module)
    report = check_module(module, sample)
    assert report and not report.warnings, str(report)
    assert str(report) == "Nothing is wrong with it."
    assert_trees_close(mp.to_portable(module), before, 0.0)


@pytest.mark.parametrize("engine", ["jax"], indirect=True)
@pytest.mark.parametrize("which", ["custom", "sampler"])
def test_nor_on_jax(engine, which):
    make, sample = RIGHT[which]
    report = check_module(make(), sample)
    assert report and not report.warnings, str(report)


def _kept(name, value):
    return lambda module: setattr(module, name, value(module))


WRITES = {
    "an int": ("count", _kept("count", lambda m: 0), lambda m, x: setattr(m, "count", m.count + 1)),
    "a private one": ("_count", _kept("_count", lambda m: 0), lambda m, x: setattr(m, "_count", m._count + 1)),
    "an array": ("total", _kept("total", lambda m: m.zeros(())), lambda m, x: setattr(m, "total", m.xp.sum(x))),
    "a list": ("seen", _kept("seen", lambda m: []), lambda m, x: m.seen.append(1)),
    "a dict": ("named", _kept("named", lambda m: {"n": 0}), lambda m, x: m.named.update(n=m.named["n"] + 1)),
    "NumPy's memory": ("sum", _kept("sum", lambda m: np.zeros(2)), lambda m, x: np.add(m.sum, 1, out=m.sum)),
    "a new one": ("last", lambda m: None, lambda m, x: setattr(m, "last", 3)),
}


@pytest.mark.parametrize("which", WRITES)
def test_an_attribute_that_a_call_writes_is_named(engine, which):
    name, prepare, write = WRITES[which]

    class Writes(Mean):
        def __init__(self):
            prepare(self)

        def __call__(self, state, x, rollout_extras=None):
            write(self, x)
            return super().__call__(state, x, rollout_extras)

    (error,) = check_module(Writes(), X).errors
    assert error.startswith(
        f"A call must not write to the module or to its arguments: it changed the attribute {name}."
    )


def test_what_is_no_module_is_refused(engine):
    with pytest.raises(TypeError, match="check_module got a int; expected a StatefulModule"):
        check_module(3, X)


def test_a_layer_that_a_closure_captures_is_named(torch_engine):
    report = check_module(Captures(), X)
    (error,) = report.errors
    assert error.startswith("Captures.hidden captures 'hidden' (Dense), whose weights no module of this Captures holds")
    assert "Assign it as an attribute: self.layer = hidden" in error
