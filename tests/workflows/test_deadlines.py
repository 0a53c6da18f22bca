"""Deadlines of answers: a durable timer answers for the person, or fails the invocation; reminders before."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from google.genai import types
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from perdure.agents import App, LongRunningFunctionTool, ParallelAgent, ToolContext
from perdure.agents.expiry import AnswerError, AnswerWith, FailInvocation, OnExpiry
from perdure.client import Runner
from perdure.compiler.compile import compile_app
from perdure.errors import CallAnswered, DefinitionError
from perdure.journal.events import USER, Event, user_content
from perdure.messages.session import Trial
from perdure.views.pages import time_text
from perdure.worker import create_workers
from tests.workflows.support import (
    PENDING,
    Gate,
    User,
    agent,
    calls,
    eventually,
    long_running,
    make_app,
    named,
    responses,
    serving,
    text,
)

pytestmark = pytest.mark.server

SOON = timedelta(seconds=1.5)
LATER = timedelta(days=2)


def timed(
    on_expiry: OnExpiry | None = None,
    *,
    expires_in: timedelta | None = SOON,
    remind_in: timedelta | None = None,
    reminder: Callable[..., Any] | None = None,
) -> LongRunningFunctionTool:
    def run(what: str = "") -> dict[str, str]:
        return PENDING

    fn = named(run, "ask")
    return LongRunningFunctionTool(
        fn, expires_in=expires_in, on_expiry=on_expiry, remind_in=remind_in, reminder=reminder
    )


def asking(name: str, tool: LongRunningFunctionTool, *, fill: int = 0) -> App:
    script = [calls("ask", what="now"), *[text("fill")] * fill, text("done"), text("again")]
    return make_app(name, agent("clerk", script, [tool]))


async def finished(user: User, invocation_id: str) -> None:
    await eventually(lambda: _is(user, invocation_id, "finished"))


async def _is(user: User, invocation_id: str, status: str) -> bool:
    return await user.status(invocation_id) == status


@pytest.mark.parametrize(
    ("on_expiry", "answer"),
    [
        (AnswerWith({"approved": False}), {"approved": False}),
        (AnswerWith([1]), {"result": [1]}),
        (AnswerError("too late"), {"error": "too late"}),
        (None, {"error": "Nobody answered within 0:00:01.500000, so the call has expired."}),
    ],
    ids=["value", "list", "error", "default"],
)
async def test_the_session_answers_for_the_person(
    client: Client, app_name: str, on_expiry: OnExpiry | None, answer: dict[str, Any]
) -> None:
    async with serving(client, asking(app_name, timed(on_expiry))) as user:
        await user.create()
        waiting = await user.run("a")
        (call,) = waiting.pending
        assert call.deadline == pytest.approx(call.since + SOON.total_seconds())
        assert [found.deadline for _, found in await user.runner.pending(**user.who)] == [call.deadline]
        await finished(user, waiting.id)
        assert await user.log() == ["user: a", "clerk calls ask", "clerk got ask", "user answers ask", "clerk: done"]
        events = await user.events()
        assert responses(events, "ask") == [PENDING, answer]
        (event,) = [e for e in events if e.author == "user" and e.get_function_responses()]
        assert event.custom_metadata == {"expired": True, "deadline": call.deadline}
        assert event.timestamp >= (call.deadline or 0.0)
        assert [effect.outcome for effect in await user.runner.effects(**user.who)] == ["expired"]
        with pytest.raises(CallAnswered):
            await user.answer({call.id: {"late": True}})


async def test_an_answer_in_time_is_the_answer(client: Client, app_name: str) -> None:
    patient = timed(AnswerWith("late"), expires_in=timedelta(seconds=5))
    async with serving(client, asking(app_name, patient), cached=0) as user:
        await user.create()
        (call,) = (await user.run("a")).pending
        assert call.deadline is not None
        assert (await user.answered({call.id: {"in": "time"}})).status == "finished"
        await asyncio.sleep(call.deadline - time.time() + 0.5)
        assert responses(await user.events(), "ask") == [PENDING, {"in": "time"}]
        assert [effect.outcome for effect in await user.runner.effects(**user.who)] == ["answered"]


async def test_an_answer_behind_the_deadline_of_a_run_that_is_still_at_work_is_taken_by_a_resume(
    client: Client, app_name: str
) -> None:
    """The deadline failed the run once; it must not fail every resume of it."""
    gate = Gate()
    left = agent("left", [calls("ask"), text("left done")], [timed(FailInvocation())])
    right = agent("right", [calls("work"), text("right done")], [gate.tool("work")])
    async with serving(client, make_app(app_name, ParallelAgent(name="both", sub_agents=[left, right]))) as user:
        await user.create()
        sent = await user.send("a")
        await gate.reached()
        (call_id,) = await user.open("ask")
        await eventually(lambda: _has_expired(user, sent))
        await user.answer({call_id: {"came": "late"}})
        gate.open()
        assert (await user.settled(sent)).status == "failed"
        assert (await user.resumed(sent)).status == "finished"
        assert responses(await user.events(), "ask") == [PENDING, {"came": "late"}]


async def _has_expired(user: User, invocation_id: str) -> bool:
    return all(call.deadline is None for call in (await user.invocation(invocation_id)).pending)


@pytest.mark.parametrize("reenter", [False, True], ids=["live", "re-entered"])
async def test_a_deadline_can_fail_the_invocation_once(client: Client, app_name: str, reenter: bool) -> None:
    """A resume waits for the answer, without a deadline."""
    async with serving(client, asking(app_name, timed(FailInvocation()))) as user:
        user.runner = Runner(app_name, client, trial=Trial(reenter=reenter))
        await user.create()
        waiting = await user.run("a")
        await eventually(lambda: _is(user, waiting.id, "failed"))
        view = await user.invocation(waiting.id)
        (failure,) = view.failures
        assert (failure.agent, failure.step) == ("clerk", "ask")
        assert failure.cause.startswith("no answer came by the deadline of the call, 20")
        assert [call.deadline for call in view.pending] == [None]
        again = await user.resumed(waiting.id)
        assert (again.status, [call.deadline for call in again.pending]) == ("waiting", [None])
        await asyncio.sleep(SOON.total_seconds())
        assert (await user.answered({again.pending[0].id: {}})).status == "finished"


async def test_a_deadline_waits_for_its_turn(client: Client, app_name: str) -> None:
    """Another invocation is at work when it passes."""
    gate = Gate()
    script = [calls("ask"), calls("work"), text("b done"), text("a done")]
    clerk = agent("clerk", script, [timed(AnswerWith("late")), gate.tool("work")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        waiting = await user.run("a")
        second = await user.send("b")
        await gate.reached()
        await eventually(lambda: _is(user, waiting.id, "queued"))
        assert "user answers ask" not in await user.log()
        gate.open()
        await finished(user, second)
        await finished(user, waiting.id)
        assert (await user.log())[-4:] == ["clerk got work", "clerk: b done", "user answers ask", "clerk: a done"]


@pytest.mark.parametrize("on_expiry", [AnswerWith("late"), FailInvocation()], ids=["answer", "fail"])
async def test_a_deadline_passes_while_the_invocation_is_stopped(
    client: Client, app_name: str, on_expiry: OnExpiry
) -> None:
    """An answer is kept for the resume; there is nothing to fail, so the call stays open."""
    async with serving(client, asking(app_name, timed(on_expiry))) as user:
        await user.create()
        waiting = await user.run("a")
        await user.stop(waiting.id)
        await eventually(lambda: _has_no_deadline(user))
        assert await user.status(waiting.id) == "stopped"
        again = await user.resumed(waiting.id)
        assert again.status == ("finished" if isinstance(on_expiry, AnswerWith) else "waiting")


async def _has_no_deadline(user: User) -> bool:
    return all(call.deadline is None for _, call in await user.runner.pending(**user.who))


async def test_a_deadline_passes_in_one_branch_while_another_works(client: Client, app_name: str) -> None:
    gate = Gate()
    left = agent("left", [calls("ask"), text("asked")], [timed(AnswerWith("late"))])
    right = agent("right", [calls("work"), text("worked")], [gate.tool("work")])
    fan = ParallelAgent(name="fan", sub_agents=[left, right])
    async with serving(client, make_app(app_name, fan)) as user:
        await user.create()
        invocation = await user.send("a")
        await user.logged("left: asked")
        assert await user.status(invocation) == "running"
        gate.open()
        await finished(user, invocation)


async def test_a_branch_fails_by_its_deadline_and_the_other_stays_answerable(client: Client, app_name: str) -> None:
    left = agent("left", [calls("ask"), text("asked")], [timed(FailInvocation())])
    right = agent("right", [calls("pick"), text("picked")], [long_running("pick")])
    fan = ParallelAgent(name="fan", sub_agents=[left, right])
    async with serving(client, make_app(app_name, fan)) as user:
        await user.create()
        waiting = await user.run("a")
        await eventually(lambda: _is(user, waiting.id, "failed"))
        pending = await user.pending()
        assert (await user.answered({pending["pick"]: {}})).status == "waiting"
        assert (await user.answered({pending["ask"]: {}})).status == "finished"


async def test_a_deadline_passes_while_no_worker_runs(client: Client, app_name: str) -> None:
    app = asking(app_name, timed(AnswerWith("late")))
    async with serving(client, app) as user:
        await user.create()
        waiting = await user.run("a")
    await asyncio.sleep(SOON.total_seconds())
    async with serving(client, app) as user:
        await finished(user, waiting.id)
        assert responses(await user.events(), "ask")[-1] == {"result": "late"}


async def test_a_deadline_survives_a_lost_workflow(client: Client, app_name: str) -> None:
    async with serving(client, asking(app_name, timed(AnswerWith("late")), fill=1)) as user:
        await user.create()
        waiting = await user.run("a")
        await user.workflow.terminate()
        # Whatever comes next brings the session back.
        await user.send("b")
        await finished(user, waiting.id)
        assert responses(await user.events(), "ask")[-1] == {"result": "late"}


@pytest.mark.parametrize("on_expiry", [AnswerWith("late"), FailInvocation()], ids=["answer", "fail"])
async def test_the_deadline_of_an_imported_call_counts_from_the_import(
    client: Client, app_name: str, on_expiry: OnExpiry
) -> None:
    """However old the log is: nobody could have answered it here before."""
    since = timedelta(seconds=4)
    async with serving(client, asking(app_name, timed(on_expiry, expires_in=since))) as user:
        await user.create()
        waiting = await user.run("a")
        lines = [line async for line in user.runner.export_session(**user.who, journal=True)]
        await eventually(lambda: _is(user, waiting.id, "finished" if isinstance(on_expiry, AnswerWith) else "failed"))
        now = time.time()
        imported = await user.runner.import_session(lines, session_id="copy")
        copy = user.other(session_id="copy")
        (call,) = (await copy.invocation(waiting.id)).pending
        assert imported.invocations[0].pending == (call,)
        assert call.since == waiting.pending[0].since
        assert now <= (call.deadline or 0.0) - since.total_seconds() <= time.time()
        assert await copy.status(waiting.id) == "waiting"
        # A second import counts anew again, and an answer in time is the answer.
        await user.runner.import_session(lines, session_id="second")
        second = user.other(session_id="second")
        assert (await second.answered({call.id: {"in": "time"}})).status == "finished"
        await eventually(lambda: _is(copy, waiting.id, "finished" if isinstance(on_expiry, AnswerWith) else "failed"))
        assert time.time() >= (call.deadline or 0.0)


async def test_a_call_of_a_bare_log_has_its_deadline_once_it_runs_here(client: Client, app_name: str) -> None:
    """A bare log names no plan: its call takes the deadline that its tool has in the app, from then on."""
    async with serving(client, asking(app_name, timed(AnswerWith("late")))) as user:
        message = Event(author=USER, content=user_content("go"), timestamp=1.0)
        part = types.Part(function_call=types.FunctionCall(id="c1", name="ask", args={}))
        content = types.Content(role="model", parts=[part])
        ids = frozenset({"c1"})
        call = Event(author="clerk", content=content, timestamp=2.0, long_running_tool_ids=ids)
        resumed = await user.runner.resume_from([message, call], **user.who, allow_pending_calls=True)
        invocation = await user.settled(resumed.invocation.id)
        assert invocation.status == "waiting"
        (pending,) = invocation.pending
        assert (pending.since, (pending.deadline or 0.0) > time.time()) == (2.0, True)
        await finished(user, invocation.id)
        assert responses(await user.events(), "ask") == [PENDING, {"result": "late"}]


async def test_a_deadline_survives_continue_as_new(small_client: Client, app_name: str) -> None:
    tool = timed(AnswerWith("late"), expires_in=timedelta(seconds=8))
    async with serving(small_client, asking(app_name, tool, fill=12)) as user:
        await user.create()
        waiting = await user.run("a")
        first = (await user.workflow.describe()).run_id
        for number in range(12):
            await user.run(f"m{number}")
        assert (await user.workflow.describe()).run_id != first
        await finished(user, waiting.id)
        events = await user.events()
        (event,) = [e for e in events if e.author == "user" and e.get_function_responses()]
        deadline = waiting.pending[0].deadline
        assert deadline is not None
        assert deadline <= event.timestamp < deadline + 15


@pytest.mark.parametrize("fails", [False, True], ids=["runs", "fails"])
async def test_a_reminder_runs_once_before_the_deadline(client: Client, app_name: str, fails: bool) -> None:
    reminded: list[Any] = []

    def remind(what: str, tool_context: ToolContext) -> None:
        reminded.append((what, tool_context.function_call_id, tool_context.state.get("topic"), time.time()))
        if fails:
            raise PermissionError("no mail today")

    tool = timed(AnswerWith("late"), expires_in=timedelta(seconds=6), remind_in=timedelta(seconds=1), reminder=remind)
    async with serving(client, asking(app_name, tool)) as user:
        await user.create(topic="land")
        waiting = await user.run("a")
        (call,) = waiting.pending
        await eventually(lambda: len(reminded) >= 1)
        assert reminded[0][:3] == ("now", call.id, "land")
        assert call.since + 1 <= reminded[0][3] < (call.deadline or 0.0)
        assert await user.status(waiting.id) == "waiting"
        await finished(user, waiting.id)
        # A tool's own retries apply, and they are one reminder.
        assert len(reminded) == (3 if fails else 1)
        assert [entry.kind for entry in (await user.journal()).entries].count("call_reminded") == 1


async def test_nobody_is_reminded_of_what_is_answered(client: Client, app_name: str) -> None:
    reminded: list[int] = []

    def remind() -> None:
        reminded.append(1)

    tool = timed(expires_in=None, remind_in=timedelta(seconds=1), reminder=remind)
    async with serving(client, asking(app_name, tool)) as user:
        await user.create()
        waiting = await user.run("a")
        assert (await user.answered({waiting.pending[0].id: {}})).status == "finished"
        await asyncio.sleep(1.5)
        assert reminded == []


async def test_a_session_without_deadlines_starts_no_timer(client: Client, app_name: str) -> None:
    async with serving(client, make_app(app_name, agent("clerk", [calls("pick")], [long_running("pick")]))) as user:
        await user.create()
        await user.run("a")
        history = await user.workflow.fetch_history()
        assert not [event for event in history.events if event.HasField("timer_started_event_attributes")]


async def test_a_deadline_comes_with_a_later_plan(client: Client, app_name: str) -> None:
    """A session whose first plan has no deadlines is not watched until another has."""
    script = [text("hello"), calls("ask", what="now"), text("done")]
    async with serving(client, make_app(app_name, agent("clerk", script))) as user:
        await user.create()
        await user.run("a")
    async with serving(client, make_app(app_name, agent("clerk", script, [timed(AnswerWith("late"))]))) as user:
        waiting = await user.run("b")
        assert waiting.status == "waiting"
        await finished(user, waiting.id)
        assert responses(await user.events(), "ask") == [PENDING, {"result": "late"}]


async def test_a_deadline_of_days_with_time_skipped(app_name: str) -> None:
    """Two days pass between the call and the answer of the session."""
    # Beside the interpreter, where its wheel puts it.
    path = str(Path(sys.executable).with_name("temporal-test-server"))
    async with await WorkflowEnvironment.start_time_skipping(test_server_existing_path=path) as environment:
        reminded: list[int] = []

        def remind() -> None:
            reminded.append(1)

        tool = timed(AnswerWith("late"), expires_in=LATER, remind_in=timedelta(days=1), reminder=remind)
        (worker,) = create_workers(environment.client, [asking(app_name, tool)])
        async with worker:
            user = User(environment.client, app_name)
            await user.create()
            waiting = await user.run("a")
            assert (waiting.status, reminded) == ("waiting", [])
            await environment.sleep(timedelta(days=1, hours=1))
            await eventually(lambda: reminded == [1])
            assert await user.status(waiting.id) == "waiting"
            await environment.sleep(timedelta(days=1))
            await finished(user, waiting.id)
            assert responses(await user.events(), "ask")[-1] == {"result": "late"}


def test_a_deadline_in_an_app_that_is_not_resumable_is_refused(app_name: str) -> None:
    for tool in (timed(), timed(expires_in=None, remind_in=SOON, reminder=lambda: None)):
        app = make_app(app_name, agent("clerk", [], [tool]), resumable=False)
        with pytest.raises(DefinitionError, match="'ask' has a deadline or a reminder, but the app is not resumable"):
            compile_app(app)


def test_a_deadline_behind_the_end_of_the_calendar_is_told_all_the_same() -> None:
    """An imported plan may have one; a workflow that cannot say what it waits for would fail for ever."""
    assert time_text(timedelta.max.total_seconds()) == "9999-12-31T23:59:59+00:00"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_expiry": FailInvocation()}, "needs a deadline"),
        ({"expires_in": timedelta(0)}, "longer than nothing"),
        ({"expires_in": SOON, "on_expiry": AnswerWith(object())}, "no JSON"),
        ({"expires_in": timedelta.max}, "more than a century"),
        ({"remind_in": timedelta.max, "reminder": print}, "more than a century"),
        ({"remind_in": SOON}, "both remind_in and reminder"),
        ({"reminder": print}, "both remind_in and reminder"),
        ({"remind_in": timedelta(0), "reminder": print}, "longer than nothing"),
        ({"expires_in": SOON, "remind_in": SOON, "reminder": print}, "remind before it"),
    ],
)
def test_a_deadline_that_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        LongRunningFunctionTool(named(lambda: None, "ask"), **options)
