"""Routes that list, create, show, change and delete sessions."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Body, HTTPException, Query, Response
from temporalio.exceptions import TemporalError

from perdure.api.adk.schemas import CreateSessionRequest, Session, StateBody, UpdateSessionRequest, reserved_key
from perdure.api.auth.access import NOT_FOUND, check_state
from perdure.api.auth.identity import Identity, IdentityOf
from perdure.api.base.backend import Backend, BackendOf, KeyOf, Segment
from perdure.api.base.bodies import CheckedRoute
from perdure.client import Runner
from perdure.errors import PerdureError, SessionExists, SessionNotFound
from perdure.journal.compact_json import payload_size
from perdure.journal.entries import MAX_PAYLOAD_BYTES
from perdure.journal.events import QUESTIONS, Event, EventActions
from perdure.journal.projection import split_state_delta
from perdure.messages.keys import SessionKey
from perdure.sessions.listing import ListedSession
from perdure.trajectories.given_logs import GivenLog

_BASE = "/apps/{app_name}/users/{user_id}/sessions"
_ONE = _BASE + "/{session_id}"
_RESERVED_CALLS = QUESTIONS | {"adk_request_input", "adk_request_credential"}
_ASKED_AT_ONCE = 10

router = APIRouter(route_class=CheckedRoute, tags=["sessions"])


@router.get(_BASE, response_model=list[Session])
async def list_sessions(
    app_name: Segment,
    user_id: Segment,
    backend: BackendOf,
    since: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """Return a user's sessions, newest first, without their events; a listing may be a moment behind.

    Of more than `limit`, the page from `since` on; the header `x-total-count` says how many there are.
    """
    runner = backend.runner(app_name, user_id)
    gate = asyncio.Semaphore(_ASKED_AT_ONCE)

    async def shown(listed: ListedSession) -> Session | None:
        without_state = Session(id=listed.id, app_name=app_name, user_id=user_id, last_update_time=listed.started)
        try:
            async with gate:
                view = await runner.get_session(**listed.key.arguments)
                return await backend.without_events(view) if payload_size(view) <= MAX_PAYLOAD_BYTES else without_state
        except SessionNotFound:
            return None
        except (PerdureError, TemporalError):
            # It cannot be read; the others are none the worse for it.
            return without_state

    async with backend.patience():
        listed = await runner.list_sessions(user_id=user_id)
        found = await asyncio.gather(*map(shown, listed[since : since + limit]))
    page = _json(f"[{','.join(session.to_json() for session in found if session is not None)}]")
    page.headers["x-total-count"] = str(len(listed))
    return page


@router.post(_BASE, response_model=Session)
async def create_session(
    app_name: Segment,
    user_id: Segment,
    backend: BackendOf,
    identity: IdentityOf,
    body: CreateSessionRequest | None = None,
) -> Response:
    """Create a session."""
    body = body or CreateSessionRequest()
    if body.options:
        raise HTTPException(400, f"the options {', '.join(sorted(body.options))} are not supported")
    key = SessionKey(app_name, user_id, body.session_id or str(uuid.uuid4()))
    return await _create(backend, identity, key, body.state or {}, body.events or [])


@router.post(_ONE, response_model=Session, deprecated=True)
async def create_session_with_id(
    key: KeyOf,
    backend: BackendOf,
    identity: IdentityOf,
    state: Annotated[StateBody | None, Body()] = None,
) -> Response:
    """Create a session; the body is its state."""
    return await _create(backend, identity, key, state.root if state else {}, [])


@router.get(_ONE, response_model=Session)
async def get_session(key: KeyOf, backend: BackendOf) -> Response:
    """Return a session with its log."""
    runner = backend.runner_of(key, as_adk=True)
    try:
        async with backend.patience():
            return _json((await backend.session(runner, key)).to_json())
    except SessionNotFound as error:
        raise HTTPException(404, NOT_FOUND) from error


@router.patch(_ONE, response_model=Session)
async def change_state(
    key: KeyOf,
    backend: BackendOf,
    identity: IdentityOf,
    body: UpdateSessionRequest,
) -> Response:
    """Write into a session's state; `temp:` keys are in the answer only."""
    runner = backend.runner_of(key, as_adk=True)
    check_state(identity, body.state_delta)
    try:
        async with backend.patience():
            await runner.change_state(**key.arguments, state_delta=body.state_delta)
            session = await backend.session(runner, key)
    except SessionNotFound as error:
        raise HTTPException(404, NOT_FOUND) from error
    _, temp = split_state_delta(body.state_delta)
    return _json(session.model_copy(update={"state": session.state | temp}).to_json())


@router.delete(_ONE)
async def delete_session(key: KeyOf, backend: BackendOf) -> None:
    """Delete a session; one that does not exist is no error."""
    runner = backend.runner_of(key, as_adk=True)
    async with backend.patience():
        await runner.delete_session(**key.arguments)


async def _create(
    backend: Backend, identity: Identity, key: SessionKey, state: dict[str, Any], events: Sequence[Event]
) -> Response:
    runner = backend.runner_of(key, as_adk=True)
    check_state(identity, state)
    _check_events(events)
    try:
        async with backend.patience():
            await backend.check_served(key.app)
            if events:
                await _import(runner, key, state, events)
                return _json((await backend.session(runner, key)).to_json())
            view = await runner.create_session(**key.arguments, state=state)
    except SessionExists as error:
        raise HTTPException(409, f"Session already exists: {key.session}") from error
    session = Session(
        id=key.session, app_name=key.app, user_id=key.user, state=view.state, events=(), last_update_time=time.time()
    )
    return _json(session.to_json())


def _check_events(events: Sequence[Event]) -> None:
    """Refuse a log that does more than tell what was said. As in ADK.

    Raises:
        HTTPException: 400.
    """
    for number, event in enumerate(events, start=1):
        calls = {part.name for part in (*event.get_function_calls(), *event.get_function_responses())}
        if event.long_running_tool_ids:
            reason = "long-running calls"
        elif event.actions != EventActions():
            reason = "actions"
        elif calls & _RESERVED_CALLS:
            reason = f"a call of the reserved name {min(name or '' for name in calls & _RESERVED_CALLS)}"
        elif (reserved := reserved_key(event.custom_metadata or {})) is not None:
            reason = f"the reserved key {reserved!r} in its metadata"
        else:
            continue
        raise HTTPException(400, f"event {number} has {reason}, which a session's first events may not have")


async def _import(runner: Runner, key: SessionKey, state: dict[str, Any], events: Sequence[Event]) -> None:
    now = time.time()
    dated = tuple(event if event.timestamp else event.model_copy(update={"timestamp": now}) for event in events)
    # The very events that were checked: written and read again, they might say something else.
    await runner.import_session(GivenLog(events=dated, state=state), **key.arguments)


def _json(text: str) -> Response:
    return Response(text, media_type="application/json")
