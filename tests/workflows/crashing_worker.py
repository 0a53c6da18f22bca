"""A worker in a process of its own, to be killed: its steps leave a line each in a folder, and hang while told to.

python -m tests.workflows.crashing_worker ADDRESS APP FOLDER
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

from perdure.agents import App, FunctionTool, LlmAgent, ResumabilityConfig, ToolContext
from perdure.config import ConnectionConfig, WorkerConfig, connect
from perdure.models.base import LlmRequest, LlmResponse
from perdure.models.scripted import ScriptedModel
from perdure.worker import run_workers

HANG = "hang"
"""A file of this name holds every step whose own name it contains."""

ONCE = "once"
"""In a folder of this name the agent calls the at-most-once tool `pay`, and nothing else."""

SERVES = "serves"
"""A file of this name gets a line for each worker that asks for work."""

KEPT = "kept"
"""With a folder of this name, the server waits for longer than a test for the worker that has a session in memory."""

_LONG = timedelta(minutes=5)


async def step(folder: Path, name: str, key: str) -> None:
    with (folder / name).open("a") as lines:
        lines.write(f"{key}\n")
    # Another process takes the file away.
    while (folder / HANG).exists() and (folder / HANG).read_text() == name:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


class HangingModel(ScriptedModel):
    """A scripted model that leaves a line for each call."""

    def __init__(self, folder: Path) -> None:
        names = ("pay",) if folder.name == ONCE else ("first", "second")
        calls: list[dict[str, Any]] = [{"calls": [{"name": name, "args": {}}]} for name in names]
        super().__init__([*calls, {"text": "done"}])
        self._folder = folder

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        await step(self._folder, f"model{llm_request.call_index}", str(len(llm_request.contents)))
        async for response in super().generate_content_async(llm_request, stream):
            yield response


def build(name: str, folder: Path) -> App:
    """Return the app."""

    async def first(tool_context: ToolContext) -> str:
        """Do the first thing."""
        await step(folder, "first", tool_context.idempotency_key)
        return "1"

    async def second(tool_context: ToolContext) -> str:
        """Do the second thing."""
        await step(folder, "second", tool_context.idempotency_key)
        return "2"

    async def pay(tool_context: ToolContext) -> str:
        """Pay, which must not happen twice."""
        await step(folder, "pay", tool_context.idempotency_key)
        return "paid"

    tools = [FunctionTool(tool, heartbeat_timeout=timedelta(seconds=3)) for tool in (first, second)]
    tools.append(FunctionTool(pay, heartbeat_timeout=timedelta(seconds=3), at_most_once=True))
    clerk = LlmAgent(name="clerk", model=HangingModel(folder), tools=[*tools])
    return App(name=name, root_agent=clerk, resumability_config=ResumabilityConfig(is_resumable=True))


async def main(address: str, name: str, folder: str) -> None:
    client = await connect(ConnectionConfig(address=address, namespace="default", tls=False))
    config = WorkerConfig(sticky_timeout=_LONG) if Path(folder).name == KEPT else None
    started = asyncio.Event()
    working = asyncio.create_task(run_workers(client, [build(name, Path(folder))], config, started=started))
    await asyncio.wait({working, asyncio.create_task(started.wait())}, return_when=asyncio.FIRST_COMPLETED)
    await step(Path(folder), SERVES, str(os.getpid()))
    await working


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
