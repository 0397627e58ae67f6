"""A checkpoint can be read where it was not made: uncompiled, by the other engine, by a later release; or says why not.

Seen in pytorch/pytorch#101107, alex-petrenko/sample-factory#313, DLR-RM/stable-baselines3#1122, #403,
hill-a/stable-baselines#740.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import support
import training
from safetensors.numpy import load_file, save_file

import multippo as mp
from multippo.testing import Goal

RELEASES = Path(__file__).parent / "checkpoints"
"""One checkpoint of each release, named after it, and beside it what its network yields (``outputs.npz``)."""

SPEC = {"hidden_features": 3, "encoder_sizes": (4,), "shared": True}


def make_network(seed: int = 0) -> Any:
    network = mp.make_recurrent_actor_critic(1, 1, rngs=mp.Rngs(seed), **SPEC)
    support.fill_randomly(network, seed)
    return network


def outputs(network: Any) -> dict[str, np.ndarray]:
    """What the network yields at five observations, one after another."""
    state = network.initialize_state(2)
    network.eval()
    step = support.compiled(network, lambda net, s, x: tuple(net(s, x))[:2])
    found: dict[str, list[np.ndarray]] = {"actions": [], "value_estimates": []}
    for number in range(5):
        x = network.engine.asarray(np.full((2, 1), 0.3 * number - 0.5, np.float32))
        state, output = step(state, x)
        for name, column in found.items():
            column.append(support.to_numpy(getattr(output, name)))
    network.train()
    return {name: np.stack(column) for name, column in found.items()}


@pytest.fixture
def saved(torch_engine: Any, tmp_path: Path) -> Path:
    network = make_network()
    run = training.train(Goal(2), network, iterations=1)
    config = mp.TrainConfig(ppo=mp.PPOConfig(lr_schedule="cosine"))
    return mp.save_checkpoint(tmp_path / "a", run.state, network, config=config)


@pytest.mark.parametrize(("first", "second"), [("on", "off"), pytest.param("off", "on", marks=pytest.mark.nightly)])
def test_saved_compiled_and_loaded_uncompiled_and_back(
    torch_engine: Any, without_code_generation: None, first: str, second: str, tmp_path: Path
):
    network, other = make_network(), make_network(1)
    run = training.train(Goal(2), network, iterations=2, config={"compile": first})
    mp.save_checkpoint(tmp_path / "a", run.state, network)
    names = set(load_file(tmp_path / "a/weights.safetensors"))
    assert names == set(mp.to_portable(other))
    assert not any("_orig_mod" in name for name in names)
    state = mp.load_checkpoint(tmp_path / "a", other)
    support.assert_trees_close(outputs(other), outputs(network), 0.0)
    rest = training.train(Goal(2), other, iterations=3, initial_state=state, config={"compile": second})
    assert rest.column("iteration") == [3]


def test_on_the_other_engine_and_back(tmp_path: Path):
    with mp.use_backend("torch"):
        network = make_network()
        run = training.train(Goal(2), network, iterations=2)
        mp.save_checkpoint(tmp_path / "torch", run.state, network)
        expected = outputs(network)
    with mp.use_backend("jax"):
        other = make_network(1)
        mp.save_checkpoint(tmp_path / "jax", mp.load_checkpoint(tmp_path / "torch", other), other)
        support.assert_trees_close(outputs(other), expected, 1e-5)
    with mp.use_backend("torch"):
        back = make_network(1)
        mp.load_checkpoint(tmp_path / "jax", back)
    support.assert_trees_close(outputs(back), expected, 0.0)
    support.assert_trees_close(mp.to_portable(other), mp.to_portable(network), 0.0)


def test_a_configuration_is_data(saved: Path, tmp_path: Path):
    assert json.loads((saved / "checkpoint.json").read_text())["config"]["ppo"]["lr_schedule"] == "cosine"
    for file in saved.iterdir():
        # A pickle starts with its protocol, a zip archive (torch.save) with PK.
        assert not file.read_bytes().startswith((b"\x80", b"PK")), file.name
    network = make_network()
    state = mp.load_checkpoint(saved, network)
    for thing in (lambda step: step, object()):
        with pytest.raises(TypeError, match="JSON"):
            mp.save_checkpoint(tmp_path / "b", state, network, extra={"schedule": thing})
    assert not (tmp_path / "b").exists()


def test_a_later_format_is_one_clear_line(saved: Path):
    path = saved / "checkpoint.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "format_version": 99, "multippo_version": "12.3", "new": {"field": 1}}))
    network = make_network()
    with pytest.raises(ValueError, match=r"format 99.*'12\.3'.*upgrade") as caught:
        mp.load_checkpoint(saved, network)
    assert "\n" not in str(caught.value)


FILES = ["weights.safetensors", "optimizer.safetensors", "carry.safetensors"]


@pytest.mark.parametrize(
    ("file", "change"),
    [
        *((FILES[0], change) for change in ("missing", "extra", "prefixed", "reshaped")),
        (FILES[1], "missing"),
        (FILES[2], "reshaped"),
    ],
)
def test_a_tensor_too_many_or_too_few_is_an_error_and_changes_nothing(saved: Path, file: str, change: str):
    tensors = load_file(saved / file)
    # The largest: a name such as "_orig_mod.x" or another shape must never leave random weights in its place.
    name = max(tensors, key=lambda key: (tensors[key].size, key))
    if change == "missing":
        tensors.pop(name)
    elif change == "extra":
        tensors["stray"] = np.zeros(2, np.float32)
    elif change == "prefixed":
        tensors[f"_orig_mod.{name}"] = tensors.pop(name)
    else:
        tensors[name] = np.ascontiguousarray(tensors[name][..., :-1])
    save_file(tensors, saved / file)
    # Without sums, as earlier versions wrote it, or whoever edits a file leaves it.
    manifest = {**json.loads((saved / "checkpoint.json").read_text()), "sha256": None}
    (saved / "checkpoint.json").write_text(json.dumps(manifest))
    network = make_network(1)
    before = mp.to_portable(network)
    with pytest.raises(ValueError, match="stray" if change == "extra" else name.replace("[", r"\[").split("'")[0]):
        mp.load_checkpoint(saved, network)
    support.assert_trees_close(mp.to_portable(network), before, 0.0)


@pytest.mark.parametrize("release", sorted(path.name for path in RELEASES.iterdir()))
def test_the_checkpoint_of_each_release_loads(engine: Any, release: str):
    network = make_network(1)
    state = mp.load_checkpoint(RELEASES / release / "checkpoint", network)
    assert (state.iteration, state.step) == (2, 16)
    assert int(state.optimizer_state[2]) == 8
    expected = dict(np.load(RELEASES / release / "outputs.npz"))
    support.assert_trees_close(outputs(network), expected, 1e-5)
    if engine.name == "torch":
        assert training.train(Goal(2), network, iterations=3, initial_state=state).column("iteration") == [3]


def write_release(release: str) -> None:
    """Writes the files of a release, once, when it is made: ``python tests/cases/test_case_43_….py 0.1.0``."""
    with mp.use_backend("torch"):
        network = make_network()
        run = training.train(Goal(2), network, iterations=2)
        shutil.rmtree(RELEASES / release, ignore_errors=True)
        mp.save_checkpoint(
            RELEASES / release / "checkpoint", run.state, network, config=mp.TrainConfig(), extra={"release": release}
        )
        np.savez(RELEASES / release / "outputs.npz", **outputs(network))


if __name__ == "__main__":
    write_release(sys.argv[1])
