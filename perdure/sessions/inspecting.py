"""The methods of `Runner` that only read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing

from temporalio.client import Client

from perdure.journal.events import Event
from perdure.journal.open_calls import PendingCall, SessionStatus
from perdure.logs import get_logger
from perdure.messages.keys import SessionKey
from perdure.messages.session import Effect, EffectsPage, InvocationView, SessionView
from perdure.plan.nodes import Plan
from perdure.sessions.log_reader import LogReader
from perdure.sessions.pending import Wanted, all_waiting
from perdure.sessions.sessions import ListedSession, Sessions
from perdure.views.explanation import EXPLAINED, SessionExplanation, explain_session

_logger = get_logger("perdure.client")


class Inspecting:
    """Reads sessions, and changes nothing."""

    app_name: str
    _client: Client
    _sessions: Sessions
    _reader: LogReader

    def _key(self, user_id: str, session_id: str) -> SessionKey:
        return SessionKey(self.app_name, user_id, session_id)

    async def get_session(self, *, user_id: str, session_id: str) -> SessionView:
        """Return a session: its state, its invocations and their status."""
        return await self._sessions.view(self._key(user_id, session_id))

    session = get_session

    async def list_sessions(
        self, *, user_id: str | None = None, status: Collection[SessionStatus] = ()
    ) -> list[ListedSession]:
        """Return the app's sessions, or one user's; listings may be a moment behind.

        Args:
            user_id: Only this user's.
            status: Only those of one of these statuses; where the server has no search attributes, each session is
                asked for its own.
        """
        return await self._sessions.list(user_id, status)

    sessions = list_sessions

    async def invocation(self, *, user_id: str, session_id: str, invocation_id: str) -> InvocationView:
        """Return an invocation.

        Raises:
            InvocationNotFound: The session has no such invocation.
        """
        return await self._sessions.invocation(self._key(user_id, session_id), invocation_id)

    async def plan(self, *, user_id: str, session_id: str, invocation_id: str) -> Plan | None:
        """Return the plan that an invocation is pinned to; `None` while it is queued."""
        view = await self.invocation(user_id=user_id, session_id=session_id, invocation_id=invocation_id)
        return await self._sessions.plan(self._key(user_id, session_id), view.plan) if view.plan is not None else None

    async def pending(
        self, *, user_id: str | None = None, session_id: str | None = None
    ) -> list[tuple[ListedSession, PendingCall]]:
        """Return the open calls of one session, of a user's sessions, or of all, oldest first.

        Of several sessions those that do not answer are left out, and logged.

        Raises:
            SessionNotFound: There is no such session.
            SessionUnreadable: No worker answers for the one session that was asked for.
        """
        if user_id is not None and session_id is not None:
            return await self._sessions.pending(self._key(user_id, session_id))
        # A listing that changes meanwhile may tell of a session twice.
        found: dict[tuple[str, str], tuple[ListedSession, PendingCall]] = {}
        async for page in all_waiting(self._client, Wanted(app=self.app_name, user_id=user_id)):
            for session, call in page.calls:
                if session_id in (None, session.id):
                    found[session.workflow_id, call.id] = (session, call)
            for session in page.unanswered:
                _logger.warning("a session does not answer; its calls are left out", workflow=session.workflow_id)
        return sorted(found.values(), key=lambda pair: pair[1].since)

    async def effects(self, *, user_id: str, session_id: str) -> tuple[Effect, ...]:
        """Return the ledger of a session: each tool call, its attempts and times, and what became of it."""
        return await self._sessions.effects(self._key(user_id, session_id))

    async def effects_page(self, *, user_id: str, session_id: str, since: int = 0) -> EffectsPage:
        """Return a page of the ledger, from an offset on: as many calls as the answer of a query takes."""
        return await self._sessions.effects_page(self._key(user_id, session_id), since)

    async def explain(
        self,
        *,
        user_id: str,
        session_id: str,
        invocation_id: str | None = None,
        since: int = 0,
        limit: int = EXPLAINED,
    ) -> SessionExplanation:
        """Return what a session awaits, why it does not go on, and what a resume would do; nothing is done.

        Args:
            user_id: Whose session.
            session_id: Which session.
            invocation_id: Explain only this invocation. Default: those that are not finished, or the newest.
            since: How many of these are passed over.
            limit: How many of these are explained at the most; `next` says where to go on.

        Raises:
            InvocationNotFound: The session has no such invocation.
            SessionUnreadable: No worker answers for it.
        """
        key = self._key(user_id, session_id)
        projection, closed = await self._sessions.projection(key)
        return explain_session(projection, key, closed=closed, invocation_id=invocation_id, since=since, limit=limit)

    async def events(
        self, *, user_id: str, session_id: str, since: int = 0, follow: bool = False, streaming: bool = False
    ) -> AsyncGenerator[Event, None]:
        """Yield the log's events from an offset on; with `follow`, go on for ever as it grows.

        With `streaming`, `partial` events come in between, which are not in the log: see `Runner.run_async`.
        """
        events = self._reader.events(self._key(user_id, session_id), since, follow=follow, streaming=streaming)
        async with aclosing(events):
            async for event in events:
                yield event

    async def grown(self, *, user_id: str, session_id: str, length: int) -> int:
        """Wait until a session's journal has another length than `length`; returns it. That costs no history."""
        return await self._reader.grown(self._key(user_id, session_id), length)

    async def event_batches(
        self, *, user_id: str, session_id: str, since: int = 0, patience: float = 60.0, streaming: bool = False
    ) -> AsyncGenerator[tuple[Event, ...], None]:
        """Yield the log's events from an offset on for ever, some at a time; all who follow one session share the work.

        With `streaming`, `partial` events come in between, and each such follower works for itself.

        Args:
            user_id: Whose session.
            session_id: Which session.
            since: The offset.
            patience: Seconds of silence after which an empty batch comes.
            streaming: Tokens, too: see `Runner.run_async`.
        """
        found = self._reader.batches(self._key(user_id, session_id), since, patience=patience, streaming=streaming)
        async with aclosing(found) as batches:
            async for batch in batches:
                yield batch

    async def event_count(self, *, user_id: str, session_id: str, at_least: int = 0) -> int:
        """Return the number of events in a session's log.

        Args:
            user_id: Whose session.
            session_id: Which session.
            at_least: Where somebody who follows the log here knows of so many events, their number is returned; else
                the session is asked.
        """
        return await self._reader.length(self._key(user_id, session_id), at_least)

    async def follow(
        self,
        *,
        user_id: str,
        session_id: str,
        invocation_id: str,
        since: int = 0,
        streaming: bool = False,
        live: bool = True,
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of an invocation's agents from an offset of the log until it waits, ends, stops or fails.

        Args:
            user_id: Whose session.
            session_id: Which session.
            invocation_id: Which invocation.
            since: The offset.
            streaming: Also yield `partial` events, which are not in the log: see `Runner.run_async`.
            live: Yield events as they are logged. Else all of them as the agents come to rest: the session itself says
                when, by an update. That costs its worker one look instead of one for each step, and its history five
                events or so. Where the session does not say it (more than five wait for it, its worker is of an older
                version, the connection breaks), and with `streaming`, events come as they are logged.

        Raises:
            InvocationFailed: A step failed, or the session's workflow was closed meanwhile.
        """
        events = self._reader.follow(
            self._key(user_id, session_id), invocation_id, since, streaming=streaming, live=live
        )
        async with aclosing(events):
            async for event in events:
                yield event

    def expect_tokens(self, *, user_id: str, session_id: str) -> Callable[[], None]:
        """Ask workers to stream what the session's models write: for half a minute, until `follow` or `events` reads.

        Called before a message is sent, so that a model that is called at once streams, too.

        Returns:
            Takes it back, for when the message could not be sent.
        """
        return self._reader.expect(self._key(user_id, session_id))
