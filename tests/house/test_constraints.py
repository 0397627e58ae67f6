"""The oldest versions that are declared are those that ``make test-lowest`` and ``make check-wheel`` install."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Not tested at its oldest: see constraints-lowest.txt.
LEFT_OUT = {"torch"}
EXTRAS = ("jax", "torch", "brax", "conformance", "export", "render")
NOT_DECLARED = {"jaxlib"}  # comes with jax, of the same version


def numbers(version: str) -> tuple[int, ...]:
    found = [int(part) for part in version.split(".")]
    while found and not found[-1]:
        found.pop()
    return tuple(found)


def declared() -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(line for name in EXTRAS for line in extras[name])]
    found = dict(re.findall(r"^([a-z0-9-]+)>=([0-9.]+)$", "\n".join(wanted), re.MULTILINE))
    return {name: version for name, version in found.items() if name not in LEFT_OUT}


def test_the_lowest_versions_are_the_declared_ones():
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    lowest = {name: version for name, version in pinned.items() if name not in NOT_DECLARED}
    expected = declared()
    assert set(lowest) == set(expected) and len(lowest) > 10
    for name, version in expected.items():
        # The first release of a series may have another last number, as 6.0.1 where 6.0 is declared.
        assert numbers(lowest[name])[: len(numbers(version))] == numbers(version), name
    assert pinned["jaxlib"] == pinned["jax"]
