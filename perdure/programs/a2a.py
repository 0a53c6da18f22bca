"""`to_a2a`: google.adk's, over Perdure's API and a worker in the same process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from perdure.api.app import A2A, create_app, is_there
from perdure.api.auth.config import read_auth
from perdure.api.base.config import ApiConfig
from perdure.compiler.loading import as_app
from perdure.config import ConnectionConfig
from perdure.errors import DefinitionError
from perdure.programs.workers import storage, working
from perdure.serving.reaching import reach
from perdure.streams.hub import TokenHub

__all__ = ["to_a2a"]

_CARD = "/.well-known/agent-card.json"

_Lifespan = Callable[[Starlette], AbstractAsyncContextManager[Any]]


def to_a2a(
    agent: object,
    *,
    host: str = "localhost",
    port: int = 8000,
    protocol: str = "http",
    rpc_path: str = "",
    auth: str | Path | None = None,
    lifespan: _Lifespan | None = None,
) -> Starlette:
    """Return an ASGI application that serves one app by A2A durably, with its worker, and nothing else. Needs `a2a`.

    ADK: `a2a/utils/agent_to_a2a.py`. Tasks are invocations, kept by Temporal, which is where `TEMPORAL_ADDRESS` says,
    or on this machine, where a development server is started if none answers. Run it with `uvicorn module:app`.

    Args:
        agent: An app or its root agent, of Perdure's classes or google.adk's. An agent's name becomes its app's.
        host: ADK's, as are `port` and `protocol`: not needed, since the card names the address that it is asked at.
        port: As `host`.
        protocol: As `host`.
        rpc_path: Below which path it is served. Default: the root.
        auth: A file that says who is let in (docs/security.md). Without one a request has to name this machine, or an
            IP address.
        lifespan: Entered with the application that is returned, once it serves.

    Raises:
        DefinitionError: It is no app and no agent, the extra is not installed, or the file of `auth` cannot be read.
    """
    if not is_there(A2A):
        raise DefinitionError("to_a2a needs a2a-sdk 1.1 or newer; install it with `pip install 'perdure[a2a]'`")
    app = as_app(agent, str(getattr(agent, "name", "")))
    if app is None:
        raise DefinitionError(f"to_a2a takes an app, or the root agent of one, and not a {type(agent).__name__}")
    kept = storage()
    config = ApiConfig(
        auth=read_auth(Path(auth)) if auth is not None else None,
        auth_file=Path(auth).absolute() if auth is not None else None,
        loopback=auth is None,
        **kept,
    )

    @asynccontextmanager
    async def serving(outer: Starlette) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            client, _ = await reach(ConnectionConfig().resolve(), stack)
            streams = TokenHub()
            await stack.enter_async_context(working(client, [app], kept, streams))
            api = create_app(client, [app], config, streams=streams)
            outer.mount("/", _OneApp(api, app.name, rpc_path))
            await stack.enter_async_context(api.router.lifespan_context(api))
            if lifespan is not None:
                await stack.enter_async_context(lifespan(outer))
            yield

    return Starlette(lifespan=serving)


class _OneApp:
    """Lets the requests of one app's A2A through to the API, from where they are sent to."""

    def __init__(self, api: ASGIApp, app: str, rpc_path: str) -> None:
        self._api = api
        at, below = f"/a2a/{quote(app, safe='')}", f"/{rpc_path.strip('/')}".rstrip("/")
        # The card names the address in the API, which is served, too.
        self._paths = {path: at for path in (at, f"{at}/", below, f"{below}/")}
        self._paths |= {f"{path}{_CARD}": f"{at}{_CARD}" for path in (at, below)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = self._paths.get(scope["path"]) if scope["type"] == "http" else None
        if path is None:
            await PlainTextResponse("Not Found", 404)(scope, receive, send)
        else:
            await self._api({**scope, "path": path, "raw_path": path.encode()}, receive, send)
