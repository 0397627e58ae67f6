"""Errors that callers catch, and words for other errors; mistakes in arguments raise ``ValueError`` or ``TypeError``.

- ``MultippoError``

  - ``NonFiniteError``: a NaN or infinity in observations, rewards, losses or gradients
  - ``DamagedCheckpointError``, a ``ValueError`` too: a checkpoint differs from the one that was saved
  - ``UnexpectedFileError``, a ``ValueError`` too: a link, a pipe, a device or too much where a file should be
  - ``UsageError``: a mistake in a request; exit code 2 of the command line
  - ``RunError``: something outside the program failed, such as a full disk; exit code 1

  - ``StopTraining``: raised by a callback to end a run with its result

- ``Terminated``, a ``SystemExit``: SIGTERM, with the last finished iteration saved
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Iterator
from importlib import metadata
from typing import Any

_MOST_SHOWN = 2000
_REQUIREMENT = re.compile(r"""([\w.-]+) (?:\[(.*?)\])? (?:>=([\d.]+))? .* \bextra\ ==\ ["'](\w+)["']""", re.VERBOSE)


class MultippoError(Exception):
    """Base of the errors of this library."""


class NonFiniteError(MultippoError):
    """A NaN or an infinity stopped training.

    Attributes:
        leaf: Name of the array, such as ``observation 'camera'``, ``loss``, ``gradient of layers.0.kernel``.
        training_state: The last finite state, from before the iteration of the error; None in another process than
            the one that raised the error.
    """

    def __init__(self, message: str, *, leaf: str = "", training_state: Any = None) -> None:
        super().__init__(message)
        self.leaf = leaf
        self.training_state = training_state

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles all but the training state."""
        return type(self), self.args, {**vars(self), "training_state": None}


class DamagedCheckpointError(MultippoError, ValueError):
    """A file of a checkpoint differs from the one that was saved. An earlier checkpoint may be intact."""


class UnexpectedFileError(MultippoError, ValueError):
    """A link, a pipe, a device or too large a file lies where a file should be read or extended."""


class UsageError(MultippoError):
    """A mistake in a request. The message says what was received, what was expected, and the remedy."""


class RunError(MultippoError):
    """Something outside the program failed, such as a disk that is full."""


class StopTraining(MultippoError):  # noqa: N818 (a request, as StopIteration is)
    """Raised by ``log_fn`` or ``checkpoint_fn``: the run ends after that iteration, and returns its result."""


class Terminated(SystemExit):
    """The end of a process by SIGTERM while training, with the exit code 143; need not be caught.

    Args:
        message: Report of the saved state and of the way to continue.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(143)
        self.message = message


PLACE = "In the network at "
"""Beginning of the note with the module in which an error arose."""


def place_of(error: BaseException) -> str | None:
    """The path in a network of the module in which an error arose, from its note; None without one."""
    notes = (note for note in getattr(error, "__notes__", []) if note.startswith(PLACE))
    return next((note.removeprefix(PLACE).removesuffix(".") for note in notes), None)


def one_line(error: BaseException) -> str:
    """An error's message in one line, after its place in a network, and without the middle if very long."""
    place = place_of(error)
    text = (f"{place}: " if place else "") + (" ".join(str(error).split()) or type(error).__name__)
    # The middle is left out, since the received value comes first and the remedy last.
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN // 2]} … {text[-_MOST_SHOWN // 2 :]}"


@contextlib.contextmanager
def needing(extra: str, what: str) -> Generator[None]:
    """Explains a failed import, or a missing name, inside a ``with`` block by the packages of an extra.

    Args:
        extra: Name of the extra, as in ``pip install 'multippo[brax]'``.
        what: Subject of the error.

    Raises:
        ImportError: If a package is missing or too old; the message names needed and installed versions and the
            command.
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
