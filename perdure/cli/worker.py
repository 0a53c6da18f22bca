"""`worker`: serves apps until it is told to end; and the options that `dev` has, too."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perdure.cli.addresses import taking
from perdure.cli.artifacts import open_storage, storage_options
from perdure.cli.ending import stop_on_signal
from perdure.cli.exits import ExitCode
from perdure.cli.help.grouped import GroupedCommand
from perdure.cli.options import Command, Connection, connection_options, log_options, with_options
from perdure.cli.output import say, warn_of_broken
from perdure.cli.streaming import check_listen, listen_option, told
from perdure.cli.telemetry import health_options, telemetry, telemetry_options
from perdure.errors import DefinitionError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from temporalio.client import Client

    from perdure.agents.adk_app import AnyApp
    from perdure.config import WorkerConfig
    from perdure.logs import Level
    from perdure.notices.settings import NoticeSettings


_NAMED = 5
"""Steps that are named of those that an end waits for."""


def worker_options(command: Command) -> Command:
    """Give a command the options of a worker; `worker_config` reads them."""
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
        click.option(
            "--heartbeats",
            envvar="PERDURE_HEARTBEATS",
            type=click.Choice(["frequent", "sparse"]),
            help="When a lost worker is noticed: after 3.5 s, or, with fewer of them, 28 s.  [default: frequent]",
        ),
        click.option(
            "--steps-per-activity",
            envvar="PERDURE_STEPS_PER_ACTIVITY",
            type=click.IntRange(min=1, max=100),
            help="Steps of an agent that one activity may take: quicker, but less in Temporal's UI, and a terminate "
            "or reset meanwhile loses them.  [default: 1]",
        ),
        click.option(
            "--notify",
            envvar="PERDURE_NOTIFY",
            metavar="FILE",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="TOML file that says who is told of what waits and fails, by webhook or e-mail.  [default: nobody]",
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


@click.command(cls=GroupedCommand)
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@worker_options
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
    check_worker(options)
    from perdure.serving.event_loop import run_serving

    return run_serving(_worker(targets, connection, options))


async def _worker(targets: Sequence[str], connection: Connection, options: dict[str, Any]) -> int:
    from perdure.config import connect
    from perdure.serving.event_loop import spare_collector
    from perdure.serving.server_watch import server_watched
    from perdure.serving.worker_restart import Restart
    from perdure.worker import run_workers

    restart = Restart()
    served = worker_config(options)
    stop = stop_on_signal(restart.call_off, lambda: what_ends(served.graceful_shutdown_timeout))
    apps = _prepare(targets, options)
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
            spare_collector()
            async with server_watched(client, stop.set):
                await run_workers(client, apps, served, stop=stop, started=started, streams=streams)
    return ExitCode.FINISHED


def _prepare(targets: Sequence[str], options: dict[str, Any]) -> list[AnyApp]:
    """Set logging up, load the apps and check them, before anything is started."""
    from perdure.compiler.loading_all import load_apps
    from perdure.logs import configure_logging

    level: Level = options["log_level"]
    configure_logging(json=options["log_json"], level=level)
    return load_apps(targets)


def what_ends(grace: timedelta) -> str:
    """Return what a worker that ends waits for, in words behind "ending"."""
    from perdure.telemetry.step_meter import steps_at_work

    steps = steps_at_work()
    named = ", ".join(steps[:_NAMED]) + (f" and {len(steps) - _NAMED} more" if len(steps) > _NAMED else "")
    return f"; waits up to {grace.total_seconds():g} s for {named}" if steps else ""


def check_worker(options: dict[str, Any]) -> None:
    """Check the options of a worker, before anything is loaded.

    Raises:
        click.UsageError: Some do not go together.
    """
    check_listen(options["stream_listen"])
    try:
        worker_config(options)
    except DefinitionError as error:
        raise click.UsageError(str(error)) from error


def worker_config(options: dict[str, Any]) -> WorkerConfig:
    """Return a worker's settings.

    Raises:
        DefinitionError: Some do not go together, or the file of `--notify` is wrong.
        click.BadParameter: Where artifacts or credentials are kept cannot be loaded.
    """
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
        "heartbeats": options["heartbeats"],
        "steps_per_activity": options["steps_per_activity"],
        "graceful_shutdown_timeout": _seconds(options["grace"]),
        "notices": _notices(options["notify"]),
        **open_storage(options),
    }
    return WorkerConfig(**{field: value for field, value in given.items() if value is not None})


def _notices(path: Path | None) -> NoticeSettings | None:
    if path is None:
        return None
    from perdure.notices.settings import read_settings

    return read_settings(path)


def _seconds(given: float | None) -> timedelta | None:
    return timedelta(seconds=given) if given is not None else None


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
