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


def test_a_ratio_is_to_the_best_of_the_others():
    found = ratios(
        summarise(
            [
                *records("cartpole-64", "jax", [6000.0]),
                *records("cartpole-64", "torch", [2500.0]),
                *records("cartpole-64", "sb3", [1000.0]),
                *records("cartpole-64", "sbx", [2000.0]),
            ]
        )
    )
    assert [(row["ours"], row["against"], row["ratio"], row["reached"]) for row in found] == [
        ("jax", "sbx", 3.0, True),
        ("torch", "sbx", 1.25, False),
    ]


def test_of_seconds_the_fewest_count_and_a_full_cache_is_compared_with_an_empty_one():
    found = ratios(
        summarise(
            [
                *records("start-empty", "jax", [10.0], name="first_iteration_s"),
                *records("start-empty", "brax", [40.0], name="first_iteration_s"),
                *records("start-empty", "nnx-ppo", [25.0], name="first_iteration_s"),
                *records("start-full", "jax", [5.0], name="first_iteration_s"),
                *records("start-full", "nnx-ppo", [1.0], name="first_iteration_s"),
                *records("cartpole-475", "jax", [30.0], name="seconds_to_return"),
                *records("cartpole-475", "torch", [8.0], name="seconds_to_return"),
                *records("cartpole-475", "sb3", [10.0], name="seconds_to_return"),
            ]
        )
    )
    assert [(row["work"], row["ours"], row["ratio"], row["reached"]) for row in found] == [
        ("start-empty", "jax", 0.4, True),
        ("start-full", "jax", 0.2, True),
        ("cartpole-475", "torch", 0.8, False),
    ]


def test_overhead_is_what_the_limit_does_not_need():
    # 1,024 steps an iteration: ours takes 1 s, the limit 0.5 s.
    pieces = {"replay": 0.05, "update": 0.15}
    found = summarise(
        [
            *records("cartpole-8", "torch", [1024.0], environment_share=0.2),
            *records("cartpole-8", "limit-torch", [2048.0], environment_share=0.3, acting_share=0.2, pieces_s=pieces),
        ]
    )["cartpole-8"]
    split = where_time_goes(WORKS["cartpole-8"], found)["torch"]
    assert split == pytest.approx({"environment": 0.2, "acting": 0.1, "replay": 0.05, "update": 0.15, "overhead": 0.5})


def test_the_report_names_who_failed_and_draws_a_plot(tmp_path):
    taken = [
        *records("fast-mlp", "jax", [200_000.0], first_iteration_s=9.0),
        *records("fast-mlp", "limit-jax", [250_000.0]),
        {"work": "fast-mlp", "who": "brax", "round": 0, "error": "KeyError: 'x'"},
    ]
    text = "\n".join(lines(taken, ABOUT))
    assert "| jax | 200,000 |" in text and "| 0.80 | 9.0 | 100 |" in text
    assert "| brax | failed: KeyError: 'x' |" in text
    assert "| fast-mlp | jax 2e+05 | limit-jax 2.5e+05 | 0.80 | ≥ 0.9 | missed |" in text
    plot(taken, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes()[1:4] == b"PNG"


def test_goals_name_works_and_those_who_do_them():
    for goal in GOALS:
        theirs = WORKS[goal.theirs or goal.work]
        assert set(goal.ours) <= set(WORKS[goal.work].who) and set(goal.against) <= set(theirs.who)
