"""Recording: every layer's output under the keys of the carry, in a copy that shares arrays and nothing else."""

from typing import Any

import numpy as np
import pytest
from support import assert_trees_close, compiled, fill_randomly, to_numpy

import multippo as mp
from multippo.networks.recording import ACTIVATION_KEY

B, T = 3, 4
X = np.random.default_rng(0).normal(size=(T, B, 5)).astype(np.float32)
DONE = np.zeros((T, B), bool)
DONE[[0, -1], 0] = DONE[1:3, 1] = True


def network():
    rngs = mp.Rngs(0)
    actor = mp.Sequential([mp.Dense(5, 4, rngs, "tanh"), mp.Dense(4, 4, rngs), mp.NormalTanhSampler(rngs)])
    trunk = mp.Concat(left=mp.LSTM(2, 2, rngs), right=mp.Delay(np.zeros(3), 1))
    net = mp.Sequential(
        [mp.Splitter(left=2, right=3), trunk, mp.Normalizer(5), mp.PPOAdapter(action=actor, value=mp.Dense(5, 1, rngs))]
    )
    fill_randomly(net)
    return net


class TwoLayers(mp.StatefulModule):
    """A user's module: it hands on its first child's metrics, and keeps the second one's."""

    def __init__(self, rngs):
        self.first, self.second = mp.Dense(5, 4, rngs), mp.Dense(4, 2, rngs)

    def __call__(self, state, x, rollout_extras=None):
        first = self.first((), x)
        second = self.second((), first.output)
        return mp.StatefulModuleOutput(state, second.output, 0.0, {"first": first.metrics, "size": x[:, 0]})


class Inner(mp.StatefulModule):
    """A user's module whose units are no modules."""

    def __init__(self):
        self.record_activations = False

    def __call__(self, state, x, rollout_extras=None):
        units = {"squared": x**2, "doubled": 2 * x}
        metrics = {ACTIVATION_KEY: units} if self.record_activations else {}
        return mp.StatefulModuleOutput(state, units["squared"] + units["doubled"], 0.0, metrics)


def call(net, t=0):
    engine = net.engine
    run = compiled(net, lambda n, x: tuple(n(n.initialize_state(B), x)))
    return mp.StatefulModuleOutput(*run(engine.asarray(X[t])))


def test_every_layer_by_its_key(torch_engine):
    net = network()
    recordable = mp.with_recording(net)
    out, plain = call(recordable), call(net)
    found = mp.extract_activations(out.metrics)
    assert sorted(found) == [0, 1, 2, 3] and sorted(found[1]) == ["left", "right"]
    assert sorted(found[3]) == ["action", "value"] and sorted(found[3]["action"]) == [0, 1, 2]
    assert_trees_close(found[0], {"left": X[0, :, :2], "right": X[0, :, 2:]}, 0.0)
    # The trunk is not in there, but what it joined is: an LSTM's output and, in the first step, zeros.
    assert_trees_close(found[1]["left"], out.next_state[1]["left"]["h"], 0.0)
    assert not to_numpy(found[1]["right"]).any()
    normalizer, head = net[2], net[3].action
    joined = torch_engine.xp.concat((found[1]["left"], found[1]["right"]), axis=-1)
    assert_trees_close(found[2], normalizer((), joined).output, 1e-5)
    for i in (0, 1):
        inside = found[2] if i == 0 else found[3]["action"][0]
        assert_trees_close(found[3]["action"][i], head[i]((), inside).output, 1e-5)
    assert_trees_close(found[3]["action"][2]["action"], out.output.actions, 0.0)
    assert_trees_close(found[3]["value"][:, 0], out.output.value_estimates, 0.0)
    # The same network otherwise.
    assert_trees_close(out._replace(metrics={}), plain._replace(metrics={}), 0.0)
    assert mp.extract_activations(plain.metrics) is None
    assert mp.to_portable(recordable).keys() == mp.to_portable(net).keys()
    assert isinstance(recordable[1].components["left"], mp.LSTM)


