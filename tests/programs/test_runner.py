"""`perdure.adk.Runner`: google.adk's, used the same, whose runs are durable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest
from google.adk.agents import BaseAgent, LlmAgent
from google.adk.agents.live_request_queue import LiveRequestQueue
from google.adk.agents.run_config import (
    RunConfig,  # pyright: ignore[reportPrivateImportUsage] -- no other place in 1.x
    StreamingMode,  # pyright: ignore[reportPrivateImportUsage]
)
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner as PlainInMemoryRunner
from google.adk.runners import Runner as PlainRunner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.session import Session
from google.adk.tools import LongRunningFunctionTool, ToolContext
from google.genai import types
from temporalio.client import Client

import perdure
from perdure.adk import InMemoryRunner, Runner
from perdure.config import pause_at_exit
from perdure.errors import DefinitionError, InvalidMessage, InvocationFailed, SessionNotFound
from perdure.programs import embedded
from tests.adk.support import Script, agent, call, say

pytestmark = pytest.mark.server


@pytest.fixture(autouse=True)
def workers(temporal_server: str, monkeypatch: pytest.MonkeyPatch) -> Generator[embedded.Embedded]:
    """The workers of this program, on the test server; they end with the test."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server)
    embedded.embedded.cache_clear()
    yield embedded.embedded()
    embedded.embedded().close()
    embedded.embedded.cache_clear()


class Program:
    """A program with one session."""

    def __init__(self, app_name: str, root: BaseAgent, **fields: Any) -> None:
        self.service: InMemorySessionService = fields.pop("session_service", None) or InMemorySessionService()
        self.make: type[PlainRunner] = fields.pop("make", Runner)
        if fields.pop("resumable", False):
            app = App(name=app_name, root_agent=root, resumability_config=ResumabilityConfig(is_resumable=True))
            fields["app"] = app
        else:
            fields |= {"agent": root, "app_name": app_name}
        self.who: dict[str, Any] = {"app_name": app_name, "user_id": "u", "session_id": "s"}
        self.runner = self.make(session_service=self.service, **fields)

    async def create(self, **state: Any) -> None:
        await self.service.create_session(**self.who, state=state)

    async def run(self, message: str | types.Content | None, **options: Any) -> list[Event]:
        content = types.UserContent(message) if isinstance(message, str) else message
        events = self.runner.run_async(user_id="u", session_id="s", new_message=content, **options)
        return [event async for event in events]

    async def session(self) -> Session:
        found = await self.service.get_session(**self.who)
        assert found is not None
        return found


def short(events: list[Event]) -> list[str]:
    return [line for event in events for line in _short(event)]


def _short(event: Event) -> list[str]:
    called = [f"{event.author} calls {one.name}" for one in event.get_function_calls()]
    got = [f"{event.author} got {one.response}" for one in event.get_function_responses()]
    parts = (event.content.parts or []) if event.content is not None else []
    return [f"{event.author}: {part.text}" for part in parts if part.text] + called + got


def note(word: str, tool_context: ToolContext) -> str:
    """Note a word."""
    tool_context.state["word"] = word
    return "noted"


def clerk(*answers: Any, **options: Any) -> LlmAgent:
    return agent("clerk", *(answers or (call("note", word="sun"), say("done"))), tools=[note], **options)


def answer(call_id: str, name: str, **response: Any) -> types.Content:
    given = types.FunctionResponse(id=call_id, name=name, response=response)
    return types.Content(role="user", parts=[types.Part(function_response=given)])


@pytest.mark.parametrize("make", [Runner, PlainRunner])
async def test_a_turn_is_as_with_google_adks_own(app_name: str, make: type[PlainRunner]) -> None:
    program = Program(app_name, clerk(output_key="said"), make=make)
    await program.create(city="Oslo")
    events = await program.run("go", state_delta={"mood": "glad"})
    said = ["clerk calls note", "clerk got {'result': 'noted'}", "clerk: done"]
    assert short(events) == said
    session = await program.session()
    assert short(session.events) == ["user: go", *said]
    assert session.state == {"city": "Oslo", "mood": "glad", "word": "sun", "said": "done"}
    assert [event.id for event in session.events[1:]] == [event.id for event in events]
    assert len({event.invocation_id for event in session.events}) == 1


