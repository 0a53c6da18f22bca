"""Builds the HTTP application."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware import Middleware
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError

from perdure.agents.adk_app import AnyApp
from perdure.api.adk import artifacts, memory, run, sessions
from perdure.api.auth import sign_in
from perdure.api.auth.access import check_users
from perdure.api.auth.middleware import OPEN_PATHS, Authentication
from perdure.api.auth.watch import AuthWatch
from perdure.api.base import health, service
from perdure.api.base.backend import Backend
from perdure.api.base.bodies import describe
from perdure.api.base.config import ApiConfig
from perdure.api.base.document import DocumentedApi
from perdure.api.base.guard import BodyLimit, EncodedPaths, Guard, LastResort, SafeHeaders, split_origins
from perdure.api.base.metering import RequestMeter, meter_of
from perdure.api.base.refusals import PAGE_OF_STATUSES, refusal, refused_by_route
from perdure.api.base.statuses import INTERNAL, ServerEnding, log_internal, status_and_detail
from perdure.api.pages import routes as pages
from perdure.api.v1 import routes as v1
from perdure.compiler.registry import register
from perdure.errors import PerdureError
from perdure.streams.hub import TokenHub

__all__ = ["create_app"]

A2A = "a2a.compat"
"""What `/a2a` needs of a2a-sdk: version 0.3 has other classes."""
_PROTOCOLS = {"ag_ui": "perdure.api.ag_ui.routes", A2A: "perdure.api.a2a.routes"}
"""Modules of routes by what they need of the library that an extra brings."""

_PASSING = (429, 503)
"""What a later request may be spared."""
_LATER = "5"
"""Seconds after which a client may try again."""


def create_app(
    client: Client, apps: Sequence[AnyApp] = (), config: ApiConfig | None = None, *, streams: TokenHub | None = None
) -> FastAPI:
    """Return the HTTP API as an ASGI application.

    Args:
        client: A connected client of the Temporal server.
        apps: What `/list-apps` lists and `app-info` tells of, and what sessions may be created and run in. Without any,
            all apps that a worker serves, or that have sessions.
        config: What is allowed.
        streams: Where the tokens come from of whoever asks for `streaming`. Default: none, so events come whole.

    Raises:
        DefinitionError: An app is defined wrongly, or the issuer's keys cannot be read.
        ValueError: An allowed origin is no regular expression.
    """
    config = config or ApiConfig()
    plans = {app.name: register(app).plan for app in apps}
    backend = Backend(client, plans, config, streams)
    watch = AuthWatch(config.auth, config.auth_file) if config.auth is not None else None
    # No page that would load its scripts from the network; /openapi.json is served.
    app = DocumentedApi(
        title="Perdure",
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(check_users)],
        separate_input_output_schemas=False,
        # The names that a generated client's functions get.
        generate_unique_id_function=lambda route: route.name,
        middleware=[
            Middleware(RequestMeter, meter=meter_of(client)),
            *_middleware(config, backend.default_app, watch),
        ],
    )
    app.state.backend = backend
    for part in (service, health, sessions, artifacts, memory, run, v1, pages):
        app.include_router(part.router)
    for library, module in _PROTOCOLS.items():
        if is_there(library):
            app.include_router(import_module(module).router)
    if watch is not None:
        app.asks_for_credentials = True
        app.state.auth_watch = watch
        app.include_router(sign_in.router)
    app.add_exception_handler(HTTPException, refused_by_route)
    app.add_exception_handler(RequestValidationError, _invalid)
    for kind in (PerdureError, RPCError, WorkflowQueryFailedError, TimeoutError, ServerEnding):
        app.add_exception_handler(kind, _refused)
    return app


def is_there(module: str) -> bool:
    """Return whether a module of an extra's library is installed."""
    package, _, _ = module.partition(".")
    return find_spec(package) is not None and find_spec(module) is not None


def _middleware(config: ApiConfig, default_app: str | None, watch: AuthWatch | None) -> list[Middleware]:
    """Return what stands before the routes, outermost first."""
    literal, pattern = split_origins(config.allow_origins)
    cors = Middleware(
        CORSMiddleware,
        allow_origins=literal,
        allow_origin_regex=pattern,
        allow_credentials=True,
        allow_methods=["*"],
        allow_headers=["*"],
    )
    return [
        Middleware(LastResort),
        Middleware(SafeHeaders),
        Middleware(Guard, loopback=config.loopback, allow_origins=config.allow_origins),
        *([cors] if config.allow_origins else []),
        Middleware(BodyLimit, max_bytes=config.max_body_bytes, small=OPEN_PATHS if watch is not None else ()),
        Middleware(EncodedPaths, default_app=default_app),
        *([Middleware(Authentication, watch=watch)] if watch is not None else []),
    ]


async def _refused(request: Request, error: Exception) -> Response:
    known = status_and_detail(error)
    if known is None:
        log_internal(error, method=request.method, route=getattr(request.scope.get("route"), "path", "?"))
        return PlainTextResponse(INTERNAL, 500)
    status, detail = known
    return refusal(status, detail, {"retry-after": _LATER} if status in _PASSING else None, error=error)


async def _invalid(request: Request, error: Exception) -> Response:
    """Say what is wrong with a request, in FastAPI's form."""
    assert isinstance(error, RequestValidationError)
    return JSONResponse({"type": PAGE_OF_STATUSES, **describe(error)}, 422)
