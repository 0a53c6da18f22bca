"""What a session is sent never holds its workflow's thread: counted before it is parsed, by whatever way it comes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from google.genai import types
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from perdure.client import Runner
from perdure.errors import InvalidMessage, QueueFull
from perdure.messages.large_requests import SEND_AHEAD
from perdure.messages.session import CALL_MODEL, RESPOND, SEND_MESSAGE
from perdure.messages.shared_state import CHANGE_STATE
from perdure.rules.bounds import MAX_PARTS, MAX_QUEUED, MAX_STATE_KEYS
from tests.workflows.support import Gate, GatedModel, User, agent, calls, long_running, make_app, serving, text

pytestmark = pytest.mark.server

MANY = 40_000
KEYS = {f"k{number}": 0 for number in range(MAX_STATE_KEYS + 1)}
TEXTS: dict[str, Any] = {"content": {"role": "user", "parts": [{"text": str(n % 10)} for n in range(MANY)]}}
ANSWERS: dict[str, Any] = {
    "content": {"role": "user", "parts": [{"functionResponse": {"id": "x", "response": {}}}] * 30_000}
}
LISTS: dict[str, Any] = {"content": {"role": "user", "parts": [{"text": "x"}]}, "metadata": {"x": [[]] * 500_000}}
FAILED = (EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED, EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT)


async def check_unharmed(user: User) -> None:
    """Check that no workflow task failed or timed out, and that the session goes on."""
    assert (await user.run("still there?")).status == "finished"
    failed = [event for history in await user.histories() for event in history.events if event.event_type in FAILED]
    # Where megabytes come while a task is at work, or a message as a run hands over, the server gives that task anew.
    anew = {
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND,
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
    }
    assert [event for event in failed if event.workflow_task_failed_event_attributes.cause not in anew] == []


@pytest.mark.parametrize("way", ["update", "ahead"])
@pytest.mark.parametrize(
    ("name", "request_", "says"),
    [
        (SEND_MESSAGE, TEXTS, "lists and objects"),
        (SEND_MESSAGE, {"content": {"parts": TEXTS["content"]["parts"][: MAX_PARTS + 1]}}, "1,001 parts"),
        (SEND_MESSAGE, {"content": {"parts": [{"text": "x"}]}, "state_delta": KEYS}, "10,001 keys"),
        (SEND_MESSAGE, LISTS, "lists and objects"),
        (SEND_MESSAGE, ["no", "message"], "a message is "),
        (RESPOND, ANSWERS, "lists and objects"),
        (RESPOND, {"content": {"parts": ANSWERS["content"]["parts"][:2_000]}}, "2,000 parts"),
        (CHANGE_STATE, {"state_delta": KEYS, "request_id": "r"}, "10,001 keys"),
    ],
    ids=["texts", "parts", "keys", "lists", "none", "answers", "responses", "state"],
)
async def test_a_raw_update_that_is_too_much_is_refused_before_it_is_parsed(
    client: Client, app_name: str, way: str, name: str, request_: Any, says: str
) -> None:
    """As Temporal's command line sends it, which knows nothing of what a session takes."""
    async with serving(client, make_app(app_name, agent("clerk", [text("yes")]))) as user:
        await user.create()
        sent = request_
        if way == "ahead":
            await user.workflow.signal(SEND_AHEAD, args=["a", request_])  # pyright: ignore[reportUnknownMemberType] -- SDK
            sent = {"sent_ahead": "a"}
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await user.workflow.execute_update(name, sent)  # pyright: ignore[reportUnknownMemberType] -- SDK
        assert isinstance(refused.value.cause, ApplicationError)
        assert refused.value.cause.type == InvalidMessage.__name__
        assert says in refused.value.cause.message
        await check_unharmed(user)


