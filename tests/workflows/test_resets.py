"""At-most-once tools under resets of the session's workflow, which take it back to any point of its history."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError

from perdure.agents import AgentTool, FunctionTool, ParallelAgent, ToolContext
from perdure.agents.custom import BaseAgent
from perdure.client import Runner
from perdure.journal.events import REQUEST_RECONCILE, USER, Event, user_content
from perdure.messages.claims import claims_id
from perdure.messages.session import InvocationView, Trial
from perdure.models.base import LlmRequest, LlmResponse
from perdure.models.scripted import ScriptedModel
from perdure.rules.in_doubt import Reconciled
from perdure.serving.dev_server import find_temporal
from perdure.sessions.lifecycle import end_run
from tests.workflows.support import User, agent, calls, eventually, make_app, named, responses, serving, text

pytestmark = [pytest.mark.server, pytest.mark.timeout(180)]


async def reset(user: User, run_id: str, event_id: int) -> None:
    """Take the session's workflow back, by Temporal's own command line."""
    client = user.client
    process = await asyncio.create_subprocess_exec(
        *(str(find_temporal()), "workflow", "reset", "--address", client.service_client.config.target_host),
        *("--namespace", client.namespace, "--workflow-id", user.workflow.id, "--run-id", run_id),
        *("--event-id", str(event_id), "--reason", "test"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await process.communicate()
    assert process.returncode == 0, told.decode()


async def points(user: User) -> tuple[str, list[int]]:
    """Return the newest run, and all events of it that it can be reset to."""
    description = await user.workflow.describe()
    history = await user.client.get_workflow_handle(user.workflow.id, run_id=description.run_id).fetch_history()
    found = [event.event_id for event in history.events if event.HasField("workflow_task_completed_event_attributes")]
    return description.run_id, found


async def at_rest(user: User) -> list[str]:
    """Wait until the session has nothing to do, and go on with what failed; returns how its invocations stand."""
    invocations: list[InvocationView] = []

    async def look() -> bool:
        # A reset begins a workflow task, which does again what history does not hold any more.
        if (await user.workflow.describe()).raw_description.HasField("pending_workflow_task"):
            return False
        invocations[:] = (await user.view()).invocations
        return bool(invocations) and all(each.status not in ("queued", "running") for each in invocations)

    await eventually(look)
    failed = [each.id for each in invocations if each.status == "failed"]
    if failed:
        await user.resume(failed[-1])
        await eventually(look)
    return [each.status for each in invocations]


class OwnIds(ScriptedModel):
    """A scripted model that gives its calls ids of its own, which are never the same again."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        async for response in super().generate_content_async(llm_request, stream):
            for part in (response.content and response.content.parts) or []:
                if part.function_call is not None:
                    part.function_call = part.function_call.model_copy(update={"id": uuid.uuid4().hex})
            yield response


class Effects:
    """A tool that takes effect, for many sessions; it raises as often as it is told to."""

    def __init__(self, *, fail: int = 0) -> None:
        self.runs: list[str] = []
        self.fail = fail

    def tool(self, **options: Any) -> FunctionTool:
        async def run(tool_context: ToolContext, amount: int = 0) -> Any:
            self.runs.append(tool_context.session_id)
            if self.of(tool_context.session_id) <= self.fail:
                raise RuntimeError("the line is dead")
            return {"paid": amount}

        return FunctionTool(named(run, "pay"), at_most_once=True, **options)

    def of(self, session_id: str) -> int:
        return self.runs.count(session_id)


SCRIPT = [calls("pay", amount=5), text("done"), calls("pay", amount=7), text("done again")]


async def run_again(user: User) -> None:
    """Let the call that was asked about start again."""
    (request,) = await user.open(REQUEST_RECONCILE)
    await user.answered({request: {"run_again": True}})


async def each_point(first: User, prepare: Callable[[User], Awaitable[object]]) -> list[tuple[User, str, int]]:
    """Prepare a session for each point that one can be taken back to; returns them with run and event."""
    await first.create()
    await prepare(first)
    _, found = await points(first)

    async def one(number: int) -> tuple[User, str, int]:
        user = first.other(session_id=f"s{number}")
        await user.create()
        await prepare(user)
        run_id, here = await points(user)
        return user, run_id, here[min(number, len(here) - 1)]

    return await asyncio.gather(*(one(number) for number in range(len(found))))


