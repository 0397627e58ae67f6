"""The table of a network: paths, shapes, counts and what a replay scans, by hand."""

import gymnasium
import numpy as np
import pytest
from support import assert_trees_close

import multippo as mp


class Stepped(mp.StatefulModule):
    """A user's module with a carry and a child, and the default ``unroll``."""

    def __init__(self, rngs):
        self.inner = mp.Dense(3, 3, rngs)

    def __call__(self, state, x, rollout_extras=None):
        y = self.inner((), state + x).output
        return mp.StatefulModuleOutput(y, {"y": y, "sum": self.xp.sum(y, axis=-1)})

    def initialize_state(self, batch_size):
        return self.zeros((batch_size, 3))

    def reset_state(self, prev_state):
        return self.xp.zeros_like(prev_state)


def network():
    rngs = mp.Rngs(0)
    last = mp.Sequential([mp.Filter(lambda x: x[..., :2]), mp.VariationalBottleneck(1, rngs)])
    return mp.Sequential(
        [
            mp.Map(seen=mp.Delay(np.zeros(3), 2), rest=mp.Normalizer(4)),
            mp.Filter("seen"),
            mp.Parallel(stepped=Stepped(rngs), last=last),
        ]
    )


def test_one_row_for_each_module(engine):
    net = network()
    before = mp.to_portable(net)
    table = mp.summary(net, {"seen": np.zeros(3), "rest": np.zeros(4)})
    rows = {
        row.path: (row.kind, row.output, row.num_params, row.num_variables, row.carry, row.replay) for row in table.rows
    }
    # Delay: 2 steps of 3. Bottleneck: a key of 2 words and a count, and its base key. Normalizer: mean, M2, 2 words.
    assert rows == {
        "": ("Sequential", {"last": (1,), "stepped.sum": (), "stepped.y": (3,)}, 12, 12, 12, "mixed"),
        "layers[0]": ("Map", {"rest": (4,), "seen": (3,)}, 0, 10, 6, "parallel"),
        "layers[0].components['seen']": ("Delay", {"": (3,)}, 0, 0, 6, "parallel"),
        "layers[0].components['rest']": ("Normalizer", {"": (4,)}, 0, 10, 0, "parallel"),
        "layers[1]": ("Filter", {"": (3,)}, 0, 0, 0, "parallel"),
        "layers[2]": ("Parallel", {"last": (1,), "stepped.sum": (), "stepped.y": (3,)}, 12, 2, 6, "mixed"),
        "layers[2].components['stepped']": ("Stepped", {"sum": (), "y": (3,)}, 12, 0, 3, "scan"),
        "layers[2].components['stepped'].inner": ("Dense", {"": (3,)}, 12, 0, 0, "scan"),
        "layers[2].components['last']": ("Sequential", {"": (1,)}, 0, 2, 3, "parallel"),
        "layers[2].components['last'].layers[0]": ("Filter", {"": (2,)}, 0, 0, 0, "parallel"),
        "layers[2].components['last'].layers[1]": ("VariationalBottleneck", {"": (1,)}, 0, 2, 3, "parallel"),
    }
    assert table.num_params == 12
    assert_trees_close(mp.to_portable(net), before, 0.0)


def test_without_a_sample_there_are_no_outputs(torch_engine):
    table = mp.summary(mp.Sequential([mp.LSTM(2, 1000, mp.Rngs(0))]))
    assert all(row.output is None for row in table.rows)
    # 4 (2 + 1000 + 1) 1000 numbers.
    assert str(table).splitlines() == [
        "module     type        parameters  variables  carry  replay",
        "(network)  Sequential   4,012,000          0  2,000  scan",
        "layers[0]  LSTM         4,012,000          0  2,000  scan",
    ]


def test_a_graph_with_and_without_feedback(torch_engine):
    for feedback in (False, True):
        graph = mp.PopulationGraph(mp.Rngs(0))
        graph.add_population("in", input_size=2, output_size=2, input_from="x")
        graph.add_population("hidden", input_size=2, output_size=2)
        graph.connect("in", "hidden")
        if feedback:
            graph.connect("hidden", "hidden", delay=1)
        graph.add_output("out", source="hidden")
        graph.finalize()
        table = mp.summary(graph, {"x": np.zeros(2)})
        assert table.rows[0].replay == ("mixed" if feedback else "parallel")
        assert table.rows[0].output == {"out": (2,)}
        # A replay steps through the loop alone, the Dense layers of its connections included.
        loop = "connections['hidden->hidden@1']"
        stepped = {row.path for row in table.rows[1:] if row.replay == "scan"}
        assert stepped == ({"populations['hidden']", loop, f"{loop}.transform"} if feedback else set())


@pytest.mark.parametrize(
    ("module", "given", "said"),
    [
        (..., np.zeros(2), "Dense got an input of shape (1, 2); expected 3 features"),
        (..., gymnasium.spaces.Box(0.0, 1.0, (3,)), "summary got the sample_input Box"),
    ],
)
def test_what_is_refused(torch_engine, module, given, said):
    with pytest.raises((TypeError, ValueError)) as refused:
        mp.summary(mp.Dense(3, 2, mp.Rngs(0)) if module is ... else module, given)
    assert said in str(refused.value)
