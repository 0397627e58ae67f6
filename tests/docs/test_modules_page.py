"""The table of modules has every module, and says of carry, emissions and replay what is so."""

from __future__ import annotations

import re

import numpy as np
import pytest
from pages import ROOT

import multippo as mp
from multippo.networks.types import StatefulModule
from multippo.trees import tree_leaves

PAGE = ROOT / "docs" / "reference" / "modules.md"
F = 4


def rows() -> dict[str, dict[str, str]]:
    """Each module's cells by column."""
    found: dict[str, dict[str, str]] = {}
    header: list[str] = []
    for line in PAGE.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or set(line) <= set("|-"):
            continue
        name = re.fullmatch(r"`(\w+)`", cells[0])
        if name is None:
            header = cells
            continue
        assert name[1] not in found, f"{name[1]} is there twice"
        found[name[1]] = dict(zip(header, cells, strict=True))
    return found


def specimens():
    """A module for each row that has none of its own."""
    rngs = mp.Rngs(0)
    by_name = {
        "LayerNorm": mp.LayerNorm(F),
        "Lift": mp.Lift(lambda x: x**2),
        "Delay": mp.Delay(np.zeros(F, np.float32), 2),
        "Normalizer": mp.Normalizer(F),
        "Dropout": mp.Dropout(0.5, rngs),
        "MultiCategoricalSampler": mp.MultiCategoricalSampler([2, 2], rngs),
        "Flattener": mp.Flattener(),
        "Scale": mp.Scale(2.0),
        "Splitter": mp.Splitter(a=1, b=3),
    }
    cells = {name: getattr(mp, name)(F, F, rngs) for name in ("Dense", "LSTM", "GRU", "RNN")}
    codes = {name: getattr(mp, name)(F // 2, rngs) for name in ("VariationalBottleneck", "AR1VariationalBottleneck")}
    names = ("NormalSampler", "NormalTanhSampler", "CategoricalSampler", "BernoulliSampler")
    return {**by_name, **cells, **codes, **{name: getattr(mp, name)(rngs) for name in names}}


def test_every_public_module_has_a_row():
    public = (getattr(mp, name) for name in mp.__all__)
    modules = {m.__name__ for m in public if isinstance(m, type) and issubclass(m, StatefulModule)} - {"StatefulModule"}
    assert sorted(rows()) == sorted(modules), "docs/reference/modules.md"


def same(engine, one, other):
    pairs = zip(tree_leaves(one), tree_leaves(other), strict=True)
    return all(np.array_equal(engine.to_numpy(a), engine.to_numpy(b)) for a, b in pairs)


@pytest.mark.nightly_if("jax")
def test_the_columns_are_so(engine):
    said = rows()
    assert set(said["LSTM"]) == {"module", "carry, reset", "emits", "in replay", "after `eval()`", "over time"}
    x = engine.asarray(np.linspace(-1, 1, 3 * F).reshape(3, F).astype(np.float32))
    for name, module in specimens().items():
        state = module.initialize_state(3)
        out, cells = module(state, x), said[name]
        carries = cells.get("carry, reset", "key" if "Sampler" in name else "none")
        assert bool(tree_leaves(state)) == (carries != "none"), f"{name}: carry"
        assert bool(tree_leaves(out.rollout_extras)) == (cells.get("emits", "nothing") != "nothing"), f"{name}: emits"
        scans = mp.summary(module).rows[0].replay == "scan"
        assert scans == cells["over time"].startswith("step by step"), f"{name}: over time"
        kept = ("kept" in carries or carries == "key") and "forgotten" not in carries
        if carries != "none":
            assert same(engine, module.reset_state(out.next_state), out.next_state) == kept, f"{name}: reset"
        replayed = module(out.next_state, x, out.rollout_extras)
        replay = cells.get("in replay", "")
        if "stored" in replay and "stored carry" not in replay:  # from another carry it would draw something else
            assert same(engine, _actions(out), _actions(replayed)), f"{name}: in replay"
        if cells.get("after `eval()`", "the same") != "the same":
            module.eval()
            after = [_actions(module(carry, x)) for carry in (state, out.next_state)]
            assert same(engine, *after), f"{name}: after eval()"


def _actions(out):
    return tree_leaves(out.output["action"] if isinstance(out.output, dict) and "action" in out.output else out.output)
