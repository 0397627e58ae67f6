"""nnx-ppo's third tutorial: a graph of populations with a loop, between a normaliser and an adapter."""

from multippo import nnx
from multippo.networks.adapter import PPOAdapter
from multippo.networks.containers import Sequential
from multippo.networks.graph import PopulationGraph
from multippo.networks.normalizer import Normalizer
from multippo.networks.sampling_layers import NormalTanhSampler
from multippo.networks.utils import Filter, Map


def network(obs=8, hidden=16, actions=2):
    """Observation ``{"x"}``; actions ``{"action_params"}``, values ``{"value"}``."""
    rngs = nnx.Rngs(0)
    g = PopulationGraph(rngs)
    g.add_input("in_x", size=obs, input_from="x")
    g.add_population("hidden", size=hidden, activation=nnx.swish)
    g.connect("in_x", "hidden")
    g.connect("hidden", "hidden", delay=1)
    g.add_output("action_params", size=2 * actions)
    g.connect("hidden", "action_params")
    g.add_output("value", size=1)
    g.connect("hidden", "value")
    g.finalize()
    ports = PPOAdapter(
        action=Map({"action_params": NormalTanhSampler(rngs, entropy_weight=1e-2)}),
        value=Filter({"value": "value"}),
    )
    return Sequential([Normalizer({"x": obs}), g, ports])


def body():
    rngs = nnx.Rngs(0)
    g = PopulationGraph(rngs)
    for part in ("hand", "arm", "root"):
        g.add_input(part, size=4)
    g.connect("hand", "arm", delay=1, reciprocal=True)
    g.connect("arm", "root", delay=1, reciprocal=True)
    g.add_output("torque", size=2)
    g.connect("root", "torque")
    g.finalize()
    return g
