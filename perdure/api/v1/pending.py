"""Routes of calls that wait for a person: over all sessions, in one, and their answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query

from perdure.api.auth.access import answers
from perdure.api.auth.identity import IdentityOf
from perdure.api.base.attribution import answer_metadata
from perdure.api.base.backend import Backend, BackendOf, Segment
from perdure.api.base.bodies import CheckedRoute
from perdure.api.v1.addressing import SESSION, IdempotencyKey, Where, WhereOf
from perdure.api.v1.schemas import AnswerBody, Pending, PendingList, PendingPage, Taken
from perdure.rules.intake import decision
from perdure.sessions.pending import Duration, Wanted, count_waiting, find_waiting

_PATIENCE_SHARE = 0.5
"""Of the request's patience, what the sessions have to answer; a page comes rather without some than not at all."""

UserId = Annotated[str | None, Query(alias="userId", min_length=1, description="Only this user's.")]
Tool = Annotated[str | None, Query(min_length=1, description="Only calls of this tool, or about one of it.")]
OlderThan = Annotated[
    Duration | None,
    Query(alias="olderThan", description="Only calls that wait for so long: seconds, or an ISO 8601 duration (PT1H)."),
]
Limit = Annotated[int, Query(ge=1, le=1000, description="A page ends behind the session that makes it so many calls.")]
Cursor = Annotated[str | None, Query(max_length=5000, description="`next` of the page before.")]

router = APIRouter(route_class=CheckedRoute)


@router.get("/pending")
async def list_all_pending(
    backend: BackendOf,
    app: Annotated[str | None, Query(min_length=1, description="Only this app's.")] = None,
    user_id: UserId = None,
    tool: Tool = None,
    older_than: OlderThan = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> PendingPage:
    """Return the calls that wait for an answer, over all apps and sessions that the sender may answer in."""
    wanted = Wanted(app=app, user_id=user_id, tool=tool, older_than=older_than)
    return await _page(wanted, backend, limit, cursor)


@router.get("/apps/{app_name}/pending")
async def list_pending(
    app_name: Segment,
    backend: BackendOf,
    user_id: UserId = None,
    tool: Tool = None,
    older_than: OlderThan = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> PendingPage:
    """Return the calls that wait for an answer, over an app's sessions that the sender may answer in."""
    wanted = Wanted(app=app_name, user_id=user_id, tool=tool, older_than=older_than)
    return await _page(wanted, backend, limit, cursor)


async def _page(wanted: Wanted, backend: Backend, limit: int, cursor: str | None) -> PendingPage:
    wanted = replace(wanted, user_id=backend.access.whose(wanted.user_id))
    if wanted.app is not None:
        # Checks the names.
        backend.runner(wanted.app, wanted.user_id)
    patience = backend.config.patience * _PATIENCE_SHARE
    async with backend.patience():
        page = await find_waiting(backend.client, wanted, limit=limit, cursor=cursor, patience=patience)
        sessions = await count_waiting(backend.client, wanted) if cursor is None else None
    calls = [Pending.of(backend.told(session.app_name, call), session.key) for session, call in page.calls]
    return PendingPage(calls=calls, next=page.next, unanswered=len(page.unanswered), sessions=sessions)


@router.get(SESSION + "/pending")
async def list_pending_of_session(where: WhereOf, backend: BackendOf) -> PendingList:
    """Return the calls of a session that wait for an answer, oldest first."""
    async with backend.patience():
        found = await where.runner.pending(**where.key.arguments)
    return PendingList(calls=[Pending.of(call, where.key) for _, call in found])


@router.post(SESSION + "/pending/{call_id}/answer")
@answers
async def answer_call(
    where: WhereOf,
    call_id: Segment,
    backend: BackendOf,
    identity: IdentityOf,
    body: AnswerBody,
    idempotency_key: IdempotencyKey = None,
) -> Taken:
    """Answer a call; returns at once. The answer's event says who answered, when and why."""
    said = answer_metadata(identity, body.why if body.why is not None else body.reason)
    async with backend.patience():
        response = body.response
        if body.approve is not None:
            response = await _decision(where, call_id, body.approve, body.payload)
        result = await where.runner.respond(
            **where.key.arguments,
            responses={call_id: response},
            request_id=idempotency_key,
            metadata={**(body.metadata or {}), **said},
        )
    return Taken.of(result)


async def _decision(where: Where, call_id: str, approve: bool, payload: Any) -> dict[str, Any]:
    waiting = [call for _, call in await where.runner.pending(**where.key.arguments)]
    return decision(waiting, call_id, approve=approve, payload=payload)
