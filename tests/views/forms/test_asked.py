"""What open calls ask of programs, and which answers they take."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.journal.events import REQUEST_CONFIRMATION, REQUEST_CREDENTIAL, REQUEST_INPUT, REQUEST_RECONCILE
from perdure.journal.open_calls import PendingCall
from perdure.views.forms.asked import Question, question_of

_ABOUT = {"originalFunctionCall": {"id": "c0", "name": "pay", "args": {"amount": 5}}}


def question(name: str, **args: Any) -> Question:
    call = PendingCall(id="c1", name=name, args=args, agent="desk", invocation_id="e-1", since=0.0)
    return question_of(call, None)


def test_each_kind_says_what_it_is_about() -> None:
    approval = question(REQUEST_CONFIRMATION, **_ABOUT, toolConfirmation={"hint": "May I?"})
    assert (approval.kind, approval.message, approval.about) == ("approval", "May I?", "c0")
    verdict = question(REQUEST_RECONCILE, **_ABOUT, reason="it was cut off")
    assert (verdict.kind, verdict.message, verdict.about) == ("verdict", "it was cut off", "c0")
    credential = question(REQUEST_CREDENTIAL, functionCallId="c0", authConfig={})
    assert (credential.kind, credential.about) == ("credential", "c0")
    asked = question(REQUEST_INPUT, message="Which?", response_schema={"type": "integer"})
    assert (asked.kind, asked.message, asked.schema, asked.about) == ("input", "Which?", {"type": "integer"}, None)
    tool = question("approve", sum=12)
    assert (tool.kind, tool.message, tool.schema, tool.about) == ("answer", "approve waits for an answer.", None, "c1")


@pytest.mark.parametrize(
    ("name", "value", "response"),
    [
        (REQUEST_CONFIRMATION, {"approved": True}, {"confirmed": True}),
        (REQUEST_CONFIRMATION, {"approved": False, "payload": [1]}, {"confirmed": False, "payload": [1]}),
        (REQUEST_CONFIRMATION, {"confirmed": True, "payload": 1}, {"confirmed": True, "payload": 1}),
        (REQUEST_RECONCILE, {"happened": False}, {"happened": False}),
        (REQUEST_CREDENTIAL, {"exchangedAuthCredential": {}}, {"exchangedAuthCredential": {}}),
        ("approve", "anything", "anything"),
    ],
)
def test_an_answer_becomes_a_response(name: str, value: Any, response: Any) -> None:
    assert question(name).read(value) == response


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            (REQUEST_CONFIRMATION, value)
            for value in (None, True, "yes", {}, {"approved": 1}, {"approved": True, "x": 1})
        ),
        *((REQUEST_RECONCILE, value) for value in (True, {"happened": "no"}, {"x": 1})),
        *((REQUEST_CREDENTIAL, value) for value in ({}, "key", {"exchangedAuthCredential": "key"})),
    ],
)
def test_no_other_answer_does(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        question(name).read(value)


def test_whoever_gives_no_answer_rejects_or_is_told_of() -> None:
    assert question(REQUEST_CONFIRMATION).refusal() == {"confirmed": False}
    assert question("approve").refusal() == {"error": "The user gave no answer."}
    for name in (REQUEST_RECONCILE, REQUEST_CREDENTIAL, REQUEST_INPUT):
        assert question(name).refusal() is None
