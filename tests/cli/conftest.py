"""The command in this process, in a directory of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from multippo.cli import main


class Done(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """``command("train", "CartPole-v1", …)``."""
    monkeypatch.chdir(tmp_path)
    for variable in ("MULTIPPO_BACKEND", "MULTIPPO_TRACEBACK"):
        monkeypatch.delenv(variable, raising=False)

    def run(*arguments: object) -> Done:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Done(code, *capsys.readouterr())

    return run
