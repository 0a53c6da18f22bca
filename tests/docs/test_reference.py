"""The reference has every public name."""

from __future__ import annotations

import re

import perdure
import perdure.adk
from tests.docs.blocks import ROOT
from tests.docs.test_errors_page import ERRORS

NAMES = {
    name
    for page in (ROOT / "docs" / "reference").glob("*.md")
    for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
}


def test_every_public_name_stands_in_the_reference() -> None:
    public = {f"perdure.{name}" for name in perdure.__all__ if name not in ERRORS and name != "__version__"}
    assert public | {f"perdure.adk.{name}" for name in perdure.adk.__all__} <= NAMES


def test_the_navigation_has_every_page() -> None:
    """So does mkdocs, which is slower to say so."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = set(re.findall(r"- (?:[^:\n]+: )?(\S+\.md)$", navigation, re.MULTILINE))
    docs = ROOT / "docs"
    assert listed == {str(page.relative_to(docs)) for page in [*docs.glob("*.md"), *docs.glob("reference/*.md")]}
