"""Ids of calls: each its own, the same for the same call, and by the model's own name where it has one."""

from __future__ import annotations

from functools import partial
from typing import Any

from perdure.journal.events import Event
from perdure.journal.projection import Projection
from perdure.messages.step_log import StepLog
from perdure.plan.contents import types
from perdure.plan.nodes import LlmNode
from perdure.rules.ids import OWN_IDS, call_ids, with_call_ids, with_unique_ids
from perdure.rules.model_answers import model_event

NODE = LlmNode(name="clerk", model="m")


def answer(*calls: tuple[str | None, dict[str, Any]], waiting: frozenset[str] | None = None) -> Event:
    made = [types.FunctionCall(id=id, name="pay", args=args) for id, args in calls]
    content = types.Content(role="model", parts=[types.Part(function_call=call) for call in made])
    return Event(author="clerk", content=content, long_running_tool_ids=waiting)


def ids_of(event: Event) -> list[str | None]:
    return [call.id for call in event.get_function_calls()]


def given(*calls: tuple[str | None, dict[str, Any]], taken: tuple[str, ...] = ()) -> list[str | None]:
    return ids_of(model_event(NODE, None, answer(*calls), taken, partial(call_ids, "seed", "model", "clerk", 0)))


def test_what_is_called_makes_the_id_of_a_call_without_a_name() -> None:
    """A model that is asked once more, as behind a reset, may pay something else: not under the key of before."""
    five, other = (None, {"amount": 5}), (None, {"amount": 700})
    assert given(five) == given(five) != given(other)
    assert len(set(given(five, five, other))) == 3
    assert given(("own", {}), ("own", {}))[0] == "own"
    [fresh] = given(("own", {}), taken=("own",))
    assert fresh is not None
    assert fresh.startswith(OWN_IDS)


def unique(*calls: tuple[str | None, dict[str, Any]], taken: tuple[str, ...] = ()) -> Event:
    projection = Projection(call_ids=set(taken))
    return with_unique_ids(StepLog(events=(answer(*calls, waiting=frozenset({"c"})),)), projection).events[0]


def test_calls_of_google_adk_that_are_named_alike_keep_that_name_in_front() -> None:
    assert ids_of(unique(("c", {}), ("d", {}))) == ["c", "d"]
    event = unique(("c", {"n": 1}), ("c", {"n": 2}), ("c", {"n": 2}), taken=("c",))
    found = ids_of(event)
    assert len({*found, "c"}) == 4
    assert all((id or "").startswith("c-") for id in found)
    assert event.long_running_tool_ids == frozenset(found)
    assert ids_of(unique((None, {}), (None, {})))[0] not in (None, "")
    assert len(set(ids_of(unique((None, {}), (None, {}))))) == 2


def test_an_answer_whose_calls_keep_their_ids_stays_as_it_is() -> None:
    named = answer(("c", {}), ("d", {}), waiting=frozenset({"d"}))
    assert with_call_ids(named, lambda _place, call: call.id or "") is named
    assert with_call_ids(Event(author="clerk"), lambda _place, _call: "x").get_function_calls() == []
    other = with_call_ids(named, lambda place, call: f"{call.id}{place}")
    assert (ids_of(other), other.long_running_tool_ids) == (["c0", "d1"], frozenset({"d1"}))
    assert ids_of(named) == ["c", "d"]


def test_an_answer_waits_for_its_own_calls_only() -> None:
    """A plugin may have taken a call out of it."""
    stray = answer(("c", {}), waiting=frozenset({"c", "gone"}))
    assert with_call_ids(stray, lambda _place, call: call.id or "").long_running_tool_ids == frozenset({"c"})
