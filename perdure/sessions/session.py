"""`Session`: all that can be done with one session, from outside of its workflow."""

from __future__ import annotations

import sys
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, aclosing, suppress
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from temporalio.client import Client
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.credentials.sealing import Vault
from perdure.errors import (
    InvalidMessage,
    InvocationFailed,
    InvocationNotFound,
    InvocationRunning,
    SessionExists,
    SessionNotFound,
)
from perdure.journal.credential_questions import unwrapped
from perdure.journal.entries import Entry
from perdure.journal.events import USER, Event, user_content
from perdure.journal.fold import fold_journal
from perdure.journal.open_calls import PendingCall, SessionStatus
from perdure.journal.projection import shared_part, split_state_delta, stored_part
from perdure.messages.effects import Effect, EffectsPage
from perdure.messages.keys import SessionKey
from perdure.messages.session import (
    EFFECTS,
    PENDING,
    PLAN,
    RESPOND,
    RESUME,
    SEND_MESSAGE,
    SESSION,
    STOP,
    AnswerInput,
    InvocationInput,
    InvocationResult,
    InvocationView,
    MessageInput,
    PageInput,
    PendingView,
    PlanInput,
    PlanView,
    SessionInput,
    SessionView,
)
from perdure.messages.shared_state import (
    CHANGE_STATE,
    ShareStateInput,
    StateChangeInput,
    StateChangeResult,
    with_delta,
)
from perdure.plan.contents import types
from perdure.plan.nodes import CallLimit, Plan
from perdure.rules.intake import check_ids, response_part
from perdure.sessions.event_batches import EventBatch
from perdure.sessions.kept_entries import events_of
from perdure.sessions.lifecycle import Lifecycle, missing
from perdure.sessions.listing import ListedSession, listed
from perdure.sessions.log_reader import LogReader
from perdure.sessions.requests import SessionClosed, WorkflowRequests, check_sendable
from perdure.sessions.shared_state import share_state
from perdure.sessions.transfers import (
    ImportedSession,
    ResumedSession,
    Transfers,
    TriggeredLog,
    WholeLog,
    dump_session,
)
from perdure.views.explanation import SessionExplanation, explain_session

_CLOSED_PRECEDENCE: tuple[SessionStatus, ...] = ("failed", "waiting", "stopped")


@dataclass(frozen=True)
class SessionParts:
    """What the sessions of one app have in common."""

    client: Client
    lifecycle: Lifecycle
    requests: WorkflowRequests
    reader: LogReader
    transfers: Transfers
    auto_create: bool = False
    """A message creates a session that does not exist."""
    vault: Vault | None = None
    """Where the secrets of credentials go that answers hold. Default: into the history."""


