"""Traces of the HTTP API, by OpenTelemetry's instrumentation of FastAPI."""

from __future__ import annotations

from fastapi import FastAPI
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.metrics import NoOpMeterProvider

from perdure.telemetry.exporting import Tracing

__all__ = ["trace_requests"]

_UNTRACED = "^[a-z]+://[^/]+/(health|livez|readyz)$"
"""What load balancers ask every few seconds."""


def trace_requests(app: FastAPI, tracing: Tracing) -> None:
    """Give each request a span, in the trace that its `traceparent` header names; call it before the app serves."""
    FastAPIInstrumentor.instrument_app(
        app,
        tracer_provider=tracing.provider,
        # Requests are counted by Perdure's own metrics.
        meter_provider=NoOpMeterProvider(),
        excluded_urls=_UNTRACED,
        # One span for a stream, not one for each of its frames.
        exclude_spans=["receive", "send"],
    )
