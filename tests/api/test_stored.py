"""The order in which a session's log is returned."""

from __future__ import annotations

from google.genai import types

from perdure.api.adk.stored import as_stored
from perdure.journal.events import REQUEST_CONFIRMATION, Event, EventActions, ToolConfirmation


def _event(id: str, part: types.Part, **fields: object) -> Event:
    return Event.model_validate({"id": id, "author": "clerk", "content": types.Content(parts=[part]), **fields})


def test_a_response_is_stored_before_the_confirmation_that_it_asks_for() -> None:
    asking = _event(
        "asking",
        types.Part(function_call=types.FunctionCall(id="ask", name=REQUEST_CONFIRMATION)),
        long_running_tool_ids={"ask"},
    )
    response = _event(
        "response",
        types.Part(function_response=types.FunctionResponse(id="call", name="pay", response={"error": "confirm"})),
        actions=EventActions(requested_tool_confirmations={"call": ToolConfirmation()}),
    )
    other = _event("other", types.Part(text="hello"))
    orders = {
        ("other", "asking", "response", "other"): ["other", "response", "asking", "other"],
        ("response", "asking"): ["response", "asking"],
        ("asking", "other"): ["asking", "other"],
        ("asking", "response", "asking", "response"): ["response", "asking", "response", "asking"],
        (): [],
    }
    known = {event.id: event for event in (asking, response, other)}
    for given, expected in orders.items():
        assert [event.id for event in as_stored([known[id] for id in given])] == expected
