"""A conversation as a person has it: in a real terminal, with a real server and worker."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
from temporalio.client import Client

from perdure.agents import App
from perdure.client import Runner
from perdure.journal.events import Event
from perdure.streams.hub import TokenHub
from perdure.streams.server import StreamServer
from perdure.worker import create_workers
from tests.cli.talk import apps
from tests.cli.talk.terminal import Terminal, terminal
from tests.cli.test_main import Process, free_port
from tests.workflows.support import eventually

pytestmark = [pytest.mark.server, pytest.mark.process, pytest.mark.timeout(240)]

SESSION: dict[str, Any] = {"user_id": "user", "session_id": "s"}
PROMPT = "\n> "


@asynccontextmanager
async def serving(client: Client, app: App) -> AsyncGenerator[str]:
    """Serve an app, whose words are heard at the address that is yielded."""
    port = free_port()
    hub = TokenHub()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(StreamServer(hub, "127.0.0.1", port))
        for worker in create_workers(client, [app], streams=hub):
            await stack.enter_async_context(worker)
        yield f"127.0.0.1:{port}"


@asynccontextmanager
async def talking(
    app: str, server: str, *options: str, variables: Mapping[str, str] | None = None
) -> AsyncGenerator[Terminal]:
    """Talk to an app that is served, in session `s`."""
    async with terminal("run", app, "--session", "s", "--address", server, *options, variables=variables) as screen:
        yield screen


async def log_of(client: Client, app: str) -> list[Event]:
    return [event async for event in Runner(app, client).events(**SESSION)]


async def answers_of(client: Client, app: str) -> list[tuple[str | None, Any]]:
    """Return what the log has as people's answers."""
    events = await log_of(client, app)
    return [(one.name, one.response) for event in events if event.is_users for one in event.get_function_responses()]


async def test_a_person_is_asked_for_what_waits_by_forms_yes_or_no_and_texts(
    client: Client, temporal_server: str, app_name: str
) -> None:
    async with serving(client, apps.travel(app_name)), talking(app_name, temporal_server) as screen:
        await screen.says(PROMPT, "To Oslo")
        await screen.sees("clerk   Let me look at it.", "→ ask_manager(flight=", "ask_manager waits for an answer.")
        await screen.says("Approved (yes or no): ", "perhaps")
        await screen.sees("Write yes or no.")
        await screen.says("Approved (yes or no): ", "yes")
        await screen.says("Seats (a whole number, Enter for 2): ", "11")
        await screen.sees("Give a number that is at most 9.")
        await screen.says("Seats (a whole number, Enter for 2): ", "")
        await screen.says("Fare (economy / business, Enter for economy): ", "Business")
        await screen.says("Note (or nothing): ", "")
        await screen.says("Home (yes, or nothing): ", "yes")
        await screen.says("Home, Street: ", "Main St")
        await screen.says("Home, Floor (a whole number, or nothing): ", "3")
        await screen.says("Tags (JSON, or nothing): ", '["a", 1]')
        await screen.sees('item 2: Give a text in quotes, such as "yes".')
        await screen.says("Tags (JSON, or nothing): ", '["a"]')
        await screen.sees("→ pay(price=240)", "→ reserve(seat=", "Approve pay?", "price: 240")
        await screen.says("yes or no, and why if you like: ", "maybe")
        await screen.sees("Write yes or no; a reason may stand behind it.")
        await screen.says("yes or no, and why if you like: ", "no, too dear")
        await screen.sees("Approve reserve?", "Which seat?")
        await screen.says("yes or no, and why if you like: ", "y")
        await screen.sees('What the tool asks for, as JSON: {"seat": "3A"}')
        screen.type("\x15" + '{"seat": "4B"}\r')
        await screen.sees("← pay", "← reserve", "4B", "Whose name?")
        await screen.says("Answer: ", "Ann Miller")
        await screen.sees("clerk   All is booked.")
        await screen.says(PROMPT, "/quit")
        assert await screen.ends() == 0
        assert await answers_of(client, app_name) == [
            (
                "ask_manager",
                {
                    "approved": True,
                    "seats": 2,
                    "fare": "business",
                    "home": {"street": "Main St", "floor": 3},
                    "tags": ["a"],
                },
            ),
            ("adk_request_confirmation", {"confirmed": False}),
            ("adk_request_confirmation", {"confirmed": True, "payload": {"seat": "4B"}}),
            ("ask_anybody", {"result": "Ann Miller"}),
        ]
        whys = [
            (event.custom_metadata or {}).get("perdure:answer", {}).get("why")
            for event in await log_of(client, app_name)
        ]
        assert [why for why in whys if why] == ["too dear"]
    # Nothing of what others wrote reaches the terminal raw; what does is the conversation's own.
    rest = re.sub(r"\x1b\[(?:[0-9;]*m|K|\?2004[hl]|C|[0-9]+[CDP@]|[0-9]*J)", "", screen.raw)
    assert r"All is booked.\x1b[2J\x1b]0;owned\x07\u202e" in screen.text
    assert [found for found in ("\x1b]", "\u202e", "owned\x07", "\x1b[2J") if found in screen.raw] == []
    assert "\x1b" not in rest


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
async def test_colours_are_for_terminals_whose_owners_want_them(
    client: Client, temporal_server: str, app_name: str, variables: dict[str, str], coloured: bool
) -> None:
    async with serving(client, apps.asker(app_name)), talking(app_name, temporal_server, variables=variables) as screen:
        await screen.says("> ", "Hello")
        await screen.says("Answer: ", "yes")
        await screen.sees("Thanks.")
        await screen.sees("> ")
    assert bool(re.search(r"\x1b\[[0-9;]+m", screen.raw)) is coloured


