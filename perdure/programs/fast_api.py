"""`get_fast_api_app`: google.adk's, over Perdure's API and a worker in the same process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from perdure.api.app import create_app
from perdure.api.auth.config import read_auth
from perdure.api.base.config import ApiConfig
from perdure.compiler.loading_all import load_apps
from perdure.config import ConnectionConfig
from perdure.logs import get_logger
from perdure.programs.adk_page import add_adk_page
from perdure.programs.workers import FOLDER, storage, working
from perdure.serving.reaching import reach
from perdure.streams.hub import TokenHub

__all__ = ["get_fast_api_app"]

_KEPT_ELSEWHERE = frozenset(
    {"session_service_uri", "session_db_kwargs", "memory_service_uri", "artifact_service_uri", "eval_storage_uri"}
)
"""Arguments of google.adk's that say where things are kept which Perdure keeps itself."""

_MEANINGLESS = frozenset({"host", "bind_host", "port", "use_local_storage"})
"""Those that say what the caller does with the app, or what holds only where something else is kept elsewhere."""

_Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[Any]]


def get_fast_api_app(
    *,
    agents_dir: str | Path,
    web: bool = False,
    allow_origins: Sequence[str] | None = None,
    lifespan: _Lifespan | None = None,
    auto_create_session: bool = False,
    auth: str | Path | None = None,
    **more: Any,
) -> FastAPI:
    """Return an ASGI application that serves a folder of agents durably: ADK's API, the inbox, and the worker.

    ADK: `cli/fast_api.py`. Routes of your own may be added to what it returns; they come before its own. Sessions,
    memory and artifacts are kept as `perdure dev` keeps them, Temporal is where `TEMPORAL_ADDRESS` says, or on this
    machine, where a development server is started if none answers.

    Args:
        agents_dir: The folder of agents' folders, or one of these.
        web: Serve google.adk's own page, too, at `/dev-ui/`; at `/` is Perdure's inbox.
        allow_origins: Origins of web pages that may call it.
        lifespan: Entered with the application that is returned, once it serves.
        auto_create_session: A run in a session that does not exist creates it.
        auth: A file that says who is let in (docs/security.md). Without one a request has to name this machine, an IP
            address or an allowed origin's host, so that no web page gets in by a name of its own.
        more: google.adk's other arguments: those that say where sessions, artifacts and memory are kept are passed
            over, with a line in the log; others have to be left out.

    Raises:
        DefinitionError: The folder, or the file of `auth`, cannot be read.
        ValueError: An argument says what is not supported.
    """
    _check(more)
    apps, kept = load_apps([str(agents_dir)]), storage()
    config = ApiConfig(
        auth=read_auth(Path(auth)) if auth is not None else None,
        auth_file=Path(auth).absolute() if auth is not None else None,
        loopback=auth is None,
        allow_origins=tuple(allow_origins or ()),
        auto_create_session=auto_create_session,
        **kept,
    )

    @asynccontextmanager
    async def serving(app: FastAPI) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            client, _ = await reach(ConnectionConfig().resolve(), stack)
            streams = TokenHub()
            await stack.enter_async_context(working(client, apps, kept, streams))
            api = create_app(client, apps, config, streams=streams)
            if web:
                add_adk_page(api, apps)
            # Behind the caller's own routes, which are there by now.
            app.mount("/", api)
            await stack.enter_async_context(api.router.lifespan_context(api))
            if lifespan is not None:
                await stack.enter_async_context(lifespan(app))
            yield

    return FastAPI(title="Perdure", lifespan=serving, docs_url=None, redoc_url=None, openapi_url=None)


def _check(more: dict[str, Any]) -> None:
    unknown = [name for name, value in more.items() if value and name not in _KEPT_ELSEWHERE | _MEANINGLESS]
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: not supported by Perdure's get_fast_api_app; leave it out")
    passed_over = sorted(name for name in _KEPT_ELSEWHERE if more.get(name))
    if passed_over:
        get_logger("perdure.programs").warning(
            f"{', '.join(passed_over)}: passed over; sessions are kept by Temporal, artifacts and memory in {FOLDER}"
        )
