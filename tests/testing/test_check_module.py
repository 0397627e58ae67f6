"""``check_module``: every rule, broken once, is named; nothing is said of modules that keep them."""

import numpy as np
import pytest
from multippo.conformance.specimens import mutant_modules as wrong
from multippo.conformance.specimens.user_modules import CentredTrace, MovingAverage, NoisyGain
from support import assert_trees_close

import multippo as mp
from multippo.testing import check_module

F = wrong.FEATURES
X = np.zeros(F)
Out = mp.StatefulModuleOutput


class Mean(mp.StatefulModule):
    """Right by itself."""

    def __call__(self, state, x, rollout_extras=None):
        state = 0.5 * state + x
        return Out(state, state)

    def initialize_state(self, batch_size):
        return self.zeros((batch_size, F))

    def reset_state(self, prev_state):
        return self.xp.zeros_like(prev_state)


class Learns(Mean):
    """Right as well: it has statistics."""

    def __init__(self):
        self.mean = mp.Variable(np.zeros(F))

    def __call__(self, state, x, rollout_extras=None):
        return super().__call__(state, x - self.mean[...])._replace(rollout_extras=x)

    def update_statistics(self, rollout_extras):
        self.mean[...] = self.xp.mean(rollout_extras, axis=(0, 1))


def changed(call=None, base=Mean, **methods):
    """A right module with other methods, or whose call returns ``call(module, state, x)``."""
    if call is not None:
        methods["__call__"] = lambda self, state, x, rollout_extras=None: call(self, state, x)
    return type("Changed", (base,), methods)


def right(m, state, x, **fields):
    return Mean.__call__(m, state, x)._replace(**fields)


def fails(*_):
    raise KeyError("count")


def with_attribute(name, value):
    """A constructor."""
    return lambda self: setattr(self, name, value(self))


class Captures(Mean):
    """Holds a layer in a closure alone."""

    def __init__(self):
        hidden = mp.Dense(F, F, mp.Rngs(0))
        self.hidden = lambda x: hidden((), x).output

    def __call__(self, state, x, rollout_extras=None):
        return super().__call__(state, self.hidden(x))


class TakesTwo(Mean):
    def __call__(self, state, x):
        return super().__call__(state, x)


class CountsOn(mp.StatefulModule):
    """Adds a code of the step, whose count no reset stops; it is the same after all episodes of one length."""

    def initialize_state(self, batch_size):
        return self.zeros((batch_size,))

    def __call__(self, state, x, rollout_extras=None):
        return Out(state + 1, x + self.xp.sin(state)[:, None])


class WritesAParam(mp.StatefulModule):
    """Decays a Param where statistics are updated."""

    def __init__(self):
        self.weight = mp.Param(np.ones(F))

    def __call__(self, state, x, rollout_extras=None):
        return Out(state, self.weight[...] * x, rollout_extras=x)

    def update_statistics(self, rollout_extras, valid=None):
        self.weight[...] = self.weight[...] * 0.9


class CountsInTheUpdate(Learns):
    updates = 0

    def update_statistics(self, rollout_extras, valid=None):
        self.updates += 1
        self.mean[...] = 0.5 * self.mean[...] + 0.1


def writes_to_its_input(m, state, x):
    x *= 2
    return right(m, state, x * 1)


class WritesToItsExtras(Learns):
    def update_statistics(self, rollout_extras):
        rollout_extras += 1
        super().update_statistics(rollout_extras)


class Spectral(mp.StatefulModule):
    """Holds a module of torch's that writes a buffer in every call; Lift refuses it."""

    def __init__(self):
        import torch

        self.net = torch.nn.utils.spectral_norm(torch.nn.Linear(F, 2))

    def __call__(self, state, x, rollout_extras=None):
        return Out(state, self.net(x))


def random_start(m, batch_size):
    return m.engine.asarray(np.random.default_rng().normal(size=(batch_size, F)).astype(np.float32))


