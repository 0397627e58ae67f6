"""How snapshots reach ``update_statistics``, with and without a mask in its signature."""

from __future__ import annotations

import numpy as np
from support import to_numpy

import multippo as mp
from multippo.networks.updating import needs_only_valid, update_child


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
    update_child(module, {"x": x}, valid)
    # Rows (0, 1), (8, 9) and (10, 11).
    assert to_numpy(module.total[...]).tolist() == [18.0, 21.0]
    update_child(module, {"x": x}, None)
    assert to_numpy(module.total[...]).tolist() == [18.0 + 30.0, 21.0 + 36.0]


def test_a_module_that_takes_keywords_is_given_the_mask(engine):
    module = Keyword()
    update_child(module, None, engine.asarray(np.ones((1, 1), bool)))
    assert to_numpy(module.total[...]).tolist() == [100.0, 100.0]


def test_one_module_without_a_mask_anywhere_is_found(engine):
    with_mask = mp.Sequential([mp.Normalizer(2), mp.Dense(2, 2, mp.Rngs(0)), mp.LSTM(2, 2, mp.Rngs(0))])
    without = mp.Sequential([mp.Parallel(a=mp.Sequential([Plain()]), b=mp.Dense(2, 2, mp.Rngs(0)))])
    assert not needs_only_valid(with_mask) and needs_only_valid(without) and needs_only_valid(Plain())
    assert not needs_only_valid(Keyword())


def test_a_module_held_by_a_users_own_class_is_found(engine):
    class Own(mp.StatefulModule):
        def __init__(self):
            self.inner = {"a": [Plain()]}

        def __call__(self, state, x, rollout_extras=None): ...

    assert needs_only_valid(Own())