async def test_words_are_shown_as_they_are_written_and_ctrl_c_stops_the_turn(
    client: Client, temporal_server: str, app_name: str
) -> None:
    async with (
        serving(client, apps.thinker(app_name)) as streams,
        talking(app_name, temporal_server, "--stream-from", streams) as screen,
    ):
        await screen.says(PROMPT, "Think")
        await screen.sees("clerk   one two three")
        # Keys that are pressed meanwhile are not strewn over the answer; they stand in the next prompt.
        assert not screen.echoes
        screen.type("\x03")
        await screen.sees("stopping …", "stopped: Ctrl-C in a conversation", "/resume runs it on from where it was.")
        view = await Runner(app_name, client).get_session(**SESSION)
        assert [(one.status, one.reason) for one in view.invocations] == [("stopped", "Ctrl-C in a conversation")]
        await screen.says(PROMPT, "/resume")
        await screen.sees("clerk   one two three", "nine ten")
        # With something typed it clears the line, else it leaves.
        await screen.sees(PROMPT)
        screen.type("half a message")
        await screen.sees("half a message")
        screen.type("\x03")
        await screen.says(PROMPT, "Again")
        await screen.sees("clerk   Thought.", PROMPT)
        screen.type("\x03")
        await screen.sees(f"Go on with: perdure run {app_name} --user user --session s")
        assert await screen.ends() == 130
        assert screen.echoes


async def test_what_failed_is_told_and_resumed(client: Client, temporal_server: str, app_name: str) -> None:
    runner = Runner(app_name, client)
    async with serving(client, apps.thinker(app_name)):
        await runner.create_session(**SESSION)
        for message in ("Think", "Again"):
            async for _ in runner.run_async(**SESSION, new_message=message, live=False):
                pass
        async with talking(app_name, temporal_server) as screen:
            # What went before is shown.
            await screen.sees("> Think", "clerk   one two", "> Again", "clerk   Thought.")
            await screen.says(PROMPT, "Fail")
            await screen.sees("clerk failed in model: the model is down", "/resume runs it on from where it was.")
            await screen.says(PROMPT, "/resume")
            await screen.sees("clerk   Back again.")
            await screen.says(PROMPT, "/resume")
            await screen.sees("Nothing has failed or was stopped that could be run on.")
            await screen.says(PROMPT, "/resum")
            await screen.sees("There is no command /resum")
            await screen.says(PROMPT, "/help")
            await screen.sees("/quit     leave")
            await screen.says(PROMPT, "/events")
            await screen.sees("[user] Fail", "[clerk] Back again.")
            await screen.sees(PROMPT)
            screen.type("\x04")
            assert await screen.ends() == 0


async def test_an_answer_given_elsewhere_counts_and_what_was_typed_stays(
    client: Client, temporal_server: str, app_name: str
) -> None:
    runner = Runner(app_name, client)
    async with serving(client, apps.asker(app_name)), talking(app_name, temporal_server) as screen:
        await screen.says(PROMPT, "Hello")
        await screen.sees("Question 0?", "Answer: ")
        screen.type("my own ans")
        await screen.sees("my own ans")
        [(_, call)] = await runner.pending(**SESSION)
        await runner.respond(**SESSION, responses={call.id: "theirs"}, metadata={"perdure:answer": {"who": "mia"}})
        await screen.sees('answered by mia: ask_anybody {"result": "theirs"}')
        await screen.sees("ask_anybody waits no longer: the first answer counts.", "Thanks.")
        # What others send is shown, too, around what is being typed.
        await screen.sees(PROMPT)
        screen.type("a mess")
        await screen.sees("a mess")
        await runner.send_message(**SESSION, message="From another client")
        await screen.sees("> From another client", "Question 1?")
        await screen.says("Answer: ", "mine")
        await screen.sees("Thanks.", PROMPT)
        screen.type("age\r")
        await screen.sees("Question 2?")
        await screen.says("Answer: ", "/later")
        await screen.sees("It goes on waiting; /answer asks again.")
        await screen.says(PROMPT, "/answer")
        await screen.sees("Question 2?", "Answer: ")
        screen.type("\x04")
        assert await screen.ends() == 2
        async with talking(app_name, temporal_server) as again:
            # Whoever goes on with it is asked what waits.
            await again.sees("> From another client", "Question 2?")
            await again.says("Answer: ", "@/no/such/file")
            await again.sees("file '/no/such/file' cannot be read")
            await again.says("Answer: ", "//now")
            await again.sees("Thanks.")
            await again.says(PROMPT, "/quit")
            assert await again.ends() == 0
        answers = [response for _, response in await answers_of(client, app_name)]
        assert answers == [{"result": "theirs"}, {"result": "mine"}, {"result": "/now"}]
        said = [event.text for event in await log_of(client, app_name) if event.is_users and event.text]
        assert said == ["Hello", "From another client", "age"]


