"""Containers: routing, state, snapshots, what is joined and added."""

import importlib
from typing import Any, NamedTuple

import numpy as np
import pytest
from support import assert_trees_close, gradients, to_numpy

import multippo as mp
from multippo.networks.containers import Container
from multippo.networks.types import StatefulModule, StatefulModuleOutput


class Counter(StatefulModule):
    """Multiplies by a factor; counts its calls in the carry; emits its input; charges its factor as loss."""

    def __init__(self, factor):
        self.factor = factor
        self.seen = mp.Variable(np.zeros(()))

    def __call__(self, state, x, rollout_extras=None):
        count = state["count"] + 1
        emitted = x if rollout_extras is None else rollout_extras
        loss = self.factor + 0 * x[:, 0]
        return StatefulModuleOutput({"count": count}, self.factor * emitted, loss, {"count": count[:, 0]}, x)

    def initialize_state(self, batch_size):
        return {"count": self.zeros((batch_size, 1))}

    def reset_state(self, prev_state):
        return {"count": self.xp.zeros_like(prev_state["count"]) - self.factor}

    def update_statistics(self, rollout_extras, valid=None):
        self.seen[...] = self.seen[...] + self.xp.sum(rollout_extras)


def ones(engine, *shape):
    return engine.zeros(shape) + 1


def test_sequential_chains_and_mirrors_in_lists(torch_engine):
    net = mp.Sequential([Counter(2.0), Counter(5.0)])
    out = net(net.initialize_state(3), ones(torch_engine, 3, 1))
    assert to_numpy(out.output).tolist() == [[10.0]] * 3
    assert to_numpy(out.regularization_loss).tolist() == [7.0] * 3
    assert [to_numpy(state["count"])[0, 0] for state in out.next_state] == [1.0, 1.0]
    assert [to_numpy(extra)[0, 0] for extra in out.rollout_extras] == [1.0, 2.0]
    assert {key: float(value["count"][0]) for key, value in out.metrics.items()} == {"0": 1.0, "1": 1.0}
    assert len(net) == 2 and net[1].factor == 5.0


def test_parallel_branches_and_mirrors_in_dicts(torch_engine):
    net = mp.Parallel(b=Counter(2.0), a=Counter(5.0))
    out = net(net.initialize_state(3), ones(torch_engine, 3, 1))
    assert {key: to_numpy(value)[0, 0] for key, value in out.output.items()} == {"b": 2.0, "a": 5.0}
    assert list(out.output) == list(out.next_state) == list(out.rollout_extras) == ["b", "a"]


@pytest.mark.parametrize("container", [mp.Parallel, mp.Concat, mp.Map])
def test_children_may_be_named_by_a_dict_too(engine, container):
    names = ("keys", "a.b", "0", "forward", "items", "self", "cls")
    net = container({name: mp.Dense(1, 1, mp.Rngs(0)) for name in names})
    assert tuple(net.children_by_key) == names == tuple(net.initialize_state(2))


def test_concat_runs_each_module_on_its_entry(torch_engine):
    net = mp.Concat(z=Counter(2.0), a=Counter(3.0))
    x = {"a": 10 * ones(torch_engine, 1, 1), "z": ones(torch_engine, 1, 2), "unused": ones(torch_engine, 1, 1)}
    assert to_numpy(net(net.initialize_state(1), x).output).tolist() == [[2.0, 2.0, 30.0]]


def test_map_runs_each_module_on_its_entry_and_keeps_them_apart(torch_engine):
    net = mp.Map(z=Counter(2.0), a=mp.Map({"b.c": Counter(3.0)}))
    x = {"a": {"b.c": 10 * ones(torch_engine, 1, 1)}, "z": ones(torch_engine, 1, 2), "unused": ones(torch_engine, 1, 1)}
    out = net(net.initialize_state(1), x)
    assert list(out.output) == list(out.next_state) == ["z", "a"]
    assert to_numpy(out.output["z"]).tolist() == [[2.0, 2.0]]
    assert to_numpy(out.output["a"]["b.c"]).tolist() == [[30.0]]


def test_splitter_cuts_in_order_and_leaves_the_rest(torch_engine):
    out = mp.Splitter(z=2, a=1)((), torch_engine.asarray(np.arange(8, dtype=np.float32).reshape(2, 4)))
    assert to_numpy(out.output["z"]).tolist() == [[0.0, 1.0], [4.0, 5.0]]
    assert to_numpy(out.output["a"]).tolist() == [[2.0], [6.0]]


def test_layers_may_come_from_any_iterable(torch_engine):
    layers = [mp.Dense(2, 2, mp.Rngs(i)) for i in range(2)]
    for given in (tuple(layers), iter(layers), (layer for layer in layers)):
        assert len(mp.Sequential(given)) == 2
    assert len(mp.Sequential(layers=layers)) == 2


class Mean(Container):
    """A container of somebody's own: it says how inputs go to the children, and nothing else."""

    def __init__(self, *children):
        self._adopt(list(children), "parts")

    def _route(self, children, x):
        return sum(children.run(key, x) for key in self.keys) / len(self.keys)


