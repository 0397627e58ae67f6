"""``multippo report``: runs on one page of HTML, with everything that it shows inside."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import io
import tempfile
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from multippo.algorithms.metric_names import EVAL_RETURN, RETURN, metric_of
from multippo.algorithms.metrics import plot_metric, read_metrics
from multippo.algorithms.run import REPLAY_TOLERANCE
from multippo.cli.flags import parse
from multippo.errors import UsageError, one_line
from multippo.files import write_text
from multippo.networks.summary import ModuleRow, summary
from multippo.policy.playing import show_run
from multippo.runs.directory import RunDirectory, runs_in
from multippo.runs.loading import load_run
from multippo.runs.notation import read_object

_CURVES = {
    "Returns": (RETURN, EVAL_RETURN, "rollout/episode_length/mean"),
    "Losses": ("losses/actor", "losses/critic", "losses/regularization", "value/explained_variance"),
    "Policy": ("kl/approx", "ratio/clip_fraction", "entropy/mean", "learning_rate"),
    "Agreement of replay": ("ratio/first_max_dev",),
}

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; color: #222 }
h1, h2, h3 { font-weight: 600 } h2 { border-bottom: 1px solid #ddd; margin-top: 2em }
table { border-collapse: collapse; font-size: 13px } td, th { padding: 2px 10px; text-align: left; vertical-align: top }
tr:nth-child(even) { background: #f5f5f7 } pre { overflow-x: auto; font-size: 12px }
.curves { display: flex; flex-wrap: wrap } figure { margin: 0; width: 50% } figure svg { width: 100%; height: auto }
figcaption { font-size: 12px; color: #555; padding: 0 1em } video { max-width: 100% }
.module { display: inline-block; border: 1px solid #88a; border-radius: 6px; padding: 4px 8px; margin: 3px;
  font-size: 12px; vertical-align: middle; background: #3f51b508 } .scan { border-color: #c60 }
"""


@dataclasses.dataclass(frozen=True)
class _Flags:
    """Writes runs to one page of HTML: curves, agreement of replay, network, settings, video."""

    runs: Sequence[str] = ()
    """Directories of runs, or of several runs with different seeds."""

    _: dataclasses.KW_ONLY

    output: str = "report.html"
    """The page."""

    checkpoint: str = "latest"
    """Checkpoint that is shown at work: latest, best, a path, or a step."""

    video: bool = True
    """Play an episode of each run for a video, where the environment can be drawn."""


def run(argv: Sequence[str]) -> int:
    """Runs the command.

    Raises:
        UsageError: If a run is missing, or can't be read.
    """
    flags = parse("report", _Flags, argv)
    if not flags.runs:
        raise UsageError("a run is missing: multippo report runs/CartPole-v1/…, the directory multippo train printed.")
    groups = {name: runs_in(Path(name)) or [RunDirectory(Path(name))] for name in flags.runs}
    # The first of several seeds is shown; reading its settings reports what can't be read.
    sections = {name: _section(found[0], flags) for name, found in groups.items()}
    logged = {name: [read_metrics(run.metrics) for run in found] for name, found in groups.items()}
    rows = [_facts(run, records) for name in groups for run, records in zip(groups[name], logged[name], strict=True)]
    parts = [_table(rows), *(_curves(title, logged) for title in _CURVES), *sections.values()]
    title = f"multippo: {', '.join(dict.fromkeys(row['environment'] for row in rows))}"
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    page = f"<!DOCTYPE html><html><head>{head}</head><body><h1>{escape(title)}</h1>{''.join(parts)}</body></html>\n"
    write_text(Path(flags.output), page)
    print(flags.output)
    return 0


