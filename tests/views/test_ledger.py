"""Pages of a session's ledger: together they are all of it, and each builds no more than it holds."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.journal.compact_json import payload_size
from perdure.messages.effects import Effect
from perdure.messages.session import PageInput
from perdure.views import ledger
from perdure.views.ledger import build_effects, effects_page
from tests.journal.sample_entries import called, fold, message, responded, started

CALLS = 60


@pytest.mark.parametrize("most", [1, 2_000, 10_000, 10_000_000])
def test_a_page_builds_what_it_holds(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    made: list[dict[str, Any]] = []

    def effect(**fields: Any) -> Effect:
        made.append(fields)
        return Effect(**fields)

    monkeypatch.setattr(ledger, "Effect", effect)
    answers = [entry for number in range(CALLS) for entry in (called(1, f"c{number}"), responded(1, f"c{number}"))]
    projection = fold(message(1), started(1), *answers)
    whole = list(build_effects(projection))
    assert [one.call_id for one in whole] == [f"c{number}" for number in range(CALLS)]
    found: list[Effect] = []
    while len(found) < CALLS:
        made.clear()
        page = effects_page(projection, PageInput(since=len(found), max_bytes=most))
        assert page.total == CALLS
        assert page.effects
        assert len(made) <= len(page.effects) + 1, "one more tells that it does not fit"
        assert len(page.effects) == 1 or sum(map(payload_size, page.effects)) <= most
        found += page.effects
    assert found == whole
