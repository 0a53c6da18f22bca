"""`dev` and `worker`: the commands that serve apps until they are told to end."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perdure.cli.addresses import taking
from perdure.cli.api import DEFAULT_PORT, api_config, api_options, listening, url_of, warn_of
from perdure.cli.api import serve as serve_api
from perdure.cli.artifacts import default_storage, open_storage, storage_options
from perdure.cli.exits import ExitCode
from perdure.cli.help.grouped import GroupedCommand
from perdure.cli.options import Command, Connection, connection_options, log_options, stop_on_signal, with_options
from perdure.cli.output import say, warn_of_broken, warn_of_no_key, why_not
from perdure.cli.streaming import check_listen, dev_addresses, listen_option, told
from perdure.cli.telemetry import Telemetry, grace_option, health_options, telemetry, telemetry_options
from perdure.errors import ConnectionFailed, DefinitionError

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator, Callable, Sequence

    from temporalio.client import Client

    from perdure.agents.adk_app import AnyApp
    from perdure.api.base.config import ApiConfig
    from perdure.config import ConnectionConfig, WorkerConfig
    from perdure.logs import Level
    from perdure.serving.dev_server import DevServer
    from perdure.streams.hub import TokenHub


_FIRST = ("port", "web", "address", "temporal_port", "ui_port", "data", "artifacts", "log_level")
"""What `dev --help` shows first."""

_KNOWN_AFTER = timedelta(seconds=1)
"""So `perdure run` can name the apps that are served to who misspells one."""


def _worker_options(command: Command) -> Command:
    options: list[Callable[[Command], Command]] = [
        click.option("--max-activities", type=click.IntRange(min=1), help="Model calls and tools at a time, per app."),
        click.option("--tool-threads", type=click.IntRange(min=1), help="Threads for tools that are not async."),
        click.option("--max-sessions", type=click.IntRange(min=0), help="Sessions kept in memory, per app."),
        click.option("--max-workflow-tasks", type=click.IntRange(min=2), help="Sessions computed at a time, per app."),
        click.option(
            "--sticky-timeout",
            type=click.FloatRange(min=0.1),
            metavar="SECONDS",
            help="How long a session waits for the worker that has it in memory.  [default: 2]",
        ),
        listen_option,
        click.option("--deployment", metavar="NAME", help="Deployment that this worker is a version of."),
        click.option("--build-id", metavar="ID", help="Which version of the deployment it is."),
        click.option(
            "--versioning",
            type=click.Choice(["pinned", "auto-upgrade"]),
            help="Whether a session stays with its version until it continues as new.  [default: auto-upgrade]",
        ),
    ]
    return with_options(command, options)


@click.command(cls=GroupedCommand, first=_FIRST)
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@click.option(
    "--temporal-port", type=click.IntRange(1, 65535), help="Port of Temporal.  [default: the address's, 7233]"
)
@click.option("--ui-port", type=click.IntRange(1, 65535), help="Port of Temporal's UI.  [default: Temporal's + 1000]")
@click.option("--data", type=click.Path(path_type=Path), help="Temporal's data file.  [default: .perdure/temporal.db]")
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
@_worker_options
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
    connection: Connection,
    **options: Any,
) -> int:
    """Serve apps for development: worker, inbox, HTTP API, and a Temporal server with its UI if none answers yet.

    A TARGET is MODULE:APP, a .py file, a folder that holds an `app` or a `root_agent`, or a folder of such folders, as
    `adk web` serves it; there what cannot be loaded is told, and the others are served. The server keeps its data in a
    file across restarts. Ctrl-C ends all of it.

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
    _check_worker(options)
    from perdure.serving.event_loop import run_serving

    return run_serving(_dev(targets, connection, ui_port, data, options))


@click.command(cls=GroupedCommand)
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@_worker_options
@storage_options
@health_options
@telemetry_options
@log_options
@connection_options
def worker(targets: tuple[str, ...], connection: Connection, **options: Any) -> int:
    """Serve apps against any Temporal, until SIGINT or SIGTERM.

    A TARGET is MODULE:APP, a .py file, a folder that holds an `app` or a `root_agent`, or a folder of such folders.
    Address, namespace, TLS and API key come from the options, else from Temporal's profiles and environment variables
    (TEMPORAL_ADDRESS, TEMPORAL_API_KEY, …).

    \b
    Examples:
      perdure worker travel.agent:app hotel.agent:app --profile production
      PERDURE_STREAM_KEY=… perdure worker travel.agent:app --stream-listen 0.0.0.0:7400
    """
    _check_worker(options)
    from perdure.serving.event_loop import run_serving

    return run_serving(_worker(targets, connection, options))


