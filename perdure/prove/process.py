"""Worker processes that a proof may kill. A fork server keeps the libraries loaded, so that one starts in 0.1 s."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Protocol, Self

from temporalio.client import Client
from temporalio.runtime import Runtime, TelemetryConfig

from perdure.agents.adk_app import AnyApp
from perdure.config import ConnectionConfig, WorkerConfig, connect
from perdure.errors import DefinitionError, error_text
from perdure.prove.ledger import Kill, Ledger, StepInterceptor
from perdure.prove.watched_models import watch_models
from perdure.worker import run_workers

_STICKY = timedelta(seconds=0.3)
_CACHED = 1000
_FAILED = "worker failed"


class Source(Protocol):
    """Builds the app in a worker process, to which it travels by pickle."""

    @property
    def modules(self) -> Sequence[str]:
        """Modules that every worker process needs: loaded once, before any of them is started."""
        ...

    def build(self, app_name: str, ledger: Ledger) -> AnyApp:
        """Return the app under another name, so that runs do not meet."""
        ...


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of a worker process."""

    source: Source
    app_name: str
    address: str
    namespace: str
    ledger: Path
    cached: bool = True
    """Keep workflows in memory; if not, each of their tasks replays the whole history."""
    kill: Kill | None = None
    steps: int | None = None
    """Steps an activity may take; `None` is as the app says."""


class WorkerProcess:
    """A running worker process; killed at the end of the block."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._process: BaseProcess | None = None

    async def __aenter__(self) -> Self:
        """Start the process; what it serves waits until it does."""
        process = _context(tuple(self._work.source.modules)).Process(target=_main, args=(self._work,), daemon=True)
        with _no_main():
            process.start()
        self._process = process
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            await self.ended()
            self._process.close()

    async def ended(self) -> int:
        """Wait for the process's end; returns its exit code, -9 if it was killed."""
        assert self._process is not None, "the process was not started"
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        sentinel = self._process.sentinel
        loop.add_reader(sentinel, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(sentinel)
        self._process.join()
        code = self._process.exitcode
        return 0 if code is None else code

    async def killed(self) -> None:
        """Wait until the process has killed itself.

        Raises:
            DefinitionError: It ended otherwise: the app cannot be built there.
        """
        code = await self.ended()
        if code != -signal.SIGKILL:
            reasons = [str(note[_FAILED]) for note in self._notes() if _FAILED in note]
            raise DefinitionError(reasons[-1] if reasons else f"the worker process ended with exit code {code}")

    def _notes(self) -> list[dict[str, object]]:
        return Ledger(self._work.ledger).notes


@contextlib.contextmanager
def _no_main() -> Generator[None]:
    """Hide the main module, which every worker would import again: it may be a script without a guard, or slow."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@functools.cache
def _context(modules: tuple[str, ...]) -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    # Nothing of Temporal's may run in the server: its threads would be missing in the forks.
    context.set_forkserver_preload([__name__, *modules])
    return context


def _main(work: Work) -> None:
    for name in ("temporalio.activity", "temporalio.worker", "temporalio.workflow", "perdure", "google_adk"):
        # Steps that fail are what many scenarios are about.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # A worker that starts finds queries which were given up long ago.
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=None)))
    try:
        asyncio.run(_serve(work))
    except Exception as error:
        Ledger(work.ledger).note(**{_FAILED: error_text(error)})
        os._exit(1)
    os._exit(0)


async def _serve(work: Work) -> None:
    _end_with_parent()
    ledger = Ledger(work.ledger)
    with warnings.catch_warnings():
        # What the app's code warns of, the process that starts the proof has said.
        warnings.simplefilter("ignore")
        app = work.source.build(work.app_name, ledger)
        watch_models(app, ledger)
        connected = await connect(ConnectionConfig(address=work.address, namespace=work.namespace, tls=False))
        config = connected.config()
        config["interceptors"] = [StepInterceptor(ledger, work.kill)]
        settings = WorkerConfig(
            sticky_timeout=_STICKY,
            graceful_shutdown_timeout=timedelta(0),
            fail_workflows_on_defects=True,
            max_cached_workflows=_CACHED if work.cached else 0,
            steps_per_activity=work.steps,
        )
        await run_workers(Client(**config), [app], settings)


def _end_with_parent() -> None:
    """End this process with the one that started it, however that ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        with contextlib.suppress(OSError):
            asyncio.get_running_loop().add_reader(parent.sentinel, os._exit, 1)