async def test_what_the_program_had_before_is_taken_over(app_name: str) -> None:
    plain = Program(app_name, clerk(), make=PlainRunner)
    await plain.create()
    await plain.run("go")
    root = clerk(say("I know"))
    program = Program(app_name, root, session_service=plain.service)
    assert short(await program.run("again")) == ["clerk: I know"]
    assert isinstance(root.model, Script)
    assert len(root.model.requests[0].contents) == 5
    assert len((await program.session()).events) == 6


async def test_an_empty_session_is_filled_from_the_durable_log(app_name: str) -> None:
    first = Program(app_name, clerk())
    await first.create()
    await first.run("go")
    again = Program(app_name, clerk(say("more")))
    await again.create()
    await again.run("and then?")
    assert short((await again.session()).events) == [
        "user: go",
        "clerk calls note",
        "clerk got {'result': 'noted'}",
        "clerk: done",
        "user: and then?",
        "clerk: more",
    ]
    assert (await again.session()).state["word"] == "sun"


async def test_who_begins_a_session_that_another_runner_has_is_told(
    app_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """google.adk has two sessions then, one in each service; a durable one is known by its names."""
    for number in range(2):
        program = Program(app_name, agent("clerk", say("one"), say("two")))
        await program.create()
        await program.run("go")
        await program.run("again")
        told = [record for record in caplog.records if "goes on with what another runner" in record.message]
        assert len(told) == number


async def test_the_program_changes_the_state_between_two_runs(app_name: str) -> None:
    program = Program(app_name, clerk(say("one"), say("two"), instruction="Be {mood}."))
    await program.create(mood="glad")
    await program.run("go")
    session = await program.session()
    changed = Event(author="system", actions=EventActions(state_delta={"mood": "sad"}))
    await program.service.append_event(session, changed)
    await program.run("again")
    assert isinstance(program.runner.agent, LlmAgent)
    model = program.runner.agent.model
    assert isinstance(model, Script)
    told = [request.model_dump_json() for request in model.requests]
    assert ["glad" in told[0], "sad" in told[1]] == [True, True]


@pytest.mark.parametrize("by", ["program", "elsewhere"])
async def test_what_waits_is_answered(app_name: str, client: Client, by: str) -> None:
    def ask() -> None:
        """Ask."""

    root = agent("clerk", call("ask"), say("thanks"), say("bye"), tools=[LongRunningFunctionTool(func=ask)])
    program = Program(app_name, root, resumable=True)
    await program.create()
    (asked,) = [one for event in await program.run("go") for one in event.get_function_calls()]
    with pytest.raises(InvalidMessage, match="state_delta goes with a message"):
        await program.run(answer(asked.id or "", "ask", ok=True), state_delta={"lost": True})
    if by == "program":
        assert short(await program.run(answer(asked.id or "", "ask", ok=True))) == ["clerk: thanks"]
    else:
        runner = perdure.Runner(app_name, client)
        async for _ in runner.run_async(
            user_id="u", session_id="s", new_message=answer(asked.id or "", "ask", ok=True)
        ):
            pass
    await program.run("next")
    assert short((await program.session()).events)[-3:] == ["clerk: thanks", "user: next", "clerk: bye"]


async def test_a_failed_invocation_is_resumed_by_its_id(app_name: str) -> None:
    ran: list[str] = []

    def pay() -> str:
        """Pay."""
        ran.append("pay")
        if len(ran) == 1:
            raise ConnectionError("no line")
        return "paid"

    program = Program(app_name, agent("clerk", call("pay"), say("paid"), tools=[pay]), resumable=True)
    await program.create()
    with pytest.raises(InvocationFailed, match="no line"):
        await program.run("go")
    failed = (await program.session()).events[-1].invocation_id
    assert short(await program.run(None, invocation_id=failed))[-1] == "clerk: paid"
    assert ran == ["pay", "pay"]


class Slow(BaseLlm):
    """A model that says its words piece by piece."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        for word in ("one ", "two ") if stream else ():
            await asyncio.sleep(0.3)
            yield LlmResponse(content=types.ModelContent(word), partial=True)
        yield LlmResponse(content=types.ModelContent("one two "))


async def test_pieces_come_while_the_model_writes_them(app_name: str) -> None:
    program = Program(app_name, LlmAgent(name="clerk", model=Slow(model="slow")))
    await program.create()
    events = await program.run("go", run_config=RunConfig(streaming_mode=StreamingMode.SSE))
    pieces = [event for event in events if event.partial]
    assert "".join(text.removeprefix("clerk: ") for text in short(pieces)) == "one two "
    assert short(events)[-1] == "clerk: one two "
    assert len((await program.session()).events) == 2, "pieces are in no session"


async def test_what_a_run_says_of_itself_is_in_the_user_s_event(app_name: str) -> None:
    program = Program(app_name, clerk(say("hi")))
    await program.create()
    await program.run("go", run_config=RunConfig(custom_metadata={"trace": "t-1"}, max_llm_calls=7))
    assert (await program.session()).events[0].custom_metadata == {"trace": "t-1"}


async def test_a_program_without_a_loop_runs(app_name: str) -> None:
    def whole() -> list[str]:
        program = Program(app_name, clerk())
        asyncio.run(program.create())
        message = types.UserContent("go")
        return short(list(program.runner.run(user_id="u", session_id="s", new_message=message)))

    assert (await asyncio.to_thread(whole))[-1] == "clerk: done"


async def test_it_is_debugged_in_memory(app_name: str) -> None:
    runner = InMemoryRunner(agent=clerk(), app_name=app_name)
    assert isinstance(runner, PlainRunner)
    assert short(await runner.run_debug("go", quiet=True))[-1] == "clerk: done"
    await runner.close()


async def test_a_runner_within_a_tool_stays_google_adks(app_name: str, client: Client) -> None:
    async def judge(words: str) -> str:
        """Judge words."""
        inner = PlainInMemoryRunner(agent=agent("judge", say("fine")), app_name="judge")
        mine = Runner(agent=agent("judge", say("fine")), app_name="judge", session_service=inner.session_service)
        await inner.session_service.create_session(app_name="judge", user_id="u", session_id="s")
        events = mine.run_async(user_id="u", session_id="s", new_message=types.UserContent(words))
        return str([short([event]) async for event in events])

    program = Program(app_name, agent("clerk", call("judge", words="well"), say("done"), tools=[judge]))
    await program.create()
    assert "judge: fine" in short(await program.run("go"))[1]
    assert [one async for one in client.list_workflows("WorkflowType = 'judge'")] == []


async def test_the_program_s_own_services_are_used(app_name: str) -> None:
    async def keep(tool_context: ToolContext) -> int:
        """Keep a file."""
        return await tool_context.save_artifact("a.txt", types.Part(text="kept"))

    artifacts = InMemoryArtifactService()
    program = Program(app_name, agent("clerk", call("keep"), say("done"), tools=[keep]), artifact_service=artifacts)
    await program.create()
    await program.run("go")
    found = await artifacts.load_artifact(**program.who, filename="a.txt")
    assert found is not None
    assert found.text == "kept"


async def test_another_tree_of_the_name_takes_the_place(app_name: str) -> None:
    first = Program(app_name, clerk())
    await first.create()
    await first.run("go")
    second = Program(app_name, agent("other", say("I am another")), session_service=first.service)
    assert short(await second.run("again")) == ["other: I am another"]


class Strict(InMemorySessionService):
    """Takes no event of who has not seen the last one, as services on a database do."""

    async def append_event(self, session: Session, event: Event) -> Event:
        stored = await self.get_session(app_name=session.app_name, user_id=session.user_id, session_id=session.id)
        if stored is not None and len(stored.events) > len(session.events):
            raise ValueError("the session was changed by another one")
        return await super().append_event(session, event)


async def test_who_writes_into_the_session_meanwhile_is_not_in_the_way(app_name: str) -> None:
    service = Strict()

    async def meddle() -> str:
        """Write into the session beside the run."""
        session = await service.get_session(**program.who)
        assert session is not None
        await service.append_event(session, Event(author="audit", content=types.ModelContent("I was here")))
        return "done"

    root = agent("clerk", call("meddle"), say("done"), tools=[meddle])
    program = Program(app_name, root, session_service=service)
    await program.create()
    assert short(await program.run("go"))[-1] == "clerk: done"
    log = short((await program.session()).events)
    assert [log.count(line) for line in ("user: go", "clerk calls meddle", "audit: I was here", "clerk: done")] == [
        1
    ] * 4


async def test_many_runs_at_once_do_not_meet(app_name: str) -> None:
    program = Program(app_name, agent("clerk", *[say("hi")] * 8))

    async def one(number: int) -> list[str]:
        who: dict[str, Any] = {"user_id": f"u{number}", "session_id": f"s{number}"}
        await program.service.create_session(app_name=app_name, **who)
        message = types.UserContent(f"I am {number}")
        async for _ in program.runner.run_async(**who, new_message=message):
            pass
        session = await program.service.get_session(app_name=app_name, **who)
        return short(session.events) if session is not None else []

    found = await asyncio.gather(*map(one, range(8)))
    assert found == [[f"user: I am {number}", "clerk: hi"] for number in range(8)]


async def test_who_leaves_does_not_stop_the_run(app_name: str) -> None:
    program = Program(app_name, clerk())
    await program.create()
    events = program.runner.run_async(user_id="u", session_id="s", new_message=types.UserContent("go"))
    async for _ in events:
        break
    await events.aclose()
    program.runner.agent.model.answers.append(say("more"))  # type: ignore[union-attr]
    await program.run("again")
    assert short((await program.session()).events)[3:] == ["clerk: done", "user: again", "clerk: more"]


async def test_what_it_cannot_do_it_says(app_name: str) -> None:
    program = Program(app_name, clerk())
    with pytest.raises(SessionNotFound, match="Session not found: s"):
        await program.run("go")
    await program.create()
    with pytest.raises(ValueError, match=r"run_config.save_input_blobs_as_artifacts: not supported"):
        await program.run("go", run_config=RunConfig(save_input_blobs_as_artifacts=True))
    with pytest.raises(InvalidMessage, match="give a new_message"):
        await program.run(None)
    with pytest.raises(NotImplementedError, match="live runs"):
        program.runner.run_live(live_request_queue=LiveRequestQueue())
    loop = agent("twin", say("hi"))
    refused = Program(app_name, agent("twin", say("hi"), sub_agents=[loop]))
    await refused.create()
    with pytest.raises(DefinitionError, match="two agents are named 'twin'"):
        await refused.run("go")


def test_the_process_ends_a_moment_behind_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else Temporal's threads may come once Python is shutting down, and abort it: a program's code would be lost."""
    registered: list[str] = []

    def register(function: Any, *args: Any) -> None:
        registered.append(function.__name__)

    embedded.embedded.cache_clear()
    pause_at_exit.cache_clear()
    monkeypatch.setattr("atexit.register", register)
    embedded.embedded()
    # The last one that was registered comes first.
    assert registered[::-1] == ["close", "sleep"]
    # None was, really.
    pause_at_exit.cache_clear()
