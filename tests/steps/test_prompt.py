"""What a model is asked: contents, instruction, settings. The scenarios' requests are in `test_prompt_scenarios`."""

from __future__ import annotations

from typing import Any, Literal

from google.genai import types

from perdure.journal.events import Event
from perdure.plan.nodes import LlmNode, Plan, SequentialNode, ToolPlan
from perdure.prove.conversations import refusals
from perdure.steps.prompt import build_config, build_contents, without_session_ids


def text(value: str) -> types.Part:
    return types.Part(text=value)


def call(call_id: str, name: str = "look_up", **args: Any) -> types.Part:
    return types.Part(function_call=types.FunctionCall(id=call_id, name=name, args=args))


def response(call_id: str, value: Any, name: str = "look_up") -> types.Part:
    return types.Part(function_response=types.FunctionResponse(id=call_id, name=name, response={"result": value}))


def event(author: str, *parts: types.Part, branch: str | None = None) -> Event:
    from_user = author == "user" or any(part.function_response for part in parts)
    content = types.Content(role="user" if from_user else "model", parts=list(parts))
    return Event(id="e", author=author, invocation_id="i", branch=branch, content=content)


def shown(
    *events: Event,
    agent: str = "clerk",
    branch: str | None = None,
    include_contents: Literal["default", "none"] = "default",
    begun_after: str | None = None,
) -> list[list[str]]:
    """Return what `agent` sees as lines: `+` a text, `>` a call, `<` a response."""
    contents = build_contents(
        events, agent=agent, branch=branch, include_contents=include_contents, begun_after=begun_after
    )
    assert refusals(contents, by_id=True) == []
    return [[line(part) for part in content.parts or []] for content in contents]


def line(part: types.Part) -> str:
    if part.function_call:
        return f">{part.function_call.name}"
    if part.function_response:
        return f"<{(part.function_response.response or {}).get('result')}"
    return f"+{part.text}"


# Contents.


def test_events_without_content_are_left_out() -> None:
    silent = Event(author="clerk", invocation_id="i")
    roleless = Event(author="user", invocation_id="i", content=types.Content(parts=[text("")]))
    assert shown(event("user", text("hi")), silent, roleless) == [["+hi"]]


def test_a_content_without_a_role_gets_its_authors() -> None:
    events = [
        Event(author="user", invocation_id="i", content=types.Content(parts=[text("hi")])),
        Event(author="clerk", invocation_id="i", content=types.Content(parts=[text("hello")])),
    ]
    contents = build_contents(events, agent="clerk", branch=None, include_contents="default")
    assert [content.role for content in contents] == ["user", "model"]


def test_an_agent_on_a_branch_sees_prefixes_of_it_and_nothing_beside() -> None:
    events = [
        event("user", text("go")),
        event("a", text("beside"), branch="fan.a"),
        event("b", text("above"), branch="fan.b"),
        event("c", text("similar"), branch="fan.bb"),
        event("clerk", text("mine"), branch="fan.b.inner.clerk"),
    ]
    assert shown(*events, branch="fan.b.inner.clerk") == [["+go"], ["+For context:", "+[b] said: above"], ["+mine"]]


def test_own_thoughts_stay_with_their_signatures_and_foreign_ones_do_not() -> None:
    thought = types.Part(text="hm", thought=True, thought_signature=b"\x00\xff\xfe")
    events = [event("user", text("go")), event("clerk", thought, text("a")), event("other", thought, text("b"))]
    contents = build_contents(events, agent="clerk", branch=None, include_contents="default")
    assert (contents[1].parts or [])[0] == thought
    assert [line(part) for part in contents[2].parts or []] == ["+For context:", "+[other] said: b"]


def test_events_of_thoughts_only_are_left_out() -> None:
    assert shown(event("user", text("go")), event("clerk", types.Part(text="hm", thought=True))) == [["+go"]]


