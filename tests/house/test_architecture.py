"""The tree in ARCHITECTURE.md is the tree on disk."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def folders_in_tree(text: str) -> set[str]:
    """Paths of the folders in the first fenced block: names ending in a slash, nested by indentation."""
    block = re.search(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert block, "no fenced block"
    folders: set[str] = set()
    parents: list[tuple[int, str]] = []
    for line in block[1].splitlines():
        entry = re.match(r"( *)([\w.-]+)/(?:\s|$)", line)
        if entry is None:
            continue
        indent = len(entry[1])
        parents = [(depth, name) for depth, name in parents if depth < indent]
        parents.append((indent, entry[2]))
        folders.add("/".join(name for _, name in parents))
    return folders


def test_every_folder_named_exists():
    named = folders_in_tree((ROOT / "ARCHITECTURE.md").read_text("utf-8"))
    assert sorted(folder for folder in named if not (ROOT / folder).is_dir()) == []


def test_every_folder_of_the_package_is_named():
    named = folders_in_tree((ROOT / "ARCHITECTURE.md").read_text("utf-8"))
    holding_code = {file.parent.relative_to(ROOT).as_posix() for file in (ROOT / "multippo").rglob("*.py")}
    assert sorted(holding_code - named) == []


def test_engines_have_the_same_files():
    files = {
        engine: {file.name for file in (ROOT / "multippo" / "backends" / engine).glob("*.py")}
        for engine in ("jax", "torch", "numpy")
    }
    # torch cuts sequences into segments for its kernels, compiles in pieces, has operators of its own for products and
    # random words, and records operations to run them without the module tree.
    # NumPy steps no parameters.
    own = {"segments", "onednn", "compiling", "products", "tape", "rewriting", "recording", "straight", "threefry"}
    assert files["torch"] - {f"{name}.py" for name in own} == files["jax"]
    assert files["numpy"] == files["jax"] - {"exporting.py", "optimizer.py"}