class Session:
    """One session, which need not exist. `Runner` says what each of its methods does."""

    def __init__(self, key: SessionKey, parts: SessionParts) -> None:
        """Name a session."""
        self.key = key
        self._client = parts.client
        self._lifecycle = parts.lifecycle
        self._requests = parts.requests
        self._reader = parts.reader
        self._transfers = parts.transfers
        self._auto_create = parts.auto_create
        self._vault = parts.vault

    async def create(self, state: dict[str, Any]) -> SessionView:
        """Create it."""
        key = self.key
        check_ids(key)
        check_sendable(SessionInput(state=state), "state")
        try:
            await self._lifecycle.create(key, state)
        except WorkflowAlreadyStartedError as error:
            raise SessionExists(
                f"app {key.app!r} has a session {key.session!r} of user {key.user!r} already"
            ) from error
        await self._share(str(uuid.uuid4()), state)
        return SessionView(app_name=key.app, user_id=key.user, id=key.session, state=stored_part(state), status="idle")

    async def delete(self) -> None:
        """Delete it; one that does not exist is no error."""
        await self._lifecycle.delete(self.key)
        if self._vault is not None:
            await self._vault.forget(self.key)

    async def change_state(self, delta: dict[str, Any]) -> Event:
        """Write into its state; returns the event that says so."""
        request = StateChangeInput(state_delta=delta, request_id=str(uuid.uuid4()))
        event = (await self._requests.execute(self.key, CHANGE_STATE, request, StateChangeResult)).event
        if not event.actions.state_delta:
            # A large one does not come back.
            event = with_delta(event, split_state_delta(delta)[0])
        await self._share(event.id, delta)
        return event

    async def _share(self, write_id: str, delta: Mapping[str, Any]) -> None:
        """Write the keys of a delta that sessions share."""
        shared = shared_part(delta)
        if shared:
            request = ShareStateInput(user_id=self.key.user, write_id=write_id, delta=shared)
            await share_state(self._client, self.key.app, request)

    async def run(
        self,
        new_message: types.Content | str | None,
        *,
        invocation_id: str | None,
        state_delta: Mapping[str, Any] | None,
        request_id: str | None,
        streaming: bool,
        live: bool,
        max_llm_calls: int | CallLimit | None,
        metadata: Mapping[str, Any] | None,
    ) -> AsyncGenerator[Event, None]:
        """Start, answer or resume an invocation, and yield its agents' events until it gives up the turn."""
        with ExitStack() as unless_sent:
            unless_sent.callback(self.expect_tokens() if streaming else lambda: None)
            if new_message is None:
                if invocation_id is None:
                    raise InvalidMessage("give a new_message, or the invocation_id of an invocation to resume")
                result = await self.resume(
                    invocation_id, request_id=request_id, max_llm_calls=max_llm_calls, streaming=streaming
                )
            else:
                content = user_content(new_message) if isinstance(new_message, str) else new_message
                if any(part.function_response for part in content.parts or []):
                    if max_llm_calls is not None:
                        raise InvalidMessage("max_llm_calls goes with a message, or with a resume")
                    if state_delta:
                        raise InvalidMessage("state_delta goes with a message, not with answers")
                    result = await self.respond(
                        content,
                        invocation_id=invocation_id,
                        request_id=request_id,
                        metadata=metadata,
                        streaming=streaming,
                    )
                elif invocation_id is not None:
                    raise InvalidMessage("an invocation_id goes with function responses, or with no message to resume")
                else:
                    result = await self.send(
                        content,
                        state_delta=state_delta,
                        request_id=request_id,
                        metadata=metadata,
                        max_llm_calls=max_llm_calls,
                        streaming=streaming,
                    )
            unless_sent.pop_all()
        follow = self.follow(result.invocation.id, since=result.offset, streaming=streaming, live=live)
        async with aclosing(follow) as events:
            async for event in events:
                yield event

    async def send(
        self,
        message: types.Content | str,
        *,
        state_delta: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        max_llm_calls: int | CallLimit | None = None,
        streaming: bool = False,
    ) -> InvocationResult:
        """Accept a message."""
        request = MessageInput(
            content=user_content(message) if isinstance(message, str) else message,
            state_delta=dict(state_delta or {}),
            request_id=request_id or str(uuid.uuid4()),
            metadata=dict(metadata) if metadata is not None else None,
            max_llm_calls=_call_limit(max_llm_calls),
            streaming=streaming,
        )
        try:
            return await self._requests.update(self.key, SEND_MESSAGE, request)
        except SessionNotFound:
            if not self._auto_create:
                raise
        check_ids(self.key)
        if (result := await self._requests.begin(self.key, SEND_MESSAGE, request)) is not None:
            return result
        # Somebody else may have created it meanwhile; an earlier one of its id may have been deleted.
        with suppress(SessionExists):
            await self.create({})
        return await self._requests.update(self.key, SEND_MESSAGE, request)

    async def respond(
        self,
        responses: Mapping[str, Any] | types.Content,
        *,
        invocation_id: str | None = None,
        request_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        streaming: bool = False,
    ) -> InvocationResult:
        """Answer open calls."""
        if not isinstance(responses, types.Content):
            parts = [response_part(call_id, response) for call_id, response in responses.items()]
            responses = types.Content(role=USER, parts=parts)
        request_id = request_id or str(uuid.uuid4())
        request = AnswerInput(
            content=await self._without_secrets(responses, request_id),
            invocation_id=invocation_id,
            request_id=request_id,
            metadata=dict(metadata) if metadata is not None else None,
            streaming=streaming,
        )
        return await self._requests.update(self.key, RESPOND, request)

    async def _without_secrets(self, content: types.Content, request_id: str) -> types.Content:
        if self._vault is None:
            return content
        parts: list[types.Part] = []
        for number, part in enumerate(content.parts or []):
            response = part.function_response
            if response is not None and response.response:
                which = f"{request_id}/{number}"
                given = unwrapped(response.id, response.response)
                told = await self._vault.seal(self.key, given, request_id=which)
                part = part.model_copy(update={"function_response": response.model_copy(update={"response": told})})
            parts.append(part)
        return content.model_copy(update={"parts": parts})

    async def resume(
        self,
        invocation_id: str,
        *,
        fresh: bool = False,
        request_id: str | None = None,
        max_llm_calls: int | CallLimit | None = None,
        streaming: bool = False,
    ) -> InvocationResult:
        """Run an invocation on."""
        request = InvocationInput(
            invocation_id=invocation_id,
            request_id=request_id,
            max_llm_calls=_call_limit(max_llm_calls),
            streaming=streaming,
        )
        if not fresh:
            return await self._requests.update(self.key, RESUME, request)
        await self._lifecycle.take_over(self.key)
        offset = (await self.view()).event_count
        try:
            return await self._requests.update(self.key, RESUME, request)
        except InvocationRunning:
            # It was at work, and is again.
            return InvocationResult(invocation=await self.invocation(invocation_id), offset=offset)

    async def stop(self, invocation_id: str, *, reason: str | None) -> InvocationResult:
        """Stop an invocation."""
        return await self._requests.update(self.key, STOP, InvocationInput(invocation_id=invocation_id, reason=reason))

    async def drive(self, log: TriggeredLog, *, replace: bool) -> ResumedSession:
        """Begin with a log, and drive its last event on."""
        return log.resumed(self.key, await self._transfers.put(self.key, log.triggered.entries, replace=replace))

    async def take(self, log: WholeLog, *, replace: bool) -> ImportedSession:
        """Begin with a log, of which nothing is set going."""
        return log.imported(self.key, await self._transfers.put(self.key, log.entries, replace=replace))

    async def export(self, *, journal: bool, shown_as: Callable[[Entry], Entry] | None) -> AsyncGenerator[str, None]:
        """Yield it as lines of JSON; `shown_as` says what stands in the file for an entry."""
        for line in dump_session(self.key, await self._transfers.read(self.key), journal=journal, shown_as=shown_as):
            yield line

    async def view(self) -> SessionView:
        """Return its state, its invocations and their status."""
        try:
            view, kept, _ = await self._requests.look_kept(self.key, SESSION, closed=False)
            return view.model_copy(update={"kept": events_of(kept)}) if kept else view
        except SessionClosed as error:
            view = await self._requests.look(self.key, SESSION)
            return _interrupted(view, f"the session's workflow is {error}")

    async def invocation(self, invocation_id: str) -> InvocationView:
        """Return an invocation."""
        # Of the log nothing is wanted: a page from beyond its end.
        request = PageInput(since=sys.maxsize, invocation_id=invocation_id)
        try:
            view = (await self._reader.page(self.key, request)).invocation
        except InvocationFailed:
            views = (await self.view()).invocations
            view = next((view for view in views if view.id == invocation_id), None)
        if view is not None:
            return view
        raise InvocationNotFound(f"session {self.key.session!r} has no invocation {invocation_id!r}")

    async def plan(self, invocation_id: str) -> Plan | None:
        """Return the plan that an invocation is pinned to; `None` while it is queued."""
        digest = (await self.invocation(invocation_id)).plan
        if digest is None:
            return None
        view: PlanView = await self._requests.look(self.key, PLAN, PlanInput(digest=digest))
        return view.plan

    async def pending(self) -> list[tuple[ListedSession, PendingCall]]:
        """Return its open calls, oldest first."""
        try:
            session = listed(await self._client.get_workflow_handle(self.key.workflow_id).describe())
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                raise missing(self.key) from error
            raise
        view: PendingView = await self._requests.look(self.key, PENDING)
        return [(session, call) for call in sorted(view.calls, key=lambda call: call.since)]

    async def effects(self) -> tuple[Effect, ...]:
        """Return the whole ledger, page by page; calls may come in between, but none goes away."""
        effects: list[Effect] = []
        while True:
            page = await self.effects_page(len(effects))
            effects.extend(page.effects)
            if len(effects) >= page.total:
                return tuple(effects)

    async def effects_page(self, since: int) -> EffectsPage:
        """Return a page of the ledger."""
        request = PageInput(since=since)
        return await self._requests.look(self.key, EFFECTS, request)

    async def explain(self, *, invocation_id: str | None, since: int, limit: int) -> SessionExplanation:
        """Return what it awaits, why it does not go on, and what a resume would do."""
        status = await self._lifecycle.status(self.key)
        entries, kept = await self._transfers.read_kept(self.key)
        projection = fold_journal([*entries, *kept])
        closed = None if status in ("running", "continued as new") else status
        return explain_session(
            projection,
            self.key,
            closed=closed,
            halted=await self._requests.halted(self.key) if closed is None else None,
            invocation_id=invocation_id,
            since=since,
            limit=limit,
            kept=len(kept),
        )

    def events(self, *, since: int, follow: bool, streaming: bool) -> AsyncGenerator[Event, None]:
        """Yield the log's events."""
        return self._reader.events(self.key, since, follow=follow, streaming=streaming)

    def event_batches(self, *, since: int, patience: float, streaming: bool) -> AsyncGenerator[EventBatch, None]:
        """Yield the log's events for ever, some at a time."""
        return self._reader.batches(self.key, since, patience=patience, streaming=streaming)

    def follow(self, invocation_id: str, *, since: int, streaming: bool, live: bool) -> AsyncGenerator[Event, None]:
        """Yield the events of an invocation's agents until it gives up the turn."""
        return self._reader.follow(self.key, invocation_id, since, streaming=streaming, live=live)

    async def event_count(self, *, at_least: int) -> int:
        """Return the number of events in the log."""
        return await self._reader.length(self.key, at_least)

    async def grown(self, length: int) -> int:
        """Wait until the journal has another length; returns it."""
        return await self._reader.grown(self.key, length)

    def expect_tokens(self) -> Callable[[], None]:
        """Let workers stream what its models write, until a follower is there; returns what takes it back."""
        return self._reader.expect(self.key)


def _call_limit(given: int | CallLimit | None) -> CallLimit | None:
    """Return a number of model calls as it is sent; raise `InvalidMessage` if it is none."""
    if given is None or isinstance(given, CallLimit):
        return given
    try:
        return CallLimit(most=given)
    except ValidationError as error:
        raise InvalidMessage(f"max_llm_calls is {given!r}; give a whole number, 0 or less for no limit") from error


def _interrupted(view: SessionView, reason: str) -> SessionView:
    """Return a closed session as it will be when it is brought back: what ran is stopped."""
    invocations = tuple(
        invocation.model_copy(update={"status": "stopped", "reason": reason})
        if invocation.status == "running"
        else invocation
        for invocation in view.invocations
    )
    statuses = {invocation.status for invocation in invocations}
    status: SessionStatus = "idle"
    for candidate in _CLOSED_PRECEDENCE:
        if candidate in statuses:
            status = candidate
            break
    return view.model_copy(update={"invocations": invocations, "status": status})