def test_an_empty_part_keeps_its_signature_beside_a_text() -> None:
    """Gemini streams the signature of a text in a part with an empty text."""
    signed = types.Part(text="", thought_signature=b"s")
    contents = build_contents(
        [event("user", text("go")), event("clerk", text("a"), signed)],
        agent="clerk",
        branch=None,
        include_contents="default",
    )
    assert contents[1].parts == [text("a"), signed]


def test_server_side_tool_calls_are_echoed() -> None:
    part = types.Part(tool_call=types.ToolCall(id="t1"))
    events = [event("user", text("go")), event("clerk", part)]
    contents = build_contents(events, agent="clerk", branch=None, include_contents="default")
    assert contents[1].parts == [part]


def test_a_foreign_event_is_told_in_the_third_person() -> None:
    blob = types.Part(inline_data=types.Blob(data=b"\x01", mime_type="image/png"))
    events = [
        event("other", text("see"), call("adk-1", ok=True, note=None), blob, text(" \n")),
        event("other", response("adk-1", None)),
    ]
    contents = build_contents(events, agent="clerk", branch=None, include_contents="default")
    assert [content.role for content in contents] == ["user", "user"]
    assert contents[0].parts == [
        text("For context:"),
        text("[other] said: see"),
        text("[other] called tool `look_up` with parameters: {'ok': True, 'note': None}"),
        blob,
    ]
    assert contents[1].parts == [
        text("For context:"),
        text("[other] `look_up` tool returned result: {'result': None}"),
    ]


def test_a_foreign_event_without_anything_to_tell_is_left_out() -> None:
    assert shown(event("user", text("go")), event("other", text(" \n "))) == [["+go"]]


def ids(contents: list[types.Content]) -> tuple[list[str | None], list[str | None]]:
    """Return the ids of the calls and of the responses of a conversation."""
    parts = [part for content in contents for part in content.parts or []]
    return (
        [part.function_call.id for part in parts if part.function_call],
        [part.function_response.id for part in parts if part.function_response],
    )


def test_ids_of_the_session_can_be_taken_out_and_ids_of_the_model_stay() -> None:
    events = [
        event("user", text("go")),
        event("clerk", call("adk-1"), call("call_7")),
        event("clerk", response("adk-1", 1), response("call_7", 2)),
    ]
    contents = build_contents(events, agent="clerk", branch=None, include_contents="default")
    assert ids(contents) == (["adk-1", "call_7"], ["adk-1", "call_7"])
    assert ids(without_session_ids(contents)) == ([None, "call_7"], [None, "call_7"])


def test_each_call_has_an_id_of_its_own_whatever_the_log_holds() -> None:
    """Imports may hold calls without ids, or one id in each turn, or twice in one."""
    events = [
        event("user", text("go")),
        event("clerk", call("c"), call("c")),
        event("clerk", response("c", 1), response("c", 2)),
        event("clerk", call("c")),
        event("clerk", response("c", 3)),
        event("clerk", call(""), call("", "other"), call("")),
        event("clerk", response("", 4, "other"), response("", 5), response("", 6)),
        event("clerk", text("so")),
    ]
    events = [item.model_copy(update={"id": f"e{number}"}) for number, item in enumerate(events)]
    contents = build_contents(events, agent="clerk", branch=None, include_contents="default")
    calls, responses = ids(contents)
    assert calls == responses
    assert len(set(calls)) == 6
    assert None not in calls
    assert [line(part) for content in contents for part in content.parts or [] if part.function_response] == [
        *("<1", "<2", "<3", "<5", "<4", "<6")
    ]
    # Those that are not a model's own are taken out for models that take none.
    assert ids(without_session_ids(contents))[0] == ["c", None, None, None, None, None]
    again = build_contents(events[:4], agent="clerk", branch=None, include_contents="default")
    assert ids(again)[0] == calls[:2]


