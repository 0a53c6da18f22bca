"""The fixture `perdure`, as a test of agents uses it."""

from __future__ import annotations

import asyncio
import io
import logging
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from perdure import DefinitionError, InvocationFailed, InvocationNotFound, ScriptedModel
from perdure.logs import configure_logging
from perdure.plan.contents import types
from perdure.testing import Perdure, assert_calls, call, fail, say
from perdure.testing.fixture import Model
from perdure.testing.raised import Raised
from tests.testing import shop

pytestmark = pytest.mark.server

LOOK = [call("look_up", order="17"), say("It is on its way.")]
ASK = [call("approve", order="17"), say("Done.")]


def hint(text: str) -> Any:
    return pytest.raises(AssertionError, match=text)


async def test_a_turn_tells_what_agents_said_and_called_and_were_asked(perdure: Perdure) -> None:
    talk = await perdure.start(shop.app, models={"clerk": LOOK}, state={"shop": "Tea & Co"})
    turn = await talk.send("Where is 17?", state_delta={"mood": "bad"})
    assert (turn.status, turn.text, turn.pending) == ("finished", "It is on its way.", ())
    assert_calls(turn, [("look_up", {"order": "17"})])
    state = await talk.state()
    assert (state["said"], state["mood"]) == ("It is on its way.", "bad")
    first, second = talk.prompts("clerk")
    assert "Help the customers of Tea & Co." in first.instruction
    assert {"look_up", "refund", "transfer_to_agent"} <= set(first.tools)
    assert first.text == "user: Where is 17?"
    assert second.text.splitlines()[1:] == [
        'model calls look_up(order="17")',
        'look_up returned {"order": "17", "status": "shipped"}',
    ]


async def test_each_agent_has_a_script_and_a_later_message_goes_on_in_it(perdure: Perdure) -> None:
    scripts: dict[str, Model] = {
        "clerk": ScriptedModel([call("transfer_to_agent", agent_name="expert")]),
        "expert": [*LOOK, say("You are welcome.")],
    }
    talk = await perdure.start("tests.testing.shop:app", models=scripts)
    turn = await talk.send("Where is 17?")
    assert_calls(turn, ["look_up"], agent="expert")
    assert (await talk.send("Thanks.")).texts == ["You are welcome."]
    assert [event.text for event in talk.log if event.text] == [
        *("Where is 17?", "It is on its way."),
        *("Thanks.", "You are welcome."),
    ]


async def test_a_test_is_quick_and_the_agents_get_their_models_back(perdure: Perdure) -> None:
    await perdure.start(shop.app, models={"clerk": LOOK})  # the server is there
    begun = time.monotonic()
    talk = await perdure.start(shop.app, models={"clerk": LOOK, "expert": LOOK})
    assert (await talk.send("Where is 17?")).text == "It is on its way."
    perdure.close()
    # It takes a tenth; the machine may be busy.
    assert time.monotonic() - begun < 3
    assert (shop.clerk.model, shop.expert.model) == ("gemini-2.5-flash", "")


@pytest.mark.parametrize(
    ("steps", "answers", "response"),
    [
        (ASK, {"approve": {"ok": True}}, {"ok": True}),
        (ASK, {"approve": "yes"}, {"result": "yes"}),
        ([call("refund", order="17"), say("Done.")], {"refund": True}, {"paid": "17"}),
        ([call("refund", order="17"), say("Done.")], {"refund": False}, {"error": "This tool call is rejected."}),
        ([ASK[0] + ASK[0], say("Done.")], {"approve": ["no", "yes"]}, {"result": "yes"}),
    ],
)
async def test_open_calls_are_answered_by_the_tools_names(
    perdure: Perdure, steps: Sequence[Any], answers: dict[str, Any], response: dict[str, Any]
) -> None:
    talk = await perdure.start(shop.app, models={"clerk": steps})
    waiting = await talk.send("My money!")
    assert (waiting.status, len(waiting.pending)) == ("waiting", len(steps[0].calls))
    turn = await talk.respond(answers)
    assert turn.text == "Done."
    last = [one.response for event in turn.events for one in event.get_function_responses()][-1]
    assert last == response


