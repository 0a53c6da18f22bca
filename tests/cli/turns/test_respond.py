"""`respond`: what it takes as an answer, and that it looks at the declared type before it sends."""

from __future__ import annotations

import io
import re
import shlex
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field
from temporalio.client import Client

from perdure.agents import App, FunctionTool, LlmAgent, LongRunningFunctionTool, ResumabilityConfig
from perdure.client import Runner
from perdure.models.scripted import ScriptedModel
from perdure.worker import create_workers
from tests.cli.support import Done, Perdure, perdure

__all__ = ["perdure"]

pytestmark = pytest.mark.server


class Approval(BaseModel):
    approved: bool
    limit: int = Field(ge=1, le=500)
    note: str = ""


def ask_manager() -> None:
    """Ask the manager."""


def ask_size() -> None:
    """Ask for the size."""


def ask_name() -> None:
    """Ask for the name."""


def ask_anybody() -> None:
    """Ask anybody."""


def pay(price: int) -> str:
    """Pay."""
    return f"paid {price}"


TOOLS = [
    LongRunningFunctionTool(ask_manager, response=Approval),
    LongRunningFunctionTool(ask_size, response=Literal["small", "large"]),
    LongRunningFunctionTool(ask_name, response=str),
    LongRunningFunctionTool(ask_anybody),
    FunctionTool(pay, require_confirmation=True),
]


@pytest.fixture
async def shop(client: Client, app_name: str) -> AsyncGenerator[str]:
    """The name of an app that is served: its agent makes a call of each tool, then answers."""
    calls: list[dict[str, Any]] = [{"name": tool.name} for tool in TOOLS]
    calls[-1]["args"] = {"price": 3}
    clerk = LlmAgent(name="clerk", model=ScriptedModel([{"calls": calls}, {"text": "Done."}]), tools=TOOLS)
    app = App(name=app_name, root_agent=clerk, resumability_config=ResumabilityConfig(is_resumable=True))
    async with AsyncExitStack() as stack:
        for worker in create_workers(client, [app]):
            await stack.enter_async_context(worker)
        yield app_name


@pytest.fixture
def at(temporal_server: str) -> tuple[str, str]:
    """The options that name the test server."""
    return ("--address", temporal_server)


async def calls_of(client: Client, app: str) -> dict[str, str]:
    """Return the ids of the open calls by tool."""
    runner = Runner(app, client)
    return {call.name: call.id for _, call in await runner.pending(user_id="user", session_id="s")}


async def answers_of(client: Client, app: str) -> dict[str, Any]:
    """Return what the log has as people's answers, by tool."""
    runner = Runner(app, client)
    events = [event async for event in runner.events(user_id="user", session_id="s")]
    responses = (one for event in events if event.is_users for one in event.get_function_responses())
    return {one.name or "": one.response for one in responses}


def printed_commands(done: Done) -> list[list[str]]:
    """Return the commands that a command has printed for answers."""
    return [shlex.split(found) for found in re.findall(r"(?:answer|approve) it: +perdure (.*)", done.err)]


async def test_the_printed_lines_are_answers_of_the_declared_types(
    perdure: Perdure, client: Client, shop: str, at: tuple[str, str]
) -> None:
    """Those of `run` and those of `explain`: pasted as they are, each is taken."""
    waiting = await perdure("run", shop, "hi", "--session", "s", *at)
    assert waiting.code == 2, waiting.err
    commands = printed_commands(waiting)
    explained = await perdure("explain", shop, "s", *at)
    assert sorted(commands) == sorted(printed_commands(Done(0, "", explained.out)))
    for command in commands:
        done = await perdure(*command)
        assert done.code == (2 if command is not commands[-1] else 0), done.err
    assert await answers_of(client, shop) == {
        "ask_manager": {"approved": True, "limit": 1},
        "ask_size": {"result": "small"},
        "ask_name": {"result": "…"},
        "ask_anybody": {"result": "…"},
        "adk_request_confirmation": {"confirmed": True},
    }


async def test_an_answer_of_another_type_is_not_sent_unless_somebody_means_it(
    perdure: Perdure, client: Client, shop: str, at: tuple[str, str]
) -> None:
    await perdure("run", shop, "hi", "--session", "s", *at)
    calls = await calls_of(client, shop)
    wrong = ("respond", shop, f'{calls["ask_manager"]}={{"approved": true, "limit": 501}}')
    done = await perdure(*wrong, *at)
    assert (done.code, done.out) == (64, "")
    said = " ".join(done.err.split())
    assert "is not of the type that it declares: limit: Give a number that is at most 500." in said
    assert '{"approved": true, "limit": 1}' in said
    done = await perdure("respond", shop, f"{calls['ask_size']}=medium", f"{calls['ask_name']}=Ann", *at)
    assert (done.code, "Choose one of the values." in done.err) == (64, True)
    assert await answers_of(client, shop) == {}
    done = await perdure(*wrong, "--unchecked", *at)
    assert done.code == 2, done.err
    assert await answers_of(client, shop) == {"ask_manager": {"approved": True, "limit": 501}}


async def test_a_response_is_a_text_json_or_a_file(
    perdure: Perdure,
    client: Client,
    shop: str,
    at: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await perdure("run", shop, "hi", "--session", "s", *at)
    calls = await calls_of(client, shop)
    (tmp_path / "answer.json").write_text('{"approved": false, "limit": 7, "note": "Größe"}\n')
    monkeypatch.setattr(sys, "stdin", io.StringIO("Line one.\nLine two."))
    done = await perdure(
        *("respond", shop, f"{calls['ask_manager']}=@{tmp_path / 'answer.json'}", f"{calls['ask_anybody']}=@-"),
        *(f"{calls['ask_size']}=large", f"{calls['ask_name']}=42", "--approve", calls["adk_request_confirmation"]),
        *at,
    )
    assert done.code == 0, done.err
    assert await answers_of(client, shop) == {
        "ask_manager": {"approved": False, "limit": 7, "note": "Größe"},
        "ask_size": {"result": "large"},
        "ask_name": {"result": "42"},
        "ask_anybody": {"result": "Line one.\nLine two."},
        "adk_request_confirmation": {"confirmed": True},
    }


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
async def test_a_file_that_cannot_be_read_is_named(perdure: Perdure, tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "answer.json"
    if content is not None:
        file.write_bytes(content)
    done = await perdure("respond", "shop", f"adk-1=@{file}")
    assert (done.code, done.out) == (64, "")
    assert "cannot be read" in done.err
