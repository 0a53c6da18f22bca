"""What no payload takes, such as half of a character or NaN: refused, or told by its name; a session never holds it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from google.genai import types
from pydantic import BaseModel
from temporalio.client import Client, WorkflowUpdateFailedError

from perdure.agents.tools import FunctionTool, LongRunningFunctionTool, ToolContext
from perdure.client import Runner
from perdure.errors import InvalidMessage, InvalidTrajectory
from perdure.journal.events import USER, Event
from tests.exports import by_hand
from tests.workflows.support import Counted, agent, calls, long_running, make_app, responses, serving, text

pytestmark = pytest.mark.server

_HALF = "\ud83d"


class Measured(BaseModel):
    """What a tool of a typed app returns."""

    mean: float
    least: list[float]
    most: float = math.inf


@pytest.mark.parametrize("by", ["update", "signal"])
async def test_a_decision_that_no_journal_could_hold_is_refused(client: Client, app_name: str, by: str) -> None:
    """ADK's web page wraps the decision as text, in which JSON may name what is no text."""
    pay = Counted("pay")
    clerk = agent("clerk", [calls("pay"), text("paid")], [FunctionTool(pay.fn, require_confirmation=True)])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        (call,) = (await user.run("a")).pending
        odd = {"response": json.dumps({"confirmed": True, "payload": _HALF})}
        if by == "update":
            with pytest.raises(InvalidMessage):
                await user.answer({call.id: odd})
        else:
            await user.signal({"id": call.id, "response": odd})
        assert (await user.answered({call.id: {"response": json.dumps({"confirmed": True})}})).status == "finished"
        assert len(pay.keys) == 1


@pytest.mark.parametrize("by", ["update", "signal"])
async def test_a_verdict_that_no_journal_could_hold_is_refused(client: Client, app_name: str, by: str) -> None:
    pay = Counted("pay", fail=1)
    clerk = agent("clerk", [calls("pay"), text("paid")], [FunctionTool(pay.fn, at_most_once=True)])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        (call,) = (await user.resumed((await user.run("a")).id)).pending
        odd = {"response": json.dumps({"happened": True, "result": _HALF})}
        if by == "update":
            with pytest.raises(InvalidMessage):
                await user.answer({call.id: odd})
        else:
            await user.signal({"id": call.id, "response": odd})
        said = {"response": json.dumps({"happened": True, "result": 1})}
        assert (await user.answered({call.id: said})).status == "finished"
        assert len(pay.keys) == 1


async def test_a_result_that_no_payload_takes_is_told_to_the_model(client: Client, app_name: str) -> None:
    """The tool has run, and it must not run again for what it returned."""
    read = Counted("read", f"name{_HALF}")
    async with serving(client, make_app(app_name, agent("clerk", [calls("read"), text("so")], [read.fn]))) as user:
        await user.create()
        assert (await user.run("a")).status == "finished"
        [told] = responses(await user.events(), "read")
        assert told["error"].startswith(
            "Tool 'read' has run to its end, but its result cannot be passed on: it has a text"
        )
        assert len(read.keys) == 1


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("typed", [False, True])
async def test_a_number_that_json_has_not_is_told_by_its_name(
    client: Client, app_name: str, local: bool, typed: bool
) -> None:
    """As null it would be taken for a value that is missing."""
    plain: dict[str, Any] = {"mean": math.nan, "most": math.inf, "least": [-math.inf]}
    odd = Measured(**plain) if typed else plain

    def measure(tool_context: ToolContext) -> Any:
        """Measure."""
        tool_context.state["last"] = odd
        return odd

    clerk = agent("clerk", [calls("measure"), text("done")], [FunctionTool(measure, local=local)])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        assert (await user.run("a")).status == "finished"
        told = {"mean": "NaN", "most": "Infinity", "least": ["-Infinity"]}
        [event] = [event for event in await user.events() if event.get_function_responses()]
        assert event.get_function_responses()[0].response == told
        assert event.actions.state_delta == {"last": told}


