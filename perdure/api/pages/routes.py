"""The routes of the inbox at `/`, and of what lies below `/inbox`: sessions, the pages' own files.

Its router has those of the forms and the chat, too.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from perdure.api.auth.identity import IdentityOf
from perdure.api.auth.middleware import SignedIn
from perdure.api.base.backend import BackendOf, KeyOf, Segment
from perdure.api.pages import chat, files, forms, session_page, together
from perdure.api.pages.reading import read_inbox
from perdure.api.pages.rendering import SESSION, PageRoute, page, static_file
from perdure.api.pages.session_page import SAID, Look, show_call
from perdure.api.pages.views import add_view
from perdure.messages.addresses import session_path
from perdure.messages.keys import SessionKey
from perdure.sessions.pending import Wanted

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
        said=SAID.get(said),
        went_to=went_to,
        identity=identity,
        signed_in=signed_in,
        poll=session_page.POLL,
    )


@router.get("/inbox/static/{name}")
async def own_file(name: str) -> Response:
    """Return one of the pages' own files."""
    return static_file(name)


@router.get(SESSION + "/calls/{call_id}")
async def call(
    key: KeyOf, call_id: Segment, backend: BackendOf, identity: IdentityOf, signed_in: SignedIn, said: str = ""
) -> Response:
    """Show one call, with its form or what became of it."""
    return await show_call(Look(backend, identity, signed_in, said=said), key, call_id)


add_view(router, "session", SESSION)
for _part in (forms, together, files, chat):
    router.include_router(_part.router)
