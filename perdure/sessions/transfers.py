"""Takes sessions over from logs and files, and writes them out."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from perdure.messages.session import InvocationResult, InvocationView
from perdure.rules.intake import check_ids
from perdure.sessions.journal_reader import JournalReader
from perdure.sessions.lifecycle import DELETED, Lifecycle, missing
from perdure.trajectories.bare_log import to_journal
from perdure.trajectories.export_file import dump_lines, make_header
from perdure.trajectories.given_logs import GivenLog, LogSource, read_given
from perdure.trajectories.triggered_log import TriggeredTrajectory, read_triggered_log
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


@dataclass(frozen=True)
class TriggeredLog:
    """A log whose last event is to be driven on, in a session that begins with it."""

    given: GivenLog
    triggered: TriggeredTrajectory

    @classmethod
    async def read(
        cls, events: LogSource, *, state: Mapping[str, Any] | None, allow_pending_calls: bool
    ) -> TriggeredLog:
        """Read a log, as `Runner.resume_from` takes it.

        Raises:
            InvalidTrajectory: The events are no log, or the last one cannot drive a turn.
        """

        def read() -> TriggeredLog:
            given = read_given(events)
            triggered = read_triggered_log(
                given.shown_events(),
                state=given.state if state is None else state,
                shared=given.shared if state is None else None,
                allow_pending_calls=allow_pending_calls,
                fresh=fresh_id,
                now=time.time(),
                key_salt=_fresh_salt(),
            )
            return cls(given, triggered)

        # It takes seconds for a large log, in which others are to be served.
        return await asyncio.to_thread(read)

    def resumed(self, key: SessionKey, replaced: str | None) -> ResumedSession:
        """Return what became of it: the session, and under which id the log is kept that it replaced."""
        log = self.triggered
        return ResumedSession(
            invocation=invocation_view(log.projection, log.projection.invocations[log.invocation_id]),
            offset=log.offset,
            user_id=key.user,
            session_id=key.session,
            replaced=replaced,
            notes=self.given.notes,
        )


@dataclass(frozen=True)
class WholeLog:
    """A log that a session is to begin with, in which nothing is set going."""

    given: GivenLog
    entries: tuple[Entry, ...]
    event_count: int
    invocations: tuple[InvocationView, ...]

    @classmethod
    async def read(cls, log: LogSource, *, allow_pending_calls: bool, damaged: bool) -> WholeLog:
        """Read a log, as `Runner.import_session` takes it.

        Raises:
            InvalidTrajectory: A line is malformed, or the lines are no log.
        """

        def read() -> WholeLog:
            given = read_given(log, damaged=damaged)
            entries = (*to_journal(given, fresh=fresh_id), _mark(given, allow_pending_calls=allow_pending_calls))
            session = fold_journal(entries)
            views = tuple(invocation_view(session, invocation) for invocation in session.invocations.values())
            return cls(given, entries, len(session.events), views)

        # It takes seconds for a large file, in which others are to be served.
        return await asyncio.to_thread(read)

    def names(self, user_id: str | None, session_id: str | None) -> tuple[str, str]:
        """Return whose session it becomes, and which: as it says itself, unless somebody else does.

        Raises:
            InvalidMessage: Nobody says whose.
        """
        user_id = user_id or self.given.user_id
        if user_id is None:
            raise InvalidMessage("the log names no user; say whose session it is to be (user_id, --user)")
        return user_id, session_id or self.given.session_id or fresh_id()

    def imported(self, key: SessionKey, replaced: str | None) -> ImportedSession:
        """Return what became of it: the session, and under which id the log is kept that it replaced."""
        return ImportedSession(
            app_name=key.app,
            user_id=key.user,
            session_id=key.session,
            event_count=self.event_count,
            invocations=self.invocations,
            replaced=replaced,
            notes=self.given.notes,
        )


def dump_session(
    key: SessionKey, entries: Sequence[Entry], *, journal: bool, shown_as: Callable[[Entry], Entry] | None
) -> Iterator[str]:
    """Yield a session's journal as the lines of an export; `shown_as` says what stands there for an entry."""
    if shown_as is not None:
        entries = [shown_as(entry) for entry in entries]
    versions = {name: version(name) for name in _VERSIONS}
    header = make_header(key, fold_journal(entries), journal=journal, versions=versions)
    return dump_lines(header, entries)


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


def fresh_id() -> str:
    """Return an id that no session has."""
    return str(uuid.uuid4())


class Transfers:
    """Puts whole journals in the place of sessions, and reads them."""

    def __init__(self, client: Client, lifecycle: Lifecycle) -> None:
        self._client = client
        self._lifecycle = lifecycle
        self._journals = JournalReader(client)

    async def read(self, key: SessionKey) -> list[Entry]:
        """Return a session's journal."""
        if not await self._lifecycle.exists(key):
            raise missing(key)
        return await self._lifecycle.read_journal(key)

    async def read_kept(self, key: SessionKey) -> tuple[list[Entry], tuple[Entry, ...]]:
        """Return the same, and what activities keep that are at work."""
        if not await self._lifecycle.exists(key):
            raise missing(key)
        return await self._journals.read_kept(key.workflow_id)

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
