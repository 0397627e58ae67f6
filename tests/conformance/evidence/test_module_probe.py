"""Reports of ``check_module`` on containers of a user's own: each forgets one thing, and that one thing is named."""

import numpy as np
import pytest
from multippo.conformance.specimens import mutant_modules as wrong
from multippo.conformance.specimens.user_modules import Holder

import multippo as mp
from multippo.testing import check_module

X = np.zeros(3)


class KeepsHalfTheLoss(Holder):
    def __call__(self, state, x, rollout_extras=None):
        out = super().__call__(state, x, rollout_extras)
        return out._replace(regularization_loss=0.5 * out.regularization_loss)


class KeepsOneLossOfTwo(mp.StatefulModule):
    def __init__(self, rngs):
        self.parts = {name: mp.VariationalBottleneck(1, rngs) for name in ("kept", "lost")}

    def __call__(self, state, x, rollout_extras=None):
        outs = {name: self.parts[name](state[name], x[:, :2]) for name in ("kept", "lost")}
        states = {name: out.next_state for name, out in outs.items()}
        return mp.StatefulModuleOutput(states, outs["kept"].output, outs["kept"].regularization_loss)

    def initialize_state(self, batch_size):
        return {name: self.parts[name].initialize_state(batch_size) for name in ("kept", "lost")}


class DrawsOtherNoiseAhead(Holder):
    def draw_ahead(self, state, rollout_extras, num_steps, replay=False):
        later = [state[0], state[1]._replace(count=state[1].count + 1)]
        drawn = self.inner.draw_ahead(later, rollout_extras, num_steps, replay)
        return [drawn[0], drawn[1]._replace(count=state[1].count, tape_start=state[1].count + 0)]


class LosesTheInputsGradient(mp.StatefulModule):
    """Without a parameter."""

    def __call__(self, state, x, rollout_extras=None):
        return mp.StatefulModuleOutput(state, x * 2)

    def unroll(self, state, xs, done, rollout_extras=None):
        still = self.engine.stop_gradient(xs)
        return mp.StatefulModuleOutput(state, still + xs)


class CallsWithoutExtras(wrong.HandsNoExtrasIn):
    """Replays by its own unroll as it should, and step by step as it should not."""

    def unroll(self, state, xs, done, rollout_extras=None):
        return self.inner.unroll(state, xs, done, rollout_extras)


def sampler():
    rngs = mp.Rngs(1)
    return mp.Sequential([mp.Dense(3, 4, rngs), mp.NormalTanhSampler(rngs)])


def code():
    rngs = mp.Rngs(1)
    return mp.Sequential([mp.Dense(3, 4, rngs), mp.VariationalBottleneck(2, rngs)])


def dropout():
    return mp.Dropout(0.4, mp.Rngs(1))


ERRORS = {
    "hands no extras in": (lambda: wrong.HandsNoExtrasIn(sampler()), "evaluates another action than the one taken"),
    "unroll hands no extras in": (
        lambda: wrong.UnrollsWithoutExtras(sampler()),
        "evaluates another action than the one taken|unroll has another gradient",
    ),
    "hands no extras in by steps": (lambda: CallsWithoutExtras(sampler()), "unroll has another gradient"),
    "updates nothing deeper inside": (
        lambda: mp.Sequential([wrong.UpdatesNothingInside(mp.Sequential([mp.Normalizer(3)]))]),
        r"never moves the statistics of layers\.0\.inner\.layers\.0, such as",
    ),
    "draws other noise ahead": (lambda: DrawsOtherNoiseAhead(code()), "After draw_ahead something else comes out"),
    "loses the inputs' gradient": (LosesTheInputsGradient, "unroll has another gradient .* by the inputs or the carry"),
}
WARNINGS = {
    "keeps one loss of two": (lambda: KeepsOneLossOfTwo(mp.Rngs(1)), r"The regularization_loss of parts\.lost is not"),
    "dropout without extras": (lambda: wrong.HandsNoExtrasIn(dropout()), "changes neither the replay nor the statist"),
}
RIGHT = {
    "sampler": sampler,
    "code": code,
    "normalizer": lambda: mp.Sequential([mp.Normalizer(3), mp.Residual(dropout())]),
    "recurrent": lambda: mp.Sequential([mp.GRU(3, 4, mp.Rngs(1)), mp.Delay(np.zeros(4), 2)]),
}
on_torch = pytest.mark.parametrize("engine", ["torch"], indirect=True)


def expect_one(texts, expected):
    assert len(texts) == 1, texts
    with pytest.raises(AssertionError, match=expected):
        raise AssertionError(f"error: {texts[0]}")


ON_JAX = ("loses the inputs' gradient", "updates nothing deeper inside", "hands no extras in")


@pytest.mark.parametrize(
    ("engine", "which"),
    [*(("torch", which) for which in ERRORS), *(("jax", which) for which in ON_JAX)],
    indirect=["engine"],
)
def test_what_a_container_forgets_is_an_error(engine, which):
    make, expected = ERRORS[which]
    report = check_module(make(), X)
    expect_one(report.errors, expected)
    assert not report.warnings


@on_torch
@pytest.mark.parametrize("which", WARNINGS)
def test_what_a_container_may_do_is_a_warning(engine, which):
    make, expected = WARNINGS[which]
    report = check_module(make(), X)
    assert report
    expect_one(report.warnings, expected)


@on_torch
@pytest.mark.parametrize("which", RIGHT)
def test_nothing_is_said_of_a_container_that_hands_everything_on(engine, which):
    for container in (Holder, KeepsHalfTheLoss, CallsUnroll):
        assert str(check_module(container(RIGHT[which]()), X)) == "Nothing is wrong with it.", container


class CallsUnroll(Holder):
    def unroll(self, state, xs, done, rollout_extras=None):
        return self.inner.unroll(state, xs, done, rollout_extras)