@pytest.mark.parametrize("model", [ScriptedModel, OwnIds])
@pytest.mark.parametrize("messages", [1, 2])
async def test_no_reset_starts_a_call_a_second_time(
    client: Client, app_name: str, model: type[ScriptedModel], messages: int
) -> None:
    """Wherever the workflow is taken back to: a person is asked about each call, and no tool runs without a word."""
    effects = Effects()
    app = make_app(app_name, agent("clerk", model(SCRIPT), [effects.tool()]))

    async def prepare(user: User) -> None:
        for _ in range(messages):
            assert (await user.run("a")).status == "finished"

    async def check(user: User, run_id: str, event: int) -> set[str]:
        session = str(user.who["session_id"])
        assert effects.of(session) == messages
        await reset(user, run_id, event)
        statuses = await at_rest(user)
        assert effects.of(session) == messages, event
        while "waiting" in statuses:
            (request,) = await user.open(REQUEST_RECONCILE)
            await user.answered({request: {"happened": True, "result": {"paid": "before"}}})
            statuses = await at_rest(user)
        assert effects.of(session) == messages, event
        assert set(statuses) == {"finished"}
        return {str(response) for response in responses(await user.events(), "pay")}

    async with serving(client, app) as first:
        found = await asyncio.gather(*(check(*point) for point in await each_point(first, prepare)))
    assert len(found) >= 4 * messages
    assert any("{'paid': 'before'}" in told for told in found)


def _alone(tool: FunctionTool) -> BaseAgent:
    return agent("clerk", OwnIds(SCRIPT), [tool])


def _in_a_tool(tool: FunctionTool) -> BaseAgent:
    inner = agent("inner", OwnIds([calls("pay", amount=5), text("paid")]), [tool])
    return agent("clerk", [calls("inner", request="pay"), text("done")], [AgentTool(inner)])


def _beside_another(tool: FunctionTool) -> BaseAgent:
    other = agent("other", [calls("look"), text("looked")], [named(lambda: "seen", "look")])
    return ParallelAgent(name="both", sub_agents=[agent("clerk", OwnIds(SCRIPT), [tool]), other])


PLACES: dict[str, tuple[Callable[[FunctionTool], BaseAgent], dict[str, Any]]] = {
    "in an agent that a tool runs": (_in_a_tool, {}),
    "in one of two agents at once": (_beside_another, {}),
    "behind a person's word": (_alone, {"require_confirmation": True}),
    "in runs of a few steps": (_alone, {}),
}


@pytest.mark.parametrize("place", PLACES)
async def test_no_reset_starts_a_call_again_wherever_its_tool_stands(client: Client, app_name: str, place: str) -> None:
    """A reset may begin with the first of many runs, too, whose journal knows nothing of what came later."""
    made, options = PLACES[place]
    effects = Effects()
    app = make_app(app_name, made(effects.tool(**options)))
    trial = Trial(steps_per_run=1 if "runs" in place else None)

    async def through(user: User, statuses: list[str]) -> None:
        while "waiting" in statuses:
            for name, call_id in (await user.pending()).items():
                happened = {"happened": True, "result": {"paid": "before"}}
                await user.answered({call_id: happened if name == REQUEST_RECONCILE else {"confirmed": True}})
            statuses = await at_rest(user)
        assert set(statuses) == {"finished"}

    async def prepare(user: User) -> None:
        user.runner = Runner(app_name, client, trial=trial)
        await through(user, [(await user.run("a")).status])

    async def check(user: User, run_id: str, event: int) -> None:
        session = str(user.who["session_id"])
        assert effects.of(session) == 1
        first = (await user.histories())[0]
        task = next(each.event_id for each in first.events if each.HasField("workflow_task_completed_event_attributes"))
        oldest = first.events[0].workflow_execution_started_event_attributes.original_execution_run_id
        await reset(user, *((oldest, task) if "runs" in place else (run_id, event)))
        await through(user, await at_rest(user))
        assert effects.of(session) == 1, event

    async with serving(client, app) as first:
        found = await each_point(first, prepare)
        await asyncio.gather(*(check(*point) for point in found))


async def test_an_answer_that_a_reset_brings_again_starts_nothing(client: Client, app_name: str) -> None:
    """Temporal brings updates again after a reset; a person's word counts once, and a fresh word counts again."""
    effects = Effects(fail=1)
    app = make_app(app_name, agent("clerk", SCRIPT, [effects.tool()]))

    async def prepare(user: User) -> None:
        assert (await user.run("a")).status == "failed"
        await user.resume((await user.view()).invocations[-1].id)
        await run_again(user)
        assert (await user.view()).invocations[-1].status == "finished"

    async def check(user: User, run_id: str, event: int) -> bool:
        session = str(user.who["session_id"])
        await reset(user, run_id, event)
        statuses = await at_rest(user)
        assert effects.of(session) == 2, event
        if statuses == ["waiting"]:
            await run_again(user)
            assert effects.of(session) == 3, event
        assert await at_rest(user) == ["finished"]
        return effects.of(session) == 3

    async with serving(client, app) as first:
        found = await asyncio.gather(*(check(*point) for point in await each_point(first, prepare)))
    assert len(found) >= 8
    assert sum(found) >= 4


