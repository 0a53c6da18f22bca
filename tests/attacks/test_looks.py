"""A hundred messages at once to one session, while everybody looks at it: no look changes a run.

The looks are the queries that Temporal's UI sends by itself, and Perdure's own; and some follow. That the history of
each run replays is what would show an order that a look has changed, before it makes the session stuck.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from google.genai import types
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError

from perdure.agents import App, FunctionTool, ToolContext
from perdure.client import Runner
from perdure.config import ConnectionConfig, connect
from perdure.journal.events import USER, Event
from perdure.messages.session import EVENTS, PENDING, SESSION, PageInput, Trial
from perdure.models.base import BaseLlm, LlmRequest, LlmResponse
from perdure.prove.replay import replay_history
from tests.workflows.support import User, agent, check_log, make_app, serving

LONG = os.environ.get("PERDURE_PROVE") == "long"
MESSAGES = 100
_MOST_AGAIN = 10
"""Local tools of a hundred that may run again, with the same key."""
_PATIENCE = 1500.0 if LONG else 500.0
"""Seconds for a hundred invocations, on a machine that may be busy; a worker without room starts anew meanwhile."""
_PAUSE = 0.05
"""Seconds between two looks of a kind."""
_PAUSE_ELSEWHERE = 0.5
"""Seconds between two looks at another session."""

pytestmark = [pytest.mark.server, pytest.mark.timeout(2 * _PATIENCE + 200)]

LOOKS: dict[str, tuple[PageInput, ...]] = {
    "__temporal_workflow_metadata": (),
    "__stack_trace": (),
    EVENTS: (PageInput(since=0),),
    SESSION: (),
    PENDING: (),
}


@dataclass(frozen=True)
class Round:
    """How the session is served and asked."""

    local: bool = False
    """The agent has a local tool, which it calls for each message."""
    cached: int = 100
    """Sessions that a worker has room for."""
    steps: int | None = None
    """Steps after which a run hands over to the next."""
    others: int = 0
    """Sessions beside it that are looked at, for each of which a worker without room drops one."""
    workers: int = 1
    process: bool = False
    """The worker is a process, which starts anew where Temporal's core has lost a step, as it may without room."""
    clients: int = 1
    """Processes that send, each of which knows nothing of the others."""


ROUNDS = {
    "as it comes": Round(),
    "local tools": Round(local=True),
    "short runs": Round(local=True, steps=40),
    "little room": Round(local=True, cached=2, others=4, process=True),
    "two of each": Round(workers=2, clients=2),
}
REPEATS = 10 if LONG else 1
FOLLOWERS = 20 if LONG else 2
BRIEF = ("as it comes", "local tools")
"""What every run of the tests has; the others take minutes on two busy cores, and come with `make prove`."""


class Clerk(BaseLlm):
    """Calls its tool, if it has one, for each message, and says what it was told."""

    def __init__(self, *, books: bool) -> None:
        super().__init__(model="clerk")
        self._books = books

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        told = [part for content in llm_request.contents for part in content.parts or [] if part.text]
        last = (llm_request.contents[-1].parts or [])[-1]
        if self._books and not last.function_response:
            call = types.FunctionCall(name="book", args={"what": told[-1].text})
            part = types.Part(function_call=call)
        else:
            words = [part.text for part in told if (part.text or "").startswith("message")]
            part = types.Part(text=f"done: {words[-1]}")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


AGENT = """
from tests.attacks.test_looks import app_of
app = app_of({name!r}, books={books}, book={path!r})
"""


def app_of(name: str, *, books: bool, book: str) -> App:
    """Return the app, which books in a file: a line of what and key for each time that its tool runs."""

    def note(what: str, tool_context: ToolContext) -> str:
        """Book something."""
        with Path(book).open("a") as file:
            file.write(f"{what}\t{tool_context.idempotency_key}\n")
        return "ok"

    note.__name__ = "book"
    return make_app(name, agent("clerk", Clerk(books=books), [FunctionTool(note, local=True)] if books else []))


@asynccontextmanager
async def _serving_elsewhere(app: str, folder: Path, address: str, cached: int) -> AsyncGenerator[None]:
    """Run `perdure worker` in a process of its own, for the app of a file `APP.py`."""
    command = ("worker", f"{app}.py", "--grace", "1", "--max-sessions", str(cached), "--address", address)
    with (folder / "worker.log").open("w") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "perdure", *command),
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
            stdout=log,
            stderr=log,
        )
    try:
        yield
        assert process.returncode is None, (folder / "worker.log").read_text()
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _look(user: User, name: str, *args: PageInput, pause: float = _PAUSE) -> None:
    """Look again and again; a look may be refused, and changes nothing."""
    while True:
        with suppress(WorkflowQueryFailedError, RPCError):
            await user.workflow.query(name, *args)
        await asyncio.sleep(pause)


