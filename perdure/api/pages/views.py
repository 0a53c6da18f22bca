"""The two routes of every view of a session: the page, and its news while it is open."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from perdure.api.auth.identity import IdentityOf
from perdure.api.auth.middleware import SignedIn
from perdure.api.auth.standing import StandingOf
from perdure.api.base.backend import BackendOf, KeyOf
from perdure.api.pages.news import has_news
from perdure.api.pages.session_page import Look, View, show


def add_view(router: APIRouter, view: View, path: str) -> None:
    """Add a view of a session, at a path that names the session, and its news below that."""

    async def whole(
        key: KeyOf,
        backend: BackendOf,
        identity: IdentityOf,
        signed_in: SignedIn,
        before: Annotated[int | None, Query(ge=0)] = None,
        said: str = "",
    ) -> Response:
        """Show a session."""
        return await show(view, Look(backend, identity, signed_in, before, said), key)

    async def live(
        key: KeyOf,
        backend: BackendOf,
        identity: IdentityOf,
        standing: StandingOf,
        seen: Annotated[int, Query(ge=0)],
    ) -> Response:
        """Wait for news of a session, then show it again; 204 if none comes for a while."""
        if not await has_news(backend, key, seen, standing):
            return Response(status_code=204)
        return await show(view, Look(backend, identity, is_news=True), key)

    router.add_api_route(path, whole, methods=["GET"])
    router.add_api_route(f"{path}/live", live, methods=["GET"])
