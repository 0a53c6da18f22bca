"""Several steps of a google.adk agent in one activity, as whoever serves its app says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from copy import deepcopy
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from temporalio.client import Client

from perdure.activities.kept_steps import KeptSteps
from perdure.messages.stretches import Stretch
from tests.adk.support import Script, call, make_app, say
from tests.sessions.test_lifetime import start, terminated, timed_out
from tests.workflows.support import User, serving
from tests.workflows.test_stretches import activities, taken_back

pytestmark = pytest.mark.server


async def test_its_log_is_the_same_by_fewer_activities(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def look(tool_context: Any) -> str:
        """Look."""
        ran.append("look")
        return "seen"

    def fails() -> str:
        """Fail."""
        ran.append("fails")
        raise RuntimeError("it broke")

    model = Script(call("look"), call("look"), call("fails"), say("done"))
    app = make_app(app_name, LlmAgent(name="clerk", model=model, tools=[look, fails]))
    async with serving(client, app, steps_per_activity=20) as user:
        await user.create()
        failed = await user.run("go")
        assert failed.status == "failed"
        assert ran == ["look", "look", "fails"]
        assert await activities(user) == ["model"]
        assert await user.log() == ["user: go", *(["clerk calls look", "clerk got look"] * 2), "clerk calls fails"]
        assert len(model.requests) == 3


def _two_rounds(ran: list[str]) -> LlmAgent:
    """Return an agent whose first answer calls three tools, and whose second one two of them."""

    def look(tool_context: Any) -> str:
        """Look."""
        ran.append(f"look {tool_context.state.get('seen')}")
        return "looked"

    def write(tool_context: Any) -> str:
        """Write."""
        ran.append("write")
        tool_context.state["seen"] = len(ran)
        return "written"

    async def waits(tool_context: Any) -> str:
        """Wait for something."""
        await asyncio.sleep(0)
        ran.append(f"waits {tool_context.state.get('seen')}")
        return "waited"

    def fails() -> str:
        """Fail."""
        ran.append("fails")
        raise RuntimeError("it broke")

    return LlmAgent(name="clerk", tools=[look, write, waits, fails])


@pytest.mark.parametrize(
    ("first", "second", "ran", "kinds"),
    [
        # All at once in the model's activity; what one has written the next one sees, and the workflow runs it.
        (["look", "look"], ["look"], ["look None"] * 3, ["model"]),
        (["look", "write"], ["look"], ["look None", "write", "look 2"], ["model", "model"]),
        (
            ["write", "look", "look"],
            ["look"],
            ["write", "look 1", "look 1", "look 1"],
            ["model", "look", "look", "model"],
        ),
        (["look", "waits", "look"], ["look"], ["look None", "look None", "waits None", "look None"], None),
        (["look", "fails", "look"], [], ["look None", "fails", "look None"], ["model", "look"]),
    ],
)
async def test_several_calls_of_one_answer_run_as_one_by_one(
    client: Client,
    app_name: str,
    monkeypatch: pytest.MonkeyPatch,
    first: list[str],
    second: list[str],
    ran: list[str],
    kinds: list[str] | None,
) -> None:
    """The log, what tools see of each other, and what runs behind a failure, are those of one step an activity."""
    found: list[tuple[list[str], list[str], str]] = []
    for steps in (1, 20):
        seen: list[str] = []
        clerk = _two_rounds(seen)
        clerk.model = Script(call(*first), call(*second) if second else say("none"), say("done"))
        async with serving(client, make_app(f"{app_name}_{steps}", clerk), steps_per_activity=steps) as user:
            await user.create()
            status = (await user.run("go")).status
            found.append((sorted(seen), await user.log(), status))
            if steps == 20 and kinds is not None:
                assert seen == ran
                assert await activities(user) == kinds
    assert found[0] == found[1]
    assert found[1][0] == sorted(ran)


@pytest.mark.parametrize("why", ["large", "refused"])
async def test_behind_a_call_that_is_not_kept_none_begins(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """It would run again if the worker died in the next one; and another attempt may be at work already."""
    keep_for_now = KeptSteps.keep_for_now

    async def refuse(self: KeptSteps, what: Stretch) -> None:
        await keep_for_now(self, what)
        self.ends.set()

    if why == "refused":
        monkeypatch.setattr(KeptSteps, "keep_for_now", refuse)
    ran: list[str] = []

    def look() -> str:
        """Look."""
        ran.append("look")
        return "x" * (150_000 if why == "large" else 10)

    clerk = LlmAgent(name="clerk", model=Script(call("look", "look", "look"), say("done")), tools=[look])
    async with serving(client, make_app(app_name, clerk), steps_per_activity=20) as user:
        await user.create()
        assert (await user.run("go")).status == "finished"
        assert ran == ["look"] * 3
        assert await activities(user) == ["model", "look", "look", "model"]


async def test_the_next_worker_goes_on_behind_what_was_kept(
    client: Client, app_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    is_open = threading.Event()

    def look() -> str:
        """Look."""
        ran.append("look")
        return "seen"

    async def slow() -> str:
        """Take long."""
        ran.append("slow")
        while not is_open.is_set():  # noqa: ASYNC110 -- the tools have a loop of their own
            await asyncio.sleep(0.02)
        return "done"

    model = Script(call("look", "look"), call("look"), call("slow"), say("done"))
    app = make_app(app_name, LlmAgent(name="clerk", model=model, tools=[look, slow]))
    async with serving(client, app, steps_per_activity=20) as user:
        await user.create()
        invocation = await user.send("go")
        while "slow" not in ran:  # noqa: ASYNC110 -- the same
            await asyncio.sleep(0.02)
    is_open.set()
    async with serving(client, app, steps_per_activity=20):
        assert (await user.settled(invocation)).status == "finished"
    assert ran == [*["look"] * 3, "slow", "slow"]
    assert len(model.requests) == 4


@pytest.mark.parametrize("end", [terminated, timed_out, taken_back])
async def test_what_history_has_lost_is_done_again_by_the_same_keys(
    client: Client, app_name: str, end: Callable[[User], Awaitable[None]]
) -> None:
    """google.adk names the calls of a model that names none at random."""
    looked: list[str] = []
    begun = threading.Event()
    is_open = threading.Event()

    def look(place: str, tool_context: Any) -> str:
        """Look."""
        looked.append(tool_context.function_call_id)
        return "seen"

    async def slow() -> str:
        """Take long."""
        begun.set()
        while not is_open.is_set():  # noqa: ASYNC110 -- the tools have a loop of their own
            await asyncio.sleep(0.02)
        return "done"

    class ByResponses(Script):
        """Answers equal requests equally."""

        async def generate_content_async(
            self, llm_request: LlmRequest, stream: bool = False
        ) -> AsyncGenerator[LlmResponse, None]:
            parts = [part for content in llm_request.contents for part in content.parts or []]
            number = sum(part.function_response is not None for part in parts)
            yield LlmResponse(content=types.Content(role="model", parts=deepcopy(self.answers[number])))

    model = ByResponses(call("look", place="Oslo"), call("slow"), say("done"))
    app = make_app(app_name, LlmAgent(name="clerk", model=model, tools=[look, slow]), resumable=True)
    async with serving(client, app, steps_per_activity=20) as user:
        await start(user, end)
        invocation = await user.send("go")
        await asyncio.to_thread(begun.wait)
        await end(user)
        is_open.set()
        if end is not taken_back:
            await user.resume(invocation)
        assert (await user.settled(invocation)).status == "finished"
        assert len(looked) == 2
        assert len(set(looked)) == 1
