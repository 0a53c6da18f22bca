"""What the Temporal UI tells of a session, and that it works on a server which has no room for search attributes."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from temporalio.api.enums.v1 import EventType
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client

from perdure.messages.search_attributes import APP, PENDING_TOOLS, STATUS, USER_ID
from tests.workflows.support import Counted, User, agent, calls, eventually, long_running, make_app, serving, text

pytestmark = pytest.mark.server


async def details(user: User) -> str:
    metadata = await user.workflow.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return metadata.current_details


async def attributes(user: User) -> dict[str, Any]:
    found = (await user.workflow.describe()).typed_search_attributes
    # The server keeps no empty list.
    tools = list(found.get(PENDING_TOOLS) or ())
    return {"app": found[APP], "user": found[USER_ID], "status": found[STATUS], "tools": tools}


async def test_the_workflows_page_tells_the_story(client: Client, app_name: str) -> None:
    script = [calls("search_flights"), calls("pick"), text("done"), {"error": "the model is down"}]
    clerk = agent("clerk", script, [Counted("search_flights").fn, long_running("pick")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        waiting = await user.run("a")
        description = await user.workflow.describe()
        assert (description.workflow_type, description.id) == (app_name, f"{app_name}/u/s")
        assert await description.static_summary() == "session s of u"
        shown = await details(user)
        assert "**waiting**" in shown
        assert waiting.id in shown
        assert waiting.pending[0].id in shown
        assert "`pick` of `clerk`" in shown
        await user.answered({waiting.pending[0].id: {}})
        await user.run("b")
        shown = await details(user)
        assert "**failed**" in shown
        assert "the model is down" in shown


async def test_activities_are_named_after_tools_and_summaries_name_the_agent(client: Client, app_name: str) -> None:
    clerk = agent("clerk", [calls("search_flights"), text("done")], [Counted("search_flights").fn])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        await user.run("a")
        history = await user.workflow.fetch_history()
        scheduled = [e for e in history.events if e.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED]
        names = [event.activity_task_scheduled_event_attributes.activity_type.name for event in scheduled]
        assert names == ["perdure:load_plan", "perdure:model", "search_flights", "perdure:model"]
        summaries = [event.user_metadata.summary.data.decode() for event in scheduled]
        assert summaries[1:] == ['"clerk: scripted"', '"clerk"', '"clerk: scripted"']
        readable = str([MessageToDict(event) for event in scheduled])
        assert "null" not in readable


async def test_sessions_are_found_by_search_attributes(client: Client, app_name: str) -> None:
    clerk = agent("clerk", [calls("pick", "ask"), text("done")], [long_running("pick"), long_running("ask")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        waiting = await user.run("a")
        expected = {"app": app_name, "user": "u", "status": "waiting", "tools": ["ask", "pick"]}

        async def shows() -> bool:
            return await attributes(user) == expected

        await eventually(shows)
        query = f"PerdureApp = '{app_name}' AND PerdureStatus = 'waiting' AND PerdurePendingTools = 'pick'"

        async def listed() -> bool:
            return [run.id async for run in client.list_workflows(query)] == [user.key]

        await eventually(listed)
        (found, call), _ = await user.runner.pending(user_id="u")
        assert (found.status, found.pending_tools) == ("waiting", ("ask", "pick"))
        assert call.id in {pending.id for pending in waiting.pending}
        assert await user.runner.pending(user_id="nobody") == []
        await user.answered({call.id: {} for call in waiting.pending})
        expected |= {"status": "idle", "tools": []}
        await eventually(shows)


async def test_search_attributes_come_back_with_a_session(client: Client, app_name: str) -> None:
    clerk = agent("clerk", [calls("pick"), text("done")], [long_running("pick")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        waiting = await user.run("a")
        await user.workflow.terminate()
        await user.stop(waiting.id)
        assert (await user.resumed(waiting.id)).status == "waiting"

        async def listed() -> bool:
            found = await user.runner.list_sessions()
            return [(session.status, session.closed, session.pending_tools) for session in found] == [
                ("waiting", False, ("pick",))
            ]

        await eventually(listed)


async def test_a_server_without_room_for_search_attributes_will_do(
    small_client: Client, app_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    clerk = agent("clerk", [calls("pick"), text("done")], [long_running("pick")])
    async with serving(small_client, make_app(app_name, clerk)) as user:
        await user.create()
        waiting = await user.run("a")

        async def listed() -> bool:
            found = await user.runner.list_sessions()
            return [(s.id, s.status, s.pending_tools, s.closed) for s in found] == [("s", None, None, False)]

        await eventually(listed)
        ((_, call),) = await user.runner.pending()
        assert call.id == waiting.pending[0].id
        assert "waits for `pick`" in await details(user)
        assert (await user.answered({call.id: {}})).status == "finished"
    warnings = [record for record in caplog.records if "search attributes are missing" in record.getMessage()]
    assert len(warnings) == 1
