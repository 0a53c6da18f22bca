"""The routes of the pages: the inbox at `/`, and below `/inbox` the sessions, their forms and the pages' own files."""

from __future__ import annotations

import asyncio
from dataclasses import astuple, replace
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from perdure.api.auth.access import answers
from perdure.api.auth.identity import Identity, IdentityOf
from perdure.api.auth.middleware import SignedIn
from perdure.api.auth.standing import StandingOf
from perdure.api.base.attribution import answer_metadata
from perdure.api.base.backend import Backend, BackendOf, KeyOf, Segment
from perdure.api.base.statuses import CredentialExpired
from perdure.api.pages.reading import read_inbox, read_session
from perdure.api.pages.rendering import PageRoute, page, session_path, static_file
from perdure.api.pages.safety import check_same_origin, read_form
from perdure.errors import (
    CallAnswered,
    CallNotFound,
    InvalidMessage,
    InvocationFinished,
    InvocationRunning,
    NotResumable,
)
from perdure.messages.keys import SessionKey
from perdure.sessions.pending import Wanted
from perdure.views.forms.answers import WHY, AnswerForm, answer_form, read_answer
from perdure.views.forms.fields import NotFilledIn

_SESSION = "/inbox/apps/{app_name}/users/{user_id}/sessions/{session_id}"
_LIVE_FOR = 25.0
"""Seconds for which a page waits for news before it asks again."""
_POLL = 5
"""Seconds between two looks of the inbox."""
_MAX_REQUEST_ID = 100
_MAX_REASON = 500

_SAID = {
    "taken": "Your answer was taken.",
    "answered": "That call takes no answer any more: it has one, or its invocation has ended. The first answer counts.",
    "stopped": "The invocation is stopped. A resume runs it on from where it was.",
    "resumed": "The invocation runs on.",
    "ended": "The invocation had finished already.",
    "running": "The invocation is at work already.",
    "fixed": "The invocation cannot be resumed, since its app is not resumable. Send a new message.",
}
"""What a page says after a form, by the word in its address."""

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/")
async def inbox(
    backend: BackendOf,
    identity: IdentityOf,
    signed_in: SignedIn,
    app: str = "",
    user: str = "",
    tool: str = "",
    said: str = "",
    at: Annotated[list[str] | None, Query()] = None,
) -> Response:
    """Show what waits for a person, over all sessions."""
    wanted = Wanted(app=app.strip() or None, user_id=user.strip() or None, tool=tool.strip() or None)
    async with backend.patience():
        found = await read_inbox(backend, wanted)
    went_to = session_path(SessionKey(*at)) if at is not None and len(at) == 3 else None
    return page(
        "inbox.html",
        inbox=found,
        wanted=wanted,
        said=_SAID.get(said),
        went_to=went_to,
        identity=identity,
        signed_in=signed_in,
        poll=_POLL,
    )


@router.get("/inbox/static/{name}")
async def files(name: str) -> Response:
    """Return one of the pages' own files."""
    return static_file(name)


@router.get(_SESSION)
async def session(
    key: KeyOf,
    backend: BackendOf,
    identity: IdentityOf,
    signed_in: SignedIn,
    before: Annotated[int | None, Query(ge=0)] = None,
    said: str = "",
) -> Response:
    """Show a session."""
    return await _shown(backend, identity, key, before=before, said=said, signed_in=signed_in)


@router.get(_SESSION + "/live")
async def live(
    key: KeyOf,
    backend: BackendOf,
    identity: IdentityOf,
    standing: StandingOf,
    seen: Annotated[int, Query(ge=0)],
) -> Response:
    """Wait for news of a session, then show it again; 204 if none comes for a while."""
    growing = asyncio.ensure_future(backend.runner_of(key).grown(**key.arguments, length=seen))
    closing = asyncio.ensure_future(backend.closing.wait())
    try:
        await asyncio.wait({growing, closing}, timeout=_LIVE_FOR, return_when=asyncio.FIRST_COMPLETED)
        if not growing.done():
            return Response(status_code=204)
        growing.result()
        await standing.check()
    except CredentialExpired:
        # The page asks again, and is told.
        return Response(status_code=204)
    finally:
        growing.cancel()
        closing.cancel()
    return await _shown(backend, identity, key)


