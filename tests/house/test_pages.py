"""What the pages at the root show is true of the code: links lead somewhere, and names exist."""

import re

import pytest
from pages import ROOT, python_blocks

import multippo as mp

PAGES = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]


@pytest.mark.parametrize("page", PAGES)
def test_links_to_files_lead_somewhere(page: str):
    targets = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text("utf-8"))
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_names_in_the_readme_are_exported():
    names = {name for block in python_blocks("README.md") for name in re.findall(r"\bmp\.(\w+)", block)}
    assert len(names) > 5
    assert sorted(name for name in names if name not in mp.__all__) == []
