"""Renders templates into answers, with the headers that keep them harmless; shows errors as pages."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Coroutine
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from temporalio.client import WorkflowQueryFailedError
from temporalio.service import RPCError

from perdure.api.base.statuses import status_and_detail
from perdure.api.pages import formats
from perdure.errors import PerdureError
from perdure.messages.addresses import path_below, session_path
from perdure.messages.keys import SessionKey
from perdure.rules.failures import reference

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "style-src 'self'",
        "script-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # With `no-referrer` a browser would not say where a form comes from.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

CHATS = "/chat"
_KEY = "/apps/{app_name}/users/{user_id}/sessions/{session_id}"
SESSION, CHAT = f"/inbox{_KEY}", f"{CHATS}{_KEY}"
"""Paths of a session's pages, as routes name them."""
TOGETHER = "/inbox/together"
"""Path of the page on which several calls are answered at once."""

_KINDS = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_TYPES = {
    name: _KINDS[name.rpartition(".")[2]]
    for name in ("inbox.css", "inbox.js", "inbox.svg", "chat.css", "chat.js", "files.js", "keys.js")
}
_FILES = {name: (files("perdure.api.pages") / "static" / name).read_bytes() for name in _TYPES}
_VERSION = hashlib.sha256(b"".join(_FILES.values())).hexdigest()[:12]

_TITLES = {
    400: "That cannot be",
    403: "Not allowed",
    404: "Not found",
    409: "Not now",
    413: "Too large",
    503: "No answer",
}


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("perdure.api.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {
        "clock": formats.clock,
        "iso": formats.iso,
        "arguments": formats.arguments,
        "pretty": formats.shown_json,
        "revealed": formats.revealed,
        "in_order": formats.in_order,
        "ago": formats.ago,
        "key": _key,
    }
    names: dict[str, Any] = {
        "static_version": _VERSION,
        "session_path": session_path,
        "chat_path": chat_path,
        "stream_path": stream_path,
        "together_path": TOGETHER,
        "call_name": call_name,
        "reference": reference,
        "fresh_id": lambda: str(uuid.uuid4()),
    }
    environment.filters.update(filters)
    environment.globals.update(names)
    return environment


def _key(text: str) -> str:
    """Return what stands for any text in the id of an element."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]


def chat_path(key: SessionKey, *rest: str) -> str:
    """Return the path of a session's chat, or of what lies below it."""
    return path_below(CHATS, key, *rest)


def call_name(key: SessionKey, call_id: str) -> str:
    """Return how a form names a call among others."""
    return "/".join(quote(part, safe="") for part in (key.app, key.user, key.session, call_id))


def stream_path(key: SessionKey) -> str:
    """Return the path of a session's stream of events."""
    return path_below("/v1", key, "events", "stream")


def temporal_link(base: str | None, namespace: str, key: SessionKey) -> str | None:
    """Return where the Temporal UI shows a session's workflow."""
    if base is None:
        return None
    return f"{base.rstrip('/')}/namespaces/{quote(namespace, safe='')}/workflows/{quote(key.workflow_id, safe='')}"


_ENVIRONMENT = _environment()


def page(template: str, status: int = 200, **context: Any) -> HTMLResponse:
    """Return a page."""
    html = _ENVIRONMENT.get_template(template).render(now=time.time(), **context)
    # Half characters, which a log may hold, are no UTF-8.
    return HTMLResponse(html.encode(errors="replace"), status, headers=_HEADERS)


def static_file(name: str) -> Response:
    """Return one of the pages' own files.

    Raises:
        HTTPException: There is none of this name. 404.
    """
    if name not in _FILES:
        raise HTTPException(404, "there is no such file")
    headers = {**_HEADERS, "cache-control": "public, max-age=86400"}
    return Response(_FILES[name], media_type=_TYPES[name], headers=headers)


def file_answer(data: bytes, media_type: str | None, name: str) -> Response:
    """Return a file of a session's; one without a type that a page may show is kept by the browser, and never shown.

    Args:
        data: The content.
        media_type: Type of what may be shown.
        name: Its name, percent-encoded.
    """
    headers = _HEADERS if media_type else {**_HEADERS, "content-disposition": f"attachment; filename*=UTF-8''{name}"}
    return Response(data, media_type=media_type or "application/octet-stream", headers=headers)


class PageRoute(APIRoute):
    """A route whose errors are pages, too."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of a request."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except HTTPException as error:
                return error_page(error.status_code, str(error.detail))
            except RequestValidationError:
                return error_page(400, "the address is malformed")
            except (PerdureError, RPCError, WorkflowQueryFailedError, TimeoutError) as error:
                known = status_and_detail(error)
                if known is None:
                    raise
                return error_page(*known)

        return handle


def error_page(status: int, detail: str) -> HTMLResponse:
    """Return a page about an error."""
    return page("error.html", status, title=_TITLES.get(status, "That did not work"), detail=detail)
