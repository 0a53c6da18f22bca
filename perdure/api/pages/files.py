"""The routes of what a timeline shows beside texts: files that stand in events, and artifacts."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Path, Response
from google.genai import types

from perdure.api.adk.artifacts import service_of
from perdure.api.base.backend import BackendOf, KeyOf, Segment
from perdure.api.pages.formats import is_picture
from perdure.api.pages.rendering import SESSION, PageRoute, file_answer

_Number = Annotated[int, Path(ge=0)]

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get(SESSION + "/files/{offset}/{part}")
async def file(key: KeyOf, backend: BackendOf, offset: _Number, part: _Number) -> Response:
    """Return a file that stands in an event of the log, by the event's offset and the part's."""
    async with (
        backend.patience(),
        aclosing(backend.runner_of(key).events(**key.arguments, since=offset)) as events,
    ):
        event = await anext(events, None)
    parts = event.parts if event is not None else ()
    found = parts[part] if part < len(parts) else None
    named = found.inline_data.display_name if found is not None and found.inline_data is not None else None
    return _answer(found, named or f"file-{offset}-{part}")


@router.get(SESSION + "/artifacts/{name}/{version}")
async def artifact(key: KeyOf, backend: BackendOf, name: Segment, version: _Number) -> Response:
    """Return a version of an artifact."""
    # It says who may touch the session.
    backend.runner_of(key)
    service = service_of(backend)
    part = await service.load_artifact(app_name=key.app, **key.arguments, filename=name, version=version)
    return _answer(part, name)


def _answer(part: types.Part | None, name: str) -> Response:
    """Return a part's content: a picture to be shown, anything else to be kept.

    Raises:
        HTTPException: It has none. 404.
    """
    blob = part.inline_data if part is not None else None
    if part is not None and part.text is not None:
        blob = types.Blob(data=part.text.encode(errors="replace"), mime_type="text/plain")
    if blob is None:
        raise HTTPException(404, "there is no such file")
    shows = is_picture(blob.mime_type)
    return file_answer(blob.data or b"", blob.mime_type if shows else None, quote(name, safe="", errors="replace"))
