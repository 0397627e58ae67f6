"""``multippo bench``: one tiny real run, and names that do not exist."""

import json
import time

import pytest

from multippo.bench import worker
from multippo.cli import bench


@pytest.mark.nightly_if("jax")
@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_a_real_run(command, tmp_path, monkeypatch, engine):
    def here(seconds):
        # In this process, which has loaded the engine already.
        return lambda work, who, number: worker.measure(work.name, who, seconds, time.time(), number)

    monkeypatch.setattr(bench, "in_a_process", here)
    done = command(
        "bench", "--works=quick", "--rounds=1", "--seconds=0.01", f"--peers={engine}", f"--output={tmp_path}"
    )
    assert done.code == 0 and f"[1/1] quick, {engine}: " in done.out
    (record,) = json.loads((tmp_path / "results.json").read_text())["records"]
    assert record["steps_per_s"] > 0 and record["memory_mib"] > 50
    parts = record["environment_s"], record["acting_s"], record["update_s"]
    assert min(parts) > 0 and sum(parts) < record["iteration_s"] and record["arithmetic_s"] > 0
    assert (tmp_path / "report.md").exists() and (tmp_path / "plot.png").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--works=cartpole"], "unknown work 'cartpole'. Did you mean 'cartpole-8'?"),
        (["--peers=sb4"], "unknown contestant 'sb4'. Did you mean 'sbx'?"),
        (["--rounds=0"], "rounds=0 is not possible"),
    ],
)
def test_unknown_names(command, tmp_path, flags, said):
    done = command("bench", *flags, f"--output={tmp_path / 'none'}")
    assert done.code == 2 and said in done.err and not (tmp_path / "none").exists()
