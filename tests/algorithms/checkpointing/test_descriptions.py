"""Trees are rebuilt from their description, and from nothing but known nodes."""

from typing import Any, NamedTuple

import pytest

from multippo.algorithms.checkpointing.descriptions import describe, leaves_by_path, rebuild, rebuild_episodes
from multippo.algorithms.reward_scaling import RewardScale
from multippo.algorithms.types import EpisodeState

TREE = EpisodeState(
    reward=1.0, length=2.0, scale={"goal": RewardScale(3.0, 4.0, 5.0, 6.0), "rest": [(7.0, None), [], {}]}
)


def test_a_tree_is_rebuilt():
    arrays = leaves_by_path(TREE, "e")
    assert arrays["e.scale['goal'].m2"] == 6.0
    assert arrays["e.scale['rest'][0][0]"] == 7.0
    rebuilt = rebuild(describe(TREE))
    assert list(leaves_by_path(rebuilt, "e")) == list(arrays)
    assert rebuilt.scale["rest"] == [("array", None), [], {}]
    assert type(rebuilt) is EpisodeState
    assert type(rebuilt.scale["goal"]) is RewardScale
    assert type(rebuilt.scale["rest"][0]) is tuple


def test_a_field_that_was_added_later_gets_its_default():
    description = describe(EpisodeState(1.0, 2.0))
    del description["EpisodeState"]["scale"]
    assert rebuild_episodes(description) == EpisodeState("array", "array", None)


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
        {"subprocess.Popen": ["array"]},
        {"EpisodeState": {"__class__": "array"}},
        {"list": {"0": "array"}},
        "something",
    ],
)
def test_descriptions_of_anything_else_are_refused(description: Any):
    with pytest.raises(ValueError, match="describes no structure that is known"):
        rebuild(description)


SCALE = dict.fromkeys(("discounted", "count", "mean", "m2"), "array")


@pytest.mark.parametrize(
    "description",
    [
        "array",
        {"RewardScale": SCALE},
        {"EpisodeState": {"reward": "array"}},
        {"EpisodeState": {"reward": {"list": ["array"]}, "length": "array"}},
        {"EpisodeState": {"reward": "array", "length": "array", "scale": {"list": ["array"]}}},
        {"EpisodeState": {"reward": "array", "length": "array", "scale": {"RewardScale": {**SCALE, "m2": None}}}},
    ],
)
def test_what_does_not_describe_the_sums_of_episodes_is_refused(description: Any):
    with pytest.raises(ValueError, match="describe"):
        rebuild_episodes(description)


def test_the_sums_of_several_rewards_are_described():
    episodes = EpisodeState(1.0, 2.0, {"a": RewardScale(1.0, 2.0, 3.0, 4.0), "b": (RewardScale(1.0, 2.0, 3.0, 4.0),)})
    assert rebuild_episodes(describe(episodes)).scale["b"] == (RewardScale("array", "array", "array", "array"),)
