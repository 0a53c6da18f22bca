"""A message to an app that no worker serves: it would wait for ever, so nothing is sent unless somebody means it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import pytest
from temporalio.client import Client

from perdure.agents import App, LlmAgent
from perdure.client import Runner
from perdure.models.scripted import ScriptedModel
from perdure.worker import create_workers
from tests.cli.support import Perdure, perdure

__all__ = ["perdure"]

pytestmark = pytest.mark.server


def app_of(name: str) -> App:
    """Return an app that answers once."""
    return App(name=name, root_agent=LlmAgent(name="clerk", model=ScriptedModel([{"text": "Hello."}])))


@pytest.fixture
async def served(client: Client, app_name: str) -> AsyncGenerator[str]:
    """The name of an app that is served."""
    async with AsyncExitStack() as stack:
        for worker in create_workers(client, [app_of(app_name)]):
            await stack.enter_async_context(worker)
        yield app_name


async def test_a_misspelled_app_starts_nothing_and_the_served_ones_are_named(
    perdure: Perdure, client: Client, temporal_server: str, served: str
) -> None:
    # The server knows workers by themselves after a minute, and at once by their sessions.
    told = await perdure("run", served, "hi", "--address", temporal_server)
    assert told.code == 0, told.err
    wrong = f"{served}x"
    done = await perdure("run", wrong, "hi", "--session", "s", "--address", temporal_server)
    assert (done.code, done.out) == (1, "")
    assert f"no worker serves app {wrong!r}, so nothing was sent; served at {temporal_server}: " in done.err
    assert f"Did you mean {served!r}?" in done.err
    assert "perdure dev PATH" in done.err
    assert "--wait-for-worker" in done.err
    assert await Runner(wrong, client).list_sessions() == []
    assert [run async for run in client.list_workflows(f"WorkflowType = '{wrong}'")] == []


async def test_no_session_is_made_of_an_app_that_nobody_serves_unless_somebody_means_it(
    perdure: Perdure, client: Client, temporal_server: str, served: str
) -> None:
    at = ("--session", "s", "--address", temporal_server)
    assert (await perdure("session", "create", served, *at)).out == "s\n"
    wrong = f"{served}x"
    done = await perdure("session", "create", wrong, *at)
    assert (done.code, done.out) == (1, "")
    assert f"no worker serves app {wrong!r}, so no session was made; served at {temporal_server}: " in done.err
    assert [run async for run in client.list_workflows(f"WorkflowType = '{wrong}'")] == []
    assert (await perdure("session", "create", wrong, "--wait-for-worker", *at)).out == "s\n"


async def test_who_means_it_has_the_message_wait_for_a_worker(
    perdure: Perdure, client: Client, temporal_server: str, app_name: str
) -> None:
    at = ("--session", "s", "--address", temporal_server)
    # The client's way, too: it goes on queueing while workers are down.
    await Runner(app_name, client).create_session(user_id="user", session_id="s")
    refused = await perdure("run", app_name, "hi", "--no-wait", *at)
    assert (refused.code, "nothing was sent" in refused.err) == (1, True)
    async with AsyncExitStack() as stack:
        for worker in create_workers(client, [app_of(app_name)]):
            await stack.enter_async_context(worker)
        done = await perdure("run", app_name, "hi", "--wait-for-worker", *at)
    assert (done.code, "[clerk] Hello." in done.out) == (0, True), done.err