def lstm(kind):
    return lambda: getattr(wrong, kind)(F, 4, mp.Rngs(0))


WRITES = "A call must not write to the module or to its arguments"
ONLY = "Only update_statistics may .*changed"
UNROLL = "unroll gives something else"
# What is broken: how, and what is said of it.
ERRORS = {
    "writes a Param": (
        WritesAParam,
        "update_statistics failed: TypeError: An update_statistics in WritesAParam wrote the Param 'weight'; it may",
    ),
    "returns an array": (changed(lambda m, s, x: x), "must return a StatefulModuleOutput"),
    "sums the output": (
        changed(lambda m, s, x: Out(s, m.xp.sum(x))),
        r"The output is an array of shape \(\); expected an array \[B, ...\]",
    ),
    "outputs NaN": (changed(lambda m, s, x: Out(s, m.xp.sqrt(-1 - x**2))), "The output holds NaN"),
    "loss of every feature": (
        changed(lambda m, s, x: Out(s, x, x**2)),
        r"regularization_loss is an array of shape \(6, 5\)",
    ),
    "mean loss": (
        changed(lambda m, s, x: right(m, s, x, regularization_loss=m.xp.mean(x**2))),
        "The rows of one environment influence another's",
    ),
    "fails": (changed(fails), "A call failed: KeyError: 'count'"),
    "fails in the update": (changed(base=Learns, update_statistics=fails), "update_statistics failed: KeyError: 'cou"),
    "takes two": (TakesTwo, r"A call failed: TypeError: TakesTwo.__call__\(\) takes 3 positional arguments but 4 were"),
    "starts at random": (
        changed(initialize_state=random_start),
        "initialize_state gives another carry each time: off by .* at env=",
    ),
    "carry changes type": (
        changed(lambda m, s, x: Out(m.xp.astype(s, m.xp.int32), x)),
        "The call changed the kind of the carry: .*int32",
    ),
    "counts in the update": (CountsInTheUpdate, f"{ONLY} the attribute updates, no Variable"),
    "unroll ignores resets": (lstm("IgnoresResets"), UNROLL),
    "captures a layer": (
        Captures,
        r"Captures.hidden captures 'hidden' \(Dense\), whose weights no module of this Captures holds.*"
        "Assign it as an attribute, self.hidden = ...",
    ),
}
ON_TORCH = {
    "writes to its input": (changed(writes_to_its_input), f"{WRITES}: a call in rollout changed its arguments"),
    "resets in place": (
        changed(reset_state=lambda m, prev_state: prev_state.zero_()),
        "reset_state must not write .*: reset_state changed its argument in place",
    ),
    "writes to its extras": (WritesToItsExtras, f"{ONLY} rollout_extras in place"),
    "spectral norm": (Spectral, WRITES),
}
BOTH = ("sums the output", "writes a Param", "mean loss", "fails in the update", "counts in the update")
ON_JAX = {
    **{which: ERRORS[which] for which in BOTH},
    "branches": (
        changed(lambda m, s, x: right(m, s, x * 2 if float(m.xp.sum(x[0])) > 0 else x)),
        "A call can't be compiled: ConcretizationTypeError. No float",
    ),
}


@pytest.mark.parametrize(
    ("engine", "which"),
    [
        *(("torch", which) for which in (*ERRORS, *ON_TORCH)),
        *(pytest.param("jax", which, marks=pytest.mark.nightly) for which in ON_JAX if which not in BOTH[:2]),
        *(("jax", which) for which in BOTH[:2]),
    ],
    indirect=["engine"],
)
def test_a_broken_rule_is_one_error(engine, which):
    make, expected = {**ERRORS, **ON_TORCH, **ON_JAX}[which]
    report = check_module(make(), X)
    assert not report and len(report.errors) == 1, str(report)
    with pytest.raises(AssertionError, match=f"^({expected})" if expected[0].isupper() else expected):
        raise AssertionError(report.errors[0])