@pytest.mark.parametrize(
    ("tool", "wrong", "says", "right"),
    [
        ("ask_dealer", {"price": "12"}, "price", {"price": 12}),
        ("ask_dealer", {}, "price", {"price": 12, "note": "on Monday"}),
        ("ask_dealer", "12", "'price': 1", {"result": {"price": 12}}),
        ("ask_colour", "green", "red", "blue"),
        ("ask_colour", True, "red", {"result": "blue"}),
    ],
)
async def test_an_answer_that_is_not_of_the_declared_type_fails_the_test(
    perdure: Perdure, tool: str, wrong: Any, says: str, right: Any
) -> None:
    talk = await perdure.start(shop.app, models={"clerk": [call(tool, order="17"), say("Done.")]})
    await talk.send("Hi.")
    with hint("is not of the type that it declares") as failed:
        await talk.respond({tool: wrong})
    assert says in str(failed.value)
    assert f'{tool}(order="17")' in str(failed.value)
    other = await talk.another()
    assert (await talk.respond({tool: right})).text == "Done."
    assert other.who != talk.who
    talk.served.models["clerk"].inner = ScriptedModel([call(tool, order="17"), say("Done.")])
    await other.send("Hi.")
    assert (await other.respond({tool: wrong}, unchecked=True)).text == "Done."


async def test_days_pass_in_a_moment(perdure: Perdure) -> None:
    shop.REMINDED.clear()
    talk = await perdure.start(shop.app, models={"clerk": ASK})
    await talk.send("My money!")
    turn = await talk.skip_time(timedelta(days=2))
    assert (turn.status, shop.REMINDED) == ("waiting", ["17"])
    turn = await talk.skip_time(timedelta(days=1, hours=1))
    assert turn.text == "Done."
    assert 'approve returned {"result": "nobody came"}' in talk.prompts("clerk")[-1].text
    again = await talk.another()
    assert (await again.send("My money!")).status == "waiting"


async def test_a_worker_is_ended_in_the_middle_of_a_tool(perdure: Perdure) -> None:
    shop.RUNS.clear()
    shop.STARTED.clear()
    shop.GO_ON.clear()
    talk = await perdure.start(shop.app, models={"clerk": [call("deliver", order="17"), say("Here it is.")]})
    sending = asyncio.create_task(talk.send("Where is 17?"))
    await asyncio.to_thread(shop.STARTED.wait, 20)
    try:
        await talk.restart_worker()
        assert (await sending).text == "Here it is."
    finally:
        shop.GO_ON.set()
    assert len(shop.RUNS) == 2
    assert shop.RUNS[0] == shop.RUNS[1], "the second attempt has the key of the first"


async def test_tests_share_neither_sessions_nor_state_of_the_app(perdure: Perdure) -> None:
    steps = [call("deliver", order="17"), say("Here it is.")]
    shop.RUNS[:] = ["a run before"]
    first = await perdure.start(shop.app, models={"clerk": steps})
    await first.send("Where is 17?")
    first.served.models["clerk"].inner = ScriptedModel([say("Hello.")])
    for user, shared in (("user", True), ("bob", False)):
        other = await first.another(user_id=user)
        await other.send("Hi.")
        assert ("user:delivered" in await other.state()) == shared
    second = await perdure.start(shop.app, models={"clerk": steps}, session_id=first.who["session_id"])
    assert (await second.session()).invocations == ()


async def test_a_failed_turn_is_resumed(perdure: Perdure) -> None:
    talk = await perdure.start(shop.app, models={"clerk": [fail("overloaded"), say("Hello.")]})
    with pytest.raises(InvocationFailed, match="overloaded"):
        await talk.send("Hi.")
    assert (await talk.resume()).text == "Hello."
    with pytest.raises(InvocationNotFound, match="no invocation that failed"):
        await talk.resume()
    report = await perdure.prove(talk, modes=["continue-as-new"])
    assert report.ok


def test_a_plain_function_runs_what_is_async(perdure: Perdure) -> None:
    talk = perdure.run(perdure.start(shop.lone, models={"lone": LOOK}))
    assert perdure.run(talk.send("Where is 17?")).text == "It is on its way."


async def test_a_conversation_is_proved(perdure: Perdure) -> None:
    talk = await perdure.start("tests.testing.shop:app", models={"clerk": [*LOOK, *ASK]}, state={"shop": "Tea"})
    await talk.send("Where is 17?")
    await talk.send("My money!")
    await talk.respond({"approve": "yes"})
    report = await perdure.prove(talk, modes=["continue-as-new"])
    assert len(report.verdicts[0].cuts) > 4


async def test_a_conversation_that_no_proof_can_repeat_is_told(perdure: Perdure) -> None:
    talk = await perdure.start(shop.app, models={"clerk": LOOK})
    await talk.send("Where is 17?", state_delta={"mood": "good"})
    with hint("1 of the conversation's messages are no plain text, or came with a state_delta"):
        await perdure.prove(talk)
    talk = await perdure.start(shop.app, models={"clerk": ScriptedModel([types.Content(parts=[])])})
    with hint("no script of plain steps"):
        await perdure.prove(talk)


