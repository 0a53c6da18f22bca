"""Has an activity put on the task queue, where any worker may take it, rather than handed to this one.

A server hands an activity, eagerly, to the worker whose workflow task starts it, if that worker asks; and it does
(https://github.com/temporalio/features/issues/55). One that lacks the activity's code would get it again and again,
while another has it. Temporal's SDK lets a worker as a whole not ask, or an interceptor for each activity.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from temporalio.worker import (
    Interceptor,
    StartActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)
from temporalio.workflow import ActivityHandle

__all__ = ["Detours", "any_worker"]

_any_worker = ContextVar("perdure_any_worker", default=False)


@contextmanager
def any_worker(*, wanted: bool) -> Generator[None]:
    """Put the activities that are started in the block on the task queue, if `wanted`; await them behind it."""
    token = _any_worker.set(wanted)
    try:
        yield
    finally:
        _any_worker.reset(token)


class Detours(Interceptor):
    """An interceptor by which a worker heeds `any_worker`."""

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        """Return the interceptor of each workflow."""
        return _Inbound


class _Inbound(WorkflowInboundInterceptor):
    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_Outbound(outbound))


class _Outbound(WorkflowOutboundInterceptor):
    def start_activity(self, input: StartActivityInput) -> ActivityHandle[Any]:
        if _any_worker.get():
            input.disable_eager_execution = True
        return super().start_activity(input)
