"""Loads apps and serves them, with the API, in the process of `perdure dev` or in one of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.agents.broken import BrokenApp
from perdure.cli.api import api_config
from perdure.cli.api import serve as serve_api
from perdure.cli.dev.orders import Loaded, ServedApp
from perdure.cli.output import say
from perdure.cli.streaming import stream_key
from perdure.cli.telemetry import telemetry
from perdure.cli.worker import what_ends, worker_config
from perdure.compiler.loading_all import load_apps
from perdure.compiler.registry import register
from perdure.config import connect
from perdure.doctor.checks import check_credentials
from perdure.logs import configure_logging
from perdure.serving.event_loop import spare_collector
from perdure.serving.read_files import is_below
from perdure.streams.hub import TokenHub
from perdure.streams.server import StreamServer
from perdure.tracebacks import is_of_app
from perdure.worker import run_workers

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection, Iterator, Sequence

    from temporalio.converter import PayloadCodec

    from perdure.agents.adk_app import AnyApp
    from perdure.cli.dev.orders import Order, Serve
    from perdure.serving.read_files import Reads

_KNOWN_AFTER = timedelta(seconds=1)
"""So `perdure run` can name the apps that are served to who misspells one."""


class Ends:
    """What ends what this process serves, in parts."""

    def __init__(self, apps: Collection[AnyApp]) -> None:
        self.api = asyncio.Event()
        """The API takes no more requests."""
        self.requests = asyncio.Event()
        """Those under way end, too."""
        self.apps = {app.name: asyncio.Event() for app in apps}
        """By name: the app's worker takes no more work."""

    def retire(self, apps: Collection[str]) -> None:
        """End what another process serves now."""
        self.api.set()
        for name, end in self.apps.items():
            if name in apps:
                end.set()

    def end(self) -> None:
        """End all of it."""
        self.retire(self.apps)
        self.requests.set()


def load(order: Order, reads: Reads | None = None) -> tuple[list[AnyApp], Loaded]:
    """Set logging up, load the apps and check them; return them, and what is to be told of them.

    Args:
        order: Which.
        reads: Gets to know what their code reads.

    Raises:
        DefinitionError: An app that is named itself cannot be loaded.
        click.UsageError: An option of the API is wrong.
    """
    configure_logging(json=order.options["log_json"], level=order.options["log_level"], errors=True)
    if order.api is not None:
        # What is wrong with its options is said before anything is started.
        api_config(order.options, order.options["host"])
    with reads.noted() if reads is not None else nullcontext():
        apps = load_apps(order.targets)
    files = tuple(_files())
    return apps, Loaded(
        tuple(map(served_app, apps)), files, own_files(order, reads, files) if reads is not None else ()
    )


def own_files(order: Order, reads: Reads, code: Collection[Path] = ()) -> tuple[Path, ...]:
    """Return what was read below the apps' folders, beside their code, or below where `dev` was started."""
    near = {Path.cwd(), *(file.parent for file in code), *(Path(target).resolve() for target in order.targets)}
    return tuple(file for file in reads.files if is_below(file, near) and is_of_app(str(file)))


def served_app(app: AnyApp) -> ServedApp:
    """Return what is to be told of an app."""
    if isinstance(app, BrokenApp):
        return ServedApp(app.name, app.reason, app.trace)
    found = check_credentials(os.environ, register(app).plan)
    lacks = f"{found.words}; {found.remedy}" if found.verdict == "failure" else None
    return ServedApp(app.name, resumable=app.is_resumable, lacks=lacks)


def _files() -> Iterator[Path]:
    """Yield the files of the modules that are nobody's package."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and file.endswith(".py") and is_of_app(file):
            yield Path(file).resolve()


def say_what_ends(options: dict[str, Any]) -> None:
    """Say which steps are waited for as the process ends, if there are any."""
    waits = what_ends(worker_config(options).graceful_shutdown_timeout)
    if waits:
        say(f"perdure: ending{waits}", err=True)


async def serve(
    apps: Sequence[AnyApp], order: Order, told: Serve, ends: Ends, started: Callable[[], object] | None = None
) -> None:
    """Serve apps until `ends` says otherwise.

    Args:
        apps: What `load` has returned.
        order: Where.
        told: What is not to be served.
        ends: What ends it.
        started: Called when the workers ask for work.
    """
    options: dict[str, Any] = {**order.options, "temporal_ui": order.options["temporal_ui"] or told.temporal_ui}
    config = worker_config(options)
    hub = TokenHub()
    async with AsyncExitStack() as stack:
        watched = await stack.enter_async_context(telemetry(options, "perdure-dev", known_after=_KNOWN_AFTER))
        resolved = watched.watch(order.connection.config().resolve())
        client = await connect(resolved)
        await stack.enter_async_context(watched.counting(client, apps))
        spare_collector()
        ask = {app.name: asyncio.Event() for app in apps if app.name not in told.but}
        parts = [
            run_workers(client, [app], config, stop=ends.apps[app.name], started=ask[app.name], streams=hub)
            for app in apps
            if app.name in ask
        ]
        if order.api is not None:
            from perdure.serving.http_server import Lingering

            lingering = Lingering(config.graceful_shutdown_timeout.total_seconds(), ends.requests)
            api = api_config(options, options["host"])
            web = options["web"]
            parts.append(serve_api(client, apps, api, order.api, ends.api, watched, hub, web=web, lingering=lingering))
        if order.streams is not None:
            parts.append(_tell(hub, order.streams, resolved.payload_codec, ends.api))
        if started is not None:
            parts.append(_announce(ask.values(), started))
        try:
            async with asyncio.TaskGroup() as tasks:
                for part in parts:
                    tasks.create_task(part)
        except ExceptionGroup as group:
            raise group.exceptions[0] from None


async def _announce(asking: Collection[asyncio.Event], started: Callable[[], object]) -> None:
    for event in asking:
        await event.wait()
    started()


async def _tell(hub: TokenHub, listener: socket.socket, codec: PayloadCodec | None, end: asyncio.Event) -> None:
    """Tell others what models write."""
    async with StreamServer(hub, listener=listener, key=stream_key(), codec=codec):
        await end.wait()
