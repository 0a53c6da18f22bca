"""Builds response events, and questions about their calls, in ADK's wire format. Pure.

ADK: `flows/llm_flows/functions.py` and `flows/llm_flows/request_confirmation.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perdure.journal.entries import ToolOutput
from perdure.journal.events import REQUEST_CONFIRMATION, REQUEST_CREDENTIAL, Event, EventActions, ToolConfirmation
from perdure.plan.contents import types

_AWAITS_CONFIRMATION = {"error": "This tool call requires confirmation, please approve or reject."}
REJECTED = ToolOutput(result={"error": "This tool call is rejected."})
"""What the model is told of a tool call that a person rejected."""


def error_output(message: str) -> ToolOutput:
    """Return the output of a call that was made wrongly: the model can make it right."""
    return ToolOutput(result={"error": message})


def failure_output(tool: str, cause: str, attempts: int) -> ToolOutput:
    """Return the output of a tool that has failed for good, if its model is told."""
    times = f" {attempts} times, the last time with" if attempts > 1 else ":"
    return error_output(
        f"Tool {tool!r} failed{times} {cause}. It is not tried again by itself. Call it with other arguments if those"
        " may be the reason, or go on without it."
    )


def unknown_output(tool: str, reason: str) -> ToolOutput:
    """Return the output of a call that may have taken effect, where nobody can be asked."""
    return error_output(
        f"It is not known whether the call of {tool!r} took effect: {reason}. Do not call it again before somebody has"
        " looked; tell the user so."
    )


def told_beside(message: str, result: Any) -> dict[str, Any]:
    """Return the output of a call that has run all the same: an error, beside what it returned, if anything."""
    return {"error": message} if result is None else {"error": message, "result": result}


def wrap_result(result: Any) -> dict[str, Any]:
    """Return a tool's result as a function response's object: anything but an object is wrapped."""
    return result if isinstance(result, dict) else {"result": result}  # pyright: ignore[reportUnknownVariableType] -- JSON


def confirmation_hint(tool: str) -> str:
    """Return the question that a tool with `require_confirmation` asks, in ADK's words."""
    return (
        f"Please approve or reject the tool call {tool}() by responding with a FunctionResponse with an expected"
        " ToolConfirmation payload."
    )


def requested_confirmation(call: types.FunctionCall, output: ToolOutput) -> ToolConfirmation | None:
    """Return the confirmation that a call asks for, if it does."""
    if output.needs_confirmation:
        return ToolConfirmation(hint=confirmation_hint(call.name or ""))
    return output.actions.requested_tool_confirmations.get(call.id or "")


def asks_person(call: types.FunctionCall, output: ToolOutput) -> bool:
    """Return whether what came of a call is a question, after whose answer the tool runs."""
    return requested_confirmation(call, output) is not None or call.id in output.actions.requested_auth_configs


def confirmation_request(
    calls: Sequence[types.FunctionCall], outputs: Mapping[str, ToolOutput], ids: Iterable[str], *, role: str = "user"
) -> Event | None:
    """Return the event that asks for confirmations: one `adk_request_confirmation` call for each that needs one."""
    fresh = iter(ids)
    requests: list[types.FunctionCall] = []
    for call in calls:
        asked = requested_confirmation(call, outputs[call.id or ""])
        if asked is not None:
            args = {
                "originalFunctionCall": {"id": call.id, "args": call.args or {}, "name": call.name},
                "toolConfirmation": asked.model_dump(mode="json", by_alias=True, exclude_none=True),
            }
            requests.append(types.FunctionCall(id=next(fresh), name=REQUEST_CONFIRMATION, args=args))
    return _question(requests, role)


def credential_request(response: Event | None, ids: Iterable[str], *, once_for_each: bool) -> Event | None:
    """Return the event that asks for the credentials that calls need, as their responses say.

    Args:
        response: The responses.
        ids: Fresh ids of calls.
        once_for_each: Whether calls that need the same credential share a question, as in ADK 2.
    """
    needed = response.actions.requested_auth_configs if response is not None else {}
    fresh = iter(ids)
    requests: list[types.FunctionCall] = []
    asked: set[str] = set()
    for call_id, config in needed.items():
        key = config.get("credentialKey")
        if once_for_each and key in asked:
            continue
        asked |= {key} if key else set()
        args = {"functionCallId": call_id, "authConfig": config}
        requests.append(types.FunctionCall(id=next(fresh), name=REQUEST_CREDENTIAL, args=args))
    return _question(requests, "user")