def _facts(directory: RunDirectory, records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """A run's line in the first table, by column."""
    config, settings = read_object(directory.config), directory.settings()

    def last(name: str, form: str) -> str:
        found = [record[name] for record in records if record.get(name) is not None]
        return format(found[-1], form) if found else "–"

    worst = max((record.get("ratio/first_max_dev") or 0.0 for record in records), default=0.0)
    return {
        "run": str(directory.path),
        "environment": settings.env_id,
        "network": settings.network,
        "engine": f"{config.get('backend')}, {settings.precision}",
        "seed": str(settings.train.seed),
        "steps": last("step", ",.0f"),
        "return in training": last(RETURN, ".2f"),
        "last evaluation": f"{last(EVAL_RETURN, '.2f')} ± {last('eval/episode_reward/std', '.2f')}".removesuffix(
            " ± –"
        ),
        "time": f"{last('time/elapsed_s', ',.0f')} s",
        "replay repeats the rollout": f"{'yes' if worst <= REPLAY_TOLERANCE else 'no'}, to {worst:.1g}",
    }


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    """A table of rows by column; on its side for a single one."""
    if len(rows) == 1:
        lines = [f"<th>{escape(name)}</th><td>{escape(value)}</td>" for name, value in rows[0].items()]
    else:
        lines = ["".join(f"<th>{escape(name)}</th>" for name in rows[0])]
        lines += ["".join(f"<td>{escape(value)}</td>" for value in row.values()) for row in rows]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _curves(title: str, logged: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> str:
    figures: list[str] = []
    for name in _CURVES[title]:
        if any(record.get(name) is not None for group in logged.values() for records in group for record in records):
            about = metric_of(name)
            caption = f"<figcaption>{escape(about.meaning if about else name).replace('`', '')}</figcaption>"
            figures.append(f"<figure>{_svg(plot_metric(logged, name))}{caption}</figure>")
    return f'<h2>{title}</h2><div class="curves">{"".join(figures)}</div>'


def _svg(figure: Any) -> str:
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # letters, not their outlines
        figure.savefig(text, format="svg")
    return "<svg" + text.getvalue().partition("<svg")[2]


def _section(directory: RunDirectory, flags: _Flags) -> str:
    """What there is of one run: video, network, settings."""
    settings = directory.settings()
    video = _video(directory, flags.checkpoint) if flags.video else ""
    with settings.engine("numpy", "cpu"):
        loaded = load_run(directory.path, flags.checkpoint, 1)
        with contextlib.closing(loaded.env):
            loaded.env.observation_space.seed(0)
            found = summary(loaded.network, loaded.env.observation_space.sample())
    config = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>"
        for name, value in _flat(read_object(directory.config))
    )
    return (
        f"<h2>{escape(str(directory.path))}</h2>{video}<h3>Network</h3><p>{_boxes(found.rows, found.rows[0])}</p>"
        f"<pre>{escape(str(found))}</pre><h3>Settings</h3><details><summary>config.json</summary><table>{config}"
        "</table></details>"
    )


def _video(directory: RunDirectory, checkpoint: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        try:
            (episode,), path = show_run(directory, Path(folder) / "video.mp4", checkpoint=checkpoint)
        except (UsageError, ImportError) as error:
            return f"<h3>Video</h3><p>There is none: {escape(one_line(error))}</p>"
        assert path is not None
        data = base64.b64encode(path.read_bytes()).decode()
    return (
        f"<h3>Video</h3><p>An episode of {episode.length} steps, with a return of {episode.reward:.2f}.</p>"
        f'<video controls muted loop src="data:video/mp4;base64,{data}"></video>'
    )


def _boxes(rows: Sequence[ModuleRow], row: ModuleRow) -> str:
    """A module as a box with those of its children inside, which stand in the order of their names."""
    inside = [
        one
        for one in rows
        if one is not row and (not row.path or one.path.startswith((f"{row.path}.", f"{row.path}[")))
    ]
    children = [one for one in inside if not any(one.path.startswith((f"{o.path}.", f"{o.path}[")) for o in inside)]
    outputs = list((row.output or {}).values())
    shapes = "×".join(map(str, outputs[0])) if len(outputs) == 1 else ""
    name = f"{row.kind}{f' → {shapes}' if shapes and not children else ''}"
    scan = " scan" if row.replay == "scan" and not children else ""
    title = escape(f"{row.path or 'network'}, {row.num_params:,} parameters, replay: {row.replay}")
    below = "".join(_boxes(inside, child) for child in children)
    label = f"{escape(row.path.rpartition('.')[2])}: " if row.path and not row.path.endswith("]") else ""
    return f'<span class="module{scan}" title="{title}">{label}{escape(name)}{"<br>" if below else ""}{below}</span>'


def _flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs = [
        _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [(prefix + name, value)]
        for name, value in tree.items()
    ]
    return [pair for part in pairs for pair in part]
