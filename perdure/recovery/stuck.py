"""Tells why no worker can go on with a session, and reads its journal out of its history instead."""

from __future__ import annotations

from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, TimeoutType, WorkflowTaskFailedCause
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError

from perdure.errors import EncryptionError, SessionStuck
from perdure.journal.entries import Entry
from perdure.recovery.decoding import decode
from perdure.recovery.salvage import length_outside, salvage, shared_writes
from perdure.recovery.slices import read_archive
from perdure.temporal.payloads import FAULT
from perdure.temporal.refused_queries import BETWEEN_STEPS

DEADLOCK = "[TMPRL1101]"
"""Of what the SDK says where a workflow task has not yielded for two seconds: too much work, or no processor."""
_NONDETERMINISM = "TMPRL1100"
"""Temporal's mark of such an error in a text."""

_IN_VAIN = 3
"""After so many the server, too, takes the workflow for stuck, and refuses what it would have to ask it."""

_BY_SERVER = (
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
)
"""How the server fails a task by itself: much came meanwhile, or anything before a run's end. The next takes it in."""

_LOOKED_AT = 20
"""History events at the end among which a failed workflow task would stand."""


async def why_stuck(client: Client, workflow_id: str, error: Exception | None = None) -> SessionStuck | None:
    """Return why a session's workflow does not go on, if its last workflow task fails, or times out, again and again.

    Args:
        client: Any client.
        workflow_id: The session's workflow.
        error: What a query said, which can tell it, too.
    """
    if error is not None and _NONDETERMINISM in str(error):
        return SessionStuck(workflow_id, cause=str(error), nondeterministic=True)
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=client.namespace,
        execution=WorkflowExecution(workflow_id=workflow_id),
        maximum_page_size=_LOOKED_AT,
    )
    try:
        answer = await client.workflow_service.get_workflow_execution_history_reverse(request)
    except RPCError:
        return None
    for event in answer.history.events:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            return None
        if event.workflow_task_timed_out_event_attributes.timeout_type == TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE:
            return await _why_late(client, workflow_id)
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
            failed = event.workflow_task_failed_event_attributes
            if client.data_converter.payload_codec is not None:
                await decode(failed, client.data_converter)
            different = failed.cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR
            # The server gives its own anew, what the query guard refuses, and what had no processor in time.
            passing = failed.failure.message == BETWEEN_STEPS or DEADLOCK in failed.failure.message
            if failed.cause in _BY_SERVER or passing:
                return await _why_late(client, workflow_id)
            cause = failed.failure.message or WorkflowTaskFailedCause.Name(failed.cause)
            return SessionStuck(workflow_id, cause=cause, nondeterministic=different)
    return None


async def _why_late(client: Client, workflow_id: str) -> SessionStuck | None:
    """Return an error if a workflow task was tried again and again in vain; once, a worker may just have died.

    History tells the first attempt only, which timed out, or which the server ended: the others may have failed.
    """
    try:
        described = await client.get_workflow_handle(workflow_id).describe()
    except RPCError:
        return None
    times = described.raw_description.pending_workflow_task.attempt - 1
    if times < _IN_VAIN:
        return None
    cause = (
        f"{times} attempts of its workflow task came to nothing: workers die of it, need too long for it, or tell in"
        " their logs why it fails"
    )
    return SessionStuck(workflow_id, cause=cause, nondeterministic=False)


async def check_readable(client: Client, workflow_id: str, run_id: str | None = None) -> None:
    """Check that the client can decode the argument of a session's workflow.

    A request that the session's workers cannot decrypt fails there, with an error that the client cannot decrypt.

    Raises:
        EncryptionError: The client lacks the key; the message names it.
    """
    if client.data_converter.payload_codec is None:
        return
    try:
        handle: WorkflowHandle[Any, Any] = client.get_workflow_handle(workflow_id, run_id=run_id)
        started = await anext(handle.fetch_history_events(page_size=1))
    except RPCError:
        return
    payloads = started.workflow_execution_started_event_attributes.input.payloads
    for payload in await client.data_converter.payload_codec.decode(payloads):
        if FAULT in payload.metadata:
            raise EncryptionError(payload.metadata[FAULT].decode(errors="replace"))


async def read_from_history(
    client: Client, handle: WorkflowHandle[Any, Any], *, goes_on: bool
) -> tuple[list[Entry], set[str]]:
    """Return a session's journal from the history of one run, and the events whose shared state is known to be shared.

    Payloads are decoded as the client does.

    Args:
        client: The client.
        handle: The run.
        goes_on: What was at work goes on at once (see `salvage`).

    Raises:
        LogError: The history does not hold all of it.
        EncryptionError: The client lacks the key that the run began with.
    """
    await check_readable(client, handle.id, handle.run_id)
    history = await handle.fetch_history()
    converter = client.data_converter
    if converter.payload_codec is not None or converter.external_storage is not None:
        for event in history.events:
            await decode(event, converter)
    events = history.events
    begun: list[Entry] = []
    if length_outside(events):
        begun = await read_archive(client, handle.id, handle.run_id)
    return salvage(events, begun=begun, goes_on=goes_on), shared_writes(events, begun=begun)
