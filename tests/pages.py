"""Reads and runs the Python blocks of Markdown pages, and programs.

The blocks of one page run in order, in one namespace, as a reader would type them in. Beside that:

* ``<!-- engine: jax -->`` above a block: it runs on that engine alone;
* ``<!-- not run: because ... -->`` above a block: it does not run;
* a ``text`` block with ``title="Output"`` holds what the Python block before it prints.
"""

import contextlib
import importlib.util
import io
import re
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]

NOT_CODE = ("bash", "diff", "text", "toml", "yaml")
"""Languages of blocks that are to be read only."""

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*) *(?P<options>.*)$")
_MARK = re.compile(r"<!-- (?P<kind>engine|not run): (?P<text>.+?) -->")


class Block(NamedTuple):
    """A fenced block: its language, what stands behind that, its text, its first line, and the marks above it."""

    language: str
    options: str
    code: str
    line: int
    marks: dict[str, str]


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page."""
    found: list[Block] = []
    opened: tuple[re.Match[str], int] | None = None
    marks: dict[str, str] = {}
    body: list[str] = []
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if opened is None and fence:
            opened, body = (fence, number + 1), []
        elif opened is not None and fence and not fence["language"]:
            code = textwrap.dedent("\n".join(body))
            found.append(Block(opened[0]["language"], opened[0]["options"], code, opened[1], marks))
            opened, marks = None, {}
        elif opened is not None:
            body.append(line)
        elif line.strip():
            mark = _MARK.search(line)
            marks = {mark["kind"]: mark["text"]} if mark else {}
    assert opened is None, f"{page.name}: the block of line {opened and opened[1]} is not closed"
    return found


def python_blocks(page: str) -> list[str]:
    """The Python blocks of a page, by its path from the root."""
    return [block.code for block in blocks(ROOT / page) if block.language == "python"]


def run_page(page: Path, engine: str, replace: Any = lambda code: code) -> dict[str, Any]:
    """Runs a page's Python blocks on the active engine, and returns their namespace.

    Args:
        page: The page.
        engine: The active engine's name.
        replace: Applied to the code of every block before it runs.
    """
    namespace: dict[str, Any] = {"__name__": page.stem}
    printed: str | None = None
    for block in blocks(page):
        if block.language == "python" and block.marks.get("engine", engine) == engine and "not run" not in block.marks:
            # Line numbers of an error are those of the page.
            code = compile("\n" * (block.line - 1) + replace(block.code), str(page), "exec")
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(code, namespace)
            printed = out.getvalue()
        elif block.language == "text" and 'title="Output"' in block.options:
            assert printed is not None, f"{page.name}:{block.line} is the output of no block"
            expected = [line.rstrip() for line in block.code.strip().splitlines()]
            assert [line.rstrip() for line in printed.strip().splitlines()] == expected, f"{page.name}:{block.line}"
    return namespace


def program(path: str) -> Any:
    """The module of a program at the root, not as ``__main__``."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
