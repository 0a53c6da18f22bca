"""Followers of sessions whose models stream, in one process with the worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest
from google.genai import types
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from perdure.agents import BaseAgent, LlmAgent, ParallelAgent
from perdure.journal.events import Event
from perdure.models.scripted import ScriptedModel
from perdure.rules.intake import response_part
from perdure.streams.hub import TokenHub
from perdure.streams.partials import ATTEMPT
from tests.streams.support import Typist, by_id, streaming, written
from tests.workflows.support import Counted, User, agent, calls, eventually, long_running, make_app, text

pytestmark = pytest.mark.server


def run(user: User, message: str = "go", **options: Any) -> AsyncGenerator[Event, None]:
    return user.runner.run_async(**user.who, new_message=message, streaming=True, **options)


async def all_of(events: AsyncGenerator[Event, None]) -> list[Event]:
    return [event async for event in events]


async def history_of(user: User) -> tuple[list[str], int]:
    """Return the types of history's events but for workflow tasks, which come as they come, and the results' bytes."""
    history = await user.workflow.fetch_history()
    names = [EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in history.events]
    done = [event.activity_task_completed_event_attributes for event in history.events]
    size = sum(payload.ByteSize() for one in done for payload in one.result.payloads)
    return [name for name in names if not name.startswith("WORKFLOW_TASK")], size


async def test_partial_events_come_while_the_model_writes_and_share_the_id_of_the_final_one(
    client: Client, app_name: str
) -> None:
    model = Typist("Oslo is fine")
    async with streaming(client, make_app(app_name, agent("clerk", model))) as user:
        await user.create()
        async with aclosing(run(user)) as events:
            seen: list[Event] = []
            for _ in range(3):
                model.let()
                seen.append(await anext(events))
            seen += [event async for event in events]
    assert written(seen) == ["[Oslo]", "[ is]", "[ fine]", "Oslo is fine", "-"]
    *partial, final, _ = seen
    assert {event.id for event in partial} == {final.id}
    assert {(event.author, event.invocation_id) for event in partial} == {("clerk", final.invocation_id)}
    assert [event.custom_metadata for event in partial] == [{ATTEMPT: 1}] * 3
    assert all(event.timestamp for event in partial)
    assert final.partial is None


async def test_partial_events_are_never_stored_and_cost_no_history(client: Client, app_name: str) -> None:
    """Beside the id, which the model's activity must know before the session would draw it."""
    words = " ".join(f"word{number}" for number in range(200))
    async with streaming(client, make_app(app_name, agent("clerk", [text(words)]))) as user:
        # The first session's plan is not at hand.
        await user.create()
        await user.run("go")
        sizes: list[tuple[list[str], int]] = []
        for name in ("streamed", "whole"):
            one = user.other(session_id=name)
            one.runner = user.runner
            await one.create()
            following = one.runner.run_async(**one.who, new_message="go", streaming=name == "streamed")
            seen = await all_of(following)
            assert len(by_id(seen)) == (name == "streamed")
            stored = [event for event in await one.events() if event.author != "user"]
            assert stored == [event for event in seen if not event.partial]
            sizes.append(await history_of(one))
    streamed, whole = sizes
    # The first task may or may not hold the message already, so their order says nothing.
    assert sorted(streamed[0]) == sorted(whole[0])
    assert 0 < streamed[1] - whole[1] < 50


async def test_a_model_is_asked_to_stream_only_where_somebody_follows(client: Client, app_name: str) -> None:
    model = Typist("one", "two", "three", held=False)
    async with streaming(client, make_app(app_name, agent("clerk", model))) as user:
        await user.create()
        await user.run("go")
        await all_of(user.runner.run_async(**user.who, new_message="go"))
        seen = await all_of(run(user))
    assert model.streamed == [False, False, True]
    assert written(seen) == ["[three]", "three", "-"]


