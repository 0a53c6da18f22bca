"""Whether what tools returned fits into one event: the quick look says no more than the event itself."""

from __future__ import annotations

import pytest
from google.genai import types
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.journal.compact_json import payload_size
from perdure.journal.entries import MAX_EVENT_BYTES, ToolOutput
from perdure.journal.events import Event, EventActions
from perdure.rules import large_results
from perdure.rules.large_results import too_large

AROUND = Event(author="clerk", branch="b" * 500, invocation_id="e-1")
LETTERS = st.sampled_from(["a", "é", "語", '"', "\\", "\n", "\x01"])
SIZES = st.integers(0, 200_000)


@st.composite
def returned(draw: st.DrawFn) -> ToolOutput:
    text = draw(LETTERS) * draw(SIZES)
    state = {"key": draw(LETTERS) * draw(SIZES)} if draw(st.booleans()) else {}
    result = draw(st.sampled_from([text, {"found": text}, [text, None], None]))
    return ToolOutput(result=result, actions=EventActions(state_delta=state))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(returned(), min_size=1, max_size=4), LETTERS, st.integers(1, 60))
def test_what_fits_by_the_quick_look_fits(outputs: list[ToolOutput], letter: str, length: int) -> None:
    calls = [
        types.FunctionCall(id=f"{letter * length}{number}", name=letter * length) for number in range(len(outputs))
    ]
    given_by = {call.id or "": output for call, output in zip(calls, outputs, strict=True)}
    quick = too_large(calls, given_by, frozenset(), AROUND, ())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(large_results, "_SURELY_FITS", -1)
        assert quick == too_large(calls, given_by, frozenset(), AROUND, ())


def test_many_small_ones_are_counted_with_what_stands_around_them() -> None:
    calls = [types.FunctionCall(id=f"c{number}", name="look" * 40) for number in range(1_200)]
    outputs = {call.id or "": ToolOutput(result={"found": "x" * 1_300}) for call in calls}
    quick = too_large(calls, outputs, frozenset(), AROUND, ())
    assert sum(payload_size(output) for output in outputs.values()) < MAX_EVENT_BYTES
    assert quick, "the event has more than the results"


def test_what_stands_around_the_results_counts_too() -> None:
    calls = [types.FunctionCall(id="c", name="look")]
    around = AROUND.model_copy(update={"branch": "b" * 950_000})
    result = {"c": ToolOutput(result="x" * 890_000)}
    assert too_large(calls, result, frozenset(), around, ())
    assert not too_large(calls, result, frozenset(), AROUND, ())
