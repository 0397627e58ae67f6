"""What the protocol promises authors of modules: metrics of their own, a reset that may write to what it is given."""

import pickle
from typing import Any

import numpy as np
import pytest
from support import to_numpy

import multippo as mp
from multippo.networks.types import needs_only_valid


def test_metrics_are_nobody_elses():
    first, second = mp.StatefulModuleOutput((), 1), mp.StatefulModuleOutput((), 2)
    first.metrics["mine"] = 3
    assert second.metrics == {}
    assert mp.StatefulModuleOutput((), 3).metrics == {}
    assert mp.StatefulModuleOutput((), 3, metrics=None).metrics == {}  # pyright: ignore[reportArgumentType]


def test_an_output_is_a_tuple_with_defaults():
    out = mp.StatefulModuleOutput("state", "output", metrics={"a": 1})
    assert out == ("state", "output", 0.0, {"a": 1}, None)
    assert mp.StatefulModuleOutput(*out) == out
    assert out.replace(output=5) == ("state", 5, 0.0, {"a": 1}, None)
    assert pickle.loads(pickle.dumps(out)) == out
    assert mp.StatefulModuleOutput(next_state=1, output=2, rollout_extras=3)[4] == 3


class InPlace(mp.StatefulModule):
    """A sum over the episode, whose reset writes zeros where the engine's arrays can be written to."""

    def initialize_state(self, batch_size: int) -> Any:
        return {"sum": self.zeros((batch_size,))}

    def reset_state(self, prev_state: Any) -> Any:
        if self.engine.name == "jax":
            return {"sum": self.xp.zeros_like(prev_state["sum"])}
        prev_state["sum"][...] = 0.0
        return prev_state

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        total = state["sum"] + x
        return mp.StatefulModuleOutput({"sum": total}, total)


DONE = np.array([[True, False], [True, False], [False, False], [False, True]])


def test_a_reset_in_place_reaches_the_environments_that_ended_alone(engine):
    network = InPlace()
    xs = engine.asarray(np.repeat([[1.0], [2.0], [3.0], [4.0]], 2, axis=1))
    out = network.unroll(network.initialize_state(2), xs, engine.asarray(DONE))
    # The first environment's episodes end after steps 0 and 1, the other's after the last.
    assert to_numpy(out.output).tolist() == [[1.0, 1.0], [2.0, 3.0], [3.0, 6.0], [7.0, 10.0]]
    assert to_numpy(out.next_state["sum"]).tolist() == [7.0, 0.0]


class Plain(mp.StatefulModule):
    """Takes no mask."""

    def __init__(self):
        self.total = mp.Variable(np.zeros(2))

    def __call__(self, state, x, rollout_extras=None):
        return mp.StatefulModuleOutput(state, x, rollout_extras=x)

    def update_statistics(self, rollout_extras):
        self.total[...] = self.total[...] + self.xp.sum(rollout_extras["x"], axis=(0, 1))


class Keyword(Plain):
    """Takes anything by keyword."""

    def update_statistics(self, rollout_extras, **kwargs):
        assert list(kwargs) == ["valid"]
        self.total[...] = self.total[...] + 100


def test_a_module_without_a_mask_sees_the_valid_entries_only(engine):
    module = Plain()
    x = engine.asarray(np.arange(12, dtype=np.float32).reshape(3, 2, 2))
    valid = engine.asarray(np.asarray([[True, False], [False, False], [True, True]]))
    module.update_statistics({"x": x}, valid)
    # Rows (0, 1), (8, 9) and (10, 11).
    assert to_numpy(module.total[...]).tolist() == [18.0, 21.0]
    module.update_statistics({"x": x}, None)
    assert to_numpy(module.total[...]).tolist() == [18.0 + 30.0, 21.0 + 36.0]


def test_a_module_that_takes_keywords_is_given_the_mask(engine):
    module = Keyword()
    mp.Sequential([module]).update_statistics([None], engine.asarray(np.ones((1, 1), bool)))
    assert to_numpy(module.total[...]).tolist() == [100.0, 100.0]


def test_one_module_without_a_mask_anywhere_is_found(torch_engine):
    with_mask = mp.Sequential([mp.Normalizer(2), mp.Dense(2, 2, mp.Rngs(0)), mp.LSTM(2, 2, mp.Rngs(0))])
    without = mp.Sequential([mp.Parallel(a=mp.Sequential([Plain()]), b=mp.Dense(2, 2, mp.Rngs(0)))])
    assert not needs_only_valid(with_mask) and needs_only_valid(without) and needs_only_valid(Plain())
    assert not needs_only_valid(Keyword())

    class Own(mp.StatefulModule):
        def __init__(self):
            self.inner = {"a": [Plain()]}

        def __call__(self, state, x, rollout_extras=None): ...

    assert needs_only_valid(Own())


def test_a_container_of_ones_own_hands_the_mask_to_any_child(engine):
    class Own(mp.StatefulModule):
        def __init__(self):
            self.plain, self.masked = Plain(), mp.Normalizer(2)

        def __call__(self, state, x, rollout_extras=None): ...

        def update_statistics(self, rollout_extras, valid=None):
            self.plain.update_statistics(rollout_extras, valid)
            self.plain.update_statistics(rollout_extras, valid=valid)
            self.masked.update_statistics(rollout_extras["x"], valid)

    x = {"x": engine.asarray(np.arange(4, dtype=np.float32).reshape(2, 1, 2))}
    valid = engine.asarray(np.asarray([[False], [True]]))
    own = Own()
    own.update_statistics(x, valid)
    # The second of two rows, (2, 3): twice, and once in the count.
    assert to_numpy(own.plain.total[...]).tolist() == [4.0, 6.0]
    assert own.masked.count == 1


def test_nothing_is_called_where_no_entry_counts(engine):
    class Mean(Plain):
        def update_statistics(self, rollout_extras):
            self.total[...] = self.xp.mean(rollout_extras["x"], axis=(0, 1))

    module = mp.Sequential([Mean()])
    x = engine.asarray(np.ones((2, 1, 2), np.float32))
    module.update_statistics([{"x": x}], engine.asarray(np.zeros((2, 1), bool)))
    assert to_numpy(module[0].total[...]).tolist() == [0.0, 0.0]
    module.update_statistics([{"x": x}], engine.asarray(np.asarray([[False], [True]])))
    assert to_numpy(module[0].total[...]).tolist() == [1.0, 1.0]


class Decays(Plain):
    """Writes a Param where only a Variable may be written."""

    def __init__(self, write):
        super().__init__()
        self.weight, self.write = mp.Param(np.ones(2)), write

    def update_statistics(self, rollout_extras, valid=None):
        self.total[...] = self.total[...] + 1
        if self.write:
            self.weight[...] = self.weight[...] * 0.9


@pytest.mark.parametrize("name", ["jax", "torch", "numpy"])
def test_an_update_that_writes_a_param_is_refused(name):
    def updated(write, run):
        split = engine.split(mp.Sequential([mp.Dense(2, 2, mp.Rngs(0)), Decays(write)]))
        update = run(lambda *arguments: engine.update_statistics(split.definition, *arguments, [None, x], None, never))
        engine.snapshot(update(split.params, split.variables))

    with mp.use_backend(name) as engine:
        x, never = {"x": engine.zeros((2, 1, 2))}, engine.asarray(np.asarray(False))
        # As in training, and by itself.
        for run in (engine.jit, lambda function: function):
            updated(False, run)
            with pytest.raises(TypeError, match=r"in Sequential wrote the Param 'layers\.1\.weight'; it may"):
                updated(True, run)
