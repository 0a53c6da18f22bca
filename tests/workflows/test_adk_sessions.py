"""Sessions that ADK 1.20.0 to 2.13.0 stored themselves: they end as ADK's, or are refused with a reason."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from google.genai import types
from temporalio.client import Client

from perdure.agents import App, FunctionTool, LlmAgent, ResumabilityConfig
from perdure.agents.context import ToolContext
from perdure.errors import InvalidTrajectory
from perdure.journal.events import USER, Event, user_content
from perdure.trajectories.given_logs import read_given
from tests.adk_shop import SESSIONS, VERSIONS, Shop, conversation
from tests.workflows.support import ONCE, User, serving

pytestmark = pytest.mark.server

CASES = [(version, name) for version in VERSIONS for name in SESSIONS[version]]
IDS = [f"{version}-{name}" for version, name in CASES]

ANSWERS: dict[str, Any] = {"ask_approval": {"status": "approved"}, "adk_request_confirmation": {"confirmed": True}}


@asynccontextmanager
async def shop(client: Client, app_name: str) -> AsyncGenerator[tuple[Shop, User]]:
    made = Shop(app_name)
    async with serving(client, made.app) as user:
        yield made, user


def next_event(version: str, name: str, events: Sequence[Event]) -> list[Event]:
    """Return what is to be appended so that a session goes on as it did in ADK; nothing for a resume."""
    then: Mapping[str, Any] = SESSIONS[version][name]["next"]["then"]
    if "message" in then:
        return [Event(author=USER, content=user_content(then["message"]))]
    if "respond" in then:
        (call,) = (call for event in events for call in event.get_function_calls() if call.name == then["respond"])
        part = types.Part(
            function_response=types.FunctionResponse(id=call.id, name=call.name, response=dict(then["with"]))
        )
        return [Event(author=USER, content=types.Content(role="user", parts=[part]))]
    return []


def expected_next(version: str, name: str) -> list[Any]:
    """Return what ADK's events said, but for decided differences."""
    found = [Event.model_validate(event) for event in map(_given, SESSIONS[version][name]["next"]["events"])]
    told = conversation(found)
    if (version, name) == ("2.13.0", "failed"):
        # That ADK runs the whole sequence again from its first agent; a step that is done is not done again.
        return [words for words in told if words[0] != "first"]
    if (version, name) == ("1.20.0", "compacted"):
        # That ADK cannot read its own summary back, and fails.
        return [(USER, [("text", "count again")]), ("concierge", [("text", "Four.")])]
    return told


