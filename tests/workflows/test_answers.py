"""Answers to open calls: which are taken, when they are logged, and what a signal that does not fit leaves behind."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from typing import Any

import pytest
from google.genai import types
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.common import RawValue

from perdure.agents import LongRunningFunctionTool, ParallelAgent
from perdure.errors import CallAnswered, CallNotFound, InvalidMessage, MixedInvocations
from perdure.rules.intake import response_part
from tests.workflows.support import (
    ONCE,
    Gate,
    GatedModel,
    agent,
    calls,
    long_running,
    make_app,
    named,
    responses,
    serving,
    text,
)

pytestmark = pytest.mark.server


@pytest.mark.parametrize("returns", [{"status": "pending"}, None], ids=["pending", "nothing"])
@pytest.mark.parametrize("by", ["update", "signal"])
async def test_an_answer_before_its_tools_response_is_kept_until_then(
    client: Client, app_name: str, by: str, returns: Any
) -> None:
    """A body that starts something quick may be overtaken by its answer."""
    gate = Gate()
    pick = LongRunningFunctionTool(gate.tool("pick", returns))
    async with serving(client, make_app(app_name, agent("clerk", [calls("pick"), text("picked")], [pick]))) as user:
        await user.create()
        invocation = await user.send("a")
        await gate.reached()
        (call_id,) = await user.open("pick")
        if by == "update":
            assert (await user.answer({call_id: {"ok": 1}})).status == "running"
        else:
            await user.signal({"id": call_id, "response": {"ok": 1}})
        with pytest.raises(CallAnswered):
            await user.answer({call_id: {"ok": 2}})
        assert await user.log() == ["user: a", "clerk calls pick"]
        gate.open()
        assert (await user.settled(invocation)).status == "finished"
        got = ["clerk got pick"] if returns else []
        assert await user.log() == ["user: a", "clerk calls pick", *got, "user answers pick", "clerk: picked"]
        assert responses(await user.events(), "pick")[-1] == {"ok": 1}


async def test_an_early_answer_survives_the_failure_of_its_tool(client: Client, app_name: str) -> None:
    runs: list[int] = []
    gate = Gate()

    async def start() -> dict[str, str]:
        runs.append(1)
        if len(runs) == 1:
            await gate.pass_through("first")
            raise RuntimeError("down")
        return {"status": "pending"}

    pick = LongRunningFunctionTool(named(start, "pick"), retry=ONCE)
    async with serving(client, make_app(app_name, agent("clerk", [calls("pick"), text("picked")], [pick]))) as user:
        await user.create()
        invocation = await user.send("a")
        await gate.reached()
        (call_id,) = await user.open("pick")
        await user.answer({call_id: {"ok": 1}})
        gate.open()
        failed = await user.settled(invocation)
        assert (failed.status, failed.pending, len(runs)) == ("failed", (), 1)
        assert (await user.resumed(invocation)).status == "finished"
        assert len(runs) == 2
        log = await user.log()
        assert log == ["user: a", "clerk calls pick", "clerk got pick", "user answers pick", "clerk: picked"]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::5])
async def test_answers_come_in_any_order(client: Client, app_name: str, order: tuple[int, ...]) -> None:
    """Two invocations, each with two branches that wait; each ends with its second answer."""
    left = agent("left", [calls("pick")] * 2 + [text("picked")] * 2, [long_running("pick")])
    right = agent("right", [calls("ask")] * 2 + [text("asked")] * 2, [long_running("ask", None)])
    fan = ParallelAgent(name="fan", sub_agents=[left, right])
    async with serving(client, make_app(app_name, fan)) as user:
        await user.create()
        invocations = [await user.run("a"), await user.run("b")]
        opened = [call for invocation in invocations for call in invocation.pending]
        assert [len(invocation.pending) for invocation in invocations] == [2, 2]
        done: list[int] = []
        for number in order:
            view = await user.answered({opened[number].id: {"n": number}})
            done.append(number)
            assert view.status == ("finished" if {number, number ^ 1} <= {*done} else "waiting")
            assert view.id == opened[number].invocation_id
        events = await user.events()
        for number, call in enumerate(opened):
            (answer,) = [e for e in events if e.author == "user" and responses([e], call.name) == [{"n": number}]]
            assert (answer.branch, answer.invocation_id) == (call.branch, call.invocation_id)


async def test_one_message_answers_calls_in_several_branches(client: Client, app_name: str) -> None:
    left_model, right_model = (GatedModel([calls(tool), text("done")]) for tool in ("pick", "ask"))
    left, right = agent("left", left_model, [long_running("pick")]), agent("right", right_model, [long_running("ask")])
    async with serving(client, make_app(app_name, ParallelAgent(name="fan", sub_agents=[left, right]))) as user:
        await user.create()
        waiting = await user.run("a")
        view = await user.answered({call.id: {"is": call.name} for call in waiting.pending})
        assert view.status == "finished"
        assert sorted((await user.log())[-4:]) == ["left: done", "right: done", "user answers ask", "user answers pick"]
        for model, tool, other in ((left_model, "pick", "ask"), (right_model, "ask", "pick")):
            shown = str(model.requests[-1].contents)
            assert f"'is': '{tool}'" in shown
            assert f"'is': '{other}'" not in shown


async def test_calls_of_one_answer_wait_for_each_other(client: Client, app_name: str) -> None:
    """The model is called again when all calls of one model response are answered."""
    model = GatedModel([calls("pick", "ask"), text("done")])
    clerk = agent("clerk", model, [long_running("pick"), long_running("ask", None)])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        waiting = await user.run("a")
        ids = {call.name: call.id for call in waiting.pending}
        view = await user.answered({ids["ask"]: {"n": 1}})
        assert (view.status, [call.name for call in view.pending], len(model.requests)) == ("waiting", ["pick"], 1)
        assert (await user.answered({ids["pick"]: {"n": 2}})).status == "finished"
        assert len(model.requests) == 2


async def test_answers_of_several_invocations_are_refused_whole(client: Client, app_name: str) -> None:
    clerk = agent("clerk", [calls("pick")] * 2, [long_running("pick")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        first, second = await user.run("a"), await user.run("b")
        both: dict[str, Any] = {first.pending[0].id: {}, second.pending[0].id: {}}
        with pytest.raises(MixedInvocations, match="message of its own"):
            await user.answer(both)
        with pytest.raises(MixedInvocations):
            await user.answer({first.pending[0].id: {}}, invocation_id=second.id)
        with pytest.raises(CallNotFound, match="'nobody'"):
            await user.answer({first.pending[0].id: {}, "nobody": {}})
        assert len(await user.pending(first.id)) == len(await user.pending(second.id)) == 1
        assert "user answers pick" not in await user.log()


async def test_the_first_answer_wins(client: Client, app_name: str) -> None:
    clerk = agent("clerk", [calls("pick"), text("picked")], [long_running("pick")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        call_id = (await user.run("a")).pending[0].id
        answers = (user.answer({call_id: {"n": n}}) for n in range(6))
        results = await asyncio.gather(*answers, return_exceptions=True)
        taken = [n for n, result in enumerate(results) if not isinstance(result, BaseException)]
        assert len(taken) == 1
        assert sum(isinstance(result, CallAnswered) for result in results) == 5
        await user.logged("clerk: picked")
        assert responses(await user.events(), "pick")[1:] == [{"n": taken[0]}]
        with pytest.raises(CallAnswered, match="first answer wins"):
            await user.answer({call_id: {"late": True}})


async def test_a_retried_answer_is_taken_once(client: Client, app_name: str) -> None:
    clerk = agent("clerk", [calls("pick"), text("picked")], [long_running("pick")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        waiting = await user.run("a")
        for _ in range(2):
            view = await user.answer({waiting.pending[0].id: {"n": 1}}, request_id="r1")
            assert view.id == waiting.id
        await user.logged("clerk: picked")
        assert (await user.answer({waiting.pending[0].id: {"n": 1}}, request_id="r1")).status == "finished"
        assert (await user.log()).count("user answers pick") == 1


async def test_malformed_answers_are_refused(client: Client, app_name: str) -> None:
    clerk = agent("clerk", [calls("pick")], [long_running("pick")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        call_id = (await user.run("a")).pending[0].id
        part, stranger = response_part(call_id, {}), response_part(call_id, {}, name="steal")
        for parts, problem in (([part, part], "two responses"), ([stranger], "not of 'steal'"), ([], "no function")):
            content = types.Content(role="user", parts=parts)
            with pytest.raises(InvalidMessage, match=problem):
                await user.runner.respond(**user.who, responses=content)
        assert await user.pending() == {"pick": call_id}


@pytest.mark.parametrize("cached", [0, 100])
async def test_a_signal_answers_and_what_does_not_fit_is_dropped(
    client: Client, app_name: str, caplog: pytest.LogCaptureFixture, cached: int
) -> None:
    """Each dropped one leaves one warning, which holds nothing of what was sent."""
    clerk = agent("clerk", [calls("pick", "ask", "tell"), text("done")], [*map(long_running, ("pick", "ask", "tell"))])
    garbage: list[Any] = [
        *("s3cret", 7, None, True, [], {}, {"id": "s3cret", "response": {}}, {"id": 7, "response": {}}),
        *({"id": "s3cret"}, {"response": "s3cret"}, [{"id": "s3cret", "response": 1}, 2], {"s3cret": {"id": []}}),
    ]
    async with serving(client, make_app(app_name, clerk), cached=cached) as user:
        await user.create()
        waiting = await user.run("a")
        ids = {call.name: call.id for call in waiting.pending}
        with caplog.at_level(logging.WARNING):
            for value in garbage:
                await user.signal(value)
            await user.workflow.signal("function_response", args=[{"id": ids["pick"], "response": {"n": 1}}])
            await user.signal({"id": ids["pick"], "response": "s3cret, a second one"})
            await user.signal([{"id": ids["ask"], "response": {"n": 2}}, {"id": ids["tell"], "response": "three"}])
            assert (await user.settled(waiting.id)).status in ("waiting", "finished")
            await user.logged("clerk: done")
        dropped = [record for record in caplog.records if "signal dropped" in record.getMessage()]
        assert len(dropped) == len(garbage) + 1
        assert not [record for record in caplog.records if "s3cret" in str(record.__dict__)]
        events = await user.events()
        told = [event.error_message or "" for event in events if event.error_code == "SIGNAL_REFUSED"]
        assert len(told) == len(garbage) + 1
        assert 'was not taken: the signal takes {"id": CALL_ID, "response": {…}}' in told[0]
        assert responses(events, "pick")[1:] == [{"n": 1}]
        assert responses(events, "tell")[1:] == [{"result": "three"}]
        assert (await user.view()).status == "idle"


@pytest.mark.parametrize(
    ("update", "argument", "told"),
    [
        ("send_message", {"foo": "s3cret"}, 'a message is {"content": .*; content: Field required'),
        ("send_message", "s3cret", "a message is .*; it: Input should be an object"),
        ("send_message", {"content": {"parts": [{"txt": "s3cret"}]}}, "content.parts.0.txt: Extra inputs"),
        ("respond", {"content": 5}, 'an answer is {"content": .*"functionResponse".*; content: Input should be'),
        ("resume", {}, 'named by {"invocation_id": INVOCATION_ID}; invocation_id: Field required'),
        ("stop", "s3cret", "named by .*; it: Input should be an object"),
        ("wait", None, "named by .*, in JSON; this is NoneType"),
        ("change_state", {"x": "s3cret"}, 'a change of state is .*"state_delta".*; state_delta: Field required'),
    ],
    ids=str,
)
async def test_an_update_of_another_shape_is_told_what_the_message_is_like(
    client: Client, app_name: str, update: str, argument: Any, told: str
) -> None:
    """As `temporal workflow update` shows it; nothing is quoted."""
    async with serving(client, make_app(app_name, agent("clerk", [text("x")]))) as user:
        await user.create()
        with pytest.raises(WorkflowUpdateFailedError) as caught:
            await user.workflow.execute_update(update, argument)  # pyright: ignore[reportUnknownMemberType] -- the SDK's overloads
        assert re.search(told, str(caught.value.cause)), str(caught.value.cause)
        assert "s3cret" not in str(caught.value.cause)
        assert "pydantic" not in str(caught.value.cause)


async def test_signals_without_end_leave_no_events_without_end(client: Client, app_name: str) -> None:
    async with serving(client, make_app(app_name, agent("clerk", [text("x")]))) as user:
        await user.create()
        for _ in range(120):
            await user.signal("no")
        await user.run("a")
        told = [event for event in await user.events() if event.error_code == "SIGNAL_REFUSED"]
        assert len(told) == 100
        assert len({event.id for event in told}) == 100


def _payload(encoding: bytes, data: bytes) -> RawValue:
    return RawValue(Payload(metadata={"encoding": encoding}, data=data))


@pytest.mark.parametrize(
    "args",
    [
        [],
        [{"id": "x", "response": {}}, {"id": "y", "response": {}}],
        [_payload(b"json/plain", b"{no json")],
        [_payload(b"json/plain", b"\xff\xfe")],
        [_payload(b"binary/plain", b"\x00")],
        [_payload(b"binary/unheard-of", b"\x00")],
        [_payload(b"", b"")],
    ],
    ids=["none", "two", "no json", "no text", "binary", "unknown encoding", "empty"],
)
async def test_no_signal_holds_a_session_up(client: Client, app_name: str, args: list[Any]) -> None:
    """Anybody can signal, by a slip of the command line too; a workflow task that fails is tried again for ever."""
    clerk = agent("clerk", [calls("pick"), text("picked")], [long_running("pick")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        waiting = await user.run("a")
        await user.workflow.signal("function_response", args=args)
        assert (await user.answered({waiting.pending[0].id: {}})).status == "finished"
        assert await user.status(waiting.id) == "finished"
