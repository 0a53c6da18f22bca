"""The check of conversations finds each thing that a provider refuses, and nothing in a good one."""

from __future__ import annotations

import pytest
from google.genai import types

from perdure.prove.conversations import gemini_refusals, refusals


def text(value: str | None, role: str = "user", signature: bytes | None = None) -> types.Content:
    return types.Content(role=role, parts=[types.Part(text=value, thought_signature=signature)])


def calls(*ids: str | None, role: str = "model", name: str = "look") -> types.Content:
    parts = [types.Part(function_call=types.FunctionCall(id=call_id, name=name)) for call_id in ids]
    return types.Content(role=role, parts=parts)


def responses(*ids: str | None, role: str = "user", name: str = "look", first: str | None = None) -> types.Content:
    parts = [types.Part(function_response=types.FunctionResponse(id=call_id, name=name)) for call_id in ids]
    return types.Content(role=role, parts=[*([types.Part(text=first)] if first else []), *parts])


GO = text("go")
GOOD = [
    *(GO, calls("a", "b"), responses("a", "b"), text("so", "model"), text("", "model", b"s"), GO),
    *(calls("c"), responses("c")),
]


def test_a_good_conversation_is_taken() -> None:
    assert refusals(GOOD, by_id=True) == []
    assert refusals([GO, calls(None, None), responses(None, None)], by_id=False) == []
    assert gemini_refusals([GO, text("so", "model"), GO, calls(None), responses(None)]) == []


@pytest.mark.parametrize(
    ("contents", "problem"),
    [
        ([], "there are no contents"),
        ([text("hi", "model"), GO], "first content is the model's own"),
        ([responses("a")], "content 0 has responses without calls right before it"),
        ([GO, types.Content(role="model", parts=[])], "content 1 has no parts"),
        ([GO, text("", "model")], "content 1, part 0 is empty"),
        ([GO, text(" \n", "model")], "content 1, part 0 is empty"),
        ([GO, text(None, "model")], "content 1, part 0 is empty"),
        ([GO, text("so", "assistant")], "content 1 has the role 'assistant'"),
        ([GO, calls("a")], "content 1 has 1 calls, the next content 0 responses"),
        ([GO, calls("a", "b"), responses("a")], "content 1 has 2 calls, the next content 1 responses"),
        ([GO, calls("a"), GO, responses("a")], "content 3 has responses without calls right before it"),
        ([GO, calls("a", "b"), responses("b", "a")], "content 1 has calls to which the responses have other ids"),
        ([GO, calls("a"), responses("a", name="else")], "content 1 has calls to which the responses come in another"),
        ([GO, calls(None), responses(None)], "calls without an id"),
        ([GO, calls("a"), responses("a"), calls("a"), responses("a")], "several calls have the id 'a'"),
        ([GO, calls("a", role="user"), responses("a")], "content 1 has calls that are no model's"),
        ([GO, calls("a"), responses("a", role="model")], "content 2 has responses in the model's own name"),
        ([GO, calls("a"), responses("a", first="well")], "content 2 has responses behind something else"),
    ],
)
def test_what_is_refused_is_found(contents: list[types.Content], problem: str) -> None:
    found = refusals(contents, by_id=True)
    assert any(line.find(problem) >= 0 for line in found), found


@pytest.mark.parametrize(
    ("contents", "problem"),
    [
        ([GO, text("so", "model")], "the last content is the model's own"),
        (
            [GO, text("so", "model"), calls(None), responses(None)],
            "content 2 has calls behind a turn of the model's own",
        ),
    ],
)
def test_what_only_gemini_refuses_is_found(contents: list[types.Content], problem: str) -> None:
    assert gemini_refusals(contents) == [problem]
    assert refusals(contents, by_id=False) == []
