"""`Player`, the user of a scenario: takes its turns, and reads what they left behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.genai import types
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle

from perdure.client import Runner
from perdure.errors import InvocationFailed, PerdureError, RequestRefused
from perdure.journal.entries import AnswerAccepted, Entry, MessageAccepted, ResumeAccepted
from perdure.journal.events import USER, Event, user_content
from perdure.messages.keys import SessionKey
from perdure.messages.session import Trial
from perdure.prove.outcome import Outcome, Place, places
from perdure.prove.scenario import Answer, Turn
from perdure.sessions.lifecycle import Lifecycle


class TurnImpossible(PerdureError):
    """A turn answers a call, or resumes an invocation, that the log does not hold."""


class Player:
    """One session of a proof and its user."""

    def __init__(
        self, client: Client, app_name: str, *, user_id: str = "u", session_id: str = "s", trial: Trial | None = None
    ) -> None:
        self.runner = Runner(app_name, client, trial=trial)
        self.lifecycle = Lifecycle(client, trial=trial)
        self.key = SessionKey(app_name, user_id, session_id)
        self.who = self.key.arguments
        self._client = client
        self.outcome = Outcome()

    async def play(self, turns: Sequence[Turn], like: Outcome | None = None) -> None:
        """Take turns, and note after each what it appended.

        Args:
            turns: What to do.
            like: The uninterrupted run, whose calls are answered wherever they stand in this log.

        Raises:
            TurnImpossible: A turn cannot be taken.
        """
        for turn in turns:
            number = len(self.outcome.turns)
            wanted = like.answered[number] if like is not None else None
            failed = False
            try:
                await self._take(turn, number + 1, wanted)
            except (InvocationFailed, RequestRefused):
                failed = True
            await self.note(failed=failed)

    async def note(self, *, failed: bool = False) -> None:
        """Note what a turn appended."""
        before = sum(len(events) for events in self.outcome.turns)
        self.outcome.turns.append([event async for event in self.runner.events(**self.who, since=before)])
        self.outcome.failed.append(failed)
        self.outcome.journal = await self.lifecycle.read_journal(self.key)
        self.outcome.turn_ends.append(len(self.outcome.journal))
        if len(self.outcome.answered) < len(self.outcome.turns):
            self.outcome.answered.append(())

    async def finish(self) -> Outcome:
        """Return the outcome, with the session's state and the size of its histories."""
        outcome = self.outcome
        outcome.state = (await self.runner.get_session(**self.who)).state
        return outcome

    async def count_history(self) -> None:
        """Count the runs of the session's workflow, and their workflow tasks."""
        run_id: str | None = (await self._client.get_workflow_handle(self.key.workflow_id).describe()).run_id
        self.outcome.runs = self.outcome.workflow_tasks = 0
        while run_id:
            handle: WorkflowHandle[Any, Any] = self._client.get_workflow_handle(self.key.workflow_id, run_id=run_id)
            self.outcome.runs += 1
            before = None
            async for event in handle.fetch_history_events():
                if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                    self.outcome.workflow_tasks += 1
                started = event.workflow_execution_started_event_attributes
                before = started.continued_execution_run_id or before
            run_id = before

    async def catch_up(self) -> None:
        """Let what was accepted before the cut go on to its end, and resume what was cut off."""
        view = await self.runner.get_session(**self.who)
        for invocation in view.invocations:
            try:
                if invocation.status == "stopped":
                    await self.runner.resume(**self.who, invocation_id=invocation.id)
                if invocation.status in ("stopped", "queued", "running"):
                    async for _ in self.runner.follow(**self.who, invocation_id=invocation.id, since=view.event_count):
                        pass
            except (InvocationFailed, RequestRefused):
                continue

    async def _take(self, turn: Turn, number: int, wanted: Sequence[Place] | None) -> None:
        events = [event for events in self.outcome.turns for event in events]
        what: dict[str, Any]
        if turn.message is not None:
            what = {"new_message": user_content(turn.message)}
        elif turn.respond is not None:
            what = {"new_message": self._answer(turn.respond, events, number, wanted)}
        elif turn.resume is not None:
            what = {"invocation_id": _invocation(turn.resume.invocation, events, number)}
        else:
            raise TurnImpossible(f"turn {number} has neither message nor respond nor resume")
        async for _ in self.runner.run_async(**self.who, **what):
            # What the turn logged is read from the log.
            pass

    def _answer(
        self, answers: Sequence[Answer], events: Sequence[Event], number: int, wanted: Sequence[Place] | None
    ) -> types.Content:
        where = places(events)
        if wanted is None:
            ids = [_call_id(answer, events, number) for answer in answers]
        else:
            by_place = {place: call_id for call_id, place in where.items()}
            lost = [place for place in wanted if place not in by_place]
            if lost:
                raise TurnImpossible(f"turn {number} answers a call that this run did not make: {lost[0]}")
            ids = [by_place[place] for place in wanted]
        self.outcome.answered.append(tuple(where[call_id] for call_id in ids))
        parts = [
            types.Part(function_response=types.FunctionResponse(id=call_id, name=answer.call, response=answer.response))
            for call_id, answer in zip(ids, answers, strict=True)
        ]
        return types.Content(role=USER, parts=parts)


def accepted_at(entries: Sequence[Entry], start: int) -> int | None:
    """Return where the journal of a turn that begins at `start` accepts all that the user sent, if it does."""
    last: int | None = None
    for index in range(start, len(entries)):
        entry = entries[index]
        if isinstance(entry, MessageAccepted | ResumeAccepted):
            return index
        if isinstance(entry, AnswerAccepted):
            last = index
        elif last is not None:
            break
    return last


def _call_id(answer: Answer, events: Sequence[Event], turn: int) -> str:
    found = [call_id for call_id, place in places(events).items() if place.name == answer.call]
    if not 1 <= answer.occurrence <= len(found):
        raise TurnImpossible(
            f"turn {turn} answers call {answer.occurrence} of {answer.call!r}, but the log holds {len(found)} of them"
        )
    return found[answer.occurrence - 1]


def _invocation(number: int, events: Sequence[Event], turn: int) -> str:
    ids = list(dict.fromkeys(event.invocation_id for event in events))
    if not 1 <= number <= len(ids):
        raise TurnImpossible(f"turn {turn} resumes invocation {number}, but the log holds {len(ids)} of them")
    return ids[number - 1]
