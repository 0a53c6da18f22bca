"""A process that serves the apps of `perdure dev`: how the front sees it, and what runs in it."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import reduction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perdure.cli.dev.orders import End, Loaded, Order, Refused, Retire, Serve, Serving
from perdure.cli.ending import stop_on_signal
from perdure.cli.exits import ExitCode, leave
from perdure.errors import DefinitionError, PerdureError
from perdure.serving.event_loop import run_serving

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from perdure.cli.dev.serving import Ends

PRELOADED = (
    *("perdure.cli.dev.serving", "perdure.cli.dev.process", "perdure.serving.event_loop"),
    *("perdure.api.app", "perdure.serving.http_server"),
)
ADKS_PRELOADED = ("perdure.adk.loading", "perdure.programs.adk_page")
"""What a process finds loaded, where there is fork: all that it needs but the code of the apps."""


def prepare(modules: Sequence[str]) -> Any:
    """Begin to load what serving processes need; return how to make them, for `multiprocessing`."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    from multiprocessing.forkserver import ensure_running

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(modules))
    # It loads while this process does something else.
    ensure_running()
    return context


class Link:
    """One end of a pipe between two processes, for an event loop."""

    def __init__(self, connection: Connection, at_end: Callable[[], object] | None = None) -> None:
        """Begin to listen.

        Args:
            connection: The end.
            at_end: Called, in a thread, when the other end has closed.
        """
        self._connection = connection
        self._at_end = at_end
        self._loop = asyncio.get_running_loop()
        self._come: asyncio.Queue[Any] = asyncio.Queue()
        threading.Thread(target=self._listen, name="perdure-link", daemon=True).start()

    def send(self, message: object) -> None:
        """Send a message; one to a process that has ended is lost."""
        with suppress(OSError):
            self._connection.send(message)

    async def receive(self) -> Any:
        """Return the next message; `None` when the other end has closed."""
        return await self._come.get()

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._put(self._connection.recv())
        if self._at_end is not None:
            self._at_end()
        self._put(None)

    def _put(self, message: Any) -> None:
        with suppress(RuntimeError):  # The loop has ended.
            self._loop.call_soon_threadsafe(self._come.put_nowait, message)


class ServingProcess:
    """A process that serves apps, as the front sees it."""

    def __init__(self, context: Any, order: Order) -> None:
        """Make it; `load` starts it."""
        self._ours, self._theirs = context.Pipe()
        self._process = context.Process(target=serve_in_process, args=(order, self._theirs, _StandardInput()))
        self._link: Link | None = None
        self._killed = False
        self.ended = asyncio.Event()
        self.serves: frozenset[str] = frozenset()
        """The apps that it serves now."""
        self.runs: frozenset[str] = frozenset()
        """Those of them that can run."""

    async def load(self) -> Loaded | Refused:
        """Start it, once what it finds loaded is loaded, and return what came of loading the apps."""
        await asyncio.to_thread(self._start)
        loop = asyncio.get_running_loop()

        def wait() -> None:
            self._process.join()
            with suppress(RuntimeError):  # The loop has ended.
                loop.call_soon_threadsafe(self.ended.set)

        self._link = Link(self._ours, wait)
        answer = await self._receive()
        if answer is None:
            return Refused(f"the process that loads the apps has ended (exit code {self.exit_code})")
        assert isinstance(answer, Loaded | Refused), "a process first says what it has loaded"
        return answer

    @property
    def exit_code(self) -> int | None:
        """How it has ended: minus a signal's number, if by one."""
        code: int | None = self._process.exitcode
        return code

    async def serve(self, told: Serve) -> Refused | None:
        """Have it serve; return why it does not, if it does not."""
        self.send(told)
        answer = await self._receive()
        if answer is None:
            return Refused(f"the process that serves the apps has ended (exit code {self.exit_code})")
        return answer if isinstance(answer, Refused) else None

    def send(self, message: object) -> None:
        """Tell it something."""
        assert self._link is not None, "it has been started"
        self._link.send(message)

    def kill(self) -> None:
        """End it at once, or as soon as it has been started."""
        self._killed = True
        if self._process.pid is not None:
            self._process.kill()

    def _start(self) -> None:
        self._process.start()
        self._theirs.close()
        if self._killed:
            self._process.kill()

    async def _receive(self) -> Any:
        assert self._link is not None, "it has been started"
        return await self._link.receive()


class _StandardInput:
    """The front's standard input, for the process that it is sent to: a debugger in a tool reads from there."""

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            return _StandardInput, (), reduction.DupFd(sys.stdin.fileno())
        except (AttributeError, OSError, ValueError):
            return _StandardInput, ()

    def __setstate__(self, duplicate: Any) -> None:
        sys.stdin = os.fdopen(duplicate.detach())


def serve_in_process(order: Order, front: Connection, _: object) -> None:
    """Load apps, and serve them as the front says; the process ends with it."""
    # What the apps start themselves, they start as they would elsewhere.
    multiprocessing.set_start_method(None, force=True)
    importlib.invalidate_caches()
    for path in order.changed:
        # A file that is saved twice in a second at the same size is no other one to Python.
        with suppress(OSError, NotImplementedError):
            Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
    leave(run_serving(_serve(order, front)))


async def _serve(order: Order, connection: Connection) -> int:
    from perdure.cli.dev.serving import Ends, load, own_files, say_what_ends, serve
    from perdure.compiler.loading import trace_of
    from perdure.serving.read_files import Reads

    front = Link(connection, lambda: os._exit(ExitCode.FAILED))
    stop = stop_on_signal(lambda: say_what_ends(order.options))
    reads = Reads()
    try:
        apps, loaded = load(order, reads)
    except PerdureError as error:
        trace = trace_of(error) if isinstance(error, DefinitionError) else ""
        front.send(Refused(str(error), trace, read=own_files(order, reads)))
        return ExitCode.FAILED
    except click.UsageError as error:
        front.send(Refused(error.message, is_usage=True))
        return ExitCode.USAGE
    if order.options["log_level"] == "info":
        # Each worker that another one replaces would say that it ends.
        logging.getLogger("temporalio.worker").setLevel(logging.WARNING)
    ends = Ends(apps)
    front.send(loaded)
    obeying = asyncio.create_task(_obey(front, ends, stop))
    told = await obeying
    if told is None:
        return ExitCode.FINISHED
    obeying = asyncio.create_task(_obey(front, ends, stop))
    try:
        await serve(apps, order, told, ends, lambda: front.send(Serving()))
    except (PerdureError, click.ClickException) as error:
        front.send(Refused(error.message if isinstance(error, click.ClickException) else str(error)))
        return ExitCode.FAILED
    finally:
        obeying.cancel()
    return ExitCode.FINISHED


async def _obey(front: Link, ends: Ends, stop: asyncio.Event) -> Serve | None:
    """Do what the front says until it says that the apps are to be served; `None` at the end."""
    stopping = asyncio.create_task(stop.wait())
    try:
        while True:
            coming = asyncio.create_task(front.receive())
            await asyncio.wait({coming, stopping}, return_when=asyncio.FIRST_COMPLETED)
            message = End() if not coming.done() else coming.result()
            coming.cancel()
            match message:
                case Serve():
                    return message
                case Retire(apps=apps):
                    ends.retire(apps)
                case _:
                    ends.end()
                    return None
    finally:
        stopping.cancel()
