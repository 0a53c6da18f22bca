"""Keeps the session service of a program in step with the durable log: it has each event, as with ADK's own runner."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from weakref import ReferenceType, ref

from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.session import Session

from perdure.adk.events import to_adk
from perdure.client import Runner
from perdure.errors import SessionExists, SessionNotFound
from perdure.journal.events import Event
from perdure.journal.projection import stored_part
from perdure.logs import get_logger
from perdure.messages.session import SessionView

__all__ = ["Mirror"]

_logger = get_logger("perdure.programs")

_OWNERS: dict[tuple[str, str, str], ReferenceType[BaseSessionService]] = {}
"""The service of this program that had a durable session last, by app, user and session."""

Beside = Callable[[Any], Awaitable[Any]]
"""Runs a coroutine on the loop of the workers."""


class Mirror:
    """One session, in the program's service and in Temporal."""

    def __init__(self, service: BaseSessionService, session: Session, runner: Runner, beside: Beside) -> None:
        """Take the program's session as its service has just told it."""
        self._service = service
        self._session = session
        self._runner = runner
        self._beside = beside
        self._who: dict[str, Any] = {"user_id": session.user_id, "session_id": session.id}
        self._known = {event.id for event in session.events}
        self._read = 0
        """Events of the durable log that the program's service has."""

    async def begin(self) -> None:
        """Bring both to where the other one is: the log that is longer counts, and the program's own changes of state.

        Raises:
            SessionUnreadable: The durable session's history does not hold its whole journal.
        """
        if not await self._create():
            self._tell_of_another()
            await self.fill()
        _OWNERS[self._key()] = ref(self._service)
        view: SessionView = await self._beside(self._runner.get_session(**self._who))
        state = stored_part(self._session.state)
        changed = {key: value for key, value in state.items() if view.state.get(key, _MISSING) != value}
        if changed:
            event = await self._beside(self._runner.change_state(**self._who, state_delta=changed))
            self._known.add(event.id)

    def _key(self) -> tuple[str, str, str]:
        return (self._session.app_name, self._session.user_id, self._session.id)

    def _tell_of_another(self) -> None:
        """Warn of a session that is new to its service and that another one of the program had: google.adk has two."""
        owner = _OWNERS.get(self._key())
        if owner is not None and owner() is not self._service and not self._session.events:
            app, user, session = self._key()
            _logger.warning(
                "a session goes on with what another runner of this program has in it: a durable one is known by its"
                " app, user and id; give it another id to begin anew",
                app=app,
                user=user,
                session=session,
            )

    async def _create(self) -> bool:
        """Make the durable session, if there is none; returns whether there was none."""
        try:
            await self._beside(self._runner.get_session(**self._who))
        except SessionNotFound:
            pass
        else:
            return False
        try:
            if self._session.events:
                log = self._session.model_dump_json(by_alias=True, exclude_none=True)
                await self._beside(self._runner.import_session(log, **self._who))
            else:
                await self._beside(self._runner.create_session(**self._who, state=stored_part(self._session.state)))
        except SessionExists:
            return False
        return True

    async def fill(self) -> None:
        """Give the program's service what it has not of the durable log."""
        async for event in self._events():
            await self._append(event)

    async def _events(self) -> AsyncIterator[Event]:
        found: list[Event] = await self._beside(_gathered(self._runner, self._who, self._read))
        for event in found:
            self._read += 1
            yield event

    async def logged(self, event: Event) -> None:
        """Give the program's service an event, and what stands before it in the log."""
        if event.id not in self._known:
            async for before in self._events():
                await self._append(before)
                if before.id == event.id:
                    break

    async def _append(self, event: Event) -> None:
        if event.id in self._known:
            return
        self._known.add(event.id)
        try:
            await self._service.append_event(session=self._session, event=to_adk(event))
        except ValueError:
            # Another run, or the program, has written meanwhile; so services on a database say it.
            if not await self._reads_anew():
                raise
            if all(known.id != event.id for known in self._session.events):
                await self._service.append_event(session=self._session, event=to_adk(event))

    async def _reads_anew(self) -> bool:
        """Read the program's session as it is now; returns whether it is there."""
        found = await self._service.get_session(app_name=self._session.app_name, **self._who)
        if found is None:
            return False
        self._session = found
        self._known.update(event.id for event in found.events)
        return True


_MISSING = object()


async def _gathered(runner: Runner, who: dict[str, Any], since: int) -> list[Event]:
    return [event async for event in runner.events(**who, since=since)]