def _keep_beside(data: Path | None, options: dict[str, Any]) -> None:
    from perdure.serving.dev_server import DEFAULT_DATA_FILE

    default_storage(options, (data or DEFAULT_DATA_FILE).parent)
    options["shows_credentials"] = True


async def _dev(
    targets: Sequence[str],
    connection: Connection,
    ui_port: int | None,
    data: Path | None,
    options: dict[str, Any],
) -> int:
    from perdure.serving.reaching import reach

    if options["web"] and find_spec("google.adk") is None:
        raise click.UsageError("--web serves google.adk's page, which is not installed: pip install 'perdure[adk]'")
    stop = stop_on_signal()
    apps = _prepare(targets, options)
    async with AsyncExitStack() as stack:
        watched = await stack.enter_async_context(telemetry(options, "perdure-dev", known_after=_KNOWN_AFTER))
        config = watched.watch(connection.config().resolve())
        client, server = await reach(config, stack, ui_port=ui_port, data=data)
        served = _listen_for_api({**options, "temporal_ui": options["temporal_ui"] or _ui_of(server)}, stack)
        streams = await _tell(options, config, stack)
        _greet(config, server, data, apps, served, options["artifacts"], web=options["web"])
        async with (
            _while_it_lives(server, stop),
            watched.counting(client, apps),
            _api_beside(client, apps, served, stop, watched, streams, web=options["web"]),
        ):
            await _serve(client, apps, _worker_config(options), stop, streams=streams)
        say("perdure: ending", err=True)
    return ExitCode.FINISHED


async def _worker(targets: Sequence[str], connection: Connection, options: dict[str, Any]) -> int:
    from perdure.config import connect
    from perdure.serving.restarting import Restart

    restart = Restart()
    stop = stop_on_signal(restart.call_off)
    apps = _prepare(targets, options)
    served = _worker_config(options)
    async with (
        restart.watched(stop, served.graceful_shutdown_timeout.total_seconds()),
        telemetry(options, "perdure-worker", restart.ask) as watched,
    ):
        config = watched.watch(connection.config().resolve())
        client = await connect(config)
        started = asyncio.Event()
        async with (
            _health_beside(client, options["health"], started, stop),
            watched.counting(client, apps),
            told(options["stream_listen"], config.payload_codec) as streams,
        ):
            say(f"perdure: serving {', '.join(app.name for app in apps)} at {config.address}", err=True)
            warn_of_broken(apps)
            await _serve(client, apps, served, stop, started, streams)
    return ExitCode.FINISHED


async def _tell(options: dict[str, Any], config: ConnectionConfig, stack: AsyncExitStack) -> TokenHub:
    """Return what the worker and the API share; other commands on this machine hear of it, if a port is free.

    Raises:
        click.ClickException: The address that was asked for cannot be had.
    """
    from perdure.streams.hub import TokenHub

    asked: str | None = options["stream_listen"]
    address = asked or next(iter(dev_addresses(config)), None)
    try:
        streams = await stack.enter_async_context(told(address, config.payload_codec))
    except click.ClickException:
        if asked is not None:
            raise
        say(f"tokens       for the API only, since {address} is taken (--stream-listen names another)")
        return TokenHub()
    say(f"tokens       {address} (perdure run --stream)")
    return streams or TokenHub()


def _prepare(targets: Sequence[str], options: dict[str, Any]) -> list[AnyApp]:
    """Set logging up, load the apps and check them, before anything is started."""
    from perdure.compiler.served import load_apps
    from perdure.logs import configure_logging

    level: Level = options["log_level"]
    configure_logging(json=options["log_json"], level=level)
    return load_apps(targets)


def _check_worker(options: dict[str, Any]) -> None:
    check_listen(options["stream_listen"])
    try:
        _worker_config(options)
    except DefinitionError as error:
        raise click.UsageError(str(error)) from error


def _worker_config(options: dict[str, Any]) -> WorkerConfig:
    from perdure.config import WorkerConfig

    given: dict[str, Any] = {
        "max_concurrent_activities": options["max_activities"],
        "tool_threads": options["tool_threads"],
        "max_cached_workflows": options["max_sessions"],
        "max_concurrent_workflow_tasks": options["max_workflow_tasks"],
        "deployment": options["deployment"],
        "build_id": options["build_id"],
        "versioning": options["versioning"],
        "sticky_timeout": _seconds(options["sticky_timeout"]),
        "graceful_shutdown_timeout": _seconds(options["grace"]),
        **open_storage(options),
    }
    return WorkerConfig(**{field: value for field, value in given.items() if value is not None})


def _seconds(given: float | None) -> timedelta | None:
    return timedelta(seconds=given) if given is not None else None


def _ui_of(server: DevServer | None) -> str | None:
    """Return where the Temporal UI is, if this process has started it."""
    return server.ui_url if server is not None else None