def test_calls_without_a_response_are_left_out() -> None:
    """R12: of a failed, stopped, silent or cut-off call; the rest of its event stays."""
    opening = [event("user", text("go")), event("clerk", text("I look"), call("1"), call("2", "ask"))]
    assert shown(*opening, event("user", text("well?"))) == [["+go"], ["+I look"], ["+well?"]]
    answered = [*opening, event("clerk", response("2", "yes", "ask"))]
    assert shown(*answered, event("user", text("well?"))) == [["+go"], ["+I look", ">ask"], ["<yes"], ["+well?"]]
    alone = [event("user", text("go")), event("clerk", call("1")), event("user", text("well?"))]
    assert shown(*alone) == [["+go"], ["+well?"]]


def test_a_signature_stays_with_the_first_call_that_is_left() -> None:
    """Gemini 3 refuses a turn whose first call has none."""
    first = call("1", "ask").model_copy(update={"thought_signature": b"s"})
    events = [event("user", text("go")), event("clerk", first, call("2"), call("3"))]
    events.append(event("clerk", response("2", 2), response("3", 3)))
    contents = build_contents(events, agent="clerk", branch=None, include_contents="default")
    assert [part.thought_signature for part in contents[1].parts or []] == [b"s", None]


def test_a_conversation_begins_with_a_user() -> None:
    begin = ["+Begin, or go on, as the system instruction says."]
    assert shown() == [begin]
    assert shown(event("user", text(" "))) == [begin]
    assert shown(event("clerk", text("Hello.")), event("user", text("hi"))) == [begin, ["+Hello."], ["+hi"]]


def test_a_user_makes_no_calls_and_answers_none_of_others_but_is_heard() -> None:
    events = [
        event("user", text("go"), call("1")),
        event("other", call("2")),
        event("user", text("so"), response("2", 1)),
    ]
    assert shown(*events) == [
        ["+go"],
        ["+For context:", "+[other] called tool `look_up` with parameters: {}"],
        ["+so"],
    ]


def test_responses_come_before_what_was_said_beside_them() -> None:
    events = [event("user", text("go")), event("clerk", call("1")), event("user", text("fine"), response("1", "yes"))]
    assert shown(*events) == [["+go"], [">look_up"], ["<yes", "+fine"]]


def test_the_events_are_not_changed() -> None:
    events = [
        event("user", text("go")),
        event("clerk", call("adk-1"), call("adk-2")),
        event("clerk", response("adk-1", "pending"), response("adk-2", 2)),
        event("other", text("x")),
        event("user", response("adk-1", "yes")),
    ]
    before = [item.to_json() for item in events]
    build_contents(events, agent="clerk", branch=None, include_contents="default")
    assert [item.to_json() for item in events] == before


def test_answers_take_the_places_of_pending_responses_in_whatever_order_they_come() -> None:
    opening = [
        event("user", text("go")),
        event("clerk", call("1"), call("2"), call("3")),
        event("clerk", response("1", "p1"), response("2", "p2")),
    ]
    answers = [
        event("user", response("2", "a2")),
        event("user", response("3", "a3")),
        event("user", response("1", "a1")),
    ]
    expected = [["+go"], [">look_up"] * 3, ["<a1", "<a2", "<a3"]]
    assert shown(*opening, *answers) == expected


def test_once_the_model_went_on_answers_still_stand_in_the_order_of_their_calls() -> None:
    """R13: Gemini pairs calls of one name by their order."""
    opening = [event("user", text("go")), event("clerk", call("1"), call("2"))]
    answers = [event("user", response("2", "a2")), event("user", response("1", "a1"))]
    done = event("clerk", text("done"))
    all_pending = event("clerk", response("1", "p1"), response("2", "p2"))
    in_call_order = [["+go"], [">look_up"] * 2, ["<a1", "<a2"], ["+done"]]
    assert shown(*opening, all_pending, *answers, done) == in_call_order
    assert shown(*opening, *answers, done) == in_call_order
    still_pending = [["+go"], [">look_up"] * 2, ["<p1", "<a2"], ["+done"]]
    assert shown(*opening, all_pending, answers[0], done) == still_pending


