"""A pytest plugin: the options of the conformance suite, and its table at the end of a run.

The plugin is installed under the entry point group ``pytest11``, because pytest reads no ``conftest.py`` of a package
named by ``--pyargs`` before it parses the command line. Runs of other tests load nothing more than this file.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import Any


def pytest_addoption(parser: Any) -> None:
    """Adds ``--backend``, ``--networks`` and ``--networks-seed``, unless another plugin has an option of the name."""
    group = parser.getgroup("multippo", "multippo's conformance suite")
    networks = "how many random networks (which need hypothesis) to check, such as 500; default: few, with every module"
    quick = "check levels 1 and 2 in float32 alone: no float64 where float32 exists, random network or mutant"
    engines = "engine to check, more than once for several; default: every one that is installed"
    first = "number of the first random network; default: 0, or those few"
    options: dict[str, dict[str, Any]] = {
        "--networks": {"type": int, "metavar": "N", "help": networks},
        "--networks-seed": {"type": int, "metavar": "N", "help": first},
        "--quick": {"action": "store_true", "help": quick},
        "--backend": {"action": "append", "metavar": "NAME", "help": engines},
    }
    for name, fields in options.items():
        with contextlib.suppress(ValueError):  # taken; the suite reads its value
            group.addoption(name, **fields)


def pytest_configure(config: Any) -> None:
    """Registers the mark by which pytest-xdist, if installed, keeps checks together."""
    config.addinivalue_line("markers", "xdist_group(name): tests that pytest-xdist gives to one process")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints the table of worst deviations, if conformance was checked."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())]
    found = [
        value for report in reports for name, value in getattr(report, "user_properties", ()) if name == "conformance"
    ]
    if not found:
        return
    check, report = (_suite(name) for name in ("checks.check", "report"))
    results = [check.Result(**value) for value in found]
    order = {id(result): number for number, result in enumerate(results)}
    results.sort(key=lambda result: (result.level, order[id(result)]))
    terminalreporter.ensure_newline()
    terminalreporter.write_line(report.as_text(results))


def _suite(name: str) -> Any:
    """A module of the suite, which has another name in a checkout."""
    for package in ("multippo.conformance", "conformance"):
        try:
            return importlib.import_module(f"{package}.{name}")
        except ImportError:
            continue
    raise ImportError(f"multippo's conformance suite has no {name}.")
