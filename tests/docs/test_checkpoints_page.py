"""The page of the checkpoint format names every key and file that there is."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from multippo.algorithms import checkpoint_manifest, checkpointing

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "checkpoints.md"


def first_cells(heading: str) -> list[str]:
    """What stands in code in the first column of the table below a heading."""
    section = PAGE.read_text("utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


def test_the_files():
    assert set(first_cells("Files")) == checkpointing._FILES


def test_the_keys_of_the_manifest():
    fields = [field.name for field in dataclasses.fields(checkpoint_manifest.Manifest)]
    keys = first_cells("`checkpoint.json`")
    assert sorted(keys) == sorted([*fields, "format", "format_version", "multippo_version"])


def test_the_version():
    assert f"Version {checkpoint_manifest.FORMAT_VERSION}." in PAGE.read_text("utf-8")