async def test_a_proof_that_fails_shows_the_first_difference(perdure: Perdure) -> None:
    scenario: dict[str, Any] = {
        "name": "lottery",
        "script": {"clerk": [{"calls": [{"name": "draw"}]}, {"text": "Done."}]},
        "turns": [{"message": "a lot"}],
    }
    with pytest.raises(AssertionError, match=r"(?s)FAIL lottery.*two uninterrupted runs differ.*\+ cut\):"):
        await perdure.prove("tests.prove.shop:lottery", scenario, ["replay"])
    with pytest.raises(DefinitionError, match="an app and a scenario"):
        await perdure.prove(shop.app)


async def test_an_answer_that_the_test_forgot_is_told_at_once(perdure: Perdure) -> None:
    talk = await perdure.start(shop.app, models={"clerk": ASK})
    turn = await talk.send("My money!")
    with hint(r"it waits for the user's answer to approve\(order=\"17\"\) of agent clerk; .*respond\({'approve':"):
        assert turn.text == "Done."
    with hint(r"no call of 'refund' waits for an answer; what does is approve\(order=\"17\"\) of agent clerk"):
        await talk.respond({"refund": True})
    two = await talk.another()
    talk.served.models["clerk"].inner = ScriptedModel([ASK[0] + ASK[0], say("Done.")])
    await two.send("My money!")
    with hint("2 calls of 'approve' wait for an answer; give a list"):
        await two.respond({"approve": True})


async def test_a_turn_that_takes_too_long_is_told_with_what_it_is_at(perdure: Perdure) -> None:
    shop.RUNS.clear()
    shop.GO_ON.clear()
    steps = [call("deliver", order="17"), say("Here it is.")]
    talk = await perdure.start(shop.app, models={"clerk": steps}, timeout=timedelta(seconds=1))
    try:
        with hint(r"(?s)running for more than 1 s; if it takes so long, .*clerk: deliver: runs"):
            await talk.send("Where is 17?")
    finally:
        shop.GO_ON.set()


@pytest.mark.parametrize(
    ("models", "told"),
    [
        ({}, "agent 'clerk' asks 'gemini-2.5-flash', and the test has no script for it"),
        ({"clerk": LOOK[:1]}, r"model call 2 of the session, but its script .* ends after 1; it was asked behind the"),
        ({"clerk": [call("look_up", order="0")]}, "LookupError: there is no order 0"),
        ({"clerk": [fail("overloaded")]}, "agent 'clerk' failed in step 'model': overloaded"),
    ],
)
async def test_why_an_invocation_failed_is_told(perdure: Perdure, models: dict[str, Model], told: str) -> None:
    talk = await perdure.start(shop.app, models=models)
    with pytest.raises(InvocationFailed, match=told) as caught:
        await talk.send("Where is 0?")
    places = "".join(getattr(caught.value, "__notes__", []))
    assert ('raise LookupError("there is no order 0")' in places) == ("LookupError" in told)


def test_where_it_failed_is_told_where_perdures_log_is_on() -> None:
    # It leaves the lines out that the place is taken from.
    configure_logging(json=False, level="info", stream=io.StringIO())
    places = Raised()
    places.apps.add("shop")
    try:
        shop.look_up("0")
    except LookupError as error:
        about = {"temporal_activity": {"task_queue": "shop", "workflow_id": "shop/ann/1"}}
        logging.getLogger("temporalio.activity").warning("Completing activity as failed", exc_info=error, extra=about)
    finally:
        places.close()
    assert 'raise LookupError("there is no order 0")' in places.where("shop/ann/1")


async def test_what_cannot_be_served_is_refused(perdure: Perdure) -> None:
    with pytest.raises(DefinitionError, match="is neither an app nor an agent"):
        await perdure.start(object())
    with pytest.raises(DefinitionError, match="no such LLM agent; it has clerk, expert"):
        await perdure.start(shop.app, models={"boss": LOOK})
    wrong: Any = "Hello."
    with pytest.raises(DefinitionError, match=r"agent 'clerk' is 'Hello.'; give a list of steps"):
        await perdure.start(shop.app, models={"clerk": wrong})
    with pytest.raises(DefinitionError, match="'approve' has a deadline or a reminder, but the app is not resumable"):
        await perdure.start(shop.clerk, models={"clerk": LOOK})
    with pytest.raises(DefinitionError, match="step 1 of a scripted model"):
        await perdure.start(shop.app, models={"clerk": [{"says": "Hello."}]})
    talk = await perdure.start(shop.app, models={"clerk": LOOK})
    with pytest.raises(AssertionError, match="no script for an agent 'boss'; it has for 'clerk'"):
        talk.prompts("boss")
