"""`dev`: serves apps for development, with all that stands around them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perdure.cli.api import DEFAULT_PORT, api_options, check_installed, listening, url_of, warn_of
from perdure.cli.artifacts import default_storage, storage_options
from perdure.cli.dev.orders import Order
from perdure.cli.ending import stop_on_signal
from perdure.cli.exits import ExitCode
from perdure.cli.help.grouped import GroupedCommand
from perdure.cli.options import Connection, connection_options, log_options
from perdure.cli.output import say
from perdure.cli.streaming import dev_addresses, stream_listener
from perdure.cli.telemetry import grace_option, telemetry_options
from perdure.cli.worker import check_worker, worker_options
from perdure.errors import ConnectionFailed

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator, Sequence

    from perdure.cli.dev.orders import Loaded
    from perdure.cli.dev.reloading import InPlace, Reloading
    from perdure.config import ConnectionConfig
    from perdure.serving.dev_server import DevServer

_FOUND_BY_ITSELF = "127.0.0.1:7233"
"""The address of a server that other commands find without being told."""
_SEEN_TO_END_WITHIN = 2.0
"""Seconds."""
_FIRST = ("port", "web", "reload", "address", "temporal_port", "ui_port", "data", "log_level")
"""What `dev --help` shows first."""


@click.command(cls=GroupedCommand, first=_FIRST)
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@click.option(
    "--temporal-port", type=click.IntRange(1, 65535), help="Port of Temporal.  [default: the address's, 7233]"
)
@click.option("--ui-port", type=click.IntRange(1, 65535), help="Port of Temporal's UI.  [default: Temporal's + 1000]")
@click.option("--data", type=click.Path(path_type=Path), help="Temporal's data file.  [default: .perdure/temporal.db]")
@click.option("--reload/--no-reload", default=True, show_default=True, help="Serve the apps' code anew as it is saved.")
@click.option(
    "--api/--no-api", "with_api", default=True, show_default=True, help="Serve the HTTP API, too (extra `api`)."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address that the API listens on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port of the API; 0 is a free one.  [default: 8000, and no API if that is taken]",
)
@click.option("--web", is_flag=True, help="Serve google.adk's own web page, too, at /dev-ui/ (extra `adk`).")
@api_options
@worker_options
@storage_options
@grace_option
@telemetry_options
@log_options
@connection_options
def dev(
    targets: tuple[str, ...],
    temporal_port: int | None,
    ui_port: int | None,
    data: Path | None,
    reload: bool,
    connection: Connection,
    **options: Any,
) -> int:
    """Serve apps for development: worker, inbox, HTTP API, and a Temporal server with its UI if none answers yet.

    A TARGET is MODULE:APP, a .py file, a folder that holds an `app` or a `root_agent`, or a folder of such folders, as
    `adk web` serves it; there what cannot be loaded is told, and the others are served. A change of their code is
    served as it is saved; what waits goes on by its plan, and code that cannot be loaded leaves the last that could.
    The server keeps its data in a file across restarts. Ctrl-C ends all of it.

    \b
    Examples:
      perdure dev examples/travel
      perdure dev my_agents/
      perdure dev travel.agent:app --temporal-port 7300 --ui-port 8300 --port 8100
    """
    if temporal_port is not None:
        if connection.address is not None:
            raise click.UsageError("--temporal-port and --address both name the server; give one")
        connection = replace(connection, address=f"localhost:{temporal_port}")
    _keep_beside(data, options)
    can_reload = find_spec("watchfiles") is not None
    # It begins to load what the apps need, while this process does.
    served = _served(targets, options, reload=reload and can_reload)
    check_worker(options)
    if options["web"] and find_spec("google.adk") is None:
        raise click.UsageError("--web serves google.adk's page, which is not installed: pip install 'perdure[adk]'")
    from perdure.serving.event_loop import run_serving

    if reload and not can_reload:
        say("perdure: changes are not taken up: pip install 'perdure[dev-server]', or say --no-reload", err=True)
    order = Order(targets=targets, connection=connection, options=options)
    return run_serving(_dev(served, order, ui_port, data))


def _keep_beside(data: Path | None, options: dict[str, Any]) -> None:
    from perdure.serving.dev_server import DEFAULT_DATA_FILE

    default_storage(options, (data or DEFAULT_DATA_FILE).parent)
    options["shows_credentials"] = True


async def _dev(served: InPlace | Reloading, order: Order, ui_port: int | None, data: Path | None) -> int:
    from perdure.serving.reaching import reach
    from perdure.serving.server_watch import server_watched

    stop = stop_on_signal(waits=lambda: "")
    config = order.connection.config().resolve()
    async with AsyncExitStack() as stack:
        api, tokens = _listen_for_api(order.options, stack), _listen_for_streams(order.options, config, stack)
        await stack.enter_async_context(served)
        loaded = await served.load(replace(order, api=api.listener, streams=tokens.listener))
        client, server = await reach(config, stack, ui_port=ui_port, data=data)
        _greet(config, server, data, loaded, api, tokens, order.options)
        async with _while_it_lives(server, stop) if server is not None else server_watched(client, stop.set):
            await served.serve(server.ui_url if server is not None else None, stop)
    return ExitCode.FINISHED


def _served(targets: Sequence[str], options: dict[str, Any], *, reload: bool) -> InPlace | Reloading:
    from perdure.cli.dev.reloading import InPlace, Reloading

    return Reloading(targets, alone=options["metrics"] is not None) if reload else InPlace()


@dataclass(frozen=True)
class _Offered:
    """What others can reach."""

    told: str = ""
    """Where, or why there is nothing; empty if nobody wants it."""
    listener: socket.socket | None = None


def _listen_for_api(options: dict[str, Any], stack: AsyncExitStack) -> _Offered:
    """Listen, if the API is wanted. A port that was not asked for may be taken, and the extra may be missing.

    Raises:
        click.ClickException: The port that was asked for cannot be had.
    """
    if not options["with_api"]:
        return _Offered()
    host, port = options["host"], options["port"]
    try:
        check_installed()
        listener = stack.enter_context(listening(host, DEFAULT_PORT if port is None else port))
    except click.ClickException as error:
        if port is not None:
            raise
        return _Offered(f"none: {error.message}")
    warn_of(host, open=options["auth"] is None)
    return _Offered(url_of(listener), listener)


def _listen_for_streams(options: dict[str, Any], config: ConnectionConfig, stack: AsyncExitStack) -> _Offered:
    """Let other commands on this machine hear what models write, if a port is free.

    Raises:
        click.ClickException: The address that was asked for cannot be had.
    """
    asked: str | None = options["stream_listen"]
    address = asked or next(iter(dev_addresses(config)), None)
    if address is None:
        return _Offered()
    try:
        return _Offered(f"{address} (perdure run --stream)", stack.enter_context(stream_listener(address)))
    except click.ClickException:
        if asked is not None:
            raise
        return _Offered(f"for the API only, since {address} is taken (--stream-listen names another)")


def _greet(
    config: ConnectionConfig,
    server: DevServer | None,
    data: Path | None,
    loaded: Loaded,
    api: _Offered,
    tokens: _Offered,
    options: dict[str, Any],
) -> None:
    """Print where everything is."""
    from perdure.cli.dev.reloading import say_what_lacks
    from perdure.serving.dev_server import DEFAULT_DATA_FILE

    if server is None:
        say(f"Temporal     {config.address} (was running already)")
    else:
        say(f"Temporal     {server.address}")
        say(f"Temporal UI  {server.ui_url}")
        say(f"data         {data or DEFAULT_DATA_FILE}")
    say(f"artifacts    {options['artifacts']}")
    if tokens.told:
        say(f"tokens       {tokens.told}")
    if api.told:
        say(f"HTTP API     {api.told}")
    if api.listener is not None:
        say(f"inbox        {api.told}/")
        say(f"chat         {api.told}/chat")
        if options["web"]:
            say(f"ADK's page   {api.told}/dev-ui/")
    for app in loaded.apps:
        said = "" if app.resumable else "not resumable: no ResumabilityConfig says so"
        if app.refused is not None:
            said = f"cannot run: {' '.join(app.refused.split())}"
        say(f"app          {app.name}{f' ({said})' if said else ''}")
    say_what_lacks(loaded)
    address = server.address if server is not None else config.address
    tried = next((app for app in loaded.apps if app.refused is None), loaded.apps[0])
    at = "" if address == _FOUND_BY_ITSELF else f"--address {address} "
    say(f'try          perdure run {at}{tried.name} "hello"')
    say("Ctrl-C ends it.")


@asynccontextmanager
async def _while_it_lives(server: DevServer, stop: asyncio.Event) -> AsyncGenerator[None]:
    """Set `stop` if a server that was started here ends before the block does.

    Raises:
        ConnectionFailed: It has ended.
    """
    watch = asyncio.create_task(server.ended())
    watch.add_done_callback(lambda _: stop.set())
    try:
        yield
    except Exception:
        # Who has lost the connection may notice before the process is seen to end.
        await asyncio.wait([watch], timeout=_SEEN_TO_END_WITHIN)
        raise
    finally:
        if watch.done():
            raise ConnectionFailed(watch.result())
        watch.cancel()
