"""People are told of what waits and of what has failed: once, at once, whatever becomes of workers and receivers."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHistory

from perdure.agents import App, FunctionTool, ParallelAgent
from perdure.messages.notices import NOTICE_WORKFLOW
from perdure.notices.settings import NoticeSettings
from tests.notices.mailboxes import mailbox
from tests.notices.webhooks import Webhook, webhook
from tests.workflows.support import (
    Counted,
    Gate,
    User,
    agent,
    calls,
    eventually,
    long_running,
    make_app,
    serving,
    text,
)

pytestmark = pytest.mark.server


def telling(told: Webhook, **given: Any) -> NoticeSettings:
    return NoticeSettings.model_validate({"webhook": {"url": told.url}, **given})


def notices(told: Webhook) -> list[tuple[str, str]]:
    """Return what was told, and of which call or which step."""
    bodies = [json.loads(body) for _, body in told.got]
    return [(body["type"], body["data"].get("call") or body["data"]["step"]) for body in bodies]


def comes(told: Webhook, *expected: tuple[str, str]) -> Awaitable[None]:
    return eventually(lambda: notices(told) == list(expected))


def asking(name: str, *after: Any) -> App:
    return make_app(name, agent("clerk", [calls("ask"), *after, text("done")], [long_running("ask")]))


async def workflows_of(user: User) -> list[WorkflowExecutionStatus | None]:
    """Return how the workflows of the session's notices stand, the first one first."""
    query = f"WorkflowType = '{NOTICE_WORKFLOW}' AND WorkflowId STARTS_WITH '{NOTICE_WORKFLOW}/{user.key}/'"
    found = [run async for run in user.client.list_workflows(query)]
    return [run.status for run in sorted(found, key=lambda run: run.start_time)]


async def ended(user: User, *statuses: WorkflowExecutionStatus) -> None:
    async def look() -> bool:
        return await workflows_of(user) == list(statuses)

    await eventually(look)


@pytest.mark.parametrize("cached", [100, 0], ids=["cached", "replayed"])
async def test_a_call_that_waits_is_told_once(client: Client, app_name: str, cached: int) -> None:
    with webhook() as told:
        async with serving(client, asking(app_name), cached=cached, notices=telling(told)) as user:
            await user.create()
            waiting = await user.run("a")
            [call] = [call.id for call in waiting.pending]
            await comes(told, ("call.waiting", call))
            await user.answered({call: {"ok": True}})
            await ended(user, WorkflowExecutionStatus.COMPLETED)
        assert len(told.got) == 1


async def test_without_settings_history_is_as_ever_and_nobody_is_told(client: Client, app_name: str) -> None:
    async with serving(client, asking(app_name)) as user:
        await user.create()
        await user.run("a")
        [history] = await user.histories()
        assert "perdure:notify" not in history.to_json()
        assert await workflows_of(user) == []


async def test_what_is_answered_by_then_is_not_told(client: Client, app_name: str) -> None:
    with webhook() as told:
        async with serving(client, asking(app_name), notices=telling(told, delay=3)) as user:
            await user.create()
            waiting = await user.run("a")
            await user.answered({waiting.pending[0].id: {"ok": True}})
            await ended(user, WorkflowExecutionStatus.COMPLETED)
        assert told.got == []


async def test_a_call_that_still_waits_is_told_once_more(client: Client, app_name: str) -> None:
    with webhook() as told:
        async with serving(client, asking(app_name), notices=telling(told, remind_after=2)) as user:
            await user.create()
            [call] = [call.id for call in (await user.run("a")).pending]
            await comes(told, ("call.waiting", call), ("call.due", call))
            ids = [headers["webhook-id"] for headers, _ in told.got]
            assert len(set(ids)) == 2
            await ended(user, WorkflowExecutionStatus.COMPLETED)


async def test_a_call_that_was_answered_is_due_no_more(client: Client, app_name: str) -> None:
    with webhook() as told:
        async with serving(client, asking(app_name), notices=telling(told, remind_after=3)) as user:
            await user.create()
            [call] = [call.id for call in (await user.run("a")).pending]
            await comes(told, ("call.waiting", call))
            await user.answered({call: {"ok": True}})
            await ended(user, WorkflowExecutionStatus.COMPLETED)
        assert notices(told) == [("call.waiting", call)]


async def test_a_receiver_that_is_away_is_told_later_and_holds_no_other_up(client: Client, app_name: str) -> None:
    with webhook() as told:
        told.answers += [(503, {}), (503, {})]
        async with mailbox() as box:
            mail = {"smtp": box.url, "from": "a@example.com", "to": ["b@example.com"]}
            async with serving(client, asking(app_name), notices=telling(told, mail=mail)) as user:
                await user.create()
                [call] = [call.id for call in (await user.run("a")).pending]
                await eventually(lambda: len(box.got) == 1)
                await eventually(lambda: len(told.got) == 3)
                await ended(user, WorkflowExecutionStatus.COMPLETED)
                assert {headers["webhook-id"] for headers, _ in told.got} == {
                    box.got[0]["message-id"].partition("@")[0].removeprefix("<")
                }
        assert len(box.got) == 1
        assert notices(told) == [("call.waiting", call)] * 3


