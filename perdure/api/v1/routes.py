"""Routes of invocations, to start, look at, resume and stop; and the router of all that is under `/v1`."""

from __future__ import annotations

from dataclasses import astuple
from urllib.parse import quote

from fastapi import APIRouter, Response
from google.genai import types

from perdure.api.auth.access import call_limit, check_state
from perdure.api.auth.identity import IdentityOf
from perdure.api.base.backend import BackendOf, Segment
from perdure.api.base.bodies import CheckedRoute
from perdure.api.v1 import events as v1_events
from perdure.api.v1 import pending as v1_pending
from perdure.api.v1 import records as v1_records
from perdure.api.v1 import transfers as v1_transfers
from perdure.api.v1.addressing import INVOCATION, SESSION, IdempotencyKey, WhereOf, check_operator
from perdure.api.v1.schemas import Invocation, InvocationList, ResumeBody, StartBody, StopBody, Taken
from perdure.journal.events import USER, user_content

router = APIRouter(route_class=CheckedRoute, prefix="/v1", tags=["v1"])


@router.get(SESSION + "/invocations")
async def list_invocations(where: WhereOf, backend: BackendOf) -> InvocationList:
    """Return a session's invocations, oldest first; of a long session those finished are left out but the newest."""
    async with backend.patience():
        view = await where.runner.get_session(**where.key.arguments)
    return InvocationList(
        status=view.status, invocations=[Invocation.of(one) for one in view.invocations], total=view.invocation_count
    )


@router.post(SESSION + "/invocations", status_code=201)
async def start_invocation(
    where: WhereOf,
    body: StartBody,
    response: Response,
    backend: BackendOf,
    identity: IdentityOf,
    idempotency_key: IdempotencyKey = None,
) -> Taken:
    """Start an invocation by a message; returns at once, with the invocation's `Location`."""
    check_state(identity, body.state_delta)
    message = user_content(body.message) if isinstance(body.message, str) else body.message
    async with backend.patience():
        await backend.check_served(where.key.app)
        result = await where.runner.send_message(
            **where.key.arguments,
            message=types.Content(role=USER, parts=message.parts),
            state_delta=body.state_delta,
            request_id=idempotency_key,
            metadata=body.metadata,
            max_llm_calls=call_limit(identity, body.max_llm_calls),
        )
    names = ("app_name", "user_id", "session_id", "invocation_id")
    values = (*astuple(where.key), result.invocation.id)
    path = INVOCATION.format(**{name: quote(value, safe="") for name, value in zip(names, values, strict=True)})
    response.headers["location"] = f"/v1{path}"
    return Taken.of(result)


@router.get(INVOCATION)
async def get_invocation(where: WhereOf, invocation_id: Segment, backend: BackendOf) -> Invocation:
    """Return an invocation."""
    async with backend.patience():
        return Invocation.of(await where.runner.invocation(**where.key.arguments, invocation_id=invocation_id))


@router.post(INVOCATION + "/resume")
async def resume_invocation(
    where: WhereOf,
    invocation_id: Segment,
    backend: BackendOf,
    identity: IdentityOf,
    body: ResumeBody | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Taken:
    """Run on what failed, was stopped, or has made as many model calls as it may; returns at once.

    One that waits for answers, or has finished, is only reported.
    """
    fresh = body is not None and body.fresh
    if fresh:
        check_operator(identity, "a fresh resume")
    async with backend.patience():
        return Taken.of(
            await where.runner.resume(
                **where.key.arguments,
                invocation_id=invocation_id,
                fresh=fresh,
                request_id=idempotency_key,
                max_llm_calls=call_limit(identity, body.max_llm_calls if body is not None else None),
            )
        )


@router.post(INVOCATION + "/stop")
async def stop_invocation(
    where: WhereOf, invocation_id: Segment, backend: BackendOf, body: StopBody | None = None
) -> Taken:
    """Stop an invocation; returns when what it ran is cancelled. One that is stopped already stays so."""
    async with backend.patience():
        return Taken.of(
            await where.runner.stop(
                **where.key.arguments, invocation_id=invocation_id, reason=body.reason if body else None
            )
        )


for _part in (v1_pending, v1_events, v1_records, v1_transfers):
    router.include_router(_part.router)
