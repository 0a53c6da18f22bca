"""The harness's own rules: FORMAT.md's normal form and the fixed order of parallel branches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from google.genai import types

from perdure.journal.events import Event, EventActions, ToolConfirmation, user_content
from tests.conformance import scenario
from tests.conformance.logs import EXTRA, FOLDER, MORE
from tests.conformance.normal_form import FAILED, diff, fixed_order, normalize_log, normalize_request, rename_ids

SCENARIOS = scenario.find([FOLDER, EXTRA, MORE])


def call(call_id: str, name: str = "look", **args: object) -> types.Part:
    return types.Part(function_call=types.FunctionCall(id=call_id, name=name, args=dict(args)))


def event(author: str, *parts: types.Part, branch: str | None = None, **fields: object) -> Event:
    content = types.Content(role="model", parts=list(parts)) if parts else None
    return Event.model_validate(
        {"author": author, "invocation_id": "e-1", "branch": branch, "content": content, **fields}
    )


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_expected_logs_are_in_normal_form_already(path: Path) -> None:
    spec = scenario.load(path)
    turns = spec.expect.turns
    if spec.compare == "per_author":
        turns = [fixed_order(turn, spec.authors) for turn in turns]
    assert rename_ids(turns) == spec.expect.turns
    assert list(scenario.unknown_fields(spec)) == []
    assert spec.name == path.stem


def test_ids_are_renamed_over_the_whole_scenario_in_order_of_appearance() -> None:
    first = [event("user"), event("a", call("x9"), call("x1"), long_running_tool_ids={"x1", "x9"})]
    answer = types.Part(function_response=types.FunctionResponse(id="x1", name="look", response={"ok": True}))
    turns = normalize_log([first, [event("user", answer, invocation_id="e-2")]])
    assert turns[0][1]["parts"] == [
        {"call": {"id": "c1", "name": "look", "args": {}}},
        {"call": {"id": "c2", "name": "look", "args": {}}},
    ]
    assert turns[0][1]["long_running"] == ["c1", "c2"]
    assert turns[1][0]["invocation"] == "i2"
    assert turns[1][0]["parts"] == [{"response": {"id": "c2", "name": "look", "response": {"ok": True}}}]


def test_ids_inside_a_confirmation_are_renamed_too() -> None:
    original = {"id": "adk-7", "name": "pay", "args": {"id": "adk-7"}}
    request = call("adk-8", "adk_request_confirmation", originalFunctionCall=original)
    actions = EventActions(requested_tool_confirmations={"adk-7": ToolConfirmation(hint="Sure?")})
    (turn,) = normalize_log([[event("a", call("adk-7", "pay")), event("a", request), event("a", actions=actions)]])
    assert turn[1]["parts"][0]["call"]["args"] == {
        # What the tool calls an id is the tool's own.
        "originalFunctionCall": {"id": "c1", "name": "pay", "args": {"id": "adk-7"}}
    }
    assert turn[2]["actions"] == {"requested_tool_confirmations": {"c1": {"hint": "Sure?", "confirmed": False}}}


def test_only_what_is_set_appears() -> None:
    events = [
        event("a", actions=EventActions(agent_state={}, escalate=False, state_delta={})),
        event("a", actions=EventActions(end_of_agent=True), partial=False, error_code="SAFETY", error_message="x"),
    ]
    assert normalize_log([events]) == [
        [
            {"author": "a", "invocation": "i1", "branch": None, "actions": {"agent_state": {}}},
            {
                "author": "a",
                "invocation": "i1",
                "branch": None,
                "error_code": "SAFETY",
                "actions": {"end_of_agent": True},
            },
        ]
    ]


def test_a_request_has_no_ids() -> None:
    contents = [user_content("hi"), types.Content(role="model", parts=[call("adk-1", day="today")])]
    assert normalize_request(contents) == [
        {"role": "user", "parts": [{"text": "hi"}]},
        {"role": "model", "parts": [{"call": {"name": "look", "args": {"day": "today"}}}]},
    ]


def test_branches_are_put_into_the_order_of_their_authors() -> None:
    """No event overtakes one on a related branch, so the parallel agent's own events stay where they are."""

    def item(author: str, branch: str | None, text: str) -> dict[str, object]:
        return {"author": author, "branch": branch, "parts": [{"text": text}]}

    turn = [
        item("user", None, "go"),
        item("right", "fan.right", "1"),
        item("left", "fan.left", "1"),
        item("right", "fan.right", "2"),
        item("deep", "fan.left.inner.deep", "1"),
        item("left", "fan.left", "2"),
        item("fan", None, "end"),
        FAILED,
    ]
    order = [(i.get("author"), i.get("branch")) for i in fixed_order(turn, ["user", "fan", "left", "deep", "right"])]
    assert order == [
        ("user", None),
        ("left", "fan.left"),
        ("deep", "fan.left.inner.deep"),
        ("left", "fan.left"),
        ("right", "fan.right"),
        ("right", "fan.right"),
        ("fan", None),
        (None, None),
    ]


def test_a_branch_that_only_begins_with_the_same_letters_is_unrelated() -> None:
    turn = [{"author": "b", "branch": "fan.ab"}, {"author": "a", "branch": "fan.a"}]
    assert [item["author"] for item in fixed_order(turn, ["user", "a", "b"])] == ["a", "b"]


def test_values_are_compared_as_json() -> None:
    assert diff([{"ok": True}], [{"ok": 1}]) == ['-{"ok": true}', '+{"ok": 1}']
    assert diff([{"a": 1, "b": 2}], [{"b": 2, "a": 1}]) == []


def test_unknown_fields_are_reported_with_their_path(tmp_path: Path) -> None:
    data = json.loads(SCENARIOS[0].read_text())
    data["app"]["root"]["mood"] = "good"
    data["turns"][0]["later"] = 1
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(data))
    assert list(scenario.unknown_fields(scenario.load(path))) == ["app.root.mood", "turns[0].later"]
