"""Pages that are made while the site is built: the API's, from the lists of public names, and the list of decisions."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_ADR = Path(__file__).parents[1] / "adr"

_PAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "networks": ("Networks", ("multippo.networks",)),
    "training": ("Training", ("multippo.algorithms", "multippo.cli")),
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
    nav += [{"API": [f"reference/api/{name}.md" for name in _PAGES]}]
    nav += [{"Decisions": [f"adr/{path.name}" for path in sorted(_ADR.glob("[0-9]*.md"))]}]
    config.nav = nav
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the pages of the API."""
    found = _public_names()
    for name, (title, packages) in _PAGES.items():
        of_page = [path for path, module in found.items() if _page_of(path, module) == name]
        text = "\n".join(_page(title, packages, of_page))
        files.append(File.generated(config, f"reference/api/{name}.md", content=text))
    return files


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
    for path in sorted(paths, key=lambda path: path.rpartition(".")[2].lower()):
        yield f"::: {path}"
        options = _OPTIONS.get(path)
        yield f"    options: {json.dumps(options)}\n" if options else ""
