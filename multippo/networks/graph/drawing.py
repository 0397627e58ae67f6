"""A graph in words and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from multippo.networks.graph.parts import Population
from multippo.networks.graph.plan import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text


_FORWARD, _FEEDBACK = "0.35", "tab:red"


def summary(graph: Any) -> str:
    """A graph in words, one line for each of its parts."""
    plan, populations, connections, outputs = graph.plan, *map(graph.held, ("populations", "connections", "outputs"))
    lines = ["PopulationGraph(", "  populations:"]
    lines += [f"    {_describe(population)}" for population in populations.values()]
    lines += ["  connections:"]
    for edge in connections.values():
        delay = f", delay {edge.delay}" if edge.delay else ""
        lines.append(f"    {edge.source} -> {edge.target}{delay}: {_kind(edge, 'transform') or 'identity'}")
    lines += ["  outputs:"]
    lines += [f"    {name}: {_kind(head, 'head') or 'identity'} of {head.source}" for name, head in outputs.items()]
    if plan is None:
        lines.append("  not finalized")
    else:
        at_once = [", ".join(part.populations) for part in plan.components if not part.feedback]
        scanned = [" with ".join(part.populations) for part in plan.components if part.feedback]
        ways = {"at once": at_once, "step by step": scanned}
        parts = [f"{', '.join(names)} {way}" for way, names in ways.items() if names]
        lines.append(f"  over time: {'; '.join(parts)}")
    return "\n".join([*lines, ")"])


def _describe(population: Population) -> str:
    sizes = {population.input_size: None, population.output_size: None}
    seen = population.input_from
    named = getattr(seen, "__name__", "a function") if callable(seen) else repr(seen)
    facts = [
        " -> ".join(map(str, sizes)),
        _kind(population, "compute"),
        population.activation_name,
        None if seen is None else f"sees {named}",
    ]
    return f"{population.name}: {', '.join(fact for fact in facts if fact)}"


def _kind(wrapper: Any, role: str) -> str | None:
    module = getattr(wrapper, role)
    return None if module is None else type(module).__name__


def draw(graph: Any, ax: Axes | None) -> Axes:
    """A graph as a picture, from left to right; returns the axes.

    Raises:
        ImportError: If matplotlib is missing.
    """
    plan, populations, connections, outputs = graph.plan, *map(graph.held, ("populations", "connections", "outputs"))
    depth = _depths(plan)
    places = _places(depth)
    last = max(depth.values(), default=0) + 1
    if ax is None:
        try:
            from matplotlib import pyplot
        except ImportError as error:
            raise ImportError("PopulationGraph.plot needs the package matplotlib: pip install matplotlib") from error
        rows = max([len(outputs), *(list(depth.values()).count(column) for column in range(last))])
        ax = pyplot.subplots(figsize=(2.2 * (last + 1.5), 1.2 * rows + 1.8))[1]
    boxes = {name: _text(ax, places[name], f"{name}\n{held.output_size}", "0.2") for name, held in populations.items()}
    inside = {edge.key for part in plan.components for step in part.steps for edge in step.incoming if edge.inside}
    # The delayed connections of a pair share an arrow.
    arrows: dict[tuple[str, str, bool], list[str]] = {}
    for name, edge in connections.items():
        arrows.setdefault((edge.source, edge.target, edge.delay > 0), []).append(name)
    for (source, target, delayed), names in arrows.items():
        # Only the arrow that closes a loop is red, not those that lead onwards within the loop.
        back = inside.issuperset(names) and depth[target] <= depth[source]
        label = ", ".join(str(connections[name].delay) for name in names) if delayed else ""
        _arrow(ax, boxes[source], boxes[target], label, _FEEDBACK if back else _FORWARD)
    for number, (name, head) in enumerate(outputs.items()):
        output = _text(ax, (float(last), (len(outputs) - 1) / 2 - number), name)
        _arrow(ax, boxes[head.source], output)
    for name, population in populations.items():
        if population.input_from is not None:
            x, y = places[name]
            seen = "observation" if callable(population.input_from) else str(population.input_from)
            _arrow(ax, _text(ax, (x - 0.9, y), seen), boxes[name])
    ys = [y for _, y in places.values()]
    ax.set_xlim(-1.3, last + 0.6)
    ax.set_ylim(min([*ys, -len(outputs) / 2]) - 0.8, max([*ys, len(outputs) / 2]) + 0.8)
    ax.set_axis_off()
    return ax


def _depths(plan: Plan) -> dict[str, int]:
    """The column of each population, one to the right of all its sources outside loops."""
    depth: dict[str, int] = {}
    for part in plan.components:
        for step in part.steps:
            depth[step.population] = max((depth[e.source] + 1 for e in step.incoming if e.source in depth), default=0)
    return depth


def _places(depth: Mapping[str, int]) -> dict[str, tuple[float, float]]:
    columns: dict[int, list[str]] = {}
    for name, column in depth.items():
        columns.setdefault(column, []).append(name)
    # Every other column is a little higher, so that arrows across a column miss its boxes.
    return {
        name: (float(column), (len(names) - 1) / 2 - row + 0.25 * (column % 2))
        for column, names in columns.items()
        for row, name in enumerate(names)
    }


def _text(ax: Axes, place: tuple[float, float], text: str, edge: str = "none") -> Text:
    """A text in a box, with an edge of a colour or without one."""
    box = {"boxstyle": "round", "facecolor": "white", "edgecolor": edge}
    return ax.text(*place, text, ha="center", va="center", zorder=3, bbox=box)


def _arrow(ax: Axes, source: Text, target: Text, delays: str = "", color: str = _FORWARD) -> None:
    """Draws an arrow from box to box, or over the top of a box that reads itself."""
    start, end = source.get_position(), target.get_position()
    style = {"arrowstyle": "->", "color": color, "patchA": source.get_bbox_patch(), "patchB": target.get_bbox_patch()}
    if source is target:
        x, y = start
        start, end, bend, label_at = (x - 0.12, y + 0.2), (x + 0.12, y + 0.2), -1.8, (x, y + 0.52)
        style |= {"patchA": None, "patchB": None}
    else:
        bend = 0.3 if delays else 0.0
        across = (end[1] - start[1], start[0] - end[0])
        out = 0.75 * bend  # the curve passes at half of it
        label_at = ((start[0] + end[0]) / 2 + out * across[0], (start[1] + end[1]) / 2 + out * across[1])
    ax.annotate("", xy=end, xytext=start, arrowprops={**style, "connectionstyle": f"arc3,rad={bend}"})
    if delays:
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        ax.text(*label_at, delays, color=color, ha="center", va="center", bbox=box)
