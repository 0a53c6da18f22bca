"""Reads the payloads of a session's history: its start, requests, steps, writes. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.update.v1 import Input

from perdure.errors import LogError
from perdure.messages.callbacks import CALL_BACK, CallbackInput
from perdure.messages.large_requests import MAY_BE_AHEAD, SEND_AHEAD, RequestsAhead, SentAhead
from perdure.messages.session import (
    CALL_MODEL,
    JOURNAL_MEMO,
    KEEP_JOURNAL,
    LOAD_PLAN,
    CodeInput,
    JournalPage,
    JournalSlice,
    LoadPlanInput,
    ModelInput,
    SessionInput,
    ToolInput,
)
from perdure.messages.shared_state import SHARE_STATE, ShareStateInput

Step = ModelInput | ToolInput | CodeInput | CallbackInput


def steps(history: Sequence[HistoryEvent]) -> Iterator[tuple[int, Step]]:
    """Yield the arguments of the agents' activities, with the event that scheduled each."""
    for event in history:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled = event.activity_task_scheduled_event_attributes
            call = step_of(scheduled.activity_type.name, scheduled.input)
            if call is not None:
                yield event.event_id, call


def requests(history: Sequence[HistoryEvent]) -> Iterator[tuple[int, str, Any]]:
    """Yield the accepted updates: the event that accepts one, the update's name, the request's JSON.

    Raises:
        LogError: A request is no JSON, or was sent ahead and is not there.
    """
    ahead = RequestsAhead[Payload]()
    for event in history:
        signal = event.workflow_execution_signaled_event_attributes
        if signal.signal_name == SEND_AHEAD:
            _keep(ahead, signal.input.payloads)
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
            update = event.workflow_execution_update_accepted_event_attributes.accepted_request.input
            yield event.event_id, update.name, _sent(update, ahead)


def _keep(ahead: RequestsAhead[Payload], args: Sequence[Payload]) -> None:
    """Keep what a signal brought as the session did, which dropped what it could not read."""
    try:
        name = read_json(Payloads(payloads=args[:1]))
    except LogError:
        return
    if len(args) == 2 and isinstance(name, str):
        ahead.keep(name, args[1], len(args[1].data))


def _sent(update: Input, ahead: RequestsAhead[Payload]) -> Any:
    request = read_json(update.args)
    if update.name not in MAY_BE_AHEAD:
        return request
    try:
        name = SentAhead.model_validate(request).sent_ahead
    except ValueError:
        return request
    found = ahead.take(name)
    if found is None:
        raise LogError("the history holds an update, but not the signal that brought its request")
    return read_json(Payloads(payloads=[found]))


def writes_of(history: Sequence[HistoryEvent]) -> Iterator[tuple[int, ShareStateInput]]:
    """Yield the arguments of activities that share state, with the event that scheduled each."""
    for event in history:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled = event.activity_task_scheduled_event_attributes
            if scheduled.activity_type.name == SHARE_STATE:
                yield event.event_id, ShareStateInput.model_validate(read_json(scheduled.input))


def step_of(name: str, data: Payloads) -> Step | None:
    """Return what an activity was given, if it is a step of an agent."""
    if name == CALL_MODEL:
        return ModelInput.model_validate(read_json(data))
    if name == CALL_BACK:
        return CallbackInput.model_validate(read_json(data))
    found: Any = read_json(data) if data.payloads else None
    if not isinstance(found, Mapping) or ":" in name:
        return None
    kind: Any = found.get("kind")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] -- JSON
    if kind == "tool":
        return ToolInput.model_validate(found)
    return CodeInput.model_validate(found) if kind == "code" else None


def kept_part(event: HistoryEvent) -> JournalSlice | None:
    """Return the part of the journal that an event holds which is no step of an agent, if it holds one."""
    if event.HasField("workflow_properties_modified_event_attributes"):
        memo = event.workflow_properties_modified_event_attributes.upserted_memo.fields
        found = read_json(Payloads(payloads=[memo[JOURNAL_MEMO]])) if JOURNAL_MEMO in memo else None
        part = JournalSlice.model_validate(found) if found is not None else None
        # An empty one says how long the journal is whose pages come.
        return part if part is not None and part.length > part.offset else None
    scheduled = event.activity_task_scheduled_event_attributes
    name = scheduled.activity_type.name
    if name == LOAD_PLAN:
        return LoadPlanInput.model_validate(read_json(scheduled.input)).journal
    if name != KEEP_JOURNAL:
        # A tool's other functions are no steps, but carry it, too.
        beside = ":" in name and not name.startswith("perdure:")
        return ToolInput.model_validate(read_json(scheduled.input)).journal if beside else None
    page = JournalPage.model_validate(read_json(scheduled.input))
    return JournalSlice(offset=page.offset, packed=page.packed, count=len(page.entries))


def task_of(event: HistoryEvent) -> int:
    """Return the event of the workflow task that told something of the journal."""
    return max(
        event.activity_task_scheduled_event_attributes.workflow_task_completed_event_id,
        event.workflow_properties_modified_event_attributes.workflow_task_completed_event_id,
    )


def step_key(call: Step) -> tuple[str, ...]:
    """Return a key that tells one step of an agent from another, over its retries."""
    match call:
        case ModelInput():
            return ("model", *call.scope, call.invocation_id, call.agent, call.branch or "")
        case ToolInput():
            return ("tool", call.function_call_id)
        case CallbackInput():
            return ("callback", call.which, *call.scope, call.invocation_id, call.agent, call.branch or "", call.run)
        case CodeInput():
            called = (call.name, call.arguments, str(call.index))
            return ("code", call.invocation_id or "", call.agent or "", call.run, *called)


def read_json(data: Payloads) -> Any:
    """Return the first payload's value.

    Raises:
        LogError: It is no JSON.
    """
    try:
        return json.loads(data.payloads[0].data) if data.payloads and data.payloads[0].data else None
    except ValueError as error:
        raise LogError(f"a payload of the history is no JSON: {error}; is it encrypted?") from error


def start_of(data: Payloads) -> SessionInput:
    """Return the argument of a run's workflow."""
    return SessionInput.model_validate(read_json(data)) if data.payloads else SessionInput()
