"""Serves the apps of `perdure dev`: in a process of their own, which another replaces when code changes; or here."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

from perdure.cli.dev.orders import End, Loaded, Order, Refused, Retire, Serve
from perdure.cli.dev.process import ADKS_PRELOADED, PRELOADED, ServingProcess, prepare
from perdure.cli.output import say
from perdure.compiler.folders import imports_adk
from perdure.errors import DefinitionError, PerdureError

if TYPE_CHECKING:
    from perdure.agents.adk_app import AnyApp

_NAMED = 3
"""Changed files that are named."""

_GRACE = 10.0
_MARGIN = 15.0
"""Seconds beside the grace period after which a process that does not end is not waited for."""


class InPlace:
    """Serves apps in this process, which takes up no change of them."""

    def __init__(self) -> None:
        self._order: Order | None = None
        self._apps: list[AnyApp] = []

    async def __aenter__(self) -> Self:
        """Do nothing yet."""
        return self

    async def __aexit__(
        self, cls: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave nothing behind."""

    async def load(self, order: Order) -> Loaded:
        """Load the apps.

        Raises:
            DefinitionError: They cannot be loaded.
        """
        from perdure.cli.dev.serving import load

        self._order = order
        self._apps, loaded = load(order)
        return loaded

    async def serve(self, temporal_ui: str | None, stop: asyncio.Event) -> None:
        """Serve them until `stop` is set."""
        from perdure.cli.dev.serving import Ends, serve

        assert self._order is not None, "they are loaded"
        ends = Ends(self._apps)

        async def end() -> None:
            await stop.wait()
            ends.end()

        ending = asyncio.create_task(end())
        try:
            await serve(self._apps, self._order, Serve(temporal_ui), ends)
        finally:
            ending.cancel()