def test_answering_an_old_call_hides_what_was_said_since() -> None:
    events = [
        event("user", text("go")),
        event("clerk", call("1")),
        event("clerk", response("1", "pending")),
        event("clerk", text("waiting")),
        event("user", text("another thing")),
        event("clerk", call("2")),
        event("clerk", response("2", "pending")),
        event("user", response("1", "yes")),
    ]
    assert shown(*events) == [["+go"], [">look_up"], ["<yes"]]
    assert shown(*events, event("clerk", text("ok"))) == [
        ["+go"],
        [">look_up"],
        ["<yes"],
        ["+waiting"],
        ["+another thing"],
        [">look_up"],
        ["<pending"],
        ["+ok"],
    ]


def test_an_answer_to_another_agents_call_is_not_shown() -> None:
    events = [
        event("user", text("go")),
        event("other", call("1")),
        event("other", response("1", "pending")),
        event("clerk", text("mine")),
        event("user", response("1", "yes")),
    ]
    assert shown(*events) == [
        ["+go"],
        ["+For context:", "+[other] called tool `look_up` with parameters: {}"],
        ["+For context:", "+[other] `look_up` tool returned result: {'result': 'pending'}"],
        ["+mine"],
    ]


def test_one_message_that_answers_calls_of_two_events_answers_each_in_its_place() -> None:
    events = [
        event("user", text("go")),
        event("clerk", call("1")),
        event("clerk", response("1", "p1")),
        event("user", text("more")),
        event("clerk", call("2")),
        event("clerk", response("2", "p2")),
        event("user", response("1", "a1"), response("2", "a2"), text("both")),
    ]
    assert shown(*events) == [["+go"], [">look_up"], ["<a1"], ["+more"], [">look_up"], ["<a2", "+both"]]


def test_confirmation_requests_and_their_answers_are_never_shown() -> None:
    """Also where one message answers a confirmation and an ordinary call."""
    name = "adk_request_confirmation"
    events = [
        event("user", text("go")),
        event("clerk", call("1", "refund"), call("2", "ask")),
        event("clerk", call("3", name)),
        event("clerk", response("1", "needs confirmation", "refund"), response("2", "pending", "ask")),
        event("user", response("3", True, name), response("2", "yes", "ask")),
        event("clerk", response("1", "refunded", "refund")),
    ]
    assert shown(*events) == [["+go"], [">refund", ">ask"], ["<refunded", "<yes"]]
    assert shown(events[0], events[2], agent="other") == [["+go"]]


def test_without_history_an_agent_sees_its_current_turn() -> None:
    events = [
        event("user", text("first")),
        event("clerk", text("done")),
        event("user", text("second")),
        event("other", text("draft")),
        event("clerk", call("1")),
        event("clerk", response("1", "ok")),
    ]
    context = ["+For context:", "+[other] said: draft"]
    assert shown(*events, include_contents="none") == [context, [">look_up"], ["<ok"]]
    assert shown(*events[:3], include_contents="none") == [["+second"]]


def test_without_history_an_answer_does_not_start_a_turn() -> None:
    """R9; and neither does what was said since the call, which the answer hides."""
    events = [
        event("user", text("first")),
        event("clerk", text("done")),
        event("user", text("second")),
        event("clerk", call("1")),
        event("clerk", response("1", "pending")),
        event("user", text("aside")),
        event("clerk", text("ok")),
        event("user", response("1", "yes")),
    ]
    assert shown(*events, include_contents="none") == [["+second"], [">look_up"], ["<yes"]]


def test_without_history_and_without_a_turn_everything_is_shown() -> None:
    events = [event("clerk", text("a")), event("clerk", text("b"))]
    assert shown(*events, include_contents="none")[1:] == [["+a"], ["+b"]]


