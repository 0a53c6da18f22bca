"""The README is short, shows what is there, and its links, like those of all pages, lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, ROOT, blocks_of

README = ROOT / "README.md"
LINKING = [*PAGES, *(ROOT / "docs").glob("*/*.md"), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
MAX_PICTURE = 150_000
"""Bytes that a picture of the documentation may have."""


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) < 150


def test_the_app_that_is_shown_is_the_demo_s() -> None:
    [shown] = [block.text for block in blocks_of(README) if block.language == "python"]
    comment, *lines = filter(None, shown.splitlines())
    source = (ROOT / comment.split(",")[0].removeprefix("# ")).read_text(encoding="utf-8").splitlines()
    assert [line for line in source if line in lines] == lines


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("picture", sorted([*ROOT.glob("docs/*.png"), *ROOT.glob("docs/*.svg")]), ids=lambda p: p.name)
def test_a_picture_is_small_and_shown(picture: Path) -> None:
    assert picture.stat().st_size <= MAX_PICTURE
    assert any(f"{picture.name})" in page.read_text(encoding="utf-8") for page in PAGES)