class Reloading:
    """Serves apps in processes of their own: each change of their code by a new one."""

    def __init__(self, targets: Sequence[str], *, alone: bool) -> None:
        """Begin to load what the processes need.

        Args:
            targets: The apps.
            alone: Only one process at a time can have what the apps are served with.
        """
        self._paths = [path for path in map(Path, targets) if path.exists()]
        adk = any(map(imports_adk, self._paths or [Path.cwd()]))
        self._context = prepare([*PRELOADED, *(ADKS_PRELOADED if adk else ())])
        self._alone = alone
        self._order: Order | None = None
        self._first: tuple[ServingProcess, Loaded] | None = None
        self._serving: list[ServingProcess] = []
        """Those that serve apps, the newest last."""
        self._living: set[ServingProcess] = set()
        """Those, and others that have not ended yet."""
        self._told: dict[str, Refused] = {}
        """What was said last of apps that are served as they were."""
        self._is_ending = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._stack = AsyncExitStack()
        self._temporal_ui: str | None = None

    async def __aenter__(self) -> Self:
        """Begin to watch the apps' code."""
        from perdure.serving.changes import Changes

        self._changes = await self._stack.enter_async_context(Changes([path for path in self._paths if path.is_dir()]))
        return self

    async def __aexit__(
        self, cls: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End at once what has not ended."""
        await self._stack.aclose()
        for process in self._living:
            process.kill()

    async def load(self, order: Order) -> Loaded:
        """Load the apps.

        Raises:
            DefinitionError: They cannot be loaded.
            click.UsageError: An option of the API is wrong.
        """
        self._order = order
        process = ServingProcess(self._context, order)
        answer = await process.load()
        if isinstance(answer, Refused):
            raise click.UsageError(answer.reason) if answer.is_usage else DefinitionError(answer.reason)
        self._first = process, answer
        self._admit(process, answer)
        return answer

    async def serve(self, temporal_ui: str | None, stop: asyncio.Event) -> None:
        """Serve them until `stop` is set, each change by a new process.

        Raises:
            PerdureError: They cannot be served.
        """
        assert self._first is not None, "they are loaded"
        self._temporal_ui = temporal_ui
        process, loaded = self._first
        refused = await process.serve(Serve(temporal_ui))
        if refused is not None and not stop.is_set():
            raise PerdureError(refused.reason)
        self._take_over(process, loaded, frozenset())
        following, stopping = asyncio.create_task(self._follow()), asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({following, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._is_ending = True
            for task in (following, stopping):
                task.cancel()
            await asyncio.gather(following, stopping, return_exceptions=True)
            for process in self._living:
                process.send(End())
            await asyncio.gather(*(process.ended.wait() for process in self._living))

    async def _follow(self) -> None:
        """Take up changes, for as long as the system tells of them."""
        while True:
            try:
                changed = await self._changes.next()
                began = time.monotonic()
                while (more := await self._reload(changed, began)) is not None:
                    changed |= more
            except OSError as error:
                say(f"perdure: changes are not taken up any more: {error}", err=True)
                await asyncio.Event().wait()

    async def _reload(self, changed: frozenset[Path], began: float) -> frozenset[Path] | None:
        """Serve the code as it is now; return what has changed meanwhile, if that is to be served instead.

        Raises:
            OSError: No more changes are told of.
        """
        assert self._order is not None, "they are loaded"
        process = ServingProcess(self._context, replace(self._order, changed=tuple(changed)))
        loading, more = asyncio.create_task(process.load()), asyncio.create_task(self._changes.next())
        try:
            await asyncio.wait({loading, more}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            process.kill()
            raise
        finally:
            more.cancel()
            loading.cancel()
        if more.done():
            process.kill()
            return more.result()
        answer = loading.result()
        if isinstance(answer, Refused):
            self._changes.know(read=answer.read)
            _tell_of_refused(_named(changed), answer)
            return None
        self._admit(process, answer)
        await self._replace(process, answer, changed, began)
        return None

    async def _replace(self, process: ServingProcess, loaded: Loaded, changed: Collection[Path], began: float) -> None:
        """Let a process that has loaded the apps serve them, but for those that it cannot run and another one can."""
        kept = self._kept(loaded)
        self._tell_of_kept(loaded, kept)
        if all(app.name in kept for app in loaded.apps):
            process.kill()
            return
        if self._alone:
            self._retire(kept)
            await asyncio.gather(*(other.ended.wait() for other in self._living - {process, *self._serving}))
        refused = await process.serve(Serve(self._temporal_ui, kept))
        if refused is not None:
            _tell_of_refused(_named(changed), refused)
            return
        self._retire(kept)
        self._take_over(process, loaded, kept)
        names = [app.name for app in loaded.apps if app.name not in kept]
        say(f"reloaded     {', '.join(names)} ({_named(changed)}; {time.monotonic() - began:.1f} s)")
        say_what_lacks(loaded)

    def _kept(self, loaded: Loaded) -> frozenset[str]:
        """Return the apps that cannot run as they are now, and that a process serves as they were."""
        served = {name for process in self._serving for name in process.runs}
        return frozenset(app.name for app in loaded.apps if app.refused is not None and app.name in served)

    def _tell_of_kept(self, loaded: Loaded, kept: frozenset[str]) -> None:
        """Say why apps are served as they were, once for each state of their code."""
        now = {app.name: Refused(app.refused or "", app.trace) for app in loaded.apps if app.name in kept}
        for name, refused in now.items():
            if self._told.get(name) != refused:
                _tell_of_refused(name, refused)
        self._told = now

    def _admit(self, process: ServingProcess, loaded: Loaded) -> None:
        self._living.add(process)
        self._spawn(self._forget(process))
        self._changes.know(loaded.files, loaded.read)

    def _take_over(self, process: ServingProcess, loaded: Loaded, kept: frozenset[str]) -> None:
        process.serves = frozenset(app.name for app in loaded.apps) - kept
        process.runs = frozenset(app.name for app in loaded.apps if app.refused is None)
        self._serving.append(process)

    def _retire(self, kept: frozenset[str]) -> None:
        """Have processes serve nothing more but the apps that are kept, each as the one that can run it has it."""
        for process in self._serving:
            process.send(Retire(process.serves - kept))
            process.serves &= kept
            process.runs &= kept
            if not process.serves:
                self._spawn(self._see_off(process))
        self._serving = [process for process in self._serving if process.serves]

    async def _forget(self, process: ServingProcess) -> None:
        await process.ended.wait()
        self._living.discard(process)
        if process in self._serving and not self._is_ending:
            self._serving.remove(process)
            names = ", ".join(sorted(process.serves))
            say(
                f"perdure: the process that serves {names} has ended (exit code {process.exit_code}); what runs goes on"
                " when it is served again: with the next change, or when you start it again",
                err=True,
            )

    async def _see_off(self, process: ServingProcess) -> None:
        """Kill a process that is to end, and does not."""
        assert self._order is not None, "they are loaded"
        with suppress(TimeoutError):
            await asyncio.wait_for(process.ended.wait(), (self._order.options["grace"] or _GRACE) + _MARGIN)
            return
        process.kill()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def say_what_lacks(loaded: Loaded) -> None:
    """Print whose model lacks its key here, before the first message fails of it."""
    for app in loaded.apps:
        if app.lacks is not None:
            say(f"lacks        credentials for the model of {app.name}: {app.lacks}, and start again")


def _tell_of_refused(what: str, refused: Refused) -> None:
    say(f"not reloaded {what}: the code from before goes on serving, since this one cannot be loaded:")
    # The trace says it, too, and where.
    say(refused.trace or refused.reason, lines=True)


def _named(changed: Iterable[Path]) -> str:
    """Return changed files in words."""
    names = sorted(os.path.relpath(path) for path in changed)
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
