"""The order of measurements, and who is left out."""

from multippo.bench.running import order, run_all
from multippo.bench.works import WORKS

A, B = WORKS["cartpole-8"], WORKS["pendulum-mlp"]


def test_contestants_take_turns_and_every_second_round_runs_backwards():
    planned = order([A, B], lambda work: ["x", "y"] if work is A else ["z"], rounds=2)
    assert planned == [(0, A, "x"), (0, A, "y"), (0, B, "z"), (1, A, "y"), (1, A, "x"), (1, B, "z")]


def test_who_fails_is_left_out_of_later_rounds():
    told = []

    def measure(work, who, number):
        return {"error": "no such thing"} if who == "y" else {"steps_per_s": 1.0 + number}

    records = run_all(order([A], lambda _: ["x", "y"], rounds=3), measure, told.append)
    assert [(record["who"], record["round"]) for record in records] == [("x", 0), ("y", 0), ("x", 1), ("x", 2)]
    assert told == records and records[1]["error"] == "no such thing"
