"""Trees are rebuilt from their description, and from nothing but known nodes."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from multippo.algorithms.checkpointing.descriptions import describe, named_arrays, rebuild
from multippo.algorithms.reward_scaling import RewardScale
from multippo.algorithms.types import EpisodeState

TREE = EpisodeState(
    reward=1.0, length=2.0, scale={"goal": RewardScale(3.0, 4.0, 5.0, 6.0), "rest": [(7.0, None), [], {}]}
)


def test_a_tree_is_rebuilt():
    arrays = named_arrays(TREE, "e")
    assert arrays["e.scale['goal'].m2"] == 6.0
    assert arrays["e.scale['rest'][0][0]"] == 7.0
    rebuilt = rebuild(describe(TREE), arrays, "e")
    assert rebuilt == TREE
    assert type(rebuilt) is EpisodeState
    assert type(rebuilt.scale["goal"]) is RewardScale
    assert type(rebuilt.scale["rest"][0]) is tuple


def test_a_field_that_was_added_later_gets_its_default():
    description = describe(EpisodeState(1.0, 2.0))
    del description["EpisodeState"]["scale"]
    assert rebuild(description, {"e.reward": 1.0, "e.length": 2.0}, "e") == EpisodeState(1.0, 2.0, None)


class Foreign(NamedTuple):
    x: float


class EpisodeStateOfMine(EpisodeState):
    pass


@pytest.mark.parametrize("tree", [Foreign(1.0), [Foreign(1.0)], {1: 2.0}, EpisodeStateOfMine(1.0, 2.0)])
def test_other_nodes_are_refused(tree: Any):
    with pytest.raises(TypeError, match="can't be described"):
        describe(tree)


@pytest.mark.parametrize(
    "description",
    [
        {"Foreign": {"x": "array"}},
        {"subprocess.Popen": ["array"]},
        {"EpisodeState": {"__class__": "array"}},
        {"EpisodeState": ["array", "array"]},
        {"list": {"0": "array"}},
        {"list": [], "dict": {}},
        "something",
        7,
        ["array"],
        {"list": ["array"]},
    ],
)
def test_descriptions_of_anything_else_are_refused(description: Any):
    with pytest.raises(ValueError, match="'e"):
        rebuild(description, {}, "e")


def test_a_bottomless_description_is_refused():
    description: Any = "array"
    for _ in range(500):
        description = {"list": [description]}
    with pytest.raises(ValueError, match="structure"):
        rebuild(description, {}, "e")
