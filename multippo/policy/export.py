"""Export of a policy to files that run without multippo."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from multippo.errors import UsageError
from multippo.files import write_text
from multippo.policy.loading import load_policy
from multippo.policy.policy import NumpyPolicy
from multippo.policy.source import Source
from multippo.straight.tracing import UntraceableError
from multippo.version import __version__

FORMATS = ("numpy",)
"""Formats that ``export`` writes."""


def export_numpy(
    run_dir: str | os.PathLike[str], output: str | os.PathLike[str], *, checkpoint: Any, deterministic: bool
) -> Path:
    """Writes a run's policy as ``policy.py`` and ``weights.npz``, which need NumPy alone.

    Args:
        run_dir: A run's directory or one of its checkpoints.
        output: Directory of the files, made if it is missing.
        checkpoint: See ``load_policy``.
        deterministic: See ``load_policy``; False exports the noise's generator with the policy.

    Returns:
        The path of ``policy.py``.

    Raises:
        UsageError: If the network can't be exported; the message says why.
    """
    try:
        policy = load_policy(run_dir, backend="numpy", checkpoint=checkpoint, deterministic=deterministic)
    except (UntraceableError, TypeError) as error:
        raise UsageError(f"{run_dir} can't be exported to NumPy: {error}.") from error
    assert isinstance(policy, NumpyPolicy)
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    weights: dict[str, Any] = policy.source.weights
    np.savez(folder / "weights.npz", **weights)
    write_text(folder / "policy.py", module_text(policy.source, f"The policy of {Path(run_dir).resolve().name}"))
    return folder / "policy.py"


def module_text(source: Source, title: str) -> str:
    """Text of the exported module."""
    imports = ["import math", "from pathlib import Path"] if "math." in source.body else ["from pathlib import Path"]
    head = f'''"""{title}, written by multippo {__version__}; it needs NumPy alone.

    import policy

    action, carry = policy.act(observation)  # at the start of an episode
    action, carry = policy.act(observation, carry)
    carry = policy.reset(carry, done)  # of a batch, where episodes have ended

One observation or a batch, as the environment gives it, becomes one action or a batch, as the environment takes it.
"""

from __future__ import annotations
'''
    weights = 'with np.load(Path(__file__).with_name("weights.npz")) as file:\n    W = dict(file)'
    return "\n".join([head, *imports, "", "import numpy as np", "", weights, *source.head, "", "", source.body])
