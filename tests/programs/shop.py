"""A program as google.adk's users write them: builds a Runner, sends messages, prints what comes."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

APP = os.environ.get("SHOP", "shop")


class Clerk(BaseLlm):
    """Calls the tool once for each message."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        last = (llm_request.contents[-1].parts or [])[-1]
        part = types.Part(function_call=types.FunctionCall(name="pay", args={"amount": 3}))
        if last.function_response:
            part = types.Part(text=f"done with {len(llm_request.contents)} contents")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def pay(amount: int) -> str:
    """Pay an amount."""
    with Path("paid").open("a") as file:
        file.write(f"{amount}\n")
    if Path("slow").exists():
        time.sleep(60)
    return "paid"


async def main() -> None:
    """Send the messages of the command line, one after the other."""
    service = SqliteSessionService("sessions.db")
    runner = Runner(
        agent=LlmAgent(name="clerk", model=Clerk(model="clerk"), tools=[pay]), app_name=APP, session_service=service
    )
    who: dict[str, Any] = {"app_name": APP, "user_id": "u", "session_id": "s"}
    if await service.get_session(**who) is None:
        await service.create_session(**who)
    for message in sys.argv[1:]:
        async for event in runner.run_async(
            user_id="u", session_id="s", new_message=types.UserContent(parts=[types.Part(text=message)])
        ):
            for part in (event.content.parts or []) if event.content is not None else []:
                print(event.author, part.text, flush=True)
    session = await service.get_session(**who)
    print(len(session.events) if session is not None else 0, "events")
    await runner.close()


if __name__ == "__main__":
    asyncio.run(main())
