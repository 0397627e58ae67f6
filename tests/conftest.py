"""Fixtures for every test: an engine, a precision."""

import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import multippo as mp
from multippo.backends.api import Engine

# Test files are imported by path (importlib mode), so what they share is put within reach here.
sys.path.insert(0, str(Path(__file__).parent))

# A shell starts what it runs in the background with Ctrl-C ignored, and its children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before what is deselected by its marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Makes ``nightly`` of ``nightly_if``, by the parts of a test's parameters."""
    for item in items:
        parameters = (
            {item.callspec.id, *item.callspec.id.split("-")}
            if isinstance(item, pytest.Function) and hasattr(item, "callspec")
            else set()
        )
        if any(parameters & set(mark.args) for mark in item.iter_markers("nightly_if")):
            item.add_marker("nightly")


def pytest_collection_finish() -> None:
    """Spares the garbage collector what imports have made, which stays and is most of all objects."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


@pytest.fixture(params=["jax", "torch"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Each engine in turn, made the active one."""
    with mp.use_backend(request.param) as active:
        yield active


@pytest.fixture(params=["float32", "float64"])
def precision(request: pytest.FixtureRequest, engine: Engine) -> Iterator[str]:
    """Each floating-point type in turn, on ``engine``."""
    with engine.precision(request.param):
        yield request.param


@pytest.fixture
def float64(engine: Engine) -> Iterator[None]:
    """Double precision on ``engine``."""
    with engine.precision("float64"):
        yield


@pytest.fixture
def torch_engine() -> Iterator[Engine]:
    """PyTorch, made the active engine."""
    with mp.use_backend("torch") as active:
        yield active


@pytest.fixture
def jax_engine() -> Iterator[Engine]:
    """JAX, made the active engine."""
    with mp.use_backend("jax") as active:
        yield active


@pytest.fixture(scope="session", autouse=True)
def compilation_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What JAX has compiled for one test is not compiled again for the next: most networks here are of one shape."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache as cache

    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # of all workers
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update(names[0], str(shared / "xla"))
    jax.config.update(names[1], 0.1)
    cache.reset_cache()
    # For the commands that tests start, too, which would write to the user's own folder.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(shared / "xla"))
        yield
    for name, value in before.items():
        jax.config.update(name, value)
    cache.reset_cache()


@pytest.fixture
def without_code_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling by torch: tracing and its guards as always, but no C++ compiler, which takes most of the time."""
    import functools

    import torch

    from multippo.programmes import clear_programmes

    clear_programmes()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))


class Done(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    def assert_refused(self, *words: str, code: int = 2) -> None:
        """It ended with nothing but one line, and these words in it."""
        assert (self.code, self.out, self.err.count("\n")) == (code, "", 1), self.err
        assert [word for word in words if word not in self.err] == [], self.err


Command = Callable[..., Done]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command in this process, in a directory of its own: ``command("train", "CartPole-v1", …)``."""
    from multippo.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["multippo"])
    for variable in ("MULTIPPO_BACKEND", "MULTIPPO_TRACEBACK"):
        monkeypatch.delenv(variable, raising=False)

    def run(*arguments: object) -> Done:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the command with a checkpoint after each of five iterations, for reading only."""
    import short_runs

    from multippo.cli import main

    path = tmp_path_factory.mktemp("runs") / "run"
    arguments = ("train", "CartPole-v1", "--backend", "torch", *short_runs.SHORT, *short_runs.SMALL, *short_runs.FIVE)
    assert main([str(argument) for argument in (*arguments, "--run-dir", path)]) == 0
    return path


@pytest.fixture
def run(five: Path, tmp_path: Path) -> Path:
    """A copy of ``five``, in ``run`` where the command is called."""
    return Path(shutil.copytree(five, tmp_path / "run"))
