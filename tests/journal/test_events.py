"""Events read and write ADK's JSON. The samples in `data/events` were written by ADK 1.39.1 and 2.13.0."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.genai import types
from pydantic import ValidationError

from perdure.journal.events import Event, EventActions, ToolConfirmation, is_on_branch, user_content

DATA = Path(__file__).parents[1] / "data" / "events"
SAMPLES: list[tuple[str, dict[str, Any]]] = [
    (f"{path.stem}: {sample['about']}", sample)
    for path in sorted(DATA.glob("*.json"))
    for sample in json.loads(path.read_text())
]

every_sample = pytest.mark.parametrize("sample", [s for _, s in SAMPLES], ids=[name for name, _ in SAMPLES])


@every_sample
def test_adk_json_is_read_and_written_unchanged(sample: dict[str, Any]) -> None:
    event = Event.model_validate_json(json.dumps(sample["event"]))
    assert json.loads(event.to_json()) == sample["event"]


@every_sample
def test_a_final_response_is_what_adk_says_it_is(sample: dict[str, Any]) -> None:
    assert Event.model_validate(sample["event"]).is_final_response() is sample["final"]


def test_every_field_of_both_adk_versions_is_declared() -> None:
    """A field that only passes as an unknown one would have no type."""
    for _, sample in SAMPLES:
        event = Event.model_validate(sample["event"])
        assert event.model_extra == {}
        assert event.actions.model_extra == {}


def test_unknown_fields_are_kept() -> None:
    data: dict[str, Any] = {
        "author": "a",
        "newField": {"deepKey": [1, None]},
        "actions": {"newAction": True, "requestedToolConfirmations": {"adk-1": {"hint": "h", "newHint": 1}}},
    }
    written = json.loads(Event.model_validate(data).to_json())
    assert written["newField"] == data["newField"]
    assert written["actions"]["newAction"] is True
    assert written["actions"]["requestedToolConfirmations"]["adk-1"]["newHint"] == 1


def test_bytes_survive() -> None:
    signature = bytes(range(256))
    part = types.Part(text="…", thought=True, thought_signature=signature)
    blob = types.Part(inline_data=types.Blob(mime_type="application/octet-stream", data=signature[::-1]))
    event = Event(author="a", content=types.Content(role="model", parts=[part, blob]))
    again = Event.model_validate_json(event.to_json())
    assert again == event
    assert again.parts[0].thought_signature == signature
    assert again.parts[1].inline_data is not None
    assert again.parts[1].inline_data.data == signature[::-1]


def test_nulls_inside_arguments_results_and_state_survive() -> None:
    call = types.FunctionCall(id="adk-1", name="look", args={"x": None})
    response = types.FunctionResponse(id="adk-1", name="look", response={"result": None})
    parts = [types.Part(function_call=call), types.Part(function_response=response)]
    event = Event(
        author="a",
        content=types.Content(role="model", parts=parts),
        actions=EventActions(state_delta={"x": None, "y": {"z": None}}, agent_state={"step": None}),
    )
    assert Event.model_validate_json(event.to_json()) == event


@pytest.mark.process
def test_the_order_of_long_running_ids_is_the_same_in_every_process() -> None:
    """A set of texts has another order in each process; what stands in a history must not."""
    code = (
        "from perdure.journal.events import Event; "
        "print(Event(author='a', long_running_tool_ids={f'adk-{n}' for n in range(9)}).to_json())"
    )
    event = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout)
    assert event["longRunningToolIds"] == [f"adk-{n}" for n in range(9)]


def test_an_event_does_not_change() -> None:
    event = Event(author="a")
    with pytest.raises(ValidationError, match="frozen"):
        event.author = "b"  # pyright: ignore[reportAttributeAccessIssue] - the point of the test


def test_field_names_are_taken_in_both_forms() -> None:
    one = Event(author="a", invocation_id="e-1", actions=EventActions(end_of_agent=True))
    two = Event.model_validate({"author": "a", "invocationId": "e-1", "actions": {"endOfAgent": True}})
    assert one == two


def test_an_empty_branch_is_no_branch() -> None:
    assert Event(author="a", branch="").branch is None


def test_calls_responses_and_text_are_found_in_order() -> None:
    parts = [
        types.Part(text="think", thought=True),
        types.Part(text="Hel"),
        types.Part(function_call=types.FunctionCall(name="one")),
        types.Part(text="lo"),
        types.Part(function_call=types.FunctionCall(name="two")),
        types.Part(function_response=types.FunctionResponse(name="three")),
    ]
    event = Event(author="a", content=types.Content(role="model", parts=parts))
    assert [call.name for call in event.get_function_calls()] == ["one", "two"]
    assert [response.name for response in event.get_function_responses()] == ["three"]
    assert event.text == "Hello"
    assert Event(author="a").text is None
    assert user_content("hi").role == "user"


@pytest.mark.parametrize(
    ("branch", "other", "seen"),
    [
        (None, "fan.left", True),
        ("fan.left", None, True),
        ("fan.left", "fan.left", True),
        ("outer.inner.inner.a", "outer.inner", True),
        ("outer.inner", "outer.inner.inner.a", False),
        ("fan.lefty", "fan.left", False),
        ("fan.left", "fan.right", False),
    ],
)
def test_who_sees_which_branch(branch: str | None, other: str | None, seen: bool) -> None:
    assert is_on_branch(branch, other) is seen


def test_a_confirmation_says_only_what_is_set() -> None:
    confirmation = ToolConfirmation(hint="Sure?")
    assert confirmation.model_dump(by_alias=True, exclude_none=True) == {"hint": "Sure?", "confirmed": False}