def test_a_new_container_routes_everything_else_by_itself(engine):
    net = Mean(Counter(2.0), mp.Sequential([Counter(4.0)]))
    x = ones(engine, 3, 2)
    out = net(net.initialize_state(3), x)
    assert to_numpy(out.output).tolist() == [[3.0, 3.0]] * 3
    assert to_numpy(out.regularization_loss).tolist() == [6.0] * 3
    assert to_numpy(out.next_state[1][0]["count"]).tolist() == [[1.0]] * 3
    assert to_numpy(out.metrics["1"]["0"]["count"]).tolist() == [1.0] * 3
    reset = net.reset_state(out.next_state)
    assert [float(part[0, 0]) for part in (reset[0]["count"], reset[1][0]["count"])] == [-2.0, -4.0]
    replayed = net(net.initialize_state(3), 5 * x, out.rollout_extras)  # what was emitted, whatever comes in
    assert to_numpy(replayed.output).tolist() == [[3.0, 3.0]] * 3
    over_time = [engine.tree_map(lambda leaf: leaf[None], part) for part in (x, out.rollout_extras)]
    done = engine.asarray(np.zeros((1, 3), bool))
    unrolled = net.unroll(net.initialize_state(3), over_time[0], done, over_time[1])
    assert to_numpy(unrolled.output).tolist() == [[[3.0, 3.0]] * 3]
    net.update_statistics(over_time[1])
    assert [float(module.seen[...]) for module in (net.parts[0], net.parts[1][0])] == [6.0, 6.0]


def test_the_gradient_goes_both_ways(engine):
    # y = x + w2 (x w1 + b): the first layer is seen through both branches.
    net = mp.Sequential([mp.Dense(1, 1, mp.Rngs(0)), mp.Residual(mp.Dense(1, 1, mp.Rngs(1)))])
    names = ("layers.0.kernel", "layers.0.bias", "layers.1.layers.0.kernel", "layers.1.layers.0.bias")
    shapes = ((1, 1), (1,), (1, 1), (1,))
    values = {name: np.full(shape, 3.0) for name, shape in zip(names, shapes, strict=True)}
    mp.load_portable(net, values)
    found = gradients(net, lambda net: net.xp.sum(net(net.initialize_state(1), engine.zeros((1, 1)) + 2).output))
    # h = 2 * 3 + 3 = 9; dy/dh = 1 + 3 = 4; dh/dkernel = 2.
    assert [found[name].item() for name in names] == [8.0, 4.0, 9.0, 1.0]


class Pair(NamedTuple):
    a: Any
    b: Any


def scaled(**factors):
    return mp.Parallel({name: mp.Scale(factor) for name, factor in factors.items()})


def test_merge_joins_what_its_children_yield(torch_engine):
    merge = mp.Merge({"z": scaled(y=2.0, b=3.0), "a.b": scaled(c=5.0)})
    out = merge(merge.initialize_state(1), torch_engine.zeros((1, 1)) + 1)
    assert {name: to_numpy(value).item() for name, value in out.output.items()} == {"y": 2.0, "b": 3.0, "c": 5.0}
    assert list(out.output) == ["y", "b", "c"]


def test_flattener_keeps_levels(torch_engine):
    asarray = lambda *values: torch_engine.asarray(np.asarray([values], np.float32))  # noqa: E731
    tree = {
        "b": Pair(asarray(1.0), {"z": asarray(3.0), "y": asarray([2.0], [2.5])}),
        "a": [asarray(4.0, 5.0), asarray(6.0)],
    }
    flat = lambda levels: to_numpy(mp.Flattener(preserve_levels=levels)((), tree).output)  # noqa: E731
    assert flat(0).tolist() == [[4.0, 5.0, 6.0, 1.0, 2.0, 2.5, 3.0]]
    one = flat(1)
    assert list(one) == ["b", "a"]
    assert one["b"].tolist() == [[1.0, 2.0, 2.5, 3.0]] and one["a"].tolist() == [[4.0, 5.0, 6.0]]
    two = flat(2)
    assert isinstance(two["b"], Pair) and isinstance(two["a"], list)
    assert two["b"].b.tolist() == [[2.0, 2.5, 3.0]] and two["a"][1].tolist() == [[6.0]]
    again = mp.Flattener(1)((), mp.Flattener(1)((), tree).output).output
    assert_trees_close(again, one, 0.0)


PATHS = {
    "multippo.networks.utils": "Filter Flattener Map Merge Scale",
    "multippo.networks.containers": "Concat Filter Flattener Map Merge Parallel Scale Sequential",
    "multippo.networks.delay": "Delay",
    "multippo.networks.variational": "AR1VariationalBottleneck VariationalBottleneck",
}


@pytest.mark.parametrize("path", PATHS)
def test_documented_import_paths(path):
    module = importlib.import_module(path)
    for name in PATHS[path].split():
        assert getattr(module, name) is getattr(mp, name)
