"""Temporal inside of a program: a connection, and a worker for each of its apps, in a thread of their own.

A program may come and go with loops of its own, one for each call; what serves its agents stays.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import threading
from collections.abc import AsyncGenerator, Coroutine
from concurrent.futures import Future
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from temporalio.client import Client

from perdure.agents.adk_app import AdkApp
from perdure.client import Runner
from perdure.config import ConnectionConfig, pause_at_exit
from perdure.programs.code import ProgramCode
from perdure.programs.workers import storage, working
from perdure.serving.reaching import reach
from perdure.streams.hub import TokenHub

_T = TypeVar("_T")

_END_SECONDS = 15.0


@dataclass(frozen=True)
class _Served:
    """An app that is served until its stack is closed."""

    code: ProgramCode
    stack: AsyncExitStack


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
        self._storage = storage()

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run a coroutine on the workers' loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def call(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the workers' loop, and wait for it on the caller's."""
        return await asyncio.wrap_future(self.submit(coroutine))

    async def stream(self, items: AsyncGenerator[_T, None]) -> AsyncGenerator[_T, None]:
        """Yield on the caller's loop what comes on the workers'; who leaves ends that, too."""
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[tuple[_T | None, Exception | None]]()

        async def pump() -> None:
            last: Exception | None = None
            try:
                async with aclosing(items):
                    async for item in items:
                        loop.call_soon_threadsafe(queue.put_nowait, (item, None))
            except Exception as error:
                last = error
            # A program that has dropped this may have closed its loop.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(queue.put_nowait, (None, last))

        pumping = self.submit(pump())
        try:
            while True:
                item, error = await queue.get()
                if error is not None:
                    raise error
                if item is None:
                    return
                yield item
        finally:
            pumping.cancel()

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
                await self._end(app.name)
                self._served[app.name] = await self._start(client, app, code)
        return Runner(app.name, client, streams=self._streams, credentials=self._storage["credentials"])

    async def _reach(self) -> Client:
        client, _ = await reach(ConnectionConfig().resolve(), self._stack)
        return client

    async def _start(self, client: Client, app: AdkApp, code: ProgramCode) -> _Served:
        def compiled(_: AdkApp) -> ProgramCode:
            return code

        served = _Served(code, AsyncExitStack())
        app = replace(app, open=compiled)
        await served.stack.enter_async_context(working(client, [app], self._storage, self._streams))
        return served

    async def _end(self, name: str) -> None:
        served = self._served.pop(name, None)
        if served is not None:
            with suppress(Exception):
                await served.stack.aclose()

    async def _close(self) -> None:
        await asyncio.gather(*map(self._end, [*self._served]))
        await self._stack.aclose()

    def close(self) -> None:
        """End the workers, and the server if this process has started one."""
        with suppress(Exception):
            self.submit(self._close()).result(_END_SECONDS)


@functools.cache
def embedded() -> Embedded:
    """Return what serves the apps of this process; it ends with it."""
    found = Embedded()
    # Before the end is registered, so that it comes behind that: workers that end leave Temporal's threads at work.
    pause_at_exit()
    atexit.register(found.close)
    return found
