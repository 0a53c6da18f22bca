"""Exports spans as OpenTelemetry's standard environment variables say, without what may quote a prompt."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter, SpanExportResult
from opentelemetry.trace import Status, Tracer
from opentelemetry.util.types import Attributes, AttributeValue

from perdure.errors import DefinitionError
from perdure.telemetry.tracing import SessionTracing

__all__ = ["Discreet", "Tracing", "exporter_from"]

_FLUSH_MILLISECONDS = 5000
"""How long the last spans of a process may take to leave it."""

_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_WITH_QUERY = frozenset({"http.url", "http.target", "url.full"})


class Tracing:
    """Traces of this process. Make one, give its interceptor to the connection, and close it at the end."""

    def __init__(self, service: str, environment: Mapping[str, str] | None = None) -> None:
        """Set tracing up by the `OTEL_…` environment variables.

        Args:
            service: Name of the service where `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` give none.
            environment: What chooses the exporter; the SDK reads the process's own. Default: that.

        Raises:
            DefinitionError: The variables ask for an exporter or a protocol that there is not.
        """
        environment = os.environ if environment is None else environment
        exporter = exporter_from(environment)
        named = "OTEL_SERVICE_NAME" in environment or "service.name=" in environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
        self.provider = TracerProvider(
            resource=Resource.create({} if named else {"service.name": service}), shutdown_on_exit=False
        )
        if exporter is not None:
            self.provider.add_span_processor(BatchSpanProcessor(Discreet(exporter)))

    @property
    def tracer(self) -> Tracer:
        """The tracer of Perdure's spans."""
        return self.provider.get_tracer("perdure")

    @property
    def interceptor(self) -> SessionTracing:
        """The interceptor that traces a connection's calls, and those of a worker that uses it."""
        return SessionTracing(self.tracer)

    def take_all(self) -> None:
        """Take the spans that tools and libraries of this process make, too. Only the first in a process does."""
        trace.set_tracer_provider(self.provider)

    def close(self) -> None:
        """Send what is left, for some seconds at most, and end. Blocks."""
        self.provider.force_flush(_FLUSH_MILLISECONDS)
        self.provider.shutdown()


def exporter_from(environment: Mapping[str, str]) -> SpanExporter | None:
    """Return the exporter that `OTEL_TRACES_EXPORTER` names: `otlp` (by HTTP, the default), `console`, or `none`.

    Raises:
        DefinitionError: It is another one, or OTLP by another protocol than HTTP.
    """
    chosen = environment.get("OTEL_TRACES_EXPORTER") or "otlp"
    match chosen:
        case "otlp":
            protocol = next((environment[name] for name in _PROTOCOLS if environment.get(name)), "http/protobuf")
            if protocol != "http/protobuf":
                raise DefinitionError(
                    f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}; spans leave by 'http/protobuf' (port 4318) only"
                )
            return OTLPSpanExporter()
        case "console":
            return ConsoleSpanExporter()
        case "none":
            return None
        case _:
            raise DefinitionError(f"OTEL_TRACES_EXPORTER is {chosen!r}; choose otlp, console or none")


class Discreet(SpanExporter):
    """Leaves out what may quote a prompt, argument or secret: errors' texts and stack traces, and URLs' queries."""

    def __init__(self, exporter: SpanExporter) -> None:
        """Export by another exporter."""
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export spans without what may be private."""
        return self._exporter.export([_discreet(span) for span in spans])

    def shutdown(self) -> None:
        """End the other exporter."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Flush the other exporter."""
        return self._exporter.force_flush(timeout_millis)


def _discreet(span: ReadableSpan) -> ReadableSpan:
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=_without_query(span.attributes),
        events=[_without_text(event) for event in span.events],
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _without_text(event: Event) -> Event:
    if event.name != "exception":
        return event
    kind = (event.attributes or {}).get("exception.type", "")
    return Event("exception", {"exception.type": kind}, event.timestamp)


def _without_query(attributes: Attributes) -> Attributes:
    kept: dict[str, AttributeValue] = {}
    for key, value in (attributes or {}).items():
        if key == "url.query":
            continue
        kept[key] = value.partition("?")[0] if key in _WITH_QUERY and isinstance(value, str) else value
    return kept