WARNINGS = {
    "loses its carry": (lstm("LosesItsCarry"), "The carry stays what it was at first"),
    "counts on": (CountsOn, "After reset_state the output depends on the episode"),
    "an array that is no Param": (
        changed(
            lambda m, s, x: right(m, s, x * m.gain),
            __init__=with_attribute("gain", lambda m: m.engine.asarray(np.full(F, 2.0, np.float32))),
        ),
        "The attribute gain holds an array of shape (5,) that is not a Param or Variable: it is",
    ),
}


@pytest.mark.parametrize("which", WARNINGS)
def test_what_is_seldom_meant_is_a_warning(torch_engine, which):
    make, expected = WARNINGS[which]
    report = check_module(make(), X)
    assert report and any(expected in text for text in report.warnings), str(report)
    assert len(report.warnings) == 1


def scalar_metric(m, state, x):
    decay = 0.01 * m.xp.sum(x[0] * 0 + 2.0)
    return Out(state, x, decay, {"m": m.xp.mean(x**2), "rows": x[:, 0]})


RIGHT = {
    "mean": (Mean, X),
    "custom": (lambda: mp.Sequential([NoisyGain(F, mp.Rngs(1)), MovingAverage(F, 3), CentredTrace(F)]), X),
    "sampler": (lambda: mp.NormalTanhSampler(mp.Rngs(0), 0.1), np.zeros(6)),
    "delay of bytes": (lambda: mp.Delay(np.zeros((2, 2), np.uint8), 2), np.asarray([[0, 255], [3, 9]], np.uint8)),
    "learns": (Learns, X),
    "scalar metric": (type("ScalarMetric", (mp.StatefulModule,), {"__call__": lambda *a: scalar_metric(*a[:3])}), X),
}


@pytest.mark.parametrize(
    ("engine", "precision", "which"),
    [
        *(("torch", "float32", which) for which in RIGHT),
        ("torch", "float64", "custom"),
        *(pytest.param("jax", "float32", which, marks=pytest.mark.nightly) for which in ("custom", "sampler")),
    ],
    indirect=["engine", "precision"],
)
def test_nothing_is_wrong_with_what_is_right(engine, precision, which):
    make, sample = RIGHT[which]
    module = make()
    before = mp.to_portable(module)
    assert str(check_module(module, sample)) == "Nothing is wrong with it."
    assert_trees_close(mp.to_portable(module), before, 0.0)


# The attribute, what it is at first, and how the call writes it.
WRITTEN = {
    "an int": ("count", lambda m: 0, lambda m, x: setattr(m, "count", m.count + 1)),
    "a list": ("seen", lambda m: [], lambda m, x: m.seen.append(1)),
    "a dict": ("named", lambda m: {"n": 0}, lambda m, x: m.named.update(n=m.named["n"] + 1)),
    "NumPy's memory": ("sum", lambda m: np.zeros(2), lambda m, x: np.add(m.sum, 1, out=m.sum)),
}


@pytest.mark.parametrize("which", WRITTEN)
@pytest.mark.nightly_if("jax")
def test_an_attribute_that_a_call_writes_is_named(engine, which):
    name, start, write = WRITTEN[which]
    module = changed(lambda m, s, x: (write(m, x), right(m, s, x))[1], __init__=with_attribute(name, start))()
    (error,) = check_module(module, X).errors
    assert error.startswith(f"{WRITES}: it changed the attribute {name}.")


@pytest.mark.parametrize(
    ("module", "sample", "received"),
    [
        (3, X, "a int; expected a StatefulModule"),
        (..., None, "the sample_input None; expected an array of numbers"),
        (..., {"a": X, "b": "x"}, "the sample_input 'x' at 'b'; expected an array of numbers"),
    ],
)
def test_what_is_no_module_and_no_tree_of_numbers_is_refused(torch_engine, module, sample, received):
    with pytest.raises(TypeError, match=f"check_module got {received}"):
        check_module(mp.Scale(2.0) if module is ... else module, sample)
