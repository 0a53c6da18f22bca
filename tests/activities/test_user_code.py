"""What user code raises ends its call at once, with what it is, wherever the code runs and whatever it raises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from datetime import timedelta
from typing import Annotated, Any

import pytest
from google.genai import types
from pydantic import AfterValidator
from temporalio.client import Client

from perdure.agents import App, LlmAgent, LongRunningFunctionTool, ResumabilityConfig
from perdure.agents.custom import BaseAgent
from perdure.agents.tools import FunctionTool
from perdure.models.base import BaseLlm, LlmRequest, LlmResponse
from tests.activities.exit_agents import KINDS, Acting, act, act_async
from tests.workflows.support import ONCE, User, eventually, named, serving

pytestmark = pytest.mark.server


class Asks(BaseLlm):
    """Calls `act` with what the user said, and then is done."""

    def __init__(self) -> None:
        super().__init__("asks")

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        [*_, last] = [part for content in llm_request.contents for part in content.parts or []]
        call = types.FunctionCall(name="act", args={"kind": last.text})
        part = types.Part(function_call=call) if last.text is not None else types.Part(text="done")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


class Raises(BaseLlm):
    """A provider whose own code raises."""

    def __init__(self) -> None:
        super().__init__("raises")

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        content = llm_request.contents[-1].parts or []
        await act_async(content[0].text or "")
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="done")]))


def fine(kind: str) -> str:
    """Act."""
    return kind


def checked(kind: Annotated[str, AfterValidator(act)]) -> str:
    """Act."""
    return kind


def calling(tool: FunctionTool) -> LlmAgent:
    tool.name = "act"
    # A busy machine is no dead worker.
    tool.options = tool.options.model_copy(update={"heartbeat_timeout": timedelta(seconds=20)})
    return LlmAgent(name="root", model=Asks(), tools=[tool])


def said(ctx: Any) -> str:
    return ctx.user_content.parts[0].text


def instructed(ctx: Any) -> str:
    act(said(ctx))
    return ""


async def instructed_async(ctx: Any) -> str:
    await act_async(said(ctx))
    return ""


PLACES: dict[str, Callable[[], BaseAgent]] = {
    "tool": lambda: calling(FunctionTool(act, retry=ONCE)),
    "async tool": lambda: calling(FunctionTool(act_async, retry=ONCE)),
    "local tool": lambda: calling(FunctionTool(act, retry=ONCE, local=True)),
    "async local tool": lambda: calling(FunctionTool(act_async, retry=ONCE, local=True)),
    "long-running tool": lambda: calling(LongRunningFunctionTool(act, retry=ONCE)),
    "async long-running tool": lambda: calling(LongRunningFunctionTool(act_async, retry=ONCE)),
    "predicate": lambda: calling(FunctionTool(fine, retry=ONCE, require_confirmation=act)),  # type: ignore[arg-type]
    "instruction": lambda: LlmAgent(name="root", model=Asks(), instruction=instructed),
    "async instruction": lambda: LlmAgent(name="root", model=Asks(), instruction=instructed_async),
    "model": lambda: LlmAgent(name="root", model=Raises()),
    "run_activity": lambda: Acting(name="root"),
    "async run_activity": lambda: Acting(name="root", asynchronous=True),
}


def app_of(name: str, root: BaseAgent) -> App:
    config = ResumabilityConfig(is_resumable=True)
    return App(name=name, root_agent=root, resumability_config=config, activities=[act, act_async])


EVERYWHERE = (
    *("StopIteration", "KeyboardInterrupt", "asyncio's CancelledError", "a BaseException", "no text", "3 MB"),
    "a text that cannot be made",
)
"""What is tried in every place; the places share what runs them, where all of it is tried."""

_AT_ONCE = 5
"""Sessions that run at once: more of them, with exceptions of 3 MB in a log, hold up a busy machine."""


async def each_kind(user: User, check: Callable[[User, str], Any], kinds: Iterable[str] = EVERYWHERE) -> None:
    """Run a check for every kind, each in a session of its own."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(number: int, kind: str) -> None:
        async with room:
            await check(user.other(session_id=str(number)), kind)

    await asyncio.gather(*(one(number, kind) for number, kind in enumerate(kinds)))


