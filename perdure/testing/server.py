"""The Temporal server of a test run, and the workers on it, on a loop in a thread of their own.

Which loops the tests run on, and how long these last, is the affair of their plugins.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from temporalio.client import Client

from perdure.agents.adk_app import AnyApp
from perdure.config import ConnectionConfig, WorkerConfig, connect
from perdure.serving.dev_server import DevServer, DevServerConfig
from perdure.worker import run_workers

__all__ = ["AppWorker", "Server", "connected"]

_T = TypeVar("_T")

_SETTINGS = {
    # Else a run that is younger than a second may not continue as new.
    "history.workflowIdReuseMinimalInterval": "1ms",
    # Time that is skipped, and each timer, else comes up to a second late.
    "history.timerProcessorMaxTimeShift": "1ms",
    "frontend.WorkflowTimeSkippingEnabled": True,
    # Each app has a task queue of its own, and a server as it comes starts four parts of each.
    "matching.numTaskqueueReadPartitions": 1,
    "matching.numTaskqueueWritePartitions": 1,
}


async def connected(address: str) -> Client:
    """Return a client of a test server, for the loop that runs, whatever the environment names."""
    return await connect(ConnectionConfig(address=address, namespace="default", tls=False))


class Server:
    """The server of the test run, and the loop on which workers run."""

    def __init__(self) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="perdure in tests", daemon=True)
        self._thread.start()
        self._stack = AsyncExitStack()
        self._starting: asyncio.Task[str] | None = None

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run a coroutine on the loop of the thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def call(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the loop of the thread, and wait for it on the caller's."""
        return await asyncio.wrap_future(self.submit(coroutine))

    async def address(self) -> str:
        """Return `HOST:PORT` of the server, which is started when it is first asked for.

        Raises:
            ConnectionFailed: There is no `temporal` program, or the server does not start.
        """
        return await self.call(self._started())

    async def _started(self) -> str:
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        return await asyncio.shield(self._starting)

    async def _start(self) -> str:
        server = DevServer(DevServerConfig(headless=True, dynamic_config=_SETTINGS))
        return (await self._stack.enter_async_context(server)).address

    def close(self) -> None:
        """End the server, and the thread."""
        self.submit(self._stack.aclose()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class AppWorker:
    """The worker of an app, in this process: it can be ended at once, and another one started."""

    def __init__(self, server: Server, address: str, app: AnyApp, config: WorkerConfig) -> None:
        """Make it; nothing is started."""
        self._server = server
        self._address = address
        self._app = app
        self._config = config
        self._stop: asyncio.Event | None = None
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start a worker, and return when it asks for work.

        Raises:
            DefinitionError: The app is defined wrongly.
        """
        await self._server.call(self._start())

    async def restart(self) -> None:
        """End the worker at once, whatever it is at, and start another, which has nothing in memory."""
        await self._server.call(self._end())
        await self.start()

    def close(self) -> None:
        """End the worker."""
        self._server.submit(self._end()).result()

    async def _start(self) -> None:
        client = await connected(self._address)
        self._stop, started = asyncio.Event(), asyncio.Event()
        serving = run_workers(client, [self._app], self._config, stop=self._stop, started=started)
        self._running = asyncio.create_task(serving)
        begun = asyncio.create_task(started.wait())
        await asyncio.wait({begun, self._running}, return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        if self._running.done():
            failed, self._running = self._running, None
            failed.result()

    async def _end(self) -> None:
        if self._stop is not None and self._running is not None:
            self._stop.set()
            await self._running
            self._running = None