async def test_calls_of_branches_are_asked_for_while_others_work(
    client: Client, temporal_server: str, app_name: str
) -> None:
    answers = {"Answer: ": "to the left", "Answer (yes or no): ": "yes"}
    async with serving(client, apps.fan(app_name)), talking(app_name, temporal_server) as screen:
        await screen.says(PROMPT, "Go")
        first = await screen.sees_one(*answers)
        screen.type(f"{answers.pop(first)}\r")
        [second] = answers
        assert "Busy is done." not in await screen.says(second, answers[second])
        await screen.sees("Busy is done.")
        await screen.says(PROMPT, "/quit")
        assert await screen.ends() == 0
        assert {"Left is done.", "Right is done."} <= set(re.findall(r"\w+ is done\.", screen.text))
        assert sorted(await answers_of(client, app_name), key=str) == [
            ("ask_anybody", {"result": "to the left"}),
            ("ask_other", {"result": True}),
        ]


async def test_a_conversation_goes_on_when_its_worker_is_back(
    client: Client, temporal_server: str, app_name: str, tmp_path: Path
) -> None:
    """The worker is killed in the middle of an answer; another one begins that anew."""
    (tmp_path / f"{app_name}.py").write_text(f"from tests.cli.talk.apps import thinker\napp = thinker({app_name!r})\n")
    port = free_port()
    command = ("worker", f"{app_name}:app", "--address", temporal_server, "--stream-listen", f"127.0.0.1:{port}")
    worker = await Process.start(*command, cwd=tmp_path)
    await worker.read_until("serving")
    async with talking(app_name, temporal_server, "--stream-from", f"127.0.0.1:{port}") as screen:
        await screen.says(PROMPT, "Think")
        await screen.sees("clerk   one two three")
        await worker.end(SIGKILL)
        worker = await Process.start(*command, cwd=tmp_path)
        await worker.read_until("serving")
        await screen.sees("nine ten", PROMPT)
        await worker.end(SIGKILL)
        screen.type("\x04")
        assert await screen.ends() == 0


async def test_a_person_is_asked_what_became_of_a_call_in_doubt(
    client: Client, temporal_server: str, app_name: str, tmp_path: Path
) -> None:
    """Its worker is killed while a tool runs that may not run twice."""
    (tmp_path / f"{app_name}.py").write_text(f"from tests.cli.talk.apps import payer\napp = payer({app_name!r})\n")
    command = ("worker", f"{app_name}:app", "--address", temporal_server)
    worker = await Process.start(*command, cwd=tmp_path)
    await worker.read_until("serving")
    async with talking(app_name, temporal_server) as screen:
        await screen.says(PROMPT, "Pay")
        await eventually(is_there(tmp_path / "begun"))
        await worker.end(SIGKILL)
        worker = await Process.start(*command, cwd=tmp_path)
        await worker.read_until("serving")
        await screen.sees("What became of pay_once? It was started, and nobody knows whether it took effect.")
        await screen.sees("price: 240")
        choice = "It took effect (1), it did not (2), or run it again (3): "
        await screen.says(choice, "yes")
        await screen.sees("Write 1, 2 or 3.")
        await screen.says(choice, "1")
        result = "What it would have returned, as JSON, or nothing: "
        await screen.says(result, "{")
        await screen.says(result, '{"paid": 240}')
        await screen.sees('← pay_once {"paid": 240}', "It is paid.")
        await screen.says(PROMPT, "/quit")
        assert await screen.ends() == 0
    await worker.end(SIGKILL)


def is_there(path: Path) -> Callable[[], Awaitable[bool]]:
    async def found() -> bool:
        return await asyncio.to_thread(path.exists)

    return found


async def test_an_app_that_nobody_serves_is_told_at_once(temporal_server: str, app_name: str) -> None:
    async with talking(app_name, temporal_server) as screen:
        await screen.sees(f"no worker serves app '{app_name}', so nothing was sent")
        assert await screen.ends() == 1
        assert screen.echoes