async def test_a_number_that_json_has_not_is_not_sent_as_null(client: Client, app_name: str) -> None:
    asked = LongRunningFunctionTool(Counted("ask").fn)
    async with serving(client, make_app(app_name, agent("clerk", [calls("ask"), text("done")], [asked]))) as user:
        runner = Runner(app_name, client)
        with pytest.raises(InvalidMessage, match="a number that JSON has not"):
            await runner.create_session(user_id="u", session_id="s", state={"x": [math.inf]})
        await user.create()
        (call,) = (await user.run("a")).pending
        response = types.FunctionResponse(id=call.id, name="ask", response={"mean": math.nan})
        message = types.Content(role="user", parts=[types.Part(function_response=response)])
        with pytest.raises(InvalidMessage, match="a number that JSON has not"):
            async for _ in runner.run_async(user_id="u", session_id="s", new_message=message):
                pass
        assert (await user.answered({call.id: {"mean": 1.5, "none": None}})).status == "finished"


@pytest.mark.parametrize("step", [text(_HALF), calls("read", name=_HALF)], ids=["text", "arguments"])
async def test_a_model_answer_that_no_payload_takes_fails_its_call(
    client: Client, app_name: str, step: dict[str, Any]
) -> None:
    async with serving(client, make_app(app_name, agent("clerk", [step], [Counted("read").fn]))) as user:
        await user.create()
        view = await user.run("a")
        assert view.failures[0].cause.startswith("the answer of agent 'clerk''s model is no JSON")


def _deep(call_id: str, levels: int = 170) -> dict[str, Any]:
    return {"id": call_id, "response": {"deep": _nested(levels)}}


def _answer(call_id: str) -> types.Content:
    response = types.FunctionResponse.model_validate(_deep(call_id, 180) | {"name": "ask"})
    return types.Content(role="user", parts=[types.Part(function_response=response)])


def _nested(levels: int) -> Any:
    value: Any = "end"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("local", [False, True])
async def test_a_result_of_many_levels_is_told_to_the_model_and_leaves_the_session_readable(
    client: Client, app_name: str, local: bool
) -> None:
    """A payload takes some more of them than a journal: the session could not have been read again."""
    deep, fine = Counted("deep", _nested(170)), Counted("fine", _nested(140))
    script = [calls("fine"), calls("deep"), text("so")]
    tools = [FunctionTool(fine.fn, local=local), FunctionTool(deep.fn, local=local)]
    async with serving(client, make_app(app_name, agent("clerk", script, tools))) as user:
        await user.create()
        assert (await user.run("a")).status == "finished"
        [told] = responses(await user.events(), "deep")
        assert "has more than 150 lists and objects within each other" in told["error"]
        assert len(deep.keys) == 1
        lines = [line async for line in user.runner.export_session(**user.who, journal=True)]
        await user.runner.import_session(lines, session_id="copy")
        assert responses(await user.other(session_id="copy").events(), "fine") == [{"result": _nested(140)}]


@pytest.mark.parametrize("by", ["client", "update", "signal", "file"])
async def test_an_answer_of_many_levels_is_refused(client: Client, app_name: str, by: str) -> None:
    clerk = agent("clerk", [calls("ask"), text("done")], [long_running("ask")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        (call,) = (await user.run("a")).pending
        if by == "client":
            with pytest.raises(InvalidMessage, match="more than 150 lists and objects within each other"):
                await user.answer({call.id: {"deep": _nested(170)}})
        elif by == "update":
            handle: Any = client.get_workflow_handle(f"{app_name}/u/s")
            update = {"content": {"role": "user", "parts": [{"functionResponse": _deep(call.id)}]}}
            with pytest.raises(WorkflowUpdateFailedError) as refused:
                await handle.execute_update("respond", update)
            assert "more than 150 lists and objects" in str(refused.value.cause)
        elif by == "signal":
            await user.signal(_deep(call.id))
        else:
            answer = Event(author=USER, invocation_id=call.invocation_id, timestamp=1.0, content=_answer(call.id))
            lines = [line async for line in user.runner.export_session(**user.who)]
            with pytest.raises(InvalidTrajectory, match="more than 175 lists and objects within each other"):
                await user.runner.import_session([*by_hand(lines), answer.to_json()], session_id="copy")
        assert (await user.answered({call.id: {"fine": _nested(130)}})).status == "finished"