def _question(requests: Sequence[types.FunctionCall], role: str) -> Event | None:
    if not requests:
        return None
    parts = [types.Part(function_call=request) for request in requests]
    return Event(
        content=types.Content(role=role, parts=parts),
        long_running_tool_ids=frozenset(request.id or "" for request in requests),
    )


def is_plain(output: ToolOutput) -> bool:
    """Return whether what came of a call says nothing of how its agent is to go on: a response, and what it wrote."""
    told = output.actions.model_copy(
        update={"state_delta": {}, "artifact_delta": {}, "skip_summarization": None, "render_ui_widgets": None}
    )
    waits = output.needs_confirmation or output.ends_agent or output.after or output.task_result is not None
    return not _is_silent(output) and told == EventActions() and not waits


def silent_calls(
    calls: Sequence[types.FunctionCall], outputs: Mapping[str, ToolOutput], long_running: frozenset[str]
) -> list[types.FunctionCall]:
    """Return the long-running calls whose tools returned nothing yet: no response event tells of them."""
    waiting = [call for call in calls if call.id in long_running and _is_silent(outputs[call.id or ""])]
    return [call for call in waiting if requested_confirmation(call, outputs[call.id or ""]) is None]


def _is_silent(output: ToolOutput) -> bool:
    return not output.result and output.content is None


def response_event(
    calls: Sequence[types.FunctionCall], outputs: Mapping[str, ToolOutput], long_running: frozenset[str]
) -> Event | None:
    """Return the one event that holds all responses in call order, its actions merged; `None` without any part."""
    parts: list[types.Part] = []
    actions: list[EventActions] = []
    silent = {call.id for call in silent_calls(calls, outputs, long_running)}
    for call in calls:
        if call.id in silent:
            continue
        output = outputs[call.id or ""]
        asked = requested_confirmation(call, output)
        if output.content is not None:
            parts.extend(output.content.parts or [])
            actions.append(output.actions)
            continue
        result = _AWAITS_CONFIRMATION if output.needs_confirmation else wrap_result(output.result)
        response = types.FunctionResponse(id=call.id, name=call.name, response=result)
        parts.append(types.Part(function_response=response))
        if asked is not None:
            asks = EventActions(skip_summarization=True, requested_tool_confirmations={call.id or "": asked})
            actions.append(merge_actions([output.actions, asks]))
        else:
            actions.append(output.actions)
    if not parts:
        return None
    return Event(content=types.Content(role="user", parts=parts), actions=merge_actions(actions))


def with_latest_writes(response: Event, outputs: Iterable[ToolOutput]) -> Event:
    """Return a response event in which lists and objects of the state are as they were written last. As in ADK 2.

    Args:
        response: The event, merged in the order of the calls.
        outputs: What the calls returned, in the order in which they did: one may have seen what another one wrote.
    """
    delta = response.actions.state_delta
    latest: dict[str, Any] = {}
    writers = Counter[str]()
    for output in outputs:
        written = output.actions.state_delta
        writers.update(written.keys())
        latest |= {key: value for key, value in written.items() if key not in output.written_over}
    latest = {
        key: value
        for key, value in latest.items()
        if writers[key] > 1 and key in delta and isinstance(value, (list, dict))
    }
    if not latest:
        return response
    merged = response.actions.model_dump(exclude_none=True)
    _merge(merged, {"state_delta": latest})
    return response.model_copy(update={"actions": EventActions.model_validate(merged)})


def merge_actions(actions: Sequence[EventActions]) -> EventActions:
    """Merge the actions of concurrent calls: objects deeply, the later call wins. As in ADK."""
    if len(actions) == 1:
        return actions[0]
    merged: dict[str, Any] = {}
    for action in actions:
        _merge(merged, action.model_dump(exclude_none=True))
    return EventActions.model_validate(merged)


def _merge(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    for key, value in new.items():
        old = into.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            _merge(old, value)  # pyright: ignore[reportUnknownArgumentType] -- JSON
        else:
            into[key] = value
