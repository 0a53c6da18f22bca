"""Steps that one activity takes together are shown as each is kept, before the log has them; each once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from types import SimpleNamespace
from typing import cast

import pytest
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse
from temporalio.client import Client, WorkflowExecutionDescription

from perdure.agents import ParallelAgent
from perdure.journal.entries import ModelCalled
from perdure.journal.events import Event
from perdure.messages.session import CALL_MODEL
from perdure.messages.stretches import Stretch
from perdure.sessions.kept_entries import kept_entries
from perdure.temporal.payloads import data_converter
from tests.api.support import Obedient, served
from tests.cli.support import Perdure, perdure
from tests.workflows.support import Counted, Gate, agent, calls, serving, short, text
from tests.workflows.test_stretches import activities, app_of

__all__ = ["perdure"]

pytestmark = pytest.mark.server


def said(event: Event) -> str:
    return ", ".join(short(event))


async def test_who_follows_sees_a_step_as_soon_as_it_is_kept_and_once(
    client: Client, app_name: str, temporal_server: str, perdure: Perdure
) -> None:
    """Beside one that takes long: by turn and by log, alone and with pieces of what models write."""
    gate = Gate()
    clerk = agent("clerk", [calls("look"), calls("slow"), text("done")], [Counted("look").fn, gate.tool("slow")])
    async with serving(client, app_of(app_name, clerk)) as user:
        await user.create()
        invocation = await user.send("go")
        follows = [
            *(user.runner.follow(**user.who, invocation_id=invocation, streaming=on) for on in (False, True)),
            *(user.runner.events(**user.who, follow=True, streaming=on) for on in (False, True)),
        ]
        before, after = ["user: go", "clerk calls look", "clerk got look", "clerk calls slow"], ["clerk got slow"]
        found = [await _taken(follow, before[1:] if place < 2 else before) for place, follow in enumerate(follows)]
        assert found == [before[1:], before[1:], before, before]
        # The log itself does not have them, which any number of looks tells apart.
        assert await user.log() == before[:1]
        assert [said(event) for event in (await user.view()).kept] == before[1:]
        printed = ("events", app_name, "--user", "u", "--session", "s", "--address", temporal_server)
        assert "slow" in (await perdure(*printed)).out
        # Of lines that are counted none is beyond the log.
        assert len((await perdure(*printed, "--json")).json_lines) == 1
        told = await user.runner.explain(**user.who)
        assert (told.event_count, len(told.kept)) == (1, 3)
        # A page that is open is told when there is more.
        async with asyncio.timeout(20):
            assert await user.runner.grown(**user.who, length=told.journal_length - 1) == told.journal_length
        news = asyncio.create_task(user.runner.grown(**user.who, length=told.journal_length))
        gate.open()
        for follow in follows:
            assert await _taken(follow, [*after, "clerk: done"]) == [*after, "clerk: done"]
            await follow.aclose()
        assert await user.log() == [*before, *after, "clerk: done"]
        assert await news > told.journal_length
        assert (await user.view()).kept == ()
        assert await activities(user) == ["model"]


async def _taken(follow: AsyncGenerator[Event, None], until: Sequence[str]) -> list[str]:
    """Follow until the last of these events has come; returns what came."""
    found: list[str] = []
    async with asyncio.timeout(20):
        async for event in follow:
            if not event.partial:
                found.append(said(event))
            if found and found[-1] == until[-1]:
                break
    return found


async def test_what_is_kept_beside_each_other_is_shown_once_whatever_the_log_makes_of_the_order(
    client: Client, app_name: str
) -> None:
    """Branches that go on at their own pace: the one that was shown last is logged first."""
    first, last = Gate(), Gate()
    a = agent("a", [calls("look"), calls("wait_a"), text("a done")], [Counted("look").fn, first.tool("wait_a")])
    b = agent("b", [calls("wait_b"), calls("look"), text("b done")], [Counted("look").fn, last.tool("wait_b")])
    async with serving(client, app_of(app_name, ParallelAgent(name="both", sub_agents=[a, b]))) as user:
        await user.create()
        invocation = await user.send("go")
        follow = user.runner.follow(**user.who, invocation_id=invocation, since=0)
        shown: list[Event] = []
        async with asyncio.timeout(20):
            while not {"a calls wait_a", "b calls wait_b"} <= {said(event) for event in shown}:
                shown.append(await anext(follow))
        last.open()
        async with asyncio.timeout(20):
            while "b: b done" not in {said(event) for event in shown}:
                shown.append(await anext(follow))
            first.open()
            shown += [event async for event in follow]
        log = [event for event in await user.events() if not event.is_users]
        assert len(shown) == len({event.id for event in shown}) == len(log)
        assert {event.id for event in shown} == {event.id for event in log}


async def test_a_stream_of_the_api_has_no_id_for_what_is_kept_until_the_log_has_it(
    client: Client, app_name: str
) -> None:
    gate = Gate()
    clerk = agent("clerk", [calls("look"), calls("slow"), text("done")], [Counted("look").fn, gate.tool("slow")])
    app = app_of(app_name, clerk)
    async with serving(client, app) as user, served(client, app, Obedient()) as api:
        await user.create()
        http, path = api.http, f"/v1/apps/{app_name}/users/u/sessions/s/events"
        await user.send("go")
        for partial in ("false", "true"):
            async with http.stream("GET", f"{path}/stream", params={"partial": partial}) as stream:
                lines = stream.aiter_lines()
                kept = await _frames(lines, 4)
                assert [frame["id"] for frame in kept] == ["1", None, None, None]
        page = (await http.get(path)).json()
        assert (page["next"], page["total"], len(page["events"])) == (1, 1, 1)
        assert [event["id"] for event in page["kept"]] == [frame["event"] for frame in kept[1:]]
        # From in front of them they come again, by the same ids.
        async with http.stream("GET", f"{path}/stream", headers={"last-event-id": "1"}) as stream:
            lines = stream.aiter_lines()
            again = await _frames(lines, 3)
            assert again == kept[1:]
            gate.open()
            logged = await _frames(lines, 6)
        assert [frame["id"] for frame in logged] == ["2", "3", "4", "5", "6", "7"]
        assert [frame["event"] is None for frame in logged] == [True, True, True, False, False, False]
        page = (await http.get(path)).json()
        assert (page["next"], len(page["kept"])) == (7, 0)
        assert [event["id"] for event in page["events"][3:]] == [
            again[2]["event"],
            *(one["event"] for one in logged[3:]),
        ]


async def _frames(lines: AsyncIterator[str], number: int) -> list[dict[str, str | None]]:
    """Return frames of a stream of events, each by its id and the id of its event; not those of pieces."""
    frames: list[dict[str, str | None]] = []
    frame: dict[str, str | None] = {"id": None, "event": None}
    async with asyncio.timeout(20):
        async for line in lines:
            name, _, value = line.partition(": ")
            if name == "id":
                frame["id"] = value
            elif name == "data" and not json.loads(value).get("partial"):
                frame["event"] = json.loads(value)["id"]
            elif not line and any(frame.values()):
                frames.append(frame)
                frame = {"id": None, "event": None}
            if len(frames) == number:
                break
    return frames


async def test_what_cannot_be_read_of_an_activity_is_not_shown() -> None:
    """One of another version, or of a namespace whose key is not at hand: it is for its own worker to fail."""
    readable = await data_converter.encode(
        [Stretch(entries=(ModelCalled(invocation_id="e-1", agent="clerk"),), steps=1)]
    )
    described = DescribeWorkflowExecutionResponse()
    for payloads in (await data_converter.encode(["?", {"entries": [{}]}]), readable):
        pending = described.pending_activities.add()
        pending.activity_type.name = CALL_MODEL
        pending.heartbeat_details.payloads.extend(payloads)
    other = described.pending_activities.add()
    other.activity_type.name = "look"
    other.heartbeat_details.payloads.extend(readable)
    run = cast("WorkflowExecutionDescription", SimpleNamespace(id="w", raw_description=described))
    assert [type(entry) for entry in await kept_entries(run, data_converter)] == [ModelCalled]