async def test_who_watches_a_session_does_not_take_over_what_a_sender_expects(client: Client, app_name: str) -> None:
    model = Typist("one two", held=False)
    async with streaming(client, make_app(app_name, agent("clerk", model))) as user:
        await user.create()
        user.runner.expect_tokens(**user.who)
        async with aclosing(user.runner.events(**user.who, follow=True, streaming=True)) as watched:
            watching = asyncio.ensure_future(anext(watched))
            await asyncio.sleep(0.2)
            sent = await user.runner.send_message(**user.who, message="go")
            assert (await user.settled(sent.invocation.id)).status == "finished"
            follow = user.runner.follow(**user.who, invocation_id=sent.invocation.id, since=sent.offset, streaming=True)
            assert written(await all_of(follow)) == ["[one two]", "one two", "-"]
            assert (await watching).author == "user"


async def test_without_a_hub_and_with_models_that_cannot_stream_events_come_whole(
    client: Client, app_name: str
) -> None:
    async with streaming(client, make_app(app_name, agent("clerk", [calls("look"), text("done")], [look]))) as user:
        await user.create()
        alone = User(client, app_name)
        assert written(await all_of(run(alone))) == ["-", "-", "done", "-"]


def look() -> str:
    """Look."""
    return "seen"


async def test_a_retry_begins_the_text_anew_under_the_same_id(client: Client, app_name: str) -> None:
    model = Typist("Oslo is fine", held=False)
    model.fails_after = [2]
    async with streaming(client, make_app(app_name, agent("clerk", model))) as user:
        await user.create()
        seen = await all_of(run(user))
    *partial, final, _ = seen
    assert {event.id for event in partial} == {final.id}
    attempts: dict[int, str] = {}
    for event in partial:
        number = (event.custom_metadata or {})[ATTEMPT]
        assert number >= max(attempts, default=0), "an earlier attempt went on"
        attempts[number] = attempts.get(number, "") + (event.text or "")
    assert attempts == {1: "Oslo is", 2: "Oslo is fine"}


async def test_a_retry_keeps_the_id_though_its_worker_knows_of_no_follower(client: Client, app_name: str) -> None:
    hub = TokenHub()
    model = Typist("Oslo is fine", held=False)
    model.fails_after = [2]
    async with streaming(client, make_app(app_name, agent("clerk", model)), hub) as user:
        await user.create()
        follower = hub.subscribe(user.key)
        invocation = await user.send("go")
        await eventually(lambda: bool(model.streamed))
        follower.close()
        ids = {news.draft.id for news in follower.take()} or None
        await user.settled(invocation)
        final = next(event for event in await user.events() if event.text == "Oslo is fine")
    assert model.streamed == [True, False]
    assert ids is None or ids == {final.id}
    assert final.id[14] == "4"


async def test_what_a_model_has_seen_is_shown_before_what_it_writes(client: Client, app_name: str) -> None:
    """A follower looks at the log now and then; a model that has seen more of it makes it look at once."""
    search = Counted("search")
    script = [*(calls("search") for _ in range(4)), {"text": "found it", "delay": 0.6}]
    async with streaming(client, make_app(app_name, agent("clerk", script, [search.fn]))) as user:
        await user.create()
        seen = await all_of(run(user))
        stored = [event for event in await user.events() if event.author != "user"]
    assert [event for event in seen if not event.partial] == stored
    first = next(number for number, event in enumerate(seen) if event.partial)
    assert first == 8
    assert [event.id for event in seen[first:-1]] == [stored[8].id] * (len(seen) - 9)


