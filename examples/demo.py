"""The demo that `make demo` plays: an agent tree waits, is answered, loses its worker in mid-turn, and goes on.

It starts a Temporal server in memory and a worker process for `examples/agents`, a folder of google.adk's agents, kills
the worker after the first answer, starts another, answers the second call by signal, as a webhook would, and checks the
log: each thing once.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

from temporalio.client import Client

from examples.models import GEMINI, on_gemini
from examples.show import describe, show
from perdure import ConnectionConfig, Event, InvocationView, PendingCall, Runner, connect
from perdure.messages.keys import SessionKey
from perdure.serving.dev_server import DevServer, DevServerConfig

AGENTS = Path(__file__).parent / "agents"
THINKING = 1.0
"""Seconds until the worker is killed; the script's second answer takes two."""
MESSAGE = "I need a notebook."
USER, SESSION = "ann", "demo"
ANSWERS = {"select_item": {"selected": "red notebook"}, "confirm_choice": {"confirmed": True}}
SCRIPTED_LOG = (
    ("user", f"says: {MESSAGE}"),
    ("orchestrator", 'calls transfer_to_agent(agent_name="picker")'),
    ("orchestrator", 'gets from transfer_to_agent: {"result": null}'),
    ("picker", 'calls select_item(items=["blue notebook", "red notebook"]) and waits for the answer'),
    ("user", 'answers select_item: {"selected": "red notebook"}'),
    ("picker", 'calls confirm_choice(item="red notebook") and waits for the answer'),
    ("user", 'answers confirm_choice: {"confirmed": true}'),
    ("picker", "says: The red notebook is yours."),
    ("picker", "ends"),
    ("orchestrator", "ends"),
)
"""What the log must say with the scripted model."""


@asynccontextmanager
async def worker_process(address: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Run a worker for the picker in a process of its own, and kill it at the end if it is still there."""
    command = ("-m", "perdure", "worker", str(AGENTS), "--address", address, "--log-level", "error")
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=asyncio.subprocess.DEVNULL)
    try:
        yield process
    finally:
        await kill(process)


async def kill(process: asyncio.subprocess.Process) -> None:
    """End a process as a power cut would (SIGKILL)."""
    if process.returncode is None:
        process.kill()
        await process.wait()


class Demo:
    """The customer's side of the demo, and the one who pulls the plug."""

    def __init__(self, address: str, client: Client) -> None:
        self._address = address
        self._client = client
        self._runner = Runner("picker", client)
        self._step = 0

    async def play(self) -> list[Event]:
        """Play the demo; returns the session's log."""
        await self._runner.create_session(user_id=USER, session_id=SESSION)
        async with worker_process(self._address) as worker:
            self._say(f"A worker serves the app (process {worker.pid}). Ann writes: {MESSAGE}")
            result = await self._runner.send_message(user_id=USER, session_id=SESSION, message=MESSAGE)
            await self._follow(result.invocation.id, result.offset)
            invocation_id = result.invocation.id
            for call in (await self._invocation(invocation_id)).pending:
                self._say(f"The invocation waits. Ann answers {call.name}; as the model thinks about it ...")
                responses = {call.id: ANSWERS[call.name]}
                result = await self._runner.respond(user_id=USER, session_id=SESSION, responses=responses)
            await asyncio.sleep(THINKING)
            await kill(worker)
            print(f"   ... kill -9 {worker.pid}. No process of the app is left.", flush=True)
        async with worker_process(self._address) as worker:
            self._say(f"Another worker (process {worker.pid}) starts, and goes on in the middle of the turn:")
            await self._follow(result.invocation.id, result.offset)
            while calls := (await self._invocation(invocation_id)).pending:
                self._say(f"The invocation waits again. A webhook answers {calls[0].name}, by signal:")
                await self._signal(calls[0])
            return await self._log()

    def _say(self, text: str) -> None:
        self._step += 1
        print(f"{self._step}. {text}", flush=True)

    async def _signal(self, call: PendingCall) -> None:
        """Answer a call as whatever can only signal does, and show what follows."""
        offset = len(await self._log())
        workflow = self._client.get_workflow_handle(SessionKey("picker", USER, SESSION).workflow_id)
        await workflow.signal("function_response", {"id": call.id, "response": ANSWERS[call.name]})
        invocation = await self._invocation(call.invocation_id)
        await self._follow(invocation.id, offset)

    async def _follow(self, invocation_id: str, since: int) -> None:
        async for event in self._runner.follow(
            user_id=USER, session_id=SESSION, invocation_id=invocation_id, since=since
        ):
            if event.text or event.get_function_calls():
                show(event)

    async def _invocation(self, invocation_id: str) -> InvocationView:
        return await self._runner.invocation(user_id=USER, session_id=SESSION, invocation_id=invocation_id)

    async def _log(self) -> list[Event]:
        return [event async for event in self._runner.events(user_id=USER, session_id=SESSION)]


def problems(log: Sequence[Event]) -> list[str]:
    """Return what is wrong with the log: whatever is in it twice, or, with the script, not as it must be."""
    events = Counter(event.id for event in log)
    calls = Counter(call.id for event in log for call in event.get_function_calls())
    # A long-running call has its tool's response and its user's answer.
    responses = Counter((event.author == "user", r.id) for event in log for r in event.get_function_responses())
    found = [
        f"{key} is in the log {n} times" for counts in (events, calls, responses) for key, n in counts.items() if n > 1
    ]
    told = tuple((event.author, line) for event in log for line in describe(event))
    if not on_gemini() and told != SCRIPTED_LOG:
        found.append("the log is not the one that the script should leave")
    return found


async def main() -> int:
    """Play the demo on a server of its own; returns the exit code."""
    task = asyncio.current_task()
    if task is not None:
        # So that an end from outside leaves no process behind.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    began = monotonic()
    # For a while there is no worker, on purpose.
    logging.getLogger("perdure.client").setLevel(logging.ERROR)
    async with DevServer(DevServerConfig(headless=True)) as server:
        print(f"Temporal runs at {server.address}; the agents think with {GEMINI if on_gemini() else 'a script'}.")
        log = await Demo(server.address, await connect(ConnectionConfig(address=server.address))).play()
    print("The log of the session, from first to last:")
    for event in log:
        show(event)
    found = problems(log)
    print("\n".join(found) or f"Each thing is there once. ({monotonic() - began:.0f} s)")
    print("See it in the Temporal UI:  perdure dev examples/agents")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
