"""Files that were written to break a session: they are refused, or fail their invocation, and leave nothing stuck."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from temporalio.client import Client

from perdure.agents import AgentTool, SequentialAgent
from perdure.agents.context import ToolContext
from perdure.agents.tools import FunctionTool
from perdure.errors import InvalidTrajectory
from tests.exports import by_hand
from tests.workflows.support import Counted, User, agent, calls, long_running, make_app, serving, text

pytestmark = pytest.mark.server


def _header(app: str) -> str:
    header: dict[str, Any] = {"format": 1, "app": app, "user_id": "u", "session_id": "s", "state": {}, "journal": False}
    return json.dumps({"perdure": header})


def _event(number: float, author: str, *parts: dict[str, Any], **fields: Any) -> str:
    content = {"role": "user" if author == "user" else "model", "parts": parts}
    known = {"id": f"v{number}", "timestamp": number, "author": author, "invocationId": "e-1", "content": content}
    return json.dumps(known | fields)


def _call(name: str, call_id: str, **args: Any) -> dict[str, Any]:
    return {"functionCall": {"id": call_id, "name": name, "args": args}}


def _response(name: str, call_id: str, **response: Any) -> dict[str, Any]:
    return {"functionResponse": {"id": call_id, "name": name, "response": response}}


_ASKED: dict[str, Any] = {"id": "c1", "name": "pay", "args": {}}
_ODD: list[Any] = ["c1", {"id": "c1"}, {**_ASKED, "args": {"amount": 1}}, {**_ASKED, "id": "c2"}]
_BEGIN = [_event(1, "user", {"text": "a"}), _event(2, "clerk", _call("pay", "c1"))]


@pytest.mark.parametrize(
    "number", ["NaN", "Infinity", "1e999", "1e300", "-1"], ids=["nan", "infinity", "overflow", "no year", "negative"]
)
async def test_a_time_that_is_none_is_refused(client: Client, app_name: str, number: str) -> None:
    """A journal would lose it: it could not be read again, and the session would be stuck from its start."""
    app = make_app(app_name, agent("clerk", [text("b")]))
    async with serving(client, app) as user:
        lines = [
            _header(app_name),
            _event(1, "user", {"text": "a"}).replace('"timestamp": 1', f'"timestamp": {number}'),
        ]
        with pytest.raises(InvalidTrajectory):
            await user.runner.import_session(lines)


@pytest.mark.parametrize("name", ["perdure_reconcile", "adk_request_confirmation"])
@pytest.mark.parametrize(
    "asked",
    _ODD,
    ids=["no object", "no name", "other arguments", "other call"],
)
async def test_a_question_about_another_call_is_refused(client: Client, app_name: str, name: str, asked: Any) -> None:
    """Who answers must be told of the call that the answer is about."""
    app = make_app(app_name, agent("clerk", [text("b")], [FunctionTool(Counted("pay").fn, at_most_once=True)]))
    async with serving(client, app) as user:
        question = _event(3, "clerk", _call(name, "q1", originalFunctionCall=asked), longRunningToolIds=["q1"])
        with pytest.raises(InvalidTrajectory, match=f"{name} 'q1' asks about a call"):
            await user.runner.import_session([_header(app_name), *_BEGIN, question])


async def test_a_question_with_another_call_beside_it_is_refused(client: Client, app_name: str) -> None:
    app = make_app(app_name, agent("clerk", [text("b")], [Counted("pay").fn, long_running("pick")]))
    async with serving(client, app) as user:
        question = _call("adk_request_confirmation", "q1", originalFunctionCall=_ASKED)
        beside = _call("pick", "q2", originalFunctionCall=_ASKED)
        lines = [_header(app_name), *_BEGIN, _event(3, "clerk", question, beside, longRunningToolIds=["q1", "q2"])]
        with pytest.raises(InvalidTrajectory, match="pick 'q2' asks about a call"):
            await user.runner.import_session(lines)


@pytest.mark.parametrize("name", ["perdure_reconcile", "adk_request_confirmation"])
async def test_an_imported_answer_that_says_nothing_fails_its_invocation(
    client: Client, app_name: str, name: str
) -> None:
    pay = Counted("pay")
    once = name == "perdure_reconcile"
    tool = FunctionTool(pay.fn, at_most_once=once, require_confirmation=not once)
    async with serving(client, make_app(app_name, agent("clerk", [calls("pay"), text("b")], [tool]))) as user:
        question = _event(3, "clerk", _call(name, "q1", originalFunctionCall=_ASKED), longRunningToolIds=["q1"])
        said = _event(5, "user", _response(name, "q1", confirmed="maybe", happened="maybe"))
        first = [] if once else [_event(4, "clerk", _response("pay", "c1", error="confirm it"))]
        lines = [_header(app_name), *_BEGIN, question, *first, said]
        await user.runner.import_session(lines, allow_pending_calls=True)
        view = await user.resumed("e-1")
        assert (view.status, "imported answer" in view.failures[0].cause) == ("failed", True)
        assert pay.keys == []


@asynccontextmanager
async def imported_doubt(
    client: Client, app_name: str, *, journal: bool, **options: Any
) -> AsyncGenerator[tuple[User, str, Counted]]:
    """A session with a call in doubt, brought into another one: that one's user, the question's id, and the tool."""
    pay = Counted("pay", fail=1)
    clerk = agent("clerk", [calls("pay"), text("b")], [FunctionTool(pay.fn, at_most_once=True)])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        await user.resumed((await user.run("a")).id)
        lines = [line async for line in user.runner.export_session(**user.who, journal=journal)]
        await user.runner.import_session(lines, session_id="copy", **options)
        copy = user.other(session_id="copy")
        (call_id,) = await copy.open("perdure_reconcile")
        yield copy, call_id, pay


@pytest.mark.parametrize("journal", [True, False], ids=["journal", "events"])
@pytest.mark.parametrize("happened", [True, False])
async def test_a_doubt_is_answered_after_an_import(
    client: Client, app_name: str, journal: bool, happened: bool
) -> None:
    """Nothing runs by such an answer, so it needs nobody's permission."""
    async with imported_doubt(client, app_name, journal=journal) as (copy, call_id, pay):
        view = await copy.answered({call_id: {"happened": happened} | ({"result": "paid"} if happened else {})})
        assert (view.status, view.failures, len(pay.keys)) == ("finished", (), 1)


