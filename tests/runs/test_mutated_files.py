"""Changed files of a run, by accident or on purpose, end in errors of our own and change nothing."""

import contextlib
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import multippo as mp
from multippo.algorithms.metrics import drop_after, plot_learning_curve, read_metrics
from multippo.cli import main
from multippo.cli.app import is_users_mistake
from multippo.errors import MultippoError, one_line
from multippo.runs.directory import RunDirectory

CONFIG, METRICS, MANIFEST = "config.json", "metrics.jsonl", "checkpoint.json"
TENSORS = tuple(f"{part}.safetensors" for part in ("weights", "optimizer", "carry"))

HOSTILE: list[Any] = [None, True, -1, 0, 0.5, 1e300, 2**31, 2**63, 2**64, 10**400, "", "a" * 500_000, "\ud800", [], {}]
VALUES = st.sampled_from([*HOSTILE, "array", {"list": ["array"]}, [[[]]], "../x", "nan", "F8_E4M3", "I64", "BOOL"])


def nodes(tree: Any) -> list[tuple[Any, Any]]:
    """Every place in a tree of JSON: what holds it, and under which key or index."""
    found: list[tuple[Any, Any]] = []
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        found += [(tree, key), *nodes(value)]
    return found


def mutated_json(draw: st.DataObject, text: str) -> str:
    """JSON in which one or a few values, names or texts are others."""
    tree = json.loads(text)
    for _ in range(draw.draw(st.integers(1, 3))):
        holder, key = draw.draw(st.sampled_from(nodes(tree) or [([0], 0)]))
        change = draw.draw(st.sampled_from(["value", "value", "drop", "name", "copy", "deep"]))
        if change == "drop":
            del holder[key]
        elif change == "copy":
            other, its = draw.draw(st.sampled_from(nodes(tree)))
            holder[key] = copy.deepcopy(other[its])
        elif change == "name" and isinstance(holder, dict):
            holder[draw.draw(st.sampled_from(["x", "", "a" * 5000, f"{key}.{key}"]))] = holder.pop(key)
        else:
            holder[key] = "DEEP" if change == "deep" else copy.deepcopy(draw.draw(VALUES))
    return json.dumps(tree).replace('"DEEP"', "[" * 2000 + "]" * 2000)


def mutated_bytes(draw: st.DataObject, content: bytes) -> bytes:
    """Bytes of which some are others, gone, doubled or new."""
    start = draw.draw(st.integers(0, len(content)))
    end = min(len(content), start + draw.draw(st.integers(0, 40)))
    new = draw.draw(st.sampled_from([b"", b"\0", content[start:end] * 2, b"[" * 2000, b'"', b"}", b"1e999", b"\xff"]))
    return content[:start] + new + content[end:]


def mutated_tensors(draw: st.DataObject, content: bytes) -> bytes:
    """A safetensors file with another head, the length of which is right."""
    size = int.from_bytes(content[:8], "little")
    head = mutated_json(draw, content[8 : 8 + size].decode()).encode()
    return len(head).to_bytes(8, "little") + head + content[8 + size :]


class Room:
    """A small run, and what is done with a copy of it in which a file was changed."""

    def __init__(self, path: Path) -> None:
        self.run = path / "run"
        flags = "--backend torch --total-steps 16 --num-envs 2 --progress off --final-eval-episodes 1"
        sizes = "--rollout-length 8 --num-minibatches 1 --num-epochs 1 --actor-hidden-sizes 4 --critic-hidden-sizes 4"
        assert main(f"train CartPole-v1 --run-dir {self.run} {flags} {sizes}".split()) == 0
        (self.checkpoint,) = (self.run / "checkpoints").iterdir()
        self.files = {path.name: path for path in self.run.rglob("*") if path.is_file()}
        self.contents = {name: path.read_bytes() for name, path in self.files.items()}
        with mp.use_backend("torch"):
            self.network = mp.load_run(self.run).network
        self.before = mp.to_portable(self.network)

    def tried(self, name: str, content: bytes, *, with_sums: bool) -> None:
        """Reads the run with another content of one file."""
        manifest = self.files[MANIFEST]
        try:
            if not with_sums:
                manifest.write_text(json.dumps({**json.loads(self.contents[MANIFEST]), "sha256": None}))
            self.files[name].write_bytes(content)
            for read in (self._settings, self._metrics) if name in (CONFIG, METRICS) else (self._restore, self._look):
                self._ours(read, name)
        finally:
            for changed in (name, MANIFEST):
                self.files[changed].write_bytes(self.contents[changed])

    def _ours(self, read: Callable[[], object], name: str) -> None:
        try:
            read()
        except Exception as error:
            assert isinstance(error, MultippoError) or is_users_mistake(error), (name, repr(error)[:500])
            assert len(one_line(error)) < 2100
            after = mp.to_portable(self.network)
            assert all(np.array_equal(after[leaf], array) for leaf, array in self.before.items())
        else:
            with mp.use_backend("torch"):
                mp.load_portable(self.network, self.before)

    def _restore(self) -> None:
        mp.load_checkpoint(self.checkpoint, self.network)

    def _look(self) -> None:
        mp.load_checkpoint(self.checkpoint).arrays()

    def _settings(self) -> None:
        run = RunDirectory(self.run).settings()
        with mp.use_backend("torch"), contextlib.closing(mp.make_env("CartPole-v1", num_envs=2)) as env:
            run.make_network(env)

    def _metrics(self) -> None:
        path = self.files[METRICS]
        records = read_metrics(path)
        plot_learning_curve(records[:1], path.with_name("x.png"), "x")
        drop_after(path, 8)
        assert read_metrics(path) == [record for record in records if (record.get("step") or 0) <= 8]


def check(room: Room, data: st.DataObject) -> None:
    """Changes one file of the run, and reads it."""
    name = data.draw(st.sampled_from([CONFIG, METRICS, MANIFEST, MANIFEST, *TENSORS]))
    content = room.contents[name]
    if data.draw(st.booleans()):
        content = mutated_bytes(data, content)
    elif name in TENSORS:
        content = mutated_tensors(data, content)
    elif name == METRICS:
        lines = content.decode().splitlines()
        content = "\n".join([mutated_json(data, lines[0]), *lines]).encode()
    else:
        content = mutated_json(data, content.decode()).encode()
    room.tried(name, content, with_sums=data.draw(st.booleans()))


@pytest.mark.parametrize("count", [100, pytest.param(3_000, marks=pytest.mark.nightly)])
def test_mutated_files_end_in_errors_of_our_own(tmp_path: Path, count: int):
    room = Room(tmp_path)

    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=[*HealthCheck], derandomize=True)
    @given(st.data())
    def run(data: st.DataObject) -> None:
        check(room, data)

    run()
