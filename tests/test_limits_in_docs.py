"""What the documentation states of sizes is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perdure.activities.payload_checks import MAX_LOCAL_BYTES
from perdure.journal.entries import MAX_EVENT_BYTES
from perdure.journal.nesting import MAX_LEVELS
from perdure.rules.large_results import BEGINNING_LENGTH, MAX_RESULT_BYTES

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", ["README.md", "docs/tools.md", "docs/artifacts.md"])
def test_a_page_states_how_large_a_result_may_be(page: str) -> None:
    text = (ROOT / page).read_text()
    stated = re.findall(r"(\d+\.\d+) MB(?: at most| of a tool's result)", text)
    assert stated
    assert {float(size) for size in stated} == {MAX_RESULT_BYTES / 1e6}


def test_the_page_of_tools_states_the_other_limits() -> None:
    text = " ".join((ROOT / "docs/tools.md").read_text().split())
    assert f"returns {MAX_LOCAL_BYTES / 1e3:.0f} kB at most" in text
    assert f"share an event of {MAX_EVENT_BYTES / 1e6:.1f} MB" in text
    assert f"{BEGINNING_LENGTH:,} characters" in text
    assert f"more than {MAX_LEVELS} lists and objects within each other" in text


def test_an_event_has_room_for_what_stands_around_a_result() -> None:
    assert MAX_RESULT_BYTES < MAX_EVENT_BYTES
    assert MAX_LOCAL_BYTES < MAX_RESULT_BYTES
