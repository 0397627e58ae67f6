"""Files of metrics: lines of JSON, TensorBoard events, a picture of the learning curve."""

from __future__ import annotations

import array
import contextlib
import importlib
import io
import json
import math
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from multippo.algorithms.metric_names import EVAL_RETURN, RETURN, metric_of
from multippo.files import checked, create, open_to_append, parse_json, read_text, write_bytes, write_text

_LIMIT = 2**30  # bytes of metrics.jsonl: half a million iterations


def json_ready(value: Any) -> Any:
    """Form of a value in strict JSON: NaN and infinities become None, integers stay integers.

    >>> json_ready({"step": 8, "losses/actor": float("nan"), "sizes": (1, 2)})
    {'step': 8, 'losses/actor': None, 'sizes': [1, 2]}
    """
    if isinstance(value, Mapping):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    if isinstance(value, bool | str | int) or value is None:
        return value
    number = float(value)
    return number if math.isfinite(number) else None


class JsonlWriter:
    """Appends one JSON object a line, handed to the operating system before ``write`` returns.

    Args:
        path: The file; made if it is missing. An unfinished last line is ended.
    """

    def __init__(self, path: Path) -> None:
        self._file = open_to_append(path)
        if self._file.seek(0, os.SEEK_END):
            self._file.seek(-1, os.SEEK_END)
            if self._file.read() != b"\n":
                self._file.write(b"\n")

    def write(self, metrics: Mapping[str, Any]) -> None:
        """Writes a line; ``step`` and ``iteration`` as integers."""
        counts = {name: int(metrics[name]) for name in ("step", "iteration") if name in metrics}
        line = json.dumps(json_ready({**metrics, **counts}), allow_nan=False)
        self._file.write(f"{line}\n".encode())
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class TensorBoardWriter:
    """Writes TensorBoard events with TensorBoard's own record writer, which needs neither TensorFlow nor torch.

    Args:
        directory: Directory of the event file.
        first_step: Step of a resumed run's start: TensorBoard then hides an earlier file's events from there on.
    """

    def __init__(self, directory: Path, first_step: int = 0) -> None:
        # Imported here: protobuf takes longer to import than all of the rest.
        from tensorboard.summary.writer.record_writer import RecordWriter

        events: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
        summaries: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        name = f"events.out.tfevents.{time.time_ns() // 10**9}.{socket.gethostname()}.{os.getpid()}.{time.time_ns()}"
        self._event, self._summary = events.Event, summaries.Summary
        self._records = RecordWriter(create(directory / name))
        self._write(self._event(wall_time=time.time(), file_version="brain.Event:2"))
        if first_step:
            start = events.SessionLog(status=events.SessionLog.START)
            self._write(self._event(wall_time=time.time(), step=first_step, session_log=start))

    def write(self, metrics: Mapping[str, Any]) -> None:
        """Writes a scalar for each finite metric, at ``metrics["step"]``."""
        values = [
            self._summary.Value(tag=name, simple_value=float(value))
            for name, value in metrics.items()
            if name != "step" and math.isfinite(value)
        ]
        summary = self._summary(value=values)
        self._write(self._event(wall_time=time.time(), step=int(metrics["step"]), summary=summary))

    def close(self) -> None:
        """Closes the file."""
        self._records.close()

    def _write(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
        self._records.flush()


class History:
    """Metrics of a run, kept as numbers alone: half a kilobyte a record, and at most ``most`` records.

    Args:
        most: Number of records at which every second one is given up, the last ones excepted.
    """

    def __init__(self, most: int = 10_000) -> None:
        self._most, self._names = most, dict[tuple[str, ...], tuple[str, ...]]()
        self._rows: list[tuple[tuple[str, ...], array.array[float]]] = []

    def append(self, metrics: Mapping[str, float]) -> None:
        """Keeps a record."""
        names = tuple(metrics)
        self._rows.append((self._names.setdefault(names, names), array.array("d", metrics.values())))
        if len(self._rows) > self._most:
            self._rows = [*self._rows[:-2:2], *self._rows[-2:]]

    def records(self) -> list[dict[str, float]]:
        """The records in order."""
        return [dict(zip(names, values, strict=True)) for names, values in self._rows]


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Objects in a file of ``JsonlWriter``; lines of another kind, or not finished, are left out."""
    try:
        text = read_text(path, limit=_LIMIT, errors="replace")
    except FileNotFoundError:
        return []
    records: list[dict[str, Any]] = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            records.append(checked(parse_json(line), dict[str, float | None], "line"))
    return records


def drop_after(path: Path, step: int) -> None:
    """Removes lines of steps after ``step``, which a run resumed there logs again, and unfinished ones."""
    if os.path.lexists(path):
        kept = [record for record in read_metrics(path) if (record.get("step") or 0) <= step]
        write_text(path, "".join(json.dumps(record) + "\n" for record in kept))


def plot_learning_curve(records: Sequence[Mapping[str, Any]], path: Path, title: str) -> bool:
    """Draws returns over environment steps.

    Args:
        records: Metrics, from ``read_metrics``.
        path: The PNG file to write.
        title: Title of the picture.

    Returns:
        True if there was anything to draw.
    """
    training, evaluations = _curve(records, RETURN), _curve(records, EVAL_RETURN)
    if not (training[0] or evaluations[0]):
        return False
    figure, axes = _figure()
    axes.plot(*training, linewidth=1, label="training")
    if evaluations[0]:
        axes.plot(*evaluations, "o-", label="evaluation")
        axes.legend()
    axes.set(title=title, xlabel="environment steps", ylabel="return of an episode")
    axes.grid(alpha=0.3)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    write_bytes(path, picture.getvalue())
    return True


def plot_metric(runs: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]], metric: str) -> Any:
    """Figure of a metric over environment steps.

    Args:
        runs: Metrics of runs by label, those with different seeds together: a line for one run, of several the mean and
            a band of one standard deviation, to where the shortest ends.
        metric: Name of the metric.
    """
    figure, axes = _figure()
    for label, group in runs.items():
        curves = [curve for records in group if (curve := _curve(records, metric))[0]]
        if not curves:
            continue
        end = min(steps[-1] for steps, _ in curves)
        steps = [step for step in curves[0][0] if step <= end]
        values = np.stack([np.interp(steps, *curve) for curve in curves])
        mean, spread = values.mean(axis=0), values.std(axis=0)
        (line,) = axes.plot(steps, mean, linewidth=1, label=label, marker="o" if len(steps) == 1 else "")
        if len(curves) > 1:
            axes.fill_between(steps, mean - spread, mean + spread, alpha=0.2, color=line.get_color(), linewidth=0)
    about = metric_of(metric)
    axes.set(xlabel="environment steps", ylabel=f"{metric} ({about.unit})" if about and about.unit else metric)
    if len(runs) > 1:
        axes.legend()
    axes.grid(alpha=0.3)
    return figure


def _figure() -> tuple[Any, Any]:
    # pyplot would choose a window system and keep every figure.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def _curve(records: Sequence[Mapping[str, Any]], name: str) -> tuple[list[float], list[float]]:
    known = [record for record in records if record.get("step") is not None and record.get(name) is not None]
    return [record["step"] for record in known], [record[name] for record in known]
