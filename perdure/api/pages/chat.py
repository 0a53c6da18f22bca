"""The routes of the chat: somebody's sessions at `/chat`, and below it each as a conversation."""

from __future__ import annotations

from contextlib import ExitStack
from uuid import uuid4

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import RedirectResponse

from perdure.api.auth.identity import IdentityOf
from perdure.api.auth.middleware import SignedIn
from perdure.api.base.backend import BackendOf, KeyOf
from perdure.api.pages.form_checks import check_same_origin, read_form, request_id_of
from perdure.api.pages.rendering import CHAT, CHATS, PageRoute, chat_path
from perdure.api.pages.session_page import Look, show_chats
from perdure.api.pages.uploads import content_of, read_message
from perdure.api.pages.views import add_view
from perdure.messages.keys import SessionKey

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get(CHATS)
async def chats(backend: BackendOf, identity: IdentityOf, signed_in: SignedIn) -> Response:
    """Show somebody's own sessions; all, where nobody has to say who they are."""
    return await show_chats(Look(backend, identity, signed_in))


@router.post(CHATS)
async def begin(request: Request, backend: BackendOf, identity: IdentityOf) -> Response:
    """Begin a session, and go to it."""
    check_same_origin(request)
    given = await read_form(request)
    user = given.get("user", "").strip() or identity.subject
    if user is None:
        raise HTTPException(400, "name the user whose session it is to be")
    key = SessionKey(given.get("app", ""), user, given.get("session", "").strip() or str(uuid4()))
    runner = backend.runner_of(key)
    async with backend.patience():
        await backend.check_served(key.app)
        await runner.create_session(**key.arguments)
    return RedirectResponse(chat_path(key), 303)


add_view(router, "chat", CHAT)


@router.post(CHAT + "/messages")
async def send(request: Request, key: KeyOf, backend: BackendOf) -> Response:
    """Send a message, with files."""
    check_same_origin(request)
    filled = await read_message(request)
    runner = backend.runner_of(key)
    with ExitStack() as unless_sent:
        # The page's stream may come a moment later.
        unless_sent.callback(runner.expect_tokens(**key.arguments))
        async with backend.patience():
            await backend.check_served(key.app)
            message = await content_of(filled, key, backend)
            await runner.send_message(**key.arguments, message=message, request_id=request_id_of(filled.fields))
        unless_sent.pop_all()
    return RedirectResponse(chat_path(key), 303)