async def test_parallel_branches_write_at_the_same_time(client: Client, app_name: str) -> None:
    lines = {name: " ".join(f"{name}{number}" for number in range(20)) for name in ("left", "right")}
    agents: list[BaseAgent] = [
        LlmAgent(name=name, model=ScriptedModel([{"text": line, "delay": 0.4}])) for name, line in lines.items()
    ]
    async with streaming(client, make_app(app_name, ParallelAgent(name="fan", sub_agents=agents))) as user:
        await user.create()
        seen = await all_of(run(user))
    found = by_id(seen)
    final = {event.id: event for event in seen if event.text and not event.partial}
    assert {final[id].text: final[id].text for id in found} == {line: line for line in lines.values()}
    assert all((final[id].text or "").startswith(text) for id, text in found.items())
    for event in seen:
        if event.partial:
            assert event.branch == f"fan.{event.author}"
            # It does not come after its own final event.
            assert seen.index(event) < seen.index(final[event.id])


async def test_one_who_attaches_in_the_middle_sees_the_answer_from_its_beginning(client: Client, app_name: str) -> None:
    model = Typist("Oslo is fine")
    async with streaming(client, make_app(app_name, agent("clerk", model))) as user:
        await user.create()
        async with aclosing(run(user)) as first:
            model.let(2)
            said = ""
            while said != "Oslo is":
                said += (await anext(first)).text or ""
            events = user.runner.events(**user.who, follow=True, streaming=True)
            async with aclosing(events) as second:
                seen = [await anext(second), await anext(second)]
                assert written(seen) == ["go", "[Oslo is]"]
                model.let()
                seen += [await anext(second) for _ in range(3)]
    assert written(seen) == ["go", "[Oslo is]", "[ fine]", "Oslo is fine", "-"]


async def test_a_follower_of_one_invocation_sees_that_one_only(client: Client, app_name: str) -> None:
    model = Typist("first words", "second words", held=False)
    async with streaming(client, make_app(app_name, agent("clerk", model))) as user:
        await user.create()
        first = await user.send("one")
        second = await user.send("two")
        seen = [event async for event in user.runner.follow(**user.who, invocation_id=second, since=0, streaming=True)]
        assert first not in {event.invocation_id for event in seen}
        assert seen[-2].text == "second words"


async def test_answers_and_resumes_are_streamed_too(client: Client, app_name: str) -> None:
    script = [calls("approve"), text("so be it")]
    async with streaming(client, make_app(app_name, agent("clerk", script, [long_running("approve")]))) as user:
        await user.create()
        [call, *_] = await all_of(run(user))
        answer = call.get_function_calls()[0].id or ""
        content = types.Content(role="user", parts=[response_part(answer, {"ok": True})])
        seen = await all_of(user.runner.run_async(**user.who, new_message=content, streaming=True))
    assert set(by_id(seen).values()) == {"so be it"}


async def test_dropping_a_streaming_follower_stops_nothing_and_leaves_nothing(client: Client, app_name: str) -> None:
    hub = TokenHub()
    model = Typist("Oslo is fine")
    async with streaming(client, make_app(app_name, agent("clerk", model)), hub) as user:
        view = await user.create()
        events = user.runner.events(**user.who, follow=True, streaming=True)
        looking = asyncio.create_task(all_of(events))
        await eventually(lambda: user.key in hub.wanted())
        invocation = await user.send("go")
        await eventually(lambda: model.streamed == [True])
        looking.cancel()
        await asyncio.wait({looking})
        await eventually(lambda: user.key not in hub.wanted())
        model.let(3)
        assert (await user.settled(invocation)).status == "finished"
        assert view.id == "s"


async def test_a_session_taken_over_from_history_keeps_the_ids_that_were_streamed(
    client: Client, app_name: str
) -> None:
    """The event stands in no slice of the journal, so it is rebuilt from the activity's result."""
    async with streaming(client, make_app(app_name, agent("clerk", [text("so be it"), text("again")]))) as user:
        await user.create()
        seen = await all_of(run(user))
        [streamed] = by_id(seen)
        await user.runner.resume(**user.who, invocation_id=seen[0].invocation_id, fresh=True)
        stored = [event.id for event in await user.events() if event.text == "so be it"]
    assert stored == [streamed]
