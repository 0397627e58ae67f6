"""Who may import whom. The rules are those of ARCHITECTURE.md."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = ("jax", "jaxlib", "flax", "optax", "torch")
ENGINES = ("jax", "torch", "numpy")
# torch takes the arrays of functional environments, which are JAX programs.
OWN_FRAMEWORKS = {"jax": ("jax", "jaxlib", "flax", "optax"), "torch": ("torch", "jax"), "numpy": ()}

# Part -> what its files never import, not even inside a function.
FORBIDDEN = {
    "multippo/networks": (
        *FRAMEWORKS,
        "multippo.algorithms",
        "multippo.envs",
        "multippo.cli",
        "multippo.runs",
        *(f"multippo.backends.{engine}" for engine in ENGINES),
    ),
    "multippo/straight": (
        *FRAMEWORKS,
        "multippo.algorithms",
        "multippo.envs",
        "multippo.cli",
        "multippo.runs",
        "multippo.backends.jax",
        "multippo.backends.torch",
    ),
    "multippo/algorithms": (
        *FRAMEWORKS,
        "multippo.cli",
        "multippo.runs",
        *(f"multippo.backends.{engine}" for engine in ENGINES),
    ),
    "multippo/envs/api.py": (*FRAMEWORKS, "multippo.algorithms", "multippo.networks", "multippo.cli", "multippo.runs"),
    "multippo/runs": (*FRAMEWORKS, "multippo.cli", *(f"multippo.backends.{engine}" for engine in ENGINES)),
    "multippo/policy": (*FRAMEWORKS, "multippo.cli", *(f"multippo.backends.{engine}" for engine in ENGINES)),
    "multippo/backends": ("multippo.algorithms", "multippo.cli", "multippo.runs"),
    "multippo/backends/api.py": FRAMEWORKS,
    **{
        f"multippo/backends/{engine}": (
            *(f"multippo.backends.{other}" for other in ENGINES if other != engine),
            *(framework for framework in FRAMEWORKS if framework not in OWN_FRAMEWORKS[engine]),
        )
        for engine in ENGINES
    },
}


def imported_names(source: str, package: tuple[str, ...]) -> set[str]:
    """Dotted names that a file of ``package`` imports anywhere, `importlib.import_module("literal")` included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*parents, *([node.module] if node.module else [])))
            names.add(module)
            names.update(f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                names.add(node.args[0].value)
    return names


def is_within(name: str, forbidden: str) -> bool:
    return name == forbidden or name.startswith(forbidden + ".")


def files_of(part: str) -> list[Path]:
    path = ROOT / part
    return [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))


@pytest.mark.parametrize("part", sorted(FORBIDDEN))
def test_arrows_point_one_way(part: str):
    files = files_of(part)
    # A renamed folder would otherwise pass by having nothing to check.
    assert files, f"{part} holds no Python file"
    offences = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        for name in sorted(imported_names(file.read_text("utf-8"), file.relative_to(ROOT).parent.parts))
        if any(is_within(name, forbidden) for forbidden in FORBIDDEN[part])
    ]
    assert not offences, "\n".join(offences)


def test_importing_the_package_loads_no_framework():
    program = f"import sys, multippo\nprint(*[name for name in {FRAMEWORKS!r} if name in sys.modules])\n"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


def test_importing_the_package_needs_no_framework():
    # None in sys.modules makes an import fail as it does where the package is not installed.
    program = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({FRAMEWORKS!r}))\n"
        "import multippo\n"
        "for name in multippo.__all__:\n    getattr(multippo, name)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
