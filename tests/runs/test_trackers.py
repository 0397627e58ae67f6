"""Runs that other services follow, with stand-ins for these."""

import contextlib
import sys
import types
from typing import Any

import pytest
from short_runs import train


class FakeWandb(types.ModuleType):
    def __init__(self) -> None:
        super().__init__("wandb")
        self.begun: list[dict[str, Any]] = []
        self.steps: list[int] = []

    @contextlib.contextmanager
    def init(self, **about: Any) -> Any:
        self.begun.append(about)
        yield types.SimpleNamespace(id="abc", log=lambda metrics, step: self.steps.append(step))


class FakeMlflow(types.ModuleType):
    def __init__(self) -> None:
        super().__init__("mlflow")
        self.params: dict[str, Any] = {}
        self.steps: list[tuple[str, int]] = []
        self.ended: list[str] = []
        self.MlflowClient = lambda: self

    def set_experiment(self, name: str) -> Any:
        return types.SimpleNamespace(experiment_id=f"id of {name}")

    def create_run(self, experiment: str, run_name: str) -> Any:
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=f"{run_name} in {experiment}"))

    def log_params(self, params: dict[str, Any], run_id: str) -> None:
        assert not self.params
        self.params = params

    def log_metrics(self, metrics: dict[str, float], step: int, run_id: str) -> None:
        self.steps.append((run_id, step))

    def set_terminated(self, run_id: str) -> None:
        self.ended.append(run_id)


def test_services_follow_a_run_and_go_on_with_it(command: Any, monkeypatch: pytest.MonkeyPatch):
    wandb, mlflow = FakeWandb(), FakeMlflow()
    for module in (wandb, mlflow):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    quick = ("--run-dir", "run", "--final-eval-episodes", 0)
    found = train(command, "--wandb", "project", "--mlflow", "experiment", *quick, env="Pendulum-v1")
    assert found.code == 0, found.err
    found = command("train", "--resume", *quick, "--total-steps", 96)
    assert found.code == 0, found.err
    assert wandb.steps == [32, 64, 96]
    assert mlflow.steps == [("run in id of experiment", step) for step in wandb.steps]
    assert mlflow.ended == ["run in id of experiment"] * 2
    assert mlflow.params["env.id"] == wandb.begun[0]["config"]["env"]["id"] == "Pendulum-v1"
    assert [about.get("id") for about in wandb.begun] == [None, "abc"]


def test_a_missing_package_and_a_service_that_refuses_are_named(command: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    train(command, "--wandb", "project").assert_refused("pip install 'multippo[wandb]'")
    monkeypatch.setitem(sys.modules, "wandb", types.ModuleType("wandb"))
    found = train(command, "--wandb", "project")
    assert found.code == 1
    assert "wandb can't follow the run: module 'wandb' has no attribute 'init'" in found.err
