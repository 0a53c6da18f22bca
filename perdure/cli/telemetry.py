"""Options and set-up of traces, metrics and health checks, for processes that serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from perdure.cli.options import Command, with_options
from perdure.cli.output import say

if TYPE_CHECKING:
    from fastapi import FastAPI
    from temporalio.client import Client
    from temporalio.runtime import Runtime

    from perdure.agents.adk_app import AnyApp
    from perdure.config import ConnectionConfig
    from perdure.telemetry.exporting import Tracing

_MISSING = "traces need more packages; install them with `pip install 'perdure[telemetry]'`"


def telemetry_options(command: Command) -> Command:
    """Give a command that serves the options of traces and metrics; `telemetry` reads them."""
    options: list[Callable[[Command], Command]] = [
        click.option(
            "--otel/--no-otel",
            envvar="PERDURE_OTEL",
            default=False,
            show_default=True,
            help="Send OpenTelemetry traces where the OTEL_… variables say (extra `telemetry`).",
        ),
        click.option(
            "--metrics",
            envvar="PERDURE_METRICS",
            metavar="IP:PORT",
            help="Serve metrics for Prometheus there, under /metrics.  [default: none]",
        ),
    ]
    return with_options(command, options)


def health_options(command: Command) -> Command:
    """Give a worker's command the options of its health endpoint and of its end."""
    options: list[Callable[[Command], Command]] = [
        click.option(
            "--health",
            envvar="PERDURE_HEALTH",
            metavar="HOST:PORT",
            callback=_host_and_port,
            help="Answer /livez and /readyz there.  [default: none]",
        ),
        grace_option,
    ]
    return with_options(command, options)


grace_option = click.option(
    "--grace",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long running model calls and tools may go on after SIGTERM.  [default: 10]",
)


def _host_and_port(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, int] | None:
    if value is None:
        return None
    host, colon, port = value.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{value!r} is not of the form HOST:PORT")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 -- asked for, as in `:8080`


@dataclass(frozen=True)
class Telemetry:
    """Traces and metrics of this process, as far as they were asked for."""

    runtime: Runtime | None = None
    tracing: Tracing | None = None
    counts: bool = False
    """There are metrics."""

    def watch(self, config: ConnectionConfig) -> ConnectionConfig:
        """Return a connection's settings with traces and metrics."""
        interceptors = (*config.interceptors, *((self.tracing.interceptor,) if self.tracing is not None else ()))
        return replace(config, runtime=self.runtime, interceptors=interceptors)

    def watch_requests(self, app: FastAPI) -> None:
        """Trace the requests of an HTTP application that does not serve yet."""
        if self.tracing is not None:
            from perdure.telemetry.http import trace_requests

            trace_requests(app, self.tracing)

    @asynccontextmanager
    async def counting(self, client: Client, apps: Sequence[AnyApp]) -> AsyncGenerator[None]:
        """Count the apps' sessions while the block runs, if there are metrics."""
        if self.runtime is None or not self.counts or not apps:
            yield
            return
        from perdure.compiler.registry import register
        from perdure.telemetry.metrics import SessionCount

        count = SessionCount(client, [register(app).plan for app in apps], self.runtime.metric_meter)
        task = asyncio.create_task(count.run())
        try:
            yield
        finally:
            task.cancel()


@asynccontextmanager
async def telemetry(
    options: dict[str, Any],
    service: str,
    on_lost_step: Callable[[], None] | None = None,
    known_after: timedelta | None = None,
) -> AsyncGenerator[Telemetry]:
    """Set up what the options ask for, and send the last spans when the block ends.

    Args:
        options: Of the command.
        service: Its name in traces.
        on_lost_step: Called, in any thread, when Temporal's core has lost a session's step. Default: it only logs it.
        known_after: How soon the server can name the process's workers, without metrics. Default: after a minute.

    Raises:
        click.ClickException: A package is missing.
        DefinitionError: The metrics' address cannot be had, or the environment asks for what there is not.
    """
    runtime = _runtime(options["metrics"], on_lost_step, known_after)
    if options["metrics"] is not None:
        say(f"perdure: metrics at http://{options['metrics']}/metrics", err=True)
    tracing = _tracing(service) if options["otel"] else None
    try:
        yield Telemetry(runtime, tracing, counts=options["metrics"] is not None)
    finally:
        if tracing is not None:
            await asyncio.to_thread(tracing.close)


def _runtime(metrics: str | None, on_lost_step: Callable[[], None] | None, known_after: timedelta | None) -> Runtime:
    from temporalio.runtime import Runtime, TelemetryConfig

    from perdure.telemetry.metrics import prometheus_runtime
    from perdure.temporal.core_log import core_logging

    logging = core_logging(on_lost_step) if on_lost_step is not None else core_logging()
    if metrics is None:
        interval = known_after or timedelta(seconds=60)
        return Runtime(telemetry=TelemetryConfig(logging=logging), worker_heartbeat_interval=interval)
    return prometheus_runtime(metrics, logging)


def _tracing(service: str) -> Tracing:
    try:
        from perdure.telemetry.exporting import Tracing
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("opentelemetry"):
            raise click.ClickException(_MISSING) from error
        raise
    tracing = Tracing(service)
    tracing.take_all()
    return tracing