def _greet(
    config: ConnectionConfig,
    server: DevServer | None,
    data: Path | None,
    apps: Sequence[AnyApp],
    served: _Served,
    artifacts: str,
    *,
    web: bool,
) -> None:
    """Print where everything is."""
    from perdure.serving.dev_server import DEFAULT_DATA_FILE

    if server is None:
        say(f"Temporal     {config.address} (was running already)")
    else:
        say(f"Temporal     {server.address}")
        say(f"Temporal UI  {server.ui_url}")
        say(f"data         {data or DEFAULT_DATA_FILE}")
    say(f"artifacts    {artifacts}")
    if served.told:
        say(f"HTTP API     {served.told}")
    if served.listener is not None:
        say(f"inbox        {served.told}/")
        say(f"chat         {served.told}/chat")
        if web:
            say(f"ADK's page   {served.told}/dev-ui/")
    for app in apps:
        said = why_not(app) or ("" if app.is_resumable else "not resumable: no ResumabilityConfig says so")
        say(f"app          {app.name}{f' ({said})' if said else ''}")
    address = server.address if server is not None else config.address
    tried = next((app for app in apps if why_not(app) is None), apps[0])
    for app in apps:
        warn_of_no_key(app)
    say(f'try          perdure run --address {address} {tried.name} "hello"')
    say("Ctrl-C ends it.")


@dataclass(frozen=True)
class _Served:
    """The API of `perdure dev`, if it is served."""

    told: str = ""
    """Its URL, or why there is none; empty if nobody wants it."""
    listener: socket.socket | None = None
    config: ApiConfig | None = None


def _listen_for_api(options: dict[str, Any], stack: AsyncExitStack) -> _Served:
    """Listen, if the API is wanted. A port that was not asked for may be taken, and the extra may be missing.

    Raises:
        click.ClickException: The port that was asked for cannot be had.
    """
    if not options["with_api"]:
        return _Served()
    host, port = options["host"], options["port"]
    try:
        config = api_config(options, host)
        listener = stack.enter_context(listening(host, DEFAULT_PORT if port is None else port))
    except click.UsageError:
        raise
    except click.ClickException as error:
        if port is not None:
            raise
        return _Served(f"none: {error.message}")
    warn_of(host, config)
    return _Served(url_of(listener), listener, config)


@asynccontextmanager
async def _while_it_lives(server: DevServer | None, stop: asyncio.Event) -> AsyncGenerator[None]:
    """Set `stop` if the server that was started here ends before the block does.

    Raises:
        ConnectionFailed: It has ended.
    """
    if server is None:
        yield
        return
    watch = asyncio.create_task(server.ended())
    watch.add_done_callback(lambda _: stop.set())
    try:
        yield
    finally:
        if watch.done():
            raise ConnectionFailed(watch.result())
        watch.cancel()


@asynccontextmanager
async def _api_beside(
    client: Client,
    apps: Sequence[AnyApp],
    served: _Served,
    stop: asyncio.Event,
    watched: Telemetry,
    streams: TokenHub,
    *,
    web: bool,
) -> AsyncGenerator[None]:
    """Serve the API while the block runs."""
    if served.listener is None or served.config is None:
        yield
        return
    serving = asyncio.create_task(
        serve_api(client, apps, served.config, served.listener, stop, watched, streams, web=web)
    )
    try:
        yield
    finally:
        stop.set()
        await serving


@asynccontextmanager
async def _health_beside(
    client: Client, address: tuple[str, int] | None, started: asyncio.Event, stop: asyncio.Event
) -> AsyncGenerator[None]:
    """Answer for a worker's health while the block runs.

    Raises:
        click.ClickException: The address cannot be had.
    """
    if address is None:
        yield
        return
    from perdure.serving.health import SELDOM, HealthServer, Pulse

    pulse = Pulse(client, writes=SELDOM)

    async def why_not() -> str | None:
        if stop.is_set():
            return "the worker ends"
        if not started.is_set():
            return "the worker starts"
        return await pulse.trouble()

    async with AsyncExitStack() as stack:
        with taking(f"--health: cannot listen on {address[0]}:{address[1]}", "name another port"):
            server = await stack.enter_async_context(HealthServer(*address, why_not))
        say(f"perdure: health at http://{address[0]}:{server.port}/readyz", err=True)
        yield


async def _serve(
    client: Client,
    apps: Sequence[AnyApp],
    config: WorkerConfig,
    stop: asyncio.Event,
    started: asyncio.Event | None = None,
    streams: TokenHub | None = None,
) -> None:
    from perdure.worker import run_workers

    await run_workers(client, apps, config, stop=stop, started=started, streams=streams)
