"""The pages of modules and of the checkpoint format name every module, array, key and file, and say what is so."""

import dataclasses
import re

import numpy as np
import pytest
from pages import ROOT

import multippo as mp
from multippo.algorithms.checkpointing import checkpoint, manifest
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


RNGS = mp.Rngs(0)
SPECIMENS = {
    "Dense": lambda: mp.Dense(F, F, RNGS),
    "Conv": lambda: mp.Conv(3, 2, 2, RNGS),
    "LayerNorm": lambda: mp.LayerNorm(F),
    "Lift": lambda: mp.Lift(lambda x: x**2),
    "LSTM": lambda: mp.LSTM(F, F, RNGS, trainable_initial_state=True),
    "GRU": lambda: mp.GRU(F, F, RNGS, trainable_initial_state=True),
    "RNN": lambda: mp.RNN(F, F, RNGS, time_constant=2.0, trainable_initial_state=True),
    "Delay": lambda: mp.Delay(np.zeros(F, np.float32), 2),
    "Normalizer": lambda: mp.Normalizer(F),
    "Dropout": lambda: mp.Dropout(0.5, RNGS),
    "VariationalBottleneck": lambda: mp.VariationalBottleneck(F // 2, RNGS),
    "AR1VariationalBottleneck": lambda: mp.AR1VariationalBottleneck(F // 2, RNGS),
    "NormalSampler": lambda: mp.NormalSampler(RNGS),
    "NormalTanhSampler": lambda: mp.NormalTanhSampler(RNGS),
    "CategoricalSampler": lambda: mp.CategoricalSampler(RNGS),
    "MultiCategoricalSampler": lambda: mp.MultiCategoricalSampler([2, 2], RNGS),
    "BernoulliSampler": lambda: mp.BernoulliSampler(RNGS),
    "Flattener": lambda: mp.Flattener(),
    "Scale": lambda: mp.Scale(2.0),
    "Splitter": lambda: mp.Splitter(a=1, b=3),
}


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
    for name, make in SPECIMENS.items():
        if name == "Conv":  # of images
            continue
        module = make()
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


# -- the page of the checkpoint format

CHECKPOINTS = ROOT / "docs" / "reference" / "checkpoints.md"


def first_cells(heading: str) -> list[str]:
    """What stands in code in the first column of the table below a heading."""
    section = CHECKPOINTS.read_text("utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


def test_the_files():
    assert set(first_cells("Files")) == checkpoint._FILES


def test_the_keys_of_the_manifest():
    fields = [field.name for field in dataclasses.fields(manifest.Manifest)]
    keys = first_cells("`checkpoint.json`")
    assert sorted(keys) == sorted([*fields, "format", "format_version", "multippo_version"])


def test_the_version():
    assert f"Version {manifest.FORMAT_VERSION}." in CHECKPOINTS.read_text("utf-8")


def layouts() -> dict[str, set[str]]:
    """Names of arrays by the module they are of; those without a module under an empty name."""
    section = CHECKPOINTS.read_text("utf-8").partition("## Names and layouts\n")[2].partition("\n## ")[0]
    found: dict[str, set[str]] = {}
    last: set[str] = set()
    for cell in re.findall(r"^\| ([^|]*`[^|]*) \|", section, re.MULTILINE):
        arrays, _, module = cell.partition(" of `")
        names = set(re.findall(r"`(\w+)`", cell if "those of" in cell else arrays)) - {module.split("`")[0]}
        names |= last if "those of" in cell else set()
        last = last or (names if "input_kernel" in names else set())
        found.setdefault(module.partition("`")[0], set()).update(names)
    return found


STORING = {
    **{name: make for name, make in SPECIMENS.items() if name not in ("Lift", "Flattener", "Scale", "Splitter")},
    "Normalizer": lambda: mp.Normalizer({"a": 2, "b": 3}),
    "NormalSampler": lambda: mp.NormalSampler(RNGS, action_shape=(2,), state_dependent_std=False),
}


@pytest.mark.parametrize("name", STORING)
def test_the_layout_of_every_array_is_there(name: str):
    said = layouts()
    with mp.use_backend("torch"):
        arrays = mp.to_portable(STORING[name]())
    stored = {path.partition(".")[0] for path in arrays}
    expected = said.get(name, set()) | said[""]
    assert stored <= expected, f"{name}: {sorted(stored - expected)}"
    assert said.get(name, set()) <= stored


def test_a_counter_is_read_as_the_page_says():
    with mp.use_backend("torch"):
        net = mp.Normalizer(1)
        net.counter[...] = mp.backends.active_engine().asarray(np.asarray([2, 5], np.int32))
        assert net.count == 2 * 2**30 + 5