def test_without_history_what_others_say_meanwhile_starts_no_turn() -> None:
    """Agents that a custom agent gathers share a branch."""
    events = [
        event("user", text("first")),
        event("user", text("go")),
        event("other", text("x")),
        event("clerk", call("1")),
        event("other", text("y")),
        event("clerk", response("1", "ok")),
        event("clerk", text("so")),
    ]
    events = [item.model_copy(update={"id": f"e{number}"}) for number, item in enumerate(events)]
    x, y = (["+For context:", f"+[other] said: {said}"] for said in "xy")
    meanwhile = [x, [">look_up"], ["<ok"], y, ["+so"]]
    assert shown(*events, include_contents="none", begun_after="e1") == [["+go"], *meanwhile]
    assert shown(*events, include_contents="none", begun_after="e2") == meanwhile
    assert shown(*events, include_contents="none", begun_after="gone") == meanwhile[3:]


# Settings.


def tool(name: str, kind: Literal["function", "long_running", "transfer", "exit_loop"] = "function") -> ToolPlan:
    return ToolPlan(name=name, kind=kind, declaration=types.FunctionDeclaration(name=name, description="d"))


def system(config: types.GenerateContentConfig) -> str:
    return config.model_dump()["system_instruction"]


def declarations(config: types.GenerateContentConfig) -> dict[str, types.FunctionDeclaration]:
    found: list[Any] = [*(config.model_dump()["tools"] or [])]
    assert len(found) <= 1
    return {
        item["name"]: types.FunctionDeclaration.model_validate(item)
        for entry in found
        for item in entry["function_declarations"]
    }


def test_an_agent_alone_gets_its_instruction_its_identity_and_no_tools() -> None:
    node = LlmNode(name="clerk", description="Helps.", model="m", generate_content_config={"temperature": 0.5})
    config = build_config(Plan(app="a", root=node), node, "Be brief.")
    assert system(config) == (
        'Be brief.\n\nYou are an agent. Your internal name is "clerk". The description about you is "Helps.".'
    )
    assert declarations(config) == {}
    assert config.temperature == 0.5


def test_without_an_instruction_only_the_identity_is_left() -> None:
    node = LlmNode(name="clerk", model="m")
    config = build_config(Plan(app="a", root=node), node, "")
    assert system(config) == 'You are an agent. Your internal name is "clerk".'


def test_tools_are_declared_in_order_in_one_tool() -> None:
    node = LlmNode(
        name="clerk", model="m", tools=(tool("b"), tool("a", "long_running"), tool("exit_loop", "exit_loop"))
    )
    assert list(declarations(build_config(Plan(app="a", root=node), node, ""))) == ["b", "a", "exit_loop"]


def test_transfer_is_declared_for_exactly_the_agents_that_may_take_over() -> None:
    leaf = LlmNode(name="leaf", model="m", description="Leafs.")
    peer = LlmNode(name="peer", model="m", disallow_transfer_to_peers=True, disallow_transfer_to_parent=True)
    middle = LlmNode(name="middle", model="m", sub_agents=(leaf,), tools=(tool("transfer_to_agent", "transfer"),))
    root = LlmNode(name="root", model="m", sub_agents=(middle, peer))
    plan = Plan(app="a", root=root)

    config = build_config(plan, middle, "")
    transfer = declarations(config)["transfer_to_agent"]
    assert transfer.parameters is not None
    assert transfer.parameters.required == ["agent_name"]
    assert (transfer.parameters.properties or {})["agent_name"].enum == ["leaf", "root", "peer"]
    assert "`leaf`: Leafs." in system(config)
    assert "hand over to `root`" in system(config)

    assert declarations(build_config(plan, peer, "")) == {}
    assert "transfer_to_agent" not in system(build_config(plan, peer, ""))
    # The root has agents underneath, and none above.
    assert "the agent above you" not in system(build_config(plan, root, ""))


def test_an_agent_in_a_sequence_cannot_transfer_to_it() -> None:
    step = LlmNode(name="step", model="m", tools=(tool("transfer_to_agent", "transfer"),))
    plan = Plan(app="a", root=SequentialNode(name="flow", sub_agents=(step, LlmNode(name="next", model="m"))))
    assert declarations(build_config(plan, step, "")) == {}