async def _follow(user: User, seen: list[Event]) -> None:
    async for event in user.runner.events(**user.who, follow=True):
        seen.append(event)


@asynccontextmanager
async def _looked_at(user: User, others: Sequence[User]) -> AsyncGenerator[list[list[Event]]]:
    """Have everybody look at a session; yields what the followers see."""
    seen: list[list[Event]] = [[] for _ in range(FOLLOWERS)]
    tasks = [asyncio.create_task(_look(user, name, *args)) for name, args in LOOKS.items()]
    tasks += [asyncio.create_task(_look(other, SESSION, pause=_PAUSE_ELSEWHERE)) for other in others]
    followers = [asyncio.create_task(_follow(user, events)) for events in seen]
    try:
        yield seen
        # What was logged comes to them later: on a busy machine by seconds. One moment more shows what comes twice.
        logged = len(await user.events())
        async with asyncio.timeout(_PATIENCE):
            while any(len(events) < logged for events in seen):  # noqa: ASYNC110 -- they are plain lists
                await asyncio.sleep(_PAUSE)
        await asyncio.sleep(1)
        assert not any(task.done() for task in (*tasks, *followers)), "a look ended"
    finally:
        for task in (*tasks, *followers):
            task.cancel()
        await asyncio.gather(*tasks, *followers, return_exceptions=True)


async def _ask(runner: Runner, user: User, words: str) -> list[str]:
    """Send a message, as `/run` does; returns what the agents said to it."""
    events = [event async for event in runner.run_async(**user.who, new_message=words, request_id=words)]
    return [event.text for event in events if event.text]


@pytest.mark.parametrize("repeat", range(REPEATS))
@pytest.mark.parametrize("how", ROUNDS if LONG else BRIEF)
async def test_a_hundred_at_once_are_all_answered_once_while_all_look(
    client: Client, temporal_server: str, app_name: str, tmp_path: Path, how: str, repeat: int
) -> None:
    """None is stuck, none is lost, none is logged twice."""
    setting, book = ROUNDS[how], tmp_path / "book"
    book.touch()
    app = app_of(app_name, books=setting.local, book=str(book))
    trial = Trial(steps_per_run=setting.steps)
    messages = [f"message {number}" for number in range(MESSAGES)]
    async with AsyncExitStack() as stack:
        # Debug, since a busy machine may stop a thread for the two seconds after which Temporal takes it for stuck.
        # Temporal's core takes one worker for a task queue on each connection.
        connection = ConnectionConfig(address=temporal_server, namespace="default", tls=False)
        if setting.process:
            source = AGENT.format(name=app_name, books=setting.local, path=str(book))
            (tmp_path / f"{app_name}.py").write_text(source)
            await stack.enter_async_context(_serving_elsewhere(app_name, tmp_path, temporal_server, setting.cached))
            user = User(client, app_name)
        else:
            clients = [client, *[await connect(connection) for _ in range(setting.workers - 1)]]
            served = [serving(each, app, cached=setting.cached, debug=True) for each in clients]
            user, *_ = [await stack.enter_async_context(worker) for worker in served]
        user.runner = Runner(app_name, client, trial=trial, local_tools=setting.local)
        senders = [Runner(app_name, client, trial=trial) for _ in range(setting.clients)]
        others = [user.other(session_id=f"other {number}") for number in range(setting.others)]
        for session in (user, *others):
            await session.create()
        async with _looked_at(user, others) as seen, asyncio.timeout(_PATIENCE):
            asked = [_ask(senders[at % len(senders)], user, words) for at, words in enumerate(messages)]
            answers = await asyncio.gather(*asked)
        log = await user.events()
        assert answers == [[f"done: {words}"] for words in messages]
        assert Counter(event.text for event in log if event.author == USER) == Counter(messages)
        assert Counter(event.text for event in log if event.author == "clerk" and event.text) == Counter(
            f"done: {words}" for words in messages
        )
        for events in seen:
            check_log(events)
            assert [event.id for event in events] == [event.id for event in log]
        booked = defaultdict[str, list[str]](list)
        for line in book.read_text().splitlines():
            what, key = line.split("\t")
            booked[what].append(key)
        assert set(booked) == set(messages if setting.local else ())
        for history in await user.histories():
            await replay_history(history)
    # A task that timed out, or that a look was replayed up to, runs its local tool again: as the same call.
    assert all(len(set(keys)) == 1 for keys in booked.values())
    assert len([what for what, keys in booked.items() if len(keys) > 1]) <= _MOST_AGAIN
