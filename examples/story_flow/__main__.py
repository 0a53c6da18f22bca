"""Runs the app once, on a Temporal server in memory and a worker in this process: `python -m examples.story_flow`."""

from __future__ import annotations

import asyncio
import sys

from examples.show import show
from examples.story_flow.agent import app
from perdure import ConnectionConfig, Runner, connect, create_workers
from perdure.serving.dev_server import DevServer, DevServerConfig


async def main(message: str) -> None:
    """Print the events of one invocation, and the story that it leaves in the session's state."""
    async with DevServer(DevServerConfig(headless=True)) as server:
        client = await connect(ConnectionConfig(address=server.address))
        [worker] = create_workers(client, [app])
        async with worker:
            runner = Runner(app.name, client)
            await runner.create_session(user_id="user", session_id="story")
            async for event in runner.run_async(user_id="user", session_id="story", new_message=message):
                show(event, width=18)
            session = await runner.get_session(user_id="user", session_id="story")
    print(f"\n{session.state['current_story']}")


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:]) or "A brave kitten in a haunted house"))
