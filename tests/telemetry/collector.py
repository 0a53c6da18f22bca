"""A local collector: takes spans by OTLP over HTTP, as any backend of OpenTelemetry does."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue


@dataclass(frozen=True)
class Span:
    """A span as it arrived."""

    name: str
    trace: str
    id: str
    parent: str
    service: str
    attributes: dict[str, Any] = field(hash=False)
    events: tuple[dict[str, Any], ...] = field(default=(), hash=False)


class Collector:
    """What has arrived."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.spans: list[Span] = []
        self.raw = bytearray()

    def of(self, trace: str) -> list[Span]:
        return [span for span in self.spans if span.trace == trace]

    def take(self, body: bytes) -> None:
        self.raw += body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = {item.key: _value(item.value) for item in resource.resource.attributes}["service.name"]
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        Span(
                            name=span.name,
                            trace=span.trace_id.hex(),
                            id=span.span_id.hex(),
                            parent=span.parent_span_id.hex(),
                            service=service,
                            attributes={item.key: _value(item.value) for item in span.attributes},
                            events=tuple(
                                {item.key: _value(item.value) for item in event.attributes} for event in span.events
                            ),
                        )
                    )


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return getattr(value, kind) if kind is not None else None


@contextmanager
def collecting() -> Generator[Collector]:
    """Collect on a free port of this machine while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == "/v1/traces"
            collector.take(_plain(body, self.headers.get("content-encoding")))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _plain(body: bytes, encoding: str | None) -> bytes:
    assert encoding in (None, "identity"), encoding
    return body
