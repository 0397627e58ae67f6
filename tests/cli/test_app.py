"""The command as a whole: subcommands, exit codes, what is loaded."""

import json
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multippo as mp
from multippo.algorithms.metrics import json_ready
from multippo.cli import app, train
from multippo.cli.app import is_users_mistake
from multippo.errors import RunError, UsageError

ROOT = Path(__file__).resolve().parents[2]


def test_help_and_version(command: Any):
    names = ("train", "eval", "conformance", "backends", "envs")
    for arguments in ((), ("--help",), ("-h",)):
        done = command(*arguments)
        assert done.code == (0 if arguments else 2)
        assert all(f"  {name} " in done.out for name in names)
    for name in names:
        done = command(name, "--help")
        assert (done.code, done.err) == (0, "") and done.out.startswith(f"usage: multippo {name}")
    pages = (command("train", flag).out for flag in ("--help", "--help-all"))
    short, full = (re.findall(r"^\W+(--[a-z-]+)", page, re.M) for page in pages)
    assert "--total-steps" in short and len(short) < 30 and len(full) > 80 and set(short) < set(full)
    assert command("--version").out == f"multippo {mp.__version__}\n"


@pytest.mark.parametrize(
    ("typed", "path", "expected"),
    [
        (["/bin/python", ".venv/bin/multippo"], ".venv/bin/multippo", ".venv/bin/multippo eval 'a run'"),
        (["/bin/python", "/bin/multippo"], "/bin/multippo", "multippo eval 'a run'"),
        (["python", "my task.py"], "my task.py", "python 'my task.py' eval 'a run'"),
        (["python", "-m", "multippo"], "/site/multippo/__main__.py", "python -m multippo eval 'a run'"),
    ],
)
def test_commands_to_copy_are_as_this_one_was_typed(
    typed: list[str], path: str, expected: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "orig_argv", [*typed, "train", "CartPole-v1"])
    monkeypatch.setattr(sys, "argv", [path, "train", "CartPole-v1"])
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    assert train.command("eval", "a run") == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("trian",), "unknown command 'trian'. Did you mean 'train'?"),
        (("train",), "an environment is missing: multippo train CartPole-v1"),
        (("backends", "--jsn"), "unknown flag --jsn. Did you mean '--json'?"),
        (("eval", "r" * 300), "File name too long"),
    ],
)
def test_mistakes(command: Any, arguments: tuple[str, ...], message: str):
    done = command(*arguments)
    done.assert_refused(message)
    assert done.err.startswith("multippo: ")


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
    suite = types.SimpleNamespace(cli_main=lambda *args, **kwargs: calls.append((*args, kwargs)) or 1)
    monkeypatch.setitem(sys.modules, "multippo.conformance", suite)
    assert command("conformance", "--backend", "jax", "--backend", "torch", "--json", "--level", 2).code == 1
    expected = {"as_json": True, "levels": (2,), "precisions": ("float32", "float64")}
    assert calls == [(["jax", "torch"], expected)]
    monkeypatch.setitem(sys.modules, "multippo.conformance", None)
    command("conformance").assert_refused("not installed")


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


def process(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


NOTHING_HEAVY = """
import sys
import multippo as mp
from multippo.cli import main
env = mp.make_env("CartPole-v1", num_envs=2)
env.step(env.reset(0), [0, 1])
for line in ("backends", "--help", "train --help", "eval nowhere", "train --totl-steps", "trian"):
    main(line.split())
heavy = {"jax", "torch", "flax", "matplotlib", "tensorboard", "brax"} & set(sys.modules)
assert not heavy, heavy
"""


def test_what_needs_no_engine_loads_none():
    done = process(sys.executable, "-W", "error", "-c", NOTHING_HEAVY)
    assert done.returncode == 0, done.stderr


def test_the_module_is_the_command():
    done = process(sys.executable, "-W", "error", "-m", "multippo.cli", "trian")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("multippo: unknown command 'trian'")


def test_a_terminal_that_knows_ascii_alone_is_served():
    program = "from multippo.cli import app\napp._run = lambda arguments: print('1 ± 2') or 0\nassert app.main([]) == 0"
    done = process(sys.executable, "-c", program, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout) == (0, "1 ? 2\n"), done.stderr


def test_a_reader_who_leaves_early_is_no_fault():
    assert process("sh", "-c", f"{sys.executable} -m multippo.cli envs | true").stderr == ""
