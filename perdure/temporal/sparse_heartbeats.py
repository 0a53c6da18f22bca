"""Has activities be heard of seldom: on a server that bills each heartbeat, a long model call is mostly these."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio.worker import (
    Interceptor,
    StartActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)
from temporalio.workflow import ActivityHandle

__all__ = ["SparseHeartbeats"]

_SPARSE = timedelta(seconds=28)


class SparseHeartbeats(Interceptor):
    """An interceptor by which a worker's workflows give activities a longer heartbeat timeout than the usual one."""

    def __init__(self, usual: timedelta) -> None:
        """Leave alone what has another timeout than the usual one: its own."""
        self._usual = usual

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        """Return the interceptor of each workflow."""
        usual = self._usual

        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(_Outbound(outbound, usual))

        return Inbound


class _Outbound(WorkflowOutboundInterceptor):
    def __init__(self, next: WorkflowOutboundInterceptor, usual: timedelta) -> None:
        super().__init__(next)
        self._usual = usual

    def start_activity(self, input: StartActivityInput) -> ActivityHandle[Any]:
        if input.heartbeat_timeout == self._usual:
            input.heartbeat_timeout = _SPARSE
        return super().start_activity(input)
