"""Tells whether suspended code waits for its sub-agents and functions only, or is at work besides.

The loop that runs code keeps note of the tasks that an agent's code begins, of the timers that it sets, and of what it
waits for.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import tasks
from collections.abc import Callable, Collection, Coroutine, Generator
from contextvars import Context, ContextVar
from types import FrameType
from typing import Any, TypeVar
from weakref import WeakSet

_T = TypeVar("_T")

_OF_TASKS = ("asyncio.tasks", "asyncio.taskgroups", "asyncio.timeouts")
"""Modules of Python's whose futures are done by other tasks, and by timers."""
_SHARED = ("asyncio.locks", "asyncio.queues")
"""The same, where not a library reads from a connection by them."""
_LIBRARIES = ("anyio",)

_own: ContextVar[OwnTasks | None] = ContextVar("the tasks of an agent's code", default=None)


class OwnTasks:
    """The tasks of one agent's code, with its timers."""

    def __init__(self) -> None:
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._timers: WeakSet[asyncio.TimerHandle] = WeakSet()
        self._at_rest: WeakSet[asyncio.Future[Any]] = WeakSet()
        """What others of its tasks do, or timers."""

    def begin(self) -> None:
        """Take note of the task that runs, and of what it begins from here on."""
        task = asyncio.current_task()
        assert task is not None, "a task runs"
        self._tasks.add(task)
        _own.set(self)

    def began(self, task: asyncio.Task[Any]) -> None:
        """Take note of a task."""
        self._tasks.add(task)

    def set_timer(self, timer: asyncio.TimerHandle) -> None:
        """Take note of a timer."""
        self._timers.add(timer)

    def made(self, future: asyncio.Future[Any], maker: FrameType) -> None:
        """Take note of a future that a function has made."""
        module = _module(maker)
        if module in _OF_TASKS or (module in _SHARED and not _module(maker.f_back).startswith(_LIBRARIES)):
            self._at_rest.add(future)

    def are_at_work(self, asked: Collection[asyncio.Future[Any]]) -> bool:
        """Return whether one of them waits for something else than others of them, timers, and what is asked for."""
        return any(not task.done() and self._is_at_work(task, asked) for task in list(self._tasks))

    def _is_at_work(self, task: asyncio.Task[Any], asked: Collection[asyncio.Future[Any]]) -> bool:
        waits_for: asyncio.Future[Any] | None = getattr(task, "_fut_waiter", None)
        if waits_for is None:
            return True
        is_gathered = isinstance(waits_for, getattr(tasks, "_GatheringFuture", ()))
        if is_gathered or isinstance(waits_for, asyncio.Task) or waits_for in self._at_rest:
            return False
        return all(waits_for is not one for one in asked)

    def next_timer(self) -> float | None:
        """Return in how many seconds the next timer is due; `None` if none is set."""
        now = asyncio.get_running_loop().time()
        due = [timer.when() - now for timer in list(self._timers) if not timer.cancelled() and timer.when() > now]
        return min(due, default=None)


def _module(frame: FrameType | None) -> str:
    return "" if frame is None else str(frame.f_globals.get("__name__"))


_Loop = asyncio.ProactorEventLoop if sys.platform == "win32" else asyncio.SelectorEventLoop


class CodeLoop(_Loop):
    """Python's event loop, which keeps note of what agents' code begins on it."""

    def create_future(self) -> asyncio.Future[Any]:
        """Return a new future."""
        future = super().create_future()
        own = _own.get()
        if own is not None:
            own.made(future, sys._getframe(1))  # pyright: ignore[reportPrivateUsage] -- CPython's
        return future

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Set a timer."""
        timer = super().call_at(when, callback, *args, context=context)
        own = _own.get()
        if own is not None:
            own.set_timer(timer)
        return timer

    def create_task(self, coro: Coroutine[Any, Any, _T] | Generator[Any, None, _T], **options: Any) -> asyncio.Task[_T]:
        """Begin a task."""
        task = super().create_task(coro, **options)
        own = _own.get()
        if own is not None:
            own.began(task)
        return task
