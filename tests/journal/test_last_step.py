"""Where an LLM agent stands behind its run's events: by those since its last answer with calls, as by all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from google.genai import types
from hypothesis import given
from hypothesis import strategies as st

from perdure.journal.events import REQUEST_CONFIRMATION, REQUEST_CREDENTIAL, REQUEST_RECONCILE, Event
from perdure.journal.runs import Standing, last_step

_ASKS = {"confirm": REQUEST_CONFIRMATION, "credential": REQUEST_CREDENTIAL, "doubt": REQUEST_RECONCILE}


def event_of(kind: str, number: int) -> Event:
    """Return an event of an agent's run; `plain …` is a call of a question's name that the model made by itself."""
    name = _ASKS.get(kind.removeprefix("plain "), "look")
    call = types.Part(function_call=types.FunctionCall(id=f"c{number}", name=name))
    response = types.Part(function_response=types.FunctionResponse(id=f"c{number - 1}", name="look", response={}))
    part = {"text": types.Part(text="said"), "response": response}.get(kind, call)
    waits = frozenset({f"c{number}"}) if kind in _ASKS else None
    return Event(
        id=f"e{number}",
        author="clerk",
        content=types.Content(role="model", parts=[part]),
        long_running_tool_ids=waits,
        invocation_id="i",
    )


def by_all(own: Sequence[Event]) -> Standing:
    """Return the standing, one event behind the other from the first on."""
    step = Standing()
    for event in own:
        one = last_step([event])
        lists: list[Callable[[Standing], list[Event]]] = [
            lambda standing: standing.requests,
            lambda standing: standing.doubts,
            lambda standing: standing.responses,
        ]
        if one.calling is not None or one.ended or one.refused is not None:
            step = one
        for found in lists:
            if step is not one:
                found(step).extend(found(one))
    return step


kinds = ["text", "response", "calls", *_ASKS, *(f"plain {kind}" for kind in _ASKS)]


@given(st.lists(st.sampled_from(kinds), max_size=12))
def test_a_run_stands_where_all_of_its_events_say(made: list[str]) -> None:
    own = [event_of(kind, number) for number, kind in enumerate(made)]
    assert last_step(own) == by_all(own)


def test_questions_and_responses_stand_with_the_calls_that_they_are_about() -> None:
    made = ["calls", "response", "calls", "confirm", "response", "doubt"]
    own = [event_of(kind, number) for number, kind in enumerate(made)]
    step = last_step(own)
    assert step.calling is own[2]
    assert (step.requests, step.responses, step.doubts) == ([own[3]], [own[4]], [own[5]])
    assert last_step([*own, event_of("text", 6)]).ended