@pytest.mark.parametrize("place", PLACES)
async def test_whatever_code_raises_fails_its_call_at_once(client: Client, app_name: str, place: str) -> None:
    """None of it hangs, is taken for a stop, or ends a worker, and all of it can be read."""

    async def check(user: User, kind: str) -> None:
        await user.create()
        failed = await user.run(kind)
        assert failed.status == "failed", kind
        cause = failed.failures[0].cause
        assert KINDS[kind][1] in cause, (kind, cause[:200])
        assert len(cause) < 4300, kind
        assert not cause.endswith(": "), kind

    everything = place in ("tool", "async tool", "run_activity")
    async with serving(client, app_of(app_name, PLACES[place]())) as user:
        await each_kind(user, check, KINDS if everything else EVERYWHERE)


async def test_what_a_types_own_validator_raises_is_told_to_the_model(client: Client, app_name: str) -> None:
    async def check(user: User, kind: str) -> None:
        await user.create()
        settled = await user.run(kind)
        if settled.status == "finished":
            [response] = [r.response for event in await user.events() for r in event.get_function_responses()]
            told = str((response or {})["error"])
            assert told.startswith("Invoking `act()` failed as "), kind
            assert len(told) < 4500
        else:
            # What asks for the end of the process, or of the call, is no word about an argument.
            assert KINDS[kind][1] in settled.failures[0].cause, kind

    async with serving(client, app_of(app_name, calling(FunctionTool(checked, retry=ONCE)))) as user:
        await each_kind(user, check, KINDS)


def failures(user: User, name: str) -> Callable[[], Any]:
    async def look() -> list[str]:
        [history] = await user.histories()
        scheduled = {
            event.event_id: event.activity_task_scheduled_event_attributes.activity_type.name
            for event in history.events
            if event.HasField("activity_task_scheduled_event_attributes")
        }
        return [
            f"{attributes.failure.application_failure_info.type}: {attributes.failure.message}"
            for event in history.events
            if event.HasField("activity_task_failed_event_attributes")
            and (attributes := event.activity_task_failed_event_attributes)
            and scheduled[attributes.scheduled_event_id] == name
        ]

    return look


@pytest.mark.parametrize("function", [act, act_async])
async def test_whatever_a_reminder_raises_ends_it(client: Client, app_name: str, function: Any) -> None:
    """It is logged, and nothing else happens."""
    tool = LongRunningFunctionTool(fine, retry=ONCE, remind_in=timedelta(seconds=0.5), reminder=function)

    async def check(user: User, kind: str) -> None:
        await user.create()
        assert (await user.run(kind)).status == "waiting"
        look = failures(user, "act:reminder")

        async def failed() -> bool:
            return bool(await look())

        await eventually(failed)
        assert KINDS[kind][1] in (await look())[0], kind

    async with serving(client, app_of(app_name, calling(tool))) as user:
        await each_kind(user, check)


@pytest.mark.parametrize("function", [act, act_async])
async def test_whatever_a_reconcile_function_raises_leaves_the_call_to_a_person(
    client: Client, app_name: str, function: Any
) -> None:
    def lost(kind: str) -> None:
        """Act."""
        raise RuntimeError("was it done?")

    tool = FunctionTool(named(lost, "act"), at_most_once=True, reconcile=function)

    async def check(user: User, kind: str) -> None:
        await user.create()
        lost = await user.run(kind)
        assert (await user.resumed(lost.id)).status == "waiting", kind
        assert KINDS[kind][1] in (await failures(user, "act:reconcile")())[0], kind

    async with serving(client, app_of(app_name, calling(tool))) as user:
        await each_kind(user, check)
