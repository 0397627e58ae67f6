"""The page of the checkpoint format names every key and file that there is."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

import multippo as mp
from multippo.algorithms.checkpointing import manifest, writing

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "checkpoints.md"


def first_cells(heading: str) -> list[str]:
    """What stands in code in the first column of the table below a heading."""
    section = PAGE.read_text("utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


def test_the_files():
    assert set(first_cells("Files")) == writing._FILES


def test_the_keys_of_the_manifest():
    fields = [field.name for field in dataclasses.fields(manifest.Manifest)]
    keys = first_cells("`checkpoint.json`")
    assert sorted(keys) == sorted([*fields, "format", "format_version", "multippo_version"])


def test_the_version():
    assert f"Version {manifest.FORMAT_VERSION}." in PAGE.read_text("utf-8")


def layouts() -> dict[str, set[str]]:
    """Names of arrays by the module they are of; those without a module under an empty name."""
    section = PAGE.read_text("utf-8").partition("## Names and layouts\n")[2].partition("\n## ")[0]
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
    "Dense": lambda rngs: mp.Dense(3, 2, rngs),
    "Conv": lambda rngs: mp.Conv(3, 2, 2, rngs),
    "LSTM": lambda rngs: mp.LSTM(3, 2, rngs, trainable_initial_state=True),
    "GRU": lambda rngs: mp.GRU(3, 2, rngs, trainable_initial_state=True),
    "RNN": lambda rngs: mp.RNN(3, 2, rngs, time_constant=2.0, trainable_initial_state=True),
    "LayerNorm": lambda rngs: mp.LayerNorm(3),
    "Normalizer": lambda rngs: mp.Normalizer({"a": 2, "b": 3}),
    "NormalSampler": lambda rngs: mp.NormalSampler(rngs, action_shape=(2,), state_dependent_std=False),
    "NormalTanhSampler": mp.NormalTanhSampler,
    "CategoricalSampler": mp.CategoricalSampler,
    "MultiCategoricalSampler": lambda rngs: mp.MultiCategoricalSampler([2, 3], rngs),
    "BernoulliSampler": mp.BernoulliSampler,
    "Dropout": lambda rngs: mp.Dropout(0.5, rngs),
    "VariationalBottleneck": lambda rngs: mp.VariationalBottleneck(2, rngs),
    "AR1VariationalBottleneck": lambda rngs: mp.AR1VariationalBottleneck(2, rngs),
    "Delay": lambda rngs: mp.Delay(np.zeros(3, np.float32), 2),
}


@pytest.mark.parametrize("name", STORING)
def test_the_layout_of_every_array_is_there(name: str):
    said = layouts()
    with mp.use_backend("torch"):
        arrays = mp.to_portable(STORING[name](mp.Rngs(0)))
    stored = {path.partition(".")[0] for path in arrays}
    expected = said.get(name, set()) | said[""]
    assert stored <= expected, f"{name}: {sorted(stored - expected)}"
    assert said.get(name, set()) <= stored


def test_a_counter_is_read_as_the_page_says():
    with mp.use_backend("torch"):
        net = mp.Normalizer(1)
        net.counter[...] = mp.backends.active_engine().asarray(np.asarray([2, 5], np.int32))
        assert net.count == 2 * 2**30 + 5
