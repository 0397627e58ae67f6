"""The package list; everything else about the build is in pyproject.toml.

The folder conformance/ stands beside multippo/ in the repository and ships as ``multippo.conformance``. Why it is done
here: docs/adr/0002-conformance-in-the-wheel.md.
"""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["multippo", "multippo.*"]),
        "multippo.conformance",
        *(f"multippo.conformance.{name}" for name in find_packages("conformance")),
    ],
    package_dir={"multippo.conformance": "conformance"},
)
