"""Traces sessions through Temporal's own interceptors: from a request to the model calls and tools that follow.

Temporal's interceptor lets a whole workflow belong to the trace that started it. A session lives for long and takes
many messages, so here an invocation belongs to the trace of the message, answer or resume that moved it last: the
context comes with the update, is kept by invocation, and goes out with each activity. It stands in headers in the
history, so it is the same on any worker and after a replay.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cached_property
from typing import Any, NoReturn

from opentelemetry import context as otel
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from temporalio import client, workflow
from temporalio.api.common.v1 import Payload
from temporalio.contrib.opentelemetry import TracingInterceptor, TracingWorkflowInboundInterceptor
from temporalio.converter import PayloadConverter
from temporalio.worker import (
    ActivityInboundInterceptor,
    ContinueAsNewInput,
    HandleUpdateInput,
    StartActivityInput,
    StartLocalActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from perdure.logs import invocation_at_work
from perdure.messages.session import InvocationResult
from perdure.telemetry.spans import StepSpans

__all__ = ["SessionTracing"]

CARRIED = "perdure-traces"
"""Header of a run that continues another: trace contexts by invocation."""

_KEPT = 20
"""Invocations whose trace is remembered; of an older one the activities have no trace."""

_Carrier = dict[str, Any]

_PROPAGATOR = TraceContextTextMapPropagator()
"""Without baggage, which may hold anything: headers stand in histories, and are not encrypted."""


class SessionTracing(TracingInterceptor):
    """Traces sessions, for clients and workers: give it to `ConnectionConfig(interceptors=…)`.

    Queries make no spans: a client that follows a run asks many, and a worker may answer by a replay.
    """

    def __init__(self, tracer: Tracer) -> None:
        """Trace by a tracer."""
        super().__init__(tracer)
        self.text_map_propagator = _PROPAGATOR

    def intercept_client(self, next: client.OutboundInterceptor) -> client.OutboundInterceptor:
        """Trace what a client sends, but for queries."""
        return _NoQueries(super().intercept_client(next), next)

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Trace an activity, and inside of it what OpenTelemetry's conventions call the step."""
        return super().intercept_activity(StepSpans(next, self.tracer))

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[TracingWorkflowInboundInterceptor]:
        """Return the interceptor that traces a session's workflow."""
        super().workflow_interceptor_class(input)
        return _TracedSession


@contextmanager
def _attached(context: Context) -> Generator[None]:
    """Make a context current; what an evicted workflow leaves open may end elsewhere, where nothing is current."""
    token = otel.attach(context)
    try:
        yield
    finally:
        if otel.get_current() is context:
            # As OpenTelemetry's own `detach`, which would log that the token is another context's.
            with suppress(ValueError):
                token.var.reset(token)


class _NoQueries(client.OutboundInterceptor):
    def __init__(self, traced: client.OutboundInterceptor, bare: client.OutboundInterceptor) -> None:
        super().__init__(traced)
        self._bare = bare

    async def query_workflow(self, input: client.QueryWorkflowInput) -> Any:
        return await self._bare.query_workflow(input)


class _TracedSession(TracingWorkflowInboundInterceptor):
    """Puts an update's handler into the trace of its sender, not of the workflow's start."""

    def __init__(self, next: WorkflowInboundInterceptor) -> None:
        super().__init__(_Traces(next))
        self.text_map_propagator = _PROPAGATOR

    def handle_update_validator(self, input: HandleUpdateInput) -> None:
        # A refusal is told to the client, whose span shows it.
        self.next.handle_update_validator(input)

    async def handle_update_handler(self, input: HandleUpdateInput) -> Any:
        header = input.headers.get(self.header_key)
        if header is None:
            return await self.next.handle_update_handler(input)
        context = self.text_map_propagator.extract(PayloadConverter.default.from_payloads([header])[0], Context())
        with _attached(self._set_on_context(context)):
            self._completed_span(f"HandleUpdate:{input.update}", kind=SpanKind.SERVER)
            return await self.next.handle_update_handler(input)


class _Traces(WorkflowInboundInterceptor):
    """Remembers of each invocation the trace that moved it last."""

    @cached_property
    def _carriers(self) -> dict[str, _Carrier]:
        # Not in the constructor: the workflow is not there yet.
        carried = workflow.info().headers.get(CARRIED)
        return PayloadConverter.default.from_payloads([carried])[0] if carried is not None else {}

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_InItsTrace(outbound, self))

    async def handle_update_handler(self, input: HandleUpdateInput) -> Any:
        result = await super().handle_update_handler(input)
        if isinstance(result, InvocationResult):
            carrier: _Carrier = {}
            _PROPAGATOR.inject(carrier)
            if carrier:
                self._carriers.pop(result.invocation.id, None)
                self._carriers[result.invocation.id] = carrier
                while len(self._carriers) > _KEPT:
                    del self._carriers[next(iter(self._carriers))]
        return result

    def of(self, invocation_id: str | None) -> Context | None:
        """Return the trace context of an invocation, if there is one."""
        carrier = self._carriers.get(invocation_id) if invocation_id else None
        return _PROPAGATOR.extract(carrier, Context()) if carrier is not None else None

    def header(self) -> Payload | None:
        """Return what the next run is to know."""
        return PayloadConverter.default.to_payloads([self._carriers])[0] if self._carriers else None


class _InItsTrace(WorkflowOutboundInterceptor):
    """Schedules activities in the trace of their invocation."""

    def __init__(self, next: WorkflowOutboundInterceptor, traces: _Traces) -> None:
        super().__init__(next)
        self._traces = traces

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
        with self._trace_of(input.args):
            return super().start_activity(input)

    def start_local_activity(self, input: StartLocalActivityInput) -> workflow.ActivityHandle[Any]:
        with self._trace_of(input.args):
            return super().start_local_activity(input)

    def continue_as_new(self, input: ContinueAsNewInput) -> NoReturn:
        header = self._traces.header()
        if header is not None:
            input.headers = {**input.headers, CARRIED: header}
        super().continue_as_new(input)

    def _trace_of(self, args: Sequence[Any]) -> AbstractContextManager[None]:
        named = getattr(args[0], "invocation_id", None) if args else None
        context = self._traces.of(named or invocation_at_work())
        return _attached(context) if context is not None else nullcontext()
