"""Counts the requests that the HTTP API answers, by their route, by Temporal's metric meter."""

from __future__ import annotations

import time
from datetime import timedelta

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from temporalio.client import Client
from temporalio.common import MetricMeter
from temporalio.runtime import Runtime

from perdure.telemetry.step_meter import HTTP_DURATION

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def meter_of(client: Client) -> MetricMeter:
    """Return the meter of a client's runtime, which does nothing unless the runtime has metrics."""
    return (client.service_client.config.runtime or Runtime.default()).metric_meter


class RequestMeter:
    """Counts requests by method, route and status, and measures how long it takes until a response begins."""

    def __init__(self, app: ASGIApp, *, meter: MetricMeter) -> None:
        """Count by a meter."""
        self._app = app
        self._requests = meter.create_counter("perdure_http_requests", "HTTP requests that were answered.")
        self._duration = meter.create_histogram_timedelta(
            HTTP_DURATION, "Time until a response to an HTTP request begins.", "duration"
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(scope, message["status"], time.monotonic() - started)
            await send(message)

        await self._app(scope, receive, sending)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "other"
        # A path that no route takes may be anything.
        route = str(getattr(scope.get("route"), "path", "none"))
        self._requests.add(1, {"method": method, "route": route, "status": str(status)})
        self._duration.record(timedelta(seconds=seconds), {"method": method, "route": route})
