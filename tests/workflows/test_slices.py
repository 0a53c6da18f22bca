"""What a step carries of the journal: packed, with what entries have in common, where that saves a quarter."""

from __future__ import annotations

import random
import string

import pytest

from perdure.journal.entries import EventLogged
from perdure.journal.events import Event, user_content
from perdure.journal.fold import fold_journal
from perdure.workflows.run.slices import Carrier

NOISE = "".join(random.Random(1).choices(string.ascii_letters + string.digits + "-_", k=5000))


@pytest.mark.parametrize(
    ("text", "packed"), [("a few words", True), ("many words " * 300, True), (NOISE, False), (NOISE * 60, True)]
)
def test_a_slice_is_packed_where_that_saves_a_quarter(text: str, packed: bool) -> None:
    entry = EventLogged(event=Event(id="1", author="a", invocation_id="e-1", content=user_content(text)))
    part = Carrier(0).slice(fold_journal((entry,)))
    assert (part.packed is not None) == packed
    assert part.unpacked() == (entry,)
    assert part.length == 1
