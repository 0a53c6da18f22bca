"""The routes of the forms on a session's pages, whichever page they stand on: answer a call, stop, resume."""

from __future__ import annotations

from dataclasses import astuple, replace
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from perdure.api.auth.access import answers
from perdure.api.auth.identity import IdentityOf
from perdure.api.auth.middleware import SignedIn
from perdure.api.base.attribution import answer_metadata
from perdure.api.base.backend import BackendOf, KeyOf, Segment
from perdure.api.pages.form_checks import check_same_origin, read_form, request_id_of
from perdure.api.pages.reading import read_call
from perdure.api.pages.rendering import SESSION, PageRoute, chat_path
from perdure.api.pages.session_page import Look, show, show_call
from perdure.errors import (
    CallAnswered,
    CallNotFound,
    InvalidMessage,
    InvocationFinished,
    InvocationRunning,
    NotResumable,
)
from perdure.messages.addresses import session_path
from perdure.messages.keys import SessionKey
from perdure.views.forms.answers import WHY, read_answer
from perdure.views.forms.fields import NotFilledIn

_MAX_REASON = 500

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.post(SESSION + "/calls/{call_id}/answer")
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
        form = await read_call(backend, key, call_id, given)
        if form is None:
            return _go_to(key, given, "answered", call_id)
        try:
            await backend.runner_of(key).respond(
                **key.arguments,
                responses={call_id: read_answer(form)},
                request_id=request_id_of(given),
                metadata=answer_metadata(identity, given.get(WHY, "").strip() or None),
            )
        except NotFilledIn as error:
            errors = error.errors
        except InvalidMessage as error:
            errors = {"": str(error)}
        except (CallAnswered, CallNotFound):
            return _go_to(key, given, "answered", call_id)
        else:
            return _go_to(key, given, "taken", call_id)
    # Again, with what was filled in and what is wrong.
    filled_in = {call_id: replace(form, errors=errors)}
    look = Look(backend, identity, signed_in)
    if given.get("from") == "call":
        return await show_call(look, key, call_id, filled_in=filled_in[call_id], status=422)
    view = "chat" if given.get("from") == "chat" else "session"
    return await show(view, look, key, filled_in=filled_in, status=422)


@router.post(SESSION + "/invocations/{invocation_id}/stop")
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


@router.post(SESSION + "/invocations/{invocation_id}/resume")
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


def _go_to(key: SessionKey, given: dict[str, str], said: str, call_id: str = "") -> Response:
    """Return to the page that the form was on, which says what became of it."""
    match given.get("from"):
        case "inbox":
            query = urlencode([("said", said), *(("at", name) for name in astuple(key))])
            return RedirectResponse(f"/?{query}", 303)
        case "call":
            return RedirectResponse(f"{session_path(key, 'calls', call_id)}?said={said}", 303)
        case "chat":
            return RedirectResponse(f"{chat_path(key)}?said={said}", 303)
        case _:
            return RedirectResponse(f"{session_path(key)}?said={said}", 303)
