"""Routes that export sessions to files, and import them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from perdure.api.auth.identity import IdentityOf
from perdure.api.base.attribution import check_log
from perdure.api.base.backend import BackendOf, Segment
from perdure.api.v1.addressing import SESSION, WhereOf, check_operator
from perdure.api.v1.record_schemas import Imported
from perdure.messages.keys import SessionKey
from perdure.trajectories.given_logs import read_given

_LINES = "application/x-ndjson"

_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": (
            "An export: a header line, then a line for each event and entry; or a session of ADK as JSON, or ADK's"
            " events (docs/export-import.md)."
        ),
        "content": {
            _LINES: {"schema": {"type": "string", "format": "binary"}},
            "application/json": {"schema": {"type": "object"}},
        },
    }
}

_EXPORT = {
    "type": "string",
    "format": "binary",
    "description": "A line of JSON for the session, then one for each event (docs/export-import.md).",
}

router = APIRouter()


@router.get(
    SESSION + "/export",
    response_class=StreamingResponse,
    responses={200: {"content": {_LINES: {"schema": _EXPORT}}, "description": "The lines."}},
)
async def export_session(
    where: WhereOf,
    backend: BackendOf,
    journal: Annotated[
        bool, Query(description="Add Perdure's own entries, so that an import resumes exactly.")
    ] = False,
) -> StreamingResponse:
    """Download a session as lines of JSON: a header, then ADK's events."""
    lines = where.runner.export_session(**where.key.arguments, journal=journal)
    async with backend.patience():
        # All that can fail fails before the first line.
        first = await anext(lines)
    name = quote(f"{where.key.session}.jsonl", safe="")
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{name}"}
    return StreamingResponse(_ended(first, lines), media_type=_LINES, headers=headers)


async def _ended(first: str, lines: AsyncGenerator[str, None]) -> AsyncIterator[str]:
    yield f"{first}\n"
    async for line in lines:
        yield f"{line}\n"


@router.post(
    "/apps/{app_name}/users/{user_id}/imports",
    status_code=201,
    openapi_extra=_BODY,
)
async def import_session(
    app_name: Segment,
    user_id: Segment,
    request: Request,
    response: Response,
    backend: BackendOf,
    identity: IdentityOf,
    session_id: Annotated[
        str | None, Query(alias="sessionId", min_length=1, description="The session's id. Default: the file's.")
    ] = None,
    replace: Annotated[
        bool, Query(description="Take the place of a session of this id; its log is kept under another.")
    ] = False,
    allow_pending_calls: Annotated[
        bool,
        Query(alias="allowPendingCalls", description="Let calls without a response run later; for operators."),
    ] = False,
    damaged: Annotated[
        bool, Query(description="Take the events that are left of an export that was cut or changed.")
    ] = False,
) -> Imported:
    """Make a session of the user's of a log, whosever it was; nothing in it is set going."""
    key = SessionKey(app_name, user_id, session_id) if session_id is not None else None
    runner = backend.runner(app_name, user_id) if key is None else backend.runner_of(key)
    if allow_pending_calls:
        # Whoever writes such a file says which tools run, and with what.
        check_operator(identity, "an import whose calls may run")
    log = await run_in_threadpool(read_given, await request.body(), damaged=damaged)
    if session_id is None and log.session_id is not None:
        # The id of the file must be one that a path can have.
        backend.runner_of(SessionKey(app_name, user_id, log.session_id))
    await run_in_threadpool(check_log, identity, log)
    async with backend.patience():
        await backend.check_served(app_name)
        imported = await runner.import_session(
            log,
            user_id=user_id,
            session_id=session_id,
            replace=replace,
            allow_pending_calls=allow_pending_calls,
        )
    names = (quote(part, safe="") for part in (app_name, user_id, imported.session_id))
    response.headers["location"] = "/apps/{}/users/{}/sessions/{}".format(*names)
    return Imported.of(imported)
