"""Takes a client's request: says, answers or joins, and never more than its user may."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, cast

from ag_ui import core

from perdure.api.ag_ui.interrupts import Resumption, request_id, resume_id
from perdure.api.ag_ui.messages import MESSAGE_ID, content_of
from perdure.api.ag_ui.telling import own_keys
from perdure.api.auth.identity import Identity
from perdure.api.base.attribution import answer_metadata
from perdure.api.base.backend import Backend
from perdure.api.base.questions import questions_of
from perdure.api.v1.addressing import Where
from perdure.errors import CallNotFound, InvalidMessage, SessionExists, SessionNotFound
from perdure.messages.session import InvocationResult, SessionView
from perdure.views.forms.asked import Question
from perdure.views.forms.declared import given_answer

_RESUME_ID = "ag-ui:resume"
"""Key in the metadata of an answer's event: which request gave it."""


@dataclass(frozen=True)
class Taken:
    """An invocation that a run tells of."""

    id: str
    since: int
    """Where in the log the telling begins."""
    joined: bool = False
    """Nothing was said that the log did not hold: the client is to be told what was before."""
    answered: bool = False
    """What stands there is the user's answer."""

    @classmethod
    def of(cls, result: InvocationResult, *, answered: bool = False) -> Taken:
        """Return what a session has taken."""
        return cls(result.invocation.id, result.offset, answered=answered)


class Intake:
    """A request, and the session that it is for."""

    def __init__(self, given: core.RunAgentInput, where: Where, backend: Backend, identity: Identity) -> None:
        """Say who asks for what, and where."""
        self._given = given
        self._where = where
        self._backend = backend
        self._identity = identity

    @property
    def _said(self) -> core.UserMessage | None:
        """The message that begins a turn: the last of the list alone; all others are what the client remembers."""
        last = self._given.messages[-1] if self._given.messages else None
        return last if isinstance(last, core.UserMessage) else None

    async def session(self) -> SessionView:
        """Return the session with the client's state in it; one that is not there begins with a message."""
        runner, key = self._where.runner, self._where.key
        given: Any = self._given.state
        state = own_keys(cast("dict[str, Any]", given)) if isinstance(given, dict) else {}
        try:
            view = await runner.get_session(**key.arguments)
        except SessionNotFound:
            if self._said is None:
                return SessionView(app_name=key.app, user_id=key.user, id=key.session, state={}, status="idle")
            # Somebody else may have created it meanwhile.
            with suppress(SessionExists):
                return await runner.create_session(**key.arguments, state=state)
            view = await runner.get_session(**key.arguments)
        changes = {name: value for name, value in state.items() if name not in view.state or view.state[name] != value}
        if changes:
            await runner.change_state(**key.arguments, state_delta=changes)
            view = view.model_copy(update={"state": view.state | changes, "event_count": view.event_count + 1})
        return view

    async def take(self, view: SessionView) -> Taken | None:
        """Do what the request is for; `None` if nothing goes on that it could tell of.

        Raises:
            RequestRefused: The session does not take it.
        """
        if self._given.resume:
            return await self._resume(view, self._given.resume)
        if answers := await self._tool_answers(view):
            return await self._respond(answers, request_id(answers))
        if self._said is not None:
            return await self._say(view, self._said)
        return self._join(view)

    async def _say(self, view: SessionView, message: core.UserMessage) -> Taken:
        runner, key = self._where.runner, self._where.key
        result = await runner.send_message(
            **key.arguments,
            message=content_of(message),
            request_id=request_id(message.id),
            metadata={MESSAGE_ID: message.id},
            streaming=True,
        )
        if result.offset >= view.event_count:
            return Taken.of(result)
        # The log held it before: the client lost its connection, or tries again.
        invocation = await runner.invocation(**key.arguments, invocation_id=result.invocation.id)
        if invocation.resumable and invocation.status in ("failed", "stopped"):
            await runner.resume(**key.arguments, invocation_id=invocation.id, streaming=True)
        return Taken(invocation.id, view.event_count, joined=True)

    def _join(self, view: SessionView) -> Taken | None:
        ranks = {"queued": 0, "running": 0, "waiting": 1}
        found = [one for one in reversed(view.invocations) if one.status in ranks or one.pending]
        if not found:
            return None
        newest = min(found, key=lambda one: ranks.get(one.status, 2))
        return Taken(newest.id, view.event_count, joined=True)

    async def _resume(self, view: SessionView, entries: Sequence[core.ResumeEntry]) -> Taken | None:
        runner, key = self._where.runner, self._where.key
        request = resume_id(entries)
        todo = Resumption.of(entries, await self._asked(view))
        if todo.unknown:
            if await self._was_taken(request):
                return self._join(view) or Taken(view.invocations[-1].id, view.event_count, joined=True)
            raise CallNotFound(
                f"nothing waits for an answer under the id {todo.unknown[0][:100]!r}: it was answered, or never asked;"
                " a run without `resume` tells what waits"
            )
        taken: Taken | None = None
        if todo.answers:
            taken = await self._respond(todo.answers, request)
        if todo.message is not None:
            result = await runner.send_message(
                **key.arguments, message=todo.message, request_id=request, streaming=True
            )
            taken = Taken.of(result)
        for invocation_id in dict.fromkeys(todo.resumes):
            result = await runner.resume(
                **key.arguments, invocation_id=invocation_id, request_id=request, streaming=True
            )
            taken = Taken.of(result)
        for invocation_id in dict.fromkeys(todo.stops):
            result = await runner.stop(**key.arguments, invocation_id=invocation_id, reason="the user gave no answer")
            taken = Taken.of(result)
        return taken

    async def _respond(self, answers: Mapping[str, Any], request: str) -> Taken:
        result = await self._where.runner.respond(
            **self._where.key.arguments,
            responses=answers,
            request_id=request,
            metadata={_RESUME_ID: request, **answer_metadata(self._identity)},
            streaming=True,
        )
        return Taken.of(result, answered=True)

    async def _asked(self, view: SessionView) -> dict[str, Question]:
        """Return what waits in the session, by the ids of the calls."""
        unended = [one for one in view.invocations if one.status != "stopped"]
        found = [await questions_of(one, self._where.key, self._backend) for one in unended]
        return {question.call.id: question for questions in found for question in questions}

    async def _was_taken(self, request: str) -> bool:
        events = self._where.runner.events(**self._where.key.arguments)
        return any([(event.custom_metadata or {}).get(_RESUME_ID) == request async for event in events])

    async def _tool_answers(self, view: SessionView) -> dict[str, Any]:
        """Return what the client's newest messages answer: calls of tools that wait, and nothing else.

        A result of any other call is what the client remembers, or made up: it counts for nothing.
        """
        given = list(_newest_results(self._given.messages))
        if not given:
            return {}
        asked = await self._asked(view)
        return {
            message.tool_call_id: _result(message, asked[message.tool_call_id])
            for message in given
            if message.tool_call_id in asked and asked[message.tool_call_id].kind == "answer"
        }


def _newest_results(messages: Sequence[core.Message]) -> Iterator[core.ToolMessage]:
    for message in takewhile(lambda one: isinstance(one, core.ToolMessage), reversed(messages)):
        assert isinstance(message, core.ToolMessage)
        yield message


def _result(message: core.ToolMessage, question: Question) -> Any:
    if message.error:
        return {"error": message.error}
    if isinstance(message.content, str):
        text = message.content
    else:
        text = "".join(part.text for part in message.content if isinstance(part, core.TextPart))
    try:
        return question.read(given_answer(text, question.schema))
    except ValueError as error:
        raise InvalidMessage(str(error)) from None