async def test_a_receiver_that_refuses_leaves_a_failed_workflow_that_says_so(client: Client, app_name: str) -> None:
    """And a session that goes on, and histories without the address, which may be a secret."""
    with webhook() as told:
        told.answers.append((404, {}))
        async with serving(client, asking(app_name), notices=telling(told)) as user:
            await user.create()
            [call] = [call.id for call in (await user.run("a")).pending]
            await ended(user, WorkflowExecutionStatus.FAILED)
            histories = await user.histories()
            query = f"WorkflowId STARTS_WITH '{NOTICE_WORKFLOW}/{user.key}/'"
            histories += [await history_of(client, run.id) async for run in client.list_workflows(query)]
            written = "".join(history.to_json() for history in histories)
            assert ("the webhook answers with status 404" in written, "/hook" in written) == (True, False)
            assert (await user.answered({call: {"ok": True}})).status == "finished"


async def history_of(client: Client, workflow_id: str) -> WorkflowHistory:
    return await client.get_workflow_handle(workflow_id).fetch_history()


async def test_each_failure_is_told(client: Client, app_name: str) -> None:
    pay = Counted("pay", fail=2)
    app = make_app(app_name, agent("clerk", [calls("pay"), text("done")], [pay.once]))
    with webhook() as told:
        async with serving(client, app, notices=telling(told)) as user:
            await user.create()
            failed = await user.run("a")
            await comes(told, ("invocation.failed", "pay"))
            assert (await user.resumed(failed.id)).status == "failed"
            await comes(told, ("invocation.failed", "pay"), ("invocation.failed", "pay"))
            assert (await user.resumed(failed.id)).status == "finished"
        assert len(told.got) == 2


async def test_an_approval_is_told_as_soon_as_it_is_asked_for(client: Client, app_name: str) -> None:
    """While another branch is at work."""
    gate, pay = Gate(), FunctionTool(Counted("pay").fn, require_confirmation=True)
    tree = ParallelAgent(
        name="office",
        sub_agents=[
            agent("slow", [calls("wait"), text("done")], [gate.tool("wait")]),
            agent("clerk", [calls("pay"), text("done")], [pay]),
        ],
    )
    with webhook() as told:
        async with serving(client, make_app(app_name, tree), notices=telling(told, content=True)) as user:
            await user.create()
            invocation = await user.send("pay it, please")
            await eventually(lambda: len(told.got) == 1)
            data = json.loads(told.got[0][1])["data"]
            assert (data["tool"], data["asks"], data["message"]) == ("pay", "confirmation", "pay it, please")
            assert (await user.invocation(invocation)).status == "running"
            gate.open()
            assert (await user.answered({data["call"]: {"confirmed": True}})).status == "finished"


async def test_continue_as_new_tells_nothing_twice(small_client: Client, app_name: str) -> None:
    script = [calls("ask"), *[text("fill")] * 12, calls("ask"), text("done")]
    app = make_app(app_name, agent("clerk", script, [long_running("ask")]))
    with webhook() as told:
        async with serving(small_client, app, notices=telling(told)) as user:
            await user.create()
            [first] = [call.id for call in (await user.run("a")).pending]
            run_id = (await user.workflow.describe()).run_id
            for number in range(12):
                await user.run(f"m{number}")
            assert (await user.workflow.describe()).run_id != run_id
            await comes(told, ("call.waiting", first))
            # And the next run still has people told.
            [second] = [call.id for call in (await user.run("b")).pending]
            await comes(told, ("call.waiting", first), ("call.waiting", second))


async def test_a_worker_that_was_given_no_settings_leaves_what_others_began(client: Client, app_name: str) -> None:
    app = asking(app_name, text("again"), calls("ask"))
    with webhook() as told:
        told.answers += [(503, {})] * 20
        async with serving(client, app, notices=telling(told)) as user:
            await user.create()
            [call] = [call.id for call in (await user.run("a")).pending]
            await eventually(lambda: len(told.got) >= 1)
        async with serving(client, app) as user:
            await user.run("b")
        told.answers.clear()
        told.got.clear()
        async with serving(client, app, notices=telling(told)) as user:
            await eventually(lambda: bool(told.got))
            assert set(notices(told)) == {("call.waiting", call)}


async def test_a_deleted_session_is_told_of_no_more(client: Client, app_name: str) -> None:
    with webhook() as told:
        async with serving(client, asking(app_name), notices=telling(told, delay=3)) as user:
            await user.create()
            await user.run("a")
            await user.runner.delete_session(**user.who)
            await ended(user, WorkflowExecutionStatus.COMPLETED)
        assert told.got == []


def test_the_address_of_a_notice_fits_the_link_to_a_call() -> None:
    """The path is the page's own."""
    from perdure.api.pages.rendering import SESSION
    from perdure.messages.addresses import session_path
    from perdure.messages.keys import SessionKey

    template = re.sub(
        r"\{(\w+)\}", lambda found: {"app_name": "a", "user_id": "u", "session_id": "s"}[found[1]], SESSION
    )
    assert session_path(SessionKey("a", "u", "s"), "calls", "c").endswith(f"{template}/calls/c")


async def test_a_session_that_was_brought_back_tells_nothing_twice(client: Client, app_name: str) -> None:
    with webhook() as told:
        async with serving(client, asking(app_name), notices=telling(told)) as user:
            await user.create()
            waiting = await user.run("a")
            [call] = [call.id for call in waiting.pending]
            await comes(told, ("call.waiting", call))
            await user.workflow.terminate("lost")
            await user.resume(waiting.id)
            assert (await user.answered({call: {"ok": True}})).status == "finished"
        assert len(told.got) == 1
