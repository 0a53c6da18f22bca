"""Parts (`partial`) of what the code of Perdure's own custom agents says, also where it runs again."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest
from google.genai import types
from temporalio.client import Client

from perdure.agents import BaseAgent
from perdure.agents.custom import InvocationContext
from perdure.journal.events import Event
from perdure.messages.keys import SessionKey
from perdure.steps.base import Place
from perdure.steps.code import suspended_code
from perdure.steps.code.parts import Parts
from perdure.steps.code.past import Past
from perdure.streams.drafts import Drafts
from perdure.streams.hub import TokenHub
from perdure.streams.partials import ATTEMPT, partial_events
from tests.streams.support import streaming, written
from tests.workflows.support import agent, make_app, text

PLACE = Place(SessionKey("shop", "ann", "s1"), "e-1", "flow", None, "flow")


def says(author: str, words: str, *, partial: bool = False) -> Event:
    content = types.Content(role="model", parts=[types.Part(text=words)])
    return Event(author=author, content=content, partial=partial or None)


class Flow(BaseAgent):
    """Says things in parts around what its sub-agent says."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        yield says(self.name, "One ", partial=True)
        yield says(self.name, "two.", partial=True)
        yield says(self.name, "One two.")
        async for event in self.sub_agents[0].run_async(ctx):
            yield event
        yield says(self.name, "Th", partial=True)
        yield says(self.name, "Three.")


@pytest.mark.server
@pytest.mark.parametrize("kept", [200, 0], ids=["kept", "from the top"])
async def test_each_part_is_shown_once_with_the_id_of_what_it_is_a_part_of(
    client: Client, app_name: str, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspended_code, "_MOST_KEPT", kept)
    app = make_app(app_name, Flow(name="flow", sub_agents=[agent("clerk", [text("Hello")])]))
    async with streaming(client, app) as user:
        await user.create()
        seen = [event async for event in user.runner.run_async(**user.who, new_message="go", streaming=True)]
        stored = [event.text for event in await user.events() if event.text]
    assert [word for word in written(seen) if word != "-"] == [
        "[One ]",
        "[two.]",
        "One two.",
        "[Hello]",
        "Hello",
        "[Th]",
        "Three.",
    ]
    assert [event.id for event in seen if event.partial] == [
        next(event.id for event in seen if event.text == whole) for whole in ("One two.", "One two.", "Hello", "Three.")
    ]
    assert stored == ["go", "One two.", "Hello", "Three."]


class _Log:
    """As much of a journal as parts look at."""

    def __init__(self, length: int, begin: int) -> None:
        self.length = length
        self.places = self
        self.begin = begin


class Follower:
    """Follows a session, and runs code that says parts in it."""

    def __init__(self) -> None:
        self.hub = TokenHub()
        self.subscription = self.hub.subscribe(PLACE.key.workflow_id)

    def parts(self, attempt: int, length: int, begin: int = 3, **counts: int) -> Parts:
        """Return the parts of code that begins at its top."""
        parts = Parts(PLACE)
        parts.begin(cast(Past, _Log(length, begin)), counts)
        parts.drafts = Drafts(self.hub, PLACE.key.workflow_id, "e-1", 5, attempt)
        return parts

    def seen(self) -> list[Event]:
        return [event for news in self.subscription.take() for event in partial_events(news.draft, news.pieces)]


async def test_code_that_runs_again_shows_its_parts_as_another_attempt_under_the_same_id() -> None:
    follower = Follower()
    attempts: list[tuple[str, int]] = []
    # Its first step twice; then one behind more of the journal, also twice.
    for attempt, length in ((1, 3), (2, 3), (1, 7), (2, 7)):
        parts = follower.parts(attempt, length)
        parts.show(says("flow", "Hel", partial=True), "", before=0)
        parts.end()
        (event,) = follower.seen()
        attempts.append((event.id, (event.custom_metadata or {}).get(ATTEMPT, 1)))
    assert len({id for id, _ in attempts}) == 1
    numbers = [number for _, number in attempts]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [(("a", "flow"), ("b", "flow")), (("a", "flow"), ("a", "other")), (("a", "flow"), ("a", "flow"))],
    ids=["nodes", "authors", "one behind the other"],
)
async def test_no_two_answers_have_one_id(first: tuple[str, str], second: tuple[str, str]) -> None:
    follower = Follower()
    parts = follower.parts(1, 3)
    ids: list[Any] = []
    for where, author in (first, second):
        parts.show(says(author, "Hel", partial=True), where, before=0)
        ids.append(follower.seen()[0].id)
        if first == second:
            assert parts.logged(author, where) == ids[-1]
    assert len(set(ids)) == 2


async def test_an_event_of_which_no_part_was_told_keeps_its_id() -> None:
    parts = Follower().parts(1, 3)
    assert parts.logged("flow", "") == ""


async def test_who_begins_to_follow_in_the_middle_is_shown_no_rest() -> None:
    follower = Follower()
    follower.subscription.close()
    parts = follower.parts(1, 3)
    parts.show(says("flow", "Hel", partial=True), "", before=0)
    follower.subscription = follower.hub.subscribe(PLACE.key.workflow_id)
    parts.show(says("flow", "lo", partial=True), "", before=0)
    assert follower.seen() == []
    # Its event has an id that an earlier attempt may have shown.
    assert parts.logged("flow", "")


async def test_parts_are_shown_behind_what_no_step_has_returned_yet() -> None:
    follower = Follower()
    parts = follower.parts(1, 3)
    parts.show(says("flow", "Hel", partial=True), "", before=2)
    assert parts.waits
    (news,) = follower.subscription.take()
    assert news.draft.offset == 7
