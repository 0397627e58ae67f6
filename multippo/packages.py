"""Names of packages that a part of the library needs and that are missing or too old, from its metadata."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Iterator
from importlib import metadata

_REQUIREMENT = re.compile(r"""([\w.-]+) (?:\[(.*?)\])? (?:>=([\d.]+))? .* \bextra\ ==\ ["'](\w+)["']""", re.VERBOSE)


@contextlib.contextmanager
def needing(extra: str, what: str) -> Generator[None]:
    """Explains a failed import, or a name that is not found, inside a ``with`` block by the packages of an extra.

    Args:
        extra: As in ``pip install 'multippo[brax]'``.
        what: Subject of the error.

    Raises:
        ImportError: If a package is missing or too old; it names what is needed, what is installed and the command.
    """
    try:
        yield
    except (ImportError, AttributeError) as error:
        unmet = list(dict.fromkeys(_unmet(extra)))
        if not unmet:
            raise
        raise ImportError(f"{what} needs {', '.join(unmet)}: pip install 'multippo[{extra}]'.") from error


def _unmet(extra: str) -> Iterator[str]:
    for requirement in metadata.requires("multippo") or ():
        found = _REQUIREMENT.match(requirement)
        if found is None or found[4] != extra:
            continue
        name, inner, least = found[1], found[2], found[3] or "0"
        if name == "multippo":
            for other in inner.split(","):
                yield from _unmet(other)
            continue
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield f"{name}>={least} (not installed)"
            continue
        if _numbers(installed) < _numbers(least):
            yield f"{name}>={least} (installed: {installed})"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
