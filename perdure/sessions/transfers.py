"""Takes sessions over from logs and files, and writes them out."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel, ConfigDict
from temporalio.client import Client
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from perdure.errors import InvalidMessage, SessionExists
from perdure.journal.entries import Entry, LogImported
from perdure.journal.fold import fold_journal
from perdure.messages.keys import SessionKey
from perdure.messages.search_attributes import KEYS
from perdure.messages.session import InvocationResult, InvocationView, Trial
from perdure.rules.intake import check_ids
from perdure.sessions.lifecycle import DELETED, Lifecycle, missing
from perdure.trajectories.bare_log import to_journal
from perdure.trajectories.driven_log import DrivenTrajectory, drive_log
from perdure.trajectories.export_file import dump_lines, make_header
from perdure.trajectories.given_logs import GivenLog, LogSource, read_given
from perdure.views.pages import invocation_view

_VERSIONS = ("perdure", "temporalio", "google-genai")
"""Packages whose versions an export names."""

_REPLACE_ATTEMPTS = 10

_SALT_LENGTH = 16
"""Digits, of 4 bits each, that tell one import's idempotency keys from another's."""


class ResumedSession(InvocationResult):
    """The result of `resume_from`: follow the session from `offset` on."""

    user_id: str
    session_id: str
    replaced: str | None = None
    """Session id under which the log that stood here before is kept."""
    notes: tuple[str, ...] = ()
    """What of the log was left out, or is not known."""


class ImportedSession(BaseModel):
    """The result of `import_session`."""

    model_config = ConfigDict(frozen=True)

    app_name: str
    user_id: str
    session_id: str
    event_count: int
    """Events in the log."""
    invocations: tuple[InvocationView, ...] = ()
    """The invocations as the log left them."""
    replaced: str | None = None
    """Session id under which the log that stood here before is kept."""
    notes: tuple[str, ...] = ()
    """What of the log was left out, or is not known."""


class Transferring:
    """The methods of `Runner` that take sessions over from logs and files, and write them out."""

    app_name: str
    _transfers: Transfers

    async def resume_from(
        self,
        events: LogSource,
        *,
        user_id: str,
        session_id: str | None = None,
        state: Mapping[str, Any] | None = None,
        replace: bool = False,
        allow_pending_calls: bool = False,
    ) -> ResumedSession:
        """Drive an event log on, in a session made of it; returns at once, as `send_message` does.

        The last event is the trigger, those before it are history. It may be a user's message; a user's response to a
        long-running call or to a call without response (its tool does not run, the model reacts to the response); an
        answer to a confirmation; or an agent's event behind which its invocation is not over, such as a model's answer
        with calls. A rewind, a summary or a change of state behind it is no trigger.

        Args:
            events: The log: events of Perdure or of ADK; or, as objects or as JSON, what `import_session` takes, of
                which the names and Perdure's own entries are not looked at.
            user_id: Whose session.
            session_id: The new session's id. Default: a fresh one.
            state: The state that the log starts from. Default: as the log tells, if it does.
            replace: A session of this id gets this log; the log that it had is kept under another id.
            allow_pending_calls: Calls in the log that have no response may run. Only for a log that you trust.

        Raises:
            InvalidTrajectory: The events are no log, or the last one cannot drive a turn.
            SessionExists: There is a session of this id, and `replace` is not set.
            SessionUnreadable: The session cannot be replaced, since no worker answers for it; or another client has
                replaced this one before all of it had arrived.
        """

        def read() -> tuple[GivenLog, DrivenTrajectory]:
            given = read_given(events)
            return given, drive_log(
                given.shown_events(),
                state=given.state if state is None else state,
                shared=given.shared if state is None else None,
                allow_pending_calls=allow_pending_calls,
                fresh=_fresh,
                now=time.time(),
                key_salt=_fresh_salt(),
            )

        # It takes seconds for a large log, in which others are to be served.
        given, log = await asyncio.to_thread(read)
        key = SessionKey(self.app_name, user_id, session_id or _fresh())
        replaced = await self._transfers.put(key, log.entries, replace=replace)
        view = invocation_view(log.projection, log.projection.invocations[log.invocation_id])
        return ResumedSession(
            invocation=view,
            offset=log.offset,
            user_id=key.user,
            session_id=key.session,
            replaced=replaced,
            notes=given.notes,
        )

    async def export_session(
        self, *, user_id: str, session_id: str, journal: bool = False, shown_as: Callable[[Entry], Entry] | None = None
    ) -> AsyncGenerator[str, None]:
        """Yield a session as lines of JSON, without line ends: a header, then ADK's events.

        Args:
            user_id: Whose session.
            session_id: Which session.
            journal: Add Perdure's own entries, so that an import can answer and resume what waits, failed or stopped.
            shown_as: What stands in the file for an entry. Default: the entry.

        Raises:
            SessionNotFound: There is none.
            SessionUnreadable: No worker answers for it.
        """
        key = SessionKey(self.app_name, user_id, session_id)
        entries = await self._transfers.read(key)
        if shown_as is not None:
            entries = [shown_as(entry) for entry in entries]
        versions = {name: version(name) for name in _VERSIONS}
        header = make_header(key, fold_journal(entries), journal=journal, versions=versions)
        for line in dump_lines(header, entries):
            yield line

    async def import_session(
        self,
        log: LogSource,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        replace: bool = False,
        allow_pending_calls: bool = False,
        damaged: bool = False,
    ) -> ImportedSession:
        """Make a session of a log; nothing in it is set going.

        Args:
            log: An export, as text or its lines, such as an open file's; a session of ADK, or ADK's events, as JSON or
                as objects; or what `read_given` made of one.
            user_id: Whose session. Default: the log's.
            session_id: The session's id. Default: the log's; where it names none, a fresh one.
            replace: A session of this id gets this log; the log that it had is kept under another id.
            allow_pending_calls: Calls in the log that have no response may run when their invocation goes on. Only for
                a file that you trust.
            damaged: The log is an export that was cut or changed: take the events that are left.

        Raises:
            InvalidTrajectory: A line is malformed, or the lines are no log.
            SessionExists: There is a session of this id, and `replace` is not set.
            SessionUnreadable: The session cannot be replaced, since no worker answers for it; or another client has
                replaced this one before all of it had arrived.
        """

        def read() -> tuple[GivenLog, tuple[Entry, ...], int, tuple[InvocationView, ...]]:
            given = read_given(log, damaged=damaged)
            entries = (*to_journal(given, fresh=_fresh), _mark(given, allow_pending_calls=allow_pending_calls))
            session = fold_journal(entries)
            views = tuple(invocation_view(session, invocation) for invocation in session.invocations.values())
            return given, entries, len(session.events), views

        # It takes seconds for a large file, in which others are to be served.
        given, entries, event_count, invocations = await asyncio.to_thread(read)
        user_id = user_id or given.user_id
        if user_id is None:
            raise InvalidMessage("the log names no user; say whose session it is to be (user_id, --user)")
        key = SessionKey(self.app_name, user_id, session_id or given.session_id or _fresh())
        replaced = await self._transfers.put(key, entries, replace=replace)
        return ImportedSession(
            app_name=key.app,
            user_id=key.user,
            session_id=key.session,
            event_count=event_count,
            invocations=invocations,
            replaced=replaced,
            notes=given.notes,
        )


def _mark(given: GivenLog, *, allow_pending_calls: bool) -> LogImported:
    return LogImported(
        allow_pending_calls=allow_pending_calls,
        plan_digest=given.plan_digest,
        timestamp=time.time(),
        bare=given.entries is None,
        key_salt=_fresh_salt(),
    )


def _fresh_salt() -> str:
    return uuid.uuid4().hex[:_SALT_LENGTH]


def _fresh() -> str:
    return str(uuid.uuid4())


class Transfers:
    """Puts whole journals in the place of sessions, and reads them."""

    def __init__(self, app: str, client: Client, *, trial: Trial | None = None) -> None:
        self._client = client
        self._lifecycle = Lifecycle(app, client, trial=trial)

    async def read(self, key: SessionKey) -> list[Entry]:
        """Return a session's journal."""
        if await self._lifecycle.status(key) in (None, DELETED):
            raise missing(key)
        return await self._lifecycle.read_journal(key)

    async def put(self, key: SessionKey, entries: tuple[Entry, ...], *, replace: bool) -> str | None:
        """Start a session with a journal; returns the id under which the one that it replaces is kept."""
        check_ids(key)
        kept: str | None = None
        known = await _has_search_attributes(self._client)
        for _ in range(_REPLACE_ATTEMPTS):
            status = await self._lifecycle.status(key)
            if status not in (None, DELETED):
                if not replace:
                    break
                kept = await self._lifecycle.set_aside(key) or kept
            try:
                await self._lifecycle.restore(key, entries, search_attributes=known, again=status is not None)
            except WorkflowAlreadyStartedError:
                # Somebody created it, or brought it back, meanwhile.
                continue
            return kept
        if replace:
            raise SessionExists(
                f"session {key.session!r} of user {key.user!r} in app {key.app!r} was replaced by others again and"
                " again, and this log is not there; replace it once more, if it is to stand (theirs are kept)"
            )
        raise SessionExists(
            f"app {key.app!r} has a session {key.session!r} of user {key.user!r} already; choose another id, or replace"
            " it (its log is kept)"
        )


async def _has_search_attributes(client: Client) -> bool:
    """Return whether the namespace has Perdure's search attributes, by a question that whoever lists may ask."""
    known = " OR ".join(f"{key.name} IS NOT NULL" for key in KEYS)
    try:
        await client.count_workflows(f"WorkflowId = '' AND ({known})")
    except RPCError:
        # The session shows its status later then, as soon as it has asked a worker.
        return False
    return True
