"""The other side of `bench.plugins`: ADK agents on Temporal's plug-in or on DBOS's, in an environment of their own.

    python plugin_sides.py temporal ADDRESS | dbos FOLDER | adk FOLDER

For each line of standard input, a JSON object with `rounds` and `result_bytes`, it runs one turn, or as many at once
as `sessions` says, and prints a line of JSON with the `seconds` and, on Temporal, the `history_bytes` of one. With
`"keep_session": true`, on DBOS, ADK's session is in a database, too, as it has to be if another process is to take
the next turn. `adk` is google.adk itself with its session in SQLite, and runs the custom agent of `adk_agents`; with
`"graph": true` it, and Temporal's plug-in, run the graph. It imports nothing of Perdure.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity, workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from adk_agents import TEXT, ScriptedLlm, make_custom_agent, make_graph
    from google.adk.agents import LlmAgent
    from google.adk.models import LLMRegistry
    from google.adk.runners import InMemoryRunner, Runner
    from google.adk.sessions import InMemorySessionService
    from google.genai import types
    from temporalio.google_adk import GoogleAdkPlugin, TemporalModel
    from temporalio.google_adk.workflow import activity_as_tool

QUEUE = "bench_plugins_temporal"


LLMRegistry.register(ScriptedLlm)


@activity.defn(name="look_up")
async def look_up(size: int) -> str:
    """Look something up."""
    return TEXT[:size]


async def _drive(runner: Any, app: str) -> None:
    session = await runner.session_service.create_session(app_name=app, user_id="u")
    message = types.Content(role="user", parts=[types.Part(text="go")])
    last = None
    async for event in runner.run_async(user_id="u", session_id=session.id, new_message=message):
        last = event
    if last is None or not last.content or last.content.parts[0].text != "done":
        raise RuntimeError(f"the turn ended with {last!r}")


@workflow.defn(name="plugin_turn")
class PluginTurn:
    """One turn of an ADK agent by Temporal's plug-in: model calls and tools are activities."""

    @workflow.run
    async def run(self, rounds: int, result_bytes: int) -> None:
        tool = activity_as_tool(look_up, start_to_close_timeout=timedelta(minutes=1))
        agent = LlmAgent(name="worker", model=TemporalModel(f"scripted-{rounds}-{result_bytes}"), tools=[tool])
        await _drive(InMemoryRunner(agent=agent, app_name="bench"), "bench")


@workflow.defn(name="plugin_graph")
class PluginGraph:
    """A graph of ten nodes by Temporal's plug-in: model calls are activities, functions run in the workflow."""

    @workflow.run
    async def run(self) -> None:
        graph = make_graph(TemporalModel("scripted-0-0"))
        runner = InMemoryRunner(agent=graph, app_name="bench")
        session = await runner.session_service.create_session(app_name="bench", user_id="u")
        message = types.Content(role="user", parts=[types.Part(text="go")])
        outputs = 0
        async for event in runner.run_async(user_id="u", session_id=session.id, new_message=message):
            outputs += event.output is not None or bool(event.node_info.message_as_output)
        if outputs != 10:
            raise ApplicationError(f"{outputs} of 10 nodes had an output", non_retryable=True)


async def temporal(address: str) -> None:
    """Take turns on a Temporal server."""
    from temporalio.client import Client
    from temporalio.worker import Worker

    client = await Client.connect(address, plugins=[GoogleAdkPlugin()])
    async with Worker(client, task_queue=QUEUE, workflows=[PluginTurn, PluginGraph], activities=[look_up]):

        async def turn(rounds: int, result_bytes: int, *, graph: bool = False) -> dict[str, float]:
            start = time.perf_counter()
            what, args = ("plugin_graph", []) if graph else ("plugin_turn", [rounds, result_bytes])
            handle = await client.start_workflow(what, args=args, id=f"plugin-{uuid.uuid4()}", task_queue=QUEUE)
            await handle.result()
            seconds = time.perf_counter() - start
            history = await handle.fetch_history()
            return {"seconds": seconds, "history_bytes": sum(event.ByteSize() for event in history.events)}

        await _take_turns(turn)


async def dbos(folder: str) -> None:
    """Take turns on DBOS, with its SQLite database in a folder."""
    from dbos import DBOS
    from dbos_google_adk import DBOSPlugin
    from google.adk.sessions import DatabaseSessionService

    url = f"sqlite:///{Path(folder) / 'dbos.sqlite'}"
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "WARNING", "run_admin_server": False})

    @DBOS.step(name="look_up")
    async def look_up(size: int) -> str:
        """Look something up."""
        return TEXT[:size]

    sessions = DatabaseSessionService(f"sqlite+aiosqlite:///{Path(folder) / 'sessions.sqlite'}")

    @DBOS.workflow()
    async def run_turn(rounds: int, result_bytes: int, keep_session: bool) -> None:
        agent = LlmAgent(name="worker", model=f"scripted-{rounds}-{result_bytes}", tools=[look_up])
        service = sessions if keep_session else InMemorySessionService()
        await _drive(Runner(app_name="bench", agent=agent, plugins=[DBOSPlugin()], session_service=service), "bench")

    DBOS.launch()

    async def turn(rounds: int, result_bytes: int, *, keep_session: bool = False) -> dict[str, float]:
        start = time.perf_counter()
        await run_turn(rounds, result_bytes, keep_session)
        return {"seconds": time.perf_counter() - start}

    await _take_turns(turn)
    DBOS.destroy()


async def adk(folder: str) -> None:
    """Take turns by google.adk alone, with its sessions on SQLite in a folder."""
    from google.adk.apps.app import App
    from google.adk.sessions import DatabaseSessionService

    sessions = DatabaseSessionService(f"sqlite+aiosqlite:///{Path(folder) / 'adk.sqlite'}")

    async def turn(rounds: int, result_bytes: int, *, graph: bool = False) -> dict[str, float]:
        app = App(name="bench", root_agent=make_graph() if graph else make_custom_agent(rounds))
        runner = Runner(app=app, session_service=sessions)
        start = time.perf_counter()
        session = await sessions.create_session(app_name="bench", user_id="u")
        message = types.Content(role="user", parts=[types.Part(text="go")])
        async for _ in runner.run_async(user_id="u", session_id=session.id, new_message=message):
            pass
        return {"seconds": time.perf_counter() - start}

    await _take_turns(turn)


async def _take_turns(turn: Any) -> None:
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        asked = json.loads(line)
        sessions = asked.pop("sessions", 1)
        start = time.perf_counter()
        done = await asyncio.gather(*(turn(**asked) for _ in range(sessions)))
        print(json.dumps(done[0] | {"seconds": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    asyncio.run({"temporal": temporal, "dbos": dbos, "adk": adk}[sys.argv[1]](sys.argv[2]))
