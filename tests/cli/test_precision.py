"""Precision and device of a run: given by flag or file, kept in config.json, kept on a resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import multippo as mp
from multippo.backends.torch import products
from multippo.runs.settings import RunSettings

TINY = ("--backend", "torch", "--num-envs", 2, "--rollout-length", 8, "--num-epochs", 1, "--final-eval-episodes", 2)
TINY = (*TINY, "--actor-hidden-sizes", "[4]", "--critic-hidden-sizes", "[4]", "--progress", "off")


def train(command: Any, name: str, *more: object) -> Any:
    return command("train", "CartPole-v1", *TINY, "--total-steps", 32, "--run-dir", name, *more)


def config(name: str) -> dict[str, Any]:
    return json.loads(Path(name, "config.json").read_text("utf-8"))


def losses(name: str) -> list[float]:
    lines = [json.loads(line) for line in Path(name, "metrics.jsonl").read_text("utf-8").splitlines()]
    return [line["losses/critic"] for line in lines if "losses/critic" in line]


def weights(name: str) -> dict[str, np.ndarray]:
    (last,) = sorted(Path(name, "checkpoints").glob("step_*"))[-1:]
    arrays = {key: value for file in last.glob("*.safetensors") for key, value in load_file(file).items()}
    return {key: value for key, value in arrays.items() if key.endswith("kernel")}


def test_a_run_is_of_its_precision_and_stays_so(command: Any):
    assert train(command, "plain").code == 0
    assert train(command, "reduced", "--precision", "bfloat16", "--device", "cpu").code == 0
    written = config("reduced")
    assert (written["precision"], written["matmul_precision"], written["device"]) == ("bfloat16", "highest", "cpu")
    expected = {"device": "cpu:0", "float32_matmul_precision": "highest", "cudnn_allow_tf32": "False"}
    assert expected.items() <= written["numerics"].items()
    plain, reduced = losses("plain"), losses("reduced")
    assert plain != reduced, "nothing was computed in another precision"
    np.testing.assert_allclose(plain, reduced, rtol=0.1)
    assert {value.dtype for value in weights("reduced").values()} == {np.dtype(np.float32)}

    refused = command("train", "--resume", "--run-dir", "reduced", "--precision", "float32", "--total-steps", 64)
    assert refused.code == 2
    assert "precision can't become float32 in a run that began with bfloat16" in refused.err
    assert refused.err.count("\n") == 1
    resumed = command("train", "--resume", "--run-dir", "reduced", "--total-steps", 48, "--matmul-precision", "high")
    assert resumed.code == 0, resumed.err
    assert (config("reduced")["precision"], config("reduced")["matmul_precision"]) == ("bfloat16", "high")
    assert len(losses("reduced")) == 3

    # An evaluation in another precision would not repeat the one after training.
    evaluated = command("eval", "reduced", "--episodes", 2, "--json", "--device", "cpu")
    final = [json.loads(line) for line in Path("reduced", "metrics.jsonl").read_text("utf-8").splitlines()][-1]
    assert json.loads(evaluated.out)["episode_reward_mean"] == final["eval/episode_reward/mean"]
    # An engine that only evaluates does so in its own, as it does what was trained in float32.
    elsewhere = command("eval", "reduced", "--episodes", 2, "--backend", "numpy")
    assert elsewhere.code == 0, elsewhere.err
    assert "CartPole-v1 on numpy, checkpoint of step 48" in elsewhere.out
    refused = command("train", "CartPole-v1", "--backend", "numpy", "--precision", "bfloat16")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "The numpy backend can't train" in refused.err


def test_double_precision_from_a_file(command: Any):
    Path("settings.yaml").write_text("precision: float64\n")
    assert train(command, "wide", "--config", "settings.yaml").code == 0
    assert config("wide")["precision"] == "float64"
    assert {value.dtype for value in weights("wide").values()} == {np.dtype(np.float64)}
    resumed = command("train", "--resume", "--run-dir", "wide", "--total-steps", 48)
    assert resumed.code == 0, resumed.err
    assert {value.dtype for value in weights("wide").values()} == {np.dtype(np.float64)}


def test_a_device_that_is_not_there_is_refused_in_one_line_and_leaves_nothing(command: Any):
    done = train(command, "run", "--device", "tpu:9")
    assert done.code == 2
    assert "device='tpu:9' is not there: the torch engine sees " in done.err and "cpu:0" in done.err
    assert done.err.count("\n") == 1
    assert not Path("run").exists()


@pytest.mark.parametrize(("flag", "value"), [("--precision", "float16"), ("--matmul-precision", "medium")])
def test_unknown_precisions_are_refused(command: Any, flag: str, value: str):
    done = train(command, "run", flag, value)
    assert done.code == 2 and value in done.err and done.err.count("\n") == 1
    assert not Path("run").exists()


def test_a_run_of_an_earlier_version_is_of_single_precision(command: Any):
    assert train(command, "run").code == 0
    content = config("run")
    for name in ("precision", "matmul_precision", "device", "numerics"):
        del content[name]
    Path("run", "config.json").write_text(json.dumps(content))
    refused = command("train", "--resume", "--run-dir", "run", "--precision", "bfloat16")
    assert refused.code == 2 and "began with float32" in refused.err
    assert command("eval", "run", "--episodes", 1).code == 0


def test_the_engine_of_a_run(torch_engine: Any):
    settings = RunSettings.of({"env": "CartPole-v1", "precision": "bfloat16", "matmul_precision": "high"})
    before = torch.get_float32_matmul_precision()
    with settings.engine("torch", None) as engine:
        assert engine.product() is products.product_bfloat16
        assert torch.get_float32_matmul_precision() == "high"
        assert mp.Dense(2, 2, mp.Rngs(0)).core.bfloat16_operands
    assert torch.get_float32_matmul_precision() == before
    assert not mp.Dense(2, 2, mp.Rngs(0)).core.bfloat16_operands
