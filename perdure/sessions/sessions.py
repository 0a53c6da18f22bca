"""`Door`, the one way to the sessions of an app, and `Sessions`, the door that stands open."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, TypedDict

from temporalio.client import Client

from perdure.credentials.sealing import vault_of
from perdure.credentials.store import CredentialStore
from perdure.journal.open_calls import PendingCall, SessionStatus
from perdure.logs import get_logger
from perdure.messages.keys import SessionKey
from perdure.messages.session import Trial
from perdure.sessions.lifecycle import Lifecycle
from perdure.sessions.listing import ListedSession, list_runs
from perdure.sessions.log_reader import LogReader
from perdure.sessions.pending import Wanted, all_waiting
from perdure.sessions.requests import WorkflowRequests
from perdure.sessions.session import Session, SessionParts
from perdure.sessions.transfers import Transfers
from perdure.streams.hub import TokenHub

_logger = get_logger("perdure.client")


class Door(Protocol):
    """The one way to the sessions of an app: whoever stands before it decides for all that is done with them."""

    def whose(self, user_id: str | None) -> str | None:
        """Return whose sessions are meant by this user, or by nobody in particular; `None` is everybody's."""
        ...

    def session(self, user_id: str, session_id: str) -> Session:
        """Return a session, which need not exist."""
        ...

    async def list(self, user_id: str | None, status: Collection[SessionStatus]) -> list[ListedSession]:
        """Return the sessions of a user, or of all, newest first; with `status` only those of one of these."""
        ...

    async def pending(self, user_id: str | None, session_id: str | None) -> list[tuple[ListedSession, PendingCall]]:
        """Return the open calls of the sessions of a user, or of all, oldest first."""
        ...


class RunnerOptions(TypedDict, total=False):
    """What `Runner.connect` takes beside the connection: see `Runner`."""

    auto_create_session: bool
    streams: TokenHub | None
    local_tools: bool
    credentials: CredentialStore | None


class Sessions:
    """The sessions of one app, whosever they are."""

    def __init__(
        self,
        app: str,
        client: Client,
        *,
        auto_create: bool = False,
        trial: Trial | None = None,
        streams: TokenHub | None = None,
        local_tools: bool = False,
        credentials: CredentialStore | None = None,
    ) -> None:
        """Reach the sessions of an app; `Runner` says what the arguments are."""
        self._app = app
        self._client = client
        self._lifecycle = Lifecycle(client, trial=trial, local_tools=local_tools)
        requests = WorkflowRequests(app, client, self._lifecycle)
        self._parts = SessionParts(
            client=client,
            lifecycle=self._lifecycle,
            requests=requests,
            reader=LogReader(client, requests, streams),
            transfers=Transfers(client, self._lifecycle),
            auto_create=auto_create,
            vault=vault_of(client, credentials),
        )

    def whose(self, user_id: str | None) -> str | None:
        """Return whose sessions are meant: this user's, or everybody's."""
        return user_id

    def session(self, user_id: str, session_id: str) -> Session:
        """Return a session, which need not exist."""
        return Session(SessionKey(self._app, user_id, session_id), self._parts)

    async def list(self, user_id: str | None, status: Collection[SessionStatus]) -> list[ListedSession]:
        """Return the sessions of a user, or of all, newest first; with `status` only those of one of these."""
        found: dict[SessionKey, ListedSession] = {}
        async for session in list_runs(self._client, self._app, user_id):
            known = found.get(session.key)
            if known is None or session.started > known.started:
                found[session.key] = session
        left = [one for one in found.values() if not one.closed or await self._lifecycle.exists(one.key)]
        sessions = [one for one in left if not status or await self._status(one) in status]
        return sorted(sessions, key=lambda session: -session.started)

    async def _status(self, session: ListedSession) -> SessionStatus:
        """Return a session's status, as listed, or as it says itself where listings tell none."""
        return session.status or (await Session(session.key, self._parts).view()).status

    async def pending(self, user_id: str | None, session_id: str | None) -> list[tuple[ListedSession, PendingCall]]:
        """Return the open calls of the sessions of a user, or of all, oldest first; who cannot be read is logged."""
        # A listing that changes meanwhile may tell of a session twice.
        found: dict[tuple[str, str], tuple[ListedSession, PendingCall]] = {}
        async for page in all_waiting(self._client, Wanted(app=self._app, user_id=user_id)):
            for session, call in page.calls:
                if session_id in (None, session.id):
                    found[session.workflow_id, call.id] = (session, call)
            for session in page.unanswered:
                _logger.warning("a session cannot be read; its calls are left out", workflow=session.workflow_id)
        return sorted(found.values(), key=lambda pair: pair[1].since)
