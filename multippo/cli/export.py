"""``multippo export``: a run's policy as files that run without multippo."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from multippo.arguments import did_you_mean
from multippo.cli.flags import parse
from multippo.errors import UsageError
from multippo.policy.export import FORMATS, export_policy


@dataclasses.dataclass(frozen=True)
class _Flags:
    """Writes a trained policy as files that run without multippo."""

    run_dir: str | None = None
    """Directory that multippo train wrote, or one of its checkpoints."""

    _: dataclasses.KW_ONLY

    format: str = "numpy"
    """Form of the files: numpy, one Python file and its weights, which need NumPy alone; onnx; torch, of torch.export;
    jax, of jax.export."""

    output: str = "exported"
    """Directory of the files."""

    checkpoint: str = "latest"
    """Checkpoint to export: latest, best, a path, or a step."""

    stochastic: bool = False
    """Export the noise's generator too, and sample actions instead of taking the mode of their distribution."""


def run(argv: Sequence[str]) -> int:
    """Runs the command.

    Raises:
        UsageError: If the run, the checkpoint or a flag can't be used, or the network not be exported.
    """
    flags = parse("export", _Flags, argv)
    if not flags.run_dir:
        raise UsageError("a run is missing: multippo export runs/CartPole-v1/…, the directory multippo train printed.")
    if flags.format not in FORMATS:
        hint = did_you_mean(flags.format, FORMATS)
        raise UsageError(f"--format {flags.format!r} is unknown.{hint} There are {', '.join(FORMATS)}.")
    options: dict[str, Any] = {"checkpoint": flags.checkpoint, "deterministic": not flags.stochastic}
    print("Wrote", *export_policy(flags.run_dir, flags.output, flags.format, **options))
    return 0
