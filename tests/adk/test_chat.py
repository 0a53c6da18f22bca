"""The chat with google.adk's agents: a task's talk, a graph with a question, a custom agent."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from html import unescape

import pytest
from google.adk.agents import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.genai import types
from temporalio.client import Client

from perdure.adk.internals import MAJOR
from perdure.streams.hub import TokenHub
from tests.adk.support import agent, call, letters, make_app, say
from tests.workflows.support import User, serving

pytest.importorskip("httpx2", reason="the environment of google.adk 1 has no client for pages")

import httpx2

from tests.api.pages.support import Clerk, Pages, Sent, Server

pytestmark = pytest.mark.server


@asynccontextmanager
async def chatting(client: Client, name: str, root: BaseAgent) -> AsyncGenerator[tuple[Pages, User]]:
    """Serve an app of google.adk's, its worker and its pages, with a session `s` of the user `u`."""
    app = make_app(name, root, resumable=True)
    streams = TokenHub()
    server = Server(client, [app], streams)
    await server.start()
    try:
        async with (
            serving(client, app, streams=streams) as user,
            httpx2.AsyncClient(base_url=server.url, timeout=30, trust_env=False) as http,
        ):
            await user.create()
            yield Pages(client, name, Clerk(), server, http), user
    finally:
        await server.stop()


async def say_in(pages: Pages, words: str) -> None:
    page = await pages.get(pages.chat("s", "u"))
    assert (await pages.send(Sent.found(page, "messages"), message=words)).status_code == 303


async def shown(pages: Pages) -> str:
    """Return the chat's text, without what stands in tags."""
    page = await pages.get(pages.chat("s", "u"))
    return " ".join(unescape(re.sub("<[^>]+>", " ", page.partition("<main")[2])).split())


@pytest.mark.skipif(MAJOR < 2, reason="google.adk 1 has no tasks")
async def test_a_task_says_whose_message_is_awaited(client: Client, app_name: str) -> None:
    booker = agent("booker", say("How many?"), call("finish_task", result="ok"), mode="task")
    desk = agent("desk", call("booker", request="a table"), say("Booked."), sub_agents=[booker])
    async with chatting(client, app_name, desk) as (pages, user):
        await say_in(pages, "table")
        await user.logged("booker: How many?")
        view = (await user.view()).invocations[0]
        await user.settled(view.id)
        page = await shown(pages)
        assert "booker waits for your message" in page
        assert "does a task, and waits for the user's next message" in page
        await say_in(pages, "two")
        await user.logged("desk: Booked.")
        await user.settled(view.id)
        assert "waits for your message" not in await shown(pages)


@pytest.mark.skipif(MAJOR < 2, reason="google.adk 1 has no graphs")
async def test_a_graph_asks_in_place_and_shows_what_came_out(client: Client, app_name: str) -> None:
    graph = letters()
    async with chatting(client, app_name, graph) as (pages, user):
        await say_in(pages, "cats")
        await user.open("adk_request_input")
        page = await pages.get(pages.chat("s", "u"))
        assert "Send a letter about cats?" in page
        assert '<ol class="graph">' in page
        assert "letters · draft" in await shown(pages)
        assert (await pages.send(Sent.found(page, "answer"), f0="yes, do")).status_code == 303
        await user.settled((await user.view()).invocations[0].id)
        page = await shown(pages)
        assert "letters · decide decided: yes, do" in page
        assert "Send" not in page.partition("Message")[0].partition("decided")[2]


class Weather(BaseAgent):
    """Says something itself, and has another say something."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        content = types.Content(role="model", parts=[types.Part(text="I *ask* the forecast.")])
        yield Event(author=self.name, invocation_id=ctx.invocation_id, content=content)
        async for event in self.sub_agents[0].run_async(ctx):
            yield event


async def test_a_custom_agent_talks(client: Client, app_name: str) -> None:
    root = Weather(name="weather", sub_agents=[agent("forecast", say("**Rain.**"))])
    async with chatting(client, app_name, root) as (pages, user):
        await say_in(pages, "well?")
        await user.logged("forecast: **Rain.**")
        page = await pages.get(pages.chat("s", "u"))
        assert "<p>I <em>ask</em> the forecast.</p>" in page
        assert "<strong>Rain.</strong>" in page
