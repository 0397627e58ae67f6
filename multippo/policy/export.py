"""Export of a policy to files that run without multippo."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from multippo.backends.registry import load_engine
from multippo.errors import UsageError, needing
from multippo.files import write_text
from multippo.networks.core.modes import evaluation_mode
from multippo.policy.loading import loaded_run
from multippo.policy.record import record
from multippo.policy.replay import Replay
from multippo.policy.source import Source, write
from multippo.straight.tracing import UntraceableError
from multippo.trees import tree_leaves
from multippo.version import __version__

FORMATS = ("numpy", "onnx", "torch", "jax")
"""Formats that ``export_policy`` writes."""

_SUFFIXES = {"onnx": "onnx", "torch": "pt2", "jax": "jax"}


def export_policy(
    run_dir: str | os.PathLike[str],
    output: str | os.PathLike[str],
    form: str = "numpy",
    *,
    checkpoint: Any = "latest",
    deterministic: bool = True,
) -> list[Path]:
    """Writes a run's policy as files that run without multippo.

    Args:
        run_dir: A run's directory or one of its checkpoints.
        output: Directory of the files, made if it is missing.
        form: One of ``FORMATS``.
        checkpoint: See ``load_policy``.
        deterministic: See ``load_policy``; False exports the noise's generator with the policy.

    Returns:
        Paths of the files.

    Raises:
        UsageError: If the network can't be exported; the message says why.
        ImportError: If the format's package is missing.
    """
    title = f"The policy of {Path(run_dir).resolve().name}"
    try:
        with (
            loaded_run(run_dir, checkpoint, None) as (network, spaces, dtype),
            evaluation_mode(network, deterministic),
        ):
            return save(network, *spaces, Path(output), form, title, dtype)
    except (UntraceableError, TypeError) as error:
        raise UsageError(f"{run_dir} can't be exported to {form}: {error}.") from error


def save(
    network: Any, observation_space: Any, action_space: Any, folder: Path, form: str, title: str, dtype: Any = None
) -> list[Path]:
    """Writes the policy of a network in its present mode; see ``export_policy``."""
    folder.mkdir(parents=True, exist_ok=True)
    if form == "numpy":
        source = write(network, observation_space, action_space, dtype)
        weights: dict[str, Any] = source.weights
        np.savez(folder / "weights.npz", **weights)
        write_text(folder / "policy.py", module_text(source, title))
        return [folder / "policy.py", folder / "weights.npz"]
    recorded = record(network, observation_space, action_space, dtype, np.uint32 if form == "jax" else np.int64)
    path = folder / f"policy.{_SUFFIXES[form]}"
    if form == "onnx":
        with needing("export", "ONNX"):
            from multippo.policy.onnx_graph import save_onnx

        found = save_onnx(recorded, path, title)
    else:
        result = load_engine(form).save_programme(lambda xp: Replay(recorded, xp), recorded.example, path)
        found = [*tree_leaves(result[0]), *(result[1][name] for name in recorded.carry)]
    for array, node in zip(found, recorded.targets, strict=True):
        if not np.allclose(np.asarray(array), node.value, 1e-5, 1e-5, equal_nan=True):
            raise UntraceableError(f"{form} computes {np.ravel(array)[:4]}, and not {node.value.ravel()[:4]}")
    if not recorded.carry:
        return [path]
    np.savez(folder / "carry.npz", **recorded.first_carry())
    return [path, folder / "carry.npz"]


def module_text(source: Source, title: str) -> str:
    """Text of the exported module."""
    imports = ["from pathlib import Path", "", "import numpy as np", ""]
    imports = [*(["import math"] if "math." in source.body else []), *imports]
    imports = [*(["from __future__ import annotations", ""] if "windows(" in source.body else []), *imports]
    head = f'''"""{title}, written by multippo {__version__}; it needs NumPy alone.

    action, carry = policy.act(observation)  # at the start of an episode
    action, carry = policy.act(observation, carry)
    carry = policy.reset(carry, done)  # of a batch, where episodes have ended

One observation or a batch, as the environment gives it, becomes one action or a batch, as the environment takes it.
"""
'''
    weights = 'with np.load(Path(__file__).with_name("weights.npz")) as file:\n    W = dict(file)'
    return "\n".join([head, *imports, weights, *source.head, "", "", source.body])
