"""Precision and device of a run: given by flag or file, kept in config.json, kept on a resume."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from short_runs import checkpoints, numbers, train

RESUME = ("train", "--resume", "--run-dir", "run", "--final-eval-episodes", 2)


def config() -> dict[str, Any]:
    return json.loads(Path("run/config.json").read_text("utf-8"))


def kinds() -> set[np.dtype[Any]]:
    """Types of the kernels in the last checkpoint, and of their moments."""
    arrays = [item for file in checkpoints()[-1].glob("*.safetensors") for item in load_file(file).items()]
    return {value.dtype for name, value in arrays if name.endswith("kernel")}


def test_a_run_is_of_its_precision_and_stays_so(command: Any, five: Path):
    options = ("--precision", "bfloat16", "--device", "cpu", "--final-eval-episodes", 2)
    assert train(command, "--run-dir", "run", *options).code == 0
    assert (config()["precision"], config()["matmul_precision"], config()["device"]) == ("bfloat16", "highest", "cpu")
    expected = {"device": "cpu:0", "float32_matmul_precision": "highest", "cudnn_allow_tf32": "False"}
    assert expected.items() <= config()["numerics"].items()
    plain, reduced = (numbers(path)[0]["losses/critic"] for path in (five, Path("run")))
    assert plain != reduced, "nothing was computed in another precision"
    np.testing.assert_allclose(plain, reduced, rtol=0.1)
    assert kinds() == {np.dtype(np.float32)}

    refused = command(*RESUME, "--precision", "float32", "--total-steps", 96)
    refused.assert_refused("precision can't become float32 in a run that began with bfloat16")
    resumed = command(*RESUME, "--total-steps", 96, "--matmul-precision", "high")
    assert resumed.code == 0, resumed.err
    assert (config()["precision"], config()["matmul_precision"]) == ("bfloat16", "high")
    assert [line["iteration"] for line in numbers(Path("run")) if "iteration" in line] == [1, 2, 3]

    # An evaluation in another precision would not repeat the one after training.
    evaluated = command("eval", "run", "--episodes", 2, "--json", "--device", "cpu")
    assert json.loads(evaluated.out)["episode_reward_mean"] == numbers(Path("run"))[-1]["eval/episode_reward/mean"]
    # An engine that only evaluates does so in its own, as it does what was trained in float32.
    elsewhere = command("eval", "run", "--episodes", 2, "--backend", "numpy")
    assert elsewhere.code == 0, elsewhere.err
    assert "CartPole-v1 on numpy, checkpoint of step" in elsewhere.out
    refused = command("train", "CartPole-v1", "--backend", "numpy", "--precision", "bfloat16")
    refused.assert_refused("The numpy backend can't train")


def test_double_precision_from_a_file(command: Any):
    Path("settings.yaml").write_text("precision: float64\n")
    assert train(command, "--run-dir", "run", "--config", "settings.yaml").code == 0
    assert config()["precision"] == "float64"
    assert kinds() == {np.dtype(np.float64)}
    assert command(*RESUME, "--total-steps", 96).code == 0
    assert kinds() == {np.dtype(np.float64)}


def test_a_run_of_an_earlier_version_is_of_single_precision(command: Any, run: Path):
    content = config()
    for name in ("precision", "matmul_precision", "device", "numerics"):
        del content[name]
    (run / "config.json").write_text(json.dumps(content))
    command(*RESUME, "--precision", "bfloat16").assert_refused("began with float32")
    assert command("eval", "run", "--episodes", 1).code == 0
