"""What user code may raise, and a custom agent that lets it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any, NoReturn

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.exceptions import CancelledError as TemporalCancelled

from perdure.agents.custom import BaseAgent, InvocationContext
from perdure.journal.events import Event


class Silent(Exception):
    def __str__(self) -> str:
        raise SystemExit("no words")


class Locked(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class Own(BaseException):
    pass


def chained() -> NoReturn:
    """Raise an exception with a thousand causes, each of which says much."""
    last: Exception = ValueError("the first")
    for number in range(1000):
        following = ValueError(f"cause {number} " + "x" * 2000)
        following.__cause__ = last
        last = following
    raise RuntimeError("the last") from last


def circular() -> NoReturn:
    first, second = ValueError("one"), ValueError("two")
    first.__cause__, second.__cause__ = second, first
    raise first


def deep(left: int = 200) -> NoReturn:
    if not left:
        raise RecursionError("too deep")
    deep(left - 1)
    raise AssertionError


def raiser(make: Callable[[], BaseException]) -> Callable[[], NoReturn]:
    def throw() -> NoReturn:
        raise make()

    return throw


_NEXT = "next() found nothing more; give it a default"

KINDS: dict[str, tuple[Callable[[], NoReturn], str]] = {
    "StopIteration": (lambda: next(iter(())), f"the code raised StopIteration: {_NEXT}"),
    "StopIteration with a value": (raiser(lambda: StopIteration(7)), f"the code raised StopIteration: 7: {_NEXT}"),
    "StopAsyncIteration": (raiser(lambda: StopAsyncIteration()), f"the code raised StopAsyncIteration: {_NEXT}"),
    "GeneratorExit": (raiser(lambda: GeneratorExit()), "GeneratorExit"),
    "KeyboardInterrupt": (raiser(lambda: KeyboardInterrupt()), "asked the process to exit: KeyboardInterrupt"),
    "SystemExit": (raiser(lambda: SystemExit(2)), "asked the process to exit: SystemExit: 2"),
    "asyncio's CancelledError": (raiser(lambda: asyncio.CancelledError()), "CancelledError"),
    "a future's CancelledError": (raiser(lambda: concurrent.futures.CancelledError()), "CancelledError"),
    "Temporal's CancelledError": (raiser(lambda: TemporalCancelled("by itself")), "CancelledError: by itself"),
    "a BaseException": (raiser(lambda: Own("mine")), "Own: mine"),
    "completion by somebody else": (lambda: activity.raise_complete_async(), "_CompleteAsyncError"),
    "a broken executor": (raiser(lambda: concurrent.futures.BrokenExecutor("broken")), "BrokenExecutor: broken"),
    "no text": (raiser(lambda: ValueError()), "ValueError"),
    "blanks": (raiser(lambda: ValueError("  \n")), "ValueError"),
    "a text that cannot be made": (raiser(lambda: Silent()), "Silent: (its text cannot be made: SystemExit)"),
    "no pickle": (raiser(lambda: Locked()), "Locked: holds a lock"),
    "3 MB": (raiser(lambda: ValueError("HTTP 500: " + "x" * 3_000_000)), "x … (2,996,010 more characters)"),
    "3 MB of few bytes each": (raiser(lambda: ValueError("é" * 3_000_000)), "é … (2,996,000 more characters)"),
    "half a character": (raiser(lambda: ValueError("a\udcff b")), "ValueError: a\\udcff b"),
    "a thousand causes": (chained, "RuntimeError: the last"),
    "causes in a circle": (circular, "ValueError: one"),
    "many frames": (deep, "RecursionError: too deep"),
    "a group": (
        raiser(lambda: ExceptionGroup("two", [ValueError("a"), KeyError("b")])),
        "two (2 sub-exceptions): ValueError: a",
    ),
    "details that are no JSON": (raiser(lambda: ApplicationError("bad", object(), type="Refused")), "Refused: bad"),
    "details of 3 MB": (raiser(lambda: ApplicationError("bad", "x" * 3_000_000, type="Refused")), "Refused: bad"),
}
"""By a name: what raises it, and what is told of it."""


def act(kind: str) -> None:
    KINDS[kind][0]()


async def act_async(kind: str) -> None:
    await asyncio.sleep(0)
    KINDS[kind][0]()


class Acting(BaseAgent):
    """Runs a function that raises."""

    asynchronous: bool = False

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        message: Any = ctx.user_content
        await ctx.run_activity(act_async if self.asynchronous else act, message.parts[0].text)
        yield Event(author=self.name)
