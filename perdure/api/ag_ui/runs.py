"""Tells of one run of AG-UI, from its begin to what it waits for, its end or its failure."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing

from ag_ui import core
from fastapi import HTTPException

from perdure.api.ag_ui.intake import Intake, Taken
from perdure.api.ag_ui.interrupts import interrupt_of, other_interrupt
from perdure.api.ag_ui.messages import messages_of
from perdure.api.ag_ui.telling import Telling, own_keys
from perdure.api.auth.standing import Standing
from perdure.api.base.backend import Backend
from perdure.api.base.questions import questions_of
from perdure.api.base.statuses import kind_and_text
from perdure.api.base.streams import until_gone
from perdure.api.v1.addressing import Where
from perdure.messages.session import InvocationView, SessionView

_Events = AsyncGenerator[core.BaseEvent, None]


class Run:
    """One request of a client, and the events that answer it."""

    def __init__(self, given: core.RunAgentInput, intake: Intake, where: Where, backend: Backend) -> None:
        """Take a request of somebody who may run agents in the session."""
        self._given = given
        self._intake = intake
        self._where = where
        self._backend = backend
        self._telling = Telling()

    async def events(self, standing: Standing) -> _Events:
        """Yield the run's events; whatever goes wrong is the last of them. Who leaves does not stop the invocation."""
        given = self._given
        yield core.RunStartedEvent(
            thread_id=given.thread_id,
            run_id=given.run_id,
            parent_run_id=given.parent_run_id,
            protocol_version=core.PROTOCOL_VERSION,
        )
        try:
            async with aclosing(self._turn(standing)) as events:
                async for event in events:
                    yield event
        except Exception as error:
            yield _run_error(error)

    async def _turn(self, standing: Standing) -> _Events:
        arguments = self._where.key.arguments
        view, taken = await self._begin()
        yield core.StateSnapshotEvent(snapshot=own_keys(view.state))
        if taken is None or taken.joined:
            # What comes behind these is told as it comes.
            yield await self._messages(view.event_count)
        if taken is None:
            yield self._finished(core.RunFinishedSuccessOutcome())
            return
        if taken.answered:
            answer = await anext(self._where.runner.events(**arguments, since=taken.since), None)
            for told in self._telling.results(answer) if answer is not None else ():
                yield told
        follow = self._where.runner.follow(**arguments, invocation_id=taken.id, since=taken.since, streaming=True)
        async with aclosing(until_gone(follow, self._backend.closing, standing=standing)) as events:
            async for event in events:
                for told in self._telling.told(event):
                    yield told
        async with aclosing(self._end(taken.id)) as ending:
            async for told in ending:
                yield told

    async def _begin(self) -> tuple[SessionView, Taken | None]:
        with ExitStack() as unless_taken:
            unless_taken.callback(self._where.runner.expect_tokens(**self._where.key.arguments))
            async with self._backend.patience():
                view = await self._intake.session()
                taken = await self._intake.take(view)
            if taken is not None:
                unless_taken.pop_all()
        return view, taken

    async def _end(self, invocation_id: str) -> _Events:
        runner, arguments = self._where.runner, self._where.key.arguments
        view = await runner.invocation(**arguments, invocation_id=invocation_id)
        interrupts = await self._interrupts(view)
        if interrupts:
            # A client that comes back later begins from here.
            session = await runner.get_session(**arguments)
            yield core.StateSnapshotEvent(snapshot=own_keys(session.state))
        if interrupts or self._telling.amiss:
            yield await self._messages()
        if interrupts:
            yield self._finished(core.RunFinishedInterruptOutcome(interrupts=interrupts))
        elif view.status == "stopped":
            yield self._finished(core.RunFinishedCancelledOutcome())
        else:
            yield self._finished(core.RunFinishedSuccessOutcome())

    async def _interrupts(self, view: InvocationView) -> list[core.Interrupt]:
        if view.status in ("stopped", "failed"):
            return []
        found = [interrupt_of(question) for question in await questions_of(view, self._where.key, self._backend)]
        if found or view.status != "waiting":
            return found
        explained = await self._where.runner.explain(**self._where.key.arguments, invocation_id=view.id)
        return [other_interrupt(view, listens=explained.listens is not None)]

    async def _messages(self, most: int | None = None) -> core.MessagesSnapshotEvent:
        """Return the log's messages, or those of so many events; of a session without any there may be none."""
        events = [event async for event in self._where.runner.events(**self._where.key.arguments)] if most != 0 else []
        return core.MessagesSnapshotEvent(messages=messages_of(events[:most]))

    def _finished(self, outcome: core.RunFinishedOutcome) -> core.RunFinishedEvent:
        return core.RunFinishedEvent(thread_id=self._given.thread_id, run_id=self._given.run_id, outcome=outcome)


def _run_error(error: Exception) -> core.RunErrorEvent:
    """Return how a run breaks off; an internal error is logged, not told."""
    if isinstance(error, HTTPException):
        return core.RunErrorEvent(message=str(error.detail), code=str(error.status_code))
    kind, text = kind_and_text(error, "/ag-ui")
    return core.RunErrorEvent(message=text, code=kind)
