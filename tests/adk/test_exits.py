"""Whatever code of google.adk's apps raises fails its step at once, by name; nothing else fails, or is run again.

`SystemExit`, `KeyboardInterrupt`, `GeneratorExit` and `CancelledError` pass all that google.adk has for errors.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.agents import BaseAgent
from temporalio.client import Client

from perdure.adk.internals import MAJOR
from tests.adk.exits import HOOKS, KINDS, PLACES, RAN, failing_node, watch
from tests.adk.support import make_app
from tests.workflows.support import User, serving

pytestmark = pytest.mark.server

EVERYWHERE = ("SystemExit", "CancelledError", "StopIteration")
"""What is tried in every place; the places share what takes it, where all of it is tried."""

HINT = "next() found nothing more; give it a default: next(…, None)"

SAID = {
    "SystemExit": "the code asked the process to exit: SystemExit: 2",
    "KeyboardInterrupt": "the code asked the process to exit: KeyboardInterrupt",
    "GeneratorExit": "the code raised GeneratorExit, with which no call can end",
    "CancelledError": "the code raised CancelledError, with which no call can end",
    "Own": "the code raised Own: mine, with which no call can end",
    "StopIteration": f"the code raised StopIteration: {HINT}",
    "StopAsyncIteration": f"the code raised StopAsyncIteration: {HINT}",
}


async def raising(user: User, name: str, kind: str, words: str) -> None:
    """Let code raise in a session of its own; check what is told of it, and that the session goes on."""
    user = user.other(session_id=name)
    await user.create()
    failed = await user.run(kind)
    assert failed.status == "failed", kind
    [failure] = failed.failures
    assert failure.agent == "clerk"
    assert words in failure.cause, (kind, failure.cause)
    assert RAN[user.app, name] <= 1, kind
    assert (await user.run("fine")).status == "finished", kind


async def each(user: User, kinds: Any, words: dict[str, str]) -> None:
    async with asyncio.timeout(100):
        await asyncio.gather(*(raising(user, kind, kind, words[kind]) for kind in kinds))


def naming(words: str) -> dict[str, str]:
    return {kind: f"{words}{said}" for kind, said in SAID.items()}


@pytest.mark.parametrize("place", PLACES)
async def test_whatever_code_raises_fails_its_step_and_the_session_goes_on(
    client: Client, app_name: str, place: str
) -> None:
    words = SAID
    name = place.removeprefix("async ")
    if name.endswith("_callback"):
        words = naming(f"{name} '{place.replace(name, '').replace(' ', '_')}callback' of agent 'clerk': ")
    if place == "toolset":
        words = naming("agent 'clerk': toolset Shelf does not tell its tools: RuntimeError: ")
    everything = place in ("async tool", "async before_tool_callback", "code of an agent")
    async with serving(client, make_app(app_name, PLACES[place]())) as user:
        await each(user, KINDS if everything else EVERYWHERE, words)


@pytest.mark.parametrize("hook", HOOKS)
async def test_whatever_a_plugin_raises_fails_its_step_by_the_plugins_name(
    client: Client, app_name: str, hook: str
) -> None:
    words = naming(f"Error in plugin 'watch' during '{hook}' callback: ")
    async with serving(client, make_app(app_name, HOOKS[hook](), plugins=[watch(hook)])) as user:
        await each(user, EVERYWHERE, words)


@pytest.mark.skipif(MAJOR < 2, reason="1.x tells plugins of no failure")
@pytest.mark.parametrize("hook", ["on_agent_error_callback", "on_run_error_callback"])
async def test_whatever_a_plugin_raises_that_is_told_of_a_failure_changes_nothing_of_that(
    client: Client, app_name: str, hook: str
) -> None:
    words = dict.fromkeys(KINDS, "ValueError: broken")
    async with serving(client, make_app(app_name, HOOKS["on_tool_error_callback"](), plugins=[watch(hook)])) as user:
        await each(user, KINDS, words)


@pytest.mark.skipif(MAJOR < 2, reason="1.x has no graphs")
@pytest.mark.parametrize("how", ["", "async"])
async def test_whatever_a_node_of_a_graph_raises_fails_the_graph(client: Client, app_name: str, how: str) -> None:
    root: BaseAgent = failing_node(asynchronous=bool(how))
    async with serving(client, make_app(app_name, root)) as user:
        await each(user, KINDS, SAID)