async def test_a_raw_signal_that_is_too_much_is_dropped(client: Client, app_name: str) -> None:
    clerk = agent("clerk", [calls("ask"), text("answered"), text("yes")], [long_running("ask")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        (call,) = (await user.run("a")).pending
        answer = {"id": call.id, "response": {"x": 1}}
        await user.signal([answer] * (MANY // 2))
        await user.signal({"id": call.id, "response": {"x": [[]] * 500_000}})
        await user.signal({"id": call.id, "response": {"x": math.nan}})
        await user.workflow.signal(SEND_AHEAD, args=[[[]] * 500_000, {}])  # pyright: ignore[reportUnknownMemberType] -- SDK
        assert [open_call.id for _, open_call in await user.runner.pending(**user.who)] == [call.id]
        await user.signal(answer)
        assert (await user.settled(call.invocation_id)).status == "finished"
        await check_unharmed(user)


async def test_the_client_refuses_the_same_before_it_sends_anything(client: Client, app_name: str) -> None:
    runner = Runner(app_name, client)
    who: dict[str, Any] = {"user_id": "u", "session_id": "s"}
    many = types.Content(role="user", parts=[types.Part(text="x")] * (MAX_PARTS + 1))
    with pytest.raises(InvalidMessage, match="1,001 parts"):
        await runner.send_message(**who, message=many)
    with pytest.raises(InvalidMessage, match="10,001 keys"):
        await runner.send_message(**who, message="a", state_delta=KEYS)
    with pytest.raises(InvalidMessage, match="10,001 keys"):
        await runner.create_session(**who, state=KEYS)
    with pytest.raises(InvalidMessage, match="10,001 keys"):
        await runner.change_state(**who, state_delta=KEYS)
    with pytest.raises(InvalidMessage, match="lists and objects"):
        await runner.respond(**who, responses={"x": {"rows": [{}] * 30_000}})


async def test_a_state_grows_by_no_more_keys_than_it_may_have(client: Client, app_name: str) -> None:
    """Each change is within the bound, and all of them together are not."""
    half = {f"a{number}": 0 for number in range(MAX_STATE_KEYS // 2)}
    async with serving(client, make_app(app_name, agent("clerk", [text("yes")] * 3))) as user:
        await user.create(**half)
        await user.runner.change_state(**user.who, state_delta={f"b{number}": 0 for number in range(4_000)})
        with pytest.raises(InvalidMessage, match="10,001 keys"):
            await user.send("a", state_delta={f"c{number}": 0 for number in range(1_001)})
        with pytest.raises(InvalidMessage, match="10,001 keys"):
            await user.runner.change_state(**user.who, state_delta={f"c{number}": 0 for number in range(1_001)})
        # What is there already may change.
        assert (await user.run("a", state_delta=dict.fromkeys(half, 1))).status == "finished"
        await check_unharmed(user)


async def test_what_a_model_or_a_tool_returns_too_much_of_is_told(client: Client, app_name: str) -> None:
    """It is counted in the activity: no workflow ever sees it."""
    parts = types.Content(role="model", parts=[types.Part(text="x")] * (MAX_PARTS + 1))
    async with serving(client, make_app(app_name, agent("clerk", [parts, text("yes")]))) as user:  # pyright: ignore[reportArgumentType] -- a step, too
        await user.create()
        failed = await user.run("a")
        assert "1,001 parts" in failed.failures[0].cause
        await check_unharmed(user)


async def test_a_queue_has_a_bound(client: Client, app_name: str) -> None:
    """Who is refused is told so by a type of its own, and may send again when some are done."""
    gate = Gate()
    model = GatedModel([text("slow"), *[text("quick")] * (MAX_QUEUED + 5)], {0: gate})
    async with serving(client, make_app(app_name, agent("clerk", model))) as user:
        await user.create()
        first = await user.send("first")
        await gate.reached()
        last = first
        for number in range(MAX_QUEUED):
            last = await user.send(str(number), request_id=f"r{number}")
        with pytest.raises(QueueFull, match=f"{MAX_QUEUED} messages of the session wait"):
            await user.send("one too many")
        # A repetition is none more, and stops and other sessions are taken.
        assert await user.send(str(MAX_QUEUED - 1), request_id=f"r{MAX_QUEUED - 1}") == last
        other = user.other(session_id="t")
        await other.create()
        await other.send("mine")
        await user.stop(last)
        replaced = await user.send("instead")
        with pytest.raises(QueueFull):
            await user.send("one too many")
        gate.open()
        assert (await user.settled(first)).status == "finished"
        assert (await user.settled(replaced)).status == "finished"
        scheduled = [event for history in await user.histories() for event in history.events]
        names = [event.activity_task_scheduled_event_attributes.activity_type.name for event in scheduled]
        assert names.count(CALL_MODEL) == MAX_QUEUED + 1