@pytest.mark.parametrize("journal", [True, False], ids=["journal", "events"])
@pytest.mark.parametrize("allowed", [True, False])
async def test_a_doubt_lets_an_imported_call_run_again_only_if_the_importer_allowed_it(
    client: Client, app_name: str, journal: bool, allowed: bool
) -> None:
    async with imported_doubt(client, app_name, journal=journal, allow_pending_calls=allowed) as (copy, call_id, pay):
        view = await copy.answered({call_id: {"run_again": True}})
        assert (view.status, len(pay.keys)) == (("finished", 2) if allowed else ("failed", 1))


@pytest.mark.parametrize("journal", [True, False], ids=["journal", "events"])
async def test_what_a_call_did_before_an_import_is_looked_for_under_its_key_of_then(
    client: Client, app_name: str, *, journal: bool
) -> None:
    """And run again, it runs under one of its own: the session that it was taken from may run it, too."""
    looked: list[str] = []

    def look_up(tool_context: ToolContext) -> None:
        """Cannot tell."""
        looked.append(tool_context.idempotency_key)

    pay = Counted("pay", fail=1)
    tool = FunctionTool(pay.fn, at_most_once=True, reconcile=look_up)
    async with serving(client, make_app(app_name, agent("clerk", [calls("pay"), text("b")], [tool]))) as user:
        await user.create()
        failed = await user.run("a")
        lines = [line async for line in user.runner.export_session(**user.who, journal=journal)]
        await user.runner.import_session(lines, session_id="copy", allow_pending_calls=True)
        copy = user.other(session_id="copy")
        view = await copy.resumed(failed.id)
        if journal:
            (call_id,) = await copy.open("perdure_reconcile")
            assert looked == pay.keys[:1]
            view = await copy.answered({call_id: {"run_again": True}})
        assert view.status == "finished"
        assert len(set(pay.keys)) == len(pay.keys) == 2


RUNS = {
    "a stranger's": ("clerk/stranger", "the run 'clerk/stranger' is none of app"),
    "where its agent does not stand": ("clerk/line/clerk", "the run 'clerk/line/clerk' is none of app"),
    "of another invocation's agent": ("line", "the run 'line' is none of agent 'clerk', which began"),
    "underneath a stranger's": ("clerk/stranger/line", "the run 'clerk/stranger' is none of app"),
}
"""Names of agent runs that no entry of this app could have."""


@pytest.mark.parametrize(("run", "reason"), RUNS.values(), ids=RUNS)
async def test_names_of_runs_that_do_not_fit_fail_their_invocation(
    client: Client, app_name: str, run: str, reason: str
) -> None:
    """Somebody wrote them, or the app's agents were others; the session goes on, and the events can be taken alone."""
    line = SequentialAgent(name="line", sub_agents=[agent("left", []), agent("right", [])])
    clerk = agent("clerk", [calls("pay"), text("b"), text("c")], [Counted("pay", fail=3).fn], sub_agents=[line])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        failed = await user.run("a")
        lines = by_hand([line async for line in user.runner.export_session(**user.who, journal=True)])
        named = '{"perdure":{"run":"clerk"}}'
        assert named in lines
        odd = [line.replace(named, f'{{"perdure":{{"run":"{run}"}}}}') for line in lines]
        await user.runner.import_session(odd, session_id="odd", allow_pending_calls=True)
        copy = user.other(session_id="odd")
        view = await copy.resumed(failed.id)
        assert (view.status, view.failures[0].step) == ("failed", "import")
        assert reason in view.failures[0].cause
        assert "--damaged" in view.failures[0].cause
        assert (await copy.run("b")).status == "finished"
        await user.runner.import_session(odd, session_id="events", allow_pending_calls=True, damaged=True)
        assert (await user.other(session_id="events").resumed(failed.id)).status == "finished"


async def test_names_of_runs_that_do_not_fit_the_agent_of_a_tool_fail_that_agent(client: Client, app_name: str) -> None:
    banker = agent("banker", [calls("pay"), text("b")], [Counted("pay", fail=3).fn])
    clerk = agent("clerk", [calls("banker", request="a"), text("c")], [AgentTool(banker)])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        failed = await user.run("a")
        lines = by_hand([line async for line in user.runner.export_session(**user.who, journal=True)])
        named = '"run":"banker"'
        assert any(named in line for line in lines)
        odd = [line.replace(named, '"run":"banker/stranger"') for line in lines if '"kind":"settled"' not in line]
        await user.runner.import_session(odd, session_id="odd", allow_pending_calls=True)
        copy = user.other(session_id="odd")
        view = await copy.resumed(failed.id)
        assert view.status == "failed"
        assert "the run 'banker/stranger' is none of app" in view.failures[0].cause
        assert (await copy.run("b")).status == "finished"