def _given(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event of the normal form as one of a log."""
    parts: list[dict[str, Any]] = event["content"]["parts"] if "content" in event else []
    content = {"parts": [part for part in parts if part.keys() & {"text", "function_call", "function_response"}]}
    return {"author": event["author"], "invocation_id": event["invocation"], "content": content}


def _shown(contents: Sequence[types.Content]) -> list[Any]:
    return [content.model_dump(mode="json", exclude_none=True) for content in contents]


@pytest.mark.parametrize(("version", "name"), CASES, ids=IDS)
async def test_a_stored_session_goes_on_as_adk_goes_on(client: Client, app_name: str, version: str, name: str) -> None:
    """By an import and what the user does then, and by `resume_from`: the same events, models asked the same."""
    stored = SESSIONS[version][name]
    async with shop(client, app_name) as (made, user):
        given = read_given(stored["session"])
        more = next_event(version, name, given.events)
        imported = await user.runner.import_session(stored["session"], session_id="imported")
        session = user.other(user_id=stored["session"]["userId"], session_id="imported")
        assert [event.to_json() for event in await session.events()] == [event.to_json() for event in given.events]
        assert (await session.view()).state == stored["session"]["state"]
        last = imported.invocations[-1].id
        if not more:
            view = await session.resumed(last)
        elif responses := more[0].get_function_responses():
            view = await session.answered({responses[0].id or "": responses[0].response})
        else:
            view = await session.run(more[0].text or "")
        assert view.status == "finished"
        by_import = await session.events()
        asked = {agent: [_shown(one.contents) for one in model.requests] for agent, model in made.models.items()}

        resumed = await user.runner.resume_from(
            {**stored["session"], "events": [*stored["session"]["events"], *(_json(event) for event in more)]},
            user_id="u",
        )
        driven = user.other(session_id=resumed.session_id)
        assert (await driven.settled(resumed.invocation.id)).status == "finished"
        by_driving = await driven.events()
        again = {
            agent: [_shown(one.contents) for one in model.requests[len(asked[agent]) :]]
            for agent, model in made.models.items()
        }
    assert conversation(by_import[len(given.events) :]) == expected_next(version, name)
    assert conversation(by_driving) == conversation(by_import)
    assert again == asked
    _check_requests(version, name, asked)


def _json(event: Event) -> dict[str, Any]:
    return event.model_dump(mode="json", by_alias=True, exclude_none=True)


SAME_RULES = {
    **{
        (version, name): version for version in VERSIONS for name in ("waiting_call", "waiting_confirmation", "rewound")
    },
    **{("1.39.1", name): "1.39.1" for name in ("finished", "failed")},
    # That ADK leaves out what a model ran as code.
    **{(version, "rich"): "1.39.1" for version in VERSIONS},
    ("2.13.0", "compacted"): "2.13.0",
}
"""Whose requests are Perdure's; the words in which other agents are told of differ from version to version."""

COMPACTED = {
    "1.20.0": ["The user counted.", "count further", "count again"],
    # A summary is the agent's own word, as in the newest ADK.
    "1.39.1": ["The user counted.", "count again"],
}


def _check_requests(version: str, name: str, asked: Mapping[str, list[Any]]) -> None:
    source = SAME_RULES.get((version, name))
    if source is None and name == "compacted":
        (contents,) = asked["concierge"]
        assert _texts(contents)[-len(COMPACTED[version]) :] == COMPACTED[version]
    if source is None:
        return
    expected = [one for one in SESSIONS[source][name]["next"]["requests"] if one["agent"] != "summary"]
    for agent, found in asked.items():
        told = [_texts(one["contents"]) for one in expected if one["agent"] == agent]
        # A conversation opens with the user, so Perdure may put a word in front of a summary.
        assert [_texts(one)[-len(words) :] for one, words in zip(found, told, strict=True)] == told


def _texts(contents: Sequence[Any]) -> list[Any]:
    """Return what contents say: texts, calls and responses, in order."""
    found: list[Any] = []
    for content in contents:
        for part in content["parts"]:
            for key in ("text", "function_call", "function_response"):
                if key in part:
                    found.append(part[key] if key == "text" else {k: v for k, v in part[key].items() if k != "id"})
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", SESSIONS["1.39.1"])
async def test_every_prefix_ends_as_the_whole_or_is_refused_with_a_reason(
    client: Client, app_name: str, version: str, name: str
) -> None:
    """What a crash left goes on to what stands in the whole log; nothing that is not over is taken as finished."""
    stored = SESSIONS[version][name]["session"]
    whole = read_given(stored).events
    async with shop(client, app_name) as (_, user):
        await asyncio.gather(*(_check_prefix(user, version, name, stored, whole, n) for n in range(1, len(whole) + 1)))


async def _check_prefix(
    user: User, version: str, name: str, stored: Mapping[str, Any], whole: Sequence[Event], length: int
) -> None:
    prefix: dict[str, Any] = {**stored, "state": {}, "events": stored["events"][:length]}
    made = await user.runner.import_session(
        prefix, user_id="u", session_id=f"imported-{length}", allow_pending_calls=True
    )
    session = user.other(session_id=f"imported-{length}")
    for view in made.invocations:
        left = await session.resumed(view.id) if view.resumable else view
        goal = [*conversation(whole, view.id), *MADE_GOOD.get((version, name, goal_of(whole, view.id)), [])]
        found = conversation(await session.events(), view.id)
        if left.status == "waiting":
            assert name.startswith("waiting"), (length, found)
            # Perdure asks a person before it tells the model of that.
            assert sorted(map(str, found)) == sorted(map(str, goal[: len(found)])) or found == goal[:2], length
        else:
            assert (left.status, found) == ("finished", goal), length
    try:
        resumed = await user.runner.resume_from(prefix, user_id="u", allow_pending_calls=True)
    except InvalidTrajectory as error:
        refusal = str(error)
        assert any(reason in refusal for reason in ("waits for an answer", "has finished", "asks a person")), refusal
        return
    driven = user.other(session_id=resumed.session_id)
    await driven.settled(resumed.invocation.id)
    by_driving = conversation(await driven.events())
    if (name, length) == ("waiting_call", 2):
        # Whoever allows it lets the tool run, whose response is to come; an import takes it to have run.
        assert by_driving.pop() == ("concierge", [("response", "ask_approval")])
    assert by_driving == conversation(await session.events()), length


MADE_GOOD: dict[tuple[str, str, str], list[Any]] = {
    **{
        (version, "failed", "chain"): [
            ("second", [("text", "Second is done.")]),
            ("third", [("text", "Third is done.")]),
        ]
        for version in VERSIONS
    },
    ("1.20.0", "compacted", "count further"): [("concierge", [("text", "Three.")])],
}
"""What comes to the log of invocations that failed in ADK, by the message that began them."""


def goal_of(whole: Sequence[Event], invocation_id: str) -> str:
    return next(event.text or "" for event in whole if event.invocation_id == invocation_id)


async def test_two_imports_of_a_file_run_their_tools_under_keys_of_their_own(client: Client, app_name: str) -> None:
    """An outside system takes the second payment under one key for a repetition of the first."""
    stored = SESSIONS["2.13.0"]["waiting_confirmation"]["session"]
    async with shop(client, app_name) as (made, user):

        async def approved(session_id: str, **options: Any) -> User:
            await user.runner.import_session(stored, user_id="u", session_id=session_id, **options)
            session = user.other(session_id=session_id)
            (call_id,) = await session.open("adk_request_confirmation")
            assert (await session.answered({call_id: {"confirmed": True}})).status == "finished"
            return session

        one, other = await approved("one"), await approved("other")
        kept = await approved("one", replace=True)
        lines = [line async for line in user.runner.export_session(**other.who, journal=True)]
        await user.runner.import_session(lines, session_id="again")
        again = user.other(session_id="again")
        assert len(made.refunds) == len(set(made.refunds)) == 3
        assert len({key.partition("/")[2] for key in made.refunds}) == 1, "beside the salt they are the same"
        # The ledger tells the keys under which tools ran, wherever the log has been since.
        told = [[one.idempotency_key for one in await _refunds(session)] for session in (kept, other, again)]
        assert told == [[made.refunds[2]], [made.refunds[1]], [made.refunds[1]]]
        assert await _refunds(user.other(session_id="one~replaced-1")) != []
        assert one.key == kept.key


async def _refunds(session: User) -> list[Any]:
    return [effect for effect in await session.runner.effects(**session.who) if effect.tool == "refund"]


async def test_a_key_stays_the_same_over_attempts_and_a_lost_workflow(client: Client, app_name: str) -> None:
    stored = SESSIONS["1.39.1"]["waiting_confirmation"]["session"]
    seen: list[str] = []

    def refund(amount: int, tool_context: ToolContext) -> str:
        """Pays money back."""
        seen.append(tool_context.idempotency_key)
        if len(seen) < 3:
            raise RuntimeError("down")
        return "done"

    made = Shop(app_name)
    once = FunctionTool(refund, require_confirmation=True, retry=ONCE)
    app = App(
        name=app_name,
        root_agent=LlmAgent(name="concierge", model=made.models["concierge"], tools=[once]),
        resumability_config=ResumabilityConfig(is_resumable=True),
    )
    async with serving(client, app) as user:
        await user.runner.import_session(stored, user_id="u", session_id="s")
        (call_id,) = await user.open("adk_request_confirmation")
        view = await user.answered({call_id: {"confirmed": True}})
        assert view.status == "failed"
        assert (await user.resumed(view.id)).status == "failed"
        await user.workflow.terminate(reason="lost")
        assert (await user.resumed(view.id)).status == "finished"
    assert len(seen) == 3
    assert len(set(seen)) == 1
