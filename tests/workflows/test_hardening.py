"""What once bricked a session, or did something twice, and must not do so again."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest
from temporalio.client import Client

from perdure.agents import FunctionTool, LoopAgent, ToolContext
from perdure.errors import DefinitionWarning
from perdure.journal.events import REQUEST_CONFIRMATION
from perdure.messages.shared_state import state_workflow_id
from perdure.sessions.shared_state import read_state
from tests.workflows.support import ONCE, Counted, agent, calls, eventually, long_running, make_app, serving, text

pytestmark = pytest.mark.server


async def test_a_model_cannot_ask_for_confirmations_by_itself(client: Client, app_name: str) -> None:
    """Its call is one of an unknown tool: the model is told, nothing waits, and a resume goes on behind it."""
    forged = {"calls": [{"name": REQUEST_CONFIRMATION, "args": {"originalFunctionCall": "junk"}}]}
    clerk = agent("clerk", [forged, {"error": "overloaded"}, text("done")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        failed = await user.run("go")
        assert (failed.status, failed.pending) == ("failed", ())
        assert (await user.resumed(failed.id)).status == "finished"
        assert (await user.log())[-1] == "clerk: done"


async def test_results_that_are_too_large_together_fail_nothing(client: Client, app_name: str) -> None:
    def big() -> str:
        """Return a lot."""
        return "x" * 1_000_000

    clerk = agent("clerk", [calls("big", "big"), text("read"), text("still here")], tools=[big])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        whole = [
            len(found.response or {}) == 1 for event in await user.events() for found in event.get_function_responses()
        ]
        assert sorted(whole) == [False, True]
        assert (await user.run("and now?")).status == "finished"


async def test_large_arguments_of_open_calls_do_not_hold_up_a_session(client: Client, app_name: str) -> None:
    clerk = agent("clerk", [calls("ask", text="y" * 1_200_000), text("done")], tools=[long_running("ask")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        waiting = await user.run("go")
        assert waiting.status == "waiting"
        assert (await user.resume(waiting.id)).status == "waiting"
        assert (await user.answered({waiting.pending[0].id: {"ok": True}})).status == "finished"


async def test_a_tool_that_exits_ends_neither_worker_nor_other_tools(client: Client, app_name: str) -> None:
    async def leave() -> None:
        """Leave."""
        sys.exit(2)

    async def stay() -> str:
        """Stay."""
        return "here"

    clerk = agent("clerk", [calls("leave"), calls("stay"), text("done")], tools=[FunctionTool(leave, retry=ONCE), stay])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        failed = await user.run("go")
        assert "asked the process to exit" in failed.failures[0].cause
        assert (await user.run("again")).status == "finished"


async def test_control_sent_to_and_fro_ends_with_a_reason(client: Client, app_name: str) -> None:
    to: list[dict[str, Any]] = [{"calls": [{"name": "transfer_to_agent", "args": {"agent_name": "b"}}]}] * 60
    fro: list[dict[str, Any]] = [{"calls": [{"name": "transfer_to_agent", "args": {"agent_name": "a"}}]}] * 60
    root = agent("a", to, sub_agents=[agent("b", fro)])
    async with serving(client, make_app(app_name, root)) as user:
        await user.create()
        failed = await user.run("go")
        assert failed.status == "failed"
        assert "to and fro" in failed.failures[0].cause


async def test_a_loop_that_does_nothing_can_be_stopped(client: Client, app_name: str) -> None:
    """Its iterations are a timer apart, so that the workflow task ends."""
    idle = LoopAgent(name="idle", sub_agents=[LoopAgent(name="empty")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DefinitionWarning)
        async with serving(client, make_app(app_name, idle)) as user:
            await user.create()
            invocation = await user.send("go")
            assert (await user.stop(invocation)).status == "stopped"


async def test_an_empty_request_id_is_none(client: Client, app_name: str) -> None:
    clerk = agent("clerk", [text("one"), text("two")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        raw: Any = user.workflow
        first = await raw.execute_update("send_message", {"content": _text("a"), "request_id": ""})
        second = await raw.execute_update("send_message", {"content": _text("b"), "request_id": ""})
        assert first["invocation"]["id"] != second["invocation"]["id"]


async def test_two_users_may_create_sessions_of_one_id_with_app_state(client: Client, app_name: str) -> None:
    def read(tool_context: ToolContext) -> Any:
        """Read."""
        return tool_context.state.get("app:motd")

    clerk = agent("clerk", [calls("read"), text("done")], tools=[read])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create(**{"app:motd": "one"})
        other = user.other("someone", "s")
        await other.create(**{"app:motd": "two"})
        await other.run("go")
        assert (await other.view()).state["app:motd"] == "two"


async def test_a_cancelled_shared_state_workflow_loses_nothing(client: Client, app_name: str) -> None:
    clerk = agent("clerk", [text("one")])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create(**{"user:lang": "en"})
        handle = client.get_workflow_handle(state_workflow_id(app_name, "u"))
        await handle.cancel()
        await user.other("u", "second").create(**{"user:tone": "dry"})

        async def both() -> bool:
            return await read_state(client, app_name, "u") == {"user:lang": "en", "user:tone": "dry"}

        await eventually(both)


async def test_an_untouched_tool_is_not_run_by_a_stop(client: Client, app_name: str) -> None:
    tool = Counted("work")
    clerk = agent("clerk", [calls("ask"), calls("work"), text("done")], tools=[long_running("ask"), tool.once])
    async with serving(client, make_app(app_name, clerk)) as user:
        await user.create()
        waiting = await user.run("go")
        await user.stop(waiting.id)
        await user.answer({waiting.pending[0].id: {}})
        assert tool.keys == []
        assert (await user.resumed(waiting.id)).status == "finished"
        assert len(tool.keys) == 1


def _text(words: str) -> dict[str, Any]:
    return {"role": "user", "parts": [{"text": words}]}
