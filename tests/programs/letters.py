"""A program of google.adk 2's with a graph that asks a person."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from typing import Any

from google.adk import Workflow
from google.adk.events.request_input import RequestInput
from google.adk.runners import InMemoryRunner
from google.genai import types

APP = os.environ["SHOP"]


def draft(node_input: str) -> str:
    return f"draft of {node_input}"


def ask(node_input: str) -> Generator[RequestInput]:
    yield RequestInput(interrupt_id=f"send_{len(node_input)}", message=f"Send {node_input}?", response_schema=None)


def decide(node_input: Any) -> str:
    return f"said {node_input}"


async def main() -> None:
    graph: Any = Workflow(name="letters", edges=[("START", draft, ask, decide)])
    runner = InMemoryRunner(node=graph, app_name=APP)
    session = await runner.session_service.create_session(app_name=APP, user_id="u")
    answer = types.FunctionResponse(id="send_15", name="adk_request_input", response={"result": "yes"})
    for part in (types.Part(text="letter"), types.Part(function_response=answer)):
        message = types.Content(role="user", parts=[part])
        async for event in runner.run_async(user_id="u", session_id=session.id, new_message=message):
            print(event.author, event.node_info.path, event.output, len(event.long_running_tool_ids or ()))
    await runner.close()


asyncio.run(main())