@router.post(_SESSION + "/calls/{call_id}/answer")
@answers
async def answer(
    request: Request,
    key: KeyOf,
    call_id: Segment,
    backend: BackendOf,
    identity: IdentityOf,
    signed_in: SignedIn,
) -> Response:
    """Answer a call."""
    check_same_origin(request)
    given = await read_form(request)
    async with backend.patience():
        form = await _form_of(backend, key, call_id, given)
        if form is None:
            return _go_to(key, given, "answered")
        try:
            await backend.runner_of(key).respond(
                **key.arguments,
                responses={call_id: read_answer(form)},
                request_id=_request_id(given),
                metadata=answer_metadata(identity, given.get(WHY, "").strip() or None),
            )
        except NotFilledIn as error:
            return await _again(backend, identity, key, form, error.errors, signed_in=signed_in)
        except InvalidMessage as error:
            return await _again(backend, identity, key, form, {"": str(error)}, signed_in=signed_in)
        except (CallAnswered, CallNotFound):
            return _go_to(key, given, "answered")
    return _go_to(key, given, "taken")


@router.post(_SESSION + "/invocations/{invocation_id}/stop")
async def stop(
    request: Request,
    key: KeyOf,
    invocation_id: Segment,
    backend: BackendOf,
) -> Response:
    """Stop an invocation."""
    check_same_origin(request)
    given = await read_form(request)
    reason = given.get("reason", "").strip()[:_MAX_REASON] or None
    try:
        async with backend.patience():
            await backend.runner_of(key).stop(**key.arguments, invocation_id=invocation_id, reason=reason)
    except InvocationFinished:
        return _go_to(key, given, "ended")
    return _go_to(key, given, "stopped")


@router.post(_SESSION + "/invocations/{invocation_id}/resume")
async def resume(
    request: Request,
    key: KeyOf,
    invocation_id: Segment,
    backend: BackendOf,
) -> Response:
    """Run an invocation on."""
    check_same_origin(request)
    given = await read_form(request)
    try:
        async with backend.patience():
            await backend.runner_of(key).resume(**key.arguments, invocation_id=invocation_id)
    except InvocationRunning:
        return _go_to(key, given, "running")
    except NotResumable:
        return _go_to(key, given, "fixed")
    return _go_to(key, given, "resumed")


async def _shown(
    backend: Backend,
    identity: Identity,
    key: SessionKey,
    *,
    before: int | None = None,
    said: str = "",
    signed_in: bool = False,
) -> Response:
    async with backend.patience():
        found = await read_session(backend, identity, key, before=before)
    return page("session.html", page=found, said=_SAID.get(said), identity=identity, signed_in=signed_in, before=before)


async def _again(
    backend: Backend,
    identity: Identity,
    key: SessionKey,
    form: AnswerForm,
    errors: dict[str, str],
    *,
    signed_in: bool,
) -> Response:
    """Show a form again, with what was filled in and what is wrong."""
    found = await read_session(backend, identity, key, filled_in={form.call.id: replace(form, errors=errors)})
    return page("session.html", 422, page=found, said=None, identity=identity, signed_in=signed_in, before=None)


async def _form_of(backend: Backend, key: SessionKey, call_id: str, given: dict[str, str]) -> AnswerForm | None:
    """Return the filled-in form of a call; `None` if the call is not open."""
    runner = backend.runner_of(key)
    waiting = await runner.pending(**key.arguments)
    found = next((call.invocation_id for _, call in waiting if call.id == call_id), None)
    if found is None:
        return None
    told = await runner.explain(**key.arguments, invocation_id=found)
    for invocation in told.invocations:
        for awaited in invocation.awaits:
            if awaited.call.id == call_id:
                plan = await backend.plan(key, invocation.id, digest=invocation.plan)
                return answer_form(awaited.call, plan, given)
    return None


def _request_id(given: dict[str, str]) -> str | None:
    return given.get("request_id", "")[:_MAX_REQUEST_ID] or None


def _go_to(key: SessionKey, given: dict[str, str], said: str) -> Response:
    """Return to the page that the form was on, which says what became of it."""
    if given.get("from") == "inbox":
        query = urlencode([("said", said), *(("at", name) for name in astuple(key))])
        return RedirectResponse(f"/?{query}", 303)
    return RedirectResponse(f"{session_path(key)}?said={said}", 303)
