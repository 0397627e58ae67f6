"""Exported files do what the policy does, without multippo."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import multippo as mp
from multippo.policy.export import module_text
from multippo.policy.policy import EnginePolicy, make_policy
from multippo.policy.source import write
from multippo.trees import tree_leaves

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


CASES = {
    "noise, memory and delay": (noisy, spaces.Box(-1, 1, (3,)), spaces.Box(-2, 3, (2,))),
    "mask, dict and LSTM": (masked, SEEN, ACTED),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("deterministic", [True, False])
def test_open_loop_over_episodes(name: str, deterministic: bool, tmp_path: Path, torch_engine: Any):
    make, seen, acted = CASES[name]
    network = make()
    network.train(not deterministic)
    source = write(network, seen, acted)
    np.savez(tmp_path / "weights.npz", **source.weights)
    text = module_text(source, "A policy")
    (tmp_path / "policy.py").write_text(text)
    assert text.count("\n") <= (150 if deterministic or make is masked else 170)
    spec: Any = importlib.util.spec_from_file_location("exported_policy", tmp_path / "policy.py")
    exported = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(exported)
    engine = make_policy(network, seen, acted, backend="torch", deterministic=deterministic, seed=5)
    assert isinstance(engine, EnginePolicy)
    seen.seed(1)
    carry, other, ended = None, None, np.random.default_rng(0).random(200) < 0.05
    for done in ended:
        observation = seen.sample()
        action, carry = exported.act(observation, carry, 5)
        expected, other = engine(observation, other)
        assert np.asarray(action).dtype == np.asarray(expected).dtype and acted.contains(action)
        np.testing.assert_allclose(action, expected, rtol=1e-5, atol=2e-5)
        own = [torch_engine.to_numpy(x) for x in tree_leaves(other)]
        for leaf in carry.values():
            assert any(x.shape == leaf.shape and np.allclose(x, leaf, 1e-5, 1e-5) for x in own)
        carry, other = exported.reset(carry, done), engine.reset(other, done)


def test_the_files_need_numpy_alone(tmp_path: Path, torch_engine: Any):
    seen, acted = spaces.Box(-1, 1, (4,)), spaces.Discrete(2)
    network = mp.make_mlp_actor_critic(seen, acted, rngs=mp.Rngs(0)).eval()
    source = write(network, seen, acted)
    np.savez(tmp_path / "weights.npz", **source.weights)
    (tmp_path / "policy.py").write_text(module_text(source, "A policy"))
    program = (
        "import sys, policy, numpy as np\n"
        "print(policy.act(np.full(4, 0.5, np.float32))[0] in (0, 1))\n"
        "print([name for name in sys.modules if name.startswith(('multippo', 'torch', 'jax', 'gymnasium'))])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True", "[]"]


def test_what_cannot_be_written_is_named(torch_engine: Any):
    import torch

    rngs = mp.Rngs(0)
    adapter = mp.PPOAdapter(
        action=mp.Sequential([mp.Dense(4, 2, rngs), mp.CategoricalSampler(rngs)]), value=mp.Dense(4, 1, rngs)
    )
    network = mp.Sequential([mp.Lift(torch.nn.Linear(4, 4)), adapter])
    with pytest.raises(TypeError, match="Linear"):
        write(network, spaces.Box(-1, 1, (4,)), spaces.Discrete(2))
