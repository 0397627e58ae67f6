"""The command as a whole: subcommands, exit codes, what is loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multippo as mp
from multippo.algorithms.metrics import json_ready
from multippo.arguments import did_you_mean
from multippo.cli import app
from multippo.cli.errors import RunError, UsageError, is_users_mistake

ROOT = Path(__file__).resolve().parents[2]


def process(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_the_commands_are_listed(command: Any, arguments: tuple[str, ...]):
    done = command(*arguments)
    assert done.code == (0 if arguments else 2)
    for name in ("train", "eval", "conformance", "backends", "envs"):
        assert f"  {name} " in done.out


@pytest.mark.parametrize("name", ["train", "eval", "conformance", "backends", "envs"])
def test_each_command_has_help(command: Any, name: str):
    done = command(name, "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"usage: multippo {name}")


def test_the_version(command: Any):
    assert command("--version").out == f"multippo {mp.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("trian",), "unknown command 'trian'. Did you mean 'train'?"),
        (("CartPole-v1",), "unknown command 'CartPole-v1'. The commands are train"),
        (("--backend", "jax"), "unknown flag '--backend'"),
        (("train",), "an environment is missing: multippo train CartPole-v1"),
        (("backends", "--jsn"), "unknown flag --jsn. Did you mean '--json'?"),
        (("envs", "all"), "unexpected 'all'"),
        (("conformance", "--backend", "foo"), "foo"),
        (("eval", "r" * 300), "File name too long"),
        (("compare", "r" * 300, "r" * 300), "File name too long"),
        (("train", "CartPole-v1", "--run-dir", "r" * 300, "--total-steps", "8"), "too long"),
        (("train", "--config", "c" * 300), "too long"),
    ],
)
def test_mistakes(command: Any, arguments: tuple[str, ...], message: str):
    done = command(*arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.startswith("multippo: ")
    assert done.err.count("\n") == 1


def test_an_engine_that_does_not_exist_in_the_variable(command: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MULTIPPO_BACKEND", "foo")
    done = command("train", "CartPole-v1")
    assert done.code == 2
    assert "MULTIPPO_BACKEND='foo' names no backend: set it to one of jax, torch" in done.err


def test_an_engine_that_is_not_installed(command: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("multippo.backends.registry._missing_packages", lambda name: ["torch"])
    monkeypatch.setattr("multippo.backends.registry._engines", {})
    done = command("train", "CartPole-v1", "--backend", "torch")
    assert done.code == 2
    assert "pip install 'multippo[torch]'" in done.err


def test_backends(command: Any, monkeypatch: pytest.MonkeyPatch):
    rows = json.loads(command("backends", "--json").out)
    assert [(row["name"], row["available"]) for row in rows] == [("jax", True), ("torch", True), ("numpy", True)]
    monkeypatch.setattr("multippo.backends.registry._missing_packages", lambda name: ["torch"] * (name == "torch"))
    monkeypatch.setenv("MULTIPPO_BACKEND", "jax")
    out = command("backends").out
    assert "not installed: pip install 'multippo[torch]'" in out
    assert f"numpy      installed  numpy {np.__version__} (evaluates, does not train)" in out
    assert "MULTIPPO_BACKEND is jax." in out


def test_envs(command: Any):
    names = command("envs").out.split()
    assert {"CartPole-v1", "brax/ant", "multippo/CartPoleNoVel-v0"} <= set(names)
    assert json.loads(command("envs", "--json").out) == names


def test_conformance_passes_its_flags_on(command: Any, monkeypatch: pytest.MonkeyPatch):
    calls: list[Any] = []

    class Suite:
        @staticmethod
        def cli_main(*args: Any, **kwargs: Any) -> int:
            calls.append((*args, kwargs))
            return 1

    monkeypatch.setitem(sys.modules, "multippo.conformance", Suite)
    assert command("conformance", "--backend", "jax", "--backend", "torch", "--json", "--level", 2).code == 1
    assert command("conformance").code == 1
    every = {"precisions": ("float32", "float64")}
    assert calls == [
        (["jax", "torch"], {"as_json": True, "levels": (2,), **every}),
        (None, {"as_json": False, "levels": (1, 2, 3), **every}),
    ]


def test_without_the_suite_conformance_says_how_to_get_it(command: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "multippo.conformance", None)
    done = command("conformance")
    assert done.code == 2
    assert "not installed" in done.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("two\nlines"), 2),
        (RunError("full"), 1),
        (mp.errors.NonFiniteError("nan", leaf="loss", training_state=None), 1),
        (KeyboardInterrupt("Saved."), 130),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(command: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int):
    def fail(arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr(app, "_run", fail)
    done = command("train")
    assert (done.code, done.err.count("\n")) == (code, 1)
    assert "Traceback" not in done.err
    if code != 130:
        assert "Traceback" in command("train", "--traceback").err
        monkeypatch.setenv("MULTIPPO_TRACEBACK", "1")
        assert "Traceback" in command("train").err


def test_a_refusal_is_told_from_a_fault():
    def error_of(function: Any, *arguments: Any) -> BaseException:
        with pytest.raises(Exception) as caught:
            function(*arguments)
        return caught.value

    assert is_users_mistake(error_of(lambda: mp.PPOConfig(total_steps=0)))
    assert not is_users_mistake(error_of(int, "x"))
    assert not is_users_mistake(error_of(mp.Rngs(0).key, "too many arguments"))
    assert not is_users_mistake(error_of(lambda: [][0]))
    assert not is_users_mistake(error_of(json_ready, object()))  # float(...) fails in the library's own function

    def raised_elsewhere() -> None:
        raise ValueError("not the library's")

    assert not is_users_mistake(error_of(raised_elsewhere))
    assert not is_users_mistake(ValueError("never raised"))


def test_the_nearest_name():
    assert did_you_mean("--totl-steps", ["--total-steps", "--seed"]) == " Did you mean '--total-steps'?"
    assert did_you_mean("gamma", ["discounting_factor"]) == " Did you mean 'discounting_factor'?"
    assert did_you_mean("xyz", ["train"]) == ""


@pytest.mark.parametrize(
    "arguments",
    [["backends"], ["--help"], ["train", "--help"], ["eval", "nowhere"], ["train", "--totl-steps"], ["trian"]],
)
def test_what_needs_no_engine_loads_none(arguments: list[str]):
    program = (
        "import sys\n"
        "from multippo.cli import main\n"
        f"main({arguments!r})\n"
        "heavy = {'jax', 'torch', 'flax', 'matplotlib', 'tensorboard', 'brax'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = process("-W", "error", "-c", program)
    assert done.stderr.splitlines()[-1] == "[]", done.stderr


def test_the_module_is_the_command():
    done = process("-W", "error", "-m", "multippo.cli", "trian")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("multippo: unknown command 'trian'")


def test_a_terminal_that_knows_ascii_alone_is_served():
    program = (
        "import sys\nfrom multippo.cli import app\n"
        "app._run = lambda arguments: print('1 ± 2') or 0\nsys.exit(app.main([]))\n"
    )
    variables = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1 ? 2\n"), done.stderr


def test_a_reader_who_leaves_early_is_no_fault():
    program = f"{sys.executable} -m multippo.cli envs | true"
    done = subprocess.run(["sh", "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == ""