@pytest.mark.nightly_if("jax")
def test_over_time(engine):
    net = mp.with_recording(network())
    xs, done = engine.asarray(X), engine.asarray(DONE)
    fast = compiled(net, lambda n: n.unroll(n.initialize_state(B), xs, done).metrics)()
    found = mp.extract_activations(fast)
    assert to_numpy(found[3]["action"][0]).shape == (T, B, 4)
    # Delayed by one step, and not into the next episode.
    expected = np.concatenate([np.zeros((1, B, 3)), X[:-1, :, 2:] * ~DONE[:-1, :, None]])
    np.testing.assert_allclose(to_numpy(found[1]["right"]), expected, rtol=1e-6)


def test_the_original_stays_as_it_is_and_is_followed(torch_engine):
    net = network()
    before = mp.to_portable(net)
    recordable = mp.with_recording(net)
    recordable.eval()
    assert recordable[3].action[2].deterministic and not net[3].action[2].deterministic
    net.train()
    assert recordable[3].action[2].deterministic
    call(recordable)
    assert_trees_close(mp.to_portable(net), before, 0.0)
    assert mp.extract_activations(call(net).metrics) is None
    assert type(net[0]) is not type(recordable[0]) and isinstance(recordable[0], mp.Splitter)
    # The copy sees what is written to the original later: parameters are shared, and statistics.
    changed = {name: value + 1 if value.dtype.kind == "f" else value for name, value in before.items()}
    mp.load_portable(net, changed)
    assert_trees_close(mp.to_portable(recordable), changed, 0.0)


def test_modules_of_users(torch_engine):
    rngs = mp.Rngs(0)
    net = mp.with_recording(mp.Sequential([mp.Parallel({"0": Inner(), "a.b": TwoLayers(rngs)})]))
    found = mp.extract_activations(call(net).metrics)[0]
    assert_trees_close(found["0"], {"squared": X[0] ** 2, "doubled": 2 * X[0]}, 0.0)
    assert sorted(found["a.b"]) == ["first", "output"]
    assert to_numpy(found["a.b"]["first"]).shape == (B, 4) and to_numpy(found["a.b"]["output"]).shape == (B, 2)
    alone = mp.with_recording(TwoLayers(rngs).second)
    out = alone((), torch_engine.zeros((2, 4)))
    assert_trees_close(mp.extract_activations(out.metrics), out.output, 0.0)


def test_a_module_in_two_places_stays_one(torch_engine):
    shared: Any = mp.Dense(5, 5, mp.Rngs(0))
    net = mp.with_recording(mp.Sequential([shared, shared]))
    assert net[0] is net[1]
    assert len(mp.to_portable(net)) == 2


def test_names_that_would_be_taken_for_something_else(torch_engine):
    layer = mp.Dense(5, 2, mp.Rngs(0))
    with pytest.raises(ValueError, match="a Parallel with a child called 'activations', which would be taken"):
        mp.with_recording(mp.Sequential([mp.Parallel(activations=layer)]))
    net = mp.with_recording(mp.Sequential([mp.Parallel({"1": layer, "a": layer})]))
    out = net(net.initialize_state(1), torch_engine.zeros((1, 5)))
    found = mp.extract_activations(out.metrics)
    assert list(found) == [0] and sorted(found[0]) == ["1", "a"]


def test_a_recorder_of_one_module(torch_engine):
    layer = mp.Sequential([mp.Dense(5, 4, mp.Rngs(0), "tanh"), mp.Dense(4, 2, mp.Rngs(1))])
    recorder = mp.Recorder(layer)
    out, plain = call(recorder), call(layer)
    np.testing.assert_array_equal(*(to_numpy(one) for one in (out.metrics[ACTIVATION_KEY], plain.output)))
    assert to_numpy(mp.extract_activations(out.metrics)).shape == (B, 2) and ACTIVATION_KEY not in plain.metrics
    assert isinstance(recorder, mp.Recorder) and not isinstance(layer, mp.Recorder) and not isinstance(3, mp.Recorder)
    assert isinstance(mp.with_recording(layer).layers[0], mp.Recorder)
    assert recorder.layers[0].core is layer.layers[0].core
    with pytest.raises(TypeError, match="Recorder"):
        mp.Recorder(3)
