"""Pages that are made while the site is built: one for each module, from the table of modules and its docstring; the
API's, from the lists of public names; the list of decisions; the tables of metrics; and the benchmark's numbers.
"""

from __future__ import annotations

import importlib
import itertools
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ADR = Path(__file__).parents[1] / "adr"
_MODULES, _METRICS, _SPEED = "reference/modules.md", "reference/metrics.md", "reference/performance.md"

_PAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "networks": ("Networks", ("multippo.networks",)),
    "training": ("Training, and using a policy", ("multippo.algorithms", "multippo.runs", "multippo.policy")),
    "environments": ("Environments", ("multippo.envs",)),
    "testing": ("Testing", ("multippo.testing",)),
    "engines": ("Engines and random numbers", ("multippo",)),
}
"""File, title, and the packages whose names are on the page; what is in none of the others is on the last page."""

_OPTIONS: dict[str, dict[str, list[str]]] = {
    "multippo.PopulationGraph": {
        "inherited_members": ["add_population", "add_input", "connect", "add_output", "finalize"]
    },
}
"""What is shown of a class beside its own members."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts the generated pages into the navigation."""
    nav: list[Any] = list(config.nav or [])
    nav += [{"Modules": [f"reference/modules/{name}.md" for name in sorted(modules(config.docs_dir), key=str.lower)]}]
    nav += [{"API": [f"reference/api/{name}.md" for name in _PAGES]}]
    nav += [{"Decisions": [f"adr/{path.name}" for path in sorted(_ADR.glob("[0-9]*.md"))]}]
    config.nav = nav
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the pages of the modules and of the API."""
    found, described = _public_names(), modules(config.docs_dir)
    for module in described.values():
        text = "\n".join(_module_page(module))
        files.append(File.generated(config, f"reference/modules/{module.name}.md", content=text))
    for name, (title, packages) in _PAGES.items():
        of_page = [
            path
            for path, module in found.items()
            if _page_of(path, module) == name and path.removeprefix("multippo.") not in described
        ]
        text = "\n".join(_page(title, packages, of_page))
        files.append(File.generated(config, f"reference/api/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links the table of modules to their pages, and appends the tables of metrics and of the benchmark to theirs."""
    del config, files
    if page.file.src_uri == _METRICS:
        return "\n".join([markdown, *_metric_tables()])
    if page.file.src_uri == _SPEED:
        results = (_ADR.parents[1] / "benchmarks" / "RESULTS.md").read_text("utf-8")
        return markdown + "\n\n".join(results.partition("## Speed beside other libraries\n")[2].split("\n\n")[:2])
    if page.file.src_uri != _MODULES:
        return markdown
    return re.sub(r"^\| (`(\w+)`) \|", r"| [\1](modules/\2.md) |", markdown, flags=re.MULTILINE)


def _metric_tables() -> Iterable[str]:
    for heading, metrics in importlib.import_module("multippo.algorithms.metric_names").METRICS.items():
        yield f"\n## {heading}\n\n| metric | unit | |\n|---|---|---|"
        yield from (f"| `{name}` | {metric.unit} | {metric.meaning} |" for name, metric in metrics.items())


class Module(NamedTuple):
    """What the table of modules says of one.

    Attributes:
        name: Its public name.
        section: The words above its table, which hold for all modules in it.
        cells: By column.
    """

    name: str
    section: str
    cells: dict[str, str]


def modules(docs_dir: str | Path) -> dict[str, Module]:
    """The modules of the table, by name."""
    found: dict[str, Module] = {}
    for part in (Path(docs_dir) / _MODULES).read_text("utf-8").split("\n## ")[1:]:
        lines = part.splitlines()[1:]
        words = "\n".join(itertools.takewhile(lambda line: not line.startswith("|"), lines)).strip()
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
        for first, *cells in rows[2:]:
            name = first.strip("`")
            found[name] = Module(name, words, dict(zip(rows[0][1:], cells, strict=True)))
    return found


def _module_page(module: Module) -> Iterable[str]:
    what_it_is = str(getattr(importlib.import_module("multippo"), module.name).__doc__).partition("\n")[0]
    yield f"# {module.name}\n\n{what_it_is}\n\n## In the three phases\n"
    yield f"{module.section}\n" if module.section else ""
    yield "| | |\n|---|---|"
    for column, cell in module.cells.items():
        yield f"| **{_COLUMNS.get(column, column)}** | {cell} |"
    yield f"\n[What the phases are, and all modules side by side](../modules.md)\n\n## {module.name}, its arguments\n"
    yield from _documented(f"multippo.{module.name}")


_COLUMNS = {
    "carry, reset": "carry; what a reset makes of it",
    "carry and emissions": "carry, and what is emitted",
    "emits": "rollout: emits",
    "in replay": "loss replay",
    "after `eval()`": "inference, after `eval()`",
    "over time": "replay over time",
}


def _public_names() -> dict[str, str]:
    """Public paths, such as ``multippo.Dense``, with the modules in which they are defined."""
    found: dict[str, str] = {}
    for package in ("multippo", "multippo.envs", "multippo.testing"):
        module = importlib.import_module(package)
        for name in module.__all__:
            path, member = f"{package}.{name}", getattr(module, name)
            defined = member.__name__ if hasattr(member, "__spec__") else getattr(member, "__module__", package)
            if f"multippo.{name}" not in found:
                found[path] = defined
    return found


def _page_of(path: str, module: str) -> str:
    for name, (_, packages) in _PAGES.items():
        for package in packages:
            if f"{module}.".startswith(f"{package}.") or (package != "multippo" and path.startswith(f"{package}.")):
                return name
    raise ValueError(f"{path} is defined in {module}, outside multippo.")


def _page(title: str, packages: Iterable[str], paths: Iterable[str]) -> Iterable[str]:
    yield f"# {title}\n"
    if "multippo" in packages:
        yield "What a package of an engine supplies is documented in `multippo/backends/api.py`.\n"
    if "multippo.networks" in packages:
        yield "Modules have pages of their own: [all of them, side by side](../modules.md).\n"
    for path in sorted(paths, key=lambda path: path.rpartition(".")[2].lower()):
        yield from _documented(path)


def _documented(path: str) -> Iterable[str]:
    yield f"::: {path}"
    options = _OPTIONS.get(path)
    yield f"    options: {json.dumps(options)}\n" if options else ""
