"""Conversations with google.adk's agents: calls that wait, and tasks, which the next message goes on with."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from signal import SIGTERM

import pytest
from google.adk.agents import LlmAgent
from temporalio.client import Client

from perdure.adk.internals import MAJOR
from perdure.client import Runner
from perdure.credentials.files import FileCredentialStore
from tests.adk.support import Script, agent, call, make_app, say
from tests.adk.test_credentials import GIVEN_KEY, KEY, read_mail
from tests.cli.talk.test_conversation import PROMPT, SESSION, answers_of, talking
from tests.cli.test_main import Process
from tests.workflows.support import serving

pytestmark = [pytest.mark.server, pytest.mark.process, pytest.mark.timeout(240)]

EXAMPLES = Path(__file__).parents[3] / "examples" / "agents"


async def test_the_example_is_talked_to(client: Client, temporal_server: str, tmp_path: Path) -> None:
    """As its README's reader would: the folder is served by a worker process."""
    worker = await Process.start("worker", str(EXAMPLES), "--address", temporal_server, cwd=tmp_path)
    try:
        await worker.read_until("serving")
        async with talking("picker", temporal_server) as screen:
            await screen.says(PROMPT, "I need a notebook.")
            await screen.sees("orchestrator  hands over to picker", "→ select_item(items=", "select_item waits")
            await screen.says("Answer: ", '{"selected": "red notebook"}')
            await screen.sees('→ confirm_choice(item="red notebook")')
            await screen.says("Answer: ", "true")
            await screen.sees("The red notebook is yours.")
            await screen.says(PROMPT, "/quit")
            assert await screen.ends() == 0
        assert await answers_of(client, "picker") == [
            ("select_item", {"selected": "red notebook"}),
            ("confirm_choice", {"result": True}),
        ]
    finally:
        await worker.end(SIGTERM)


@pytest.mark.skipif(MAJOR < 2, reason="google.adk 1 has no agents with a mode")
async def test_the_next_message_goes_on_with_a_task(client: Client, temporal_server: str, app_name: str) -> None:
    booker = LlmAgent(
        name="booker",
        mode="task",
        model=Script(say("How many?"), say("When?"), call("finish_task", result="Friday, two")),
    )
    desk = LlmAgent(name="desk", model=Script(call("booker", request="a table"), say("Booked.")), sub_agents=[booker])
    app = make_app(app_name, desk, resumable=True)
    async with serving(client, app), talking(app_name, temporal_server) as screen:
        await screen.says(PROMPT, "A table, please")
        await screen.sees("How many?")
        await screen.says(PROMPT, "Two")
        await screen.sees("When?")
        await screen.says(PROMPT, "On Friday")
        await screen.sees("Booked.")
        await screen.says(PROMPT, "/quit")
        assert await screen.ends() == 0
        view = await Runner(app_name, client).get_session(**SESSION)
        assert [one.status for one in view.invocations] == ["finished"]


async def test_a_credential_is_given_elsewhere_and_the_conversation_goes_on(
    client: Client, temporal_server: str, app_name: str, tmp_path: Path
) -> None:
    """By the command that it prints; the secret is not on the screen."""
    clerk = agent("clerk", call("read_mail", folder="in"), say("You have mail."), tools=[read_mail])
    app = make_app(app_name, clerk, resumable=True)
    kept = tmp_path / "kept"
    async with (
        serving(client, app, credentials=FileCredentialStore(kept)),
        talking(app_name, temporal_server) as screen,
    ):
        await screen.says(PROMPT, "Any mail?")
        await screen.sees("read_mail needs a credential.", "Give it in the inbox, or from a file")
        told = await screen.sees("perdure respond ", "=@credential.json")
        (tmp_path / "credential.json").write_text(json.dumps(GIVEN_KEY))
        words = shlex.split(told[told.index("perdure respond") :])[1:]
        at = ("--address", temporal_server, "--credentials", str(kept))
        giving = await Process.start(*words, *at, cwd=tmp_path)
        await giving.read_until("You have mail.")
        await screen.sees("You have mail.")
        await screen.says(PROMPT, "/quit")
        assert await screen.ends() == 0
        assert KEY not in screen.raw