async def test_a_reset_of_what_a_reset_began_starts_nothing_either(client: Client, app_name: str) -> None:
    """Nor does one back to before a person was told of the first."""
    effects = Effects()
    app = make_app(app_name, agent("clerk", OwnIds(SCRIPT), [effects.tool()]))
    async with serving(client, app, cached=0) as user:
        await user.create()
        await user.run("a")
        run_id, found = await points(user)
        for _ in range(3):
            await reset(user, run_id, found[1])
            assert await at_rest(user) == ["waiting"]
            assert effects.of("s") == 1
        (call,) = [call for invocation in (await user.view()).invocations for call in invocation.pending]
        assert str(call.args["reason"]).startswith("before a reset this tool was started with the key e-")
        await run_again(user)
        assert effects.of("s") == 2
        await reset(user, run_id, found[1])
        assert await at_rest(user) == ["waiting"]
        assert effects.of("s") == 2


async def test_a_reconcile_function_is_not_asked_about_another_call(client: Client, app_name: str) -> None:
    """It would look for the new call's key, find nothing, and let the model call again."""
    asked: list[str] = []

    def look_up(tool_context: ToolContext) -> Reconciled:
        asked.append(tool_context.idempotency_key)
        return Reconciled(happened=True, result={"paid": "found"})

    effects = Effects()
    for model, told in ((ScriptedModel, [{"paid": "found"}]), (OwnIds, [])):
        app = make_app(f"{app_name}_{model.__name__}", agent("clerk", model(SCRIPT), [effects.tool(reconcile=look_up)]))
        async with serving(client, app) as user:
            await user.create()
            await user.run("a")
            run_id, found = await points(user)
            await reset(user, run_id, found[1])
            await at_rest(user)
            assert responses(await user.events(), "pay") == told
            assert len(asked) == len(told) or not told
            asked.clear()


async def test_claims_go_with_the_session_and_are_no_session(client: Client, app_name: str) -> None:
    """A session of the same id may be made after it, which knows of no earlier call."""
    effects = Effects()
    app = make_app(app_name, agent("clerk", SCRIPT, [effects.tool()]))
    async with serving(client, app) as user:
        await user.create()
        await user.run("a")
        claims = client.get_workflow_handle(claims_id(user.key))
        assert (await claims.describe()).status == WorkflowExecutionStatus.RUNNING

        async def listed() -> bool:
            return bool([run.id async for run in client.list_workflows(f"WorkflowId = '{claims.id}'")])

        await eventually(listed)
        assert [session.id for session in await user.runner.list_sessions()] == ["s"]
        await user.runner.delete_session(**user.who)
        # The server deletes in its own time.
        assert await _is_closed(claims)
        await user.create()
        assert (await user.run("a")).status == "finished"
        assert effects.of("s") == 2


async def test_claims_end_with_the_log_that_another_replaces(client: Client, app_name: str) -> None:
    """The calls of the log in its place are no repetitions of what a reset has lost."""
    effects = Effects()
    app = make_app(app_name, agent("clerk", OwnIds([*SCRIPT, *SCRIPT]), [effects.tool()]))
    async with serving(client, app) as user:
        await user.create()
        await user.run("a")
        log = [Event(author=USER, content=user_content("b"))]
        resumed = await user.runner.resume_from(log, **user.who, replace=True)
        assert (await user.settled(resumed.invocation.id)).status == "finished"
        assert effects.of("s") == 2
        # Those of the log in its place stand.
        claims = client.get_workflow_handle(claims_id(user.key))
        assert (await claims.describe()).status == WorkflowExecutionStatus.RUNNING


async def test_claims_that_a_deletion_has_left_open_end_with_the_next_one(client: Client, app_name: str) -> None:
    """Its client died between the two, or the server has removed the session's workflow by itself."""
    effects = Effects()
    app = make_app(app_name, agent("clerk", OwnIds([*SCRIPT, *SCRIPT]), [effects.tool()]))
    async with serving(client, app) as user:
        await user.create()
        await user.run("a")
        claims = client.get_workflow_handle(claims_id(user.key))
        await end_run(user.workflow)
        assert not await _is_closed(claims)
        await user.runner.delete_session(**user.who)
        assert await _is_closed(claims)
        await user.create()
        assert (await user.run("a")).status == "finished"
        assert effects.of("s") == 2


async def _is_closed(handle: WorkflowHandle[Any, Any]) -> bool:
    try:
        return (await handle.describe()).status == WorkflowExecutionStatus.TERMINATED
    except RPCError:
        return True
