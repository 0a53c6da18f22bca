"""Temporal inside of a program: a connection, and a worker for each of its apps, in a thread of their own.

A program may come and go with loops of its own, one for each call; what serves its agents stays.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar

from temporalio.client import Client

from perdure.agents.adk_app import AdkApp
from perdure.artifacts import FileArtifactService
from perdure.client import Runner
from perdure.config import ConnectionConfig, WorkerConfig
from perdure.credentials import FileCredentialStore
from perdure.programs.code import ProgramCode
from perdure.serving.dev_server import DEFAULT_DATA_FILE
from perdure.serving.reaching import reach
from perdure.streams.hub import TokenHub
from perdure.worker import run_workers

_T = TypeVar("_T")

_GRACE = timedelta(seconds=1)
"""What steps that are at work get as the program ends; what they leave undone another start of it does again."""

_END_SECONDS = 15.0

_FOLDER = DEFAULT_DATA_FILE.parent
"""Where, in the folder that the program is started in, stands what no history holds; as for `perdure dev`."""


@dataclass
class _Served:
    """An app that is served."""

    code: ProgramCode
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Task[None] | None = None


class Embedded:
    """Serves the apps of this process."""

    def __init__(self) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="temporal of the program", daemon=True)
        self._thread.start()
        self._stack = AsyncExitStack()
        self._client: asyncio.Task[Client] | None = None
        self._streams = TokenHub()
        self._served: dict[str, _Served] = {}
        self._serving = asyncio.Lock()
        self._credentials = FileCredentialStore(str(_FOLDER / "credentials"))

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run a coroutine beside the workers."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def serve(self, app: AdkApp) -> Runner:
        """Serve an app, and return what reaches its sessions; another tree under its name takes its place.

        Raises:
            DefinitionError: Perdure cannot run it.
            ConnectionFailed: No server answers, and none can be started.
        """
        # Compiled before anything is started: what is wrong with it is told as that.
        code: ProgramCode = app.open(app)
        async with self._serving:
            if self._client is None or (self._client.done() and self._client.exception() is not None):
                self._client = asyncio.create_task(self._reach())
            client = await asyncio.shield(self._client)
            known = self._served.get(app.name)
            if known is not None and known.code.plan.digest == code.plan.digest:
                known.code.adopt(code)
            else:
                await self._end(self._served.pop(app.name, None))
                self._served[app.name] = await self._start(client, app, code)
        return Runner(app.name, client, streams=self._streams, credentials=self._credentials)

    async def _reach(self) -> Client:
        client, _ = await reach(ConnectionConfig().resolve(), self._stack)
        return client

    async def _start(self, client: Client, app: AdkApp, code: ProgramCode) -> _Served:

        def compiled(_: AdkApp) -> ProgramCode:
            return code

        app = replace(app, open=compiled)
        served, started = _Served(code), asyncio.Event()
        config = WorkerConfig(
            artifacts=FileArtifactService(str(_FOLDER / "artifacts")),
            credentials=self._credentials,
            graceful_shutdown_timeout=_GRACE,
        )
        served.ended = asyncio.create_task(
            run_workers(client, [app], config, stop=served.stop, started=started, streams=self._streams)
        )
        begun = asyncio.create_task(started.wait())
        await asyncio.wait({begun, served.ended}, return_when=asyncio.FIRST_COMPLETED)
        if served.ended.done():
            begun.cancel()
            served.ended.result()
        return served

    async def _end(self, served: _Served | None) -> None:
        if served is not None and served.ended is not None:
            served.stop.set()
            with suppress(Exception):
                await served.ended

    async def _close(self) -> None:
        await asyncio.gather(*(self._end(served) for served in self._served.values()))
        self._served.clear()
        await self._stack.aclose()

    def close(self) -> None:
        """End the workers, and the server if this process has started one."""
        with suppress(Exception):
            self.submit(self._close()).result(_END_SECONDS)


@functools.cache
def embedded() -> Embedded:
    """Return what serves the apps of this process; it ends with it."""
    found = Embedded()
    atexit.register(found.close)
    return found
