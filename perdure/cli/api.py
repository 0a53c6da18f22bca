"""`api`: the HTTP API as a process of its own; and how `dev` serves it beside its worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from perdure.cli.addresses import taking
from perdure.cli.artifacts import open_storage, storage_options
from perdure.cli.ending import stop_on_signal
from perdure.cli.exits import ExitCode
from perdure.cli.options import Command, Connection, connection_options, log_options, with_options
from perdure.cli.output import say, warn_of_broken
from perdure.cli.streaming import from_option, heard
from perdure.cli.telemetry import Telemetry, telemetry, telemetry_options
from perdure.errors import DefinitionError

if TYPE_CHECKING:
    import socket

    from temporalio.client import Client

    from perdure.agents.adk_app import AnyApp
    from perdure.api.auth.config import AuthConfig
    from perdure.api.base.backend import Backend
    from perdure.api.base.config import ApiConfig
    from perdure.logs import Level
    from perdure.serving.http_server import Lingering
    from perdure.streams.hub import TokenHub

DEFAULT_PORT = 8000

_NEEDS = ("fastapi", "starlette", "uvicorn", "jinja2", "jwt", "python_multipart")
_MISSING = "the HTTP API needs FastAPI and uvicorn; install them with `pip install 'perdure[api]'`"


def api_options(command: Command) -> Command:
    """Give a command the options that say what the HTTP API takes; `api_config` reads them."""
    options: list[Callable[[Command], Command]] = [
        click.option(
            "--auth",
            envvar="PERDURE_AUTH",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Let in only who FILE (TOML) names: API keys, and tokens of an issuer. See docs/security.md.",
        ),
        click.option(
            "--allow-origins",
            multiple=True,
            metavar="ORIGIN",
            help="Origin of web pages that may call the API: https://shop.example, regex:…, or *; may be repeated.",
        ),
        click.option(
            "--auto-create-session", is_flag=True, help="A run in a session that does not exist creates the session."
        ),
        click.option(
            "--default-app",
            envvar="ADK_DEFAULT_APP_NAME",
            metavar="APP",
            help="App of requests that name none.  [default: the app, if it is the only one]",
        ),
        click.option(
            "--temporal-ui",
            metavar="URL",
            help="Where the Temporal UI is; the inbox links to it.  [default: that of `perdure dev`, or no links]",
        ),
        click.option(
            "--max-body",
            type=click.IntRange(min=1),
            default=10_000_000,
            show_default=True,
            metavar="BYTES",
            help="What a request's body may have.",
        ),
        click.option(
            "--patience",
            type=click.FloatRange(min=0, min_open=True),
            default=30.0,
            show_default=True,
            metavar="SECONDS",
            help="How long a request waits for a worker before it is answered with 503.",
        ),
    ]
    return with_options(command, options)


@click.command()
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address that the API listens on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="Its port; 0 is a free one."
)
@click.option(
    "--drain",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="After SIGTERM, how long requests are still taken while /readyz says no.",
)
@from_option
@api_options
@storage_options
@telemetry_options
@log_options
@connection_options
def api(targets: tuple[str, ...], host: str, port: int, connection: Connection, **options: Any) -> int:
    """Serve inbox, chat and the HTTP API, which ADK's clients speak, until SIGINT or SIGTERM. Needs the extra `api`.

    A TARGET is an app to list and describe: MODULE:APP, a .py file, a folder that holds an `app` or a `root_agent`, or
    a folder of such folders. Sessions may be of any app that a worker serves; this process runs no agents. Whoever
    reaches the API may do everything, unless --auth names a file of who is let in.

    \b
    Examples:
      perdure api travel.agent:app --port 8000
      perdure api travel.agent:app --host 0.0.0.0 --auth auth.toml
      perdure api travel.agent:app --address temporal.internal:7233 --allow-origins https://shop.example
      perdure api travel.agent:app --stream-from workers:7400
      curl http://localhost:8000/list-apps
    """
    from perdure.serving.event_loop import run_serving

    return run_serving(_api(targets, host, port, connection, options))


async def _api(targets: Sequence[str], host: str, port: int, connection: Connection, options: dict[str, Any]) -> int:
    from perdure.compiler.loading_all import load_apps
    from perdure.config import connect
    from perdure.logs import configure_logging
    from perdure.serving.event_loop import spare_collector
    from perdure.serving.server_watch import server_watched

    stop = stop_on_signal(waits=lambda: "; waits for the requests that are under way")
    level: Level = options["log_level"]
    configure_logging(json=options["log_json"], level=level)
    apps = load_apps(targets)
    config = api_config(options, host)
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(listening(host, port))
        watched = await stack.enter_async_context(telemetry(options, "perdure-api"))
        resolved = watched.watch(connection.config().resolve())
        client = await connect(resolved)
        say(f"perdure: HTTP API at {url_of(listener)}, Temporal at {resolved.address}", err=True)
        say(f"perdure: inbox at {url_of(listener)}/, chat at {url_of(listener)}/chat", err=True)
        warn_of(host, open=config.auth is None)
        warn_of_broken(apps)
        await stack.enter_async_context(watched.counting(client, apps))
        streams = await stack.enter_async_context(heard(options["stream_from"], resolved.payload_codec))
        await stack.enter_async_context(server_watched(client))
        spare_collector()
        await serve(client, apps, config, listener, stop, watched, streams, drain=options["drain"])
    return ExitCode.FINISHED


def api_config(options: dict[str, Any], host: str) -> ApiConfig:
    """Return the API's settings.

    Raises:
        click.UsageError: An origin, the Temporal UI's address, or the file of --auth is malformed.
        click.ClickException: The extra is not installed.
    """
    try:
        from perdure.api.base.config import ApiConfig
        from perdure.api.base.guard import split_origins
        from perdure.serving.sockets import is_loopback
    except ModuleNotFoundError as error:
        raise _explained(error) from error
    try:
        split_origins(options["allow_origins"])
    except ValueError as error:
        raise click.UsageError(f"--allow-origins: {error}") from error
    auth = _auth(options["auth"])
    return ApiConfig(
        auth=auth,
        auth_file=options["auth"].absolute() if auth is not None else None,
        # Behind a published port of a container, too, a page could get in by a name that it rebinds.
        loopback=is_loopback(host) or auth is None,
        allow_origins=options["allow_origins"],
        max_body_bytes=options["max_body"],
        patience=timedelta(seconds=options["patience"]),
        auto_create_session=options["auto_create_session"],
        temporal_ui=_web_address(options["temporal_ui"]),
        default_app=options["default_app"],
        **open_storage(options),
        shows_credentials=options.get("shows_credentials", False) and _has_adk_1(),
    )


def check_installed() -> None:
    """Check that the API can be served.

    Raises:
        click.ClickException: The extra is not installed.
    """
    if any(find_spec(name) is None for name in _NEEDS):
        raise click.ClickException(_MISSING)


def _has_adk_1() -> bool:
    """Return whether the installed google-adk is one whose API shows credentials."""
    try:
        return version("google-adk").startswith("1.")
    except PackageNotFoundError:
        return False


def _auth(file: Path | None) -> AuthConfig | None:
    if file is None:
        return None
    try:
        from perdure.api.auth.authenticator import Authenticator
        from perdure.api.auth.config import read_auth
    except ModuleNotFoundError as error:
        raise _explained(error) from error
    try:
        auth = read_auth(file)
        # Whatever is wrong is said before anything is started.
        Authenticator(auth)
    except DefinitionError as error:
        raise click.UsageError(f"--auth: {error}") from error
    return auth


def _web_address(url: str | None) -> str | None:
    parts = urlsplit(url or "")
    if url is not None and (parts.scheme not in ("http", "https") or not parts.netloc):
        raise click.UsageError(f"--temporal-ui: {url!r} is no address of a web page, such as http://localhost:8233")
    return url


def listening(host: str, port: int, what: str = "the HTTP API") -> socket.socket:
    """Return a socket that listens.

    Raises:
        click.ClickException: The address cannot be had.
    """
    from perdure.serving.sockets import listen

    with taking(f"{what} cannot listen on {host}:{port}", "name another port by --port"):
        return listen(host, port)


def url_of(listener: socket.socket) -> str:
    """Return where a browser finds the API."""
    from perdure.serving.sockets import url_of

    return url_of(listener)


def warn_of(host: str, *, open: bool) -> None:
    """Warn if others than this machine can reach the API, the more if it is open to all of them."""
    from perdure.serving.sockets import is_loopback

    if is_loopback(host):
        return
    if open:
        say(
            f"perdure: WARNING: the API has no authentication: whoever reaches {host} can read and run every session;"
            " name a file by --auth. It is reached by IP address or as localhost; by another name only with"
            " --allow-origins http://NAME",
            err=True,
        )
    else:
        say(
            "perdure: the API speaks plain HTTP, and keys and tokens travel in it: put something before it that"
            " speaks TLS",
            err=True,
        )


async def serve(
    client: Client,
    apps: Sequence[AnyApp],
    config: ApiConfig,
    listener: socket.socket,
    stop: asyncio.Event,
    watched: Telemetry,
    streams: TokenHub | None = None,
    *,
    drain: float = 0.0,
    web: bool = False,
    lingering: Lingering | None = None,
) -> None:
    """Serve the API until `stop` is set; then it is not ready any more, and ends `drain` seconds later.

    With `web`, google.adk's page, too. What is under way then may go on for as long as `lingering` says.
    """
    from perdure.api.app import create_app
    from perdure.serving.http_server import serve

    app = create_app(client, apps, config, streams=streams)
    if web:
        from perdure.programs.adk_page import add_adk_page

        add_adk_page(app, apps)
    watched.watch_requests(app)
    backend: Backend = app.state.backend
    ending = asyncio.Event()

    async def end() -> None:
        await stop.wait()
        backend.draining.set()
        await asyncio.sleep(drain)
        ending.set()

    task = asyncio.create_task(end())
    try:
        await serve(app, listener, ending, closing=backend.closing, lingering=lingering)
    finally:
        task.cancel()


def _explained(error: ModuleNotFoundError) -> Exception:
    return click.ClickException(_MISSING) if (error.name or "").partition(".")[0] in _NEEDS else error
