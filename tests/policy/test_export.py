"""Exported files do what the policy does, without multippo."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import multippo as mp
from multippo.policy.export import FORMATS, save
from multippo.policy.policy import EnginePolicy, make_policy
from multippo.policy.record import raw_type, space_tree
from multippo.trees import tree_leaves, tree_map

SEEN = spaces.Dict({"at": spaces.Box(-1, 1, (3,)), "kind": spaces.Discrete(3), "action_mask": spaces.MultiBinary(4)})
ACTED = spaces.Discrete(4, start=2)


def noisy() -> Any:
    """A network with memory, a delay, noise of its own."""
    rngs = mp.Rngs(3)
    layers = [
        mp.Normalizer(3),
        mp.Dense(3, 8, rngs, "gelu"),
        mp.LayerNorm(8),
        mp.Delay(np.zeros(8, np.float32), 2),
        mp.GRU(8, 6, rngs),
        mp.Dense(6, 8, rngs, "elu"),
        mp.AR1VariationalBottleneck(4, rngs),
        mp.PPOAdapter(
            action=mp.Sequential([mp.Dense(4, 4, rngs), mp.NormalTanhSampler(rngs)]), value=mp.Dense(4, 1, rngs)
        ),
    ]
    return mp.Sequential(layers)


def masked() -> Any:
    from multippo.envs.observations import make_observation_map

    return mp.make_recurrent_actor_critic(make_observation_map(SEEN).space, ACTED, 8, mp.Rngs(0))


def perceptron() -> Any:
    return mp.make_mlp_actor_critic(BOX, TURNED, (8,), (8,), mp.Rngs(0))


def images() -> Any:
    """Dense heads on two convolutions, the first one padded."""
    rngs = mp.Rngs(0)
    first = mp.Conv(2, 3, (3, 2), rngs, stride=(2, 1), padding="same", activation="relu")
    heads = mp.PPOAdapter(
        action=mp.Sequential([mp.Dense(40, 4, rngs), mp.CategoricalSampler(rngs)]), value=mp.Dense(40, 1, rngs)
    )
    return mp.Sequential([mp.Scale(1 / 255), first, mp.Conv(3, 4, 2, rngs), mp.Flattener(), heads])


def graph() -> Any:
    """A loop with a delay, and a connection that hears of the past alone."""
    rngs = mp.Rngs(0)
    net = mp.PopulationGraph(rngs)
    net.add_input("senses", 3, output_size=6, compute=mp.Dense(3, 6, rngs), activation="tanh")
    net.add_population("loop", 5, activation="swish")
    net.connect("senses", "loop")
    net.connect("loop", "loop", delay=1)
    net.add_output("params", 4)
    net.connect("loop", "params")
    net.connect("senses", "params", delay=3)
    net.add_output("value", 1)
    net.connect("loop", "value")
    net.finalize()
    sampled = mp.Sequential([mp.Filter("params"), mp.NormalTanhSampler(rngs)])
    return mp.Sequential([net, mp.PPOAdapter(action=sampled, value=mp.Filter("value"))])


BOX, TURNED, IMAGES = spaces.Box(-1, 1, (3,)), spaces.Box(-2, 3, (2,)), spaces.Box(0, 255, (5, 6, 2), np.uint8)
CASES: dict[str, Any] = {
    "perceptron": (perceptron, BOX, TURNED),
    "noise, memory and delay": (noisy, BOX, TURNED),
    "mask, dict and LSTM": (masked, SEEN, ACTED),
    "images": (images, IMAGES, ACTED),
    "graph": (graph, BOX, TURNED),
}


Steps = Callable[[Any, Any, np.ndarray], tuple[Any, dict[str, np.ndarray]]]


def numpy_steps(folder: Path) -> Steps:
    spec: Any = importlib.util.spec_from_file_location("exported_policy", folder / "policy.py")
    policy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(policy)
    return lambda observation, carry, start: policy.act(observation, policy.reset(carry, start) if carry else None)


def onnx_steps(folder: Path) -> Steps:
    session: Any = pytest.importorskip("onnxruntime").InferenceSession(folder / "policy.onnx")

    def step(observation: Any, carry: Any, start: np.ndarray) -> Any:
        parts = observation if isinstance(observation, dict) else {"": observation}
        given = {f"observation_{key}" if key else "observation": value for key, value in parts.items()}
        action, *after = session.run(None, given | carry | ({"start": start} if carry else {}))
        return action, dict(zip(carry, after, strict=True))

    return step


def torch_steps(folder: Path) -> Steps:
    import torch

    policy = torch.export.load(folder / "policy.pt2").module()
    return lambda *args: tree_map(lambda x: x.numpy(), policy(*tree_map(torch.tensor, args)))


def jax_steps(folder: Path) -> Steps:
    import jax.export

    policy = jax.export.deserialize(bytearray((folder / "policy.jax").read_bytes()))
    return lambda *args: tree_map(np.asarray, policy.call(*args))


STEPS: dict[str, Callable[[Path], Steps]] = {
    "numpy": numpy_steps,
    "onnx": onnx_steps,
    "torch": torch_steps,
    "jax": jax_steps,
}
MOST = [(form, name, noise) for form in ("numpy", "onnx") for name in CASES for noise in (False, True)]
FEW = [("torch", "mask, dict and LSTM", True), ("jax", "mask, dict and LSTM", True), ("jax", "graph", False)]
REST = [(form, name, noise) for form in ("torch", "jax") for name in CASES for noise in (False, True)]
REST = [pytest.param(*case, marks=pytest.mark.nightly) for case in REST if case not in FEW]


@pytest.mark.parametrize(("form", "name", "noise"), [*MOST, *FEW, *REST])
def test_open_loop_over_episodes(form: str, name: str, noise: bool, tmp_path: Path, torch_engine: Any):
    if form == "onnx":
        pytest.importorskip("onnx")
    make, seen, acted = CASES[name]
    network = make()
    network.train(noise)
    save(network, seen, acted, tmp_path, form, "A policy")
    if form == "numpy":
        assert (tmp_path / "policy.py").read_text().count("\n") <= 150
    step = STEPS[form](tmp_path)
    engine = make_policy(network, seen, acted, backend="torch", deterministic=not noise)
    assert isinstance(engine, EnginePolicy)
    rows = 1 if noise else 3  # the carry in the file has the noise of one row
    first = dict[str, np.ndarray]()
    if (tmp_path / "carry.npz").exists():
        with np.load(tmp_path / "carry.npz") as file:
            first = {key: np.repeat(value, rows, 0) for key, value in file.items()}
    carry: Any = None if form == "numpy" else first
    other = None
    seen.seed(1)
    several = gymnasium.vector.utils.batch_space(seen, rows)
    types = tree_map(raw_type, space_tree(seen))
    for start in np.random.default_rng(0).random((200, rows)) < 0.05:
        observation = tree_map(lambda x, dtype: np.asarray(x, dtype), several.sample(), types)
        other = other if other is None else engine.reset(other, start)
        action, carry = step(observation, carry, start)
        expected, other = engine(observation, other)
        np.testing.assert_allclose(action, expected, rtol=1e-5, atol=2e-5)
        own = [torch_engine.to_numpy(x) for x in tree_leaves(other)]
        for leaf in carry.values():
            assert any(x.shape == leaf.shape and np.allclose(x, leaf, 1e-5, 1e-5) for x in own)


def test_the_files_need_numpy_alone(tmp_path: Path, torch_engine: Any):
    seen, acted = spaces.Box(-1, 1, (4,)), spaces.Discrete(2)
    network = mp.make_mlp_actor_critic(seen, acted, rngs=mp.Rngs(0)).eval()
    save(network, seen, acted, tmp_path, "numpy", "A policy")
    program = (
        "import sys, policy, numpy as np\n"
        "print(policy.act(np.full(4, 0.5, np.float32))[0] in (0, 1))\n"
        "print([name for name in sys.modules if name.startswith(('multippo', 'torch', 'jax', 'gymnasium'))])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True", "[]"]


@pytest.mark.parametrize("form", FORMATS)
def test_what_cannot_be_written_is_named(form: str, tmp_path: Path, torch_engine: Any):
    if form == "onnx":
        pytest.importorskip("onnx")
    import torch

    rngs = mp.Rngs(0)
    adapter = mp.PPOAdapter(
        action=mp.Sequential([mp.Dense(4, 2, rngs), mp.CategoricalSampler(rngs)]), value=mp.Dense(4, 1, rngs)
    )
    network = mp.Sequential([mp.Lift(torch.nn.Linear(4, 4)), adapter])
    with pytest.raises(TypeError, match="Linear"):
        save(network, spaces.Box(-1, 1, (4,)), spaces.Discrete(2), tmp_path, form, "A policy")
