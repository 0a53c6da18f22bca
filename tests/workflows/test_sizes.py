"""What is too large for Temporal is refused in words, and what has grown large is shown in pieces."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import Client, WorkflowQueryFailedError

from perdure.agents import LongRunningFunctionTool, ToolContext
from perdure.errors import InvalidMessage
from perdure.messages.session import EventsPage, PageInput
from perdure.sessions import shared_state as sharing
from perdure.views import pages as views
from tests.workflows.support import User, agent, calls, long_running, make_app, named, serving, text

pytestmark = pytest.mark.server

MEGABYTE = "x" * 1_000_000


def writer(*keys: str, value: Any) -> Any:
    def write(tool_context: ToolContext) -> str:
        for key in keys:
            tool_context.state[key] = value
        return "written"

    return named(write, "write")


async def test_a_state_too_large_to_start_with_is_refused(client: Client, app_name: str) -> None:
    async with serving(client, make_app(app_name, agent("clerk", [text("hi")]))) as user:
        with pytest.raises(InvalidMessage, match=r"the state has 2\.00 MB, and the log takes 1\.75 MB"):
            await user.create(a=MEGABYTE, b=MEGABYTE)
        await user.create()


async def test_a_state_that_no_payload_takes_is_read_from_history(client: Client, app_name: str) -> None:
    script = [calls("write"), text("one"), calls("write"), text("two")]
    count = iter("ab")

    def write(tool_context: ToolContext) -> None:
        """Write another megabyte."""
        tool_context.state[next(count)] = MEGABYTE

    clerk = agent("clerk", script, [write])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        for message in ("one", "two"):
            async for _ in user.runner.run_async(**user.who, new_message=message):
                pass
        assert (await user.view()).state == {"a": MEGABYTE, "b": MEGABYTE}
        with pytest.raises(WorkflowQueryFailedError, match="too large to be shown"):
            await user.workflow.query("session")
        assert (await user.log())[-1] == "clerk: two"


async def test_shared_state_that_would_grow_too_large_fails_the_step(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "_MAX_BYTES", 1_000)
    clerk = agent("clerk", [calls("write"), text("done"), text("next")], [writer("user:k", value="v" * 2_000)])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        failed = await user.run("a")
        assert failed.status == "failed"
        assert (failed.failures[0].agent, failed.failures[0].step) == ("clerk", "state")
        assert "the user: keys would have" in failed.failures[0].cause
        by_message = await user.run("b", state_delta={"app:k": "v" * 2_000})
        assert by_message.status == "failed"
        assert "the app: keys would have" in by_message.failures[0].cause
        other = user.other(session_id="other")
        await other.create()
        assert (await other.view()).state == {}


async def test_a_session_of_many_invocations_tells_of_the_newest_and_the_unfinished(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "_TOLD", 3)
    clerk = agent("clerk", [calls("pick"), *[text("hi")] * 6], [long_running("pick")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        ids = [(await user.run(f"m{number}")).id for number in range(7)]
        view = await user.view()
        assert [invocation.id for invocation in view.invocations] == [ids[0], *ids[-3:]]
        assert view.invocation_count == 7
        assert (await user.invocation(ids[2])).status == "finished"


async def test_many_open_calls_are_shown_in_short(client: Client, app_name: str) -> None:
    clerk = agent("clerk", [calls(*["pick"] * 60, note="n" * 20_000)], [long_running_with_note()])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        waiting = await user.run("a")
        assert len(waiting.pending) == 60
        found = await user.runner.pending(user_id="u", session_id="s")
        assert len(found) == 60
        assert "left out" in str(found[0][1].args)


def long_running_with_note() -> Any:
    def pick(note: str) -> None:
        """Pick one."""

    return LongRunningFunctionTool(pick)


async def test_a_page_of_events_is_small(client: Client, app_name: str) -> None:
    """Temporal warns of payloads over half a megabyte, in the worker's log."""
    clerk = agent("clerk", [text("x" * 200_000)] * 6)
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        for number in range(6):
            await user.run(f"m{number}")
        assert len(await pages(user)) > 2


async def pages(user: User) -> list[int]:
    sizes: list[int] = []
    since = 0
    while True:
        page = await user.workflow.query("events", PageInput(since=since), result_type=EventsPage)
        sizes.append(len(page.model_dump_json(exclude_none=True)))
        since += len(page.events)
        if since >= page.total:
            assert max(sizes) < 524_288
            return sizes
