"""Shows a session, as a page of the inbox or as a chat, and the list of somebody's chats."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import HTTPException, Response
from markupsafe import Markup

from perdure.api.auth.identity import Identity
from perdure.api.base.backend import Backend
from perdure.api.pages.formats import MOST_TEXT
from perdure.api.pages.markdown import render_newest
from perdure.api.pages.patience import patience_of_page
from perdure.api.pages.reading import (
    OwnSessions,
    SessionPage,
    read_call,
    read_own_sessions,
    read_past_call,
    read_session,
)
from perdure.api.pages.rendering import page
from perdure.messages.keys import SessionKey
from perdure.views.forms.answers import AnswerForm

POLL = 5
"""Seconds between two looks of a page that does not wait for news."""

View = Literal["session", "chat"]

_MOST_CHAT_TEXT = 100_000
"""Characters of a text that a chat shows."""

SAID = {
    "taken": "Your answer was taken.",
    "answered": "That call takes no answer any more: it has one, or its invocation has ended. The first answer counts.",
    "stopped": "The invocation is stopped. A resume runs it on from where it was.",
    "resumed": "The invocation runs on.",
    "ended": "The invocation had finished already.",
    "running": "The invocation is at work already.",
    "fixed": "The invocation cannot be resumed, since its app is not resumable. Send a new message.",
}
"""What a page says after a form, by the word in its address."""


@dataclass(frozen=True)
class Look:
    """A look at a page: whose, and at which state of it."""

    backend: Backend
    identity: Identity
    signed_in: bool = False
    before: int | None = None
    """Show the events before this offset. Default: the newest."""
    said: str = ""
    """Word of what became of a form."""
    is_news: bool = False
    """The page is open already, and only what changes in it is wanted."""


async def show(
    view: View,
    look: Look,
    key: SessionKey,
    *,
    filled_in: Mapping[str, AnswerForm] | None = None,
    status: int = 200,
) -> Response:
    """Return a session's page.

    Args:
        view: As what the session is shown.
        look: Whose look it is.
        key: The session.
        filled_in: By call id, forms that were filled in wrongly.
        status: The HTTP status.

    Raises:
        SessionNotFound: There is none.
    """
    backend, is_chat = look.backend, view == "chat"
    async with patience_of_page(backend):
        found = await read_session(
            backend,
            look.identity,
            key,
            before=look.before,
            filled_in=filled_in,
            most=_MOST_CHAT_TEXT if is_chat else MOST_TEXT,
        )
        sessions = await read_own_sessions(backend, look.identity) if is_chat and not look.is_news else None
    # Away from the event loop, which long texts would hold up.
    if is_chat:
        return await asyncio.to_thread(_chat, look, status, found, sessions)
    return await asyncio.to_thread(_session, look, status, found)


async def show_call(
    look: Look, key: SessionKey, call_id: str, *, filled_in: AnswerForm | None = None, status: int = 200
) -> Response:
    """Return the page of one call: its form, or what became of it.

    Args:
        look: Whose look it is.
        key: The call's session.
        call_id: The call.
        filled_in: Its form, if that was filled in wrongly.
        status: The HTTP status.

    Raises:
        SessionNotFound: There is no such session.
        HTTPException: The session has no such call. 404.
    """
    async with patience_of_page(look.backend):
        form = filled_in or await read_call(look.backend, key, call_id)
        entries = await read_past_call(look.backend, key, call_id) if form is None else []
    if form is None and not entries:
        raise HTTPException(404, "the session has no such call")
    return _page("call.html", look, status, key=key, form=form, entries=entries, poll=POLL)


async def show_chats(look: Look) -> Response:
    """Return the page that lists somebody's own sessions, and begins new ones."""
    async with look.backend.patience():
        sessions = await read_own_sessions(look.backend, look.identity)
        apps = await look.backend.apps()
    return _page("chats.html", look, sessions=sessions, apps=apps)


def _chat(look: Look, status: int, found: SessionPage, sessions: OwnSessions | None) -> Response:
    return _page("chat.html", look, status, page=found, sessions=sessions, markdown=_markdown(found))


def _session(look: Look, status: int, found: SessionPage) -> Response:
    return _page("session.html", look, status, page=found, markdown=_markdown(found))


def _markdown(found: SessionPage) -> Mapping[str, Markup]:
    """Return the HTML of what agents wrote, by text."""
    return render_newest(
        piece.text
        for entry in reversed(found.entries)
        if not entry.is_user
        for piece in entry.pieces
        if piece.kind == "text"
    )


def _page(template: str, look: Look, status: int = 200, **context: Any) -> Response:
    return page(
        template,
        status,
        identity=look.identity,
        signed_in=look.signed_in,
        before=look.before,
        said=SAID.get(look.said),
        **context,
    )
