"""Which requests count as repetitions of an earlier one, and what they are told."""

from __future__ import annotations

import pytest

from perdure.errors import RequestIdTaken
from perdure.journal.entries import Entry, MessageAccepted, ResumeAccepted
from perdure.journal.events import Event, EventActions, user_content
from perdure.journal.fold import apply_entry
from perdure.journal.projection import Projection
from perdure.messages.session import AnswerInput, InvocationInput, MessageInput
from perdure.rules.intake import response_part
from perdure.rules.repeats import accept_resume, find_repeated
from tests.journal.sample_entries import answer, called, fold, message, settled, started


def asked(text: str, request_id: str, **state: object) -> MessageInput:
    return MessageInput(content=user_content(text), request_id=request_id, state_delta=state)


def answered(request_id: str, *responses: tuple[str, object]) -> AnswerInput:
    content = user_content("x").model_copy(update={"parts": [response_part(id, value) for id, value in responses]})
    return AnswerInput(content=content, request_id=request_id)


def accepted(text: str, request_id: str, **state: object) -> Entry:
    actions = EventActions(state_delta=state)
    event = Event(id="m-9", author="user", invocation_id="i9", content=user_content(text), actions=actions)
    return MessageAccepted(event=event, request_id=request_id)


def refused(projection: Projection, request: MessageInput | AnswerInput | InvocationInput) -> bool:
    with pytest.raises(RequestIdTaken, match="take a fresh one"):
        find_repeated(projection, request)
    return True


def test_a_message_is_repeated_by_the_same_words_and_state() -> None:
    projection = fold(message(1), started(1), settled(1, "finished"), accepted("hi", "r", city="Oslo"))
    assert find_repeated(projection, asked("hi", "r", city="Oslo")) == ("i9", 1)
    assert find_repeated(projection, asked("hi", "r", city="Oslo", **{"temp:x": 1})) == ("i9", 1)
    assert find_repeated(projection, asked("hi", "other")) is None
    assert find_repeated(projection, asked("hi", "")) is None
    assert refused(projection, asked("ho", "r", city="Oslo"))
    assert refused(projection, asked("hi", "r"))
    assert refused(projection, answered("r", ("c1", 1)))
    assert refused(projection, InvocationInput(invocation_id="i9", request_id="r"))


def test_an_answer_is_repeated_by_the_same_responses() -> None:
    """It is told the log's length from before it was accepted, so that it can be followed from there again."""
    projection = fold(message(1), started(1), called(1, "c1"), answer(1, "c1", request_id="r"), settled(1, "finished"))
    [part] = projection.invocations["i1"].answers[0].parts
    assert part.function_response is not None
    same = AnswerInput(content=user_content("x").model_copy(update={"parts": [part]}), request_id="r")
    assert find_repeated(projection, same) == ("i1", 2)
    nameless = answered("r", ("c1", part.function_response.response))
    assert find_repeated(projection, nameless) == ("i1", 2)
    assert refused(projection, answered("r", ("c1", "something else")))
    assert refused(projection, answered("r", ("c2", part.function_response.response)))


def test_a_resume_is_repeated_for_the_same_invocation() -> None:
    resumed = ResumeAccepted(invocation_id="i1", request_id="r")
    projection = fold(message(1), message(2), started(1), settled(1, "stopped"), resumed)
    assert find_repeated(projection, InvocationInput(invocation_id="i1", request_id="r")) == ("i1", 1)
    assert find_repeated(projection, InvocationInput(invocation_id="i1")) is None
    assert refused(projection, InvocationInput(invocation_id="i2", request_id="r"))
    assert refused(projection, asked("hi", "r"))


def test_a_resume_is_accepted_once_by_its_history() -> None:
    projection = fold(message(1), started(1), settled(1, "stopped"))
    request = InvocationInput(invocation_id="i1", request_id="r")
    for _ in range(2):
        accept_resume(projection, request)
        apply_entry(projection, settled(1, "stopped"))
    accept_resume(projection, InvocationInput(invocation_id="i2", request_id="s"))
    assert [entry for entry in projection.entries if isinstance(entry, ResumeAccepted)] == [
        ResumeAccepted(invocation_id="i1", request_id="r")
    ]
