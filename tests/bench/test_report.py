"""Medians, ratios and tables of recorded numbers."""

import pytest

from multippo.bench.report import lines, plot, ratios, summarise, where_time_goes
from multippo.bench.works import GOALS, WORKS

ABOUT = {"processor": "P", "cores": 2, "load": 0.1, "python": "3.11", "versions": {"jax": "1"}}


def records(work, who, values, name="steps_per_s", **more):
    return [
        {"work": work, "who": who, "round": number, name: value, "memory_mib": 100.0, **more}
        for number, value in enumerate(values)
    ]


def test_medians_with_least_and_most():
    found = summarise(records("cartpole-8", "jax", [3.0, 1.0, 2.0]))["cartpole-8"]["jax"]
    assert (found["steps_per_s"], found["least"], found["most"], found["rounds"]) == (2.0, 1.0, 3.0, 3)


def ratios_of(*works):
    """Ratios of works measured once: name, what was measured, and the number of each contestant."""
    taken = ((work, who, [number], name) for work, name, by_who in works for who, number in by_who.items())
    return ratios(summarise(record for one in taken for record in records(*one)))


def test_a_ratio_is_to_the_best_of_the_others():
    found = ratios_of(("cartpole-64", "steps_per_s", {"jax": 6000.0, "torch": 2500.0, "sb3": 1000.0, "sbx": 2000.0}))
    assert [(row["ours"], row["against"], row["ratio"], row["reached"]) for row in found] == [
        ("jax", "sbx", 3.0, True),
        ("torch", "sbx", 1.25, False),
    ]


def test_of_seconds_the_fewest_count_and_a_full_cache_is_compared_with_an_empty_one():
    found = ratios_of(
        ("start-empty", "first_iteration_s", {"jax": 10.0, "brax": 40.0, "nnx-ppo": 25.0}),
        ("start-full", "first_iteration_s", {"jax": 5.0, "nnx-ppo": 1.0}),
        ("cartpole-475", "seconds_to_return", {"jax": 30.0, "torch": 8.0, "sb3": 10.0}),
    )
    assert [(row["work"], row["ours"], row["ratio"], row["reached"]) for row in found] == [
        ("start-empty", "jax", 0.4, True),
        ("start-full", "jax", 0.2, True),
        ("cartpole-475", "torch", 0.8, False),
    ]


def test_the_parts_of_an_iteration_and_its_overhead():
    spent = {"iteration_s": 1.0, "rollout_s": 0.5, "environment_s": 0.2, "acting_s": 0.1, "update_s": 0.4}
    expected = {"environment": 0.2, "acting": 0.1, "update": 0.4, "overhead": 0.3}
    assert where_time_goes(spent) == pytest.approx(expected)


def test_of_one_programme_the_update_is_what_a_rollout_alone_leaves():
    found = where_time_goes({"iteration_s": 1.0, "rollout_s": 0.5, "environment_s": 0.2})
    assert found == pytest.approx({"environment": 0.2, "acting": 0.3, "update and the rest": 0.5})


def test_overhead_of_a_rollout_is_compared_with_environment_and_arithmetic():
    spent = {"rollout_s": 0.5, "environment_s": 0.2, "arithmetic_s": 0.2}
    (row,) = ratios(summarise(records("cartpole-8", "jax", [1.0], **spent)))
    assert row["ratio"] == pytest.approx(0.25) and row["reached"]


def test_the_report_names_who_failed_and_draws_a_plot(tmp_path):
    taken = [
        *records("fast-mlp", "jax", [200_000.0], first_iteration_s=9.0),
        *records("fast-mlp", "limit-jax", [250_000.0]),
        {"work": "fast-mlp", "who": "brax", "round": 0, "error": "KeyError: 'x'"},
    ]
    text = "\n".join(lines(taken, ABOUT))
    assert "| jax | 200,000 |" in text and "| 0.80 | 9.0 | 100 |" in text
    assert "| brax | failed: KeyError: 'x' |" in text
    assert "| fast-mlp | steps_per_s | jax 2e+05 | limit-jax 2.5e+05 | 0.80 | ≥ 0.9 | missed |" in text
    plot(taken, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes()[1:4] == b"PNG"


def test_goals_name_works_and_those_who_do_them():
    for goal in GOALS:
        theirs = WORKS[goal.theirs or goal.work]
        assert set(goal.ours) <= set(WORKS[goal.work].who) and set(goal.against) <= set(theirs.who)
