"""Questions for credentials: whom they are for, which calls their answers let run again, what answers them."""

from __future__ import annotations

from typing import Any

import pytest
from google.genai import types

from perdure.errors import InvalidMessage
from perdure.journal.credential_questions import (
    asking_call,
    credential_requests,
    credential_targets,
    example_credential,
    is_credential_request,
    needed_by,
    parse_credential,
    unwrapped,
)
from perdure.journal.events import Event, EventActions

Json = dict[str, Any]


def question(**asked: tuple[str, str]) -> Event:
    """Return an event that asks for credentials: for a call, by its key."""
    parts = [
        types.Part(
            function_call=types.FunctionCall(
                id=id,
                name="adk_request_credential",
                args={"functionCallId": call, "authConfig": {"credentialKey": key}},
            )
        )
        for id, (call, key) in asked.items()
    ]
    return Event(content=types.Content(parts=parts), long_running_tool_ids=frozenset(asked))


def needing(**keys: str) -> Event:
    """Return a response event whose calls need credentials, by their keys."""
    return Event(
        actions=EventActions(requested_auth_configs={call: {"credentialKey": key} for call, key in keys.items()})
    )


@pytest.mark.parametrize(
    ("asked", "needed", "targets"),
    [
        ({"q": ("a", "k")}, {"a": "k"}, {"q": ("a",)}),
        ({"q": ("a", "k")}, {"a": "k", "b": "k", "c": "other"}, {"q": ("a", "b")}),
        ({"q": ("a", "k"), "r": ("b", "k")}, {"a": "k", "b": "k"}, {"q": ("a",), "r": ("b",)}),
        ({"q": ("a", "k"), "r": ("c", "l")}, {"a": "k", "b": "l", "c": "l"}, {"q": ("a",), "r": ("c", "b")}),
        ({"q": ("_adk_toolset_auth_Mail", "k")}, {}, {"q": ()}),
        ({"q": ("a", "k")}, {}, {"q": ("a",)}),
    ],
)
def test_an_answer_lets_the_calls_run_that_need_its_key(asked: Any, needed: Any, targets: Any) -> None:
    assert credential_targets([question(**asked)], [needing(**needed)]) == targets


def test_a_model_that_calls_it_asks_nobody() -> None:
    event = question(q=("a", "k")).model_copy(update={"long_running_tool_ids": None})
    assert not is_credential_request(event)
    assert credential_requests([event]) == []


def test_a_question_names_who_needs_it() -> None:
    calling = Event(content=types.Content(parts=[types.Part(function_call=types.FunctionCall(id="a", name="read"))]))
    [request] = credential_requests([question(q=("a", "k"))])
    assert (asking_call(request), needed_by(request, calling)) == ("a", "read")
    [request] = credential_requests([question(q=("_adk_toolset_auth_Mail", "k"))])
    assert (asking_call(request), needed_by(request, None)) == ("", "Mail")


KEY: Json = {"authType": "apiKey", "apiKey": "k"}


@pytest.mark.parametrize(
    ("response", "credential"),
    [
        ({"authScheme": {}, "exchangedAuthCredential": KEY}, KEY),
        ({"exchanged_auth_credential": {"auth_type": "http"}}, {"auth_type": "http"}),
        (KEY, KEY),
        ({"response": '{"authType": "oauth2"}'}, {"authType": "oauth2"}),
        ({"exchangedAuthCredential": None, "authType": "apiKey"}, None),
    ],
)
def test_an_answer_holds_a_credential(response: Json, credential: Json | None) -> None:
    assert parse_credential(response) == credential


@pytest.mark.parametrize(
    "response",
    [
        {},
        {"result": "k"},
        {"authType": "magic"},
        {"authType": ["apiKey"]},
        {"exchangedAuthCredential": []},
        {"exchangedAuthCredential": {}},
        {"response": "[1]"},
        {"response": "k"},
        {"response": '"\\ud800"'},
    ],
)
def test_an_answer_without_a_credential_is_malformed(response: Json) -> None:
    with pytest.raises(InvalidMessage, match="an object with an authType"):
        parse_credential(response)


@pytest.mark.parametrize(
    "scheme",
    [
        {"type": "apiKey"},
        {"type": "http", "scheme": "basic"},
        {"type": "http", "scheme": "bearer"},
        {"type": "oauth2"},
        {"type": "openIdConnect"},
        {"type": "something else"},
        {},
    ],
)
def test_the_example_is_a_credential(scheme: Json) -> None:
    example = example_credential({"authConfig": {"authScheme": scheme}})
    assert parse_credential({"exchangedAuthCredential": example}) == example


@pytest.mark.parametrize(
    ("id", "response", "given"),
    [
        ("wf_auth:g@1/n@1", {"result": "k"}, {"authType": "apiKey", "apiKey": "k"}),
        ("wf_auth:g@1/n@1", {"result": 7}, {"authType": "apiKey", "apiKey": "7"}),
        ("wf_auth:g@1/n@1", {"result": {"authType": "http"}}, {"authType": "http"}),
        ("wf_auth:g@1/n@1", {"result": True}, {"result": True}),
        ("wf_auth:g@1/n@1", {"result": None}, {"result": None}),
        ("wf_auth:g@1/n@1", {"authType": "apiKey"}, {"authType": "apiKey"}),
        ("adk-1", {"result": "k"}, {"result": "k"}),
        (None, {"result": "k"}, {"result": "k"}),
    ],
)
def test_a_graphs_node_takes_a_credential_under_result(id: str | None, response: Json, given: Json) -> None:
    """As google.adk has it: to a tool, that says nothing."""
    assert unwrapped(id, response) == given
