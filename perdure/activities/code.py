"""Runs user code so that it never blocks the worker's loop, and heartbeats for it.

Sync functions run in threads; async ones, models included, on a loop of their own, one for each worker process.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from temporalio import activity

from perdure.logs import get_logger

_T = TypeVar("_T")
_log = get_logger("perdure.worker")

_BEAT_SECONDS = 1.0
_GRACE_SECONDS = 5.0
"""How long a cancelled sync function, which nothing can interrupt, may take to finish and keep its result."""


@contextmanager
def telling(what: str) -> Generator[None]:
    """Log a failure by its kind, place and attempt: what it says may quote a prompt or an argument."""
    try:
        yield
    except Exception as error:
        cause = error.__cause__ or error
        place = next(reversed(traceback.extract_tb(cause.__traceback__)), None)
        where = f"{place.filename.rpartition('/')[2]}:{place.lineno}" if place else None
        attempt = activity.info().attempt
        _log.warning(f"{what} failed", error=type(cause).__name__, where=where, attempt=attempt)
        _log.debug(f"{what} failed", exc_info=True)
        raise


class CodeRunner:
    """Threads and a loop for user code."""

    def __init__(self, name: str, max_threads: int) -> None:
        """Make the threads and the loop; `name` tells theirs from another runner's."""
        self._threads = ThreadPoolExecutor(max_threads, thread_name_prefix=f"perdure-{name}")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"perdure-{name}-loop", daemon=True)
        self._thread.start()

    async def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a function and return its result, heartbeating all the while; must be called inside of an activity.

        Raises:
            asyncio.CancelledError: The activity was cancelled, and the function did not finish in time.
        """
        call = functools.partial(contextvars.copy_context().run, functools.partial(fn, *args, **kwargs))
        if inspect.iscoroutinefunction(fn):
            return await self.run_async(fn(*args, **kwargs))
        future = asyncio.get_running_loop().run_in_executor(self._threads, call)
        result = await _finish(future)
        if inspect.isawaitable(result):
            return await self.run_async(_as_coroutine(result))
        return result

    async def run_async(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the loop for user code, heartbeating all the while.

        Raises:
            asyncio.CancelledError: The activity was cancelled; so is the coroutine.
        """
        future = asyncio.run_coroutine_threadsafe(_without_exit(coroutine), self._loop)
        wrapped = asyncio.wrap_future(future)
        with Heartbeat():
            return await wrapped

    def close(self) -> None:
        """Stop the loop; threads that still run are left to their end."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=_GRACE_SECONDS)


async def _finish(future: asyncio.Future[Any]) -> Any:
    with Heartbeat():
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            done, _ = await asyncio.wait({future}, timeout=_GRACE_SECONDS)
            if done:
                return future.result()
            raise


async def _without_exit(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Await a coroutine; one that asks for the process's end must not end the loop of all the others."""
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"the code asked the process to exit: {error!r}") from error


async def _as_coroutine(awaitable: Awaitable[_T]) -> _T:
    return await awaitable


class Heartbeat:
    """Beats once a second from the worker's loop, which user code cannot block."""

    def __enter__(self) -> None:
        self._task = asyncio.create_task(self._beat())

    def __exit__(self, *error: object) -> None:
        self._task.cancel()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            activity.heartbeat()
