"""What the pages say runs, on both engines."""

import functools
import importlib
import re
import shlex
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression
from pages import NOT_CODE, ROOT, blocks, run_page

from multippo.backends import registry
from multippo.backends.api import Engine
from multippo.cli import app

PAGES = sorted(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "adr")
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Pages write files where they are run, and register engines."""
    monkeypatch.chdir(tmp_path)
    for name in ("_registered", "_engines"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))


@pytest.mark.parametrize(
    "page",
    [path for path in PAGES if path.stem != "index" and any(b.language == "python" for b in blocks(path))],
    ids=lambda path: path.stem,
)
@pytest.mark.nightly_if("jax")
def test_a_page_runs(page: Path, engine):
    run_page(page, engine.name)


def shorter(code: str) -> str:
    """200,000 steps become 3,200, which are four iterations of 8 x 128."""
    return code.replace("200_000", "3_200")


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
@pytest.mark.nightly_if("jax")
def test_the_first_lines_run(page, engine):
    namespace = run_page(ROOT / page, engine.name, shorter)
    assert namespace["result"].total_iterations == 4
    action, _ = namespace["policy"](namespace["env"].reset(0).obs, None)
    assert action.shape == (8,)
    assert Path("checkpoint").is_dir()


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=[*NAMES, "README.md"])
def test_every_block_is_run_or_says_why_not(page: Path):
    for block in blocks(page):
        where = f"{page.name}:{block.line}"
        assert block.language in ("python", *NOT_CODE), f"{where} is in {block.language!r}"
        if block.language == "python":
            assert block.marks.get("engine", "jax") in ("jax", "torch"), where
            assert len(block.marks.get("not run", "because of this")) > 10, f"{where} does not say why"
        else:
            assert not block.marks, f"{where}: a mark for a block that never runs"


def test_the_index_and_the_navigation_show_every_page():
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in PAGES if path.stem != "index"]
    index, nav = ((ROOT / name).read_text("utf-8") for name in ("docs/index.md", "mkdocs.yml"))
    assert [page for page in pages if f"({page})" not in index or f"- {page}" not in nav] == []


class UnderstoodError(Exception):
    """A command line was read without an error."""


def understood(read, *flags):
    read(*flags)
    raise UnderstoodError


def test_command_lines_have_flags_that_exist(monkeypatch):
    text = "\n".join(page.read_text("utf-8") for page in [ROOT / "README.md", *PAGES]).replace("\\\n", " ")
    lines = re.findall(r"^(?: {4})?(?:\.venv/bin/)?multippo (.*)$", text, re.MULTILINE)
    assert len(lines) > 40
    for line in lines:
        command, *arguments = shlex.split(line, comments=True)
        path, function, _ = app._COMMANDS[command]
        module = importlib.import_module(path)
        name = "parse" if hasattr(module, "parse") else "given_flags"
        with monkeypatch.context() as patch, pytest.raises(UnderstoodError):
            patch.setattr(module, name, functools.partial(understood, getattr(module, name)))
            getattr(module, function)(arguments)


def test_the_checks_that_the_engine_page_names_exist():
    from multippo.conformance.plan import make_plan

    text = (ROOT / "docs" / "tutorials" / "write_an_engine.md").read_text("utf-8")
    named = re.findall(r'--backend (\w+) -k "(.+?)"', text)
    assert len(named) == 8
    ids = {name: [case.id.lower() for case in make_plan([name], networks=1)] for name in ("numpy", "torch")}
    for backend, expression in named:
        compiled = Expression.compile(expression)
        matching = ids["torch" if backend == "torch" else "numpy"]
        assert any(compiled.evaluate(lambda word, id=id: word.lower() in id) for id in matching), expression


def test_the_engine_page_names_everything_that_an_engine_supplies():
    text = (ROOT / "docs" / "tutorials" / "write_an_engine.md").read_text("utf-8")
    supplied = [name for name, contract in vars(Engine).items() if getattr(contract, "__isabstractmethod__", False)]
    assert len(supplied) > 20
    assert [name for name in (*supplied, *Engine.__annotations__) if f"`{name}`" not in text] == []


def page(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "page.md"
    path.write_text(text)
    return path


def test_the_runner_of_blocks(tmp_path):
    text = "```python\na = 1\n```\n```python\na += 1\n```\n<!-- engine: torch -->\n```python\na += 10\n```\n"
    text += "<!-- not run: too long -->\n```python\na += 100\n```\n"
    assert [run_page(page(tmp_path, text), name)["a"] for name in ("jax", "torch")] == [2, 12]
    with pytest.raises(ZeroDivisionError) as error:
        run_page(page(tmp_path, "words\n\n```python\n\n1 / 0\n```\n"), "jax")
    assert error.traceback[-1].lineno == 4  # counted from 0: the page's fifth line
    right = '```python\nprint(2)\n```\n\n```text title="Output"\n2\n```\n'
    run_page(page(tmp_path, right), "jax")
    with pytest.raises(AssertionError, match=r"page\.md:6"):
        run_page(page(tmp_path, right.replace("\n2\n", "\n3\n")), "jax")
