"""Runs user code so that it never blocks the worker's loop.

Sync functions run in threads; async ones, models included, on a loop of their own, one for each worker process.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import math
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent import futures
from copy import copy
from typing import Any, Generic, TypeVar

from perdure.errors import ArtifactError
from perdure.steps.code.own_tasks import CodeLoop
from perdure.steps.raised import as_exception

_T = TypeVar("_T")

_GRACE_SECONDS = 5.0
"""How long what is cancelled may take to be over, and to keep its result if it finishes all the same: a sync function,
which nothing can interrupt, and an async one that cleans up."""


_NAMES = "perdure-"
"""What the names of the threads begin with that run user code."""


def runs_user_code() -> bool:
    """Return whether the caller is code of a step: its thread is one of a `CodeRunner`."""
    return threading.current_thread().name.startswith(_NAMES)


class CodeRunner:
    """Runs user code in threads and in a loop of its own."""

    def __init__(self, name: str, max_threads: int) -> None:
        """Make the threads and the loop; `name` tells theirs from another runner's."""
        self._threads = futures.ThreadPoolExecutor(max_threads, thread_name_prefix=f"{_NAMES}{name}")
        self._loop = CodeLoop()
        self._thread = threading.Thread(
            target=_run_to_the_end, args=(self._loop,), name=f"{_NAMES}{name}-loop", daemon=True
        )
        self._thread.start()
        self._endings: list[Callable[[], Coroutine[Any, Any, None]]] = []

    def at_close(self, ending: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have what a step left on the loop ended before the loop stops."""
        self._endings.append(ending)

    def with_threads(self, name: str, max_threads: int) -> CodeRunner:
        """Return a runner on the same loop whose threads are its own, so that neither waits for the other's."""
        runner = copy(self)
        runner._threads = futures.ThreadPoolExecutor(max_threads, thread_name_prefix=f"{_NAMES}{name}")
        return runner

    async def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a function and return its result.

        Raises:
            RuntimeError: It raised what would be taken for something else outside of it, such as `StopIteration`.
            asyncio.CancelledError: The step was cancelled, and the function did not finish in time.
        """
        if inspect.iscoroutinefunction(fn):
            return await self.run_async(fn(*args, **kwargs))
        result = await _finish(self._in_thread(functools.partial(fn, *args, **kwargs)))
        return await self.run_async(_as_coroutine(result)) if _is_awaitable(result) else result

    async def run_until(self, end: float, fn: Callable[..., _T], /, *args: Any) -> _T:
        """Run a function that is not async, as `run` does, but wait until a time of `time.monotonic` only.

        Raises:
            RuntimeError: As for `run`.
            TimeoutError: It did not finish by then; its thread is left to its end.
            asyncio.CancelledError: As for `run`.
        """
        return await _finish(self._in_thread(functools.partial(fn, *args)), end=end)

    def _in_thread(self, fn: Callable[[], _T]) -> asyncio.Future[_T]:
        call = functools.partial(contextvars.copy_context().run, fn)
        return asyncio.get_running_loop().run_in_executor(self._threads, _contained, call)

    async def run_async(self, coroutine: Coroutine[Any, Any, _T], *, end: float = math.inf) -> _T:
        """Run a coroutine on the loop for user code.

        Args:
            coroutine: The coroutine.
            end: How long to wait for it at the most: a time of `time.monotonic`.

        Raises:
            RuntimeError: As for `run`.
            TimeoutError: It did not finish by then, and is cancelled.
            asyncio.CancelledError: The step was cancelled; so was the coroutine, which is over by then unless that
                took it too long.
        """
        job = _Job(coroutine)
        future = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(job.run(), self._loop))
        return await _finish(future, cancel=lambda: self._loop.call_soon_threadsafe(job.cancel), end=end)

    def wait(self, awaitable: Awaitable[_T]) -> _T:
        """Run an awaitable on the loop for user code and return its result; for sync functions, in their threads.

        Raises:
            ArtifactError: The caller is an async function on that loop, which would wait for itself.
        """
        if threading.current_thread() is self._thread:
            if inspect.iscoroutine(awaitable):
                awaitable.close()
            raise ArtifactError("wait_for is for plain functions; in an async function await it")
        return asyncio.run_coroutine_threadsafe(_as_coroutine(awaitable), self._loop).result()

    def close(self) -> None:
        """Stop the loop; threads that still run are left to their end."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        endings = [asyncio.run_coroutine_threadsafe(ending(), self._loop) for ending in self._endings]
        futures.wait(endings, timeout=_GRACE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        # It ends what is left, with a time for that of its own.
        self._thread.join(timeout=2 * _GRACE_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()


def _run_to_the_end(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped, and end what is still suspended on it.

    Left to the collector, it would be ended in the middle of anything, in any thread; Python 3.11 crashes if a
    `ContextVar` is set by that while another one is being set (https://github.com/python/cpython/issues/148891).
    """
    asyncio.set_event_loop(loop)
    _run_until_stopped(loop)
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        # Code may swallow that.
        loop.run_until_complete(asyncio.wait(left, timeout=_GRACE_SECONDS))
    loop.run_until_complete(loop.shutdown_asyncgens())


def _run_until_stopped(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped, whatever a task on it raises.

    A task's `SystemExit` and `KeyboardInterrupt` end the loop, though the task has it already, and whoever awaits that
    gets it: all other code on the loop would wait for ever.
    """
    while True:
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()
            return


def _contained(call: Callable[[], _T]) -> _T:
    """Call a function in a thread; what it raises is an error, and says nothing to the thread, a future or a loop."""
    try:
        return call()
    except BaseException as error:
        raise as_exception(error)  # noqa: B904 -- it has its cause


class _Job(Generic[_T]):
    """A coroutine on the loop for user code; it is over only when the coroutine is, also where it is cancelled."""

    def __init__(self, coroutine: Coroutine[Any, Any, _T]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False

    async def run(self) -> _T:
        self._task = asyncio.current_task()
        if self._cancelled:
            self._coroutine.close()
            raise asyncio.CancelledError
        try:
            return await self._coroutine
        except BaseException as error:
            if self._is_ended(error):
                raise
            raise as_exception(error)  # noqa: B904 -- it has its cause

    def _is_ended(self, error: BaseException) -> bool:
        """Return whether the coroutine was ended from outside: cancelled, or closed with what a dead loop left."""
        if isinstance(error, asyncio.CancelledError):
            return self._cancelled
        return isinstance(error, GeneratorExit) and self._task is not None and not self._task.get_loop().is_running()

    def cancel(self) -> None:
        """Cancel the coroutine; called on its loop."""
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()


async def _finish(
    future: asyncio.Future[_T], cancel: Callable[[], object] | None = None, *, end: float = math.inf
) -> _T:
    try:
        # As if shielded: neither the wait's cancellation nor its end cancels what is waited for.
        await asyncio.wait({future}, timeout=None if end == math.inf else max(end - time.monotonic(), 0))
    except asyncio.CancelledError:
        if cancel is not None:
            cancel()
        done, _ = await asyncio.wait({future}, timeout=_GRACE_SECONDS)
        if not done:
            future.add_done_callback(_ignored)
            raise
    if not future.done():
        if cancel is not None:
            cancel()
        future.add_done_callback(_ignored)
        raise TimeoutError("it took longer than there was time left")
    return future.result()


def _is_awaitable(result: Any) -> bool:
    try:
        return inspect.isawaitable(result)
    except Exception:
        # Its own code answers, which may raise: the function has returned all the same.
        return False


def _ignored(future: asyncio.Future[Any]) -> None:
    """Look at what nobody waits for any more, so that asyncio does not tell of it."""
    if not future.cancelled():
        future.exception()


async def _as_coroutine(awaitable: Awaitable[_T]) -> _T:
    return await awaitable
